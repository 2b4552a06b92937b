"""The plan: every layout once, ranked, with reasons."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paralelo.predict import model
from paralelo.predict.audit import Options, audit, seconds_per_step
from paralelo.predict.layout import Layout
from paralelo.predict.links import cluster
from paralelo.predict.plan import default_batch, layouts, plan
from paralelo.words import Refused

pytestmark = pytest.mark.layout


def brute(n):
    return {(tp, pp, cp, n // (tp * pp * cp)) for tp in range(1, n + 1) for pp in range(1, n + 1)
            for cp in range(1, n + 1) if n % (tp * pp * cp) == 0}


@pytest.mark.parametrize("n", [1, 6, 16, 24])
def test_every_layout_once(n):
    found = [(x.tp, x.pp, x.cp, x.dp) for x in layouts(n)]
    assert len(found) == len(set(found)) and set(found) == brute(n)
    assert all(x.world_size == n for x in layouts(n, experts=8))


def test_ranked_and_explained():
    found = plan(model.ship("Llama-3.1-70B"), 64)
    fitting = [c for c in found if c.fits]
    assert fitting and found[:len(fitting)] == fitting
    assert [c.seconds for c in fitting] == sorted(c.seconds for c in fitting)
    assert all(c.reasons for c in found if not c.fits) and not any(c.reasons for c in fitting)
    assert all(c.bytes <= 80e9 for c in fitting)


def audited(m, c, zero, recompute, microbatch_size=1):
    """What `paralelo audit` has for the layout of a candidate."""
    at = c.layout
    options = Options(microbatches=c.microbatches or 1, zero=zero, recompute=recompute, microbatch_size=microbatch_size,
                      sequence_parallel=at.tp > 1 and 4096 % (at.cp * at.tp) == 0)
    return audit(m, options, dp=at.dp, tp=at.tp, pp=at.pp, cp=at.cp, ep=at.ep, etp=at.etp)


@pytest.mark.parametrize("zero", [None, 0, 1, 2, 3])
def test_agrees_with_the_audit(zero):
    m = model.ship("Mixtral-8x7B")
    for c in plan(m, 16, zero=zero)[::7]:
        result = audited(m, c, c.zero, c.recompute)
        if c.seconds is None:
            assert not result.valid or default_batch(16) % c.layout.dp
        else:
            assert result.valid and result.bytes_per_rank["total"] == c.bytes
            assert seconds_per_step(result, "h100") == pytest.approx(c.seconds)
            assert zero is None or c.zero == zero


@pytest.mark.parametrize("name, gpus, memory", [("Mixtral-8x7B", 16, 80e9), ("Llama-3.1-70B", 16, 100e9),
                                                ("Llama-3.1-8B", 8, 40e9)])
def test_the_fastest_of_all_that_fit(name, gpus, memory):
    """Every ZeRO stage with and without computing again, one by one, by the audit: none that fits is faster."""
    m, chosen = model.ship(name), set()
    for c in plan(m, gpus, memory=memory):
        if c.seconds is None:
            continue
        ways = [audited(m, c, zero, again) for zero in (0, 1, 2, 3) for again in ("none", "full")]
        fitting = [seconds_per_step(w, "h100") for w in ways if w.bytes_per_rank["total"] <= memory]
        assert c.fits == bool(fitting)
        if c.fits:
            assert c.seconds == pytest.approx(min(fitting))
            chosen.add(c.zero)
        else:
            assert c.bytes == min(w.bytes_per_rank["total"] for w in ways) and c.reasons[0].fields["zero"] in (0, 3)
    assert {1, 2, 3} <= chosen


def test_zero_three_by_hand():
    """Llama-3.1-8B on 8 H100 as 8 data ranks: 16Ψ/8 of state, all of the largest piece, which is the head and its norm
    (4 bytes for each of its 128 257 · 4096 elements, 7/8 of them more than the shard), and in each of 64 microbatches
    3 · 2Ψ · 7/8 bytes over NVLink in 32 layers."""
    m = model.ship("Llama-3.1-8B")
    one, three = (next(c for c in plan(m, 8, zero=z) if c.layout.dp == 8) for z in (1, 3))
    link, psi, M = cluster("h100").inside, 8_030_261_248, 64
    assert three.microbatches == M and (one.recompute, three.recompute) == ("none", "none")
    assert three.bytes - one.bytes == 2 * psi - (4 + 12 / 8) * psi + 4 * 128_257 * 4096 * 7 / 8
    sent = 3 * M * (2 * psi * 7 / 8 * link.beta + 32 * 7 * link.alpha)
    assert three.seconds - one.seconds == pytest.approx(sent - 2 * (2 * psi * 7 / 8 * link.beta + 7 * link.alpha))


def test_eight_giants_without_a_pipeline():
    """27 billion parameters do not fit on 8 data ranks with ZeRO-1, and do with ZeRO-3."""
    m = model.ship("Qwen3.5-27B")
    state = {z: next(c for c in plan(m, 8, zero=z) if c.layout.dp == 8) for z in (1, 3)}
    assert not state[1].fits and state[3].fits
    assert next(c for c in plan(m, 8) if c.layout.dp == 8) == state[3]


@given(name=st.sampled_from(["Llama-3.1-8B", "Qwen3-30B-A3B", "Qwen3.5-27B"]), gpus=st.sampled_from([4, 6, 8, 16]),
       memory=st.floats(20e9, 200e9), size=st.sampled_from([1, 2]), batch=st.sampled_from([None, 48, 64]))
@settings(max_examples=15, deadline=None)
def test_a_later_stage_holds_less_and_takes_longer(name, gpus, memory, size, batch):
    m, ask = model.ship(name), {"memory": memory, "microbatch_size": size, "global_batch": batch}
    fixed = [{c.layout: c for c in plan(m, gpus, zero=z, **ask)} for z in (0, 1, 2, 3)]
    free = {c.layout: c for c in plan(m, gpus, **ask)}
    for layout, c in free.items():
        ways = [f[layout] for f in fixed]
        assert [w.fits for w in ways] == sorted(w.fits for w in ways) and c.fits == ways[3].fits
        if c.fits:
            assert c.seconds == pytest.approx(min(w.seconds for w in ways if w.fits))
        if c.seconds is None:
            continue
        again = {w.recompute for w in ways}
        if len(again) == 1:
            assert [w.bytes for w in ways] == sorted((w.bytes for w in ways), reverse=True)
            times = [w.seconds for w in ways[1:]]
            assert times == sorted(times) and ways[0].seconds >= times[0] * (1 - 1e-12)


def test_microbatches_of_two_halve_what_zero_three_sends():
    m = model.ship("Llama-3.1-8B")
    one, two = (next(c for c in plan(m, 8, zero=3, microbatch_size=b) if c.layout.dp == 8) for b in (1, 2))
    assert one.microbatches == 2 * two.microbatches and two.bytes > one.bytes and two.seconds < one.seconds
    uneven = plan(m, 8, microbatch_size=2, global_batch=8)
    assert {r.id for c in uneven if c.layout.dp == 8 for r in c.reasons} == {"plan.microbatches"}


def test_28_heads_on_seven_gpus_have_no_tensor_degree():
    found = {c.layout.tp: c for c in plan(model.ship("Qwen2.5-7B"), 7) if c.layout.tp == 7}
    assert [m.id for m in found[7].reasons] == ["audit.kv_heads.breaks", "audit.ffn.breaks"]


def test_batch_and_memory_are_reasons():
    odd = plan(model.ship("Qwen3-0.6B"), 4, global_batch=6)
    assert any(m.id == "plan.batch" for c in odd if c.layout.dp == 4 for m in c.reasons)
    small = plan(model.ship("Llama-3.1-405B"), 8, memory=80 * 2**30)
    assert not any(c.fits for c in small) and any(m.id == "plan.memory" for c in small for m in c.reasons)
    assert plan(model.ship("Llama-3.1-405B"), 8, memory=2e12)[0].fits


def test_slower_links_take_longer():
    m = model.ship("Llama-3.1-8B")
    eight = {(c.layout.tp, c.layout.pp, c.layout.cp): c.seconds for c in plan(m, 8, gpus_per_node=8)}
    two = {(c.layout.tp, c.layout.pp, c.layout.cp): c.seconds for c in plan(m, 8, gpus_per_node=2)}
    assert two[8, 1, 1] > eight[8, 1, 1] and all(two[k] >= eight[k] for k in eight if eight[k])


@pytest.mark.parametrize("name", ["Llama-3.1-405B", "DeepSeek-V3"])
def test_four_thousand_gpus_in_five_seconds(name):
    start = time.process_time()
    found = plan(model.ship(name), 4096)
    assert time.process_time() - start < 5 and any(c.fits for c in found)


@pytest.mark.parametrize("arguments", [{"gpus": 0}, {"gpus": 2.5}, {"gpus": 8, "global_batch": 0},
                                       {"gpus": 8, "sequence_length": -1}, {"gpus": 8, "cluster": "moon"},
                                       {"gpus": 8, "gpus_per_node": 0}, {"gpus": 10**9}, {"gpus": 8, "zero": 4},
                                       {"gpus": 8, "zero": "any"}, {"gpus": 8, "microbatch_size": 0}])
def test_refused(arguments):
    with pytest.raises(Refused):
        plan(model.ship("SmolLM2-135M"), **arguments)


@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"])
@pytest.mark.parametrize("per_node", [1, 2, 3, 4, 8, 12])
def test_leaving_a_node_is_told_without_listing_groups(order, per_node):
    """The rule for evenly spaced groups against the groups themselves."""
    for n in (6, 8, 12, 16):
        for x in layouts(n, experts=4, order=order):
            for axis in ("tp", "cp", "dp", "pp", "ep", "edp", "dp-cp"):
                really = any(len({r // per_node for r in g}) > 1 for g in x.groups(axis))
                assert x.crosses_nodes(axis, per_node) == really, (x, axis)


def test_layout_object_is_the_one_of_the_house():
    assert isinstance(next(layouts(4)), Layout)


def test_what_does_not_fit_is_told_by_what_zero_could_share():
    """`ZeRO-0` stood where no other rank held the state, and where nobody wanted it shared."""
    def reason(dp, **options):
        return next(c.reasons[0] for c in plan(model.ship("Llama-3.1-8B"), 2, memory=1e9, **options)
                    if (c.layout.dp, c.layout.tp) == (dp, 2 // dp))

    asked = {None: reason(1), 3: reason(1, zero=3)}
    assert {m.id for m in asked.values()} == {"plan.memory_alone"}
    assert reason(2).id == "plan.memory" and reason(2, zero=0).id == "plan.memory_plain"
    for lang in ("en", "es", "pt"):
        assert not any("ZeRO-" in m.say(lang) for m in (*asked.values(), reason(2, zero=0)))
        assert "ZeRO-3" in reason(2).say(lang)


def test_a_batch_of_a_billion_is_planned():
    """One layout with more than a million microbatches ended the plan, in the name of an option that it has not."""
    found = plan(model.ship("SmolLM2-135M"), 2, global_batch=10**9)
    assert max(c.microbatches for c in found) == 10**9 and all(c.seconds for c in found if c.fits)


def test_no_sequence_has_zero_positions():
    """`Lengths that can: 0 or 4` was the advice for a sequence of one position."""
    reasons = [m for c in plan(model.ship("SmolLM2-135M"), 2, sequence_length=1) for m in c.reasons]
    assert [m.fields["would_do"] for m in reasons if m.id == "audit.sequence.breaks"] == [[4]]
    assert str(reasons[0]).startswith("1 position cannot")
