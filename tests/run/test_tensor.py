"""Every split layer against its dense reference: outputs, every gradient, parameters after two steps, in float64."""

import copy
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from paralelo.run import experts, tensor, tutor
from paralelo.run.collectives import all_reduce, gather_from, split_to
from paralelo.words import Refused

pytestmark = pytest.mark.tensor

TOLERANCE = 1e-9


@contextmanager
def doubles():
    """New tensors are float64 inside. The ranks live on, so what changes in them is put back."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def compare(dense, parallel, group, run, seed, wrong=None):
    """Two steps of SGD with momentum on both; the largest difference of outputs, gradients and parameters by name.

    `run(module)` gives an output from leaf inputs of its own and those leaves. The loss weighs outputs unevenly.
    """
    rank, size = group.rank(), group.size()
    split, found = tensor.splits(parallel), {}
    theirs, ours = dict(dense.named_parameters()), dict(parallel.named_parameters())
    assert sorted(theirs) == sorted(ours) == sorted(split)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (dense, parallel)]
    for step in range(2):
        sides = []
        for module in (dense, parallel):
            y, leaves = run(module)
            weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed + step), dtype=y.dtype)
            (y * weight).sum().backward()
            sides.append((y.detach(), [leaf.grad for leaf in leaves]))
        found[f"output{step}"] = (sides[0][0] - sides[1][0]).abs().max().item()
        for i, (a, b) in enumerate(zip(sides[0][1], sides[1][1], strict=True)):
            found[f"input{i}.{step}"] = (a - b).abs().max().item()
        for name, p in ours.items():
            if wrong and step == 0 and name == wrong:
                p.grad *= 0.5
            expected = tensor.piece(theirs[name].grad, split[name], rank, size)
            assert expected.abs().max() > 1e-6 or expected.numel() == 0 or split[name].padded, name
            found[f"{name}.grad{step}"] = (expected - p.grad).abs().max().item()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for name, p in ours.items():
        found[name] = (tensor.piece(theirs[name], split[name], rank, size) - p).detach().abs().max().item()
    return found


def on_input(*shape, seed=0):
    """Runs a module on one random input that wants a gradient."""

    def run(module):
        x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()
        return module(x), [x]

    return run


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


def layers(size, seed):
    """(name, dense, how to split it, its run) for every layer that `size` ranks allow."""
    D, d = 24, 4
    kv = [K for K in (12, 4, 3, 2, 1) if K % size == 0 or size % K == 0]
    attentions = {f"{K} kv heads": {"K": K} for K in kv}
    attentions |= {"gated": {"K": kv[1], "gated_query": True}, "norm head": {"K": kv[-1], "qk_norm": "head"},
                   "norm all": {"K": kv[1], "qk_norm": "all"}, "norm all copies": {"K": kv[-1], "qk_norm": "all"},
                   "bias": {"K": kv[-1], "bias": True, "out_bias": True}, "not causal": {"K": kv[0], "causal": False},
                   "partial rotary": {"K": kv[-1], "rotary_share": 0.5}, "no rotary": {"K": kv[0], "theta": None}}
    mlps = {"plain": {"gated": False, "activation": "gelu", "bias": True}, "gated": {}, "fused": {"fused": True},
            "fused bias": {"fused": True, "bias": True}}
    x, h = on_input(2, 5, D, seed=seed), on_input(2, 3, 12, seed=seed)
    for name, options in mlps.items():
        yield f"mlp {name}", tensor.MLP(D, 36, **options), tensor.ParallelMLP.from_dense, x
    for name, options in attentions.items():
        yield f"attention {name}", tensor.Attention(D, 12, d=d, **options), tensor.ParallelAttention.from_dense, x
    yield "linear attention", tensor.GatedDelta(D, 12, 24, 2, 3, width=3), tensor.ParallelGatedDelta.from_dense, x
    yield "row", Plain(nn.Linear(12, 5)), Cut, h
    yield "column", Plain(nn.Linear(12, 24)), Whole, h


def all_layers(size):
    """Every layer in this rank's group of `size`; side by side, the groups have weights and data of their own."""
    with doubles(), subgroup(size) as (group, which):
        torch.manual_seed(100 + which)
        found = {name: compare(dense, split(dense, group), group, run, seed=13 + which)
                 for name, dense, split, run in layers(size, seed=7 + which)}
        found["embedding, tied head, loss"] = embedding_and_loss(group, tied=True, seed=which)
        found["embedding, head, loss"] = embedding_and_loss(group, tied=False, seed=which)
    return {f"{name}: {what}": error for name, errors in found.items() for what, error in errors.items()}


