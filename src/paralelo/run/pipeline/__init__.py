"""Pipeline parallelism: a model's depth cut into stages, and one interpreter that runs any schedule on them.

    y = f_{S·C−1}( … f_1( f_0(x) ) )        stage s is f_s, and lives on rank `schedule.rank_of(s)`

A batch (B, …) is cut along dim 0 into M microbatches. For each of them and each stage:

    F    y = f_s(x)                          x from stage s−1, y to stage s+1
    B    dx = dy ∂f_s/∂x,  dw += dy ∂f_s/∂w   dy from stage s+1, dx to stage s−1
    I, W  the two halves of B

A rank holds its stages' parameters, whole; and between F and B (or W) of a microbatch, what the forward saved. Sent
forward: each activation that crosses from rank to rank, once; backward: its gradient, of the same shape. For a
transformer that is B/M·T·D elements a message, 2·M·(S·C−1) messages a step in a loop.

`run_step` runs the schedule object of `predict.pipeline`, the one that was drawn and simulated. Which message is posted
when: `plan`. Shapes: `messages`. The split backward: `backward`. Tied embeddings: `tied`. What ran when, and how much
was held: `trace`.

Sources: Huang et al. 2019 (GPipe); Narayanan et al. 2021 (1F1B, interleaved); Qi et al. 2023 (zero bubble).
"""

from paralelo.run.pipeline.backward import Backward
from paralelo.run.pipeline.plan import plan
from paralelo.run.pipeline.sleeping import SleepingStage
from paralelo.run.pipeline.step import cut, run_step
from paralelo.run.pipeline.tied import sum_over_ends
from paralelo.run.pipeline.trace import Measured, Trace

__all__ = ["Backward", "Measured", "SleepingStage", "Trace", "cut", "plan", "run_step", "sum_over_ends"]
