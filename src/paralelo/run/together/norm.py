"""The gradient norm over all axes, and clipping by it.

    ‖g‖² = Σ over every rank of Σ_p ‖g_p‖² / h_p,    h_p = the number of ranks of the world that hold the same p

    whole over a tensor group      h = dp·cp·tp            (twice that for an embedding tied across two stages)
    split over it                  h = dp·cp·copies        copies > 1 for replicated key/value heads
    an expert                      h = edp

One number, one all-reduce, one factor for every rank. A stage that clips by its own norm scales its gradients
differently from the others.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from paralelo.run.collectives import all_reduce
from paralelo.run.layout import Mesh
from paralelo.run.tensor import Split
from paralelo.words import Refused


@dataclass(frozen=True)
class Held:
    """How a parameter lies: its `split` over the tensor group, how many `ranks` hold it, if it is an `expert`'s."""

    split: Split
    ranks: int
    expert: bool


@torch.no_grad()
def clip(named, mesh: Mesh, max_norm: float) -> float:
    """Scales the gradients of (name, parameter, held) to a global norm of at most `max_norm`; the norm before."""
    if not max_norm > 0:
        raise Refused("run_tensor.max_norm", max_norm=max_norm)
    squares = torch.zeros((), dtype=torch.float64, device=mesh.device)
    for _, p, held in named:
        if p.grad is not None:
            squares += p.grad.double().square().sum() / held.ranks
    norm = all_reduce(squares, dist.group.WORLD).sqrt().item()
    factor = min(max_norm / (norm + 1e-6), 1.0)             # in this order NaN stays NaN, as in torch
    for _, p, _ in named:
        if p.grad is not None:
            p.grad.mul_(factor)
    return norm
