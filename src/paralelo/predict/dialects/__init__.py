"""Other tools' configurations, read into one layout: Megatron-LM, DeepSpeed, torchtitan.

    read(text, name) → Reading      .dialect, .layout, .settings, .options (each with a sentence), .findings

    >>> r = read("--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel", gpus=16)
    >>> r.dialect, r.layout.tp, r.layout.pp, r.layout.dp, r.valid
    ('megatron', 4, 2, 2, True)
"""

import json
import tomllib
from pathlib import Path

from paralelo.predict.dialects import deepspeed, megatron, torchtitan
from paralelo.predict.dialects.check import check
from paralelo.predict.dialects.reading import Option, Reading
from paralelo.predict.quantity import named, whole
from paralelo.words import Refused

__all__ = ["Option", "Reading", "load", "read"]
MOST_BYTES = 4 * 2**20


def read(text: str, name: str = "the text", gpus: int | None = None) -> Reading:
    """The configuration in a text, whatever tool it is of. `gpus`: how many there are, where the text does not say."""
    if gpus is not None:
        whole("gpus", gpus, most=2**20)
    if not text.strip():
        raise Refused("read.empty", file=name)
    start = text.lstrip()[:1]
    if start in "{[":
        config = _json(text, name)
        if isinstance(config, list) and config and all(isinstance(w, str) for w in config):
            return check(megatron.read(" ".join(config)), gpus)
        if deepspeed.speaks(config):
            return check(deepspeed.read(config), gpus)
        if isinstance(config, dict) and "model_type" in config:
            raise Refused("read.a_model", file=name)
        if start == "{":
            raise Refused("read.unknown", file=name)
    table = _toml(text)
    if torchtitan.speaks(table):
        return check(torchtitan.read(table), gpus)
    if megatron.speaks(text):
        return check(megatron.read(text), gpus)
    raise Refused("read.unknown", file=name)


def load(path: str | Path, gpus: int | None = None) -> Reading:
    """`read` of a file."""
    name = named(str(path), 200)
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError):
        raise Refused("read.cannot_read", file=name) from None
    if len(data) > MOST_BYTES:
        raise Refused("read.too_large", file=name, most=MOST_BYTES)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refused("read.not_text", file=name) from None
    if "\0" in text:
        raise Refused("read.not_text", file=name)
    return read(text, name, gpus)


def _json(text, name):
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if text.lstrip()[:1] == "[":                        # a TOML table begins like a list
            return None
        raise Refused("read.not_json", file=name, line=error.lineno, column=error.colno) from None
    except (ValueError, RecursionError):
        raise Refused("read.unknown", file=name) from None


def _toml(text):
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return None
