"""Manifest entries: what is written down of a tensor, who would hold what of it elsewhere, and what can be wrong."""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from paralelo.predict.checkpoint.cuts import Cut, Piece, apply, whole_piece
from paralelo.predict.checkpoint.moves import intersect
from paralelo.predict.layout import Layout, chunk_layers
from paralelo.predict.quantity import MOST_LISTED, whole
from paralelo.words import Message


@dataclass(frozen=True)
class Depth:
    """How layers lie over pipeline ranks: `layers` in all, `chunks` a rank, in a loop or a V."""

    layers: int
    chunks: int = 1
    placement: str = "loop"

    @lru_cache(maxsize=64)                                  # noqa: B019 (few depths, small)
    def held(self, pp: int) -> list[set]:
        """What each pipeline rank holds: numbers of layers, "first" and "last" for what stands at the ends.

        >>> [sorted(map(str, h)) for h in Depth(3).held(2)]
        [['0', '1', 'first'], ['2', 'last']]
        """
        whole("layers", self.layers, most=MOST_LISTED)
        placed = chunk_layers(self.layers, pp, self.chunks, self.placement)
        end = pp - 1 if self.placement == "loop" else 0
        return [{i for chunk in chunks for i in chunk} | ({"first"} if rank == 0 else set())
                | ({"last"} if rank == end else set()) for rank, chunks in enumerate(placed)]


def holding(shape, layout: Layout, cuts: dict[str, Cut], where, depth: Depth | None, rank: int) -> list[Piece] | None:
    """What one rank holds of a tensor; None where the tensor belongs to other stages. See `holdings`."""
    at = layout.coordinates(rank)
    if where and depth is not None and not depth.held(layout.pp)[at["pp"]].intersection(where):
        return None
    pieces = [whole_piece(shape)]
    for axis, cut in cuts.items():
        pieces = apply(pieces, cut, layout.size(axis), at[axis])
    return [p for p in pieces if p.elements or not shape]


def holdings(shape, layout: Layout, cuts: dict[str, Cut], where=(), depth: Depth | None = None) -> list[list[Piece]]:
    """What every rank holds of a tensor that belongs to some layers or ends (`where`; nothing means to all stages).

    >>> held = holdings((4, 2), Layout(tp=2, pp=2), {"tp": Cut(0)}, ["last"], Depth(2))
    >>> [[p.box[0] for p in pieces] for pieces in held]
    [[], [], [(0, 2)], [(2, 4)]]
    """
    return [holding(shape, layout, cuts, where, depth, rank) or [] for rank in range(layout.world_size)]


def entry(shape, dtype: str, held: list[list[Piece]]) -> dict:
    """A manifest entry, ready for JSON: copies are written once, with all their ranks.

    >>> from paralelo.predict.checkpoint import over
    >>> entry((4,), "float32", over((4,), 2, Cut(0)))["pieces"]
    [{'box': [[0, 2]], 'at': [0], 'ranks': [0]}, {'box': [[2, 4]], 'at': [0], 'ranks': [1]}]
    """
    ranks: dict[Piece, list[int]] = {}
    for rank, pieces in enumerate(held):
        for piece in pieces:
            ranks.setdefault(piece, []).append(rank)
    return {"shape": list(shape), "dtype": dtype,
            "pieces": [{"box": [list(r) for r in p.box], "at": list(p.at), "ranks": r} for p, r in ranks.items()]}


def pieces_of(entry: dict, world_size: int) -> list[list[Piece]]:
    """The pieces of every rank, from a manifest entry.

    >>> from paralelo.predict.checkpoint import over
    >>> held = over((5, 2), 4, Cut(0, rule="chunk"))
    >>> pieces_of(entry((5, 2), "float32", held), 4) == held
    True
    """
    out: list[list[Piece]] = [[] for _ in range(whole("world_size", world_size))]
    for piece in entry["pieces"]:
        for rank in piece["ranks"]:
            box = tuple((a, b) for a, b in piece["box"])
            out[rank].append(Piece(box, tuple(piece.get("at", (0,) * len(box)))))
    return out


def problems(name: str, entry: dict) -> list[Message]:
    """What is wrong with a manifest entry: pieces that lie outside, overlap, or leave something out.

    >>> [str(m) for m in problems("w", {"shape": [4], "pieces": [{"box": [[0, 3]], "at": [0], "ranks": [0]}]})]
    ['w: no piece holds 1 of its 4 elements']
    """
    shape, out = entry["shape"], []
    boxes = sorted({tuple(tuple(r) for r in p["box"]) for p in entry["pieces"]})
    for box in boxes:
        good = len(box) == len(shape) and all(0 <= a <= b <= s for (a, b), s in zip(box, shape, strict=True))
        if not good:
            out.append(Message("checkpoint.outside", {"name": name, "box": box, "shape": list(shape)}))
    if out:
        return out
    for i, box in enumerate(boxes):
        for other in boxes[i + 1:]:
            if shape and other[0][0] >= box[0][1]:
                break                                       # sorted by the first dimension: no later one meets it
            if intersect(box, other):
                out.append(Message("checkpoint.overlap", {"name": name, "box": box, "other": other}))
    missing = prod(shape) - sum(prod(b - a for a, b in box) for box in boxes)
    if missing > 0 and not out:
        out.append(Message("checkpoint.gap", {"name": name, "missing": missing, "elements": prod(shape)}))
    return out
