"""What all commands share: lazy loading, `--json` and `--lang`, tables, numbers from the command line, error lines.

A command is a module with one function:

    def command(lang):
        @build("schedule", lang)                       # help: `schedule` in words/<lang>/cli.toml
        @click.argument("name")
        @option("--stages", lang, type=Whole(1), required=True)      # help: `option.stages`
        def schedule(out, name, stages):
            out.json({...}) or out.table(...)          # exactly one of the two prints
            return 0
        return schedule

Errors of the user are `Refused` (or click's own, which `complaint` translates): one line on stderr, exit 2.
"""

import errno
import json as _json
import sys
from collections.abc import Iterator
from io import StringIO
from itertools import islice

import click

from paralelo.words import Refused, number, say


class _Frame:
    """Help and its headings in the command's language, for commands and for the group."""

    lang = "en"

    def format_usage(self, ctx, formatter):
        formatter.write_usage(ctx.command_path, " ".join(self.collect_usage_pieces(ctx)),
                              prefix=say("cli.word.usage", self.lang) + " ")

    def collect_usage_pieces(self, ctx):
        pieces = [f"[{say('cli.word.options', self.lang).upper()}]"]
        return pieces + [p for param in self.get_params(ctx) for p in param.get_usage_pieces(ctx)]

    def format_options(self, ctx, formatter):
        records = []
        for param in self.get_params(ctx):
            if not isinstance(param, click.Option) or param.hidden:
                continue
            names, default, text = ", ".join(param.opts), param.default, param.help or ""
            if param.required:
                text += f" [{say('cli.word.required', self.lang)}]"
            elif param.show_default:
                shown = param.show_default if isinstance(param.show_default, str) else default
                text += f" [{say('cli.word.default', self.lang, default=shown)}]"
            records.append((names if param.is_flag else f"{names} {param.make_metavar(ctx)}", text))
        with formatter.section(say("cli.word.options", self.lang)):
            formatter.write_dl(records)

    def get_help_option(self, ctx):
        def show(ctx, param, value):
            if value and not ctx.resilient_parsing:
                click.echo(ctx.get_help(), color=ctx.color)
                ctx.exit()

        return click.Option(["--help"], is_flag=True, expose_value=False, is_eager=True, callback=show,
                            help=say("cli.option.help", self.lang))


class Command(_Frame, click.Command):
    """One subcommand."""

    def parse_args(self, ctx, args):
        ctx.allow_extra_args = True
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx        # click's parser does not say which command it was
            raise
        if rest and not ctx.resilient_parsing:
            raise Refused("cli.error.extra", extra=" ".join(rest)[:60], command=ctx.command_path)
        return rest


class Group(_Frame, click.Group):
    """A group that knows its subcommands by name and imports one only when it is called."""

    def __init__(self, lang, modules, load, **kwargs):
        super().__init__(**kwargs, no_args_is_help=False, invoke_without_command=True, callback=self._help)
        self.lang, self.modules, self.load = lang, modules, load
        self.params.append(click.Option(["--lang"], expose_value=False, metavar="LANG",
                                        show_default=say("cli.default.lang", lang), help=say("cli.option.lang", lang)))
        self.params.append(click.Option(["--version"], is_flag=True, expose_value=False, is_eager=True,
                                        callback=_version, help=say("cli.option.version", lang)))

    @staticmethod
    def _help():
        ctx = click.get_current_context()
        if ctx.invoked_subcommand is None:
            click.echo(ctx.get_help())

    def collect_usage_pieces(self, ctx):
        return [*super().collect_usage_pieces(ctx), say("cli.word.command", self.lang).upper(), "…"]

    def list_commands(self, ctx):
        return sorted([*self.modules, *self.commands])

    def get_command(self, ctx, name):
        if name in self.modules and name not in self.commands:
            self.add_command(self.load(self.modules[name]), name)
        return self.commands.get(name)

    def resolve_command(self, ctx, args):
        name = str(args[0])
        if name in self.list_commands(ctx):
            return name, self.get_command(ctx, name), args[1:]
        if ctx.resilient_parsing:
            return None, None, args[1:]
        near = _near(name, self.list_commands(ctx))
        raise Refused("cli.error.no_command_near" if near else "cli.error.no_command", name=name[:40],
                      near=near or self.list_commands(ctx))

    def format_commands(self, ctx, formatter):                # from the words alone: imports no subcommand
        names = self.list_commands(ctx)
        with formatter.section(say("cli.word.commands", self.lang)):
            formatter.write_dl([(name, say(f"cli.{name}", self.lang)) for name in names])

    def format_options(self, ctx, formatter):
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_epilog(self, ctx, formatter):
        formatter.write_paragraph()
        formatter.write_text(say("cli.completion", self.lang))

    def shell_complete(self, ctx, incomplete):
        from click.shell_completion import CompletionItem

        return [*(CompletionItem(name, help=say(f"cli.{name}", self.lang))
                  for name in self.list_commands(ctx) if name.startswith(incomplete)),
                *click.Command.shell_complete(self, ctx, incomplete)]


