"""Saving: every rank writes the pieces that fall to it, and the checkpoint appears when all of them are on the disk.

    describe   each rank says which boxes of which tensors it holds                  one all-gather of descriptions
    assign     each distinct box goes to that holder which has least to write so far: copies are written once
    write      each rank its file, into a folder whose name begins with a point, and fsync; then all say how it went
    publish    rank 0 writes the manifest and renames the folder

Wherever it is killed, the folder has its old name or does not exist, and the checkpoint before is untouched. If one
rank fails (disk full, not writable), all ranks raise the same `Refused` and the half-written folder is removed.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from paralelo.predict.checkpoint import Depth, problems
from paralelo.predict.layout import Layout
from paralelo.predict.quantity import shown, whole
from paralelo.run.checkpoint import files
from paralelo.run.checkpoint.manifest import NAME, Checkpoint, Entry, Stored, key_of, step_name, steps, to_json
from paralelo.run.checkpoint.reader import WORD
from paralelo.run.checkpoint.state import DTYPES, Sharded
from paralelo.words import Refused

__all__ = ["save", "save_all"]


def save(folder, state: Mapping, layout: Layout, *, step: int | None = None, chunks: int = 1,
         placement: str = "loop", group: dist.ProcessGroup | None = None, keep: int | None = None) -> Path:
    """Writes a checkpoint of `state` into `folder`; where it lies. All ranks of the layout call it together.

    state    this rank's part: see `state`
    step     names the checkpoint; `state["step"]` or one more than the newest where not given
    chunks, placement   how layers lie over stages, as in a schedule
    group    the ranks of the layout, by their numbers there; all ranks of the world where not given
    keep     how many checkpoints to keep in the folder, this one included; all where not given
    """
    world = World(layout, group)
    folder, made = Path(folder), None

    def start():
        number = _step(folder, state, step)
        return number, files.begin(folder, step_name(number))

    try:
        number, made = world.of_first(start, folder)
        told = world.share(lambda: meta_of(state), folder)
        checkpoint, mine = plan(made, told, layout, number, chunks, placement)    # the same everywhere
        wrote = world.share(lambda: write_rank(made, world.rank, state, mine[world.rank]), folder)
        return world.of_first(lambda: finish(folder, checkpoint, wrote, keep), folder)
    except BaseException:
        if world.rank == 0:
            files.discard(made)
        raise


def save_all(folder, states: Sequence[Mapping], layout: Layout, *, step: int | None = None,
             chunks: int = 1, placement: str = "loop") -> Path:
    """The same in one process that has the states of all ranks, `states[rank]`."""
    if len(states) != layout.world_size:
        raise Refused("checkpoint_run.states", n=len(states), world_size=layout.world_size)
    folder, made = Path(folder), None
    try:
        with files.in_words(folder):
            number = _step(folder, states[0], step)
            made = files.begin(folder, step_name(number))
            checkpoint, mine = plan(made, [meta_of(state) for state in states], layout, number, chunks, placement)
            wrote = [write_rank(made, rank, state, mine[rank]) for rank, state in enumerate(states)]
            return finish(folder, checkpoint, wrote, None)
    except BaseException:
        files.discard(made)
        raise


class World:
    """The ranks that save or load together. What one of them cannot do, all refuse."""

    def __init__(self, layout: Layout, group: dist.ProcessGroup | None):
        if group is None and layout.world_size > 1:
            group = dist.group.WORLD if dist.is_initialized() else None
        ranks = 1 if group is None else group.size()
        if ranks != layout.world_size:
            raise Refused("checkpoint_run.world_size", ranks=ranks, needed=layout.world_size)
        self.group, self.size, self.rank = group, ranks, 0 if group is None else group.rank()

    def share(self, make, folder) -> list:
        """What `make()` gives on every rank, on every rank."""
        said = _attempt(make, self.rank, folder)
        if self.group is None:
            everybody = [said]
        else:
            everybody = [None] * self.size
            dist.all_gather_object(everybody, said, group=self.group)
        for value in everybody:
            if isinstance(value, Refused):
                raise value
        return everybody

    def of_first(self, make, folder):
        """What `make()` gives on rank 0, on every rank."""
        said = [_attempt(make, 0, folder) if self.rank == 0 else None]
        if self.group is not None:
            dist.broadcast_object_list(said, group_src=0, group=self.group)
        if isinstance(said[0], Refused):
            raise said[0]
        return said[0]


def _attempt(make, rank: int, folder):
    try:
        with files.in_words(folder):
            return make()
    except Refused as refused:
        return refused
    except Exception as error:
        return Refused("checkpoint_run.rank_failed", rank=rank, error=f"{type(error).__name__}: {error}")


def _step(folder: Path, state: Mapping, step: int | None) -> int:
    if step is None:
        step = state.get("step")
    if step is None:
        step = max(steps(folder), default=-1) + 1
    whole("step", step, 0)
    files.free(folder / step_name(step))
    return step


# ---- what each rank has, who writes what

def meta_of(state: Mapping) -> dict:
    """A rank's state without its numbers: {name: (shape, dtype, cuts, where, boxes)}, and its plain values."""
    tensors, values = {}, {}
    for name, value in state.items():
        if not isinstance(name, str) or not name:
            raise Refused("checkpoint_run.state_name", name=shown(name))
        if isinstance(value, Tensor):
            value = _whole(value)
        if isinstance(value, Sharded):
            dtype = DTYPES.get(value.dtype)
            if dtype is None and value.parts:
                raise Refused("checkpoint_run.dtype", name=name, dtype=str(value.dtype))
            tensors[name] = value.shape, dtype, dict(value.cuts), value.where, [box for box, _ in value.parts]
        else:
            values[name] = _plain(name, value)
    return {"tensors": tensors, "values": values}


