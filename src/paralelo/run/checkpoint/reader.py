"""Reading boxes of tensors out of a checkpoint's files, by byte ranges.

Where box and piece meet in one run of bytes, the run is read straight to its place; otherwise the piece is mapped and
the part that is wanted copied out of it. In memory at a time: the box, and of one piece the pages that are touched.
"""

import mmap
import os
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path

import numpy as np

from paralelo.predict.checkpoint import Box, intersect
from paralelo.run.checkpoint import files
from paralelo.run.checkpoint.manifest import Entry, Stored
from paralelo.words import Refused

WORD = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}      # bits are copied, whatever they mean


class Reader:
    """Open files of one folder."""

    def __init__(self, folder: Path, links: bool = False):
        self.folder, self.links, self._open = folder, links, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def _fd(self, name: str) -> int:
        if name not in self._open:
            self._open[name] = files.open_plain(self.folder, name, self.links)
        return self._open[name]

    def verify(self, pieces: Iterable[Stored], after: Callable | None = None) -> None:
        """Refused, with the file's name, where a piece's bytes are not those that were written."""
        for piece in pieces:
            fd = self._fd(piece.file)
            if piece.crc32 is not None and files.checksum_of(fd, piece.start, piece.size) != piece.crc32:
                raise Refused("checkpoint_run.damaged", file=str(self.folder / piece.file), key=piece.key)
            if after:
                after(piece.size)

    def read(self, entry: Entry, box: Box, out: np.ndarray | None = None) -> np.ndarray:
        """A box of a tensor, as words of its items' size, into `out` where given."""
        item = files.ITEM[entry.dtype]
        if out is None:
            out = np.empty([b - a for a, b in box], WORD[item])
        for piece in entry.pieces:
            meet = intersect(piece.box, box)
            if meet is not None:
                self._copy(piece, meet, out[(*_inside(meet, box), ...)], item)
        return out

    def _copy(self, piece: Stored, meet: Box, out: np.ndarray, item: int) -> None:
        first, run = _run(piece.box, meet)
        if run and out.flags.c_contiguous:
            self._fill(memoryview(out.reshape(-1)).cast("B"), piece, piece.start + first * item)
            return
        base = piece.start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(self._fd(piece.file), piece.start + piece.size - base, access=mmap.ACCESS_READ, offset=base)
        stored = np.frombuffer(mapped, WORD[item], piece.size // item, piece.start - base)
        out[...] = stored.reshape([b - a for a, b in piece.box])[_inside(meet, piece.box)]
        del stored                                          # before what it looks into
        mapped.close()

    def _fill(self, view: memoryview, piece: Stored, start: int) -> None:
        at = 0
        while at < len(view):
            got = os.preadv(self._fd(piece.file), [view[at:]], start + at)
            if not got:
                raise Refused("checkpoint_run.damaged", file=str(self.folder / piece.file), key=piece.key)
            at += got


def _inside(box: Box, outer: Box) -> tuple[slice, ...]:
    return tuple(slice(a - p, b - p) for (a, b), (p, _) in zip(box, outer, strict=True))


def _run(outer: Box, box: Box) -> tuple[int, bool]:
    """(first element of `box` in `outer`, whether all of it is one run there)."""
    shape = [b - a for a, b in outer]
    first = sum((a - p) * prod(shape[i + 1:]) for i, ((a, _), (p, _)) in enumerate(zip(box, outer, strict=True)))
    free = next((i for i, (a, b) in enumerate(box) if b - a > 1), len(box))        # dims before are one wide
    return first, all(b - a == n for (a, b), n in list(zip(box, shape, strict=True))[free + 1:])
