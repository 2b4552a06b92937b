"""What a rank has, said in logical tensors: no padding, no fused parts, the names of the unsplit model.

    model.blocks.0.mlp.gate.weight       half of a fused [gate; up], and the same tensor where they are not fused
    model.embedding.weight               V rows, however many the shards have; once, though two stages hold it
    optimizer.exp_avg.blocks.0. …        laid out as the parameter is
    streams.sharded/dp=0,tp=1 …          the state of a random stream, by coordinates

A state is a dictionary: names → `Sharded` (a part of a tensor), a whole tensor (the same on every rank that has it), or
a plain value (numbers, strings, lists, dictionaries; the same on every rank).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from paralelo.predict.checkpoint import Box, Cut, apply, whole_piece
from paralelo.run.checkpoint.rules import Lie, rules
from paralelo.words import Refused

__all__ = ["DTYPES", "TORCH", "Held", "Part", "Sharded", "describe", "load_options", "model_state", "optimizer_state"]

DTYPES = {torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32",
          torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32",
          torch.float64: "F64", torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"}
TORCH = {name: dtype for dtype, name in DTYPES.items()}
LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


@dataclass(frozen=True)
class Sharded:
    """A rank's part of one logical tensor.

    shape   of the whole
    parts   (box of the whole, a tensor of that box's shape): views of what the rank holds
    cuts    which axis cuts which dim, so that another layout can be cut alike
    where   the layers or ends ("first", "last") it belongs to; nothing: every stage
    local   what the views look into: a load sets to zero what no box covers (padding)
    """

    shape: tuple[int, ...]
    parts: tuple[tuple[Box, Tensor], ...]
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    where: tuple = ()
    local: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype | None:
        held = self.local if self.local is not None else next((t for _, t in self.parts), None)
        return None if held is None else held.dtype


def sharded(local: Tensor, shape, cuts: Mapping[str, Cut], layout, rank: int, where=()) -> Sharded:
    """A local tensor that lies as `cuts` say, on this rank of a layout."""
    at, pieces = layout.coordinates(rank), [whole_piece(shape)]
    for axis, cut in cuts.items():
        pieces = apply(pieces, cut, layout.size(axis), at[axis])
    parts = tuple((p.box, local[p.local_slices()]) for p in pieces if p.elements or not shape)
    return Sharded(tuple(shape), parts, dict(cuts), tuple(where), local)


# ---- modules

@dataclass(frozen=True)
class Part:
    """One logical tensor in a parameter: (box of the logical tensor, where in the local one) for each of its boxes."""

    name: str
    shape: tuple[int, ...]
    cuts: Mapping[str, Cut]
    where: tuple
    places: tuple[tuple[Box, tuple[slice, ...]], ...]

    def of(self, local: Tensor, first: bool = True) -> Sharded:
        """This part of a tensor laid out as the parameter is. The first part of a tensor answers for its padding."""
        local = local.detach()
        return Sharded(self.shape, tuple((box, local[at]) for box, at in self.places), self.cuts, self.where,
                       local if first else None)


@dataclass(frozen=True)
class Held:
    """A parameter or buffer of this rank, with the logical tensors in it."""

    name: str
    tensor: Tensor
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    def state(self, prefix: str, tensor: Tensor | None = None) -> dict[str, Sharded]:
        tensor = self.tensor if tensor is None else tensor
        return {f"{prefix}{part.name}": part.of(tensor, i == 0) for i, part in enumerate(self.parts)}


def describe(module: nn.Module, names: Mapping[str, str] | None = None, shapes: Mapping[int, tuple] | None = None,
             where: Callable[[str], tuple] | None = None) -> list[Held]:
    """Every parameter and lasting buffer of a dense or split module, each once.

    names    own names → those of the unsplit model, where they differ (a pipeline stage)
    shapes   local shapes by id, of parameters whose storage was let go (ZeRO-3)
    where    unsplit name → the layers or ends it belongs to; where not given, a name's first number is its layer, and
             what comes before the first layer or after the last belongs to that end
    """
    lies, found, order = rules(module), {}, []
    in_layer = False
    for own, tensor in module.state_dict(keep_vars=True).items():
        name = (names or {}).get(own, own)
        number = LAYER.search(name)
        in_layer = in_layer or bool(number)
        place = where(name) if where else (int(number[1]),) if number else ("last",) if in_layer else ("first",)
        if id(tensor) in found:                             # tied: one tensor, two places
            found[id(tensor)][3].extend(p for p in place if p not in found[id(tensor)][3])
            continue
        found[id(tensor)] = [name, tensor, lies.get(own, Lie()), list(place)]
        order.append(id(tensor))
    out = []
    for key in order:
        name, tensor, lie, place = found[key]
        place = tuple(place) if in_layer or where else ()
        shape = tuple((shapes or {}).get(key, tensor.shape))
        out.append(Held(name, tensor, shape, _parts(name, shape, lie, place)))
    return out


def _parts(name: str, local: tuple[int, ...], lie: Lie, where: tuple) -> tuple[Part, ...]:
    """The logical tensors in a local one of shape `local`."""
    whole = list(lie.shape or local)
    if lie.shape is None:
        assert all(a.size == 1 for a in lie.axes.values()), name
    pieces = lie.parts or ((None, whole[lie.dim] if whole else 0, 0),)
    out, offset = [], [0] * len(whole)
    for suffix, size, units in pieces:
        shape, cuts, held = list(whole), {}, None
        if whole:
            shape[lie.dim] = size
        held = [whole_piece(tuple(shape))]
        used = list(shape)
        for axis, a in lie.axes.items():
            cut = replace(a.cut, units=units) if units else a.cut
            cuts[axis] = cut
            held = apply(held, cut, a.size, a.index)
            copies = cut.copies_on(a.size)
            n = a.size // copies
            rows = used[cut.dim]
            used[cut.dim] = -(-rows // n) if cut.rule == "pad" else cut.sizes(rows, n)[a.index // copies]
        places = []
        for p in held:
            at = tuple(slice(s.start + o, s.stop + o) for s, o in zip(p.local_slices(), offset, strict=True))
            if p.elements or not shape:
                places.append((p.box, at))
        out.append(Part(lie.called(name, suffix), tuple(shape), cuts, where, tuple(places)))
        if whole:
            offset[lie.dim] += used[lie.dim]
            assert len(pieces) > 1 or tuple(used) == tuple(local), (name, used, local)
    return tuple(out)


def model_state(module: nn.Module, names: Mapping[str, str] | None = None, **options) -> dict[str, Sharded]:
    """The parameters and lasting buffers of a module as `model.<name>`."""
    return {name: s for held in describe(module, names, **options) for name, s in held.state("model.").items()}


# ---- optimizers

def optimizer_state(optimizer: torch.optim.Optimizer, held: list[Held]) -> dict:
    """What an optimizer keeps of every parameter, laid out as the parameter is, and its options.

    Tensors of a parameter's shape are `optimizer.<what>.<name>`; those of one element (Adam's step) likewise, whole.
    """
    by_id, state = {id(h.tensor): h for h in held}, {}
    for p, kept in optimizer.state.items():
        if id(p) not in by_id:
            raise Refused("checkpoint_run.not_in_module", shape=list(p.shape))
        h = by_id[id(p)]
        for what, value in kept.items():
            if not isinstance(value, Tensor):
                value = torch.tensor(value)
            if value.shape == p.shape and p.dim():
                state |= h.state(f"optimizer.{what}.", value)
            else:
                whole = tuple((0, n) for n in value.shape)
                state[f"optimizer.{what}.{h.parts[0].name}"] = Sharded(
                    tuple(value.shape), ((whole, value.detach()),), {}, h.parts[0].where, value)
    return state | {"optimizer": options(optimizer)}


def options(optimizer: torch.optim.Optimizer) -> dict:
    """Kind and groups' options, as plain values."""
    plain = [{k: v.item() if isinstance(v, Tensor) else list(v) if isinstance(v, tuple) else v
              for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return {"kind": type(optimizer).__name__, "groups": plain}


def load_options(optimizer: torch.optim.Optimizer, saved: dict) -> None:
    """The saved options into an optimizer of the same kind with as many groups."""
    if saved["kind"] != type(optimizer).__name__:
        raise Refused("checkpoint_run.kind", saved=str(saved["kind"])[:40], here=type(optimizer).__name__)
    if len(saved["groups"]) != len(optimizer.param_groups):
        raise Refused("checkpoint_run.groups", saved=len(saved["groups"]), here=len(optimizer.param_groups))
    for group, values in zip(optimizer.param_groups, saved["groups"], strict=True):
        for key, value in values.items():
            now = group.get(key)
            if isinstance(now, Tensor):
                now.fill_(value)
            else:
                group[key] = tuple(value) if isinstance(now, tuple) else value
