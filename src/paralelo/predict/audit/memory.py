"""What each pipeline stage's fullest rank holds.

    dense parameters      cut by tp where a tensor is cut, whole where it is not (norms, router, latents)
    routed experts        shared out by ep, cut by etp: never by tp
    optimizer and so on   ZeRO shares the dense ones over dp·cp ranks, the experts over edp
    ends                  embedding on the first stage, final norm and head on the last; a tied embedding is on both
    activations           live microbatches of the rank (the schedule's own count) times what one leaves behind; with
                          ZeRO stage 2 or 3 also the gradients, in stage 3 the weights too, of the layer at work (or
                          embedding or head, whichever is largest), which are whole for that while

Parameters here are those that a rank really stores: rows of padding and copies of KV heads included.
"""

from collections import Counter
from dataclasses import dataclass
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

    Blocks that layers share belong to each of these layers.
    """
    D = model.hidden
    units = [_sums((t for b in layer.blocks for t in b.tensors(D)), tp, ep, etp) for layer, _ in kinds]
    units += [_sums(end, tp, ep, etp) for end in _ends(model, first, last)]
    return frozenset((cut + whole, experts) for cut, whole, experts in units)


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


def stages(model: Model, layout: Layout, options: Options, distinct: bool = False) -> list[Stage]:
    """Every pipeline rank with what it holds; `distinct`: of ranks that hold the same layers, the fullest one only."""
    T, out, seen = -(-options.sequence_length // layout.cp), [], set()
    tp, core = layout.tp, options.core
    each = (options.zero, options.weight_bytes, options.gradient_bytes, options.optimizer_bytes)
    dense, routed = _each(layout.dp * layout.cp, *each), _each(layout.edp, *each)
    places = compositions(model, layout.pp, options.schedule, options.chunks)
    for rank, (numbers, kinds, first, last) in enumerate(places):
        if distinct and options.schedule == "1f1b":         # the first of them has the most live microbatches
            if (kinds, first, last) in seen:
                continue
            seen.add((kinds, first, last))
        cut, whole, experts = stage_elements(model, kinds, first, last, tp, layout.ep, layout.etp)
        held = [d * (cut + whole) + r * experts for d, r in zip(dense, routed, strict=True)]
        one = sum(n * layer_bytes(layer, model.hidden, tp, T, core) for layer, n in kinds)
        kept = live(layout, options, rank) * one
        if options.zero >= 2:
            units = unit_elements(model, kinds, first, last, tp, layout.ep, layout.etp)
            full = options.weight_bytes + options.gradient_bytes
            kept += max((full - sum(dense[:2])) * d + (full - sum(routed[:2])) * r for d, r in units)
        if last:
            at_once = options.microbatches if options.schedule == "gpipe" else 1
            kept += at_once * logit_bytes(model, tp, T, core)
        sizes = dict(zip(PARTS, map(round, (*held, kept)), strict=True))
        names: dict[str, int] = {}
        for layer, n in kinds:
            names[layer.kind] = names.get(layer.kind, 0) + n
        out.append(Stage(rank, numbers, names, kinds, cut, whole, experts, sizes | {"total": sum(sizes.values())}))
    return out


def fullest(stages: list[Stage]) -> Stage:
    """The stage whose rank holds most."""
    return max(stages, key=lambda s: s.bytes["total"])
