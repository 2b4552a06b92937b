"""What can be said without simulating: closed forms for equal stages and no message time.

    makespan of GPipe, 1F1B      (M + S − 1)(f + b)
    makespan of interleaved      (M + (S − 1)/C)(f + b)        where S divides M
    idle share of the step       (S − 1)/(M + S − 1)           idle time over all time
    idle over ideal              (S − 1)/M                     idle time over useful time

f and b are a rank's whole forward and backward of one microbatch. The two ratios are two quantities, not two opinions:
Narayanan et al. 2021 call the second one bubble fraction, GPipe (Huang et al. 2019) quotes the first.
"""

from fractions import Fraction

from paralelo.predict.quantity import whole
from paralelo.words import Refused


def _whole(**numbers: int) -> None:
    for field, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise Refused(f"pipeline.whole_{field}", value=value)


def makespan(stages: int, microbatches: int, chunks: int = 1, forward=1, backward=2):
    """Time of a step of GPipe and 1F1B, and of interleaved where S divides M: (M + (S−1)/C)(f + b).

    >>> makespan(8, 32, forward=1, backward=1), makespan(4, 8, chunks=2)
    (Fraction(78, 1), Fraction(57, 2))
    """
    _whole(stages=stages, microbatches=microbatches, chunks=chunks)
    return (microbatches + Fraction(stages - 1, chunks)) * (forward + backward)


def idle_share(stages: int, microbatches: int, chunks: int = 1) -> Fraction:
    """Idle share of the step: (S−1)/(C·M + S−1).

    >>> idle_share(4, 4), idle_share(4, 16), idle_share(4, 64), idle_share(4, 8, chunks=2)
    (Fraction(3, 7), Fraction(3, 19), Fraction(3, 67), Fraction(3, 19))
    """
    _whole(stages=stages, microbatches=microbatches, chunks=chunks)
    return Fraction(stages - 1, chunks * microbatches + stages - 1)


def idle_over_ideal(stages: int, microbatches: int, chunks: int = 1) -> Fraction:
    """Idle time over ideal time: (S−1)/(C·M).

    >>> idle_over_ideal(4, 8), idle_over_ideal(4, 8, chunks=2)
    (Fraction(3, 8), Fraction(3, 16))
    """
    _whole(stages=stages, microbatches=microbatches, chunks=chunks)
    return Fraction(stages - 1, chunks * microbatches)


def messages(stages: int, microbatches: int, chunks: int = 1, placement: str = "loop") -> int:
    """Messages of a step: one forward and one backward a microbatch at every boundary between two ranks.

    >>> messages(4, 8), messages(4, 8, chunks=2), messages(4, 8, chunks=2, placement="v")
    (48, 112, 96)
    >>> Fraction(messages(2, 8, 2), messages(2, 8)), Fraction(messages(4, 8, 2), messages(4, 8))
    (Fraction(3, 1), Fraction(7, 3))
    """
    _whole(stages=stages, microbatches=microbatches, chunks=chunks)
    inside = 0 if stages > 1 else chunks - 1
    if placement == "v" and stages > 1:
        inside = 1                                   # the turn of the V is inside the last rank
    return 2 * microbatches * (stages * chunks - 1 - inside)


def warmup(name: str, stages: int, microbatches: int, rank: int, chunks: int = 1) -> int:
    """Forwards that fill the pipeline: those that a rank runs before its pairs of one forward and one backward begin.

    1F1B: S−r−1. Interleaved: 2(S−r−1) + (C−1)·G with G microbatches in a group (S where S divides M). Never more than
    there are. One more forward, that of the first pair, precedes the first backward.

    >>> [warmup("interleaved", 4, 8, r, chunks=2) for r in range(4)], [warmup("1f1b", 4, 8, r) for r in range(4)]
    ([10, 8, 6, 4], [3, 2, 1, 0])
    """
    _whole(stages=stages, microbatches=microbatches, chunks=chunks)
    hops = stages - 1 - whole("rank", rank, 0, stages - 1)
    match name:
        case "gpipe":
            return microbatches
        case "1f1b" | "zb-h1":
            return min(microbatches, hops)
        case "zb-h2":
            return min(microbatches, 2 * hops)
        case "interleaved":
            group = microbatches // max(1, microbatches // stages)
            return min(microbatches * chunks, 2 * hops + (chunks - 1) * group)
    raise Refused("pipeline.no_form", name=name)


def live(name: str, stages: int, microbatches: int, rank: int = 0, chunks: int = 1) -> Fraction:
    """Most activations a rank holds at once, in whole forwards of one microbatch (a chunk counts 1/C).

    GPipe M. 1F1B min(M, S−r). Interleaved at most (2(S−r−1) + (C−1)·G + 1)/C. ZB-H1 min(M, S), ZB-H2 min(M, 2S−1).

    >>> [int(live("1f1b", 4, 2, r)) for r in range(4)], live("interleaved", 4, 8, chunks=2)
    ([2, 2, 2, 1], Fraction(11, 2))
    """
    if name in ("zb-h1", "zb-h2"):
        _whole(stages=stages, microbatches=microbatches)
        return Fraction(min(microbatches, stages if name == "zb-h1" else 2 * stages - 1))
    ahead = warmup(name, stages, microbatches, rank, chunks) + (name != "gpipe")
    return Fraction(min(microbatches * chunks, ahead), chunks)


def microbatches_that_do(name: str, stages: int, microbatches: int) -> list[int]:
    """`[M]` if the schedule's definition allows M microbatches, else the nearest numbers that it allows.

    Interleaved cuts M into R = max(1, M // S) equal groups, so R must divide M; that S divides M is Megatron's
    stricter form. DualPipe-V needs M ≥ 2S. All others take any M.

    >>> [microbatches_that_do("interleaved", 4, m) for m in (3, 7, 8, 10, 13)]
    [[3], [7], [8], [10], [12, 15]]
    >>> microbatches_that_do("dualpipe-v", 4, 6)
    [8]
    """
    if name == "dualpipe-v":
        return [max(microbatches, 2 * stages)]
    if name != "interleaved" or microbatches % max(1, microbatches // stages) == 0:
        return [microbatches]
    does = [m for m in range(max(1, microbatches - stages), microbatches + 2 * stages)
            if m % max(1, m // stages) == 0]
    return [max(m for m in does if m < microbatches), min(m for m in does if m > microbatches)]
