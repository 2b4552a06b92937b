"""The interpreter: runs a schedule's actions on real stages, in the order in which the schedule lists them."""

import contextlib

import torch
import torch.distributed as dist
from torch.autograd.graph import get_gradient_edge

from paralelo.predict.pipeline import Action, Schedule
from paralelo.run.ledger import paused
from paralelo.run.pipeline.backward import Backward
from paralelo.run.pipeline.messages import Mailbox, kinds_of
from paralelo.run.pipeline.plan import plan
from paralelo.run.pipeline.tied import sum_over_ends
from paralelo.run.pipeline.trace import Trace
from paralelo.words import Refused


def run_step(schedule: Schedule, stages, inputs, targets, loss, group, *, weights=None, tied=None,
             trace: Trace | None = None) -> torch.Tensor:
    """One forward and backward of a batch through the pipeline of `group`; the mean loss, on every rank.

    schedule   of `predict.pipeline`; its rank r is rank r of `group`
    stages     this rank's modules, in chunk order (`schedule.stages_of(rank)`). A stage takes what the one before
               returned, one tensor or several, and may return one or several
    inputs     the whole batch (a tensor, or a tuple of them), cut along dim 0 into M microbatches, the larger first;
               or a list of M microbatches, whose shapes may differ. Only the rank of the first stage looks at it;
               there, inputs that want a gradient get it
    targets    likewise, for the rank of the last stage
    loss       loss(output, target) → a scalar
    weights    of each microbatch's loss in the sum; 1/M each (the mean) if not given. With a mean over tokens inside
               `loss`, tokens/all tokens makes it a mean over all tokens
    tied       a parameter that the first and the last stage share, given on both ranks (a copy on each): afterwards
               both hold the sum of the two gradients (see `tied`)
    trace      filled with what ran when

    Gradients are added to `.grad`: those of Σ weights·loss, scaled once, when the loss is made. So two calls accumulate
    two batches' gradients, and none of them fades.

    Errors: `Refused` where stages, group, inputs or targets do not fit the schedule, or a stage's outputs change shape
    when its inputs did not.
    """
    rank = dist.get_rank(group)
    own = dict(zip(schedule.stages_of(rank), _check(schedule, stages, rank, group), strict=True))
    last = schedule.num_stages - 1
    weights = _weights(weights, schedule)
    inputs = cut(inputs, schedule.microbatches, "inputs", rank) if 0 in own else None
    targets = cut(targets, schedule.microbatches, "targets", rank) if last in own else None
    device = _device(own.values(), inputs)
    mail = Mailbox(schedule, group, device, kinds_of(inputs) if inputs else None)
    before, tied_grad = (tied.grad, True) if tied is not None else (None, False)
    if tied_grad:
        tied.grad = None
    if trace:
        trace.begin(schedule, own.values(), device)

    held: dict[tuple[int, int], Backward] = {}
    seeds: dict[int, tuple] = {}                          # where the backward of a loss starts: its weight
    total = torch.zeros((), dtype=torch.float64, device=device)

    def forward(stage, m, x):
        with trace.meter.watch(stage, m) if trace and trace.meter else contextlib.nullcontext():
            y = own[stage](*x)
            if stage == last:
                y = loss(y, _one(targets[m]))
                if y.dim():
                    raise Refused("run_pipeline.loss_not_scalar", shape=list(y.shape))
                total.add_(y.detach(), alpha=weights[m])
                seeds[m] = (torch.full_like(y.detach(), weights[m]) if y.requires_grad else None,)
        y = y if isinstance(y, tuple) else (y,)
        held[stage, m] = Backward([get_gradient_edge(t) for t in y if t.requires_grad], x)
        return y if stage < last else None

    def backward(kind, stage, m, gradients):
        if kind == "W":
            return held.pop((stage, m)).of_weights()
        gradients = [g for g in gradients if g is not None]
        if kind == "I":
            return held[stage, m].of_inputs(gradients)
        return held.pop((stage, m)).whole(gradients)

    for batches, action in plan(schedule, rank):
        for batch in batches:
            mail.post(batch)
        if action is None:
            break
        kind, stage, m = action
        if kind == "F":
            given = inputs[m] if stage == 0 else mail.take(Action("F", stage - 1, m))
        elif kind != "W":
            given = mail.take(Action("B", stage + 1, m)) if stage < last else seeds.pop(m)
        start = trace.now() if trace else 0
        made = forward(stage, m, given) if kind == "F" else backward(kind, stage, m, given)
        if trace:
            trace.record(action, start, trace.now())
        given = None
        if made is not None and (stage > 0 or kind == "F"):
            mail.put(action, made)
    mail.finish()

    if tied_grad:
        sum_over_ends(tied, schedule, group)
        tied.grad = tied.grad if before is None else before + tied.grad
    if trace:
        trace.messages = mail.messages
    with paused():
        dist.broadcast(total, group_src=schedule.rank_of(last), group=group)
    return total


def cut(batch, microbatches: int, what: str, rank: int) -> list[tuple]:
    """A batch as M microbatches, each a tuple of tensors: along dim 0, the larger first; a list is cut already.

    >>> [m[0].tolist() for m in cut(torch.arange(5), 2, "inputs", 0)]
    [[0, 1, 2], [3, 4]]
    """
    if batch is None:
        raise Refused("run_pipeline.missing", what=what, rank=rank)
    if isinstance(batch, list):
        if len(batch) != microbatches:
            raise Refused("run_pipeline.list_length", what=what, n=len(batch), microbatches=microbatches)
        return [m if isinstance(m, tuple) else (m,) for m in batch]
    tensors = batch if isinstance(batch, tuple) else (batch,)
    for t in tensors:
        if t.dim() == 0 or t.shape[0] < microbatches:
            raise Refused("run_pipeline.batch_too_small", what=what, rows=t.shape[0] if t.dim() else 0,
                          microbatches=microbatches)
    return list(zip(*(t.tensor_split(microbatches) for t in tensors), strict=True))


def _one(target: tuple):
    return target[0] if len(target) == 1 else target


def _weights(weights, schedule):
    if weights is None:
        return [1 / schedule.microbatches] * schedule.microbatches
    weights = [float(w) for w in weights]
    if len(weights) != schedule.microbatches:
        raise Refused("run_pipeline.list_length", what="weights", n=len(weights), microbatches=schedule.microbatches)
    return weights


def _check(schedule, stages, rank, group) -> list:
    stages = list(stages)
    if dist.get_world_size(group) != schedule.stages:
        raise Refused("run_pipeline.group_size", ranks=dist.get_world_size(group), stages=schedule.stages)
    if len(stages) != schedule.chunks:
        raise Refused("run_pipeline.modules", rank=rank, n=len(stages), chunks=schedule.chunks,
                      stages=list(schedule.stages_of(rank)))
    return stages


def _device(modules, inputs) -> torch.device:
    """Where this rank computes: with its parameters, or its inputs."""
    for module in modules:
        for t in (*module.parameters(), *module.buffers()):
            return t.device
    if inputs:
        return inputs[0][0].device
    from paralelo.run.ranks import device

    return device()
