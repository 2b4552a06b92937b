"""The router: which k of E experts a token goes to, and with what weights.

    logits = X W_gᵀ                                       X (n, D), W_g (E, D), logits (n, E)

    softmax_topk                 p = softmax(logits), the k largest, weights p as they are
    softmax_topk_renormalized    the same, divided by the sum over the chosen
    topk_softmax                 the k largest logits, weights softmax over those k (equal to the renormalized)
    sigmoid_bias                 s = σ(logits), the k largest of s + b, weights s over the chosen s' sum

The bias b (E,) only chooses; no gradient reaches it. After a step it rises where an expert had fewer tokens than the
mean and falls where it had more (`Router.balance`), which evens the load without a loss.

logits [2, 1, 0, −1], k = 2: renormalized 0.7311, 0.2689; not renormalized 0.6439, 0.2369. Both are in use. The same
rules stand in `predict.experts.choose`, without torch; a test holds one against the other.

    balance loss   E · Σ_i f_i P_i     f_i expert i's share of the k·n assignments, P_i the mean of its probability
    z-loss         mean over tokens of (log Σ exp logits)²

The balance loss is 1 when all is even, at any k, and up to E when everything goes to one expert. f carries no gradient.
Over ranks with tokens of their own, f is that of all tokens, and each rank returns *its share* of the loss of one
process: the shares add up to it, and so do their gradients.

Sources: Shazeer et al. 2017; Fedus et al. 2021 (balance); Zoph et al. 2022 (z-loss); DeepSeek-AI 2024 (sigmoid, bias).
"""

from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional as F

from paralelo.predict.experts import VARIANTS
from paralelo.run.collectives import all_reduce
from paralelo.words import Refused


@dataclass(frozen=True)
class Routing:
    """What the router decided for n tokens.

    experts        (n, k)   chosen experts, the best first
    weights        (n, k)   what their outputs are multiplied by
    logits         (n, E)
    probabilities  (n, E)   of all experts, each row adding up to 1: what the balance loss sees. p, or for
                            sigmoid_bias s over the sum of s, as in DeepSeek-V3 (section 2.1.2, equations 17 to 20)
    kept           (n, k)   False where an expert was full
    """

    experts: torch.Tensor
    weights: torch.Tensor
    logits: torch.Tensor
    probabilities: torch.Tensor
    kept: torch.Tensor

    @property
    def counts(self) -> torch.Tensor:
        """(E,) assignments to each expert, before any is dropped."""
        return torch.bincount(self.experts.flatten(), minlength=self.logits.shape[1])

    def keep(self, capacity: int) -> "Routing":
        """The same with at most `capacity` tokens an expert: the first to come stay, in token order."""
        return replace(self, kept=places(self.experts, self.logits.shape[1]) < capacity)


def places(experts: torch.Tensor, E: int) -> torch.Tensor:
    """(n, k): the place of every assignment in its expert's queue, tokens in order, a token's best choice first.

    >>> places(torch.tensor([[0, 1], [1, 0], [0, 2]]), 3).tolist()
    [[0, 0], [1, 1], [2, 0]]
    """
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    starts = torch.bincount(flat, minlength=E).cumsum(0) - torch.bincount(flat, minlength=E)
    place = torch.empty_like(flat)
    place[order] = torch.arange(flat.numel(), device=flat.device) - starts[flat[order]]
    return place.view_as(experts)


class Router(nn.Module):
    """E experts of which each token takes k.

    variant  one of `predict.experts.VARIANTS`
    scale    a constant factor of the weights
    weight   (E, D)       bias   (E,), a buffer, where the variant has one
    """

    def __init__(self, D: int, E: int, k: int, *, variant: str = "softmax_topk_renormalized", scale: float = 1.0,
                 device=None, dtype=None):
        super().__init__()
        if variant not in VARIANTS:
            raise Refused("run_experts.variant", variant=variant, variants=list(VARIANTS))
        if not 1 <= k <= E:
            raise Refused("run_experts.k", k=k, E=E)
        self.D, self.E, self.k, self.variant, self.scale = D, E, k, variant, scale
        self.weight = nn.Parameter(torch.empty(E, D, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=D**-0.5)
        fine = torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)    # 16 bits lose small steps
        self.register_buffer("bias", torch.zeros(E, device=device, dtype=fine) if variant == "sigmoid_bias" else None)

    def forward(self, x: torch.Tensor) -> Routing:
        """x (n, D). Scores are computed in float32 at least; a 16-bit softmax over many experts loses the order."""
        scores = torch.promote_types(x.dtype, torch.float32)
        logits = F.linear(x.to(scores), self.weight.to(scores))                       # (n, E)
        return self.route(logits, x.dtype)

    def route(self, logits: torch.Tensor, dtype=None) -> Routing:
        """The choice and the weights from logits (n, E)."""
        if self.variant == "sigmoid_bias":
            score = F.logsigmoid(logits)                                              # s over its sum, however small:
            probabilities, chooser = score.softmax(-1), score.exp() + self.bias       # softmax of log s
        else:
            score = probabilities = logits.softmax(-1)
            chooser = logits                                                          # in the order of the scores
        experts = chooser.detach().sort(dim=-1, descending=True, stable=True).indices    # ties: the lower expert
        experts = experts[:, :self.k]                                                  # (n, k)
        if self.variant in ("topk_softmax", "sigmoid_bias"):
            weights = (logits if self.variant == "topk_softmax" else score).gather(1, experts).softmax(-1)
        else:
            weights = score.gather(1, experts)
            if self.variant == "softmax_topk_renormalized":
                weights = weights / weights.sum(-1, keepdim=True)
        kept = torch.ones_like(experts, dtype=torch.bool)
        return Routing(experts, (weights * self.scale).to(dtype or logits.dtype), logits, probabilities, kept)

    @torch.no_grad()
    def balance(self, counts: torch.Tensor, rate: float = 1e-3) -> None:
        """Moves the bias by `rate`: up where an expert has fewer than the mean of `counts` (E,), down where more."""
        counts = counts.to(self.bias.dtype)
        self.bias += rate * (counts.mean() - counts).sign()


def balance_loss(routing: Routing, group=None) -> torch.Tensor:
    """This rank's share of E · Σ f·P over the tokens of all ranks of `group` (None: this rank's are all there are).

    Sends E + 1 numbers through one all-reduce, forward only.
    """
    n, E = routing.logits.shape
    counts, n = _over(group, routing.counts, n)
    share = routing.probabilities.sum(0) / n                                          # Σ over ranks is P
    return E * (counts.to(share.dtype) / counts.sum().clamp(min=1) * share).sum()


def z_loss(routing: Routing, group=None) -> torch.Tensor:
    """This rank's share of the mean of (log Σ exp logits)² over the tokens of all ranks of `group`."""
    _, n = _over(group, routing.counts[:0], routing.logits.shape[0])
    return routing.logits.logsumexp(-1).square().sum() / n


def _over(group, counts: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The counts and the number of tokens (at least one) of all ranks of `group`."""
    both = torch.cat((counts, counts.new_tensor([n])))
    if group is not None:
        both = all_reduce(both, group)
    return both[:-1], both[-1].clamp(min=1)
