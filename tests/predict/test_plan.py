"""The plan: every layout once, ranked, with reasons."""

import time

import pytest

from paralelo.predict import model
from paralelo.predict.audit import Options, audit, seconds_per_step
from paralelo.predict.layout import Layout
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


def test_agrees_with_the_audit():
    m = model.ship("Mixtral-8x7B")
    for c in plan(m, 16)[::7]:
        at = c.layout
        options = Options(microbatches=c.microbatches or 1, zero=1, recompute=c.recompute,
                          sequence_parallel=at.tp > 1 and 4096 % (at.cp * at.tp) == 0)
        result = audit(m, options, dp=at.dp, tp=at.tp, pp=at.pp, cp=at.cp, ep=at.ep, etp=at.etp)
        if c.seconds is None:
            assert not result.valid or default_batch(16) % at.dp
        else:
            assert result.valid and result.bytes_per_rank["total"] == c.bytes
            assert seconds_per_step(result, "h100") == pytest.approx(c.seconds)


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
                                       {"gpus": 8, "gpus_per_node": 0}, {"gpus": 10**9}])
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
