"""What an audit finds along the other axes: stages, schedule, experts, groups, positions, scales of weights."""

from collections import Counter

from paralelo.predict import pipeline
from paralelo.predict.audit.finding import Finding, layers_of
from paralelo.predict.audit.memory import enough, placement
from paralelo.predict.audit.options import Options
from paralelo.predict.audit.work import stage_flops
from paralelo.predict.experts import experts_of
from paralelo.predict.layout import Layout
from paralelo.predict.links import Cluster
from paralelo.predict.model import Model
from paralelo.predict.quantity import divisors
from paralelo.predict.sequence import ulysses_degrees
from paralelo.words import Message, Refused

MOST_ACTIONS = 4_000_000
TWO_CHUNKS = ("zb-v", "dualpipe-v")


def finding(dimension: str, size: int, degree: int, verdict: str, id: str = "", **fields) -> Finding:
    message = Message(f"audit.{dimension}.{id or verdict}", {"size": size, "degree": degree} | fields)
    return Finding(dimension, size, degree, verdict, message)


def fold(**degrees) -> tuple[Layout, list[Finding]]:
    """The layout of these degrees; where experts do not fold into it, the layout without them and a finding.

    >>> layout, found = fold(dp=2, cp=16, ep=32)
    >>> layout.edp, found[0].verdict, fold(dp=2, cp=16, ep=64)[1][0].verdict
    (1, 'divides', 'breaks')
    """
    try:
        layout = Layout(**degrees)
    except Refused as refused:
        if refused.message.id != "layout.experts_fold":
            raise
        layout = Layout(**{k: v for k, v in degrees.items() if k not in ("ep", "etp")})
        inside = layout.world_size // layout.pp
        product = degrees.get("ep", 1) * degrees.get("etp", 1)
        return layout, [Finding("groups", inside, product, "breaks", refused.message)]
    inside = layout.world_size // layout.pp
    about = {"etp": layout.etp, "ep": layout.ep, "edp": layout.edp, "tp": layout.tp, "cp": layout.cp, "dp": layout.dp}
    if layout.ep * layout.etp == 1:
        return layout, []
    return layout, [finding("groups", inside, layout.ep * layout.etp, "divides", **about)]


