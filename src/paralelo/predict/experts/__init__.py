"""Mixture of experts: who is chosen, who is dropped, who sends to whom.

`router` turns logits into choices and weights, with the losses that even them out; `capacity` limits an expert in exact
fractions; `routing` draws whole routings and counts them.
"""

from paralelo.predict.experts.capacity import (
    capacity,
    dropped,
    exchange_bytes,
    experts_of,
    kept,
    leaving_bytes,
    rank_of_expert,
)
from paralelo.predict.experts.router import VARIANTS, balance, balance_of, choose, probabilities, softmax, z_loss
from paralelo.predict.experts.routing import Routing, draw, steer

__all__ = [
    "VARIANTS", "Routing", "balance", "balance_of", "capacity", "choose", "draw", "dropped", "exchange_bytes",
    "experts_of", "kept", "leaving_bytes", "probabilities", "rank_of_expert", "softmax", "steer", "z_loss",
]
