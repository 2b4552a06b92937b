"""ZeRO by adding up, the published numbers, buckets, and means over tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paralelo.predict import data as d
from paralelo.words import Refused, languages

pytestmark = pytest.mark.data


def test_published_numbers():
    """Rajbhandari et al. 2020, figure 1: 7.5 billion parameters on 64 ranks."""
    assert [round(d.zero_bytes(7.5e9, 64, s) / 1e9, 1) for s in d.STAGES] == [120, 31.4, 16.6, 1.9]
    assert [d.zero_traffic(7_500_000_000, s) / 7.5e9 for s in d.STAGES] == [2, 2, 2, 3]


@given(st.integers(1, 10**12), st.integers(1, 4096))
def test_formulas(params, N):
    assert d.zero_bytes(params, N, 1) == pytest.approx(4 * params + 12 * params / N)
    assert d.zero_bytes(params, N, 2) == pytest.approx(2 * params + 14 * params / N)
    assert d.zero_bytes(params, N, 3) == pytest.approx(16 * params / N)
    sizes = [d.zero_bytes(params, N, s) for s in d.STAGES]
    assert sizes == sorted(sizes, reverse=True) and (N > 1 or len(set(sizes)) == 1)
    assert d.zero_traffic_bytes(params, N, 3) == pytest.approx(6 * params * (N - 1) / N)


@given(st.integers(1, 10**9), st.integers(10**6, 10**12))
def test_the_fewest_ranks(params, memory):
    try:
        N = d.ranks_needed(params, memory, 3)
    except Refused:
        assert d.zero_bytes(params, 2**20, 3) > memory
        return
    assert d.zero_bytes(params, N, 3) <= memory and (N == 1 or d.zero_bytes(params, N - 1, 3) > memory)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 60))
def test_buckets_hold_every_parameter_once_last_first(sizes, limit):
    found = d.buckets(sizes, limit)
    assert [i for b in found for i in b] == list(reversed(range(len(sizes))))
    for bucket in found:
        assert sum(sizes[i] for i in bucket) <= limit or len(bucket) == 1


def test_overlap():
    assert d.bucket_times([1, 2, 3], [1, 1, 1]) == [(1, 2), (2, 3), (3, 4)]
    assert d.exposed_after_backward([1, 2, 3], [1, 1, 1]) == 1                  # only the last bucket shows
    assert d.exposed_after_backward([3], [3]) == 3                              # one bucket: everything shows


def test_mean_over_tokens():
    """C66: each rank's mean weighed the same; 3 and 1 valid labels must give (3·l0 + 1·l1)/4."""
    weights = d.loss_weights([3, 1])
    assert sum(weights) == 1 and weights[0] * 10 + weights[1] * 2 == 8
    assert d.loss_weights([0, 2])[0] == 0


def test_one_factor_for_all_stages():
    """C39: every stage clipped by its own norm, 1/3 and 1/4, instead of 0.2 on both."""
    assert d.global_norm([3, 4]) == 5 and d.clip_factor([3, 4], 1) == pytest.approx(0.2)
    assert d.clip_factor([0, 0], 1) == 1


def test_expert_gradients():
    """C69: averaging over the copies of an expert alone gave 1, 2 and 4 times the gradient."""
    assert {d.expert_gradient_factor(4, ep) for ep in (1, 2, 4)} == {d.expert_gradient_factor(4, 1)}


@pytest.mark.parametrize("ask", [
    lambda: d.zero_bytes(-1, 2, 0), lambda: d.zero_bytes(1, 0, 0), lambda: d.zero_bytes(1, 2, 4),
    lambda: d.ranks_needed(1e12, 1e9, 1), lambda: d.loss_weights([0, 0]), lambda: d.loss_weights([-1]),
    lambda: d.clip_factor([float("nan")], 1), lambda: d.buckets([1], 0)])
def test_refused_in_every_language(ask):
    with pytest.raises(Refused) as refused:
        ask()
    assert len({refused.value.say(lang) for lang in languages()}) == len(languages())
