"""Root-mean-square norm, whole or with the normalised features split over a group.

    y = x / √(mean(x²) + ε) · w

Over the D features of the residual stream, or over one head, everything is on the rank: nothing is sent. Over *all*
heads (weight of H·d), the mean spans the group: each rank sums the squares of its own heads and one all-reduce of a
number per position adds them. Every rank then divides its own features by that sum, so the sum's gradient is partial on
every rank too: backward all-reduces it as well (`copy_to` after `reduce_from`).
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paralelo.run.collectives import copy_to, reduce_from

__all__ = ["RMSNorm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6, group: dist.ProcessGroup | None = None,
             size: int | None = None, copies: int = 1) -> Tensor:
    """x / √(mean(x²) + ε) · w over the last dim.

    With a `group`, the last dim is this rank's part of `size` features, and each part lies on `copies` ranks.

    >>> rms_norm(torch.tensor([1., 1., 3., 3.]), torch.ones(4), eps=0).tolist()[::2]    # √5 = 2.236
    [0.4472135901451111, 1.3416407108306885]
    """
    squares = x.square().sum(-1, keepdim=True)
    if group is not None and group.size() > 1:
        squares = copy_to(reduce_from(squares / copies, group), group)
    return x * (squares / (size or x.shape[-1]) + eps).rsqrt() * weight


class RMSNorm(nn.Module):
    """`rms_norm` over the last dim with its weight of `size`, on every rank the same."""

    def __init__(self, size: int, eps: float = 1e-6, device=None, dtype=None):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size, device=device, dtype=dtype)), eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)