class Whole(click.ParamType):
    """A whole number from `least` to `most`."""

    name = "n"

    def __init__(self, least: int | None = None, most: int = 10**15):
        self.least, self.most = least, most

    def convert(self, value, param, ctx):
        try:
            x = int(value) if "_" not in str(value) else None
        except ValueError:
            x = None
        if x is None or x > self.most or x < (-self.most if self.least is None else self.least):
            raise Refused("cli.error.whole" if self.least is None else "cli.error.whole_from", option=_option(param),
                          value=str(value)[:40], least=self.least, most=self.most)
        return x


class Number(click.ParamType):
    """A finite number from `least` (or, if `above`, more than `least`) to `most`."""

    name = "x"

    def __init__(self, least: float | None = None, most: float = 1e15, above: bool = False):
        self.least, self.most, self.above = least, most, above

    def convert(self, value, param, ctx):
        try:
            x = float(value) if "_" not in str(value) else float("nan")
        except ValueError:
            x = float("nan")
        low = -self.most if self.least is None else self.least
        if not low <= x <= self.most or (self.above and x == low):
            kind = "number" if self.least is None else "number_above" if self.above else "number_from"
            raise Refused(f"cli.error.{kind}", option=_option(param), value=str(value)[:40], least=self.least,
                          most=self.most)
        return int(x) if x == int(x) and abs(x) < 2**53 else x


