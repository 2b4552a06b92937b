"""The blocks that layers are made of, each as its tensors: shape, and what a tensor split may cut.

    Dim        something that a degree must respect: its size (heads, columns, channels) and the rule it follows
               divide      the degree must divide it (query heads, widths, linear-attention heads)
               replicate   a multiple of it will do as well: every one is held degree/size times (KV heads)
               copy        the same, and it is no news: the parts are small (groups of B and C in a state space)
               pad         any degree will do, the size is padded (vocabulary)
    Tensor     (rows, cols) as nn.Linear stores them: rows are outputs. `dim` is what cuts it, None where every rank of
               a tensor group holds the whole; `experts` > 0: one such tensor for each routed expert

Elements of a tensor on one rank at degree t: all of them (dim None), 1/t (t divides), 1/size where t is a multiple of
size. An expert's tensors are cut by the expert-tensor degree and shared out by the expert degree.

Sources: the architectures' reference classes in `transformers`; Shoeybi et al. 2019 (which matrix is cut which way);
Ainslie et al. 2023 (GQA); DeepSeek-AI 2024 (MLA); Yang et al. 2024 (Gated DeltaNet); Gu & Dao 2023, 2024 (Mamba).
"""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Dim:
    """A size that a tensor degree must respect."""

    name: str
    size: int
    rule: str = "divide"

    def allows(self, degree: int, replicate: bool = True) -> bool:
        """Whether `degree` ranks can share it in whole units; with `replicate`, KV heads may be held more than once."""
        if self.rule == "pad" or self.size % degree == 0:
            return True
        return (self.rule == "copy" or (replicate and self.rule == "replicate")) and degree % self.size == 0

    def share(self, degree: int) -> Fraction:
        """The largest share one rank holds.

        >>> Dim("kv_heads", 4, "replicate").share(8), Dim("ffn", 10).share(4)
        (Fraction(1, 4), Fraction(3, 10))
        """
        return Fraction(-(-self.size // degree), self.size)


@dataclass(frozen=True)
class Tensor:
    name: str
    rows: int
    cols: int = 1
    dim: Dim | None = None
    experts: int = 0
    axis: int = 0                                           # which of rows (0) and cols (1) is cut

    @property
    def elements(self) -> int:
        return self.rows * self.cols * max(1, self.experts)

    def per_rank(self, tp: int = 1, ep: int = 1, etp: int = 1) -> int:
        """Elements on the rank that holds most."""
        degree = etp if self.experts else tp
        share = self.dim.share(degree) if self.dim else 1
        copies = -(-self.experts // ep) if self.experts else 1
        return int(self.rows * self.cols * share) * copies


class Block:
    """What all blocks share. A block's fields are set by formulas of the family table."""

    kind = ""
    norms = 1                                               # how many norms of the hidden size belong to it
    norm_bias = False
    shared = ""                                             # one set of weights for all layers that name it
    copies = 1                                              # how many such sets there are

    def tensors(self, D: int) -> list[Tensor]:
        """The block's own tensors and its norms."""
        norm = [Tensor("norm", D)] + ([Tensor("norm.bias", D)] if self.norm_bias else [])
        return self.own(D) + norm * self.norms

    def own(self, D: int) -> list[Tensor]:
        raise NotImplementedError

    def dims(self) -> list[Dim]:
        """What a tensor degree must respect, each once, by name."""
        found = {t.dim: None for t in self.own(1) if t.dim}
        return list(found)
