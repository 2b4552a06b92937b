"""How long a training step takes. The whole model is this:

    one stage, one microbatch
        compute      FLOP / (peak · share reached)                        forward, backward twice, recomputed once more
        moving       bytes of elementwise work / (memory bandwidth · share reached)      likewise
        messages     α–β time of every collective inside a layer, on the slowest link that its group crosses
        boundary     one activation forward and one gradient backward for each chunk, over the pipeline's link
    step             (M + (S−1)/C) · the slowest stage's sum              (the bubble: (S−1)/C of M)
                     with ZeRO stage 2 or 3 its sum counts their messages, which come with every microbatch
        + data       gradients averaged over the data-parallel group (and weights gathered), less what is hidden
        + optimizer  every local parameter read and written once, at memory bandwidth

Nothing overlaps unless said so: compute, moving, messages and boundary of a stage add up; `hidden` is the share of the
data-parallel traffic that runs behind computation. ZeRO stages 0 and 1 average gradients once a step. Stages 2 and 3
scatter them after every microbatch, having no room to add up whole ones; stage 3 gathers weights twice a microbatch.
Stages are taken as equal, `Work` being that of the slowest; schedules count by the closed form of their bubble.

Elementwise work, in elements of one layer's forward that are read or written: two norms and two residual sums with
their bias and dropout, 10·B·T·D; q, k and v once each way, 2·B·T·(H+2K)·d; the activation function, 2·B·T·F (3 if
gated); stored scores, 6·B·H·T² (written, softmax and dropout read and write, read again), none where fused.

The share of peak that matrix products reach (`clusters.toml`) is one constant a device. For the A100 it is 0.7, chosen
once for the ten published runs of Narayanan et al. 2021, table 1, from 1.7 billion to 1 trillion parameters: with it
the predicted FLOP/s are within 12 % of each. The shares of other devices are estimates; no published run checks them.
"""

from dataclasses import dataclass, field

from paralelo.predict.data import STAGES
from paralelo.predict.layout import Layout
from paralelo.predict.links import Cluster
from paralelo.predict.quantity import one_of, real, whole
from paralelo.predict.tensor import check_heads


@dataclass(frozen=True)
class Message:
    """A collective that the ranks of an axis enter `times` times in the forward and backward of one microbatch.

    `bytes` as `collectives.cost` counts them: the full tensor.
    """

    axis: str
    kind: str
    bytes: float
    times: float


@dataclass(frozen=True)
class Work:
    """What one rank of the slowest stage does: per microbatch, except `parameters` (held) and `experts` (of these, held
    once per expert-data-parallel group)."""

    flops: float                                            # forward, matrix products
    moved: float                                            # forward, bytes of elementwise work
    parameters: float
    messages: tuple[Message, ...] = ()
    boundary: float = 0.0                                   # bytes of an activation between stages, as sent
    experts: float = 0.0
    recomputed: float = 0.0                                 # share of the forward that backward runs again
    pieces: int = 1                                         # messages for them all with ZeRO stage 2 or 3: one a layer


@dataclass(frozen=True)
class Step:
    """Seconds of one step by what they go into; `total` is their sum."""

    compute: float
    moving: float
    messages: dict[str, float] = field(default_factory=dict)
    boundary: float = 0.0
    bubble: float = 0.0
    data: float = 0.0
    optimizer: float = 0.0

    @property
    def total(self) -> float:
        return (self.compute + self.moving + sum(self.messages.values()) + self.boundary + self.bubble + self.data
                + self.optimizer)

    def parts(self) -> dict[str, float]:
        """The parts by name, axes of messages among them: what a bar is drawn from."""
        return {"compute": self.compute, "moving": self.moving, **self.messages, "boundary": self.boundary,
                "bubble": self.bubble, "data": self.data, "optimizer": self.optimizer}


