"""Attention and linear attention over a split sequence against the dense ones: outputs and every gradient, float64."""

import math

import pytest
import torch
import torch.distributed as dist
from helpers import Groups, random, subgroup

from paralelo.predict import sequence as predicted
from paralelo.run import sequence
from paralelo.run.collectives import Ledger, split_to
from paralelo.run.tensor import delta_rule
from paralelo.words import Refused

pytestmark = pytest.mark.sequence

TOLERANCE = 1e-9
WORLDS = [(1, 1), (2, 2), (4, 4), (4, 2)]                                 # (world size, group size)


def dense_attention(q, k, v, causal, documents=None):
    """Every score written out, every head by itself: nothing in common with the code under test."""
    _, H, T, d = q.shape
    owner = torch.cat([torch.full((n,), i) for i, n in enumerate(documents or [T])])
    seen = owner[:, None] == owner[None, :]
    if causal:
        seen &= torch.arange(T)[:, None] >= torch.arange(T)[None, :]
    heads = []
    for h in range(H):
        key, value = k[:, h * k.shape[1] // H], v[:, h * k.shape[1] // H]
        scores = (q[:, h] @ key.mT / math.sqrt(d)).masked_fill(~seen, float("-inf"))
        heads.append(scores.softmax(-1) @ value)
    return torch.stack(heads, 1)


def difference(split, H, K, T, causal, documents=None, dtype=torch.float64, scale=1.0, d=4):
    """Largest difference of output and gradients between `dense_attention` and `split`, functions of whole q, k, v."""
    leaves = [(random(2, h, T, d, seed=i, dtype=dtype) * scale).requires_grad_() for i, h in enumerate((H, K, K))]
    weight = random(2, H, T, d, seed=9, dtype=dtype)
    sides = []
    for attention in (lambda q, k, v: dense_attention(q, k, v, causal, documents), split):
        y = attention(*leaves)
        sides.append([y.detach(), *torch.autograd.grad((y * weight).sum(), leaves)])
    assert all(t.isfinite().all() for side in sides for t in side)
    return max((a - b).abs().max().item() for a, b in zip(*sides, strict=True))


def over(group, attention, causal, order, documents=None, padded=False):
    """`attention` over `group` as a function of whole tensors."""
    def run(q, k, v):
        if padded:
            q, k, v = (sequence.pad(x, group, 2, order, documents) for x in (q, k, v))
        parts = (sequence.spread(x, group, 2, order, documents) for x in (q, k, v))
        y = sequence.collect(attention(*parts, group, causal, order, documents), group, 2, order, documents)
        return sequence.unpad(y, group, 2, order, documents) if padded else y

    return run


def check_attention(size):
    found = {}
    with subgroup(size) as group:
        for order in ("contiguous", "zigzag"):
            for causal in (True, False):
                for name in ("ring_attention", "ulysses_attention"):
                    attention = getattr(sequence, name)
                    for K in (1, 2, 4):                                   # more ranks than key/value heads, and fewer
                        split = over(group, attention, causal, order)
                        found[name, order, causal, K] = difference(split, 4, K, 16, causal)
                    split = over(group, attention, causal, order, (8, 16))
                    found[name, order, causal, "packed"] = difference(split, 4, 2, 24, causal, (8, 16))
                    split = over(group, attention, causal, order, (5, 1, 7), padded=True)
                    found[name, order, causal, "padded"] = difference(split, 4, 2, 13, causal, (5, 1, 7))
                    split = over(group, attention, causal, order, (3,), padded=True)
                    found[name, order, causal, "fewer positions than ranks"] = difference(split, 4, 2, 3, causal)
        if size == 4:                                                     # 6 key/value heads: two are read by two ranks
            split = over(group, sequence.ulysses_attention, True, "contiguous")
            found["ulysses, 12 and 6 heads"] = difference(split, 12, 6, 8, True)
    return found


@pytest.mark.parametrize(("world", "size"), WORLDS)
def test_attention_equals_dense(ranks, world, size):
    """Ring and Ulysses, both orders, causal and not, grouped heads, packed and padded documents.

    C62: a ring that balances the causal mask was wrong (or stopped) without one.
    """
    for found in ranks(world).run(check_attention, size):
        assert {name: d for name, d in found.items() if d > TOLERANCE} == {}


def check_hybrid():
    found = {}
    with Groups() as groups:
        inner, outer = groups.side_by_side([(0, 1), (2, 3)]), groups.side_by_side([(0, 2), (1, 3)])
        for order in ("contiguous", "zigzag"):
            def split(q, k, v, order=order):
                parts = (sequence.hybrid_split(x, inner, outer, 2, order) for x in (q, k, v))
                y = sequence.hybrid_attention(*parts, inner, outer, True, order)
                return sequence.hybrid_gather(y, inner, outer, 2, order)

            found[order] = difference(split, 4, 2, 16, True)
        return found, sequence.hybrid_split(torch.arange(16), inner, outer, 0).tolist()


def test_hybrid_uses_the_order_of_the_ring(ranks):
    """C64: with the zig-zag of all ranks, the ring sees plain order after the all-to-all. It must be the ring's own."""
    found = ranks(4).run(check_hybrid)
    assert max(d for differences, _ in found for d in differences.values()) < TOLERANCE
    held = [tokens for _, tokens in found]
    assert held == [predicted.hybrid_positions(16, 2, 2, r) for r in range(4)]
    assert held[0] + held[1] == [0, 1, 2, 3, 12, 13, 14, 15] and held[2] + held[3] == list(range(4, 12))


def check_large_scores():
    group, found = dist.group.WORLD, {}
    for name in ("ring_attention", "ulysses_attention"):
        for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 2e-3), (torch.bfloat16, 0.5)):
            for order in ("contiguous", "zigzag"):
                split = over(group, getattr(sequence, name), True, order)
                gap = difference(split, 2, 2, 16, True, dtype=dtype, scale=30.0)                        # scores to 10⁴
                found[name, dtype, order] = gap / limit
    q = torch.full((1, 1, 4, 4), 1e4)
    found["huge"] = (sequence.ring_attention(q, q, q, group, True) - q).abs().max().item() / 1e-2       # 2·10⁸
    return found


