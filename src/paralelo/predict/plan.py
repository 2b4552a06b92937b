"""Every layout of a model on N GPUs: the ones that work by their predicted time, the others with the reason.

A layout is dp·tp·pp·cp = N, with every expert degree that folds into it and shares the experts evenly. What it must
respect is the audit's: every dimension, the stages, the sequence, the experts; besides, data ranks share the batch
evenly and the fullest rank fits.

Chosen for each: the ZeRO stage, and whether layers are computed again (`recompute` "full") or activations kept; of what
fits the fastest, the lower stage where two are as fast (0 where no ranks share a copy of the state). Stages 2 and 3
are tried beside pipelines too: their messages come with every microbatch then, and in the bubble.

Assumed for all of them: 1F1B, the same microbatch size, sequence parallelism wherever tp > 1 and the positions divide,
no message behind computation. ZeRO shares over all dp·cp ranks (experts: edp), never over a part of them (HSDP).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from paralelo.predict.audit.axes import experts_found, positions_found, stages_found
from paralelo.predict.audit.dims import dimensions
from paralelo.predict.audit.memory import Stage, fits, fullest, stages
from paralelo.predict.audit.options import Options
from paralelo.predict.audit.seconds import step
from paralelo.predict.data import STAGES
from paralelo.predict.layout import Layout
from paralelo.predict.links import Cluster
from paralelo.predict.links import cluster as named
from paralelo.predict.model import Model
from paralelo.predict.quantity import divisors, one_of, whole
from paralelo.words import Message

MOST_GPUS = 2**17
LEAST_BATCH = 512


@dataclass(frozen=True)
class Candidate:
    """A layout with its verdict: `seconds` None where it cannot run, `bytes` of the fullest rank, why it is out."""

    layout: Layout
    fits: bool
    seconds: float | None
    bytes: int | None
    reasons: tuple[Message, ...]
    recompute: str = "none"
    microbatches: int = 0
    zero: int = 0

    def json(self, lang: str = "en") -> dict:
        at = self.layout
        return {"dp": at.dp, "tp": at.tp, "pp": at.pp, "cp": at.cp, "ep": at.ep, "fits": self.fits,
                "seconds": self.seconds, "reasons": [r.say(lang) for r in self.reasons], "bytes": self.bytes,
                "recompute": self.recompute, "microbatches": self.microbatches, "etp": at.etp, "zero": self.zero}


def layouts(gpus: int, experts: int = 0, order: str = "tp-cp-ep-dp-pp") -> Iterator[Layout]:
    """All layouts of this many GPUs. With experts, all divisors of their number that fold into them.

    >>> [(x.tp, x.pp, x.cp, x.dp) for x in layouts(2)]
    [(1, 1, 1, 2), (1, 1, 2, 1), (1, 2, 1, 1), (2, 1, 1, 1)]
    """
    shares = divisors(experts) if experts else [1]
    for tp in divisors(gpus):
        for pp in divisors(gpus // tp):
            for cp in divisors(gpus // (tp * pp)):
                dp = gpus // (tp * pp * cp)
                folds = [e for e in shares if tp * cp * dp % e == 0]
                for ep in folds:
                    etp = tp if experts and ep == 1 else 1
                    yield Layout(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, order=order)


def default_batch(gpus: int, microbatch_size: int = 1) -> int:
    """The smallest multiple of N·B that is at least 512: every number of data ranks divides it.

    >>> default_batch(24), default_batch(4096)
    (528, 4096)
    """
    n = gpus * microbatch_size
    return -(-LEAST_BATCH // n) * n


def plan(model: Model, gpus: int, *, gpus_per_node: int | None = None, memory: float | None = None,
         sequence_length: int = 4096, global_batch: int | None = None, cluster: Cluster | str = "h100",
         order: str = "tp-cp-ep-dp-pp", zero: int | None = None, microbatch_size: int = 1) -> list[Candidate]:
    """All layouts, those that run and fit first, fastest first; `memory` in bytes, by default that of the device.

    `zero`: the stage for all of them, or None for the fastest that fits in each.

    >>> from paralelo.predict.model import ship
    >>> best, *rest = plan(ship("Llama-3.1-8B"), 8)
    >>> best.fits, best.layout.world_size, len(rest)
    (True, 8, 19)
    """
    whole("gpus", gpus, most=MOST_GPUS)
    cluster = named(cluster) if isinstance(cluster, str) else cluster
    if gpus_per_node is not None:
        cluster = replace(cluster, gpus_per_node=whole("gpus_per_node", gpus_per_node, most=2**16))
    memory = cluster.device.memory if memory is None else memory
    asked = Options(sequence_length=sequence_length, microbatch_size=microbatch_size)  # refused here
    batch = (default_batch(gpus, microbatch_size) if global_batch is None
             else whole("global_batch", global_batch, most=10**9))
    zeros = STAGES if zero is None else (one_of("zero", zero, STAGES),)
    found = [_judge(model, layout, cluster, memory, asked, batch, zeros)
             for layout in layouts(gpus, model.experts, order)]
    return sorted(found, key=lambda c: (not c.fits, c.seconds is None, c.seconds or 0, len(c.reasons)))


def _judge(model, layout, cluster, memory, asked, batch, zeros) -> Candidate:
    T, B = asked.sequence_length, asked.microbatch_size
    reasons = _broken(model, layout.tp, layout.pp, layout.cp, layout.ep, layout.etp, T)
    if batch % (layout.dp * B):
        reasons += (Message("plan.batch" if B == 1 else "plan.microbatches",
                            {"batch": batch, "dp": layout.dp, "size": B}),)
    if reasons:
        return Candidate(layout, False, None, None, reasons, zero=zeros[0])
    options = replace(asked, microbatches=batch // (layout.dp * B),
                      sequence_parallel=layout.tp > 1 and T % (layout.cp * layout.tp) == 0)
    seconds, options, held = _fastest(model, layout, cluster, memory, options, _sharing(model, layout, zeros))
    full = fullest(held).bytes
    if full["total"] > memory:
        state = full["total"] - full["activations"]
        id = "memory_alone" if not shared(layout, model.experts > 0) else "memory" if options.zero else "memory_plain"
        reasons = (Message(f"plan.{id}", {"stage": fullest(held).rank, "total": full["total"], "memory": memory,
                                          "state": state, "zero": options.zero,
                                          "activations": full["activations"]}),)
    return Candidate(layout, not reasons, seconds, full["total"], reasons, options.recompute, options.microbatches,
                     options.zero)


def shared(layout: Layout, experts: bool) -> bool:
    """Whether several ranks hold copies of the same state, so that ZeRO has something to share out."""
    return layout.dp * layout.cp > 1 or (experts and layout.edp > 1)


def _sharing(model: Model, layout: Layout, zeros: tuple[int, ...]) -> tuple[int, ...]:
    """The stages worth trying: 0 only where there is nothing to share, as stage 1 sends no more and updates less."""
    if len(zeros) == 1:
        return zeros
    return zeros[1:] if shared(layout, model.experts > 0) else zeros[:1]


def _fastest(model, layout, cluster, memory, options, zeros) -> tuple[float, Options, list[Stage]]:
    """(seconds, options, stages) of the fastest way to fit; of the smallest where none does.

    A later stage holds less and takes longer, and so does computing again: what follows a fit is no faster.
    """
    @cache
    def at(recompute, zero):
        return replace(options, recompute=recompute, zero=zero)

    @cache
    def fitting(recompute, zero):
        return fits(model, layout, at(recompute, zero), memory)

    def timed(recompute, zero):
        chosen = at(recompute, zero)
        held = stages(model, layout, chosen, distinct=True)
        return step(model, layout, chosen, held, cluster).total, chosen, held

    if fitting("none", zeros[0]):
        return timed("none", zeros[0])
    able = [recompute for recompute in ("none", "full") if fitting(recompute, zeros[-1])]
    if not able:
        return timed("full", zeros[-1])
    ways = [timed(recompute, next(zero for zero in zeros if fitting(recompute, zero))) for recompute in able]
    return min(ways, key=lambda found: (found[0], found[1].zero))


@cache
def _broken(model: Model, tp: int, pp: int, cp: int, ep: int, etp: int, T: int) -> tuple[Message, ...]:
    """Why these degrees cannot be, by the audit; independent of dp."""
    layout = Layout(tp=tp, pp=pp, cp=cp)
    found = [*_cut(model, tp, etp), *_staged(model, pp), *experts_found(model, _folding(ep)),
             *positions_found(model, layout, Options(sequence_length=T))]
    return tuple(f.message for f in found if f.verdict == "breaks")


@cache
def _cut(model: Model, tp: int, etp: int):
    return tuple(dimensions(model, tp, etp))


@cache
def _staged(model: Model, pp: int):
    return tuple(f for f in stages_found(model, Layout(pp=pp), Options(microbatches=pp)) if f.verdict == "breaks")


def _folding(ep: int) -> Layout:
    return Layout(dp=ep, ep=ep)
