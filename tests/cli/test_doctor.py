"""`paralelo doctor`: with torch, without it, and with one that does not load."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paralelo.cli import main
from paralelo.cli.doctor import LABS
from paralelo.words import languages

pytestmark = pytest.mark.measure

WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Hide(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Hide())
from paralelo.cli import main
code = main(["doctor", *{argv!r}])
assert "torch" not in sys.modules
sys.exit(code)
"""


def hidden(argv, *packages):
    script = WITHOUT.format(hidden=packages, argv=argv)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)


def test_here(capsys):
    pytest.importorskip("torch")
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"torch", "devices", "backend", "ranks"} <= found.keys()
    assert found["torch"] and found["backend"] in ("gloo", "nccl") and found["ranks"] >= 1
    assert found["devices"][0]["kind"] == "cpu" and found["labs"].keys() == LABS.keys()


def test_without_torch():
    done = hidden(["--json"], "torch")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and done.stderr == ""
    assert found["torch"] is None and found["backend"] is None
    assert all("torch" in lab["missing"] and not lab["runs"] for lab in found["labs"].values())


@pytest.mark.parametrize(("lang", "said"), [("en", "work without torch"), ("es", "funcionan sin torch"),
                                            ("pt", "funcionam sem torch")])
def test_without_anything(lang, said):
    done = hidden(["--lang", lang], "torch", "numpy", "matplotlib", "cloudpickle", "safetensors", "ipywidgets")
    assert done.returncode == 1 and done.stderr == ""
    assert said in done.stdout and "pip install '.[labs]'" in done.stdout


def test_one_package_missing_stops_only_its_labs(monkeypatch, capsys):
    pytest.importorskip("torch")
    from paralelo.cli import doctor

    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda p: None if p == "matplotlib" else real(p))
    assert main(["doctor", "--json"]) == 0
    labs = json.loads(capsys.readouterr().out)["labs"]
    assert labs["tensor"]["missing"] == ["matplotlib"] and labs["experts"]["runs"]


def test_a_torch_that_does_not_load(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libtorch_cpu.so: cannot open\\nsecond line')")
    for lang in languages():
        script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom paralelo.cli import main\n" \
                 f"sys.exit(main(['doctor', '--lang', {lang!r}]))"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and done.stderr == "" and "libtorch_cpu.so: cannot open" in done.stdout
        assert "Traceback" not in done.stdout


def test_it_speaks_of_the_labs_there_are():
    there = {p.stem for p in (Path(__file__).parents[2] / "labs").glob("*.py")} - {"build"}
    assert set(LABS) == there
