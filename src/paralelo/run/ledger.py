"""A ledger of what a rank sends: calls, payload and the bytes a ring would send, by kind and axis.

    with Ledger(tensor=group) as ledger:
        loss = model(x); loss.backward()
    print(ledger)
    ledger["all_reduce", "tensor"].ring

It watches torch's own calls on their way to a process group, so whatever makes them is seen: the collectives of this
library, DTensor, torch.distributed.pipelining, DistributedDataParallel, a hand-written `dist.all_reduce`.

The payload n of a call, and what a ring of N ranks would send of it. gloo really sends that, headers aside, for all but
one kind: it makes a reduce-scatter out of an all-reduce, and sends twice as much.

    all_reduce       n = the tensor                          2(N−1)/N·n
    all_gather       n = the whole result                    (N−1)/N·n     (uneven: what this rank holds, N−1 times)
    reduce_scatter   n = the whole input                     (N−1)/N·n     (uneven: what other ranks get)
    all_to_all       n = this rank's input                   what is not for itself; (N−1)/N·n when even
    broadcast, scatter, gather, reduce                       n = the tensor a rank gets (or gives); n in a ring
    send             n = the tensor                          n
    recv             counted as a call                       0

Watching costs time (every operation passes through Python): what is timed is not watched.
"""

import sys
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

KINDS = {
    "allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce", "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce", "all_reduce_coalesced": "all_reduce", "all_reduce_coalesced_": "all_reduce",
    "allgather_": "all_gather", "_allgather_base_": "all_gather", "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather", "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather", "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_": "reduce_scatter", "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall_": "all_to_all", "alltoall_base_": "all_to_all", "all_to_all_single": "all_to_all",
    "broadcast_": "broadcast", "broadcast": "broadcast", "reduce_": "reduce", "gather_": "gather",
    "scatter_": "scatter", "send": "send", "isend": "send", "recv_": "recv", "recv_any_source_": "recv",
    "irecv": "recv",
}
_paused, _kind = [0], [None]


@contextmanager
def paused():
    """What is sent inside is bookkeeping, and no ledger counts it."""
    _paused[0] += 1
    try:
        yield
    finally:
        _paused[0] -= 1


@contextmanager
def counted_as(kind: str):
    """What is sent inside does the work of another collective, and is counted as that."""
    before, _kind[0] = _kind[0], kind
    try:
        yield
    finally:
        _kind[0] = before


@dataclass
class Entry:
    """Sums over the calls of one kind on one axis. Bytes of this rank."""

    calls: int = 0
    payload: int = 0
    ring: float = 0

    def add(self, calls, payload, ring) -> None:
        self.calls += calls
        self.payload += payload
        self.ring += ring
        if self.ring == int(self.ring):
            self.ring = int(self.ring)


