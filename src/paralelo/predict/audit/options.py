"""What an audit assumes beside the layout: lengths, batch, schedule, memory savers, bytes."""

from dataclasses import dataclass
from functools import cache, cached_property

from paralelo.predict.pipeline import NAMES
from paralelo.predict.quantity import one_of, whole

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Options:
    """`sequence_length` T is the whole sequence, before context parallelism cuts it; `microbatches` is per data rank.

    Bytes per parameter: weights and gradients 2, Adam in mixed precision 12 (fp32 copy, mean, variance). Activations 2.
    """

    sequence_length: int = 4096
    microbatch_size: int = 1
    microbatches: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    zero: int = 0
    sequence_parallel: bool = False
    recompute: str = "none"
    weight_bytes: int = 2
    gradient_bytes: int = 2
    optimizer_bytes: int = 12
    element: int = 2

    @cached_property
    def core(self) -> "Options":
        """What one microbatch depends on: the same for every batch, schedule and ZeRO stage, so tables can be kept."""
        return _core(self.sequence_length, self.microbatch_size, self.sequence_parallel, self.recompute, self.element)

    def __post_init__(self):
        for name, most in (("sequence_length", 10**9), ("microbatch_size", 10**6), ("microbatches", 10**9),
                           ("chunks", 10**4)):
            whole(name, getattr(self, name), most=most)
        one_of("schedule", self.schedule, NAMES)
        one_of("zero", self.zero, (0, 1, 2, 3))
        one_of("recompute", self.recompute, RECOMPUTE)


@cache
def _core(T, B, sequence_parallel, recompute, element) -> Options:
    return Options(sequence_length=T, microbatch_size=B, sequence_parallel=sequence_parallel, recompute=recompute,
                   element=element)
