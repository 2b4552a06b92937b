"""From a `config.json` to a Model: the family is looked up, its formulas evaluated, everything checked."""

import difflib
import json
import tomllib
from dataclasses import fields as fields_of
from functools import cache
from importlib import resources
from pathlib import Path

from paralelo.predict.model.attention import Attention, LatentAttention
from paralelo.predict.model.blocks import BLOCKS
from paralelo.predict.model.formula import Formulas
from paralelo.predict.model.shape import Layer, Model
from paralelo.predict.model.tensors import Block
from paralelo.predict.quantity import named, written
from paralelo.words import Message, Refused

MOST_BYTES = 16 * 2**20                                     # a configuration is some kilobytes
MOST_LAYERS = 10_000
MOST_SIZE = 10**7                                           # of a dimension; a vocabulary may have 10⁹


@cache
def families() -> dict[str, dict]:
    """The family table, `like` resolved: model_type → its entries."""
    table = tomllib.loads(resources.files(__package__).joinpath("families.toml").read_text(encoding="utf-8"))
    table.pop("aliases")
    return {name: resolve(name, table) for name in table}


@cache
def aliases() -> dict[str, str]:
    return tomllib.loads(resources.files(__package__).joinpath("families.toml").read_text(encoding="utf-8"))["aliases"]


def resolve(name: str, table: dict) -> dict:
    """A family with everything that it takes over from the one it is like."""
    entry = dict(table[name])
    base = resolve(entry.pop("like"), table) if "like" in entry else {}
    for key, value in entry.items():
        base[key] = base.get(key, {}) | value if isinstance(value, dict) else value
    return base


def read(config: dict, table: dict | None = None) -> Model:
    """The model that a configuration describes; `table` holds families of your own beside those that are known.

    >>> model = read({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    ...               "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100})
    >>> model.parameters, model.kv_heads, model.layer_kinds
    (86848, 2, {'dense': 2})

    Raises Refused, naming the field that is missing or has no sense, or the `model_type` that is not known.
    """
    if not isinstance(config, dict):
        raise Refused("model.not_an_object", value=written(config))
    known = families() | {n: resolve(n, families() | table) for n in table or {}}
    fields, outer = config, config.get("model_type")
    for name in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(name), dict) and config[name]:
            above = {k: config[k] for k in ("tie_word_embeddings", "quantization_config") if k in config}
            fields = above | {k: v for k, v in config[name].items() if v is not None}
            break
    model_type = fields.get("model_type", outer)
    if model_type is None:
        raise Refused("model.no_model_type")
    model_type = aliases().get(model_type, model_type) if isinstance(model_type, str) else model_type
    if not isinstance(model_type, str) or model_type not in known:
        near = difflib.get_close_matches(model_type, known, 3, 0.5) if isinstance(model_type, str) else []
        called = named(model_type) if isinstance(model_type, str) else written(model_type)
        raise Refused("model.unknown_type", model_type=called, near=near or sorted(known)[:5], count=len(known))
    return _build(model_type, known[model_type], fields, nested=fields is not config)


def _build(model_type: str, family: dict, fields: dict, nested: bool) -> Model:
    formulas = Formulas(model_type, fields, family.get("where"))

    def size(formula, least=1, most=MOST_SIZE, i=None):
        value = formulas(formula, i)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise formulas.blame("model.field_whole" if least else "model.field_count")
        if value > most:
            raise formulas.blame("model.field_huge")
        return value

    def yes(formula, i=None):
        value = formulas(formula, i)
        if not isinstance(value, bool):
            raise formulas.blame("model.field_bool")
        return value

    hidden, vocab = size(family["hidden"]), size(family["vocab"], most=10**9)
    count = formulas.layers = size(family["layers"], most=MOST_LAYERS)
    for field, condition in family.get("requires", {}).items():
        for i in range(count if formulas.about_layer(condition) else 1):
            if not formulas(condition, i):
                value = written(fields.get(field))
                raise Refused("model.not_described", field=field, value=value, model_type=model_type)

    built: dict = {}

    def block(name: str, i: int) -> Block:
        entry = dict(family[name])
        kind = BLOCKS[entry.pop("block")]
        values = {}
        for f in fields_of(kind):
            if f.name not in entry:
                continue
            formula = entry.pop(f.name)
            values[f.name] = (
                yes(formula, i) if f.type in (bool, "bool")
                else size(formula, 0 if f.default == 0 or f.name == "norms" else 1, i=i) if f.type in (int, "int")
                else formulas(formula, i))
        assert not entry, f"{model_type}.{name}: {entry}"
        made = kind(**values)
        _check(made, model_type)
        return built.setdefault(made, made)

    layers = []
    for i in range(count):
        names = formulas(family["blocks"], i)
        layer = Layer(formulas(family["kind"], i), tuple(block(n, i) for n in names))
        layers.append(built.setdefault(layer, layer))

    return Model(
        model_type=model_type, hidden=hidden, vocab=vocab, tied=yes(family["tied"]), layers=tuple(layers),
        context=size(family["context"], 0, 10**12), positions=size(family.get("positions", 0), 0, 10**9),
        embedding_norms=family.get("embedding_norms", 0), final_norm_bias=family.get("final_norm_bias", False),
        quantisation=_quantisation(fields), notes=_notes(family, fields, nested))