class Plain(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


class Cut(nn.Module):
    """Row-parallel, handed this rank's part of its input: what a column-parallel layer before it would have left."""

    def __init__(self, dense, group):
        super().__init__()
        self.layer, self.group = tensor.RowParallelLinear.from_dense(dense.layer, group), group

    def forward(self, x):
        return self.layer(split_to(x, self.group, -1))


class Whole(nn.Module):
    """Column-parallel, the parts of its output put together."""

    def __init__(self, dense, group):
        super().__init__()
        self.layer, self.group = tensor.ColumnParallelLinear.from_dense(dense.layer, group), group

    def forward(self, x):
        return gather_from(self.layer(x), self.group, -1)


class Tiny(nn.Module):
    """Embedding → (h is whole on every rank) → head, with the loss as its output."""

    V, D = 13, 6

    def __init__(self, tied):
        super().__init__()
        self.embedding = nn.Embedding(self.V, self.D, padding_idx=12)
        self.head = nn.Linear(self.D, self.V, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens, targets):
        z = self.head(torch.tanh(self.embedding(tokens)))
        return F.cross_entropy(z.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)


class ParallelTiny(nn.Module):
    def __init__(self, dense, group):
        super().__init__()
        tied = dense.head.weight is dense.embedding.weight
        self.embedding = tensor.VocabParallelEmbedding.from_dense(dense.embedding, group)
        self.head = tensor.VocabParallelHead.from_dense(dense.head, group, tied=self.embedding if tied else None)
        self.group = group

    def forward(self, tokens, targets):
        logits = self.head(torch.tanh(self.embedding(tokens)))
        return tensor.vocab_parallel_cross_entropy(logits, targets, self.group, V=Tiny.V, reduction="none")


def embedding_and_loss(group, tied, seed):
    dense = Tiny(tied)
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 13, (3, 6), generator=draw)
    targets = torch.randint(0, 13, (3, 6), generator=draw).masked_fill(torch.rand(3, 6, generator=draw) < 0.3, -100)

    def run(module):
        return module(tokens, targets), []

    found = compare(dense, ParallelTiny(dense, group), group, run, seed)
    with torch.no_grad():
        parallel = ParallelTiny(dense, group)
        logits = parallel.head(parallel.embedding(tokens))
        z = dense.head(dense.embedding(tokens)).flatten(0, 1)
        for reduction in ("mean", "sum"):
            mine = tensor.vocab_parallel_cross_entropy(logits, targets, group, V=13, reduction=reduction)
            found[reduction] = (mine - F.cross_entropy(z, targets.flatten(), reduction=reduction)).abs().item()
    return found


@pytest.mark.parametrize("world, size", [(1, 1), (2, 2), (3, 3), (4, 4), (4, 2)])
def test_every_layer_equals_dense(ranks, world, size):
    """Outputs, every gradient, parameters after two steps: a group of 1 to 4, and two groups side by side in 4.

    A wrong name tells the fault: `o.bias` (C41, C42: bias added on every rank), `gate_up.weight` (C43: a fused matrix
    cut straight across), `input.weight` (C45: packed projections of linear attention cut straight across), `k.weight`
    (copies of a key/value head not summed), `q_norm.weight` (C46: a norm over all heads reduced on one rank).
    """
    for rank, found in enumerate(ranks(world).run(all_layers, size)):
        bad = {name: error for name, error in found.items() if not error < TOLERANCE}
        assert not bad, f"rank {rank}: {bad}"
        assert len(found) > 200


def half_a_gradient():
    torch.manual_seed(0)
    dense, group = tensor.MLP(8, 8, dtype=torch.float64), dist.group.WORLD
    parallel = tensor.ParallelMLP.from_dense(dense, group)
    return compare(dense, parallel, group, on_input(1, 3, 8), 0, wrong="up.weight")


