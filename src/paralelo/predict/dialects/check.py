"""Settings against one another: what contradicts, what does nothing, what is left open; and the layout they make."""

from paralelo.predict.audit.axes import fold
from paralelo.predict.audit.dims import judge
from paralelo.predict.audit.finding import Finding
from paralelo.predict.dialects.reading import Reading
from paralelo.predict.layout import Layout
from paralelo.predict.model import Dim
from paralelo.predict.quantity import divisors
from paralelo.words import Refused

DEGREES = ("tp", "pp", "cp", "ep", "etp")


def check(out: Reading, gpus: int | None = None) -> Reading:
    """Complete a reading: its layout, and what settings have against each other. `gpus`: the world size if known."""
    s = out.settings
    for name in DEGREES:
        if not isinstance(s.get(name, 1), int) or s.get(name, 1) < 1:
            out.note(name, "not_whole", "breaks", value=str(s.pop(name))[:40])
    _world(out, gpus)
    _batch(out)
    _stages(out)
    _tensor(out)
    _experts(out)
    _sequence(out)
    _savers(out)
    return out


def _world(out: Reading, gpus: int | None) -> None:
    """The data degree is what the other degrees leave of the world; then the layout."""
    s = out.settings
    tp, pp, cp = (s.get(n, 1) for n in ("tp", "pp", "cp"))
    product = tp * pp * cp
    if gpus is not None and s.get("world") not in (None, gpus):
        out.note("world_size", "world_twice", "breaks", first=s["world"], second=gpus)
    world = gpus or s.get("world")
    if world is None and s.get("dp"):
        world = product * s["dp"]
    if world is None and out.dialect == "deepspeed" and all(s.get(n) for n in ("global_batch", "microbatch_size")):
        data = s["global_batch"] / (s["microbatch_size"] * s.get("accumulation", 1))
        if data.is_integer() and data >= 1:
            world = int(data) * product
            out.note("world_size", "world_implied", size=world, dp=int(data))
    if world is None:
        out.note("world_size", "world_unknown", size=product)
        world = product
    if world % product:
        out.note("world_size", "world_product", "breaks", size=world, degree=product, tp=tp, pp=pp, cp=cp,
                 rest=world % product)
        world = product * max(1, world // product)
    dp = world // product
    if s.get("dp", dp) != dp:
        out.note("world_size", "world_product", "breaks", size=world, degree=product * s["dp"], tp=tp, pp=pp, cp=cp,
                 rest=world % (product * s["dp"]))
    if s.get("replicas") and dp % s["replicas"]:
        out.note("parallelism.data_parallel_replicate_degree", "replicas", "breaks", size=dp, degree=s["replicas"])
    s |= {"world": world, "dp": dp}
    try:
        if "experts" not in s and s.get("ep", 1) == 1:
            s.pop("etp", None)
        etp = s.get("etp", tp if s.get("experts") and out.dialect == "megatron" else 1)
        out.layout, found = fold(dp=dp, tp=tp, pp=pp, cp=cp, ep=s.get("ep", 1), etp=etp,
                                 order=s.get("order", "tp-cp-ep-dp-pp"))
        out.findings += [f for f in found if f.verdict == "breaks"]
    except Refused as refused:                              # more ranks than anything has
        out.layout = Layout()
        out.findings.append(Finding("world_size", 0, 0, "breaks", refused.message))
    if s.get("per_node") and tp > s["per_node"]:
        out.note("tp", "tp_over_nodes", size=s["per_node"], degree=tp)


def _batch(out: Reading) -> None:
    s = out.settings
    dp = out.layout.dp
    if "local_batch" in s:                                  # torchtitan: sequences of a rank, cut into microbatches
        s.setdefault("microbatch_size", s["local_batch"] if out.layout.pp == 1 else 1)
        if s["local_batch"] % s["microbatch_size"]:
            out.note("training.local_batch_size", "local_batch", "breaks", size=s["local_batch"],
                     degree=s["microbatch_size"])
        s.setdefault("global_batch", s["local_batch"] * dp)
    if not s.get("global_batch") or not s.get("microbatch_size"):
        if s.get("microbatch_size") and s.get("accumulation"):
            s["global_batch"] = s["microbatch_size"] * s["accumulation"] * dp
            s["microbatches"] = s["accumulation"]
        return
    one = s["microbatch_size"] * dp
    if s.get("accumulation"):
        if s["global_batch"] != one * s["accumulation"]:
            out.note("train_batch_size", "batch_product", "breaks", size=s["global_batch"], micro=s["microbatch_size"],
                     accumulation=s["accumulation"], degree=dp, product=one * s["accumulation"])
    elif s["global_batch"] % one:
        near = s["global_batch"] // one * one
        out.note("global_batch", "batch", "breaks", size=s["global_batch"], micro=s["microbatch_size"], degree=dp,
                 product=one, would_do=[x for x in (near, near + one) if x])
    s["microbatches"] = s.get("accumulation") or max(1, s["global_batch"] // one)


def _stages(out: Reading) -> None:
    s, pp = out.settings, out.layout.pp
    layers, chunks, each = s.get("layers"), s.get("chunks"), s.get("layers_per_chunk")
    if chunks and each:
        out.note("--num-virtual-stages-per-pipeline-rank", "chunks_twice", "breaks")
    if (chunks or each) and pp == 1 and out.dialect == "megatron":
        out.note("--num-layers-per-virtual-pipeline-stage" if each else "--num-virtual-stages-per-pipeline-rank",
                 "interleaving_alone", "breaks")
    elif each and layers:
        if layers % (pp * each):
            out.note("--num-layers-per-virtual-pipeline-stage", "interleaving", "breaks", size=layers, degree=pp,
                     each=each, would_do=divisors(layers // pp) if layers % pp == 0 else [1])
        chunks = max(1, layers // (pp * each))
    elif chunks and layers and layers % (pp * chunks):
        out.note("--num-virtual-stages-per-pipeline-rank", "chunks", "breaks", size=layers, degree=pp, chunks=chunks)
    if chunks and chunks > 1:
        s |= {"chunks": chunks, "schedule": s.get("schedule", "interleaved")}
        if s.get("microbatches") and s["microbatches"] % pp and out.dialect == "megatron":
            out.note("global_batch", "microbatches", "breaks", size=s["microbatches"], degree=pp)
    custom = s.get("first_layers") or s.get("last_layers") or s.get("embedding_counts") or s.get("loss_counts")
    if layers and pp > 1 and not chunks:
        counted = layers + bool(s.get("embedding_counts")) + bool(s.get("loss_counts"))
        if s.get("first_layers") or s.get("last_layers"):
            ends = [n for n in (s.get("first_layers"), s.get("last_layers")) if n]
            inner = pp - len(ends)
            if sum(ends) > layers or (inner and (layers - sum(ends)) % inner) or (not inner and sum(ends) != layers):
                out.note("--decoder-first-pipeline-num-layers", "ends", "breaks", size=layers, ends=ends, inner=inner)
        elif counted % pp:
            out.note("--num-layers", "layers", "breaks", size=counted, degree=pp, would_do=divisors(counted, 64))
    if s.get("microbatches") and pp > 1 and s["microbatches"] < pp and not custom:
        out.note("global_batch", "few_microbatches", size=s["microbatches"], degree=pp)


def _tensor(out: Reading) -> None:
    """The sizes that the arguments themselves name, judged as the audit judges a model's."""
    s, tp = out.settings, out.layout.tp
    heads, kv = s.get("heads"), s.get("kv_heads")
    if kv and not s.get("grouped") and out.dialect == "megatron":
        out.note("--num-query-groups", "groups_alone", size=kv)
        kv = None
    dims = [Dim("query_heads", heads) if heads else None, Dim("kv_heads", kv, "replicate") if kv else None,
            Dim("ffn", s["ffn"]) if s.get("ffn") else None, Dim("vocab", s["vocab"], "pad") if s.get("vocab") else None]
    for dim in filter(None, dims):
        copied = dim.name == "kv_heads" and tp > dim.size and tp % dim.size == 0
        if copied:
            out.note("--num-query-groups", "kv_copied", size=dim.size, degree=tp, copies=tp // dim.size)
        elif (found := judge(dim, tp)).verdict in ("breaks", "padded"):
            out.findings.append(found)
    if heads and kv and heads % kv:
        out.note("--num-query-groups", "groups", "breaks", size=heads, degree=kv)
    if heads and s.get("hidden") and not s.get("head_dim") and s["hidden"] % heads:
        out.note("--num-attention-heads", "head_dim", "breaks", size=s["hidden"], degree=heads)


def _experts(out: Reading) -> None:
    s, ep = out.settings, out.settings.get("ep", 1)
    if not s.get("experts"):
        if s.get("ep", 1) > 1 and out.dialect == "megatron":
            out.note("--expert-model-parallel-size", "ep_alone", "breaks", degree=s["ep"])
        for setting, option in (("top_k", "--moe-router-topk"), ("grouped_gemm", "--moe-grouped-gemm")):
            if s.get(setting):
                out.note(option, "needs_experts")
        return
    if s["experts"] % ep:
        out.note("--num-experts", "experts", "breaks", size=s["experts"], degree=ep,
                 would_do=divisors(s["experts"], 64))
    if s.get("top_k", 1) > s["experts"]:
        out.note("--moe-router-topk", "top_k", "breaks", size=s["experts"], degree=s["top_k"])
    if out.layout.tp > 1 and not s.get("sequence_parallel") and out.dialect == "megatron":
        out.note("--sequence-parallel", "experts_need_sp", "breaks", degree=out.layout.tp)


def _sequence(out: Reading) -> None:
    s, tp, cp, T = out.settings, out.layout.tp, out.layout.cp, out.settings.get("sequence_length")
    if s.get("sequence_parallel") and tp == 1:
        out.note("--sequence-parallel", "sp_alone", "breaks" if out.dialect == "megatron" else "note")
    if s.get("overlap_tensor") and tp == 1:
        out.note("--tp-comm-overlap", "overlap_alone")
    elif s.get("overlap_tensor") and not s.get("sequence_parallel"):
        out.note("--tp-comm-overlap", "overlap_needs_sp", "breaks")
    if T and cp > 1 and T % (2 * cp):
        out.note("--context-parallel-size", "context", "breaks", size=T, degree=2 * cp)
    if T and s.get("sequence_parallel") and tp > 1 and T % (cp * tp):
        out.note("--sequence-parallel", "sp_length", "breaks", size=T, degree=cp * tp)
    if T and s.get("context") and s["context"] < T:
        out.note("--max-position-embeddings", "positions", "breaks", size=s["context"], length=T)


def _savers(out: Reading) -> None:
    """Recomputation, overlap and precision: options that need others."""
    s = out.settings
    kind, method, count = s.get("recompute"), s.get("recompute_method"), s.get("recompute_layers")
    if out.dialect != "megatron":
        return
    if kind not in (None, "full", "selective"):
        out.note("--recompute-granularity", "recompute_kind", "breaks", value=str(kind)[:40])
    if method and kind != "full":
        out.note("--recompute-method", "recompute_method", "breaks" if kind == "selective" else "note")
    if kind == "full" and not method:
        out.note("--recompute-granularity", "recompute_full", "breaks")
    if count and not method:
        out.note("--recompute-num-layers", "recompute_layers")
    if s.get("overlap_parameters") and not s.get("zero"):
        out.note("--overlap-param-gather", "overlap_parameters", "breaks")
    elif s.get("overlap_parameters") and not s.get("overlap_gradients"):
        out.note("--overlap-param-gather", "overlap_gradients", "breaks")
    if s.get("zero") and out.layout.dp * out.layout.cp == 1:
        out.note("--use-distributed-optimizer", "optimizer_alone")
    if s.get("bf16") and s.get("fp16"):
        out.note("--fp16", "both_halves", "breaks")
