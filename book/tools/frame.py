"""What all live tools share: a form, the command it spells, the answer as slots of a page.

    values    by field name, as the command takes them
    query     the same in the page's address: what differs from the defaults, `stages=8&slow=2%3D1.5`
    command   the same as a line of the shell: `paralelo schedule 1f1b --stages 8 --microbatches 8 --slow 2=1.5`

A tool gives its fields and `answer(values, lang)`. The book's build draws one answer into the tool's page; in the page,
`Session` answers with the same code. What is wrong with a value is `Refused`, said in the page's language.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from urllib.parse import parse_qsl, urlencode

from paralelo.words import Refused, number, say, table

SEPARATORS = re.compile(r"[\s;]+")


@dataclass(frozen=True)
class Field:
    """One value. `when=("name", ("zb-h1",))`: only asked where the field `name` has one of these values."""

    name: str
    default: object
    when: tuple[str, tuple[str, ...]] | None = None
    positional: bool = False            # an argument of the command, not an option
    optional: bool = False              # the command has the same default

    def read(self, text: str, label: str):
        """The value of what somebody typed. Refused where it is none."""
        raise NotImplementedError

    def write(self, value) -> str:
        """The value as it is typed: `read(write(v)) == v`."""
        return str(value)

    def words(self, value) -> list[str]:
        """The value as words of the command."""
        return [self.write(value)] if self.positional else [f"--{self.name.replace('_', '-')}", self.write(value)]

    def control(self, id: str, lang: str, tool: str, described: str) -> str:
        return (f'<input id="{id}" name="{self.name}" value="{escape(self.write(self.default))}" autocomplete="off" '
                f'spellcheck="false"{described}{self.kind()}>')

    def kind(self) -> str:
        return ' type="text"'


@dataclass(frozen=True)
class Choice(Field):
    options: tuple[str, ...] = ()

    def read(self, text, label):
        if text not in self.options:
            raise Refused("cli.error.choice", option=label, choices=list(self.options))
        return text

    def control(self, id, lang, tool, described):
        about = table("tools", lang)[tool].get("options", {})
        listed = "".join(f'<option value="{o}"{" selected" if o == self.default else ""}>'
                         f'{escape(about.get(o, o))}</option>' for o in self.options)
        return f'<select id="{id}" name="{self.name}"{described}>{listed}</select>'


@dataclass(frozen=True)
class Whole(Field):
    least: int = 1
    most: int = 10**6

    def read(self, text, label):
        if not text.strip():
            raise Refused("cli.error.needs_value", option=label)
        plain = text.strip().replace("−", "-")
        x = int(plain) if re.fullmatch(r"[-+]?[0-9]{1,18}", plain) else None
        if x is None or not self.least <= x <= self.most:
            raise Refused("cli.error.whole_from", option=label, value=text.strip()[:40], least=self.least,
                          most=self.most)
        return x

    def kind(self):
        return f' type="number" min="{self.least}" max="{self.most}" step="1" inputmode="numeric"'


@dataclass(frozen=True)
class Number(Field):
    """Finite, with a decimal point or a decimal comma. `above`: more than `least`, not equal to it."""

    least: float = 0
    most: float = 1e12
    above: bool = False

    def read(self, text, label):
        if not text.strip():
            raise Refused("cli.error.needs_value", option=label)
        x = decimal(text)
        if x is None or not self.least <= x <= self.most or (self.above and x == self.least):
            raise Refused(f"cli.error.number_{'above' if self.above else 'from'}", option=label,
                          value=text.strip()[:40], least=self.least, most=self.most)
        return x

    def kind(self):
        return ' type="text" inputmode="decimal"'


@dataclass(frozen=True)
class Pairs(Field):
    """Any number of `key=factor`, parted by spaces or semicolons; each is one `--name key=factor` of the command."""

    default: object = ()

    def read(self, text, label):
        found = []
        for item in filter(None, SEPARATORS.split(text.strip())):
            key, _, factor = item.partition("=")
            x = decimal(factor)
            if not re.fullmatch(r"[0-9]{1,9}", key) or x is None:
                raise Refused("tools.frame.pair", option=label, value=item[:40])
            found.append((int(key), x))
        return tuple(found)

    def write(self, value):
        return " ".join(f"{key}={factor}" for key, factor in value)

    def words(self, value):
        return [word for key, factor in value for word in (f"--{self.name}", f"{key}={factor}")]


def decimal(text: str):
    """A number typed with a point or a comma; None if it is none.

    >>> decimal("1,5"), decimal("2"), decimal("2e3"), decimal("nan"), decimal("1.000,5")
    (1.5, 2, 2000, None, None)
    """
    plain = text.strip().replace("−", "-").replace(",", ".")
    if not re.fullmatch(r"[-+]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,3})?", plain):
        return None
    x = float(plain)
    if abs(x) == float("inf"):
        return None
    return int(x) if x == int(x) and abs(x) < 2**53 else x


@dataclass
class Table:
    """Rows under heads. `later`: of many rows, made only when somebody opens it."""

    head: list[str]
    rows: Callable[[], list[list]] | list[list]
    later: bool = False


@dataclass
class Answer:
    """What a tool says: a drawing, named numbers, tables by name, and moments to step through.

    `facts` are (name of the words `tools.<tool>.facts.<name>`, the number, the number as written). A moment is a place
    `places[i]` in the drawing, from `cursor[0]` down to `cursor[1]`, and what `moment(i)` says there: a head and lines.
    """

    figure: str
    facts: list[tuple[str, object, str]]
    tables: dict[str, Table]
    places: list[float] = field(default_factory=list)
    cursor: tuple[float, float] = (0, 0)
    moment: Callable[[int], tuple[str, list[str]]] | None = None


@dataclass(frozen=True)
class Tool:
    """`name` is that of the page, of the command and of the words."""

    name: str
    fields: tuple[Field, ...]
    answer: Callable[[dict, str], Answer]

    def label(self, f: Field, lang: str) -> str:
        return say(f"tools.{self.name}.fields.{f.name}", lang)

    def asked(self, values: dict) -> list[Field]:
        """The fields that are of use with these values."""
        return [f for f in self.fields if not f.when or str(values.get(f.when[0])) in f.when[1]]

    def read(self, texts: dict[str, str], lang: str) -> dict:
        """Values of what was typed; what was not typed has its default. Refused, with `.field`, where it is wrong."""
        values = {}
        for f in self.fields:
            if f.when and str(values.get(f.when[0])) not in f.when[1]:
                continue
            try:
                values[f.name] = f.read(texts[f.name][:400], self.label(f, lang)) if f.name in texts else f.default
            except Refused as error:
                error.field = f.name
                raise
        return values

    def query(self, values: dict) -> str:
        return urlencode([(f.name, f.write(values[f.name])) for f in self.asked(values)
                          if values[f.name] != f.default])

    def command(self, values: dict) -> str:
        """The line of the shell that says the same numbers."""
        words = ["paralelo", self.name]
        for f in self.asked(values):
            if f.positional or values[f.name] != f.default or not f.optional:
                words += f.words(values[f.name])
        return " ".join(words)


# ---- the answer as pieces of a page


def drawing(svg: str, name: str) -> str:
    """A picture of `paralelo.draw` as part of a page: the page has the style, and the picture's name is `name`."""
    svg = re.sub(r"<style>.*?</style>\n?", "", svg, count=1, flags=re.S)
    svg = re.sub(r"<title id=.*?</title>\n?", "", svg, count=1, flags=re.S)
    named = f' aria-label="{escape(name)}" aria-describedby="'
    return re.sub(r' aria-labelledby="\S+ (\S+)"', lambda m: f'{named}{m[1]}"', svg, count=1).strip()


