"""The grammar tutor: a decoder-only transformer of the current kind, small enough for any machine.

    tokens (B, T) → embedding (B, T, D) → L blocks → norm → logits (B, T, V), the head tied to the embedding

    block   x + attention(norm(x)), then x + mlp(norm(x)): grouped queries, rotary positions, gated MLP, RMSNorm

`Tutor` is the dense one, `ParallelTutor.from_dense(dense, group)` the same over a tensor group. Both are lists of parts
(embedding, blocks, head) that a pipeline can deal out: `parts()`.
"""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paralelo.run import tensor
from paralelo.run.tensor import IGNORE

__all__ = ["Block", "Head", "ParallelBlock", "ParallelHead", "ParallelTutor", "Shape", "Tutor"]


@dataclass(frozen=True)
class Shape:
    """Sizes of the tutor: V rows of vocabulary, D features, L blocks, H query and K key/value heads, F hidden units."""

    V: int
    D: int = 64
    L: int = 2
    H: int = 4
    K: int = 2
    F: int = 128
    positions: int = 32
    tied: bool = True


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). `positions` (T,) are those of x, 0 … T − 1 where not given."""

    def __init__(self, shape: Shape, **on):
        super().__init__()
        self.norm1, self.norm2 = tensor.RMSNorm(shape.D, **on), tensor.RMSNorm(shape.D, **on)
        self.attention = tensor.Attention(shape.D, shape.H, shape.K, **on)
        self.mlp = tensor.MLP(shape.D, shape.F, **on)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), positions)
        return x + self.mlp(self.norm2(x))


class ParallelBlock(Block):
    """A block over a tensor group: four all-reduces a step. The norms are whole on every rank."""

    def __init__(self, dense: Block, group, **options):
        nn.Module.__init__(self)
        self.norm1, self.norm2 = _copy(dense.norm1), _copy(dense.norm2)
        attend = {"attend": options.pop("attend")} if "attend" in options else {}
        self.attention = tensor.ParallelAttention.from_dense(dense.attention, group, **options, **attend)
        self.mlp = tensor.ParallelMLP.from_dense(dense.mlp, group, **options)


class Head(nn.Module):
    """Norm and logits (B, T, V); `tied` is the embedding whose weight it shares."""

    def __init__(self, shape: Shape, tied: nn.Embedding | None = None, **on):
        super().__init__()
        self.norm = tensor.RMSNorm(shape.D, **on)
        self.out = nn.Linear(shape.D, shape.V, bias=False, **on)
        if tied is not None:
            self.out.weight = tied.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x))

    @staticmethod
    def loss(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Cross-entropy of (B, T, V) and (B, T), −100 left out."""
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE, reduction=reduction)


class ParallelHead(nn.Module):
    """Norm and this rank's logits (B, T, ⌈V/N⌉); the loss reads them as they lie."""

    def __init__(self, dense: Head, group, tied: tensor.VocabParallelEmbedding | None = None, **options):
        super().__init__()
        self.norm = _copy(dense.norm)
        self.out = tensor.VocabParallelHead.from_dense(dense.out, group, tied=tied, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x))

    def loss(self, logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        return tensor.vocab_parallel_cross_entropy(logits, targets, self.out.group, V=self.out.V, reduction=reduction)


class _Whole(nn.Module):
    """What the dense and the split tutor do alike."""

    def parts(self) -> list[nn.Module]:
        """Embedding, blocks, head, in the order of depth: what a pipeline deals out over its stages."""
        return [self.embedding, *self.blocks, self.head]

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, positions)
        return self.head(x)

    def loss(self, tokens: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        return self.head.loss(self(tokens), targets, reduction)


class Tutor(_Whole):
    """The dense tutor, its initial values drawn from `seed`."""

    def __init__(self, shape: Shape, seed: int = 0, device=None, dtype=None):
        super().__init__()
        self.shape, on = shape, {"device": device, "dtype": dtype}
        self.embedding = nn.Embedding(shape.V, shape.D, **on)
        self.blocks = nn.ModuleList(Block(shape, **on) for _ in range(shape.L))
        self.head = Head(shape, self.embedding if shape.tied else None, **on)
        tensor.initialise(self, tensor.Streams(seed).initial, std=shape.D**-0.5)

    def __repr__(self):
        sizes = " ".join(f"{name}={value}" for name, value in asdict(self.shape).items())
        return f"Tutor({sizes}: {sum(p.numel() for p in self.parameters())} parameters)"


class ParallelTutor(_Whole):
    """The tutor over a tensor group. `options` go to every split layer (`attend`, and `enter` and `leave`)."""

    def __init__(self, dense: Tutor, group, **options):
        super().__init__()
        self.shape, self.group = dense.shape, group
        self.embedding = tensor.VocabParallelEmbedding.from_dense(dense.embedding, group)
        self.blocks = nn.ModuleList(ParallelBlock(block, group, **options) for block in dense.blocks)
        tied = self.embedding if dense.shape.tied else None
        self.head = ParallelHead(dense.head, group, tied)

    @classmethod
    def from_dense(cls, dense: Tutor, group, **options) -> "ParallelTutor":
        return cls(dense, group, **options)


def _copy(norm: tensor.RMSNorm) -> tensor.RMSNorm:
    new = tensor.RMSNorm(norm.weight.numel(), norm.eps, norm.weight.device, norm.weight.dtype)
    with torch.no_grad():
        new.weight.copy_(norm.weight)
    new.weight.requires_grad_(norm.weight.requires_grad)
    return new
