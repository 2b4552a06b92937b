"""Tensor parallelism: who holds which heads, rows and columns, what it weighs, what is sent.

`heads` says which degrees a model's heads allow and which rank holds which head; `shapes` cuts every layer into local
shapes; `traffic` counts what a layer sends.
"""

from paralelo.predict.tensor.heads import (
    check_heads,
    head_degrees,
    kv_copies,
    kv_head_map,
    kv_heads,
    kv_repair,
    query_heads,
    tp_degrees,
)
from paralelo.predict.tensor.shapes import (
    Piece,
    attention_shapes,
    embedding_shapes,
    fused_rows,
    linear_attention_shapes,
    local_bytes,
    local_parameters,
    mlp_shapes,
    norm_shapes,
    padded_vocab,
    qkv_rows,
    real_rows,
    vocab_range,
)
from paralelo.predict.tensor.traffic import (
    cross_entropy_bytes,
    embedding_bytes,
    gathered_logits_bytes,
    kv_gradient_bytes,
    layer_bytes,
    loss_of_gathered_logits,
    mlp_bytes,
    wasted_kv_parameters,
)

__all__ = [
    "Piece", "attention_shapes", "check_heads", "cross_entropy_bytes", "embedding_bytes", "embedding_shapes",
    "fused_rows", "gathered_logits_bytes", "head_degrees", "kv_copies", "kv_gradient_bytes", "kv_head_map", "kv_heads",
    "kv_repair", "layer_bytes", "linear_attention_shapes", "local_bytes", "local_parameters",
    "loss_of_gathered_logits", "mlp_bytes", "mlp_shapes", "norm_shapes", "padded_vocab", "qkv_rows", "query_heads",
    "real_rows", "tp_degrees", "vocab_range", "wasted_kv_parameters",
]