class Output:
    """Where a command prints: a person's tables, or with `--json` one object for machines."""

    def __init__(self, as_json: bool, lang: str):
        self.as_json, self.lang = as_json, lang

    def json(self, answer: dict) -> bool:
        """Print `answer` if `--json` was given; says whether it was. A value that is an iterator is written as a list,
        a few thousand items at a time, so that a long one need not be in memory."""
        if not self.as_json:
            return False
        write, comma = sys.stdout.write, ""
        write("{")
        for key, value in answer.items():
            write(f"{comma}{_json.dumps(key)}: ")
            comma = ", "
            if isinstance(value, Iterator):
                write("[")
                between = ""
                while piece := list(islice(value, 4096)):
                    write(between + _json.dumps(piece, ensure_ascii=False, allow_nan=False)[1:-1])
                    between = ", "
                write("]")
            else:
                write(_json.dumps(value, ensure_ascii=False, allow_nan=False))
        write("}\n")
        return True

    def say(self, id: str, /, **fields) -> None:
        print(say(id, self.lang, **fields))

    def table(self, head: list[str], rows: list[list], title: str = "") -> None:
        """A table; numbers to the right, lists of them to the left, all written as the language writes them."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        cells = [[c if isinstance(c, str) else str(c) if isinstance(c, bool) or c is None else number(c, self.lang)
                  for c in row] for row in rows]
        out = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
        for i, column in enumerate(head):
            numeric = bool(rows) and all(row[i][:1] in "0123456789−…" and " " not in row[i] for row in cells)
            out.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
        for row in cells:
            out.add_row(*map(Text, row))
        to = sys.stdout if sys.stdout.isatty() else StringIO()
        console = Console(file=to, width=None if to is sys.stdout else 160, highlight=False)
        if console.measure(out, options=console.options.update(max_width=10**6)).maximum > console.width:
            out.padding = 0                     # one space between columns where there is no room for three
        if title:                               # by itself: a table's own title is broken at the table's width
            console.print(Text(title, style="bold"))
        console.print(out)
        if to is not sys.stdout:                # a file or a pipe gets no spaces at the ends of lines
            print("\n".join(line.rstrip() for line in to.getvalue().splitlines()))


def option(name: str, lang: str, shown: str = "", **kwargs):
    """An option whose help text is `cli.option.<name>`. `int` and `float` mean `Whole()` and `Number()`.

    `shown` names the sentence that tells a default which is no fixed value: `cli.default.<shown>`.
    """
    key = name.lstrip("-").split("/")[0].replace("-", "_")
    kind = {int: Whole(), float: Number()}.get(kwargs.get("type"), kwargs.get("type"))
    if kind is not None:
        kwargs["type"] = kind
    if kind in (None, str) and not kwargs.get("is_flag"):
        kwargs.setdefault("metavar", key.upper())
    return click.option(name, help=say(f"cli.option.{key}", lang), **kwargs,
                        show_default=say(f"cli.default.{shown}", lang) if shown else kwargs.get("default") is not None)


def build(name: str, lang: str):
    """Make a function a command with `--json` and `--lang`; it gets an `Output` first and returns its exit code."""

    def wrap(function):
        def call(json, lang, **kwargs):
            return function(Output(json, lang or language), **kwargs)

        language = lang
        call.__click_params__ = getattr(function, "__click_params__", [])
        call = click.option("--lang", metavar="LANG", help=say("cli.option.lang", lang),
                            show_default=say("cli.default.lang", lang))(call)
        call = click.option("--json", is_flag=True, help=say("cli.option.json", lang))(call)
        made = click.command(name, cls=Command, help=say(f"cli.{name}", lang))(call)
        made.lang = lang
        return made

    return wrap


def complaint(error: BaseException, lang: str) -> str:
    """What went wrong, as one line in `lang`."""
    return "".join(c if c.isprintable() or c in "\u00a0\u202f" else " " for c in _complaint(error, lang))


def _complaint(error, lang) -> str:
    match error:
        case Refused():
            return error.say(lang)
        case click.NoSuchOption():
            ctx = error.ctx
            names = [o for p in ctx.command.get_params(ctx) for o in p.opts if o.startswith("-")] if ctx else []
            near = _near(error.option_name, names)
            return say("cli.error.no_option_near" if near else "cli.error.no_option", lang,
                       name=error.option_name[:40], near=near, command=ctx.command_path if ctx else "paralelo")
        case click.MissingParameter():
            return say("cli.error.missing", lang, option=_option(error.param), command=error.ctx.command_path)
        case click.BadOptionUsage():
            params = error.ctx.command.params if error.ctx else []
            flag = any(error.option_name in p.opts and getattr(p, "is_flag", False) for p in params)
            return say("cli.error.no_value" if flag else "cli.error.needs_value", lang, option=error.option_name)
        case click.BadParameter(param=click.Parameter(type=click.Choice(choices=choices))):
            return say("cli.error.choice", lang, option=_option(error.param), choices=list(choices))
        case click.ClickException():
            return error.format_message()
        case UnicodeError():
            return say("cli.error.not_text", lang)
        case RecursionError():
            return say("cli.error.too_deep", lang)
        case MemoryError():
            return say("cli.error.too_large", lang)
    reason = {errno.ENOENT: "not_found", errno.EISDIR: "is_folder", errno.ENOTDIR: "not_folder",
              errno.EACCES: "forbidden", errno.EPERM: "forbidden"}.get(error.errno)
    reason = say(f"cli.error.{reason}", lang) if reason else error.strerror or type(error).__name__
    return say("cli.error.file", lang, file=str(error.filename)[:200], reason=reason)


def _near(name: str, names: list[str]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(name, names)


def _option(param) -> str:
    """How a parameter is named to the user: `--stages`, `NAME`."""
    if param is None:
        return "?"
    return param.opts[0] if isinstance(param, click.Option) else param.metavar or param.name.upper()


def _version(ctx, param, value):
    if value and not ctx.resilient_parsing:
        from paralelo import __version__

        click.echo(f"paralelo {__version__}")
        ctx.exit()
