"""Collectives: closed forms against algorithms that are played piece by piece."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paralelo.predict import collectives as c
from paralelo.words import Refused, languages

pytestmark = pytest.mark.collectives

PLAYED = [k for k in c.KINDS if k != "send"]


class Sum(Counter):
    """A value that remembers every contribution: adding one twice shows."""

    def __add__(self, other):
        out = Sum(self)
        out.update(other)
        return out


def start(kind, N):
    """What each rank holds before, and what it must hold after."""
    own = [{p: Sum({(r, p): 1}) for p in range(N)} for r in range(N)]
    total = {p: Sum({(r, p): 1 for r in range(N)}) for p in range(N)}
    match kind:
        case "all_reduce":
            return own, [total] * N
        case "reduce_scatter":
            return own, [{r: total[r]} for r in range(N)]
        case "reduce":
            return own, [total] + [{}] * (N - 1)
        case "all_gather":
            return [{r: own[r][r]} for r in range(N)], [{p: own[p][p] for p in range(N)}] * N
        case "broadcast":
            return [own[0]] + [{}] * (N - 1), [own[0]] * N
    pairs = {(s, t): Sum({(s, t): 1}) for s in range(N) for t in range(N)}
    return ([{k: v for k, v in pairs.items() if k[0] == r} for r in range(N)],
            [{k: v for k, v in pairs.items() if k[1] == r} for r in range(N)])


@pytest.mark.parametrize("algorithm", c.ALGORITHMS)
@pytest.mark.parametrize("kind", PLAYED)
@pytest.mark.parametrize("N", [*range(1, 10), 12, 16])
def test_playing_an_algorithm_gives_its_result_and_its_cost(kind, algorithm, N):
    before, after = start(kind, N)
    rounds = c.rounds(kind, N, algorithm)
    held = c.play(rounds, before)
    for rank, expected in enumerate(after):
        assert {p: held[rank][p] for p in expected} == expected

    n = 5040 * N                                            # so that every piece is a whole number of bytes
    sent, path = Counter(), 0
    for transfers in rounds:
        out, into = Counter(), Counter()
        for t in transfers:
            out[t.source] += len(t.pieces) * (n // N)
            into[t.target] += len(t.pieces) * (n // N)
        sent += out
        path += max(*out.values(), *into.values())
    cost = c.cost(kind, n, N, algorithm)
    assert (cost.steps, cost.path, cost.sent) == (len(rounds), path, max(sent.values(), default=0))


def test_a_round_that_counts_twice_would_show():
    rounds = c.rounds("all_reduce", 4)
    before, after = start("all_reduce", 4)
    assert c.play(rounds[:1] + rounds, before) != after


def test_known_values():
    assert c.all_reduce_bytes(8, 4) == 12 and c.all_gather_bytes(8, 4) == c.reduce_scatter_bytes(8, 4) == 6
    assert c.all_to_all_bytes(8, 4) == 6 and c.broadcast_bytes(8, 4) == 8
    assert c.cost("all_reduce", 8, 2) == c.Cost(2, 8, 8)
    assert c.seconds("send", 1000, 2, 1e-6, 1e-9) == pytest.approx(2e-6)
    assert c.cost("all_reduce", 100, 1) == c.Cost(0, 0, 0)


@given(st.integers(2, 64), st.floats(1e-7, 1e-3), st.floats(1e-12, 1e-6), st.sampled_from(c.ALGORITHMS))
def test_at_the_crossover_latency_costs_as_much_as_bandwidth(N, alpha, beta, algorithm):
    n = c.crossover("all_reduce", N, alpha, beta, algorithm)
    assert c.seconds("all_reduce", n, N, alpha, beta, algorithm) == pytest.approx(
        2 * c.cost("all_reduce", n, N, algorithm).steps * alpha)
    if algorithm == "ring":
        assert n == pytest.approx(N * alpha / beta)


@given(st.integers(2, 64), st.floats(1e-7, 1e-3), st.floats(1e-12, 1e-6))
def test_the_faster_algorithm_changes_where_it_says(N, alpha, beta):
    n = c.faster_from("all_reduce", N, alpha, beta, "direct", "ring")
    time = lambda x, a: c.seconds("all_reduce", x, N, alpha, beta, a)  # noqa: E731
    if N == 2:                                              # the bytes are the same, and direct has one round less
        assert n is None
        return
    assert time(n * 0.9, "direct") < time(n * 0.9, "ring") and time(n * 1.1, "direct") > time(n * 1.1, "ring")
    assert c.best("all_reduce", n * 0.5, N, alpha, beta) in ("direct", "doubling")


@given(st.integers(2, 64), st.sampled_from(PLAYED))
def test_bus_bandwidth_is_the_links_when_latency_is_nothing(N, kind):
    beta = 1 / 300e9
    cost = c.cost(kind, 10**9, N)
    if kind in ("broadcast", "reduce"):                     # pipelined in N pieces only: the fill costs (N−2)/N
        assert c.busbw(kind, 10**9, N, cost.path * beta) == pytest.approx(300e9 * N / (2 * N - 2))
    else:
        assert c.busbw(kind, 10**9, N, cost.path * beta) == pytest.approx(300e9)
    assert c.bus_factor("all_reduce", N) == Fraction(2 * N - 2, N)


@pytest.mark.parametrize("ask", [
    lambda: c.cost("gossip", 1, 2), lambda: c.cost("all_reduce", -1, 2), lambda: c.cost("all_reduce", 1, 0),
    lambda: c.cost("all_reduce", float("nan"), 2), lambda: c.cost("all_reduce", 1, 2, "tree of life"),
    lambda: c.seconds("all_reduce", 1, 2, float("inf"), 0), lambda: c.crossover("all_reduce", 1, 1, 1),
    lambda: c.crossover("all_reduce", 2, 1, 0), lambda: c.algbw(1, 0), lambda: c.rounds("send", 2)])
def test_refused_in_every_language(ask):
    with pytest.raises(Refused) as refused:
        ask()
    assert len({refused.value.say(lang) for lang in languages()}) == len(languages())
