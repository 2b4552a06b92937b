"""Spelling, by hunspell's dictionaries (npm: dictionary-en, -es, -pt) read by spylls.

Left out: code, names in backticks, mathematics, words with digits or inner capitals, words that the glossary keeps or
decides, and book/kept_words.txt (names and terms of the field, one a line). Words found right are remembered in build/.
"""

import hashlib
import json
import re

from . import Finding
from .glossary import terms
from .pages import BOOK, ROOT, Book

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
SEEN = ROOT / "build" / "spelling.json"


def kept() -> set[str]:
    words = set((BOOK / "kept_words.txt").read_text(encoding="utf-8").split())
    for term in terms():
        for value in (v for k, v in term.items() if len(k) == 2):
            words |= set(WORD.findall(value))
    return {w.lower() + ending for w in words for ending in ("", "s")}


def dictionary(lang: str):
    from spylls.hunspell import Dictionary

    return Dictionary.from_files(str(ROOT / "node_modules" / f"dictionary-{lang}" / "index"))


def findings(book: Book):
    keep = kept()
    decided = (BOOK / "kept_words.txt").read_bytes() + (BOOK / "glossary.yml").read_bytes()
    stamp = hashlib.sha256(decided).hexdigest()
    seen = json.loads(SEEN.read_text()) if SEEN.exists() else {}
    seen = seen if seen.get("stamp") == stamp else {"stamp": stamp}
    for lang in book.languages:
        right, checker, misses = set(seen.get(lang, [])), None, {}
        for page in book.pages[lang].values():
            for paragraph in page.prose:
                for i, row in enumerate(paragraph.text.split("\n")):
                    for word in WORD.findall(re.sub(r"https?:\S+|\S*\.(?:md|svg|ipynb|py|html)\b", " ", row)):
                        if word in right or word.lower() in keep or word[1:] != word[1:].lower() or len(word) < 2:
                            continue
                        if word not in misses:
                            checker = checker or dictionary(lang)
                            plain = word.replace("’", "'")
                            misses[word] = not (checker.lookup(plain) or checker.lookup(plain.removesuffix("'s")))
                        if misses[word]:
                            yield Finding(page.shown, paragraph.line + i, f"“{word}” is in no {lang} dictionary",
                                          "mend it, or put a name into backticks or book/kept_words.txt")
                        else:
                            right.add(word)
        seen[lang] = sorted(right)
    SEEN.parent.mkdir(exist_ok=True)
    SEEN.write_text(json.dumps(seen, ensure_ascii=False))
