"""What the split layers send and keep, counted, against what is predicted."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from paralelo.predict import collectives, sequence
from paralelo.predict import tensor as predict
from paralelo.run import tensor, tutor
from paralelo.run.collectives import Ledger

pytestmark = pytest.mark.tensor

B, T, D, H, K, d, F, V = 2, 32, 64, 8, 2, 8, 128, 50


def layers(group):
    """name → (layer, its input, the names of what predict says about its parameters)."""
    attention = {"D": D, "H": H, "K": K, "d": d, "N": group.size()}
    x = torch.randn(B, T, D)
    return {
        "mlp": (tensor.ParallelMLP(D, F, group), x, predict.mlp_shapes(D, F, group.size(), gated=True)),
        "fused": (tensor.ParallelMLP(D, F, group, fused=True, bias=True), x,
                  predict.mlp_shapes(D, F, group.size(), gated=True, fused=True, bias=True)),
        "plain": (tensor.ParallelMLP(D, F, group, gated=False), x, predict.mlp_shapes(D, F, group.size())),
        "attention": (tensor.ParallelAttention(D, H, group, K), x, predict.attention_shapes(**attention)),
        "gated query": (tensor.ParallelAttention(D, H, group, K, gated_query=True, bias=True, out_bias=True), x,
                        predict.attention_shapes(**attention, gated_query=True, bias=True)),
        "norm of all heads": (tensor.ParallelAttention(D, H, group, K, qk_norm="all"), x,
                              predict.attention_shapes(**attention, qk_norm="all")),
        "linear attention": (tensor.ParallelGatedDelta(D, 4, 8, 2, 2, group), x[:, :4],
                             predict.linear_attention_shapes(D, 4, 8, 2, 2, 4, group.size())),
        "embedding": (tensor.VocabParallelEmbedding(V, D, group), torch.randint(0, V, (B, T)),
                      predict.embedding_shapes(V, D, group.size())),
    }


def predicted_name(name):
    """`q.weight` of a module is `q` in predict, `q.bias` is `q.bias`; `input` is `in`."""
    name = name.removesuffix(".weight") if "." in name else name
    return {"input": "in"}.get(name, name)


def shapes():
    """Every local shape and every byte of parameters, beside predict's."""
    found = {}
    for name, (layer, _, pieces) in layers(dist.group.WORLD).items():
        ours = {predicted_name(n): tuple(p.shape) for n, p in layer.named_parameters()}
        found[name] = ours, {n: p.local for n, p in pieces.items()}
    return found


def messages():
    """Ring bytes forward and backward of each layer; what its parameters' copies send stands apart (all-to-all)."""
    group, found = dist.group.WORLD, {}
    torch.manual_seed(0)
    for name, (layer, x, _) in layers(group).items():
        if x.is_floating_point():
            x = x.requires_grad_()
        with Ledger() as ledger:
            y = layer(x)
            forward = ledger.total.ring
            y.sum().backward()
        found[name] = forward, ledger["all_reduce"].ring - forward, ledger["all_to_all"].ring
    head = tensor.VocabParallelHead(V, D, group)
    h, targets = torch.randn(B, T, D, requires_grad=True), torch.randint(0, V, (B, T))
    logits = head(h)
    with Ledger() as ledger:
        logits.sum().backward()
    found["head"] = 0, ledger.total.ring, 0
    logits = logits.detach().requires_grad_()
    with Ledger() as ledger:
        loss = tensor.vocab_parallel_cross_entropy(logits, targets, group, V=V)
        forward = ledger.total.ring
        loss.backward()
    found["loss"] = forward, ledger.total.ring - forward, 0
    return found


@pytest.mark.parametrize("world", [1, 2, 4])
def test_shapes_are_those_predicted(ranks, world):
    for found in ranks(world).run(shapes):
        for name, (ours, theirs) in found.items():
            if name == "embedding":
                assert [*ours.values()] == [*theirs.values()]
            else:
                assert ours == theirs, name


