"""Mixture of experts over ranks against one rank: outputs, losses, gradients of inputs and of every parameter."""

import copy

import pytest
import torch
import torch.distributed as dist
from helpers import Groups, random

from paralelo.predict import experts as predicted
from paralelo.predict.layout import Layout
from paralelo.run import experts
from paralelo.run.collectives import Ledger, all_reduce
from paralelo.run.tensor import MLP
from paralelo.words import Refused

pytestmark = pytest.mark.experts

TOLERANCE = 1e-9
D, F = 6, 8


def dense_layer(E=4, k=2, variant="softmax_topk_renormalized", factor=None, shared=True):
    torch.manual_seed(3)
    router = experts.Router(D, E, k, variant=variant).double()
    if router.bias is not None:
        router.bias += 0.05 * random(E, seed=8)
    shared = MLP(D, F) if shared else None
    return experts.MoE(D, F, E, k, router=router, shared=shared, shared_gate=shared is not None,
                       capacity_factor=factor).double()


# One rank ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", predicted.VARIANTS)
@pytest.mark.parametrize("factor", [None, 1])
def test_dense_layer_token_by_token(variant, factor):
    """The layer against a loop over tokens whose routing is that of `predict`."""
    moe, x = dense_layer(5, 2, variant, factor), random(7, D, seed=1)
    assert moe(x[0]).shape == (D,)                                        # one token, no dims before its features
    y, e = moe(x), moe.experts
    logits = (x @ moe.router.weight.T).tolist()
    bias = None if moe.router.bias is None else moe.router.bias.tolist()
    chosen = [predicted.choose(row, 2, variant, bias) for row in logits]
    limit = None if factor is None else predicted.capacity(7, 5, 2, factor)
    taken = predicted.kept([[i for i, _ in row] for row in chosen], limit)
    for t, row in enumerate(chosen):
        expected = moe.shared(x[t]) * (moe.shared_gate(x[t])).sigmoid()
        for (i, weight), kept in zip(row, taken[t], strict=True):
            hidden = torch.nn.functional.silu(e.gate[i] @ x[t]) * (e.up[i] @ x[t])
            expected = expected + kept * weight * (e.down[i] @ hidden)
        assert (y[t] - expected).abs().max() < TOLERANCE
    assert moe.routing.kept.tolist() == taken
    assert factor is None or not moe.routing.kept.all()


def test_top_k_weights():
    """C73: softmax then top-k equals top-k then softmax only with the division by the chosen sum."""
    logits, found = torch.tensor([[2.0, 1.0, 0.0, -1.0]]), {}
    for variant in predicted.VARIANTS[:3]:
        found[variant] = experts.Router(D, 4, 2, variant=variant).route(logits).weights[0].tolist()
    assert found["softmax_topk"] == pytest.approx([0.6439, 0.2369], abs=1e-4)
    assert found["topk_softmax"] == pytest.approx([0.7311, 0.2689], abs=1e-4)
    assert found["softmax_topk_renormalized"] == pytest.approx(found["topk_softmax"])


@pytest.mark.parametrize("variant", predicted.VARIANTS)
def test_prediction_and_run_route_alike(variant):
    """The same logits: who is chosen, the weights, and what the losses see. The prediction took softmax for P where
    the run took s over Σ s."""
    rows = [list(row) for row in predicted.routing._logits(40, 6, 1.0, 3)] + [[-900.0 - i for i in range(6)]]
    drawn = predicted.draw(40, 6, 2, 1.0, 3, variant)
    router = experts.Router(D, 6, 2, variant=variant, dtype=torch.float64)
    routing = router.route(torch.tensor(rows, dtype=torch.float64, requires_grad=True))
    for row, chosen, weights in zip(rows, routing.experts.tolist(), routing.weights, strict=True):
        expected = predicted.choose(row, 2, variant)
        assert chosen == [e for e, _ in expected] and weights.tolist() == pytest.approx([w for _, w in expected])
    found = router.route(torch.tensor(rows[:40], dtype=torch.float64))
    assert found.counts.tolist() == drawn.counts
    assert found.probabilities.mean(0).tolist() == pytest.approx(drawn.P)
    assert experts.balance_loss(found).item() == pytest.approx(drawn.balance())
    assert experts.z_loss(found).item() == pytest.approx(drawn.z_loss)
    routing.weights.sum().backward()
    assert routing.logits.grad.isfinite().all()


def routing_of(logits, k):
    return experts.Router(D, logits.shape[1], k, variant="softmax_topk").route(logits)


