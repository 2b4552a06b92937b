"""No English paragraph in another edition: caught by its function words."""

import re

from . import Finding
from .pages import SOURCE, Book

ENGLISH = frozenset(
    "the of and to is that for with this are be by from which an it its each every when what has have was were"
    " not on as at only than then into their there you your we our one two they does how why but these those".split()
)


def findings(book: Book):
    for page in book:
        if page.lang == SOURCE:
            continue
        for paragraph in page.prose:
            words = re.findall(r"[^\W\d_]+", paragraph.text.lower())
            english = sum(w in ENGLISH for w in words)
            if english >= 4 and english > 0.2 * len(words):
                start = " ".join(paragraph.text.split())[:60]
                yield Finding(page.shown, paragraph.line, f"reads as English: “{start}…”", f"write it in {page.lang}")
