"""Code quoted in a chapter is the code that runs.

A Python fence right below a link to a file of src/ whose text is a dotted name in backticks, as in
[`paralelo.run.tensor.RowParallelLinear.forward`](../../src/paralelo/run/tensor/linear.py), quotes that function:
what follows stands in its source, in order and without gaps but for lines that are `...`. At most fifteen lines.
"""

import ast
import textwrap
from pathlib import Path

from . import Finding
from .pages import Book, Page

LONGEST = 15


def source(path: Path, dotted: str) -> str | None:
    """The source text of a function or class, dedented, without importing it: `….Class.method` or `….function`."""
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8")
    tree, (*before, last) = ast.parse(text), dotted.split(".")
    for names in ([*before[-1:], last], [last]):
        node = tree
        for name in names:
            inside = (n for n in ast.walk(node) if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name)
            node = next(inside, None) if node else None
        if node:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno]))
    return None


def stands_in(quote: list[str], text: str) -> str | None:
    """The first quoted line that is not where it should be, or None."""
    rows, at, free = [r.strip() for r in text.splitlines() if r.strip()], 0, True
    for row in (q.strip() for q in quote):
        if not row:
            continue
        if row in ("...", "…", "# ..."):
            free = True
            continue
        places = range(at, len(rows)) if free else range(at, min(at + 1, len(rows)))
        at = next((i for i in places if rows[i] == row), None)
        if at is None:
            return row
        at, free = at + 1, False
    return None


def findings(book: Book):
    for page in book:
        for link, name, code in _quotes(page):
            text = source((page.path.parent / link.key).resolve(), name.key)
            rows = code.key.splitlines()[1:]
            if text is None:
                yield Finding(page.shown, link.line, f"quotes {name.key} of {link.key}, which does not exist",
                              "name the function and its file")
            elif wrong := stands_in(rows, text):
                yield Finding(page.shown, code.line, f"`{wrong}` does not stand there in {name.key}", "paste it again")
            if len(rows) > LONGEST:
                yield Finding(page.shown, code.line, f"quotes {len(rows)} lines", f"quote at most {LONGEST}")


def _quotes(page: Page):
    """Triples (link, name, code) of parts: a code fence at most three lines below a named link into src/."""
    for link, name, code in zip(page.parts, page.parts[1:], page.parts[2:], strict=False):
        kinds = (link.kind, name.kind, code.kind) == ("link", "name", "code")
        if kinds and "/src/" in link.key and link.key.endswith(".py") and code.line - name.line <= 3:
            yield link, name, code
