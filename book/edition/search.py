"""The search index of an edition, read from its built pages: site/<lang>/words.js.

A word counts by where it stands: in the title of a page, in a heading or the description, in the text; a page that says
it often is more about it than one that says it once. Blocks of code are not prose: of them only identifiers are found
(`ColumnParallelLinear`, `all_reduce`), behind every page whose text has them. The stems are those of Sphinx, whose
stemmer of the same language runs in the reader's browser (`theme/assets/search.js`).

The weight of a word w on page d is that of BM25 (Robertson and Zaragoza, 2009) with weighted fields and a bonus:
idf(w) · (tf / (tf + K · (1 - B + B · |d| / mean)) + bonus), where tf counts a heading 3 times and idf(w) =
ln(1 + (N - n + ½) / (n + ½)), N pages of which n have the word.
"""

import json
import math
import re
import unicodedata
from collections import Counter
from html.parser import HTMLParser
from importlib import import_module

from edition import SITE

K, B = 6.0, 0.15
FIELDS = {"title": 3.0, "heading": 3.0, "text": 1.0, "code": 0.1}
BONUS = {"title": 1.0, "heading": 0.3}
BESIDE = {"labs": 0.6, "tools": 0.6, "glossary": 0.5, "bibliography": 0.5}       # beside the chapter of the same idea
HEADINGS = {"h1": "title", "h2": "heading", "h3": "heading", "h4": "heading"}
SILENT = {"script", "style", "nav", "svg", "form", "noscript", "button"}
SILENT_CLASSES = {"headerlink", "katex", "on-page", "sources", "kicker", "behind", "begin", "list"}
VOID = {"area", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
IDENTIFIER = re.compile(r"\w*(?:[a-z][A-Z]|[A-Za-z0-9]_[A-Za-z0-9])\w*")


def fold(word: str) -> str:
    """Without accents, as the browser does it."""
    return "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.category(c).startswith("M"))


class Reader(HTMLParser):
    """The words of a page by field; `fields[field]` is their text in order."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[tuple[str, str | None]] = []          # (element, field of what stands in it; None is silent)
        self.fields: dict[str, list[str]] = {field: [] for field in FIELDS}
        self.feed(html)

    def handle_starttag(self, name, attributes):
        given = dict(attributes)
        if name == "meta" and given.get("name") == "description":
            self.fields["heading"].append(given.get("content") or "")
        if name in VOID:
            return
        classes = set((given.get("class") or "").split())
        field = self.open[-1][1] if self.open else None
        if name == "main":
            field = "text"
        elif field and (name in SILENT or classes & SILENT_CLASSES):
            field = None
        elif field and (name == "pre" or "cell_output" in classes):
            field = "code"
        elif field:
            field = HEADINGS.get(name, field)
        self.open.append((name, field))

    def handle_startendtag(self, name, attributes):
        if name == "meta":
            self.handle_starttag(name, attributes)

    def handle_endtag(self, name):
        while any(name == element for element, _ in self.open):
            if self.open.pop()[0] == name:
                return

    def handle_data(self, data):
        if self.open and (field := self.open[-1][1]):
            self.fields[field].append(data)


def language(lang: str):
    """Sphinx's rules of a language: `stem`, `stopwords`; those of English where it has none, as in its own index."""
    from sphinx.search import SearchEnglish, languages

    found = languages.get(lang, SearchEnglish)
    if isinstance(found, str):
        module, _, name = found.rpartition(".")
        found = getattr(import_module(module), name)
    return found({})


def counts(fields: dict[str, list[str]], rules) -> dict[str, Counter]:
    """How often each stem stands in each field of a page."""
    out = {}
    for field, said in fields.items():
        found = out[field] = Counter()
        for word in re.findall(r"\w+", " ".join(said) if field != "code" else "".join(said)):
            identifier = IDENTIFIER.fullmatch(word) is not None
            if identifier:
                found[fold(word.lower())] += 1
            elif field != "code" and word.lower() not in rules.stopwords:
                found[fold(rules.stem(word.lower()))] += 1
    return out


def weights(pages: dict[str, dict[str, Counter]]) -> dict[str, dict[str, float]]:
    """For every stem the pages that have it, each with its weight."""
    length = {page: sum(fields["text"].values()) for page, fields in pages.items()}
    mean = sum(length.values()) / max(1, len(length)) or 1
    holders: dict[str, set[str]] = {}
    for page, fields in pages.items():
        for stem in set().union(*fields.values()):
            holders.setdefault(stem, set()).add(page)
    out: dict[str, dict[str, float]] = {}
    for stem, found in holders.items():
        idf = math.log(1 + (len(pages) - len(found) + 0.5) / (len(found) + 0.5))
        for page in found:
            fields = pages[page]
            tf = sum(FIELDS[field] * fields[field][stem] for field in FIELDS)
            bonus = max((much for field, much in BONUS.items() if fields[field][stem]), default=0.0)
            norm = K * (1 - B + B * length[page] / mean)
            weight = idf * (tf / (tf + norm) + bonus) * BESIDE.get(page.partition("/")[0], 1)
            if not any(fields[field][stem] for field in FIELDS if field != "code"):
                weight = min(weight, 0.01 * idf)                       # code alone stands behind every text
            out.setdefault(stem, {})[page] = weight
    return out


def index(lang: str) -> dict:
    """`pages` and `titles` in the order of their addresses; `words[stem]` = [page, weight, page, weight, …]."""
    folder, rules = SITE / lang, language(lang)
    files = {p.relative_to(folder).with_suffix("").as_posix(): p for p in sorted(folder.rglob("*.html"))}
    files.pop("search", None)
    said = {page: Reader(path.read_text(encoding="utf-8")).fields for page, path in files.items()}
    found = weights({page: counts(fields, rules) for page, fields in said.items()})
    at = {page: n for n, page in enumerate(said)}
    titles = [" ".join("".join(fields["title"]).split()) for fields in said.values()]
    return {"pages": list(said), "titles": titles, "words": {
        stem: [n for page in sorted(found[stem]) for n in (at[page], max(1, round(1000 * found[stem][page])))]
        for stem in sorted(found)}}


def write(lang: str) -> None:
    from edition.site import put

    text = json.dumps(index(lang), ensure_ascii=False, separators=(",", ":"))
    put(SITE / lang / "words.js", f"Search.setIndex({text})\n".encode())
