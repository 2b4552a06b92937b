"""Timing that means something: one thing at a time, warmed up, all ranks together, the median of several.

    with alone():
        times = seconds(step, group=group)      # of the slowest rank, in every repeat
    median(times)

What a rank measures by itself is its own time; a step ends when the slowest rank ends it. So the ranks start together
(a barrier) and take the maximum over the group.
"""

import os
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

__all__ = ["alone", "median", "seconds"]
LOCK = Path(tempfile.gettempdir()) / "paralelo-timing.lock"
median = statistics.median


@contextmanager
def alone(wait: float = 600):
    """Hold the machine-wide lock of whoever times something, so that two never time each other. Ranks need it not;
    who calls them does. Goes on after `wait` seconds all the same."""
    try:
        import fcntl
    except ImportError:                            # not on Windows: no lock
        yield
        return
    with open(LOCK, "a") as file:
        end = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > end:
                    break
                time.sleep(0.05)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def seconds(call, repeats: int = 5, warmup: int = 1, group=None, device=None) -> list[float]:
    """How long `call()` takes, `repeats` times over. With a group: the slowest rank's time of each, on all ranks."""
    for _ in range(warmup):
        call()
    times = []
    for _ in range(repeats):
        if group is not None and group.size() > 1:
            _barrier(group)
        _settle(device)
        start = time.perf_counter()
        call()
        _settle(device)
        times.append(time.perf_counter() - start)
    return times if group is None or group.size() == 1 else _slowest(times, group)


def _settle(device):
    """Wait for what the GPU was given; a CPU does its work in the call."""
    if device is not None and str(device).startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


def _barrier(group):
    import torch.distributed as dist

    dist.barrier(group=group)


def _slowest(times, group):
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    slowest = torch.tensor(times, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    return slowest.tolist()


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
