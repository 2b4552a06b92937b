"""The blocks that layers are made of, each as its tensors: shape, and what a tensor split may cut.

    Dim        something that a degree must respect: its size (heads, columns, channels) and the rule it follows
               divide      the degree must divide it (query heads, widths, linear-attention heads)
               replicate   a multiple of it will do as well: every one is held degree/size times (KV heads)
               copy        the same, and it is no news: the parts are small (groups of B and C in a state space)
               pad         any degree will do, the size is padded (vocabulary)
    Tensor     (rows, cols) as nn.Linear stores them: rows are outputs. `dim` is what cuts it, None where every rank of a
               tensor group holds the whole; `experts` > 0: one such tensor for each routed expert

Elements of a tensor on one rank at degree t: all of them (dim None), 1/t (t divides), 1/size where t is a multiple of size.
An expert's tensors are cut by the expert-tensor degree and shared out by the expert degree.

Sources: the architectures' reference classes in `transformers`; Shoeybi et al. 2019 (which matrix is cut which way);
Ainslie et al. 2023 (GQA); DeepSeek-AI 2024 (MLA); Yang et al. 2024 (Gated DeltaNet); Gu & Dao 2023, 2024 (Mamba).
"""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Dim:
    """A size that a tensor degree must respect."""

    name: str
    size: int
    rule: str = "divide"

    def allows(self, degree: int, replicate: bool = True) -> bool:
        """Whether `degree` ranks can share it in whole units; with `replicate`, KV heads may be held more than once."""
        if self.rule == "pad" or self.size % degree == 0:
            return True
        return (self.rule == "copy" or (replicate and self.rule == "replicate")) and degree % self.size == 0

    def share(self, degree: int) -> Fraction:
        """The largest share one rank holds.

        >>> Dim("kv_heads", 4, "replicate").share(8), Dim("ffn", 10).share(4)
        (Fraction(1, 4), Fraction(3, 10))
        """
        return Fraction(-(-self.size // degree), self.size)


@dataclass(frozen=True)
class Tensor:
    name: str
    rows: int
    cols: int = 1
    dim: Dim | None = None
    experts: int = 0
    axis: int = 0                                           # which of rows (0) and cols (1) is cut

    @property
    def elements(self) -> int:
        return self.rows * self.cols * max(1, self.experts)

    def per_rank(self, tp: int = 1, ep: int = 1, etp: int = 1) -> int:
        """Elements on the rank that holds most."""
        degree = etp if self.experts else tp
        share = self.dim.share(degree) if self.dim else 1
        copies = -(-self.experts // ep) if self.experts else 1
        return int(self.rows * self.cols * share) * copies


class Block:
    """What all blocks share. A block's fields are set by formulas of the family table."""

    kind = ""
    norms = 1                                               # how many norms of the hidden size belong to it
    norm_bias = False
    shared = ""                                             # one set of weights for all layers that name it
    copies = 1                                              # how many such sets there are

    def tensors(self, D: int) -> list[Tensor]:
        """The block's own tensors and its norms."""
        norm = [Tensor("norm", D)] + ([Tensor("norm.bias", D)] if self.norm_bias else [])
        return self.own(D) + norm * self.norms

    def own(self, D: int) -> list[Tensor]:
        raise NotImplementedError

    def dims(self) -> list[Dim]:
        """What a tensor degree must respect, each once, by name."""
        found = {t.dim: None for t in self.own(1) if t.dim}
        return list(found)


@dataclass(frozen=True)
class Attention(Block):
    """Softmax attention, with fewer key/value heads than query heads or not.

    q (H·d, D), k (K·d, D), v (K·dv, D): rows cut by heads. o (D, H·dv): columns. With `gate`, q has a gate beside every
    query head: 2·H·d rows. `qk_norm`: "head" (one weight of d, whole everywhere) or "all" (over all heads: cut, and the
    mean of squares needs a sum over the group). `input`: what q, k, v read, where it is not D.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int = 0
    gate: bool = False
    bias: bool = False
    out_bias: bool = False
    qk_norm: str = ""
    sinks: bool = False
    shares_kv: bool = False                                 # v is k: one projection
    input: int = 0
    window: int = 0
    fused: str = ""
    norms: int = 1
    norm_bias: bool = False
    shared: str = ""
    copies: int = 1
    kind = "attention"

    @property
    def values(self) -> int:
        return self.v_dim or self.head_dim

    def own(self, D: int) -> list[Tensor]:
        q, kv = Dim("query_heads", self.heads), Dim("kv_heads", self.kv_heads, "replicate")
        H, K, d, dv = self.heads, self.kv_heads, self.head_dim, self.values
        wide = self.input or D
        outputs = [("q", H * d * (2 if self.gate else 1), q), ("k", K * d, kv)]
        outputs += [] if self.shares_kv else [("v", K * dv, kv)]
        out = [Tensor(n, rows, wide, dim) for n, rows, dim in outputs]
        out += [Tensor(f"{n}.bias", rows, 1, dim) for n, rows, dim in outputs] if self.bias else []
        out.append(Tensor("o", D, H * dv, q, axis=1))
        out += [Tensor("o.bias", D)] if self.out_bias else []
        out += [Tensor("sinks", H, 1, q)] if self.sinks else []
        match self.qk_norm:
            case "head":
                out += [Tensor("q_norm", d), Tensor("k_norm", d)]
            case "all":
                out += [Tensor("q_norm", H * d, 1, q), Tensor("k_norm", K * d, 1, kv)]
        return out


@dataclass(frozen=True)
class LatentAttention(Block):
    """Multi-head latent attention (MLA): keys and values are read out of one latent that every rank holds whole.

    q_a (rq, D) and kv_a (r + rope, D) whole, with norms; q_b (H·(nope+rope), rq), kv_b (H·(nope+v), r): rows cut by heads;
    o (D, H·v). The cache is r + rope values a token, the same on every rank. An indexer (sparse attention) is whole.
    """

    heads: int
    kv_rank: int
    nope: int
    rope: int
    v_dim: int
    q_rank: int = 0                                         # 0: q is one matrix
    bias: bool = False
    index_heads: int = 0
    index_dim: int = 0
    norms: int = 1
    norm_bias: bool = False
    kind = "latent_attention"

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def head_dim(self) -> int:
        return self.nope + self.rope

    def own(self, D: int) -> list[Tensor]:
        q, H, r = Dim("query_heads", self.heads), self.heads, self.kv_rank
        if self.q_rank:
            out = [Tensor("q_a", self.q_rank, D), Tensor("q_a_norm", self.q_rank),
                   Tensor("q_b", H * self.head_dim, self.q_rank, q)]
            out += [Tensor("q_a.bias", self.q_rank)] if self.bias else []
        else:
            out = [Tensor("q", H * self.head_dim, D, q)]
        out += [Tensor("kv_a", r + self.rope, D), Tensor("kv_a_norm", r), Tensor("kv_b", H * (self.nope + self.v_dim), r, q),
                Tensor("o", D, H * self.v_dim, q, axis=1)]
        out += [Tensor("kv_a.bias", r + self.rope), Tensor("o.bias", D)] if self.bias else []
        if self.index_heads:
            n, d = self.index_heads, self.index_dim
            out += [Tensor("indexer.q", n * d, self.q_rank), Tensor("indexer.k", d, D), Tensor("indexer.k_norm", d),
                    Tensor("indexer.k_norm.bias", d), Tensor("indexer.weights", n, D)]
        return out


@dataclass(frozen=True)
class DeltaNet(Block):
    """Gated DeltaNet, a linear attention: a state of Hv heads × dk × dv instead of a cache.

    in: Q | K | V | Z | beta | alpha, that is 2·Hk·dk + 2·Hv·dv + 2·Hv rows, every part cut by its own heads. A convolution of
    `kernel` positions over Q, K and V. out (D, Hv·dv). The norm of dv is one for all value heads.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int = 4
    norms: int = 1
    norm_bias: bool = False
    fused: str = "in_proj"
    kind = "linear_attention"

    def own(self, D: int) -> list[Tensor]:
        k, v = Dim("linear_key_heads", self.key_heads), Dim("linear_value_heads", self.value_heads)
        K, V, n = self.key_heads * self.key_dim, self.value_heads * self.value_dim, self.value_heads
        return [Tensor("in.q", K, D, k), Tensor("in.k", K, D, k), Tensor("in.v", V, D, v), Tensor("in.z", V, D, v),
                Tensor("in.beta", n, D, v), Tensor("in.alpha", n, D, v),
                Tensor("conv.q", K, self.kernel, k), Tensor("conv.k", K, self.kernel, k), Tensor("conv.v", V, self.kernel, v),
                Tensor("dt", n, 1, v), Tensor("A", n, 1, v), Tensor("norm_of_heads", self.value_dim),
                Tensor("out", D, V, v, axis=1)]

    @property
    def state(self) -> int:
        """Elements that pass from one block of positions to the next."""
        return self.value_heads * self.key_dim * self.value_dim


@dataclass(frozen=True)
class LightningAttention(Block):
    """Lightning attention (MiniMax): H heads, no sharing of keys and values, an output gate, one norm over all heads."""

    heads: int
    head_dim: int
    norms: int = 1
    norm_bias: bool = False
    fused: str = "qkv_proj"
    kind = "linear_attention"

    def own(self, D: int) -> list[Tensor]:
        h, wide = Dim("linear_value_heads", self.heads), self.heads * self.head_dim
        return [Tensor("in.q", wide, D, h), Tensor("in.k", wide, D, h), Tensor("in.v", wide, D, h), Tensor("gate", wide, D, h),
                Tensor("norm_of_heads", wide, 1, h), Tensor("out", D, wide, h, axis=1)]

    @property
    def state(self) -> int:
        return self.heads * self.head_dim**2


@dataclass(frozen=True)
class Mamba(Block):
    """Mamba-1: `inner` channels, cut one by one; x_proj reads them all, so its small output is summed over the group."""

    inner: int
    state_size: int
    kernel: int
    dt_rank: int
    bias: bool = False
    conv_bias: bool = True
    inner_norms: bool = False
    norms: int = 1
    norm_bias: bool = False
    fused: str = "in_proj"
    kind = "state_space"

    def own(self, D: int) -> list[Tensor]:
        c, I, N, R = Dim("state_channels", self.inner), self.inner, self.state_size, self.dt_rank
        out = [Tensor("in.x", I, D, c), Tensor("in.z", I, D, c), Tensor("conv", I, self.kernel, c),
               Tensor("x_proj", R + 2 * N, I, c, axis=1), Tensor("dt_proj", I, R, c), Tensor("dt_proj.bias", I, 1, c),
               Tensor("A", I, N, c), Tensor("D", I, 1, c), Tensor("out", D, I, c, axis=1)]
        out += [Tensor("conv.bias", I, 1, c)] if self.conv_bias else []
        out += [Tensor("in.bias", 2 * I, 1, c), Tensor("out.bias", D)] if self.bias else []
        out += [Tensor("dt_norm", R), Tensor("b_norm", N), Tensor("c_norm", N)] if self.inner_norms else []
        return out

    @property
    def state(self) -> int:
        return self.inner * self.state_size


@dataclass(frozen=True)
class Mamba2(Block):
    """Mamba-2: heads of `head_dim` channels cut whole; B and C belong to `groups`, which are copied when ranks outnumber them.

    in: z | x | B | C | dt, that is 2·I + 2·G·N + heads rows, each part cut by its own units.
    """

    heads: int
    head_dim: int
    groups: int
    state_size: int
    kernel: int
    bias: bool = False
    conv_bias: bool = True
    inner_norm: bool = True
    judged: bool = True                                     # False: the file does not pin these heads
    norms: int = 1
    norm_bias: bool = False
    fused: str = "in_proj"
    kind = "state_space"

    def own(self, D: int) -> list[Tensor]:
        h, g = Dim("state_heads", self.heads), Dim("state_groups", self.groups, "copy")
        if not self.judged:
            h, g = Dim("state_heads", self.heads, "pad"), Dim("state_groups", self.groups, "pad")
        I, B = self.heads * self.head_dim, self.groups * self.state_size
        out = [Tensor("in.z", I, D, h), Tensor("in.x", I, D, h), Tensor("in.b", B, D, g), Tensor("in.c", B, D, g),
               Tensor("in.dt", self.heads, D, h), Tensor("conv.x", I, self.kernel, h), Tensor("conv.b", B, self.kernel, g),
               Tensor("conv.c", B, self.kernel, g), Tensor("dt", self.heads, 1, h), Tensor("A", self.heads, 1, h),
               Tensor("D", self.heads, 1, h), Tensor("out", D, I, h, axis=1)]
        if self.conv_bias:
            out += [Tensor("conv.x.bias", I, 1, h), Tensor("conv.b.bias", B, 1, g), Tensor("conv.c.bias", B, 1, g)]
        out += [Tensor("in.bias", 2 * I + self.heads, 1, h), Tensor("in.bc.bias", 2 * B, 1, g), Tensor("out.bias", D)] \
            if self.bias else []
        out += [Tensor("norm_of_heads", I, 1, h)] if self.inner_norm else []
        return out

    @property
    def state(self) -> int:
        return self.heads * self.head_dim * self.state_size


@dataclass(frozen=True)
class MLP(Block):
    """up (F, D) and down (D, F), with a gate (F, D) beside up where `gated`."""

    width: int
    gated: bool = True
    bias: bool = False
    fused: str = ""
    norms: int = 1
    norm_bias: bool = False
    shared: str = ""
    copies: int = 1
    kind = "mlp"

    def own(self, D: int) -> list[Tensor]:
        return feed_forward(D, self.width, Dim("ffn", self.width), self.gated, self.bias)


@dataclass(frozen=True)
class MoE(Block):
    """A router (E, D), whole everywhere, E experts of `width`, and perhaps experts that every token visits (`shared_width`).

    `extra` further whole elements: scales of the router or of the experts.
    """

    experts: int
    top_k: int
    width: int
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared_width: int = 0
    shared_gate: bool = False
    extra: int = 0
    fused: str = ""
    norms: int = 1
    norm_bias: bool = False
    kind = "moe"

    def own(self, D: int) -> list[Tensor]:
        routed = feed_forward(D, self.width, Dim("expert_ffn", self.width), self.gated, self.bias, self.experts)
        out = [Tensor("router", self.experts, D), *routed]
        out += [Tensor("router.bias", self.experts)] if self.router_bias else []
        out += [Tensor("router.scales", self.extra)] if self.extra else []
        if self.shared_width:
            shared = feed_forward(D, self.shared_width, Dim("shared_ffn", self.shared_width), self.gated, False)
            out += [Tensor("shared." + t.name, t.rows, t.cols, t.dim, axis=t.axis) for t in shared]
            out += [Tensor("shared.gate_of_tokens", 1, D)] if self.shared_gate else []
        return out


@dataclass(frozen=True)
class Linear(Block):
    """One whole matrix (D, D), without a norm."""

    norms: int = 0
    kind = "linear"

    def own(self, D: int) -> list[Tensor]:
        return [Tensor("linear", D, D)]


@dataclass(frozen=True)
class LowRank(Block):
    """A layer's own addition to the gate and up matrices of a shared MLP: (rank, D), then (2·F, rank)."""

    rank: int
    width: int
    norms: int = 0
    kind = "linear"

    def own(self, D: int) -> list[Tensor]:
        return [Tensor("adapter.in", self.rank, D), Tensor("adapter.out", 2 * self.width, self.rank, Dim("ffn", self.width))]


def feed_forward(D, F, dim, gated, bias, experts=0) -> list[Tensor]:
    """gate, up, down and their biases, of one MLP or of each of `experts`."""
    into = ["gate", "up"] if gated else ["up"]
    out = [Tensor(n, F, D, dim, experts) for n in into] + [Tensor("down", D, F, dim, experts, axis=1)]
    if bias:
        out += [Tensor(n + ".bias", F, 1, dim, experts) for n in into] + [Tensor("down.bias", D, 1, None, experts)]
    return out


BLOCKS = {c.__name__: c for c in (Attention, LatentAttention, DeltaNet, LightningAttention, Mamba, Mamba2, MLP, MoE, Linear, LowRank)}
