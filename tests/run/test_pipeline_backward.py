"""The split backward: I and W are two halves of B, and neither does the other's work."""

import pytest
import torch
from helpers import Block, Embed
from torch import nn
from torch.autograd.graph import get_gradient_edge

from paralelo.run.pipeline import Backward

pytestmark = pytest.mark.pipeline
D, V = 8, 13


@pytest.mark.parametrize("first", [False, True])
def test_split_backward_is_the_whole_one_in_two_halves(first):
    """I leaves the weights' gradients alone (but for a weight used twice), W completes them; together: the whole B."""
    torch.manual_seed(0)
    stage = nn.Sequential(*([Embed(V, D)] if first else []), Block(D), Block(D), nn.Linear(D, D)).double()
    given = torch.randint(V, (3, 5)) if first else torch.randn(3, 5, D, dtype=torch.float64)

    def run():
        stage.zero_grad()
        x = given.clone() if first else given.clone().requires_grad_()
        y = stage(x)
        held = Backward([get_gradient_edge(y)], (x,))
        return x, held, [torch.ones_like(y)]

    _, held, dy = run()
    whole_dx = held.whole(dy)[0]
    whole = {n: p.grad.clone() for n, p in stage.named_parameters()}

    _, held, dy = run()
    dx = held.of_inputs(dy)[0]
    after_i = {n for n, p in stage.named_parameters() if p.grad is not None}
    expected = {n for n in whole if ".twice." in n} | ({"0.position"} if first else set())
    assert after_i == expected
    held.of_weights()
    if not first:
        assert torch.equal(dx, whole_dx)
    for n, p in stage.named_parameters():
        torch.testing.assert_close(p.grad, whole[n], rtol=1e-13, atol=1e-13)


class Counts(torch.autograd.Function):
    """Y = X Wᵀ that counts the matrix products of its backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.done = 0
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        Counts.runs += 1
        return g


def test_what_lies_on_the_path_runs_once():
    """A Function between layers (a collective of a tensor-parallel layer, say) runs with I and not again with W."""
    Counts.runs = 0
    layers, x = [nn.Linear(4, 4) for _ in range(3)], torch.randn(2, 4, requires_grad=True)
    y = x
    for layer in layers:
        y = Counts.apply(layer(y))
    held = Backward([get_gradient_edge(y)], (x,))
    held.of_inputs([torch.ones(2, 4)])
    assert Counts.runs == 3
    assert all(layer.weight.grad is None for layer in layers)
    held.of_weights()
    assert Counts.runs == 3
    assert all(layer.weight.grad is not None for layer in layers)


