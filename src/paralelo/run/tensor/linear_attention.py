"""Linear attention (gated delta rule) split by heads, its short convolution included.

Per value head, with a state S of (d_k, d_v) and, at each position, decay α = exp(−exp(A)·softplus(a + dt)) and strength
β = sigmoid(b):

    S ← α S;   S ← S + k (β (v − Sᵀ k))ᵀ;   y = Sᵀ q / √d_k          q, k of norm 1, shared by H/K neighbouring heads

before it, q, k and v pass a causal convolution of `width` positions, channel by channel, and SiLU; after it, a norm
over each head (one weight of d_v for all), a gate SiLU(z), and the output projection.

    X          (B, T, D)                         the same on every rank
    input_r    ((2K·d_k + 2H·d_v + 2H)/N, D)     [Q | K | V | Z | beta | alpha], every part cut by its own heads
    conv_r     ((2K·d_k + H·d_v)/N, 1, width)    [Q | K | V] likewise
    A_r, dt_r  (H/N,)        norm (d_v,) whole        o_r (D, H·d_v/N)

Forward one all-reduce of Y, backward one of dX and one of the norm's d_v numbers: the state never leaves its rank.
An even cut of the fused input would hand rank 0 all of Q and K and a part of V: as many rows, and the wrong ones.
Sources: Yang, Kautz, Hatamizadeh 2024 (gated delta networks); the layout is that of Qwen3-Next and Qwen3.5.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from paralelo.predict.tensor import linear_attention_shapes
from paralelo.run.collectives import copy_to, reduce_from
from paralelo.run.tensor.linear import ColumnParallelLinear, RowParallelLinear
from paralelo.run.tensor.norm import RMSNorm, rms_norm
from paralelo.run.tensor.split import Split, local_shape, piece

__all__ = ["GatedDelta", "ParallelGatedDelta", "causal_conv", "delta_rule"]


def causal_conv(x: Tensor, weight: Tensor, halo: Tensor | None = None) -> Tensor:
    """Each channel's weighted sum of itself and the `width` − 1 positions before: x (B, T, C), weight (C, 1, width).

    `halo` (B, width − 1, C) are the positions before the first, zeros where not given.

    >>> causal_conv(torch.tensor([[[1.], [2.], [4.]]]), torch.tensor([[[1., 10.]]])).flatten().tolist()
    [10.0, 21.0, 42.0]
    """
    width = weight.shape[-1]
    if halo is None:
        halo = x.new_zeros(x.shape[0], width - 1, x.shape[2])
    x = torch.cat((halo, x), 1).transpose(1, 2)  # (B, C, width − 1 + T)
    return F.conv1d(x, weight, groups=weight.shape[0]).transpose(1, 2)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor,
               state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The recurrence, position by position, and the state it ends with.

    q, k (B, h, T, d_k) of any norm, v (B, h, T, d_v), decay (log α ≤ 0) and beta (B, h, T), state (B, h, d_k, d_v).
    → y (B, h, T, d_v), state. Keys of norm 1 and β = 1 store a value to be read back exactly:

    >>> k = torch.eye(2)[None, None]
    >>> v = torch.tensor([[[[5.], [7.]]]])
    >>> y, S = delta_rule(k, k, v, torch.zeros(1, 1, 2), torch.ones(1, 1, 2))
    >>> S.flatten().tolist()
    [5.0, 7.0]
    """
    B, h, T, d_k = k.shape
    state = q.new_zeros(B, h, d_k, v.shape[-1]) if state is None else state
    alpha, out = decay.exp(), []
    for t in range(T):
        state = state * alpha[:, :, t, None, None]
        missing = v[:, :, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, :, t])
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, :, t], beta[:, :, t, None] * missing)
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
    return torch.stack(out, 2) * d_k**-0.5, state


