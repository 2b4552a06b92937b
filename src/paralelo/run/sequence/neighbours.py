"""What a rank sends to the ranks beside it along the sequence.

    pass_on(x)     round the ring: r → r+1, the last to the first; posted at once, waited for later
    shift(x, by)   along the line: Y_r = X_{r−by}, zeros where there is no such rank
    halo(x, n)     the last n positions of the rank before (zeros on the first rank)

Backward of `shift(by)` is `shift(−by)`: what came from the left owes its gradient to the left. Bytes a rank: those of
x, forward and backward, for every rank but the `by` last.
"""

import torch

from paralelo.run.collectives import exchange
from paralelo.words import Refused


def pass_on(x: torch.Tensor, group):
    """Sends `x` to the next rank of the ring; calling what is returned waits for the block of the rank before."""
    rank, N = group.rank(), group.size()
    return exchange(x, (rank + 1) % N, torch.empty_like(x), (rank - 1) % N, group)


def send_to(x: torch.Tensor, rank: int, group) -> None:
    """Sends `x` to `rank` of the group."""
    exchange(x, rank, None, None, group)()


def receive_from(like: torch.Tensor, rank: int, group) -> torch.Tensor:
    """What `rank` of the group sent with `send_to`, shaped like `like`."""
    return exchange(None, None, torch.empty_like(like), rank, group)()


def _shift(x: torch.Tensor, group, by: int) -> torch.Tensor:
    rank, N = group.rank(), group.size()
    to = rank + by if 0 <= rank + by < N else None
    source = rank - by if 0 <= rank - by < N else None
    if to is None and source is None:
        return torch.zeros_like(x)
    return exchange(x.contiguous(), to, torch.zeros_like(x), source, group)()


class _Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, by):
        ctx.group, ctx.by = group, by
        return _shift(x, group, by)

    @staticmethod
    def backward(ctx, grad):
        return _shift(grad, ctx.group, -ctx.by), None, None


def shift(x: torch.Tensor, group, by: int = 1) -> torch.Tensor:
    """The `x` of the rank `by` places before; zeros where there is none. All ranks hold the same shape."""
    return _Shift.apply(x, group, by)


def halo(x: torch.Tensor, group, n: int, dim: int = 1) -> torch.Tensor:
    """The `n` positions before this rank's first: what a causal convolution of width n+1 needs in front.

    x         (…, T/N, …)
    returned  (…, n, …)    zeros on the first rank, as at the beginning of the dense sequence
    """
    held = x.shape[dim]
    if held < n:
        raise Refused("run_sequence.halo", held=held, halo=n, width=n + 1, T=n * group.size())
    return shift(x.narrow(dim, held - n, n), group)
