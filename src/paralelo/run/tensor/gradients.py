"""The global gradient norm over split parameters, and clipping by it.

    ‖g‖² = Σ_ranks Σ_p ‖g_p‖² / c_p,    c_p = the number of ranks that hold the same numbers

Shards are summed, replicas counted once: c is N for a parameter that is whole on every rank of a tensor group of N,
the number of copies for a replicated key/value head, 1 for a shard. One number is all-reduced over each group in turn
(tensor, then pipeline), and every rank scales by the same factor; a stage
that clips by its own norm would scale its gradients differently from the others.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paralelo.run.collectives import all_reduce
from paralelo.run.tensor.split import one_group, splits
from paralelo.words import Refused

__all__ = ["clip_grad_norm", "grad_norm", "holders"]


def holders(module: nn.Module, world_size: int) -> dict[str, int]:
    """On how many ranks of a tensor group of `world_size` each parameter's piece lies."""
    return {name: world_size if s.dim is None else s.copies for name, s in splits(one_group(module)).items()}


def grad_norm(module: nn.Module, group: dist.ProcessGroup, *others: dist.ProcessGroup,
              copies: Mapping[str, int] | None = None) -> Tensor:
    """The norm of all gradients of the model of which `module` is this rank's part.

    `group` is the tensor group; `others` are groups whose ranks hold other parameters (pipeline stages). `copies`
    gives, by name, over how many ranks of those a parameter is held besides (2 for an embedding tied across the first
    and the last stage). Data-parallel ranks hold the same gradients: their group is not among the `others`. Experts
    that are split over ranks have groups of their own and are refused: see `run.together.clip`.
    """
    held, total = holders(module, group.size()), None
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            squares = parameter.grad.detach().double().square().sum() / (held[name] * (copies or {}).get(name, 1))
            total = squares if total is None else total + squares
    if total is None:
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
        total = torch.zeros((), dtype=torch.float64, device=device)
    for g in (group, *others):
        total = all_reduce(total, g)
    return total.sqrt()


def clip_grad_norm(module: nn.Module, max_norm: float, group: dist.ProcessGroup, *others: dist.ProcessGroup,
                   copies: Mapping[str, int] | None = None) -> Tensor:
    """Scales every gradient by min(1, max_norm / ‖g‖), one factor for the whole model; returns ‖g‖ before."""
    if not max_norm > 0:
        raise Refused("run_tensor.max_norm", max_norm=max_norm)
    norm = grad_norm(module, group, *others, copies=copies)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor.to(parameter.grad.dtype))
    return norm
