"""ZeRO: data parallelism in which a rank keeps 1/N of what it needs only now and then.

    stage   whole on every rank      1/N a rank                          sent a step, elements of (N−1)/N · Ψ
    1       weights, gradients       optimizer                           reduce-scatter g, all-gather w           2
    2       weights                  gradients, optimizer                the same; g leaves during backward       2
    3       nothing                  weights, gradients, optimizer       all-gather w twice, reduce-scatter g     3

The model is cut into units (its blocks, and the rest). A unit's parameters lie one behind the other in a flat tensor,
padded to a multiple of N; rank r owns elements r·n/N … of it, their gradients, and the optimizer's state for them. An
optimizer that works number by number (SGD, Adam) steps on its part as it would on the whole.

Where the module is in half precision the optimizer works on a float32 copy of the part: 2 + 2 + (4 + 4 + 4) bytes a
parameter with Adam. In stages 2 and 3 every backward sends gradients (accumulation multiplies that traffic); in stage 1
they are sent once a step. Source: Rajbhandari et al. 2020; stage 3 is what FSDP does.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paralelo.run.collectives import all_gather, all_reduce
from paralelo.run.data.ddp import broadcast
from paralelo.run.data.unit import Unit
from paralelo.words import Refused

__all__ = ["Zero", "default_units"]


def default_units(module: nn.Module) -> list[nn.Module]:
    """The blocks of a model: what its outermost module lists hold."""
    found, inside = [], set()
    for child in module.modules():
        if child not in inside and isinstance(child, nn.ModuleList | nn.Sequential):
            found += list(child)
            inside |= {m for block in child for m in block.modules()}
    return [block for block in found if any(True for _ in block.parameters())]


class Zero:
    """`module` over the data group, with an optimizer on this rank's part of it.

        zero = Zero(module, group, lambda parts: torch.optim.Adam(parts, 1e-3), stage=3)
        loss(module(x)).backward()
        zero.step(max_norm=1.0)

    Initial values are rank 0's. `average`: gradients are the mean over the ranks; else their sum, for losses that are
    shares of one mean. `units` are the modules gathered one at a time in stage 3 (the model's blocks where not given);
    what is in none is one more. In stages 2 and 3 every rank must use every unit in every backward: a unit's messages
    are part of it.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup, optimizer: Callable[[list], torch.optim.Optimizer],
                 stage: int = 1, *, units: Sequence[nn.Module] | None = None, average: bool = True):
        if stage not in (1, 2, 3):
            raise Refused("run_data.stage", stage=stage)
        self.module, self.group, self.stage, self.average = module, group, stage, average
        with torch.no_grad():
            for tensor in (*(p for p in module.parameters() if not p.requires_grad), *module.buffers()):
                tensor.copy_(broadcast(tensor, group))      # those that are trained: see `Unit`
        names = {p: name for name, p in module.named_parameters()}
        taken, self.units = set(), []
        for part in (*(default_units(module) if units is None else units), module):
            new = [p for p in part.parameters() if p not in taken and p.requires_grad]
            taken |= set(new)
            if new:
                self.units.append(Unit(part, module, {names[p]: p for p in new}, group, stage))
        self.optimizer = optimizer([unit.master for unit in self.units])

    def reduce(self) -> None:
        """Gradients of the parts, added over the ranks: in stage 1 they are sent now, in 2 and 3 they were."""
        for unit in self.units:
            unit.reduce()

    def squares(self, holders: Mapping[str, int] | None = None) -> Tensor:
        """Σ g² over this rank's parts; a parameter held by `holders[name]` ranks of other groups counts 1/that."""
        factor = 1 / self.group.size() if self.average else 1.0
        return sum(unit.squares(holders or {}) for unit in self.units) * factor**2

    def grad_norm(self, *others: dist.ProcessGroup, holders: Mapping[str, int] | None = None) -> Tensor:
        """The norm of the whole gradient, over the data group and `others` (tensor, pipeline); after `reduce`."""
        total = self.squares(holders)
        for group in (self.group, *others):
            total = all_reduce(total, group)
        return total.sqrt()

    def step(self, max_norm: float | None = None, *others: dist.ProcessGroup,
             holders: Mapping[str, int] | None = None) -> Tensor | None:
        """Reduce, clip if asked, step on this rank's part, bring the weights up to date; the norm, if clipped."""
        if max_norm is not None and not max_norm > 0:
            raise Refused("run_tensor.max_norm", max_norm=max_norm)
        self.reduce()
        norm, factor = None, 1 / self.group.size() if self.average else 1.0
        if max_norm is not None:
            norm = self.grad_norm(*others, holders=holders)
            factor *= min(max_norm / (norm.item() + 1e-6), 1.0)     # in this order NaN stays NaN, as in torch
        for unit in self.units:
            unit.master.grad = unit.gradient.to(unit.master.dtype) * factor
            unit.gradient = None
        self.optimizer.step()
        for unit in self.units:
            unit.master.grad = None
            unit.publish()
        return norm

    def zero_grad(self) -> None:
        """Forgets gradients (a step does so by itself)."""
        for unit in self.units:
            unit.forget()

    def whole(self) -> dict[str, Tensor]:
        """Every parameter, whole, on every rank: for checks and checkpoints."""
        return {name: tensor for unit in self.units for name, tensor in unit.whole().items()}

    def whole_gradients(self) -> dict[str, Tensor]:
        """Every gradient after `reduce`, whole, on every rank."""
        factor, found = 1 / self.group.size() if self.average else 1.0, {}
        for unit in self.units:
            found |= unit.named(all_gather(unit.gradient, self.group) * factor)
        return found
