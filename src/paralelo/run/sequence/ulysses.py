"""Ulysses: an all-to-all turns a split of positions into a split of heads, and another turns it back.

    (B, H, T/N, d)  →  (B, H/N, T, d)  →  attention, head by head  →  (B, H/N, T, d)  →  (B, H, T/N, d)

    q    (B, H, T/N, d)    N divides H
    k, v (B, K, T/N, d)    rank j is sent the key/value heads that its query heads read, no others

With N dividing K every key/value head goes to one rank. Otherwise ranks that share a head each get a copy (that is the
whole of "replication" here: nothing is stored twice, a little more is sent), and backward adds the copies' gradients.
Between the two any attention on one device will do: torch's fused one for a sequence in its own order, `blocks` for
the rest (zig-zag, packed documents, padding).

Forward, elements a rank that leave it: (N−1)/N · B·T/N·d · (2H + 2K') with K' = max(K, N) where N divides K or K
divides N; backward as much again. Source: Jacobs et al. 2023 (DeepSpeed-Ulysses).

`hybrid_attention` puts a ring outside: Ulysses in groups of U, rings of R across them, N = U·R. Each rank's part is a
contiguous slice of a part of the *ring's* cut: after the all-to-all over U the ring must see chunks r and 2R−1−r, so
the zig-zag has 2R chunks, not 2N. Source: Fang and Zhao 2024 (USP).
"""

import torch

from paralelo.predict.quantity import divisors
from paralelo.run.collectives import all_to_all, gather_from, split_to
from paralelo.run.collectives.check import agree
from paralelo.run.sequence.placement import collect, place, spread
from paralelo.run.sequence.ring import attend, check_heads
from paralelo.run.tensor.attention import attend as fused
from paralelo.words import Refused


def ulysses_attention(q, k, v, group, causal: bool = True, order: str = "contiguous", documents=None) -> torch.Tensor:
    """Attention over a sequence split over `group`, by heads while it is computed.

    q          (B, H, T/N, d)    N divides H
    k, v       (B, K, T/N, d)    K divides H; N and K are free
    order, documents             as in `ring_attention`
    returned   (B, H, T/N, d)
    """
    check_heads(q, k, v)
    placement = place(group, order, documents, q.shape[2])
    if order == "contiguous" and placement.documents == (placement.length,):
        return _by_heads(q, k, v, group, lambda q, k, v: fused(q, k, v, causal))
    agree("ring", k, group, detail=(tuple(q.shape), causal, order, documents and tuple(documents)))
    pieces = [piece for rank in range(placement.N) for piece in placement.pieces(rank)]
    return _by_heads(q, k, v, group, lambda q, k, v: attend(q, k, v, None, causal, [pieces]))


def hybrid_attention(q, k, v, ulysses, ring, causal: bool = True, order: str = "zigzag", documents=None):
    """Ulysses inside the group `ulysses`, a ring over the group `ring`; parts as `hybrid_split` cuts them.

    q          (B, H, T/(U·R), d)    U divides H
    k, v       (B, K, T/(U·R), d)
    returned   (B, H, T/(U·R), d)
    """
    check_heads(q, k, v)
    agree("ring", k, ring, detail=(tuple(q.shape), causal, order, documents and tuple(documents)))
    placement = place(ring, order, documents, q.shape[2] * ulysses.size())
    pieces = [placement.pieces(rank) for rank in range(placement.N)]
    return _by_heads(q, k, v, ulysses, lambda q, k, v: attend(q, k, v, ring, causal, pieces))


def hybrid_split(x, ulysses, ring, dim: int, order: str = "zigzag", documents=None):
    """This rank's part of a whole sequence for `hybrid_attention`: the ring's cut first, then U slices of it."""
    return split_to(spread(x, ring, dim, order, documents), ulysses, dim)


def hybrid_gather(x, ulysses, ring, dim: int, order: str = "zigzag", documents=None):
    """The whole sequence from the parts of `hybrid_split`."""
    return collect(gather_from(x, ulysses, dim), ring, dim, order, documents)


def key_heads(H: int, K: int, N: int) -> list[range]:
    """The key/value heads that each rank's H/N query heads read.

    >>> key_heads(8, 2, 4)
    [range(0, 1), range(0, 1), range(1, 2), range(1, 2)]
    >>> key_heads(12, 6, 4)
    [range(0, 2), range(1, 3), range(3, 5), range(4, 6)]
    """
    mine, shared = H // N, H // K
    return [range(r * mine // shared, ((r + 1) * mine - 1) // shared + 1) for r in range(N)]


def _by_heads(q, k, v, group, attention):
    """Runs `attention` on all positions of this rank's heads."""
    N, rank, H, K = group.size(), group.rank(), q.shape[1], k.shape[1]
    if H % N:
        raise Refused("run_sequence.ulysses_heads", H=H, N=N, would_do=divisors(H))
    needed = key_heads(H, K, N)
    q = all_to_all(q, group, 1, 2)                                       # (B, H/N, T, d)
    sent = torch.tensor([h for heads in needed for h in heads], device=k.device)
    kv = torch.cat((k, v), -1).index_select(1, sent)                     # (B, all heads sent, T/N, 2d)
    kv = all_to_all(kv, group, 1, 2, send=[len(heads) for heads in needed])
    reads = [h * K // H - needed[rank][0] for h in range(rank * H // N, (rank + 1) * H // N)]
    groups = len(reads) // kv.shape[1] or 1
    if reads != [h // groups for h in range(len(reads))]:                # a head shared across a rank's border
        kv = kv.index_select(1, torch.tensor(reads, device=kv.device))
    k, v = kv.chunk(2, -1)
    return all_to_all(attention(q, k, v), group, 2, 1)                   # (B, H, T/N, d)
