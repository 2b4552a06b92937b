"""Which degrees the heads of an attention layer allow, and which rank holds which head.

    query heads   H/N on every rank: rank r holds heads r·H/N … (r+1)·H/N − 1           N must divide H
    KV heads      K/N on every rank where N divides K;
                  one on every rank where K divides N: rank r holds head ⌊r·K/N⌋, each head N/K times

A degree that does neither would cut a KV head, or give a rank query heads of two KV heads while it holds one.
Query head q reads KV head ⌊q·K/H⌋, so a rank always finds the KV heads of its query heads on itself.
"""

from paralelo.predict.quantity import divisors, whole
from paralelo.words import Refused

MOST = 64
MOST_HEADS = 2**20


def head_degrees(H: int, K: int, most: int = MOST) -> tuple[list[int], list[int]]:
    """The degrees that H query heads and K key/value heads allow: without copies, and the further ones with copies.

    >>> head_degrees(28, 4)
    ([1, 2, 4], [28])
    >>> head_degrees(40, 8)
    ([1, 2, 4, 8], [40])
    """
    if whole("H", H, most=MOST_HEADS) % whole("K", K):
        raise Refused("tensor.groups", H=H, K=K, would_do=divisors(H, 64))
    fits = divisors(H, most)
    return [N for N in fits if K % N == 0], [N for N in fits if N > K and N % K == 0]


def tp_degrees(H: int, K: int, *widths: int, most: int = MOST) -> tuple[list[int], list[int]]:
    """The same where `widths` (hidden sizes, heads of linear attention, …) must divide too.

    >>> tp_degrees(28, 4, 18944)
    ([1, 2, 4], [])
    >>> tp_degrees(24, 4, 17408, 16, 48)                       # the reference giant
    ([1, 2, 4], [8])
    """
    for width in widths:
        whole("width", width)
    return tuple([N for N in some if all(w % N == 0 for w in widths)] for some in head_degrees(H, K, most))


def check_heads(H: int, K: int, N: int, replicate: bool = True) -> None:
    """Refuses a degree that the heads do not allow, before any tensor is made.

    >>> check_heads(16, 2, 4, replicate=False)              # doctest: +ELLIPSIS
    Traceback (most recent call last):
    paralelo.words.Refused: 2 KV heads cannot be split over 4 ranks: a rank would hold a part of a head; without ...
    """
    whole("N", N)
    plain, copied = head_degrees(H, K, H)                   # no degree beyond H divides H
    if H % N:
        raise Refused("tensor.query_heads", H=H, N=N, would_do=plain + copied)
    if N in plain or (replicate and N in copied):
        return
    raise Refused("tensor.kv_heads" if copied else "tensor.kv_heads_only", K=K, N=N, plain=plain, copied=copied)


def kv_copies(K: int, N: int) -> int:
    """How many ranks hold the same KV head: `kv_copies(4, 8)` is 2.

    >>> kv_copies(4, 8), kv_copies(4, 2)
    (2, 1)
    """
    return max(1, whole("N", N) // whole("K", K))


def query_heads(H: int, N: int, rank: int) -> range:
    """The query heads of a rank.

    >>> query_heads(24, 8, 3)
    range(9, 12)
    """
    if whole("H", H, most=MOST_HEADS) % whole("N", N):
        raise Refused("tensor.query_heads", H=H, N=N, would_do=divisors(H))
    return range(_at(rank, N) * H // N, (rank + 1) * H // N)


def kv_heads(K: int, N: int, rank: int) -> range:
    """The KV heads of a rank: a slice of them, or one that other ranks hold as well.

    >>> kv_heads(4, 2, 1), kv_heads(4, 8, 3)
    (range(2, 4), range(1, 2))
    """
    _at(rank, whole("N", N, most=MOST_HEADS))
    whole("K", K, most=MOST_HEADS)
    if K % N == 0:
        return range(rank * K // N, (rank + 1) * K // N)
    if N % K == 0:
        return range(rank * K // N, rank * K // N + 1)
    raise Refused("tensor.kv_cut", K=K, N=N, would_do=[d for d in range(1, max(K, N) + 1) if not (K % d and d % K)])


def kv_head_map(H: int, K: int, N: int, replicate: bool = True) -> list[list[int]]:
    """Which KV heads each rank holds.

    >>> kv_head_map(16, 2, 4)
    [[0], [0], [1], [1]]
    >>> kv_head_map(24, 4, 2)
    [[0, 1], [2, 3]]
    """
    check_heads(H, K, N, replicate)
    return [list(kv_heads(K, N, rank)) for rank in range(N)]


def kv_repair(K: int, N: int) -> list[list[int]]:
    """The ranks that hold the same KV head, whose gradients must be summed.

    >>> kv_repair(4, 8)
    [[0, 1], [2, 3], [4, 5], [6, 7]]
    """
    kv_heads(K, N, 0)
    copies = kv_copies(K, N)
    return [list(range(r, r + copies)) for r in range(0, N, copies)]


def _at(rank: int, N: int) -> int:
    whole("N", N)
    whole("rank", rank, 0, N - 1)
    return rank
