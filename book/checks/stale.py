"""A translation names the English text it was written from: `source: <git blob>` in its front matter.

When the English file changes, its blob changes, and `git diff OLD NEW` shows what to translate; no history is read.
A page that must wait says `behind: true`: readers see a banner, and the check is quiet until it is in step again.
"""

import re
import subprocess

from . import Finding
from .pages import Book, Page


def blob(page: Page) -> str:
    return subprocess.run(["git", "hash-object", page.path], capture_output=True, text=True, check=True).stdout.strip()


def findings(book: Book, diff: bool = False):
    for english, page in book.translations():
        now, then = blob(english), str(page.front.get("source", ""))
        behind = page.front.get("behind")
        if now == then and behind:
            yield Finding(page.shown, 1, "says `behind: true` and is in step", "take the line out",
                          lambda p=page: _front(p, None))
        elif not then:
            yield Finding(page.shown, 1, "does not say which English text it was written from",
                          f"read it against {english.shown}, then: python book/check.py --stamp {page.shown}")
        elif now != then and not behind:
            what = f"was written from {then[:12]}, {english.shown} is now {now[:12]}"
            if diff:
                shown = subprocess.run(["git", "diff", "--word-diff=plain", then, now], capture_output=True, text=True)
                what += "\n" + (shown.stdout or shown.stderr)
            yield Finding(page.shown, 1, what,
                          f"translate it (--diff shows what), then: python book/check.py --stamp {page.shown}")


def stamp(english: Page, page: Page) -> None:
    """Write that `page` is in step with the English text as it is now."""
    _front(page, blob(english))


def _front(page: Page, source: str | None) -> None:
    text = re.sub(r"(?m)^behind:.*\n", "", page.text, count=1)
    if source:
        text = text if text.startswith("---\n") else "---\n---\n" + text
        head, _, body = text[4:].partition("---\n")
        head = re.sub(r"(?m)^source:.*\n", "", head) + f"source: {source}\n"
        text = f"---\n{head}---\n{body}"
    page.path.write_text(text, encoding="utf-8")
