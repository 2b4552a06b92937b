"""Numbers that come from outside: checked once, refused in words.

Every function of `predict` that takes a count or a duration passes it through here, so that NaN, 2.5 GPUs, −1 layers
or a number with five thousand digits end in one clear sentence.
"""

import json
import math
from fractions import Fraction

from paralelo.words import Refused

MOST = 10**18                                               # more than anything here counts, and still quick to write
MOST_LISTED = 2**20                                         # owners that are written out one by one


def shown(value) -> str:
    """A value as a message may quote it: short, whatever it is.

    >>> shown("x" * 99), shown(10**5000)
    ("'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…", '10^5000')
    """
    if isinstance(value, int) and abs(value) > 10**30:
        return ("-" if value < 0 else "") + f"10^{int(math.log10(abs(value)) + 1e-9)}"
    return _short(repr(value), 40)


def named(name, most: int = 40) -> str:
    """A name as a message calls it: bare; what is no name, or would not be seen, as `shown`.

    >>> named("spiral"), named("", 40), named(None)
    ('spiral', "''", 'None')
    """
    plain = isinstance(name, str) and name.strip() and name.isprintable()
    return _short(name, most) if plain else shown(name)


def written(value) -> str:
    """A value as the configuration file it comes from writes it: JSON's words, which are also TOML's.

    >>> written(None), written("2"), written([True, "a"])
    ('null', '"2"', '[true, "a"]')
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return shown(value)
    try:
        return _short(json.dumps(value, ensure_ascii=False, default=str), 40)
    except (TypeError, ValueError, RecursionError):         # a date as a key, a number of 5000 digits inside a list
        return shown(value)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most - 1] + "…"


def whole(name: str, value, least: int = 1, most: int = MOST) -> int:
    """`value`, if it is a whole number from `least` to `most`.

    >>> whole("tp", 8)
    8
    >>> whole("tp", 0)
    Traceback (most recent call last):
    paralelo.words.Refused: tp must be a whole number of at least 1, not 0
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Refused("quantity.whole", name=name, value=shown(value), least=least)
    if value > most:
        raise Refused("quantity.too_large", name=name, value=value if value <= 10**30 else shown(value), most=most)
    return value


def real(name: str, value, least: float = 0, most: float = 1e30, above: bool = False):
    """`value`, if it is a finite number of at least `least` (or above it).

    >>> real("beta", float("nan"))
    Traceback (most recent call last):
    paralelo.words.Refused: beta must be a number of at least 0, not nan
    """
    fine = isinstance(value, int | float | Fraction) and not isinstance(value, bool)
    fine = fine and (isinstance(value, int | Fraction) or math.isfinite(value))
    if not fine or value < least or (above and value == least):
        raise Refused("quantity.above" if above else "quantity.real", name=name, value=shown(value), least=least)
    if value > most:
        raise Refused("quantity.too_large", name=name, value=value if value <= 10**30 else shown(value), most=most)
    return value


def one_of(name: str, value, choices):
    """`value`, if it is one of `choices`.

    >>> one_of("order", "spiral", ["contiguous", "zigzag"])
    Traceback (most recent call last):
    paralelo.words.Refused: order cannot be spiral: choose contiguous or zigzag
    """
    if value not in choices:
        quoted = named(value) if all(isinstance(c, str) for c in choices) else shown(value)
        raise Refused("quantity.one_of", name=name, value=quoted, choices=list(choices))
    return value


def shares(total: int, parts: int) -> list[int]:
    """`total` things over `parts` owners, as evenly as it goes, the larger shares first.

    >>> shares(30, 4)
    [8, 8, 7, 7]
    """
    whole("total", total, 0)
    whole("parts", parts, most=MOST_LISTED)
    least, more = divmod(total, parts)
    return [least + 1] * more + [least] * (parts - more)


def ranges(sizes) -> list[range]:
    """Sizes laid end to end: `[8, 8, 7, 7]` is 0–7, 8–15, 16–22, 23–29.

    >>> ranges([2, 0, 1])
    [range(0, 2), range(2, 2), range(2, 3)]
    """
    out, start = [], 0
    for size in sizes:
        out.append(range(start, start + size))
        start += size
    return out


def divisors(n: int, most: int | None = None) -> list[int]:
    """All divisors of n up to `most`, rising. Without `most`, n goes up to 10^12 (a million trials).

    >>> divisors(28), divisors(10**18, 8)
    ([1, 2, 4, 7, 14, 28], [1, 2, 4, 5, 8])
    """
    if most is None:
        whole("n", n, most=10**12)
    small = [i for i in range(1, min(math.isqrt(n), n if most is None else most) + 1) if n % i == 0]
    both = small + [n // i for i in reversed(small) if i * i != n]
    return [i for i in both if most is None or i <= most]
