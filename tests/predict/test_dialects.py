"""Other tools' configurations: real forms read, contradictions found."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paralelo.predict import dialects
from paralelo.predict.dialects import megatron
from paralelo.predict.dialects.shell import UNKNOWN, Script
from paralelo.words import Refused, languages, say

pytestmark = pytest.mark.layout

FILES = Path(__file__).parent / "dialects"
BASE = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --num-layers 32 --num-attention-heads 32 "


def found(text, gpus=None):
    """Findings of an argument list by their message, the contradictions only."""
    return {f.message.id.removeprefix("read.finding.") for f in dialects.read(text, gpus=gpus).findings
            if f.verdict == "breaks"}


def notes(text, gpus=None):
    return {f.message.id.removeprefix("read.finding.") for f in dialects.read(text, gpus=gpus).findings}


# ---- whole files


def test_a_launch_script_with_arrays_strings_and_arithmetic():
    r = dialects.load(FILES / "megatron_70b.sh")
    at = r.layout
    assert (r.dialect, at.dp, at.tp, at.pp, at.world_size, r.valid) == ("megatron", 2, 8, 4, 64, True)
    assert r.settings["chunks"] == 4 and r.settings["microbatches"] == 64 and r.settings["zero"] == 1
    assert r.settings["layers"] == 80 and r.settings["bf16"] is True


def test_a_mixture_of_experts_in_one_string():
    r = dialects.load(FILES / "megatron_moe.sh")
    at = r.layout
    assert (at.dp, at.tp, at.pp, at.ep, at.etp, at.edp, r.valid) == (4, 2, 2, 4, 1, 2, True)


def test_a_list_full_of_contradictions():
    r = dialects.load(FILES / "megatron_wrong.txt", gpus=8)
    assert r.layout.dp == 2 and not r.valid
    assert {f.message.id.removeprefix("read.finding.") for f in r.findings} == {
        "batch", "interleaving", "microbatches", "groups_alone", "sp_alone", "positions", "recompute_method",
        "overlap_parameters"}


def test_deepspeed_implies_its_world():
    r = dialects.load(FILES / "deepspeed_zero3.json")
    assert (r.dialect, r.layout.dp, r.settings["zero"], r.valid) == ("deepspeed", 16, 3, True)
    assert not dialects.load(FILES / "deepspeed_zero3.json", gpus=8).valid


def test_deepspeed_contradictions():
    r = dialects.load(FILES / "deepspeed_wrong.json")
    assert {f.message.id.removeprefix("read.finding.") for f in r.findings} >= {
        "both_halves", "offload_param", "needs_zero_3", "pipeline_and_zero", "batch_product"}


def test_torchtitan():
    r = dialects.load(FILES / "torchtitan_llama.toml", gpus=32)
    at = r.layout
    assert (r.dialect, at.dp, at.tp, at.pp, r.valid) == ("torchtitan", 4, 2, 4, True)
    assert r.settings["schedule"] == "interleaved" and r.settings["zero"] == 3
    assert not dialects.load(FILES / "torchtitan_llama.toml", gpus=12).valid


# ---- contradictions, one by one


@pytest.mark.parametrize("arguments, id", [
    ("--sequence-parallel --tensor-model-parallel-size 1 --num-layers 4", "sp_alone"),
    (BASE + "--num-layers-per-virtual-pipeline-stage 3", "interleaving"),
    (BASE + "--num-virtual-stages-per-pipeline-rank 3", "chunks"),
    ("--tensor-model-parallel-size 2 --num-layers 32 --num-layers-per-virtual-pipeline-stage 4", "interleaving_alone"),
    (BASE.replace("32 --num-a", "30 --num-a"), "layers"),
    (BASE + "--micro-batch-size 2 --global-batch-size 9", "batch"),
    (BASE + "--expert-model-parallel-size 2", "ep_alone"),
    (BASE + "--sequence-parallel --num-experts 6 --expert-model-parallel-size 4", "experts"),
    (BASE + "--num-experts 4 --moe-router-topk 2", "experts_need_sp"),
    (BASE + "--sequence-parallel --num-experts 4 --moe-router-topk 8", "top_k"),
    (BASE + "--seq-length 4096 --max-position-embeddings 2048", "positions"),
    (BASE + "--context-parallel-size 2 --seq-length 4098", "context"),
    (BASE + "--sequence-parallel --seq-length 4097 ", "sp_length"),
    (BASE + "--tp-comm-overlap", "overlap_needs_sp"),
    (BASE + "--recompute-granularity full", "recompute_full"),
    (BASE + "--recompute-granularity selective --recompute-method uniform", "recompute_method"),
    (BASE + "--overlap-param-gather", "overlap_parameters"),
    (BASE + "--overlap-param-gather --use-distributed-optimizer", "overlap_gradients"),
    (BASE + "--bf16 --fp16", "both_halves"),
    (BASE + "--group-query-attention --num-query-groups 12", "groups"),
    (BASE + "--micro-batch-size two --global-batch-size 8", "not_whole"),
    (BASE + "--micro-batch-size 0", "not_whole"),
    (BASE + "--tensor-model-parallel-size 4", "twice"),
    (BASE + "--decoder-first-pipeline-num-layers 6", "ends"),
])
def test_contradiction(arguments, id):
    assert id in found(arguments, gpus=16)


def test_products_that_do_not_make_the_world():
    """One that fits and one that does not: 16 ranks are 2 · 4 · 2, 12 are no multiple of 8."""
    assert "world_product" not in found(BASE, gpus=16) and "world_product" in found(BASE, gpus=12)


@pytest.mark.parametrize("arguments, id", [
    (BASE + "--num-query-groups 8", "groups_alone"),
    (BASE + "--use-distributed-optimizer", "optimizer_alone"),
    (BASE + "--moe-grouped-gemm", "needs_experts"),
    (BASE + "--recompute-num-layers 2", "recompute_layers"),
    ("--tensor-model-parallel-size 1 --num-layers 2 --tp-comm-overlap", "overlap_alone"),
    (BASE, "world_unknown"),
])
def test_options_that_do_nothing(arguments, id):
    gpus = None if id == "world_unknown" else 8
    assert id in notes(arguments, gpus) and id not in found(arguments, gpus)


def test_heads_are_judged_as_the_audit_judges_them():
    sizes = "--group-query-attention --num-query-groups 12 --ffn-hidden-size 100"
    ids = [f.message.id for f in dialects.read(BASE.replace("size 2", "size 8") + sizes).findings]
    assert [i for i in ids if i.startswith("audit.")] == ["audit.kv_heads.breaks", "audit.ffn.breaks"]


def test_experts_beyond_the_ranks_of_a_stage():
    """C70: with ep 64 over tp·cp·dp = 32 the experts do not fold."""
    r = dialects.read("--context-parallel-size 16 --expert-model-parallel-size 64 --expert-tensor-parallel-size 1 "
                      "--num-experts 64 --seq-length 8192", gpus=32)
    assert [f.dimension for f in r.findings if f.verdict == "breaks"] == ["groups"]
    good = "--context-parallel-size 16 --expert-model-parallel-size 32 --num-experts 64"
    assert dialects.read(good, gpus=32).layout.edp == 1


def test_data_outermost():
    assert dialects.read(BASE + "--use-tp-pp-dp-mapping", gpus=16).layout.order == "tp-cp-ep-pp-dp"


def test_a_json_list_of_arguments():
    assert dialects.read(json.dumps(BASE.split()), gpus=8).layout.pp == 4


# ---- the shell


@pytest.mark.parametrize("script, commands", [
    ("A=2\nrun --x $A", [["run", "--x", "2"]]),
    ("A=2\nrun --x '$A' \"$A b\"", [["run", "--x", "$A", "2 b"]]),
    ("A=(--x 1 # one\n --y 2)\nrun ${A[@]}", [["run", "--x", "1", "--y", "2"]]),
    ("A=(--x)\nA+=(--y)\nrun \"${A[*]}\"", [["run", "--x", "--y"]]),
    ("N=${N:-4}; G=$((N * 8 / 2)); run $G ${M:-7}", [["run", "16", "7"]]),
    ("run \\\n --x 1 \\\n --y=2 &", [["run", "--x", "1", "--y=2"]]),
    ("export A=3\nB=1 run $A", [["run", "3"]]),
    ("run $NOTHING", [["run", UNKNOWN]]),
    ("A=$((1 / 0))\nrun $A", [["run", UNKNOWN]]),
])
def test_shell(script, commands):
    assert Script(script).commands == commands


def test_nothing_is_executed(tmp_path):
    mark = tmp_path / "mark"
    dialects.read(f"A=$(touch {mark})\n`touch {mark}`\n{BASE} --lr $A", gpus=8)
    assert not mark.exists()


def test_unknown_variables_are_named():
    r = dialects.read("torchrun --nproc-per-node 8 --nnodes 1 x.py " + BASE + " --micro-batch-size $MBS")
    assert [f.dimension for f in r.findings if f.message.id.endswith("unknown_variable")] == ["$MBS"]


# ---- refused, and never more than a sentence


@pytest.mark.parametrize("text, id", [
    ("", "read.empty"), ("  \n", "read.empty"), ("hello world", "read.unknown"), ("{}", "read.unknown"),
    ("{", "read.not_json"), ('{"model_type": "llama"}', "read.a_model"), ("[]", "read.unknown"),
    ("[1]", "read.unknown"),
    ("[" * 100_000, "read.unknown"), ('{"a": ' * 50_000, "read.unknown"), ("[a]\nb = 1", "read.unknown"),
])
def test_refused(text, id):
    with pytest.raises(Refused) as e:
        dialects.read(text)
    assert e.value.message.id == id


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"--x 1\0"])
def test_files_that_are_no_text(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(Refused):
        dialects.load(tmp_path / "f")
    with pytest.raises(Refused):
        dialects.load(tmp_path)


WORD = st.sampled_from(["--" + n for n in megatron.known()] + ["--nnodes", "--nproc-per-node", "torchrun"])
VALUE = st.sampled_from(["1", "2", "3", "4", "8", "0", "-1", "x", "9" * 30, "full", "$A", "'", '"', "((", "nan"])


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(WORD, VALUE), max_size=12), st.none() | st.integers(1, 64))
def test_any_arguments_are_read_or_refused(pairs, gpus):
    text = "A=2\nx " + " ".join(f"{w} {v}" for w, v in pairs)
    try:
        r = dialects.read(text, gpus=gpus)
    except Refused as refused:
        assert str(refused)
        return
    assert r.layout.world_size >= 1
    for lang in languages():
        assert all(f.message.say(lang) for f in r.findings) and all(o.message.say(lang) for o in r.options)


ANY = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("auto"),
                   lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=4), x, max_size=3),
                   max_leaves=4)
COUNTS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "sequence_parallel_size")
FIELDS = st.fixed_dictionaries({}, optional=dict.fromkeys((*COUNTS, "fp16"), ANY) | {
    "zero_optimization": st.dictionaries(st.sampled_from(["stage", "offload_param", "stage3_max_reuse_distance"]), ANY),
    "pipeline": st.dictionaries(st.just("stages"), ANY)})


@settings(deadline=None, max_examples=200)
@given(FIELDS, st.none() | st.integers(1, 64))
def test_any_deepspeed_fields_are_read_or_refused(fields, gpus):
    try:
        r = dialects.read(json.dumps(fields), gpus=gpus)
    except Refused as refused:
        assert str(refused)
        return
    for lang in languages():
        assert all(f.message.say(lang) for f in r.findings) and all(o.message.say(lang) for o in r.options)


def test_every_option_has_its_sentence():
    for lang in languages():
        assert all(say(f"read.megatron.{name}", lang, value=2) for name in megatron.known())
        for path in dialects.deepspeed.table()["explained"]["paths"]:
            assert say(f"read.deepspeed.{path}", lang, value=2)
        for section, names in dialects.torchtitan.table().items():
            assert all(say(f"read.torchtitan.{section}.{n}", lang, value=2) for n in names)


def test_one_option_of_megatron_is_enough():
    assert dialects.read("torchrun --nproc_per_node 8 train.py --tensor-model-parallel-size 4").layout.tp == 4
    with pytest.raises(Refused):
        dialects.read("serve --tensor-parallel-size 4 --pipeline-parallel-size 2")      # another tool's


def test_a_value_that_only_a_shell_could_work_out_is_named():
    """It was taken for 1, in silence."""
    for value in ("$((1/0))", "$((2**9))"):
        found = dialects.read(f"torchrun --nproc_per_node 8 train.py --tensor-model-parallel-size {value}").findings
        assert "read.finding.unknown_value" in [f.message.id for f in found]


@pytest.mark.parametrize("script", ["X=2\n" + "X=$X$X\n" * 40, "A=(1)\n" + "A+=(${A[@]})\n" * 40])
def test_variables_that_double_are_refused(script):
    """Forty lines came to a terabyte."""
    with pytest.raises(Refused) as error:
        dialects.read(script + "python train.py --tensor-model-parallel-size $X ${A[@]}")
    assert error.value.message.id == "read.endless"


def test_brackets_in_brackets_take_no_square_of_time():
    start = time.process_time()
    for piece in ("$((", "${", '"', "'\"", "("):
        dialects.read(piece * 20_000 + "\npython train.py --tensor-model-parallel-size 2\n")
    assert time.process_time() - start < 10


def test_a_section_that_is_no_table():
    assert not dialects.read('{"zero_optimization": 3}').valid


def test_wrong_values_are_quoted_as_their_file_writes_them():
    """Python's None and ['a'] stood for what JSON and TOML write otherwise; stage 0 was said not to exist."""
    r = dialects.read('{"zero_optimization": {"stage": "2"}, "fp16": {"enabled": null}, "train_batch_size": [1, "a"]}')
    said = {str(f.message) for f in r.findings}
    assert {'zero_optimization.stage must be a whole number of at least 0, not "2"',
            "fp16.enabled must be true or false, not null",
            'train_batch_size must be a whole number of at least 1, not [1, "a"]'} <= said
    assert "train_batch_size ?" in {str(o.message) for o in r.options if o.name == "train_batch_size"}.pop()
