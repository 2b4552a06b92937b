"""`paralelo audit`, `paralelo plan`, `paralelo read`: keys, exit codes, and what comes of bad files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paralelo.cli import main

pytestmark = pytest.mark.layout

HERE = Path(__file__).parents[1] / "predict"
CONFIGS = HERE / "configs"
MODEL = {"model_type", "parameters", "layers", "layer_kinds", "query_heads", "kv_heads", "head_dim", "hidden", "vocab",
         "experts"}
KEYS = {"model", "valid", "findings", "tp_degrees", "tp_degrees_with_replication", "pp_equal_stages", "ep_degrees",
        "vocab_padded", "bytes_per_rank", "bytes_per_step"}


def answer(capsys, *argv, code=0):
    assert main([*argv, "--json"]) == code
    out, err = capsys.readouterr()
    assert err == "" and out.count("\n") == 1
    return json.loads(out)


def refused(capsys, *argv):
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("paralelo: ") and err.count("\n") == 1
    return err


def test_keys(capsys):
    got = answer(capsys, "audit", str(CONFIGS / "Qwen3.5-27B.json"), "--tp", "8", "--pp", "4", "--cluster", "h100")
    assert set(got) >= KEYS | {"seconds_per_step"} and set(got["model"]) == MODEL
    assert set(got["bytes_per_rank"]) == {"parameters", "gradients", "optimizer", "activations", "total"}
    assert set(got["bytes_per_step"]) == {"tp", "pp", "cp", "ep", "dp"} and got["seconds_per_step"] > 0
    assert all(set(f) >= {"dimension", "size", "degree", "verdict", "message"} for f in got["findings"])
    assert {f["verdict"] for f in got["findings"]} <= {"divides", "replicated", "padded", "breaks", "note"}
    assert got["vocab_padded"] == 248832


def test_a_layout_that_cannot_work_answers_no_with_its_json(capsys):
    got = answer(capsys, "audit", "Qwen2.5-7B", "--tp", "7", code=1)
    wrong = {f["dimension"] for f in got["findings"] if f["verdict"] == "breaks"}
    assert not got["valid"] and wrong == {"kv_heads", "ffn"}
    got = answer(capsys, "audit", "SmolLM2-135M", "--pp", "31", code=1)
    assert got["bytes_per_rank"] is None


def test_a_layout_that_does_not_fit_the_devices_of_the_cluster_does_not_work(capsys):
    """It was said to work, with 125 GB on a device of 80."""
    layout = ["audit", "Mixtral-8x7B", "--tp", "4", "--pp", "2", "--dp", "4", "--ep", "4"]
    assert answer(capsys, *layout)["valid"]
    got = answer(capsys, *layout, "--cluster", "h100", code=1)
    (found,) = (f for f in got["findings"] if f["verdict"] == "breaks")
    assert found["dimension"] == "memory" and found["size"] == got["bytes_per_rank"]["total"] > found["degree"]
    assert not got["valid"] and got["seconds_per_step"] is None
    assert main(layout) == 0 and "not judged: name one with --cluster" in capsys.readouterr().out
    assert answer(capsys, *layout, "--zero", "1", "--recompute", "full", "--cluster", "h100")["valid"]


@pytest.mark.parametrize("lang, word", [("en", "This layout works."), ("es", "Esta disposición funciona."),
                                        ("pt", "Este layout funciona.")])
def test_for_people(lang, word, capsys):
    savers = ["--sequence-parallel", "--recompute", "full"]
    assert main(["audit", "Qwen3.5-27B", "--tp", "4", *savers, "--lang", lang]) == 0
    assert word in capsys.readouterr().out
    assert main(["plan", "Qwen3-0.6B", "--gpus", "2", "--lang", lang]) == 0
    assert main(["read", str(HERE / "dialects" / "megatron_moe.sh"), "--lang", lang]) == 0
    assert main(["read", str(HERE / "dialects" / "megatron_wrong.txt"), "--lang", lang]) == 1


def test_plan_keys(capsys):
    got = answer(capsys, "plan", "Llama-3.1-8B", "--gpus", "16", "--gpus-per-node", "8", "--memory-gib", "80",
                 "--sequence-length", "8192", "--global-batch", "64", "--cluster", "a100")
    assert all(set(c) >= {"dp", "tp", "pp", "cp", "ep", "fits", "seconds", "reasons"} for c in got["layouts"])
    assert got["layouts"][0]["fits"] and all(c["fits"] or c["reasons"] for c in got["layouts"])
    assert not answer(capsys, "plan", "Llama-3.1-405B", "--gpus", "2", code=1)["layouts"][0]["fits"]


def test_read_keys(capsys):
    got = answer(capsys, "read", str(HERE / "dialects" / "deepspeed_zero3.json"))
    assert set(got) >= {"dialect", "layout", "findings"} and got["layout"]["dp"] == 16
    got = answer(capsys, "read", str(HERE / "dialects" / "megatron_70b.sh"), "--gpus", "48", code=1)
    assert any("48" in f["message"] for f in got["findings"] if f["verdict"] == "breaks")


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe", b"{", b"[]", b"null", b"1e999", b"NaN", b'{"model_type": 3}',
                                     b"{" * 5000, b'{"a":' * 90_000, b'{"model_type": "unknown_one"}'])
@pytest.mark.parametrize("command", [["audit"], ["plan", "--gpus", "8"], ["read"]])
def test_bad_files_are_one_line(command, content, tmp_path, capsys):
    (tmp_path / "config.json").write_bytes(content)
    refused(capsys, *command, str(tmp_path / "config.json"))


@pytest.mark.parametrize("argv", [
    ["audit", "nowhere.json"], ["audit", "Qwen3-0.6B", "--tp", "0"], ["audit", "Qwen3-0.6B", "--tp", "-2"],
    ["audit", "Qwen3-0.6B", "--tp", "two"], ["audit", "Qwen3-0.6B", "--tp", "9" * 40],
    ["audit", "Qwen3-0.6B", "--dp", "99999999999"], ["audit", "Qwen3-0.6B", "--order", "pp-tp"],
    ["audit", "Qwen3-0.6B", "--schedule", "wish"], ["audit", "Qwen3-0.6B", "--zero", "4"],
    ["audit", "Qwen3-0.6B", "--recompute", "half"], ["audit", "Qwen3-0.6B", "--sequence-length", "0"],
    ["audit", "Qwen3-0.6B", "--microbatches", "9" * 12, "--pp", "4"], ["audit", "Qwen3-0.6B", "--cluster", "moon"],
    ["audit"], ["plan", "Qwen3-0.6B"], ["plan", "Qwen3-0.6B", "--gpus", "0"], ["plan", "Qwen3-0.6B", "--gpus", "nan"],
    ["plan", "Qwen3-0.6B", "--gpus", "8", "--memory-gib", "nan"],
    ["plan", "Qwen3-0.6B", "--gpus", "8", "--memory-gib", "0"],
    ["read", "nowhere.sh"], ["read", "/"], ["read"],
])
def test_bad_arguments_are_one_line(argv, capsys):
    refused(capsys, *argv)


def test_a_missing_field_is_named(tmp_path, capsys):
    config = json.loads((CONFIGS / "Llama-3.1-8B.json").read_text())
    del config["num_attention_heads"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "num_attention_heads" in refused(capsys, "audit", str(tmp_path))


def test_starts_quickly_and_without_heavy_imports():
    code = ("import sys; from paralelo.cli import main; main(['audit', 'DeepSeek-V3', '--tp', '8', '--json']); "
            "print([m for m in ('torch', 'numpy', 'rich') if m in sys.modules], file=sys.stderr)")
    code += "; import time; print(time.process_time(), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules, seconds = done.stderr.split("\n")[:2]
    assert modules == "[]" and float(seconds) < 2           # 0.2 s of its own work


def test_what_never_ends_and_what_names_nothing(capsys):
    """A file without an end was read for ever; an empty cluster was no cluster at all, in silence."""
    if Path("/dev/zero").exists():
        assert "/dev/zero" in refused(capsys, "audit", "/dev/zero")
    assert "h100" in refused(capsys, "audit", "Qwen2.5-7B", "--cluster", "")


@pytest.mark.parametrize("lang", ["en", "es", "pt"])
def test_every_kind_of_layer_has_its_words(lang, capsys):
    """Kinds of layers were English in every language: `48 × linear`."""
    from paralelo.predict import model
    from paralelo.predict.audit import layers_of

    for name in sorted(CONFIGS.glob("*.json")):
        if name.stem != "expected":
            for text in layers_of(model.load(name).layer_kinds):
                assert text.say(lang)
    assert main(["audit", str(CONFIGS / "Qwen3.5-27B.json"), "--tp", "2", "--lang", lang]) == 0
    out = capsys.readouterr().out
    assert ("linear attention" in out) == (lang == "en") and "[" not in out
    assert "–" not in out


def test_copies_are_named_only_where_there_are_any(capsys):
    """`(copying KV heads also –)` stood where nothing can be copied."""
    main(["audit", "Qwen2.5-7B"])
    assert "copies of" not in capsys.readouterr().out
    main(["audit", str(CONFIGS / "Qwen3.5-27B.json")])
    assert "also 8, with copies of KV heads" in capsys.readouterr().out


@pytest.mark.parametrize("lang, words", [("en", {"none", "full"}), ("es", {"ninguna", "completa"}),
                                         ("pt", {"nenhuma", "completa"})])
def test_plan_says_recomputation_in_its_language(lang, words, capsys):
    assert main(["plan", "Llama-3.1-70B", "--gpus", "32", "--top", "60", "--lang", lang]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(" ")]
    assert {row[-1] for row in rows if row[0].isdigit()} == words


def test_plan_chooses_the_zero_stage_and_says_what_it_assumes(capsys):
    ask = ["plan", "Qwen3.5-27B", "--gpus", "8"]
    got = {(c["dp"], c["tp"], c["pp"], c["cp"]): c for c in answer(capsys, *ask)["layouts"]}
    assert got[8, 1, 1, 1]["zero"] == 3 and got[8, 1, 1, 1]["fits"] and got[1, 8, 1, 1]["zero"] == 0
    one = answer(capsys, *ask, "--zero", "1", "--microbatch-size", "2")
    assert {c["zero"] for c in one["layouts"]} == {1} and (one["microbatch_size"], one["schedule"]) == (2, "1f1b")
    assert not next(c for c in one["layouts"] if c["dp"] == 8)["fits"]
    for lang, words in (("en", ("1F1B, 2 sequences a microbatch", "never behind computation", "upper bound")),
                        ("es", ("1F1B, 2 secuencias por microlote", "al mismo tiempo", "cota superior")),
                        ("pt", ("1F1B, 2 sequências por microlote", "ao mesmo tempo", "limite superior"))):
        assert main([*ask, "--microbatch-size", "2", "--zero", "3", "--lang", lang]) == 0
        out = capsys.readouterr().out
        assert all(word in out for word in (*words, "DeepSpeed", "ZeRO-3"))
    assert main([*ask, "--zero", "1"]) == 0
    assert "DeepSpeed" not in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--zero", "4"], ["--zero", "all"], ["--microbatch-size", "0"]])
def test_plan_refuses_in_one_line(argv, capsys):
    assert argv[0] in refused(capsys, "plan", "Qwen3-0.6B", "--gpus", "2", *argv)


def test_plan_says_only_what_holds(capsys):
    """With one stage for all none is the fastest, and without other ranks ZeRO sends nothing."""
    ask = ["plan", "SmolLM2-135M", "--gpus", "1"]
    assert main(ask) == 0
    free = capsys.readouterr().out
    assert free.startswith("1 layout for 1 GPU, ") and ": 1 fits\n" in free and "ZeRO, too" in free
    assert main([*ask, "--zero", "3"]) == 0
    out = capsys.readouterr().out
    assert "ZeRO, too" not in out and "ZeRO-3" not in out and "gathers" not in out
