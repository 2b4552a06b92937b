"""How an edition of the book is made: sources are staged, Sphinx reads and writes them, the site gets its own pages.

`stage`        chapters, labs, tools and figures of one language, laid out as the site's addresses
`figures`      SVG drawings set into the page
`stepper`      figures with steps
`tools`        the page of a live tool
`vendor`       what live tools run on
`mathematics`  formulas, rendered once
`bibliography` sources, as each language writes them
`glossary`     the terms as a table
`extension`    what Sphinx is told: navigation, path through the course, the theme's words
`search`       which page is about which words
`site`         shared assets, landing page, 404, size and policy of every page
"""

import shutil
import sys
from pathlib import Path

import yaml

from paralelo.words import languages, rules, table

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
BUILD = ROOT / "build"
SITE = ROOT / "site"

__all__ = ["BOOK", "BUILD", "ROOT", "SITE", "NotBuilt", "config", "editions", "name_of", "nodejs",
           "repository", "tag", "words"]


class NotBuilt(Exception):
    """What the book is made with is missing or fails: one sentence that says what would do."""


def editions() -> list[str]:
    """The languages that have a folder here and a table of words: nothing else lists them."""
    return [lang for lang in languages() if (BOOK / lang).is_dir() and words(lang)]


def words(lang: str) -> dict:
    return table("book", lang)


def name_of(lang: str) -> str:
    """A language's own name: Español."""
    return rules(lang)["name"]


def tag(lang: str) -> str:
    """What stands in `<html lang>`: pt-BR."""
    return rules(lang)["html"]


def nodejs() -> str:
    """Node of this machine, or the one that set-up took from PyPI."""
    return shutil.which("node") or str(Path(sys.executable).parent / "node")


def config() -> dict:
    return yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))


def repository() -> dict | None:
    """Address and branch of the repository, or None while nobody has set it."""
    found = config().get("repository") or {}
    url = (found.get("url") or "").rstrip("/")
    return {"url": url, "branch": found.get("branch") or "main"} if url else None
