"""All axes together: the tutor on eight ranks has the losses and the parameters of one process, step by step."""

import copy

import pytest
import torch
import torch.distributed as dist

from paralelo.predict.experts import experts_of
from paralelo.predict.layout import Layout
from paralelo.predict.pipeline import build
from paralelo.run import tutor
from paralelo.run.experts import MoE, balance_loss
from paralelo.run.layout import mesh
from paralelo.run.tensor import MLP, Split, piece
from paralelo.run.together import Held, Trainer, clip
from paralelo.words import Refused

pytestmark = pytest.mark.layout
STEPS, ROWS, M, MAX_NORM, BALANCE = 4, 16, 4, 0.5, 0.05


def dense_tutor(experts, L=2):
    model = tutor.make(seed=3, D=16, F=32, L=L, H=4, K=2).double()
    if experts:
        torch.manual_seed(5)
        model.blocks[1].mlp = MoE(16, 12, 4, 2, shared=MLP(16, 12)).double()
    return model


def batches():
    data = tutor.encode(tutor.split()[0][:200])
    return [tutor.batch(data, step, ROWS) for step in range(STEPS)]


def make_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=3e-3)


def one_process(model, schedule_batches, experts):
    """The plain loop: the whole batch, one process, no module of this library but the model."""
    model = copy.deepcopy(model)
    optimizer, losses, norms = make_optimizer(model.parameters()), [], []
    for tokens, targets in schedule_batches:
        optimizer.zero_grad()
        if experts:
            n, total = (targets != -100).sum(), 0
            for x, y in zip(tokens.tensor_split(M), targets.tensor_split(M), strict=True):
                share = model.loss(x, y, "sum") / n
                (share + BALANCE / M * balance_loss(model.blocks[1].mlp.routing)).backward()
                total += share.item()
        else:
            loss = model.loss(tokens, targets)
            loss.backward()
            total = loss.item()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item())
        optimizer.step()
        losses.append(total)
    return losses, norms, dict(model.named_parameters())


def on_a_layout(model, degrees, steps, schedule, order):
    layout = Layout(**degrees)
    with mesh(layout) as m:
        return trained(model, m, steps, schedule, order)


def trained(model, m, steps, schedule, order):
    schedule = build(schedule, m.layout.pp, M, 2) if schedule == "interleaved" else schedule
    trainer = Trainer(model, m, M, schedule, make_optimizer, MAX_NORM, BALANCE, order)
    losses, norms = [], []
    for tokens, targets in steps:
        losses.append(trainer.step(tokens, targets))
        norms.append(trainer.norm)
    held = [(name, p.detach(), h.split, h.expert) for name, p, h in trainer.named_parameters()]
    return losses, norms, held, m.coordinates


def part_of(dense, split, expert, at, layout):
    if not expert:
        return piece(dense, split, at["tp"], layout.tp)
    mine = experts_of(dense.shape[0], layout.ep)[at["ep"]]
    dim = 2 if dense.shape[1] == 16 else 1                  # down (E, D, F); gate and up (E, F, D)
    return dense[mine.start:mine.stop].chunk(layout.etp, dim)[at["etp"]]


CASES = [
    (dict(dp=2, tp=2, pp=2), "1f1b", False, "zigzag"),
    (dict(dp=2, tp=2, pp=2, order="tp-cp-ep-pp-dp"), "zb-h1", False, "zigzag"),
    (dict(dp=2, tp=2, pp=2), "zb-v", False, "zigzag"),
    (dict(dp=2, pp=2, cp=2), "interleaved", True, "zigzag"),
    (dict(cp=2, tp=2, pp=2), "1f1b", False, "zigzag"),
    (dict(dp=2, cp=2, pp=2), "gpipe", False, "contiguous"),
    (dict(dp=2, tp=2, cp=2), "1f1b", False, "zigzag"),
    (dict(dp=2, tp=2, pp=2, ep=2), "1f1b", True, "zigzag"),
    (dict(dp=2, pp=2, cp=2, ep=4), "1f1b", True, "zigzag"),
    (dict(dp=4, pp=2, ep=2), "zb-h1", True, "zigzag"),
    (dict(dp=2, tp=2, pp=2, ep=2, etp=2), "1f1b", True, "zigzag"),
]


@pytest.mark.parametrize(("degrees", "schedule", "experts", "order"), CASES)
def test_eight_ranks_train_as_one_process(ranks, degrees, schedule, experts, order):
    """Losses and gradient norms of every step, and all parameters after the last."""
    model, steps = dense_tutor(experts, 4 if schedule in ("zb-v", "interleaved") else 2), batches()
    losses, norms, dense = one_process(model, steps, experts)
    assert min(norms) > MAX_NORM                            # clipping is at work
    layout, seen = Layout(**degrees), set()
    for of_rank, of_norms, held, at in ranks(8).run(on_a_layout, model, degrees, steps, schedule, order):
        assert of_rank == pytest.approx(losses, rel=1e-9)
        assert of_norms == pytest.approx(norms, rel=1e-9)
        for name, p, split, expert in held:
            expected = part_of(dense[name].detach(), split, expert, at, layout)
            torch.testing.assert_close(p, expected, rtol=1e-7, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")
            seen.add(name)
    assert seen == set(dense)


def clipped():
    """A pipeline of two stages whose gradients have norms 3 and 4."""
    p = torch.nn.Parameter(torch.zeros(1))
    p.grad = torch.tensor([3.0 + dist.get_rank()])
    with mesh(Layout(pp=2)) as m:
        norm = clip([("w", p, Held(Split((1,)), 1, False))], m, 1.0)
    return norm, p.grad.item()


def test_all_stages_are_clipped_by_one_norm(ranks):
    """C39: stage norms 3 and 4, limit 1: the norm is 5 and the factor 0.2 on both. Each stage by its own norm: 1/3 and
    1/4."""
    found = ranks(2).run(clipped)
    assert found == [(5.0, pytest.approx(0.6, rel=1e-5)), (5.0, pytest.approx(0.8, rel=1e-5))]


def too_few_rows():
    with mesh(Layout(dp=2)) as m:
        return too_few(Trainer(dense_tutor(False), m, 4))


def too_few(trainer):
    with pytest.raises(Refused) as refused:
        trainer.step(torch.zeros(7, 8, dtype=torch.long), torch.zeros(7, 8, dtype=torch.long))
    with pytest.raises(Refused, match="no target counts"):                # 0/0 made every parameter NaN
        trainer.step(torch.zeros(8, 8, dtype=torch.long), torch.full((8, 8), -100))
    return str(refused.value), len({refused.value.say(lang) for lang in ("en", "es", "pt")})


def test_a_batch_with_too_few_rows_is_refused(ranks):
    for sentence, languages in ranks(2).run(too_few_rows):
        assert "7 rows" in sentence and "at least 8" in sentence and languages == 3
