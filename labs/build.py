"""Build labs/<lang>/<nn>_<slug>.ipynb from labs/<slug>.py: prose in three languages, code once.

    python labs/build.py [slug …]            build, with the outputs of one execution of the code
    python labs/build.py --check             are the notebooks what their sources say? (nothing is executed)

A source is a percent script (jupytext). What is particular to it:

    # %% [markdown] lang="es"                prose: one cell for every language, one after the other
    # %% tags=["nbval-ignore-output"]        code: the same in every notebook
    answer = 42  # ANSWER                    an answer that stands here and not in the notebook: `answer = ...`
    # BEGIN ANSWER                           several lines of it, with what a wrong one may look like,
    # WRONG                                  for the tests
    # END ANSWER

The number in a notebook's name is the lab's place in book/_toc.yml. Since the code is the same to the byte, one
execution gives the outputs of all languages; they are kept in the notebooks and made again when the code changes.
"""

import argparse
import ast
import hashlib
import re
import sys
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import jupytext
import nbformat
import yaml
from nbformat import v4

from paralelo.words import languages

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BLANK, RIGHT, WRONG = "blank", "right", "wrong"
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
          "language_info": {"name": "python"}}
INSTALL = '''\
# Colab and Kaggle get the library here; elsewhere this cell does nothing.
import os
import sys

REPOSITORY = "{address}"
if "google.colab" in sys.modules or "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
    assert REPOSITORY, "REPOSITORY = 'https://…' ← _config.yml: repository, url"
    get_ipython().run_line_magic("pip", f"install -q 'paralelo[labs] @ {{REPOSITORY}}/raw/published/{wheel}'")'''


class SourceError(Exception):
    """A source that does not make a lab: where, and what is wanted."""


@dataclass
class Block:
    """One place of a lab: a code cell, or the prose that stands there in every language."""

    id: str
    code: str | None = None
    tags: list[str] = field(default_factory=list)
    prose: dict[str, str] = field(default_factory=dict)


@dataclass
class Lab:
    slug: str
    blocks: list[Block]

    @property
    def number(self) -> int:
        return order().index(self.slug)

    def path(self, lang: str) -> Path:
        return HERE / lang / f"{self.number:02d}_{self.slug}.ipynb"

    @property
    def code(self) -> list[Block]:
        return [b for b in self.blocks if b.code is not None]

    def digest(self) -> str:
        """Of what decides the outputs: the code as the student gets it."""
        text = "\0".join(answers(b.code, BLANK) for b in self.code if b.id != "install")
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def order() -> list[str]:
    """The slugs of the labs in reading order."""
    toc = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text(encoding="utf-8"))
    files = [c["file"] for part in toc["parts"] for c in part["chapters"]]
    return [f.removeprefix("labs/") for f in files if f.startswith("labs/")]


def sources() -> list[Path]:
    """The labs there are, in reading order."""
    found = {p.stem: p for p in HERE.glob("*.py") if p.name != Path(__file__).name}
    if unknown := sorted(set(found) - set(order())):
        raise SourceError(f"labs/{unknown[0]}.py stands nowhere in book/_toc.yml")
    return [found[slug] for slug in order() if slug in found]


def read(path: Path) -> Lab:
    """A source as blocks; refuses a place that lacks a language or has one twice."""
    blocks, prose = [Block("install", install(), ["nbval-skip", "remove-cell"])], None
    text = path.read_text(encoding="utf-8")
    text = text[text.index("# %%"):]                  # what stands before the first cell is for tools
    for cell in jupytext.reads(text, fmt="py:percent").cells:
        if cell.cell_type == "code":
            prose = None
            blocks.append(Block("", cell.source, list(cell.metadata.get("tags", []))))
            continue
        lang = cell.metadata.get("lang")
        head = cell.source.strip().splitlines()[0] if cell.source.strip() else "(empty)"
        if lang not in languages():
            raise SourceError(f'{path.name}: prose wants lang="…", one of {", ".join(languages())}: {head}')
        if prose is None or set(prose.prose) == set(languages()):
            prose = Block("")
            blocks.append(prose)
        if lang in prose.prose:
            missing = sorted(set(languages()) - set(prose.prose))
            raise SourceError(f"{path.name}: {lang} comes again before {', '.join(missing)}: {head}")
        prose.prose[lang] = cell.source
    for number, block in enumerate(blocks):
        block.id = block.id or f"{path.stem}-{number:03d}"
        if block.code is None and (missing := sorted(set(languages()) - set(block.prose))):
            head = next(iter(block.prose.values())).splitlines()[0]
            raise SourceError(f"{path.name}: no {', '.join(missing)} beside: {head}")
    return Lab(path.stem, blocks)


