"""Idle share of a pipeline step, predicted and measured, here and by torch.distributed.pipelining, in one run.

Four ranks whose stages sleep (20 ms forward, 40 ms backward; halves where a rank has two): what is measured is the
runtime, not the arithmetic. Both sides run the same stages and are measured by the same clock: the sleeps log their own
start and end, and idle share = 1 − slept / (ranks × from the first start to the last end). So what autograd and Python
need around a sleep counts as idle, which `Trace` counts as work (about a point less). Runs of the two alternate;
a line gives medians and, in brackets, the lowest and highest of the repeats.

    python benchmarks/bench_pipeline.py [repeats]
"""

import statistics
import sys

import torch
import torch.distributed as dist

from paralelo.predict.pipeline import build, simulate
from paralelo.run.pipeline import SleepingStage, run_step
from paralelo.run.ranks import Ranks

RANKS, FORWARD, BACKWARD = 4, 0.020, 0.040
CASES = [(name, M) for name in ("gpipe", "1f1b", "interleaved", "zb-v") for M in (4, 8, 16)]


def ours(schedule, stages, x):
    run_step(schedule, stages, x, x, lambda y, _: y.sum(), dist.group.WORLD)


def torchs(schedule, stages, x):
    from torch.distributed import pipelining as torch_

    rank = dist.get_rank()
    parts = [torch_.PipelineStage(module, stage, schedule.num_stages, torch.device("cpu"))
             for module, stage in zip(stages, schedule.stages_of(rank), strict=True)]
    kind = {"gpipe": torch_.ScheduleGPipe, "1f1b": torch_.Schedule1F1B, "interleaved": torch_.ScheduleInterleaved1F1B,
            "zb-v": torch_.ScheduleZBVZeroBubble}[schedule.name]
    step = kind(parts if schedule.chunks > 1 else parts[0], schedule.microbatches, loss_fn=lambda y, _: y.sum())
    last = schedule.num_stages - 1 in schedule.stages_of(rank)
    given = {"target": x, "losses": []} if last else {}
    args = (x,) if rank == schedule.rank_of(0) else ()
    step.step(*args, **given)                             # the first one infers shapes
    for module in stages:
        module.log.clear()
    step.step(*args, **given)


def idle_share(run, name, M):
    schedule = build(name, RANKS, M, 2 if name == "interleaved" else 1)
    C = schedule.chunks
    stages = [SleepingStage(FORWARD / C, BACKWARD / C, (BACKWARD - FORWARD) / C * schedule.split) for _ in range(C)]
    run(schedule, stages, torch.ones(M, 1))
    logs = [None] * RANKS
    dist.all_gather_object(logs, [sleep for module in stages for sleep in module.log])
    sleeps = [sleep for log in logs for sleep in log]
    span = max(end for _, end in sleeps) - min(start for start, _ in sleeps)
    return 1 - sum(end - start for start, end in sleeps) / (RANKS * span)


def main(repeats: int = 5) -> None:
    print(f"idle share of the step, % of the time of {RANKS} ranks; {repeats} repeats: median [lowest, highest]\n")
    print(f"{'schedule':12}{'M':>4}{'predicted':>11}   {'paralelo':24}{'torch.distributed.pipelining':30}")
    off = {ours: [], torchs: []}
    with Ranks(RANKS, device="cpu", timeout=120) as ranks:
        for name, M in CASES:
            predicted = simulate(build(name, RANKS, M, 2 if name == "interleaved" else 1)).idle_share
            shares = {ours: [], torchs: []}
            for _ in range(repeats):
                for run in shares:
                    shares[run].append(ranks.run(idle_share, run, name, M)[0])
            for run, found in shares.items():
                off[run].append(statistics.median(found) - predicted)
            columns = [f"{100 * statistics.median(s):6.2f} [{100 * min(s):.2f}, {100 * max(s):.2f}]"
                       for s in shares.values()]
            print(f"{name:12}{M:>4}{100 * predicted:11.2f}   {columns[0]:24}{columns[1]:30}", flush=True)
    print("\npoints above the prediction, median over the lines: "
          + ", ".join(f"{run.__name__} {100 * statistics.median(o):.2f}" for run, o in off.items()))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
