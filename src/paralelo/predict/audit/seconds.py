"""The time of a step: the work of the slowest stage, handed to `predict.step`."""

from collections import Counter
from functools import cache

from paralelo.predict import pipeline
from paralelo.predict.audit.memory import Stage, compositions, enough
from paralelo.predict.audit.options import Options
from paralelo.predict.audit.traffic import block_messages, boundary
from paralelo.predict.audit.work import head_flops, layer_flops, moved_bytes, rank_flops
from paralelo.predict.layout import Layout
from paralelo.predict.links import Cluster
from paralelo.predict.links import cluster as named
from paralelo.predict.model import Layer, Model
from paralelo.predict.step import Message, Step, Work, step_time

RECOMPUTED = {"none": 0.0, "selective": 0.0, "full": 1.0}   # fused attention keeps no scores to compute again


@cache
def layer_work(layer: Layer, D: int, tp: int, cp: int, ep: int, etp: int, core: Options):
    """(flops, moved bytes, collectives) of one rank for a microbatch in one layer."""
    B, T = core.microbatch_size, core.sequence_length
    n, messages = B * -(-T // cp), Counter()
    for block in layer.blocks:
        for m in block_messages(block, D, tp, cp, ep, etp, core):
            messages[m.axis, m.kind, m.bytes] += m.times
    return (sum(B * rank_flops(b, D, T, tp) / cp for b in layer.blocks),
            sum(moved_bytes(b, D, n, tp, core.sequence_parallel, core.element) for b in layer.blocks),
            tuple(messages.items()))


def stage_work(model: Model, layout: Layout, options: Options, stage: Stage) -> Work:
    """What one rank of a stage does for a microbatch."""
    flops = moved = 0.0
    messages: Counter = Counter()
    for layer, count in stage.counts:
        work = layer_work(layer, model.hidden, layout.tp, layout.cp, layout.ep, layout.etp, options.core)
        flops, moved = flops + count * work[0], moved + count * work[1]
        for key, times in work[2]:
            messages[key] += times * count
    if len(model.layers) - 1 in stage.layers:
        flops += options.microbatch_size * head_flops(model, options.sequence_length) / (layout.tp * layout.cp)
    return Work(
        flops=flops, moved=moved, parameters=stage.parameters, experts=stage.experts,
        messages=tuple(Message(*key, times) for key, times in messages.items()),
        boundary=boundary(model, layout, options), recomputed=RECOMPUTED[options.recompute],
        pieces=len(stage.layers))


@cache
def slowest(model: Model, pp: int, schedule: str, chunks: int, T: int) -> int:
    """The pipeline rank with the most work: the first of them."""
    work = [sum(n * layer_flops(layer, model.hidden, T) for layer, n in kinds) + (head_flops(model, T) if last else 0)
            for _, kinds, _, last in compositions(model, pp, schedule, chunks)]
    return work.index(max(work))


def step(model: Model, layout: Layout, options: Options, stages: list[Stage], cluster: Cluster) -> Step:
    """The predicted step: the stage with the most work sets the pace."""
    rank = slowest(model, layout.pp, options.schedule, options.chunks, options.sequence_length)
    work = stage_work(model, layout, options, next(s for s in stages if s.rank == rank))
    idle = None
    if options.schedule not in ("gpipe", "1f1b", "interleaved"):
        few = enough(options.schedule, layout.pp, options.microbatches)
        built = pipeline.build(options.schedule, layout.pp, few, options.chunks)
        idle = float(pipeline.simulate(built).idle_over_ideal) * few / options.microbatches
    return step_time(work, layout, cluster, options.microbatches, chunks=options.chunks, zero=options.zero,
                     element=options.element, bubble=idle)


def seconds_per_step(audit, cluster: Cluster | str) -> float | None:
    """Predicted seconds of a step of an audit, None where the layout cannot work.

    >>> from paralelo.predict.audit import Options, audit
    >>> from paralelo.predict.model import ship
    >>> two = [seconds_per_step(audit(ship("Llama-3.1-8B"), Options(microbatches=8), tp=t), "h100") for t in (1, 8)]
    >>> two[0] > two[1] > two[0] / 8
    True
    """
    cluster = named(cluster) if isinstance(cluster, str) else cluster
    if not audit.valid or not audit.stages:
        return None
    return step(audit.model, audit.layout, audit.options, audit.stages, cluster).total
