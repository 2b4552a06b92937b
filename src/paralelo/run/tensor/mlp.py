"""The MLP of a transformer block, split by hidden units: column-parallel, activation, row-parallel.

    plain   Y = σ(X Uᵀ) Wᵀ                 U (F, D) up, W (D, F) down
    gated   Y = (σ(X Gᵀ) ⊙ X Uᵀ) Wᵀ        G (F, D) gate; `fused`: G and U in one matrix [G; U] of (2F, D)

    X          (B, T, D)      the same on every rank
    G_r, U_r   (F/N, D)       hidden units r·F/N … ; a fused matrix is cut part by part, rank r holds [G_r; U_r]
    hidden     (B, T, F/N)    never leaves its rank: σ and ⊙ act unit by unit
    W_r        (D, F/N)       the same units' columns

Forward one all-reduce of Y, backward one of dX: 2(N-1)/N · B·T·D elements a rank each (Shoeybi et al. 2019, section 3).
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from paralelo.run.collectives import copy_to, reduce_from
from paralelo.run.tensor.linear import ColumnParallelLinear, RowParallelLinear
from paralelo.words import Refused

__all__ = ["MLP", "ParallelMLP"]

ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "relu": F.relu}


class _Gated(torch.autograd.Function):
    """σ(gate) ⊙ up, keeping gate and up only; backward computes σ(gate) again."""

    @staticmethod
    def forward(ctx, gate, up, act):
        ctx.save_for_backward(gate, up)
        ctx.act = act
        return act(gate) * up

    @staticmethod
    def backward(ctx, dy):
        gate, up = ctx.saved_tensors
        with torch.enable_grad():
            gate = gate.detach().requires_grad_()
            open_ = ctx.act(gate)
        dgate, = torch.autograd.grad(open_, gate, dy * up)
        return dgate, dy * open_.detach(), None


class MLP(nn.Module):
    """The dense reference, on one device."""

    def __init__(self, D: int, F: int, *, gated: bool = True, fused: bool = False, bias: bool = False,
                 activation: str = "silu", device=None, dtype=None):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise Refused("run_tensor.activation", activation=activation, would_do=list(ACTIVATIONS))
        self.D, self.F, self.gated, self.fused, self.activation = D, F, gated, gated and fused, activation
        kwargs = {"bias": bias, "device": device, "dtype": dtype}
        if self.fused:
            self.gate_up = nn.Linear(D, 2 * F, **kwargs)
        else:
            self.up = nn.Linear(D, F, **kwargs)
            if gated:
                self.gate = nn.Linear(D, F, **kwargs)
        self.down = nn.Linear(F, D, **kwargs)

    def hidden(self, x: Tensor) -> Tensor:
        """σ(gate) ⊙ up, or σ(up): the same code for all hidden units and for one rank's."""
        act = ACTIVATIONS[self.activation]
        if not self.gated:
            return act(self.up(x))
        gate, up = self.gate_up(x).chunk(2, -1) if self.fused else (self.gate(x), self.up(x))
        return _Gated.apply(gate, up, act)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.hidden(x))


class ParallelMLP(nn.Module):
    """`MLP` over a tensor group: F/N hidden units a rank. X enters once for gate and up together."""

    def __init__(self, D: int, F: int, group: dist.ProcessGroup, *, gated: bool = True, fused: bool = False,
                 bias: bool = False, activation: str = "silu", enter: Callable | None = copy_to,
                 leave: Callable = reduce_from, device=None, dtype=None):
        super().__init__()
        self.gated, self.fused, self.activation, self.group, self.enter = gated, fused, activation, group, enter
        column = {"bias": bias, "enter": None, "device": device, "dtype": dtype}
        if fused:
            self.gate_up = ColumnParallelLinear(D, 2 * F, group, parts=(F, F), **column)
        else:
            self.up = ColumnParallelLinear(D, F, group, **column)
            if gated:
                self.gate = ColumnParallelLinear(D, F, group, **column)
        self.down = RowParallelLinear(F, D, group, bias, leave=leave, device=device, dtype=dtype)

    @classmethod
    def from_dense(cls, dense: MLP, group: dist.ProcessGroup, **options) -> "ParallelMLP":
        w = dense.down.weight
        parallel = cls(dense.D, dense.F, group, gated=dense.gated, fused=dense.fused, activation=dense.activation,
                       bias=dense.down.bias is not None, device=w.device, dtype=w.dtype, **options)
        for name, child in parallel.named_children():
            child._fill(getattr(dense, name))
        return parallel

    hidden = MLP.hidden

    def forward(self, x: Tensor) -> Tensor:
        if self.enter is not None:
            x = self.enter(x, self.group)
        return self.down(self.hidden(x))
