"""Timing: the slowest rank's time on all ranks, warm-up left out, one timing at a time on a machine."""

import multiprocessing
import time

import pytest
import torch.distributed as dist

from paralelo.run import measure
from paralelo.run.measure import alone, seconds

pytestmark = pytest.mark.measure


def test_counts_and_warms_up():
    calls = []
    times = seconds(lambda: calls.append(1), repeats=4, warmup=3)
    assert len(times) == 4 and len(calls) == 7 and all(t >= 0 for t in times)


def test_the_slowest_rank_counts_on_all(ranks):
    def time_it():
        return seconds(lambda: time.sleep(0.05 * dist.get_rank()), repeats=2, group=dist.group.WORLD)

    first, second = ranks(2).run(time_it)
    assert first == second and all(t >= 0.05 for t in first)


def hold(path, seconds, queue):
    measure.LOCK = path
    with measure.alone():
        queue.put(time.monotonic())
        time.sleep(seconds)
        queue.put(time.monotonic())


def test_one_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "LOCK", tmp_path / "lock")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    other = context.Process(target=hold, args=(tmp_path / "lock", 0.3, queue))
    other.start()
    queue.get()
    with alone():
        mine = time.monotonic()
    assert mine >= queue.get()
    other.join()


def test_a_lock_that_never_comes_free_does_not_stop_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "LOCK", tmp_path / "lock")
    with alone():
        start = time.monotonic()
        with alone(wait=0.1):
            assert time.monotonic() - start < 30
