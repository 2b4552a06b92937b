"""The global norm and clipping over split parameters; random streams."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from paralelo.run import tensor

pytestmark = pytest.mark.tensor


class Model(nn.Module):
    """Shards, replicas, copies of KV heads and padding, all at once."""

    def __init__(self):
        super().__init__()
        on = {"dtype": torch.float64}
        self.attention = tensor.Attention(16, 4, 2, qk_norm="all", bias=True, out_bias=True, **on)
        self.norm = tensor.RMSNorm(16, **on)
        self.embedding = nn.Embedding(11, 16, **on)

    def forward(self, tokens):
        return self.attention(self.norm(self.embedding(tokens)))


class ParallelModel(Model):
    def __init__(self, dense, group):
        nn.Module.__init__(self)
        self.attention = tensor.ParallelAttention.from_dense(dense.attention, group)
        self.norm = tensor.RMSNorm(16, dtype=torch.float64)
        self.embedding = tensor.VocabParallelEmbedding.from_dense(dense.embedding, group)


def norms(max_norm):
    group = dist.group.WORLD
    torch.manual_seed(0)
    dense = Model()
    parallel = ParallelModel(dense, group)
    tokens = torch.randint(0, 11, (3, 5))
    for module in (dense, parallel):
        module(tokens).square().sum().backward()
    theirs = nn.utils.clip_grad_norm_(dense.parameters(), max_norm).item()
    ours = tensor.clip_grad_norm(parallel, max_norm, group).item()
    split, gradients = tensor.splits(parallel), {n: p.grad for n, p in dense.named_parameters()}
    apart = max((tensor.piece(gradients[n], split[n], group.rank(), group.size()) - p.grad).abs().max().item()
                for n, p in parallel.named_parameters())
    naive = sum(p.grad.square().sum() for p in parallel.parameters())
    dist.all_reduce(naive)
    return abs(theirs - ours), apart, naive.sqrt().item()


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_replicas_are_counted_once(ranks, world, max_norm):
    """The norm of one process and its clipped gradients; adding everything up counts replicas N times."""
    for difference, apart, naive in ranks(world).run(norms, max_norm):
        assert difference < 1e-9 and apart < 1e-9
        assert world == 1 or max_norm > 1 or naive > 0.5 + 1e-3


def stages():
    """Two pipeline stages whose gradients have norms 3 and 4, and an embedding of norm 12 tied across both."""
    rank = dist.get_rank()
    alone = [dist.new_group([r]) for r in range(2)][rank]
    stage = nn.ParameterDict({"w": nn.Parameter(torch.zeros(1)), "tied": nn.Parameter(torch.zeros(1))})
    stage["w"].grad = torch.tensor([3.0 + rank])
    norm = tensor.clip_grad_norm(stage, 1.0, alone, dist.group.WORLD).item()
    clipped = stage["w"].grad.item()
    stage["w"].grad, stage["tied"].grad = torch.tensor([3.0 + rank]), torch.tensor([12.0])
    both = tensor.grad_norm(stage, alone, dist.group.WORLD, copies={"tied": 2}).item()
    dist.destroy_process_group(alone)
    return norm, clipped, both


def test_stages_clip_by_one_norm(ranks):
    """C39: 3 and 4 are 5 together, a factor of 0.2 on both; by its own norm each stage would be left with 1."""
    for rank, (norm, clipped, both) in enumerate(ranks(2).run(stages)):
        assert norm == 5 and abs(clipped - 0.2 * (3 + rank)) < 1e-6
        assert abs(both - 13) < 1e-9                                    # √(3² + 4² + 12²), the tied one once


def masks():
    """Data 2 × tensor 2: the mask of a residual dropout and of an attention dropout on each rank."""
    rank = dist.get_rank()
    streams = tensor.Streams(7, dp=rank // 2, tp=rank % 2)
    ones = torch.ones(64)
    residual, attention = (tensor.dropout(ones, 0.5, s) for s in (streams.replicated, streams.sharded))
    kept = streams.state_dict()
    later = tensor.dropout(ones, 0.5, streams.sharded)
    streams.load_state_dict(kept)
    again = tensor.dropout(ones, 0.5, streams.sharded)
    return residual, attention, torch.equal(later, again) and not torch.equal(later, attention)


def test_which_ranks_draw_the_same_mask(ranks):
    """C56: residual masks equal in a tensor group and unlike across data ranks; attention masks all different."""
    residual, attention, repeats = zip(*ranks(4).run(masks), strict=True)
    assert torch.equal(residual[0], residual[1]) and torch.equal(residual[2], residual[3])
    assert not torch.equal(residual[0], residual[2])
    assert all(not torch.equal(attention[i], attention[j]) for i in range(4) for j in range(i))
    assert all(repeats) and all(set(mask.tolist()) == {0.0, 2.0} for mask in residual)


def test_streams_do_not_depend_on_the_order_of_coordinates():
    assert tensor.stream_seed(1, "sharded", [("tp", 1), ("dp", 0)]) == tensor.stream_seed(1, "sharded",
                                                                                          [("dp", 0), ("tp", 1)])
    seeds = {tensor.stream_seed(s, n, [("tp", t)]) for s in range(3) for n in ("a", "b") for t in range(4)}
    assert len(seeds) == 24


def initial():
    """The same numbers, drawn into a dense model and into its split twin, which never saw the dense one's."""
    group = dist.group.WORLD
    dense, parallel = Model(), ParallelModel(Model(), group)
    tensor.initialise(dense, tensor.Streams(3).initial)
    tensor.initialise(parallel, tensor.Streams(3, tp=group.rank()).initial, group.rank(), group.size())
    split, whole = tensor.splits(parallel), dict(dense.named_parameters())
    return all(torch.equal(tensor.piece(whole[n], split[n], group.rank(), group.size()), p)
               for n, p in parallel.named_parameters() if len(split[n].shape) > 1)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_split_and_dense_start_equal(ranks, world):
    assert all(ranks(world).run(initial))
