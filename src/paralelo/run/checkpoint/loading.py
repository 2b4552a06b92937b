"""Loading: each rank reads the boxes that it holds, whatever layout wrote them.

First the manifest and all headers are checked, then every byte of the tensors that any rank asks for against its
CRC-32, the pieces shared out over the ranks; only when all of them found their part sound is anything loaded.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from paralelo.predict.checkpoint import holding, local_shape
from paralelo.predict.layout import Layout
from paralelo.run.checkpoint import files
from paralelo.run.checkpoint.manifest import Checkpoint, newest, open_checkpoint, open_newest
from paralelo.run.checkpoint.reader import WORD, Reader
from paralelo.run.checkpoint.saving import World, _whole
from paralelo.run.checkpoint.state import DTYPES, TORCH, Sharded
from paralelo.words import Refused

__all__ = ["load"]


def load(folder, layout: Layout, into: Mapping | None = None, *, group: dist.ProcessGroup | None = None,
         rank: int | None = None, verify: bool = True) -> dict:
    """This rank's part of a checkpoint: the newest in `folder`, or `folder` itself. All ranks call it together.

    into     a state (see `state`): its tensors are filled, each bit as it was saved. Where not given, new tensors are
             made, cut as the manifest says for this layout, local ones with their padding
    rank     to load one rank's part alone, without the others (who then need not call)
    verify   check the checksums of all that is read

    Returns names → tensors, and the plain values under their names.
    """
    if rank is None:
        world = World(layout, group)
        rank, size = world.rank, world.size
        checkpoint = open_checkpoint(world.of_first(lambda: newest(folder), folder))
    else:
        layout.coordinates(rank)
        world, size, checkpoint = None, 1, open_newest(folder)
    wanted = None if into is None else {n: _whole(v) if isinstance(v, Tensor) else v for n, v in into.items()
                                        if isinstance(v, Sharded | Tensor)}

    def check():
        names = check_wanted(checkpoint, wanted) if wanted is not None else list(checkpoint.entries)
        if verify:
            pieces = [p for n in sorted(names) for p in checkpoint.entries[n].pieces]
            with Reader(checkpoint.folder) as reader:
                reader.verify(pieces if world is None else share(pieces, world.rank, size))

    if world is not None:
        world.share(check, folder)
    else:
        with files.in_words(checkpoint.folder):
            check()
    with files.in_words(checkpoint.folder), Reader(checkpoint.folder) as reader:
        tensors = fresh(checkpoint, layout, rank) if wanted is None else wanted
        fill(checkpoint, reader, tensors)
    return {name: value.local if isinstance(value, Sharded) and value.local is not None else value
            for name, value in tensors.items()} | checkpoint.values


def share(pieces: list, rank: int, size: int) -> list:
    """This rank's part of the pieces to verify: about as many bytes for each."""
    total, at, mine = sum(p.size for p in pieces) or 1, 0, []
    for piece in pieces:
        if min(size - 1, at * size // total) == rank:
            mine.append(piece)
        at += piece.size
    return mine


def check_wanted(checkpoint: Checkpoint, wanted: Mapping[str, Sharded]) -> list[str]:
    """The names asked for, all of them in the checkpoint with the same shape and type."""
    missing = [name for name in wanted if name not in checkpoint.entries]
    if missing:
        raise Refused("checkpoint_run.missing", folder=str(checkpoint.folder), names=missing[:5], n=len(missing))
    for name, held in wanted.items():
        entry = checkpoint.entries[name]
        dtype = DTYPES.get(held.dtype)
        if tuple(held.shape) != entry.shape or (held.parts and dtype != entry.dtype):
            raise Refused("checkpoint_run.other", name=name, shape=list(held.shape), dtype=dtype,
                          saved_shape=list(entry.shape), saved_dtype=entry.dtype)
    return list(wanted)


def fresh(checkpoint: Checkpoint, layout: Layout, rank: int) -> dict[str, Sharded]:
    """Empty tensors for what this rank holds by the manifest's own cuts."""
    out = {}
    for name, entry in checkpoint.entries.items():
        held = holding(entry.shape, layout, entry.cuts, entry.where, checkpoint.depth, rank)
        if held is None:
            continue
        local = torch.zeros(local_shape(entry.shape, layout, entry.cuts, rank), dtype=TORCH[entry.dtype])
        parts = tuple((p.box, local[p.local_slices()]) for p in held)
        out[name] = Sharded(entry.shape, parts, entry.cuts, entry.where, local)
    return out


@torch.no_grad()
def fill(checkpoint: Checkpoint, reader: Reader, tensors: Mapping[str, Sharded]) -> None:
    """Reads every box to its place; what no box covers becomes zero."""
    for name, held in tensors.items():
        entry = checkpoint.entries[name]
        if held.local is not None and sum(t.numel() for _, t in held.parts) < held.local.numel():
            held.local.detach().zero_()
        for box, place in held.parts:
            if not place.numel():
                continue
            place = place.detach()
            word = WORD[files.ITEM[entry.dtype]]
            if place.device.type == "cpu" and place.is_contiguous():
                flat = place.reshape(-1).view(torch.uint8).numpy()
                reader.read(entry, box, flat.view(word).reshape(place.shape))
            else:
                bits = torch.from_numpy(reader.read(entry, box).reshape(-1).view(WORD[1]))
                place.copy_(bits.view(place.dtype).view(place.shape))
