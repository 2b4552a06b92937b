"""What Sphinx is told about an edition: its navigation, the path chapter → lab → tool, its words, its languages."""

import os
import posixpath
import re
from html import escape
from urllib.parse import quote

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

from edition import ROOT, bibliography, config, editions, glossary, mathematics, name_of, repository, tag, words
from edition.figures import SetDrawings
from edition.hero import hero
from edition.stage import reading_order, sources
from edition.stepper import setup as set_steppers

PATH = ("chapters", "labs", "tools")


def setup(app):
    app.add_config_value("edition", "en", "env")
    app.add_config_value("making_digest", "", "env")
    app.add_config_value("theme_digest", "", "html")
    app.add_config_value("comments_config", {}, "")       # Jupyter Book sets it whether or not anybody comments
    app.add_html_theme("paralelo", str(ROOT / "book" / "theme"))
    app.add_transform(SetDrawings)
    set_steppers(app)
    app.add_post_transform(NameOutputs)
    mathematics.setup(app)
    bibliography.setup(app)
    glossary.setup(app)
    app.connect("doctree-read", labels_as_anchors)
    app.connect("env-updated", navigation_changed)
    app.connect("html-page-context", page)
    app.connect("source-read", lambda app, name, _: progress(app, "reading", name))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def progress(app, verb: str, name: str) -> None:
    """One line per page, on request: `make site` shows them where somebody watches."""
    if os.environ.get("SITE_PROGRESS"):
        print(f"  {app.config.edition}  {verb} {name}", flush=True)


def labels_as_anchors(app, doctree):
    """A label `(cost)=` before a heading is an anchor for other pages too: `pipeline.md#cost`."""
    slugs = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
    for section in doctree.findall(nodes.section):
        for anchor in section["ids"]:
            slugs.setdefault(anchor, (section.line, anchor, section.next_node(nodes.title).astext()))


class NameOutputs(SphinxPostTransform):
    """A picture that a lab's cell has put out is at least called what it is."""

    default_priority = 900

    def run(self, **kwargs):
        for image in self.document.findall(nodes.image):
            if not image.get("alt"):
                image["alt"] = words(self.config.edition)["cell_output"]


# ---- navigation


def shown(env) -> list:
    """Entries of the reading order that this edition has."""
    return [e for e in reading_order()[1] if e.file in env.found_docs]


def navigation_changed(app, env):
    """A new title stands in the navigation of every page: then all are written again."""
    now = [(e.file, e.part, e.number, title(env, e.file), env.metadata.get(e.file, {}).get("description"))
           for e in shown(env)]
    before, env.edition_navigation = getattr(env, "edition_navigation", None), now
    return list(env.found_docs) if before is not None and before != now else []


def title(env, docname: str) -> str:
    return env.titles[docname].astext() if docname in env.titles else ""


def page(app, pagename, templatename, context, doctree):
    if doctree is not None:
        progress(app, "writing", pagename)
    env, lang = app.env, app.config.edition
    say = words(lang)
    entries = shown(env)
    here = next((e for e in entries if e.file == pagename), None)
    up = posixpath.relpath(".", posixpath.dirname(pagename) or ".")
    to = lambda file: posixpath.relpath(file, posixpath.dirname(pagename) or ".") + ".html"  # noqa: E731
    meta = env.metadata.get(pagename, {})
    item = lambda e: {  # noqa: E731
        "file": e.file, "number": e.number if e.part in ("chapters", "labs") else None, "title": title(env, e.file),
        "href": to(e.file), "here": e is here, "axis": e.chapter, "part": e.part,
        "description": env.metadata.get(e.file, {}).get("description", ""),
        "kind": say["kinds"][e.part],
        "path": [{"kind": say["kinds"][o.part], "href": to(o.file), "title": title(env, o.file)}
                 for o in entries if o.chapter == e.chapter and o.part in ("labs", "tools")],
    }
    parts = []
    for part in dict.fromkeys(e.part for e in entries):
        parts.append({"caption": say["parts"][part], "items": [item(e) for e in entries if e.part == part]})
    context.update(
        words=say, lang=lang, tag=tag(lang), root=up, assets=posixpath.normpath(posixpath.join(up, "..", "assets")),
        parts=parts, entry=item(here) if here else None, path=path(entries, here, item, say),
        languages=languages(app, pagename, context, lang), sections=sections(doctree), behind=bool(meta.get("behind")),
        description=meta.get("description", ""), home=to("index"), search=to("search"),
        mathematics=bool(doctree) and any(doctree.findall(lambda n: isinstance(n, nodes.math | nodes.math_block))),
        theme_digest=app.config.theme_digest, sources=source_links(lang, pagename, meta, say, up),
    )
    siblings = [e for e in entries if here and e.part == here.part]
    at = siblings.index(here) if here else 0
    context["before"] = item(siblings[at - 1]) if here and at else None
    context["after"] = item(siblings[at + 1]) if here and at + 1 < len(siblings) else None
    if pagename == "index":
        context["after"] = item(entries[0]) if entries else None
        context["hero"] = hero(lang)
    context["body"] = mended(context.get("body", ""), say)