def test_balance_loss():
    """C76: multiplying the wrong vectors made it almost constant. 1 for perfect balance, E for collapse, at any k."""
    even, collapse = 50 * torch.eye(4), torch.tensor([[50.0, 0, 0, 0]]).repeat(4, 1)
    assert experts.balance_loss(routing_of(even, 1)).item() == pytest.approx(1)
    assert experts.balance_loss(routing_of(collapse, 1)).item() == pytest.approx(4)
    assert experts.balance_loss(routing_of(torch.zeros(4, 4), 4)).item() == pytest.approx(1)
    logits = random(9, 5)
    routing = routing_of(logits, 2)
    P = routing.probabilities.mean(0).tolist()
    assert experts.balance_loss(routing).item() == pytest.approx(predicted.balance_of(routing.counts.tolist(), P))
    assert experts.z_loss(routing).item() == pytest.approx(predicted.z_loss(logits.tolist()))


def test_bias_evens_the_load():
    torch.manual_seed(0)
    router = experts.Router(D, 8, 2, variant="sigmoid_bias")
    x = torch.randn(256, D) + 1
    before = router(x).counts
    for _ in range(60):
        router.balance(router(x).counts, 2e-2)
    after = router(x).counts
    assert before.max() > 110 > 80 > after.max() and router.weight.grad is None
    half = experts.Router(D, 8, 2, variant="sigmoid_bias", dtype=torch.bfloat16)
    for _ in range(1000):
        half.balance(torch.arange(8), 1e-3)                               # in bfloat16 the bias stopped at a half
    assert half.bias[0].item() == pytest.approx(1, abs=1e-4)


def test_capacity_never_exceeds_the_tokens():
    """C78: a capacity factor of 4 gave 8 places for 4 tokens, and top-k failed."""
    moe = dense_layer(2, 1, factor=4, shared=False)
    moe(random(4, D))
    assert moe.routing.kept.all() and predicted.capacity(4, 2, 1, 4) == 4


def test_capacity_cut_over_tensor_ranks():
    """C80: three places an expert do not divide over two tensor ranks. Tokens are cut before routing instead."""
    assert predicted.capacity(10, 4, 1, 1, multiple=2) == 4
    assert [predicted.capacity(n, 4, 1, 1) for n in (5, 5)] == [2, 2]


@pytest.mark.parametrize("call", [
    lambda: experts.Router(D, 4, 5), lambda: experts.Router(D, 4, 0),
    lambda: experts.Router(D, 4, 2, variant="softmax"),
    lambda: experts.MoE(D, F, 4, 2, router=experts.Router(D, 4, 1)),
])
def test_wrong_sizes_are_refused(call):
    with pytest.raises(Refused) as no:
        call()
    assert len({no.value.say(lang) for lang in ("en", "es", "pt")}) == 3


# Many ranks ----------------------------------------------------------------------------------------------------------


def one_rank(dense, chunks, weight):
    """The loss of one process: tokens of all ranks, each rank's chunk routed (and dropped) by itself."""
    leaf = torch.cat(chunks).requires_grad_()
    parts, ys = [], []
    for chunk in leaf.split([len(c) for c in chunks]):
        ys.append(dense(chunk))
        parts.append(dense.routing)
    logits, counts = torch.cat([p.logits for p in parts]), sum(p.counts for p in parts)
    P = torch.cat([p.probabilities for p in parts]).mean(0)
    loss = (torch.cat(ys) * weight).sum() / len(leaf)
    loss = loss + 0.1 * len(P) * (counts.double() / counts.sum() * P).sum()
    loss = loss + 0.01 * logits.logsumexp(-1).square().mean()
    loss.backward()
    return loss.item(), torch.cat(ys).detach(), leaf.grad


def check_mix(made, degrees, tokens, options, collapse=False, frozen_input=False):
    """Largest differences by name between one rank and a layout: `tokens[d]` on data rank d."""
    layout = Layout(**degrees)
    groups = {axis: made.side_by_side(layout.groups(axis)) for axis in ("dp", "tp", "ep", "etp", "edp")}
    at = layout.coordinates(dist.get_rank())
    dense = dense_layer(**options)
    if collapse:
        torch.nn.init.zeros_(dense.router.weight)                         # a tie: the lowest experts take everything
    mine = [random(n, D, seed=10 + d) for d, n in enumerate(tokens)]
    tp = layout.tp
    chunks = [part for x in mine for part in x.tensor_split(tp)] if tp > 1 else mine
    weight = random(sum(tokens), D, seed=5)
    loss, y, grad = one_rank(dense, chunks, weight)

    tensor = groups["tp"] if tp > 1 else None
    moe = experts.ExpertParallelMoE.from_dense(dense, groups["ep"], tensor=tensor,
                                               expert_tensor=groups["etp"] if layout.etp > 1 else None)
    assert all(p.grad is None for p in moe.parameters())
    start = sum(tokens[:at["dp"]])
    own = slice(start, start + tokens[at["dp"]])
    x = mine[at["dp"]].clone().requires_grad_(not frozen_input)
    out = moe(x)
    # every tensor rank has the whole y of its data rank, and the balance terms of its own part of the tokens
    n, routed = sum(tokens), dist.group.WORLD
    share = (out * weight[own]).sum() / n
    terms = 0.1 * experts.balance_loss(moe.routing, routed) + 0.01 * experts.z_loss(moe.routing, routed)
    (share + terms).backward()
    dense_ranks = groups["dp"]
    unsynchronised = all(p.grad is not None for p in moe.parameters())
    experts.synchronise(moe, dense=dense_ranks, experts=groups["edp"])
    total = all_reduce(share.detach() / tp + terms.detach(), dist.group.WORLD)

    found = {"loss": abs(total.item() - loss), "output": _gap(out, y[own])}
    if not frozen_input:
        found["input"] = _gap(x.grad, grad[own])
    theirs = dict(dense.named_parameters())
    part = experts.part_of_experts(_gradients(dense.experts), groups["ep"], groups["etp"] if layout.etp > 1 else None)
    expected = {f"experts.{name}": p for name, p in part.named_parameters()}
    names = [name for name, _ in moe.named_parameters()]
    assert sorted(names) == sorted(theirs)
    for name, p in moe.named_parameters():
        found[name] = _gap(p.grad, expected.get(name, theirs[name].grad))
    busy = theirs["router.weight"].grad.abs().max().item()
    return found, unsynchronised, busy


