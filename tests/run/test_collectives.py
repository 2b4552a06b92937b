"""Every collective against plain arithmetic on the whole, forward and backward; sizes uneven and empty."""

import pytest
import torch
import torch.distributed as dist

from paralelo.run.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    all_to_all_list,
    copy_to,
    exchange,
    gather_from,
    reduce_from,
    reduce_scatter,
    split_sizes,
    split_to,
    unchecked,
)
from paralelo.run.ranks import RankError
from paralelo.words import Refused

pytestmark = pytest.mark.collectives
WORLDS = [1, 2, 3, 4]


def data(r, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(r))


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("N", WORLDS)
def test_pairs_equal_the_whole(ranks, N):
    """Each operation's output and gradient, by its definition over all ranks' x and dy."""

    def check():
        group = dist.group.WORLD
        N, r = group.size(), group.rank()
        for dim, shape in ((0, (4 * N, 3)), (1, (2, 4 * N, 5)), (-1, (3, 4 * N))):
            for sizes in (None, split_sizes(4 * N + 0, N), [4 * N] + [0] * (N - 1), [0] * (N - 1) + [4 * N]):
                cut = sizes or [4] * N
                own = list(shape)
                own[dim] = cut[r]

                def pieces(of, cut=cut, dim=dim):
                    return of.split(cut, dim)

                whole = [data(j, *shape) for j in range(N)]
                held = [p for j in range(N) for p in [pieces(data(50 + j, *shape))[j]]]
                dy = [data(100 + j, *shape) for j in range(N)]
                x = whole[r].clone().requires_grad_()
                h = held[r].clone().requires_grad_()

                def run(y, leaf, dy, expect, gradient):
                    same(y, expect)
                    same(torch.autograd.grad(y, leaf, dy)[0], gradient)

                if sizes is None:
                    run(copy_to(x, group), x, dy[r], whole[r], sum(dy))
                    run(reduce_from(x, group), x, dy[r], sum(whole), dy[r])
                part = [pieces(d)[r] for d in dy]
                run(split_to(x, group, dim, sizes), x, part[r], pieces(whole[r])[r],
                    torch.cat([pieces(dy[j])[j] for j in range(N)], dim))
                run(gather_from(h, group, dim, sizes), h, dy[r], torch.cat(held, dim), part[r])
                run(gather_from(h, group, dim, sizes, partial=True), h, dy[r], torch.cat(held, dim), sum(part))
                run(reduce_scatter(x, group, dim, sizes), x, part[r], pieces(sum(whole))[r],
                    torch.cat([pieces(dy[j])[j] for j in range(N)], dim))
                same(x, whole[r])                                       # the argument stays as it was
        return True

    assert all(ranks(N).run(check))


@pytest.mark.parametrize("N", WORLDS)
def test_all_to_all(ranks, N):
    """Tokens that change their rank, in numbers from 0 up; heads for positions (both even and uneven)."""

    def check():
        group = dist.group.WORLD
        N, r = group.size(), group.rank()
        counts = [[(i * 2 + j) % 4 * (i != 1) for j in range(N)] for i in range(N)]       # rank 1 sends nothing
        whole = [data(i, sum(counts[i]), 3) for i in range(N)]
        x = whole[r].clone().requires_grad_()
        for receive in (None, [counts[i][r] for i in range(N)]):
            y = all_to_all(x, group, send=counts[r], receive=receive)
            same(y, torch.cat([whole[i].split(counts[i])[r] for i in range(N)]))
            back = all_to_all(y, group, send=[counts[i][r] for i in range(N)], receive=counts[r])
            same(back, x)
            same(torch.autograd.grad((back**2).sum(), x)[0], 2 * x)                   # there and back, and its gradient

        B, T, H, d = 2, 3 * N + 1, 2 * N + 1, 5
        held, heads = split_sizes(T, N), split_sizes(H, N)
        dense = data(7, B, T, H, d)
        x = dense.split(held, 1)[r].clone().requires_grad_()
        for receive in (None, held):
            y = all_to_all(x, group, 2, 1, send=heads, receive=receive)
            same(y, dense.split(heads, 2)[r])
            dy = data(8, B, T, H, d)
            same(torch.autograd.grad(y, x, dy.split(heads, 2)[r])[0], dy.split(held, 1)[r])
        same(all_to_all(y.detach(), group, 1, 2, send=held, receive=heads), x)
        return True

    assert all(ranks(N).run(check))


