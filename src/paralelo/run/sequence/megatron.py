"""Megatron sequence parallelism: between the tensor pairs, positions are split.

    dense            X + P(norm(X))                       P: MLP or attention
    on rank r        X_r + scatter(P_r(gather(norm(X_r))))

    X_r              (B, T/N, D)    positions r·T/N … of X (one more on the first ranks where N does not
                                    divide T); residual stream, norm and dropout hold 1/N of it
    gather(·)        (B, T, D)      all-gather forward, reduce-scatter of the gradient backward
    P_r              this rank's columns and rows of the pair, without `f` and `g`
    scatter(·)       (B, T/N, D)    reduce-scatter forward, all-gather of the gradient backward

An all-reduce is a reduce-scatter and an all-gather, so forward sends what tensor parallelism alone sends:
2(N−1)/N · B·T·D elements a rank and pair. The weights of P need the gathered X once more in backward:

    regather=False   it is kept: nothing more is sent, and B·T·D elements stay in memory, unsplit
    regather=True    only X_r is kept and gathered again: (N−1)/N · B·T·D more, so a layer of two pairs sends 10 times
                     (N−1)/N · B·T·D instead of 8 times. It works through `saved_tensors_hooks`, of which torch
                     calls the innermost only: others around it do not see what the pair saves

Each rank's norm sees T/N positions, so the gradients of its weight and of a row-parallel bias are parts of the sum:
`Shared` sends those parameters through `f` (identity forward, all-reduce backward). Not averaged: the sum.

Source: Korthikanti et al. 2022, sections 4.2 and 4.2.2.
"""

import torch
from torch import nn

from paralelo.run.collectives import all_gather, copy_to, gather_from, reduce_scatter, split_sizes, unchecked
from paralelo.words import Refused


def gather_positions(x: torch.Tensor, group) -> torch.Tensor:
    """(B, T/N, D) → (B, T, D): all-gather; backward reduce-scatters the gradient."""
    return gather_from(x, group, 1, partial=True)


def scatter_positions(y: torch.Tensor, group) -> torch.Tensor:
    """Partial sums (B, T, D) → this rank's positions (B, T/N, D) of their sum; backward all-gathers."""
    return reduce_scatter(y, group, 1)


SPLIT = {"enter": None, "leave": scatter_positions}     # how a tensor pair is made for `SequenceParallel`


class Shared(nn.Module):
    """A module that every rank of `group` holds whole and feeds with its own positions or tokens.

    Backward sums the gradient of every parameter over the group: one all-reduce for each.
    """

    def __init__(self, module: nn.Module, group):
        super().__init__()
        self.module, self.group = module, group

    def forward(self, *args):
        shared = {name: copy_to(p, self.group) for name, p in self.module.named_parameters()}
        return torch.func.functional_call(self.module, shared, args)


class SequenceParallel(nn.Module):
    """A tensor pair of a block, its input and output split by positions.

    pair      a `ParallelMLP` or `ParallelAttention` (or anything of the kind) made with `**SPLIT`
    norm      the dense norm before it, or None
    """

    def __init__(self, pair: nn.Module, group, norm: nn.Module | None = None, regather: bool = True):
        super().__init__()
        self.pair, self.group, self.regather = pair, group, regather
        self.norm = Shared(norm, group) if norm is not None else None

    @classmethod
    def from_dense(cls, dense: nn.Module, group, norm: nn.Module | None = None, regather: bool = True):
        """From a dense `MLP` or `Attention`."""
        from paralelo.run.tensor import MLP, Attention, ParallelAttention, ParallelMLP

        kinds = {MLP: ParallelMLP, Attention: ParallelAttention}
        if type(dense) not in kinds:
            raise Refused("run_sequence.pair", kind=type(dense).__name__, kinds=[k.__name__ for k in kinds])
        return cls(kinds[type(dense)].from_dense(dense, group, **SPLIT), group, norm, regather)

    def forward(self, x, *args):
        part = self.norm(x) if self.norm is not None else x
        gathered = gather_positions(part, self.group)                    # (B, T, D)
        if not self.regather:
            return self.pair(gathered, *args)
        with _Again(part, gathered, self.group).hooks():
            return self.pair(gathered, *args)


class _Again:
    """Keeps `part` where autograd would keep the gathered tensor; gathers once more when backward asks for it."""

    def __init__(self, part, gathered, group):
        self.part, self.group = part.detach(), group
        self.storage, self.size = gathered.untyped_storage().data_ptr(), gathered.numel()
        self.sizes = split_sizes(gathered.shape[1], group.size())
        self.uses = self.left = 0
        self.again = None

    def hooks(self):
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, tensor):
        same = tensor.numel() == self.size and tensor.untyped_storage().data_ptr() == self.storage
        if not same or not tensor.is_contiguous():          # a transposed view of it is not what `view` makes
            return tensor
        self.uses += 1
        return tensor.shape

    def unpack(self, kept):
        if isinstance(kept, torch.Tensor):
            return kept
        if self.again is None:
            with torch.no_grad(), unchecked():
                self.again, self.left = all_gather(self.part, self.group, 1, self.sizes), self.uses
        tensor, self.left = self.again.view(kept), self.left - 1
        if not self.left:
            self.again = None
        return tensor
