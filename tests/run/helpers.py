"""What tests on ranks share: random tensors, groups that end with their block, a model for pipelines.

Travels by value, as the test's own module does (see conftest).
"""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


def random(*shape, seed=0, dtype=torch.float64):
    """Normal numbers, the same for the same seed on every rank."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Groups(dict):
    """Groups of ranks, each made once and ended with the block: the ranks live on, and a group has threads."""

    def __missing__(self, members):
        self[members] = dist.new_group(members)                           # every rank makes every group, in one order
        return self[members]

    def side_by_side(self, lists):
        """The group of this rank, of lists of ranks that share out the world."""
        made = [(members, self[tuple(members)]) for members in lists]
        return next(group for members, group in made if dist.get_rank() in members)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for group in self.values():
            if group != dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)


@contextmanager
def subgroup(size):
    """This rank's group: the whole world, or neighbours in it."""
    world = dist.get_world_size()
    with Groups() as groups:
        lists = [range(i, i + size) for i in range(0, world, size)]
        yield dist.group.WORLD if size == world else groups.side_by_side(lists)


class Block(nn.Module):
    """A residual block with a norm, a gated product and a weight used twice: everything that a split backward meets."""

    def __init__(self, D):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.gate, self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(D, 2 * D, bias=False), nn.Linear(2 * D, D)
        self.twice = nn.Linear(D, D)

    def forward(self, x):
        y = self.twice(self.norm(x))
        y = self.down(F.silu(self.gate(y)) * self.up(y))
        return x + self.twice(y)


class Embed(nn.Module):
    def __init__(self, V, D):
        super().__init__()
        self.weight, self.position = nn.Parameter(torch.randn(V, D)), nn.Parameter(torch.randn(32, D))

    def forward(self, tokens):
        return self.weight[tokens] + self.position[: tokens.shape[1]]
