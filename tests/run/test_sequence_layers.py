"""Whole layers over split positions against the dense layers: outputs, gradients of inputs and of every parameter."""

import copy

import pytest
import torch
import torch.distributed as dist
from helpers import Groups, random, subgroup
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from paralelo.predict import sequence as predicted
from paralelo.run import sequence, tensor
from paralelo.run.collectives import Ledger, gather_from, split_to
from paralelo.words import Refused

pytestmark = pytest.mark.sequence

TOLERANCE = 1e-9
WORLDS = [(1, 1), (2, 2), (4, 4), (4, 2)]                                 # (world size, group size)


def grouped(check):
    """`check(size, group)` as a function of the size, its group ended after it."""
    def run(size):
        with subgroup(size) as group:
            return check(size, group)

    return run


def made(build):
    """A float64 module, the same on every rank, no parameter left at a round number."""
    torch.manual_seed(7)
    module = build().double()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.add_(0.1 * random(*p.shape, seed=i))
    return module


def both(dense, split, group, x, forward, whole=None):
    """Largest differences by name: output, the input's gradient, parameters' gradients.

    forward  the split module's output, whole, from the whole input
    whole    a split parameter's gradient, whole, from its name (None: it is whole already)
    """
    found, sides, weight = {}, [], None
    for module, run in ((dense, dense), (split, forward)):
        leaf = x.clone().requires_grad_()
        y = run(leaf)
        weight = random(*y.shape, seed=5) if weight is None else weight
        (y * weight).sum().backward()
        sides.append((y.detach(), leaf.grad, dict(module.named_parameters())))
    found["output"] = (sides[0][0] - sides[1][0]).abs().max().item()
    found["input"] = (sides[0][1] - sides[1][1]).abs().max().item()
    ours = {name.replace("module.", "").replace("pair.", ""): p for name, p in sides[1][2].items()}
    assert sorted(ours) == sorted(sides[0][2])
    for name, p in ours.items():
        grad, expected = whole(name, p.grad) if whole else p.grad, sides[0][2][name].grad
        assert expected.abs().max() > 1e-3, name
        found[name] = (grad - expected).abs().max().item()
    return found


# Linear attention ----------------------------------------------------------------------------------------------------


@grouped
def check_state(size, group):
    found = {}
    for T in (4, 10):
        leaves = [random(2, 3, T, 4, seed=1), random(2, 3, T, 4, seed=2) / 2, random(2, 3, T, 5, seed=3)]
        leaves += [-random(2, 3, T, seed=4).abs(), random(2, 3, T, seed=5).sigmoid()]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        weight = random(2, 3, T, 5, seed=6)
        expected = tensor.delta_rule(*leaves)[0]
        expected = [expected, *torch.autograd.grad((expected * weight).sum(), leaves)]
        for how in ("serial", "combined"):
            parts = [split_to(leaf, group, 2) for leaf in leaves]
            y = gather_from(sequence.linear_attention(tensor.delta_rule, *parts, group=group, how=how), group, 2)
            y = [y, *torch.autograd.grad((y * weight).sum(), leaves)]
            found[how, T] = max((a - b).abs().max().item() for a, b in zip(expected, y, strict=True))
    return found


@pytest.mark.parametrize(("world", "size"), [*WORLDS, (5, 5)])
def test_state_passing_equals_the_recurrence(ranks, world, size):
    """Serial and combined, keys of 4 and values of 5; one position a rank, and ten that do not divide."""
    check = check_state_of_five if size == 5 else check_state
    for found in ranks(world).run(check, size):
        assert {name: d for name, d in found.items() if d > TOLERANCE} == {}


