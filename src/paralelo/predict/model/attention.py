"""Blocks in which positions meet: softmax attention, latent attention, linear attention."""

from dataclasses import dataclass

from paralelo.predict.model.tensors import Block, Dim, Tensor


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

    q_a (rq, D) and kv_a (r + rope, D) whole, with norms; q_b (H·(nope+rope), rq), kv_b (H·(nope+v), r): rows cut by
    heads; o (D, H·v). The cache is r + rope values a token, the same on every rank. An indexer is whole.
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
        out += [Tensor("kv_a", r + self.rope, D), Tensor("kv_a_norm", r),
                Tensor("kv_b", H * (self.nope + self.v_dim), r, q), Tensor("o", D, H * self.v_dim, q, axis=1)]
        out += [Tensor("kv_a.bias", r + self.rope), Tensor("o.bias", D)] if self.bias else []
        if self.index_heads:
            n, d = self.index_heads, self.index_dim
            out += [Tensor("indexer.q", n * d, self.q_rank), Tensor("indexer.k", d, D), Tensor("indexer.k_norm", d),
                    Tensor("indexer.k_norm.bias", d), Tensor("indexer.weights", n, D)]
        return out


@dataclass(frozen=True)
class DeltaNet(Block):
    """Gated DeltaNet, a linear attention: a state of Hv heads × dk × dv instead of a cache.

    in: Q | K | V | Z | beta | alpha, that is 2·Hk·dk + 2·Hv·dv + 2·Hv rows, each cut by its own heads. A convolution of
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

    @property
    def linear_shape(self) -> tuple[int, int, int, int]:
        """K, H, d_k, d_v: key heads, value heads, and their widths."""
        return self.key_heads, self.value_heads, self.key_dim, self.value_dim

    def own(self, D: int) -> list[Tensor]:
        k, v = Dim("linear_key_heads", self.key_heads), Dim("linear_value_heads", self.value_heads)
        K, V, n = self.key_heads * self.key_dim, self.value_heads * self.value_dim, self.value_heads
        return [Tensor("in.q", K, D, k), Tensor("in.k", K, D, k), Tensor("in.v", V, D, v), Tensor("in.z", V, D, v),
                Tensor("in.beta", n, D, v), Tensor("in.alpha", n, D, v),
                Tensor("conv.q", K, self.kernel, k), Tensor("conv.k", K, self.kernel, k),
                Tensor("conv.v", V, self.kernel, v), Tensor("dt", n, 1, v), Tensor("A", n, 1, v),
                Tensor("norm_of_heads", self.value_dim), Tensor("out", D, V, v, axis=1)]

    @property
    def state(self) -> int:
        """Elements that pass from one block of positions to the next."""
        return self.value_heads * self.key_dim * self.value_dim


@dataclass(frozen=True)
class LightningAttention(Block):
    """Lightning attention (MiniMax): H heads, each with its own keys and values, an output gate, one norm over all."""

    heads: int
    head_dim: int
    norms: int = 1
    norm_bias: bool = False
    fused: str = "qkv_proj"
    kernel = 1                                              # no convolution
    kind = "linear_attention"

    @property
    def linear_shape(self) -> tuple[int, int, int, int]:
        return self.heads, self.heads, self.head_dim, self.head_dim

    def own(self, D: int) -> list[Tensor]:
        h, wide = Dim("linear_value_heads", self.heads), self.heads * self.head_dim
        return [Tensor("in.q", wide, D, h), Tensor("in.k", wide, D, h), Tensor("in.v", wide, D, h),
                Tensor("gate", wide, D, h), Tensor("norm_of_heads", wide, 1, h), Tensor("out", D, wide, h, axis=1)]

    @property
    def state(self) -> int:
        return self.heads * self.head_dim**2
