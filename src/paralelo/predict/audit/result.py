"""The audit: one model, one layout, everything found at once."""

from dataclasses import dataclass, field

from paralelo.predict.audit.axes import (
    TWO_CHUNKS,
    experts_found,
    fold,
    links_found,
    positions_found,
    scales_found,
    stages_found,
)
from paralelo.predict.audit.degrees import ep_degrees, pp_equal_stages, tp_degrees
from paralelo.predict.audit.dims import dimensions
from paralelo.predict.audit.finding import Finding
from paralelo.predict.audit.memory import Stage, fullest, stages
from paralelo.predict.audit.options import Options
from paralelo.predict.audit.traffic import AXES, stage_bytes
from paralelo.predict.layout import Layout
from paralelo.predict.links import Cluster
from paralelo.predict.model import Model
from paralelo.predict.tensor import padded_vocab
from paralelo.words import Message


@dataclass(frozen=True)
class Audit:
    """What was found. `stages` is empty where the layers cannot be placed; bytes are those of the fullest rank."""

    model: Model
    layout: Layout
    options: Options
    findings: list[Finding]
    stages: list[Stage] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        return all(f.verdict != "breaks" for f in self.findings)

    @property
    def bytes_per_rank(self) -> dict[str, int] | None:
        return dict(fullest(self.stages).bytes) if self.stages else None

    @property
    def bytes_per_step(self) -> dict[str, int] | None:
        """Bytes by axis that the busiest rank sends in a step."""
        if not self.stages:
            return None
        sent = [stage_bytes(self.model, self.layout, self.options, s) for s in self.stages]
        return {axis: max(s[axis] for s in sent) for axis in AXES}

    def json(self, lang: str = "en") -> dict:
        """The answer of `paralelo audit --json`, without the time of a step."""
        m = self.model
        per_rank = None
        if self.stages:
            full = fullest(self.stages)
            per_rank = {"stage": full.rank, "cut": full.cut, "whole": full.whole, "experts": full.experts}
        return {
            "model": m.summary(), "valid": self.valid, "findings": [f.json(lang) for f in self.findings],
            "tp_degrees": tp_degrees(m), "tp_degrees_with_replication": tp_degrees(m, replicate=True),
            "pp_equal_stages": pp_equal_stages(m), "ep_degrees": ep_degrees(m),
            "vocab_padded": padded_vocab(m.vocab, self.layout.tp, 128), "bytes_per_rank": self.bytes_per_rank,
            "parameters_per_rank": per_rank, "bytes_per_step": self.bytes_per_step,
            "stages": [{"rank": s.rank, "layers": len(s.layers), "kinds": s.kinds, "parameters": s.parameters,
                        "bytes": s.bytes} for s in self.stages],
            "notes": [n.say(lang) for n in m.notes],
        }


def memory_found(held: list[Stage], cluster: Cluster) -> Finding:
    """Whether the fullest rank fits in one device of the cluster."""
    full, room = fullest(held), int(cluster.device.memory)
    verdict = "divides" if full.bytes["total"] <= room else "breaks"
    message = Message(f"audit.memory.{verdict}", {"stage": full.rank, "total": full.bytes["total"], "memory": room})
    return Finding("memory", full.bytes["total"], room, verdict, message)


def default_etp(model: Model, degrees: dict) -> int:
    """Without expert parallelism the tensor degree cuts the experts too; with it, experts are split by number alone."""
    alone = model.experts and degrees.get("ep", 1) == 1
    return degrees.get("tp", 1) if alone else 1


def audit(model: Model, options: Options | None = None, cluster: Cluster | None = None, **degrees) -> Audit:
    """Everything there is to say about a model under a layout: `audit(model, tp=8, pp=4, dp=2)`.

    >>> from paralelo.predict.model import ship
    >>> a = audit(ship("Qwen3.5-27B"), tp=8)
    >>> a.valid, [(f.dimension, f.verdict) for f in a.findings if f.verdict not in ("divides", "note")]
    (True, [('kv_heads', 'replicated')])
    >>> [f.dimension for f in audit(ship("Qwen2.5-7B"), tp=7).findings if f.verdict == "breaks"]
    ['kv_heads', 'ffn']

    Raises Refused only for what is no layout at all (a degree of 0, an order that does not exist).
    """
    options = options or Options(microbatches=degrees.get("pp", 1) if isinstance(degrees.get("pp", 1), int) else 1)
    if options.schedule in TWO_CHUNKS and options.chunks == 1:
        options = Options(**{**vars(options), "chunks": 2})
    degrees = {"etp": default_etp(model, degrees)} | degrees
    layout, found = fold(**degrees)
    found = dimensions(model, layout.tp, layout.etp, options.weight_bytes) + found
    staged = stages_found(model, layout, options)
    found += staged + experts_found(model, layout)
    found += positions_found(model, layout, options) + scales_found(model, layout)
    found += links_found(layout, cluster) if cluster else []
    broken = {f.dimension for f in staged if f.verdict == "breaks"}
    held = [] if broken else stages(model, layout, options)
    found += [memory_found(held, cluster)] if held and cluster else []
    return Audit(model, layout, options, found, held)
