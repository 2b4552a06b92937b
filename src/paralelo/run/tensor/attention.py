"""Attention split by heads: q, k, v column-parallel, output row-parallel; nothing is sent in between.

    Y = concat_h(softmax(Q_h K_hᵀ / √d) V_h ⊙ sigmoid(gate_h)) W_Oᵀ        (the gate where there is one)

    X          (B, T, D)             the same on every rank
    q_r        (H·d/N, D)            H/N query heads; with a gate 2·H·d/N rows, d of query and d of gate per head
    k_r, v_r   (K·d/N, D)            K/N key/value heads; where N > K, one head on N/K neighbouring ranks ("replicated")
    heads_r    (B, H/N, T, d)        never leave their rank
    o_r        (D, H·d/N)            the same heads' columns

Forward one all-reduce of Y, backward one of dX, as in the MLP: a transformer layer has four in all. Replication
stores and computes K/V heads N/K times. Each copy serves its own query heads only, so its weight gradient is a part:
backward adds the c = N/K copies' parts, 2(c − 1)/c · 2·d·D elements a rank (see `copies`). QK-norm over one head is
local, its weight of d serves all heads, so the ranks' gradients are added; over all heads it also needs a sum of
squares over the group (see `norm`). Sources: Shoeybi et al. 2019, section 3; Ainslie et al. 2023 (grouped queries);
Su et al. 2021 (rotary).
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from paralelo.predict.tensor import check_heads, kv_copies
from paralelo.run.collectives import copy_to, reduce_from
from paralelo.run.tensor.copies import sum_copies
from paralelo.run.tensor.linear import ColumnParallelLinear, RowParallelLinear
from paralelo.run.tensor.norm import RMSNorm, rms_norm
from paralelo.run.tensor.split import Split, local_shape, piece
from paralelo.words import Refused

__all__ = ["Attention", "ParallelAttention", "attend", "rotate"]


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    """softmax(Q Kᵀ/√d) V for q (B, H, T, d) and k, v (B, K, T, d): each key/value head serves H/K query heads."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def rotate(x: Tensor, positions: Tensor, theta: float = 10_000.0, share: float = 1.0) -> Tensor:
    """Rotary positions: the first `share` of d features, in pairs (i, i + half), turned by position · theta^(−i/half).

    x (B, H, T, d), positions (T,) or (B, T). Position 0 turns nothing:

    >>> x = torch.ones(1, 1, 2, 4)
    >>> rotate(x, torch.tensor([0, 1]))[0, 0, :, 0].tolist()    # 1, then cos 1 − sin 1
    [1.0, -0.30116868019104004]
    """
    return _turn(x.transpose(1, 2), *_angles(positions, x, theta, share)).transpose(1, 2)


def _angles(positions: Tensor, like: Tensor, theta: float, share: float) -> tuple[Tensor, Tensor]:
    """cos and sin (T, 1, half), or (B, T, 1, half), for heads of `like`'s d: one table serves q and k."""
    half = int(like.shape[-1] * share) // 2
    frequency = theta ** (-torch.arange(half, device=like.device, dtype=torch.float64) / half)
    angle = positions.to(torch.float64)[..., None, None] * frequency
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b, rest = x.split((cos.shape[-1], cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]), -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


class _Heads:
    """From x to y for any number of heads: the dense layer runs it on all of them, a rank on its own."""

    def _heads(self, x: Tensor, positions: Tensor | None) -> Tensor:
        T = x.shape[1]
        q, k, v = self.q(x), self.k(x), self.v(x)
        gate = None
        if self.gated_query:
            q, gate = q.unflatten(-1, (-1, 2 * self.d)).chunk(2, -1)  # (B, T, heads, d) each
            q, gate = q.flatten(2), gate.flatten(2)
        if self.qk_norm == "all":
            q, k = self._norm_all(q, self.q_norm, 1), self._norm_all(k, self.k_norm, self.copies)
        q, k, v = (t.unflatten(-1, (-1, self.d)) for t in (q, k, v))  # (B, T, heads, d)
        if self.qk_norm == "head":
            q, k = self._norm_head(q, self.q_norm), self._norm_head(k, self.k_norm)
        if self.theta is not None:
            positions = torch.arange(T, device=x.device) if positions is None else positions
            table = _angles(positions, q, self.theta, self.rotary_share)
            q, k = _turn(q, *table), _turn(k, *table)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # (B, heads, T, d), views: the core's output is laid out alike
        y = self.attend(q, k, v, self.causal).transpose(1, 2).flatten(2)  # (B, T, heads·d)
        return self.o(y if gate is None else y * gate.sigmoid())

    def _configure(self, D, H, K, d, bias, out_bias, gated_query, qk_norm, theta, rotary_share, causal, attend):
        if qk_norm not in (None, "", "head", "all"):
            raise Refused("run_tensor.qk_norm", qk_norm=qk_norm)
        self.D, self.H, self.K, self.d = D, H, K, d
        self.bias, self.out_bias, self.gated_query, self.qk_norm = bias, out_bias, gated_query, qk_norm
        self.theta, self.rotary_share, self.causal, self.attend = theta, rotary_share, causal, attend