class _Delta:
    """From x to y for any number of heads: the dense layer runs it on all of them, a rank on its own."""

    def _configure(self, D, K, H, d_k, d_v, width, core, conv_core):
        self.D, self.K, self.H, self.d_k, self.d_v, self.width = D, K, H, d_k, d_v, width
        self.core, self.conv_core = core, conv_core
        qk, v = K * d_k, H * d_v
        self.parts, self.conv_parts = (qk, qk, v, v, H, H), (qk, qk, v)

    def _heads(self, x: Tensor, norm_weight: Tensor, N: int) -> Tensor:
        B, T, _ = x.shape
        parts = [p // N for p in self.parts]
        qkv, z, b, a = self.input(x).split((sum(parts[:3]), *parts[3:]), -1)
        q, k, v = F.silu(self.conv_core(qkv, self.conv)).split(parts[:3], -1)
        q, k = (_unit(t.reshape(B, T, -1, self.d_k)) for t in (q, k))
        q, k = (t.repeat_interleave(self.H // self.K, 2).transpose(1, 2) for t in (q, k))  # (B, H/N, T, d_k)
        v = v.reshape(B, T, -1, self.d_v).transpose(1, 2)  # (B, H/N, T, d_v)
        decay = (-self.A.exp() * F.softplus(a + self.dt)).transpose(1, 2)
        y, _ = self.core(q, k, v, decay, b.sigmoid().transpose(1, 2))
        y = rms_norm(y.transpose(1, 2), norm_weight, self.norm.eps) * F.silu(z.reshape(B, T, -1, self.d_v))
        return self.o(y.reshape(B, T, -1))


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


class GatedDelta(_Delta, nn.Module):
    """The dense reference: K query/key heads of d_k, H value heads of d_v, convolution over `width` positions.

    `core` and `conv_core` are `delta_rule` and `causal_conv`, or what passes the state and the halo between ranks.
    """

    def __init__(self, D: int, K: int, H: int, d_k: int, d_v: int, width: int = 4, *, core: Callable = delta_rule,
                 conv_core: Callable = causal_conv, device=None, dtype=None):
        super().__init__()
        self._configure(D, K, H, d_k, d_v, width, core, conv_core)
        on = {"device": device, "dtype": dtype}
        self.input = nn.Linear(D, sum(self.parts), bias=False, **on)
        self.conv = nn.Parameter(torch.empty(sum(self.conv_parts), 1, width, **on).uniform_(-width**-0.5, width**-0.5))
        self.A = nn.Parameter(torch.empty(H, **on).uniform_(0.01, 16).log())
        self.dt = nn.Parameter(torch.ones(H, **on))
        self.norm = RMSNorm(d_v, **on)
        self.o = nn.Linear(H * d_v, D, bias=False, **on)

    def forward(self, x: Tensor) -> Tensor:
        return self._heads(x, self.norm.weight, 1)


class ParallelGatedDelta(_Delta, nn.Module):
    """`GatedDelta` over a tensor group: K/N query/key heads and H/N value heads a rank."""

    def __init__(self, D: int, K: int, H: int, d_k: int, d_v: int, group: dist.ProcessGroup, width: int = 4, *,
                 core: Callable = delta_rule, conv_core: Callable = causal_conv, enter: Callable | None = copy_to,
                 leave: Callable = reduce_from, device=None, dtype=None):
        super().__init__()
        linear_attention_shapes(D, K, H, d_k, d_v, width, group.size())  # refuses a degree that cuts a head
        self._configure(D, K, H, d_k, d_v, width, core, conv_core)
        self.group, self.enter = group, enter
        on = {"device": device, "dtype": dtype}
        self._splits = {"conv": Split((sum(self.conv_parts), 1, width), 0, self.conv_parts),
                        "A": Split((H,), 0), "dt": Split((H,), 0)}
        self.input = ColumnParallelLinear(D, sum(self.parts), group, False, parts=self.parts, enter=None, **on)
        for name, split in self._splits.items():
            setattr(self, name, nn.Parameter(torch.zeros(local_shape(split, group.size()), **on)))
        self.norm = RMSNorm(d_v, **on)
        self.o = RowParallelLinear(H * d_v, D, group, False, leave=leave, **on)

    @classmethod
    def from_dense(cls, dense: GatedDelta, group: dist.ProcessGroup, **options) -> "ParallelGatedDelta":
        w = dense.o.weight
        options = {"core": dense.core, "conv_core": dense.conv_core} | options
        parallel = cls(dense.D, dense.K, dense.H, dense.d_k, dense.d_v, group, dense.width, device=w.device,
                       dtype=w.dtype, **options)
        parallel.input._fill(dense.input)
        parallel.o._fill(dense.o)
        with torch.no_grad():
            for name, split in parallel._splits.items():
                getattr(parallel, name).copy_(piece(getattr(dense, name), split, group.rank(), group.size()))
                getattr(parallel, name).requires_grad_(getattr(dense, name).requires_grad)
            parallel.norm.weight.copy_(dense.norm.weight)
        parallel.norm.weight.requires_grad_(dense.norm.weight.requires_grad)
        parallel.norm.eps = dense.norm.eps
        return parallel

    def splits(self):
        return self._splits

    def forward(self, x: Tensor) -> Tensor:
        if self.enter is not None:
            x = self.enter(x, self.group)
        # One weight for all heads: each rank sees the gradient of its own, copy_to adds them.
        return self._heads(x, copy_to(self.norm.weight, self.group), self.group.size())
