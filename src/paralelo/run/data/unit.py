"""One unit of ZeRO: some parameters in a flat tensor of n elements (padded), of which this rank owns n/N.

Stages 1 and 2: the module's parameters are views of the whole flat tensor. Stage 3: they are empty; forward gathers
the flat tensor, lends views of it for the time of the call, and lets it go. Autograd would keep it for backward; so
what it wants to save of the weights is replaced by a note (which elements), and backward gathers again on the first
note it reads, keeps that until the unit's gradient is complete, and reduce-scatters the gradient on the spot.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paralelo.run.collectives import all_gather
from paralelo.run.collectives.plain import reduce_scattered
from paralelo.run.data.ddp import broadcast, on_gradient
from paralelo.words import Refused


class Unit:
    """`parameters` (name in the model → parameter) of `module`, over `group`."""

    def __init__(self, module: nn.Module, model: nn.Module, parameters: Mapping[str, nn.Parameter],
                 group: dist.ProcessGroup, stage: int):
        self.module, self.parameters, self.group, self.stage = module, dict(parameters), group, stage
        rank, N = group.rank(), group.size()
        own = list(self.parameters.values())
        if len(types := {str(p.dtype).removeprefix("torch."): None for p in own}) > 1:
            raise Refused("run_data.types", types=list(types))
        dtype, self.shapes = own[0].dtype, [p.shape for p in own]
        self.sizes = [p.numel() for p in own]
        self.chunk = -(-sum(self.sizes) // N)
        self.start = rank * self.chunk
        flat = torch.cat([p.detach().flatten() for p in own])
        flat = broadcast(torch.cat((flat, flat.new_zeros(N * self.chunk - flat.numel()))), group)
        half = dtype.is_floating_point and dtype.itemsize < 4
        part = flat[self.start:self.start + self.chunk]
        if stage == 3:
            self.flat, self.part = None, part.clone()
            self.places = [[(m, n) for m in model.modules() for n, q in m.named_parameters(recurse=False) if q is p]
                           for p in own]
            for p in own:
                p.data = p.data.new_empty(0)
            self.inner, module.forward = module.forward, self._forward
        else:
            self.flat, self.part = flat, part
            for p, view in zip(own, self._views(flat), strict=True):
                p.data = view
        # What the optimizer steps on: the part itself, or a float32 copy of it.
        self.master = nn.Parameter(self.part.float() if half else self.part)
        self.gradient: Tensor | None = None
        self._again: Tensor | None = None
        if stage == 2:
            self._missing = len(own)
            for p in own:
                on_gradient(p, self, "_arrived")

    def _views(self, flat: Tensor) -> list[Tensor]:
        pieces = flat[: sum(self.sizes)].split(self.sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.parameters, self._views(flat), strict=True))

    # ---- gradients

    def _add(self, flat: Tensor) -> None:
        """The sum over the ranks of this rank's n/N elements of a gradient, added to what accumulated."""
        N = self.group.size()
        flat = torch.cat((flat, flat.new_zeros(N * self.chunk - flat.numel())))
        mine = reduce_scattered(flat, self.group, 0, [self.chunk] * N)
        self.gradient = mine if self.gradient is None else self.gradient + mine

    def _arrived(self, _) -> None:
        """Stage 2: once the last gradient of the unit is there, all of them leave, and the whole ones are let go."""
        self._missing -= 1
        if self._missing == 0:
            self._reduce_whole()

    def _reduce_whole(self) -> None:
        self._missing = len(self.parameters)
        self._add(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten()
                             for p in self.parameters.values()]))
        for p in self.parameters.values():
            p.grad = None

    def reduce(self) -> None:
        """Whatever has not left yet: everything in stage 1; in stages 2 and 3 what only some ranks used."""
        if self.stage == 1 or (self.stage == 2 and self._missing < len(self.parameters)) or self.gradient is None:
            if self.stage == 3:
                self._add(self.part.new_zeros(sum(self.sizes)))
            else:
                self._reduce_whole()

    def squares(self, holders: Mapping[str, int]) -> Tensor:
        total, at = self.gradient.new_zeros((), dtype=torch.float64), 0
        for name, size in zip(self.parameters, self.sizes, strict=True):
            low, high = (min(max(edge - self.start, 0), self.chunk) for edge in (at, at + size))
            total += self.gradient[low:high].double().square().sum() / holders.get(name, 1)
            at += size
        return total

    def forget(self) -> None:
        self.gradient = None
        for p in self.parameters.values():
            p.grad = None

    # ---- weights

    @torch.no_grad()
    def publish(self) -> None:
        """After a step: the part from its float32 copy; in stages 1 and 2 everybody's parts to everybody."""
        self._again = None                                  # left by a backward that never came to the weights
        if self.master.dtype != self.part.dtype:
            self.part.copy_(self.master)
        if self.stage < 3:
            self.flat.copy_(all_gather(self.part, self.group))

    @torch.no_grad()
    def gather(self) -> Tensor:
        return all_gather(self.part, self.group)

    def whole(self) -> dict[str, Tensor]:
        return self.named((self.gather() if self.stage == 3 else self.flat).clone())

    # ---- stage 3: weights lent for the time of a call

    def _forward(self, *args, **kwargs):
        flat = _Gather.apply(self.master if torch.is_grad_enabled() else None, self)
        views = self._views(flat)
        address = flat.untyped_storage().data_ptr()

        def note(t: Tensor):
            if t.untyped_storage().data_ptr() == address:
                return t.shape, t.stride(), t.storage_offset()
            return t

        def read(kept):
            if isinstance(kept, Tensor):
                return kept
            if self._again is None:
                self._again = self.gather()
            return self._again.as_strided(*kept)

        lent = [(owner.__dict__, name, view) for view, places in zip(views, self.places, strict=True)
                for owner, name in places]
        for attributes, name, view in lent:
            attributes[name] = view  # found before the empty parameter of that name
        try:
            with torch.autograd.graph.saved_tensors_hooks(note, read):
                return self.inner(*args, **kwargs)
        finally:
            for attributes, name, _ in lent:
                del attributes[name]


class _Gather(torch.autograd.Function):
    """The flat weights of a unit; backward is where its whole gradient is complete."""

    @staticmethod
    def forward(ctx, master, unit):
        ctx.unit = unit
        return unit.gather()

    @staticmethod
    def backward(ctx, grad):
        ctx.unit._again = None
        ctx.unit._add(grad[: sum(ctx.unit.sizes)])
        return None, None
