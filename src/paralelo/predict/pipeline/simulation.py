"""When everything happens: a schedule played with durations.

Every action starts as early as its rank's order and its inputs allow:

    start(a) = max( end of the rank's previous action, end of the stage before or after + message )

`forward` f and `backward` b are a rank's whole work for one microbatch; a chunk takes 1/C of it. Where the backward is
split, `weight` w of it is the `W` half and b − w the `I` half. `message` is the delay from the end of an action to the
moment its output is on another rank (0 inside a rank; it occupies no rank: sends are buffered). `slow` multiplies all
work of a global stage.

    ideal            M·(f + b), for every schedule: no rank can do its work in less
    makespan         first start to last end, over all ranks
    idle share       1 − ideal/makespan                     of the step
    idle over ideal  makespan/ideal − 1

Cost: one pass, a constant amount of work an action. A rank that waits is woken by the action it waits for.
"""

import math
from array import array
from collections.abc import Iterator, Mapping
from itertools import accumulate

from paralelo.predict.pipeline.checks import check
from paralelo.predict.pipeline.schedule import KINDS, Schedule
from paralelo.words import Refused

MOST = 1e12


class Simulation:
    """A schedule with its times: `starts[rank]` and `ends[rank]` run parallel to the rank's actions."""

    def __init__(self, schedule: Schedule, starts: list[array], ends: list[array], ideal):
        self.schedule, self.starts, self.ends, self.ideal = schedule, starts, ends, ideal
        self.windows = [(_plain(s[0]), _plain(e[-1])) if s else (0, 0) for s, e in zip(starts, ends, strict=True)]
        begin = min(first for (first, _), s in zip(self.windows, starts, strict=True) if s)
        self.makespan = _plain(max(last for _, last in self.windows) - begin)
        self.idle_share = 1 - self.ideal / self.makespan
        self.idle_over_ideal = self.makespan / self.ideal - 1
        self.live_activations = live_activations(schedule)
        self.messages = messages_of(schedule)

    def busy(self, rank: int) -> float:
        """Time the rank works."""
        return _plain(math.fsum(self.ends[rank]) - math.fsum(self.starts[rank]))

    def idle_in_window(self, rank: int) -> float:
        """Share of the rank's own window, first start to last end, in which it waits (the zero-bubble papers' view)."""
        first, last = self.windows[rank]
        return 1 - self.busy(rank) / (last - first)

    def timeline(self) -> Iterator[tuple]:
        """Every action with its times: `(rank, kind, stage, microbatch, start, end)`, rank by rank."""
        width = self.schedule.num_stages
        for rank, codes in enumerate(self.schedule.codes):
            for code, start, end in zip(codes, self.starts[rank], self.ends[rank], strict=True):
                rest = code >> 2
                yield rank, KINDS[code & 3], rest % width, rest // width, start, end


def simulate(schedule: Schedule, forward: float = 1, backward: float = 2, weight: float = 1, message: float = 0,
             slow: Mapping[int, float] | None = None) -> Simulation:
    """Play the schedule with these durations. A schedule made by hand is checked first and refused if it cannot run.

    >>> from paralelo.predict.pipeline import build
    >>> r = simulate(build("1f1b", 4, 16))
    >>> r.makespan, r.ideal, round(r.idle_share, 4), r.idle_over_ideal, r.live_activations, r.messages
    (57, 48, 0.1579, 0.1875, [4, 3, 2, 1], 96)
    """
    slow = dict(slow or {})
    split = schedule.split
    _durations(schedule, forward, backward, weight if split else 0, message, slow)
    if schedule.made_by_hand and (wrong := check(schedule)):
        raise Refused(wrong[0].id, **wrong[0].fields)
    C, width = schedule.chunks, schedule.num_stages

    # A slot is 4·stage + kind. Everything is in units of 1/C, so that whole numbers stay whole.
    duration = [d * slow.get(stage, 1) for stage in range(width)
                for d in (forward, backward, backward - weight, weight)]
    lag, needs = [0] * (4 * width), [0] * (4 * width)
    for stage in range(width):
        for kind, other, step in ((0, stage - 1, -4), (1, stage + 1, 4), (2, stage + 1, 3)):
            if 0 <= other < width:
                needs[4 * stage + kind] = step
                lag[4 * stage + kind] = message * C * (schedule.rank_of(stage) != schedule.rank_of(other))
    starts, ends = _play(schedule, duration, lag, needs)
    if C > 1:
        starts, ends = ([array("d", [t / C for t in times]) for times in many] for many in (starts, ends))
    return Simulation(schedule, starts, ends, _plain(schedule.microbatches * (forward + backward)))


