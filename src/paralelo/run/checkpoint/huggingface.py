"""From and to the safetensors of transformers: one file, or several with an index.

    from_huggingface(source, target, Layout(tp=2))       their files → a checkpoint, cut for a layout
    to_huggingface(source, target)                       a checkpoint of any layout → their files and config.json

Names of the Llama family (Llama, Mistral, Qwen2, Qwen3; fused ones as in Phi-3; experts as in Qwen-MoE) become those of
the tutor; any other name is kept, whole. Nothing is converted: a tensor of theirs is a logical tensor here, a row range
of one (fused q, k, v), or one of the stacked experts, and the bytes are moved as in `resharding`.

Padding never leaves: a vocabulary has as many rows there as the unsplit model. A tied head is left out, as theirs is.
"""

import json
import re
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np

from paralelo.predict.checkpoint import Cut, Depth, problems
from paralelo.predict.layout import Layout
from paralelo.predict.quantity import shown, whole
from paralelo.run.checkpoint import files
from paralelo.run.checkpoint.manifest import Checkpoint, Entry, Stored, open_checkpoint, open_newest, step_name
from paralelo.run.checkpoint.reader import WORD, Reader
from paralelo.run.checkpoint.resharding import assign, flat, write
from paralelo.words import Refused

__all__ = ["from_huggingface", "is_huggingface", "llama_config", "to_huggingface"]

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
NAMES = (                                                   # theirs, ours; {i} a layer, {e} an expert
    ("model.embed_tokens.weight", "embedding.weight"),
    ("model.norm.weight", "head.norm.weight"),
    ("lm_head.weight", "head.out.weight"),
    ("model.layers.{i}.input_layernorm.weight", "blocks.{i}.norm1.weight"),
    ("model.layers.{i}.post_attention_layernorm.weight", "blocks.{i}.norm2.weight"),
    *((f"model.layers.{{i}}.self_attn.{x}_proj.{w}", f"blocks.{{i}}.attention.{x}.{w}")
      for x in "qkvo" for w in ("weight", "bias")),
    *((f"model.layers.{{i}}.self_attn.{x}_norm.weight", f"blocks.{{i}}.attention.{x}_norm.weight") for x in "qk"),
    *((f"model.layers.{{i}}.mlp.{x}_proj.{w}", f"blocks.{{i}}.mlp.{x}.{w}")
      for x in ("gate", "up", "down") for w in ("weight", "bias")),
    ("model.layers.{i}.mlp.gate.weight", "blocks.{i}.mlp.router.weight"),
    *((f"model.layers.{{i}}.mlp.experts.{{e}}.{x}_proj.weight", f"blocks.{{i}}.mlp.experts.{x}[{{e}}]")
      for x in ("gate", "up", "down")),
    *((f"model.layers.{{i}}.self_attn.qkv_proj.{w}", f"blocks.{{i}}.attention.(q,k,v).{w}")
      for w in ("weight", "bias")),
    *((f"model.layers.{{i}}.mlp.gate_up_proj.{w}", f"blocks.{{i}}.mlp.(gate,up).{w}") for w in ("weight", "bias")),
)
PATTERNS = [(re.compile(re.escape(a).replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\{e\}", r"(?P<e>\d+)")), b)
            for a, b in NAMES]


def is_huggingface(folder) -> bool:
    """Whether a folder looks like theirs."""
    folder = Path(folder)
    return (folder / SINGLE).is_file() or (folder / INDEX).is_file()


def llama_config(shape) -> dict:
    """The config.json under which transformers runs a tutor of this `Shape`."""
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": shape.V, "hidden_size": shape.D,
            "num_hidden_layers": shape.L, "num_attention_heads": shape.H, "num_key_value_heads": shape.K,
            "head_dim": shape.D // shape.H, "intermediate_size": shape.F, "max_position_embeddings": shape.positions,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": shape.tied, "hidden_act": "silu",
            "attention_bias": False, "mlp_bias": False}


# ---- theirs to ours

def from_huggingface(source, target, layout: Layout, *, step: int = 0, chunks: int = 1, placement: str = "loop",
                     progress: Callable[[int, int], None] | None = None) -> Checkpoint:
    """Their single or indexed files as a checkpoint for a layout; `values["config"]` keeps config.json."""
    old = as_checkpoint(Path(source), step)
    if old.depth:
        old.depth = Depth(old.depth.layers, chunks, placement)
    final = files.free(Path(target) / step_name(whole("step", step, 0)))
    done = 0

    def after(size):
        nonlocal done
        done += size
        if progress:
            progress(done, old.bytes)

    with files.in_words(old.folder), Reader(old.folder, links=True) as reader:
        write(old, reader, assign(old, layout, old.depth), final, after)
    return open_checkpoint(final)


def as_checkpoint(folder: Path, step: int = 0) -> Checkpoint:
    """Their files seen as a checkpoint on one rank: every tensor's pieces are ranges of them."""
    with files.in_words(folder):
        config = files.read_json(folder, "config.json", links=True) if (folder / "config.json").exists() else {}
        found = stored(folder)
    if not isinstance(config, dict):
        raise Refused("checkpoint_run.not_json", file=str(folder / "config.json"))
    config = config.get("text_config", config)
    tied = bool(config.get("tie_word_embeddings"))
    experts = {}
    for theirs in found:
        ours, at = translate(theirs)
        if "[" in ours:
            ours = ours.partition("[")[0]
            experts[ours] = max(experts.get(ours, 0), int(at["e"]) + 1)
    entries: dict[str, Entry] = {}
    for theirs, (file, dtype, shape, start, _) in sorted(found.items()):
        ours, at = translate(theirs)
        if ours == "head.out.weight" and tied and "model.embed_tokens.weight" in found:
            continue
        for name, rows, box, of in logical(ours, at, shape, config, experts):
            row = prod(shape[1:]) * files.ITEM[dtype]
            size = prod(b - a for a, b in box) * files.ITEM[dtype]
            entry = entries.setdefault(f"model.{name}", Entry(of, dtype, cuts_of(name, of, config), where(name, tied)))
            if (entry.dtype, entry.shape) != (dtype, of):   # one expert of a stack unlike the others
                raise Refused("checkpoint_run.lies", file=str(folder / file), what=f"{theirs}: {dtype}, {shape}")
            entry.pieces.append(Stored(box, file, start + rows * row, size, None, theirs, (0,)))
    for name, entry in entries.items():                     # an expert that is missing
        wrong = problems(name, {"shape": entry.shape, "pieces": [{"box": p.box} for p in entry.pieces]})
        if wrong:
            raise Refused("checkpoint_run.lies", file=str(folder), what=wrong[0])
    layers = [p for e in entries.values() for p in e.where if isinstance(p, int)]
    depth = Depth(max(layers) + 1) if layers else None
    fused = sorted({b for a, b in (("qkv_proj", "qkv"), ("gate_up_proj", "gate_up")) if any(a in n for n in found)})
    values = {"config": config} | ({"fused": fused} if fused else {})
    return Checkpoint(folder, Layout(), depth, step, values, entries, {})


def stored(folder: Path) -> dict[str, tuple]:
    """{their name: (file, dtype, shape, first byte, bytes)}, from the index or the single file."""
    if (folder / INDEX).exists():
        index = files.read_json(folder, INDEX, links=True)
        try:
            names = {str(k): v if isinstance(v, str) else shown(v) for k, v in index["weight_map"].items()}
        except (KeyError, TypeError, AttributeError):
            raise Refused("checkpoint_run.not_json", file=str(folder / INDEX)) from None
    else:
        names = None
    out, headers = {}, {}
    for file in sorted(set(names.values())) if names is not None else [SINGLE]:
        headers[file], *_ = files.read_header(folder, file, links=True)
    for name, file in names.items() if names is not None else ((n, SINGLE) for n in headers[SINGLE]):
        if name not in headers[file]:
            raise Refused("checkpoint_run.not_in_file", file=str(folder / file), name=name)
        out[name] = (file, *headers[file][name])
    return out


def translate(theirs: str) -> tuple[str, dict]:
    """Our name for one of theirs, and the numbers in it; their own where the table has none."""
    for pattern, ours in PATTERNS:
        m = pattern.fullmatch(theirs)
        if m:
            return ours.format(**m.groupdict()), m.groupdict()
    return theirs, {}


def logical(ours: str, at: dict, shape: tuple, config: dict, experts: dict):
    """(name, first row in the stored tensor, box, whole shape) of every logical tensor that a stored one is part of."""
    if "[" in ours:                                         # one expert of a stack
        name, e = ours.partition("[")[0], int(at["e"])
        yield name, 0, ((e, e + 1), *((0, n) for n in shape)), (experts[name], *shape)
    elif "(" in ours:                                       # fused rows
        head, _, rest = ours.partition("(")
        inner, _, tail = rest.partition(")")
        names, row = inner.split(","), 0
        for part, rows in zip(names, rows_of(names, shape[0], config), strict=True):
            of = (rows, *shape[1:])
            yield f"{head}{part}{tail}", row, tuple((0, n) for n in of), of
            row += rows
    else:
        yield ours, 0, tuple((0, n) for n in shape), shape


def rows_of(names: list[str], total: int, config: dict) -> list[int]:
    """How many rows each part of a fused matrix has: q has H heads, k and v have K each."""
    weights = {"q": config.get("num_attention_heads", 1), "k": heads_kv(config), "v": heads_kv(config)}
    shares = [weights.get(name, 1) for name in names]
    if total % sum(shares):
        raise Refused("checkpoint_run.fused_rows", rows=total, parts=shares)
    return [total // sum(shares) * share for share in shares]


def heads_kv(config: dict) -> int:
    return config.get("num_key_value_heads") or config.get("num_attention_heads", 1)


def cuts_of(name: str, shape: tuple, config: dict) -> dict[str, Cut]:
    """How a logical tensor would be cut, by its name."""
    H, K = config.get("num_attention_heads", 0), heads_kv(config) if "num_attention_heads" in config else 0
    part = name.split(".", 2)[2] if name.startswith("blocks.") else name
    if part in ("embedding.weight", "head.out.weight"):
        return {"tp": Cut(0, rule="pad")}
    if m := re.fullmatch(r"attention\.([qkv])\.(?:weight|bias)", part):
        return {"tp": Cut(0, units=H if m[1] == "q" else K)}
    if re.fullmatch(r"mlp\.(?:gate|up)\.(?:weight|bias)", part):
        return {"tp": Cut(0)}
    if m := re.fullmatch(r"mlp\.experts\.(gate|up|down)", part):
        return {"ep": Cut(0, rule="shares"), "etp": Cut(2 if m[1] == "down" else 1)}
    if part in ("attention.o.weight", "mlp.down.weight"):
        return {"tp": Cut(1, units=H if part.startswith("attention") else 0)}
    if part in ("attention.q_norm.weight", "attention.k_norm.weight"):
        heads = H if part[10] == "q" else K                 # over one head: whole; over all heads: cut with them
        return {"tp": Cut(0, units=heads)} if heads > 1 and shape[0] > config.get("head_dim", 0) > 0 else {}
    return {}


def where(name: str, tied: bool) -> tuple:
    if m := re.search(r"(?:^|\.)(?:blocks|layers|h)\.(\d+)\.", name):
        return (int(m[1]),)
    if name.startswith("embedding."):
        return ("first", "last") if tied else ("first",)
    return ("last",) if name.startswith("head.") else ()


# ---- ours to theirs

def to_huggingface(source, target, *, config: dict | None = None, shard_bytes: int = 5_000_000_000,
                   progress: Callable[[int, int], None] | None = None) -> list[str]:
    """The parameters of a checkpoint as their files in `target`, which must not exist or be empty; the files' names.

    config        what config.json says; that in the checkpoint where not given (none is written if there is none)
    shard_bytes   the size above which another file begins
    """
    old, target = open_newest(source), Path(target)
    config = config or old.values.get("config")
    wanted = theirs_of(old, old.values.get("fused", ()))
    total, done = sum(prod(s) * files.ITEM[d] for d, s, _ in wanted.values()), 0
    shards: list[list] = [[]]
    room = whole("shard_bytes", shard_bytes)
    for key, (dtype, shape, _) in sorted(wanted.items()):
        size = prod(shape) * files.ITEM[dtype]
        if size > room and shards[-1]:
            shards.append([])
            room = shard_bytes
        shards[-1].append((key, dtype, shape))
        room -= size
    n = len(shards)
    names = [SINGLE] if n == 1 else [f"model-{i + 1:05}-of-{n:05}.safetensors" for i in range(n)]

    def after(size):
        nonlocal done
        done += size
        if progress:
            progress(done, total)

    with files.in_words(target), Reader(old.folder) as reader:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise Refused("checkpoint_run.exists", folder=str(target))
        reader.verify(p for name, e in sorted(old.entries.items()) if name.startswith("model.") for p in e.pieces)
        made = files.begin(target.absolute().parent, target.absolute().name)
        try:
            for name, tensors in zip(names, shards, strict=True):
                files.write_file(made / name, files.aligned(tensors),
                                 lambda key: flat(joined(old, reader, *wanted[key])), {"format": "pt"}, after)
            if n > 1:
                where_is = {key: name for name, tensors in zip(names, shards, strict=True) for key, _, _ in tensors}
                files.write_json(made / INDEX, {"metadata": {"total_size": total},
                                                "weight_map": dict(sorted(where_is.items()))})
            if config:
                dtypes = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
                main = max(wanted.values(), key=lambda w: prod(w[1]))[0]
                text = json.dumps(config | {"dtype": dtypes.get(main, "float32")}, indent=2) + "\n"
                (made / "config.json").write_text(text, encoding="utf-8")
            files.publish(made, target.absolute())
        except BaseException:
            files.discard(made)
            raise
    return names


def theirs_of(old: Checkpoint, fused) -> dict[str, tuple]:
    """{their name: (dtype, shape, [(our name, box), …] laid end to end along dim 0)}."""
    ours = {name.removeprefix("model."): entry for name, entry in old.entries.items() if name.startswith("model.")}
    out, taken = {}, set()
    for theirs, pattern in sorted(NAMES, key=lambda n: "(" not in n[1]):          # fused ones first
        parts = re.search(r"\((.*)\)", pattern)
        if parts and parts[1].replace(",", "_" if "gate" in parts[1] else "") not in fused:
            continue
        names = [pattern.replace(parts[0], p) for p in parts[1].split(",")] if parts else [pattern.partition("[")[0]]
        first = re.compile(re.escape(names[0]).replace(r"\{i\}", r"(?P<i>\d+)"))
        for name, entry in ours.items():
            m = first.fullmatch(name)
            if not m or name in taken:
                continue
            of = {n.format(**m.groupdict()): ours[n.format(**m.groupdict())] for n in names}
            taken |= of.keys()
            if "[" in pattern:
                for e in range(entry.shape[0]):
                    box = ((e, e + 1), *((0, n) for n in entry.shape[1:]))
                    out[theirs.format(**m.groupdict(), e=e)] = entry.dtype, entry.shape[1:], [(f"model.{name}", box)]
            else:
                shape = (sum(e.shape[0] for e in of.values()), *entry.shape[1:])
                boxes = [(f"model.{n}", tuple((0, d) for d in e.shape)) for n, e in of.items()]
                out[theirs.format(**m.groupdict())] = entry.dtype, shape, boxes
    for name, entry in ours.items():
        if name not in taken:
            out[name] = entry.dtype, entry.shape, [(f"model.{name}", tuple((0, d) for d in entry.shape))]
    return out


def joined(old: Checkpoint, reader: Reader, dtype: str, shape: tuple, parts: list) -> np.ndarray:
    """One tensor of theirs, its parts laid end to end."""
    out, at = np.empty(prod(shape), WORD[files.ITEM[dtype]]), 0
    for name, box in parts:
        size = [b - a for a, b in box]
        reader.read(old.entries[name], box, out[at:at + prod(size)].reshape(size))
        at += prod(size)
    return out
