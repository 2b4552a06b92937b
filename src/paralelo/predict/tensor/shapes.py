"""The local shape of every parameter of a split layer. Weights keep torch's (out, in) layout.

    column-parallel   W (out, in)  →  W_r (out/N, in)      bias cut likewise
    row-parallel      W (out, in)  →  W_r (out, in/N)      bias whole, added once after the sum
    embedding         W (V, D)     →  W_r (V'/N, D)        V' = V padded to a multiple of N
    fused             every part is cut by itself: [gate; up] is [gate_r; up_r] on rank r, never a slice of the whole

Sources: Shoeybi et al. 2019, sections 3 and 5 (padding of the vocabulary).
"""

from dataclasses import dataclass
from math import prod

from paralelo.predict.quantity import divisors, ranges, whole
from paralelo.predict.tensor.heads import check_heads, kv_copies, kv_heads, query_heads
from paralelo.words import Refused


@dataclass(frozen=True)
class Piece:
    """What one rank holds of a parameter: its whole shape, its local shape, and on how many ranks each element lies.

    `dim` is the dimension that is cut, None where the parameter is whole on every rank; `parts` are the sizes of the
    fused parts along it, each cut by itself.
    """

    shape: tuple[int, ...]
    local: tuple[int, ...]
    dim: int | None = None
    copies: int = 1
    parts: tuple[int, ...] = ()


