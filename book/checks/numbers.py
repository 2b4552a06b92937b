"""A number that is a result carries its expression: `43 %<!--= idle_share(4, 4) -->`.

The expression is evaluated against `paralelo.predict`: the public names of the module with the page's own slug stand
bare (`idle_share` in pipeline.md), other modules by name (`tensor.mlp_bytes(...)`). The value is written as the text
shows it: as many decimals, the sign for per cent, the unit (bytes and seconds are base units: 16.6 GB is 16.6e9) or
the number word (27 billion), all by the rules of the page's language; a share may stand as a fraction (3/19).
"""

import math
import re
from fractions import Fraction
from importlib import import_module
from pkgutil import iter_modules

import paralelo.predict
from paralelo.words import number, percent, rules

from . import Finding, replace_line
from .pages import Book

UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
         "TiB": 2**40, "s": 1, "ms": 1e-3, "µs": 1e-6, "B/s": 1, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12,
         "FLOP/s": 1, "TFLOP/s": 1e12, "TFLOP": 1e12, "PFLOP": 1e15, "GFLOP": 1e9}
NEW = "\u00a0\u202f "
DIGITS = rf"[−-]?\d(?:[\d.,]|[{NEW}](?=\d{{3}}))*"


def pattern(lang: str) -> re.Pattern:
    words = "|".join(map(re.escape, sorted({**UNITS, **rules(lang).get("scale", {})}, key=len, reverse=True)))
    return re.compile(
        rf"(?P<text>(?P<fraction>\d+/\d+)|(?P<number>{DIGITS})(?P<tail>[{NEW}]?%|[{NEW}](?:{words}))?)"
        rf"(?P<after>\*{{0,2}}[×x]?\*{{0,2}})<!--=\s*(?P<expression>.*?)\s*-->")


def namespace(slug: str) -> dict:
    """The names an expression may use on the page `slug`."""
    names = {f.__name__: f for f in (Fraction, math, sum, max, min, len, round, range)}
    for module in iter_modules(paralelo.predict.__path__):
        names[module.name] = import_module(f"paralelo.predict.{module.name}")
    if own := names.get(slug):
        names |= {k: v for k, v in vars(own).items() if not k.startswith("_")}
    return names


def written(value, text: str, found: re.Match, lang: str) -> str:
    """`value` in the form that `text` has."""
    if found["fraction"]:
        exact = Fraction(value).limit_denominator(10**6)
        return f"{exact.numerator}/{exact.denominator}"
    decimal = rules(lang)["decimal"]
    digits = len(found["number"].partition(decimal)[2])
    tail = found["tail"] or ""
    word = tail.strip(NEW)
    if word == "%":
        return percent(value, lang, digits)
    if scale := {**UNITS, **rules(lang).get("scale", {})}.get(word):
        value = float(value) / scale
    if digits == 0 and not isinstance(value, int):
        value = math.floor(float(value) + 0.5)
    space = "\u00a0" if word in UNITS else tail[:1]
    return number(value, lang, digits or None) + (space + word if word else "")


def findings(book: Book):
    for page in book:
        names, finder = namespace(page.path.stem), pattern(page.lang)
        for line, row in enumerate(page.text.splitlines(), 1):
            claimed = 0
            for found in finder.finditer(row):
                claimed += 1
                yield from _check(page, line, found, names)
            if row.count("<!--=") != claimed:
                yield Finding(page.shown, line, "a number comment stands behind something that is not a number",
                              "put `<!--= expression -->` right behind the number, its unit or its per cent sign")


def _check(page, line, found, names):
    try:
        value = eval(found["expression"], dict(names))  # the book's own text, as trusted as its code
        right = written(value, found["text"], found, page.lang)
    except Exception as error:
        yield Finding(page.shown, line, f"`{found['expression']}` fails: {type(error).__name__}: {error}",
                      "use a public name of paralelo.predict")
        return
    if right != found["text"]:
        what = f"“{found['text']}” should be “{right}” by `{found['expression']}`"
        mended = found[0].replace(found["text"], right, 1)
        yield Finding(page.shown, line, what, "run with --fix", replace_line(page.path, line, found[0], mended))
