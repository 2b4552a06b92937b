"""Which gradients are still to be added, and over which ranks.

With experts in the layer, the ranks hold two kinds of parameters:

    dense    on all dp·cp ranks of a stage and tensor coordinate; each saw its own tokens         add over dp·cp
    expert   on edp ranks; the ep ranks between them sent it their tokens, so it is a sum already   add over edp

When every rank's loss is its share of one global mean (see `token_mean`), adding is all. When every rank's loss is the
mean of its own, equally many tokens, both kinds are divided by the *same* number, dp·cp: the experts have added up the
tokens of all those ranks, whatever way. Dividing them by edp, "the ranks that hold them", leaves a factor ep in their
gradients, which Adam hides.

One all-reduce for each kind: 2(N−1)/N of the parameters' bytes. A parameter without a gradient counts as zero, so that
every rank takes part.
"""

from collections.abc import Iterator

import torch
from torch import nn

from paralelo.run.collectives import all_reduce
from paralelo.run.experts.layer import Experts


def expert_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The names and parameters of `module` that belong to experts."""
    for path, child in module.named_modules():
        if isinstance(child, Experts):
            for name, parameter in child.named_parameters(recurse=False):
                yield (f"{path}.{name}" if path else name), parameter


def synchronise(module: nn.Module, dense=None, experts=None, divisor: int = 1) -> None:
    """Adds the gradients of `module` over the right ranks, in place.

    dense     the group of dp·cp ranks          None: one rank
    experts   the group of edp ranks            None: one rank
    divisor   1 if each rank's loss is its share of the global mean; dp·cp if it is the rank's own mean
    """
    of_experts = {id(p) for _, p in expert_parameters(module)}
    kinds = {True: experts, False: dense}
    for is_expert, group in kinds.items():
        add_gradients([p for p in module.parameters() if (id(p) in of_experts) == is_expert], group, divisor)


@torch.no_grad()
def add_gradients(parameters, group, divisor: int = 1) -> None:
    """Adds the gradients of `parameters` over `group` in one all-reduce for each dtype, and divides them."""
    parameters = [p for p in parameters if p.requires_grad]
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    for dtype in dict.fromkeys(p.dtype for p in parameters):
        grads = [p.grad for p in parameters if p.dtype == dtype]
        flat = torch.cat([g.flatten() for g in grads])
        if group is not None:
            flat = all_reduce(flat, group)
        for grad, total in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(total.view_as(grad)).div_(divisor)