@pytest.mark.parametrize("world", [1, 2, 4])
def test_messages_are_those_predicted(ranks, world):
    """An all-reduce of B·T·D forward and one backward; copies of KV heads add theirs; the loss 3 numbers a token."""
    whole = collectives.all_reduce_bytes(predict.mlp_bytes(B, T, D, 4), world)
    squares = 2 * collectives.all_reduce_bytes(B * T * 4, world)        # sums of squares of q and of k
    copies = predict.kv_gradient_bytes(D, K, d, world, 4)
    short = whole * 4 // T
    for found in ranks(world).run(messages):
        for name in ("mlp", "fused", "plain"):
            assert found[name] == (whole, whole, 0), name
        assert found["attention"] == (whole, whole, copies)
        assert found["gated query"][:2] == (whole, whole)
        assert found["norm of all heads"][:2] == (whole + squares, whole + squares)
        assert found["linear attention"] == (short, short + collectives.all_reduce_bytes(2 * 4, world), 0)
        assert found["embedding"] == (predict.embedding_bytes(B, T, D, world, 4), 0, 0)
        assert found["head"] == (0, whole, 0)
        assert found["loss"] == (predict.cross_entropy_bytes(B * T, world), 0, 0)
        block = [a + b for a, b in zip(found["mlp"], found["attention"], strict=True)]
        assert block[0] + block[1] == predict.layer_bytes(B, T, D, world, 4)


def kept(layer, x):
    """Bytes that autograd keeps for backward, each storage once, parameters left out."""
    storages, held = {}, []
    own = {p.untyped_storage().data_ptr() for p in layer.parameters()}

    def note(t):
        if t.untyped_storage().data_ptr() not in own:
            storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            held.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        layer(x.requires_grad_())
    return sum(storages.values())


def activations():
    found = layers(dist.group.WORLD)
    return {name: kept(*found[name][:2]) for name in ("mlp", "plain", "attention", "gated query")}


@pytest.mark.parametrize("world", [1, 2, 4])
def test_activations_kept_for_backward(ranks, world):
    """Inputs whole, hidden units and heads cut, K/V held once more for each copy: within 5 % of what is predicted."""
    copies = predict.kv_copies(K, world)
    parts = {"mlp": sequence.mlp_activations(B, T, D, F, element=4),
             "plain": sequence.mlp_activations(B, T, D, F, gated=False, element=4),
             "attention": sequence.attention_activations(B, T, D, H, K, d, kv_copies=copies, element=4),
             "gated query": sequence.attention_activations(B, T, D, H, K, d, kv_copies=copies, gated_query=True,
                                                           element=4)}
    for found in ranks(world).run(activations):
        for name, saved in parts.items():
            predicted = sequence.activation_bytes(saved, world)
            assert abs(found[name] / predicted - 1) < 0.05, (name, found[name], predicted)


def kv_storage():
    """Parameters of k and v that the group stores, and the distinct ones among them."""
    layer = tensor.ParallelAttention.from_dense(tensor.Attention(D, H, K), dist.group.WORLD)
    return [p.detach() for name, p in layer.named_parameters() if name in ("k.weight", "v.weight")]


def test_replicated_heads_are_stored_twice(ranks):
    """Nothing fails, memory is wasted: 2 KV heads on 4 ranks, as many parameters too many as predicted."""
    k, v = zip(*ranks(4).run(kv_storage), strict=True)
    stored = sum(w.numel() for w in (*k, *v))
    assert stored - 2 * K * d * D == predict.wasted_kv_parameters(D, K, d, 4)
    assert [[j for j in range(4) if torch.equal(k[i], k[j])] for i in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert predict.kv_repair(K, 4) == [[0, 1], [2, 3]]


def losses_of_a_tutor():
    """Three steps of the split tutor beside the dense one."""
    group = dist.group.WORLD
    dense = tutor.Tutor(tutor.Shape(V=23, D=16, L=2, H=4, K=2, F=24), 3, dtype=torch.float64)
    parallel = tutor.ParallelTutor.from_dense(dense, group)
    draw = torch.Generator().manual_seed(0)
    steps = [(torch.randint(0, 23, (4, 6), generator=draw), torch.randint(0, 23, (4, 6), generator=draw))
             for _ in range(3)]
    found = []
    for model in (dense, parallel):
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        for tokens, targets in steps:
            optimizer.zero_grad()
            loss = model.loss(tokens, targets)
            loss.backward()
            norm = (tensor.clip_grad_norm(model, 0.1, group) if model is parallel
                    else nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            optimizer.step()
            found.append((loss.item(), norm.item()))
    return [abs(a - b) for one, two in zip(found[:3], found[3:], strict=True) for a, b in zip(one, two, strict=True)]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_split_tutor_learns_as_the_dense_one(ranks, world):
    """Losses and clipped norms of three steps; at 4 ranks its 2 KV heads are replicated."""
    for differences in ranks(world).run(losses_of_a_tutor):
        assert max(differences) < 1e-9
