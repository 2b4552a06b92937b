"""What each block of a model keeps for its backward, on one tensor-parallel rank, for one microbatch.

Every block is a list of saved tensors (see `predict.sequence`); this module says which list belongs to which block, and
adds the ends: the last stage keeps its logits in fp32, n·V/t of them.
"""

from dataclasses import replace
from functools import cache

from paralelo.predict.audit.options import Options
from paralelo.predict.model import Block, Layer, Model
from paralelo.predict.sequence import (
    Saved,
    activation_bytes,
    attention_activations,
    layer_input,
    linear_attention_activations,
    mla_activations,
    mlp_activations,
    moe_activations,
    norm_activations,
)
from paralelo.predict.tensor import kv_copies

STATE_CHUNK = 64                                            # positions between two states that are kept


def saved(block: Block, D: int, B: int, T: int, element: int = 2, tp: int = 1) -> list[Saved]:
    """The saved tensors of a block and of its norms; T positions are on this rank."""
    norms = norm_activations(B, T, D, element) * (1 if block.norms else 0)
    if block.norms > 1:                                     # a norm behind the block as well
        norms = norms * 2
    n = B * T
    match block.kind:
        case "attention":
            out = attention_activations(B, T, D, block.heads, block.kv_heads, block.head_dim, gated_query=block.gate,
                                        qk_norm=bool(block.qk_norm), kv_copies=kv_copies(block.kv_heads, tp),
                                        element=element)
            if block.values != block.head_dim:
                d, dv = block.head_dim, block.values
                out = [replace(s, elements=s.elements * dv // d) if s.name in ("v", "output") else s for s in out]
        case "latent_attention":
            out = mla_activations(B, T, D, block.heads, block.head_dim, block.v_dim, block.q_rank, block.kv_rank,
                                  block.rope, element)
        case "linear_attention":
            out = linear_attention_activations(B, T, D, *block.linear_shape, chunk=STATE_CHUNK, element=element)
        case "state_space":
            out = state_space_activations(block, D, B, T, element)
        case "mlp":
            out = mlp_activations(B, T, D, block.width, gated=block.gated, element=element)
        case "moe":
            out = moe_activations(B, T, D, block.width, block.experts, block.top_k, shared=block.shared_width,
                                  gated=block.gated, element=element)
        case _:
            out = [Saved("linear input", n * D, element, "positions")]
    return norms + out


def state_space_activations(block: Block, D: int, B: int, T: int, element: int = 2) -> list[Saved]:
    """A Mamba block: the inputs of its convolution and scan, its gate, step sizes, states and output."""
    n, inner = B * T, block.channels
    states = B * -(-T // STATE_CHUNK) * block.state
    return [Saved("in input", n * D, element, "positions"), Saved("convolution input", n * inner, element, "tensor"),
            Saved("x", n * inner, element, "tensor"), Saved("gate", n * inner, element, "tensor"),
            Saved("b and c", 2 * n * block.bc, element, ""), Saved("steps", n * block.steps, 4, "tensor"),
            Saved("states", states, element, "tensor"), Saved("output", 2 * n * inner, element, "tensor")]


@cache
def layer_bytes(layer: Layer, D: int, tp: int, T: int, options: Options) -> float:
    """Bytes one microbatch leaves in a layer; `options` is a core."""
    if options.recompute == "full":
        return activation_bytes(layer_input(options.microbatch_size, T, D, options.element), tp,
                                options.sequence_parallel)
    return sum(block_bytes(b, D, tp, T, options) for b in layer.blocks)


@cache
def block_bytes(block: Block, D: int, tp: int, T: int, options: Options) -> float:
    """Bytes one microbatch leaves in a block."""
    kept = saved(block, D, options.microbatch_size, T, options.element, tp)
    recompute = "selective" if options.recompute == "selective" else ""
    return activation_bytes(kept, tp, options.sequence_parallel, recompute=recompute)


@cache
def logit_bytes(model: Model, tp: int, T: int, options: Options) -> float:
    """What the last stage adds for a microbatch: the input of the final norm and of the head, and fp32 logits."""
    n = options.microbatch_size * T
    ends = [Saved("final norm and head input", 2 * n * model.hidden, options.element, "positions"),
            Saved("logits", n * model.vocab, 4, "tensor")]
    return activation_bytes(ends, tp, options.sequence_parallel)
