"""Schedules by number: closed forms, published figures, what a hand-made schedule gets wrong."""

import time
from fractions import Fraction

import pytest

from paralelo.predict import pipeline
from paralelo.predict.pipeline import NAMES, build, check, from_actions, from_text, simulate
from paralelo.words import Refused, languages

pytestmark = pytest.mark.pipeline

SIZES = [(1, 1), (2, 2), (4, 8), (3, 7), (8, 32), (5, 5)]


# ---- published figures -------------------------------------------------------------------------------------------

def test_two_ratios_have_two_names():
    """C29: a course divides idle time by useful work in one place and by all time in another, under one name."""
    plain, twice = simulate(build("1f1b", 4, 8)), simulate(build("interleaved", 4, 8, 2))
    assert (plain.idle_over_ideal, round(plain.idle_share, 4)) == (0.375, 0.2727)
    assert (twice.idle_over_ideal, round(twice.idle_share, 4)) == (0.1875, 0.1579)
    assert pipeline.idle_over_ideal(4, 8) == Fraction(3, 8) and pipeline.idle_share(4, 8) == Fraction(3, 11)
    assert pipeline.idle_over_ideal(4, 8, 2) == Fraction(3, 16) and pipeline.idle_share(4, 8, 2) == Fraction(3, 19)


