"""The audit of a model under a layout: every dimension, memory, traffic; and public faults as cases."""

import json
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paralelo.predict import model, sequence
from paralelo.predict.audit import Options, audit, judge, kv_map, model_flops, stages, tp_degrees
from paralelo.predict.audit.activations import layer_bytes, saved
from paralelo.predict.audit.memory import placement
from paralelo.predict.audit.traffic import block_bytes
from paralelo.predict.audit.work import moved_bytes
from paralelo.predict.layout import Layout
from paralelo.predict.model.blocks import BLOCKS
from paralelo.predict.model.tensors import Dim
from paralelo.predict.step import elementwise_bytes
from paralelo.predict.tensor import padded_vocab
from paralelo.words import Refused, languages, say

pytestmark = pytest.mark.layout

CONFIGS = Path(__file__).parent / "configs"
GIANT = model.ship("Qwen3.5-27B")
LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 16,
         "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 1024, "vocab_size": 1024}


def tiny(**changes):
    return model.read(LLAMA | changes)


def of(result, dimension):
    return next(f for f in result.findings if f.dimension == dimension)


def broken(result):
    return [f.dimension for f in result.findings if f.verdict == "breaks"]


# ---- tensor


def test_kv_heads_above_their_number_are_copied_and_named():
    """C01: a tensor degree above the number of KV heads died deep in a reshape. Here: which rank holds which head."""
    assert kv_map(2, 4) == [[0], [0], [1], [1]]
    found = of(audit(tiny(), tp=4), "kv_heads")
    assert found.verdict == "replicated" and "KV head 1 is on ranks 2 and 3" in str(found.message)


def test_whole_heads_must_divide_not_columns():
    """C02: 512 columns of k divide by 8, into pieces of 64, half a head of 128: loads, then fails forward."""
    found = of(audit(tiny(num_attention_heads=32, num_key_value_heads=4, head_dim=128), tp=8), "kv_heads")
    assert found.verdict == "replicated"
    assert found.message.fields["piece"] == 64 < found.message.fields["head_dim"] == 128
    # each rank holds one whole head of k and of v instead of half of one, in four layers
    assert found.price == 4 * 2 * (128 - 64) * 4096 * 2


def test_28_heads_4_kv():
    """C04, C05: a public answer called 1, 2, 4, 7, 14, 28 valid for 28 query and 4 KV heads. 7 and 14 cut a KV head."""
    heads = tiny(num_attention_heads=28, num_key_value_heads=4, head_dim=128, intermediate_size=28 * 64)
    assert (tp_degrees(heads), tp_degrees(heads, replicate=True)) == ([1, 2, 4], [28])
    real = model.ship("Qwen2.5-7B")                         # its MLP of 18 944 rules 28 out as well
    assert (tp_degrees(real), tp_degrees(real, replicate=True)) == ([1, 2, 4], [])
    for degree in (7, 14):
        assert "kv_heads" in broken(audit(real, tp=degree))
    assert broken(audit(real, tp=8)) == ["query_heads"]


def test_gpt2_xl_on_five_gpus():
    """C06: 25 heads allow 1, 5, 25; at 5 the vocabulary of 50 257 leaves 2: padded to 50 560, 10 112 rows a rank."""
    xl, short = model.ship("GPT-2-XL"), Options(sequence_length=1024)
    assert "query_heads" in broken(audit(xl, short, tp=2))
    five = audit(xl, short, tp=5)
    vocab = of(five, "vocab")
    assert five.valid and vocab.verdict == "padded"
    assert [vocab.message.fields[k] for k in ("rest", "megatron", "rows")] == [2, 50560, 10112]


def test_six_gpus_report_both_obstacles():
    """C08: only a vocabulary that does not divide by 6 was reported; the KV heads do not either, padding or not."""
    six = audit(tiny(num_attention_heads=96, num_key_value_heads=8, head_dim=128, vocab_size=151552,
                     intermediate_size=6 * 512), tp=6)
    assert broken(six) == ["kv_heads"] and of(six, "query_heads").message.fields["each"] == 16
    assert of(six, "vocab").verdict == "padded" and of(six, "vocab").message.fields["megatron"] == 152064


@pytest.mark.parametrize("vocab, padded", [(32000, [32000, 32000, 32256, 32768]),
                                           (32002, [32128, 32256, 32256, 32768])])
