"""Megatron-LM: a launch script, or its arguments by themselves.

The options are those of `megatron.toml`. World size comes from the launcher (torchrun's nodes and processes per node,
the batch system's header), or from a variable WORLD_SIZE that the script sets.
"""

import re
import tomllib
from functools import cache
from importlib import resources

from paralelo.predict.dialects.reading import Option, Reading
from paralelo.predict.dialects.shell import UNKNOWN, Script
from paralelo.words import Message

LAUNCHER = {"nproc-per-node": "per_node", "gpus-per-node": "per_node", "ntasks-per-node": "per_node",
            "nnodes": "nodes", "nodes": "nodes"}
MOST = 10**12


@cache
def known() -> dict[str, dict]:
    return tomllib.loads(resources.files(__package__).joinpath("megatron.toml").read_text(encoding="utf-8"))


def speaks(text: str) -> bool:
    """Whether a text holds options of Megatron-LM that others do not have."""
    names = {n.replace("_", "-") for n in re.findall(r"--([a-z][a-z0-9_-]*)", text)} & set(known())
    return len(names) >= 2 or any(n.endswith("-model-parallel-size") for n in names)


def read(text: str) -> Reading:
    """Options, settings and what is odd about single options; `check` compares them with one another."""
    script = Script(text)
    out = Reading("megatron")
    commands = [c for c in script.commands if _count(c)]
    bare = [w for c in commands if c[0].startswith("-") for w in c]        # an argument list: a line is an option
    chosen = bare or max(commands, key=_count, default=[])
    if not bare and len(commands) > 1:
        out.note("python", "several_commands", count=len(commands))
    _options(out, chosen)
    _world(out, text, script, chosen)
    for name in script.unknown:
        if any(UNKNOWN in str(o.value) for o in out.options):
            out.note("$" + name, "unknown_variable", variable=name)
    if not script.unknown:
        for option in out.options:
            if UNKNOWN in str(option.value):
                out.note(option.name, "unknown_value")
    return out


def _count(command: list[str]) -> int:
    return sum(w.startswith("--") and _name(w) in known() for w in command)


def _name(word: str) -> str:
    return word.split("=")[0].lstrip("-").replace("_", "-")


def _options(out: Reading, command: list[str]) -> None:
    i = 0
    while i < len(command):
        word, i = command[i], i + 1
        if not word.startswith("--") or len(word) < 3:
            continue
        name, values = _name(word), [word.partition("=")[2]] if "=" in word else []
        while i < len(command) and not command[i].startswith("--"):
            values.append(command[i])
            i += 1
        if name in LAUNCHER:
            out.settings.setdefault(LAUNCHER[name], _whole(values[0]) if values else None)
        elif name in known():
            _known(out, name, values)
        elif name:
            other = Message("read.other_option", {"option": "--" + name})
            out.options.append(Option("--" + name, " ".join(values), other))


def _known(out: Reading, name: str, values: list[str]) -> None:
    about, option = known()[name], "--" + name
    value = about.get("value", True) if about["kind"] == "flag" else values[0] if values else ""
    if about["kind"] == "whole":
        number = _whole(value)
        if not number and UNKNOWN not in value:
            out.note(option, "not_whole", "breaks", value=value[:40])
        value = number or value
    given = out.settings.get(about["setting"])
    if given is not None and given != value and about["setting"] != "zero":
        out.note(option, "twice", "breaks", first=given, second=value)
    if not isinstance(value, str) or about["kind"] != "whole":
        out.settings[about["setting"]] = value
    shown = value if isinstance(value, int | str) and value is not True else ""
    out.options.append(Option(option, value if value is not True else True,
                              Message(f"read.megatron.{name}", {"value": shown if shown != UNKNOWN else "?"})))


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else None


def _world(out: Reading, text: str, script: Script, command: list[str]) -> None:
    """How many processes there are; the header of a batch script counts where the launcher is silent."""
    s = out.settings
    for key, pattern in (("nodes", r"(?:-N|--nodes)[= ]?(\d{1,7})\b"),
                         ("per_node", r"--(?:gpus-per-node|ntasks-per-node|gres=gpu:(?:\w+:)?)[= ]?(\d{1,5})\b")):
        found = re.search(r"^#SBATCH\s+" + pattern, text, re.M)
        if found and s.get(key) is None:
            s[key] = int(found[1])
    launched = any(re.search(r"torchrun|torch\.distributed\.(?:run|launch)", w) for w in command)
    if s.get("per_node") and (s.get("nodes") or launched):
        s["world"] = s["per_node"] * (s.get("nodes") or 1)
    elif _whole((script.values.get("WORLD_SIZE") or [""])[0]):
        s["world"] = int(script.values["WORLD_SIZE"][0])
