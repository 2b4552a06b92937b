"""Moves: which pieces of one layout meet which of another."""

from dataclasses import dataclass
from math import prod

from paralelo.predict.checkpoint.cuts import Box, Piece


def intersect(a: Box, b: Box) -> Box | None:
    """What two boxes have in common.

    >>> intersect(((0, 4), (0, 3)), ((2, 6), (1, 2)))
    ((2, 4), (1, 2))
    """
    both = tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))
    return None if any(p >= q for p, q in both) else both


@dataclass(frozen=True)
class Move:
    """A box that goes from a place in one rank's local tensor to a place in another's."""

    source: int
    target: int
    box: Box
    source_at: tuple[int, ...]
    target_at: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(b - a for a, b in self.box)

    def source_slices(self) -> tuple[slice, ...]:
        return Piece(self.box, self.source_at).local_slices()

    def target_slices(self) -> tuple[slice, ...]:
        return Piece(self.box, self.target_at).local_slices()


def moves(old: list[list[Piece]], new: list[list[Piece]]) -> list[Move]:
    """Every move from one layout to another; an element that several ranks hold comes from one of them.

    >>> from paralelo.predict.checkpoint import Cut, over
    >>> [(m.source, m.target, m.box) for m in moves(over((6,), 3, Cut(0)), over((6,), 2, Cut(0)))]
    [(0, 0, ((0, 2),)), (1, 0, ((2, 3),)), (1, 1, ((3, 4),)), (2, 1, ((4, 6),))]
    """
    holders: dict[Box, list[tuple[int, Piece]]] = {}
    for rank, pieces in enumerate(old):
        for piece in pieces:
            holders.setdefault(piece.box, []).append((rank, piece))
    out = []
    for target, pieces in enumerate(new):
        for wanted in pieces:
            for box, held in holders.items():
                meet = intersect(box, wanted.box)
                if meet is None:
                    continue
                source, piece = next((h for h in held if h[0] == target), held[target % len(held)])
                out.append(Move(source, target, meet, _inside(meet, piece), _inside(meet, wanted)))
    return out


def _inside(box: Box, piece: Piece) -> tuple[int, ...]:
    return tuple(at + a - p for at, (a, _), (p, _) in zip(piece.at, box, piece.box, strict=True))


def moved_bytes(moves: list[Move], element: int = 4) -> int:
    """Bytes that change rank.

    >>> from paralelo.predict.checkpoint import Cut, over
    >>> moved_bytes(moves(over((6,), 3, Cut(0)), over((6,), 2, Cut(0))), 4)
    12
    """
    return sum(m.elements for m in moves if m.source != m.target) * element