def title_of(svg: str) -> str:
    found = re.search(r"<title id=[^>]*>(.*?)</title>", svg, re.S)
    return found[1] if found else ""


def rows_of(content: Table, caption: str, lang: str) -> str:
    rows = content.rows() if callable(content.rows) else content.rows
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in content.head)
    body = "".join("<tr>" + "".join(cell(c, i, lang) for i, c in enumerate(row)) + "</tr>" for row in rows)
    return (f'<table><caption class="unseen">{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table>")


def cell(x, i: int, lang: str) -> str:
    text = x if isinstance(x, str) else number(x, lang)
    return f'<th scope="row">{escape(text)}</th>' if i == 0 else f"<td>{escape(text)}</td>"


def slots(tool: Tool, answer: Answer, lang: str, live: bool) -> dict[str, str]:
    """HTML by the name of its place in the page. In the page itself, tables `later` are left out."""
    words = table("tools", lang)[tool.name]
    facts = [f'<div><dt>{escape(words["facts"][name])}</dt><dd><data value="{value}">{escape(text)}</data></dd></div>'
             for name, value, text in answer.facts]
    out = {"figure": drawing(answer.figure, title_of(answer.figure)), "facts": "".join(facts)}
    for name, content in answer.tables.items():
        if live and content.later:
            continue
        rows = rows_of(content, words["tables"][name], lang)
        out[name] = f'<div class="table" tabindex="0">{rows}</div>' if live else rows     # the book wraps its own
    return out


def moment(tool: Tool, answer: Answer, at: int) -> str:
    head, lines = answer.moment(at)
    return f"<p>{escape(head)}</p><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


# ---- in the page


class Session:
    """A tool at work in the page. Every answer is JSON."""

    def __init__(self, tool: Tool, lang: str):
        self.tool, self.lang, self.last = tool, lang, None

    def ask(self, query: str) -> str:
        texts = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=100))
        try:
            values = self.tool.read(texts, self.lang)
            answer = self.tool.answer(values, self.lang)
        except Refused as error:
            return json.dumps({"error": error.say(self.lang), "field": getattr(error, "field", "")})
        self.last, words = answer, table("tools", self.lang)[self.tool.name]["facts"]
        return json.dumps({"slots": slots(self.tool, answer, self.lang, True), "query": self.tool.query(values),
                           "command": self.tool.command(values), "places": answer.places, "cursor": answer.cursor,
                           "summary": ". ".join(f"{words[name]}: {text}" for name, _, text in answer.facts)})

    def table(self, name: str) -> str:
        words = table("tools", self.lang)[self.tool.name]["tables"]
        return f'<div class="table" tabindex="0">{rows_of(self.last.tables[name], words[name], self.lang)}</div>'

    def moment(self, at: int) -> str:
        return moment(self.tool, self.last, at)
