"""The same promise where torchrun starts the processes: a rank that fails is named, and all of them end.

    if __name__ == "__main__":
        sys.exit(main(train))                     # torchrun --standalone --nproc-per-node 2 train.py

A rank that fails says so in the store that all share, and calls the roll: the others' answers tell who is missing
(killed, or not answering). Whoever was waiting for it does the same once its own wait is over.
"""

import os
import sys
import time
from contextlib import suppress
from datetime import timedelta

from paralelo.run.ranks import worker
from paralelo.words import say

ROLL_CALL = 1.5                                   # seconds the others have to answer


def main(fn, *args, ranks: int | None = None, timeout: float = 60, device: str | None = None) -> int:
    """Run `fn(*args)` on every rank and return an exit code.

    Under torchrun this process is one of them. Elsewhere `Ranks(ranks)` starts them (as many as GPUs, at least one,
    where `ranks` is left out).
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ and "RANK" not in os.environ:
        return _by_ourselves(fn, args, ranks, timeout, device)
    import torch
    import torch.distributed as dist

    from paralelo.run.ranks.pool import choose

    rank, n, local = (int(os.environ[k]) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", n))
    if here == n:                                 # one machine: messages need not leave it
        os.environ |= {k: v for k, v in worker.environment(rank, n).items() if k == "GLOO_SOCKET_IFNAME"}
    _, backend, devices = choose(here, device, None)
    os.environ["PARALELO_DEVICE"] = devices[local]
    if devices[local] == "cpu":
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(devices[local])
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        fn(*args)
        dist.barrier()
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (0, None):
            return 0
        head, text, echo = worker.describe(error)
        lines = [say("ranks.raised", rank=rank, error=head), *text.rstrip().splitlines()]
        if echo or "timed out" in text.lower():
            lines += [say("ranks.missing", rank=r, by=rank) for r in _missing(rank, n)]
        else:
            with suppress(Exception):
                _store().set(f"roll/{rank}", "raised")
        print("\n".join(f"[rank {rank}] {line}" for line in lines), file=sys.stderr, flush=True)
        os._exit(1)                               # no wait for peers in a destructor: torchrun ends the others
    dist.destroy_process_group()
    return 0


def _store():
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def _missing(rank: int, n: int) -> list[int]:
    """The ranks that do not answer the roll call."""
    with suppress(Exception):
        store, end = _store(), time.monotonic() + ROLL_CALL
        store.set(f"roll/{rank}", "here")
        missing = [r for r in range(n) if r != rank]
        while missing and time.monotonic() < end:
            missing = [r for r in missing if not store.check([f"roll/{r}"])]
            time.sleep(0.05)
        return missing
    return []


def _by_ourselves(fn, args, ranks, timeout, device) -> int:
    import torch

    from paralelo.run.ranks.pool import Ranks
    from paralelo.run.ranks.report import RankError

    n = ranks or max(1, torch.cuda.device_count())
    with Ranks(n, device=device, timeout=timeout) as pool:
        try:
            pool.run(fn, *args, timeout=float("inf"))
        except RankError as error:
            print(error, file=sys.stderr)
            return 1
    return 0
