"""The labs themselves: fresh, the same code in every language, right under nbval, exercises right and wrong."""

from pathlib import Path

import nbformat
import pytest

from paralelo.words import languages


def is_timed(lab):
    return any("alone(" in block.code for block in lab.code)


def test_notebooks_are_what_their_sources_say(lab, build):
    assert build.problems(lab) == []


def test_code_and_outputs_are_the_same_to_the_byte(lab):
    """So that one language's run speaks for all."""
    cells = []
    for lang in languages():
        notebook = nbformat.read(lab.path(lang), as_version=4)
        cells.append([(c.id, c.source, c.metadata, c.outputs) for c in notebook.cells if c.cell_type == "code"])
    assert all(other == cells[0] for other in cells[1:])


def test_timed_lab_under_nbval(lab, nbval):
    """Alone on the machine; strict where output repeats."""
    if not is_timed(lab):
        pytest.skip("runs with the others")
    done = nbval([lab.path(languages()[0])])
    assert done.returncode == 0, done.stdout[-6000:]


def test_other_labs_under_nbval(build, nbval):
    labs = [build.read(path) for path in build.sources()]
    paths = [lab.path(languages()[0]) for lab in labs if not is_timed(lab)]
    if not paths:
        pytest.skip("every lab is timed")
    done = nbval(paths, "-n", "2", "--dist", "loadscope")
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_twenty_runs_without_a_flake(lab, nbval):
    for _ in range(20):
        done = nbval([lab.path(languages()[0])])
        assert done.returncode == 0, done.stdout[-6000:]


def test_the_timeline_a_lab_writes_is_the_committed_one(build, tmp_path, monkeypatch):
    """The cell of the pipeline lab that writes files, run with the lab's imports and nothing else."""
    lab = build.read(build.HERE / "pipeline.py")
    writes = [block.code for block in lab.code if 'Path("drawn"' in block.code]
    assert len(writes) == 1
    imports = next(block.code for block in lab.code if block.id != "install")
    monkeypatch.chdir(tmp_path)
    exec(imports + "\n" + writes[0], {})
    drawn = sorted(p.relative_to("drawn") for p in Path().glob("drawn/*/*"))
    assert len(drawn) == 2 * len(languages())
    for path in drawn:
        assert (tmp_path / "drawn" / path).read_bytes() == (build.ROOT / "diagrams" / path).read_bytes()


def test_exercises_filled_in_and_wrong(lab, build):
    """Every answer passes its check and gives points; every wrong one fails it, with a hint, and gives none."""
    cells, expected, answer = [], [], None
    blank = {c.id: c.source for c in build.notebook(lab, languages()[0]).cells}
    for block in lab.code:
        right = build.answers(block.code, build.RIGHT)
        tags = [t for t in block.tags if t != "nbval-skip"]
        if block.id == "install" or "timed" in tags:
            continue
        if right != blank[block.id]:
            answer = block
        cells.append(nbformat.v4.new_code_cell(right, id=block.id))
        if answer is not None and block is not answer and ("cases(" in right or "check(" in right):
            wrong = build.answers(answer.code, build.WRONG)
            cells.append(nbformat.v4.new_code_cell(wrong, id=f"{answer.id}-wrong"))
            cells.append(nbformat.v4.new_code_cell(right, id=f"{block.id}-wrong"))
            expected.append(block.id)
            answer = None
    assert len(expected) >= 3, "a lab ends with three exercises or more"
    shown = build.execute(nbformat.v4.new_notebook(cells=cells, metadata=build.KERNEL))

    def result(id):
        text = "".join(o.text for o in shown[id] if o.output_type == "stream")
        value = [float(o.data["text/plain"]) for o in shown[id] if o.output_type == "execute_result"]
        assert all(o.get("name") != "stderr" for o in shown[id])
        return text.strip(), value[-1]

    for id in expected:
        text, points = result(id)
        assert text == "✓" and points > 0, (id, text)
        text, points = result(f"{id}-wrong")
        assert text.startswith("✗") and "→ hint" in text and points == 0, (id, text)
