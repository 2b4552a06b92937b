"""One model, one layout: what divides, what is replicated, what breaks, what a rank holds and sends.

    audit(model, options, tp=…, pp=…, cp=…, ep=…, dp=…) → Audit      .valid, .findings, .bytes_per_rank, .bytes_per_step

Every dimension is judged at once and says what happens on each rank. Modules: `degrees` (which degrees there are),
`dims` (what a tensor split cuts), `axes` (stages, experts, positions), `memory`, `activations`, `traffic`, `work`.
"""

from paralelo.predict.audit.axes import fold
from paralelo.predict.audit.degrees import ep_degrees, pp_equal_stages, tp_degrees
from paralelo.predict.audit.dims import judge, kv_map
from paralelo.predict.audit.finding import Finding, layers_of
from paralelo.predict.audit.memory import Stage, fullest, stages
from paralelo.predict.audit.options import Options
from paralelo.predict.audit.result import Audit, audit
from paralelo.predict.audit.seconds import seconds_per_step, step
from paralelo.predict.audit.traffic import stage_bytes
from paralelo.predict.audit.work import model_flops, stage_flops, work_over_mean

__all__ = ["Audit", "Finding", "Options", "Stage", "audit", "ep_degrees", "fold", "fullest", "judge", "kv_map",
           "layers_of", "model_flops", "pp_equal_stages", "seconds_per_step", "stage_bytes", "stage_flops", "stages",
           "step", "tp_degrees", "work_over_mean"]
