"""What a layer keeps for its backward, tensor by tensor.

Every function lists `Saved` tensors: how many elements, how many bytes each, and what divides them:

    split = "tensor"      cut by heads or features: 1/N on every tensor-parallel rank
    split = "positions"   the residual stream: whole on every rank, 1/N with sequence parallelism
    split = ""            never cut

B is the microbatch, T the positions of this rank (already divided by the context-parallel degree), `keys` the positions
that are attended to. Activations have `element` bytes, statistics 4, dropout masks 1. An element that two operations
need is counted once: the output of attention is the input of the output projection. By default attention is fused (no
T² tensor: its output and a log-sum-exp per head and query are kept, scores are computed again), nothing is dropped out.

With LayerNorm, GELU, F = 4D, plain heads, dropout and stored scores the sum is the published formula, in bytes:

    plain                    s·b·h · (34 + 5·a·s/h)
    tensor parallel          s·b·h · (10 + 24/t + 5·a·s/(h·t))
    and sequence parallel    s·b·h / t · (34 + 5·a·s/h)

Source: Korthikanti et al. 2022, section 4. `published_layer_bytes` writes the formulas down; a test compares.
"""

from dataclasses import dataclass
from fractions import Fraction

from paralelo.predict.quantity import one_of, whole


@dataclass(frozen=True)
class Saved:
    """A tensor kept for backward."""

    name: str
    elements: int
    each: int
    split: str = ""

    def bytes(self, N: int = 1, sequence_parallel: bool = False, regather: bool = True) -> Fraction:
        cut = self.split == "tensor" or (self.split == "positions" and sequence_parallel)
        kept_whole = not regather and self.name in ("qkv input", "mlp input")
        return Fraction(self.elements * self.each, N if cut and not kept_whole else 1)


def activation_bytes(saved, N: int = 1, sequence_parallel: bool = False, *, regather: bool = True,
                     recompute: str = "") -> int | float:
    """Bytes of these tensors on one of N tensor-parallel ranks.

    `regather`: with sequence parallelism, the inputs of q, k, v and of the MLP are kept cut and gathered again backward
    (as published); False keeps them whole and saves that traffic. `recompute`: "selective" keeps no scores (they are
    computed again from q, k and v), "full" nothing but the layer's input (the first tensor of the list).

    >>> layer = published_layer(B=1, T=2048, D=12288, H=96)
    >>> activation_bytes(layer) / (2048 * 12288)               # 34 + 5·96·2048/12288
    114.0
    >>> activation_bytes(layer, recompute="selective") / (2048 * 12288)
    34.0
    """
    whole("N", N)
    one_of("recompute", recompute, ("", "selective", "full"))
    saved = list(saved)
    if recompute == "selective":
        saved = [s for s in saved if not s.name.startswith("scores")]
    if recompute == "full":
        saved = saved[:1]
    total = sum((s.bytes(N, sequence_parallel, regather) for s in saved), Fraction(0))
    return int(total) if total.denominator == 1 else float(total)


def local_bytes(saved, N: int = 1, sequence_parallel: bool = False) -> dict[str, float]:
    """The same by tensor, largest first: what a table or a picture shows."""
    out: dict[str, float] = {}
    for s in saved:
        out[s.name] = out.get(s.name, 0) + float(s.bytes(N, sequence_parallel))
    return dict(sorted(out.items(), key=lambda item: -item[1]))


def layer_input(B: int, T: int, D: int, element: int = 2) -> list[Saved]:
    """What full recomputation keeps of a layer."""
    return [Saved("input", whole("B", B) * whole("T", T) * whole("D", D), element, "positions")]


def norm_activations(B: int, T: int, D: int, element: int = 2) -> list[Saved]:
    """A norm keeps its input; its statistics (a number or two per position) do not count beside D."""
    return [Saved("norm input", whole("B", B) * whole("T", T) * whole("D", D), element, "positions")]


