"""Sequence and context parallelism: activation memory, who attends to what, what is exchanged.

`activations` lists what a layer keeps for its backward, tensor by tensor; `order` has the orders of positions and the
causal work that they give each rank; `exchange` counts bytes.
"""

from paralelo.predict.sequence.activations import (
    Saved,
    activation_bytes,
    attention_activations,
    layer_input,
    linear_attention_activations,
    local_bytes,
    mla_activations,
    mlp_activations,
    moe_activations,
    norm_activations,
    published_layer,
    published_layer_bytes,
    score_bytes,
)
from paralelo.predict.sequence.exchange import (
    halo_bytes,
    ring_backward_bytes,
    ring_bytes,
    scan_rounds,
    sequence_parallel_bytes,
    state_bytes,
    state_passing_bytes,
    tensor_parallel_bytes,
    ulysses_bytes,
    ulysses_degrees,
)
from paralelo.predict.sequence.order import (
    ORDERS,
    causal_shares,
    causal_speed_up,
    causal_work,
    hybrid_positions,
    packed_positions,
    positions,
    restarted,
    ring_steps,
)

__all__ = [
    "ORDERS", "Saved", "activation_bytes", "attention_activations", "causal_shares", "causal_speed_up", "causal_work",
    "halo_bytes", "hybrid_positions", "layer_input", "linear_attention_activations", "local_bytes", "mla_activations",
    "mlp_activations", "moe_activations", "norm_activations", "packed_positions", "positions", "published_layer",
    "published_layer_bytes", "restarted", "ring_backward_bytes", "ring_bytes", "ring_steps", "scan_rounds",
    "score_bytes", "sequence_parallel_bytes", "state_bytes", "state_passing_bytes", "tensor_parallel_bytes",
    "ulysses_bytes", "ulysses_degrees",
]
