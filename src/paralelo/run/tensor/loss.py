"""Cross-entropy over logits that lie split by vocabulary; they are never gathered.

    ℓ = log Σ_v exp(z_v − m) − (z_y − m),   m = max_v z_v

    z_r    (…, Vp/N)    rank r's logits; columns from V on are padding and count as −∞
    y      (…)          targets, the same on every rank; −100 counts for nothing
    ℓ      (…)          the same on every rank

Forward sends three numbers a token: the maximum, the sum of exponentials, the label's logit (one rank has it, the
others add 0). Backward sends nothing: dz_r = softmax_r − onehot_r, and only the rank that holds y subtracts 1. Two
faults to know. Logits that were gathered first and then given to this function are counted N times: ℓ + log N. A
plain `dist.all_reduce` of the label's logit is invisible to autograd: the loss is right and the gradient is not.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from paralelo.run.collectives import all_reduce
from paralelo.words import Refused

__all__ = ["IGNORE", "vocab_parallel_cross_entropy"]

IGNORE = -100


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, group, V):
        n, local = logits.shape  # n tokens, Vp/N columns
        start = group.rank() * local
        real = max(0, min(local, V - start)) if V is not None else local
        z = logits[:, :real].float() if logits.element_size() < 4 else logits[:, :real]  # sums of exponentials need it
        top = z.max(-1).values if real else z.new_full((n,), -torch.inf)
        top = all_reduce(top, group, dist.ReduceOp.MAX)
        z = z - top[:, None]
        here = (targets >= start) & (targets < start + real)
        column = (targets - start).masked_fill(~here, 0)
        label = z.gather(1, column[:, None])[:, 0].masked_fill(~here, 0) if real else torch.zeros_like(top)
        label = all_reduce(label, group)
        z.exp_()
        total = all_reduce(z.sum(-1), group)
        loss = (total.log() - label).masked_fill(targets == IGNORE, 0)
        ctx.save_for_backward(z.div_(total[:, None]), column, here, targets == IGNORE)
        ctx.local, ctx.dtype = local, logits.dtype
        return loss

    @staticmethod
    def backward(ctx, grad):
        softmax, column, here, ignored = ctx.saved_tensors
        grad = grad.masked_fill(ignored, 0)
        out = softmax.new_zeros(softmax.shape[0], ctx.local)  # padding columns get no gradient
        out[:, : softmax.shape[1]] = softmax * grad[:, None]
        out[torch.arange(len(column), device=column.device), column] -= grad * here
        return out.to(ctx.dtype), None, None, None


def vocab_parallel_cross_entropy(logits: Tensor, targets: Tensor, group: dist.ProcessGroup, *, V: int | None = None,
                                 reduction: str = "mean") -> Tensor:
    """The loss of split logits (…, Vp/N) and targets (…); `V` masks padding columns; as torch's on whole logits.

    `reduction`: "mean" over the targets that count, "sum", or "none" (per token, 0 where the target is −100).
    """
    if logits.shape[:-1] != targets.shape:
        raise Refused("run_tensor.targets_shape", logits=list(logits.shape), targets=list(targets.shape))
    if reduction not in ("mean", "sum", "none"):
        raise Refused("run_tensor.reduction", reduction=reduction)
    columns = logits.shape[-1] * group.size()
    size = V if V is not None else columns
    if size > columns:                                      # a label that no rank holds would count as a logit of 0
        raise Refused("run_tensor.vocabulary", V=V, columns=columns, N=group.size())
    wrong = targets[(targets != IGNORE) & ((targets < 0) | (targets >= size))]
    if wrong.numel():
        raise Refused("run_tensor.token", token=int(wrong[0]), V=size)
    loss = _CrossEntropy.apply(logits.reshape(-1, logits.shape[-1]), targets.flatten(), group, V).view(targets.shape)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / (targets != IGNORE).sum()
