"""What a measurement says: model FLOPs utilization, exposed communication, idle time, stragglers.

    MFU = tokens/s · FLOP per token / (devices · peak FLOP/s),        FLOP per token = 6N + 12·L·H·d·T

N are the parameters that a token passes through (for a mixture of experts the active ones; no lookup of the embedding),
2 FLOP each forward and 4 backward; attention scores and values add 4·L·H·d·T forward and twice that backward, half of
it under a causal mask if it is counted so. Recomputation is the hardware's work, not the model's: only HFU counts it.

Times are intervals (start, end). Overlapping kernels are a union, never a sum; communication is exposed where no
computation runs at the same time.

Sources: Chowdhery et al. 2022, appendix B (MFU); Narayanan et al. 2021, equation 3.
"""

from statistics import median

from paralelo.predict.quantity import real, whole
from paralelo.words import Refused

# ---- utilization


def flops_per_token(params, L: int = 0, H: int = 0, d: int = 0, T: int = 0, causal: bool = False):
    """Training FLOP of one token: 6N, and attention over T positions in L layers of H heads of size d.

    >>> flops_per_token(7_000_000_000)
    42000000000
    >>> round(flops_per_token(540_000_000_000, 118, 48, 256, 2048) / 6 / 540e9, 3)          # attention adds 1.1 %
    1.011
    """
    real("params", params)
    attention = 12 * whole("L", L, 0) * whole("H", H, 0) * whole("d", d, 0) * whole("T", T, 0)
    return 6 * params + (attention / 2 if causal else attention)


def hardware_flops_per_token(params, L: int = 0, H: int = 0, d: int = 0, T: int = 0):
    """The same with full recomputation: one more forward, so 8N + 16·L·H·d·T."""
    return flops_per_token(params, L, H, d, T) * 4 / 3


def published_flops(batch: int, T: int, L: int, D: int, V: int) -> float:
    """FLOP of one step with recomputation as Narayanan et al. count them: 96·B·T·L·D²(1 + T/6D + V/16LD).

    >>> round(published_flops(1536, 2048, 96, 12288, 51200) / 1e18, 2)             # GPT-3 in 1536 sequences: 4.51 EFLOP
    4.51
    """
    return 96 * batch * T * L * D**2 * (1 + T / (6 * D) + V / (16 * L * D))


def mfu(tokens_per_second, flops_per_token, peak, devices: int = 1) -> float:
    """Model FLOP/s over peak FLOP/s of all devices.

    >>> round(mfu(3400, flops_per_token(7e9), 312e12), 3)
    0.458
    """
    return float(tokens_per_second * flops_per_token / (whole("devices", devices) * real("peak", peak, above=True)))


# ---- intervals

def union(intervals) -> list[tuple[float, float]]:
    """The intervals without overlaps, in order; empty ones vanish.

    >>> union([(3, 5), (0, 2), (4, 7), (2, 2.5)])
    [(0, 2.5), (3, 7)]
    """
    out: list[tuple[float, float]] = []
    for start, end in sorted(_checked(intervals)):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        elif end > start:
            out.append((start, end))
    return out


def _checked(intervals):
    for start, end in intervals:
        if not end >= start:
            raise Refused("measure.interval", start=start, end=end)
        yield start, end


def total(intervals):
    """The length of the union.

    >>> total([(0, 2), (1, 3)]), sum(b - a for a, b in [(0, 2), (1, 3)])
    (3, 4)
    """
    return sum(end - start for start, end in union(intervals))


def overlap(a, b):
    """For how long both are going on.

    >>> overlap([(0, 4)], [(1, 2), (3, 6)])
    2
    """
    a, b = union(a), union(b)
    out, i, j = 0, 0, 0
    while i < len(a) and j < len(b):
        out += max(0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        i, j = (i + 1, j) if a[i][1] <= b[j][1] else (i, j + 1)
    return out


def exposed(communication, computation):
    """For how long communication goes on with no computation to hide it.

    >>> exposed([(0, 3), (2, 4)], [(1, 3)])
    2
    """
    return total(communication) - overlap(communication, computation)


def idle_time(busy, start=None, end=None):
    """What is left of a window when every busy interval is taken out; the window is that of `busy` by default.

    >>> idle_time([(1, 2), (4, 6)]), idle_time([(1, 2), (4, 6)], 0, 8)
    (2, 5)
    """
    busy = union(busy)
    if not busy and (start is None or end is None):
        raise Refused("measure.no_window")
    start, end = busy[0][0] if start is None else start, busy[-1][1] if end is None else end
    if not end >= start:
        raise Refused("measure.interval", start=start, end=end)
    return end - start - overlap(busy, [(start, end)])


def idle_share(ranks, start=None, end=None) -> float:
    """The idle share of several ranks in one window, from the first start to the last end on any of them.

    >>> round(idle_share([[(0, 2)], [(1, 4)]]), 3)
    0.375
    """
    ranks = [union(busy) for busy in ranks]
    ends = [interval for busy in ranks for interval in busy]
    if not ends:
        raise Refused("measure.no_window")
    start = min(a for a, _ in ends) if start is None else start
    end = max(b for _, b in ends) if end is None else end
    return sum(idle_time(busy, start, end) for busy in ranks) / (len(ranks) * (end - start))


# ---- ranks that hold others up

def stragglers(seconds, tolerance: float = 0.1) -> list[int]:
    """Ranks that take longer than the median by more than this share of it.

    >>> stragglers([1.0, 1.02, 1.4, 0.98])
    [2]
    """
    seconds = list(seconds)
    middle = median(real("seconds", s) for s in seconds)
    return [rank for rank, s in enumerate(seconds) if s > middle * (1 + real("tolerance", tolerance))]


def straggler_cost(seconds) -> float:
    """The share of all ranks' time that goes in waiting for the slowest, when each step ends together.

    >>> straggler_cost([1.0, 1.0, 1.0, 2.0])
    0.375
    """
    seconds = list(seconds)
    slowest = max(real("seconds", s) for s in seconds)
    return 1 - sum(seconds) / (len(seconds) * slowest) if slowest else 0.0
