"""What all commands share: lazy loading, `--json` and `--lang`, tables, exit codes.

A command is a module with one function:

    def command(lang):
        @build("schedule", lang)                       # help and option texts: words/<lang>/cli.toml, [schedule]
        @click.argument("name")
        @option("--stages", lang, type=int, required=True)
        def schedule(out, name, stages):
            out.json({...}) or out.table(...)          # exactly one of the two prints
            return 0
        return schedule
"""

import json as _json
import sys

import click

from paralelo.words import say


class Group(click.Group):
    """A group that knows its subcommands by name and imports one only when it is called."""

    def __init__(self, lang, modules, load, **kwargs):
        super().__init__(**kwargs)
        self.lang, self.modules, self.load = lang, modules, load

    def list_commands(self, ctx):
        return sorted([*self.modules, *self.commands])

    def get_command(self, ctx, name):
        if name in self.modules and name not in self.commands:
            self.add_command(self.load(self.modules[name]), name)
        return self.commands.get(name)


class Output:
    """Where a command prints: a person's tables, or with `--json` one object for machines."""

    def __init__(self, as_json: bool, lang: str):
        self.as_json, self.lang = as_json, lang

    def json(self, answer: dict) -> bool:
        """Print `answer` if `--json` was given; says whether it was."""
        if self.as_json:
            _json.dump(answer, sys.stdout, ensure_ascii=False)
            print()
        return self.as_json

    def say(self, id: str, /, **fields) -> None:
        print(say(id, self.lang, **fields))

    def table(self, head: list[str], rows: list[list], title: str = "") -> None:
        """A table; numbers to the right. Colour only on a terminal."""
        from rich.console import Console
        from rich.table import Table

        out = Table(title=title or None, title_justify="left", header_style="bold")
        for i, column in enumerate(head):
            numeric = bool(rows) and all(not isinstance(r[i], str) for r in rows)
            out.add_column(column, justify="right" if numeric else "left")
        for row in rows:
            out.add_row(*(str(cell) for cell in row))
        Console(file=sys.stdout).print(out)


def option(name: str, lang: str, **kwargs):
    """An option whose help text is `cli.option.<name>`."""
    key = name.lstrip("-").split("/")[0].replace("-", "_")
    return click.option(name, help=say(f"cli.option.{key}", lang), show_default=kwargs.get("default") is not None, **kwargs)


def build(name: str, lang: str):
    """Make a function a command with `--json` and `--lang`; it gets an `Output` first and returns its exit code."""

    def wrap(function):
        def call(json, lang, **kwargs):
            return function(Output(json, lang or language), **kwargs)

        language = lang
        call.__click_params__ = getattr(function, "__click_params__", [])
        call = click.option("--json", is_flag=True, help=say("cli.option.json", lang))(call)
        call = click.option("--lang", help=say("cli.option.lang", lang))(call)
        return click.command(name, help=say(f"cli.{name}", lang))(call)

    return wrap
