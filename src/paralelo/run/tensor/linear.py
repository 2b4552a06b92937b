"""Linears split over a tensor group: by outputs (columns of the product) or by inputs (rows).

    column   Y = X Wᵀ + b,  W = [W_0; …; W_{N-1}],  Y_r = X W_rᵀ + b_r
    row      Y = Σ_r X_r W_rᵀ + b,  W = [W_0, …, W_{N-1}],  X = [X_0, …, X_{N-1}]

    column   X    (…, D)     the same on every rank          row   X_r  (…, F/N)   what a column-parallel layer left
             W_r  (F/N, D)   rows r·F/N … of W                     W_r  (D, F/N)   columns r·F/N … of W
             b_r  (F/N,)                                           b    (D,)       whole, added once, after the sum
             Y_r  (…, F/N)   rank r's outputs                      Y    (…, D)     the same on every rank

Column: forward sends nothing; backward all-reduces dX (`f` of Shoeybi et al. 2019, `copy_to`).
Row: forward all-reduces Y (`g`, `reduce_from`); backward sends nothing.
Either way 2(N-1)/N · |X| (or |Y|) elements a rank.

`enter` and `leave` are those two functions as arguments, so that sequence parallelism can put all-gather and
reduce-scatter in their place: `enter(x, group)`, `leave(y, group)`; `enter=None` is for an X that entered already.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from paralelo.run.collectives import copy_to, reduce_from
from paralelo.run.tensor.copies import sum_copies
from paralelo.run.tensor.split import Split, local_shape, piece

__all__ = ["ColumnParallelLinear", "RowParallelLinear"]


class _SplitLinear(nn.Module):
    """What both have in common: the group, the splits of weight and bias, empty local parameters."""

    def _declare(self, weight: Split, bias: Split | None, group, device, dtype):
        rank, world_size = group.rank(), group.size()
        self.group, self.rank, self.world_size = group, rank, world_size
        self._splits = {"weight": weight.check(world_size)} | ({"bias": bias.check(world_size)} if bias else {})
        self.bias = None
        for name, split in self._splits.items():
            empty = torch.zeros(local_shape(split, world_size), device=device, dtype=dtype)
            setattr(self, name, nn.Parameter(empty))

    def splits(self) -> dict[str, Split]:
        return self._splits

    def _fill(self, dense: nn.Linear):
        with torch.no_grad():
            for name, split in self._splits.items():
                getattr(self, name).copy_(piece(getattr(dense, name), split, self.rank, self.world_size))
                getattr(self, name).requires_grad_(getattr(dense, name).requires_grad)
        return self


class ColumnParallelLinear(_SplitLinear):
    """Every rank holds some of the outputs.

    `parts` are the sizes of the pieces of a fused matrix ([gate; up]), each cut by itself. With `copies` > 1 there are
    only N/copies pieces, each on `copies` neighbouring ranks, whose gradients are summed (key/value heads).
    """

    def __init__(self, in_features: int, out_features: int, group: dist.ProcessGroup, bias: bool = True, *,
                 parts: tuple[int, ...] = (), copies: int = 1, enter: Callable | None = copy_to,
                 device=None, dtype=None):
        super().__init__()
        self.copies, self.enter = copies, enter
        weight = Split((out_features, in_features), dim=0, parts=tuple(parts), copies=copies)
        self._declare(weight, Split((out_features,), 0, tuple(parts), copies) if bias else None, group, device, dtype)

    @classmethod
    def from_dense(cls, dense: nn.Linear, group: dist.ProcessGroup, **options) -> "ColumnParallelLinear":
        w = dense.weight
        return cls(w.shape[1], w.shape[0], group, dense.bias is not None, device=w.device, dtype=w.dtype,
                   **options)._fill(dense)

    def forward(self, x: Tensor) -> Tensor:
        if self.enter is not None:
            x = self.enter(x, self.group)
        weight = sum_copies(self.weight, self.group, self.copies)
        bias = None if self.bias is None else sum_copies(self.bias, self.group, self.copies)
        return F.linear(x, weight, bias)  # (…, F/N)


class RowParallelLinear(_SplitLinear):
    """Every rank holds some of the inputs; the partial sums are added, then the bias, once."""

    def __init__(self, in_features: int, out_features: int, group: dist.ProcessGroup, bias: bool = True, *,
                 leave: Callable = reduce_from, device=None, dtype=None):
        super().__init__()
        self.leave = leave
        weight = Split((out_features, in_features), dim=1)
        self._declare(weight, Split((out_features,)) if bias else None, group, device, dtype)

    @classmethod
    def from_dense(cls, dense: nn.Linear, group: dist.ProcessGroup, **options) -> "RowParallelLinear":
        w = dense.weight
        return cls(w.shape[1], w.shape[0], group, dense.bias is not None, device=w.device, dtype=w.dtype,
                   **options)._fill(dense)

    def forward(self, x: Tensor) -> Tensor:
        y = self.leave(F.linear(x, self.weight), self.group)
        if self.bias is None:
            return y
        # Where each rank keeps only some positions of y, its gradient of the bias is a part of the sum.
        bias = self.bias if self.leave is reduce_from else copy_to(self.bias, self.group)
        return y + bias
