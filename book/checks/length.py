"""A chapter is read in one sitting: 2 000 to 3 500 words of running text in each edition.

Counted is what is read in sequence: no code, mathematics, tables, captions or folded answers. A chapter is a page that
has a lab.
"""

import re
from collections.abc import Iterator

from . import Finding
from .pages import ROOT, Book, Page, prose, tokens

LEAST, MOST = 2000, 3500
WORD = re.compile(r"\w+(?:[-.,'’/]\w+)*")


def findings(book: Book):
    for page in book:
        if (ROOT / "labs" / f"{page.path.stem}.py").is_file():
            count = words(page)
            if not LEAST <= count <= MOST:
                yield Finding(page.shown, 1, f"the chapter has {count} words of running text",
                              f"write {LEAST} to {MOST}, in all editions")


def words(page: Page) -> int:
    return sum(len(WORD.findall(text)) for text in running(page.text))


def running(text: str) -> Iterator[str]:
    folded = inside = 0
    for token in tokens(text):
        match token.type:
            case "html_block":
                folded += len(re.findall(r"<details\b", token.content)) - token.content.count("</details>")
            case "table_open" | "table_close":
                inside += token.nesting
            case "colon_fence" if not folded:
                yield from running(token.content)
            case "inline" if not folded and not inside:
                shown = [child for child in token.children or [] if child.type != "image"]
                yield prose(shown)
