"""Manifest arithmetic: which part of a tensor each rank holds, and which pieces meet when the topology changes.

A box is one range per dimension of the whole tensor, ((start, stop), …). What a rank holds is a list of pieces: a box
of the whole tensor and the place in the rank's local tensor where it lies; a plain shard is one piece, a shard of a
fused matrix one per part. A manifest entry lists all pieces of a tensor with the ranks that hold them.

Resharding is intersection, whatever the two topologies are:

    for every piece of the new layout, for every piece of the old one that meets it:  move old ∩ new

Each element is moved once, from the rank itself where it holds it already, otherwise from one of its holders.
`torch.chunk` decides uneven cuts: every shard has ⌈n/N⌉ rows until none are left, so that the last may be empty.
"""

from paralelo.predict.checkpoint.cuts import (
    Box,
    Cut,
    Piece,
    apply,
    chunk_sizes,
    flat_boxes,
    local_shape,
    over,
    shards,
    whole_piece,
)
from paralelo.predict.checkpoint.manifest import Depth, entry, holding, holdings, pieces_of, problems
from paralelo.predict.checkpoint.moves import Move, intersect, moved_bytes, moves

__all__ = [
    "Box", "Cut", "Depth", "Move", "Piece", "apply", "chunk_sizes", "entry", "flat_boxes", "holding", "holdings",
    "intersect", "local_shape", "moved_bytes", "moves", "over", "pieces_of", "problems", "shards", "whole_piece",
]
