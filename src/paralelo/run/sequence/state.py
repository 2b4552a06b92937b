"""Linear attention over a split sequence: a state of fixed size goes from rank to rank, no keys, no values.

One head of a linear rule is affine in the state S (d, e) with which it starts (d: key size, e: value size):

    S' = A S + B          A (d, d) the transition of these positions, B (d, e) their state from zero
    o_t = a_t S + b_t     a_t (d,), b_t (e,)

For the gated delta rule A = Π α_t (I − β_t k_t k_tᵀ). Nobody has to write A: it is what the rule itself makes of the
identity when it is fed no values. So the rule runs once, from [0 | I] with values [v | 0], and gives B, A, b_t and a_t.

    q, k  (B, H, T/N, d)     v (B, H, T/N, e)     further arguments (B, H, T/N)
                             this rank's positions in contiguous order; ranks need not hold equally many, but one each

serial     rank r waits for S_r, runs from it, sends S_{r+1}: B·H·d·e elements forward from every rank but the last, as
           much backward, whatever T is; N runs one after the other.
combined   all ranks run at once and combine their pairs, (A₂, B₂)∘(A₁, B₁) = (A₂A₁, A₂B₁ + B₂), in an associative scan
           of ⌈log₂N⌉ rounds (Hillis and Steele 1986): B·H·d·(d+e) elements a round, B·H·d·e in the last.

Backward sends the same the other way. Short convolutions take their first positions from the rank before: see `halo`.
"""

from collections.abc import Callable

import torch

from paralelo.run.collectives.check import agree
from paralelo.run.sequence.neighbours import receive_from, send_to, shift
from paralelo.words import Refused

HOW = ("serial", "combined")


def linear_attention(rule: Callable, q, k, v, *more, group, how: str = "combined") -> torch.Tensor:
    """`rule` over a sequence split over `group`.

    rule      `rule(q, k, v, *more, state) -> (o, state)`, state (B, H, d, e), linear in values and state together
    how       "serial" or "combined"
    returned  (B, H, T/N, e)
    """
    if how not in HOW:
        raise Refused("run_sequence.how", how=how, choices=list(HOW))
    held = [shape[2] for shape in agree("ring", k, group, but=2, detail=how) or [k.shape]]
    if not min(held):
        raise Refused("run_sequence.no_position", rank=held.index(0), held=held)
    return (_serial if how == "serial" else _combined)(rule, q, k, v, *more, group=group)


def _serial(rule, q, k, v, *more, group):
    zero = v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])
    anchor = next((x for x in (q, k, v, *more) if torch.is_tensor(x) and x.requires_grad), k)
    out, state = rule(q, k, v, *more, _Receive.apply(anchor, zero, group))
    return _Send.apply(out, state, group)


def _combined(rule, q, k, v, *more, group):
    e, d = v.shape[-1], k.shape[-1]
    identity = torch.eye(d, dtype=v.dtype, device=v.device).expand(*v.shape[:2], d, d)
    start = torch.cat((v.new_zeros(*v.shape[:2], d, e), identity), -1)               # [0 | I]
    fed = torch.cat((v, v.new_zeros(*v.shape[:-1], d)), -1)                          # [v | 0]
    out, state = rule(q, k, fed, *more, start)
    own, reach = out.split((e, d), -1)                                               # b_t, a_t
    return own + reach @ before(state[..., e:], state[..., :e], group)


def before(transition: torch.Tensor, state: torch.Tensor, group) -> torch.Tensor:
    """The state that the ranks before this one leave: an exclusive scan of the pairs (A, B).

    transition  (B, H, d, d)     state, returned  (B, H, d, e)
    """
    rounds = (group.size() - 1).bit_length()                                         # ⌈log₂N⌉
    reach, found = _identity(transition, True), torch.zeros_like(state)       # of the ranks r−2^i+1 … r−1
    for i in range(rounds):                                                          # transition, state: with r itself
        A, B = _left(transition, state, group, 2**i, both=i < rounds - 1)
        found = reach @ B + found
        if A is not None:
            reach, transition, state = reach @ A, transition @ A, transition @ B + state
    return found


def _left(transition, state, group, by: int, both: bool):
    """The pair of the rank `by` places before, (I, 0) where there is none; the state alone unless `both`."""
    if not both:
        return None, shift(state, group, by)
    d, e = state.shape[-2:]
    B, A = shift(torch.cat((state, transition), -1), group, by).split((e, d), -1)
    return A + _identity(A, group.rank() < by), B


def _identity(like, here: bool):
    return here * torch.eye(like.shape[-1], dtype=like.dtype, device=like.device).expand_as(like)


class _Receive(torch.autograd.Function):
    """The state from the rank before; backward, its gradient goes back there.

    `anchor`, an input that wants a gradient, ties it into the graph: else the rank before would wait for it for ever.
    """

    @staticmethod
    def forward(ctx, anchor, zero, group):
        ctx.group = group
        rank = group.rank()
        return receive_from(zero, rank - 1, group) if rank else zero.clone()

    @staticmethod
    def backward(ctx, grad):
        rank = ctx.group.rank()
        if rank:
            send_to(grad, rank - 1, ctx.group)
        return None, None, None


class _Send(torch.autograd.Function):
    """`out`, once `state` is on its way to the next rank; backward first waits for the state's gradient from there."""

    @staticmethod
    def forward(ctx, out, state, group):
        ctx.group, ctx.like = group, torch.empty_like(state, device="meta")
        rank, N = group.rank(), group.size()
        if rank < N - 1:
            send_to(state, rank + 1, group)
        return out.view_as(out)

    @staticmethod
    def backward(ctx, grad):
        rank, N = ctx.group.rank(), ctx.group.size()
        zero = torch.zeros_like(ctx.like, device=grad.device)
        return grad, receive_from(zero, rank + 1, ctx.group) if rank < N - 1 else zero, None
