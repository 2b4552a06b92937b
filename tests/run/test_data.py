"""Data parallelism and ZeRO against one process with the whole batch: gradients, parameters, traffic, memory."""

import gc
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn

from paralelo.predict import data as predict
from paralelo.run import data, tensor, tutor
from paralelo.run.collectives import Ledger
from paralelo.words import Refused

pytestmark = pytest.mark.data

TOLERANCE = 1e-9
ROWS, T, V = 12, 5, 23


def model(seed=0, dtype=torch.float64, **sizes):
    return tutor.Tutor(tutor.Shape(**({"V": V, "D": 8, "L": 2, "H": 2, "K": 1, "F": 12} | sizes)), seed, dtype=dtype)


def examples(seed=0):
    """Tokens and targets in which ranks and microbatches have unequal numbers of tokens that count."""
    draw = torch.Generator().manual_seed(seed)
    tokens, targets = (torch.randint(0, V, (ROWS, T), generator=draw) for _ in range(2))
    ignored = torch.rand(ROWS, T, generator=draw) < torch.linspace(0, 0.8, ROWS)[:, None]
    return tokens, targets.masked_fill(ignored, -100)


def loss_sum(module, tokens, targets):
    inner = getattr(module, "module", module)
    return inner.head.loss(module(tokens), targets, "sum")


def mine(group, tokens, targets):
    """This rank's rows, cut as evenly as they go."""
    rank = group.rank()
    return tokens.tensor_split(group.size())[rank], targets.tensor_split(group.size())[rank]


OPTIMIZERS = {"sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), "adam": lambda p: torch.optim.Adam(p, 0.01)}


def dense_steps(optimizer, steps=2, max_norm=None):
    """One process, the whole batch: the gradients of each step and the parameters at the end."""
    dense, gradients, norms = model(), [], []
    step = OPTIMIZERS[optimizer](dense.parameters())
    for s in range(steps):
        tokens, targets = examples(s)
        dense.loss(tokens, targets).backward()
        gradients.append({name: p.grad.clone() for name, p in dense.named_parameters()})
        if max_norm:
            norms.append(nn.utils.clip_grad_norm_(dense.parameters(), max_norm).item())
        step.step()
        step.zero_grad()
    return gradients, {name: p.detach() for name, p in dense.named_parameters()}, norms


def furthest(a, b):
    assert sorted(a) == sorted(b)
    return max((a[name] - b[name]).abs().max().item() for name in a)


@contextmanager
def subgroup(size):
    """This rank's group of `size`, and which it is: the world, or one of the groups side by side in it."""
    world = dist.get_world_size()
    if size == world:
        yield dist.group.WORLD, 0
        return
    groups = [dist.new_group(range(i, i + size)) for i in range(0, world, size)]
    which = dist.get_rank() // size
    yield groups[which], which
    dist.destroy_process_group(groups[which])


def in_groups(check, size):
    with subgroup(size) as (group, _):
        return check(group)


def ddp(group):
    """Two steps over microbatches, with small buckets; the furthest gradient and parameter."""
    found = {}
    gradients, parameters, _ = dense_steps("sgd")
    for bucket_bytes, overlap in ((1, True), (1000, True), (25_000_000, False)):
        parallel = data.DataParallel(model(seed=group.rank()), group, bucket_bytes=bucket_bytes, overlap=overlap,
                                     average=False)
        with torch.no_grad():                                   # rank 0's initial values, not one's own
            assert furthest(dict(parallel.module.named_parameters()), dict(model(0).named_parameters())) == 0
        optimizer = OPTIMIZERS["sgd"](parallel.parameters())
        worst = 0.0
        for s in range(2):
            tokens, targets = mine(group, *examples(s))
            microbatches = list(zip(tokens.tensor_split(2), targets.tensor_split(2), strict=True))
            data.accumulate(parallel, microbatches, loss_sum)
            worst = max(worst, furthest(gradients[s], {n: p.grad for n, p in parallel.module.named_parameters()}))
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            worst = max(worst, furthest(parameters, dict(parallel.module.named_parameters())))
        found[bucket_bytes, overlap] = worst
    return found


def zero(group):
    """Every stage with both optimizers: gradients, parameters, and the clipped norm."""
    found = {}
    for stage in (1, 2, 3):
        for optimizer, max_norm in (("sgd", None), ("adam", 0.05)):
            gradients, parameters, norms = dense_steps(optimizer, max_norm=max_norm)
            local = model(seed=group.rank())
            parts = data.Zero(local, group, OPTIMIZERS[optimizer], stage, average=False)
            worst = 0.0
            for s in range(2):
                tokens, targets = mine(group, *examples(s))
                total = data.count_tokens(targets, group)
                for part in zip(tokens.tensor_split(2), targets.tensor_split(2), strict=True):
                    (loss_sum(local, *part) / total).backward()     # two microbatches
                parts.reduce()
                worst = max(worst, furthest(gradients[s], parts.whole_gradients()))
                if stage == 3:
                    assert sum(p.numel() for p in local.parameters()) == 0
                norm = parts.step(max_norm)
                if max_norm:
                    worst = max(worst, abs(norm.item() - norms[s]))
            found[stage, optimizer] = max(worst, furthest(parameters, parts.whole()))
    return found


@pytest.mark.parametrize("world, size", [(1, 1), (2, 2), (3, 3), (4, 4), (4, 2)])
def test_data_parallel_equals_one_process(ranks, world, size):
    """Every bucket size, with and without overlap, ranks and microbatches with unequal numbers of tokens.

    C66: each rank's mean weighed by its share of the tokens that count; divided by ranks, gradients would differ.
    """
    for found in ranks(world).run(in_groups, ddp, size):
        assert max(found.values()) < TOLERANCE, found


@pytest.mark.parametrize("world, size", [(1, 1), (2, 2), (3, 3), (4, 4), (4, 2)])
def test_zero_equals_one_process(ranks, world, size):
    """Three stages, SGD with momentum and Adam with clipping, two microbatches a step."""
    for found in ranks(world).run(in_groups, zero, size):
        assert max(found.values()) < TOLERANCE, found


def means():
    """The mean over ranks as torch's own DistributedDataParallel has it."""
    group = dist.group.WORLD
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    theirs = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double())
    theirs.module.load_state_dict(net.state_dict())
    ours = data.DataParallel(net, group, bucket_bytes=200)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(group.rank()), dtype=torch.float64)
    with ours.accumulating(), theirs.no_sync():
        ours(x).square().mean().backward()
        theirs(x).square().mean().backward()
    ours(x + 1).square().mean().backward()
    left = len(ours._flying)
    ours.synchronise()
    theirs(x + 1).square().mean().backward()
    return max((a.grad - b.grad).abs().max().item()
               for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)), left, len(ours.buckets)


