"""The mean over tokens, whatever the split into ranks and microbatches.

    loss = Σ_r Σ_m s_rm / n,    n = Σ_r Σ_m n_rm        s the sum over the tokens of a microbatch, n_rm how many count

A mean of means is another number unless all n_rm are equal: with 3 and 1 tokens it weighs the lone one as much as the
three. So n is added over ranks and microbatches first (one number is all-reduced before the first backward), every
microbatch's sum is divided by the same n, and gradients are *added*, over microbatches by autograd and over ranks by
the all-reduce. Nothing is divided by the number of ranks or of microbatches anywhere.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor

from paralelo.run.collectives import all_reduce
from paralelo.run.data.ddp import DataParallel
from paralelo.run.tensor import IGNORE
from paralelo.words import Refused

__all__ = ["accumulate", "count_tokens"]


def count_tokens(targets: Tensor, *groups: dist.ProcessGroup) -> int:
    """How many targets count (are not −100), over all ranks of the groups that split examples or positions."""
    n = (targets != IGNORE).sum()
    for group in groups:
        n = all_reduce(n, group)
    if not int(n):
        raise Refused("run_data.no_tokens")
    return int(n)


def accumulate(model: DataParallel, microbatches: Sequence[tuple[Tensor, Tensor]],
               loss: Callable[[torch.nn.Module, Tensor, Tensor], Tensor]) -> float:
    """Gradients of the mean over all tokens of all microbatches of all ranks, in p.grad; returns that mean.

    `loss(module, inputs, targets)` is the *sum* over the tokens of a microbatch. The gradients leave once, with the
    last backward: accumulation costs no traffic.
    """
    if model.average:
        raise Refused("run_data.average")
    device = next(model.parameters()).device
    none = torch.empty(0, dtype=torch.long, device=device)  # a rank may have no microbatch at all
    total = count_tokens(torch.cat([none, *(targets.flatten() for _, targets in microbatches)]), model.group)
    value = torch.zeros((), dtype=torch.float64, device=device)
    for m, (inputs, targets) in enumerate(microbatches):
        with nullcontext() if m == len(microbatches) - 1 else model.accumulating():
            share = loss(model, inputs, targets) / total
            share.backward()
        value = value + share.detach()
    model.synchronise()
    return all_reduce(value, model.group).item()
