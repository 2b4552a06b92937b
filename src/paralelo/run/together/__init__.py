"""All axes at once: the grammar tutor trained on a layout, with the losses of one process, step by step.

    trainer = Trainer(tutor.make(), mesh(Layout(dp=2, tp=2, pp=2)), microbatches=4)
    loss = trainer.step(tokens, targets)                    # the whole batch, given on every rank

A step, for a global batch of n tokens that count:

    rows          cut into M microbatches; each microbatch's rows into dp parts                            data
    positions     each rank takes its part of them, zig-zag or contiguous; attention goes round a ring     context
    depth         run_step plays the schedule over the pipeline's group                                    pipeline
    layers        built over the tensor group; the loss reads logits split by vocabulary                   tensor
    experts       where a block's MLP is a mixture: over the expert group, tokens split over tensor first  experts

    loss          Σ over this rank's tokens / n, so that the shares of dp·cp ranks add up to the global mean
    gradients     the tied embedding's two parts are added (pipeline); dense parameters over dp·cp, experts over edp
    norm          ‖g‖² = Σ over all ranks of Σ_p ‖g_p‖² / h_p, h_p the number of ranks that hold p; one factor for all

Everything is linear from the share of the loss to the sum of the gradients, so the order of the sums does not matter,
and nothing is divided but by n, once. The balance loss of experts, being no sum over tokens, is that of one microbatch
over all its ranks; its gradient is added and its value is not in the loss that is returned.
"""

from paralelo.run.together.norm import Held, clip
from paralelo.run.together.stage import SplitBlock, Stage
from paralelo.run.together.trainer import Trainer

__all__ = ["Held", "SplitBlock", "Stage", "Trainer", "clip"]
