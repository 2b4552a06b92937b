"""From one topology to another, file to file: no ranks, no torch.

For every rank of the new layout, every piece that falls to it, every old piece that meets it: read the bytes that they
share, put them in place, write the piece. In memory at a time: one new piece, and the pages of one old piece.

What a rank of the new layout holds follows from the manifest (cuts, layers, ends) as it does when a model is built.
Copies are written once, by the rank that has least to write. Checksums of the old files are checked before anything
is written; with `verify` the new files are read once more and compared with the old ones, bit by bit.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from paralelo.predict.checkpoint import Depth, holdings
from paralelo.predict.layout import Layout
from paralelo.run.checkpoint import files
from paralelo.run.checkpoint.manifest import (
    NAME,
    Checkpoint,
    Entry,
    Stored,
    key_of,
    open_checkpoint,
    open_newest,
    step_name,
    to_json,
)
from paralelo.run.checkpoint.reader import Reader
from paralelo.words import Refused

__all__ = ["assign", "compare", "reshard", "verify", "write"]


def reshard(source, target, layout: Layout, *, chunks: int | None = None, placement: str | None = None,
            verify: bool = False, progress: Callable[[int, int], None] | None = None) -> Checkpoint:
    """The newest checkpoint of `source` (or `source` itself), cut for another layout, as a checkpoint in `target`.

    progress   called with (bytes done, bytes in all)
    """
    old = open_newest(source)
    target = Path(target)
    final = files.free(target / step_name(old.step))
    depth = old.depth and Depth(old.depth.layers, chunks or old.depth.chunks, placement or old.depth.placement)
    new = assign(old, layout, depth)
    total = old.bytes * (4 if verify else 2)
    done = 0

    def after(size):
        nonlocal done
        done += size
        if progress:
            progress(min(done, total), total)

    with files.in_words(old.folder), Reader(old.folder) as reader:
        reader.verify((p for _, entry in sorted(old.entries.items()) for p in entry.pieces), after)
        write(old, reader, new, final, after)
        made = open_checkpoint(final)
        if verify:
            compare(old, reader, made, after)
    return made


def assign(old: Checkpoint, layout: Layout, depth: Depth | None) -> Checkpoint:
    """The manifest of the new checkpoint, without files yet: who holds what, who writes it."""
    load, entries = [0] * layout.world_size, {}
    for name, entry in sorted(old.entries.items(), key=lambda e: (-e[1].bytes, e[0])):
        try:
            held = holdings(entry.shape, layout, entry.cuts, entry.where, depth)
        except Refused as refused:
            raise Refused("checkpoint_run.cannot_cut", name=name, why=refused.message) from None
        ranks: dict = {}
        for rank, pieces in enumerate(held):
            for piece in pieces:
                ranks.setdefault(piece.box, []).append(rank)
        made = Entry(entry.shape, entry.dtype, entry.cuts, entry.where)
        for box, holders in sorted(ranks.items()):
            writer = min(holders, key=lambda r: (load[r], r))
            load[writer] += prod(b - a for a, b in box) * files.ITEM[entry.dtype]
            made.pieces.append(Stored(box, f"rank-{writer:05}.safetensors", 0, 0, None,
                                      key_of(name, box, entry.shape), tuple(holders)))
        entries[name] = made
    return Checkpoint(old.folder, layout, depth, old.step, old.values, dict(sorted(entries.items())), {})


def write(old: Checkpoint, reader: Reader, new: Checkpoint, final: Path, after: Callable | None = None) -> None:
    """The files of `new`, filled from the old ones; they appear as `final`, whole."""
    with files.in_words(final.parent):
        made = files.begin(final.parent, final.name)
        try:
            by_file: dict[str, dict] = {}
            for name, entry in new.entries.items():
                for piece in entry.pieces:
                    by_file.setdefault(piece.file, {})[piece.key] = name, piece
            sums = {}
            for file, held in sorted(by_file.items()):
                order = files.aligned([(key, old.entries[name].dtype, tuple(b - a for a, b in piece.box))
                                       for key, (name, piece) in held.items()])

                def bytes_of(key, held=held):
                    name, piece = held[key]
                    return flat(reader.read(old.entries[name], piece.box))

                new.files[file], crcs = files.write_file(made / file, order, bytes_of, {"format": "pt"}, after)
                sums |= {(file, key): crc for key, crc in crcs.items()}
            for entry in new.entries.values():
                entry.pieces = [replace(p, crc32=sums[p.file, p.key]) for p in entry.pieces]
            files.write_json(made / NAME, to_json(new))
            files.publish(made, final)
        except BaseException:
            files.discard(made)
            raise


def flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def verify(folder, after: Callable | None = None) -> Checkpoint:
    """A checkpoint whose every byte is as it was written, or Refused with the name of the file."""
    found = open_newest(folder)
    with files.in_words(found.folder), Reader(found.folder) as reader:
        reader.verify((p for _, entry in sorted(found.entries.items()) for p in entry.pieces), after)
    return found


def compare(old: Checkpoint, reader: Reader, new: Checkpoint, after: Callable | None = None) -> None:
    """Every tensor of two checkpoints, piece by piece of the new one: Refused where a bit differs."""
    with Reader(new.folder) as other:
        for name, entry in new.entries.items():
            for piece in entry.pieces:
                other.verify([piece])
                if not np.array_equal(other.read(entry, piece.box), reader.read(old.entries[name], piece.box)):
                    raise Refused("checkpoint_run.damaged", file=str(new.folder / piece.file), key=piece.key)
                if after:
                    after(2 * piece.size)