def _whole(tensor: Tensor) -> Sharded:
    return Sharded(tuple(tensor.shape), ((tuple((0, n) for n in tensor.shape), tensor.detach()),), local=tensor)


def _plain(name: str, value):
    """A value that JSON gives back as it was."""
    match value:
        case dict():
            if all(isinstance(k, str) for k in value):
                return {k: _plain(f"{name}.{k}", v) for k, v in value.items()}
        case list() | tuple():
            return [_plain(name, v) for v in value]
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
    raise Refused("checkpoint_run.value", name=name, value=shown(value))


def plan(made: Path, told: list[dict], layout: Layout, step: int, chunks: int = 1, placement: str = "loop"):
    """The manifest (without checksums), and for every rank what it writes: [(key, name, box, dtype)]."""
    values = told[0]["values"]
    for rank, of_rank in enumerate(told):
        for name in values.keys() | of_rank["values"].keys():
            if (name in values) != (name in of_rank["values"]) or values[name] != of_rank["values"][name]:
                raise Refused("checkpoint_run.values_differ", name=name, rank=rank)
    entries: dict[str, Entry] = {}
    holders: dict[str, dict] = {}
    for rank, of_rank in enumerate(told):
        for name, (shape, dtype, cuts, where, boxes) in of_rank["tensors"].items():
            entry = entries.setdefault(name, Entry(tuple(shape), dtype, cuts, tuple(where)))
            entry.dtype = entry.dtype or dtype
            if entry.shape != tuple(shape) or dtype not in (None, entry.dtype) or entry.cuts != cuts:
                raise Refused("checkpoint_run.tensors_differ", name=name, rank=rank, shape=shape, other=entry.shape)
            entry.where += tuple(p for p in where if p not in entry.where)
            for box in boxes:
                holders.setdefault(name, {}).setdefault(tuple(map(tuple, box)), []).append(rank)
    load, mine = [0] * layout.world_size, [[] for _ in range(layout.world_size)]
    for name in sorted(entries, key=lambda n: (-entries[n].bytes if entries[n].dtype else 0, n)):
        entry = entries[name]
        entry.dtype = entry.dtype or "F32"
        for box, ranks in sorted(holders.get(name, {}).items()):
            size = math.prod(b - a for a, b in box) * files.ITEM[entry.dtype]
            writer = min(ranks, key=lambda r: (load[r], r))
            load[writer] += size
            key = key_of(name, box, entry.shape)
            entry.pieces.append(Stored(box, rank_file(writer), 0, size, None, key, tuple(ranks)))
            mine[writer].append((key, name, box, entry.dtype))
        wrong = problems(name, {"shape": entry.shape, "pieces": [{"box": p.box} for p in entry.pieces]})
        if wrong:
            raise Refused("checkpoint_run.incomplete", what=wrong[0])
    numbers = [p for e in entries.values() for p in e.where if isinstance(p, int)]
    depth = Depth(max(numbers) + 1, chunks, placement) if numbers else None
    return Checkpoint(made, layout, depth, step, values, entries, {}), mine


def rank_file(rank: int) -> str:
    return f"rank-{rank:05}.safetensors"


# ---- writing

def write_rank(made: Path, rank: int, state: Mapping, mine: list) -> tuple[str, int, dict[str, str]] | None:
    """A rank's file: (name, bytes, CRC-32 by key); None where nothing falls to it."""
    if not mine:
        return None
    at = {key: (name, box) for key, name, box, _ in mine}
    order = files.aligned([(key, dtype, tuple(b - a for a, b in box)) for key, _, box, dtype in mine])

    def bytes_of(key):
        name, box = at[key]
        held = state[name] if isinstance(state[name], Sharded) else _whole(state[name])
        return numbers(next(t for b, t in held.parts if tuple(map(tuple, b)) == box))

    return rank_file(rank), *files.write_file(made / rank_file(rank), order, bytes_of, {"format": "pt"})


def numbers(tensor: Tensor) -> np.ndarray:
    """A tensor's bits, flat, on the CPU; a view where it can be."""
    flat = tensor.detach().contiguous().cpu().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, WORD[1])


def finish(folder: Path, checkpoint: Checkpoint, wrote: list, keep: int | None) -> Path:
    """Manifest and rename. Afterwards, if asked, the oldest checkpoints go."""
    sums = {}
    for of_rank in wrote:
        if of_rank is not None:
            name, size, crcs = of_rank
            checkpoint.files[name] = size
            sums |= {(name, key): crc for key, crc in crcs.items()}
    for entry in checkpoint.entries.values():
        entry.pieces = [Stored(p.box, p.file, p.start, p.size, sums[p.file, p.key], p.key, p.ranks)
                        for p in entry.pieces]
    files.write_json(checkpoint.folder / NAME, to_json(checkpoint))
    final = folder / step_name(checkpoint.step)
    files.publish(checkpoint.folder, final)
    if keep is not None:
        for step in steps(folder)[:-whole("keep", keep)]:
            files.retire(folder / step_name(step))
    return final
