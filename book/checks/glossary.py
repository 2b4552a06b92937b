"""Terms as the glossary decides them.

A word that the glossary avoids is a finding where it stands. A noun that an English page uses at least twice must
stand, in any inflection, somewhere on the page of each other edition (`loose: true` frees words that are also
everyday English).
"""

import re
from functools import cache

import snowballstemmer
import yaml

from . import Finding
from .pages import BOOK, SOURCE, Book, Page

NAMES = {"en": "english", "es": "spanish", "pt": "portuguese"}


@cache
def terms() -> list[dict]:
    return yaml.safe_load((BOOK / "glossary.yml").read_text(encoding="utf-8"))


@cache
def stem(word: str, lang: str) -> str:
    try:
        stemmer = snowballstemmer.stemmer(NAMES.get(lang, lang))
    except KeyError:
        return word
    return stemmer.stemWord(word)


def stems(text: str, lang: str) -> list[str]:
    return [stem(w, lang) for w in re.findall(r"[^\W_]+(?:-[^\W_]+)*", text.lower())]


def count(term: str, page_stems: str, lang: str) -> int:
    """How often a term stands in a text, both as stems."""
    variants = [re.sub(r"\(.*?\)", "", v).strip() for v in term.split(",")]
    forms = {" ".join(stems(v + plural, lang)) for v in variants if v for plural in ("", "s")}
    return sum(page_stems.count(f" {form} ") for form in forms)


def _joined(page: Page) -> str:
    return " " + "  ".join(" ".join(stems(p.text, page.lang)) for p in page.prose).replace(" ", " ") + " "


def findings(book: Book):
    for page in book:
        for term in terms():
            for avoided in term.get(f"avoid_{page.lang}", []):
                finder = re.compile(rf"(?<![\w-]){re.escape(avoided)}(?![\w-])", 0 if avoided.isupper() else re.I)
                for paragraph in page.prose:
                    for i, row in enumerate(paragraph.text.split("\n")):
                        if found := finder.search(row):
                            yield Finding(page.shown, paragraph.line + i, f"“{found[0]}” is avoided",
                                          f"write “{term[page.lang]}” ({term['id']})")
    for english, page in book.translations():
        ours, theirs = _joined(page), _joined(english)
        for term in terms():
            if term["id"].startswith("to-") or term.get("loose") or page.lang not in term or page.front.get("behind"):
                continue
            if count(term[SOURCE], theirs, SOURCE) >= 2 and not count(term[page.lang], ours, page.lang):
                yield Finding(page.shown, 1, f"“{term[SOURCE]}” stands in English, never “{term[page.lang]}” here",
                              "use the glossary's term, or mark the term loose in book/glossary.yml")