def test_the_comparison_can_fail(ranks):
    """One gradient halved on purpose shows in that gradient and in the parameter after the steps, and nowhere else."""
    found = ranks(2).run(half_a_gradient)[0]
    assert {name for name, e in found.items() if e > TOLERANCE} >= {"up.weight.grad0", "up.weight"}
    assert found["up.weight.grad0"] > TOLERANCE > found["output0"]


def float32_layers():
    torch.manual_seed(0)
    dense, group = tensor.Attention(32, 8, 2, qk_norm="head"), dist.group.WORLD
    parallel = tensor.ParallelAttention.from_dense(dense, group)
    x = torch.randn(2, 9, 32)
    a, b = dense(x), parallel(x)
    return ((a - b).abs().max() / a.abs().max()).item()


def test_float32_agrees_to_five_digits(ranks):
    assert max(ranks(4).run(float32_layers)) < 1e-5


# ---- faults that people met


def biases():
    torch.manual_seed(0)
    group = dist.group.WORLD
    dense = nn.Linear(8, 3, dtype=torch.float64)
    with torch.no_grad():
        dense.bias.copy_(torch.tensor([100.0, 200.0, 300.0]))
    x = torch.randn(4, 8, dtype=torch.float64)
    layer = tensor.RowParallelLinear.from_dense(dense, group)
    mine = x.chunk(group.size(), -1)[group.rank()]

    with torch.no_grad():
        right = layer(mine) - dense(x)
        early = all_reduce(F.linear(mine, layer.weight, layer.bias), group) - dense(x)
        on_one = all_reduce(F.linear(mine, layer.weight, layer.bias if group.rank() == 0 else None), group) - dense(x)
    return right, early, on_one


@pytest.mark.parametrize("world", [2, 4])
def test_bias_of_a_row_parallel_layer_is_added_once(ranks, world):
    """C41: added before the all-reduce it counts tp times. C42: on one rank before the sum is right, no fault."""
    for right, early, on_one in ranks(world).run(biases):
        assert right.abs().max() < TOLERANCE
        assert (early - (world - 1) * torch.tensor([100.0, 200.0, 300.0])).abs().max() < TOLERANCE
        assert on_one.abs().max() < TOLERANCE


def test_fused_gate_and_up_are_cut_part_by_part():
    """C43: [g0…g3; u0…u3] cut straight across pairs no gate with its up."""
    rows = torch.arange(8).view(8, 1)
    split = tensor.Split((8, 1), 0, (4, 4))
    assert [tensor.piece(rows, split, r, 2).flatten().tolist() for r in (0, 1)] == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_packed_projections_of_linear_attention_are_cut_by_heads():
    """C45: Qwen3-Next's 12 352 rows; an even cut gives rank 0 the right number of rows, the wrong ones."""
    parts = (2048, 2048, 4096, 4096, 32, 32)
    split = tensor.Split((12352, 1), 0, parts)
    rows = tensor.piece(torch.arange(12352).view(-1, 1), split, 0, 2).flatten()
    assert split.sizes(2) == (1024, 1024, 2048, 2048, 16, 16)
    assert len(rows) == 6176 and rows.tolist() != list(range(6176))
    starts = torch.tensor((0, *parts[:-1])).cumsum(0)
    assert rows.split(split.sizes(2))[2].tolist() == list(range(starts[2], starts[2] + 2048))


def norm_of_all_heads():
    group = dist.group.WORLD
    x = torch.tensor([1.0, 1.0, 3.0, 3.0]).chunk(2)[group.rank()]
    spans = tensor.rms_norm(x, torch.ones(2), 0.0, group, 4)
    return spans, tensor.rms_norm(x, torch.ones(2), 0.0)


def test_norm_over_all_heads_spans_the_group(ranks):
    """C46: √5 over [1, 1, 3, 3]; a mean over the rank's own head gives 1 everywhere."""
    spans, local = zip(*ranks(2).run(norm_of_all_heads), strict=True)
    assert torch.allclose(torch.cat(spans), torch.tensor([0.4472, 0.4472, 1.3416, 1.3416]), atol=1e-4)
    assert torch.allclose(torch.cat(local), torch.ones(4))


