"""Any schedule on real stages: loss and every gradient equal to those of the whole model on one rank."""

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from helpers import Block, Embed
from torch import nn

from paralelo.predict.layout import stages as layers_of_stages
from paralelo.predict.pipeline import NAMES, build, from_text
from paralelo.run.pipeline import cut, run_step
from paralelo.words import Refused

pytestmark = pytest.mark.pipeline
D, V = 8, 13


class Head(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return x @ self.weight.T


def dense(layers, seed=0, tied=False):
    """A list of modules: the embedding, `layers` blocks, the head."""
    torch.manual_seed(seed)
    embed = Embed(V, D)
    head = Head(embed.weight if tied else nn.Parameter(torch.randn(V, D)))
    return nn.ModuleList([embed, *(Block(D) for _ in range(layers)), head]).double()


def stage_modules(model, schedule, rank):
    """This rank's stages of a copy of the model: the blocks divided the larger first, the ends with their stages."""
    model = copy.deepcopy(model)
    counts, at = layers_of_stages(len(model), schedule.num_stages), 0
    pieces = []
    for n in counts:
        pieces.append(nn.Sequential(*model[at: at + n]))
        at += n
    return [pieces[s] for s in schedule.stages_of(rank)], counts


def names_of(counts, stage):
    return range(sum(counts[:stage]), sum(counts[: stage + 1]))


def loss_fn(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def reference(model, inputs, targets, M, weights=None):
    model = copy.deepcopy(model)
    total = 0
    parts = zip(cut(inputs, M, "inputs", 0), cut(targets, M, "targets", 0), strict=True)
    for m, ((x,), (y,)) in enumerate(parts):
        for layer in model:
            x = layer(x)
        loss = loss_fn(x, y) * (1 / M if weights is None else weights[m])
        loss.backward()
        total += loss.item()
    return total, {n: p.grad for n, p in model.named_parameters()}


def gradients(own, counts, schedule, rank):
    """Gradients by their names in the dense model."""
    found = {}
    for stage, module in zip(schedule.stages_of(rank), own, strict=True):
        for i, layer in zip(names_of(counts, stage), module, strict=True):
            found |= {f"{i}.{n}": p.grad for n, p in layer.named_parameters()}
    return found


def batch(rows=12, T=5, seed=1):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(V, (rows, T), generator=g), torch.randint(V, (rows, T), generator=g)


def every_schedule(model, cases, inputs, targets):
    """Run each (name, M, C) on this world; this rank's losses and gradients."""
    group, out = dist.group.WORLD, []
    rank, S = dist.get_rank(group), dist.get_world_size(group)
    for name, M, C in cases:
        schedule = build(name, S, M, C)
        own, counts = stage_modules(model, schedule, rank)
        loss = run_step(schedule, own, inputs, targets, loss_fn, group)
        out.append((loss.item(), gradients(own, counts, schedule, rank)))
    return out


def assert_equal_to_dense(model, found, inputs, targets, M, **kw):
    loss, grads = reference(model, inputs, targets, M, **kw)
    seen = set()
    for rank_loss, of_rank in found:
        assert rank_loss == pytest.approx(loss, rel=1e-12)
        for name, g in of_rank.items():
            torch.testing.assert_close(g, grads[name], rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
        seen |= of_rank.keys()
    assert seen == {n for n in grads}


def gradient_of_inputs(model, name):
    group = dist.group.WORLD
    schedule = build(name, 2, 4)
    x = torch.ones(5, 3, D, dtype=torch.float64).cumsum(0).requires_grad_()
    own, _ = stage_modules(model, schedule, group.rank())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_step(schedule, own, x, x.detach().flip(0), nn.functional.mse_loss, group)
    return x.grad


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v"])
def test_inputs_get_their_gradient(ranks, name):
    """Cut from a whole batch they are no leaves, and torch warned at every microbatch."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Sequential(nn.Linear(D, D), nn.Tanh()) for _ in range(4)).double()
    x = torch.ones(5, 3, D, dtype=torch.float64).cumsum(0).requires_grad_()
    for part, target in zip(x.tensor_split(4), x.detach().flip(0).tensor_split(4), strict=True):
        (nn.functional.mse_loss(nn.Sequential(*model)(part), target) / 4).backward()
    found, other = ranks(2).run(gradient_of_inputs, model, name)
    torch.testing.assert_close(found, x.grad, rtol=1e-9, atol=1e-12)
    assert other is None


@pytest.mark.parametrize("S", [1, 2, 4])
def test_every_schedule_equals_dense(ranks, S):
    """Seven schedules, stages of unequal size (7 layers and two ends), M above and below S, microbatches of 3 and 2.

    C23: 1F1B with fewer microbatches than stages hangs where the warm-up does not stop at M. C25: interleaved orders
    exist for M that S does not divide.
    """
    model = dense(7)
    inputs, targets = batch(rows=11)
    cases = [(name, 4 if name != "dualpipe-v" else 8, 2 if name == "interleaved" else 1) for name in NAMES]
    cases += [("gpipe", 2, 1), ("1f1b", 1, 1), ("1f1b", 2, 1), ("zb-h1", 2, 1), ("zb-v", 2, 1), ("interleaved", 3, 2),
              ("interleaved", 7 if S == 4 else 6, 2)]
    found = list(zip(*ranks(S).run(every_schedule, model, cases, inputs, targets), strict=True))
    for (_, M, _), of_case in zip(cases, found, strict=True):
        assert_equal_to_dense(model, of_case, inputs, targets, M)


# ---- what a batch may look like


def with_list(model, schedule_text, inputs, targets, weights):
    group = dist.group.WORLD
    rank = dist.get_rank(group)
    schedule = from_text(schedule_text)
    own, counts = stage_modules(model, schedule, rank)
    loss = run_step(schedule, own, inputs if rank == 0 else None, targets if rank == schedule.stages - 1 else None,
                    loss_fn, group, weights=weights)
    return loss.item(), gradients(own, counts, schedule, rank)


def test_shapes_change_between_microbatches(ranks):
    """Lengths 5, 3, 5, 2 and a schedule written by hand; inputs only where they are used; weights by tokens."""
    model, lengths = dense(4), [5, 3, 5, 2]
    inputs, targets = zip(*(batch(2, T, seed=T) for T in lengths), strict=True)
    weights = [T / sum(lengths) for T in lengths]
    text = "F0 F1 B0 F2 F3 B1 B2 B3 / F0 B0 F1 B1 F2 F3 B2 B3"
    found = ranks(2).run(with_list, model, text, list(inputs), list(targets), weights)
    whole = sum(loss_of(model, x, y) * w for x, y, w in zip(inputs, targets, weights, strict=True))
    whole.backward()
    grads = {n: p.grad for n, p in model.named_parameters()}
    for loss, of_rank in found:
        assert loss == pytest.approx(whole.item(), rel=1e-12)
        for name, g in of_rank.items():
            torch.testing.assert_close(g, grads[name], rtol=1e-9, atol=1e-12)


def loss_of(model, x, y):
    for layer in model:
        x = layer(x)
    return loss_fn(x, y)


class Two(nn.Module):
    """Returns two tensors that want a gradient and one of whole numbers; the second is not used by the last stage."""

    def __init__(self, last):
        super().__init__()
        self.last, self.w = last, nn.Parameter(torch.tensor([1.5, -0.5], dtype=torch.float64))

    def forward(self, a, b, index):
        a, b = a * self.w[0], b + self.w[1] * a
        return a[index].sum() if self.last == "one" else (a + b).sum() if self.last else (a, b, index)


def several(kind, last):
    group = dist.group.WORLD
    rank = dist.get_rank(group)
    schedule = build(kind, 2, 2)
    stage = Two(last if rank == 1 else None)
    x = torch.arange(1.0, 5.0, dtype=torch.float64)
    index = torch.tensor([0, 0, 1, 1])
    loss = run_step(schedule, [stage], (x, x * x, index), torch.zeros(4), lambda y, _: y, group)
    return loss.item(), stage.w.grad


@pytest.mark.parametrize("kind", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("last", ["both", "one"])
def test_stages_that_return_several_tensors(ranks, kind, last):
    found = ranks(2).run(several, kind, last)
    first, second = Two(None), Two(last)
    x, index = torch.arange(1.0, 5.0, dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    loss = sum(second(*first(x[i:i + 2], (x * x)[i:i + 2], index[i:i + 2])) for i in (0, 2)) / 2
    loss.backward()
    for value, _ in found:
        assert value == pytest.approx(loss.item())
    torch.testing.assert_close([g for _, g in found], [first.w.grad, second.w.grad])


def side_by_side(model, halves):
    """Two pipelines of two in a world of four."""
    rank = dist.get_rank()
    groups = [dist.new_group(r) for r in ([0, 2], [1, 3])]
    group, (inputs, targets) = groups[rank % 2], halves[rank % 2]
    schedule = build("1f1b", 2, 3)
    own, counts = stage_modules(model, schedule, dist.get_rank(group))
    loss = run_step(schedule, own, inputs, targets, loss_fn, group)
    found = loss.item(), gradients(own, counts, schedule, dist.get_rank(group))
    dist.barrier()
    dist.destroy_process_group(group)
    return found


def test_two_pipelines_side_by_side(ranks):
    model, halves = dense(3), [batch(6, seed=5), batch(3, T=2, seed=6)]
    found = ranks(4).run(side_by_side, model, halves)
    for i, (inputs, targets) in enumerate(halves):
        assert_equal_to_dense(model, found[i::2], inputs, targets, 3)


def v_with_ends_on_rank_0(model, inputs, targets):
    group = dist.group.WORLD
    rank, schedule = dist.get_rank(group), build("zb-v", 2, 4)
    own, counts = stage_modules(model, schedule, rank)
    given = (inputs, targets) if rank == 0 else (None, None)
    loss = run_step(schedule, own, *given, loss_fn, group)
    return loss.item(), gradients(own, counts, schedule, rank), list(schedule.stages_of(rank))


def test_in_a_v_the_first_stage_and_the_loss_are_on_rank_0(ranks):
    """C31: run with the looped placement ([0, 2], [1, 3]), a V schedule fails. The V is [0, 3], [1, 2]; only rank 0
    needs inputs and targets, and stage 1 hands over to stage 2 without a message."""
    model, (inputs, targets) = dense(4), batch(8)
    found = ranks(2).run(v_with_ends_on_rank_0, model, inputs, targets)
    assert [stages for *_, stages in found] == [[0, 3], [1, 2]]
    assert_equal_to_dense(model, [f[:2] for f in found], inputs, targets, 4)


# ---- gradients that add up


def accumulated(batches, M):
    group = dist.group.WORLD
    schedule = build("1f1b", 2, M)
    stage = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(stage.weight)
    for x in batches:
        run_step(schedule, [stage], x, x, lambda y, _: y.sum(), group)
    return stage.weight.grad.item()


def test_accumulated_steps_do_not_fade(ranks):
    """C33: two steps of M = 4 whose raw gradients sum to G = 16 each give 2G/4 = 8. Dividing what has accumulated by M
    at each step gives (G/4 + G)/4 = 5."""
    x = torch.full((4, 1), 4.0, dtype=torch.float64)
    assert ranks(2).run(accumulated, [x, x], 4) == [8.0, 8.0]


def tied_step(name, M, steps):
    group = dist.group.WORLD
    rank, S = dist.get_rank(group), dist.get_world_size(group)
    schedule, model = build(name, S, M), dense(3, tied=True)
    own, _ = stage_modules(model, schedule, rank)
    ends = {0: lambda: own[schedule.stages_of(rank).index(0)][0].weight,
            schedule.num_stages - 1: lambda: own[schedule.stages_of(rank).index(schedule.num_stages - 1)][-1].weight}
    mine = [ends[s]() for s in schedule.stages_of(rank) if s in ends]
    assert len({id(p) for p in mine}) <= 1
    for seed in range(steps):
        run_step(schedule, own, *batch(4 * M, seed=seed), loss_fn, group, tied=mine[0] if mine else None)
    return mine[0].grad if mine else None


@pytest.mark.parametrize(("name", "S"), [("1f1b", 1), ("1f1b", 2), ("zb-h1", 4), ("zb-v", 2)])
def test_tied_embedding(ranks, name, S):
    """Both copies hold the sum, bit for bit the same, also when two steps accumulate; in a V they are one parameter."""
    found = [g for g in ranks(S).run(tied_step, name, 2, 2) if g is not None]
    model = dense(3, tied=True)
    for seed in range(2):
        inputs, targets = batch(8, seed=seed)
        for (x,), (y,) in zip(cut(inputs, 2, "", 0), cut(targets, 2, "", 0), strict=True):
            (loss_of(model, x, y) / 2).backward()
    assert len(found) == (1 if S == 1 or name == "zb-v" else 2)
    for g in found:
        assert torch.equal(g, found[0])
        torch.testing.assert_close(g, model[0].weight.grad, rtol=1e-9, atol=1e-12)


def tied_and_data():
    """A pipeline of two stages × two data ranks; embedding gradients [1, 2] on the first stage, [3, 4] on the last."""
    from paralelo.run.pipeline import sum_over_ends

    rank = dist.get_rank()
    dp, pp = rank % 2, rank // 2
    pipes = [dist.new_group(r) for r in ([0, 2], [1, 3])]
    datas = [dist.new_group(r) for r in ([0, 1], [2, 3])]
    p = nn.Parameter(torch.zeros(1))
    p.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]][pp][dp: dp + 1])
    sum_over_ends(p, build("1f1b", 2, 1), pipes[dp])
    raw = p.grad.clone()
    dist.all_reduce(p.grad, group=datas[pp])
    dist.barrier()
    dist.destroy_process_group(pipes[dp])
    dist.destroy_process_group(datas[pp])
    return raw.item(), p.grad.item() / 2


def test_tied_embedding_with_data_parallelism(ranks):
    """C37: the first and the last stage's gradients [1, 2] and [3, 4] over two data ranks give 1.5 + 3.5 = 5 on all
    four. Adding the copies after a data reduction of only one of them gives 4.5 and 5.5."""
    assert ranks(4).run(tied_and_data) == [(4.0, 5.0), (6.0, 5.0), (4.0, 5.0), (6.0, 5.0)]


# ---- what a user may get wrong


def wrong(what):
    group = dist.group.WORLD
    S = dist.get_world_size(group)
    schedule = build("1f1b", 3 if what == "group_size" else S, 2)
    x = torch.ones(1 if what == "batch_too_small" else 4, 2)
    inputs = {"missing": None, "list_length": [x]}.get(what, x)
    stages = [nn.Linear(2, 2)] * (2 if what == "modules" else 1)
    weights = [1.0] if what == "weights" else None
    try:
        run_step(schedule, stages, inputs, inputs, lambda y, t: (y - t).sum(), group, weights=weights)
    except Refused as refused:
        return refused.message.id, [refused.say(lang) for lang in ("en", "es", "pt")]
    return None


@pytest.mark.parametrize("what", ["group_size", "modules", "missing", "list_length", "batch_too_small", "weights"])
def test_what_does_not_fit_is_refused_on_every_rank(ranks, what):
    found = ranks(2).run(wrong, what)
    expected = "run_pipeline." + ("list_length" if what == "weights" else what)
    for id_, sentences in found:
        assert id_ == expected
        assert len(set(sentences)) == 3


class Fickle(nn.Module):
    def __init__(self, changes):
        super().__init__()
        self.w, self.calls, self.changes = nn.Parameter(torch.ones(1)), 0, changes

    def forward(self, x):
        self.calls += 1
        return x[: -1] * self.w if self.changes and self.calls == 2 else x * self.w


def fickle(loss_shape):
    group = dist.group.WORLD
    x = torch.ones(6, 2)
    stage = Fickle(dist.get_rank(group) == 0 and not loss_shape)
    run_step(build("gpipe", 2, 2), [stage], x, x, lambda y, t: y.sum() if not loss_shape else y, group)


def test_a_stage_whose_shapes_do_not_follow_from_its_input_is_refused(ranks):
    from paralelo.run.ranks import RankError

    with pytest.raises(RankError, match="stage 0 returned 2×2 float32 for microbatch 1, and 3×2 float32"):
        ranks(2).run(fickle, False)
    with pytest.raises(RankError, match="one number"):
        ranks(2).run(fickle, True)