def _gap(a, b):
    assert a.shape == b.shape
    return (a - b).detach().abs().max().item() if a.numel() else 0.0


def _gradients(module):
    """The same module with its gradients for parameters, to be cut as parameters are."""
    other = copy.deepcopy(module)
    with torch.no_grad():
        for p, q in zip(other.parameters(), module.parameters(), strict=True):
            p.copy_(q.grad)
    return other


DATA = [(1, dict(), (7,)), (2, dict(dp=2), (6, 3)), (2, dict(dp=2, ep=2), (6, 3)), (2, dict(dp=2, ep=2), (0, 5)),
        (4, dict(dp=4), (3, 0, 5, 2)), (4, dict(dp=4, ep=2), (3, 0, 5, 2)), (4, dict(dp=4, ep=4), (3, 0, 5, 2))]
TENSOR = [(2, dict(tp=2, ep=2), (7,)), (4, dict(dp=2, tp=2, ep=2), (5, 4)), (4, dict(dp=2, tp=2, ep=4), (5, 1)),
          (4, dict(dp=2, tp=2, ep=2, etp=2), (5, 4)), (4, dict(dp=4, etp=4), (3, 0, 5, 2)),
          (4, dict(dp=2, tp=2, ep=4, order="tp-cp-ep-pp-dp"), (5, 4))]


def check_mixes(world):
    """Every mix of degrees that this world has, with every kind of layer."""
    with Groups() as groups:
        return mixes(world, groups)


def mixes(world, groups):
    found, kinds = {}, [{}, {"E": 6, "k": 3}, {"factor": 1}, {"variant": "sigmoid_bias", "shared": False}]
    for of, degrees, tokens in DATA + TENSOR:
        for options in kinds if of == world else ():
            differences, took_part, busy = check_mix(groups, degrees, tokens, options)
            found |= {(*degrees.items(), *options.items(), name): d for name, d in differences.items()}
            assert took_part and busy > 1e-4
    return found


@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_mix_of_groups_equals_one_rank(ranks, world):
    """Data, tensor, expert and expert-tensor groups; ranks without tokens; 6 experts over 4 ranks; drops.

    C69: expert gradients were ep times too large, which Adam hides: 1×, 2×, 4× for ep 1, 2, 4.
    C72: right loss, wrong gradient of the router: each rank sees part of the experts.
    C70: experts lie on another folding of the same ranks; ep 4 with dp 2 works.
    """
    for found in ranks(world).run(check_mixes, world):
        assert {name: d for name, d in found.items() if not d < TOLERANCE} == {}


def check_idle_experts():
    degrees = dict(dp=2, ep=2)
    with Groups() as groups:
        found = [check_mix(groups, degrees, tokens, {"k": 1}, collapse=True) for tokens in ((4, 0), (3, 2))]
        found.append(check_mix(groups, degrees, (4, 0), {"k": 1, "shared": False}, collapse=True, frozen_input=True))
    moe = experts.ExpertParallelMoE.from_dense(dense_layer(), dist.group.WORLD)
    y = moe(torch.zeros(0, D, dtype=torch.float64))                       # no token on any rank
    (y.sum() + experts.balance_loss(moe.routing, dist.group.WORLD)).backward()
    found.append(({name: p.grad.abs().max().item() for name, p in moe.experts.named_parameters()}, y.shape == (0, D)))
    return [(differences, took_part) for differences, took_part, *_ in found]


