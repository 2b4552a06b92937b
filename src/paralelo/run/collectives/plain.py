"""The same messages without autograd: new tensors, any sizes, through host memory where the backend needs it."""

import torch
import torch.distributed as dist
from torch import Tensor

from paralelo.run import ledger
from paralelo.run.collectives.check import agree, all_gather_single, reduce_scatter_single, told_by_all
from paralelo.words import Refused


def split_sizes(total: int, N: int) -> list[int]:
    """How `total` falls on N ranks where it does not divide: the larger parts first.

    >>> split_sizes(10, 4), split_sizes(2, 4)
    ([3, 3, 2, 2], [1, 1, 0, 0])
    """
    return [total // N + (r < total % N) for r in range(N)]


def all_reduce(x: Tensor, group, op=dist.ReduceOp.SUM) -> Tensor:
    """Σ_r x_r (or another reduction) on every rank."""
    agree("all_reduce", x, group, detail=str(op))
    return _all_reduce(x, group, op)


def _all_reduce(x, group, op=dist.ReduceOp.SUM):
    y = wire(x, group).clone(memory_format=torch.contiguous_format)
    if y.numel() and group.size() > 1:
        dist.all_reduce(y, op=op, group=group)
    return y.to(x.device)


def all_gather(x: Tensor, group, dim: int = 0, sizes: list[int] | None = None) -> Tensor:
    """[x_0 … x_{N−1}] along `dim`. `sizes` says how much of it each rank holds; without it, they tell each other."""
    dim = dimension(x, dim)
    return _all_gather(x, group, dim, held_by_all("all_gather", x, group, dim, sizes))


def held_by_all(op, x, group, dim, sizes=None, detail=()) -> list[int]:
    """What each rank holds along `dim`, which is `sizes` if that is given; refused on all ranks if it is not."""
    sizes = None if sizes is None else [int(n) for n in sizes]
    shapes = agree(op, x, group, but=dim, detail=(dim, sizes, detail))
    held = [s[dim] for s in shapes] if shapes else [x.shape[dim]] if group.size() == 1 else None
    if sizes is None:
        return held or [n for n, in told_by_all([x.shape[dim]], group)]
    if len(sizes) != group.size():
        raise Refused("run.sizes_number", sizes=sizes, N=group.size())
    if held and sizes != held:
        raise Refused("run.sizes_differ", op=op, sizes=sizes, held=held, dim=dim)
    return sizes


def _all_gather(x, group, dim, sizes):
    N = group.size()
    if N == 1 or not sum(sizes):
        return x.clone()
    if len(set(sizes)) == 1:                                          # one tensor, rank after rank
        mine = wire(x, group).contiguous()
        of_all = mine.new_empty(N * mine.numel())
        if mine.numel():
            all_gather_single(of_all, mine.flatten(), group=group)
        pieces = of_all.view(N, *mine.shape).unbind(0)
    else:                                                             # all_gather of unlike sizes raises on gloo
        shapes = [(*x.shape[:dim], n, *x.shape[dim + 1:]) for n in sizes]
        with ledger.counted_as("all_gather"):
            pieces = _all_to_all_list([x] * N, shapes, group)
    return torch.cat([*pieces], dim).to(x.device)


def reduce_scattered(x: Tensor, group, dim: int, sizes: list[int]) -> Tensor:
    """Σ_j x_j[part r]: this rank's part, along `dim`, of the sum."""
    N, rank = group.size(), group.rank()
    if N == 1 or not x.numel():
        return x.narrow(dim, sum(sizes[:rank]), sizes[rank]).clone()
    pieces = [p.contiguous() for p in wire(x, group).split(sizes, dim)]
    if len(set(sizes)) == 1:
        mine = torch.empty_like(pieces[0])
        reduce_scatter_single(mine.view(-1), torch.cat([p.view(-1) for p in pieces]), group=group)
    else:                                                             # parts travel to their owner, who adds in order
        with ledger.counted_as("reduce_scatter"):
            got = _all_to_all_list(pieces, [pieces[rank].shape] * N, group)
        mine = torch.stack(got).sum(0)
    return mine.to(x.device)


def all_to_all_list(pieces: list[Tensor], sizes: list[int], group) -> list[Tensor]:
    """Piece j goes to rank j; what rank j sent comes back as a flat tensor of `sizes[j]` elements. Any may be empty.

    Every rank must know what it receives; nothing is checked.
    """
    return _all_to_all_list(pieces, [(n,) for n in sizes], group)


def _all_to_all_list(pieces, shapes, group):
    device, N = pieces[0].device, group.size()
    if N == 1:
        return [pieces[0].clone().view(shapes[0])]
    flat = torch.cat([wire(p, group).reshape(-1) for p in pieces])
    counts = [torch.Size(s).numel() for s in shapes]
    got = flat.new_empty(sum(counts))
    dist.all_to_all_single(got, flat, counts, [p.numel() for p in pieces], group=group)
    return [g.view(s).to(device) for g, s in zip(got.split(counts), shapes, strict=True)]


def exchange(x: Tensor | None, to: int | None, into: Tensor | None, source: int | None, group):
    """Send `x` to rank `to` of the group and receive into `into` from rank `source`, both posted at once; calling what
    is returned waits and gives `into`.

    Either half may be None. Posting both together is what makes the order safe: two ranks that first send and then
    receive wait for each other for ever where a send waits for its receiver (NCCL, and gloo with large messages).
    """
    ops, arriving, device = [], into, None if into is None else into.device
    leaving = None
    if to is not None:
        leaving = wire(x, group).contiguous()
        ops.append(dist.P2POp(dist.isend, leaving, group=group, group_peer=to))
    if source is not None:
        arriving = wire(into, group)
        arriving = arriving if arriving.is_contiguous() else arriving.contiguous()
        ops.append(dist.P2POp(dist.irecv, arriving, group=group, group_peer=source))
    works = dist.batch_isend_irecv(ops) if ops else []

    def wait():
        nonlocal leaving
        for work in works:
            work.wait()
        leaving = None                                                # held until it was sent
        if into is not None and arriving is not into:
            into.copy_(arriving)
        return into if device is not None else None

    return wait


def wire(x: Tensor, group) -> Tensor:
    """`x` where the backend can move it: gloo moves tensors of the host only."""
    return x.cpu() if x.is_cuda and dist.get_backend(group) == "gloo" else x


def dimension(x: Tensor, dim: int) -> int:
    """`dim` counted from the front."""
    if not -x.dim() <= dim < x.dim():
        raise Refused("run.dim", dim=dim, dims=x.dim())
    return dim % x.dim()