@grouped
def check_state_of_five(size, group):
    """Five ranks: three rounds, so that transitions of combined pairs are used, and a last round for one rank only."""
    leaves = [random(1, 2, 10, 4, seed=i).requires_grad_() for i in (1, 2, 3)]
    more = [-random(1, 2, 10, seed=4).abs(), random(1, 2, 10, seed=5).sigmoid()]
    expected = tensor.delta_rule(*leaves, *more)[0]
    expected = [expected, *torch.autograd.grad(expected.square().sum(), leaves)]
    found = {}
    for how in ("serial", "combined"):
        parts = [split_to(leaf, group, 2) for leaf in (*leaves, *more)]
        y = gather_from(sequence.linear_attention(tensor.delta_rule, *parts, group=group, how=how), group, 2)
        y = [y, *torch.autograd.grad(y.square().sum(), leaves)]
        found[how] = max((a - b).abs().max().item() for a, b in zip(expected, y, strict=True))
    return found


@grouped
def check_gated_delta(size, group):
    found = {}
    for how in ("serial", "combined"):
        dense = made(lambda: tensor.GatedDelta(8, 2, 4, 3, 5, width=4))
        inner = sequence.context_parallel(copy.deepcopy(dense), group, state=how)
        split = sequence.Shared(inner, group)
        whole = lambda x, split=split: gather_from(split(split_to(x, group, 1)), group, 1)  # noqa: E731
        found |= {(how, name): d for name, d in both(dense, split, group, random(2, 13, 8), whole).items()}
    return found


@pytest.mark.parametrize(("world", "size"), WORLDS)
def test_linear_attention_layer_with_its_convolution(ranks, world, size):
    for found in ranks(world).run(check_gated_delta, size):
        assert {name: d for name, d in found.items() if d > TOLERANCE} == {}


