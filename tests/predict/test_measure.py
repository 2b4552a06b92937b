"""Utilization against published formulas; intervals against counting ticks."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paralelo.predict import measure as m
from paralelo.words import Refused, languages

pytestmark = pytest.mark.measure

intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=8)


def ticks(some):
    return {t for a, b in some for t in range(a, b)}


@given(intervals, intervals)
def test_intervals_by_counting_ticks(a, b):
    assert m.total(a) == len(ticks(a))
    assert m.overlap(a, b) == m.overlap(b, a) == len(ticks(a) & ticks(b))
    assert m.exposed(a, b) == len(ticks(a) - ticks(b))
    assert m.idle_time(a, 0, 50) == 50 - len(ticks(a))
    pieces = m.union(a)
    assert ticks(pieces) == ticks(a) and all(p[1] < q[0] for p, q in pairwise(pieces))


def test_a_sum_of_kernels_is_not_a_union():
    streams = [(0, 10), (0, 10)]
    assert m.total(streams) == 10 and sum(b - a for a, b in streams) == 20
    assert m.exposed(streams, [(4, 20)]) == 4


def test_idle_share_of_a_schedule():
    """Two stages, three microbatches, forward 1, backward 2: 12 units, 9 busy on each rank."""
    rank0 = [(0, 1), (1, 2), (4, 6), (6, 7), (7, 9), (10, 12)]
    rank1 = [(1, 2), (2, 4), (4, 5), (5, 7), (7, 8), (8, 10)]
    assert m.idle_share([rank0, rank1]) == pytest.approx(1 - 9 / 12)


def test_flops():
    assert m.flops_per_token(1) == 6 and m.flops_per_token(0, 1, 1, 1, 1) == 12
    assert m.flops_per_token(0, 1, 1, 1, 1, causal=True) == 6
    assert m.hardware_flops_per_token(3) == 24


def test_the_published_count_is_ours_with_recomputation():
    """Narayanan et al. recompute every layer, and not the head: matrices of 12·D² a layer, no biases, no norms."""
    layers, D, T, V = 96, 12288, 2048, 51200
    recomputed = m.hardware_flops_per_token(12 * layers * D**2, layers, D // 128, 128, T)
    head = m.flops_per_token(V * D)
    assert m.published_flops(1, T, layers, D, V) == pytest.approx(T * (recomputed + head), rel=1e-12)


def test_mfu_of_a_published_run():
    """PaLM 540B: 238.3 thousand tokens a second on 6144 TPU v4 of 275 TFLOP/s: 46.2 %, without attention 45.7 %."""
    rate, params = 238_300, 540.35e9
    assert m.mfu(rate, m.flops_per_token(params), 275e12, 6144) == pytest.approx(0.457, abs=0.001)
    with_attention = m.flops_per_token(params, 118, 48, 256, 2048)
    assert m.mfu(rate, with_attention, 275e12, 6144) == pytest.approx(0.462, abs=0.001)


def test_stragglers():
    assert m.stragglers([1, 1, 1.05, 2]) == [3] and m.stragglers([1, 1]) == []
    assert m.straggler_cost([1, 1, 1, 2]) == pytest.approx(3 / 8) and m.straggler_cost([0, 0]) == 0


@pytest.mark.parametrize("ask", [
    lambda: m.union([(2, 1)]), lambda: m.union([(0, float("nan"))]), lambda: m.idle_time([]),
    lambda: m.idle_share([[], []]), lambda: m.idle_time([(0, 1)], 5, 2), lambda: m.mfu(1, 1, 0),
    lambda: m.mfu(1, 1, 1, 0), lambda: m.flops_per_token(-1)])
def test_refused_in_every_language(ask):
    with pytest.raises(Refused) as refused:
        ask()
    assert len({refused.value.say(lang) for lang in languages()}) == len(languages())
