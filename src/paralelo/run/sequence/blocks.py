"""Attention piece by piece, with the softmax updated as keys arrive.

    S = Q Kᵀ / √d,    m = max S,    ℓ = Σ exp(S − m),    O = Σ exp(S − m) V

    a further block:  m' = max(m, max S),   ℓ' = e^{m−m'} ℓ + Σ e^{S−m'},   O' = e^{m−m'} O + Σ e^{S−m'} V
    at the end:       Y = O / ℓ,   L = m + log ℓ

Every exponent is ≤ 0, so scores of any size survive. The backward keeps Y and L only and computes S again:

    P = exp(S − L),   dV = Pᵀ dY,   dS = P ∘ (dY Vᵀ − rowsum(dY ∘ Y)),   dQ = dS K / √d,   dK = dSᵀ Q / √d

    q, Y     (B, H, t, d)     t query positions
    k, v     (B, K, s, d)     s key positions; query head h reads key head h // (H/K)

Scores are kept in float32 at least. Sources: Milakov and Gimelshein 2018; Dao et al. 2022; Liu et al. 2023 (rings).
"""

import torch

from paralelo.run.sequence.placement import Piece


def pairs(queries: list[Piece], keys: list[Piece], causal: bool):
    """The blocks to compute: (query slice, key slice, whether the block is the causal triangle).

    Pieces of one cut are the same or disjoint, so a block is whole, a triangle, or nothing at all.
    """
    at = 0
    for query in queries:
        mine, at, start = slice(at, at + len(query)), at + len(query), 0
        for key in keys:
            first, start = start, start + len(key)
            seen = min(key.stop, key.real) - key.start                   # padding is nobody's key
            if key.document != query.document or seen <= 0 or (causal and key.start > query.start):
                continue
            yield mine, slice(first, first + seen), causal and key.start == query.start


def grouped(x: torch.Tensor, K: int) -> torch.Tensor:
    """(B, H, t, d) → (B, K, H/K, t, d) in the dtype of the scores."""
    return x.to(accumulator(x)).unflatten(1, (K, x.shape[1] // K))


def accumulator(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _scores(q, k, scale: float, triangle: bool):
    scores = (q * scale) @ k.unsqueeze(2).mT                             # (B, K, H/K, t, s)
    if triangle:
        t, s = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(t, s, dtype=torch.bool, device=q.device).triu(1), float("-inf"))
    return scores


class Softmax:
    """The running maximum, sum and output of `t` queries: `add` blocks of keys, then `finish`."""

    def __init__(self, q: torch.Tensor, K: int, scale: float):
        self.q, self.scale = grouped(q, K), scale
        self.maximum = self.q.new_full((*self.q.shape[:-1], 1), float("-inf"))
        self.sum = torch.zeros_like(self.maximum)
        self.out = torch.zeros_like(self.q)

    def add(self, k: torch.Tensor, v: torch.Tensor, blocks) -> None:
        k, v = k.to(self.q.dtype), v.to(self.q.dtype)
        for mine, theirs, triangle in blocks:
            scores = _scores(self.q[..., mine, :], k[..., theirs, :], self.scale, triangle)
            before = self.maximum[..., mine, :]
            maximum = torch.maximum(before, scores.amax(-1, keepdim=True))
            shrink, scores = (before - maximum).exp(), (scores - maximum).exp()
            self.maximum[..., mine, :] = maximum
            self.sum[..., mine, :] = self.sum[..., mine, :] * shrink + scores.sum(-1, keepdim=True)
            added = scores @ v[..., theirs, :].unsqueeze(2)
            self.out[..., mine, :] = self.out[..., mine, :] * shrink + added

    def finish(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Y (B, K, H/K, t, d) and L (B, K, H/K, t, 1)."""
        return self.out / self.sum, self.maximum + self.sum.log()


class Gradients:
    """The backward of the same blocks: `add` fills dQ and returns this block's dK and dV."""

    def __init__(self, q, out, log_sum, grad, K: int, scale: float):
        self.q, self.log_sum, self.scale = grouped(q, K), log_sum, scale
        self.grad = grouped(grad, K)
        self.rows = (self.grad * out).sum(-1, keepdim=True)
        self.dq = torch.zeros_like(self.q)

    def add(self, k: torch.Tensor, v: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, blocks) -> None:
        """Adds to `dk` and `dv` (B, K, s, d) in place; both are the caller's own accumulators."""
        k, v = k.to(self.q.dtype), v.to(self.q.dtype)
        for mine, theirs, triangle in blocks:
            q, grad = self.q[..., mine, :], self.grad[..., mine, :]
            key, value = k[..., theirs, :], v[..., theirs, :]
            p = (_scores(q, key, self.scale, triangle) - self.log_sum[..., mine, :]).exp()
            ds = p * (grad @ value.unsqueeze(2).mT - self.rows[..., mine, :]) * self.scale
            self.dq[..., mine, :] += ds @ key.unsqueeze(2)
            dk[..., theirs, :] += (ds.mT @ q).sum(2)                     # the query heads of one key head
            dv[..., theirs, :] += (p.mT @ grad).sum(2)
