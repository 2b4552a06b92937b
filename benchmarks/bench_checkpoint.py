"""Checkpoints beside torch.distributed.checkpoint on the same state: 1 GB on 4 ranks, loaded on 2, in one run.

    save      4 ranks, tp=4: until the files are on the disk (fsync on both sides)
    load      2 ranks, tp=2, into tensors that are there: what torch.distributed.checkpoint does for resharding too
    reshard   files for 4 ranks → files for 2. Ours in one process; theirs by load on 2 ranks and save again

Memory is what a rank's resident set rises by at most over what it was before, sampled every few ms; times are medians
of alternating runs, with the lowest and highest in brackets, after the disk has settled (`sync`). Ours checks a CRC-32
of every byte that it loads; a column without that check says what it costs.

    python benchmarks/bench_checkpoint.py [repeats] [megabytes]
"""

import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from paralelo.predict.checkpoint import Cut
from paralelo.predict.layout import Layout
from paralelo.run.checkpoint import load, reshard, save, sharded
from paralelo.run.ranks import Ranks

TENSORS, COLUMNS = 64, 1024


class Watch:
    """Seconds, and by how much the resident set rose."""

    def __enter__(self):
        self.before = self.peak = resident()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look)
        self.thread.start()
        self.start = time.perf_counter()
        return self

    def _look(self):
        while not self.over.wait(0.004):
            self.peak = max(self.peak, resident())

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self.start
        self.over.set()
        self.thread.join()
        self.rise = self.peak - self.before


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def shapes(megabytes):
    rows = megabytes * 10**6 // (4 * COLUMNS * TENSORS) // 8 * 8
    return {f"w{i:02}": ((rows, COLUMNS), i % 2) for i in range(TENSORS)}      # half cut by rows, half by columns


def locals_of(megabytes, fill):
    N, rank = dist.get_world_size(), dist.get_rank()
    out = {}
    for name, (shape, dim) in shapes(megabytes).items():
        local = torch.empty([n // N if d == dim else n for d, n in enumerate(shape)])
        out[name] = local.fill_(rank + 1) if fill else local.fill_(0)
    return out


def ours_save(folder, megabytes):
    layout, rank, tensors = Layout(tp=dist.get_world_size()), dist.get_rank(), locals_of(megabytes, True)
    state = {n: sharded(tensors[n], shape, {"tp": Cut(dim)}, layout, rank)
             for n, (shape, dim) in shapes(megabytes).items()}
    dist.barrier()
    with Watch() as watch:
        save(folder, state, layout, step=0)
    return watch.seconds, watch.rise


def ours_load(folder, megabytes, verify):
    layout, rank, tensors = Layout(tp=dist.get_world_size()), dist.get_rank(), locals_of(megabytes, False)
    state = {n: sharded(tensors[n], shape, {"tp": Cut(dim)}, layout, rank)
             for n, (shape, dim) in shapes(megabytes).items()}
    dist.barrier()
    with Watch() as watch:
        load(folder, layout, state, verify=verify)
    check(tensors, megabytes)
    return watch.seconds, watch.rise


def check(tensors, megabytes):
    """Ranks 1 and 2 of four are in the first half, 3 and 4 in the second."""
    low = 1 + 2 * dist.get_rank()
    for name, (_, dim) in shapes(megabytes).items():
        a, b = tensors[name].chunk(2, dim)
        assert (a == low).all() and (b == low + 1).all(), name


def theirs(tensors, megabytes):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {n: DTensor.from_local(tensors[n], mesh, [Shard(dim)]) for n, (_, dim) in shapes(megabytes).items()}


def theirs_save(folder, megabytes):
    import torch.distributed.checkpoint as dcp

    state = theirs(locals_of(megabytes, True), megabytes)
    dist.barrier()
    with Watch() as watch:
        dcp.save(state, checkpoint_id=folder)
    return watch.seconds, watch.rise


def theirs_load(folder, megabytes, again=None):
    import torch.distributed.checkpoint as dcp

    tensors = locals_of(megabytes, False)
    state = theirs(tensors, megabytes)
    dist.barrier()
    with Watch() as watch:
        dcp.load(state, checkpoint_id=folder)
        if again:
            dcp.save(state, checkpoint_id=again)
    check(tensors, megabytes)
    return watch.seconds, watch.rise


def ours_reshard(source, target):
    with Watch() as watch:
        reshard(source, target, Layout(tp=2))
    return watch.seconds, watch.rise


def main(repeats: int = 3, megabytes: int = 1000) -> None:
    folder = Path(tempfile.mkdtemp(prefix="bench-checkpoint-"))
    found: dict[str, list] = {}

    def note(name, results):
        found.setdefault(name, []).append((max(s for s, _ in results), max(r for _, r in results)))

    try:
        with Ranks(4, device="cpu", timeout=600) as four, Ranks(2, device="cpu", timeout=600) as two, \
                Ranks(1, device="cpu", timeout=600) as one:
            for warm in (True, *[False] * repeats):
                n = 64 if warm else megabytes
                for path in folder.iterdir():
                    shutil.rmtree(path)
                at = {name: str(folder / name) for name in ("ours", "theirs", "ours2", "theirs2")}
                runs = {
                    "save, paralelo": lambda: four.run(ours_save, at["ours"], n),                  # noqa: B023
                    "save, torch.distributed.checkpoint": lambda: four.run(theirs_save, at["theirs"], n),  # noqa: B023
                    "load, paralelo": lambda: two.run(ours_load, at["ours"], n, True),             # noqa: B023
                    "load, paralelo, unchecked": lambda: two.run(ours_load, at["ours"], n, False),  # noqa: B023
                    "load, torch.distributed.checkpoint": lambda: two.run(theirs_load, at["theirs"], n),  # noqa: B023
                    "reshard, paralelo": lambda: one.run(ours_reshard, at["ours"], at["ours2"]),   # noqa: B023
                    "reshard, torch.distributed.checkpoint":
                        lambda: two.run(theirs_load, at["theirs"], n, at["theirs2"]),              # noqa: B023
                }
                for name, run in runs.items():
                    os.sync()
                    result = run()
                    if not warm:
                        note(name, result)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{megabytes} MB in {TENSORS} tensors, 4 ranks → 2 ranks; {repeats} repeats: median [lowest, highest]\n")
    print(f"{'':40}{'seconds':>24}{'memory of a rank, MB':>24}")
    for name, runs in found.items():
        seconds, rise = [s for s, _ in runs], [r / 1e6 for _, r in runs]
        print(f"{name:40}{f'{statistics.median(seconds):.2f} [{min(seconds):.2f}, {max(seconds):.2f}]':>24}"
              f"{f'{statistics.median(rise):.0f} [{min(rise):.0f}, {max(rise):.0f}]':>24}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
