"""The algorithms written out: rounds of transfers, which can be drawn, counted and played.

A tensor is cut into N pieces. A transfer is (source, target, pieces, adds): `target` adds the pieces to its own, or
stores them. All transfers of a round read what was there before the round. Piece p of an all-gather is rank p's
contribution; a reduce-scatter leaves the sum of piece r on rank r; pieces of an all-to-all are pairs (from, to);
broadcast and reduce have root 0.
"""

from typing import NamedTuple

from paralelo.predict.quantity import one_of, whole


class Transfer(NamedTuple):
    source: int
    target: int
    pieces: tuple
    adds: bool = False


def rounds(kind: str, N: int, algorithm: str = "ring") -> list[list[Transfer]]:
    """The rounds of a collective on N ranks.

    >>> for round in rounds("all_reduce", 2):
    ...     print([tuple(t) for t in round])
    [(0, 1, (1,), True), (1, 0, (0,), True)]
    [(0, 1, (0,), False), (1, 0, (1,), False)]
    """
    whole("N", N, most=512)                                  # N² transfers, several hundred thousand
    one_of("algorithm", algorithm, ("ring", "doubling", "direct"))
    one_of("kind", kind, ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"))
    if N == 1:
        return []
    every = tuple(range(N))
    match kind, algorithm:
        case "all_reduce", "direct":
            return [[Transfer(s, t, every, True) for s in every for t in every if s != t]]
        case "all_reduce", _:
            return rounds("reduce_scatter", N, algorithm) + rounds("all_gather", N, algorithm)
        case "reduce_scatter", "ring":
            return [[Transfer(s, (s + 1) % N, ((s - k) % N,), True) for s in every] for k in range(1, N)]
        case ("reduce" | "reduce_scatter"), _:              # the tree of a broadcast or an all-gather, backwards
            forward = rounds("broadcast" if kind == "reduce" else "all_gather", N, algorithm)
            return [[Transfer(t.target, t.source, t.pieces, True) for t in r] for r in reversed(forward)]
        case "all_gather", "ring":
            return [[Transfer(s, (s + 1) % N, ((s - k) % N,)) for s in every] for k in range(N - 1)]
        case "all_gather", "doubling":
            return [[Transfer(s, (s - step) % N, tuple((s + j) % N for j in range(min(step, N - step)))) for s in every]
                    for step in _doubling(N)]
        case "all_gather", "direct":
            return [[Transfer(s, t, (s,)) for s in every for t in every if s != t]]
        case "broadcast", "ring":
            return [[Transfer(s, s + 1, (k - s,)) for s in range(N - 1) if 0 <= k - s < N] for k in range(2 * N - 2)]
        case "broadcast", "doubling":
            return [[Transfer(s, s + step, every) for s in range(step) if s + step < N] for step in _doubling(N)]
        case "broadcast", "direct":
            return [[Transfer(0, t, every) for t in every[1:]]]
        case "all_to_all", "ring":
            return [[Transfer(s, (s + k) % N, ((s, (s + k) % N),)) for s in every] for k in range(1, N)]
        case "all_to_all", "direct":
            return [[Transfer(s, t, ((s, t),)) for s in every for t in every if s != t]]
    return [[Transfer(s, (s + step) % N, _bruck(s, step, N)) for s in every] for step in _doubling(N)]


def _doubling(N):
    return [2**i for i in range((N - 1).bit_length())]


def _bruck(rank, step, N):
    """What a rank passes on in the round of this distance: blocks whose distance j has the bit."""
    origin = {j: (rank - j % step) % N for j in range(N) if j & step}
    return tuple((o, (o + j) % N) for j, o in origin.items())


def play(rounds, held: list[dict]) -> list[dict]:
    """Run the rounds on values: `held[rank][piece]`; values add with `+`. The argument is not changed.

    >>> play(rounds("all_reduce", 2), [{0: 1, 1: 2}, {0: 10, 1: 20}])
    [{0: 11, 1: 22}, {0: 11, 1: 22}]
    """
    held = [dict(h) for h in held]
    for transfers in rounds:
        before = [dict(h) for h in held]
        for source, target, pieces, adds in transfers:
            for piece in pieces:
                value = before[source][piece]
                held[target][piece] = held[target][piece] + value if adds else value
    return held