def test_mean_over_ranks_equals_torch(ranks):
    """And buckets leave before backward ends: all had left before anybody waited for them."""
    for difference, left, buckets in ranks(2).run(means):
        assert difference < TOLERANCE and left == buckets > 1


def unequal_tokens():
    """Ranks with 3 and 1 tokens that count: the loss of all four, and the mean of the two means."""
    group = dist.group.WORLD
    targets = torch.tensor([[1, 2, 3, -100], [4, -100, -100, -100]])[group.rank()][None]
    tokens = torch.arange(8).view(2, 4)[group.rank()][None]
    parallel = data.DataParallel(model(), group, average=False)
    loss = data.accumulate(parallel, [(tokens, targets)], loss_sum)
    own = (loss_sum(parallel, tokens, targets) / (targets != -100).sum()).item()
    return loss, own


def test_mean_over_tokens_is_not_the_mean_of_means(ranks):
    """C66: (3·l0 + 1·l1)/4; and two equal gradients accumulated over four microbatches stay equal parts (C33)."""
    (loss, l0), (_, l1) = ranks(2).run(unequal_tokens)
    assert abs(loss - (3 * l0 + l1) / 4) < TOLERANCE < abs(loss - (l0 + l1) / 2)


def accumulated():
    """A constant raw gradient of 4 a microbatch, 4 microbatches, a step begun twice before the optimizer."""
    net = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    parallel = data.DataParallel(net, dist.group.WORLD, average=False)
    one = torch.full((1, 1), 4.0, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    data.accumulate(parallel, [one] * 8, lambda module, x, _: module(x).sum())
    return net.weight.grad.item()


def test_accumulation_scales_once(ranks):
    """C33: divided by the number of microbatches at every round, older rounds fade (2.5 instead of 4)."""
    assert ranks(2).run(accumulated) == [4.0, 4.0]


# ---- traffic


class Stack(nn.Module):
    """Blocks that all need their weights in backward, their numbers divisible by four."""

    def __init__(self, width=16, depth=3, dtype=torch.float32):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width, bias=False, dtype=dtype) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x


