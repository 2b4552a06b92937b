"""Lay one edition's sources out as the site's addresses: build/<lang>/<slug>.md, labs/, tools/, figures/.

Links in the sources are real paths, so that they work where the repository is read; here they become the site's.
A link that leads nowhere, or into another edition, is a finding, and no edition is built with findings.
"""

import importlib.util
import json
import posixpath
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from edition import BOOK, ROOT, repository, words

FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
CHECKED = re.compile(r"[ \t]*<!--(?!-?>).*?-->", re.S)
TEXT = r"(?:[^\[\]\\]|\\.|\[(?:[^\[\]\\]|\\.)*\])*"
LINK = re.compile(rf"(?P<code>(`+)(?!`).+?(?<!`)\2(?!`))|(?P<bang>!?)\[(?P<text>{TEXT})\]"
                  r"\((?P<target>[^()\s]+)(?P<title>\s+\"(?:[^\"\\]|\\.)*\")?\)", re.S)
ELSEWHERE = re.compile(r"^(?:[a-z][a-z+.-]*:|#|//)", re.I)
LAB = re.compile(r"^\d+_(.+)\.ipynb$")


@dataclass(frozen=True)
class Entry:
    """A line of book/_toc.yml: `labs/tensor`, the third of its part, on the path of chapter `tensor`."""

    file: str
    part: str
    number: int
    chapter: str


@dataclass(frozen=True)
class Finding:
    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


def reading_order() -> tuple[str, list[Entry]]:
    """The root page and every entry of book/_toc.yml, in order."""
    toc = yaml.safe_load((BOOK / "_toc.yml").read_text(encoding="utf-8"))
    entries = []
    for part in toc["parts"]:
        for number, item in enumerate(part["chapters"]):
            slug = item["file"].rpartition("/")[2]
            entries.append(Entry(item["file"], part["caption"], number, item.get("chapter", slug)))
    return toc["root"], entries


def sources(lang: str) -> dict[str, Path]:
    """Every page that an edition has, by its address without suffix."""
    found = {p.stem: p for p in sorted((BOOK / lang).glob("*.md"))}
    for notebook in sorted((ROOT / "labs" / lang).glob("*.ipynb")):
        if name := LAB.match(notebook.name):
            found[f"labs/{name[1]}"] = notebook
    for tool in sorted((BOOK / "tools").glob("[!_]*.py")):
        if "def page(" in tool.read_text(encoding="utf-8"):
            found[f"tools/{tool.stem}"] = tool
    return found


def parity(langs: list[str]) -> list[Finding]:
    """Pages that an edition lacks, pages outside the reading order."""
    root, entries = reading_order()
    listed = {root, *(e.file for e in entries)}
    have = {lang: set(sources(lang)) for lang in langs}
    anywhere = set().union(*have.values())
    found = [Finding(f"book/{lang}", f"lacks {page}, which another edition has")
             for lang in langs for page in sorted(anywhere - have[lang])]
    return found + [Finding("book/_toc.yml", f"does not list {page}") for page in sorted(anywhere - listed)]


