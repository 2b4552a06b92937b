"""All axes at once: the grammar tutor trained on a layout, with the losses of one process, step by step.

    trainer = Together(tutor.make(), mesh(Layout(dp=2, tp=2, pp=2)), microbatches=4)
    loss = trainer.step(tokens, targets)                    # the whole batch, given on every rank

A step, for a global batch of n tokens that count:

    rows          cut into M microbatches; each microbatch's rows into dp parts                            data
    positions     each rank takes its part of them, zig-zag or contiguous; attention goes round a ring     context
    depth         run_step plays the schedule over the pipeline's group                                    pipeline
    layers        built over the tensor group; the loss reads logits split by vocabulary                   tensor
    experts       where a block's MLP is a mixture: over the expert group, tokens split over tensor first  experts

    loss          Σ over this rank's tokens / n, so that the shares of dp·cp ranks add up to the global mean
    gradients     the tied embedding's two parts are added (pipeline), then dense parameters over dp·cp, experts over edp
    norm          ‖g‖² = Σ over all ranks of Σ_p ‖g_p‖² / h_p, h_p the number of ranks that hold p; one factor for all

Everything is linear from the share of the loss to the sum of the gradients, so the order of the sums does not matter,
and nothing is divided but by n, once. The balance loss of experts, being no sum over tokens, is that of one microbatch
over all its ranks; its gradient is added and its value is not in the loss that is returned.
"""

from copy import deepcopy

import torch
import torch.distributed as dist
from torch import nn

from paralelo.predict.layout import stages as blocks_of_stages
from paralelo.predict.pipeline import Schedule, build
from paralelo.run.collectives import all_reduce, unchecked
from paralelo.run.experts import ExpertParallelMoE, MoE, balance_loss, expert_parameters, synchronise
from paralelo.run.layout import Mesh
from paralelo.run.pipeline import run_step
from paralelo.run.sequence import context_parallel, positions, spread
from paralelo.run.tensor import IGNORE, ParallelAttention, ParallelMLP, Split, VocabParallelEmbedding, splits
from paralelo.run.tutor import Block, ParallelHead, Tutor
from paralelo.words import Refused

GROUPS = ("dp-cp", "dp-cp-tp")                              # what a mesh must have made besides the axes


class SplitBlock(Block):
    """A tutor's block over the tensor group, and over the expert group where its MLP is a mixture of experts."""

    def __init__(self, dense: Block, mesh: Mesh, order: str):
        nn.Module.__init__(self)
        tp = mesh.group("tp")
        self.norm1, self.norm2 = deepcopy(dense.norm1), deepcopy(dense.norm2)
        self.attention = ParallelAttention.from_dense(dense.attention, tp)
        if mesh.layout.cp > 1:
            context_parallel(self.attention, mesh.group("cp"), order=order)
        if isinstance(dense.mlp, MoE):
            self.mlp = ExpertParallelMoE.from_dense(
                dense.mlp, mesh.group("ep"), tensor=tp if tp.size() > 1 else None,
                expert_tensor=mesh.group("etp") if mesh.layout.etp > 1 else None)
        else:
            self.mlp = ParallelMLP.from_dense(dense.mlp, tp)


class Stage(nn.Module):
    """Some of a tutor's parts, in order of depth, under the names they have in the whole tutor.

    Takes and returns x; where there are experts, x and the balance losses so far.
    """

    def __init__(self, parts: dict[str, nn.Module], mesh: Mesh, order: str, balance: float):
        super().__init__()
        self.parts, self.names = nn.ModuleList(parts.values()), list(parts)
        self.mesh, self.order, self.balance = mesh, order, balance

    def forward(self, x, balance=None):
        places = positions(x.shape[1], self.mesh.group("cp"), self.order, device=x.device)
        for part in self.parts:
            x = part(x, places) if isinstance(part, Block) else part(x)
            if self.balance and isinstance(getattr(part, "mlp", None), ExpertParallelMoE):
                of_part = balance_loss(part.mlp.routing, self.mesh.group("dp-cp-tp"))
                balance = of_part if balance is None else balance + of_part
        if not self.balance:
            return x
        return x, torch.zeros((), device=x.device) if balance is None else balance

    def dense_names(self) -> dict[str, str]:
        """Own parameter names → those of the whole tutor."""
        found = {}
        for name, _ in self.named_parameters():
            _, at, rest = name.split(".", 2)
            found[name] = f"{self.names[int(at)]}.{rest}"
        return found


