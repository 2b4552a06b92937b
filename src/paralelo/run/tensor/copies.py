"""A parameter that several ranks of a group hold: its gradient is the sum of what each copy saw.

With K key/value heads on N > K ranks, c = N/K neighbouring ranks hold the same head, and each attends to it with its
own query heads only. Forward is the identity. Backward adds the c copies' gradients by hand, as reduce-scatter and
all-gather among the copies: each cuts its gradient in c parts, sends part i to copy i, adds what it got, and sends
the sum back; 2(c − 1)/c times the size of the piece. Both are an all-to-all of the *given* group in which non-copies
exchange nothing. A subgroup of the copies could do it with one all-reduce; but `new_group` must be entered by the
whole world, and a layer knows its own group only (with two tensor groups in one world it would hang). An all-reduce
of the whole group over K slots would send 2(N − 1)/N · K pieces: 7 where this sends 1, for K = 4, N = 8.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from paralelo.run.collectives import all_to_all_list

__all__ = ["sum_copies"]


class _SumCopies(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, copies):
        ctx.group, ctx.copies = group, copies
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        rank, world_size = ctx.group.rank(), ctx.group.size()
        first = rank // ctx.copies * ctx.copies
        mates = range(first, first + ctx.copies)
        flat = grad.contiguous().flatten()
        parts = flat.tensor_split(ctx.copies)
        sizes = [part.numel() for part in parts]

        def among_copies(send, receive):
            pieces = [send[r - first] if r in mates else flat[:0] for r in range(world_size)]
            counts = [receive[r - first] if r in mates else 0 for r in range(world_size)]
            return all_to_all_list(pieces, counts, ctx.group)[first:first + ctx.copies]

        got = among_copies(parts, [sizes[rank - first]] * ctx.copies)
        mine = torch.stack(got).sum(0)  # one rank adds each part, so that the copies stay equal to the bit
        return torch.cat(among_copies([mine] * ctx.copies, sizes)).view_as(grad), None, None


def sum_copies(x: Tensor, group: dist.ProcessGroup, copies: int) -> Tensor:
    """`x` itself; backward, its gradient summed over the `copies` neighbouring ranks that hold the same piece."""
    return x if copies == 1 else _SumCopies.apply(x, group, copies)
