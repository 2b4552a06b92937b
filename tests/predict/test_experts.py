"""Experts: router variants, capacity in exact fractions, drops, balance, the exchange matrix."""

import math
import time
import tracemalloc
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paralelo.predict import experts as x
from paralelo.words import Refused, languages

pytestmark = pytest.mark.experts


def rounded(chosen):
    return [(e, round(w, 4)) for e, w in chosen]


def test_router_variants():
    """C73: without renormalisation, softmax then top-k and top-k then softmax are not the same."""
    logits = [2, 1, 0, -1]
    assert rounded(x.choose(logits, 2, "topk_softmax")) == [(0, 0.7311), (1, 0.2689)]
    assert rounded(x.choose(logits, 2, "softmax_topk_renormalized")) == [(0, 0.7311), (1, 0.2689)]
    assert rounded(x.choose(logits, 2, "softmax_topk")) == [(0, 0.6439), (1, 0.2369)]
    steered = x.choose(logits, 2, "sigmoid_bias", bias=[0, 0, 0, 1])
    sigmoid = lambda v: 1 / (1 + math.exp(-v))  # noqa: E731
    assert dict(steered) == pytest.approx({3: sigmoid(-1) / (sigmoid(-1) + sigmoid(2)),
                                           0: sigmoid(2) / (sigmoid(-1) + sigmoid(2))})


@given(st.lists(st.floats(-1000, 1000), min_size=1, max_size=16), st.data())
def test_weights_of_every_variant(logits, data):
    k = data.draw(st.integers(1, len(logits)))
    renormalized, after = (x.choose(logits, k, v) for v in ("softmax_topk_renormalized", "topk_softmax"))
    assert [e for e, _ in renormalized] == [e for e, _ in after]
    assert [w for _, w in renormalized] == pytest.approx([w for _, w in after], abs=1e-9)
    assert sum(w for _, w in x.choose(logits, k, "softmax_topk")) <= 1 + 1e-9
    best = sorted(logits, reverse=True)[:k]
    assert [logits[e] for e, _ in after] == best


def test_sigmoid_scores_too_small_for_a_float():
    """0/0, where every sigmoid of the chosen underflowed."""
    small, of_order_one = x.choose([-1000.0, -1001.0], 2, "sigmoid_bias"), x.choose([1.0, 0.0], 2, "topk_softmax")
    assert dict(small) == pytest.approx(dict(of_order_one))
    assert sum(x.probabilities([-1000.0, -1001.0], "sigmoid_bias")) == pytest.approx(1)


def test_balance_loss():
    """C76: the loss of a mixed-up product was almost constant; it is 1 when balanced, E when all go to one expert."""
    assert x.balance([Fraction(1, 4)] * 4, [Fraction(1, 4)] * 4) == 1
    assert x.balance([1, 0, 0, 0], [1, 0, 0, 0]) == 4
    assert x.balance_of([6, 6, 6, 6], [0.25] * 4) == 1                           # k = 2, 12 tokens: still 1
    assert x.z_loss([[0.0] * 8]) == pytest.approx(math.log(8) ** 2)
    assert x.z_loss([[1000.0, 1000.0]]) == pytest.approx((1000 + math.log(2)) ** 2)


def test_capacity():
    """C78: capacity above the number of tokens; C80: capacity not a multiple of the ranks that cut the buffer."""
    assert x.capacity(4, 2, 1, 4) == 4
    assert x.capacity(10, 4, 1, 1) == 3 and x.capacity(10, 4, 1, 1, multiple=2) == 4
    assert x.capacity(100, 10, 1, 1.1) == 11 and math.ceil(1.1 * 100 / 10) == 12
    assert x.capacity(1, 10, 1, "0.001") == 1 and x.capacity(0, 4) == 0


@given(st.integers(0, 500), st.integers(1, 64), st.integers(1, 8), st.integers(1, 400), st.integers(1, 8))
def test_capacity_is_the_least_that_fits(n, E, k, hundredths, multiple):
    if k > E:
        return
    room = x.capacity(n, E, k, hundredths / 100, multiple)
    assert room % multiple == 0
    assert room * E * 100 >= min(n * E * 100, hundredths * k * n)
    if multiple == 1 and room:
        assert (room - 1) * E * 100 < min(n * E * 100, hundredths * k * n)


