"""What the site has beside its editions: shared assets, the landing page, the page for lost readers, and its rules.

`check` reads the built pages as a browser would: nothing may come from another host, no script may stand in a page
(the policy in its head would block it), ids are unique, and a page weighs less than 400 kB compressed.
"""

import gzip
import hashlib
import posixpath
import re
import shutil
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from jinja2 import Environment, FileSystemLoader

from edition import BOOK, ROOT, SITE, editions, name_of, tag, words

THEME = BOOK / "theme"
MODULES = ROOT / "node_modules"
FONTS = {f"source-{kind}{end}.woff2": MODULES / "@fontsource-variable" / f"source-{kind}" / "files" /
         f"source-{kind}-latin-wght-{style}.woff2"
         for kind, end, style in (("serif-4", "", "normal"), ("serif-4", "-italic", "italic"),
                                  ("sans-3", "", "normal"))}
LICENSES = {"fonts/LICENSE": MODULES / "@fontsource-variable/source-serif-4/LICENSE",
            "fonts/LICENSE-sans": MODULES / "@fontsource-variable/source-sans-3/LICENSE",
            "katex/LICENSE": MODULES / "katex/LICENSE"}
LIMIT = 400_000


def theme_digest() -> str:
    """Changes when anything that stands on every page changes."""
    parts = [*THEME.rglob("*"), *(BOOK / "edition").glob("*.py"), ROOT / "_config.yml", ROOT / "package-lock.json",
             *(ROOT / "src/paralelo/draw").rglob("*.*"), *(ROOT / "src/paralelo/words").rglob("book.toml"),
             *(ROOT / "src/paralelo/words").rglob("language.toml")]
    seen = hashlib.sha256()
    for part in sorted(p for p in parts if p.is_file() and "__pycache__" not in p.parts):
        seen.update(part.relative_to(ROOT).as_posix().encode() + b"\0" + part.read_bytes())
    return seen.hexdigest()[:10]


def making_digest() -> str:
    """Changes when a page must be read again because what reads it has changed."""
    seen = hashlib.sha256()
    for part in [*sorted((BOOK / "edition").glob("*.py")), ROOT / "_config.yml"]:
        seen.update(part.name.encode() + b"\0" + part.read_bytes())
    return seen.hexdigest()[:10]


def assets() -> None:
    """site/assets: style, scripts, fonts, KaTeX's style sheet; one copy for all editions."""
    from edition.figures import style_sheet

    to = SITE / "assets"
    files = {p.relative_to(THEME / "assets").as_posix(): p for p in (THEME / "assets").rglob("*") if p.is_file()}
    files |= {f"fonts/{name}": path for name, path in FONTS.items()} | LICENSES
    katex = MODULES / "katex" / "dist"
    files["katex/katex.min.css"] = katex / "katex.min.css"
    files |= {f"katex/fonts/{font.name}": font for font in (katex / "fonts").glob("*.woff2")}
    static = BOOK / "tools" / "static"
    files |= {f"tools/{p.relative_to(static).as_posix()}": p for p in static.rglob("*") if p.is_file()}
    for name, path in files.items():
        put(to / name, path.read_bytes())
    put(to / "book.css", (THEME / "assets" / "book.css").read_bytes() + b"\n" + style_sheet().encode())
    for old in [p for p in to.rglob("*") if p.is_file()]:
        if old.relative_to(to).as_posix() not in files:
            old.unlink()


def put(file: Path, content: bytes) -> None:
    if not file.is_file() or file.read_bytes() != content:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def own_pages(digest: str) -> None:
    """site/index.html, which offers the editions, and site/404.html, which speaks all of them."""
    from edition.extension import base_url
    from edition.hero import hero

    pages = Environment(loader=FileSystemLoader(THEME), autoescape=False, trim_blocks=True, lstrip_blocks=True)
    every = [{"lang": lang, "tag": tag(lang), "name": name_of(lang), "words": words(lang)} for lang in editions()]
    base = base_url()
    landing = pages.get_template("landing.html").render(
        all=every, assets="assets", base=base, theme_digest=digest, hero=hero(None))
    root = urlsplit(base).path if base else "/"             # this page is shown at any depth: its links are absolute
    lost = pages.get_template("lost.html").render(all=every, assets=f"{root}assets", base=root, theme_digest=digest)
    put(SITE / "index.html", landing.encode())
    put(SITE / "404.html", lost.encode())
    put(SITE / ".nojekyll", b"")


