"""What travels between stages: activations forward, their gradients backward.

A message is one tensor or several (what a stage returns). The sender knows their shapes and the receiver does not, so
the first message of a kind is preceded by a **header**: number, types and shapes of its tensors, and which of them want
a gradient back. Microbatches whose inputs have equal shapes are of one kind; the first stage sees the inputs, and every
header carries the kind of every microbatch. So shapes may change from one microbatch to the next, and when they do not,
one header an edge and step is all it costs (8·(1 + 44 + M) bytes). Gradients have the shapes of their activations and
need none.

Where the backend cannot move a device's tensors between ranks (gloo and CUDA), they pass through host memory.
"""

import torch
import torch.distributed as dist

from paralelo.predict.pipeline import Action, Schedule
from paralelo.run.ledger import paused
from paralelo.run.pipeline.plan import Transfer
from paralelo.words import Refused

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128]
TENSORS, DIMS = 4, 8
FIELDS = 3 + DIMS


def kinds_of(microbatches) -> list[int]:
    """The kind of each microbatch: equal shapes, equal number.

    >>> kinds_of([(torch.zeros(2, 3),), (torch.zeros(2, 3),), (torch.zeros(1, 3),)])
    [0, 0, 1]
    """
    seen = {}
    return [seen.setdefault(tuple((t.shape, t.dtype) for t in m), len(seen)) for m in microbatches]