class Attention(_Heads, nn.Module):
    """The dense reference: D features, H query heads and K key/value heads of d (D/H where not given).

    `gated_query` multiplies each head's output by a sigmoid of its own; `qk_norm` is None, "head" or "all"; `theta`
    None means no rotary positions; `attend(q, k, v, causal)` is the core, so that Ulysses or ring attention can take
    its place.
    """

    def __init__(self, D: int, H: int, K: int | None = None, d: int | None = None, *, bias: bool = False,
                 out_bias: bool = False, gated_query: bool = False, qk_norm: str | None = None,
                 theta: float | None = 10_000.0, rotary_share: float = 1.0, causal: bool = True,
                 attend: Callable = attend, device=None, dtype=None):
        super().__init__()
        K, d, self.copies = K or H, d or D // H, 1
        check_heads(H, K, 1)
        self._configure(D, H, K, d, bias, out_bias, gated_query, qk_norm, theta, rotary_share, causal, attend)
        on = {"device": device, "dtype": dtype}
        self.q = nn.Linear(D, H * d * (2 if gated_query else 1), bias, **on)
        self.k, self.v = nn.Linear(D, K * d, bias, **on), nn.Linear(D, K * d, bias, **on)
        self.o = nn.Linear(H * d, D, out_bias, **on)
        if qk_norm:
            self.q_norm = RMSNorm(d if qk_norm == "head" else H * d, **on)
            self.k_norm = RMSNorm(d if qk_norm == "head" else K * d, **on)

    def _norm_all(self, x, norm, copies):
        return norm(x)

    def _norm_head(self, x, norm):
        return norm(x)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """x (B, T, D) and positions (T,) or (B, T), 0 … T − 1 where not given."""
        return self._heads(x, positions)


class _SplitNorm(nn.Module):
    """The weight of a norm over all heads: this rank's features of it."""

    def __init__(self, size: int, copies: int, eps: float, group, device, dtype):
        super().__init__()
        self.eps, self._split = eps, Split((size,), 0, copies=copies)
        self.weight = nn.Parameter(torch.ones(local_shape(self._split, group.size()), device=device, dtype=dtype))

    def splits(self):
        return {"weight": self._split}


class ParallelAttention(_Heads, nn.Module):
    """`Attention` over a tensor group: H/N query heads a rank, K/N key/value heads or a copy of one."""

    def __init__(self, D: int, H: int, group: dist.ProcessGroup, K: int | None = None, d: int | None = None, *,
                 bias: bool = False, out_bias: bool = False, gated_query: bool = False, qk_norm: str | None = None,
                 theta: float | None = 10_000.0, rotary_share: float = 1.0, causal: bool = True,
                 attend: Callable = attend, enter: Callable | None = copy_to, leave: Callable = reduce_from,
                 device=None, dtype=None):
        super().__init__()
        K, d = K or H, d or D // H
        self._configure(D, H, K, d, bias, out_bias, gated_query, qk_norm, theta, rotary_share, causal, attend)
        check_heads(H, K, group.size())
        self.group, self.enter, self.copies = group, enter, kv_copies(K, group.size())
        on = {"device": device, "dtype": dtype}
        self.q = ColumnParallelLinear(D, H * d * (2 if gated_query else 1), group, bias, enter=None, **on)
        self.k = ColumnParallelLinear(D, K * d, group, bias, copies=self.copies, enter=None, **on)
        self.v = ColumnParallelLinear(D, K * d, group, bias, copies=self.copies, enter=None, **on)
        self.o = RowParallelLinear(H * d, D, group, out_bias, leave=leave, **on)
        if qk_norm == "head":
            self.q_norm, self.k_norm = RMSNorm(d, **on), RMSNorm(d, **on)
        elif qk_norm == "all":
            self.q_norm = _SplitNorm(H * d, 1, 1e-6, group, device, dtype)
            self.k_norm = _SplitNorm(K * d, self.copies, 1e-6, group, device, dtype)

    @classmethod
    def from_dense(cls, dense: Attention, group: dist.ProcessGroup, **options) -> "ParallelAttention":
        w = dense.o.weight
        same = ("K", "d", "bias", "out_bias", "gated_query", "qk_norm", "theta", "rotary_share", "causal", "attend")
        options = {name: getattr(dense, name) for name in same} | options
        parallel = cls(dense.D, dense.H, group, device=w.device, dtype=w.dtype, **options)
        for name in ("q", "k", "v", "o"):
            getattr(parallel, name)._fill(getattr(dense, name))
        if dense.qk_norm:
            with torch.no_grad():
                for name in ("q_norm", "k_norm"):
                    whole, mine = getattr(dense, name), getattr(parallel, name)
                    split = mine.splits()["weight"] if hasattr(mine, "splits") else Split(tuple(whole.weight.shape))
                    mine.weight.copy_(piece(whole.weight, split, group.rank(), group.size()))
                    mine.weight.requires_grad_(whole.weight.requires_grad)
                    mine.eps = whole.eps
        return parallel

    def _norm_all(self, x, norm, copies):
        """The mean of squares over the heads of all ranks, each copy counted once."""
        size = norm._split.shape[0]
        return rms_norm(x, sum_copies(norm.weight, self.group, copies), norm.eps, self.group, size, copies)

    def _norm_head(self, x, norm):
        """One weight for all heads: each rank sees the gradient of its own, `copy_to` adds them."""
        return rms_norm(x, copy_to(norm.weight, self.group), norm.eps)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        if self.enter is not None:
            x = self.enter(x, self.group)
        return self._heads(x, positions)
