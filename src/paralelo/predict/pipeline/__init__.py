"""Pipeline schedules as data: which rank runs what, in which order, and what that costs.

A model's depth is cut into S·C global stages, `C` chunks on each of `S` ranks; a batch is cut into `M` microbatches.
Every stage runs, for every microbatch, one `F` (forward) and either one `B` (the whole backward) or one `I` (gradient
of the input) and one `W` (gradient of the weights). A **schedule** is the order of these actions on every rank and
nothing else. It is drawn, simulated and executed as it is.

    F of stage s needs F of stage s−1        (a message forward, if s−1 lives on another rank)
    B or I of stage s needs F of stage s, and B or I of stage s+1     (a message backward)
    W of stage s needs I of stage s

    >>> from paralelo.predict.pipeline import build, simulate
    >>> schedule = build("1f1b", stages=2, microbatches=3)
    >>> print(schedule)
    F0 F1 B0 F2 B1 B2
    F0 B0 F1 B1 F2 B2
    >>> result = simulate(schedule, forward=1, backward=2)
    >>> result.makespan, result.ideal, result.live_activations
    (12, 9, [2, 1])

Modules: `schedule` (the object), `orders` (seven published orders), `simulation` (times), `formulas` (closed forms),
`checks` (what is wrong with a schedule made by hand, and which sends it survives).
"""

from paralelo.predict.pipeline.checks import check
from paralelo.predict.pipeline.formulas import (
    idle_over_ideal,
    idle_share,
    live,
    makespan,
    messages,
    microbatches_that_do,
    warmup,
)
from paralelo.predict.pipeline.orders import NAMES, build
from paralelo.predict.pipeline.schedule import Action, Schedule, from_actions, from_text
from paralelo.predict.pipeline.simulation import Simulation, simulate

__all__ = [
    "NAMES", "Action", "Schedule", "Simulation", "build", "check", "from_actions", "from_text", "idle_over_ideal",
    "idle_share", "live", "makespan", "messages", "microbatches_that_do", "simulate", "warmup",
]
