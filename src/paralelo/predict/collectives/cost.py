"""The α–β model: a message of b bytes takes α + b·β seconds; a rank sends one message and receives one at a time.

    seconds = steps · α + path · β

`n` is the full tensor in bytes: what every rank holds before an all-reduce or an all-to-all, after an all-gather,
before a reduce-scatter. In a tensor cut into N equal pieces, with L = ⌈log₂N⌉:

                        ring                  doubling               direct
    all_gather          N−1,  (N−1)/N·n       L,  (N−1)/N·n          1,  (N−1)/N·n
    reduce_scatter      N−1,  (N−1)/N·n       L,  (N−1)/N·n          1,  (N−1)/N·n
    all_reduce          2(N−1),  2(N−1)/N·n   2L,  2(N−1)/N·n        1,  (N−1)·n
    broadcast, reduce   2(N−1),  2(N−1)/N·n   L,  L·n                1,  (N−1)·n
    all_to_all          N−1,  (N−1)/N·n       L,  about L/2·n        1,  (N−1)/N·n
    send                1,  n

`ring` passes pieces to the next rank (an all-to-all goes pair by pair instead, at distance 1, 2, …; a broadcast is
pipelined in N pieces). `doubling` halves or doubles the distance every round (Bruck et al. 1997; the reduce-scatter is
the all-gather backwards), for any N. `direct` sends to all peers in one round over a switch: one α, all bytes
through the busiest link. `sent` is what the busiest rank sends: `path`, but n in the pipelined ring of a broadcast, and
n in every reduce, where it is the root that receives more.

Sources: Thakur et al. 2005; Bruck et al. 1997; nccl-tests, PERFORMANCE.md.
"""

from dataclasses import dataclass
from fractions import Fraction

from paralelo.predict.quantity import one_of, real, whole
from paralelo.words import Refused

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send")
ALGORITHMS = ("ring", "doubling", "direct")


@dataclass(frozen=True)
class Cost:
    """Rounds, bytes on the longest path, bytes that the busiest rank sends."""

    steps: int
    path: float
    sent: float

    def seconds(self, alpha: float, beta: float) -> float:
        return float(self.steps * alpha + self.path * beta)


def cost(kind: str, n, N: int, algorithm: str = "ring") -> Cost:
    """What a collective over n bytes on N ranks costs.

    >>> cost("all_reduce", 1024, 4)
    Cost(steps=6, path=1536, sent=1536)
    >>> cost("all_reduce", 1024, 4, "doubling").steps, cost("all_reduce", 1024, 4, "direct")
    (4, Cost(steps=1, path=3072, sent=3072))
    """
    one_of("kind", kind, KINDS)
    one_of("algorithm", algorithm, ALGORITHMS)
    real("n", n)
    whole("N", N)
    if kind == "send":
        return Cost(1, _plain(n), _plain(n))
    if N == 1:
        return Cost(0, 0, 0)
    n = Fraction(n)
    rounds, most = (N - 1).bit_length(), (N - 1) * n / N
    match kind, algorithm:
        case ("all_gather" | "reduce_scatter" | "all_to_all"), "direct":
            steps, path = 1, most
        case _, "direct":
            steps, path = 1, (N - 1) * n
        case ("all_gather" | "reduce_scatter" | "all_to_all"), "ring":
            steps, path = N - 1, most
        case _, "ring":
            steps, path = 2 * (N - 1), 2 * most
        case ("all_gather" | "reduce_scatter"), _:
            steps, path = rounds, most
        case "all_reduce", _:
            steps, path = 2 * rounds, 2 * most
        case "all_to_all", _:                               # a block at distance j travels once for every bit of j
            steps, path = rounds, _bits_below(N) * n / N
        case _:
            steps, path = rounds, rounds * n
    passes_once = kind == "reduce" or (kind, algorithm) == ("broadcast", "ring")
    return Cost(steps, _plain(path), _plain(n if passes_once else path))


def _bits_below(N: int) -> int:
    """Σ of the ones in the binary digits of 0 … N−1: bit i comes in runs of 2^i, none of it and then all."""
    runs = [divmod(N, 2 ** (i + 1)) for i in range(N.bit_length())]
    return sum((full << i) + max(0, rest - 2**i) for i, (full, rest) in enumerate(runs))


def _plain(x):
    """A whole number of bytes stays whole."""
    x = Fraction(x)
    return int(x) if x.denominator == 1 else float(x)


