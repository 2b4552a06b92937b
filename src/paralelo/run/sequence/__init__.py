"""Positions over ranks: Megatron's sequence parallelism, Ulysses, rings, and states passed on.

    placement    which positions a rank holds (contiguous, zig-zag, packed documents), exact padding
    ring         ring attention; `blocks` has its softmax, updated block by block, and its backward
    ulysses      positions for heads and back; with a ring outside, the hybrid
    state        linear attention: a state of fixed size goes on, serially or as a scan of pairs
    megatron     norms by positions around a tensor pair
    context      all of that for a whole module
    loss         the mean over all ranks' tokens
"""

from paralelo.run.sequence.context import context_parallel, passing, with_halo
from paralelo.run.sequence.loss import token_mean
from paralelo.run.sequence.megatron import SPLIT, SequenceParallel, Shared, gather_positions, scatter_positions
from paralelo.run.sequence.neighbours import halo, shift
from paralelo.run.sequence.placement import (
    Piece,
    Placement,
    collect,
    pad,
    positions,
    spread,
    unpad,
    unzigzag,
    zigzag,
)
from paralelo.run.sequence.ring import ring_attention
from paralelo.run.sequence.state import linear_attention
from paralelo.run.sequence.ulysses import hybrid_attention, hybrid_gather, hybrid_split, ulysses_attention

__all__ = [
    "SPLIT", "Piece", "Placement", "SequenceParallel", "Shared", "collect", "context_parallel", "gather_positions",
    "halo", "hybrid_attention", "hybrid_gather", "hybrid_split", "linear_attention", "pad", "passing", "positions",
    "ring_attention", "scatter_positions", "shift", "spread", "token_mean", "ulysses_attention", "unpad", "unzigzag",
    "with_halo", "zigzag",
]
