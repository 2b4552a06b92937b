"""Orders of positions, and how much causal attention each rank then has to do.

    contiguous    rank r holds positions r·T/N … (r+1)·T/N − 1
    zigzag        T is cut into 2N chunks; rank r holds chunks r and 2N−1−r

Query t attends to t + 1 keys, so all work is T(T+1)/2 pairs. For long sequences a contiguous rank has (2r+1)/N² of it
(1, 3, 5, 7 of 16 at N = 4), a zig-zag rank 1/N. Packed sequences are cut one by one; in Ulysses × ring the zig-zag
order is that of the ring, over the sequence that Ulysses has gathered.

Sources: Brandon et al. 2023 (striped attention); Llama 3 herd of models, section 3.3.2; Fang and Zhao 2024 (hybrid).
"""

from fractions import Fraction
from itertools import pairwise

from paralelo.predict.quantity import one_of, shown, whole
from paralelo.words import Refused

ORDERS = ("contiguous", "zigzag")
MOST_POSITIONS, MOST_RANKS, MOST_RING = 2**22, 2**16, 2**10  # written out one by one: of a rank, ranks, ranks squared


def positions(T: int, N: int, rank: int, order: str = "zigzag") -> list[int]:
    """The positions that a rank holds, in the order in which it holds them.

    >>> [positions(8, 2, r) for r in (0, 1)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    chunks = _chunks(T, N, rank, order)
    whole("T", T, 0, MOST_POSITIONS * N)
    return [t for chunk in chunks for t in chunk]


def _chunks(T, N, rank, order):
    whole("T", T, 0)
    whole("N", N)
    whole("rank", rank, 0, N - 1)
    parts = N if one_of("order", order, ORDERS) == "contiguous" else 2 * N
    if T % parts:
        raise Refused("sequence.length", T=T, N=N, parts=parts, order=order,
                      would_do=[x for x in (T // parts * parts, (T // parts + 1) * parts) if x])
    size = T // parts
    which = [rank] if order == "contiguous" else [rank, 2 * N - 1 - rank]
    return [range(i * size, (i + 1) * size) for i in which]


def causal_work(T: int, N: int, order: str = "zigzag") -> list[int]:
    """Query–key pairs of each rank under a causal mask.

    >>> causal_work(16, 4, "contiguous"), causal_work(16, 4)
    ([10, 26, 42, 58], [34, 34, 34, 34])
    """
    pairs = lambda c: (c.start + 1 + c.stop) * len(c) // 2  # noqa: E731
    return [sum(pairs(c) for c in _chunks(T, N, rank, order)) for rank in range(whole("N", N, most=MOST_RANKS))]


def causal_shares(T: int | None, N: int, order: str = "zigzag") -> list[Fraction]:
    """Each rank's share of the causal work at T positions; with T None, the limit for long sequences.

    >>> [str(share) for share in causal_shares(None, 4, "contiguous")]
    ['1/16', '3/16', '5/16', '7/16']
    >>> [str(share) for share in causal_shares(16, 4, "contiguous")]
    ['5/68', '13/68', '21/68', '29/68']
    """
    whole("N", N, most=MOST_RANKS)
    if T is None:
        one_of("order", order, ORDERS)
        return [Fraction(2 * r + 1, N * N) if order == "contiguous" else Fraction(1, N) for r in range(N)]
    work = causal_work(whole("T", T), N, order)
    total = sum(work)
    return [Fraction(w, total) for w in work]


def causal_speed_up(T: int | None, N: int, order: str = "zigzag") -> Fraction:
    """All the work over the busiest rank's: what N ranks gain at best.

    >>> causal_speed_up(None, 4, "contiguous"), causal_speed_up(None, 4)
    (Fraction(16, 7), Fraction(4, 1))
    """
    return 1 / max(causal_shares(T, N, order))


def ring_steps(T: int, N: int, order: str = "zigzag") -> list[list[tuple[int, int]]]:
    """What each rank does in each step of causal ring attention: `[step][rank]` is (whose keys, pairs).

    In step s rank r has the keys of rank r − s. A contiguous rank has nothing to do with the keys of later ranks; in
    zig-zag order every rank does the same work in every step, so that nobody waits.

    >>> ring_steps(8, 2, "contiguous"), ring_steps(8, 2)
    ([[(0, 10), (1, 10)], [(1, 0), (0, 16)]], [[(0, 10), (1, 10)], [(1, 8), (0, 8)]])
    """
    chunks = [_chunks(T, N, rank, order) for rank in range(whole("N", N, most=MOST_RING))]

    def pairs(q, k):                                        # of a chunk of queries with a chunk of keys
        if q == k:
            return len(q) * (len(q) + 1) // 2
        return len(q) * len(k) if k.start < q.start else 0

    return [[((r - s) % N, sum(pairs(q, k) for q in chunks[r] for k in chunks[(r - s) % N])) for r in range(N)]
            for s in range(N)]


def packed_positions(cu_seqlens, N: int, rank: int, order: str = "zigzag") -> list[int]:
    """Rows of a packed batch that a rank holds: every sequence is cut by itself; `cu_seqlens` are cumulative lengths.

    >>> packed_positions([0, 4, 8], 2, 0), packed_positions([0, 4, 8], 2, 1)
    ([0, 3, 4, 7], [1, 2, 5, 6])
    """
    _cumulative(cu_seqlens)
    return [a + t for a, b in pairwise(cu_seqlens) for t in positions(b - a, N, rank, order)]


def restarted(rows, cu_seqlens) -> list[int]:
    """The positions of these rows where every packed sequence starts at 0 again: what rotary embeddings need.

    >>> restarted([0, 3, 4, 7], [0, 4, 8])
    [0, 3, 0, 3]
    """
    _cumulative(cu_seqlens)
    return [row - max(a for a in cu_seqlens if a <= row) for row in rows]


def _cumulative(cu_seqlens):
    good = len(cu_seqlens) > 1 and cu_seqlens[0] == 0
    if not good or any(not isinstance(a, int) for a in cu_seqlens) or any(b < a for a, b in pairwise(cu_seqlens)):
        raise Refused("sequence.cu_seqlens", cu_seqlens=shown(list(cu_seqlens)))


def hybrid_positions(T: int, ulysses: int, ring: int, rank: int, order: str = "zigzag") -> list[int]:
    """Positions of a rank in Ulysses × ring, Ulysses innermost: rank = ring index · ulysses + Ulysses index.

    After the all-to-all the ranks of one Ulysses group hold together what their ring rank holds: the order is that of
    `ring` ranks, not of all of them.

    >>> [t for u in range(4) for t in hybrid_positions(16, 4, 2, u)]
    [0, 1, 2, 3, 12, 13, 14, 15]
    """
    whole("ulysses", ulysses)
    whole("rank", rank, 0, ulysses * whole("ring", ring) - 1)
    held = positions(T, ring, rank // ulysses, order)
    if len(held) % ulysses:
        parts = ulysses * ring * (2 if order == "zigzag" else 1)
        raise Refused("sequence.length", T=T, N=ulysses * ring, parts=parts, order=order,
                      would_do=[x for x in (T // parts * parts, (T // parts + 1) * parts) if x])
    size, at = len(held) // ulysses, rank % ulysses
    return held[at * size:(at + 1) * size]