def _check(block: Block, model_type: str) -> None:
    """What no formula says: query heads share KV heads evenly, a token chooses among the experts that there are."""
    if isinstance(block, Attention) and block.heads % block.kv_heads:
        raise Refused("model.kv_heads", heads=block.heads, kv_heads=block.kv_heads)
    if isinstance(block, LatentAttention) and block.index_heads and not block.q_rank:
        raise Refused("model.missing_field", field="q_lora_rank", model_type=model_type)
    if block.kind == "moe" and block.top_k > block.experts:
        raise Refused("model.top_k", top_k=block.top_k, experts=block.experts)


def _quantisation(fields: dict) -> int:
    """The side of the blocks that share a scale, 0 where weights are not quantised by blocks."""
    about = fields.get("quantization_config")
    sides = about.get("weight_block_size") if isinstance(about, dict) else None
    if isinstance(sides, list) and sides and all(isinstance(s, int) and 0 < s < MOST_SIZE for s in sides):
        return max(sides)
    method = about.get("quant_method") if isinstance(about, dict) else None
    return 32 if method == "mxfp4" else 0


def _notes(family: dict, fields: dict, nested: bool) -> tuple[Message, ...]:
    """What the numbers leave out, or cannot be sure of."""
    out = [Message("model.note.text_only")] if nested else []
    for name in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"):
        if isinstance(fields.get(name), int) and not isinstance(fields[name], bool) and 0 < fields[name] < 1000:
            out.append(Message("model.note.prediction_layers", {"count": fields[name]}))
            break
    return tuple(out + ([Message(f"model.note.{family['note']}")] if "note" in family else []))


def parse(text: str | bytes, name: str = "config.json") -> Model:
    """`read` of a configuration's text. `name` is how the refusal calls it."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise Refused("model.not_text", file=name) from None
    if not text.strip():
        raise Refused("model.empty", file=name)
    try:
        config = json.loads(text)
    except RecursionError:
        raise Refused("model.too_deep", file=name) from None
    except json.JSONDecodeError as error:
        raise Refused("model.not_json", file=name, line=error.lineno, column=error.colno) from None
    except ValueError:                                      # a number with thousands of digits
        raise Refused("model.number_too_long", file=name) from None
    return read(config)


def load(path: str | Path) -> Model:
    """The model of a file, of a folder that holds a `config.json`, or of a configuration that the package ships."""
    path = Path(path)
    try:
        if not path.exists() and str(path) in shipped():
            return ship(str(path))
        if path.is_dir():
            path = path / "config.json"
        with path.open("rb") as file:                       # no more than that: some files never end
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise Refused("model.too_large", file=str(path), size=max(len(data), path.stat().st_size), most=MOST_BYTES)
        return parse(data, str(path))
    except (OSError, ValueError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused("model.cannot_read", file=named(str(path), 200), shipped=list(shipped())) from None


@cache
def shipped() -> tuple[str, ...]:
    """The names of the configurations in the package."""
    here = resources.files(__package__).joinpath("configs")
    names = (f.name.removesuffix(".json") for f in here.iterdir() if f.name.endswith(".json"))
    return tuple(sorted(names, key=str.lower))


@cache
def ship(name: str) -> Model:
    """A model that comes with the package: `ship("Qwen3.5-27B")` is the reference giant."""
    if name not in shipped():
        raise Refused("model.cannot_read", file=named(name, 200), shipped=list(shipped()))
    return parse(resources.files(__package__).joinpath("configs", f"{name}.json").read_bytes(), name)
