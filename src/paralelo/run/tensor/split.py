"""How a parameter lies over the ranks of one tensor group, as data.

A `Split` is written once beside each layer; cutting a dense layer, joining the pieces again, drawing equal initial
values, counting replicas once in a norm and writing a checkpoint all read the same object.

    dim None                       the whole on every rank
    dim 0, no parts                rank r holds rows r·n/N … of n, zero rows added where n does not divide (`padded`)
    dim 0, parts (p, q)            a fused matrix: each part is cut by itself: [its rows of p; its rows of q]
    copies c                       N/c pieces; piece i lies on ranks i·c … i·c + c − 1 (replicated key/value heads)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paralelo.words import Refused

__all__ = ["Split", "join", "local_shape", "piece", "splits"]


@dataclass(frozen=True)
class Split:
    """One parameter over the ranks of a group: `shape` is the global one, without padding."""

    shape: tuple[int, ...]
    dim: int | None = None
    parts: tuple[int, ...] = ()
    copies: int = 1
    padded: bool = False

    def sizes(self, world_size: int) -> tuple[int, ...]:
        """How much of each part one rank holds along `dim` (padding included).

        >>> Split((12, 8), dim=0, parts=(4, 8)).sizes(2)
        (2, 4)
        >>> Split((5, 8), dim=0, padded=True).sizes(2)
        (3,)
        """
        pieces = world_size // self.copies
        return tuple(-(-part // pieces) for part in self.parts or (self.shape[self.dim],))

    def check(self, world_size: int, name: str = "weight") -> "Split":
        """Itself, or Refused with the world sizes that would do."""
        if self.dim is None:
            return self
        parts = self.parts or (self.shape[self.dim],)
        if self.parts and sum(self.parts) != self.shape[self.dim]:
            raise Refused("run_tensor.parts_sum", name=name, parts=list(self.parts), size=self.shape[self.dim])
        if world_size % self.copies:
            raise Refused("run_tensor.copies_divide", copies=self.copies, world_size=world_size)
        if not self.padded and any(part % (world_size // self.copies) for part in parts):
            least = min(parts)
            would_do = [n for n in range(1, min(least, 64) + 1) if not any(part % n for part in parts)]
            raise Refused("run_tensor.size_divides", name=name, size=list(parts), pieces=world_size // self.copies,
                          would_do=would_do)
        return self


def local_shape(split: Split, world_size: int) -> tuple[int, ...]:
    """The shape of one rank's piece.

    >>> local_shape(Split((1024, 5120), dim=0, copies=2), 8)
    (256, 5120)
    """
    if split.dim is None:
        return split.shape
    shape = list(split.shape)
    shape[split.dim] = sum(split.sizes(world_size))
    return tuple(shape)


def piece(tensor: Tensor, split: Split, rank: int, world_size: int) -> Tensor:
    """Rank `rank`'s piece of a global tensor, a new tensor of shape `local_shape(split, world_size)`.

    A fused [gate; up] over two ranks (the straight cut would give rank 0 all of gate and no up):

    >>> fused = Split((8, 1), dim=0, parts=(4, 4))
    >>> piece(torch.arange(8).view(8, 1), fused, 0, 2).flatten().tolist()
    [0, 1, 4, 5]
    """
    if tensor.shape != split.shape:
        raise Refused("run_tensor.shape", expected=list(split.shape), got=list(tensor.shape))
    if split.dim is None:
        return tensor.detach().clone()
    index, cut = rank // split.copies, []
    sources = tensor.detach().split(split.parts or split.shape[split.dim], split.dim)
    for source, size in zip(sources, split.sizes(world_size), strict=True):
        start = min(index * size, source.shape[split.dim])
        stop = min(start + size, source.shape[split.dim])
        cut.append(source.narrow(split.dim, start, stop - start))
        if stop - start < size:
            shape = list(source.shape)
            shape[split.dim] = size - (stop - start)
            cut.append(source.new_zeros(shape))
    return torch.cat(cut, split.dim)


def join(pieces: Sequence[Tensor], split: Split) -> Tensor:
    """The global tensor of all ranks' pieces: the inverse of `piece`, padding stripped, one of each copy taken."""
    if split.dim is None:
        return pieces[0].clone()
    world_size, distinct = len(pieces), pieces[:: split.copies]
    sizes = split.sizes(world_size)
    columns = zip(*(p.split(sizes, split.dim) for p in distinct), strict=True)
    whole = []
    for column, part in zip(columns, split.parts or (split.shape[split.dim],), strict=True):
        whole.append(torch.cat(column, split.dim).narrow(split.dim, 0, part))
    return torch.cat(whole, split.dim)


def splits(module: nn.Module) -> dict[str, Split]:
    """Every parameter of a module by name, with how it is split; what no layer declares is whole on every rank.

    A layer that splits something has a method `splits()` over its own parameters; names are those of
    `module.named_parameters()`, and equal those of the dense module. Experts lie over groups of their own, of which a
    tensor group knows nothing: here they count as whole (`run.checkpoint.rules` and `run.together` know how they lie).
    """
    return dict(_walk(module))


def one_group(module: nn.Module) -> nn.Module:
    """The module, or Refused where a layer's parameters lie over other groups than the tensor group."""
    for path, child in module.named_modules():
        if getattr(child, "other_groups", False):
            raise Refused("run_tensor.other_groups", name=path or type(child).__name__)
    return module


def _walk(module: nn.Module) -> Iterator[tuple[str, Split]]:
    seen = {id(p): name for name, p in module.named_parameters()}
    for path, child in module.named_modules():
        own = child.splits() if hasattr(child, "splits") else {}
        for name, parameter in child.named_parameters(recurse=False):
            full = f"{path}.{name}" if path else name
            if seen.get(id(parameter)) == full:
                yield full, own.get(name, Split(tuple(parameter.shape)))
