"""Any schedule on real stages: loss and every gradient equal to those of the whole model on one rank."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from paralelo.predict.layout import stages as layers_of_stages
from paralelo.predict.pipeline import NAMES, build, from_text, simulate
from paralelo.run.pipeline import Backward, Trace, cut, plan, run_step
from paralelo.words import Refused

pytestmark = pytest.mark.pipeline
D, V = 8, 13


class Block(nn.Module):
    """A residual block with a norm, a gated product and a weight used twice: everything that a split backward meets."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.gate, self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(D, 2 * D, bias=False), nn.Linear(2 * D, D)
        self.twice = nn.Linear(D, D)

    def forward(self, x):
        y = self.twice(self.norm(x))
        y = self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))
        return x + self.twice(y)


class Embed(nn.Module):
    def __init__(self, tied=None):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(V, D)) if tied is None else tied
        self.position = nn.Parameter(torch.randn(32, D))

    def forward(self, tokens):
        return self.weight[tokens] + self.position[: tokens.shape[1]]


class Head(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return x @ self.weight.T


def dense(layers, seed=0, tied=False):
    """A list of modules: the embedding, `layers` blocks, the head."""
    torch.manual_seed(seed)
    embed = Embed()
    head = Head(embed.weight if tied else nn.Parameter(torch.randn(V, D)))
    return nn.ModuleList([embed, *(Block() for _ in range(layers)), head]).double()


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


@pytest.mark.parametrize("S", [1, 2, 4])
def test_every_schedule_equals_dense(ranks, S):
    """Seven schedules, stages of unequal size (7 layers and two ends), M above and below S, microbatches of 3 and 2."""
    model = dense(7)
    inputs, targets = batch(rows=11)
    cases = [(name, 4 if name != "dualpipe-v" else 8, 2 if name == "interleaved" else 1) for name in NAMES]
    cases += [("gpipe", 2, 1), ("1f1b", 1, 1), ("1f1b", 2, 1), ("zb-h1", 2, 1), ("zb-v", 2, 1), ("interleaved", 3, 2)]
    found = list(zip(*ranks(S).run(every_schedule, model, cases, inputs, targets), strict=True))
    for (_, M, _), of_case in zip(cases, found, strict=True):
        assert_equal_to_dense(model, of_case, inputs, targets, M)
