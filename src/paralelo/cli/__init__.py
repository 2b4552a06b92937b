"""The command `paralelo`: one module here per subcommand, found by its file name and loaded when it is called.

Every command takes `--json` and `--lang`; it exits 0 for yes, 1 for "the answer is no", and 2 for bad input, with
one line on stderr and no traceback.
"""

import locale
import os
import sys
from importlib import import_module, resources

import click

from paralelo.cli.frame import Group, complaint
from paralelo.words import Refused, languages, say

EXTRAS = ("torch", "numpy", "cloudpickle", "safetensors")


def main(argv: list[str] | None = None) -> int:
    """Run `paralelo` with these arguments and hand back its exit code (the console script passes it to the shell)."""
    argv = sys.argv[1:] if argv is None else argv
    lang = "en"
    try:
        lang = language(argv)
        answer = command(lang).main(argv, prog_name="paralelo", standalone_mode=False) or 0
        sys.stdout.flush()
        return answer
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:                     # whoever read our output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as stop:                  # shell completion ends so; so does click on a broken pipe, with 1
        return 0 if stop.code == 1 and "_PARALELO_COMPLETE" not in os.environ else stop.code
    except ModuleNotFoundError as error:        # `pip install paralelo` alone brings predict, draw and this command
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        print(f"paralelo: {say('cli.error.needs_package', lang, package=package)}", file=sys.stderr)
        return 2
    except (Refused, click.ClickException, OSError, UnicodeError, RecursionError, MemoryError) as error:
        print(f"paralelo: {complaint(error, lang)}", file=sys.stderr)
        return 2


def language(argv: list[str]) -> str:
    """The language asked for by `--lang`, before or after the subcommand, else that of the locale, else English."""
    for at, here in enumerate(argv):
        if here == "--":
            break
        if here == "--lang" or here.startswith("--lang="):
            asked = "".join(argv[at + 1:at + 2]) if here == "--lang" else here.partition("=")[2]
            if not asked:
                raise Refused("cli.error.needs_value", option="--lang")
            if asked not in languages():
                raise Refused("words.no_language", lang=asked[:40], languages=list(languages()))
            return asked
    of_locale = (os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG")
                 or locale.getlocale()[0] or "en")[:2].lower()
    return of_locale if of_locale in languages() else "en"


def command(lang: str = "en") -> click.Group:
    """The whole command in one language."""
    here = resources.files(__name__)
    names = sorted(f.name[:-3] for f in here.iterdir() if f.name.endswith(".py"))
    names = [n for n in names if n not in ("__init__", "__main__", "frame")]
    return Group(
        lang,
        {n.removesuffix("_"): f"paralelo.cli.{n}" for n in names},
        load=lambda module: import_module(module).command(lang),
        name="paralelo",
        help=say("cli.help", lang),
    )