def losses():
    group = dist.group.WORLD
    logits, target = torch.arange(8.0, dtype=torch.float64)[None], torch.tensor([3])
    part = logits.chunk(2, -1)[group.rank()].clone().requires_grad_()
    right = tensor.vocab_parallel_cross_entropy(part, target, group)
    right.backward()
    with torch.no_grad():                                   # what a rank does that was given all the logits

        total = all_reduce((logits - 7).exp().sum(-1), group)
        gathered = total.log() - (logits[0, 3] - 7)
    # the label's logit summed by a plain all_reduce: autograd sees this rank's term only
    plain = logits.chunk(2, -1)[group.rank()].clone().requires_grad_()
    label = (plain[:, 3] if group.rank() == 0 else plain[:, 0] * 0).clone()
    seen = label.detach().clone()
    dist.all_reduce(seen, group=group)
    (-(label + (seen - label).detach())).sum().backward()
    return right.item(), part.grad, gathered.item(), plain.grad


def test_loss_over_split_logits(ranks):
    """C48: logits gathered first make the loss log 2 too large. C50: softmax − onehot on both shards, sum 0."""
    (loss, a, gathered, plain0), (_, b, _, plain1) = ranks(2).run(losses)
    assert abs(loss - 4.4583) < 1e-4 and abs(gathered - 5.1515) < 1e-4
    z = torch.arange(8.0, dtype=torch.float64)
    expected = z.softmax(0) - F.one_hot(torch.tensor(3), 8)
    assert (torch.cat((a, b), -1)[0] - expected).abs().max() < TOLERANCE
    assert abs(torch.cat((a, b)).sum()) < TOLERANCE
    assert plain0.abs().sum() == 1 and plain1.abs().sum() == 0


def padded_loss():
    group = dist.group.WORLD
    torch.manual_seed(0)
    dense = nn.Embedding(65535, 2, dtype=torch.float64)
    parallel = tensor.VocabParallelEmbedding.from_dense(dense, group)
    head = tensor.VocabParallelHead(65535, 2, group, tied=parallel)
    h, targets = torch.randn(5, 2, dtype=torch.float64), torch.tensor([0, 65534, 40000, -100, 7])
    logits = head(h).detach()
    if group.rank() == 1:
        logits[:, -1] = 50.0                                # a padding column that came alive
    masked = tensor.vocab_parallel_cross_entropy(logits, targets, group, V=65535)
    unmasked = tensor.vocab_parallel_cross_entropy(logits, targets, group)
    return (masked - F.cross_entropy(h @ dense.weight.T, targets)).item(), unmasked.item(), parallel.weight.detach()


def test_padding_takes_no_probability_and_is_not_saved(ranks):
    """C54: 65 535 rows over two ranks; the padded row is masked in the loss and stripped when pieces are joined."""
    found = ranks(2).run(padded_loss)
    split = tensor.Split((65535, 2), 0, padded=True)
    assert all(abs(difference) < TOLERANCE for difference, _, _ in found)
    assert all(unmasked > 30 for _, unmasked, _ in found)
    assert [len(w) for _, _, w in found] == [32768, 32768]
    assert tensor.join([w for _, _, w in found], split).shape == (65535, 2)


@pytest.mark.parametrize("split", [
    tensor.Split((12, 3), 0), tensor.Split((3, 12), 1), tensor.Split((10, 3), 0, padded=True), tensor.Split((7,)),
    tensor.Split((24, 2), 0, (12, 4, 8)), tensor.Split((6, 2), 0, copies=2), tensor.Split((2, 5), 0, padded=True),
], ids=str)
def test_pieces_joined_are_the_whole(split):
    whole = torch.randn(split.shape)
    pieces = [tensor.piece(whole, split, r, 4) for r in range(4)]
    assert all(p.shape == tensor.local_shape(split, 4) for p in pieces)
    assert torch.equal(tensor.join(pieces, split), whole)


# ---- what is refused before the first message


def untied(group):
    """The head's own weights were dropped without a word, and the embedding's taken."""
    dense, embedding = nn.Linear(2, 8, bias=False), nn.Embedding(8, 2)
    parallel = tensor.VocabParallelEmbedding.from_dense(embedding, group)
    tensor.VocabParallelHead.from_dense(dense, group, tied=parallel)


def split_experts(group):
    """A norm counted each expert as if all ranks held it; drawing gave all ranks the same ones."""
    return nn.Sequential(experts.ExpertParallelMoE.from_dense(experts.MoE(4, 6, 3, 2), group))