def test_softmax_survives_large_scores(ranks):
    for found in ranks(2).run(check_large_scores):
        assert {name: share for name, share in found.items() if not share < 1} == {}


@pytest.mark.parametrize("T", [16, 32])
def test_work_is_what_is_predicted(T):
    """C62: causal work of four ranks is 1, 3, 5, 7 of 16 for long sequences, and even in zig-zag order."""
    for order in ("contiguous", "zigzag"):
        placement = sequence.Placement((T,), 4, order)
        assert [placement.scores(r, True) for r in range(4)] == predicted.causal_work(T, 4, order)
        assert [placement.scores(r, False) for r in range(4)] == [T * T // 4] * 4
        assert [placement.indices(r) for r in range(4)] == [predicted.positions(T, 4, r, order) for r in range(4)]


def test_blocks_of_the_future_are_skipped():
    """The blocks really computed, in scores: a triangle counts as its square."""
    from paralelo.run.sequence.blocks import pairs

    def blocks(order):
        placement = sequence.Placement((64,), 4, order)
        pieces = [placement.pieces(r) for r in range(4)]
        return [[(a.stop - a.start) * (b.stop - b.start) for key in pieces for a, b, _ in pairs(pieces[r], key, True)]
                for r in range(4)]

    assert blocks("contiguous") == [[16 * 16] * (r + 1) for r in range(4)]
    assert blocks("zigzag") == [[8 * 8] * 9] * 4


def test_positions_of_packed_documents():
    """C59: rotary positions of the second packed document were those of the first document's end."""
    two = sequence.Placement((4, 4), 2, "zigzag")
    assert [two.indices(r) for r in (0, 1)] == [[0, 3, 4, 7], [1, 2, 5, 6]]
    assert two.positions(0) == [0, 3, 0, 3] == predicted.restarted([0, 3, 4, 7], [0, 4, 8])


def check_refusals():
    group, q = dist.group.WORLD, random(1, 4, 3, 4)

    def refused(fn, *args, **kwargs):
        try:
            fn(*args, **kwargs)
        except Refused as no:
            return [no.message.id, *(no.say(lang) for lang in ("en", "es", "pt"))]
        return ["was not refused"]

    return [
        refused(sequence.zigzag, torch.arange(6), group, 0),
        refused(sequence.spread, torch.arange(7), group, 0),
        refused(sequence.ring_attention, q, q, q, group, True, "zigzag"),
        refused(sequence.ring_attention, q, q, q, group, True, "spiral"),
        refused(sequence.ring_attention, q, q[:, :3], q[:, :3], group),
        refused(sequence.ulysses_attention, q[:, :3], q[:, :3], q[:, :3], group),
        refused(sequence.pad, torch.arange(6), group, 0, documents=(2, 2)),
        refused(sequence.pad, torch.arange(6), group, 0, documents=(6, 0)),
        refused(sequence.halo, q, group, 4, 2),
        refused(sequence.linear_attention, delta_rule, q, q, q, group=group, how="by post"),
        refused(sequence.ring_attention, *[random(1, 4, 2 + 2 * group.rank(), 4)] * 3, group),
        refused(sequence.linear_attention, delta_rule, *[random(1, 4, 2 * group.rank(), 4)] * 3, group=group),
        refused(sequence.ulysses_attention, *[random(1, 4, 4, 4)] * 3, group, documents=[(4, 4), (2, 6)][group.rank()]),
        refused(sequence.ulysses_attention, *[random(1, 4, 4 + 4 * group.rank(), 4)] * 3, group, True, "zigzag"),
    ]


def test_lengths_that_do_not_fit_are_refused(ranks):
    """No length is cut, no token dropped: what does not divide is refused on every rank, with what would do."""
    for found in ranks(2).run(check_refusals):
        assert [id for id, *_ in found] == [
            "run_sequence.divide", "run_sequence.divide", "run_sequence.length", "run_sequence.order",
            "run_sequence.heads", "run_sequence.ulysses_heads", "run_sequence.documents_sum",
            "run_sequence.documents_empty", "run_sequence.halo", "run_sequence.how", "run.shapes_differ",
            "run_sequence.no_position", "run.details_differ", "run.shapes_differ",
        ]
        assert all(len(set(said)) == 3 for _, *said in found)


def check_bytes(B, T, H, K, d):
    """What the ledger counts for each way, forward and with its backward."""
    group, N, found = dist.group.WORLD, dist.get_world_size(), {}
    for name in ("ring_attention", "ulysses_attention"):
        parts = [random(B, h, T // N, d, dtype=torch.float32).requires_grad_() for h in (H, K, K)]
        with Ledger(cp=group) as forward:
            y = getattr(sequence, name)(*parts, group, True)
        with Ledger(cp=group) as backward:
            y.sum().backward()
        found[name] = forward.total.ring, backward.total.ring
    return found


@pytest.mark.parametrize("N", [2, 4])
def test_bytes_are_those_predicted(ranks, N):
    B, T, H, K, d = 2, 16, 8, 2, 4
    ulysses = predicted.ulysses_bytes(B, T, H, K, d, N, 4)
    ring = predicted.ring_bytes(B, T, K, d, N, 4), predicted.ring_backward_bytes(B, T, K, d, N, 4)
    for found in ranks(N).run(check_bytes, B, T, H, K, d):
        assert found == {"ring_attention": ring, "ulysses_attention": (ulysses, ulysses)}


def check_loss():
    group, rank = dist.group.WORLD, dist.get_rank()
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    whole = torch.tensor([[2.0, 3.0, 5.0, 100.0], [7.0, 100.0, 100.0, 100.0]], dtype=torch.float64)
    valid = whole != 100
    share = sequence.token_mean(whole[rank] * weight, group, valid[rank])
    share.backward()
    dist.all_reduce(total := share.detach().clone())
    dist.all_reduce(weight.grad)
    empty = sequence.token_mean(whole[rank], group, torch.zeros(4, dtype=torch.bool))
    return total.item(), weight.grad.item(), empty.item()


def test_loss_is_the_mean_over_tokens(ranks):
    """C66: gradients grew or shrank with the number of sequence ranks. 3 and 1 valid tokens: (3·ℓ₀ + ℓ₁)/4, summed."""
    for found in ranks(2).run(check_loss):
        assert found == pytest.approx(((2 + 3 + 5 + 7) / 4, (2 + 3 + 5 + 7) / 4, 0))


def check_order():
    group, x = dist.group.WORLD, torch.arange(16.0).requires_grad_()
    part = sequence.zigzag(x, group, 0)
    back = sequence.unzigzag(part, group, 0)
    (back * torch.arange(16.0)).sum().backward()
    return part.tolist(), back.tolist(), x.grad.tolist(), sequence.positions(4, group, "zigzag").tolist()


def test_zigzag_and_its_inverse(ranks):
    found = ranks(4).run(check_order)
    everything = [float(i) for i in range(16)]
    for rank, (part, back, grad, at) in enumerate(found):
        assert part == at == predicted.positions(16, 4, rank, "zigzag")
        assert back == everything and grad == everything


def check_split_is_contiguous():
    x = random(3, 12)
    return (sequence.spread(x, dist.group.WORLD, 1) - split_to(x, dist.group.WORLD, 1)).abs().max().item()


def test_contiguous_order_is_split_to(ranks):
    assert ranks(4).run(check_split_is_contiguous) == [0] * 4
