"""Which degrees a model's sizes allow, each axis by itself. Lists go up to 64.

    tensor     divides every dimension: query heads, KV heads, widths, linear-attention and state-space heads. Whole
               units must divide, not columns. The vocabulary never limits it (it is padded), nor do the latents of MLA
               (they are whole on every rank). With replication: a multiple of the KV heads too, if the rest divides.
    pipeline   cuts the layers into equal numbers with the same number of each kind
    experts    divides the number of experts
"""

from collections import Counter

from paralelo.predict.model import Model
from paralelo.predict.quantity import divisors

MOST = 64


def tp_degrees(model: Model, replicate: bool = False, most: int = MOST) -> list[int]:
    """Tensor degrees: without replication of KV heads, or (`replicate`) the further ones that need it.

    >>> from paralelo.predict.model import ship
    >>> tp_degrees(ship("Qwen2.5-7B")), tp_degrees(ship("Qwen2.5-7B"), replicate=True)
    ([1, 2, 4], [])
    >>> tp_degrees(ship("Qwen3.5-27B"), replicate=True)
    [8]
    """
    plain = [t for t in range(1, most + 1) if all(d.allows(t, False) for d in model.dims)]
    if not replicate:
        return plain
    return [t for t in range(1, most + 1) if t not in plain and all(d.allows(t) for d in model.dims)]


def pp_equal_stages(model: Model, most: int = MOST) -> list[int]:
    """Pipeline degrees whose stages all hold the same number of layers of each kind, in whatever order.

    >>> from paralelo.predict.model import ship
    >>> pp_equal_stages(ship("Qwen3.5-27B"))
    [1, 2, 4, 8, 16]
    """
    def alike(stages):
        return len({frozenset(c.items()) for c in compositions(model, stages)}) == 1

    return [s for s in divisors(len(model.layers), most) if alike(s)]


def compositions(model: Model, stages: int) -> list[Counter]:
    """How many layers of each kind each of `stages` equal cuts holds; `stages` divides the layers."""
    per = len(model.layers) // stages
    return [Counter(layer.kind for layer in model.layers[s * per:(s + 1) * per]) for s in range(stages)]


def ep_degrees(model: Model, most: int = MOST) -> list[int]:
    """Expert degrees at which every rank holds as many experts as the next; 1 alone where there are none."""
    return divisors(model.experts, most) if model.experts else [1]