class Ledger(TorchDispatchMode):
    """Counts what passes while it is entered: `Ledger(tensor=group, data=other_group)`, or `Ledger(mesh)` for the axes
    of a DeviceMesh. Groups it was not told of stand under `world`, or under torch's name of the group.

    Two axes over the same ranks (of one rank each, or the whole world twice) are told apart by the group given.
    """

    def __init__(self, mesh=None, /, **groups):
        super().__init__()
        self.entries: dict[tuple[str, str], Entry] = {}
        self.sequence: list[tuple[str, str, int, int]] = []
        self._axes = {group.group_name: axis for axis, group in groups.items() if group is not None}
        if mesh is not None:
            self._axes |= {mesh.get_group(axis).group_name: axis for axis in mesh.mesh_dim_names}

    def __getitem__(self, key: tuple[str, str] | str) -> Entry:
        """The entry of (kind, axis); of one kind over all axes, or of one axis over all kinds. Empty if none."""
        total = Entry()
        for (kind, axis), entry in self.entries.items():
            if key in ((kind, axis), kind, axis):
                total.add(entry.calls, entry.payload, entry.ring)
        return total

    @property
    def total(self) -> Entry:
        total = Entry()
        for entry in self.entries.values():
            total.add(entry.calls, entry.payload, entry.ring)
        return total

    def rows(self) -> list[tuple[str, str, int, int, float]]:
        """(axis, kind, calls, payload, ring), sorted."""
        return sorted((axis, kind, e.calls, e.payload, e.ring) for (kind, axis), e in self.entries.items())

    def __str__(self) -> str:
        rows = [("axis", "kind", "calls", "payload", "ring"),
                *((a, k, str(c), f"{p:,} B", f"{r:,.0f} B") for a, k, c, p, r in self.rows())]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        return "\n".join("  ".join(cell.ljust(w) if i < 2 else cell.rjust(w)
                                   for i, (cell, w) in enumerate(zip(row, widths, strict=True))) for row in rows)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if _is_dtensor(types):
            return NotImplemented                    # let DTensor turn it into collectives; those come by again
        if func.namespace in ("c10d", "_c10d_functional") and not _paused[0]:
            self._note(func._schema.name.split("::")[1], args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _note(self, name, args, kwargs):
        if name == "batch_p2p_ops":
            for op, tensor in zip(args[0], args[3], strict=True):
                self._add(op.removeprefix("i"), _group(args[4]), _bytes(tensor), _bytes(tensor) * (op == "isend"))
            return
        kind = KINDS.get(name)
        if kind is None:                             # barriers and waits carry no tensor
            return
        group = next(g for g in map(_group, [*args, *kwargs.values()][::-1]) if g is not None)
        N, rank = group.size(), group.rank()
        match name:
            case "allgather_" | "_allgather_base_":
                n, mine = _bytes(args[0]), _bytes(args[1])
                sent = (N - 1) * mine
            case "allgather_coalesced_" | "allgather_into_tensor_coalesced_":
                n, sent = _bytes(args[0]), (N - 1) * _bytes(args[1])
            case _ if kind == "all_gather":
                n, sent = N * _bytes(args[0]), (N - 1) * _bytes(args[0])
            case "reduce_scatter_" | "_reduce_scatter_base_" | "reduce_scatter_tensor_coalesced_":
                n = _bytes(args[1])
                sent = n - _bytes(args[0])
            case _ if kind == "reduce_scatter":
                n = _bytes(args[0])
                sent = n * (N - 1) / N
            case "alltoall_":
                n = _bytes(args[1])
                sent = n - _bytes(args[1][rank])
            case "alltoall_base_" | "all_to_all_single":
                x, cuts = (args[1], args[4]) if name == "alltoall_base_" else (args[0], args[2])
                n = _bytes(x)
                own = cuts[rank] * n // max(1, x.shape[0]) if cuts else n // N
                sent = n - own
            case "recv_" | "recv_any_source_" | "irecv":
                n, sent = _bytes(args[0]), 0
            case "gather_":
                n = sent = _bytes(args[1])
            case _ if kind == "all_reduce":
                n = _bytes(args[0])
                sent = 2 * (N - 1) * n / N
            case _:
                n = sent = _bytes(args[0])
        if _kind[0] and kind == "all_to_all":        # an uneven all-gather: the whole is what arrives
            kind = _kind[0]
            n = _bytes(args[0]) if kind == "all_gather" else n
        self._add(kind, group, n, sent)

    def _add(self, kind, group, payload, ring):
        axis = self._axes.get(group.group_name)
        if axis is None:
            axis = "world" if group.group_name == dist.group.WORLD.group_name else group.group_name
        self.entries.setdefault((kind, axis), Entry()).add(1, payload, ring)
        self.sequence.append((kind, axis, payload, ring))


def _is_dtensor(types) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(issubclass(t, module.DTensor) for t in types)


def _group(x):
    """The process group an argument stands for, if it does."""
    if isinstance(x, dist.ProcessGroup):
        return x
    if isinstance(x, torch.ScriptObject):
        try:
            return dist.ProcessGroup.unbox(x)
        except RuntimeError:                         # a ReduceOp
            return None
    if isinstance(x, str):
        try:
            return dist.distributed_c10d._resolve_process_group(x)
        except (KeyError, ValueError, RuntimeError):
            return None
    return None


def _bytes(x) -> int:
    return sum(t.numel() * t.element_size() for t in tree_flatten(x)[0] if isinstance(t, torch.Tensor))
