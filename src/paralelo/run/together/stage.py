"""What a rank holds of the tutor: some of its parts, each built over the groups of its own axis."""

from copy import deepcopy

import torch
from torch import nn

from paralelo.run.experts import ExpertParallelMoE, MoE, balance_loss
from paralelo.run.layout import Mesh
from paralelo.run.sequence import context_parallel, positions
from paralelo.run.tensor import ParallelAttention, ParallelMLP
from paralelo.run.tutor import Block


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
