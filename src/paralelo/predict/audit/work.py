"""Floating-point operations of a microbatch, block by block: what decides which stage is the slowest.

    a matrix of m elements      2·m for every position that meets it (an expert's: top_k of them for every position)
    softmax attention           2·T·keys·H·(d + dv), keys on average half the sequence (causal), or the window
    linear attention            2·T·H·dk·dv for the state's update, as much for reading it
    state space                 6·T·channels·state
    head                        2·D·V

Backward is twice the forward. The embedding is a lookup and costs nothing. Source: Narayanan et al. 2021, appendix.
"""

from functools import cache

from paralelo.predict.model import Block, Model

BACKWARD = 2


@cache
def block_flops(block: Block, D: int, T: int) -> int:
    """Forward of one sequence of T positions through one block."""
    matrices = sum(t.elements // block.experts * block.top_k if t.experts else t.elements
                   for t in block.tensors(D) if t.cols > 1)
    return 2 * T * matrices + meeting_flops(block, T)


def meeting_flops(block: Block, T: int) -> int:
    """The part in which positions meet, which no matrix holds."""
    match block.kind:
        case "attention":
            keys = min(T // 2, block.window) if block.window else T // 2
            return 2 * T * keys * block.heads * (block.head_dim + block.values)
        case "latent_attention":
            return T * T * block.heads * (block.head_dim + block.v_dim)
        case "linear_attention":
            _, H, dk, dv = block.linear_shape
            return 4 * T * H * dk * dv
        case "state_space":
            return 6 * T * block.state
    return 0


def layer_flops(model: Model, layer, T: int) -> int:
    """Forward of one sequence through one layer."""
    return sum(block_flops(b, model.hidden, T) for b in layer.blocks)


def head_flops(model: Model, T: int) -> int:
    return 2 * T * model.hidden * model.vocab


def model_flops(model: Model, T: int) -> int:
    """Forward of one sequence through the whole model.

    >>> from paralelo.predict.model import ship
    >>> m = ship("Llama-3.1-8B")
    >>> round(3 * model_flops(m, 4096) / 4096 / (6 * m.parameters), 2)       # 6N, with attention and without embedding
    1.0
    """
    return sum(layer_flops(model, layer, T) for layer in model.layers) + head_flops(model, T)


def stage_flops(model: Model, layers, T: int) -> int:
    """Forward of one sequence through these layers (their numbers); the last one brings the head along."""
    out = sum(layer_flops(model, model.layers[i], T) for i in layers)
    return out + (head_flops(model, T) if len(model.layers) - 1 in layers else 0)
