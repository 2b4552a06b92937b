"""Manifest arithmetic: every reshard is played on tagged elements and must give what a fresh cut gives."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paralelo.predict import checkpoint as c
from paralelo.predict.layout import Layout
from paralelo.predict.tensor import kv_heads, qkv_rows
from paralelo.words import Refused, languages

pytestmark = pytest.mark.checkpoint


def indices(box):
    """Every element of a box, by its place in the whole tensor."""
    if not box:
        return [()]
    return [(i, *rest) for i in range(*box[0]) for rest in indices(box[1:])]


def local(pieces):
    """A rank's local tensor as {local place: place in the whole tensor}."""
    out = {}
    for p in pieces:
        for place in indices(p.box):
            at = tuple(o + i - a for o, i, (a, _) in zip(p.at, place, p.box, strict=True))
            assert at not in out
            out[at] = place
    return out


def play(moves, old, new):
    """Carry the elements out and compare with what the new layout should hold."""
    have = [local(pieces) for pieces in old]
    got = [{} for _ in new]
    for m in moves:
        shape = [b - a for a, b in m.box]
        for place in indices(tuple((0, n) for n in shape)):
            at = tuple(o + i for o, i in zip(m.target_at, place, strict=True))
            assert at not in got[m.target], "moved twice"
            got[m.target][at] = have[m.source][tuple(o + i for o, i in zip(m.source_at, place, strict=True))]
    return got == [local(pieces) for pieces in new]


cuts = st.builds(c.Cut, st.integers(0, 1), rule=st.just("chunk"))


@settings(deadline=None)
@given(st.tuples(st.integers(1, 7), st.integers(1, 6)), st.integers(1, 5), st.integers(1, 5), cuts, cuts)
def test_any_cut_to_any_cut(shape, N, M, a, b):
    old, new = c.over(shape, N, a), c.over(shape, M, b)
    assert play(c.moves(old, new), old, new)
    for held in (old, new):
        assert c.problems("w", c.entry(shape, "float32", held)) == []


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 4))
def test_fused_parts_to_any_degree(parts, N, M):
    parts = tuple(12 * p for p in parts)
    old, new = (c.over((sum(parts),), n, c.Cut(0, parts)) for n in (N, M))
    assert play(c.moves(old, new), old, new)


@pytest.mark.parametrize(("old", "new"), [
    (Layout(tp=2, dp=2), Layout(tp=4)), (Layout(dp=3), Layout(tp=2, pp=2)), (Layout(tp=4, dp=2), Layout(tp=1)),
    (Layout(tp=2, dp=4), Layout(tp=8)), (Layout(), Layout(tp=2, dp=2, cp=2))])
def test_two_axes_at_once(old, new):
    """Tensor parallelism on fused rows, then torch.chunk's rule over the data ranks."""
    cuts = {"tp": c.Cut(0, (8, 8)), "dp": c.Cut(0, rule="chunk")}
    a, b = c.shards((16, 3), old, cuts), c.shards((16, 3), new, cuts)
    assert play(c.moves(a, b), a, b)


def test_uneven_shards():
    """C86: the empty shard of 6 over 4 was forgotten, and the tensor could not be loaded again."""
    assert c.chunk_sizes(6, 4) == [2, 2, 2, 0]
    assert c.chunk_sizes(10, 4) == [3, 3, 3, 1]
    assert c.chunk_sizes(5, 4) == [2, 2, 1, 0]
    torch = pytest.importorskip("torch")
    for n in range(1, 30):
        for N in range(1, 9):
            sizes = [len(x) for x in torch.arange(n).chunk(N)]
            assert c.chunk_sizes(n, N) == sizes + [0] * (N - len(sizes))
    held = c.over((6,), 4, c.Cut(0, rule="chunk"))
    assert held[3] == [] and c.pieces_of(c.entry((6,), "float32", held), 4) == held


def test_gate_and_up_in_one_matrix():
    """C82: saved on 8 and loaded on 1, 2 or 4, the rows came back as 0, 2, 4, …, 1, 3, 5, …; on 8 nothing showed."""
    saved = c.over((16,), 8, c.Cut(0, (8, 8)))
    assert list(local(saved[0]).values()) == [(0,), (8,)]
    for N in (1, 2, 4, 8):
        wanted = c.over((16,), N, c.Cut(0, (8, 8)))
        assert play(c.moves(saved, wanted), saved, wanted)
    merged = c.moves(saved, c.over((16,), 1))
    order = sorted((m.target_at[0], m.box[0]) for m in merged)
    assert [i for _, (a, b) in order for i in range(a, b)] == list(range(16))


def test_q_k_and_v_in_one_matrix():
    """C84: an even cut of [all Q | all K | all V] gave rank 0 only Q."""
    held = c.over((8,), 2, c.Cut(0, (4, 2, 2)))
    for rank in (0, 1):
        assert [row for (row,) in local(held[rank]).values()] == qkv_rows(4, 2, 1, 2, rank)


def test_copied_kv_heads():
    """Four KV heads on eight ranks: each rank finds its head, and one copy is moved, its own where it has it."""
    old, new = (c.over((4 * 16, 2), N, c.Cut(0, copies=copies)) for N, copies in ((8, 2), (4, 1)))
    for rank in range(8):
        heads = {row // 16 for row, _ in local(old[rank]).values()}
        assert heads == set(kv_heads(4, 8, rank))
    moves = c.moves(old, new)
    assert play(moves, old, new) and sum(m.elements for m in moves) == 4 * 16 * 2
    assert all(m.source == m.target for m in c.moves(old, old))
    assert c.moved_bytes(c.moves(old, old)) == 0


def test_what_moves():
    old, new = c.over((8, 4), 4, c.Cut(0)), c.over((8, 4), 2, c.Cut(0))
    assert c.moved_bytes(c.moves(old, new), 2) == 2 * 4 * 2 * (1 + 2)
    assert c.moved_bytes(c.moves(c.over((8,), 2), c.over((8,), 2, c.Cut(0)))) == 0


def test_scalars_and_one_rank():
    step = c.shards((), Layout(dp=2), {})
    assert play(c.moves(step, step), step, step) and c.problems("step", c.entry((), "int64", step)) == []


def test_manifests_are_json_and_say_what_is_wrong():
    entry = c.entry((4, 6), "bfloat16", c.shards((4, 6), Layout(tp=2, dp=2), {"tp": c.Cut(1)}))
    assert json.loads(json.dumps(entry)) == entry and len(entry["pieces"]) == 2
    assert entry["pieces"][0]["ranks"] == [0, 2]
    for change, said in (({"box": [[0, 4], [2, 6]]}, "overlap"), ({"box": [[0, 4], [3, 7]]}, "outside"),
                         ({"box": [[0, 4], [4, 6]]}, "no piece holds 4 of its 24")):
        broken = {**entry, "pieces": [entry["pieces"][0], {**entry["pieces"][1], **change}]}
        found = c.problems("w", broken)
        assert said in str(found[0]) and len({found[0].say(lang) for lang in languages()}) == len(languages())


@pytest.mark.parametrize("ask", [
    lambda: c.over((6,), 4, c.Cut(0)), lambda: c.over((6,), 2, c.Cut(0, (4, 4))),
    lambda: c.over((6,), 3, c.Cut(0, copies=2)),
    lambda: c.chunk_sizes(-1, 2), lambda: c.over((6,), 0), lambda: c.over((6,), 2, c.Cut(0, rule="any"))])
def test_refused_in_every_language(ask):
    with pytest.raises(Refused) as refused:
        ask()
    assert len({refused.value.say(lang) for lang in languages()}) == len(languages())
