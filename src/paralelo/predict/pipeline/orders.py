"""Seven published orders, one short function each.

A function gets `(rank, S, M, C)` and yields that rank's actions. Nothing here knows durations: an order is fixed
before it is timed.

Sources: GPipe, Huang et al. 2019. 1F1B, Narayanan et al. 2019 (PipeDream) in its flushing form, Narayanan et al. 2021,
who also give the interleaved order. ZB-H1 and ZB-H2, Qi et al. 2024 (Zero bubble pipeline parallelism). ZB-V, Qi et
al. 2024 (Pipeline parallelism with controllable memory). DualPipe, DeepSeek-AI 2024; its V form is DeepSeek's own code.
"""

from collections import deque
from collections.abc import Iterator

from paralelo.predict.pipeline.formulas import microbatches_that_do, warmup
from paralelo.predict.pipeline.schedule import Action, Schedule
from paralelo.predict.quantity import shown
from paralelo.words import Refused

LIMIT = 4_000_000


def build(name: str, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """The schedule `name` for S = `stages` ranks, M = `microbatches` and C = `chunks` stages a rank.

    `chunks` is for `interleaved`; `zb-v` and `dualpipe-v` have two by definition (1, the default, is read as 2).
    Raises `Refused` where the definition excludes the combination, with the numbers that would do.

    >>> print(build("zb-h1", 2, 3))
    F0 F1 I0 W0 F2 I1 W1 I2 W2
    F0 I0 F1 I1 W0 F2 I2 W1 W2
    """
    if name not in ORDERS:
        raise Refused("pipeline.no_schedule", name=str(name)[:40], names=list(NAMES))
    for field, value in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise Refused(f"pipeline.whole_{field}", value=shown(value))
    order, placement = ORDERS[name]
    if placement == "v":
        if chunks not in (1, 2):
            raise Refused("pipeline.two_chunks", name=name, chunks=chunks)
        chunks = 2
    elif chunks > 1 and name != "interleaved":
        raise Refused("pipeline.one_chunk", name=name, chunks=chunks)
    kinds = 2 if name in ("gpipe", "1f1b", "interleaved") else 3
    gone_through = max(microbatches, 2 * stages - 1) if name == "zb-v" else microbatches
    if kinds * stages * chunks * gone_through > LIMIT:
        raise Refused("pipeline.too_large", actions=kinds * stages * chunks * gone_through, limit=LIMIT)
    would_do = microbatches_that_do(name, stages, microbatches)
    if microbatches not in would_do:
        raise Refused(f"pipeline.{name.replace('-', '_')}_microbatches", name=name, stages=stages,
                      microbatches=microbatches, would_do=would_do)
    return Schedule(name, stages, microbatches, chunks, placement,
                    (order(rank, stages, microbatches, chunks) for rank in range(stages)))


def gpipe(rank: int, S: int, M: int, C: int = 1) -> Iterator[tuple]:
    """All forwards, then all backwards."""
    for m in range(M):
        yield "F", rank, m
    for m in range(M):
        yield "B", rank, m


def one_f_one_b(rank: int, S: int, M: int, C: int = 1) -> Iterator[tuple]:
    """S−1−r forwards to fill, then one forward and one backward in turn, then the backwards that are left."""
    ahead = min(M, S - 1 - rank)
    for m in range(ahead):
        yield "F", rank, m
    for m in range(ahead, M):
        yield "F", rank, m
        yield "B", rank, m - ahead
    for m in range(M - ahead, M):
        yield "B", rank, m


def interleaved(rank: int, S: int, M: int, C: int) -> Iterator[tuple]:
    """1F1B over C chunks: microbatches go in groups of G through a rank's chunks, forwards up, backwards down.

    G = S where S divides M (Megatron's rule); else M is cut into R = max(1, M // S) equal groups. 2(S−r−1) + (C−1)·G
    forwards fill (the 2: chunk c+1 of a microbatch comes back to rank r only after a whole turn of the ring).
    """
    group = M // max(1, M // S)
    ahead, total = warmup("interleaved", S, M, rank, C), M * C

    def forward(k):
        turn, within = divmod(k, group * C)
        return "F", within // group * S + rank, turn * group + within % group

    def backward(k):
        turn, within = divmod(k, group * C)
        return "B", (C - 1 - within // group) * S + rank, turn * group + within % group

    for k in range(ahead):
        yield forward(k)
    for k in range(ahead, total):
        yield forward(k)
        yield backward(k - ahead)
    for k in range(total - ahead, total):
        yield backward(k)


def zero_bubble(rank: int, S: int, M: int, ahead: int, delay: int) -> Iterator[tuple]:
    """1F1B with the backward split: `ahead` forwards fill, and `W` starts `delay` microbatches behind `I`.

    A rank so holds at most ahead + 1 + delay microbatches: the same number on every rank.
    """
    ahead, weights = min(M, ahead), 0
    for m in range(ahead):
        yield "F", rank, m
    for m in range(M):
        if m + ahead < M:
            yield "F", rank, m + ahead
        yield "I", rank, m
        if m >= delay:
            yield "W", rank, weights
            weights += 1
    for m in range(weights, M):
        yield "W", rank, m


def zb_h1(rank: int, S: int, M: int, C: int = 1) -> Iterator[tuple]:
    """As much memory as 1F1B's first rank (S microbatches), on every rank; a third of its idle time at F = I = W."""
    return zero_bubble(rank, S, M, ahead=S - 1 - rank, delay=rank)


def zb_h2(rank: int, S: int, M: int, C: int = 1) -> Iterator[tuple]:
    """2S−1 microbatches on every rank; at F = I = W no rank waits between its first start and its last end."""
    return zero_bubble(rank, S, M, ahead=2 * (S - 1 - rank), delay=2 * rank)


def zb_v(rank: int, S: int, M: int, C: int = 2) -> Iterator[tuple]:
    """Two chunks in a V: as little memory as 1F1B's first rank, and at F = I = W no rank waits in its own window.

    Written for at least 2S−1 microbatches; with fewer, the actions of those that do not exist are left out. They are
    gone through all the same, so `build` counts them.
    """
    down, up, whole = rank, 2 * S - 1 - rank, max(M, 2 * S - 1)
    count = dict.fromkeys([(k, s) for k in "FIW" for s in (down, up)], 0)

    def step(kind, stage):
        m = count[kind, stage]
        count[kind, stage] += 1
        if m < M:
            yield kind, stage, m

    def both(stage):
        yield from step("I", stage)
        yield from step("W", stage)

    for _ in range(2 * (S - rank) - 1):
        yield from step("F", down)
    for _ in range(rank):
        yield from step("F", up)
        yield from step("F", down)
    for _ in range(S - rank):
        yield from step("F", up)
        yield from both(up)
    while count["F", up] < whole:
        if count["F", down] < whole:
            yield from step("F", down)
        yield from both(down)
        yield from step("F", up)
        yield from both(up)
    for _ in range(rank):
        yield from step("I", down)
        yield from step("I", up)
    for _ in range(S - rank):
        yield from both(down)
    for stage in (up, down):
        while count["W", stage] < count["I", stage]:
            yield from step("W", stage)


def dualpipe_v(rank: int, S: int, M: int, C: int = 2) -> Iterator[tuple]:
    """DualPipe folded into a V: a forward and a backward of different chunks side by side.

    Where the original runs the two at once so that one's messages hide behind the other's work, here they stand one
    after the other, forward first: the order of a device that does one thing at a time.
    """
    down, up = rank, 2 * S - 1 - rank
    count = dict.fromkeys([(k, s) for k in "FB" for s in (down, up)], 0)
    weights = deque()

    def step(kind, stage):
        counted = "F" if kind == "F" else "B"
        m = count[counted, stage]
        count[counted, stage] += 1
        if kind == "I":
            weights.append((stage, m))
        return kind, stage, m

    def weight():
        if weights:
            yield "W", *weights.popleft()

    for _ in range(2 * (S - rank - 1)):
        yield step("F", down)
    for _ in range(rank + 1):
        yield step("F", down)
        yield step("F", up)
    for _ in range(S - rank - 1):
        yield step("I", up)
        yield from weight()
        yield step("F", up)
    for _ in range(M - 2 * S + rank + 1):
        yield step("F", down)
        yield step("B", up)
        yield step("F", up)
        yield step("B", down)
    for _ in range(S - rank - 1):
        yield step("B", up)
        yield step("F", up)
        yield step("B", down)
    # the second half of the last backwards is split, so that W fills the gaps of the drain
    for i in range(2 * (rank + 1)):
        yield step("I" if i > rank else "B", down if i % 2 else up)
    for _ in range(S - rank - 1):
        yield from weight()
        yield step("I", down)
    while weights:
        yield from weight()


ORDERS = {
    "gpipe": (gpipe, "loop"),
    "1f1b": (one_f_one_b, "loop"),
    "interleaved": (interleaved, "loop"),
    "zb-h1": (zb_h1, "loop"),
    "zb-h2": (zb_h2, "loop"),
    "zb-v": (zb_v, "v"),
    "dualpipe-v": (dualpipe_v, "v"),
}
NAMES = tuple(ORDERS)

__all__ = ["LIMIT", "NAMES", "Action", "build"]