def stages_found(model: Model, layout: Layout, options: Options) -> list[Finding]:
    """How the layers fall on the stages, which stage is slowest, what the ends carry, whether the schedule can run."""
    L, pp, out = len(model.layers), layout.pp, []
    chunks = 2 if options.schedule in TWO_CHUNKS else options.chunks
    if pp * chunks > L:
        return [finding("layers", L, pp * chunks, "breaks", would_do=divisors(L, 64))]
    counts = [len(numbers) for numbers in placement(L, pp, options.schedule, chunks)]
    if len(set(counts)) == 1 and L % (pp * chunks) == 0:
        out.append(finding("layers", L, pp, "divides", each=L // pp))
    else:
        out.append(finding("layers", L, pp, "note", "uneven", counts=counts, would_do=divisors(L, 64)))
    if pp > 1:
        out += _composition(model, layout, options, chunks)
        out += _ends(model, layout, options, chunks)
    out += _schedule(layout, options)
    return out


def _composition(model: Model, layout: Layout, options: Options, chunks: int) -> list[Finding]:
    places = placement(len(model.layers), layout.pp, options.schedule, chunks)
    kinds = [Counter(model.layers[i].kind for i in numbers) for numbers in places]
    work = [stage_flops(model, numbers, options.sequence_length) for numbers in places]
    slow, mean = work.index(max(work)), sum(work) / len(work)
    about = {"slowest": slow, "ratio": max(work) / mean}
    if all(k == kinds[0] for k in kinds):
        return [finding("composition", len(model.layer_kinds), layout.pp, "divides", kinds=layers_of(kinds[0]),
                        **about)]
    fast = work.index(min(work))
    return [finding("composition", len(model.layer_kinds), layout.pp, "note",
                    "differs" if kinds[slow] != kinds[fast] else "differs_elsewhere", kinds=layers_of(kinds[slow]),
                    others=layers_of(kinds[fast]), fastest=fast, **about)]


def _ends(model: Model, layout: Layout, options: Options, chunks: int) -> list[Finding]:
    size = model.vocab * model.hidden
    last = 0 if options.schedule in TWO_CHUNKS else layout.pp - 1
    out = [finding("ends", size, layout.pp, "note", last=last, each=-(-size // layout.tp))]
    if model.tied:
        out.append(finding("tied_embedding", size, layout.pp, "note", "same_stage" if last == 0 else "note", last=last))
    if any(b.shared for b in model.blocks):
        places = placement(len(model.layers), layout.pp, options.schedule, chunks)
        users = [r for r, ns in enumerate(places) if any(b.shared for i in ns for b in model.layers[i].blocks)]
        out.append(finding("shared_blocks", len(users), layout.pp, "note", stages=users))
    return out


def _schedule(layout: Layout, options: Options) -> list[Finding]:
    if layout.pp == 1 and options.schedule not in TWO_CHUNKS and options.chunks == 1:
        return []
    any_number = options.schedule in ("gpipe", "1f1b")
    few = 1 if any_number else enough(options.schedule, layout.pp, options.microbatches)
    if layout.pp * few * max(options.chunks, 2) > MOST_ACTIONS:
        raise Refused("audit.too_many_actions", microbatches=options.microbatches, most=MOST_ACTIONS)
    try:
        pipeline.build(options.schedule, layout.pp, few, options.chunks)
    except Refused as refused:
        return [Finding("microbatches", options.microbatches, layout.pp, "breaks", refused.message)]
    share = pipeline.idle_share(layout.pp, options.microbatches) if any_number else None
    return [finding("microbatches", options.microbatches, layout.pp, "note", share=float(share))] if share else []


def experts_found(model: Model, layout: Layout) -> list[Finding]:
    """Experts over the expert group: equal shares, unequal ones, or ranks without any."""
    if not model.experts:
        return [finding("experts", 0, layout.ep, "note", "none")] if layout.ep > 1 else []
    E, ep = model.experts, layout.ep
    if ep > E:
        return [finding("experts", E, ep, "breaks", would_do=divisors(E, 64))]
    if E % ep:
        return [finding("experts", E, ep, "note", "uneven", counts=[len(r) for r in experts_of(E, ep)],
                        would_do=divisors(E, 64))]
    return [finding("experts", E, ep, "divides", each=E // ep)]


def positions_found(model: Model, layout: Layout, options: Options) -> list[Finding]:
    """Cutting the sequence: ring (2·cp pieces), Ulysses (heads), the residual stream over tp; and the length itself."""
    T, cp, tp, out = options.sequence_length, layout.cp, layout.tp, []
    if cp > 1:
        if T % (2 * cp) == 0:
            out.append(finding("sequence", T, cp, "divides", each=T // cp, piece=T // (2 * cp)))
        else:
            near = T // (2 * cp) * 2 * cp
            out.append(finding("sequence", T, cp, "breaks", pieces=2 * cp,
                               would_do=[x for x in (near, near + 2 * cp) if x]))
        out += _ulysses(model, layout)
        states = [b for b in model.blocks if b.kind in ("linear_attention", "state_space")]
        if states:
            out.append(finding("state", states[0].state, cp, "note", bytes=states[0].state * 4))
    if options.sequence_parallel and tp == 1:
        out.append(finding("sequence_parallel", T, tp, "note", "alone"))
    elif options.sequence_parallel:
        good = T % (cp * tp) == 0
        out.append(finding("sequence_parallel", T // cp, tp, "divides" if good else "breaks", each=T // cp // tp))
    if model.positions and model.positions < T:
        out.append(finding("context", model.positions, 1, "breaks", length=T))
    elif model.context and model.context < T:
        out.append(finding("context", model.context, 1, "note", length=T))
    return out


def _ulysses(model: Model, layout: Layout) -> list[Finding]:
    block = model.attention
    if block is None or block.heads % layout.tp:
        return []
    H = block.heads // layout.tp
    K = H if block.kind == "latent_attention" else max(1, block.kv_heads // layout.tp)
    if H % K:
        return []
    plain, copied = ulysses_degrees(H, K, max(layout.cp, 64))
    verdict = "divides" if layout.cp in plain else "replicated" if layout.cp in copied else "note"
    return [finding("ulysses", H, layout.cp, verdict, kv=K, would_do=[*plain, *copied])]


def links_found(layout: Layout, cluster: Cluster) -> list[Finding]:
    """Which groups leave a node of the cluster."""
    out = []
    for axis in ("tp", "cp", "ep", "pp", "dp"):
        degree = layout.size(axis)
        if degree > 1 and layout.crosses_nodes(axis, cluster.gpus_per_node):
            nodes = layout.nodes_crossed(axis, cluster.gpus_per_node)
            out.append(finding("links", nodes, degree, "note", "crosses", axis=axis, link=cluster.between.name))
        elif degree > 1:
            out.append(finding("links", 1, degree, "note", "inside", axis=axis, link=cluster.inside.name))
    return out


def scales_found(model: Model, layout: Layout) -> list[Finding]:
    """Weights that share a scale in blocks: a rank's slice should be whole blocks."""
    side = model.quantisation
    if not side or layout.tp == 1:
        return []
    degree = {"mlp": layout.tp, "moe": layout.etp}
    slices = {b.width // degree[b.kind] for b in model.blocks if b.kind in degree}
    slices |= {b.shared_width // layout.tp for b in model.blocks if b.kind == "moe" and b.shared_width}
    cut = sorted(s for s in slices if s % side)
    return [finding("scale_blocks", side, layout.tp, "note" if cut else "divides", "cut" if cut else "", slices=cut or
                    sorted(slices))]
