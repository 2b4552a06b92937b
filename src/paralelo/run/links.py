"""The links of this machine, measured: each collective at several sizes on real ranks, fitted to α + β·n.

    found = measured(ranks)                         # {"all_reduce": Timing(sizes, seconds), …}
    predict.links.fit("all_reduce", N, *found["all_reduce"])

Sizes are those of the cost model: the whole tensor (of an all-gather, the result). The best of several tries counts,
since noise only adds. What is measured is what the backend does: gloo makes a reduce-scatter out of an all-reduce, so
its β comes out twice as large there; and ranks that share a machine measure its memory, which is no link.
"""

from typing import NamedTuple

import torch
import torch.distributed as dist

from paralelo.run import measure
from paralelo.run.collectives import (
    all_gather,
    all_reduce,
    all_to_all_list,
    exchange,
    reduce_scatter,
    unchecked,
)
from paralelo.run.ranks import Ranks, device

__all__ = ["KINDS", "SIZES", "Timing", "measured"]
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
SIZES = tuple(4**i for i in range(5, 13))           # 1 KiB … 16 MiB


class Timing(NamedTuple):
    sizes: list[int]
    seconds: list[float]


def measured(ranks: Ranks, kinds=KINDS, sizes=SIZES, repeats: int = 7) -> dict[str, Timing]:
    """The time of every collective at every size in bytes, the slowest rank's; nothing else is timed meanwhile."""
    sizes = [n // (8 * len(ranks)) * 8 * len(ranks) for n in sizes]         # equal parts of whole float64
    with measure.alone():
        times = ranks.run(_time, tuple(kinds), sizes, repeats)[0]
    return {kind: Timing(sizes, times[kind]) for kind in kinds}


def _time(kinds, sizes, repeats):
    group = dist.group.WORLD
    return {kind: [min(measure.seconds(call(kind, n, group), repeats, 2, group, device())) for n in sizes]
            for kind in kinds}


def call(kind: str, n: int, group):
    """A function that does one collective of n bytes."""
    N, r = group.size(), group.rank()
    x = torch.ones(n // 8, dtype=torch.float64, device=device())
    part = x[: x.numel() // N]
    calls = {
        "all_reduce": lambda: all_reduce(x, group),
        "all_gather": lambda: all_gather(part, group, 0, [part.numel()] * N),
        "reduce_scatter": lambda: reduce_scatter(x, group, 0),
        "all_to_all": lambda: all_to_all_list(list(x.split(part.numel())), [part.numel()] * N, group),
        "send": lambda: exchange(x if r == 0 else None, 1 if r == 0 else None,
                                 x if r == 1 else None, 0 if r == 1 else None, group)(),
    }

    def quietly():
        with unchecked():
            calls[kind]()

    return quietly
