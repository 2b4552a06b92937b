"""Weights tied across the pipeline: an embedding that the first stage looks up and the last one multiplies by.

Each of the two ranks holds a copy and finds a part of the gradient. Before the optimizer steps, both must hold the sum:

    g = g_first + g_last        on both, bit for bit the same, since a + b = b + a in floating point

The sum goes through the pipeline's own group: the two ranks send one another their part, both directions posted
together (one message of the parameter's size each way), and the ranks between take no part; no group is made for it.
Where both stages live on one rank (the V placement, or one rank alone) they share the very same parameter, autograd
has added the parts already, and nothing is sent.

With data parallelism: sum raw parts here, then average over the data ranks, all of it (or the other way round: both are
linear). What must not happen is that a data-parallel reduce-scatter comes in between for one copy and not for the
other.
"""

import torch
import torch.distributed as dist

from paralelo.predict.pipeline import Schedule
from paralelo.run.collectives import exchange


def sum_over_ends(parameter: torch.Tensor, schedule: Schedule, group) -> None:
    """`.grad` of the tied parameter becomes the sum over the ranks of the first and of the last stage.

    Those two ranks call it; on any other rank it does nothing.
    """
    ends = schedule.rank_of(0), schedule.rank_of(schedule.num_stages - 1)
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    me = dist.get_rank(group)
    if ends[0] == ends[1] or me not in ends:
        return
    peer = ends[1] if me == ends[0] else ends[0]
    arrived = exchange(parameter.grad, peer, torch.empty_like(parameter.grad), peer, group)
    parameter.grad = parameter.grad + arrived()