def test_idle_ranks_and_experts_take_part(ranks):
    """C67: a rank without tokens made a fresh empty tensor, skipped the backward exchange, and the others waited.

    All tokens to one expert, one rank without tokens, no token at all, inputs without gradient: it ends, and the
    gradients of idle experts are zeros, not None.
    """
    for found in ranks(2).run(check_idle_experts):
        for differences, took_part in found:
            assert took_part and {name: d for name, d in differences.items() if not d < TOLERANCE} == {}


def check_more_ranks_than_experts():
    dense = dense_layer(3)
    moe = experts.ExpertParallelMoE.from_dense(dense, dist.group.WORLD)
    x = random(5, D, seed=dist.get_rank())
    y = moe(x)
    y.sum().backward()
    return moe.experts.E, _gap(y, dense(x)), all(p.grad is not None for p in moe.parameters())


def test_more_ranks_than_experts(ranks):
    """A rank without experts keeps its empty parameters in the graph."""
    found = ranks(4).run(check_more_ranks_than_experts)
    assert [held for held, *_ in found] == [1, 1, 1, 0]
    assert all(gap < TOLERANCE and took_part for _, gap, took_part in found)


def check_own_means(ep):
    """Each rank's loss is the mean of its own, equally many tokens; everything is divided by dp."""
    with Groups() as groups:
        return own_means(*(groups.side_by_side(Layout(dp=4, ep=ep).groups(axis)) for axis in ("ep", "edp")))


def own_means(ep, edp):
    dense, x = dense_layer(), random(8, D, seed=1)
    dense(x).square().mean().backward()
    moe = experts.ExpertParallelMoE.from_dense(dense, ep)
    moe(x[2 * dist.get_rank():][:2]).square().mean().backward()
    experts.synchronise(moe, dense=dist.group.WORLD, experts=edp, divisor=4)
    part = experts.part_of_experts(_gradients(dense.experts), ep)
    ours, theirs = dict(moe.named_parameters()), dict(dense.named_parameters())
    expected = {name: p.grad for name, p in theirs.items()} | {f"experts.{n}": p for n, p in part.named_parameters()}
    return max(_gap(p.grad, expected[name]) for name, p in ours.items())


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_means_are_divided_by_all_data_ranks(ranks, ep):
    """C69 again, where ranks average: dividing experts by edp instead of dp leaves 1×, 2×, 4×."""
    assert max(ranks(4).run(check_own_means, ep)) < TOLERANCE


def check_bytes(n, E, k):
    group, rank = dist.group.WORLD, dist.get_rank()
    dense = dense_layer(E, k, shared=False).float()
    moe = experts.ExpertParallelMoE.from_dense(dense, group)
    x = random(n, D, seed=rank).float().requires_grad_()
    with Ledger(ep=group) as forward:
        y = moe(x)
    with Ledger(ep=group) as backward:
        y.sum().backward()
    exchange = experts.plan(moe.routing.experts, moe.routing.kept, moe.held, group)
    return (forward["all_to_all"].payload, backward["all_to_all"].payload, forward.total.calls, backward.total.calls,
            forward.total.ring, moe.routing.experts.tolist(), exchange.send, exchange.receive)


@pytest.mark.parametrize("N", [2, 4])
def test_bytes_and_exchange_matrix(ranks, N):
    """Two exchanges of k·n·D forward and two backward, and E counts before; who sends what to whom."""
    n, E, k = 5, 6, 2
    found = ranks(N).run(check_bytes, n, E, k)
    received = [r[1] for r in found]
    routing = predicted.Routing(E, [row for r in found for row in r[5]])
    matrix, one = routing.exchange(N), predicted.exchange_bytes(n, k, D, 4)
    for rank, (forward, backward, calls, backward_calls, ring, _, send, receive) in enumerate(found):
        assert send == matrix[rank] and receive == [row[rank] for row in matrix]
        assert calls == 3 and backward_calls == 2
        back = sum(receive) * D * 4                                       # what came goes back
        assert forward == 8 * E + one + back and backward == one + back
        counts = 8 * (E - len(predicted.experts_of(E, N)[rank]))
        leaving = (sum(send) - send[rank] + sum(receive) - receive[rank]) * D * 4
        assert ring == counts + leaving
    assert sum(received) == 2 * 2 * one * N / 2


def check_generators():
    torch.manual_seed(3)
    with torch.random.fork_rng():
        dense = experts.MoE(6, 5, 3, 1)
    before = torch.get_rng_state()
    split = experts.ExpertParallelMoE.from_dense(dense, dist.group.WORLD)
    return torch.equal(before, torch.get_rng_state()), split.experts.E


def test_splitting_leaves_the_generators_alone(ranks):
    """Ranks with unlike numbers of experts drew unlike many numbers: everything random after that was no longer shared
    (dropout of replicated activations, say)."""
    assert ranks(2).run(check_generators) == [(True, 2), (True, 1)]
