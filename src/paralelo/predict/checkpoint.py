"""Manifest arithmetic: which part of a tensor each rank holds, and which pieces meet when the topology changes.

A box is one range per dimension of the whole tensor, ((start, stop), …). What a rank holds is a list of pieces: a box
of the whole tensor and the place in the rank's local tensor where it lies; a plain shard is one piece, a shard of a
fused matrix one per part. A manifest entry lists all pieces of a tensor with the ranks that hold them.

Resharding is intersection, whatever the two topologies are:

    for every piece of the new layout, for every piece of the old one that meets it:  move old ∩ new

Each element is moved once, from the rank itself where it holds it already, otherwise from one of its holders.
`torch.chunk` decides uneven cuts: every shard has ⌈n/N⌉ rows until none are left, so that the last may be empty.
"""

from dataclasses import dataclass
from math import prod

from paralelo.predict.layout import Layout
from paralelo.predict.quantity import divisors, one_of, ranges, whole
from paralelo.words import Message, Refused

Box = tuple[tuple[int, int], ...]


def chunk_sizes(n: int, N: int) -> list[int]:
    """Rows of each shard by torch.chunk's rule, empty shards written out.

    >>> chunk_sizes(6, 4), chunk_sizes(10, 4), chunk_sizes(5, 4)
    ([2, 2, 2, 0], [3, 3, 3, 1], [2, 2, 1, 0])
    """
    whole("n", n, 0)
    size = -(-n // whole("N", N)) or 1
    return [min(size, max(0, n - i * size)) for i in range(N)]


@dataclass(frozen=True)
class Piece:
    """A box of the whole tensor, and where it begins in the local one."""

    box: Box
    at: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in self.box)

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def slices(self) -> tuple[slice, ...]:
        """Where it is in the whole tensor."""
        return tuple(slice(a, b) for a, b in self.box)

    def local_slices(self) -> tuple[slice, ...]:
        """Where it is in the local tensor."""
        return tuple(slice(o, o + b - a) for o, (a, b) in zip(self.at, self.box, strict=True))


@dataclass(frozen=True)
class Cut:
    """One cut of a tensor along a dimension.

    `parts` are the sizes of fused parts, each cut by itself. `copies` neighbours hold the same shard (KV heads).
    `rule`: "even" refuses what does not divide, "chunk" follows torch.chunk.
    """

    dim: int
    parts: tuple[int, ...] = ()
    copies: int = 1
    rule: str = "even"


def whole_piece(shape) -> Piece:
    """The tensor in one piece."""
    return Piece(tuple((0, s) for s in shape), (0,) * len(shape))


def apply(pieces: list[Piece], cut: Cut, N: int, index: int) -> list[Piece]:
    """What rank `index` of N keeps of a local tensor, itself made of pieces.

    >>> gate_up = [whole_piece((8, 3))]                         # rows g0 g1 g2 g3 u0 u1 u2 u3
    >>> [p.box[0] for p in apply(gate_up, Cut(0, parts=(4, 4)), 2, 1)]
    [(2, 4), (6, 8)]
    """
    one_of("rule", cut.rule, ("even", "chunk"))
    whole("index", index, 0, whole("N", N) - 1)
    if N % whole("copies", cut.copies):
        raise Refused("checkpoint.copies", copies=cut.copies, N=N, would_do=divisors(N))
    N, index = N // cut.copies, index // cut.copies
    dim = cut.dim
    size = max((p.at[dim] + p.shape[dim] for p in pieces), default=0)
    parts = cut.parts or (size,)
    if sum(parts) != size:
        raise Refused("checkpoint.parts", parts=list(parts), total=sum(parts), size=size)
    out, filled = [], 0
    for part in ranges(parts):
        if cut.rule == "even" and len(part) % N:
            raise Refused("checkpoint.even", size=len(part), N=N, would_do=divisors(len(part)))
        mine = ranges(chunk_sizes(len(part), N))[index]
        start, stop = part.start + mine.start, part.start + mine.stop
        for p in pieces:
            a, b = max(start, p.at[dim]), min(stop, p.at[dim] + p.shape[dim])
            if a < b:
                first = p.box[dim][0] + a - p.at[dim]
                box = (*p.box[:dim], (first, first + b - a), *p.box[dim + 1:])
                out.append(Piece(box, (*p.at[:dim], filled + a - start, *p.at[dim + 1:])))
        filled += len(mine)
    return out


def shards(shape, layout: Layout, cuts: dict[str, Cut]) -> list[list[Piece]]:
    """What every rank of a layout holds of a tensor: the cuts are made in the order in which they are given.

    >>> layout = Layout(tp=2, dp=2)
    >>> [[p.box for p in held] for held in shards((4, 6), layout, {"tp": Cut(1), "dp": Cut(0)})]
    [[((0, 2), (0, 3))], [((0, 2), (3, 6))], [((2, 4), (0, 3))], [((2, 4), (3, 6))]]
    """
    out = []
    for rank in range(layout.world_size):
        at, pieces = layout.coordinates(rank), [whole_piece(shape)]
        for axis, cut in cuts.items():
            pieces = apply(pieces, cut, layout.size(axis), at[axis])
        out.append([p for p in pieces if p.elements or not shape])
    return out


def over(shape, N: int, cut: Cut | None = None) -> list[list[Piece]]:
    """What each of N ranks holds when there is one axis only; with no cut, everything."""
    return [apply([whole_piece(shape)], cut, N, r) if cut else [whole_piece(shape)] for r in range(whole("N", N))]


# ---- moves

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

    >>> moved_bytes(moves(over((6,), 3, Cut(0)), over((6,), 2, Cut(0))), 4)
    12
    """
    return sum(m.elements for m in moves if m.source != m.target) * element


# ---- manifests

def entry(shape, dtype: str, held: list[list[Piece]]) -> dict:
    """A manifest entry, ready for JSON: copies are written once, with all their ranks.

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

    >>> held = over((5, 2), 4, Cut(0, rule="chunk"))
    >>> pieces_of(entry((5, 2), "float32", held), 4) == held
    True
    """
    out: list[list[Piece]] = [[] for _ in range(whole("world_size", world_size))]
    for piece in entry["pieces"]:
        for rank in piece["ranks"]:
            out[rank].append(Piece(tuple((a, b) for a, b in piece["box"]), tuple(piece["at"])))
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
