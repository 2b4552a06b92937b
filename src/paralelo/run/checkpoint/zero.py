"""ZeRO's parts as a state: each data rank writes the elements it owns, and reads those it owns elsewhere.

A rank owns a range of a unit's flat tensor, so of each parameter a range of its elements: at most 2·dims − 1 boxes.
What is written are the same logical tensors as without ZeRO; so a run may go on with another stage, other degrees, or
without. The float32 copy that half-precision weights are stepped on is `optimizer.master.<name>`.
"""

from collections.abc import Iterator, Mapping
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from paralelo.predict.checkpoint import flat_boxes, intersect
from paralelo.predict.layout import Layout
from paralelo.run.checkpoint.loading import load
from paralelo.run.checkpoint.manifest import newest, open_checkpoint
from paralelo.run.checkpoint.saving import World
from paralelo.run.checkpoint.state import TORCH, Sharded, describe, load_options, options
from paralelo.run.data.zero import Zero

__all__ = ["restore_zero", "zero_state"]


def zero_state(zero: Zero, names: Mapping[str, str] | None = None) -> dict:
    """Weights, master copies, and the optimizer's state and options."""
    state = {}
    for unit, parts in _units(zero, names):
        state |= _sharded(unit, parts, unit.part, "model.")
        if unit.master.dtype != unit.part.dtype:
            state |= _sharded(unit, parts, unit.master.detach(), "optimizer.master.")
        for what, value in zero.optimizer.state[unit.master].items():
            value = value if isinstance(value, Tensor) else torch.tensor(value)
            state |= _sharded(unit, parts, value, f"optimizer.{what}.")
    return state | {"optimizer": options(zero.optimizer)}


def restore_zero(folder, zero: Zero, layout: Layout, names: Mapping[str, str] | None = None, *,
                 group: dist.ProcessGroup | None = None, verify: bool = True) -> dict:
    """A checkpoint of any layout, ZeRO or not, into this rank's parts; its plain values. Called on all ranks."""
    world = World(layout, group)
    checkpoint = open_checkpoint(world.of_first(lambda: newest(folder), folder))
    kinds = {name.split(".", 2)[1] for name in checkpoint.entries if name.startswith("optimizer.")}
    masters = "master" in kinds
    into, made = {}, []
    for unit, parts in _units(zero, names):
        half = unit.master.dtype != unit.part.dtype
        into |= _sharded(unit, parts, unit.part, "model.")
        if half and masters:
            into |= _sharded(unit, parts, unit.master.detach(), "optimizer.master.")
        first = next(iter(parts))[0].name
        for kind in sorted(kinds - {"master"}):
            entry = checkpoint.entries.get(f"optimizer.{kind}.{first}")
            if entry is None:
                continue
            flat = entry.shape == next(iter(parts))[0].shape and bool(entry.shape)
            value = torch.zeros(unit.master.shape if flat else entry.shape, dtype=TORCH[entry.dtype],
                                device=unit.master.device if flat else "cpu")
            into |= _sharded(unit, parts[:None if flat else 1], value, f"optimizer.{kind}.")
            made.append((unit.master, kind, value))
    found = load(checkpoint.folder, layout, into, group=group, verify=verify)
    zero.optimizer.state.clear()
    for master, kind, value in made:
        zero.optimizer.state[master][kind] = value
    if "optimizer" in checkpoint.values:
        load_options(zero.optimizer, checkpoint.values["optimizer"])
    with torch.no_grad():
        for unit in zero.units:
            if unit.master.dtype != unit.part.dtype and not masters:
                unit.master.copy_(unit.part)
            unit.publish()
    return {name: value for name, value in found.items() if name in checkpoint.values}


def _units(zero: Zero, names) -> Iterator[tuple]:
    """Every unit with [(part, local shape, first element in the unit)] of its parameters' logical tensors."""
    shapes = {id(p): shape for unit in zero.units
              for p, shape in zip(unit.parameters.values(), unit.shapes, strict=True)}
    held = {id(h.tensor): h for h in describe(zero.module, names, shapes)}
    for unit in zero.units:
        parts, at = [], 0
        for p, shape, size in zip(unit.parameters.values(), unit.shapes, unit.sizes, strict=True):
            parts += [(part, tuple(shape), at) for part in held[id(p)].parts]
            at += size
        yield unit, parts


def _sharded(unit, parts, flat: Tensor, prefix: str) -> dict[str, Sharded]:
    """What this rank owns of a flat tensor of the unit; a value of one element goes with each parameter, whole."""
    out = {}
    for part, shape, at in parts:
        if flat.shape != unit.master.shape:
            whole = tuple((0, n) for n in flat.shape)
            out[prefix + part.name] = Sharded(tuple(flat.shape), ((whole, flat),), {}, part.where, flat)
            continue
        size, boxes = prod(shape), []
        low, high = (min(max(edge - at, 0), size) for edge in (unit.start, unit.start + unit.chunk))
        for box in flat_boxes(shape, low, high):
            for of_whole, place in part.places:
                meet = intersect(box, tuple((s.start, s.stop) for s in place))
                if meet is None:
                    continue
                first = sum(a * prod(shape[i + 1:]) for i, (a, _) in enumerate(meet))
                dims = [b - a for a, b in meet]
                view = flat.detach()[at + first - unit.start:][:prod(dims)].view(dims)
                shift = [(a + p - s.start, b + p - s.start)
                         for (a, b), (p, _), s in zip(meet, of_whole, place, strict=True)]
                boxes.append((tuple(shift), view))
        out[prefix + part.name] = Sharded(part.shape, tuple(boxes), part.cuts, part.where)
    return out