def attention_activations(B: int, T: int, D: int, H: int, K: int, d: int, *, keys: int | None = None,
                          fused: bool = True, dropout: bool = False, gated_query: bool = False, qk_norm: bool = False,
                          kv_copies: int = 1, element: int = 2) -> list[Saved]:
    """Attention without its norm: the input of q, k and v, the three themselves, scores or statistics, the output.

    `kv_copies` is on how many ranks a KV head lies: cut by N, copies make k and v that much larger.

    >>> [(s.name, s.elements) for s in attention_activations(1, 8, 16, 4, 2, 4)]
    [('qkv input', 128), ('q', 128), ('k', 64), ('v', 64), ('log-sum-exp', 32), ('output', 128)]
    """
    n = whole("B", B) * whole("T", T)
    q, kv = n * whole("H", H) * whole("d", d), n * whole("K", K) * d * kv_copies
    out = [Saved("qkv input", n * whole("D", D), element, "positions")]
    out += [Saved("q", q, element, "tensor"), Saved("k", kv, element, "tensor"), Saved("v", kv, element, "tensor")]
    if qk_norm:
        out += [Saved("q before norm", q, element, "tensor"), Saved("k before norm", kv, element, "tensor")]
    if fused:
        out.append(Saved("log-sum-exp", n * H, 4, "tensor"))
    else:
        scores = n * H * whole("keys", T if keys is None else keys)
        out.append(Saved("scores: softmax", scores, element, "tensor"))
        if dropout:
            out += [Saved("scores: mask", scores, 1, "tensor"), Saved("scores: dropped", scores, element, "tensor")]
    if gated_query:
        out += [Saved("gate", q, element, "tensor"), Saved("output before gate", q, element, "tensor")]
    out.append(Saved("output", q, element, "tensor"))
    if dropout:
        out.append(Saved("dropout mask", n * D, 1, "positions"))
    return out


def mla_activations(B: int, T: int, D: int, H: int, d_qk: int, d_v: int, q_rank: int, kv_rank: int, rope: int,
                    element: int = 2) -> list[Saved]:
    """Multi-head latent attention: the latents are whole on every rank, the heads made from them are cut.

    >>> [s.split for s in mla_activations(1, 8, 16, 4, 6, 4, 8, 4, 2)[:3]]
    ['positions', '', '']
    """
    n = whole("B", B) * whole("T", T)
    out = [Saved("qkv input", n * whole("D", D), element, "positions")]
    if q_rank:
        out.append(Saved("query latent", 2 * n * q_rank, element))          # before and after its norm
    out.append(Saved("kv latent", n * (2 * whole("kv_rank", kv_rank) + rope), element))
    for name, size in (("q", d_qk), ("k", d_qk), ("v", d_v), ("output", d_v)):
        out.append(Saved(name, n * whole("H", H) * whole("size", size), element, "tensor"))
    return [*out, Saved("log-sum-exp", n * H, 4, "tensor")]


def mlp_activations(B: int, T: int, D: int, F: int, *, gated: bool = True, dropout: bool = False,
                    element: int = 2) -> list[Saved]:
    """An MLP without its norm: its input, what enters the activation function, what enters `down`.

    >>> [(s.name, s.elements) for s in mlp_activations(1, 8, 16, 32)]
    [('mlp input', 128), ('gate', 256), ('up', 256), ('down input', 256)]
    """
    n = whole("B", B) * whole("T", T)
    out = [Saved("mlp input", n * whole("D", D), element, "positions")]
    out += [Saved(name, n * whole("F", F), element, "tensor") for name in (("gate", "up") if gated else ("up",))]
    out.append(Saved("down input", n * F, element, "tensor"))
    if dropout:
        out.append(Saved("dropout mask", n * D, 1, "positions"))
    return out