@pytest.mark.parametrize("N", WORLDS)
def test_plain(ranks, N):
    """C90 (it was long said that gloo has no all-to-all): uneven and empty all-to-all, uneven all-gather, all types."""

    def check():
        group = dist.group.WORLD
        N, r = group.size(), group.rank()
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int64):
            x = torch.full((r, 2), r + 1, dtype=dtype)
            whole = all_gather(x, group, 0)
            assert whole.dtype == dtype and whole[:, 0].tolist() == [j + 1 for j in range(N) for _ in range(j)]
            assert all_reduce(torch.full((3,), r + 1, dtype=dtype), group).tolist() == [N * (N + 1) / 2] * 3
        assert all_reduce(torch.tensor(float(r)), group, dist.ReduceOp.MAX).item() == N - 1
        assert all_reduce(torch.zeros(0), group).shape == (0,)
        got = all_to_all_list([torch.full((r,), r) for _ in range(N)], list(range(N)), group)
        assert [g.tolist() for g in got] == [[j] * j for j in range(N)]
        return True

    assert all(ranks(N).run(check))


def test_two_groups_side_by_side(ranks):
    """A collective of one group must not touch the other: sums of ranks {0, 1} and {2, 3}."""

    def check():
        r = dist.get_rank()
        both = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        group = both[r // 2]
        x = data(r, 3).requires_grad_()
        y = reduce_from(copy_to(x, group) * (r + 1), group)
        y.sum().backward()
        pair = [2 * (r // 2), 2 * (r // 2) + 1]
        same(y, sum(data(j, 3) * (j + 1) for j in pair))
        same(x.grad, torch.full((3,), float(sum(j + 1 for j in pair)), dtype=torch.float64))
        back = torch.empty(3, dtype=torch.float64)
        exchange(x.detach(), 1 - group.rank(), back, 1 - group.rank(), group)()         # ranks of the group, not global
        same(back, data(r ^ 1, 3))
        return True

    assert all(ranks(4).run(check))


def test_gradient_of_a_sum_is_not_counted_twice(ranks):
    """C51 (a loss computed on every rank after an all-reduce): dy/dx is 2 with g, 2 with a plain all_reduce (autograd
    does not see it), 4 with torch's differentiable one, which sums the ranks' gradients."""

    def check():
        import torch.distributed.nn.functional as differentiable

        group, r, gradients = dist.group.WORLD, dist.get_rank(), []

        def plain(z):
            z = z.clone()
            dist.all_reduce(z)
            return z

        for reduce in (lambda z: reduce_from(z, group), plain, differentiable.all_reduce):
            x = torch.tensor(float(r + 1), requires_grad=True)
            y = reduce(2 * x)
            y.backward()
            assert y.item() == 6
            gradients.append(x.grad.item())
        return gradients

    assert ranks(2).run(check) == [[2, 2, 4]] * 2


def test_pair_under_softmax_loss(ranks):
    """C50 (log-probability of the target summed by a plain all_reduce): with g, each shard of the logits gets its own
    softmax gradient; only the owner of the target subtracts 1; and f sums the gradients of the hidden state."""

    def check():
        group = dist.group.WORLD
        r = group.rank()
        hidden, weight, target = data(1, 3), data(2, 8, 3), 1                     # the target stands on rank 0
        h = hidden.clone().requires_grad_()
        logits = weight[4 * r:4 * r + 4] @ copy_to(h, group)
        logits.retain_grad()
        total = reduce_from(logits.exp().sum(), group)
        label = reduce_from(logits[target] if r == 0 else logits.sum() * 0, group)
        (total.log() - label).backward()
        dense = hidden.clone().requires_grad_()
        loss = torch.nn.functional.cross_entropy(weight @ dense, torch.tensor(target))
        loss.backward()
        same(h.grad, dense.grad)
        onehot = torch.nn.functional.one_hot(torch.tensor(target), 8)
        same(logits.grad, (torch.softmax(weight @ hidden, 0) - onehot)[4 * r:4 * r + 4])
        return True

    assert all(ranks(2).run(check))


def test_exchange_in_any_order(ranks):
    """Both directions posted together: large messages round a ring would deadlock as sends that come first."""

    def check():
        group = dist.group.WORLD
        N, r = group.size(), group.rank()
        into = torch.empty(1 << 20)
        got = exchange(torch.full((1 << 20,), float(r)), (r + 1) % N, into, (r - 1) % N, group)()
        ends = exchange(torch.ones(2) * r if r == 0 else None, 1 if r == 0 else None,
                        torch.empty(2) if r == 1 else None, 0 if r == 1 else None, group)()
        return got is into and got[0].item() == (r - 1) % N, ends is None or ends.tolist()

    assert ranks(3).run(check) == [(True, True), (True, [0.0, 0.0]), (True, True)]


@pytest.mark.parametrize(("call", "words"), [
    (lambda r, g: reduce_from(torch.ones(4 * (r + 1)), g), "rank 0: [4], rank 1: [8]"),
    (lambda r, g: reduce_from(torch.ones(2).to(torch.float64 if r else torch.float32), g), "rank 1: float64"),
    (lambda r, g: gather_from(torch.ones(2, 3 + r), g, 0), "rank 0: [2, 3], rank 1: [2, 4]"),
    (lambda r, g: (reduce_from if r else split_to)(torch.ones(2), g), "rank 0: split, rank 1: all_reduce"),
    (lambda r, g: all_reduce(torch.ones(2), g, dist.ReduceOp.MAX if r else dist.ReduceOp.SUM), "same reduction"),
    (lambda r, g: split_to(torch.ones(5), g, 0, [2, 2]), "must be non-negative and add up to the 5"),
    (lambda r, g: split_to(torch.ones(4), g, 1), "dim 1 does not exist"),
    (lambda r, g: reduce_scatter(torch.ones(4), g, 0, [4]), "one size for each"),
    (lambda r, g: gather_from(torch.ones(2 + r), g, 0, [2, 2]), "told that the ranks hold"),
])
def test_what_does_not_fit_is_refused_on_every_rank(ranks, call, words):
    """C93 (ranks reduce tensors of unlike size: NCCL hangs, gloo ends a process without an exception)."""

    def check():
        try:
            call(dist.get_rank(), dist.group.WORLD)
        except Refused as refused:
            return str(refused)

    said = ranks(2).run(check, timeout=10)
    assert all(words in s for s in said), said


def test_one_rank_is_told_of_a_wrong_size_too(ranks):
    def check():
        try:
            gather_from(torch.ones(3), dist.group.WORLD, 0, [5])
        except Refused as error:
            return error.message.id

    assert ranks(1).run(check) == ["run.sizes_differ"]


def test_unchecked_sends_nothing_first(ranks):
    def check():
        group, sent = dist.group.WORLD, []

        def begun():
            before = group._get_sequence_number_for_group()
            reduce_from(torch.ones(2), group)
            return group._get_sequence_number_for_group() - before

        sent.append(begun())
        with unchecked():
            sent.append(begun())
        return sent

    assert ranks(2).run(check) == [[2, 1]] * 2


def test_a_fault_inside_a_collective_names_the_rank(ranks):
    def check():
        if dist.get_rank() == 1:
            raise ValueError("left")
        reduce_from(torch.ones(2), dist.group.WORLD)

    with pytest.raises(RankError) as error:
        ranks(2).run(check)
    assert error.value.rank == 1 and "collectives" in str(error.value).split("rank 0 stood at")[1]


def test_choices_that_differ_are_refused_on_every_rank(ranks):
    """C93, the kind: the reduce-scatter of unlike sizes gave memory nobody had written, gather and all-reduce together
    ended a process, a square cut along two dims passed in silence."""
    square = torch.arange(16.0).view(4, 4)

    def check():
        group, r = dist.group.WORLD, dist.get_rank()
        x = square[0]
        wrong = {
            "calls": lambda: gather_from(x, group, 0) if r else all_reduce(x, group),
            "gather dims": lambda: gather_from(square, group, r),
            "scatter dims": lambda: reduce_scatter(square, group, r),
            "split dims": lambda: split_to(square, group, r),
            "scatter sizes": lambda: reduce_scatter(x, group, 0, [1, 3] if r else [3, 1]),
            "split sizes": lambda: split_to(x, group, 0, [1, 3] if r else [3, 1]),
            "gather sizes": lambda: gather_from(x, group, 0, [4, 4] if r else [4, 5]),
            "receive": lambda: all_to_all(x, group, send=[2, 2], receive=[1, 3] if r else [2, 2]),
            "receive of a trade": lambda: all_to_all(square, group, 1, 0, receive=[4, 5]),
            "many dims": lambda: all_reduce(x.view(*[1] * 8, 4) if r else x, group),
        }
        refused = {}
        for name, call in wrong.items():
            try:
                call()
            except Refused as error:
                refused[name] = error.message.id
        return refused

    ids = dict.fromkeys(("gather dims", "scatter dims", "split dims", "scatter sizes", "split sizes", "gather sizes"),
                        "run.details_differ")
    ids |= {"calls": "run.calls_differ", "receive": "run.receive_differs", "receive of a trade": "run.sizes_differ",
            "many dims": "run.shapes_differ"}
    assert ranks(2).run(check) == [ids] * 2
