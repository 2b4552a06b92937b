"""The READMEs say what is: commands print it, links lead there, the tree and the tables name what exists, in three
languages that keep step. And the package keeps its promise: alone it needs no PyTorch."""

import json
import re
import subprocess
import sys
import tomllib
import venv
from importlib import import_module, util
from pathlib import Path

import pytest

from paralelo.cli import EXTRAS, command
from paralelo.words import languages

ROOT = Path(__file__).resolve().parents[1]
LANGS = languages()
LIGHT = "import sys; sys.modules.update(dict.fromkeys({extras}));"       # as if these were not installed


@pytest.fixture(scope="module")
def readme():
    spec = util.spec_from_file_location("book_readme", ROOT / "book" / "readme.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def checks():
    """The book's own checks."""
    sys.path.insert(0, str(ROOT / "book"))
    yield lambda name: import_module(f"checks.{name}")
    sys.path.remove(str(ROOT / "book"))


@pytest.fixture(scope="module")
def pages(checks, readme):
    """The READMEs as a book of one page in each language, and CONTRIBUTING."""
    of = checks("pages")

    class Readmes(of.Book):
        def __init__(self):
            self.languages = LANGS
            self.pages = {lang: {"README.md": of.parse(of.Page(path, lang))} for lang, path in readme.readmes().items()}
            self.pages["en"]["CONTRIBUTING.md"] = of.parse(of.Page(ROOT / "CONTRIBUTING.md", "en"))

    return Readmes()


def text(lang: str) -> str:
    return (ROOT / ("README.md" if lang == "en" else f"README.{lang}.md")).read_text(encoding="utf-8")


def section(lang: str, number: int) -> str:
    """The text below a heading of level two, counted from 1."""
    return re.split(r"(?m)^## .*\n", text(lang))[number]


def rows(table: str) -> list[list[str]]:
    """Cells of a table's body."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


# --- what commands print ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("lang", LANGS)
def test_commands_print_what_stands_there(readme, lang):
    """After a change of what they print: python book/readme.py."""
    blocks = [block[1] for block in readme.CONSOLE.finditer(text(lang))]
    assert len(blocks) >= 8
    for block in blocks:
        assert block == readme.session(block)


def test_a_wrong_digit_is_found(readme):
    command = "paralelo schedule 1f1b --stages 4 --microbatches 8 | tail -1"
    said = f"```console\n$ {command}\nmessages between ranks: 48\n```\n"
    assert readme.current(said, "en") == said
    assert readme.current(said.replace("48", "47"), "en") == said


@pytest.mark.parametrize("lang", LANGS)
def test_commands_speak_the_language(readme, lang):
    """In an edition that is not English, a command without --lang prints JSON."""
    for block in readme.CONSOLE.finditer(text(lang)):
        for asked in readme.commands(block[1]):
            assert "--json" in asked or (f"--lang {lang}" in asked) == (lang != "en"), asked


# --- what exists -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("lang", LANGS)
def test_the_table_of_paths_is_of_now(readme, lang):
    """What exists is linked, what does not says so. After a new chapter or lab: python book/readme.py."""
    table = readme.PATHS.search(text(lang))
    assert table[3] == readme.rows(table[3], lang, table[2])
    assert [row[1].strip("`") for row in rows(table[3])] == list(readme.plan()["chapters"])


def test_what_is_written_is_never_called_missing(readme, monkeypatch):
    assert "not yet" not in readme.cells("tensor", "en", "not yet")
    monkeypatch.setattr(readme, "there", lambda path: False)
    assert readme.cells("tensor", "en", "not yet")[:3] == ["not yet", "not yet", readme.NONE]


@pytest.mark.parametrize("lang", LANGS)
def test_the_tree_lists_what_exists(lang):
    """Every name is there, and everything at the root is named."""
    tree = re.search(r"(?ms)^```text\n(.*?)^```", text(lang))[1]
    folders, named = [], set()
    for line in tree.splitlines():
        indent, name, comment = re.fullmatch(r"( *)(\S+)  +(\S.*)", line).groups() if "  " in line.strip() else (
            *re.fullmatch(r"( *)(\S+)", line).groups(), None)
        folders[len(indent) // 4:] = [name]
        path = "".join(folders)
        assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file(), path
        assert comment or path == "src/paralelo/", path
        named.add(path.split("/")[0])
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    root = {path.split("/")[0] for path in tracked}
    assert root - named - {".ci", ".gitignore", "package-lock.json"} == {p.name for p in ROOT.glob("README*.md")}


@pytest.mark.parametrize("lang", LANGS)
def test_every_command_and_every_verb_is_named(lang):
    commands = [row[0] for row in rows(section(lang, 2))]
    assert sorted(commands) == [f"`paralelo {name}`" for name in command().list_commands(None)]
    verbs = re.findall(r"(?m)^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert [row[0] for row in rows(section(lang, 5))] == ["`make`", *(f"`make {v}`" for v in verbs if v != "help")]
    assert f"`--lang {'|'.join(LANGS)}`" in text(lang)


@pytest.mark.parametrize("file", [*(f"README{'' if lang == 'en' else f'.{lang}'}.md" for lang in LANGS),
                                  "CONTRIBUTING.md"])
def test_files_that_shell_lines_name_exist(file):
    blocks = re.findall(r"(?ms)^```(?:sh|console)\n(.*?)^```", (ROOT / file).read_text(encoding="utf-8"))
    names = re.findall(r"(?<![\w./])(?:book|labs|diagrams|tests|clouds|benchmarks)/[\w./-]+", "\n".join(blocks))
    assert names
    for name in names:
        assert (ROOT / name).exists() or name.split("/")[-1].startswith("idea"), name
    for module in re.findall(r"-m (paralelo\.[\w.]+)", "\n".join(blocks)):
        assert (ROOT / "src" / module.replace(".", "/") / "__main__.py").is_file(), module


# --- three languages in step -----------------------------------------------------------------------------------------

def findings(checks, pages, *names):
    return [str(finding) for name in names for finding in checks(name).findings(pages)
            if "CONTRIBUTING.md" not in str(finding) or name == "links"]


def test_editions_have_the_same_skeleton(checks, pages, readme):
    """Headings, commands, links, names in backticks; beside the row of languages, comments and --lang of shell lines,
    and the table of paths, which is tested above."""
    part = checks("pages").Part
    for there in pages.pages.values():
        page, source = there["README.md"], there["README.md"].text
        table = [source[:end].count("\n") + 1 for end in readme.PATHS.search(source).span()]
        shell = lambda code, lang=page.lang: re.sub(  # noqa: E731
            rf" +# .*| --lang {lang}\b", "", code).replace(f"labs/{lang}/", "labs/{lang}/")
        page.parts = [part(p.kind, shell(p.key) if p.kind == "code" else p.key, p.line)
                      for p in page.parts if not table[0] <= p.line <= table[1]
                      and not re.fullmatch(r"README(\.\w+)?\.md", p.key)]
    assert findings(checks, pages, "skeleton") == []


def test_links_lead_somewhere(checks, pages):
    assert findings(checks, pages, "links") == []


def test_terms_are_those_of_the_glossary_and_no_paragraph_stayed_english(checks, pages):
    assert findings(checks, pages, "glossary", "language") == []


@pytest.mark.parametrize("lang", LANGS)
def test_the_picture_has_words_of_its_language(lang):
    alt, path = re.search(r"!\[(.*?)\]\((.*?)\)", text(lang)).groups()
    assert path.startswith(f"diagrams/{lang}/") and 60 < len(alt) <= 250
    idle = re.search(r"(\d+[.,]\d)\s?%", alt)[0]
    assert idle.replace("\u00a0", " ") in (ROOT / path).read_text(encoding="utf-8").replace("\u00a0", " ")


def test_no_address_is_invented():
    """Links to the outside, badges above all, would need the repository's address."""
    for lang in LANGS:
        assert set(re.findall(r"https?://[^\s)`]+", text(lang))) == {"https://github.com/OWNER/NAME"}


# --- the package alone -----------------------------------------------------------------------------------------------

COMMANDS = [
    ("schedule 1f1b --stages 4 --microbatches 8", 0), ("audit Qwen3.5-27B --tp 8", 0), ("doctor", 1),
    ("plan Llama-3.1-8B --gpus 8", 0), ("route --tokens 16 --experts 4 --k 2", 0), ("map --dp 2 --tp 2", 0),
    ("read tests/predict/dialects/megatron_70b.sh", 0), ("links", 2), ("reshard a b", 2), ("checkpoint show a", 2),
]


def test_dependencies_are_light():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {re.split(r"\W", d)[0] for d in project["dependencies"]} == {"click", "rich"}
    assert {re.split(r"\W", d)[0] for d in project["optional-dependencies"]["run"]} == set(EXTRAS)


def test_the_command_without_what_the_extras_bring():
    """Every command answers, or says in one line what to install."""
    for line, code in COMMANDS:
        source = LIGHT.format(extras=(*EXTRAS, "matplotlib")) + "from paralelo.cli import main; sys.exit(main())"
        done = subprocess.run([sys.executable, "-c", source, *line.split(), "--lang", "es"], cwd=ROOT,
                              capture_output=True, text=True)
        assert done.returncode == code, (line, done.stderr)
        if code == 2:
            assert re.fullmatch(r"paralelo: .* pip install \w+.*\n", done.stderr) and not done.stdout


def test_predict_draw_and_words_need_the_standard_library_only():
    source = LIGHT.format(extras=(*EXTRAS, "matplotlib", "click", "rich")) + (
        "from paralelo.draw.timeline import timeline; from paralelo.predict.pipeline import build, simulate;"
        "print(timeline(simulate(build('1f1b', 4, 8)), 'pt', name='x')[:4])")
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "<svg\n", done.stderr


def test_ranks_without_torch_say_what_to_install():
    source = LIGHT.format(extras=("torch",)) + "import paralelo.run.ranks as r; r.Ranks(2)"
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode and "pip install torch" in done.stderr.splitlines()[-1]


@pytest.mark.long
def test_pip_install_alone(tmp_path):
    """In a new environment: what is installed, and that it works from another folder."""
    venv.create(tmp_path / "venv", with_pip=True)
    run = lambda *args: subprocess.run(args, cwd=tmp_path, capture_output=True, text=True)  # noqa: E731
    python = tmp_path / "venv" / "bin" / "python"
    done = run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", ROOT)
    assert done.returncode == 0, done.stderr
    installed = {p["name"].lower() for p in json.loads(run(python, "-m", "pip", "list", "--format", "json").stdout)}
    assert {"paralelo", "click", "rich"} <= installed and not installed & {*EXTRAS, "matplotlib", "jupyter"}
    paralelo = tmp_path / "venv" / "bin" / "paralelo"
    for line, code in COMMANDS:
        done = run(paralelo, *line.replace("tests/", f"{ROOT}/tests/").split())
        assert done.returncode == code and "Traceback" not in done.stderr, (line, done.stderr)
    assert json.loads(run(paralelo, "doctor", "--json").stdout)["torch"] is None
    assert "pip install torch" in run(python, "-c", "import paralelo.run.ranks as r; r.Ranks(2)").stderr