def _cut(shape, dim, N, name, parts=()):
    for size in parts or (shape[dim],):
        if size % N:
            raise Refused("tensor.width", name=name, size=size, N=N, would_do=divisors(size, 64))
    local = tuple(s // N if i == dim else s for i, s in enumerate(shape))
    return Piece(tuple(shape), local, dim, 1, tuple(parts))


def _whole(shape, N):
    return Piece(tuple(shape), tuple(shape), None, N)


def mlp_shapes(D: int, F: int, N: int, *, gated: bool = False, bias: bool = False,
               fused: bool = False) -> dict[str, Piece]:
    """An MLP of width F: `up` (and `gate`) column-parallel, `down` row-parallel.

    >>> {name: p.local for name, p in mlp_shapes(5120, 17408, 8, gated=True).items()}
    {'gate': (2176, 5120), 'up': (2176, 5120), 'down': (5120, 2176)}
    >>> mlp_shapes(5120, 17408, 8, gated=True, fused=True)["gate_up"].parts
    (17408, 17408)
    """
    for name, size in (("D", D), ("F", F), ("N", N)):
        whole(name, size)
    if gated and fused:
        out = {"gate_up": _cut((2 * F, D), 0, N, "F", (F, F))}
    else:
        out = {name: _cut((F, D), 0, N, "F") for name in (("gate", "up") if gated else ("up",))}
    if bias:
        out |= {f"{name}.bias": _cut(p.shape[:1], 0, N, "F", p.parts) for name, p in list(out.items())}
    out["down"] = _cut((D, F), 1, N, "F")
    if bias:
        out["down.bias"] = _whole((D,), N)
    return out


def attention_shapes(D: int, H: int, K: int, d: int, N: int, *, bias: bool = False, gated_query: bool = False,
                     qk_norm: str = "", replicate: bool = True) -> dict[str, Piece]:
    """Attention with H query heads and K key/value heads of size d: q, k, v column-parallel, output row-parallel.

    `gated_query`: a query head brings d gate values, so that q has 2·H·d rows. `qk_norm`: "head" (one weight of size d,
    whole on every rank) or "all" (one of size H·d and one of K·d, cut with the heads; its mean needs a reduction).

    >>> giant = attention_shapes(5120, 24, 4, 256, 4, gated_query=True)
    >>> {name: p.local for name, p in giant.items()}
    {'q': (3072, 5120), 'k': (256, 5120), 'v': (256, 5120), 'o': (5120, 1536)}
    >>> at_eight = attention_shapes(5120, 24, 4, 256, 8, gated_query=True)
    >>> at_eight["k"].local, at_eight["k"].copies
    ((256, 5120), 2)
    """
    for name, size in (("D", D), ("d", d)):
        whole(name, size)
    check_heads(H, K, N, replicate)
    copies, kv = kv_copies(K, N), len(kv_heads(K, N, 0)) * d
    q = 2 * H * d if gated_query else H * d
    out = {"q": Piece((q, D), (q // N, D), 0)}
    out |= {name: Piece((K * d, D), (kv, D), 0, copies) for name in ("k", "v")}
    if bias:
        out |= {f"{name}.bias": Piece(p.shape[:1], p.local[:1], 0, p.copies) for name, p in list(out.items())}
    out["o"] = Piece((D, H * d), (D, H * d // N), 1)
    if bias:
        out["o.bias"] = _whole((D,), N)
    if qk_norm == "head":
        out |= {"q_norm": _whole((d,), N), "k_norm": _whole((d,), N)}
    elif qk_norm == "all":
        out |= {"q_norm": Piece((H * d,), (H * d // N,), 0), "k_norm": Piece((K * d,), (kv,), 0, copies)}
    return out


def linear_attention_shapes(D: int, K: int, H: int, d_k: int, d_v: int, width: int, N: int) -> dict[str, Piece]:
    """Gated linear attention: K query/key heads of size d_k and H value heads of size d_v, with a short convolution.

    The input projection packs [Q | K | V | Z | beta | alpha]; every part is cut by its own heads. The convolution runs
    over Q, K and V channel by channel, so it is cut like them.

    >>> qwen3_next = linear_attention_shapes(2048, 16, 32, 128, 128, 4, 2)
    >>> qwen3_next["in"].shape[0], qwen3_next["in"].local[0], qwen3_next["in"].parts
    (12352, 6176, (2048, 2048, 4096, 4096, 32, 32))
    """
    for name, size in (("D", D), ("K", K), ("H", H), ("d_k", d_k), ("d_v", d_v), ("width", width), ("N", N)):
        whole(name, size)
    for heads in (K, H):
        if heads % N:
            raise Refused("tensor.linear_heads", heads=heads, N=N, would_do=divisors(heads, 64))
    qk, v = K * d_k, H * d_v
    return {
        "in": _cut((2 * qk + 2 * v + 2 * H, D), 0, N, "in", (qk, qk, v, v, H, H)),
        "conv": _cut((2 * qk + v, 1, width), 0, N, "conv", (qk, qk, v)),
        "A": _cut((H,), 0, N, "A"),
        "dt": _cut((H,), 0, N, "dt"),
        "norm": _whole((d_v,), N),
        "o": _cut((D, v), 1, N, "o"),
    }


def norm_shapes(D: int, N: int, bias: bool = False) -> dict[str, Piece]:
    """A norm is whole on every rank; where positions are split, its gradient is summed over the group."""
    return {"weight": _whole((D,), N)} | ({"bias": _whole((D,), N)} if bias else {})


def embedding_shapes(V: int, D: int, N: int, multiple: int = 1) -> dict[str, Piece]:
    """The embedding (and the head, tied or not): rows cut after padding.

    >>> embedding_shapes(600, 64, 7)["weight"].local
    (86, 64)
    """
    rows = padded_vocab(V, N, multiple)
    return {"weight": Piece((V, whole("D", D)), (rows // N, D), 0)}


def padded_vocab(V: int, N: int, multiple: int = 1) -> int:
    """V padded to a multiple of N·multiple. Megatron-LM pads the *real* vocabulary to a multiple of 128·tp.

    >>> padded_vocab(600, 7)
    602
    >>> [padded_vocab(32000, tp, 128) for tp in (1, 2, 4, 8)]
    [32000, 32000, 32256, 32768]
    """
    step = whole("N", N) * whole("multiple", multiple)
    return -(-whole("V", V) // step) * step


def vocab_range(V: int, N: int, rank: int, multiple: int = 1) -> range:
    """The rows of the padded vocabulary that a rank holds; rows from V on are padding.

    >>> vocab_range(600, 7, 6)
    range(516, 602)
    """
    rows = padded_vocab(V, N, multiple) // N
    whole("rank", rank, 0, N - 1)
    return range(rank * rows, (rank + 1) * rows)


def real_rows(V: int, N: int, rank: int, multiple: int = 1) -> int:
    """How many of these rows are no padding: the last ranks may have none.

    >>> [real_rows(5, 4, r) for r in range(4)]
    [2, 2, 1, 0]
    """
    rows = vocab_range(V, N, rank, multiple)
    return max(0, min(rows.stop, V) - rows.start)


MOST_ROWS = 2**22                                           # that are written out one by one


def fused_rows(parts, N: int, rank: int) -> list[int]:
    """The rows of a fused matrix that belong to a rank: its slice of every part, in the order of the parts.

    >>> fused_rows([4, 4], 2, 0), fused_rows([4, 4], 2, 1)      # [gate; up]
    ([0, 1, 4, 5], [2, 3, 6, 7])
    """
    whole("N", N)
    whole("rank", rank, 0, N - 1)
    for size in parts:
        if size % N:
            raise Refused("tensor.part", parts=list(parts), size=size, N=N, would_do=divisors(size, 64))
    whole("rows", sum(parts) // N, 0, MOST_ROWS)
    return [p.start + i for p in ranges(parts) for i in range(rank * len(p) // N, (rank + 1) * len(p) // N)]


def qkv_rows(H: int, K: int, d: int, N: int, rank: int) -> list[int]:
    """The rows of [all Q | all K | all V] that belong to a rank, KV heads copied where N exceeds K.

    >>> qkv_rows(4, 2, 1, 2, 0), qkv_rows(4, 2, 1, 2, 1)
    ([0, 1, 4, 6], [2, 3, 5, 7])
    >>> qkv_rows(4, 2, 1, 4, 1)
    [1, 4, 6]
    """
    check_heads(H, K, N)
    kv = kv_heads(K, N, rank)
    whole("rows", (H // N + 2 * len(kv)) * whole("d", d), most=MOST_ROWS)
    heads = [*query_heads(H, N, rank), *(H + h for h in kv), *(H + K + h for h in kv)]
    return [h * d + i for h in heads for i in range(d)]


def local_parameters(pieces: dict[str, Piece]) -> int:
    """Parameters on one rank.

    >>> local_parameters(mlp_shapes(4, 16, 2))
    64
    """
    return sum(prod(p.local) for p in pieces.values())


def local_bytes(pieces: dict[str, Piece], element: int = 2) -> int:
    """Bytes of the parameters on one rank."""
    return local_parameters(pieces) * element