class Stage:
    """One edition on its way to Sphinx: `files` maps the staged name to its content."""

    def __init__(self, lang: str, out: Path):
        self.lang, self.out = lang, out
        self.pages = sources(lang)
        self.by_source = {path: page for page, path in self.pages.items()}
        self.findings: list[Finding] = []
        self.files: dict[str, bytes] = {}

    def run(self) -> bool:
        """Stage everything; true if a file is new, changed or gone."""
        for page, path in self.pages.items():
            match path.suffix:
                case ".md":
                    self.files[f"{page}.md"] = self.markdown(path.read_text(encoding="utf-8"), path, page).encode()
                case ".ipynb":
                    self.files[f"{page}.ipynb"] = self.notebook(path, page)
                case ".py":
                    self.files[f"{page}.md"] = self.markdown(tool(path, self.lang), path, page).encode()
        drawings = ROOT / "diagrams" / self.lang
        for drawing in sorted([*drawings.glob("*.svg"), *drawings.glob("*.png")]):
            self.files[f"figures/{drawing.name}"] = drawing.read_bytes()
        self.files["_toc.yml"] = self.toc().encode()
        for data in ("references.bib", "glossary.yml"):
            self.files[data] = (BOOK / data).read_bytes()
        return not self.findings and self.write()

    def toc(self) -> str:
        """The reading order of the pages that there are, as sphinx-external-toc wants it."""
        root, entries = reading_order()
        parts: dict[str, list] = {}
        for entry in entries:
            if entry.file in self.pages:
                parts.setdefault(entry.part, []).append({"file": entry.file})
        captions = words(self.lang)["parts"]
        listed = [{"caption": captions[part], "chapters": items} for part, items in parts.items()]
        return yaml.safe_dump({"format": "jb-book", "root": root, "parts": listed}, allow_unicode=True)

    def markdown(self, text: str, path: Path, page: str) -> str:
        """A source as the book wants it: checked-number comments dropped, links to where things lie in the site."""
        out, prose, fence, start = [], [], "", 1
        for row, line in enumerate(text.splitlines(keepends=True), 1):
            opens = FENCE.match(line)
            if fence:
                out.append(line)
                if opens and opens[1].startswith(fence) and not line.strip().strip(fence[0]):
                    fence, start = "", row + 1
            elif opens and not re.match(r"\s*[`~]{3,}\{(?:note|tip|important|warning|caution|admonition)", line):
                out.append(self.prose("".join(prose), path, page, start))
                prose = []
                fence = opens[1]
                out.append(line)
            else:
                prose.append(line)
        out.append(self.prose("".join(prose), path, page, start))
        return "".join(out)

    def prose(self, text: str, path: Path, page: str, start: int) -> str:
        text = CHECKED.sub("", text)

        def rewritten(m: re.Match) -> str:
            if m["code"]:
                return m[0]
            target = m["target"]
            if ELSEWHERE.match(target):
                return m[0]
            line = start + text.count("\n", 0, m.start())
            place = self.place(target, path, page, line)
            if place is None:                      # a file of a repository whose address nobody has set: plain text
                return m["text"]
            return f"{m['bang']}[{self.inner(m['text'], rewritten)}]({place}{m['title'] or ''})"

        return LINK.sub(rewritten, text)

    @staticmethod
    def inner(text: str, rewritten) -> str:
        return LINK.sub(rewritten, text) if "](" in text else text

    def place(self, target: str, path: Path, page: str, line: int) -> str | None:
        """Where a link's target lies in the site, from the page that has the link."""
        bare, hash_, anchor = target.partition("#")
        real = Path(posixpath.normpath(posixpath.join(path.parent.as_posix(), bare)))
        where = f"{path.relative_to(ROOT)}:{line}"
        here = posixpath.dirname(page) or "."
        if real in self.by_source:
            kind = ".ipynb" if real.suffix == ".ipynb" else ".md"
            return posixpath.relpath(self.by_source[real] + kind, here) + hash_ + anchor
        inside = real.relative_to(ROOT) if real.is_relative_to(ROOT) else None
        if inside is None or not real.exists():
            self.findings.append(Finding(where, f"links to {target}, which does not exist"))
            return target
        if inside.parts[0] in ("book", "labs", "diagrams") and len(inside.parts) == 3 and real.suffix != ".py" \
                and inside.parts[1] != self.lang:
            self.findings.append(Finding(where, f"links to {target}, which is not of this edition ({self.lang})"))
            return target
        if inside.parts[0] == "diagrams" and real.suffix in (".svg", ".png"):
            return posixpath.relpath(f"figures/{real.name}", here)
        home = repository()
        return f"{home['url']}/blob/{home['branch']}/{inside.as_posix()}{hash_}{anchor}" if home else None

    def notebook(self, path: Path, page: str) -> bytes:
        data = json.loads(path.read_text(encoding="utf-8"))
        cells = []
        for cell in data["cells"]:
            tags = cell.get("metadata", {}).get("tags", [])
            if "remove-cell" in tags:
                continue
            if cell["cell_type"] == "markdown":
                source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
                cell = {**cell, "source": self.markdown(source, path, page)}
            cells.append(cell)
        return json.dumps({**data, "cells": cells}, ensure_ascii=False, sort_keys=True, indent=1).encode()

    def write(self) -> bool:
        """Write what changed, remove what is no longer there."""
        changed = False
        for name, content in self.files.items():
            file = self.out / name
            if not file.is_file() or file.read_bytes() != content:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                changed = True
        for file in [p for p in self.out.rglob("*") if p.is_file()]:
            if file.relative_to(self.out).as_posix() not in self.files:
                file.unlink()
                changed = True
        return changed


@cache
def _module(path: Path):
    spec = importlib.util.spec_from_file_location(f"tool_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tool(path: Path, lang: str) -> str:
    """The page of a live tool: book/tools/<name>.py has `page(lang)`, which returns Markdown."""
    return _module(path).page(lang)
