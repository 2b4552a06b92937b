"""DeepSpeed: a JSON configuration. It names no world size; batch sizes may imply the number of data ranks."""

import tomllib
from functools import cache
from importlib import resources

from paralelo.predict.dialects.reading import Option, Reading
from paralelo.predict.quantity import written
from paralelo.words import Message

MARKS = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


@cache
def table() -> dict:
    return tomllib.loads(resources.files(__package__).joinpath("deepspeed.toml").read_text(encoding="utf-8"))


def speaks(config) -> bool:
    return isinstance(config, dict) and any(m in config for m in MARKS)


def read(config: dict) -> Reading:
    out = Reading("deepspeed")
    explained = table()["explained"]["paths"]
    for path, value in sorted(_leaves(config, explained), key=lambda item: _place(item[0], explained)):
        setting, good = table()["settings"].get(path), True
        if value == "auto":
            out.note(path, "auto")
        elif setting in ("bf16", "fp16"):
            good = isinstance(value, bool)
            if not good:
                out.note(path, "not_bool", "breaks", value=written(value))
            elif value:
                out.settings[setting] = True
        elif setting:
            least = 0 if setting == "zero" else 1
            good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= 10**12
            if not good:
                out.note(path, "not_whole" if least else "not_count", "breaks", value=written(value))
            else:
                out.settings[setting] = value
        message = Message(f"read.deepspeed.{path}", {"value": _written(value) if good else "?"})
        if path not in explained:
            message = Message("read.other_option", {"option": path})
        out.options.append(Option(path, written(value) if isinstance(value, dict | list) else value, message))
    _odd(out, config)
    return out


def _written(value):
    """A value as a sentence shows it: JSON's words, whole numbers without a point."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value == value and abs(value) < 1e15 and value == int(value):
        return int(value)
    return value if isinstance(value, int | float | str) else written(value)


def _place(path, explained):
    return (explained.index(path) if path in explained else len(explained)), path


def _leaves(config: dict, explained, before=""):
    """(path, value) of every field, tables opened unless the table itself is explained."""
    for name, value in list(config.items())[:1000]:
        path = f"{before}{name}"
        if isinstance(value, dict) and path not in explained and before.count(".") < 4:
            yield from _leaves(value, explained, path + ".")
        else:
            yield path, value


def _odd(out: Reading, config: dict) -> None:
    """What contradicts itself within the file, batch sizes apart."""
    s = out.settings
    for section in dict.fromkeys(p.partition(".")[0] for p in table()["settings"] if "." in p):
        if section in config and not isinstance(config[section], dict):
            out.note(section, "not_table", "breaks", value=written(config[section]))
    zero = config.get("zero_optimization")
    zero = zero if isinstance(zero, dict) else {}
    stage = s.get("zero", 0)
    if stage > 3:
        out.note("zero_optimization.stage", "zero_stage", "breaks", value=stage)
        s["zero"] = 3
    if s.get("bf16") and s.get("fp16"):
        out.note("fp16.enabled", "both_halves", "breaks")
    for name in zero:
        if name.startswith("stage3_") and stage != 3:
            out.note(f"zero_optimization.{name}", "needs_zero_3", value=stage)
    if stage != 3 and isinstance(zero.get("offload_param"), dict) and zero["offload_param"].get("device") != "none":
        out.note("zero_optimization.offload_param", "offload_param", "breaks", value=stage)
    offload = zero.get("offload_optimizer")
    if stage == 0 and isinstance(offload, dict) and offload.get("device", "none") != "none":
        out.note("zero_optimization.offload_optimizer", "offload_optimizer")
    if stage >= 2 and s.get("pp", 1) > 1:
        out.note("pipeline.stages", "pipeline_and_zero", "breaks", value=stage)