@given(st.integers(1, 60), st.integers(1, 12), st.data())
def test_drops_and_exchange_by_counting(tokens, E, data):
    k, N = data.draw(st.integers(1, E)), data.draw(st.integers(1, 6))
    routing = x.draw(tokens, E, k, skew=data.draw(st.sampled_from([0.0, 1.0, 3.0])), seed=data.draw(st.integers(0, 9)))
    assert all(len(set(c)) == k for c in routing.choices) and sum(routing.counts) == k * tokens
    room = routing.capacity(1)
    kept = routing.kept(room)
    pairs = [p for c, row in zip(routing.choices, kept, strict=True) for p in zip(c, row, strict=True)]
    taken = Counter(e for e, keep in pairs if keep)
    assert [routing.counts[e] - taken[e] for e in range(E)] == x.dropped(routing.counts, room)
    for limit in (None, room):
        matrix = routing.exchange(N, limit)
        assert sum(map(sum, matrix)) == (k * tokens if limit is None else sum(taken.values()))
        columns = [sum(row[t] for row in matrix) for t in range(N)]
        counts = routing.counts if limit is None else taken
        owned = [sum(counts[e] for e in experts) for experts in x.experts_of(E, N)]
        assert columns == owned
    assert routing.balance() > 0 and routing.P and sum(routing.P) == pytest.approx(1)


def test_skew():
    even, skewed = x.draw(4000, 8, 1, 0.0, 3), x.draw(4000, 8, 1, 1.0, 3)
    harmonic = sum(1 / (e + 1) for e in range(8))
    assert [c / 4000 for c in even.counts] == pytest.approx([1 / 8] * 8, abs=0.02)
    assert [c / 4000 for c in skewed.counts] == pytest.approx([1 / (e + 1) / harmonic for e in range(8)], abs=0.03)
    assert even.balance() == pytest.approx(1, abs=0.01) and skewed.balance() > 1.3
    assert x.draw(4000, 8, 1, 1.0, 3) == skewed != x.draw(4000, 8, 1, 1.0, 4)


def test_steering():
    """The sign rule evens what is sent to each rank; no token's logits change, so without a bias nothing does."""
    before = x.draw(16, 8, 2, 1.0, 15, "sigmoid_bias")
    after = x.draw(16, 8, 2, 1.0, 15, "sigmoid_bias", x.steer(16, 8, 2, 1.0, 15, steps=200))
    assert max(before.counts) == 12 and after.counts == [4] * 8 and after.P == before.P
    assert [sum(column) for column in zip(*after.exchange(4), strict=True)] == [8] * 4
    assert x.steer(16, 8, 2, 1.0, 15, steps=0) == [0.0] * 8
    one_step = x.steer(16, 8, 2, 1.0, 15, rate=0.5, steps=1)
    assert one_step == [0.5 * ((c < 4) - (c > 4)) for c in before.counts]


def test_a_rank_without_experts_or_tokens():
    """C67: all tokens go to expert 0; the other rank sends and receives nothing, and still has its row and column."""
    routing = x.Routing(4, [[0]] * 6)
    assert routing.exchange(2) == [[3, 0], [3, 0]]
    assert x.Routing(2, [[0], [1]]).exchange(4) == [[1, 0, 0, 0], [0, 1, 0, 0], [0] * 4, [0] * 4]
    assert [x.rank_of_expert(5, 2, e) for e in range(5)] == [0, 0, 0, 1, 1]


def test_bytes():
    assert x.exchange_bytes(100, 2, 16, 2) == 6400 and x.leaving_bytes(100, 2, 16, 4, 2) == 4800


def test_the_largest_routing_takes_seconds():
    start = time.process_time()
    x.draw(2**14, 64, 2, 1.0)
    assert time.process_time() - start < 20


@pytest.mark.parametrize(("tokens", "E"), [(4, 10**9 + 7), (10**9 + 7, 4), (2**11 + 1, 2**10)])
def test_too_much_is_refused_before_any_of_it_is_made(tokens, E):
    tracemalloc.start()
    with pytest.raises(Refused, match="2,097,152"):
        x.draw(tokens, E, 1)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 100_000


@pytest.mark.parametrize("ask", [
    lambda: x.choose([1, 2], 3), lambda: x.choose([1, 2], 1, "hash"), lambda: x.choose([1, float("nan")], 1),
    lambda: x.choose([1, 2], 1, "sigmoid_bias", bias=[0]),
    lambda: x.balance([1], [1, 2]), lambda: x.balance_of([0, 0], [0.5, 0.5]), lambda: x.capacity(10, 2, 3),
    lambda: x.capacity(10, 2, 1, 0), lambda: x.capacity(10, 2, 1, "nan"), lambda: x.capacity(10, 2, 1, "1e999999999"),
    lambda: x.capacity(10, 2, 1, "lots"), lambda: x.draw(10**7, 10**3, 1), lambda: x.draw(4, 2, 3),
    lambda: x.draw(4, 2, 1, float("inf")), lambda: x.draw(4, 2, 1, 0, -1), lambda: x.draw(4, 2, 1, variant="?")])
def test_refused_in_every_language(ask):
    with pytest.raises(Refused) as refused:
        ask()
    assert len({refused.value.say(lang) for lang in languages()}) == len(languages())