def refusals():
    group, found = dist.group.WORLD, []
    tries = [lambda: tensor.ColumnParallelLinear(4, 6, group), lambda: tensor.RowParallelLinear(6, 4, group),
             lambda: tensor.ParallelMLP(4, 6, group), lambda: tensor.ParallelAttention(28 * 2, 28, group, 7),
             lambda: tensor.ParallelAttention(12, 6, group), lambda: tensor.ParallelGatedDelta(8, 2, 8, 2, 2, group),
             lambda: tensor.MLP(4, 4, activation="swish"), lambda: tensor.Attention(8, 4, qk_norm="heads"),
             lambda: tensor.VocabParallelEmbedding(8, 2, group)(torch.tensor([8])),
             lambda: tensor.vocab_parallel_cross_entropy(torch.zeros(3, 2), torch.zeros(2), group),
             lambda: tensor.vocab_parallel_cross_entropy(torch.zeros(1, 2), torch.tensor([9]), group),
             lambda: tensor.vocab_parallel_cross_entropy(torch.zeros(1, 2), torch.tensor([1]), group, reduction="x"),
             lambda: tensor.VocabParallelHead.from_dense(nn.Linear(2, 8), group),
             lambda: tensor.vocab_parallel_cross_entropy(torch.zeros(1, 2), torch.tensor([1]), group, V=9),
             lambda: tensor.VocabParallelHead(8, 3, group, tied=tensor.VocabParallelEmbedding(8, 2, group)),
             lambda: tensor.VocabParallelEmbedding(8, 2, group, padding_idx=8),
             lambda: tensor.VocabParallelEmbedding.from_dense(nn.Embedding(8, 2, max_norm=1.0), group),
             lambda: tensor.VocabParallelEmbedding.from_dense(nn.Embedding(8, 2, sparse=True), group),
             lambda: tensor.VocabParallelEmbedding.from_dense(nn.Embedding(8, 2, scale_grad_by_freq=True), group),
             lambda: untied(group), lambda: tensor.holders(split_experts(group), 4),
             lambda: tensor.initialise(split_experts(group), torch.Generator()),
             lambda: tensor.clip_grad_norm(nn.Linear(1, 1), 0.0, group),
             lambda: tensor.dropout(torch.ones(2), 1.0, torch.Generator()),
             lambda: tensor.piece(torch.ones(3), tensor.Split((4,), 0), 0, 4),
             lambda: tensor.Split((8,), 0, (4, 3)).check(2), lambda: tensor.Split((8,), 0, copies=3).check(4)]
    for attempt in tries:
        try:
            attempt()
            found.append(None)
        except Refused as refused:
            found.append([refused.say(lang) for lang in ("en", "es", "pt")])
    return found


def test_what_does_not_divide_is_refused(ranks):
    """28 query heads on 4 ranks with 7 key/value heads, 6 units on 4 ranks, …: a sentence in each language."""
    for sentences in ranks(4).run(refusals)[0]:
        assert sentences and len(set(sentences)) == 3, sentences


# ---- dense references against something else than themselves


