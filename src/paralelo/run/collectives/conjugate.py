"""The pairs: each forward with the backward that its mathematics asks for."""

import torch
from torch import Tensor

from paralelo.run.collectives.check import agree, told_by_all
from paralelo.run.collectives.plain import (
    _all_gather,
    _all_reduce,
    _all_to_all_list,
    all_reduce,
    dimension,
    held_by_all,
    reduce_scattered,
    split_sizes,
)
from paralelo.words import Refused


class _CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return _all_reduce(dy, ctx.group), None


class _ReduceFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx, dy):
        return dy, None


class _SplitTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, dim, sizes):
        ctx.how = group, dim, sizes
        return part(x, *ctx.how)

    @staticmethod
    def backward(ctx, dy):
        return _all_gather(dy, *ctx.how), None, None, None


class _GatherFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, dim, sizes, partial):
        ctx.partial, ctx.how = partial, (group, dim, sizes)
        return _all_gather(x, group, dim, sizes)

    @staticmethod
    def backward(ctx, dy):
        return (reduce_scattered if ctx.partial else part)(dy, *ctx.how), None, None, None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, dim, sizes):
        ctx.how = group, dim, sizes
        return reduce_scattered(x, *ctx.how)

    @staticmethod
    def backward(ctx, dy):
        return _all_gather(dy, *ctx.how), None, None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, dim, concat_dim, send, receive):
        ctx.group, ctx.dims = group, (dim, concat_dim)
        pieces = [p.contiguous() for p in x.split(send, dim)]
        shapes = arriving(x, group, dim, concat_dim, send, receive)
        ctx.shapes = [p.shape for p in pieces]
        ctx.receive = receive
        return torch.cat(_all_to_all_list(pieces, shapes, group), concat_dim)

    @staticmethod
    def backward(ctx, dy):
        dim, concat_dim = ctx.dims
        pieces = [p.contiguous() for p in dy.split(ctx.receive, concat_dim)]
        return torch.cat(_all_to_all_list(pieces, ctx.shapes, ctx.group), dim), None, None, None, None, None


def copy_to(x: Tensor, group) -> Tensor:
    """f: `x` itself; backward sums the gradients of all ranks, 2(N−1)/N·n bytes a rank.

    Stands before work that each rank does on its own part with the same x: a column-parallel linear.
    """
    return _CopyTo.apply(x, group)


def reduce_from(x: Tensor, group) -> Tensor:
    """g: Σ_r x_r on every rank, 2(N−1)/N·n bytes a rank; backward hands dy to each as it is.

    Stands after work whose results are to be added, where all go on alike: a row-parallel linear.
    """
    return _ReduceFrom.apply(x, group)


def split_to(x: Tensor, group, dim: int = -1, sizes: list[int] | None = None) -> Tensor:
    """This rank's part of an `x` that all hold alike; backward gathers the parts' gradients.

    `sizes`: how much each rank takes, the larger parts first where it is left out and does not divide.
    """
    dim = dimension(x, dim)
    sizes = _sizes(x, group, dim, sizes)
    agree("split", x, group, detail=(dim, sizes))
    return _SplitTo.apply(x, group, dim, sizes)


def gather_from(x: Tensor, group, dim: int = -1, sizes: list[int] | None = None, partial: bool = False) -> Tensor:
    """[x_0 … x_{N−1}] along `dim`, (N−1)/N·n bytes a rank, n of the whole.

    Backward takes this rank's part of dy, where all hold the same dy; with `partial`, dy is this rank's contribution
    and a reduce-scatter adds them. `sizes`: what each rank holds (without it, they tell each other).
    """
    dim = dimension(x, dim)
    return _GatherFrom.apply(x, group, dim, held_by_all("all_gather", x, group, dim, sizes, partial), partial)


def reduce_scatter(x: Tensor, group, dim: int = -1, sizes: list[int] | None = None) -> Tensor:
    """This rank's part, along `dim`, of Σ_r x_r: (N−1)/N·n bytes a rank; backward gathers, with as many."""
    dim = dimension(x, dim)
    sizes = _sizes(x, group, dim, sizes)
    agree("reduce_scatter", x, group, detail=(dim, sizes))
    return _ReduceScatter.apply(x, group, dim, sizes)


def all_to_all(x: Tensor, group, dim: int = 0, concat_dim: int | None = None, send: list[int] | None = None,
               receive: list[int] | None = None) -> Tensor:
    """Part j of `x` along `dim` goes to rank j; what arrives is put together along `concat_dim`, in rank order.

    `concat_dim` is `dim` where it is left out: tokens that change their rank, whose numbers `send` gives; `receive`
    says how many come from each rank (without it, they tell each other). Another `concat_dim` trades one split for
    another: (B, T/N, H, d) with dim=2, concat_dim=1 becomes (B, T, H/N, d). Then all ranks cut alike by `send`, and
    `receive` is each rank's size along `concat_dim`. Any part may be empty. Backward sends every part back.
    """
    dim = dimension(x, dim)
    concat_dim = dim if concat_dim is None else dimension(x, concat_dim)
    send = _sizes(x, group, dim, send)
    if concat_dim == dim:
        receive = _arriving_rows(x, group, dim, send, receive)
    else:
        receive = held_by_all("all_to_all", x, group, concat_dim, receive, (dim, send))
    return _AllToAll.apply(x, group, dim, concat_dim, send, receive)


def _arriving_rows(x, group, dim, send, receive) -> list[int]:
    """How many come from each rank; where the checks are on, what was said of it must be what the others send."""
    checked = agree("all_to_all", x, group, but=dim, detail=(dim, receive is None))
    if receive is None:
        return [row[group.rank()] for row in told_by_all(send, group)]
    N, receive = group.size(), [int(n) for n in receive]
    if len(receive) != N:
        raise Refused("run.sizes_number", sizes=receive, N=N)
    if checked:
        told = told_by_all([*send, *receive], group)
        for r, row in enumerate(told):
            coming = [other[r] for other in told]
            if row[N:] != coming:
                raise Refused("run.receive_differs", rank=r, receive=row[N:], coming=coming)
    elif N == 1 and receive != send:
        raise Refused("run.receive_differs", rank=0, receive=receive, coming=send)
    return receive


def part(x: Tensor, group, dim: int, sizes: list[int]) -> Tensor:
    """A copy of this rank's part of `x`."""
    rank = group.rank()
    return x.narrow(dim, sum(sizes[:rank]), sizes[rank]).clone(memory_format=torch.contiguous_format)


def arriving(x, group, dim, concat_dim, send, receive) -> list[torch.Size]:
    """The shape of what comes from each rank."""
    mine = list(x.shape)
    mine[dim] = send[group.rank()]
    shapes = []
    for n in receive:
        mine[concat_dim] = n
        shapes.append(torch.Size(mine))
    return shapes


def _sizes(x, group, dim, sizes) -> list[int]:
    if sizes is None:
        return split_sizes(x.shape[dim], group.size())
    sizes = [int(n) for n in sizes]
    if len(sizes) != group.size():
        raise Refused("run.sizes_number", sizes=sizes, N=group.size())
    if sum(sizes) != x.shape[dim] or min(sizes) < 0:
        raise Refused("run.sizes_sum", sizes=sizes, dim=dim, held=x.shape[dim])
    return sizes
