"""A model's shape: its layers as blocks, its two ends, and what all its tensors add up to."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from paralelo.predict.model.feed_forward import MoE
from paralelo.predict.model.tensors import Block, Dim, Tensor
from paralelo.words import Message


@dataclass(frozen=True)
class Layer:
    """One layer: the name of its kind, and its blocks in order."""

    kind: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Model:
    """The text decoder that a configuration describes, nothing else: no vision tower, no multi-token prediction.

    D `hidden`, V `vocab`, H `heads`, K `kv_heads`, d `head_dim`, E `experts`. Layers of one kind are one object.
    """

    model_type: str
    hidden: int
    vocab: int
    tied: bool
    layers: tuple[Layer, ...]
    context: int = 0                                        # positions the configuration promises, 0 where it says none
    positions: int = 0                                      # rows of a learned table
    embedding_norms: int = 0
    final_norm_bias: bool = False
    quantisation: int = 0                                   # side of the blocks that share a scale
    notes: tuple[Message, ...] = field(default=(), compare=False)

    def __hash__(self):                                     # once: a model is the key of many small tables
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.model_type, self.hidden, self.vocab, self.layers))

    # ---- what it is

    @cached_property
    def layer_kinds(self) -> dict[str, int]:
        """How many layers of each kind, in order of appearance."""
        return dict(Counter(layer.kind for layer in self.layers))

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Every different block, in order of appearance."""
        return tuple(dict.fromkeys(b for layer in dict.fromkeys(self.layers) for b in layer.blocks))

    @cached_property
    def attention(self) -> Block | None:
        """The attention that `heads`, `kv_heads` and `head_dim` speak of: the first that the model has."""
        found = [b for b in self.blocks if b.kind in ("attention", "latent_attention")]
        return found[0] if found else None

    @property
    def heads(self) -> int:
        return self.attention.heads if self.attention else 0

    @property
    def kv_heads(self) -> int:
        return self.attention.kv_heads if self.attention else 0

    @property
    def head_dim(self) -> int:
        return self.attention.head_dim if self.attention else 0

    @cached_property
    def moe(self) -> MoE | None:
        return next((b for b in self.blocks if b.kind == "moe"), None)

    @property
    def experts(self) -> int:
        return self.moe.experts if self.moe else 0

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """Everything a tensor degree must respect, the vocabulary last."""
        return tuple(dict.fromkeys([d for b in self.blocks for d in b.dims()] + [self.vocabulary]))

    @property
    def vocabulary(self) -> Dim:
        return Dim("vocab", self.vocab, "pad")

    # ---- what it holds

    @cached_property
    def first(self) -> tuple[Tensor, ...]:
        """What stands before the layers."""
        out = [Tensor("embedding", self.vocab, self.hidden, self.vocabulary)]
        out += [Tensor("positions", self.positions, self.hidden)] if self.positions else []
        return tuple(out + [Tensor("embedding_norm", self.hidden)] * self.embedding_norms)

    @cached_property
    def last(self) -> tuple[Tensor, ...]:
        """What stands behind the layers. A tied head has no tensor of its own."""
        out = [Tensor("final_norm", self.hidden)] * (2 if self.final_norm_bias else 1)
        return tuple(out + ([] if self.tied else [Tensor("head", self.vocab, self.hidden, self.vocabulary)]))

    def tensors(self, layers=None) -> list[tuple[Block, Tensor, int]]:
        """(block, tensor, how many of it) for these layers, all by default; a shared block counts once."""
        times: Counter = Counter()
        for layer, n in Counter(self.layers if layers is None else layers).items():
            for block in layer.blocks:
                times[block] = block.copies if block.shared else times[block] + n
        return [(block, tensor, n) for block, n in times.items() for tensor in block.tensors(self.hidden)]

    @cached_property
    def parameters(self) -> int:
        """All parameters: the embedding once where it is tied to the head."""
        ends = sum(t.elements for t in (*self.first, *self.last))
        return ends + sum(n * t.elements for _, t, n in self.tensors())

    @cached_property
    def active(self) -> int:
        """The parameters one token meets: top_k of the experts, everything else. For FLOPs, never for memory."""
        spared = sum(n * t.elements * (b.experts - b.top_k) // b.experts for b, t, n in self.tensors() if t.experts)
        return self.parameters - spared

    def layer_parameters(self) -> dict[str, int]:
        """Parameters of one layer of each kind."""
        return {layer.kind: sum(t.elements for b in layer.blocks for t in b.tensors(self.hidden))
                for layer in reversed(self.layers)}

    def summary(self) -> dict:
        """What the audit prints about the model."""
        return {"model_type": self.model_type, "parameters": self.parameters, "layers": len(self.layers),
                "layer_kinds": self.layer_kinds, "query_heads": self.heads, "kv_heads": self.kv_heads,
                "head_dim": self.head_dim, "hidden": self.hidden, "vocab": self.vocab, "experts": self.experts}