def test_attention_by_the_definition():
    """Scores, mask and softmax written out; rotary positions as turns of complex numbers."""
    torch.manual_seed(0)
    B, T, D, H, K, d = 2, 6, 16, 4, 2, 4
    layer = tensor.Attention(D, H, K, d, gated_query=True, theta=100.0).double()
    x = torch.randn(B, T, D, dtype=torch.float64)
    q, gate = layer.q(x).view(B, T, H, 2 * d).chunk(2, -1)
    k, v = layer.k(x).view(B, T, K, d), layer.v(x).view(B, T, K, d)
    turn = torch.polar(torch.ones(T, d // 2, dtype=torch.float64),
                       torch.arange(T)[:, None] * 100.0 ** (-torch.arange(d // 2).double() / (d // 2)))
    y = torch.zeros(B, T, H, d, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            qc, kc = (torch.complex(t[..., :d // 2], t[..., d // 2:]) * turn for t in (q[b, :, h], k[b, :, h // 2]))
            scores = (qc @ kc.conj().T).real / d**0.5
            scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
            y[b, :, h] = scores.softmax(-1) @ v[b, :, h // 2] * gate[b, :, h].sigmoid()
    assert torch.allclose(layer(x), layer.o(y.flatten(2)), atol=1e-12)


def test_linear_attention_equals_a_published_implementation():
    """Qwen3.5's gated delta layer as `transformers` has it (in float32 there), weights copied."""
    qwen = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    config = qwen.Qwen3_5TextConfig(hidden_size=16, linear_num_key_heads=2, linear_num_value_heads=6,
                                    linear_key_head_dim=4, linear_value_head_dim=5, linear_conv_kernel_dim=4,
                                    num_hidden_layers=1, layer_types=["linear_attention"])
    torch.manual_seed(0)
    theirs = qwen.Qwen3_5GatedDeltaNet(config, 0)
    ours = tensor.GatedDelta(16, 2, 6, 4, 5)
    with torch.no_grad():
        projections = (theirs.in_proj_qkv, theirs.in_proj_z, theirs.in_proj_b, theirs.in_proj_a)
        ours.input.weight.copy_(torch.cat([p.weight for p in projections]))
        for mine, other in ((ours.conv, theirs.conv1d.weight), (ours.A, theirs.A_log), (ours.dt, theirs.dt_bias),
                            (ours.norm.weight, theirs.norm.weight), (ours.o.weight, theirs.out_proj.weight)):
            mine.copy_(other)
        ours.norm.eps = theirs.norm.variance_epsilon
        x = torch.randn(2, 11, 16)
        assert torch.allclose(ours(x), theirs(x), atol=1e-5)


def test_state_and_halo_continue_where_they_stopped():
    """The recurrence and the convolution in two halves, the second from the first's state and last positions."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 8, 4, dtype=torch.float64) for _ in range(3))
    decay, beta = -torch.rand(2, 3, 8, dtype=torch.float64), torch.rand(2, 3, 8, dtype=torch.float64)
    whole, last = tensor.delta_rule(q, k, v, decay, beta)
    parts = [[t[:, :, s] for t in (q, k, v, decay, beta)] for s in (slice(0, 5), slice(5, 8))]
    first, state = tensor.delta_rule(*parts[0])
    second, state = tensor.delta_rule(*parts[1], state)
    assert torch.allclose(torch.cat((first, second), 2), whole) and torch.allclose(state, last)
    x, w = torch.randn(2, 8, 6, dtype=torch.float64), torch.randn(6, 1, 4, dtype=torch.float64)
    halves = tensor.causal_conv(x[:, :5], w), tensor.causal_conv(x[:, 5:], w, x[:, 2:5])
    assert torch.allclose(torch.cat(halves, 1), tensor.causal_conv(x, w))


def frozen():
    group = dist.group.WORLD
    made = [
        (tensor.VocabParallelEmbedding, nn.Embedding(7, 4)),
        (tensor.VocabParallelHead, nn.Linear(4, 7, bias=False)),
        (tensor.RowParallelLinear, nn.Linear(4, 6)),
        (tensor.ParallelMLP, tensor.MLP(4, 8)),
        (tensor.ParallelAttention, tensor.Attention(8, 4, 2, qk_norm="head")),
        (tensor.ParallelAttention, tensor.Attention(8, 4, 2, qk_norm="all")),
        (tensor.ParallelGatedDelta, tensor.GatedDelta(8, 2, 4, 4, 4)),
        (experts.ExpertParallelMoE, experts.MoE(4, 6, 3, 2)),
    ]
    model = tutor.Tutor(tutor.Shape(V=11, D=8, L=1, H=2, K=1, F=8))
    made.append((tutor.ParallelTutor, model))
    return [f"{kind.__name__}.{name}" for kind, dense in made
            for name, p in kind.from_dense(dense.requires_grad_(False), group).named_parameters() if p.requires_grad]


def test_what_is_frozen_stays_frozen(ranks):
    """A frozen embedding or norm, once split, was trained again."""
    assert ranks(2).run(frozen) == [[], []]


def test_layers_do_not_touch_their_dense_reference():
    dense = tensor.MLP(4, 4)
    before = copy.deepcopy(dense.state_dict())
    piece = tensor.piece(dense.up.weight, tensor.Split((4, 4), 0), 0, 2)
    piece.zero_()
    assert all(torch.equal(before[name], value) for name, value in dense.state_dict().items())
