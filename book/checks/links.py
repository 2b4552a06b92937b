"""Links and images inside the repository lead somewhere, anchors included, in the sources as they stand on GitHub."""

import re
import unicodedata

from . import Finding
from .pages import Book, Page


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"[`*_]|<!--.*?-->|\{[^}]*\}", "", heading).strip().lower()
    return re.sub(r"\s", "-", "".join(c for c in text if c in " -" or unicodedata.category(c)[0] in "LNM"))


def anchors(page: Page) -> set[str]:
    headings = re.findall(r"(?m)^#{1,6}\s+(.*)$", page.text)
    labels = {p.key for p in page.parts if p.kind == "label"}
    labels |= {m for p in page.parts if p.kind == "directive" for m in re.findall(r":(?:name|label): (\S+)", p.key)}
    return {slug(h) for h in headings} | labels


def findings(book: Book):
    by_path = {page.path: page for page in book}
    for page in book:
        for part in page.parts:
            if part.kind not in ("link", "image") or re.match(r"[a-z]+:", part.key):
                continue
            target, _, anchor = part.key.replace("{lang}", page.lang).partition("#")
            if "{" in target:
                continue
            path = (page.path.parent / target).resolve() if target else page.path
            if not path.exists() and not (not part.key.count("/") and part.key in anchors(page)):
                yield Finding(page.shown, part.line, f"{part.kind} to {target}: no such file", "name one that is there")
            elif anchor and path in by_path and anchor not in anchors(by_path[path]):
                yield Finding(page.shown, part.line, f"{target or page.name} has no #{anchor}", "name a heading")
