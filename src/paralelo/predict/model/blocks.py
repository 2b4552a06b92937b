"""The classes of block that the family table may name."""

from paralelo.predict.model.attention import Attention, DeltaNet, LatentAttention, LightningAttention
from paralelo.predict.model.feed_forward import MLP, Linear, LowRank, MoE
from paralelo.predict.model.state_space import Mamba, Mamba2

BLOCKS = {c.__name__: c for c in (Attention, LatentAttention, DeltaNet, LightningAttention, Mamba, Mamba2,
                                  MLP, MoE, Linear, LowRank)}
