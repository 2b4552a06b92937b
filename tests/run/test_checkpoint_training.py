"""Training goes on: stopped on one layout, taken up on another, with the losses of one process throughout."""

import copy

import pytest
import torch
import torch.distributed as dist

from paralelo.predict.layout import Layout
from paralelo.run import tutor
from paralelo.run.checkpoint import capture, load, model_state, restore, restore_zero, save, zero_state
from paralelo.run.checkpoint.training import depth
from paralelo.run.data import Zero
from paralelo.run.experts import MoE
from paralelo.run.layout import mesh
from paralelo.run.tensor import (
    MLP,
    Attention,
    GatedDelta,
    ParallelAttention,
    ParallelGatedDelta,
    ParallelMLP,
    Streams,
    splits,
)
from paralelo.run.together import Trainer
from paralelo.words import Refused

pytestmark = pytest.mark.checkpoint
M, STEPS, MAX_NORM = 2, 6, 0.5


def dense_tutor(experts=False, L=3):
    model = tutor.make(seed=3, D=16, F=32, L=L, H=4, K=2).double()
    if experts:
        torch.manual_seed(5)
        for block in model.blocks:
            block.mlp = MoE(16, 12, 5, 2, shared=MLP(16, 12)).double()
    return model


def make_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=3e-3)


def batches():
    data = tutor.encode(tutor.split()[0][:200])
    return [tutor.batch(data, step, 16) for step in range(STEPS)]


@pytest.fixture(scope="module")
def one_process():
    """Losses of the plain loop, and the parameters and moments after it."""
    found = {}

    def of(experts, L=3):
        if (experts, L) not in found:
            model = copy.deepcopy(dense_tutor(experts, L))
            optimizer, losses = make_optimizer(model.parameters()), []
            for tokens, targets in batches():
                optimizer.zero_grad()
                loss = model.loss(tokens, targets)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                losses.append(loss.item())
            found[experts, L] = losses, model, optimizer
        return found[experts, L]

    return of


def part_of_a_run(folder, degrees, schedule, experts, L, first, last):
    """From the checkpoint (if `first`) to step `last`, and another checkpoint."""
    with mesh(Layout(**degrees)) as m:
        model = dense_tutor(experts, L)
        if first:                                           # nothing of the right numbers is there beforehand
            with torch.no_grad():
                for p in model.parameters():
                    p.fill_(7)
        trainer = Trainer(model, m, M, schedule, make_optimizer, MAX_NORM)
        if first:
            assert restore(folder, trainer)["step"] == first
        losses = [trainer.step(*batch) for batch in batches()[first:last]]
        save(folder, capture(trainer, step=last), m.layout, **depth(trainer))
    return losses


ROUTES = [
    (False, 3, [(4, dict(tp=2, pp=2), "1f1b"), (2, dict(dp=2), "1f1b"), (4, dict(tp=4), "1f1b")]),
    (False, 3, [(2, dict(pp=2), "gpipe"), (4, dict(tp=4), "1f1b"), (4, dict(dp=2, pp=2), "zb-h1")]),
    (False, 4, [(2, dict(pp=2), "zb-v"), (4, dict(dp=2, tp=2), "1f1b"), (2, dict(cp=2), "1f1b")]),
    (True, 3, [(4, dict(dp=4, ep=4), "1f1b"), (2, dict(dp=2, ep=2), "1f1b"),
               (4, dict(dp=2, tp=2, ep=2, etp=2), "1f1b")]),
    (True, 3, [(4, dict(dp=2, tp=2, ep=4), "1f1b"), (4, dict(pp=2, dp=2), "1f1b"), (2, dict(tp=2, ep=2), "1f1b")]),
]


@pytest.mark.parametrize(("experts", "L", "route"), ROUTES)
def test_the_run_goes_on_elsewhere(ranks, tmp_path, one_process, experts, L, route):
    """Three layouts in a row, tied embedding, KV heads replicated at tp=4, uneven stages (3 layers) and experts (5)."""
    expected, model, optimizer = one_process(experts, L)
    at = 0
    for n, degrees, schedule in route:
        args = str(tmp_path), degrees, schedule, experts, L, at, at + 2
        for losses in ranks(n).run(part_of_a_run, *args):
            assert losses == pytest.approx(expected[at:at + 2], rel=1e-9)
        at += 2
    found = load(tmp_path, Layout())
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[f"model.{name}"], p.detach(), rtol=1e-7, atol=1e-9)
        for kind in ("exp_avg", "exp_avg_sq", "step"):
            wanted = optimizer.state[p][kind]
            torch.testing.assert_close(found[f"optimizer.{kind}.{name}"], wanted, rtol=1e-6, atol=1e-9)


# ---- layers of which every rank has a part

KINDS = {
    "mlp": (lambda: MLP(8, 24, fused=True, bias=True), ParallelMLP),
    "attention": (lambda: Attention(16, 8, 2, 4, bias=True, gated_query=True, qk_norm="all"), ParallelAttention),
    "delta": (lambda: GatedDelta(8, 4, 8, 3, 5), ParallelGatedDelta),
}


def dense_of(kind):
    torch.manual_seed(1)
    dense = KINDS[kind][0]().double()
    with torch.no_grad():
        for p in dense.parameters():
            p.copy_(torch.randn_like(p))
    return dense


def saved_layer(kind, folder):
    layer = KINDS[kind][1].from_dense(dense_of(kind), dist.group.WORLD)
    save(folder, model_state(layer), Layout(tp=dist.get_world_size()))
    return sorted(splits(layer))


