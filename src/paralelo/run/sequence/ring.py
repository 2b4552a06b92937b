"""Ring attention: queries stay, keys and values go round.

    Y_r = softmax(Q_r [K_0 … K_{N−1}]ᵀ / √d) [V_0; …; V_{N−1}]        one block of keys at a time (see `blocks`)

    q    (B, H, T/N, d)    this rank's queries, at the positions its `Placement` says
    k, v (B, K, T/N, d)    this rank's keys and values, passed on unexpanded: K heads, whatever H is

Forward: N−1 times, every rank sends the block it has to the next rank and takes the one before: 2(N−1)/N · B·K·T·d
elements a rank. The next block is on its way while this one is computed with.
Backward: keys and values go round again, 2(N−1)/N · B·K·T·d, and their gradients travel behind them, collecting every
rank's part; N hops bring them home: 2 · B·K·T·d more, kept in float32 at least. All in all 2(3N−2)/N · B·K·T·d.

Causal work is uneven in contiguous order (1, 3, 5, 7 of 16 on four ranks): blocks of the future are skipped, yet the
last rank skips none. In zig-zag order every rank computes the same. Without a mask the order makes no difference to
the work; both give the dense result.

Source: Liu, Zaharia and Abbeel 2023; zig-zag order as in Llama 3's context parallelism (Dubey et al. 2024).
"""

import torch

from paralelo.run.collectives.check import agree
from paralelo.run.sequence.blocks import Gradients, Softmax, accumulator, pairs
from paralelo.run.sequence.neighbours import pass_on
from paralelo.run.sequence.placement import place
from paralelo.words import Refused


def ring_attention(q, k, v, group, causal: bool = True, order: str = "contiguous", documents=None) -> torch.Tensor:
    """Attention over a sequence split over `group`.

    q          (B, H, T/N, d)
    k, v       (B, K, T/N, d)    K divides H
    order      how positions lie on ranks: "contiguous" or "zigzag" (split with `split_to` or `zigzag`)
    documents  true lengths of packed documents, when there are several or when the sequence was padded
    returned   (B, H, T/N, d)
    """
    check_heads(q, k, v)
    agree("ring", k, group, detail=(tuple(q.shape), causal, order, documents and tuple(documents)))
    placement = place(group, order, documents, q.shape[2])
    return attend(q, k, v, group, causal, [placement.pieces(rank) for rank in range(placement.N)])


def attend(q, k, v, group, causal: bool, pieces) -> torch.Tensor:
    """Attention where rank i of `group` holds `pieces[i]`; without a group, one rank holds all."""
    return _Ring.apply(q, k, v, group, causal, pieces)


def check_heads(q, k, v) -> None:
    H, K = q.shape[1], k.shape[1]
    if H % K or v.shape != k.shape or q.shape[2] != k.shape[2]:
        raise Refused("run_sequence.heads", q=tuple(q.shape), k=tuple(k.shape), v=tuple(v.shape), H=H, K=K)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, group, causal, pieces):
        rank, N = (group.rank(), group.size()) if group is not None else (0, 1)
        softmax, block = Softmax(q, k.shape[1], q.shape[-1] ** -0.5), torch.stack((k, v))
        for step in range(N):
            coming = pass_on(block, group) if step < N - 1 else None
            softmax.add(block[0], block[1], pairs(pieces[rank], pieces[(rank - step) % N], causal))
            block = coming() if coming else None
        out, log_sum = softmax.finish()
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.group, ctx.causal, ctx.pieces = group, causal, pieces
        return out.flatten(1, 2).to(q.dtype)

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, log_sum = ctx.saved_tensors
        group, pieces = ctx.group, ctx.pieces
        rank, N = (group.rank(), group.size()) if group is not None else (0, 1)
        gradients = Gradients(q, out, log_sum, grad, k.shape[1], q.shape[-1] ** -0.5)
        block, travelling = torch.stack((k, v)), None
        for step in range(N):
            coming = pass_on(block, group) if step < N - 1 else None
            mine = torch.zeros_like(block, dtype=accumulator(block))
            blocks = pairs(pieces[rank], pieces[(rank - step) % N], ctx.causal)
            gradients.add(block[0], block[1], mine[0], mine[1], blocks)
            if travelling is not None:
                mine += travelling()                                     # what earlier ranks found for this block
            travelling = pass_on(mine, group) if N > 1 else lambda mine=mine: mine
            block = coming() if coming else None
        dk, dv = travelling().to(k.dtype)                                # home again after N hops
        return gradients.dq.flatten(1, 2).to(q.dtype), dk, dv, None, None, None