def test_1f1b_is_not_shorter_than_gpipe_it_holds_less():
    """C28: a course counts 71 steps for 1F1B and 78 for GPipe at 8 stages and 32 microbatches. Both need 78; what
    1F1B lowers is the number of microbatches in flight, from 32 to 8."""
    gpipe, plain = (simulate(build(n, 8, 32), forward=1, backward=1) for n in ("gpipe", "1f1b"))
    assert gpipe.makespan == plain.makespan == 78 == pipeline.makespan(8, 32, forward=1, backward=1)
    assert gpipe.idle_share == pytest.approx(7 / 39) == plain.idle_share
    assert gpipe.live_activations == [32] * 8 and plain.live_activations == [8, 7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(("M", "makespan"), [(1, 8), (2, 10)])
def test_fewer_microbatches_than_stages(M, makespan):
    """C23: a 1F1B whose warm-up is not capped at M waits for forwards that never come."""
    result = simulate(build("1f1b", 4, M), forward=1, backward=1)
    assert result.makespan == makespan
    assert result.live_activations == ([2, 2, 2, 1] if M == 2 else [1, 1, 1, 1])


def test_warmup_of_interleaved():
    """C26: a guess of (S−r−1)·C for the forwards that fill an interleaved pipeline."""
    for rank, (fill, before_backward) in enumerate([(10, 11), (8, 9), (6, 7), (4, 5)]):
        kinds = [a.kind for a in build("interleaved", 4, 8, 2).actions(rank)]
        assert pipeline.warmup("interleaved", 4, 8, rank, 2) == fill
        assert kinds.index("B") == before_backward
    assert [pipeline.warmup("1f1b", 4, 8, r) for r in range(4)] == [3, 2, 1, 0]


@pytest.mark.parametrize(("M", "ok"), [(10, True), (3, True), (7, True), (8, True), (9, False), (13, False)])
def test_interleaved_needs_equal_groups_only(M, ok):
    """C25: that S divides M is a rule of one order of microbatches, not of interleaving."""
    if ok:
        assert check(build("interleaved", 4, M, 2)) == []
    else:
        with pytest.raises(Refused) as refused:
            build("interleaved", 4, M, 2)
        for would_do in refused.value.message.fields["would_do"]:
            build("interleaved", 4, would_do, 2)


def test_v_placement():
    """C31: ZB-V on a looped placement, where the loss does not live on the first rank."""
    assert [build("zb-v", 4, 8).stages_of(r) for r in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert [build("interleaved", 4, 8, 2).stages_of(r) for r in range(4)] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    looped = from_actions([list(build("zb-v", 4, 8).actions(r)) for r in range(4)], placement="loop")
    assert {m.id for m in check(looped)} >= {"pipeline.check.wrong_rank"}


@pytest.mark.parametrize(("M", "share"), [(4, Fraction(3, 7)), (16, Fraction(3, 19)), (64, Fraction(3, 67))])
def test_idle_share_of_four_stages(M, share):
    assert simulate(build("gpipe", 4, M)).idle_share == pytest.approx(float(share))
    assert pipeline.idle_share(4, M) == share


@pytest.mark.parametrize("S", [2, 4, 8])
@pytest.mark.parametrize("times", [(1, 1, 1), (2, 3, 2), (5, 4, 3)])
def test_zero_bubble_paper(S, times):
    """Qi et al. 2024, with I for the paper's B: idle time in a rank's own window is (S−1)(F + I + W) for 1F1B,
    (S−1)(F + I − W) for ZB-H1 and (S−1)(F + I − 2W) for ZB-H2; memory S, S and 2S−1 microbatches."""
    F, I, W = times
    M = 4 * S
    idle = {}
    for name in ("1f1b", "zb-h1", "zb-h2"):
        r = simulate(build(name, S, M), F, I + W, W)
        idle[name] = max(last - first for first, last in r.windows) - M * (F + I + W)
        assert max(r.live_activations) == {"1f1b": S, "zb-h1": S, "zb-h2": 2 * S - 1}[name]
    assert idle == {"1f1b": (S - 1) * (F + I + W), "zb-h1": (S - 1) * (F + I - W),
                    "zb-h2": max(0, (S - 1) * (F + I - 2 * W))}


@pytest.mark.parametrize("S", [2, 3, 4, 8])
def test_zb_v(S):
    """No rank waits in its own window at F = I = W, and each holds what 1F1B's first rank holds: S microbatches."""
    r = simulate(build("zb-v", S, 3 * S))
    assert [r.idle_in_window(k) for k in range(S)] == pytest.approx([0] * S)
    assert r.live_activations == [S] * S


@pytest.mark.parametrize("S", [2, 3, 4, 8])
@pytest.mark.parametrize(("F", "I", "W"), [(1, 1, 1), (2, 2, 1), (2, 1, 1), (5, 4, 4)])
def test_dualpipe_v(S, F, I, W):
    """With F, I, W of one chunk, the rank that waits longest waits (S−1)(F + I − W), and each holds S + 1/2 (published:
    2S+1 chunks). DeepSeek's (S−1)(F&B + B − 3W) is for overlapping pairs; with F&B = F + B it is I a hop more."""
    r = simulate(build("dualpipe-v", S, 4 * S), 2 * F, 2 * (I + W), 2 * W)
    assert max(last - first for first, last in r.windows) - r.ideal == (S - 1) * (F + I - W)
    assert r.live_activations == [S + 0.5] * S


def test_messages_of_interleaving():
    for S, factor in ((2, Fraction(3)), (4, Fraction(7, 3))):
        r, plain = simulate(build("interleaved", S, 8, 2)), simulate(build("1f1b", S, 8))
        assert Fraction(r.messages, plain.messages) == factor == Fraction(2 * S - 1, S - 1)


# ---- durations ---------------------------------------------------------------------------------------------------

def test_message_delays_only_between_ranks():
    """With one rank nothing travels; in a V the turn is inside the last rank."""
    alone = simulate(build("interleaved", 1, 4, 3), message=100)
    assert alone.makespan == alone.ideal and alone.messages == 0
    one = simulate(build("1f1b", 2, 1), forward=1, backward=2, message=10)
    assert one.makespan == 1 + 10 + 1 + 2 + 10 + 2
    v = simulate(build("zb-v", 2, 1), forward=2, backward=4, weight=2, message=10)
    assert v.makespan == 4 * 1 + 2 * 10 + 4 * 1 + 2 * 10 + 2      # F×4, I×4, W of stage 2 before I of stage 1, last W


def test_chunk_takes_its_share_and_slow_stage_its_factor():
    r = simulate(build("interleaved", 2, 2, 2), forward=2, backward=6)
    assert {(k, e - s) for _, k, *_, s, e in r.timeline()} == {("F", 1), ("B", 3)}
    r = simulate(build("1f1b", 3, 4), slow={1: 1.5})
    assert {(rank, k, e - s) for rank, k, _, _, s, e in r.timeline() if k == "F"} == {
        (0, "F", 1), (1, "F", 1.5), (2, "F", 1)}
    assert r.ideal == 12 and r.makespan > simulate(build("1f1b", 3, 4)).makespan


def test_slowest_stage_sets_the_pace():
    """Every further microbatch costs one forward and backward of the slowest stage."""
    long, longer = (simulate(build("1f1b", 3, m), slow={1: 6 / 5}).makespan for m in (40, 41))
    assert longer - long == pytest.approx(3 * 6 / 5)


def test_weight_is_read_only_where_the_backward_is_split():
    assert simulate(build("1f1b", 2, 2), backward=1, weight=5).makespan == 6
    with pytest.raises(Refused, match="part of backward"):
        simulate(build("zb-h1", 2, 2), backward=1, weight=5)
    assert simulate(build("zb-h1", 2, 2), backward=1, weight=1).makespan > 0


@pytest.mark.parametrize("bad", [
    {"forward": 0}, {"forward": -1}, {"forward": float("nan")}, {"forward": float("inf")}, {"forward": "1"},
    {"backward": 0}, {"backward": True}, {"message": -1}, {"message": float("nan")}, {"forward": 1e300},
    {"slow": {9: 2}}, {"slow": {0: 0}}, {"slow": {0: float("nan")}}, {"slow": {"0": 2}}])
def test_bad_durations_are_refused(bad):
    with pytest.raises(Refused) as refused:
        simulate(build("1f1b", 4, 4), **bad)
    assert all(refused.value.say(lang) for lang in languages())


@pytest.mark.parametrize("bad", [
    ("1f2b", 4, 4), ("1f1b", 0, 4), ("1f1b", 4, 0), ("1f1b", 4, -1), ("1f1b", 2.5, 4), ("1f1b", True, 4),
    ("1f1b", 4, 4, 2), ("zb-v", 4, 8, 3), ("zb-h2", 2, 2, 0), ("interleaved", 4, 13, 2), ("dualpipe-v", 4, 7),
    ("gpipe", 10**6, 10**6), ("1f1b", "4", 4)])
def test_bad_sizes_are_refused_with_what_would_do(bad):
    with pytest.raises(Refused) as refused:
        build(*bad)
    assert len({refused.value.say(lang) for lang in languages()}) == 3


def test_dualpipe_says_how_many_would_do():
    with pytest.raises(Refused, match=r"microbatches is 7.* 8 or more"):
        build("dualpipe-v", 4, 7)
    with pytest.raises(Refused, match=r"microbatches is 13.* 12 or 15 would do"):
        build("interleaved", 4, 13, 2)


# ---- by hand -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", NAMES)
def test_text_and_back(name):
    made = build(name, 2, 4, 2 if name == "interleaved" else 1)
    again = from_text(str(made), placement=made.placement)
    assert again == made and check(again) == []
    assert simulate(again).makespan == simulate(made).makespan


@pytest.mark.parametrize(("text", "wrong"), [
    ("F0 F1 B0 B1 / F0 B0 F1", ["no_backward"]),
    ("F0 F1 B0 B1 / F0 B0 B1", ["no_forward"]),
    ("F0 F1 B0 B0 B1 / F0 B0 F1 B1", ["twice"]),
    ("F0 F1 B0 B1 / F0 B0 1F1 B1 0F1", ["wrong_rank"]),
    ("F0 F1 B0 B1 / F0 I0 F1 B1", ["half_a_backward"]),
    ("F0 F1 B0 B1 / F0 B0 I0 W0 F1 B1", ["whole_and_split"]),
    ("B0 F0 / F0 B0", ["before"]),
    ("F0 W0 I0 / F0 I0 W0", ["before"]),
    ("F0 B0 F1 B1 / F0 F1 B0 B1", ["waits", "waits"]),
])
def test_each_fault_has_its_name(text, wrong):
    schedule = from_text(text)
    found = check(schedule)
    assert [m.id.rpartition(".")[2] for m in found] == wrong
    assert all(m.say(lang) for m in found for lang in languages())
    with pytest.raises(Refused) as refused:
        simulate(schedule)
    assert refused.value.message.id == found[0].id


@pytest.mark.parametrize("text", ["", " / ", "F0 X1", "F", "F-1", "F0.5", "4294967296F0", "F0 B999999 / F0"])
def test_text_that_is_no_schedule(text):
    with pytest.raises(Refused):
        simulate(from_text(text))


def test_unbatched_rendezvous_deadlocks_1f1b():
    """Rank 0 in the send of F1, rank 1 in the send of B0; posting both directions with a peer together frees them."""
    found = check(build("1f1b", 2, 2), sends="rendezvous")
    assert [(m.id, m.fields["rank"], m.fields["action"]) for m in found] == [
        ("pipeline.check.sends", 0, "F1"), ("pipeline.check.sends", 1, "B0")]
    assert check(build("1f1b", 2, 2), sends="batched") == []
    assert check(build("gpipe", 2, 2), sends="rendezvous") == []


# ---- cost --------------------------------------------------------------------------------------------------------

def rate(schedule):
    begin = time.process_time()
    simulate(schedule)
    return len(schedule) / (time.process_time() - begin)


def test_cost_is_linear():
    """Actions a second at 16 times the size: within a factor of 2.5 of each other, best of three."""
    small, large = (max(rate(build("1f1b", 16, m)) for _ in range(3)) for m in (256, 4096))
    assert 1 / 2.5 < small / large < 2.5


@pytest.mark.long
def test_two_million_actions_in_five_seconds():
    schedule = build("interleaved", 64, 4096, 4)
    assert len(schedule) == 2_097_152
    assert len(schedule) / max(rate(schedule) for _ in range(2)) < 5


def test_a_number_in_quotes_is_told_from_a_number():
    """`stages is 2: it must be a whole number` was the answer to "2"."""
    with pytest.raises(Refused, match="stages is '2'"):
        build("1f1b", "2", 4)
