"""Data parallelism: every rank takes some of the examples; the gradients, and what ZeRO splits, travel.

`DataParallel` is DDP by hand (buckets, overlap, accumulation), `accumulate` the mean over tokens whatever the split,
`Zero` the three stages in which a rank keeps a part of the optimizer, the gradients, the weights.
"""

from paralelo.run.data.ddp import DataParallel, broadcast
from paralelo.run.data.mean import accumulate, count_tokens
from paralelo.run.data.zero import Zero, default_units

__all__ = ["DataParallel", "Zero", "accumulate", "broadcast", "count_tokens", "default_units"]
