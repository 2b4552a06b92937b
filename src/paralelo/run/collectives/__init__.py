"""Collectives that autograd knows, and a ledger of what they send.

A pair of conjugate collectives (Shoeybi et al. 2019 call the first two f and g): the backward of one is the forward of
the other. x_r is what rank r holds, N the number of ranks of the group.

    forward                                   y_r =                backward: dx_r =
    copy_to         f   nothing is sent       x_r                  Σ_j dy_j               all-reduce
    reduce_from     g   all-reduce            Σ_j x_j              dy_r                   nothing is sent
    split_to            nothing is sent       x[part r]            [dy_0 … dy_{N−1}]      all-gather
    gather_from         all-gather            [x_0 … x_{N−1}]      dy[part r]             nothing is sent
      partial=True      all-gather            [x_0 … x_{N−1}]      Σ_j dy_j[part r]       reduce-scatter
    reduce_scatter      reduce-scatter        Σ_j x_j[part r]      [dy_0 … dy_{N−1}]      all-gather
    all_to_all          all-to-all            part r of each x_j   the parts sent back    all-to-all

What decides between `gather_from` with and without `partial` is who holds dy: the same gradient on every rank (each
takes its part), or what each rank's own share of the work contributes (then they must be summed).

`torch.distributed.all_reduce` in a forward is invisible to autograd, so its gradient is the identity: right after a
row-parallel layer, whose loss every rank computes alike. `torch.distributed.nn.functional.all_reduce` sums the
gradients, as if the loss were the sum over the ranks: N times too much there.

New tensors come back and the argument stays as it is (`copy_to` gives a view of it). The functions of `plain` send the
same without autograd.

**Shapes are checked first.** Ranks that reduce tensors of different sizes hang under NCCL, and gloo ends a process
without a Python exception. So every forward first exchanges what it is about to do (96 bytes a rank: one latency more
a call) and refuses on every rank what does not fit. Backwards follow their forwards and are not checked. What is timed,
or was checked before, runs inside `with unchecked():` on all ranks alike.
"""

from paralelo.run.collectives.check import unchecked
from paralelo.run.collectives.conjugate import (
    all_to_all,
    copy_to,
    gather_from,
    reduce_from,
    reduce_scatter,
    split_to,
)
from paralelo.run.collectives.plain import all_gather, all_reduce, all_to_all_list, exchange, split_sizes
from paralelo.run.ledger import Ledger

__all__ = [
    "Ledger", "all_gather", "all_reduce", "all_to_all", "all_to_all_list", "copy_to", "exchange", "gather_from",
    "reduce_from", "reduce_scatter", "split_sizes", "split_to", "unchecked",
]
