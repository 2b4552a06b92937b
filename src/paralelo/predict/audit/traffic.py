"""What a layout sends: the collectives of every block, and from them bytes and seconds by axis.

    tp   for every block that is cut: an all-reduce of B·T·D forward and one backward; with sequence parallelism an
         all-gather and a reduce-scatter each instead, and the input gathered once more backward: five of half the price
    cp   keys and values round the ring, in softmax layers: N−1 hops forward, 2N−1 backward (their gradients come home);
         a state and a halo in layers that have a state
    ep   two exchanges of k·n·D forward and two backward, in every layer with experts; n are the rank's own tokens
    pp   the boundary B·T·D, forward to the next stage and backward to the one before (1/tp with sequence parallelism)
    dp   gradients of the dense parameters over dp·cp ranks, of the experts over edp (and weights with ZeRO); once a
         step, or for every microbatch from ZeRO stage 2 on

Computing a layer again (`recompute` full) sends its forward traffic once more.
"""

from functools import cache

from paralelo.predict.audit.memory import Stage
from paralelo.predict.audit.options import Options
from paralelo.predict.collectives import all_reduce_bytes
from paralelo.predict.collectives import cost as cost_of
from paralelo.predict.data import zero_traffic_bytes
from paralelo.predict.layout import Layout
from paralelo.predict.model import Block, Model
from paralelo.predict.pipeline.schedule import place
from paralelo.predict.sequence import state_passing_bytes
from paralelo.predict.step import Message
from paralelo.predict.tensor import cross_entropy_bytes, embedding_bytes, kv_copies

AXES = ("tp", "pp", "cp", "ep", "dp")


@cache
def block_messages(block: Block, D: int, tp: int, cp: int, ep: int, etp: int, options: Options) -> tuple[Message, ...]:
    """The collectives of one microbatch in a block, forward and backward; bytes are those of the full tensor."""
    B, T, e = options.microbatch_size, -(-options.sequence_length // cp), options.element
    again = options.recompute == "full"
    out, size = [], B * T * D * e
    cut = any(t.dim for t in block.tensors(D) if not t.experts) or (block.kind == "moe" and etp > 1)
    if tp > 1 and cut:
        if options.sequence_parallel:
            out += [Message("tp", "all_gather", size, 3 + again), Message("tp", "reduce_scatter", size, 2 + again)]
        else:
            out.append(Message("tp", "all_reduce", size, 2 + again))
    if cp > 1:
        out += context_messages(block, B, T, tp, cp, e, again)
    if block.kind == "moe" and ep > 1:
        n = B * T / (tp if etp < tp else 1)                 # tokens that tensor ranks hold in common are sent once
        out.append(Message("ep", "all_to_all", n * block.top_k * D * e, 4 + 2 * again))
    return tuple(out)


def context_messages(block: Block, B: int, T: int, tp: int, cp: int, element: int, again=False) -> list[Message]:
    """What a rank sends round the ring for a block; T positions are on this rank."""
    hops = (cp - 1) + (2 * cp - 1) + (cp - 1) * again
    match block.kind:
        case "attention":
            heads = max(1, block.kv_heads // tp)
            return [Message("cp", "send", B * T * heads * (block.head_dim + block.values) * element, hops)]
        case "latent_attention":                            # the latent travels; keys and values are made on arrival
            return [Message("cp", "send", B * T * (block.kv_rank + block.rope) * element, hops)]
        case "linear_attention":
            K, H, dk, dv = block.linear_shape
            wide = 2 * K * dk + H * dv
            passed = state_passing_bytes(B, max(1, H // tp), dk, dv, block.kernel, max(1, wide // tp))
            return [Message("cp", "send", passed, 2 + again)]
        case "state_space":
            passed = B * (block.state * 4 + (block.kernel - 1) * block.channels * element) / tp
            return [Message("cp", "send", passed, 2 + again)]
    return []


def sent(message: Message, N: int) -> float:
    """Bytes one rank of a group of N sends for these collectives, in a ring."""
    return float(cost_of(message.kind, message.bytes, N).sent) * message.times


@cache
def block_bytes(block: Block, D: int, tp: int, cp: int, ep: int, etp: int, options: Options) -> dict[str, float]:
    """Bytes by axis that one microbatch sends in a block."""
    out: dict[str, float] = {}
    for m in block_messages(block, D, tp, cp, ep, etp, options):
        out[m.axis] = out.get(m.axis, 0) + sent(m, {"tp": tp, "cp": cp, "ep": ep}[m.axis])
    return out


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


def boundary(model: Model, layout: Layout, options: Options) -> float:
    """Bytes of an activation between two stages, as one rank sends it."""
    size = options.microbatch_size * -(-options.sequence_length // layout.cp) * model.hidden * options.element
    return size / (layout.tp if options.sequence_parallel else 1)


def stage_bytes(model: Model, layout: Layout, options: Options, stage: Stage) -> dict[str, int]:
    """Bytes by axis that one rank of this stage sends in a step."""
    B, T, M = options.microbatch_size, -(-options.sequence_length // layout.cp), options.microbatches
    tp, out = layout.tp, dict.fromkeys(AXES, 0)
    for layer, n in stage.counts:
        for block in layer.blocks:
            some = block_bytes(block, model.hidden, tp, layout.cp, layout.ep, layout.etp, options.core)
            for axis, size in some.items():
                out[axis] += size * n * M
    if tp > 1:
        out["tp"] += M * embedding_bytes(B, T, model.hidden, tp, options.element) if 0 in stage.layers else 0
        out["tp"] += M * cross_entropy_bytes(B * T, tp) if len(model.layers) - 1 in stage.layers else 0
        out["tp"] += copied_heads_bytes(model, layout, options, stage)
    out["pp"] = M * boundary(model, layout, options) * sends(layout.pp, options.schedule, options.chunks)[stage.rank]
    zero, element = options.zero, options.gradient_bytes
    out["dp"] = zero_traffic_bytes(stage.cut + stage.whole, layout.dp * layout.cp, zero, element, M)
    if stage.experts:
        out["dp"] += zero_traffic_bytes(stage.experts, layout.edp, zero, element, M)
    return {k: round(v) for k, v in out.items()}


def copied_heads_bytes(model: Model, layout: Layout, options: Options, stage: Stage) -> float:
    """Summing the gradients of copied KV heads over the ranks that share one, once a step."""
    total = 0
    for layer, n in stage.counts:
        for block in layer.blocks:
            if block.kind == "attention" and (copies := kv_copies(block.kv_heads, layout.tp)) > 1:
                held = sum(t.per_rank(layout.tp) for t in block.own(model.hidden) if t.dim and t.dim.name == "kv_heads")
                total += n * all_reduce_bytes(held * options.gradient_bytes, copies)
    return total