def prune(lang: str, pages: set[str]) -> None:
    """Drop pages whose source is gone and the files of Sphinx that no page of ours loads."""
    out = SITE / lang
    keep = {f"{page}.html" for page in pages} | {"search.html"}
    for html in out.rglob("*.html"):
        if html.relative_to(out).as_posix() not in keep:
            html.unlink()
    for file in (out / "_static").rglob("*"):
        if file.is_file() and file.name != "language_data.js":
            file.unlink()
    for folder in sorted((p for p in (out / "_static").rglob("*") if p.is_dir()), reverse=True):
        folder.rmdir()
    for extra in ("objects.inv", ".buildinfo"):
        (out / extra).unlink(missing_ok=True)
    shutil.rmtree(out / "_sphinx_design_static", ignore_errors=True)
    shutil.rmtree(SITE / "jupyter_execute", ignore_errors=True)        # myst-nb's copies of the labs


@cache
def packed(file: Path) -> int:
    """Bytes on the wire: compressed as a server does it; fonts and pictures are already."""
    data = file.read_bytes()
    return len(data) if file.suffix in (".woff2", ".png", ".jpg") else len(gzip.compress(data, 6))


LOADS = re.compile(r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|data)=\"([^\"]+)\""
                   r"|<link\b(?=[^>]*\brel=\"(?:stylesheet|icon|preload)\")[^>]*\bhref=\"([^\"]+)\"")
INLINE = re.compile(r"<script(?![^>]*\bsrc=)(?![^>]*type=\"(?:application|text)/(?!javascript)[^\"]*\")[^>]*>|"
                    r"<[a-z][^>]*\son[a-z]+\s*=", re.I)
BARE = re.compile(r"<pre\b.*?</pre>|<code\b.*?</code>", re.S)


def weight(page: Path, html: str | None = None) -> int:
    """What a first visit to a page downloads, compressed: the page, its files, and the fonts that its text uses."""
    html = page.read_text(encoding="utf-8") if html is None else html
    files = {page}
    for found in LOADS.finditer(html):
        target = unquote((found[1] or found[2]).partition("?")[0])
        if not target.startswith(("data:", "http:", "https:", "//")):
            files.add(Path(posixpath.normpath(posixpath.join(page.parent.as_posix(), target))))
    files |= {SITE / "assets" / "fonts" / name for name in FONTS}
    if 'class="katex"' in html:
        used = ["Main-Regular", "Math-Italic"]
        used += [name for name, mark in (("Size1-Regular", "delimsizing size1"), ("Size2-Regular", "delimsizing size2"),
                                         ("Size2-Regular", "large-op"), ("AMS-Regular", "amsrm"),
                                         ("Main-Bold", "mathbf"),
                                         ("Typewriter-Regular", "texttt"), ("Size3-Regular", "delimsizing size3"))
                 if mark in html]
        files |= {SITE / "assets/katex/fonts" / f"KaTeX_{name}.woff2" for name in used}
    return sum(packed(f) for f in files if f.is_file())


def check(langs: list[str]) -> list[str]:
    """What breaks the rules of the site, one line each."""
    found = []
    for page in sorted([*SITE.glob("*.html"), *(p for lang in langs for p in (SITE / lang).rglob("*.html"))]):
        html = page.read_text(encoding="utf-8")
        where = page.relative_to(SITE)
        for load in LOADS.finditer(html):
            if re.match(r"(?:https?:)?//", load[1] or load[2]):
                found.append(f"{where} loads {load[1] or load[2]} from another host")
        if bad := INLINE.search(BARE.sub("", html)):
            found.append(f"{where} has a script inside the page, which its policy blocks: {bad[0][:80]}")
        ids = re.findall(r"\sid=\"([^\"]+)\"", html)
        for twice in sorted({i for i in ids if ids.count(i) > 1}):
            found.append(f"{where} has the id {twice} more than once")
        if (heavy := weight(page, html)) > LIMIT:
            found.append(f"{where} weighs {heavy / 1000:.0f} kB compressed, more than {LIMIT / 1000:.0f}")
    return found + links(langs)


def links(langs: list[str]) -> list[str]:
    """Links inside the site that lead nowhere, anchors included."""
    found, ids = [], {}
    built = {SITE / lang for lang in langs}
    for page in sorted(p for lang in langs for p in (SITE / lang).rglob("*.html")):
        for target in set(re.findall(r"<a\b[^>]*?\bhref=\"([^\"]+)\"", page.read_text(encoding="utf-8"))):
            if re.match(r"[a-z][a-z+.-]*:|//", target):
                continue
            path, _, anchor = target.replace("&amp;", "&").partition("#")
            file = page.parent / unquote(path.partition("?")[0]) if path else page
            file = Path(posixpath.normpath(file.as_posix()))
            if not file.is_file():
                if any(file.is_relative_to(b) for b in built):
                    found.append(f"{page.relative_to(SITE)} links to {target}, which is not there")
                continue
            if anchor and file.suffix == ".html":
                if file not in ids:
                    ids[file] = set(re.findall(r"\sid=\"([^\"]+)\"", file.read_text(encoding="utf-8")))
                if unquote(anchor) not in ids[file]:
                    found.append(f"{page.relative_to(SITE)} links to {target}, whose anchor is not there")
    return found
