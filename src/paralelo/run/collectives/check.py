"""Before the first message: do all ranks of the group mean the same call, on shapes that fit?

Each rank says what it is about to do in twelve whole numbers (the operation, the type, the number of dimensions, up to
eight sizes, and a checksum of its other choices, such as the operator of a reduction or the sizes of the parts); one
small all-gather shows them to all. A mismatch is a `Refused` on every rank, so that none is left waiting.
"""

import zlib
from contextlib import contextmanager

import torch
import torch.distributed as dist

from paralelo.run import ledger
from paralelo.words import Refused

OPS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "split", "ring"]
DTYPES = sorted({x for x in vars(torch).values() if isinstance(x, torch.dtype)}, key=str)
DIMS = 8
_on = [True]
# torch 2.13 renamed both; the package asks for 2.8 or later
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@contextmanager
def unchecked():
    """Leave the checks out, on all ranks alike: for code that is timed, or whose shapes were seen to fit."""
    before, _on[0] = _on[0], False
    try:
        yield
    finally:
        _on[0] = before


def agree(op: str, x: torch.Tensor, group, but: int | None = None, detail=()) -> list[list[int]] | None:
    """Every rank's shape, or None where the check is left out. Raises `Refused` on all ranks where the operation, the
    type, the shapes or `detail` (anything whose `repr` tells it apart) differ; sizes along dimension `but` may."""
    if not _on[0] or group.size() == 1:
        return None
    mine = [OPS.index(op), DTYPES.index(x.dtype), x.dim(), *x.shape[:DIMS], *[0] * (DIMS - x.dim()),
            zlib.crc32(repr((detail, *x.shape[DIMS:])).encode())]
    told = told_by_all(mine, group)
    kinds = [OPS[t[0]] for t in told]
    shapes = [t[3:3 + min(t[2], DIMS)] for t in told]
    if len(set(kinds)) > 1:
        raise Refused("run.calls_differ", calls=_by_rank(kinds))
    types = [str(DTYPES[t[1]]).removeprefix("torch.") for t in told]
    if len(set(types)) > 1:
        raise Refused("run.types_differ", op=op, types=_by_rank(types))
    if len({tuple(s if d != but else 0 for d, s in enumerate(shape)) for shape in shapes}) > 1:
        raise Refused("run.shapes_differ", op=op, shapes=_by_rank(shapes))
    if len({t[-1] for t in told}) > 1:
        raise Refused("run.details_differ", op=op)
    return shapes


def told_by_all(numbers: list[int], group) -> list[list[int]]:
    """Every rank's list of whole numbers, in rank order; the ledger leaves this out."""
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    mine = torch.tensor(numbers, dtype=torch.int64, device=device)
    of_all = torch.empty(group.size() * len(numbers), dtype=torch.int64, device=device)
    with ledger.paused():
        all_gather_single(of_all, mine, group=group)
    return of_all.view(group.size(), -1).tolist()


def _by_rank(values) -> str:
    return ", ".join(f"rank {r}: {v}" for r, v in enumerate(values))
