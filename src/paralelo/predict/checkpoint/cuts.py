"""Cuts: which part of a tensor each rank of a layout holds."""

from dataclasses import dataclass
from math import prod

from paralelo.predict.layout import Layout
from paralelo.predict.quantity import MOST_LISTED, divisors, one_of, ranges, shares, whole
from paralelo.words import Refused

Box = tuple[tuple[int, int], ...]
RULES = ("even", "chunk", "pad", "shares")


def chunk_sizes(n: int, N: int) -> list[int]:
    """Rows of each shard by torch.chunk's rule, empty shards written out.

    >>> chunk_sizes(6, 4), chunk_sizes(10, 4), chunk_sizes(5, 4)
    ([2, 2, 2, 0], [3, 3, 3, 1], [2, 2, 1, 0])
    """
    whole("n", n, 0)
    size = -(-n // whole("N", N, most=MOST_LISTED)) or 1
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

    `parts`    sizes of fused parts, each cut by itself
    `copies`   neighbours that hold the same shard (KV heads), for one degree
    `units`    the same for every degree: n is so many units that are never cut (heads); more ranks than units hold
               copies of them
    `rule`     "even" refuses what does not divide, "chunk" follows torch.chunk, "pad" too and fills up the last shards
               with zero rows (a vocabulary), "shares" gives the first ranks one more (experts)
    """

    dim: int
    parts: tuple[int, ...] = ()
    copies: int = 1
    rule: str = "even"
    units: int = 0

    def copies_on(self, N: int) -> int:
        """How many of N ranks hold the same shard.

        >>> [Cut(0, units=4).copies_on(N) for N in (1, 2, 4, 8)]
        [1, 1, 1, 2]
        """
        if not self.units:
            return self.copies
        if N % self.units and self.units % N:
            would_do = [*divisors(self.units), *(self.units * i for i in range(2, 5))]
            raise Refused("checkpoint.units", units=self.units, N=N, would_do=would_do)
        return max(1, N // self.units)

    def sizes(self, n: int, N: int) -> list[int]:
        """Rows of n for each of N different shards.

        >>> Cut(0, rule="shares").sizes(30, 4), Cut(0, rule="chunk").sizes(30, 4)
        ([8, 8, 7, 7], [8, 8, 8, 6])
        """
        if self.rule == "even" and n % N:
            raise Refused("checkpoint.even", size=n, N=N, would_do=divisors(n, MOST_LISTED))
        return shares(n, N) if self.rule == "shares" else chunk_sizes(n, N)


def whole_piece(shape) -> Piece:
    """The tensor in one piece."""
    return Piece(tuple((0, s) for s in shape), (0,) * len(shape))


def apply(pieces: list[Piece], cut: Cut, N: int, index: int) -> list[Piece]:
    """What rank `index` of N keeps of a local tensor, itself made of pieces.

    >>> gate_up = [whole_piece((8, 3))]                         # rows g0 g1 g2 g3 u0 u1 u2 u3
    >>> [p.box[0] for p in apply(gate_up, Cut(0, parts=(4, 4)), 2, 1)]
    [(2, 4), (6, 8)]
    """
    one_of("rule", cut.rule, RULES)
    whole("index", index, 0, whole("N", N) - 1)
    copies = cut.copies_on(N)
    if N % whole("copies", copies):
        raise Refused("checkpoint.copies", copies=copies, N=N, would_do=divisors(N))
    N, index = N // copies, index // copies
    dim = cut.dim
    size = max((p.at[dim] + p.shape[dim] for p in pieces), default=0)
    parts = cut.parts or (size,)
    if sum(parts) != size:
        raise Refused("checkpoint.parts", parts=list(parts), total=sum(parts), size=size)
    out, filled = [], 0
    for part in ranges(parts):
        mine = ranges(cut.sizes(len(part), N))[index]
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


def local_shape(shape, layout: Layout, cuts: dict[str, Cut], rank: int) -> tuple[int, ...]:
    """The shape of a rank's local tensor, padding included.

    >>> local_shape((5, 8), Layout(tp=2), {"tp": Cut(0, rule="pad")}, 1)
    (3, 8)
    """
    out, at = list(shape), layout.coordinates(rank)
    for axis, cut in cuts.items():
        N = layout.size(axis) // cut.copies_on(layout.size(axis))
        index = at[axis] * N // layout.size(axis)
        parts = cut.parts or (out[cut.dim],)
        out[cut.dim] = sum(-(-n // N) if cut.rule == "pad" else cut.sizes(n, N)[index] for n in parts)
    return tuple(out)


def flat_boxes(shape, start: int, stop: int) -> list[Box]:
    """Elements start … stop of a tensor laid out flat, as boxes in that order: part of a row, rows, part of a row.

    What a rank of ZeRO owns of a parameter is such a range.

    >>> flat_boxes((4, 3), 2, 10)
    [((0, 1), (2, 3)), ((1, 3), (0, 3)), ((3, 4), (0, 1))]
    """
    if start >= stop:
        return []
    if not shape:
        return [()]
    if len(shape) == 1:
        return [((start, stop),)]
    row = prod(shape[1:])
    (first, a), (last, b) = divmod(start, row), divmod(stop, row)
    if first == last:
        return [((first, first + 1), *box) for box in flat_boxes(shape[1:], a, b)]
    out = []
    if a:
        out += [((first, first + 1), *box) for box in flat_boxes(shape[1:], a, row)]
        first += 1
    if first < last:
        out.append(((first, last), *((0, n) for n in shape[1:])))
    return out + [((last, last + 1), *box) for box in flat_boxes(shape[1:], 0, b)]