def install() -> str:
    """The first cell of every lab. The address stands in _config.yml only; publishing adds it, and the wheel."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wheel = f"{project['name']}-{project['version']}-py3-none-any.whl"
    return INSTALL.format(address=(config.get("url") or "").rstrip("/"), wheel=wheel)


def answers(code: str, which: str) -> str:
    """A cell with its answers left out, filled in, or wrong.

    >>> print(answers("x = 1 + 1  # ANSWER", BLANK))
    x = ...
    >>> print(answers("x = 1 + 1  # ANSWER", RIGHT))
    x = 1 + 1
    >>> cell = "def f(n):\\n    # BEGIN ANSWER\\n    return 2 * n\\n    # WRONG\\n    return n\\n    # END ANSWER"
    >>> [answers(cell, which).splitlines()[1:] for which in (BLANK, RIGHT, WRONG)]
    [['    ...'], ['    return 2 * n'], ['    return n']]
    """
    lines, inside, kept = [], None, False
    for line in code.split("\n"):
        mark = line.strip()
        indent = line[:len(line) - len(line.lstrip())]
        if mark == "# BEGIN ANSWER":
            inside, kept = RIGHT, False
        elif mark == "# WRONG" and inside:
            inside = WRONG
        elif mark == "# END ANSWER":
            if not kept:
                lines.append(f"{indent}...")
            inside = None
        elif inside:
            if inside == which:
                lines.append(line)
                kept = True
        elif found := re.match(r"(\s*[\w, ]+ = )(.*?)\s+# ANSWER(?: # WRONG (.*))?$", line):
            left, right, wrong = found.groups()
            lines.append(left + {BLANK: "...", RIGHT: right, WRONG: wrong or "..."}[which])
        else:
            lines.append(line)
    return "\n".join(lines)


def notebook(lab: Lab, lang: str, which: str = BLANK, outputs: dict | None = None) -> nbformat.NotebookNode:
    """The notebook of one language. `outputs` maps the id of a code cell to what it showed."""
    cells = []
    for block in lab.blocks:
        if block.code is None:
            cells.append(v4.new_markdown_cell(block.prose[lang], id=block.id))
            continue
        cell = v4.new_code_cell(answers(block.code, which), id=block.id)
        if block.tags:
            cell.metadata["tags"] = block.tags
        if outputs and block.id in outputs:
            cell.outputs, cell.execution_count = outputs[block.id], lab.code.index(block) + 1
        cells.append(cell)
    made = v4.new_notebook(cells=cells, metadata=KERNEL | {"paralelo": {"source": lab.digest()}})
    nbformat.validate(made)
    return made


def execute(made: nbformat.NotebookNode, allow_errors: bool = False) -> dict:
    """Run a notebook in a new kernel; what each cell showed, by its id."""
    from nbclient import NotebookClient

    NotebookClient(made, timeout=180, kernel_name="python3", allow_errors=allow_errors,
                   resources={"metadata": {"path": str(HERE)}}).execute()
    return {c.id: [o for o in map(tidy, joined(c.outputs)) if o] for c in made.cells if c.cell_type == "code"}


def joined(outputs: list) -> list:
    """Pieces of one stream that follow each other, as one: where they were cut is chance."""
    made = []
    for output in outputs:
        if made and output.output_type == "stream" == made[-1].output_type and output.name == made[-1].name:
            made[-1].text += output.text
        else:
            made.append(output)
    return made


def tidy(output):
    """An output as it is kept: no controls that are dead without a kernel, no execution counts."""
    if output.output_type in ("display_data", "execute_result"):
        if "application/vnd.jupyter.widget-view+json" in output.data:
            return None
        output.metadata = {}
    if output.output_type == "execute_result":
        output.execution_count = None
    return output


def kept(lab: Lab) -> dict | None:
    """The outputs in the notebooks, if they are of this code."""
    for lang in languages():
        if lab.path(lang).is_file():
            made = nbformat.read(lab.path(lang), as_version=4)
            if made.metadata.get("paralelo", {}).get("source") == lab.digest():
                return {c.id: c.outputs for c in made.cells if c.cell_type == "code"}
    return None


def build(lab: Lab, again: bool = False) -> list[Path]:
    """Write the lab's notebooks; execute only if its code has changed (or `again`)."""
    outputs = None if again else kept(lab)
    if outputs is None:
        outputs = execute(notebook(lab, languages()[0]))
    written = []
    for old in HERE.glob(f"*/??_{lab.slug}.ipynb"):
        if old not in [lab.path(lang) for lang in languages()]:
            old.unlink()
    for lang in languages():
        path = lab.path(lang)
        path.parent.mkdir(exist_ok=True)
        text = nbformat.writes(notebook(lab, lang, outputs=outputs)) + "\n"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            written.append(path)
    return written


def problems(lab: Lab) -> list[str]:
    """Where the notebooks differ from their source, one line each."""
    found = []
    for lang in languages():
        path = lab.path(lang)
        name = path.relative_to(ROOT)
        if not path.is_file():
            found.append(f"{name}: missing; run make labs")
            continue
        made = nbformat.read(path, as_version=4)
        outputs = {c.id: c.outputs for c in made.cells if c.cell_type == "code"}
        if path.read_text(encoding="utf-8") != nbformat.writes(notebook(lab, lang, outputs=outputs)) + "\n":
            found.append(f"{name}: not what labs/{lab.slug}.py says; run make labs")
        found += [f"{name}: cell {cell.id} shows an error" for cell in made.cells if _failed(cell)]
    for block in lab.code:
        for which in (BLANK, RIGHT, WRONG):
            try:
                ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", answers(block.code, which), flags=re.M)
                          if not block.code.startswith("%%") else "")
            except SyntaxError as error:
                found.append(f"labs/{lab.slug}.py: cell {block.id}, answers {which}: {error}")
    return found


def _failed(cell) -> bool:
    return cell.cell_type == "code" and "raises-exception" not in cell.metadata.get("tags", []) and any(
        o.output_type == "error" or o.get("name") == "stderr" for o in cell.outputs)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("slug", nargs="*", help="which labs (all)")
    parser.add_argument("--check", action="store_true", help="say what is stale; build nothing")
    parser.add_argument("--again", action="store_true", help="execute even where the code has not changed")
    asked = parser.parse_args(argv)
    try:
        labs = [read(p) for p in sources() if not asked.slug or p.stem in asked.slug]
    except SourceError as error:
        print(error, file=sys.stderr)
        return 1
    if asked.check:
        found = [line for lab in labs for line in problems(lab)]
        print("\n".join(found), end="\n" if found else "")
        return bool(found)
    for lab in labs:
        for path in build(lab, asked.again):
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
