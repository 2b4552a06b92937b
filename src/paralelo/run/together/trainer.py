"""The trainer: one rank's part of a step over all axes."""

import torch
from torch import nn

from paralelo.predict.layout import stages as blocks_of_stages
from paralelo.predict.pipeline import Schedule, build
from paralelo.run.collectives import all_reduce, unchecked
from paralelo.run.data import count_tokens
from paralelo.run.experts import MoE, expert_parameters, synchronise
from paralelo.run.layout import Mesh
from paralelo.run.pipeline import run_step
from paralelo.run.sequence import spread
from paralelo.run.tensor import Split, VocabParallelEmbedding, splits
from paralelo.run.together.norm import Held, clip
from paralelo.run.together.stage import SplitBlock, Stage
from paralelo.run.tutor import ParallelHead, Tutor
from paralelo.words import Refused


class Trainer:
    """A rank's part of a tutor, and how to train it.

    dense          the whole tutor, the same on every rank; its blocks may have an `experts.MoE` as their MLP
    mesh           of `run.layout`
    schedule       of `predict.pipeline`, or a name of one
    optimizer      parameters → optimizer, one that treats every number by itself (SGD, Adam), so that a shard is
                   updated as it would be in the whole
    max_norm       the global norm that gradients are clipped to, or None
    balance        the coefficient of the experts' balance loss
    order          how positions lie over the context ranks

    `stages` are this rank's modules; `named_parameters()` gives their names in the whole tutor and how they lie.
    `norm` is that of the last step's gradients, before clipping. With a `trace`, every step fills it.
    """

    def __init__(self, dense: Tutor, mesh: Mesh, microbatches: int = 1, schedule: Schedule | str = "1f1b",
                 optimizer=torch.optim.AdamW, max_norm: float | None = 1.0, balance: float = 0.0,
                 order: str = "zigzag", trace=None):
        if isinstance(schedule, str):
            schedule = build(schedule, mesh.layout.pp, microbatches)
        self.mesh, self.schedule, self.max_norm, self.trace, self.norm = mesh, schedule, max_norm, trace, None
        self.order = order if mesh.layout.cp > 1 else "contiguous"
        mixture = any(isinstance(block.mlp, MoE) for block in dense.blocks)
        self.balance = balance if mixture else 0.0
        self.stages = [Stage(parts, mesh, self.order, self.balance) for parts in self._deal(dense)]
        self.module = nn.ModuleList(self.stages).to(mesh.device)
        self.tied = self._tied() if dense.shape.tied else None
        self.optimizer = optimizer([p for _, p, _ in self.named_parameters()])

    def step(self, tokens: torch.Tensor, targets: torch.Tensor) -> float:
        """One step on a global batch (B, T), the same on every rank; the mean loss over all its tokens that count."""
        n, M = count_tokens(targets), self.schedule.microbatches
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
                self.norm = clip(self.named_parameters(), self.mesh, self.max_norm)
            self.optimizer.step()
            return all_reduce(share, self.mesh.group("dp-cp")).item()

    def named_parameters(self) -> list[tuple[str, nn.Parameter, Held]]:
        """(name in the whole tutor, parameter, how it is held), each parameter once."""
        found, seen = [], set()
        experts = {id(p) for _, p in expert_parameters(self.module)}
        for stage in self.stages:
            names, split = stage.dense_names(), splits(stage)
            for name, p in stage.named_parameters():
                if id(p) in seen:
                    continue
                seen.add(id(p))
                held = self._held(split[name], p is self.tied, id(p) in experts)
                found.append(("embedding.weight" if p is self.tied else names[name], p,
                              Held(split[name], held, id(p) in experts)))
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
