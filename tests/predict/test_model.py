"""Models read from their configurations, against counts that were made elsewhere.

`configs/expected.json` holds hand formulas per family, checked against the same architectures built without memory by
`transformers`. `test_transformers_counts_the_same` builds them again where that library is installed.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paralelo.predict import model
from paralelo.predict.audit import ep_degrees, pp_equal_stages, tp_degrees
from paralelo.predict.tensor import padded_vocab
from paralelo.words import Refused, languages

pytestmark = pytest.mark.layout

CONFIGS = Path(__file__).parent / "configs"
NAMES = sorted(p.stem for p in CONFIGS.glob("*.json") if p.stem != "expected")
EXPECTED = json.loads((CONFIGS / "expected.json").read_text())["models"]


def config(name):
    return json.loads((CONFIGS / f"{name}.json").read_text())


def up_to_64(degrees):
    return [d for d in degrees if d <= 64]


def test_there_are_sixty_eight_configurations_forty_of_them_with_answers():
    assert len(NAMES) == 68 and len(EXPECTED) == 40 and set(EXPECTED) <= set(NAMES)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_model_is_exactly_right(name):
    """Parameters, layers and their kinds, heads, sizes, experts and degrees: all of it, to the last parameter."""
    m, e = model.load(CONFIGS / f"{name}.json"), EXPECTED[name]
    assert m.summary() == {
        "model_type": e["model_type"], "parameters": e["params_total"], "layers": e["layers"],
        "layer_kinds": e["layer_kinds"], "query_heads": e["q_heads"], "kv_heads": e["kv_heads"],
        "head_dim": e["head_dim"], "hidden": e["hidden"], "vocab": e["vocab"], "experts": e.get("experts", 0)}
    assert m.tied == e["tie"]
    if e["params_per_layer_kind"]:
        assert m.layer_parameters() == {k: e["params_per_layer_kind"][k] for k in m.layer_kinds}
    if e["params_active_formula"]:
        assert m.active == e["params_active_formula"]

    tp = e["tp"]
    if "valid_degrees" in tp:                               # MLA: latents are whole on every rank and limit nothing
        assert (tp_degrees(m), tp_degrees(m, replicate=True)) == (up_to_64(tp["valid_degrees"]), [])
    else:
        assert tp_degrees(m) == up_to_64(tp["degrees_without_kv_replication"])
        assert tp_degrees(m, replicate=True) == up_to_64(tp["degrees_with_kv_replication"])
    assert pp_equal_stages(m) == up_to_64(e["pp"]["equal_composition"])
    assert ep_degrees(m) == up_to_64(e.get("ep_degrees", [1]))
    assert {t: padded_vocab(m.vocab, int(t), 128) for t in e["vocab_padded_to_128_tp"]} == e["vocab_padded_to_128_tp"]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_order_of_the_layers(name):
    """The kinds stand in the published order: each letter of the pattern is one kind and the other way round."""
    m, pattern = model.load(CONFIGS / f"{name}.json"), EXPECTED[name]["layer_pattern"]
    kinds = [layer.kind for layer in m.layers]
    assert len(kinds) == len(pattern)
    assert len(set(zip(pattern, kinds, strict=True))) == len(set(pattern)) == len(set(kinds))


# Those without an answer in the file, counted by building the classes of transformers 5.18 without memory.
BUILT = {
    "BLOOM-176B": 176247271424, "DeepSeek-V2-Lite": 15706484224, "DeepSeek-V3.2": 671877929216,
    "Falcon-180B": 179522565120, "GPT-2-XL": 1557611200, "Gemma-2-27B": 27227128320, "Gemma-2-2B": 2614341888,
    "Gemma-3-1B": 999885952, "Gemma-4-26B-A4B": 25233141760, "Llama-3.1-405B": 405853388800,
    "Llama-4-Maverick-17B-128E": 400711848960, "MiniMax-M2.5": 228689748992, "Mistral-7B-v0.1": 7241732096,
    "Mixtral-8x22B": 140620634112, "Nemotron-3-Nano-30B-A3B": 31577937344, "Phi-4-mini": 3836021760,
    "Qwen2-0.5B": 494032768, "Qwen2.5-32B": 32763876352, "Qwen3-235B-A22B": 235093634560, "Qwen3-8B": 8190735360,
    "Qwen3-Coder-480B-A35B": 480154875392, "Qwen3.5-35B-A3B": 34660610688, "Qwen3.5-9B": 8953803264,
    "Qwen3.6-27B-NVFP4": 26895998464, "Qwen3.6-35B-A3B-NVFP4": 34660610688, "RedPajama-3B": 2775864320,
    "SmolLM2-360M": 361821120, "gpt-oss-120b": 116829156672,
}


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_all(name):
    m = model.load(CONFIGS / f"{name}.json")
    assert m.parameters == (BUILT[name] if name in BUILT else EXPECTED[name]["params_total"])
    assert m.active <= m.parameters and (m.active < m.parameters) == (m.experts > 0)
    assert sum(m.layer_kinds.values()) == len(m.layers)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_transformers_counts_the_same(name):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    whole = config(name)
    text = dict(whole.get("text_config") or whole)
    for field in ("auto_map", "quantization_config"):
        text.pop(field, None)
    text.setdefault("tie_word_embeddings", whole.get("tie_word_embeddings", text.get("tie_word_embeddings")))
    if text["tie_word_embeddings"] is None:
        del text["tie_word_embeddings"]
    try:
        with torch.device("meta"):
            built = transformers.AutoModelForCausalLM.from_config(CONFIG_MAPPING[text["model_type"]].from_dict(text))
    except Exception as error:                              # a class that this release does not have, or refuses
        pytest.skip(f"transformers cannot build it: {type(error).__name__}")
    built.tie_weights()
    assert model.load(CONFIGS / f"{name}.json").parameters == sum(p.numel() for p in built.parameters())


SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
         "intermediate_size": 96, "vocab_size": 100, "pad_token_id": 0, "n_routed_experts": 8, "num_experts_per_tok": 2,
         "moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 1, "use_qk_norm": True}
FURTHER = ["gemma", "granite", "seed_oss", "ernie4_5", "glm4_moe"]      # families without a configuration here


@pytest.mark.long
@pytest.mark.parametrize("extra", [{}, {"attention_bias": True, "use_bias": True}, {"tie_word_embeddings": True}])
@pytest.mark.parametrize("model_type", FURTHER)
def test_further_families(model_type, extra):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    whole = SMALL | {"model_type": model_type} | extra
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type].from_dict(dict(whole)))
    built.tie_weights()
    assert model.read(whole).parameters == sum(p.numel() for p in built.parameters())


@pytest.mark.parametrize("name", model.shipped())
def test_included_configurations_are_the_tested_ones(name):
    assert model.ship(name) == model.load(CONFIGS / f"{name}.json")


# ---- the traps, one by one


def test_falcon_7b_ignores_num_kv_heads():
    """The file says 71 KV heads; with multi_query and the old architecture there is one."""
    assert config("Falcon-7B")["num_kv_heads"] == 71 and model.read(config("Falcon-7B")).kv_heads == 1
    assert model.read(config("Falcon-40B")).kv_heads == 8


def test_head_dim_is_not_hidden_over_heads():
    assert model.read(config("Qwen3-32B")).head_dim == 128 != 5120 // 64


def test_prediction_layers_and_towers_are_left_out_and_said():
    notes = {n.id for n in model.read(config("Qwen3.5-27B")).notes}
    assert notes == {"model.note.text_only", "model.note.prediction_layers"}


def test_zamba_says_what_its_file_does_not_pin():
    assert [n.id for n in model.read(config("Zamba2-2.7B")).notes] == ["model.note.zamba2"]


def test_a_shared_block_counts_once():
    one = config("Zamba2-2.7B")
    two = one | {"num_mem_blocks": 2}
    D, F = 2560, 10240
    attention, mlp = 4 * 2 * D * 2 * D - 2 * D * D + 2 * D, 3 * D * F + D
    assert model.read(two).parameters - model.read(one).parameters == attention + mlp


def test_memory_holds_all_experts_and_flops_the_chosen_ones():
    """C96: a planner that sized a mixture of experts by its active parameters recommended 122 B for 48 GB."""
    m = model.ship("Qwen3-30B-A3B")
    assert round(2 * m.parameters / 1e9, 1) == 61.1 and round(2 * m.active / 1e9, 1) == 6.7


# ---- what is refused


LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100}


@pytest.mark.parametrize("field", [k for k in LLAMA if k not in ("model_type", "num_key_value_heads")])
def test_a_missing_field_is_named(field):
    with pytest.raises(Refused, match=field) as e:
        model.read({k: v for k, v in LLAMA.items() if k != field})
    assert e.value.message.id == "model.missing_field" and e.value.message.fields["field"] == field


@pytest.mark.parametrize("field", [k for k in LLAMA if k != "model_type"])
@pytest.mark.parametrize("value", [0, -8, 2.5, "32", True, [32], {"a": 1}, float("nan"), float("inf"), 10**40])
def test_a_senseless_value_is_named(field, value):
    with pytest.raises(Refused, match=field):
        model.read(LLAMA | {field: value})


@pytest.mark.parametrize("changes, id", [
    ({"model_type": "lama"}, "model.unknown_type"),
    ({"model_type": None}, "model.no_model_type"),
    ({"model_type": ["llama"]}, "model.unknown_type"),
    ({"num_attention_heads": 5}, "model.not_exact"),
    ({"num_key_value_heads": 3}, "model.kv_heads"),
    ({"tie_word_embeddings": "false"}, "model.field_bool"),
    ({"num_hidden_layers": 10**6}, "model.field_huge"),
])
def test_refusals(changes, id):
    with pytest.raises(Refused) as e:
        model.read(LLAMA | changes)
    assert e.value.message.id == id
    assert all(e.value.say(lang) for lang in languages())


def test_an_unknown_type_suggests_near_ones():
    with pytest.raises(Refused, match="qwen3_moe"):
        model.read(LLAMA | {"model_type": "qwen3moe"})


@pytest.mark.parametrize("name, changes, id", [
    ("Qwen3.5-27B", {"layer_types": ["full_attention"] * 63}, "model.list_length"),
    ("gpt-oss-20b", {"layer_types": ["full_attention"] * 23 + ["circular"]}, "model.unknown_choice"),
    ("Nemotron-H-56B", {"hybrid_override_pattern": "M-" * 58 + "MX"}, "model.unknown_choice"),
    ("Gemma-4-26B-A4B", {"num_kv_shared_layers": 4}, "model.not_described"),
    ("MiMo-V2-Flash", {"hybrid_layer_pattern": 7}, "model.field_other"),
    ("Mixtral-8x7B", {"num_experts_per_tok": 9}, "model.top_k"),
])
def test_families_refuse_what_their_table_does_not_say(name, changes, id):
    whole = config(name)
    if "text_config" in whole:
        whole["text_config"] |= changes
    else:
        whole |= changes
    with pytest.raises(Refused) as e:
        model.read(whole)
    assert e.value.message.id == id


@pytest.mark.parametrize("content, id", [
    (b"", "model.empty"), (b" \n", "model.empty"), (b"\x89PNG\r\n\xff\xfe\x00", "model.not_text"),
    (b'{"model_type": "llama", ', "model.not_json"), (b"[1, 2]", "model.not_an_object"), (b"3", "model.not_an_object"),
    (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "model.too_deep"),
    (b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}", "model.number_too_long"),
    (b"{}", "model.no_model_type"),
])
def test_files_that_are_none(tmp_path, content, id):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(Refused) as e:
        model.load(tmp_path)
    assert e.value.message.id == id


def test_no_such_file_names_what_is_included(tmp_path):
    with pytest.raises(Refused, match=r"Qwen3\.5-27B"):
        model.load(tmp_path / "nothing.json")
    with pytest.raises(Refused):
        model.load("a\0b")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([0, -1, 10**19]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_a_damaged_configuration_is_read_or_refused(data):
    """Whatever stands in the fields: a model or one sentence, never another exception."""
    whole = config(data.draw(st.sampled_from(NAMES)))
    inner = whole.get("text_config", whole)
    for _ in range(data.draw(st.integers(1, 3))):
        field = data.draw(st.sampled_from(sorted(inner)))
        if data.draw(st.booleans()):
            inner[field] = data.draw(ANYTHING)
        else:
            inner.pop(field)
        if not inner:
            break
    try:
        assert model.read(whole).parameters > 0
    except Refused as refused:
        assert refused.say("es") and refused.say("pt") and "\n" not in str(refused)


def test_a_family_of_ten_lines():
    """What CONTRIBUTING shows: a family that is like another, with what differs."""
    import tomllib

    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    table = tomllib.loads(guide.split("```toml")[1].split("```")[0])
    (name,) = table
    m = model.read(LLAMA | {"model_type": name, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                            "num_dense_layers": 1}, table)
    assert m.layer_kinds == {"dense": 1, "moe": 3} and m.experts == 8
    D, d, H, K = 64, 16, 4, 2
    attention = 2 * D * H * d + 2 * D * K * d + 2 * d + D
    assert m.parameters == 2 * 100 * D + D + 4 * attention + (3 * D * 128 + D) + 3 * (8 * 3 * D * 32 + 8 * D + D)
