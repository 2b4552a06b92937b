"""The collectives: what each rank sends, in how many rounds, and how long it takes.

`rounds` writes an algorithm out as data (who sends which piece to whom, round by round) and plays it; `cost` has the
closed forms of the same algorithms and the α–β time that follows. A test holds one against the other.
"""

from paralelo.predict.collectives.cost import (
    ALGORITHMS,
    KINDS,
    Cost,
    algbw,
    all_gather_bytes,
    all_reduce_bytes,
    all_to_all_bytes,
    best,
    broadcast_bytes,
    bus_factor,
    busbw,
    cost,
    crossover,
    faster_from,
    reduce_scatter_bytes,
    seconds,
)
from paralelo.predict.collectives.rounds import Transfer, play, rounds

__all__ = [
    "ALGORITHMS", "KINDS", "Cost", "Transfer", "algbw", "all_gather_bytes", "all_reduce_bytes", "all_to_all_bytes",
    "best", "broadcast_bytes", "bus_factor", "busbw", "cost", "crossover", "faster_from", "play",
    "reduce_scatter_bytes", "rounds", "seconds",
]
