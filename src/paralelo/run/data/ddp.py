"""Data parallelism by hand: every rank holds the whole model and some of the examples; gradients are added.

    rank r: loss_r over its examples, g_r = ∂loss_r/∂w, all-reduce:  g = Σ_r g_r        (then /N where `average`)

    weights, gradients, optimizer state   whole on every rank
    examples                              B/N of them a rank

Forward sends nothing. Backward all-reduces the gradients, 2(N−1)/N · Ψ elements a rank, bucket by bucket: gradients
come last layer first, so a bucket leaves as soon as its last one is there, while backward goes on with earlier
layers. All ranks must send buckets in the same order, so a bucket that is ready early waits for the ones before it.
Bucketing by size is that of `predict.data.buckets`. Source: Li et al. 2020 (torch's DistributedDataParallel does the
same in C++).
"""

import weakref
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paralelo.predict.data import buckets
from paralelo.run.collectives.plain import wire
from paralelo.words import Refused

__all__ = ["DataParallel", "broadcast", "on_gradient"]


def on_gradient(parameter: nn.Parameter, owner, method: str) -> None:
    """Calls `owner.method(parameter)` whenever the parameter's gradient is complete, as long as `owner` lives.

    The garbage collector does not see through a parameter's hooks: one that held its owner would never let it go.
    """
    alive = weakref.ref(owner)

    def hook(p):
        if (it := alive()) is not None:
            getattr(it, method)(p)

    parameter.register_post_accumulate_grad_hook(hook)


def broadcast(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Rank 0's x on every rank of the group, a new tensor."""
    y = wire(x.detach(), group).clone()
    if group.size() > 1:
        dist.broadcast(y, group=group, group_src=0)
    return y.to(x.device)


class DataParallel(nn.Module):
    """`module` on every rank of `group`, its gradients added (`average`: their mean) over the group.

        loss(model(x)).backward()       # buckets leave while this runs
        model.synchronise()             # waits for them; p.grad is the sum
        optimizer.step()

    `overlap=False` sends everything in `synchronise`. Initial values are rank 0's. A parameter that a rank did not use
    counts as zero there; after `synchronise` every parameter has a gradient on every rank. Several backwards before it
    stand inside `accumulating()`, all but the last.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup, *, bucket_bytes: int = 25_000_000,
                 overlap: bool = True, average: bool = True):
        super().__init__()
        self.module, self.group, self.overlap, self.average = module, group, overlap, average
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.copy_(broadcast(tensor, group))
        self.buckets, self._bucket_of = [], {}
        trained = [p for p in module.parameters() if p.requires_grad]
        for dtype in dict.fromkeys(p.dtype for p in trained):  # a message has one type
            alike = [p for p in trained if p.dtype == dtype]
            sizes = [p.numel() * p.element_size() for p in alike]
            self.buckets += [[alike[i] for i in chosen] for chosen in buckets(sizes, bucket_bytes)]
        for b, bucket in enumerate(self.buckets):
            for p in bucket:
                self._bucket_of[p] = b
                on_gradient(p, self, "_arrived")
        self.sending = True
        self._start()

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def _start(self):
        self._waiting_for = [len(bucket) for bucket in self.buckets]
        self._flying: list[tuple[Tensor, dist.Work | None]] = []  # one entry a bucket that has left, in order

    def _arrived(self, parameter: Tensor):
        """The gradient of one parameter is complete: its bucket may leave, and those that waited behind it."""
        if not (self.sending and self.overlap):
            return
        if self._bucket_of[parameter] < len(self._flying):
            raise Refused("run_data.second_backward")   # `synchronise` would write what left over what came now
        self._waiting_for[self._bucket_of[parameter]] -= 1
        while len(self._flying) < len(self.buckets) and self._waiting_for[len(self._flying)] == 0:
            self._send(self.buckets[len(self._flying)])

    def _send(self, bucket: list[nn.Parameter]):
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = wire(torch.cat([g.flatten() for g in gradients]), self.group)
        work = dist.all_reduce(flat, group=self.group, async_op=True) if self.group.size() > 1 else None
        self._flying.append((flat, work))

    @contextmanager
    def accumulating(self):
        """Backwards inside send nothing: their gradients stay on the rank and leave with the next one outside."""
        self.sending = False
        try:
            yield self
        finally:
            self.sending = True

    def synchronise(self) -> None:
        """Sends what has not left, waits, and writes every gradient back."""
        for bucket in self.buckets[len(self._flying):]:
            self._send(bucket)
        for bucket, (flat, work) in zip(self.buckets, self._flying, strict=True):
            if work is not None:
                work.wait()
            if self.average:
                flat /= self.group.size()
            for p, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad = piece.view_as(p).to(p.device)
        self._start()
