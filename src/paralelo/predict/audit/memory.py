"""What each pipeline stage's fullest rank holds.

    dense parameters      cut by tp where a tensor is cut, whole where it is not (norms, router, latents)
    routed experts        shared out by ep, cut by etp: never by tp
    optimizer and so on   ZeRO shares the dense ones over dp·cp ranks, the experts over edp
    ends                  embedding on the first stage, final norm and head on the last; a tied embedding is on both
    activations           live microbatches of the rank (the schedule's own count) times what one leaves behind; with
                          full recomputation also all that the layer which is run again keeps, the largest; with
                          ZeRO stage 2 or 3 also the gradients, in stage 3 the weights too, of the layer at work (or
                          embedding or head, whichever is largest), which are whole for that while

Parameters here are those that a rank really stores: rows of padding and copies of KV heads included.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from paralelo.predict import pipeline
from paralelo.predict.audit.activations import layer_bytes, logit_bytes
from paralelo.predict.audit.options import Options
from paralelo.predict.data import zero_parts
from paralelo.predict.layout import Layout, chunk_layers
from paralelo.predict.model import Layer, Model, Tensor

PARTS = ("parameters", "gradients", "optimizer", "activations")


@dataclass(frozen=True)
class Stage:
    """One pipeline rank: its layers, its parameters by how they are shared, its bytes."""

    rank: int
    layers: tuple[int, ...]
    kinds: dict
    counts: tuple                                           # ((layer, how many), …)
    cut: int                                                # elements of dense tensors that tp cuts
    whole: int                                              # elements of dense tensors that every rank holds whole
    experts: int                                            # elements of routed experts
    bytes: dict

    @property
    def parameters(self) -> int:
        return self.cut + self.whole + self.experts


@cache
def layer_elements(layer: Layer, D: int, tp: int, ep: int, etp: int) -> tuple[int, int, int]:
    """(cut, whole, experts) elements of one layer on the fullest rank; blocks that layers share are left out."""
    return _sums((t for b in layer.blocks if not b.shared for t in b.tensors(D)), tp, ep, etp)


def _sums(tensors, tp, ep, etp) -> tuple[int, int, int]:
    cut = whole = experts = 0
    for t in tensors:
        size = t.per_rank(tp, ep, etp)
        if t.experts:
            experts += size
        elif t.dim:
            cut += size
        else:
            whole += size
    return cut, whole, experts


@cache
def stage_elements(model: Model, kinds: tuple, first: bool, last: bool, tp: int, ep: int, etp: int):
    """(cut, whole, experts) of a stage, `kinds` being its layers with how often each comes."""
    sums = [(layer_elements(layer, model.hidden, tp, ep, etp), n) for layer, n in kinds]
    shared = dict.fromkeys(b for layer, _ in kinds for b in layer.blocks if b.shared)
    sums += [(_sums(b.tensors(model.hidden), tp, ep, etp), b.copies) for b in shared]
    sums += [(_sums(end, tp, ep, etp), 1) for end in _ends(model, first, last)]
    return tuple(sum(s[i] * n for s, n in sums) for i in range(3))


def _ends(model: Model, first: bool, last: bool) -> tuple[tuple[Tensor, ...], ...]:
    """What a stage has before its layers and behind them; a tied head has a tensor only on another rank."""
    tied = (Tensor("head", model.vocab, model.hidden, model.vocabulary),) if model.tied and not first else ()
    return (model.first if first else (), (*model.last, *tied) if last else ())


@cache
def unit_elements(model: Model, kinds: tuple, first: bool, last: bool, tp: int, ep: int, etp: int) -> frozenset:
    """(cut + whole, experts) of each piece of a stage that stages 2 and 3 make whole by itself: a layer, an end.

    Blocks that layers share belong to each of these layers. Pieces that are smaller than another in both are left out.
    """
    units = [_whole_layer(layer, model.hidden, tp, ep, etp) for layer, _ in kinds]
    units += [_sums(end, tp, ep, etp) for end in _ends(model, first, last)]
    sizes = {(cut + whole, experts) for cut, whole, experts in units}
    return frozenset(a for a in sizes if not any(b != a and b[0] >= a[0] and b[1] >= a[1] for b in sizes))


@cache
def _whole_layer(layer: Layer, D: int, tp: int, ep: int, etp: int) -> tuple[int, int, int]:
    """`layer_elements` with the blocks that layers share."""
    if not any(b.shared for b in layer.blocks):
        return layer_elements(layer, D, tp, ep, etp)
    return _sums((t for b in layer.blocks for t in b.tensors(D)), tp, ep, etp)


@cache
def placement(layers: int, pp: int, schedule: str, chunks: int) -> tuple[tuple[int, ...], ...]:
    """The numbers of the layers on each pipeline rank."""
    shape = "v" if schedule in ("zb-v", "dualpipe-v") else "loop"
    return tuple(tuple(i for r in ranges for i in r) for ranges in chunk_layers(layers, pp, chunks, shape))


@cache
def compositions(model: Model, pp: int, schedule: str, chunks: int) -> tuple[tuple, ...]:
    """(layers, ((layer, how many), …), first, last) of each pipeline rank."""
    last = len(model.layers) - 1
    return tuple((numbers, tuple(Counter(model.layers[i] for i in numbers).items()), 0 in numbers, last in numbers)
                 for numbers in placement(len(model.layers), pp, schedule, chunks))


def live(layout: Layout, options: Options, rank: int) -> float:
    """Microbatches whose activations a pipeline rank holds at once, in whole forwards."""
    if options.schedule == "1f1b":
        return min(options.microbatches, layout.pp - rank)
    if options.schedule == "gpipe":
        return options.microbatches
    few = enough(options.schedule, layout.pp, options.microbatches)
    return _simulated(options.schedule, layout.pp, few, options.chunks)[rank]


def enough(schedule: str, stages: int, microbatches: int) -> int:
    """As many microbatches as tell what a long schedule holds, how long its ranks idle, and whether it can run.

    From four rounds of S microbatches on, a schedule repeats itself, in rounds or in pairs of rounds.

    >>> enough("zb-v", 4, 100_001), enough("interleaved", 4, 100_000), enough("interleaved", 4, 13)
    (17, 16, 13)
    """
    if microbatches < 6 * stages or (schedule == "interleaved" and microbatches % stages):
        return microbatches
    return 4 * stages + microbatches % (2 * stages)


@cache
def _simulated(schedule, stages, microbatches, chunks):
    return pipeline.simulate(pipeline.build(schedule, stages, microbatches, chunks)).live_activations


@cache
def _each(N: int, options_zero: int, weights: int, gradients: int, optimizer: int) -> tuple:
    """Bytes for one parameter that N ranks share."""
    return tuple(zero_parts(1, N, options_zero, weights, gradients, optimizer).values())


@cache
def held_elements(model: Model, pp: int, schedule: str, chunks: int, tp: int, ep: int, etp: int) -> tuple[tuple, ...]:
    """Of each pipeline rank: (cut, whole, experts), the units of `unit_elements`, layers of each kind, whether it has
    the head, and whether it is the first that holds just these layers and ends."""
    out, seen = [], set()
    for _, kinds, first, last in compositions(model, pp, schedule, chunks):
        at = kinds, first, last, tp, ep, etp
        names: Counter = Counter()
        for layer, n in kinds:
            names[layer.kind] += n
        out.append((stage_elements(model, *at), unit_elements(model, *at), dict(names), last, at not in seen))
        seen.add(at)
    return tuple(out)


@cache
def kept_bytes(model: Model, pp: int, schedule: str, chunks: int, tp: int, T: int, core: Options) -> tuple[float, ...]:
    """Bytes that one microbatch leaves on each pipeline rank, in its layers alone."""
    return tuple(sum(n * layer_bytes(layer, model.hidden, tp, T, core) for layer, n in kinds)
                 for _, kinds, _, _ in compositions(model, pp, schedule, chunks))


@cache
def again_bytes(model: Model, pp: int, schedule: str, chunks: int, tp: int, T: int, core: Options) -> tuple[float, ...]:
    """Bytes that the largest layer of each pipeline rank keeps, besides its input, while its forward is run again."""
    whole = replace(core, recompute="none")
    size = lambda layer, options: layer_bytes(layer, model.hidden, tp, T, options)  # noqa: E731
    return tuple(max((size(layer, whole) - size(layer, core) for layer, _ in kinds), default=0)
                 for _, kinds, _, _ in compositions(model, pp, schedule, chunks))


def _sizes(model: Model, layout: Layout, options: Options, distinct: bool) -> Iterator[tuple[int, list[int]]]:
    """(pipeline rank, bytes of its `PARTS`)."""
    T, tp, core = -(-options.sequence_length // layout.cp), layout.tp, options.core
    each = (options.zero, options.weight_bytes, options.gradient_bytes, options.optimizer_bytes)
    dense, routed = _each(layout.dp * layout.cp, *each), _each(layout.edp, *each)
    both = list(zip(dense, routed, strict=True))
    made_whole = [options.weight_bytes + options.gradient_bytes - some[0] - some[1] for some in (dense, routed)]
    where = model, layout.pp, options.schedule, options.chunks
    held, kept_by_one = held_elements(*where, tp, layout.ep, layout.etp), kept_bytes(*where, tp, T, core)
    again = again_bytes(*where, tp, T, core)
    for rank, ((cut, whole, experts), units, _, last, new) in enumerate(held):
        if distinct and options.schedule == "1f1b" and not new:     # the first of them has the most live microbatches
            continue
        kept = live(layout, options, rank) * kept_by_one[rank]
        if options.recompute == "full":
            kept += again[rank]
        if options.zero >= 2:
            kept += max(made_whole[0] * d + made_whole[1] * r for d, r in units)
        if last:
            at_once = options.microbatches if options.schedule == "gpipe" else 1
            kept += at_once * logit_bytes(model, tp, T, core)
        yield rank, [*[round(d * (cut + whole) + r * experts) for d, r in both], round(kept)]


def stages(model: Model, layout: Layout, options: Options, distinct: bool = False) -> list[Stage]:
    """Every pipeline rank with what it holds; `distinct`: of ranks that hold the same layers, the fullest one only."""
    where = model, layout.pp, options.schedule, options.chunks
    held, places, out = held_elements(*where, layout.tp, layout.ep, layout.etp), compositions(*where), []
    for rank, sizes in _sizes(model, layout, options, distinct):
        (cut, whole, experts), _, names, _, _ = held[rank]
        numbers, kinds, _, _ = places[rank]
        parts = dict(zip(PARTS, sizes, strict=True)) | {"total": sum(sizes)}
        out.append(Stage(rank, numbers, dict(names), kinds, cut, whole, experts, parts))
    return out


def fits(model: Model, layout: Layout, options: Options, memory: float) -> bool:
    """Whether the fullest rank fits: `fullest(stages(…)).bytes["total"] <= memory` for who asks a thousand times."""
    return all(sum(sizes) <= memory for _, sizes in _sizes(model, layout, options, True))


def fullest(stages: list[Stage]) -> Stage:
    """The stage whose rank holds most."""
    return max(stages, key=lambda s: s.bytes["total"])