def test_vocabulary_is_padded_from_the_real_size(vocab, padded):
    """C52: a file said 32 000 and the arguments 32 256. Padding is to a multiple of 128·tp, always of the real size."""
    assert [padded_vocab(vocab, tp, 128) for tp in (1, 2, 4, 8)] == padded
    assert [audit(tiny(vocab_size=vocab), tp=tp).json()["vocab_padded"] for tp in (1, 2)] == padded[:2]


def test_one_row_too_few():
    """C54: a saved model held 65 536 rows, the configuration says 65 535: one row is padding, to be masked."""
    found = of(audit(tiny(vocab_size=65535), tp=2), "vocab")
    assert found.verdict == "padded" and found.message.fields["empty"] == 1


def test_fused_matrices_are_judged_by_their_parts():
    """C43, C45: in_proj packs Q, K, V, Z, beta, alpha; half of 16 480 rows is 8240, but not rows 0 to 8239."""
    found = of(audit(GIANT, tp=2), "in_proj").message
    assert found.id == "audit.fused.note" and found.fields["sizes"] == [2048, 2048, 6144, 6144, 48, 48]
    assert found.fields["rows"] == [1024, 1024, 3072, 3072, 24, 24] and found.fields["total"] == 8240
    mini = of(audit(model.load(CONFIGS / "Phi-3.5-mini.json"), tp=2), "gate_up_proj")
    assert mini.message.id == "audit.fused.note" and mini.message.fields["rows"] == [4096, 4096]


@pytest.mark.parametrize("name, matrix, degrees, parts, rows", [
    ("GPT-NeoX-20B", "query_key_value", {"tp": 2}, ["q", "k", "v"], [3072] * 3),
    ("Qwen3-Next-80B-A3B", "in_proj_qkvz", {"tp": 2}, ["q", "k", "v", "z"], [1024, 1024, 2048, 2048]),
    ("MiniMax-Text-01", "qkv_proj", {"tp": 2}, ["q", "k", "v"], [4096] * 3),
    ("gpt-oss-20b", "gate_up_proj", {"tp": 2, "etp": 2}, ["gate", "up"], [1440] * 2),
])
def test_parts_that_a_file_mixes_unit_by_unit_are_cut_evenly(name, matrix, degrees, parts, rows):
    """Heads lie as q k v q k v …, gate and up as rows in turn: an even cut is the right one there, by parts is not."""
    found = of(audit(model.load(CONFIGS / f"{name}.json"), **degrees), matrix).message
    assert found.id == "audit.fused.even" and found.fields["parts"] == parts and found.fields["rows"] == rows


def test_a_fused_matrix_that_nobody_cuts_is_no_finding():
    """One expert tensor rank holds its experts whole; Falcon's KV heads, copied, are no even cut."""
    whole = audit(model.load(CONFIGS / "gpt-oss-20b.json"), tp=2, ep=2, etp=1)
    assert "gate_up_proj" not in {f.dimension for f in whole.findings}
    copied = of(audit(model.load(CONFIGS / "Falcon-40B.json"), tp=16), "query_key_value").message
    assert copied.id == "audit.fused.note" and copied.fields["total"] * 16 > sum(copied.fields["sizes"])


@pytest.mark.parametrize("name, noted", [("OLMo-2-7B", True), ("MiniMax-M2.5", True), ("Qwen3-8B", False)])
def test_a_norm_over_all_heads_needs_a_sum(name, noted):
    """C46: a speed-up removed the all-reduce in a norm of q and k over all heads. Over one head none is needed."""
    found = [f for f in audit(model.load(CONFIGS / f"{name}.json"), tp=2).findings if f.dimension == "qk_norm"]
    assert bool(found) is noted


def test_latents_are_whole_on_every_rank():
    """C98: tensor parallelism does not cut the cache of MLA: 576 values × 2 bytes × 61 layers on every rank."""
    found = of(audit(model.ship("DeepSeek-V3"), tp=8), "latents")
    assert found.verdict == "replicated" and found.message.fields["cache"] == 70272


