"""What a step did: when each action ran, and how many forwards were held.

    trace = Trace()
    run_step(..., trace=trace)                            # on every rank
    measured = trace.gather(group)                        # the whole step, on every rank

`measured` has the names of `predict.pipeline.Simulation`, so the same code draws it and the same questions have
answers: `starts` and `ends` (milliseconds from the first start), `windows`, `makespan`, `idle_share`,
`live_activations`, `messages`. Its ideal is what the ranks were busy, on average:

    idle share = 1 − mean busy / makespan

The clock is the machine's own, common to its processes; ranks on several machines have clocks that differ.

**Live activations** are counted from what autograd really holds (`saved_tensors_hooks`): a forward is live from the
first tensor it saves until the last of them is freed. `live_activations` is the peak number of live forwards, a chunk
counting 1/C; `peak_bytes` the peak of the bytes held. Parameters are not activations and are not counted.
"""

import time
from array import array

import torch
import torch.distributed as dist

from paralelo.predict.pipeline import Action, Schedule, Simulation


class Trace:
    """Collects one step of one rank; `run_step` fills it. `activations=False` leaves the counting out."""

    def __init__(self, activations: bool = True):
        self.activations = activations
        self.schedule, self.times, self.messages, self.meter = None, [], 0, None

    def begin(self, schedule: Schedule, modules, device) -> None:
        self.schedule, self.times, self.messages = schedule, [], 0
        self.device = device
        self.meter = Meter(t for m in modules for t in (*m.parameters(), *m.buffers())) if self.activations else None

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def record(self, action: Action, start: float, end: float) -> None:
        self.times.append((action.kind, action.stage, action.microbatch, start, end))

    def gather(self, group) -> "Measured":
        """Everybody's times together. All ranks of the group call it."""
        meter = self.meter
        mine = (self.times, self.messages, *((meter.peak, meter.peak_bytes, meter.largest) if meter else (0, 0, {})))
        all_ = [None] * dist.get_world_size(group)
        dist.all_gather_object(all_, mine, group=group)
        return Measured(self.schedule, all_)


class Measured(Simulation):
    """A step as it ran: a simulation whose times were measured, in milliseconds.

    `peak_bytes[rank]` is the most that was held; `forward_bytes[rank]` what one whole forward of one microbatch (all
    chunks) holds.
    """

    def __init__(self, schedule: Schedule, ranks: list[tuple]):
        begin = min(start for times, *_ in ranks for *_, start, _ in times)
        starts, ends = ([array("d", [1e3 * (t[at] - begin) for t in times]) for times, *_ in ranks] for at in (3, 4))
        busy = sum(sum(e) - sum(s) for s, e in zip(starts, ends, strict=True)) / schedule.stages
        super().__init__(schedule, starts, ends, busy)
        self.messages = sum(messages for _, messages, *_ in ranks)
        self.live_activations = [peak / schedule.chunks for *_, peak, _, _ in ranks]
        self.peak_bytes = [peak for *_, peak, _ in ranks]
        self.forward_bytes = [sum(largest.values()) for *_, largest in ranks]


class Meter:
    """Counts the tensors that autograd saved and has not freed, by the forward that saved them."""

    def __init__(self, not_counted):
        self.skip = {t.untyped_storage().data_ptr() for t in not_counted}
        self.held = {}                                    # forward → {address: [uses, bytes]}
        self.bytes = self.peak_bytes = self.peak = 0
        self.largest = {}                                 # stage → bytes of its largest forward

    def watch(self, stage: int, microbatch: int):
        """A context: what is saved in it belongs to this forward."""
        forward = stage, microbatch
        return torch.autograd.graph.saved_tensors_hooks(lambda t: self._pack(forward, t), _unpack)

    def _pack(self, forward, tensor):
        storage = tensor.untyped_storage()
        if tensor.numel() == 0 or storage.data_ptr() in self.skip:
            return tensor
        kept = self.held.setdefault(forward, {})
        size = min(tensor.numel() * tensor.element_size(), storage.nbytes())
        entry = kept.setdefault(tensor.data_ptr(), [0, 0])
        entry[0] += 1
        if size > entry[1]:
            self.bytes += size - entry[1]
            entry[1] = size
        self.peak, self.peak_bytes = max(self.peak, len(self.held)), max(self.peak_bytes, self.bytes)
        stage = forward[0]
        self.largest[stage] = max(self.largest.get(stage, 0), sum(size for _, size in kept.values()))
        return _Saved(self, forward, tensor.detach())   # an output would hold its own node: a cycle

    def _free(self, forward, address):
        kept = self.held[forward]
        kept[address][0] -= 1
        if not kept[address][0]:
            self.bytes -= kept.pop(address)[1]
        if not kept:
            del self.held[forward]


class _Saved:
    """Lives as long as autograd keeps the tensor."""

    __slots__ = ("forward", "meter", "tensor")

    def __init__(self, meter, forward, tensor):
        self.meter, self.forward, self.tensor = meter, forward, tensor

    def __del__(self):
        self.meter._free(self.forward, self.tensor.data_ptr())


def _unpack(saved):
    return saved.tensor if isinstance(saved, _Saved) else saved
