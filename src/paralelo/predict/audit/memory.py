"""What each pipeline stage's fullest rank holds.

    dense parameters      cut by tp where a tensor is cut, whole where it is not (norms, router, latents)
    routed experts        shared out by ep, cut by etp: never by tp
    optimizer and so on   ZeRO shares the dense ones over dp·cp ranks, the experts over edp
    ends                  embedding on the first stage, final norm and head on the last; a tied embedding is on both
    activations           live microbatches of the rank (the schedule's own count) times what one leaves behind

Parameters here are those that a rank really stores: rows of padding and copies of KV heads included.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache

from paralelo.predict import pipeline
from paralelo.predict.audit.activations import layers_bytes, logit_bytes
from paralelo.predict.audit.options import Options
from paralelo.predict.data import zero_parts
from paralelo.predict.layout import Layout, chunk_layers
from paralelo.predict.model import Model, Tensor

PARTS = ("parameters", "gradients", "optimizer", "activations")


@dataclass(frozen=True)
class Stage:
    """One pipeline rank: its layers, its parameters by how they are shared, its bytes."""

    rank: int
    layers: tuple[int, ...]
    kinds: dict
    cut: int                                                # elements of dense tensors that tp cuts
    whole: int                                              # elements of dense tensors that every rank holds whole
    experts: int                                            # elements of routed experts
    bytes: dict

    @property
    def parameters(self) -> int:
        return self.cut + self.whole + self.experts


@cache
def layer_elements(model: Model, layer, tp: int, ep: int, etp: int) -> tuple[int, int, int]:
    """(cut, whole, experts) elements of one layer on the fullest rank; blocks that layers share are left out."""
    return _sums((t for b in layer.blocks if not b.shared for t in b.tensors(model.hidden)), tp, ep, etp)


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
    sums = [(layer_elements(model, layer, tp, ep, etp), n) for layer, n in kinds]
    shared = dict.fromkeys(b for layer, _ in kinds for b in layer.blocks if b.shared)
    sums += [(_sums(b.tensors(model.hidden), tp, ep, etp), b.copies) for b in shared]
    ends = [*(model.first if first else ()), *(model.last if last else ())]
    if last and not first and model.tied:
        ends.append(Tensor("head", model.vocab, model.hidden, model.vocabulary))
    sums.append((_sums(ends, tp, ep, etp), 1))
    return tuple(sum(s[i] * n for s, n in sums) for i in range(3))


@cache
def placement(layers: int, pp: int, schedule: str, chunks: int) -> tuple[tuple[int, ...], ...]:
    """The numbers of the layers on each pipeline rank."""
    shape = "v" if schedule in ("zb-v", "dualpipe-v") else "loop"
    return tuple(tuple(i for r in ranges for i in r) for ranges in chunk_layers(layers, pp, chunks, shape))


def live(layout: Layout, options: Options, rank: int) -> float:
    """Microbatches whose activations a pipeline rank holds at once, in whole forwards."""
    if options.schedule == "1f1b":
        return min(options.microbatches, layout.pp - rank)
    if options.schedule == "gpipe":
        return options.microbatches
    return _simulated(options.schedule, layout.pp, options.microbatches, options.chunks)[rank]


@cache
def _simulated(schedule, stages, microbatches, chunks):
    return pipeline.simulate(pipeline.build(schedule, stages, microbatches, chunks)).live_activations


def stages(model: Model, layout: Layout, options: Options) -> list[Stage]:
    """Every pipeline rank with what it holds."""
    T = -(-options.sequence_length // layout.cp)
    places = placement(len(model.layers), layout.pp, options.schedule, options.chunks)
    out, last = [], len(model.layers) - 1
    for rank, numbers in enumerate(places):
        counts = Counter(model.layers[i] for i in numbers)
        first, ends = 0 in numbers, last in numbers
        cut, whole, experts = stage_elements(model, tuple(counts.items()), first, ends, layout.tp, layout.ep,
                                             layout.etp)
        each = (options.weight_bytes, options.gradient_bytes, options.optimizer_bytes)
        dense = zero_parts(cut + whole, layout.dp * layout.cp, options.zero, *each)
        routed = zero_parts(experts, layout.edp, options.zero, *each)
        held = dict(zip(PARTS, (dense[k] + routed[k] for k in ("weights", "gradients", "optimizer")), strict=False))
        alive = live(layout, options, rank)
        held["activations"] = alive * layers_bytes(model, counts, layout.tp, T, options)
        if ends:
            at_once = options.microbatches if options.schedule == "gpipe" else 1
            held["activations"] += at_once * logit_bytes(model, layout.tp, T, options)
        held = {k: round(v) for k, v in held.items()}
        kinds = dict(Counter(model.layers[i].kind for i in numbers))
        out.append(Stage(rank, numbers, kinds, cut, whole, experts, held | {"total": sum(held.values())}))
    return out


def fullest(stages: list[Stage]) -> Stage:
    """The stage whose rank holds most."""
    return max(stages, key=lambda s: s.bytes["total"])
