"""Context parallelism for a module: its attention goes round a ring or over heads, its linear attention passes states.

Everything else in a transformer acts position by position, so a rank with T/N positions needs nothing from the others.
Parameters stand whole on every rank and see its positions only: their gradients are to be summed over the group
(`Shared` around one layer, `experts.synchronise` over a model, together with the data ranks).
"""

from collections.abc import Callable

from torch import nn

from paralelo.run.sequence.neighbours import halo
from paralelo.run.sequence.ring import ring_attention
from paralelo.run.sequence.state import linear_attention
from paralelo.run.tensor import Attention, GatedDelta, ParallelAttention, ParallelGatedDelta, causal_conv, delta_rule
from paralelo.words import Refused


def context_parallel(module: nn.Module, group, attention: Callable = ring_attention, order: str = "contiguous",
                     documents=None, state: str = "combined") -> nn.Module:
    """`module` itself, every attention in it now over the positions of all ranks of `group`.

    attention  `ring_attention`, `ulysses_attention`, or another of their kind
    state      "serial" or "combined", for linear attention, which wants contiguous order and one document
    Rotary positions are the caller's: `attention_layer(x, positions(T/N, group, order, documents))`.
    """
    for child in module.modules():
        if isinstance(child, Attention | ParallelAttention):
            child.attend = lambda q, k, v, causal: attention(q, k, v, group, causal, order, documents)
        elif isinstance(child, GatedDelta | ParallelGatedDelta):
            if order != "contiguous" or len(documents or [0]) > 1:
                raise Refused("run_sequence.state_order", order=order, documents=len(documents or [0]))
            child.core, child.conv_core = passing(group, state), with_halo(group)
    return module


def passing(group, how: str = "combined") -> Callable:
    """`delta_rule` over the positions of all ranks: the `core` of a linear-attention layer."""
    def core(q, k, v, decay, beta):
        return linear_attention(delta_rule, q, k, v, decay, beta, group=group, how=how), None

    return core


def with_halo(group) -> Callable:
    """`causal_conv` over the positions of all ranks: the `conv_core` of a linear-attention layer."""
    def conv(x, weight):
        before = weight.shape[-1] - 1
        return causal_conv(x, weight, halo(x, group, before))

    return conv
