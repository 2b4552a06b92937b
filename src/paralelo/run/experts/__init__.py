"""Mixture of experts over ranks: router, dispatch, experts, combine, and which gradients to add.

    dense = MoE(D, F, E, k, shared=MLP(D, F))
    moe = ExpertParallelMoE.from_dense(dense, group)         # each rank of `group` with tokens of its own
    loss = token_mean(...) + 0.01 * balance_loss(moe.routing, all_ranks)
    loss.backward()
    synchronise(moe, dense=all_ranks, experts=copies)

`router` chooses, `dispatch` sends, `layer` has the dense and the split layer, `synchronise` adds gradients.
"""

from paralelo.run.experts.dispatch import Exchange, combine, dispatch, plan
from paralelo.run.experts.layer import ExpertParallelMoE, Experts, MoE, part_of_experts
from paralelo.run.experts.router import Router, Routing, balance_loss, places, z_loss
from paralelo.run.experts.synchronise import add_gradients, expert_parameters, synchronise

__all__ = [
    "Exchange", "ExpertParallelMoE", "Experts", "MoE", "Router", "Routing", "add_gradients", "balance_loss", "combine",
    "dispatch", "expert_parameters", "part_of_experts", "places", "plan", "synchronise", "z_loss",
]
