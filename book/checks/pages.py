"""The book as data: every page of every edition, parsed by the parser that builds it.

A page is a list of `Part`s in the order of the text (headings, labels, directives, mathematics, code, links, images,
citations, checked numbers) and a list of `Prose` (paragraphs as a reader sees them, without code and mathematics).
"""

import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

import yaml
from markdown_it.renderer import RendererHTML
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

from paralelo.words import languages

BOOK = Path(__file__).resolve().parent.parent
ROOT = BOOK.parent
SOURCE = "en"
NUMBER = re.compile(r"<!--=\s*(.*?)\s*-->")


@dataclass(frozen=True)
class Part:
    kind: str
    key: str
    line: int


@dataclass(frozen=True)
class Prose:
    text: str
    line: int


@dataclass
class Page:
    """One file of one edition. Lines are counted from 1."""

    path: Path
    lang: str
    parts: list[Part] = field(default_factory=list)
    prose: list[Prose] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def shown(self) -> Path:
        return Path(os.path.relpath(self.path, ROOT))

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def front(self) -> dict:
        found = re.match(r"---\n(.*?)\n---\n", self.text, flags=re.S)
        return (yaml.safe_load(found[1]) or {}) if found else {}

    def of_language(self, target: str) -> str:
        """A path of this edition with its language taken out, so that editions compare."""
        return re.sub(rf"(^|/){self.lang}(?=/)", r"\1{lang}", target)


class Book:
    """All editions: `pages[lang][name]`."""

    def __init__(self, root: Path = BOOK):
        self.languages = [lang for lang in languages() if (root / lang).is_dir()]
        self.pages = {
            lang: {p.name: parse(Page(p, lang)) for p in sorted((root / lang).glob("*.md"))} for lang in self.languages
        }

    def __iter__(self):
        for pages in self.pages.values():
            yield from pages.values()

    def translations(self):
        """Pairs (English page, its page in another edition) where both exist."""
        for lang in self.languages:
            if lang != SOURCE:
                for name, page in self.pages[lang].items():
                    if name in self.pages[SOURCE]:
                        yield self.pages[SOURCE][name], page


def parser():
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    extensions = config.get("parse", {}).get("myst_enable_extensions", ["dollarmath", "colon_fence"])
    return create_md_parser(MdParserConfig(enable_extensions=set(extensions)), RendererHTML)


_PARSER = None


def tokens(text: str) -> list:
    global _PARSER
    _PARSER = _PARSER or parser()
    return _PARSER.parse(text)


def parse(page: Page) -> Page:
    _walk(page, page.text, 0)
    return page


def _walk(page: Page, text: str, offset: int) -> None:
    add = lambda kind, key, line: page.parts.append(Part(kind, key, line + offset + 1))  # noqa: E731
    for token in tokens(text):
        line = token.map[0] if token.map else 0
        match token.type:
            case "heading_open":
                add("heading", token.tag, line)
            case "myst_target":
                add("label", token.content, line)
            case "math_block" | "math_block_label" | "amsmath":
                add("mathematics", mathematics(token.content), line)
            case "fence" | "colon_fence":
                _fence(page, token, line, offset, add)
            case "html_block":
                for tag in re.findall(r"<(details|summary)\b", token.content):
                    add("directive", tag, line)
                for m in NUMBER.finditer(token.content):
                    add("number", m[1], line)
            case "inline":
                _inline(page, token, line, add)
                words = prose(token.children or [])
                if words.strip():
                    page.prose.append(Prose(words, line + offset + 1))


def _fence(page, token, line, offset, add):
    info = token.info.strip()
    directive = re.match(r"\{([\w:-]+)\}\s*(.*)", info)
    if not directive and token.type == "colon_fence" and re.match(r"[\w:-]+$", info):
        directive = re.match(r"([\w:-]+)()", info)
    if not directive:
        if info.split()[:1] in (["text"], ["console"]):
            rows = [row for row in token.content.splitlines() if row.startswith("$ ")]
            commands = "\n".join(re.sub(r" --lang \S+", "", row) for row in rows)
            add("output", commands, line)
        else:
            add("code", f"{info}\n{token.content}", line)
        return
    name, argument = directive.groups()
    rows = token.content.splitlines()
    options, skip = {}, 0
    for row in rows:
        option = re.match(r":([\w-]+):\s*(.*)", row)
        if not option:
            break
        options[option[1]] = option[2]
        skip += 1
    if name in ("math",):
        add("mathematics", mathematics(token.content), line)
        return
    if name in ("code-block", "code", "bibliography", "toctree", "raw"):
        add("code", f"{name} {argument}\n{token.content}", line)
        return
    shown = page.of_language(argument) if name in ("figure", "image", "include") else ""
    kept = [f":{k}: {v}" for k, v in sorted(options.items()) if k in ("name", "label", "class")]
    add("directive", " ".join([name, shown, *kept]).strip(), line)
    if argument and not shown:
        page.prose.append(Prose(argument, line + offset + 1))
    _walk(page, "\n".join(rows[skip:]), offset + line + 1 + skip)


def _inline(page, token, line, add):
    row = line
    for child in token.children or []:
        match child.type:
            case "softbreak" | "hardbreak":
                row += 1
            case "code_inline":
                add("name", child.content, row)
            case "math_inline" | "math_single":
                add("formula", mathematics(child.content), row)
            case "link_open":
                add("link", page.of_language(unquote(child.attrGet("href") or "")), row)
            case "image":
                add("image", page.of_language(child.attrGet("src") or ""), row)
            case "myst_role":
                name = child.meta.get("name", "")
                kind = "citation" if name.startswith("cite") else "role"
                add(kind, f"{name} {child.content}" if kind == "citation" else name, row)
            case "html_inline":
                for m in NUMBER.finditer(child.content):
                    add("number", m[1], row)


def mathematics(text: str) -> str:
    """A formula without what may differ: spaces, words in \\text, a decimal comma."""
    text = re.sub(r"\\(?:text|mathrm|operatorname)\{[^{}]*\}", r"\\text{}", text)
    return re.sub(r"\s+", "", text.replace("{,}", ".").replace(r"\,", ""))


def prose(inline: list) -> str:
    """What a reader reads of a paragraph; code and mathematics become spaces. Alt texts and titles count."""
    out = []
    for child in inline:
        if child.type == "text":
            out.append(child.content)
        elif child.type in ("softbreak", "hardbreak"):
            out.append("\n")
        elif child.type == "image":
            out.append(child.content + " " + str(child.attrGet("title") or ""))
        elif child.type == "html_inline":
            out.append("")
        elif child.type in ("code_inline", "math_inline", "myst_role", "math_single"):
            out.append(" ")
    return "".join(out)
