"""Embedding split by vocabulary, and the output head that reads the same (tied) or another split matrix.

    E = [E_0; …; E_{N-1}],   E_r (Vp/N, D): rows r·Vp/N …   Vp = N·⌈V/N⌉, the rows from V on are padding, all zero

    tokens   (…)          the same on every rank
    rows     (…, D)       rank r looks up the tokens it holds, zero elsewhere; the all-reduce adds N − 1 zeros to each
    logits   (…, Vp/N)    h E_rᵀ, never gathered: `vocab_parallel_cross_entropy` reads them as they lie

Embedding: forward all-reduces (…, D), 2(N-1)/N · n·D elements a rank for n tokens; backward sends nothing.
Head: forward sends nothing, backward all-reduces dh. Source: Shoeybi et al. 2019, section 3.

Of torch's options only `padding_idx` is taken over. `max_norm` rescales rows that are looked up, `scale_grad_by_freq`
counts tokens and `sparse` makes gradients of another kind; each would act on row 0 of a rank for every token that lies
elsewhere, so they are refused.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from paralelo.run.collectives import copy_to, reduce_from
from paralelo.run.tensor.split import Split, local_shape, piece
from paralelo.words import Refused

__all__ = ["VocabParallelEmbedding", "VocabParallelHead"]


class VocabParallelEmbedding(nn.Module):
    """Rank r holds rows r·⌈V/N⌉ … of the vocabulary."""

    def __init__(self, V: int, D: int, group: dist.ProcessGroup, *, padding_idx: int | None = None,
                 leave: Callable = reduce_from, device=None, dtype=None):
        super().__init__()
        if padding_idx is not None and not -V <= padding_idx < V:
            raise Refused("run_tensor.token", token=padding_idx, V=V)
        self.V, self.group, self.leave = V, group, leave
        self.padding_idx = padding_idx if padding_idx is None else padding_idx % V
        self._split = Split((V, D), dim=0, padded=True)
        shape = local_shape(self._split, group.size())
        self.start = group.rank() * shape[0]
        self.weight = nn.Parameter(torch.zeros(shape, device=device, dtype=dtype))

    @classmethod
    def from_dense(cls, dense: nn.Embedding, group: dist.ProcessGroup, **options) -> "VocabParallelEmbedding":
        for name, without in (("max_norm", None), ("scale_grad_by_freq", False), ("sparse", False)):
            if getattr(dense, name) != without:
                raise Refused("run_tensor.embedding_option", name=name, value=str(getattr(dense, name)),
                              would_do=str(without))
        w = dense.weight
        parallel = cls(*w.shape, group, padding_idx=dense.padding_idx, device=w.device, dtype=w.dtype, **options)
        with torch.no_grad():
            parallel.weight.copy_(piece(w, parallel._split, group.rank(), group.size()))
        parallel.weight.requires_grad_(w.requires_grad)
        return parallel

    def splits(self):
        return {"weight": self._split}

    def lookup(self, tokens: Tensor) -> Tensor:
        """This rank's part of the sum: the rows it holds, zeros for the tokens of the others."""
        local, rows = tokens - self.start, self.weight.shape[0]
        elsewhere = (local < 0) | (local >= rows)
        padding = None if self.padding_idx is None else self.padding_idx - self.start
        padding = padding if padding is not None and 0 <= padding < rows else None
        found = F.embedding(local.masked_fill(elsewhere, 0), self.weight, padding)
        return found.masked_fill(elsewhere[..., None], 0)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.V:
            raise Refused("run_tensor.token", token=int(tokens.max() if tokens.min() >= 0 else tokens.min()), V=self.V)
        return self.leave(self.lookup(tokens), self.group)


class VocabParallelHead(nn.Module):
    """h (…, D) → this rank's logits (…, Vp/N). `tied`: the embedding whose weight it shares.

    `from_dense` with `tied` refuses a head whose numbers are not the embedding's: they would be lost.
    """

    def __init__(self, V: int, D: int, group: dist.ProcessGroup, *, tied: VocabParallelEmbedding | None = None,
                 enter: Callable | None = copy_to, device=None, dtype=None):
        super().__init__()
        self.V, self.group, self.enter, self._split = V, group, enter, Split((V, D), dim=0, padded=True)
        if tied is not None and tied.splits()["weight"] != self._split:
            raise Refused("run_tensor.shape", expected=[V, D], got=list(tied.splits()["weight"].shape))
        shape = local_shape(self._split, group.size())
        self.weight = tied.weight if tied is not None else nn.Parameter(torch.zeros(shape, device=device, dtype=dtype))

    @classmethod
    def from_dense(cls, dense: nn.Linear, group: dist.ProcessGroup, *, tied: VocabParallelEmbedding | None = None,
                   **options) -> "VocabParallelHead":
        if dense.bias is not None:
            raise Refused("run_tensor.head_bias")
        w = dense.weight
        parallel = cls(*w.shape, group, tied=tied, device=w.device, dtype=w.dtype, **options)
        mine = piece(w, parallel._split, group.rank(), group.size())
        if tied is None:
            with torch.no_grad():
                parallel.weight.copy_(mine)
            parallel.weight.requires_grad_(w.requires_grad)
        elif not torch.equal(mine, tied.weight):
            raise Refused("run_tensor.untied", V=w.shape[0], D=w.shape[1])
        return parallel

    def splits(self):
        return {"weight": self._split}

    def forward(self, h: Tensor) -> Tensor:
        if self.enter is not None:
            h = self.enter(h, self.group)
        return F.linear(h, self.weight)
