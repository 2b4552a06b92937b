"""Numbers, sizes and lists as a language writes them.

The rules are a language's `language.toml`: `decimal`, `group` (between thousands, from five digits on), `percent`,
`unit_space`, `and`, `or`, `or_before_o` (where it differs), `list`, `list_of_decimals`.
"""

import re
import string
from fractions import Fraction


def number(x, rules: dict, digits: int | None = None) -> str:
    """A number: `digits` decimals, or as many as it needs (at most six significant).

    >>> en = {"decimal": ".", "group": ","}
    >>> number(4096, en), number(17408, en), number(13.70, en), number(1234567.891, en, 1)
    ('4096', '17,408', '13.7', '1,234,567.9')
    >>> number(1e12, en), number(-2.5e-7, en)
    ('10¹²', '−2.5·10⁻⁷')
    """
    if isinstance(x, Fraction) and x.denominator == 1:
        x = int(x)
    text = str(x) if isinstance(x, int) else f"{float(x):.{6 if digits is None else digits}f}"
    if digits is None and not isinstance(x, int):
        text = format(float(x), ".6g")
        if "e" in text:
            times, power = text.replace("-", "−").replace(".", rules["decimal"]).split("e")
            ten = "10" + str(int(power.replace("−", "-"))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
            return {"1": "", "−1": "−"}.get(times, times + "·") + ten
    whole, _, part = text.partition(".")
    sign, whole = ("−", whole[1:]) if whole.startswith("-") else ("", whole)
    if len(whole) > 4:
        whole = f"{int(whole):,}".replace(",", rules["group"])
    return sign + whole + (rules["decimal"] + part if part else "")


def percent(x, rules: dict, digits: int = 1) -> str:
    """A share as per cent: 3/19 is `15.8%`, in Spanish `15.8 %` (no-break space), in Portuguese `15,8%`."""
    return number(100 * float(x), rules, digits) + rules["percent"]


def size(x, rules: dict, digits: int = 1) -> str:
    """Bytes in the largest decimal unit that leaves a number of at least one: `16.6 GB`, `512 B`."""
    value, unit = float(x), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if abs(value) < 999.95 or unit == "PB":
            break
        value /= 1000
    exact = unit == "B" and value == int(value)
    return number(int(value) if exact else value, rules, None if exact else digits) + "\u00a0" + unit


SAID_O = re.compile(r"h?[oó]|8|11(?!\d)", re.IGNORECASE)    # Spanish: ocho, ochenta, once, once mil


def join(items, rules: dict, last: str = "and") -> str:
    """`1, 2 and 4`; decimals in a language with a decimal comma are parted by semicolons.

    >>> es = {"list": ", ", "list_of_decimals": ", ", "decimal": ".", "group": " ", "or": " o ", "or_before_o": " u "}
    >>> join([2, 4, 8], es, "or"), join([8, 16], es, "or"), join([1, 110], es, "or"), join([1, 11], es, "or")
    ('2, 4 u 8', '8 o 16', '1 o 110', '1 u 11')
    """
    items = list(items)
    between = rules["list_of_decimals"] if any(isinstance(i, float) for i in items) else rules["list"]
    texts = [value(i, rules) for i in items]
    if len(texts) < 2:
        return "".join(texts)
    before_o = last == "or" and "or_before_o" in rules and SAID_O.match(texts[-1])
    return between.join(texts[:-1]) + (rules["or_before_o"] if before_o else rules[last]) + texts[-1]


def value(x, rules: dict) -> str:
    if isinstance(x, bool) or x is None:
        return str(x)
    if isinstance(x, int | float | Fraction):
        return number(x, rules)
    if isinstance(x, list | tuple | range | set | frozenset):
        return join(x, rules)
    return str(x)


class _Writer(string.Formatter):
    def __init__(self, rules):
        self.rules = rules

    def format_field(self, x, spec):
        kind, _, rest = spec.partition(":")
        match kind:
            case "code":                                    # as a program writes it
                return repr(x) if isinstance(x, list | tuple | dict) else str(x)
            case "n":                                       # {n:n:stage:stages} is 4 stages
                one, many = rest.split(":")
                return f"{value(x, self.rules)} {one if x == 1 else many}"
            case "or":
                return join(x, self.rules, "or")
            case "bytes":
                return size(x, self.rules, int(rest or 1))
        if spec.startswith("%"):                            # {share:%1} is 15.8 %
            return percent(x, self.rules, int(spec[1:] or 1))
        if spec.startswith("."):                            # {x:.2} has two decimals
            return number(x, self.rules, int(spec[1:]))
        return value(x, self.rules) if not spec else format(x, spec)


def write(sentence: str, rules: dict, fields: dict) -> str:
    """`sentence` with its fields, numbers by the rules of its language.

    Specifications: none (a number, or a list joined by "and"), `or` (a list joined by "or"), `.2` (decimals),
    `%1` (per cent), `bytes`, `n:one:many` (a counted noun), `code` (as a program writes it).
    """
    return _Writer(rules).vformat(sentence, (), fields)