def traffic():
    group, found = dist.group.WORLD, []
    for stage in (0, 1, 2, 3):
        net, x = Stack(), torch.randn(2, 16, requires_grad=True)
        if stage == 0:
            parallel = data.DataParallel(net, group, bucket_bytes=1500)
        else:
            parts = data.Zero(net, group, OPTIMIZERS["sgd"], stage)
        with Ledger(data=group) as ledger:
            net(x).sum().backward()
            parallel.synchronise() if stage == 0 else parts.step()
        found.append((ledger.total.ring, {kind for kind, _ in ledger.entries}))
    return found


@pytest.mark.parametrize("world", [1, 2, 4])
def test_traffic_is_2_2_2_3(ranks, world):
    """Bytes a ring would send, counted: 2Ψ, 2Ψ, 2Ψ, 3Ψ elements times (N−1)/N, as predicted, to the byte."""
    for found in ranks(world).run(traffic):
        for stage, (ring, kinds) in enumerate(found):
            assert ring == predict.zero_traffic_bytes(3 * 16 * 16, world, stage, 4)
            expected = {"all_reduce"} if stage == 0 else {"reduce_scatter", "all_gather"}
            assert kinds == (expected if world > 1 else set())


# ---- memory


def living():
    """Bytes of all tensors of this process, each storage once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):
            for tensor_ in (thing, thing.grad if thing.is_leaf else None):
                if tensor_ is not None:
                    storages[tensor_.untyped_storage().data_ptr()] = tensor_.untyped_storage().nbytes()
    return sum(storages.values())


def memory():
    """Bytes a rank holds between backward and step, weights in bfloat16, Adam in float32."""
    group, found = dist.group.WORLD, []
    adam = {"lr": 1e-3, "foreach": False}
    before = living()
    for stage in (1, 2, 3):
        net = Stack(128, 4, torch.bfloat16)
        parts = data.Zero(net, group, lambda p: torch.optim.Adam(p, **adam), stage)
        for last in (False, True):
            net(torch.randn(2, 128, dtype=torch.bfloat16, requires_grad=True)).sum().backward()
            if last:
                found.append(living() - before)
            parts.step()
        del net, parts
    return found


@pytest.mark.parametrize("world", [4])
def test_memory_of_the_stages(ranks, world):
    """4Ψ + 12Ψ/N, 2Ψ + 14Ψ/N, 16Ψ/N bytes: what the process really holds, within 5 % of what is predicted."""
    for found in ranks(world).run(memory):
        for stage, measured in enumerate(found, 1):
            predicted = predict.zero_bytes(4 * 128 * 128, world, stage)
            assert abs(measured / predicted - 1) < 0.05, (stage, measured, predicted)


def tensor_and_data():
    """Data 2 × tensor 2: the split tutor under ZeRO; the norm over both axes, replicas counted once."""
    rank = dist.get_rank()
    tp = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    dp = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    _, parameters, norms = dense_steps("adam", max_norm=0.05)
    found = []
    for stage in (1, 3):
        local = tutor.ParallelTutor.from_dense(model(), tp)
        split, holders = tensor.splits(local), tensor.holders(local, 2)
        parts = data.Zero(local, dp, OPTIMIZERS["adam"], stage, average=False)
        for s in range(2):
            tokens, targets = mine(dp, *examples(s))
            (loss_sum(local, tokens, targets) / data.count_tokens(targets, dp)).backward()
            norm = parts.step(0.05, tp, holders=holders)
            found.append(abs(norm.item() - norms[s]))
        pieces = {name: tensor.piece(p, split[name], tp.rank(), 2) for name, p in parameters.items()}
        found.append(furthest(pieces, parts.whole()))
    dist.destroy_process_group(tp)
    dist.destroy_process_group(dp)
    return max(found)


def test_tensor_and_data_together(ranks):
    """The norm of a model cut two ways, and its parameters after clipped steps, are those of one process."""
    assert max(ranks(4).run(tensor_and_data)) < TOLERANCE


def refusals():
    group, found = dist.group.WORLD, []
    tries = [lambda: data.Zero(nn.Linear(1, 1), group, OPTIMIZERS["sgd"], 4),
             lambda: data.count_tokens(torch.full((3,), -100), group),
             lambda: data.Zero(nn.Linear(1, 1), group, OPTIMIZERS["sgd"]).step(-1.0),
             lambda: data.accumulate(data.DataParallel(nn.Linear(1, 1), group), [], None)]
    for attempt in tries:
        try:
            attempt()
            found.append(None)
        except Refused as refused:
            found.append([refused.say(lang) for lang in ("en", "es", "pt")])
    return found


def test_what_cannot_be_is_refused(ranks):
    for sentences in ranks(2).run(refusals)[0]:
        assert sentences and len(set(sentences)) == 3


def second_backwards():
    group, x = dist.group.WORLD, torch.ones(2, 3)
    refused = {}
    net = data.DataParallel(nn.Linear(3, 3), group)
    net(x).sum().backward()
    try:
        net(x).sum().backward()
    except Refused as error:
        refused["second"] = error.message.id
    mixed = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).requires_grad_(True)
    mixed[1].double()
    try:
        data.Zero(mixed, group, OPTIMIZERS["sgd"], units=[])
    except Refused as error:
        refused["types"] = error.message.id
    return refused


def test_no_gradient_and_no_type_is_lost_in_silence(ranks):
    """A second backward before `synchronise` was overwritten by what the first had sent; a unit with parameters of two
    types became one of the wider."""
    assert ranks(2).run(second_backwards) == [{"second": "run_data.second_backward", "types": "run_data.types"}] * 2


def no_microbatch():
    """Rank 1 has nothing to do in this step."""
    dense, parallel = model(), data.DataParallel(model(), dist.group.WORLD, average=False)
    tokens, targets = examples()
    dense.loss(tokens, targets).backward()
    rows = list(zip(tokens.split(5), targets.split(5), strict=True)) if dist.get_rank() == 0 else []
    loss = data.accumulate(parallel, rows, loss_sum)
    gradients = {name: p.grad for name, p in dense.named_parameters()}
    return furthest(gradients, {n: p.grad for n, p in parallel.module.named_parameters()}), loss


def test_a_rank_without_microbatches_takes_part(ranks):
    """It met an empty list where the others waited for its gradients."""
    (first, loss), (second, same) = ranks(2).run(no_microbatch)
    assert max(first, second) < TOLERANCE and loss == same > 0


def left_over():
    """A backward that wants the input's gradient only reads the weights and never comes to them."""
    group, weights = dist.group.WORLD, []
    for stage in (1, 3):
        torch.manual_seed(0)
        parts = data.Zero(net := Stack(dtype=torch.float64), group, OPTIMIZERS["sgd"], stage)
        x = torch.randn(2, 16, dtype=torch.float64, requires_grad=True)
        for _ in range(2):
            torch.autograd.grad(net(x).sum(), x)
            net(x).sum().backward()
            parts.step()
            torch.autograd.grad(net(x).sum(), x)
            parts.step()
        weights.append(parts.whole())
    return furthest(*weights)


def test_weights_gathered_for_another_backward_are_not_used_again(ranks):
    """ZeRO-3 kept what such a backward had gathered; the one after the step computed with the old weights."""
    assert max(ranks(2).run(left_over)) < TOLERANCE


def not_a_number():
    parts = data.Zero(net := nn.Linear(2, 2), dist.group.WORLD, OPTIMIZERS["sgd"])
    net(torch.tensor([[float("nan"), 1.0]])).sum().backward()
    parts.step(1.0)
    return all(p.isnan().all().item() for p in parts.whole().values())


def test_a_norm_that_is_not_a_number_shows(ranks):
    """As in torch: every gradient is NaN then, and not the half of them unclipped."""
    assert ranks(2).run(not_a_number) == [True, True]


def frozen_start():
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    net[0].requires_grad_(False)
    net[1].running_mean.fill_(dist.get_rank())
    data.Zero(net, dist.group.WORLD, OPTIMIZERS["sgd"])
    return net[0].weight.sum().item(), net[1].running_mean.sum().item()


def test_zero_starts_from_one_rank_what_is_frozen_too(ranks):
    first, second = ranks(2).run(frozen_start)
    assert first == second
