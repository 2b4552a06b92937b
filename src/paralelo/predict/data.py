"""Data parallelism and ZeRO: what a rank holds, what it sends, when a gradient can leave.

Mixed-precision Adam holds for each of Ψ parameters a weight (2 bytes), a gradient (2) and the optimizer's fp32 copy,
mean and variance (4 + 4 + 4). Over N ranks:

    stage                   split                     bytes a rank             elements sent a step
    0   (plain)             nothing                   16Ψ                      2Ψ     all-reduce of the gradients
    1   P_os                optimizer                 4Ψ + 12Ψ/N               2Ψ     reduce-scatter, all-gather
    2   P_os+g              and gradients             2Ψ + 14Ψ/N               2Ψ     the same
    3   P_os+g+p  (FSDP)    and weights               16Ψ/N                    3Ψ     all-gather twice, reduce-scatter

Elements sent are for large N; a ring sends (N−1)/N of them. `params` is Ψ everywhere. They are those of one microbatch:
stages 0 and 1 add up the gradients of M microbatches where they are and send 2Ψ whatever M is. Stages 2 and 3 have no
room for whole gradients and scatter them after every microbatch, (M+1)Ψ, stage 3 gathering twice each time, 3MΨ.

Sources: Rajbhandari et al. 2020, sections 5 and 7; Li et al. 2020 (buckets and overlap in DistributedDataParallel).
"""

import math
from fractions import Fraction

from paralelo.predict.quantity import one_of, real, whole
from paralelo.words import Refused

STAGES = (0, 1, 2, 3)
PARTS = ("weights", "gradients", "optimizer")


def zero_parts(params, N: int, stage: int, weights=2, gradients=2, optimizer=12) -> dict[str, float]:
    """Bytes on one rank of weights, gradients and optimizer state.

    >>> zero_parts(64, 4, 2)
    {'weights': 128, 'gradients': 32, 'optimizer': 192}
    """
    real("params", params)
    whole("N", N)
    one_of("stage", stage, STAGES)
    out = {}
    for part, each, split_from in zip(PARTS, (weights, gradients, optimizer), (3, 2, 1), strict=True):
        size = Fraction(params) * Fraction(real(part, each)) / (N if stage >= split_from else 1)
        out[part] = int(size) if size.denominator == 1 else float(size)
    return out


def zero_bytes(params, N: int, stage: int, weights=2, gradients=2, optimizer=12):
    """Bytes on one rank: Ψ = 7.5 billion on 64 ranks takes 120, 31.4, 16.6 and 1.9 GB.

    >>> [round(zero_bytes(7.5e9, 64, stage) / 1e9, 1) for stage in (0, 1, 2, 3)]
    [120.0, 31.4, 16.6, 1.9]
    """
    return sum(zero_parts(params, N, stage, weights, gradients, optimizer).values())


def zero_messages(stage: int, microbatches: int = 1) -> tuple[int, int]:
    """(reduce-scatters of the gradients, all-gathers of the weights) in a step; stage 0 does its pair as all-reduce.

    >>> [zero_messages(stage, 4) for stage in (0, 1, 2, 3)]
    [(1, 1), (1, 1), (4, 1), (4, 8)]
    """
    M = whole("microbatches", microbatches)
    return M if one_of("stage", stage, STAGES) >= 2 else 1, 2 * M if stage == 3 else 1


def zero_traffic(params, stage: int, microbatches: int = 1):
    """Elements a rank sends per step when N is large: 2Ψ, 2Ψ, 2Ψ, 3Ψ with one microbatch.

    >>> [zero_traffic(10, stage) for stage in (0, 1, 2, 3)], [zero_traffic(10, stage, 4) for stage in (0, 1, 2, 3)]
    ([20, 20, 20, 30], [20, 20, 50, 120])
    """
    return real("params", params) * sum(zero_messages(stage, microbatches))


