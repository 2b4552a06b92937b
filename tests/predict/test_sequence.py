"""Sequence parallelism: the published activation formulas, causal work by counting, orders of positions, bytes."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paralelo.predict import sequence as s
from paralelo.words import Refused, languages

pytestmark = pytest.mark.sequence


# ---- activations

@given(st.integers(1, 4), st.integers(1, 64), st.integers(1, 8), st.integers(1, 16), st.sampled_from([1, 2, 4, 8]),
       st.booleans())
def test_the_published_formula_is_a_special_case(B, T, heads, d, t, sequence_parallel):
    H = heads * t
    layer = s.published_layer(B, T, H * d, H)
    if t == 1:
        sequence_parallel = False
    printed = s.published_layer_bytes(B, T, H * d, H, t, sequence_parallel)
    assert s.activation_bytes(layer, t, sequence_parallel) == printed


def test_the_published_formula_in_numbers():
    """GPT-3 of Korthikanti et al. 2022: a = 96, s = 2048, h = 12288, so 5as/h = 80."""
    unit = 2048 * 12288
    layer = s.published_layer(1, 2048, 12288, 96)
    assert s.activation_bytes(layer) == 114 * unit
    assert s.activation_bytes(layer, 8) == (10 + 3 + 10) * unit
    assert s.activation_bytes(layer, 8, True) == Fraction(114, 8) * unit
    assert s.activation_bytes(layer, 8, True, recompute="selective") == Fraction(34, 8) * unit
    assert s.activation_bytes(layer, 8, True, recompute="full") == Fraction(2, 8) * unit
    kept_whole = s.activation_bytes(layer, 8, True, regather=False)
    assert kept_whole - s.activation_bytes(layer, 8, True) == 2 * 2 * unit * Fraction(7, 8)     # two inputs


def test_no_term_in_the_square_of_the_length_when_fused():
    at = lambda T, **kw: s.activation_bytes(s.attention_activations(1, T, 64, 4, 2, 16, **kw))  # noqa: E731
    assert at(256) == 2 * at(128) and at(256, fused=False) > 2 * at(128, fused=False)
    stored = s.score_bytes(1, 262_144, 24)
    assert stored == 5 * 24 * 262_144**2 and round(stored / 1e12, 1) == 8.2


def test_copied_kv_heads_are_not_divided():
    at = lambda N, copies: s.local_bytes(  # noqa: E731
        s.attention_activations(1, 8, 64, 8, 2, 8, kv_copies=copies), N)["k"]
    assert at(2, 1) == at(4, 2) == at(8, 4) and at(1, 1) == 2 * at(2, 1)


def test_every_tensor_of_a_gated_layer():
    names = [x.name for x in s.attention_activations(1, 8, 16, 4, 2, 4, gated_query=True, qk_norm=True)]
    assert names == ["qkv input", "q", "k", "v", "q before norm", "k before norm", "log-sum-exp", "gate",
                     "output before gate", "output"]
    moe = s.moe_activations(1, 8, 16, 32, 8, 2, shared=64)
    assert sum(x.elements for x in moe if x.name.startswith("expert")) == 3 * 2 * 8 * 32
    assert s.activation_bytes(s.layer_input(2, 8, 16)) == 2 * 8 * 16 * 2
    assert s.activation_bytes(s.mla_activations(1, 8, 16, 4, 6, 4, 8, 4, 2)) > 0


# ---- causal work

@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from(s.ORDERS))
def test_causal_work_by_counting_pairs(N, per, order):
    T = N * per * 2
    counted = [sum(q >= k for q in s.positions(T, N, r, order) for k in range(T)) for r in range(N)]
    assert s.causal_work(T, N, order) == counted and sum(counted) == T * (T + 1) // 2
    assert sum(s.causal_shares(T, N, order)) == sum(s.causal_shares(None, N, order)) == 1
    if order == "zigzag":
        assert len(set(counted)) == 1


@given(st.integers(1, 5), st.integers(1, 3), st.sampled_from(s.ORDERS))
def test_ring_steps_by_counting_pairs(N, per, order):
    T = N * per * 2
    held = [s.positions(T, N, r, order) for r in range(N)]
    steps = s.ring_steps(T, N, order)
    for step, ranks in enumerate(steps):
        for rank, (keys, pairs) in enumerate(ranks):
            assert keys == (rank - step) % N and pairs == sum(q >= k for q in held[rank] for k in held[keys])
        assert order == "contiguous" or len({pairs for _, pairs in ranks}) == 1
    assert [sum(ranks[r][1] for ranks in steps) for r in range(N)] == s.causal_work(T, N, order)


def test_shares_in_numbers():
    """C62: balancing matters for causal masks only; a contiguous cut at 4 gives 1, 3, 5, 7 of 16."""
    assert [share * 16 for share in s.causal_shares(None, 4, "contiguous")] == [1, 3, 5, 7]
    assert [share * 16 for share in s.causal_shares(None, 4, "zigzag")] == [4, 4, 4, 4]
    assert s.causal_work(16, 4, "contiguous") == [10, 26, 42, 58]
    assert round(float(s.causal_speed_up(None, 4, "contiguous")), 2) == 2.29
    long = s.causal_shares(4 * 10**6, 4, "contiguous")
    assert [float(a) for a in long] == pytest.approx([1 / 16, 3 / 16, 5 / 16, 7 / 16], abs=1e-6)


# ---- orders

def test_packed_sequences():
    """C59: the second sequence took the rotary positions of the first; every sequence is cut and counted by itself."""
    assert [s.packed_positions([0, 4, 8], 2, r) for r in (0, 1)] == [[0, 3, 4, 7], [1, 2, 5, 6]]
    assert s.restarted(s.packed_positions([0, 4, 8], 2, 0), [0, 4, 8]) == [0, 3, 0, 3]
    assert s.packed_positions([0, 8, 8, 12], 2, 0) == [0, 1, 6, 7, 8, 11]


def test_hybrid_order():
    """C64: a zig-zag order prepared for all 8 ranks reached the ring as parts 0 and 4 in plain order."""
    gathered = [sorted(t for u in range(4) for t in s.hybrid_positions(16, 4, 2, ring * 4 + u)) for ring in (0, 1)]
    assert gathered == [[0, 1, 2, 3, 12, 13, 14, 15], [4, 5, 6, 7, 8, 9, 10, 11]]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.sampled_from(s.ORDERS))
def test_orders_hold_every_position_once(ulysses, ring, per, order):
    T = 2 * ulysses * ring * per
    held = [t for r in range(ulysses * ring) for t in s.hybrid_positions(T, ulysses, ring, r, order)]
    assert sorted(held) == list(range(T))
    assert s.hybrid_positions(T, 1, ring, 0, order) == s.positions(T, ring, 0, order)


# ---- bytes

def test_bytes_of_the_giant():
    BTD = 4096 * 5120
    assert s.tensor_parallel_bytes(1, 4096, 5120, 8, 1) == 8 * BTD * 7 // 8
    assert s.sequence_parallel_bytes(1, 4096, 5120, 8, 1) == 10 * BTD * 7 // 8
    assert s.sequence_parallel_bytes(1, 4096, 5120, 8, 1, regather=False) == 8 * BTD * 7 // 8
    assert s.state_bytes(1, 48, 128, 128, 1) == 48 * 128 * 128
    assert s.halo_bytes(1, 4, 10240, 1) == 3 * 10240
    assert s.state_passing_bytes(1, 48, 128, 128, 4, 10240, pairs=True) == 2 * s.state_bytes(1, 48, 128, 128) + 61440


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(2, 8), st.integers(1, 4))
def test_ring_bytes_by_passing_blocks(B, K, d, N, per):
    """Pass the blocks round and count: N−1 hops of k and v; backward the same, and N hops of their gradients."""
    T = N * per
    block = 2 * B * per * K * d
    assert s.ring_bytes(B, T, K, d, N, 1) == (N - 1) * block
    assert s.ring_backward_bytes(B, T, K, d, N, 1) == (2 * N - 1) * block
    assert s.ring_backward_bytes(B, T, K, d, N, 2, gradient=4) == ((N - 1) * 2 + N * 4) * block


def test_ulysses():
    assert s.ulysses_degrees(40, 8) == ([1, 2, 4, 8], [40])                                         # C13
    assert s.ulysses_bytes(1, 8, 4, 2, 4, 2, 1) == (2 * 4 + 2 * 2) * 4 * 4 // 2
    assert s.ulysses_bytes(1, 8, 4, 2, 4, 4, 1) == (2 * 4 + 2 * 4) * 4 * 2 * 3 // 4                  # KV repeated
    assert s.scan_rounds(5, pairs=True) == 3 and s.scan_rounds(5, pairs=False) == 4


@pytest.mark.parametrize("ask", [
    lambda: s.positions(10, 4, 0), lambda: s.positions(8, 2, 2), lambda: s.causal_work(8, 2, "spiral"),
    lambda: s.packed_positions([0, 5], 2, 0), lambda: s.packed_positions([1, 4], 2, 0),
    lambda: s.packed_positions([0, 4, 2], 2, 0), lambda: s.ring_bytes(1, 9, 1, 1, 2),
    lambda: s.hybrid_positions(8, 3, 2, 0),
    lambda: s.ulysses_bytes(1, 30, 40, 8, 64, 10), lambda: s.activation_bytes([], recompute="some"),
    lambda: s.causal_shares(None, 0), lambda: s.positions(2, 4, 0)])
def test_refused_in_every_language(ask):
    with pytest.raises(Refused) as refused:
        ask()
    assert len({refused.value.say(lang) for lang in languages()}) == len(languages())
