"""Which positions a rank holds: contiguous or zig-zag, one document or several packed together, padded exactly.

    contiguous   every document is cut in N parts, rank r holds its part r
    zigzag       every document is cut in 2N chunks, rank r holds its chunks r and 2N−1−r

The zig-zag order gives every rank one early and one late chunk, so causal work is even. Both go document by document:
cut over the whole packed sequence they would give one rank the beginning of one document and nothing of the other.
The order itself is `predict.sequence.positions`: what is counted there is what lies here.

Padding is exact. Zeros follow every document until N (zig-zag: 2N) divides its length. Padded positions are keys for
nobody, so real positions never notice them.
"""

from dataclasses import dataclass

import torch

from paralelo.predict import sequence
from paralelo.predict.sequence import ORDERS
from paralelo.run.collectives import gather_from, split_to
from paralelo.words import Refused


@dataclass(frozen=True)
class Piece:
    """Consecutive positions [start, stop) of one document; those from `real` on are padding."""

    document: int
    start: int
    stop: int
    real: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Placement:
    """Where every position of a packed sequence lies.

    documents  the true lengths of the documents, in order
    N          ranks
    order      "contiguous" or "zigzag"

    >>> two = Placement((4, 4), 2, "zigzag")
    >>> two.indices(0), two.indices(1)
    ([0, 3, 4, 7], [1, 2, 5, 6])
    >>> two.positions(0)
    [0, 3, 0, 3]
    >>> Placement((5,), 2, "zigzag").length
    8
    """

    documents: tuple[int, ...]
    N: int
    order: str = "contiguous"

    def __post_init__(self):
        if self.order not in ORDERS:
            raise Refused("run_sequence.order", order=self.order, orders=list(ORDERS))
        if not self.documents or min(self.documents) < 1:
            raise Refused("run_sequence.documents_empty", documents=list(self.documents))

    @property
    def unit(self) -> int:
        """What divides a padded document: the number of its chunks."""
        return self.N * (2 if self.order == "zigzag" else 1)

    @property
    def padded(self) -> list[int]:
        """The lengths of the documents with their padding."""
        return [-(-length // self.unit) * self.unit for length in self.documents]

    @property
    def length(self) -> int:
        """All positions, padding included: N times what a rank holds."""
        return sum(self.padded)

    def pieces(self, rank: int) -> list[Piece]:
        """What `rank` holds, in the order in which it holds it."""
        found = []
        for document, (real, padded) in enumerate(zip(self.documents, self.padded, strict=True)):
            chunk = padded // self.unit
            which = [rank] if self.order == "contiguous" else [rank, 2 * self.N - 1 - rank]
            found += [Piece(document, c * chunk, (c + 1) * chunk, real) for c in which]
        return found

    def indices(self, rank: int) -> list[int]:
        """The positions of `rank`'s tokens in the padded sequence."""
        starts = [sum(self.padded[:document]) for document in range(len(self.documents))]
        return sequence.packed_positions([*starts, self.length], self.N, rank, self.order)

    def positions(self, rank: int) -> list[int]:
        """The positions of `rank`'s tokens in their own documents: what rotary and learned positions must see."""
        return [i for p in self.pieces(rank) for i in range(p.start, p.stop)]

    def scores(self, rank: int, causal: bool) -> int:
        """How many (query, key) pairs `rank`'s queries look at, padding left out.

        >>> [Placement((16,), 4).scores(r, True) for r in range(4)]
        [10, 26, 42, 58]
        >>> [Placement((16,), 4, "zigzag").scores(r, True) for r in range(4)]
        [34, 34, 34, 34]
        """
        real = [(p.real, i) for p in self.pieces(rank) for i in range(p.start, min(p.stop, p.real))]
        return sum(i + 1 if causal else length for length, i in real)


def place(group, order: str, documents, held: int) -> Placement:
    """The placement of a sequence of which every rank of `group` holds `held` positions."""
    N = group.size() if group is not None else 1
    placement = Placement(tuple(documents or (held * N,)), N, order)
    if placement.length != held * N:
        raise Refused("run_sequence.length", held=held, N=N, order=order, total=held * N,
                      needed=placement.length, part=placement.length // N)
    return placement


def pad(x: torch.Tensor, group, dim: int, order: str = "contiguous", documents=None) -> torch.Tensor:
    """`x` with zeros after its documents, so that `order` can split it over `group`.

    x         (…, T, …)    T positions along `dim`, documents one after the other
    returned  (…, T', …)   T' = `Placement(documents, N, order).length`
    """
    placement = Placement(tuple(documents or (x.shape[dim],)), group.size(), order)
    if sum(placement.documents) != x.shape[dim]:
        raise Refused("run_sequence.documents_sum", documents=list(placement.documents),
                      total=sum(placement.documents), T=x.shape[dim])
    parts = []
    for part, padded in zip(x.split(placement.documents, dim), placement.padded, strict=True):
        shape = list(part.shape)
        shape[dim] = padded - part.shape[dim]
        parts += [part, x.new_zeros(shape)]
    return torch.cat(parts, dim)


def unpad(x: torch.Tensor, group, dim: int, order: str = "contiguous", documents=None) -> torch.Tensor:
    """The inverse of `pad`: the padded positions left out. `documents` are the true lengths."""
    placement = _whole(x, group, dim, order, documents)
    parts = x.split(placement.padded, dim)
    return torch.cat([p.narrow(dim, 0, real) for p, real in zip(parts, placement.documents, strict=True)], dim)


def spread(x: torch.Tensor, group, dim: int, order: str = "contiguous", documents=None) -> torch.Tensor:
    """This rank's part of a whole sequence, in `order`.

    x         (…, T, …)     the same on every rank, padded where `documents` do not divide
    returned  (…, T/N, …)

    Forward sends nothing; backward all-gathers the gradient, as `split_to` does.
    """
    order = _all_indices(_whole(x, group, dim, order, documents), x.device)
    return split_to(x.index_select(dim, order), group, dim)


def collect(x: torch.Tensor, group, dim: int, order: str = "contiguous", documents=None) -> torch.Tensor:
    """The whole sequence in its own order from every rank's part: the inverse of `spread`, and its conjugate."""
    order = _all_indices(place(group, order, documents, x.shape[dim]), x.device)
    return gather_from(x, group, dim).index_select(dim, order.argsort())


def zigzag(x: torch.Tensor, group, dim: int, documents=None) -> torch.Tensor:
    """`spread` in zig-zag order: chunks r and 2N−1−r of every document."""
    return spread(x, group, dim, "zigzag", documents)


def unzigzag(x: torch.Tensor, group, dim: int, documents=None) -> torch.Tensor:
    """`collect` from zig-zag order."""
    return collect(x, group, dim, "zigzag", documents)


def positions(held: int, group, order: str = "contiguous", documents=None, device=None) -> torch.Tensor:
    """The positions of this rank's `held` tokens, counted in each document from 0."""
    placement = place(group, order, documents, held)
    return torch.tensor(placement.positions(group.rank()), device=device)


def _whole(x, group, dim: int, order: str, documents) -> Placement:
    """The placement of a whole sequence that is to be split; refuses lengths that do not divide."""
    T, N = x.shape[dim], group.size()
    placement = Placement(tuple(documents or (T,)), N, order)
    if placement.length != T:
        raise Refused("run_sequence.divide", T=T, N=N, unit=placement.unit, order=order, padded=placement.length)
    return placement


def _all_indices(placement: Placement, device) -> torch.Tensor:
    return torch.tensor([i for rank in range(placement.N) for i in placement.indices(rank)], device=device)
