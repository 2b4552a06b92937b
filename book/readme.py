"""Keep README.md and its translations true: what commands print, and which parts of the course there are.

    python book/readme.py            write what commands print now into the console blocks, and the table of paths
    python book/readme.py --check    write nothing; exit 1 and one line for each README that says something else

A console block is one or more lines `$ command`, each with what it prints below it: outputs are compared whole, so what
is long is cut by the command itself (`| head`). The table of paths stands between `<!-- paths: … -->`, which says the
language's words for a part that is planned and not written, and `<!-- end of paths -->`. The first two cells of a row
are its author's: the idea and its name; the other six follow from the files.
"""

import argparse
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import yaml

from paralelo.words import languages

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "en"
CONSOLE = re.compile(r"(?ms)^```console\n(.*?)^```$")
PATHS = re.compile(r"(?s)(<!-- paths: (.*?) -->\n)(.*?)(<!-- end of paths -->)")
MODULES = {"start": ("model", "ranks")}          # where an idea's modules in predict and run are called otherwise
NONE = "–"                                       # not planned


def readmes() -> dict[str, Path]:
    """Language → its README; every language of the program wants one."""
    return {lang: ROOT / ("README.md" if lang == SOURCE else f"README.{lang}.md") for lang in languages()}


def current(text: str, lang: str) -> str:
    """A README's text as it would be if everything in it were of now."""
    text = CONSOLE.sub(lambda block: f"```console\n{session(block[1])}```", text)
    return PATHS.sub(lambda table: table[1] + rows(table[3], lang, table[2]) + table[4], text)


def commands(block: str) -> list[str]:
    return [line[2:] for line in block.splitlines() if line.startswith("$ ")]


def session(block: str) -> str:
    return "".join(f"$ {command}\n{printed(command)}" for command in commands(block))


@cache
def printed(command: str) -> str:
    """What a shell at the root of the repository prints for a command, both streams, without spaces at line ends."""
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "LC_ALL": "C.UTF-8",
                        "LANG": "C.UTF-8", "COLUMNS": "100", "TERM": "dumb"}
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=env, text=True, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.rstrip().splitlines())


def rows(table: str, lang: str, not_yet: str) -> str:
    """The table with its rows' last six cells made anew."""
    lines = table.splitlines()
    for at, line in enumerate(lines[2:], 2):
        idea, name = [cell.strip() for cell in line.strip("|").split("|")[:2]]
        lines[at] = "| " + " | ".join([idea, name, *cells(name.strip("`"), lang, not_yet)]) + " |"
    return "\n".join(lines) + "\n"


def cells(slug: str, lang: str, not_yet: str) -> list[str]:
    """Chapter, lab, tool, module of predict, module of run, tests."""
    planned = plan()
    predict, run = MODULES.get(slug, (slug, slug))
    tools = [tool for tool, chapter in planned["tools"].items() if chapter == slug]
    tests = [link(kind, path) for kind, name in (("predict", predict), ("run", run)) if (path := test(kind, name))]
    labs = list(planned["labs"])
    number = labs.index(slug) if slug in labs else 0
    return [
        link(slug, f"book/{lang}/{slug}.md", not_yet),
        link(f"{number:02d}_{slug}", f"labs/{lang}/{number:02d}_{slug}.ipynb", not_yet) if slug in labs else NONE,
        ", ".join(link(tool, f"book/tools/{tool}.py", f"{tool}: {not_yet}") for tool in tools) or NONE,
        module("predict", predict), module("run", run), ", ".join(tests) or NONE,
    ]


def module(folder: str, name: str) -> str:
    path = f"src/paralelo/{folder}/{name}"
    return link(name, path if there(path) else f"{path}.py", NONE)


def test(kind: str, name: str) -> str | None:
    """The first of a module's test files: test_pipeline.py before test_pipeline_backward.py."""
    found = sorted((ROOT / "tests" / kind).glob(f"test_{name}*.py"), key=lambda path: path.stem)
    return str(found[0].relative_to(ROOT)) if found else None


def link(text: str, path: str, otherwise: str = "") -> str:
    return f"[{text}]({path})" if there(path) else otherwise


def there(path: str) -> bool:
    return (ROOT / path).exists()


@cache
def plan() -> dict[str, dict]:
    """What book/_toc.yml plans: part → {name: the chapter it stands beside}, in reading order."""
    toc = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text(encoding="utf-8"))
    return {part["caption"]: {Path(c["file"]).name: c.get("chapter", Path(c["file"]).name) for c in part["chapters"]}
            for part in toc["parts"]}


def first_difference(text: str, wanted: str) -> str:
    ours, theirs = text.splitlines(), wanted.splitlines()
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return f"{at + 1}: {theirs[at] if at < len(theirs) else '(nothing)'}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true")
    check, wrong = options.parse_args().check, []
    for lang, path in readmes().items():
        if not path.is_file():
            wrong.append(f"{path.name}: missing")
            continue
        text = path.read_text(encoding="utf-8")
        wanted = current(text, lang)
        if text != wanted and check:
            wrong.append(f"{path.name}:{first_difference(text, wanted)}")
        elif text != wanted:
            path.write_text(wanted, encoding="utf-8")
            print(f"wrote {path.name}")
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong and check:
        print("run: python book/readme.py", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