def loaded_layer(kind, folder):
    layer = KINDS[kind][1].from_dense(dense_of(kind), dist.group.WORLD)
    expected = {name: p.clone() for name, p in layer.state_dict().items()}
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(9)
    load(folder, Layout(tp=dist.get_world_size()), model_state(layer))
    return all(torch.equal(p, expected[name]) for name, p in layer.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_layers_with_fused_and_replicated_parts(ranks, tmp_path, kind):
    """C43, C45, C84: [gate; up], [Q|K|V|Z|β|α] and replicated KV heads, saved on 4 and on 2 ranks, loaded on 2, 4 and
    1: parts of a fused matrix are tensors of their own in a checkpoint."""
    for first, second in ((4, 2), (2, 4)):
        folder = str(tmp_path / f"{first}")
        ranks(first).run(saved_layer, kind, folder)
        assert all(ranks(second).run(loaded_layer, kind, folder))
        dense = dense_of(kind)
        wanted = {name: p.clone() for name, p in dense.state_dict().items()}
        with torch.no_grad():
            for p in dense.parameters():
                p.fill_(9)
        load(folder, Layout(), model_state(dense))
        assert all(torch.equal(p, wanted[name]) for name, p in dense.state_dict().items())


def test_a_fused_matrix_is_the_unfused_ones(tmp_path):
    fused = dense_of("mlp")
    save(tmp_path, model_state(fused), Layout())
    apart = MLP(8, 24, bias=True).double()
    load(tmp_path, Layout(), model_state(apart))
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    assert torch.equal(apart(x), fused(x))


# ---- ZeRO

def zero_steps(folder, stage, half, first, last):
    model = dense_tutor()
    if half:
        model = model.float().bfloat16()
    if first:
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(7)
    group = dist.group.WORLD
    zero = Zero(model, group, make_optimizer, stage)
    layout = Layout(dp=group.size())
    if first:
        assert restore_zero(folder, zero, layout)["step"] == first
    for step in range(first, last):
        for p in zero.module.parameters():
            p.grad = None
        tokens, targets = batches()[step]
        zero.module.loss(tokens, targets).backward()        # the same on every rank: the mean is that of one
        zero.step()
    save(folder, zero_state(zero) | {"step": last}, layout)
    return {name: p.float().double() if half else p for name, p in zero.whole().items()}


@pytest.mark.parametrize(("stages", "half"), [((1, 3, 2), False), ((3, 1, 3), False), ((2, 3, 1), True)])
def test_zero_goes_on_with_another_stage_and_degree(ranks, tmp_path, stages, half):
    """Parts of flat units, cut anywhere in a row, padded at the end; with a float32 copy where weights are halves."""
    whole = ranks(2).run(zero_steps, str(tmp_path / "straight"), 1, half, 0, 6)[0]
    for at, (n, stage) in enumerate(zip((4, 2, 4), stages, strict=True)):
        found = ranks(n).run(zero_steps, str(tmp_path / "parts"), stage, half, 2 * at, 2 * at + 2)[0]
    for name, p in whole.items():
        torch.testing.assert_close(found[name], p, rtol=1e-7 if not half else 1e-2, atol=1e-9 if not half else 1e-3)
    a, b = load(tmp_path / "straight", Layout()), load(tmp_path / "parts", Layout())
    assert a.keys() == b.keys() and ("optimizer.master.embedding.weight" in a) == half


# ---- random streams

def draws(folder, degrees, read):
    with mesh(Layout(**degrees)) as m:
        at = {axis: m.coordinates[axis] for axis in ("tp", "dp", "cp", "pp")}
        trainer = Trainer(dense_tutor(), m, 1, optimizer=make_optimizer)
        streams = Streams(1 if not read else 99, **at)
        if read:
            restore(folder, trainer, streams=streams)
        else:
            torch.rand(7, generator=streams.sharded)
            save(folder, capture(trainer, streams=streams, step=0), m.layout)
        return at, [torch.rand(3, generator=getattr(streams, kind)).tolist() for kind in Streams.NAMES]


def test_random_streams(ranks, tmp_path):
    """On the same layout every rank goes on where it was; on another, ranks that must differ do, others do not."""
    saved = ranks(4).run(draws, str(tmp_path), dict(dp=2, tp=2), False)
    assert ranks(4).run(draws, str(tmp_path), dict(dp=2, tp=2), True) == saved
    for n, degrees in ((4, dict(tp=4)), (2, dict(dp=2))):
        found = ranks(n).run(draws, str(tmp_path), degrees, True)
        sharded = {tuple(kinds[2]) for _, kinds in found}
        replicated = {tuple(kinds[1]) for _, kinds in found}
        assert len(sharded) == n and len(replicated) == (1 if "tp" in degrees else n)
        assert {tuple(kinds[0]) for _, kinds in found} == {tuple(saved[0][1][0])}


def test_another_kind_of_optimizer_is_refused(tmp_path):
    model = dense_tutor()
    optimizer = torch.optim.AdamW([{"params": list(model.parameters())[:1]}, {"params": list(model.parameters())[1:]}])
    from paralelo.run.checkpoint import describe, load_options, optimizer_state

    state = optimizer_state(optimizer, describe(model))
    with pytest.raises(Refused, match="2 groups"):
        load_options(make_optimizer(model.parameters()), state["optimizer"])
    with pytest.raises(Refused, match="of AdamW, this optimizer is SGD"):      # it took the moments without a word
        load_options(torch.optim.SGD(model.parameters(), lr=0.1), state["optimizer"])
