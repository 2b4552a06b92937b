"""Blocks that treat every position by itself: MLP, mixture of experts, plain matrices."""

from dataclasses import dataclass

from paralelo.predict.model.tensors import Block, Dim, Tensor


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
    """A router (E, D), whole everywhere, E experts of `width`, perhaps one of `shared_width` that every token visits.

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
        width = Dim("ffn", self.width)
        return [Tensor("adapter.in", self.rank, D), Tensor("adapter.out", 2 * self.width, self.rank, width)]


def feed_forward(D, F, dim, gated, bias, experts=0) -> list[Tensor]:
    """gate, up, down and their biases, of one MLP or of each of `experts`."""
    into = ["gate", "up"] if gated else ["up"]
    out = [Tensor(n, F, D, dim, experts) for n in into] + [Tensor("down", D, F, dim, experts, axis=1)]
    if bias:
        out += [Tensor(n + ".bias", F, 1, dim, experts) for n in into] + [Tensor("down.bias", D, 1, None, experts)]
    return out
