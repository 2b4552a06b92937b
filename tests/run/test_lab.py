"""What labs print, and that their checks give points and never raise."""

import math

import pytest
import torch

from paralelo.run import lab
from paralelo.run.ranks import RankError


@pytest.mark.parametrize(("got", "want"), [
    (3, 3), (3, 3.0), (0.1 + 0.2, 0.3), ([1, 2], (1, 2)), ((1, [2.0]), [1, (2,)]), ("a", "a"), (torch.tensor(3.0), 3),
    (torch.ones(2), torch.ones(2)), ([1, 1], torch.ones(2)), ({"a": 1.0}, {"a": 1}), ([2, 1], {1, 2}), (True, True),
    ([torch.ones(2), 1], [torch.ones(2), 1]), (lambda: 3, 3), (torch.zeros(0), torch.zeros(0)), (None, None),
])
def test_right(got, want, capsys):
    assert lab.check(got, want, points=2) == 2
    assert capsys.readouterr().out == "✓\n"


@pytest.mark.parametrize(("got", "want", "says"), [
    (3, 4, "3 ≠ 4"), ([1, 2], [1, 3], "[1, 2] ≠ [1, 3]"), (torch.ones(2), torch.ones(3), "(2,) ≠ (3,)"),
    (torch.ones(2), torch.zeros(2), "max |Δ| = 1"), (1.23456789, 2.0, "1.23457 ≠ 2"), (None, 3, "…"), (..., 3, "…"),
    (lambda: [][1], 3, "IndexError: list index out of range"), ("x" * 100, "y", "…"), (object(), 3, "≠ 3"),
    ([torch.ones(2)], [torch.zeros(2)], "max |Δ| = 1"), (lambda: ..., 3, "…"), ({"a": 1}, {"a": 2}, "a: 1 ≠ 2"),
    ("three", torch.ones(2), "Error"),
])
def test_wrong(got, want, says, capsys):
    assert lab.check(got, want, hint=2) == 0
    out, err = capsys.readouterr()
    assert out.startswith("✗ ") and says in out and out.endswith("→ hint 2\n") and err == ""


def test_names_the_rank(ranks, capsys):
    """A rank's value, a rank's exception, a wrong number of ranks."""
    assert lab.check([3, 4], [3, 3], ranks=True) == 0
    assert lab.check([3], [3, 3], ranks=True) == 0

    def fails():
        import torch.distributed as dist

        if dist.get_rank() == 1:
            raise KeyError("w")
        return 1

    assert lab.check(lambda: ranks(2).run(fails), [1, 1], ranks=True, hint=3) == 0
    assert capsys.readouterr().out.splitlines() == ["✗ rank 1: 4 ≠ 3", "✗ [3] ≠ [3, 3]",
                                                    "✗ rank 1: KeyError: 'w' → hint 3"]
    with pytest.raises(RankError):
        ranks(2).run(fails)


def test_cases(capsys):
    assert lab.cases(lambda n: n * n, {2: 4, 3: 9}, points=1.5) == 1.5
    assert lab.cases(lambda n: ..., {2: 4}, hint=1) == 0
    assert lab.cases(lambda n: 1 / n, {0: 4}, hint=1) == 0
    assert lab.cases(..., {0: 4}, hint=1) == 0
    assert capsys.readouterr().out.splitlines() == [
        "✓", "✗ … → hint 1", "✗ (0): ZeroDivisionError: division by zero → hint 1",
        "✗ (0): TypeError: 'ellipsis' object is not callable → hint 1"]


def test_table():
    table = lab.table(("a", 2, 2), ("longer", 1000, 1500), ("zero", 0, 0), unit="B")
    assert table.ratios == [1, 1.5, 1] and table.within(1.5) and not table.within(1.4)
    assert repr(table).splitlines()[2] == "longer   1,000   1,500   1.500"
    assert not math.isfinite(lab.table(("x", 0, 1)).ratios[0])


def test_knob_shows_something_without_a_kernel_and_something_else_with(capsys):
    """The static result is ordinary output; the slider changes it; without ipywidgets the static result stays."""
    import sys

    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    InteractiveShell.instance()
    with capture_output() as out:
        lab.knob(lambda n: f"N = {n}", "N", [1, 2, 4], start=2)
    first, slider = out.outputs
    assert first.data["text/plain"] == "N = 2"
    assert "application/vnd.jupyter.widget-view+json" in slider.data
    seen = []
    with capture_output():
        control = lab.control(seen.append, "N", [1, 2, 4], 2)
    control.value = 4
    assert seen == [4]
    with pytest.MonkeyPatch.context() as patch, capture_output() as out:
        patch.setitem(sys.modules, "ipywidgets", None)
        lab.knob(lambda n: f"<b>{n}</b>", "N", [1, 2])
    assert [list(o.data) for o in out.outputs] == [["text/plain", "text/html"]]


def test_sizes_for_this_machine(monkeypatch):
    monkeypatch.setattr(lab, "gpus", lambda: 1)
    assert lab.pick(cpu=1, two_gpus=2) == 1
    monkeypatch.setattr(lab, "gpus", lambda: 2)
    assert lab.pick(cpu=1, two_gpus=2) == 2