class Together:
    """A rank's part of a tutor, and how to train it.

    dense          the whole tutor, the same on every rank; its blocks may have an `experts.MoE` as their MLP
    mesh           made with `combined=together.GROUPS`
    schedule       of `predict.pipeline`, or a name of one
    optimizer      parameters → optimizer, one that treats every number by itself (SGD, Adam), so that a shard is
                   updated as it would be in the whole
    max_norm       the global norm that gradients are clipped to, or None
    balance        the coefficient of the experts' balance loss
    order          how positions lie over the context ranks

    `stages` are this rank's modules; `named_parameters()` gives their names in the whole tutor, with their `Split`.
    """

    def __init__(self, dense: Tutor, mesh: Mesh, microbatches: int = 1, schedule: Schedule | str = "1f1b",
                 optimizer=torch.optim.AdamW, max_norm: float | None = 1.0, balance: float = 0.0,
                 order: str = "zigzag", trace=None):
        if isinstance(schedule, str):
            schedule = build(schedule, mesh.layout.pp, microbatches)
        self.mesh, self.schedule, self.max_norm, self.balance, self.trace = mesh, schedule, max_norm, balance, trace
        self.order = order if mesh.layout.cp > 1 else "contiguous"
        mixture = any(isinstance(block.mlp, MoE) for block in dense.blocks)
        self.balance = balance if mixture else 0.0
        self.stages = [Stage(parts, mesh, self.order, self.balance) for parts in self._deal(dense)]
        self.module = nn.ModuleList(self.stages).to(mesh.device)
        self.tied = self._tied() if dense.shape.tied else None
        self.optimizer = optimizer([p for _, p, _ in self.named_parameters()])

    def step(self, tokens: torch.Tensor, targets: torch.Tensor) -> float:
        """One step on a global batch (B, T), the same on every rank; the mean loss over all its tokens that count."""
        n, M = (targets != IGNORE).sum().item(), self.schedule.microbatches
        head = next((part for part in self.module.modules() if isinstance(part, ParallelHead)), None)

        def loss(output, target):
            logits, balance = output if self.balance else (output, None)
            value = head.loss(logits, target, "sum") / n
            if balance is not None:                         # its gradient, not its value
                value = value + self.balance / M * (balance - balance.detach())
            return value

        self.optimizer.zero_grad()
        with unchecked():
            share = run_step(self.schedule, self.stages, self._mine(tokens), self._mine(targets), loss,
                             self.mesh.group("pp"), weights=[1.0] * M, tied=self.tied, trace=self.trace)
            synchronise(self.module, self.mesh.group("dp-cp"), self.mesh.group("edp"))
            if self.max_norm is not None:
                clip(self.named_parameters(), self.mesh, self.max_norm)
            self.optimizer.step()
            return all_reduce(share, self.mesh.group("dp-cp")).item()

    def named_parameters(self) -> list[tuple[str, nn.Parameter, "Held"]]:
        """(name in the whole tutor, parameter, how it is held), each parameter once."""
        found, experts = [], {id(p) for _, p in expert_parameters(self.module)}
        seen = set()
        for stage in self.stages:
            names, split = stage.dense_names(), splits(stage)
            for name, p in stage.named_parameters():
                if id(p) in seen:
                    continue
                seen.add(id(p))
                held = self._held(split[name], p is self.tied, id(p) in experts)
                found.append((names[name], p, Held(split[name], held, id(p) in experts)))
        return found

    # ---- how it is made

    def _deal(self, dense):
        """The parts of each of this rank's stages: the blocks divided the larger first, the ends with their stages."""
        blocks, at, tp = dense.blocks, 0, self.mesh.group("tp")
        last, embedding = self.schedule.num_stages - 1, None
        mine = self.schedule.stages_of(self.mesh.coordinates["pp"])
        for stage, count in enumerate(blocks_of_stages(len(blocks), self.schedule.num_stages)):
            parts = {}
            if stage in mine:
                if stage == 0:
                    parts["embedding"] = embedding = VocabParallelEmbedding.from_dense(dense.embedding, tp)
                parts |= {f"blocks.{i}": SplitBlock(blocks[i], self.mesh, self.order) for i in range(at, at + count)}
                if stage == last:
                    parts["head"] = ParallelHead(dense.head, tp, embedding if dense.shape.tied else None)
                yield parts
            at += count

    def _tied(self):
        """The embedding's matrix on the ranks of the first and of the last stage."""
        for part in self.module.modules():
            if isinstance(part, VocabParallelEmbedding):
                return part.weight
            if isinstance(part, ParallelHead):
                return part.out.weight
        return None

    def _held(self, split: Split, tied: bool, expert: bool) -> int:
        """How many ranks of the world hold the same numbers."""
        layout = self.mesh.layout
        if expert:
            return layout.edp
        ends = {self.schedule.rank_of(0), self.schedule.rank_of(self.schedule.num_stages - 1)}
        return layout.dp * layout.cp * (layout.tp if split.dim is None else split.copies) * (len(ends) if tied else 1)

    def _mine(self, batch: torch.Tensor) -> list[torch.Tensor]:
        """This rank's rows and positions of every microbatch."""
        M, at, layout = self.schedule.microbatches, self.mesh.coordinates, self.mesh.layout
        if len(batch) < M * layout.dp:
            raise Refused("run_layout.rows", rows=len(batch), microbatches=M, dp=layout.dp, needed=M * layout.dp)
        rows = [m.tensor_split(layout.dp)[at["dp"]].to(self.mesh.device) for m in batch.tensor_split(M)]
        return [spread(m, self.mesh.group("cp"), 1, self.order) for m in rows]


class Held:
    """How a parameter lies on the ranks: `split` over the tensor group, `ranks` that hold the same numbers, `expert`."""

    def __init__(self, split: Split, ranks: int, expert: bool):
        self.split, self.ranks, self.expert = split, ranks, expert


@torch.no_grad()
def clip(named, mesh: Mesh, max_norm: float) -> float:
    """Scales the gradients of `named_parameters()` to a global norm of at most `max_norm`; the norm before.

    Squares are summed over every rank of the world, each parameter's divided by the number of ranks that hold it: one
    number in one all-reduce, and the same factor on every rank.
    """
    squares = torch.zeros((), dtype=torch.float64, device=mesh.device)
    for _, p, held in named:
        if p.grad is not None:
            squares += p.grad.double().square().sum() / held.ranks
    norm = all_reduce(squares, dist.group.WORLD).sqrt().item()
    factor = min(1.0, max_norm / (norm + 1e-6))
    for _, p, _ in named:
        if p.grad is not None:
            p.grad.mul_(factor)
    return norm
