"""Both ways with transformers: what one saves the other runs, and the logits are the same."""

import json

import pytest
import torch

from paralelo.predict.layout import Layout
from paralelo.run import tutor
from paralelo.run.checkpoint import (
    from_huggingface,
    load,
    model_state,
    newest,
    open_checkpoint,
    reshard,
    save,
    to_huggingface,
)
from paralelo.run.checkpoint.huggingface import llama_config
from paralelo.words import Refused, languages

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.checkpoint
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]])


def llama(tied=False, **sizes):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied, rms_norm_eps=1e-6, **sizes)
    return transformers.LlamaForCausalLM(config).eval()


def test_the_tutor_runs_in_transformers(tmp_path):
    """Saved as the dense model, cut for tp=2 pp=2, written as theirs: their Llama gives our logits."""
    model = tutor.make(seed=1, D=32, F=48, L=2, H=4, K=2)
    save(tmp_path / "a", model_state(model) | {"config": llama_config(model.shape)}, Layout(), step=0)
    reshard(tmp_path / "a", tmp_path / "b", Layout(tp=2, pp=2), verify=True)
    assert to_huggingface(tmp_path / "b", tmp_path / "hf") == ["model.safetensors"]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    assert theirs.config.tie_word_embeddings and theirs.lm_head.weight.shape[0] == model.shape.V
    with torch.no_grad():
        torch.testing.assert_close(theirs(TOKENS).logits, model(TOKENS), rtol=1e-4, atol=1e-5)
    names = {n for n, _ in theirs.named_parameters()}
    assert len(names) == len(dict(model.named_parameters()))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", ["single", "indexed"])
def test_a_llama_comes_in_and_goes_out(tmp_path, tied, shards):
    """Their files → a checkpoint on four ranks → the tutor on one → their files again, bit by bit."""
    theirs = llama(tied)
    theirs.save_pretrained(tmp_path / "hf", max_shard_size="5GB" if shards == "single" else "20KB")
    assert (tmp_path / "hf" / "model.safetensors.index.json").exists() == (shards == "indexed")
    made = from_huggingface(tmp_path / "hf", tmp_path / "ours", Layout(tp=2, pp=2), step=7)
    assert made.step == 7 and len(made.files) == 4 and made.entries["model.embedding.weight"].where[0] == "first"

    model = tutor.Tutor(tutor.Shape(V=99, D=32, L=3, H=4, K=2, F=48, tied=tied))
    load(tmp_path / "ours", Layout(), model_state(model))
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS), theirs(TOKENS).logits, rtol=1e-4, atol=1e-5)

    names = to_huggingface(tmp_path / "ours", tmp_path / "back", shard_bytes=10**9 if shards == "single" else 20_000)
    assert (len(names) > 1) == (shards == "indexed")
    back = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "back")
    for name, p in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], p), name
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["num_key_value_heads"] == 2 and config["vocab_size"] == 99


def test_fused_rows(tmp_path):
    """C84: [all Q | all K | all V] in one matrix, cut evenly, gave rank 0 only Q. Here Q, K and V are tensors of their
    own, and become one again on the way out."""
    torch.manual_seed(0)
    config = transformers.Phi3Config(vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
                                     num_attention_heads=4, num_key_value_heads=2, pad_token_id=0)
    theirs = transformers.Phi3ForCausalLM(config)
    theirs.save_pretrained(tmp_path / "hf")
    from_huggingface(tmp_path / "hf", tmp_path / "ours", Layout(tp=2))
    fused = theirs.model.layers[0].self_attn.qkv_proj.weight
    q, k, v = fused.split((16, 8, 8))
    for rank in range(2):
        found = load(tmp_path / "ours", Layout(tp=2), rank=rank)
        for name, whole in (("q", q), ("k", k), ("v", v)):
            assert torch.equal(found[f"model.blocks.0.attention.{name}.weight"], whole.chunk(2)[rank])
        assert found["model.blocks.0.mlp.gate.weight"].shape == (12, 16)
    to_huggingface(tmp_path / "ours", tmp_path / "back")
    back = transformers.Phi3ForCausalLM.from_pretrained(tmp_path / "back").state_dict()
    assert all(torch.equal(back[name], p) for name, p in theirs.state_dict().items())


