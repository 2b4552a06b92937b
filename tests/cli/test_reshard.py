"""`paralelo reshard` and `paralelo checkpoint show`, on checkpoints made here."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from paralelo.cli import main  # noqa: E402
from paralelo.predict.checkpoint import Cut  # noqa: E402
from paralelo.predict.layout import Layout  # noqa: E402
from paralelo.run.checkpoint import load, newest, save_all, sharded  # noqa: E402
from paralelo.words import languages  # noqa: E402

pytestmark = pytest.mark.checkpoint


@pytest.fixture
def saved(tmp_path):
    """Sixteen rows over four tensor ranks."""
    layout, whole = Layout(tp=4), torch.arange(32.0).view(16, 2)
    states = [{"model.w": sharded(whole.chunk(4)[r], (16, 2), {"tp": Cut(0, units=8)}, layout, r), "step": 9}
              for r in range(4)]
    save_all(tmp_path / "saved", states, layout)
    return tmp_path / "saved"


def test_to_another_topology(saved, tmp_path, capsys):
    assert main(["reshard", str(saved), str(tmp_path / "b"), "--tp", "2", "--dp", "2", "--verify", "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert err == "" and answer["tensors"] == 1 and answer["bytes"] == 128 and answer["world_size"] == 4
    assert answer["step"] == 9 and answer["verified"] and answer["target"].endswith("step-00000009")
    for rank in range(4):
        whole = torch.arange(32.0).view(16, 2)
        assert torch.equal(load(tmp_path / "b", Layout(tp=2, dp=2), rank=rank)["model.w"], whole.chunk(2)[rank % 2])


def test_what_is_in_one(saved, capsys):
    assert main(["checkpoint", "show", str(saved), "--verify", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["bytes"] == 128 and answer["layout"]["tp"] == 4 and answer["step"] == 9 and answer["verified"]
    assert answer["tensors"]["model.w"]["shape"] == [16, 2] and answer["tensors"]["model.w"]["pieces"] == 4
    for lang in languages():
        assert main(["checkpoint", "show", str(saved), "--lang", lang]) == 0
        assert "model.w" in capsys.readouterr().out


@pytest.mark.parametrize("lang", languages())
def test_transformers_files_both_ways(saved, tmp_path, capsys, lang):
    assert main(["reshard", str(saved), str(tmp_path / "hf"), "--huggingface", "--lang", lang]) == 0
    assert (tmp_path / "hf" / "model.safetensors").is_file()
    assert main(["reshard", str(tmp_path / "hf"), str(tmp_path / "back"), "--dp", "2", "--verify", "--lang", lang]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.count("\n") == 2
    assert torch.equal(load(tmp_path / "back", Layout())["model.w"], torch.arange(32.0).view(16, 2))


def test_damage_is_said_in_one_line(saved, tmp_path, capsys):
    file = newest(saved) / "rank-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    for argv in (["reshard", str(saved), str(tmp_path / "b")], ["checkpoint", "show", str(saved), "--verify"]):
        for lang in languages():
            assert main([*argv, "--lang", lang]) == 2
            out, err = capsys.readouterr()
            assert out == "" and err.count("\n") == 1 and file.name in err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("argv", [["--tp", "3"], ["--ep", "2"], ["--order", "x"], ["--tp", "0"], ["--dp", "99999"]])
def test_layouts_that_cannot_be(saved, tmp_path, capsys, argv):
    for lang in languages():
        assert main(["reshard", str(saved), str(tmp_path / "b"), *argv, "--lang", lang]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
    assert not (tmp_path / "b").exists()


def test_the_target_must_be_free(saved, capsys):
    assert main(["reshard", str(saved), str(saved), "--tp", "2"]) == 2
    assert "step-00000009" in capsys.readouterr().err


def test_neither_torch_nor_ranks(saved, tmp_path):
    """The command starts no process and imports no torch."""
    paths = f"{str(saved)!r}, {str(tmp_path / 'b')!r}"
    script = f"import sys\nfrom paralelo.cli import main\nassert main(['reshard', {paths}, '--tp', '2']) == 0\n" \
             "assert 'torch' not in sys.modules and 'multiprocessing' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
