"""How a source becomes notebooks."""

import doctest
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = '''# for tools
# %% [markdown] lang="en"
# # Title
# %% [markdown] lang="es"
# # Título
# %% [markdown] lang="pt"
# # Título pt
# %%
x = 6 * 7  # ANSWER # WRONG 6 + 7
# %% tags=["nbval-ignore-output"]
# %%ranks
rank
'''


@pytest.fixture
def source(tmp_path):
    def write(text=SOURCE, slug="tensor"):
        path = tmp_path / f"{slug}.py"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def elsewhere(build, tmp_path, monkeypatch):
    """The repository is an empty folder with an address-less configuration."""
    monkeypatch.setattr(build, "HERE", tmp_path)
    monkeypatch.setattr(build, "ROOT", tmp_path)
    (tmp_path / "_config.yml").write_text("repository: {url: '', branch: main}")
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)


def test_doctests(build):
    assert doctest.testmod(build).failed == 0


def test_three_notebooks_from_one_source(build, source):
    lab = build.read(source())
    made = {lang: build.notebook(lab, lang) for lang in ("en", "es", "pt")}
    assert [c.source for c in made["es"].cells][1:] == ["# Título", "x = ...", "%%ranks\nrank"]
    assert [c.id for c in made["en"].cells] == ["install", "tensor-001", "tensor-002", "tensor-003"]
    assert [c.id for c in made["pt"].cells] == [c.id for c in made["en"].cells]
    assert made["pt"].cells[3].metadata.tags == ["nbval-ignore-output"]
    assert build.notebook(lab, "en", build.RIGHT).cells[2].source == "x = 6 * 7"
    assert build.notebook(lab, "en", build.WRONG).cells[2].source == "x = 6 + 7"
    assert nbformat.writes(made["en"]) == nbformat.writes(build.notebook(build.read(source()), "en"))     # to the byte


@pytest.mark.parametrize(("damage", "words"), [
    (lambda s: s.replace('# %% [markdown] lang="pt"\n# # Título pt\n', ""), "no pt beside: # Title"),
    (lambda s: s.replace('lang="es"', 'lang="en"'), "en comes again before es, pt"),
    (lambda s: s.replace(' lang="es"', ""), 'prose wants lang='),
    (lambda s: s.replace('lang="es"', 'lang="xx"'), 'prose wants lang='),
])
def test_a_lab_that_lacks_a_language_does_not_build(build, source, damage, words):
    with pytest.raises(build.SourceError, match=words):
        build.read(source(damage(SOURCE)))


def test_the_number_comes_from_the_table_of_contents(build, source):
    assert build.order()[0] == "start" and build.order().index("tensor") == 3
    assert build.read(source()).path("es").parts[-2:] == ("es", "03_tensor.ipynb")


def test_check_sees_what_is_stale(build, source, monkeypatch, elsewhere):
    """A changed word, a changed cell, a missing notebook, an error among the outputs."""
    nothing = lambda made, allow_errors=False: {c.id: [] for c in made.cells if c.cell_type == "code"}  # noqa: E731
    monkeypatch.setattr(build, "execute", nothing)
    lab = build.read(source())
    assert len(build.problems(lab)) == 3                                        # nothing built yet
    assert len(build.build(lab)) == 3 and build.problems(lab) == []
    assert build.build(lab) == []                                               # nothing to do
    changed = build.read(source(SOURCE.replace("# # Título\n", "# # Otro\n")))
    assert build.problems(changed) == ["es/03_tensor.ipynb: not what labs/tensor.py says; run make labs"]
    assert len(build.problems(build.read(source(SOURCE.replace("rank\n", "rank + 1\n"))))) == 3
    path = lab.path("pt")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[2].outputs = [nbformat.v4.new_output("error", ename="NameError", evalue="x", traceback=[])]
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    assert any("shows an error" in line for line in build.problems(lab))


def test_outputs_are_kept_when_only_prose_changes(build, source, monkeypatch, elsewhere):
    runs = []

    def execute(made, allow_errors=False):
        runs.append(1)
        return {"tensor-003": [nbformat.v4.new_output("stream", name="stdout", text="once\n")]}

    monkeypatch.setattr(build, "execute", execute)
    build.build(build.read(source()))
    build.build(build.read(source(SOURCE.replace("# # Título\n", "# # Otro\n"))))
    assert len(runs) == 1
    es = nbformat.read(build.read(source()).path("es"), as_version=4)
    assert es.cells[1].source == "# Otro" and es.cells[3].outputs[0].text == "once\n"
    build.build(build.read(source(SOURCE.replace("6 * 7", "6 * 8"))))            # an answer is not what students see
    assert len(runs) == 1
    build.build(build.read(source(SOURCE.replace("rank\n", "rank + 1\n"))))
    assert len(runs) == 2


def test_controls_that_are_dead_without_a_kernel_are_left_out(build):
    widget = nbformat.v4.new_output("display_data", {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "W"})
    static = nbformat.v4.new_output("display_data", {"text/plain": "N = 8"})
    assert build.tidy(widget) is None and build.tidy(static) == static


KERNEL = "class I:\n def run_line_magic(s, *a): print(*a)\nget_ipython = I\n"


def test_install_cell(elsewhere, build):
    """Does nothing on a laptop; on Colab it wants the address, which stands in _config.yml only."""
    cell = build.install()
    exec(cell, {})                                                              # here: nothing to see
    for address, prelude in (("", "import sys, types\nsys.modules['google.colab'] = types\n"),
                             ("https://example.org/x", "import os\nos.environ['KAGGLE_KERNEL_RUN_TYPE'] = 'x'\n")):
        script = prelude + KERNEL + cell.replace('REPOSITORY = ""', f'REPOSITORY = "{address}"')
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        if address:
            assert "pip install -q 'paralelo[labs] @ https://example.org/x" in done.stdout, done.stderr
        else:
            assert done.returncode and "_config.yml" in done.stderr


def test_check_from_the_command_line(build):
    done = subprocess.run([sys.executable, str(Path(build.__file__)), "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
