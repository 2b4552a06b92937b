"""Floating-point operations of a microbatch, block by block: what decides which stage is the slowest.

    a matrix of m elements      2·m for every position that meets it (an expert's: top_k of them for every position)
    softmax attention           2·T·keys·H·(d + dv), keys on average half the sequence (causal), or the window
    linear attention            2·T·H·dk·dv for the state's update, as much for reading it
    state space                 6·T·channels·state
    head                        2·D·V

Backward is twice the forward. The embedding is a lookup and costs nothing. Source: Narayanan et al. 2021, appendix.
"""

from functools import cache

from paralelo.predict.model import Block, Layer, Model
from paralelo.predict.quantity import ranges

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


@cache
def layer_flops(layer: Layer, D: int, T: int) -> int:
    """Forward of one sequence through one layer."""
    return sum(block_flops(b, D, T) for b in layer.blocks)


def head_flops(model: Model, T: int) -> int:
    return 2 * T * model.hidden * model.vocab


def model_flops(model: Model, T: int) -> int:
    """Forward of one sequence through the whole model.

    >>> from paralelo.predict.model import ship
    >>> m = ship("Llama-3.1-8B")
    >>> round(3 * model_flops(m, 4096) / 4096 / (6 * m.parameters), 2)       # 6N, with attention and without embedding
    1.0
    """
    return sum(layer_flops(layer, model.hidden, T) for layer in model.layers) + head_flops(model, T)


def stage_flops(model: Model, layers, T: int) -> int:
    """Forward of one sequence through these layers (their numbers); the last one brings the head along."""
    out = sum(layer_flops(model.layers[i], model.hidden, T) for i in layers)
    return out + (head_flops(model, T) if len(model.layers) - 1 in layers else 0)


def work_over_mean(model: Model, counts, T: int = 4096) -> list[float]:
    """Work of each stage over the mean, the stages given by how many layers each holds; the last has the head.

    >>> from paralelo.predict.model import ship
    >>> giant = ship("Qwen3.5-27B")
    >>> [round(w, 2) for w in work_over_mean(giant, [16, 16, 16, 16])]
    [0.95, 0.95, 0.95, 1.15]
    >>> [round(w, 2) for w in work_over_mean(giant, [17, 17, 17, 13])]
    [1.01, 1.01, 1.01, 0.97]
    """
    counts = list(counts)
    assert sum(counts) == len(model.layers), (counts, len(model.layers))
    work = [stage_flops(model, layers, T) for layers in ranges(counts)]
    return [w * len(work) / sum(work) for w in work]


@cache
def rank_flops(block: Block, D: int, T: int, tp: int) -> float:
    """Forward of one sequence through a block on one of tp ranks; what is not cut (latents, router) is done by each."""
    whole = sum(t.elements for t in block.tensors(D) if t.cols > 1 and not t.dim and not t.experts)
    return 2 * T * whole + (block_flops(block, D, T) - 2 * T * whole) / tp


@cache
def moved_bytes(block: Block, D: int, n: int, tp: int, sequence_parallel: bool, element: int = 2) -> float:
    """Bytes one rank's forward of n positions reads and writes beside the matrix products.

    A norm and a residual sum with bias and dropout: 5·n·D. Inside: every projected value once each way, the inputs and
    output of an activation function, dispatched tokens both ways. Attention and a gated MLP make the count of
    `predict.step.elementwise_bytes`.
    """
    positions = 5 * n * D / (tp if sequence_parallel else 1) if block.norms else 0
    match block.kind:
        case "attention":
            inside = 2 * n * block.heads * block.head_dim + 2 * n * block.kv_heads * (block.head_dim + block.values)
        case "latent_attention":
            inside = 2 * n * block.heads * (2 * block.head_dim + block.v_dim)
        case "linear_attention":
            K, H, dk, dv = block.linear_shape
            inside = 4 * n * (2 * K * dk + H * dv) + 3 * n * H * dv         # convolved, then gated and normed
        case "state_space":
            inside = 8 * n * block.channels
        case "mlp":
            inside = (3 if block.gated else 2) * n * block.width
        case "moe":
            inside = n * block.top_k * ((3 if block.gated else 2) * block.width + 4 * D)
            inside += (3 if block.gated else 2) * n * block.shared_width
        case _:
            inside = 0
    return (positions + inside / tp) * element
