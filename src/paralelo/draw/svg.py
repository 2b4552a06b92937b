"""Writing SVG: escaped text, short numbers, unique ids, a title and a description for whoever cannot see it.

    >>> picture = Svg("dot", 20, 20, title="A dot", desc="One square.")
    >>> picture.rect(5, 5, 10, 10, "pl-F", title="here")
    >>> "<title id=\\"dot-title\\">A dot</title>" in str(picture)
    True

Classes start with `pl-`; `style.css` says how they look, and every picture carries the rules it uses. A page that shows
several pictures may strip the `<style>` and supply all of `style()` itself. Ids start with the picture's name.
"""

import re
from functools import cache
from html import escape
from importlib import resources

__all__ = ["Svg", "escape", "num", "rules_for", "style", "text_width"]


@cache
def style() -> str:
    """The style sheet of all drawings, without comments and line breaks."""
    css = resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.S)
    return re.sub(r"\s*([{};:,])\s*", r"\1", re.sub(r"\s+", " ", css)).strip()


def rules_for(markup: str) -> str:
    """The part of the style sheet that this markup uses: rules of its classes, and the variables in them."""
    used = {"pl"}.union(*(classes.split() for classes in re.findall(r'class="([^"]*)"', markup)))
    rule = re.compile(r"([^{}@]+){([^{}]*)}")

    def needed(selectors):
        return any(set(re.findall(r"\.([\w-]+)", one)) <= used for one in selectors.split(","))

    bodies = "".join(body for selectors, body in rule.findall(style()) if needed(selectors))
    variables = set(re.findall(r"var\((--[\w-]+)\)", markup + bodies))

    def keep(found):
        selectors, body = found.groups()
        lines = [d for d in body.split(";") if d and (d[:2] != "--" or d.partition(":")[0] in variables)]
        return f"{selectors}{{{';'.join(lines)}}}" if needed(selectors) else ""

    return rule.sub(keep, style())


def num(x: float) -> str:
    """A coordinate: two decimals at most, no trailing zeros.

    >>> num(3), num(2.5), num(1 / 3), num(-0.0)
    ('3', '2.5', '0.33', '0')
    """
    return f"{x:.2f}".rstrip("0").rstrip(".").replace("-0", "0", 1) if abs(x) < 0.005 else \
        f"{x:.2f}".rstrip("0").rstrip(".")


def text_width(text: str, size: float) -> float:
    """About how wide a text is in a system sans-serif font."""
    return sum(0.34 if c in " .,:;il1|'()·" else 0.9 if c in "mwMW" else 0.6 for c in text) * size


class Svg:
    """One picture under way. Coordinates in pixels, y down."""

    def __init__(self, name: str, width: float, height: float, title: str, desc: str, **data):
        self.name, self.width, self.height, self.title, self.desc = name, width, height, title, desc
        self.data = "".join(f' data-{key}="{escape(str(value))}"' for key, value in data.items())
        self.parts: list[str] = []

    def id(self, part: str) -> str:
        """An id of this picture, unique on a page that inlines several."""
        return f"{self.name}-{part}"

    def add(self, markup: str) -> None:
        """Anything else: markup that is already escaped."""
        self.parts.append(markup)

    def rect(self, x, y, width, height, cls: str = "", title: str = "", **attributes) -> None:
        shape = f'<rect x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}"'
        self._shape(shape, "rect", cls, title, attributes)

    def line(self, x1, y1, x2, y2, cls: str = "", **attributes) -> None:
        self._shape(f'<line x1="{num(x1)}" y1="{num(y1)}" x2="{num(x2)}" y2="{num(y2)}"', "line", cls, "", attributes)

    def path(self, d: str, cls: str = "", title: str = "", **attributes) -> None:
        self._shape(f'<path d="{d}"', "path", cls, title, attributes)

    def circle(self, x, y, r, cls: str = "", title: str = "", **attributes) -> None:
        self._shape(f'<circle cx="{num(x)}" cy="{num(y)}" r="{num(r)}"', "circle", cls, title, attributes)

    def text(self, x, y, text: str, cls: str = "", anchor: str = "start", size: float | None = None) -> None:
        extra = "" if anchor == "start" else f' text-anchor="{anchor}"'
        extra += "" if size is None else f' font-size="{num(size)}"'
        extra += f' class="{cls}"' if cls else ""
        self.parts.append(f'<text x="{num(x)}" y="{num(y)}"{extra}>{escape(text, quote=False)}</text>')

    def open(self, cls: str = "", **attributes) -> None:
        """Open a group; `close` closes it."""
        self.parts.append(f'<g{_attributes(cls, attributes)}>')

    def close(self) -> None:
        self.parts.append("</g>")

    def hatch(self, part: str = "idle", cls: str = "pl-hatch") -> str:
        """Define a hatching and return the `fill` that uses it."""
        self.parts.append(
            f'<defs><pattern id="{self.id(part)}" width="6" height="6" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="6" class="{cls}"/></pattern></defs>')
        return f"url(#{self.id(part)})"

    def _shape(self, start: str, tag: str, cls: str, title: str, attributes: dict) -> None:
        start += _attributes(cls, attributes)
        self.parts.append(f"{start}><title>{escape(title, quote=False)}</title></{tag}>" if title else f"{start}/>")

    def __str__(self) -> str:
        w, h = num(self.width), num(self.height)
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" class="pl" viewBox="0 0 {w} {h}" width="{w}" height="{h}" '
                f'role="img" aria-labelledby="{self.id("title")} {self.id("desc")}"{self.data}>')
        rules = rules_for('class="pl"' + "".join(self.parts))
        return "\n".join([
            head, f'<title id="{self.id("title")}">{escape(self.title, quote=False)}</title>',
            f'<desc id="{self.id("desc")}">{escape(self.desc, quote=False)}</desc>',
            f"<style>{rules}</style>", *self.parts, "</svg>", ""])


def _attributes(cls: str, attributes: dict) -> str:
    text = f' class="{cls}"' if cls else ""
    return text + "".join(f' {key.replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
