"""`paralelo links`: what it prints, its exit code, and bad input."""

import json
import re

import pytest

from paralelo.cli import main
from paralelo.predict.links import fit

pytest.importorskip("torch")
pytestmark = pytest.mark.collectives


def test_fits_this_machine(capsys, monkeypatch):
    """Real ranks, few sizes. 0 where every fit is good, else 1; the numbers are there either way."""
    import paralelo.run.links as links

    sizes = [4**i for i in range(5, 10)]
    real = links.measured
    monkeypatch.setattr(links, "measured", lambda pool: real(pool, sizes=sizes, repeats=3))
    code = main(["links", "--device", "cpu", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert [c["name"] for c in answer["collectives"]] == list(links.KINDS)
    assert (answer["ranks"], answer["device"], answer["backend"]) == (2, "cpu", "gloo")
    for found in answer["collectives"]:
        again = fit(found["name"], 2, *zip(*found["points"], strict=True))
        assert (found["alpha"], found["beta"], found["median_error"]) == (again.alpha, again.beta, again.median_error)
        assert [n for n, _ in found["points"]] == sizes and all(t > 0 for _, t in found["points"])
        assert found["alpha"] > 0
    assert code == any(c["median_error"] > 0.25 for c in answer["collectives"])


SIZES = [1024, 65536, 4194304]


def fake(times):
    import paralelo.run.links as links

    return lambda pool: {kind: links.Timing(SIZES, times) for kind in links.KINDS}


@pytest.mark.parametrize(("times", "code", "mark"), [
    ([1e-4 + 2e-9 * n for n in SIZES], 0, "✓"),
    ([1e-3, 1e-6, 1e-2], 1, "✗"),
])
@pytest.mark.parametrize("lang", ["en", "es", "pt"])
def test_a_poor_fit_exits_1(capsys, monkeypatch, times, code, mark, lang):
    import paralelo.run.links as links

    monkeypatch.setattr(links, "measured", fake(times))
    assert main(["links", "--device", "cpu", "--lang", lang]) == code
    out = capsys.readouterr().out
    assert mark in out and ("all_reduce" in out.splitlines()[-1]) == bool(code)
    assert bool(re.search(r"\d,\d\d ", out)) == (lang == "pt")   # decimals had a point in every language


@pytest.mark.parametrize("ranks", ["1", "0", "two"])
def test_bad_input(capsys, ranks):
    assert main(["links", "--ranks", ranks]) == 2
    assert "--ranks" in capsys.readouterr().err
