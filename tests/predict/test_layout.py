"""Layouts against brute force and against the layouts that frameworks print."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paralelo.predict.layout import ORDERS, Layout, chunk_layers, stages
from paralelo.words import Refused, languages

pytestmark = pytest.mark.layout

degree = st.integers(1, 4)
layouts = st.builds(
    lambda dp, tp, pp, cp, order, pick: _folded(dp, tp, pp, cp, order, pick),
    degree, degree, degree, degree, st.sampled_from([*ORDERS, "tp-cp-dp-ep-pp", "cp-tp-ep-dp-pp", "tp-cp-pp-dp"]),
    st.integers(0, 10**6))


def _folded(dp, tp, pp, cp, order, pick):
    fits = [(a, b) for a in range(1, 65) for b in range(1, 65) if (dp * tp * cp) % (a * b) == 0]
    ep, etp = fits[pick % len(fits)]
    return Layout(dp, tp, pp, cp, ep, etp, order)


@given(layouts)
def test_coordinates_and_ranks_are_inverse(layout):
    seen = set()
    for rank in range(layout.world_size):
        at = layout.coordinates(rank)
        dense = {a: at[a] for a in ("dp", "tp", "pp", "cp")}
        expert = {a: at[a] for a in ("ep", "etp", "edp", "pp")}
        assert layout.rank(**dense) == layout.rank(**expert) == rank
        seen.add(tuple(dense.values()))
    assert len(seen) == layout.world_size


@given(layouts, st.sampled_from(["dp", "tp", "pp", "cp", "ep", "etp", "edp", "dp-cp", "tp-pp", "etp-ep", "ep-edp-pp"]))
def test_groups_partition_the_world_and_share_the_other_coordinates(layout, axis):
    groups = layout.groups(axis)
    assert sorted(r for g in groups for r in g) == list(range(layout.world_size))
    family = ("ep", "etp", "edp", "pp") if set(axis.split("-")) & {"ep", "etp", "edp"} else ("dp", "tp", "pp", "cp")
    fixed = [a for a in family if a not in axis.split("-")]
    for group in groups:
        assert len(group) == layout.size(axis) and group == sorted(group)
        assert len({tuple(layout.coordinates(r)[a] for a in fixed) for r in group}) == 1
        if "-" not in axis:
            assert [layout.coordinates(r)[axis] for r in group] == list(range(len(group)))


@given(layouts, st.sampled_from(["dp", "tp", "pp", "cp", "ep", "edp", "dp-cp"]), st.integers(1, 9))
def test_nodes_crossed_by_counting(layout, axis, per_node):
    counted = max(len({r // per_node for r in g}) for g in layout.groups(axis))
    assert layout.nodes_crossed(axis, per_node) == counted
    assert sum(len(n) for n in layout.nodes(per_node)) == layout.world_size


def _megatron(sizes, order, axis):
    """Groups by an independent construction: enumerate coordinates, the first axis of `order` running fastest."""
    axes = order.split("-")
    world = [dict(zip(reversed(axes), at, strict=True)) for at in product(*(range(sizes[a]) for a in reversed(axes)))]
    groups = {}
    for rank, at in enumerate(world):
        groups.setdefault(tuple(v for a, v in at.items() if a != axis), []).append(rank)
    return sorted(groups.values())


@pytest.mark.parametrize("order", ORDERS)
def test_both_orders_by_enumeration(order):
    layout = Layout(dp=2, tp=2, pp=3, cp=2, ep=2, etp=2, order=order)
    dense = order.replace("-ep", "")
    for axis in ("dp", "tp", "pp", "cp"):
        assert layout.groups(axis) == _megatron({"dp": 2, "tp": 2, "pp": 3, "cp": 2}, dense, axis)
    expert = {"tp": 2, "ep": 2, "dp": 2, "pp": 3}              # etp·ep = tp·cp, so both orders have one folding
    for axis, theirs in (("etp", "tp"), ("ep", "ep"), ("edp", "dp"), ("pp", "pp")):
        assert layout.groups(axis) == _megatron(expert, order.replace("-cp", ""), theirs)


def test_experts_fold_over_context_and_data():
    """C70: experts were thought to be limited by the data-parallel degree; they fold over tp·cp·dp."""
    at = dict(dp=2, cp=16)
    assert Layout(**at).world_size == 32
    assert Layout(**at, ep=16).edp == 2 and Layout(**at, ep=32).edp == 1
    with pytest.raises(Refused, match=r"64 must divide.*32.*1, 2, 4, 8, 16 or 32"):
        Layout(**at, ep=64)
    assert Layout(**at).groups("cp") == [list(range(16)), list(range(16, 32))]
    assert Layout(**at).groups("dp") == [[i, i + 16] for i in range(16)]
    assert Layout(**at, ep=32).groups("ep") == [list(range(32))]


def test_seventy_billion_on_eight_nodes():
    layout = Layout(dp=2, tp=8, pp=4)
    assert layout.world_size == 64
    assert layout.groups("tp")[:2] == [list(range(8)), list(range(8, 16))]
    assert not layout.crosses_nodes("tp", 8) and layout.crosses_nodes("dp", 8)
    assert layout.nodes_crossed("pp", 8) == 4
    outer = Layout(dp=2, tp=8, pp=4, order="tp-cp-ep-pp-dp")
    assert outer.groups("dp")[0] == [0, 32] and outer.groups("pp")[0] == [0, 8, 16, 24]


def test_experts_stay_in_their_stage_whatever_is_outermost():
    for order in ORDERS:
        layout = Layout(dp=4, tp=1, pp=2, ep=4, order=order)
        for group in layout.groups("ep"):
            assert len({layout.coordinates(r)["pp"] for r in group}) == 1


def test_the_grid_is_the_mesh():
    layout = Layout(dp=2, tp=2, pp=2, ep=2)
    grid = layout.grid("pp", "edp", "ep")
    assert [grid[1][0], grid[0][1]] == [layout.groups("ep")[2], layout.groups("ep")[1]]


def test_layers_do_not_vanish():
    """C16: 30 layers over 4 stages became 4 × 7 by floor division; two layers vanished."""
    assert stages(30, 4) == [8, 8, 7, 7]
    for layers, pp in product(range(1, 40), range(1, 9)):
        if pp <= layers:
            assert sum(stages(layers, pp)) == layers and max(stages(layers, pp)) - min(stages(layers, pp)) <= 1
    with pytest.raises(Refused, match="at most 3 stages"):
        stages(3, 4)


def test_layers_of_virtual_stages():
    """C18: two formulas for a virtual stage's first layer disagreed; chunk c of stage s starts at c·L/v + s·L/(p·v)."""
    as_lists = lambda rows: [[list(chunk) for chunk in row] for row in rows]  # noqa: E731
    assert as_lists(chunk_layers(8, 2, 2)) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert as_lists(chunk_layers(8, 2, 4)) == [[[0], [2], [4], [6]], [[1], [3], [5], [7]]]
    assert as_lists(chunk_layers(32, 2, 2))[0] == [list(range(8)), list(range(16, 24))]
    assert as_lists(chunk_layers(8, 4, 2, "v")) == [[[0], [7]], [[1], [6]], [[2], [5]], [[3], [4]]]   # C31


