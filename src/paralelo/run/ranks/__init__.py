"""Ranks: processes that stay, and run together whatever function they are given.

    with Ranks(4) as ranks:
        ranks.run(fn, x)               # [fn(x) of rank 0, fn(x) of rank 1, ...]

Rank r is a process with its own interpreter, one thread of CPU (or one GPU) and a place in one process group,
`torch.distributed.group.WORLD`. The processes start once (a second) and then answer calls in hundredths of a second.
Functions and values travel by value (cloudpickle), so a function may be defined in a notebook's cell.

What a rank prints comes out in rank order, each line behind `[rank r]`. If a rank raises, exits, is killed or stops
answering, the call ends within the timeout plus two seconds with a `RankError` that names it, shows its own traceback
and says where each other rank stood; the next call works, on new processes where the old ones could not go on.

In a notebook, `%load_ext paralelo.run.ranks` gives `%%ranks`: the cell runs on every rank, in a namespace that lives
on. Under torchrun there are processes already: `main(fn)` is what a script calls.
"""

from paralelo.run.ranks.pool import Ranks
from paralelo.run.ranks.report import RankError

__all__ = ["RankError", "Ranks", "device", "main"]


def device():
    """The device of this process: the one its rank was given, the CPU where there is no rank."""
    import os

    import torch

    return torch.device(os.environ.get("PARALELO_DEVICE", "cpu"))


def main(*args, **kwargs):
    from paralelo.run.ranks.torchrun import main as under_torchrun

    return under_torchrun(*args, **kwargs)


def load_ipython_extension(ipython):
    from paralelo.run.ranks.magic import load

    load(ipython)