def check_state_bytes():
    B, H, T, d, e, width, channels = 2, 3, 8, 4, 5, 4, 6
    group, N = dist.group.WORLD, dist.get_world_size()
    sent = {}
    for how in ("serial", "combined"):
        parts = [random(B, H, T // N, n, seed=n).float().requires_grad_() for n in (d, d, e)]
        more = [-random(B, H, T // N).float().abs(), random(B, H, T // N).float().sigmoid()]
        with Ledger(cp=group) as forward:
            y = sequence.linear_attention(tensor.delta_rule, *parts, *more, group=group, how=how)
        with Ledger(cp=group) as backward:
            y.sum().backward()
        sent[how] = forward.total.ring, backward.total.ring
    with Ledger(cp=group) as forward:
        sequence.halo(random(B, 2 * width, channels).float(), group, width - 1)
    sent["halo"] = forward.total.ring
    return sent


@pytest.mark.parametrize("N", [2, 4])
def test_bytes_of_states(ranks, N):
    """One state to the next rank, whatever the length; pairs in ⌈log₂N⌉ rounds, the last without transitions."""
    found = ranks(N).run(check_state_bytes)
    state, pair = predicted.state_bytes(2, 3, 4, 5), predicted.state_bytes(2, 3, 4, 4)
    rounds = predicted.scan_rounds(N, pairs=True)
    for rank, sent in enumerate(found):
        assert sent["serial"] == (state * (rank < N - 1), state * (rank > 0))
        for way, has in ((0, lambda by, rank=rank: rank + by < N), (1, lambda by, rank=rank: rank - by >= 0)):
            messages = [state + pair * (i < rounds - 1) for i in range(rounds) if has(2**i)]
            assert sent["combined"][way] == sum(messages)
        assert sent["halo"] == predicted.halo_bytes(2, 4, 6, 4) * (rank < N - 1)


# Attention -----------------------------------------------------------------------------------------------------------


@grouped
def check_attention_layer(size, group):
    found = {}
    for order in ("contiguous", "zigzag"):
        for attention in (sequence.ring_attention, sequence.ulysses_attention):
            dense = made(lambda: tensor.Attention(16, 4, 2, 4, bias=True, gated_query=True, qk_norm="head"))
            inner = sequence.context_parallel(copy.deepcopy(dense), group, attention, order)
            split = sequence.Shared(inner, group)

            def whole(x, split=split, order=order):
                at = sequence.positions(x.shape[1] // size, group, order)
                return sequence.collect(split(sequence.spread(x, group, 1, order), at), group, 1, order)

            differences = both(dense, split, group, random(2, 16, 16), whole)
            found |= {(order, attention.__name__, name): d for name, d in differences.items()}
    return found


@pytest.mark.parametrize(("world", "size"), WORLDS)
def test_attention_layer_with_rotary_positions(ranks, world, size):
    for found in ranks(world).run(check_attention_layer, size):
        assert {name: d for name, d in found.items() if d > TOLERANCE} == {}


def check_tensor_and_context():
    """Ring over one axis, heads over the other: four ranks, 2 × 2."""
    with Groups() as groups:
        tp, cp = groups.side_by_side([(0, 1), (2, 3)]), groups.side_by_side([(0, 2), (1, 3)])
        dense = made(lambda: tensor.Attention(16, 4, 2, 4))
        split = tensor.ParallelAttention.from_dense(dense, tp)
        sequence.context_parallel(split, cp, order="zigzag")
        x = random(2, 16, 16)
        y = split(sequence.zigzag(x, cp, 1), sequence.positions(8, cp, "zigzag"))
        return (sequence.unzigzag(y, cp, 1) - dense(x)).abs().max().item()


def test_ring_inside_tensor_parallel_attention(ranks):
    assert max(ranks(4).run(check_tensor_and_context)) < TOLERANCE


# Megatron ------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """norm, attention, norm, MLP, with residuals: the dense reference."""

    def __init__(self):
        super().__init__()
        self.first, self.second = tensor.RMSNorm(8), tensor.RMSNorm(8)
        self.attention = tensor.Attention(8, 4, 2, 4, bias=True, out_bias=True)
        self.mlp = tensor.MLP(8, 12, bias=True)

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


@grouped
def check_megatron(size, group):
    found = {}
    for regather in (False, True):
        for T in (8, 7):
            dense = made(Block)
            first, second = copy.deepcopy(dense.first), copy.deepcopy(dense.second)
            split = nn.ModuleDict({
                "first": sequence.SequenceParallel.from_dense(dense.attention, group, first, regather),
                "second": sequence.SequenceParallel.from_dense(dense.mlp, group, second, regather),
            })

            def whole(x, split=split):
                part = split_to(x, group, 1)
                part = part + split["first"](part)
                return gather_from(part + split["second"](part), group, 1)

            x, weight, sides = random(2, T, 8), random(2, T, 8, seed=5), []
            for run in (dense, whole):
                leaf = x.clone().requires_grad_()
                y = run(leaf)
                (y * weight).sum().backward()
                sides.append((y.detach(), leaf.grad))
            key = regather, T
            found[key, "output"] = (sides[0][0] - sides[1][0]).abs().max().item()
            found[key, "input"] = (sides[0][1] - sides[1][1]).abs().max().item()
            for mine, theirs, norm in (("first", "attention", "first"), ("second", "mlp", "second")):
                pair, dense_pair = split[mine].pair, dict(getattr(dense, theirs).named_parameters())
                for name, how in tensor.splits(pair).items():
                    expected = tensor.piece(dense_pair[name].grad, how, group.rank(), group.size())
                    found[key, theirs, name] = (dict(pair.named_parameters())[name].grad - expected).abs().max().item()
                ours = split[mine].norm.module.weight.grad
                found[key, norm] = (ours - getattr(dense, norm).weight.grad).abs().max().item()
    return found


@pytest.mark.parametrize(("world", "size"), WORLDS)
def test_megatron_pairs_equal_dense(ranks, world, size):
    """Both variants; 7 positions do not divide, and none is dropped.

    C58: gradients of norm weights (and row-parallel biases) were each rank's part, or the average. They are the sum.
    """
    for found in ranks(world).run(check_megatron, size):
        assert {name: d for name, d in found.items() if d > TOLERANCE} == {}


def check_megatron_bytes(B, T, D, F):
    group, found = dist.group.WORLD, {}
    for regather in (False, True):
        torch.manual_seed(0)
        pairs = [sequence.SequenceParallel.from_dense(dense, group, None, regather)
                 for dense in (tensor.Attention(D, 4, 4, theta=None), tensor.MLP(D, F))]
        part = split_to(torch.randn(B, T, D), group, 1).requires_grad_()
        sent = []
        with Ledger(tp=group) as forward:
            y = part
            for pair in pairs:
                y = y + pair(y)
        with Ledger(tp=group) as backward:
            y.sum().backward()
        sent = forward.total.ring, backward.total.ring
        gathered = []

        def watch(_, args, to=gathered):
            to.append(StorageWeakRef(args[0].untyped_storage()))

        pairs[1].pair.register_forward_pre_hook(watch)
        y = pairs[1](part)                                                # its graph lives as long as y
        found[regather] = sent, not gathered[0].expired(), y.requires_grad
    return found


@pytest.mark.parametrize("N", [2, 4])
def test_megatron_sends_8_or_10_and_keeps_what_it_says(ranks, N):
    """Per layer 8 times (N−1)/N · B·T·D; or 10, the inputs gathered again, and the gathered ones not kept."""
    B, T, D, F = 2, 8, 16, 24
    for found in ranks(N).run(check_megatron_bytes, B, T, D, F):
        for regather, (sent, kept, _) in found.items():
            assert sum(sent) == predicted.sequence_parallel_bytes(B, T, D, N, 4, regather)
            assert sent[0] == predicted.tensor_parallel_bytes(B, T, D, N, 4) / 2
            assert kept == (not regather)


class Turned(nn.Module):
    """Σ over the ranks of x², computed on a transposed view: autograd saves that view, as large as x."""

    def __init__(self, group):
        super().__init__()
        self.group = group

    def forward(self, x):
        return sequence.scatter_positions((x.mT * x.mT).mT, self.group)


def check_turned():
    group, found = dist.group.WORLD, []
    for regather in (False, True):
        part = split_to(random(2, 6, 3), group, 1).requires_grad_()
        sequence.SequenceParallel(Turned(group), group, None, regather)(part).sum().backward()
        found.append((part.grad - 2 * group.size() * part).abs().max().item())
    return found


def test_a_transposed_view_is_not_taken_for_what_was_gathered(ranks):
    """It has as many numbers in the same storage; gathered again and laid out straight it gave another gradient."""
    for found in ranks(2).run(check_turned):
        assert max(found) < TOLERANCE


def check_layer_refusals():
    group, found = dist.group.WORLD, []
    for call in (lambda: sequence.SequenceParallel.from_dense(nn.Linear(2, 2), group),
                 lambda: sequence.context_parallel(tensor.GatedDelta(8, 2, 4, 3, 5), group, order="zigzag"),
                 lambda: sequence.context_parallel(tensor.GatedDelta(8, 2, 4, 3, 5), group, documents=(2, 2))):
        try:
            call()
        except Refused as no:
            found.append([no.message.id, len({no.say(lang) for lang in ("en", "es", "pt")})])
    return found


def test_layers_that_cannot_be_split_are_refused(ranks):
    for found in ranks(2).run(check_layer_refusals):
        assert found == [["run_sequence.pair", 3], ["run_sequence.state_order", 3], ["run_sequence.state_order", 3]]


def check_only_values():
    group = dist.group.WORLD
    q, k, v = (random(1, 2, 4, 3, seed=i) for i in range(3))
    more = [random(1, 2, 4, seed=i).sigmoid() for i in (3, 4)]
    for which in range(5):
        of_whole, of_parts = ([x.clone().requires_grad_(i == which) for i, x in enumerate(xs)]
                              for xs in ((q, k, v, *more), [split_to(x, group, 2) for x in (q, k, v, *more)]))
        whole, _ = tensor.delta_rule(*of_whole)
        part = sequence.linear_attention(tensor.delta_rule, *of_parts, group=group, how="serial")
        weight = random(*whole.shape, seed=9)
        (whole * weight).sum().backward()
        (part * split_to(weight, group, 2)).sum().backward()
        torch.testing.assert_close(of_parts[which].grad, split_to(of_whole[which].grad, group, 2), rtol=1e-9, atol=1e-9)


def test_a_single_input_that_wants_a_gradient_gets_it(ranks):
    """With frozen keys, the state from the rank before asked for no gradient, and that rank waited for it for ever."""
    ranks(2).run(check_only_values)
