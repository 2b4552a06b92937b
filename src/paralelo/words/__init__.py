"""Every sentence the program says, in every language it has.

A language is a folder here. `words/es/language.toml` holds its rules (decimal sign, groups, per cent, lists) and
`words/es/<idea>.toml` its sentences; the first part of a message id names the file:

    >>> from paralelo.words import say
    >>> say("words.no_message", id="pipeline.nothing")
    'no sentence is called pipeline.nothing'

A sentence is a format string. Numbers in it are written by the rules of its language; see `format.write` for the
specifications (`{share:%1}`, `{size:bytes}`, `{n:n:stage:stages}`, `{name:code}`).
"""

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from paralelo.words import format as _format

__all__ = ["Message", "Refused", "languages", "number", "percent", "rules", "say", "size", "table"]


@cache
def languages() -> tuple[str, ...]:
    """The languages there are, by their folders: `("en", "es", "pt")`."""
    here = resources.files(__name__)
    return tuple(sorted(d.name for d in here.iterdir() if d.is_dir() and (d / "language.toml").is_file()))


@cache
def table(idea: str, lang: str) -> dict:
    """All sentences of one idea in one language, as nested dictionaries ({} where the file is missing)."""
    path = resources.files(__name__) / lang / f"{idea}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def rules(lang: str) -> dict:
    """How a language writes numbers and lists: the content of its `language.toml`."""
    if lang not in languages():
        raise Refused("words.no_language", lang=lang, languages=list(languages()))
    return table("language", lang)


def number(x, lang: str = "en", digits: int | None = None) -> str:
    """`format.number` by the rules of a language: `number(17408, "es")` is `17 408`."""
    return _format.number(x, rules(lang), digits)


def percent(x, lang: str = "en", digits: int = 1) -> str:
    """`format.percent` by the rules of a language: `percent(3 / 19, "pt")` is `15,8%`."""
    return _format.percent(x, rules(lang), digits)


def size(x, lang: str = "en", digits: int = 1) -> str:
    """`format.size` by the rules of a language: `size(16.6e9, "pt")` is `16,6 GB`."""
    return _format.size(x, rules(lang), digits)


def say(id: str, lang: str = "en", /, **fields) -> str:
    """The sentence `id` in `lang`, its fields written by the rules of that language."""
    idea, *path = id.split(".")
    found = table(idea, lang)
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    if not isinstance(found, str):
        raise KeyError(table("words", "en")["no_message"].format(id=id))
    return _format.write(found, rules(lang), {key: _said(x, lang) for key, x in fields.items()})


def _said(x, lang: str):
    """A field that is itself something to say, or a list of such, in the sentence's language."""
    if isinstance(x, Message):
        return x.say(lang)
    return [_said(one, lang) for one in x] if isinstance(x, list) and any(isinstance(i, Message) for i in x) else x


@dataclass(frozen=True)
class Message:
    """Something to say: which sentence, and what stands in it, other messages too. `str()` is English."""

    id: str
    fields: dict = field(default_factory=dict)

    def say(self, lang: str = "en") -> str:
        return say(self.id, lang, **self.fields)

    def __str__(self) -> str:
        return self.say()


class Refused(ValueError):
    """What the user asked for cannot be: names the value, the rule and what would work, in any language.

    >>> str(Refused("words.no_language", lang="xx", languages=["en", "es", "pt"]))
    'no language is called xx: choose en, es or pt'
    """

    def __init__(self, id: str, /, **fields):
        super().__init__(id, fields)
        self.message = Message(id, fields)

    def say(self, lang: str = "en") -> str:
        return self.message.say(lang)

    def __str__(self) -> str:
        return self.message.say()

    def __reduce__(self):
        return _refused, (type(self), self.message.id, self.message.fields)


def _refused(kind, id, fields):
    return kind(id, **fields)
