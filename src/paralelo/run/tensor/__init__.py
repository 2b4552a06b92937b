"""Tensor parallelism: one layer's matrices over the ranks of a group, equal to the dense layer.

Dense references (`MLP`, `Attention`, `GatedDelta`, torch's own `Linear` and `Embedding`) and their parallel layers,
each with `from_dense(dense, group)`, so that a check reads: build dense, split, run, compare outputs and every
gradient. Every parallel layer says how its parameters are split (`splits`), and all the rest reads that.
"""

from paralelo.run.tensor.attention import Attention, ParallelAttention, attend, rotate
from paralelo.run.tensor.copies import sum_copies
from paralelo.run.tensor.embedding import VocabParallelEmbedding, VocabParallelHead
from paralelo.run.tensor.gradients import clip_grad_norm, grad_norm, holders
from paralelo.run.tensor.linear import ColumnParallelLinear, RowParallelLinear
from paralelo.run.tensor.linear_attention import GatedDelta, ParallelGatedDelta, causal_conv, delta_rule
from paralelo.run.tensor.loss import IGNORE, vocab_parallel_cross_entropy
from paralelo.run.tensor.mlp import MLP, ParallelMLP
from paralelo.run.tensor.norm import RMSNorm, rms_norm
from paralelo.run.tensor.split import Split, join, local_shape, piece, splits
from paralelo.run.tensor.streams import Streams, draw, dropout, initialise, stream_seed

__all__ = [
    "IGNORE", "MLP", "Attention", "ColumnParallelLinear", "GatedDelta", "ParallelAttention", "ParallelGatedDelta",
    "ParallelMLP", "RMSNorm", "RowParallelLinear", "Split", "Streams", "VocabParallelEmbedding", "VocabParallelHead",
    "attend", "causal_conv", "clip_grad_norm", "delta_rule", "draw", "dropout", "grad_norm", "holders", "initialise",
    "join", "local_shape", "piece", "rms_norm", "rotate", "splits", "stream_seed", "sum_copies",
    "vocab_parallel_cross_entropy",
]
