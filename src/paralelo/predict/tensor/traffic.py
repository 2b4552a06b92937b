"""What tensor parallelism sends.

    per layer and microbatch: two all-reduces forward (attention, MLP), two backward; each of B·T·D elements
    a ring sends 2(N−1)/N of it on every rank
    embedding: one all-reduce forward of B·T·D;   loss: three of B·T, whatever the vocabulary
    KV heads with copies: one more sum of the gradient of k and v over the ranks that share a head
"""

import math

from paralelo.predict.collectives import all_gather_bytes, all_reduce_bytes
from paralelo.predict.quantity import whole
from paralelo.predict.tensor.heads import kv_copies


def mlp_bytes(B: int, T: int, D: int, element: int = 2) -> int:
    """The payload of the one all-reduce of an MLP forward: B·T·D elements. Backward has one of the same size.

    >>> mlp_bytes(1, 4096, 5120)
    41943040
    """
    return whole("B", B) * whole("T", T) * whole("D", D) * element


def layer_bytes(B: int, T: int, D: int, N: int, element: int = 2):
    """What a rank sends for one layer and microbatch, forward and backward: four all-reduces, 8(N−1)/N·B·T·D elements.

    >>> layer_bytes(1, 4096, 5120, 8)
    293601280
    """
    return 4 * all_reduce_bytes(mlp_bytes(B, T, D, element), N)


def embedding_bytes(B: int, T: int, D: int, N: int, element: int = 2):
    """What a rank sends for the lookup: one all-reduce of B·T·D elements forward, nothing backward."""
    return all_reduce_bytes(mlp_bytes(B, T, D, element), N)


def cross_entropy_bytes(n: int, N: int, element: int = 4):
    """What a rank sends for the loss of n tokens: maximum, sum of exponentials and the label's logit, n elements each.

    >>> cross_entropy_bytes(4096, 8)
    86016
    """
    return 3 * all_reduce_bytes(whole("n", n) * element, N)


def gathered_logits_bytes(n: int, V: int, N: int, element: int = 2):
    """What gathering the logits of n tokens instead would send.

    >>> gathered_logits_bytes(4096, 248_320, 8) / cross_entropy_bytes(4096, 8)
    20693.333333333332
    """
    return all_gather_bytes(whole("n", n) * whole("V", V) * element, N)


def kv_gradient_bytes(D: int, K: int, d: int, N: int, element: int = 2):
    """What a rank sends to sum the gradients of its copied k and v weights over the ranks of the same head.

    >>> kv_gradient_bytes(5120, 4, 256, 4), kv_gradient_bytes(5120, 4, 256, 8)
    (0, 5242880)
    """
    copies = kv_copies(K, N)
    return all_reduce_bytes(2 * d * D * element, copies) if copies > 1 else 0


def wasted_kv_parameters(D: int, K: int, d: int, N: int) -> int:
    """Parameters of k and v that are stored once more, over the whole group.

    >>> wasted_kv_parameters(5120, 4, 256, 8)
    10485760
    """
    return (kv_copies(K, N) - 1) * 2 * K * d * D


def loss_of_gathered_logits(loss: float, N: int) -> float:
    """The wrong loss that logits gathered already give in a vocabulary-parallel loss: every rank adds the whole sum.

    >>> round(loss_of_gathered_logits(4.4583, 2), 4)
    5.1514
    """
    return loss + math.log(N)
