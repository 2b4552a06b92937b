"""torchtitan: a TOML job configuration. −1 asks for "the ranks that are left" or for a default."""

import tomllib
from functools import cache
from importlib import resources

from paralelo.predict.dialects.reading import Option, Reading
from paralelo.predict.quantity import written
from paralelo.words import Message

SCHEDULES = {"gpipe": "gpipe", "1f1b": "1f1b", "interleaved1f1b": "interleaved", "zbvzerobubble": "zb-v",
             "dualpipev": "dualpipe-v"}
TEXTS = {"schedule_name", "recompute"}
FLAGS = {"gathered_loss", "overlap_tensor"}


@cache
def table() -> dict:
    return tomllib.loads(resources.files(__package__).joinpath("torchtitan.toml").read_text(encoding="utf-8"))


def speaks(config) -> bool:
    return isinstance(config, dict) and any(
        isinstance(config.get(t), dict) and set(config[t]) & set(names) for t, names in table().items())


def read(config: dict) -> Reading:
    out = Reading("torchtitan")
    for section, fields in config.items():
        if not isinstance(fields, dict):
            continue
        for name, value in fields.items():
            path, setting = f"{section}.{name}", table().get(section, {}).get(name)
            if setting is None:
                if section in table():
                    out.options.append(Option(path, written(value), Message("read.other_option", {"option": path})))
                continue
            good = (isinstance(value, str) if setting in TEXTS else isinstance(value, bool) if setting in FLAGS
                    else isinstance(value, int) and not isinstance(value, bool) and (value > 0 or value == -1))
            if good:
                out.settings[setting] = value
            else:
                rule = "not_text" if setting in TEXTS else "not_bool" if setting in FLAGS else "not_whole"
                out.note(path, rule, "breaks", value=written(value))
            out.options.append(Option(path, value if isinstance(value, int | str) else written(value),
                                      Message(f"read.torchtitan.{path}", {"value": value if good else "?"})))
    _translate(out)
    return out


def _translate(out: Reading) -> None:
    """torchtitan's names to the common ones: replicas times shards are the data ranks, a mode is a recomputation."""
    s = out.settings
    for name in [k for k, v in s.items() if v == -1 and k != "shard"]:
        del s[name]
    schedule = s.pop("schedule_name", None)
    if isinstance(schedule, str):
        s["schedule"] = SCHEDULES.get(schedule.lower(), schedule)
        if schedule.lower() not in SCHEDULES:
            out.note("parallelism.pipeline_parallel_schedule", "schedule", value=schedule[:40])
    if "recompute" in s:
        s["recompute"] = s["recompute"] if s["recompute"] in ("full", "selective", "none") else "selective"
    shard = s.pop("shard", -1)
    replicate = s.pop("replicate", 1)
    s["zero"] = 0 if shard == 1 else 3
    s["sequence_parallel"] = s.get("tp", 1) > 1
    if shard != -1:
        s["dp"] = replicate * shard
    elif replicate > 1:
        s["replicas"] = replicate
