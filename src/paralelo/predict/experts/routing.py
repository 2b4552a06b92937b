"""A whole routing: drawn with a skew and a seed, or given; counted by expert, token and rank.

Drawn logits are −skew·log(e+1) plus Gumbel noise, so that the best expert of a token is e with probability in
proportion to (e+1)^−skew (Zipf's law; skew 0 is uniform), and the k best are k different experts.

Tokens lie on ranks in order, the larger shares first, and so do experts. `exchange[s][t]` counts the assignments of
rank s's tokens to rank t's experts: a row is what a rank sends, a column what it receives.
"""

import math
import random
from dataclasses import dataclass

from paralelo.predict.experts.capacity import capacity as slots
from paralelo.predict.experts.capacity import experts_of, kept
from paralelo.predict.experts.router import VARIANTS, balance_of, choose, probabilities, z_loss
from paralelo.predict.quantity import ranges, real, shares, whole
from paralelo.words import Refused

MOST = 2**21                                                # logits drawn: seconds (twenty, where E is 1)
MOST_STEERED = 2**24                                        # logits chosen among, over all steps: a minute
MOST_RANKS = 1024                                           # an exchange has their square of numbers


@dataclass(frozen=True)
class Routing:
    """Choices of n tokens among E experts.

    `choices[token]` lists its experts, best first; `weights` the same; `P` each expert's mean probability.

    >>> r = Routing(E=4, choices=[[0, 1], [0, 2], [0, 1]])
    >>> r.counts, r.exchange(2)
    ([3, 2, 1, 0], [[3, 1], [2, 0]])
    >>> r.kept(2)
    [[True, True], [True, True], [False, True]]
    """

    E: int
    choices: list[list[int]]
    weights: list[list[float]] | None = None
    P: list[float] | None = None
    z_loss: float | None = None

    @property
    def tokens(self) -> int:
        return len(self.choices)

    @property
    def counts(self) -> list[int]:
        """Assignments of each expert."""
        out = [0] * self.E
        for experts in self.choices:
            for e in experts:
                out[e] += 1
        return out

    def kept(self, capacity: int | None) -> list[list[bool]]:
        """Which assignments are taken at this capacity (None: all)."""
        return kept(self.choices, capacity)

    def capacity(self, factor, multiple: int = 1) -> int:
        """The capacity of an expert for this many tokens and choices."""
        return slots(self.tokens, self.E, len(self.choices[0]) if self.choices else 1, factor, multiple)

    def balance(self) -> float:
        """E·Σ f·P; with no probabilities known, P is f, which gives E·Σ f²."""
        total = sum(self.counts) or 1
        return balance_of(self.counts, self.P or [c / total for c in self.counts])

    def exchange(self, N: int, capacity: int | None = None) -> list[list[int]]:
        """Assignments from the tokens of each of N ranks to the experts of each."""
        whole("N", N, most=MOST_RANKS)
        owner = {e: r for r, experts in enumerate(experts_of(self.E, N)) for e in experts}
        out = [[0] * N for _ in range(N)]
        taken = self.kept(capacity)
        for rank, tokens in enumerate(ranges(shares(self.tokens, N))):
            for t in tokens:
                for e, is_kept in zip(self.choices[t], taken[t], strict=True):
                    out[rank][owner[e]] += is_kept
        return out


def draw(tokens: int, E: int, k: int, skew: float = 0.0, seed: int = 0,
         variant: str = "softmax_topk_renormalized", bias=None) -> Routing:
    """A routing of `tokens` tokens, the same for the same seed everywhere. `bias` is `sigmoid_bias`'s: see `steer`.

    >>> draw(8, 4, 1, skew=0.0, seed=1).counts == draw(8, 4, 1, skew=0.0, seed=1).counts
    True
    >>> even, skewed = (draw(1000, 8, 2, skew, seed=0) for skew in (0.0, 1.0))
    >>> max(even.counts) < 300 < max(skewed.counts), sum(skewed.counts)
    (True, 2000)
    """
    if whole("k", k) > whole("experts", E):
        raise Refused("experts.k_rule", k=k, E=E)
    if variant not in VARIANTS:
        choose([0.0], 1, variant)
    drawn = _logits(tokens, E, skew, seed)                  # refuses what is too much, before any of it is made
    choices, weights, P, z = [], [], [0.0] * E, 0.0
    for logits in drawn:
        best = choose(logits, k, variant, bias)
        choices.append([e for e, _ in best])
        weights.append([w for _, w in best])
        P = [p + q for p, q in zip(P, probabilities(logits, variant), strict=True)]
        z += z_loss([logits])
    return Routing(E, choices, weights, [p / tokens for p in P], z / tokens)


def steer(tokens: int, E: int, k: int, skew: float = 0.0, seed: int = 0, rate: float = 0.01,
          steps: int = 100) -> list[float]:
    """The bias that evens a drawn routing: `steps` times up by `rate` where an expert has fewer than the mean, or down.

    A step of training with new tokens would do the same; here all steps see the same ones.

    >>> bias = steer(64, 8, 2, skew=1.0)
    >>> before, after = (draw(64, 8, 2, 1.0, 0, "sigmoid_bias", b) for b in (None, bias))
    >>> max(before.counts), max(after.counts)
    (39, 17)
    """
    drawn = _logits(tokens, E, skew, seed)                  # refuses what is too much
    whole("steps", steps, 0, MOST_STEERED // (tokens * E))
    rows, bias, mean = list(drawn), [0.0] * E, tokens * k / E
    for _ in range(steps):
        counts = Routing(E, [[e for e, _ in choose(row, k, "sigmoid_bias", bias)] for row in rows]).counts
        bias = [b + rate * ((c < mean) - (c > mean)) for b, c in zip(bias, counts, strict=True)]
    return bias


def _logits(tokens, E, skew, seed):
    """The drawn logits, token after token."""
    if whole("tokens", tokens) * whole("experts", E) > MOST:
        raise Refused("experts.too_many", tokens=tokens, E=E, product=tokens * E, most=MOST)
    real("skew", skew, 0, 100)
    uniform = random.Random(whole("seed", seed, 0)).random
    wanted = [-skew * math.log(e + 1) for e in range(E)]
    return ([w - math.log(-math.log(uniform() or 5e-324)) for w in wanted] for _ in range(tokens))