def test_experts_and_unknown_names(tmp_path):
    """Experts in files of their own become one stack, cut over expert ranks; a name in no table stays, whole."""
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    tensors = {f"model.layers.0.mlp.experts.{e}.{x}_proj.weight": torch.randn(3, 4) for e in range(12)
               for x in ("gate", "up")} | {"model.layers.0.mlp.gate.weight": torch.randn(12, 4),
                                           "model.layers.0.odd.thing": torch.randn(2)}
    (tmp_path / "hf").mkdir()
    save_file(tensors, tmp_path / "hf" / "model.safetensors")
    from_huggingface(tmp_path / "hf", tmp_path / "ours", Layout(dp=5, ep=5))
    rows = [load(tmp_path / "ours", Layout(dp=5, ep=5), rank=r)["model.blocks.0.mlp.experts.gate"] for r in range(5)]
    assert [len(r) for r in rows] == [3, 3, 2, 2, 2]
    wanted = [tensors[f"model.layers.0.mlp.experts.{e}.gate_proj.weight"] for e in range(12)]
    assert torch.equal(torch.cat(rows), torch.stack(wanted))
    to_huggingface(tmp_path / "ours", tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == tensors.keys() and all(torch.equal(back[n], t) for n, t in tensors.items())


@pytest.mark.parametrize("change", [{1: None}, {1: torch.zeros(3, 5)}, {1: torch.zeros(3, 4).double()}])
def test_experts_that_do_not_stack_are_refused(tmp_path, change):
    """Where one was missing stood whatever the memory held; one of another type was read as if it had the first's."""
    from safetensors.torch import save_file

    experts = {e: t for e, t in ({e: torch.zeros(3, 4) for e in range(3)} | change).items() if t is not None}
    (tmp_path / "hf").mkdir()
    save_file({f"model.layers.0.mlp.experts.{e}.up_proj.weight": t for e, t in experts.items()},
              tmp_path / "hf" / "model.safetensors")
    with pytest.raises(Refused, match="contradicts itself"):
        from_huggingface(tmp_path / "hf", tmp_path / "ours", Layout())
    assert not list(tmp_path.glob("ours/*"))


@pytest.mark.parametrize("break_it", ["elsewhere", "missing", "cut", "not there", "odd index", "odd file"])
def test_bad_files_are_refused(tmp_path, break_it):
    hf = tmp_path / "hf"
    llama().save_pretrained(hf, max_shard_size="20KB")
    index = json.loads((hf / "model.safetensors.index.json").read_text())
    first = sorted(index["weight_map"])[0]
    file = hf / index["weight_map"][first]
    match break_it:
        case "elsewhere":
            index["weight_map"][first] = "../model.safetensors"
        case "not there":
            index["weight_map"]["ghost"] = index["weight_map"][first]
        case "odd index":
            index["weight_map"] = [1, 2]
        case "odd file":
            index["weight_map"][first] = [1]
        case "missing":
            file.unlink()
        case "cut":
            file.write_bytes(file.read_bytes()[:-7])
    (hf / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Refused) as refused:
        from_huggingface(hf, tmp_path / "ours", Layout())
    assert len({refused.value.say(lang) for lang in languages()}) == len(languages())
    assert not list(tmp_path.glob("ours/*"))


def test_nothing_is_overwritten(tmp_path):
    save(tmp_path / "a", {"model.x": torch.zeros(3)}, Layout(), step=0)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    with pytest.raises(Refused, match="exists"):
        to_huggingface(tmp_path / "a", tmp_path / "full")
    assert open_checkpoint(newest(tmp_path / "a")).entries.keys() == {"model.x"}