def test_the_giant_as_the_chapter_tells_it():
    assert tp_degrees(GIANT) == [1, 2, 4] and tp_degrees(GIANT, replicate=True) == [8]
    four = audit(GIANT, tp=4)
    assert four.valid and not [f for f in four.findings if f.verdict in ("replicated", "padded")]
    q = {t.name: t for t in GIANT.attention.own(GIANT.hidden)}
    assert (q["q"].rows, q["k"].rows, q["o"].cols) == (12288, 1024, 6144)
    assert [q[n].per_rank(4) // 5120 for n in ("q", "k", "o")] == [3072, 256, 1536]
    assert of(audit(GIANT, tp=8), "ffn").message.fields["each"] == 2176


@given(size=st.integers(1, 96), degree=st.integers(1, 64))
def test_kv_verdict_is_what_the_ranks_hold(size, degree):
    """Independent of the rule: hand out columns of one-column heads evenly and look whether a head is cut."""
    verdict = judge(Dim("kv_heads", size, "replicate"), degree).verdict
    edges = [r * size / degree for r in range(degree + 1)]
    whole = all(e == int(e) for e in edges)
    alone = all(int(a) == int(b - 1e-9) for a, b in pairwise(edges))            # a rank touches one head only
    copied = not whole and alone and degree > size
    assert verdict == ("divides" if whole else "replicated" if copied else "breaks")


# ---- stages


def test_layers_never_vanish():
    """C16: 30 layers on 4 stages by floor division are 28: two layers vanished without a word."""
    held = audit(model.ship("SmolLM2-135M"), pp=4)
    assert [len(s.layers) for s in held.stages] == [8, 8, 7, 7] and held.valid
    assert sorted(i for s in held.stages for i in s.layers) == list(range(30))
    assert broken(audit(model.ship("SmolLM2-135M"), pp=31)) == ["layers"]


def test_virtual_stages_hold_the_right_layers():
    """C18: chunk c of stage s starts at layer c·(L/v) + s·(L/(p·v))."""
    assert placement(8, 2, "interleaved", 2) == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert placement(8, 2, "interleaved", 4) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert placement(8, 2, "zb-v", 2) == ((0, 1, 6, 7), (2, 3, 4, 5))


def test_stages_of_the_giant():
    four = audit(GIANT, pp=4)
    assert [s.kinds for s in four.stages] == [{"linear": 12, "full": 4}] * 4
    three = audit(GIANT, pp=3)
    assert three.valid and of(three, "composition").verdict == "note"
    assert [len(s.layers) for s in three.stages] == [22, 21, 21]


def test_tied_weights_are_on_both_ends():
    held = audit(model.ship("SmolLM2-135M"), pp=2).stages
    assert held[0].parameters == held[1].parameters - 576      # the same layers and the same matrix; the final norm
    assert of(audit(model.ship("SmolLM2-135M"), pp=2), "tied_embedding").message.fields["last"] == 1


def test_a_shared_block_is_copied_to_its_stages():
    zamba = model.load(CONFIGS / "Zamba2-2.7B.json")
    assert of(audit(zamba, pp=2), "shared_blocks").message.fields["stages"] == [0, 1]
    assert sum(s.parameters for s in audit(zamba, pp=2).stages) > zamba.parameters


def test_a_schedule_that_cannot_be_is_a_finding():
    wrong = audit(GIANT, Options(schedule="interleaved", chunks=2, microbatches=9), pp=4)
    assert broken(wrong) == ["microbatches"] and wrong.stages == []
    with pytest.raises(Refused):
        audit(GIANT, Options(schedule="wish"), pp=4)


# ---- experts and groups


def test_experts_over_context_and_data_ranks():
    """C70: expert parallelism folds into tp·cp·dp, so ep may exceed dp: 32 with dp 2 and cp 16 works, 64 does not."""
    moe, length = model.ship("Qwen3-30B-A3B"), Options(sequence_length=8192)
    for ep, edp in ((16, 2), (32, 1)):
        good = audit(moe, length, dp=2, cp=16, ep=ep)
        assert good.valid and good.layout.edp == edp
    bad = audit(moe, length, dp=2, cp=16, ep=64)
    assert broken(bad) == ["groups"]
    assert good.layout.groups("cp") == [list(range(16)), list(range(16, 32))]
    assert good.layout.groups("dp")[:2] == [[0, 16], [1, 17]]


def test_expert_parameters_are_shared_by_ep_not_tp():
    """C94: an estimator divided all parameters of a layer by tp. Experts go by etp·ep; norms and router are whole."""
    mixtral = model.ship("Mixtral-8x7B")
    (stage,) = audit(mixtral, tp=2, ep=8, dp=4).stages
    assert stage.experts == 45_097_156_608 // 8 == 5_637_144_576
    D, E, L = 4096, 8, 32
    assert stage.whole == L * (2 * D + E * D) + D
    assert stage.cut == (mixtral.parameters - 45_097_156_608 - stage.whole) // 2


def test_uneven_experts_are_counted_and_noted():
    qwen = model.load(CONFIGS / "Qwen1.5-MoE-A2.7B.json")
    found = of(audit(qwen, ep=8, dp=8), "experts")
    assert found.verdict == "note" and found.message.fields["counts"] == [8, 8, 8, 8, 7, 7, 7, 7]
    assert broken(audit(qwen, ep=64, dp=64)) == ["experts"]


# ---- positions


def test_ulysses_beside_the_ring():
    """C13: 40 query and 8 KV heads were believed to cap the degree at 8; 40 works with copies, 10 and 20 do not."""
    forty = tiny(num_attention_heads=40, num_key_value_heads=8, head_dim=128)
    found = {cp: of(audit(forty, Options(sequence_length=80 * 64), cp=cp), "ulysses").verdict for cp in (8, 10, 20, 40)}
    assert found == {8: "divides", 10: "note", 20: "note", 40: "replicated"}


def test_sequence_must_be_cut_in_twice_the_degree():
    assert broken(audit(GIANT, Options(sequence_length=4100), cp=8)) == ["sequence"]
    assert "bytes" in of(audit(GIANT, cp=2), "state").message.fields


# ---- memory, traffic, work


def test_one_rank_holds_the_model():
    one = audit(GIANT)
    assert one.bytes_per_rank["parameters"] == 2 * GIANT.parameters == one.bytes_per_rank["gradients"]
    assert one.bytes_per_rank["optimizer"] == 12 * GIANT.parameters and not any(one.bytes_per_step.values())


@pytest.mark.parametrize("zero, factor", [(0, 16), (1, 4 + 12 / 8), (2, 2 + 14 / 8), (3, 16 / 8)])
def test_zero_shares_over_data_and_context_ranks(zero, factor):
    held = audit(model.ship("Llama-3.1-8B"), Options(zero=zero), dp=4, cp=2).bytes_per_rank
    state = held["parameters"] + held["gradients"] + held["optimizer"]
    assert state == pytest.approx(factor * model.ship("Llama-3.1-8B").parameters)


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen3.5-27B", "DeepSeek-V3", "Mixtral-8x7B"])
def test_stages_and_tensor_ranks_hold_the_whole_model(name):
    """No parameter is lost: cut elements times tp, whole ones once, experts times ep, over all stages."""
    m = model.ship(name)
    held = stages(m, Layout(tp=4, pp=4, dp=2, ep=8 if m.experts else 1), Options())
    total = sum(s.cut * 4 + s.whole + s.experts * (8 if m.experts else 1) for s in held)
    assert total == m.parameters


def test_full_recomputation_holds_the_layer_that_is_run_again():
    """Fault: only the inputs were counted, so that a plan could say "fits" by several GB too early."""
    m, T, D = model.ship("Llama-3.1-8B"), 4096, 4096
    for B in (1, 8):
        full, none = (audit(m, Options(microbatches=8, microbatch_size=B, recompute=way), pp=4).stages
                      for way in ("full", "none"))
        for rank, live in enumerate((4, 3, 2)):                      # stages of eight equal layers, without a head
            inputs, layer = 8 * live * 2 * B * T * D, none[rank].bytes["activations"] / (8 * live)
            assert full[rank].bytes["activations"] == inputs + layer - 2 * B * T * D


def test_activations_follow_the_live_count():
    eight = Options(microbatches=8)
    one_f_one_b = audit(GIANT, eight, pp=4).stages
    logits = 4096 * (248320 * 4 + 2 * 5120 * 2)
    kept = [s.bytes["activations"] for s in one_f_one_b]
    assert [round(k / kept[2], 3) for k in kept[:3]] == [2, 1.5, 1] and kept[3] - logits == pytest.approx(kept[2] / 2)
    gpipe = audit(GIANT, Options(microbatches=8, schedule="gpipe"), pp=4).stages
    assert gpipe[1].bytes["activations"] == pytest.approx(kept[1] * 8 / 3)


def test_activation_of_a_layer_is_the_sum_of_its_tensors():
    """A dense layer by hand: bf16, fused attention, gated MLP (B 1, T 8, D 16, 4 heads of 4, 2 KV heads, F 32)."""
    m = model.read(LLAMA | {"hidden_size": 16, "num_attention_heads": 4, "head_dim": 4, "intermediate_size": 32})
    n, D, q, kv, F = 8, 16, 16, 8, 32
    by_hand = 2 * n * (2 * D + D + q + 2 * kv + q + D + 3 * F) + 4 * n * 4
    assert layer_bytes(m.layers[0], 16, 1, 8, Options(sequence_length=8).core) == by_hand


def test_published_activation_formula_comes_out_of_the_lists():
    """Korthikanti et al. 2022 (GELU, plain heads, dropout, stored scores): 34·sbh + 5·a·s²b, from the same lists."""
    layer = sequence.published_layer(1, 2048, 12288, 96)
    assert sequence.activation_bytes(layer) == sequence.published_layer_bytes(1, 2048, 12288, 96)
    ours = saved(BLOCKS["MLP"](width=4 * 12288, gated=False), 12288, 1, 2048)
    size = (1, 2048, 12288)
    assert ours == sequence.norm_activations(*size) + sequence.mlp_activations(*size, 4 * 12288, gated=False)


@pytest.mark.parametrize("parallel, factor", [(False, 8), (True, 10)])
def test_tensor_traffic_of_a_layer(parallel, factor):
    """Per layer 8 (or, regathering, 10) times (t−1)/t·B·T·D elements."""
    options = Options(sequence_length=4096, sequence_parallel=parallel).core
    layer = model.ship("Llama-3.1-8B").layers[0]
    sent = sum(block_bytes(b, 4096, 8, 1, 1, 1, options)["tp"] for b in layer.blocks)
    assert sent == factor * 7 / 8 * 4096 * 4096 * 2


def test_expert_traffic_of_a_layer():
    """Four exchanges of k·n·D, (N−1)/N of each leaves the rank."""
    block = model.ship("Mixtral-8x7B").layers[0].blocks[1]
    assert block_bytes(block, 4096, 1, 1, 8, 1, Options().core)["ep"] == 4 * 7 / 8 * 2 * 4096 * 4096 * 2


def test_moved_bytes_are_those_of_the_step_model():
    m = model.ship("Llama-3.1-8B")
    ours = sum(moved_bytes(b, 4096, 2048, 4, False) for b in m.layers[0].blocks)
    assert ours == pytest.approx(elementwise_bytes(1, 2048, 4096, 14336, 32, 8, 128, 4))


def test_work_is_two_flop_a_weight_and_attention():
    m = model.ship("Llama-3.1-8B")
    T, D, V = 8192, 4096, 128256
    matrices = m.parameters - V * D - (2 * 32 + 1) * D
    assert model_flops(m, T) == 2 * T * matrices + 32 * 2 * T * (T // 2) * 32 * 256


# ---- the whole answer


@pytest.mark.parametrize("name", model.shipped())
def test_every_answer_can_be_said_in_every_language(name):
    m = model.ship(name)
    for degrees in ({}, {"tp": 8, "pp": 3, "cp": 2, "ep": 4, "dp": 2}, {"tp": 7, "pp": 64, "ep": 3}):
        result = audit(m, Options(sequence_parallel=True, sequence_length=4098), **degrees)
        for lang in languages():
            json.dumps(result.json(lang), allow_nan=False)


def test_sentences_have_the_same_fields_in_every_language():
    import re

    words = Path(model.__file__).parents[2] / "words"

    def flat(table, before=""):
        for k, v in table.items():
            yield from flat(v, f"{before}{k}.") if isinstance(v, dict) else [(before + k, v)]

    for idea in ("model", "audit", "plan", "read"):
        texts = {lang: dict(flat(tomllib.loads((words / lang / f"{idea}.toml").read_text()))) for lang in languages()}
        for id, english in texts["en"].items():
            fields = sorted(set(re.findall(r"\{(\w+)", english)))
            for lang in languages():
                assert sorted(set(re.findall(r"\{(\w+)", texts[lang][id]))) == fields, (lang, idea, id)
        assert all(set(t) == set(texts["en"]) for t in texts.values())
    assert say("audit.show.valid", "pt")


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(model.shipped()), st.integers(1, 16), st.integers(1, 12), st.integers(1, 4), st.integers(1, 16),
       st.integers(1, 4), st.integers(1, 5000))
def test_any_layout_has_an_answer(name, tp, pp, cp, ep, dp, length):
    """Valid exactly where nothing breaks; bytes unless the layers cannot be placed; degrees agree with findings."""
    m = model.ship(name)
    result = audit(m, Options(sequence_length=length), tp=tp, pp=pp, cp=cp, ep=ep, dp=dp)
    assert result.valid == (not broken(result)) and bool(result.stages) == ("layers" not in broken(result))
    dims = {d.name for d in m.dims} - {"expert_ffn"}
    cut = dims & set(broken(result))
    good = tp in tp_degrees(m) + tp_degrees(m, replicate=True)
    assert (not cut) >= good


@pytest.mark.parametrize("path", sorted({*CONFIGS.glob("*.json")} - {CONFIGS / "expected.json"}), ids=lambda p: p.stem)
def test_every_finding_has_a_sentence_at_every_degree_in_every_language(path):
    """State-space sizes that a file does not pin were called copies at tp=6, and no sentence said so."""
    read = model.load(path)
    for tp in (1, 2, 3, 5, 6, 7, 8, 64):
        result = audit(read, Options(sequence_parallel=True), tp=tp, cp=tp, ep=tp, pp=2, dp=tp)
        for finding in result.findings:
            for lang in languages():
                assert finding.message.say(lang)
    loose = {f.dimension: f.verdict for f in audit(read, tp=6).findings if f.dimension.startswith("state_")}
    if path.stem.startswith("Zamba2"):
        assert loose == {"state_heads": "note", "state_groups": "note"}


def test_a_v_of_four_chunks_is_a_finding_where_blocks_are_shared_too():
    zamba = model.load(CONFIGS / "Zamba2-2.7B.json")
    assert broken(audit(zamba, Options(schedule="zb-v", chunks=4), pp=2)) == ["microbatches"]


@pytest.mark.parametrize("zero, each", [(2, 2), (3, 4)])
def test_the_layer_at_work_is_whole(zero, each):
    """Worked by hand, Llama-3.1-8B on 8 data ranks: the largest piece is the head and its norm, 128 257 · 4096, of
    which 7/8 are elsewhere; on the third of four stages it is a layer, 218 112 000 elements."""
    m = model.ship("Llama-3.1-8B")
    for pp, rank, elements in ((1, 0, 128_257 * 4096), (4, 2, 218_112_000)):
        plain, shared = (audit(m, Options(zero=z, microbatches=4), dp=8, pp=pp).stages[rank].bytes for z in (1, zero))
        assert shared["activations"] - plain["activations"] == each * elements * 7 / 8


def test_zero_traffic_with_microbatches():
    """Ψ reduce-scattered in each microbatch from stage 2 on, gathered twice in stage 3: by hand, M = 4 on 8 ranks."""
    m = model.ship("Llama-3.1-8B")
    sent = [audit(m, Options(zero=z, microbatches=4), dp=8).bytes_per_step["dp"] for z in (0, 1, 2, 3)]
    assert sent == [round(times * 2 * m.parameters * 7 / 8) for times in (2, 2, 4 + 1, 3 * 4)]


@pytest.mark.parametrize("name", ["interleaved", "zb-h1", "zb-v", "dualpipe-v"])
def test_enough_microbatches_tell_what_many_do(name):
    """An audit of 60,000 microbatches built and simulated all of them, for 7 s."""
    from paralelo.predict import pipeline
    from paralelo.predict.audit.memory import enough

    def of(S, M):
        try:
            done = pipeline.simulate(pipeline.build(name, S, M, 2 if name != "zb-h1" else 1))
        except Refused as refused:
            return refused.message.id
        return done.live_activations, done.makespan - done.ideal

    for S in (1, 2, 3, 4):
        for M in range(1, 12 * S + 2):
            assert enough(name, S, M) <= M and of(S, enough(name, S, M)) == of(S, M), (S, M)
        assert enough(name, S, 60_000 * S) < 6 * S