def moe_activations(B: int, T: int, D: int, F: int, E: int, k: int, *, shared: int = 0, gated: bool = True,
                    element: int = 2) -> list[Saved]:
    """A mixture of experts at balance: k copies of every token through an expert of width F, and a shared one.

    The rank's own k·n tokens are counted wherever their experts are: with balanced routing as many come as go.

    >>> sum(s.elements for s in moe_activations(1, 8, 16, 32, 4, 2)) == 8 * (16 + 4 + 2 * (16 + 3 * 32 + 16))
    True
    """
    n = whole("B", B) * whole("T", T)
    rows = n * whole("k", k)
    out = [Saved("mlp input", n * whole("D", D), element, "positions"),
           Saved("router", n * whole("E", E), 4, "positions"),
           Saved("dispatched", rows * D, element, "positions")]
    out += [Saved(f"expert {name}", rows * whole("F", F), element, "positions")
            for name in (("gate", "up") if gated else ("up",))]
    out.append(Saved("expert down input", rows * F, element, "positions"))
    out.append(Saved("combined", rows * D, element, "positions"))
    if shared:
        out += mlp_activations(B, T, D, shared, gated=gated, element=element)[1:]
    return out


def linear_attention_activations(B: int, T: int, D: int, K: int, H: int, d_k: int, d_v: int, *, chunk: int = 64,
                                 element: int = 2) -> list[Saved]:
    """Gated linear attention in chunks: projections, convolved q, k and v, gates, one state a chunk, the output.

    >>> states = linear_attention_activations(1, 4096, 5120, 16, 48, 128, 128)[-3]
    >>> states.name, states.elements // (48 * 128 * 128)
    ('states', 64)
    """
    n = whole("B", B) * whole("T", T)
    qk, v = n * whole("K", K) * whole("d_k", d_k), n * whole("H", H) * whole("d_v", d_v)
    return [
        Saved("qkv input", n * whole("D", D), element, "positions"),
        Saved("convolution input", 2 * qk + v, element, "tensor"),
        Saved("q, k, v", 2 * qk + v, element, "tensor"),
        Saved("gates", 2 * n * H, 4, "tensor"),
        Saved("states", B * -(-T // whole("chunk", chunk)) * H * d_k * d_v, element, "tensor"),
        Saved("output gate", v, element, "tensor"),
        Saved("output", 2 * v, element, "tensor"),          # before and after its gated norm
    ]


def published_layer(B: int, T: int, D: int, H: int, element: int = 2) -> list[Saved]:
    """The layer of the published formula: LayerNorm, plain heads, GELU of width 4D, dropout, stored scores."""
    norm = norm_activations(B, T, D, element)
    attention = attention_activations(B, T, D, H, H, D // whole("H", H), fused=False, dropout=True, element=element)
    return norm + attention + norm + mlp_activations(B, T, D, 4 * D, gated=False, dropout=True, element=element)


def published_layer_bytes(B: int, T: int, D: int, H: int, N: int = 1, sequence_parallel: bool = False) -> Fraction:
    """The formulas of Korthikanti et al. 2022 (equations 1, 2 and 4), as printed.

    >>> published_layer_bytes(1, 2048, 12288, 96) / (2048 * 12288)
    Fraction(114, 1)
    """
    a_s_h, t = Fraction(5 * H * T, D), whole("N", N)
    if sequence_parallel:
        return Fraction(B * T * D, t) * (34 + a_s_h)
    return B * T * D * (10 + Fraction(24, t) + a_s_h / t) if t > 1 else B * T * D * (34 + a_s_h)


def score_bytes(B: int, T: int, H: int, dropout: bool = True, element: int = 2) -> int:
    """What stored scores alone would take in one layer: 5·B·H·T² bytes with dropout.

    >>> score_bytes(1, 262_144, 24) / 1e12                     # the reference giant at its longest: 8.2 TB a layer
    8.24633720832
    """
    return whole("B", B) * whole("H", H) * whole("T", T) ** 2 * (2 * element + 1 if dropout else element)