@pytest.mark.parametrize("wrong", [
    dict(tp=0), dict(tp=-1), dict(tp=2.0), dict(tp=True), dict(tp="2"), dict(tp=None), dict(tp=float("nan")),
    dict(dp=10**5000), dict(dp=2**20, tp=2), dict(order="tp-dp"), dict(order="tp-cp-ep-dp-pp-pp"), dict(order=3),
    dict(order="tp-cp-ep-dp-xx"), dict(ep=3, dp=2), dict(etp=2)])
def test_what_cannot_be_is_refused_in_every_language(wrong):
    with pytest.raises(Refused) as refused:
        Layout(**wrong)
    sentences = {refused.value.say(lang) for lang in languages()}
    assert len(sentences) == len(languages()) and all("\n" not in s and len(s) < 250 for s in sentences)


def test_questions_that_cannot_be_answered():
    layout = Layout(dp=2, tp=2, ep=2)
    for ask in (lambda: layout.groups("xp"), lambda: layout.groups("tp-ep"), lambda: layout.coordinates(4),
                lambda: layout.coordinates(-1), lambda: layout.rank(tp=2), lambda: layout.rank(tp=0, ep=0),
                lambda: layout.rank(foo=1), lambda: layout.nodes(0), lambda: chunk_layers(8, 2, 3, "v"),
                lambda: layout.groups(None)):
        with pytest.raises(Refused) as refused:
            ask()
        assert all(refused.value.say(lang) for lang in languages())
