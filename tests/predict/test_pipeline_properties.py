"""What must hold for every schedule of every size: S ≤ 8, M ≤ 32, C ≤ 4."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from paralelo.predict import pipeline
from paralelo.predict.pipeline import NAMES, build, check, simulate
from paralelo.words import Refused

pytestmark = pytest.mark.pipeline

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
times = st.integers(1, 9)


@st.composite
def schedules(draw, names=NAMES):
    name = draw(st.sampled_from(names))
    S, M = draw(st.integers(1, 8)), draw(st.integers(1, 32))
    C = draw(st.integers(1, 4)) if name == "interleaved" else 1
    try:
        return build(name, S, M, C)
    except Refused as refused:
        M = draw(st.sampled_from(refused.message.fields["would_do"]))
        assume(M <= 64)
        return build(name, S, M, C)


@quick
@given(schedules())
def test_every_action_once_on_its_rank(schedule):
    seen = Counter()
    for rank in range(schedule.stages):
        for action in schedule.actions(rank):
            assert schedule.rank_of(action.stage) == rank and action.stage in schedule.stages_of(rank)
            seen[action] += 1
    assert set(seen.values()) == {1}
    for stage in range(schedule.num_stages):
        for m in range(schedule.microbatches):
            has = "".join(k for k in "FBIW" if (k, stage, m) in seen)
            assert has in ("FB", "FIW")
    assert {s for r in range(schedule.stages) for s in schedule.stages_of(r)} == set(range(schedule.num_stages))


@quick
@given(schedules(), times, times, st.integers(0, 9), st.integers(0, 5))
def test_inputs_exist_and_nothing_overlaps(schedule, f, b, w, message):
    result = simulate(schedule, f, b, min(w, b), message)
    ended, last_end, C = {}, {}, schedule.chunks
    for rank, kind, stage, m, start, end in result.timeline():
        assert start >= last_end.get(rank, 0)                                         # one thing at a time
        last_end[rank] = end
        ended["B" if kind == "I" else kind, stage, m] = end
        whole = {"F": f, "B": b, "I": b - min(w, b), "W": min(w, b)}[kind]
        assert end - start == pytest.approx(whole / C)
    for rank, kind, stage, m, start, _ in result.timeline():
        needs = {"F": [("F", stage - 1)], "W": [("B", stage)]}.get(kind, [("F", stage), ("B", stage + 1)])
        for other, at in needs:
            if 0 <= at < schedule.num_stages:
                delay = message * (schedule.rank_of(at) != rank)
                assert start >= ended[other, at, m] + delay - 1e-9
    assert result.makespan >= result.ideal == schedule.microbatches * (f + b)
    assert result.idle_share == pytest.approx(1 - result.ideal / result.makespan)
    assert result.messages == pipeline.messages(schedule.stages, schedule.microbatches, C, schedule.placement)


@quick
@given(schedules(), times, times)
def test_actions_start_as_early_as_they_may(schedule, f, b):
    """Every start is 0, the end of the rank's previous action, or the end of an input: no time is given away."""
    result = simulate(schedule, f, b, 0)
    ends = {end for *_, end in result.timeline()} | {0}
    assert all(start in ends for *_, start, _ in result.timeline())


@quick
@given(schedules())
def test_no_deadlock(schedule):
    assert check(schedule, "buffered") == []
    assert check(schedule, "batched") == []


@quick
@given(st.integers(2, 8), st.integers(2, 32))
def test_unbatched_rendezvous_always_deadlocks_1f1b(S, M):
    assert {m.id for m in check(build("1f1b", S, M), "rendezvous")} <= {"pipeline.check.sends", "pipeline.check.waits"}
    assert len(check(build("1f1b", S, M), "rendezvous")) == S
    assert check(build("gpipe", S, M), "rendezvous") == []


@quick
@given(schedules(("gpipe", "1f1b")), times, times)
def test_makespan_of_gpipe_and_1f1b(schedule, f, b):
    S, M = schedule.stages, schedule.microbatches
    result = simulate(schedule, f, b)
    assert result.makespan == (M + S - 1) * (f + b) == pipeline.makespan(S, M, 1, f, b)
    assert result.idle_share == pytest.approx(float(pipeline.idle_share(S, M)))
    assert result.idle_over_ideal == pytest.approx(float(pipeline.idle_over_ideal(S, M)))


@quick
@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), times, times)
def test_makespan_of_interleaved_where_s_divides_m(S, rounds, C, f, b):
    result = simulate(build("interleaved", S, S * rounds, C), f, b)
    assert result.makespan == pytest.approx(float(pipeline.makespan(S, S * rounds, C, f, b)))
    assert result.idle_over_ideal == pytest.approx(float(pipeline.idle_over_ideal(S, S * rounds, C)))


@quick
@given(schedules(("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2")))
def test_live_activations_equal_their_closed_forms(schedule):
    S, M, C = schedule.stages, schedule.microbatches, schedule.chunks
    expected = [pipeline.live(schedule.name, S, M, r, C) for r in range(S)]
    assert simulate(schedule).live_activations == pytest.approx([float(x) for x in expected])


@quick
@given(schedules(), st.integers(1, 5))
def test_times_scale(schedule, factor):
    once, more = simulate(schedule), simulate(schedule, factor, 2 * factor, factor)
    assert more.makespan == pytest.approx(factor * once.makespan)
    assert more.live_activations == once.live_activations
