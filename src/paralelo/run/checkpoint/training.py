"""A whole training as a state: parameters, optimizer, step, random streams; and back, on another layout.

    save(folder, capture(trainer, step=120, streams=streams), mesh.layout, **depth(trainer))
    step = restore(folder, other_trainer, streams=streams)["step"]

Random streams are kept by coordinates. On the layout that they were saved on, each rank gets its own back and goes on
bit by bit. On another one there is no such thing as the same stream: every rank starts a new one, set apart by a hash
of a saved one and its coordinates, so that no two ranks that must differ draw the same numbers.
"""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from paralelo.predict.layout import Layout
from paralelo.run.checkpoint.loading import load
from paralelo.run.checkpoint.manifest import Checkpoint, newest, open_checkpoint
from paralelo.run.checkpoint.saving import World
from paralelo.run.checkpoint.state import TORCH, Held, Sharded, describe, load_options, optimizer_state
from paralelo.run.tensor import Streams, stream_seed

__all__ = ["capture", "depth", "held_by", "restore", "stream_state", "with_optimizer"]

AXES = ("dp", "cp", "pp")                                   # along which both dropout streams differ


def capture(trainer, *, streams: Streams | None = None, **values) -> dict:
    """The state of a `together.Trainer`; `values` (step, say) go along."""
    held, mesh = held_by(trainer), trainer.mesh
    state = {name: s for h in held for name, s in h.state("model.").items()}
    state |= optimizer_state(trainer.optimizer, held)
    if streams is not None:
        state |= stream_state(streams, mesh.layout, mesh.coordinates)
    return state | values


def restore(folder, trainer, *, streams: Streams | None = None, verify: bool = True) -> dict:
    """A checkpoint of any layout into a trainer of any other; its plain values. All ranks call it together."""
    layout = trainer.mesh.layout
    world = World(layout, None)
    checkpoint = open_checkpoint(world.of_first(lambda: newest(folder), folder))
    held = held_by(trainer)
    into = {name: s for h in held for name, s in h.state("model.").items()}
    found, finish = with_optimizer(trainer.optimizer, held, checkpoint)
    names, read = {}, None
    if streams is not None:
        names, read = streams_from(checkpoint, streams, layout, trainer.mesh.coordinates)
    values = load(checkpoint.folder, layout, into | found | names, verify=verify)
    finish()
    if read is not None:
        read()
    return {name: value for name, value in values.items() if not isinstance(value, Tensor | Sharded)}


def depth(trainer) -> dict:
    """How the blocks lie over the pipeline, as `save` wants to know it."""
    return {"chunks": trainer.schedule.chunks, "placement": trainer.schedule.placement}


def held_by(trainer) -> list[Held]:
    """What a trainer holds, under the names of the whole tutor."""
    out, seen = [], set()
    for stage in trainer.stages:
        names = {}
        for own, tensor in stage.state_dict(keep_vars=True).items():
            _, at, rest = own.split(".", 2)
            names[own] = "embedding.weight" if tensor is trainer.tied else f"{stage.names[int(at)]}.{rest}"
        for held in describe(stage, names, where=lambda name: place_of(name, trainer.tied is not None)):
            if id(held.tensor) not in seen:
                out.append(held)
                seen.add(id(held.tensor))
    return out


def place_of(name: str, tied: bool) -> tuple:
    """Where a tensor of the tutor belongs: to its block, or to an end; a tied embedding to both."""
    first, *rest = name.split(".")
    if first == "blocks":
        return (int(rest[0]),)
    return ("last",) if first == "head" else ("first", "last") if tied else ("first",)


# ---- optimizers

def with_optimizer(optimizer: torch.optim.Optimizer, held: list[Held], checkpoint: Checkpoint):
    """(what to load for an optimizer, what to do afterwards): its state is made new, as the checkpoint has it."""
    into, made = {}, []
    kinds = {name.split(".", 2)[1] for name in checkpoint.entries if name.startswith("optimizer.")}
    parameters = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for h in held:
        if id(h.tensor) not in parameters:
            continue
        for kind in sorted(kinds):
            entry = checkpoint.entries.get(f"optimizer.{kind}.{h.parts[0].name}")
            if entry is None:
                continue
            if entry.shape == h.parts[0].shape and h.tensor.dim():
                value = torch.zeros(h.shape, dtype=TORCH[entry.dtype], device=h.tensor.device)
                into |= h.state(f"optimizer.{kind}.", value)
            else:
                value = torch.zeros(entry.shape, dtype=TORCH[entry.dtype])
                into[f"optimizer.{kind}.{h.parts[0].name}"] = value
            made.append((h.tensor, kind, value))

    def finish():
        optimizer.state.clear()
        for parameter, kind, value in made:
            optimizer.state[parameter][kind] = value
        if "optimizer" in checkpoint.values:
            load_options(optimizer, checkpoint.values["optimizer"])

    return into, finish


# ---- random streams

def stream_state(streams: Streams, layout: Layout, at: Mapping[str, int]) -> dict:
    """The three generators of a rank, by what sets them apart."""
    saved = streams.state_dict()
    state = {name: saved[kind] for kind, name in _stream_names(at).items()}
    return state | {"streams": {axis: layout.size(axis) for axis in (*AXES, "tp")}}


def _stream_names(at: Mapping[str, int]) -> dict[str, str]:
    elsewhere = ",".join(f"{axis}={at[axis]}" for axis in AXES)
    return {"initial": "streams.initial", "replicated": f"streams.replicated/{elsewhere}",
            "sharded": f"streams.sharded/{elsewhere},tp={at['tp']}"}


def streams_from(checkpoint: Checkpoint, streams: Streams, layout: Layout, at: Mapping[str, int]):
    """(what to load for a rank's streams, what to do afterwards)."""
    names, degrees = _stream_names(at), checkpoint.values.get("streams")
    same = degrees == {axis: layout.size(axis) for axis in (*AXES, "tp")}
    if degrees is None:
        return {}, lambda: None
    origin = names if same else _stream_names(dict.fromkeys((*AXES, "tp"), 0))
    into = {name: torch.zeros(checkpoint.entries[name].shape, dtype=torch.uint8) for name in origin.values()}

    def read():
        for kind in names:
            state = into[origin[kind]]
            if same or kind == "initial":
                getattr(streams, kind).set_state(state)
            else:
                seed = int.from_bytes(hashlib.sha256(state.numpy().tobytes()).digest()[:7], "big")
                axes = (*AXES, "tp") if kind == "sharded" else AXES
                seed = stream_seed(seed, kind, [(axis, at[axis]) for axis in axes])
                getattr(streams, kind).manual_seed(seed)

    return into, read
