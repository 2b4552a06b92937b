"""How fast a schedule is simulated, beside torch.distributed.pipelining's own dry run of the same order.

    python benchmarks/bench_schedules.py

torch's helper (`_simulate_comms_compute`) plays an order slot by slot, with sends and receives, to see that it ends;
it knows no durations. Ours knows durations, messages and slow stages. Both get the same interleaved order of growing
size; what is printed is processor time, the median of the repetitions and the smallest and largest of them.
"""

import statistics
import time
from types import SimpleNamespace

from paralelo.predict.pipeline import build, simulate


def seconds(function, repetitions=5):
    times = []
    for _ in range(repetitions):
        begin = time.process_time()
        function()
        times.append(time.process_time() - begin)
    return statistics.median(times), min(times), max(times)


def torchs(S, M, C):
    """torch's interleaved order with its sends and receives, ready to be played."""
    from torch.distributed.pipelining import schedules as t

    me = SimpleNamespace(pp_group_size=S, _n_microbatches=M, n_local_stages=C, microbatches_per_round=S)
    order = {r: [a for a in t.ScheduleInterleaved1F1B._calculate_single_rank_operations(me, r) if a] for r in range(S)}
    lowered = t._add_send_recv(order, lambda stage: stage % S, S * C)
    return lambda: t._simulate_comms_compute(lowered, lambda stage: stage % S, S * C)


def line(who, actions, timed):
    median, low, high = timed
    rate = f"{actions / median:>12,.0f} a second"
    print(f"{who:22} {actions:>9,} actions  {median:8.3f} s  ({low:.3f} to {high:.3f})  {rate}")


def main():
    for S, M, C in ((4, 32, 2), (8, 64, 2), (8, 128, 2)):
        schedule = build("interleaved", S, M, C)
        mine = seconds(lambda schedule=schedule: simulate(schedule))
        line("paralelo, simulate", len(schedule), mine)
        try:
            play = torchs(S, M, C)
        except ImportError:
            print("torch is not installed: no comparison")
            continue
        theirs = seconds(play, 3)
        line("torch, dry run", len(schedule), theirs)
        print(f"{'':22} paralelo takes {mine[0] / theirs[0]:.3f} of the time\n")
    for name, S, M, C in (("1f1b", 64, 4096, 1), ("interleaved", 64, 4096, 4)):
        built = seconds(lambda name=name, S=S, M=M, C=C: build(name, S, M, C), 3)
        schedule = build(name, S, M, C)
        line(f"{name}, build", len(schedule), built)
        line(f"{name}, simulate", len(schedule), seconds(lambda schedule=schedule: simulate(schedule), 3))


if __name__ == "__main__":
    main()