def zero_traffic_bytes(params, N: int, stage: int, element: int = 2, microbatches: int = 1):
    """Bytes a rank sends per step in rings on N ranks: (N−1)/N of `zero_traffic`.

    >>> zero_traffic_bytes(1000, 4, 3)
    4500
    """
    size = Fraction(zero_traffic(params, stage, microbatches)) * element * (whole("N", N) - 1) / N
    return int(size) if size.denominator == 1 else float(size)


def gradient_bytes(params, N: int, element: int = 2):
    """Bytes a rank sends to average the gradients: a ring all-reduce, 2(N−1)/N·Ψ elements."""
    return zero_traffic_bytes(params, N, 0, element)


def ranks_needed(params, memory, stage: int, most: int = 2**20) -> int:
    """The fewest ranks on which weights, gradients and optimizer state fit in `memory` bytes each.

    >>> ranks_needed(7.5e9, 80e9, 3), ranks_needed(7.5e9, 40e9, 1)
    (2, 9)
    """
    real("memory", memory, above=True)
    if zero_bytes(params, most, stage) > memory:
        raise Refused("data.never_fits", stage=stage, needed=zero_bytes(params, most, stage), memory=memory, most=most)
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if zero_bytes(params, middle, stage) <= memory else (middle + 1, high)
    return low


# ---- when gradients leave

def buckets(sizes, limit) -> list[list[int]]:
    """Parameters grouped into buckets of at most `limit` bytes, last parameters first: backward reaches them first.

    A parameter larger than the limit has a bucket to itself.

    >>> buckets([4, 4, 4, 10, 2], 8)
    [[4], [3], [2, 1], [0]]
    """
    real("limit", limit, above=True)
    out, filled = [], 0
    for i in reversed(range(len(sizes))):
        if out and filled + sizes[i] <= limit:
            out[-1].append(i)
            filled += sizes[i]
        else:
            out.append([i])
            filled = sizes[i]
    return out


def bucket_times(ready, durations) -> list[tuple[float, float]]:
    """When each bucket is sent: one after another, none before its gradients are ready.

    >>> bucket_times([1, 2, 3], [1, 3, 1])
    [(1, 2), (2, 5), (5, 6)]
    """
    out, free = [], 0
    for at, duration in zip(ready, durations, strict=True):
        start = max(at, free)
        free = start + duration
        out.append((start, free))
    return out


def exposed_after_backward(ready, durations):
    """How long the last bucket keeps the step waiting after backward has ended (the last `ready`).

    >>> exposed_after_backward([1, 2, 3], [1, 3, 1])
    3
    """
    return bucket_times(ready, durations)[-1][1] - ready[-1]


# ---- sums and means

def loss_weights(valid) -> list[Fraction]:
    """What each rank's mean loss weighs in the mean over all tokens: its share of the valid tokens, not 1/N.

    >>> loss_weights([3, 1])
    [Fraction(3, 4), Fraction(1, 4)]
    """
    valid = list(valid)
    total = sum(whole("valid", v, 0) for v in valid)
    if not total:
        raise Refused("data.no_tokens", ranks=len(valid))
    return [Fraction(v, total) for v in valid]


def global_norm(norms) -> float:
    """The norm of a gradient that is split: square, add, root. Copies count once.

    >>> global_norm([3, 4])
    5.0
    """
    return math.sqrt(sum(real("norm", n) ** 2 for n in norms))


def clip_factor(norms, most: float) -> float:
    """The one factor for all pieces: `most` over the whole norm, never above 1.

    >>> clip_factor([3, 4], 1), clip_factor([0.3, 0.4], 1)
    (0.2, 1.0)
    """
    norm = global_norm(norms)
    return min(1.0, real("most", most, above=True) / norm) if norm else 1.0


def expert_gradient_factor(dp: int, ep: int) -> Fraction:
    """What a rank's expert gradient is multiplied by: 1/dp, as for every other parameter, whatever `ep` is.

    Its experts have already summed over the tokens of `ep` ranks; a mean over the edp = dp/ep copies alone would leave
    a factor ep.

    >>> expert_gradient_factor(4, 2)
    Fraction(1, 4)
    """
    whole("dp", dp)
    whole("ep", ep)
    return Fraction(1, dp)
