"""`paralelo schedule`: its JSON, its tables, its files."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from paralelo.cli import main
from paralelo.predict.pipeline import NAMES

pytestmark = pytest.mark.pipeline

KEYS = {"schedule", "stages", "microbatches", "chunks", "actions", "makespan", "ideal", "idle_share",
        "idle_over_ideal", "windows", "live_activations", "messages"}


def answer(capsys, *argv):
    assert main(["schedule", *argv, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.count("\n") == 1
    return json.loads(out)


@pytest.mark.parametrize("name", NAMES)
def test_json(name, capsys):
    chunks = ["--chunks", "2"] if name == "interleaved" else []
    got = answer(capsys, name, "--stages", "4", "--microbatches", "8", *chunks)
    assert set(got) >= KEYS and got["schedule"] == name and got["ideal"] == 24
    assert got["chunks"] == (2 if name in ("interleaved", "zb-v", "dualpipe-v") else 1)
    assert got["idle_share"] == pytest.approx(1 - 24 / got["makespan"])
    assert got["idle_over_ideal"] == pytest.approx(got["makespan"] / 24 - 1)
    assert len(got["windows"]) == len(got["live_activations"]) == 4
    assert {a["kind"] for a in got["actions"]} <= set("FBIW")
    assert set(got["actions"][0]) == {"rank", "stage", "microbatch", "kind", "start", "end"}
    assert max(a["end"] for a in got["actions"]) == got["makespan"]


def test_durations(capsys):
    plain = answer(capsys, "1f1b", "--stages", "2", "--microbatches", "3")
    assert plain["makespan"] == 12
    assert answer(capsys, "1f1b", "--stages", "2", "--microbatches", "3", "--forward", "2", "--backward", "4")[
        "makespan"] == 24
    assert answer(capsys, "1f1b", "--stages", "2", "--microbatches", "1", "--message", "0.5")["makespan"] == 7
    slow = answer(capsys, "1f1b", "--stages", "2", "--microbatches", "3", "--slow", "1=2", "--slow", "0=1")
    assert slow["makespan"] == 1 + 3 * 6 + 2 and slow["ideal"] == 9


def test_table_says_both_ratios_by_name(capsys):
    assert main(["schedule", "1f1b", "--stages", "4", "--microbatches", "16", "--lang", "en"]) == 0
    out = capsys.readouterr().out
    assert "idle share of the step: 15.8%" in out and "idle over ideal: 18.8%" in out
    assert main(["schedule", "1f1b", "--stages", "4", "--microbatches", "16", "--lang", "pt"]) == 0
    out = capsys.readouterr().out
    assert "fração ociosa do passo: 15,8%" in out and "tempo ocioso sobre tempo ideal: 18,8%" in out


def test_many_ranks_make_a_short_table(capsys):
    assert main(["schedule", "gpipe", "--stages", "100", "--microbatches", "2"]) == 0
    assert 40 < capsys.readouterr().out.count("\n") < 60


def test_files(tmp_path, capsys):
    svg, mermaid = tmp_path / "a.svg", tmp_path / "a.mmd"
    assert main(["schedule", "zb-v", "--stages", "2", "--microbatches", "4", "--lang", "es", "--svg", str(svg),
                 "--mermaid", str(mermaid)]) == 0
    assert ET.parse(svg).getroot().tag.endswith("svg") and "Línea de tiempo" in svg.read_text("utf-8")
    assert mermaid.read_text("utf-8").splitlines()[3] == "gantt"


def test_a_drawing_nobody_can_read_is_refused(tmp_path, capsys):
    file = tmp_path / "a.svg"
    assert main(["schedule", "gpipe", "--stages", "64", "--microbatches", "1000", "--svg", str(file)]) == 2
    assert "20,000" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.long
def test_half_a_million_actions():
    """`schedule 1f1b --stages 64 --microbatches 4096 --json`: 6 s of processor time and 1 GB at most."""
    code = ("import resource, sys; from paralelo.cli import main; code = main(sys.argv[1:]);"
            "u = resource.getrusage(resource.RUSAGE_SELF);"
            "print(u.ru_utime + u.ru_stime, u.ru_maxrss, file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", code, "schedule", "1f1b", "--stages", "64", "--microbatches", "4096",
                           "--json"], capture_output=True, text=True, timeout=120, check=True)
    seconds, kilobytes = map(float, done.stderr.split())
    got = json.loads(done.stdout)
    assert len(got["actions"]) == 2 * 64 * 4096 and got["makespan"] == 3 * (4096 + 63)
    assert seconds < 6 and kilobytes * 1024 < 1e9