def mended(body: str, say: dict) -> str:
    """A page's text as docutils wrote it, with tables that scroll by themselves, links named in the page's language,
    addresses that break at their slashes, and without the roles of a bibliography, which readers of screens are told to
    ignore."""
    body = re.sub(r"<table\b.*?</table>", lambda m: f'<div class="table">{m[0]}</div>', body, flags=re.S)
    body = re.sub(r'(<a class="reference external" href="https://([^"]+)">)\2</a>',
                  lambda m: f"{m[1]}{m[2].replace('/', '/<wbr>')}</a>", body)
    body = re.sub(r' role="(?:list|doc-biblioentry)"', "", body)
    return re.sub(r'(<a class="headerlink" href="[^"]*" title=")[^"]*"', lambda m: f'{m[1]}{escape(say["permalink"])}"',
                  body)


def path(entries, here, item, say) -> list[dict]:
    """The steps of this page's idea: its chapter, its lab, its tools, those that there are."""
    if not here or here.part == "appendices":
        return []
    steps = []
    for part in PATH:
        for e in entries:
            if e.part == part and e.chapter == here.chapter:
                steps.append({**item(e), "verb": say["steps"][part]})
    return steps if len(steps) > 1 else []


def languages(app, pagename, context, lang) -> list[dict]:
    """The same page in every edition (all have the same pages)."""
    up = posixpath.relpath(".", posixpath.dirname(pagename) or ".")
    base = base_url()
    return [{
        "code": other, "tag": tag(other), "name": name_of(other), "here": other == lang,
        "href": posixpath.normpath(posixpath.join(up, "..", other, f"{pagename}.html")),
        "absolute": f"{base}{other}/{quote(pagename)}.html" if base else "",
    } for other in editions()]


def base_url() -> str:
    """Where the site is published, or nothing while no address is set."""
    if base := (config().get("html") or {}).get("baseurl"):
        return base.rstrip("/") + "/"
    found = re.match(r"https://github\.com/([^/]+)/([^/]+?)(?:\.git)?$", (repository() or {}).get("url", ""))
    return f"https://{found[1].lower()}.github.io/{found[2]}/" if found else ""


def sections(doctree) -> list[dict]:
    """The parts of a page, for “on this page”."""
    if doctree is None:
        return []
    top = [n for n in doctree.children if isinstance(n, nodes.section)]
    inner = [n for s in top for n in s.children if isinstance(n, nodes.section)] if len(top) == 1 else top[1:]
    return [{"id": n["ids"][0], "title": escape(n.next_node(nodes.title).astext())} for n in inner]


def source_links(lang: str, pagename: str, meta: dict, say: dict, up: str) -> list[dict]:
    """Where a page can be mended, opened and taken home; the first two only where the repository has an address."""
    source = sources(lang).get(pagename)
    if source is None:
        return []
    links = []
    file = source.relative_to(ROOT).as_posix()
    if source.suffix == ".ipynb":
        links.append({"icon": "download", "text": say["download"], "href": f"{up}/{pagename}.ipynb",
                      "download": source.name})
    home = repository()
    if home:
        if source.suffix == ".ipynb":
            published = f"{home['url']}/blob/published/{file}"
            inside = published.removeprefix("https://github.com/")
            links.append({"icon": "run", "text": say["colab"],
                          "href": f"https://colab.research.google.com/github/{inside}"})
            links.append({"icon": "run", "text": say["kaggle"],
                          "href": f"https://kaggle.com/kernels/welcome?src={published}"})
            file = f"labs/{pagename.rpartition('/')[2]}.py"
        links.append({"icon": "edit", "text": say["edit"], "href": f"{home['url']}/edit/{home['branch']}/{file}"})
    return links