def all_reduce_bytes(n, N: int, algorithm: str = "ring"):
    """What a rank sends in an all-reduce of n bytes: 2(N−1)/N·n.

    >>> all_reduce_bytes(1_000_000, 8)
    1750000
    """
    return cost("all_reduce", n, N, algorithm).sent


def all_gather_bytes(n, N: int, algorithm: str = "ring"):
    """What a rank sends in an all-gather whose result has n bytes: (N−1)/N·n.

    >>> all_gather_bytes(1_000_000, 8)
    875000
    """
    return cost("all_gather", n, N, algorithm).sent


def reduce_scatter_bytes(n, N: int, algorithm: str = "ring"):
    """What a rank sends in a reduce-scatter whose input has n bytes: (N−1)/N·n."""
    return cost("reduce_scatter", n, N, algorithm).sent


def all_to_all_bytes(n, N: int, algorithm: str = "ring"):
    """What a rank sends in an all-to-all of its n bytes: (N−1)/N·n, the rest stays."""
    return cost("all_to_all", n, N, algorithm).sent


def broadcast_bytes(n, N: int, algorithm: str = "ring"):
    """What the busiest rank sends in a broadcast of n bytes: n in a ring, ⌈log₂N⌉·n by doubling, (N−1)·n directly."""
    return cost("broadcast", n, N, algorithm).sent


def seconds(kind: str, n, N: int, alpha: float, beta: float, algorithm: str = "ring") -> float:
    """α–β time: `alpha` in seconds a message, `beta` in seconds a byte.

    >>> round(seconds("all_reduce", 1e9, 8, 5e-6, 1 / 300e9), 6)         # 1 GB over a link of 300 GB/s
    0.005903
    """
    return cost(kind, n, N, algorithm).seconds(real("alpha", alpha), real("beta", beta))


def crossover(kind: str, N: int, alpha: float, beta: float, algorithm: str = "ring") -> float:
    """The size in bytes at which latency and bandwidth cost the same; below it, larger messages are nearly free.

    >>> round(crossover("all_reduce", 8, 5e-6, 1 / 300e9))     # N·α/β in a ring
    12000000
    """
    unit = cost(kind, 1, N, algorithm)
    if not unit.path:
        raise Refused("collectives.one_rank", kind=kind, N=N)
    return unit.steps * real("alpha", alpha) / (unit.path * real("beta", beta, above=True))


def faster_from(kind: str, N: int, alpha: float, beta: float, small: str = "doubling", large: str = "ring"):
    """The size from which algorithm `large` is faster than `small`; None if it never is.

    >>> round(faster_from("all_reduce", 8, 5e-6, 1 / 300e9, "direct", "ring"))
    3714286
    >>> faster_from("all_reduce", 8, 5e-6, 1 / 300e9, "doubling", "ring") is None
    True
    """
    a, b = cost(kind, 1, N, small), cost(kind, 1, N, large)
    saved, more = (a.path - b.path) * real("beta", beta), (b.steps - a.steps) * real("alpha", alpha)
    if saved <= 0:
        return 0.0 if more < 0 else None
    return max(0.0, more / saved)


def best(kind: str, n, N: int, alpha: float, beta: float) -> str:
    """The fastest algorithm at a size.

    >>> best("all_reduce", 1000, 8, 5e-6, 1 / 300e9), best("all_reduce", 1e9, 8, 5e-6, 1 / 300e9)
    ('direct', 'doubling')
    """
    return min(ALGORITHMS, key=lambda algorithm: seconds(kind, n, N, alpha, beta, algorithm))


def algbw(n, seconds: float) -> float:
    """Algorithm bandwidth: bytes of the tensor over time, what the caller sees."""
    return float(n / real("seconds", seconds, above=True))


def bus_factor(kind: str, N: int) -> Fraction:
    """What turns algbw into busbw: the share of the tensor that must pass through each rank's link.

    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("broadcast", 8)
    (Fraction(7, 4), Fraction(7, 8), Fraction(1, 1))
    """
    one_of("kind", kind, KINDS)
    whole("N", N)
    if kind == "all_reduce":
        return Fraction(2 * (N - 1), N)
    return Fraction(N - 1, N) if kind in ("all_gather", "reduce_scatter", "all_to_all") else Fraction(1)


def busbw(kind: str, n, N: int, seconds: float) -> float:
    """Bus bandwidth as nccl-tests prints it: algbw times the bus factor; comparable with the link's peak whatever N.

    >>> round(busbw("all_reduce", 1e9, 8, 0.01) / 1e9, 1)
    175.0
    """
    return float(algbw(n, seconds) * bus_factor(kind, N))
