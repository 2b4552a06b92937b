"""Keep the editions in step: one line per finding, with how to mend it.

    python book/check.py                  report; exit 1 on any finding
    python book/check.py --fix            mend what a program can (numbers, banners)
    python book/check.py --diff           show the English changes that a translation misses
    python book/check.py --stamp FILE …   say that these translations are in step with the English text of now
    python book/check.py pipeline.md      only findings of files whose path ends so
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from checks import glossary, language, length, links, numbers, quotes, sessions, skeleton, spelling, stale
from checks.pages import ROOT, SOURCE, Book

CHECKS = (skeleton, stale, numbers, quotes, sessions, links, glossary, language, spelling, length)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--fix", action="store_true")
    options.add_argument("--diff", action="store_true")
    options.add_argument("--stamp", action="store_true")
    options.add_argument("files", nargs="*")
    asked = options.parse_args()
    book = Book()
    if asked.stamp:
        return stamp(book, asked.files)
    found = []
    for check in CHECKS:
        found += check.findings(book, diff=True) if asked.diff and check is stale else check.findings(book)
    if asked.files:
        found = [f for f in found if any(str(f.file).endswith(name) for name in asked.files)]
    left = [f for f in found if not (asked.fix and f.fix)]
    for finding in found:
        if finding not in left:
            finding.fix()
            print(f"mended {finding}")
    print("\n".join(map(str, left)) or f"{len(book.languages)} editions of {len(book.pages[SOURCE])} pages are in step")
    return 1 if left else 0


def stamp(book: Book, files: list[str]) -> int:
    pages = {(ROOT / page.shown).resolve(): (english, page) for english, page in book.translations()}
    for file in map(Path, files):
        if file.resolve() not in pages:
            print(f"{file} is no translation of a page in book/{SOURCE}/: name one of "
                  + ", ".join(sorted(str(page.shown) for _, page in pages.values())), file=sys.stderr)
            return 2
        stale.stamp(*pages[file.resolve()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
