"""Drawings set into the page, so that they follow its light or dark and its type.

A paragraph that is one image becomes `<figure>`: the alt text names the drawing for who cannot see it, the title is the
caption. Drawings of `paralelo.draw` bring classes `pl-…` and leave their style sheet at the door: the site serves it
once, for both themes (`style_sheet`). Other drawings keep theirs. Ids stay unique however many drawings a page has.
"""

import re
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

from docutils import nodes
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)
REFERENCES = ("aria-labelledby", "aria-describedby")
log = logging.getLogger(__name__)


def inline(text: str, alt: str, taken: set[str] | None = None) -> str:
    """An SVG document as an element of a page, called `alt`, with ids that nobody in `taken` has."""
    taken = set() if taken is None else taken
    root = ElementTree.fromstring(text)
    ours = 'class="pl-' in text
    names = {}
    for element in root.iter():
        if old := element.get("id"):
            names[old] = anchor(old, taken)
            element.set("id", names[old])
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{{{SVG}}}style":
                if ours:
                    parent.remove(child)
                else:
                    child.text = renamed(child.text or "", names)
        for key, value in parent.attrib.items():
            if key in REFERENCES:
                parent.set(key, " ".join(names.get(v, v) for v in value.split()))
            elif "#" in value:
                parent.set(key, renamed(value, names))
    for title in root.findall(f"{{{SVG}}}title"):       # a name, not a tooltip over the whole drawing
        root.remove(title)
    root.attrib.pop("aria-labelledby", None)
    root.set("role", "img")
    root.set("aria-label", alt)
    width, height = extent(root)
    root.set("width", f"{width:g}")
    root.set("height", f"{height:g}")
    root.set("style", f"{root.get('style', '').rstrip('; ')}; --w: {width:g}px".lstrip("; "))    # for narrow screens
    return ElementTree.tostring(root, encoding="unicode")


def anchor(wanted: str, taken: set[str]) -> str:
    """An id that the page does not have yet: `wanted`, else with a number."""
    new, n = wanted, 2
    while new in taken:
        new, n = f"{wanted}-{n}", n + 1
    taken.add(new)
    return new


def renamed(text: str, names: dict[str, str]) -> str:
    return re.sub(r"#([A-Za-z_][\w.-]*)", lambda m: "#" + names.get(m[1], m[1]), text)


def extent(root) -> tuple[float, float]:
    """Natural width and height in px: the view box where there is one."""
    if box := root.get("viewBox"):
        return tuple(float(v) for v in box.replace(",", " ").split()[2:])
    return tuple(float(re.sub(r"[a-z%]+$", "", root.get(k, "") or "") or 0) for k in ("width", "height"))


class SetDrawings(SphinxTransform):
    """Images whose file is an SVG become part of the page."""

    default_priority = 210

    def apply(self, **kwargs) -> None:
        taken: set[str] = set()
        for image in list(self.document.findall(nodes.image)):
            if not image["uri"].endswith(".svg") or "/" not in image["uri"]:
                continue
            rel, full = self.env.relfn2path(image["uri"], self.env.docname)
            file = Path(full)
            if not rel.startswith("figures/") or not file.is_file():
                continue
            self.env.note_dependency(rel)
            if not image.get("alt", "").strip():
                log.warning("the drawing %s has no alt text", file.name, location=image)
            svg = inline(file.read_text(encoding="utf-8"), image.get("alt", ""), taken)
            self.set(image, svg, anchor(f"fig-{file.stem}", taken))

    def set(self, image, svg: str, anchor: str) -> None:
        parent = image.parent
        if not isinstance(parent, nodes.paragraph) or len(parent.children) > 1:
            image.replace_self(nodes.raw("", f'<span class="drawing">{svg}</span>', format="html"))
            return
        figure = nodes.figure("", nodes.raw("", f'<div class="scroll">{svg}</div>', format="html"), classes=["drawing"],
                              ids=[anchor])
        if image.get("title"):
            figure += nodes.caption(image["title"], image["title"])      # text of the page, so that search finds it
        parent.replace_self(figure)


def style_sheet() -> str:
    """`draw/style.css` for the site: its dark half follows the reader's choice, else the system's."""
    css = resources.files("paralelo.draw").joinpath("style.css").read_text(encoding="utf-8")
    start = css.find("@media (prefers-color-scheme: dark)")
    if start < 0:
        return css
    depth, i = 0, css.index("{", start)
    opened = i
    while True:
        depth += {"{": 1, "}": -1}.get(css[i], 0)
        if not depth:
            break
        i += 1
    light, dark = css[:start] + css[i + 1:], css[opened + 1:i].strip()
    return (f"{light.strip()}\nhtml[data-theme=dark] {{ {dark} }}\n"
            f"@media (prefers-color-scheme: dark) {{ html:not([data-theme]) {{ {dark} }} }}\n")