def step_time(work: Work, layout: Layout, cluster: Cluster, microbatches: int, *, chunks: int = 1, zero: int = 0,
              hidden: float = 0.0, element: int = 2, optimizer_bytes: float = 28, bubble: float | None = None) -> Step:
    """The time of one step.

    `optimizer_bytes` go to and from memory for each parameter an optimizer step updates (12 read and written, gradient
    and weight). `bubble`: idle over ideal time, if another schedule than (interleaved) 1F1B runs.

    >>> from paralelo.predict.links import cluster
    >>> work = Work(flops=1e12, moved=1e9, parameters=1e9)
    >>> step = step_time(work, Layout(pp=4), cluster("a100"), microbatches=12)
    >>> round(step.bubble / (step.compute + step.moving), 3)   # (S−1)/M
    0.25
    """
    M, C = whole("microbatches", microbatches), whole("chunks", chunks)
    whole("pieces", work.pieces)
    one_of("zero", zero, STAGES)
    real("hidden", hidden, 0, 1)
    device, passes = cluster.device, 3 + real("recomputed", work.recomputed, 0, 1)
    compute = passes * real("flops", work.flops) / (device.flops * device.matmul)
    moving = passes * real("moved", work.moved) / (device.bandwidth * device.moving)
    messages: dict[str, float] = {}
    for m in work.messages:
        if layout.size(m.axis) > 1:
            seconds = cluster.link(layout, m.axis).seconds(m.kind, m.bytes, layout.size(m.axis)) * m.times
            messages[m.axis] = messages.get(m.axis, 0) + seconds
    boundary = 0.0
    if layout.pp > 1:
        boundary = 2 * C * cluster.link(layout, "pp").seconds("send", work.boundary, 2)
    once, each = (sum(seconds) * (1 - hidden) for seconds in zip(*(
        _gradients(params, axis, layout, cluster, zero, element, work.pieces) for axis, params in (
            ("dp-cp", work.parameters - work.experts), ("edp", work.experts))), strict=True))
    stage = compute + moving + sum(messages.values()) + boundary + each
    idle = (layout.pp - 1) / (M * C) if bubble is None else real("bubble", bubble)
    updated = work.parameters - work.experts, work.experts
    shares = (layout.size("dp-cp"), layout.edp) if zero else (1, 1)
    optimizer = sum(p / n for p, n in zip(updated, shares, strict=True)) * optimizer_bytes
    return Step(
        compute=M * compute, moving=M * moving, messages={axis: M * s for axis, s in messages.items()},
        boundary=M * boundary, bubble=idle * M * stage, data=once + M * each,
        optimizer=optimizer / (device.bandwidth * device.moving))


def _gradients(params, axis, layout, cluster, zero, element, pieces) -> tuple[float, float]:
    """Seconds of data-parallel messages (once a step, with every microbatch)."""
    N = layout.size(axis)
    if N == 1 or not params:
        return 0.0, 0.0
    link, n = cluster.link(layout, axis), params * element
    if zero == 0:
        return link.seconds("all_reduce", n, N), 0.0
    if zero == 1:
        return link.seconds("reduce_scatter", n, N) + link.seconds("all_gather", n, N), 0.0
    scatter, gather = (pieces * link.seconds(kind, n / pieces, N) for kind in ("reduce_scatter", "all_gather"))
    return (gather, scatter) if zero == 2 else (0.0, scatter + 2 * gather)


def elementwise_bytes(B: int, T: int, D: int, F: int, H: int, K: int, d: int, N: int = 1, *, gated: bool = True,
                      fused: bool = True, sequence_parallel: bool = False, element: int = 2) -> float:
    """Bytes that one layer's forward reads and writes beside its matrix products, on one of N tensor ranks.

    >>> elementwise_bytes(1, 2048, 4096, 16384, 32, 32, 128, gated=False) / (2048 * 4096 * 2)
    24.0
    """
    n = whole("B", B) * whole("T", T)
    positions = 10 * n * D / (N if sequence_parallel else 1)
    features = 2 * n * (H + 2 * K) * d + (3 if gated else 2) * n * F + (0 if fused else 6 * n * H * T)
    return (positions + features / N) * element


def dense_work(layout: Layout, *, layers: int, B: int, T: int, D: int, F: int, H: int, K: int, d: int, V: int,
               gated: bool = True, fused: bool = True, sequence_parallel: bool = False, recompute: bool = False,
               element: int = 2) -> Work:
    """The work of a dense transformer whose layers and head are spread evenly over the stages.

    Per layer and token 2 FLOP a weight and 4·H·d·T for attention over T positions (no causal half, as published
    counts have it). Four all-reduces a layer, six with recomputation, or the gathers and scatters of the same size;
    an activation between stages is sent once per tensor-parallel group and gathered behind it.

    >>> work = dense_work(Layout(tp=8), layers=40, B=1, T=2048, D=6144, F=24576, H=48, K=48, d=128, V=51200,
    ...                   gated=False, recompute=True)
    >>> round(work.parameters * 8 / 1e9, 1), work.messages[0].times
    (18.4, 240.0)
    """
    whole("layers", layers)
    check_heads(H, K, layout.tp)
    t, p, n = layout.tp, layout.pp, whole("B", B) * whole("T", T) / layout.cp
    weights = D * (H + 2 * K) * d + H * d * D + (3 if gated else 2) * D * F
    flops = layers * (2 * n * weights + 4 * n * H * d * T) + 2 * n * D * V
    moved = layers * elementwise_bytes(B, T, D, F, H, K, d, t, gated=gated, fused=fused,
                                       sequence_parallel=sequence_parallel, element=element) / layout.cp
    size = n * D * element
    messages = (Message("tp", "all_reduce", size, (6 if recompute else 4) * layers / p),)
    if layout.cp > 1:                                       # a ring: k and v N−1 times forward, 2N−1 times backward
        hops = (3 * layout.cp - 2) + (layout.cp - 1 if recompute else 0)
        messages += (Message("cp", "send", 2 * n * K * d * element / t, hops * layers / p),)
    return Work(flops / (t * p), moved / p, (layers * weights + V * D) / (t * p), messages, size / t,
                recomputed=1.0 if recompute else 0.0)
