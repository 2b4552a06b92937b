"""Same files and the same skeleton in every edition.

Compared section by section (between two headings). In order: headings, labels, directives, displayed mathematics, code,
images. Without order, since languages order words differently: formulas, links, citations, checked numbers, names in
backticks (each name once is enough).
"""

from collections import Counter
from itertools import zip_longest

from . import Finding
from .pages import BOOK, SOURCE, Book, Page, Part

IN_ORDER = ("heading", "label", "directive", "mathematics", "code", "output", "image")
COUNTED = ("formula", "link", "citation", "number")
ONCE = ("name",)


def findings(book: Book):
    for lang, pages in book.pages.items():
        for name in sorted({n for other in book.pages.values() for n in other} - pages.keys()):
            where = next(other for other, there in book.pages.items() if name in there)
            what = "is missing" if lang != SOURCE else "has no English source"
            yield Finding((BOOK / lang / name).relative_to(BOOK.parent), 1, what, f"write it from book/{where}/{name}")
    for english, page in book.translations():
        if not page.front.get("behind"):
            yield from _compare(english, page)


def _compare(english: Page, page: Page):
    for (a, line_a), (b, line_b) in zip_longest(_sections(english), _sections(page), fillvalue=([], 1)):
        ordered = [[p for p in s if p.kind in IN_ORDER] for s in (a, b)]
        for x, y in zip_longest(*ordered):
            if x is None or y is None or (x.kind, x.key) != (y.kind, y.key):
                at = (y or Part("", "", line_b)).line
                wanted = f"line {x.line} has {_short(x)}" if x else f"section of line {line_a} ends"
                yield Finding(page.shown, at, f"{_short(y) if y else 'section ends'} where {english.shown} {wanted}",
                              "give both editions the same parts in the same order")
                break
        for kind in (*COUNTED, *ONCE):
            x, y = (Counter(_key(p) for p in s if p.kind == kind) for s in (a, b))
            if kind in ONCE:
                x, y = Counter(set(x)), Counter(set(y))
            for key in x - y:
                yield Finding(page.shown, line_b, f"{kind} `{key}` is missing here ({english.shown}:{line_a})",
                              "add it, or take it out of the English section")
            for key in y - x:
                line = next(p.line for p in b if p.kind == kind and _key(p) == key)
                yield Finding(page.shown, line, f"{kind} `{key}` is only here ({english.shown}:{line_a})",
                              "take it out, or add it to the English section")


def _sections(page: Page):
    """Lists of parts, each with the line where it begins; a heading begins a section."""
    section, line = [], 1
    for part in page.parts:
        if part.kind == "heading":
            yield section, line
            section, line = [], part.line
        section.append(part)
    yield section, line


def _key(part: Part) -> str:
    """A link without its anchor, which is a heading in the page's language."""
    return part.key.partition("#")[0] if part.kind == "link" else part.key


def _short(part: Part) -> str:
    text = " ".join(part.key.split())
    return f"{part.kind} `{text[:60]}{'…' if len(text) > 60 else ''}`"