def _play(schedule: Schedule, duration, lag, needs) -> tuple[list[array], list[array]]:
    slots, orders = 4 * schedule.num_stages, schedule.codes
    done = array("d", [-1.0]) * (slots * schedule.microbatches)      # when an action ended; I is entered as B
    starts, ends = [array("d") for _ in orders], [array("d") for _ in orders]
    position, clock, waiting = [0] * len(orders), [0] * len(orders), {}
    runnable = list(range(len(orders) - 1, -1, -1))
    while runnable:
        rank = runnable.pop()
        order, now = orders[rank], clock[rank]
        start_at, end_at = starts[rank].append, ends[rank].append
        for at in range(position[rank], len(order)):
            code = order[at]
            slot = code % slots
            if need := needs[slot]:
                ready = done[code + need]
                if ready < 0:
                    waiting[code + need] = rank
                    break
                ready += lag[slot]
                if ready > now:
                    now = ready
            start_at(now)
            now += duration[slot]
            end_at(now)
            if code & 3 == 2:
                code -= 1
            done[code] = now
            if code in waiting:
                runnable.append(waiting.pop(code))
        else:
            at = len(order)
        position[rank], clock[rank] = at, now
    assert not waiting, f"{schedule!r} does not finish: {waiting}"
    return starts, ends


def live_activations(schedule: Schedule) -> list[float]:
    """Peak per rank, in whole forwards of one microbatch: +1/C when F starts, −1/C when B or W ends."""
    change = (1, -1, 0, -1)
    return [_plain(max(accumulate([change[code & 3] for code in codes]), default=0) / schedule.chunks)
            for codes in schedule.codes]


def messages_of(schedule: Schedule) -> int:
    """Messages between ranks in one step."""
    last = schedule.num_stages - 1
    sends = [0] * (4 * (last + 1))
    for stage in range(last + 1):
        here = schedule.rank_of(stage)
        sends[4 * stage] = int(stage < last and schedule.rank_of(stage + 1) != here)
        sends[4 * stage + 1] = sends[4 * stage + 2] = int(stage > 0 and schedule.rank_of(stage - 1) != here)
    slots = len(sends)
    return sum(sum([sends[code % slots] for code in codes]) for codes in schedule.codes)


def _durations(schedule, forward, backward, weight, message, slow) -> None:
    def fits(x, least):
        return not isinstance(x, bool) and isinstance(x, int | float) and least <= x <= MOST

    for field, value in (("forward", forward), ("backward", backward)):
        if not fits(value, 1 / MOST):
            raise Refused("pipeline.duration", field=field, value=value, least=1 / MOST, most=MOST)
    for field, value in (("weight", weight), ("message", message)):
        if not fits(value, 0):
            raise Refused("pipeline.duration_or_zero", field=field, value=value, most=MOST)
    if weight > backward:
        raise Refused("pipeline.weight_of_backward", weight=weight, backward=backward)
    for stage, factor in slow.items():
        if isinstance(stage, bool) or not isinstance(stage, int) or not 0 <= stage < schedule.num_stages:
            raise Refused("pipeline.slow_stage", stage=stage, last=schedule.num_stages - 1)
        if not fits(factor, 1 / MOST):
            raise Refused("pipeline.duration", field="slow", value=factor, least=1 / MOST, most=MOST)


def _plain(x):
    """A whole number without its `.0`."""
    return int(x) if x == int(x) else x