class Mailbox:
    """One rank's messages of one step, in one group. `post` never waits; `take` waits for one message."""

    def __init__(self, schedule: Schedule, group, device, kinds: list[int] | None):
        self.schedule, self.group, self.device, self.kinds = schedule, group, torch.device(device), kinds
        through_host = self.device.type != "cpu" and dist.get_backend(group) == "gloo"
        self.wire = torch.device("cpu") if through_host else self.device
        self.outbox, self.inbox, self.sent = {}, {}, []
        self.shapes = {}                                  # (stage that made it, kind) → [(shape, dtype, wants)]
        self.messages = 0

    # ---- what the interpreter uses

    def put(self, action: Action, tensors: tuple) -> None:
        """What an action made, for `post` to send, or for a stage on this rank to take."""
        self.outbox[_key(action)] = tensors

    def take(self, action: Action) -> tuple:
        """What an action made, here or on another rank. Tensors that want a gradient arrive as new leaves."""
        if _key(action) in self.outbox:
            tensors = self.outbox.pop(_key(action))
            wants = [t is not None and t.requires_grad for t in tensors]
        else:
            tensors, works, wants = self.inbox.pop(_key(action))
            for work in works:
                work.wait()
        tensors = [None if t is None else t.detach().to(self.device) for t in tensors]
        if action.kind == "F":
            return tuple(t.requires_grad_() if w else t for t, w in zip(tensors, wants, strict=True))
        return tuple(tensors)

    def post(self, batch: list[Transfer]) -> None:
        """Post all of it in one call, both directions together. Only the header of a new kind is waited for."""
        ops = []                                          # (operation, the message it belongs to)
        for way, action, peer in batch:
            if action.kind == "F" and not self._known(action):
                self._start(ops)
                ops = []
                with paused():                            # no part of what is predicted: no ledger counts it
                    (self._send_header if way == "send" else self._read_header)(action, peer)
            ops += (self._send if way == "send" else self._receive)(action, peer)
        self._start(ops)

    def finish(self) -> None:
        """Wait until everything sent has left."""
        for work, _ in self.sent:
            work.wait()
        self.sent.clear()

    # ---- one message

    def _send(self, action, peer):
        tensors = self.outbox.pop(_key(action))
        self.messages += 1
        if action.kind == "F":
            if _shapes_of(tensors) != self._shapes(action):
                raise Refused("run_pipeline.shape_changed", stage=action.stage, microbatch=action.microbatch,
                              shape=_written(_shapes_of(tensors)), expected=_written(self._shapes(action)))
        else:
            tensors = [t for t, (_, _, wants) in zip(tensors, self._shapes(action), strict=True) if wants]
        tensors = [t.detach().to(self.wire).contiguous() for t in tensors]
        return [(self._op(dist.isend, t, action, 1 + i, peer), None) for i, t in enumerate(tensors)]

    def _receive(self, action, peer):
        shapes = self._shapes(action)
        wants = [w for _, _, w in shapes]
        if action.kind != "F":
            shapes = [s for s in shapes if s[2]]
        tensors = [torch.empty(shape, dtype=dtype, device=self.wire) for shape, dtype, _ in shapes]
        works = []
        ops = [(self._op(dist.irecv, t, action, 1 + i, peer), works) for i, t in enumerate(tensors)]
        if action.kind != "F":
            tensors = _spread(tensors, wants)
        self.inbox[_key(action)] = tensors, works, wants
        return ops

    def _op(self, way, tensor, action, part, peer):
        # Messages between two ranks are matched by order where the backend has no tags, and by tag where it has them.
        s = self.schedule
        tag = ((action.microbatch * s.num_stages + action.stage) * 2 + (action.kind == "F")) * (TENSORS + 1) + part
        return dist.P2POp(way, tensor, group=self.group, tag=tag, group_peer=peer)

    def _start(self, ops):
        if not ops:
            return
        works = dist.batch_isend_irecv([op for op, _ in ops])
        if len(works) != len(ops):                        # one handle for the whole batch
            works = works * len(ops)
        for work, (op, into) in zip(works, ops, strict=True):
            if into is None:
                self.sent.append((work, op.tensor))       # the tensor must live until it has left
            else:
                into.append(work)
        while self.sent and self.sent[0][0].is_completed():
            self.sent.pop(0)

    # ---- headers

    def _edge(self, action):
        stage = action.stage if action.kind == "F" else action.stage - 1
        return stage, (None if self.kinds is None else self.kinds[action.microbatch])

    def _known(self, action):
        return self._edge(action) in self.shapes

    def _shapes(self, action):
        return self.shapes[self._edge(action)]

    def _remember(self, action, shapes):
        self.shapes[self._edge(action)] = shapes

    def _send_header(self, action, peer):
        shapes = _shapes_of(self.outbox[_key(action)])
        self._remember(action, shapes)
        if len(shapes) > TENSORS or any(len(shape) > DIMS for shape, _, _ in shapes):
            raise Refused("run_pipeline.too_many", stage=action.stage, tensors=len(shapes),
                          dims=max(len(shape) for shape, _, _ in shapes), most=TENSORS, most_dims=DIMS)
        numbers = [len(shapes)]
        for shape, dtype, wants in shapes:
            numbers += [DTYPES.index(dtype), int(wants), len(shape), *shape, *[0] * (DIMS - len(shape))]
        numbers += [0] * (1 + FIELDS * TENSORS - len(numbers)) + self.kinds
        self._start([(self._op(dist.isend, torch.tensor(numbers, device=self.wire), action, 0, peer), None)])

    def _read_header(self, action, peer):
        header = torch.empty(1 + FIELDS * TENSORS + self.schedule.microbatches, dtype=torch.int64, device=self.wire)
        for work in dist.batch_isend_irecv([self._op(dist.irecv, header, action, 0, peer)]):
            work.wait()
        numbers = header.tolist()
        self.kinds = numbers[1 + FIELDS * TENSORS:]
        shapes = []
        for i in range(numbers[0]):
            dtype, wants, ndim, *shape = numbers[1 + FIELDS * i: 1 + FIELDS * (i + 1)]
            shapes.append((torch.Size(shape[:ndim]), DTYPES[dtype], bool(wants)))
        self._remember(action, shapes)


def _key(action):
    """A message backward is the same whether B or I made it."""
    return action.kind == "F", action.stage, action.microbatch


def _shapes_of(tensors) -> list:
    return [(t.shape, t.dtype, t.requires_grad) for t in tensors]


def _spread(tensors, wants):
    """Gradients back in their places, None where none is wanted."""
    rest = iter(tensors)
    return [next(rest) if w else None for w in wants]


def _written(shapes) -> list:
    return ["×".join(map(str, shape)) + " " + str(dtype).removeprefix("torch.") for shape, dtype, _ in shapes]
