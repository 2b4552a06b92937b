"""A router: E logits a token, k experts chosen, a weight for each.

    softmax_topk                 p = softmax(logits); the k largest p, as they are        (sum below 1)
    softmax_topk_renormalized    the same divided by their sum
    topk_softmax                 the k largest logits, then softmax over these            (the same numbers)
    sigmoid_bias                 s = sigmoid(logits); chosen by s + bias, weighted by s over the chosen s' sum

The bias of the last one steers the choice and never the output. Ties go to the lower expert.

Balance loss: E·Σ f·P, f the share of the k·n assignments that an expert got, P its mean probability; 1 when balanced,
at any k (code that lets f sum to k has k instead). A token's probabilities are p, over all experts; for sigmoid_bias
they are s divided by the sum of s over all experts, as in DeepSeek-V3's balance loss (equations 17 to 20, where f and P
are those of one sequence). z-loss: mean of (log Σ exp logits)².

Sources: Shazeer et al. 2017; Fedus et al. 2021, section 2.2; Zoph et al. 2022, section 3; DeepSeek-V3, section 2.1.2.
"""

import math

from paralelo.predict.quantity import one_of, real, whole
from paralelo.words import Refused

VARIANTS = ("softmax_topk", "softmax_topk_renormalized", "topk_softmax", "sigmoid_bias")


def softmax(logits) -> list[float]:
    """Probabilities, safe for large logits.

    >>> [round(p, 4) for p in softmax([2, 1, 0, -1])]
    [0.6439, 0.2369, 0.0871, 0.0321]
    """
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    total = sum(weights)
    return [w / total for w in weights]


def probabilities(logits, variant: str = "softmax_topk_renormalized") -> list[float]:
    """What the balance loss sees of one token: a number for each of all experts, adding up to 1.

    >>> [round(p, 4) for p in probabilities([2, 1, 0, -1], "sigmoid_bias")]     # s: 0.8808, 0.7311, 0.5, 0.2689
    [0.37, 0.3071, 0.21, 0.113]
    """
    one_of("variant", variant, VARIANTS)
    return softmax([_log_sigmoid(x) for x in logits] if variant == "sigmoid_bias" else logits)


def choose(logits, k: int, variant: str = "softmax_topk_renormalized", bias=None) -> list[tuple[int, float]]:
    """The k experts of one token with their weights, best first.

    >>> for variant in ("topk_softmax", "softmax_topk"):
    ...     print([(e, round(w, 4)) for e, w in choose([2, 1, 0, -1], 2, variant)])
    [(0, 0.7311), (1, 0.2689)]
    [(0, 0.6439), (1, 0.2369)]
    >>> [e for e, w in choose([2, 1, 0, -1], 2, "sigmoid_bias", bias=[0, 0, 0, 1])]
    [3, 0]
    """
    one_of("variant", variant, VARIANTS)
    E = len(logits)
    for x in logits:
        real("logit", x, -1e30)
    if whole("k", k) > E:
        raise Refused("experts.k_rule", k=k, E=E)
    if variant == "sigmoid_bias":
        bias = [0] * E if bias is None else list(bias)
        if len(bias) != E:
            raise Refused("experts.bias_rule", bias=len(bias), E=E)
        score = [_log_sigmoid(x) for x in logits]
        by = [math.exp(s) + b for s, b in zip(score, bias, strict=True)]
        chosen = sorted(range(E), key=lambda e: (-by[e], e))[:k]
        return list(zip(chosen, softmax([score[e] for e in chosen]), strict=True))     # s over its sum, however small
    score = softmax(logits)
    chosen = sorted(range(E), key=lambda e: (-score[e], -logits[e], e))[:k]
    if variant == "softmax_topk":
        return [(e, score[e]) for e in chosen]
    if variant == "topk_softmax":
        return list(zip(chosen, softmax([logits[e] for e in chosen]), strict=True))
    total = sum(score[e] for e in chosen)
    return [(e, score[e] / total) for e in chosen]


def _log_sigmoid(x):
    return -math.log1p(math.exp(-x)) if x >= 0 else x - math.log1p(math.exp(x))


def balance(f, P):
    """The balance loss E·Σ f·P of shares of the assignments and mean probabilities.

    >>> balance([0.25] * 4, [0.25] * 4), balance([1, 0, 0, 0], [1, 0, 0, 0])
    (1.0, 4)
    """
    if len(f) != len(P):
        raise Refused("experts.balance_rule", f=len(f), P=len(P))
    return len(f) * sum(a * b for a, b in zip(f, P, strict=True))


def balance_of(counts, P):
    """The same from counts of assignments: f = counts / their sum, whatever k.

    >>> balance_of([2, 2, 2, 2], [0.25] * 4)
    1.0
    """
    counts = list(counts)
    total = sum(counts)
    if not total:
        raise Refused("experts.no_assignments")
    return balance([c / total for c in counts], P)


def z_loss(logits) -> float:
    """The mean over tokens of (log Σ exp logits)².

    >>> round(z_loss([[0.0, 0.0]]), 4)
    0.4805
    """
    def log_sum_exp(row):
        top = max(row)
        return top + math.log(sum(math.exp(x - top) for x in row))

    return sum(log_sum_exp(row) ** 2 for row in logits) / len(logits)
