"""Bytes that the busiest rank sends in one step, by axis.

    tp   two exchanges of B·T·D forward and two backward for every layer: one pair for each block that is cut
         (all-reduce, or all-gather and reduce-scatter with sequence parallelism); the embedding, the loss; sums over
         copies of a KV head
    pp   the boundary B·T·D, forward to the next stage and backward to the one before (1/tp with sequence parallelism)
    cp   keys and values round the ring, in softmax layers; a state and a halo in linear ones
    ep   two exchanges of k·n·D forward, two backward, in every layer with experts
    dp   gradients of the dense parameters over dp·cp ranks, of the experts over edp (and weights with ZeRO)

Computing a layer again (`recompute` full) sends its forward traffic once more.
"""

from collections import Counter
from functools import cache

from paralelo.predict.audit.memory import Stage, placement
from paralelo.predict.audit.options import Options
from paralelo.predict.collectives import all_reduce_bytes
from paralelo.predict.data import zero_traffic_bytes
from paralelo.predict.experts import leaving_bytes
from paralelo.predict.layout import Layout
from paralelo.predict.model import Block, Model
from paralelo.predict.pipeline.schedule import place
from paralelo.predict.sequence import sequence_parallel_bytes, state_passing_bytes, tensor_parallel_bytes
from paralelo.predict.tensor import cross_entropy_bytes, embedding_bytes, kv_copies

AXES = ("tp", "pp", "cp", "ep", "dp")


@cache
def block_bytes(block: Block, D: int, tp: int, cp: int, ep: int, etp: int, options: Options) -> tuple:
    """(tp, cp, ep) bytes one microbatch sends in a block, forward and backward."""
    B, T, e = options.microbatch_size, -(-options.sequence_length // cp), options.element
    again = 1.5 if options.recompute == "full" else 1      # forward, forward again, backward
    by_tp = by_cp = by_ep = 0
    cut = any(t.dim for t in block.tensors(D) if not t.experts) or (block.kind == "moe" and etp > 1)
    if tp > 1 and cut:
        pair = sequence_parallel_bytes if options.sequence_parallel else tensor_parallel_bytes
        by_tp = pair(B, T, D, tp, e) / 2 * again
    if cp > 1:
        by_cp = context_bytes(block, B, T, tp, cp, e)
    if block.kind == "moe" and ep > 1:
        n = B * T // (tp if options.sequence_parallel or tp > etp else 1)
        by_ep = 4 * leaving_bytes(n, block.top_k, D, ep, e) * again
    return by_tp, by_cp, by_ep


def context_bytes(block: Block, B: int, T: int, tp: int, cp: int, element: int) -> float:
    """What a rank sends along the ring for a block, forward and backward; T positions are on this rank."""
    hops = (cp - 1) + (2 * cp - 1)                          # keys and values forward, again backward, gradients home
    match block.kind:
        case "attention":
            heads = max(1, block.kv_heads // tp)
            return hops * B * T * heads * (block.head_dim + block.values) * element
        case "latent_attention":                            # the latent travels; keys and values are made on arrival
            return hops * B * T * (block.kv_rank + block.rope) * element
        case "linear_attention":
            K, H, dk, dv = block.linear_shape
            wide = 2 * K * dk + H * dv
            passed = state_passing_bytes(B, max(1, H // tp), dk, dv, block.kernel, max(1, wide // tp))
            return 2 * passed
        case "state_space":
            return 2 * B * (block.state * 4 + (block.kernel - 1) * block.channels * element) // tp
    return 0


@cache
def sends(pp: int, schedule: str, chunks: int) -> tuple[int, ...]:
    """Messages each pipeline rank sends for one microbatch, forward and backward."""
    shape = "v" if schedule in ("zb-v", "dualpipe-v") else "loop"
    out, total = [0] * pp, pp * chunks
    for stage in range(total):
        here = place(stage, pp, shape)
        out[here] += stage + 1 < total and place(stage + 1, pp, shape) != here
        out[here] += stage > 0 and place(stage - 1, pp, shape) != here
    return tuple(out)


def stage_bytes(model: Model, layout: Layout, options: Options, stage: Stage) -> dict[str, int]:
    """Bytes by axis that one rank of this stage sends in a step."""
    B, T, D, M = options.microbatch_size, -(-options.sequence_length // layout.cp), model.hidden, options.microbatches
    tp, e = layout.tp, options.element
    out = dict.fromkeys(AXES, 0)
    for layer, n in Counter(model.layers[i] for i in stage.layers).items():
        for block in layer.blocks:
            some = block_bytes(block, D, tp, layout.cp, layout.ep, layout.etp, options)
            for axis, size in zip(("tp", "cp", "ep"), some, strict=True):
                out[axis] += size * n * M
    if tp > 1:
        out["tp"] += M * embedding_bytes(B, T, D, tp, e) if 0 in stage.layers else 0
        out["tp"] += M * cross_entropy_bytes(B * T, tp) if len(model.layers) - 1 in stage.layers else 0
        out["tp"] += copied_heads_bytes(model, layout, options, stage)
    boundary = B * T * D * e / (tp if options.sequence_parallel else 1)
    out["pp"] = M * boundary * sends(layout.pp, options.schedule, options.chunks)[stage.rank]
    out["dp"] = zero_traffic_bytes(stage.cut + stage.whole, layout.dp * layout.cp, options.zero, options.gradient_bytes)
    if stage.experts:
        out["dp"] += zero_traffic_bytes(stage.experts, layout.edp, options.zero, options.gradient_bytes)
    return {k: round(v) for k, v in out.items()}


def copied_heads_bytes(model: Model, layout: Layout, options: Options, stage: Stage) -> float:
    """Summing the gradients of copied KV heads over the ranks that share one, once a step."""
    total = 0
    for layer, n in Counter(model.layers[i] for i in stage.layers).items():
        for block in layer.blocks:
            if block.kind == "attention" and (copies := kv_copies(block.kv_heads, layout.tp)) > 1:
                held = sum(t.per_rank(layout.tp) for t in block.own(model.hidden) if t.dim and t.dim.name == "kv_heads")
                total += n * all_reduce_bytes(held * options.gradient_bytes, copies)
    return total


__all__ = ["AXES", "context_bytes", "placement", "sends", "stage_bytes"]
