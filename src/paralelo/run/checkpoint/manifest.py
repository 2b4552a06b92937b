"""The manifest: what a checkpoint holds, tensor by tensor, and where each piece of it lies.

    step-00000120/
        manifest.json
        rank-00000.safetensors …         one file for every rank that writes something

    "tensors": {"model.blocks.0.attention.k.weight": {
        "shape": [32, 64], "dtype": "F32",              of the whole, logical tensor: no padding, no fused parts
        "cuts": {"tp": {"dim": 0, "units": 2}},         which axis cuts which dim; units (heads) are never cut
        "where": [0],                                   layers or ends it belongs to; none: every stage has it
        "pieces": [{"box": [[0, 16], [0, 64]], "ranks": [0, 2], "crc32": "5b1e0ab6",
                    "file": "rank-00000.safetensors",
                    "key": "model.blocks.0.attention.k.weight[0:16, 0:64]"}, …]}}

besides "layout", "depth", "step", "values" (what is no tensor), "files" (sizes, CRC-32 of headers), "format",
"version" and a "checksum" of all the rest. A checkpoint is a folder with a manifest; a folder of checkpoints holds them
by step, and the newest is the one with the highest step whose manifest and files are whole.

Everything in a manifest is checked before a byte of a tensor is read: boxes lie inside, do not overlap and leave
nothing out; files are regular ones of this folder and of the size that was written; each key has the type and shape
that its box says.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path

from paralelo.predict.checkpoint import Box, Cut, Depth, problems
from paralelo.predict.checkpoint.cuts import RULES
from paralelo.predict.layout import Layout
from paralelo.predict.quantity import named, shown, written
from paralelo.run.checkpoint import files
from paralelo.words import Refused

FORMAT, VERSION, NAME = "paralelo-checkpoint", 1, "manifest.json"
STEP = re.compile(r"step-(\d{8,})")
AXES = ("dp", "tp", "cp", "ep", "etp", "edp")


@dataclass(frozen=True)
class Stored:
    """A piece of a tensor on disk: `size` bytes of a file from `start` on, in the order of the box's elements."""

    box: Box
    file: str
    start: int
    size: int
    crc32: str | None = None
    key: str = ""
    ranks: tuple[int, ...] = ()


@dataclass
class Entry:
    """One logical tensor: what it is, how it would be cut, and its pieces."""

    shape: tuple[int, ...]
    dtype: str
    cuts: dict[str, Cut] = field(default_factory=dict)
    where: tuple = ()
    pieces: list[Stored] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return prod(self.shape) * files.ITEM[self.dtype]


@dataclass
class Checkpoint:
    """An opened checkpoint. Its manifest was checked, its tensors' bytes were not yet (see `Reader.verify`)."""

    folder: Path
    layout: Layout
    depth: Depth | None
    step: int
    values: dict
    entries: dict[str, Entry]
    files: dict[str, dict]

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries.values())


def step_name(step: int) -> str:
    return f"step-{step:08}"


def key_of(name: str, box: Box, shape) -> str:
    """How a piece is called in its file: the tensor's name, and its ranges where it is not the whole."""
    if all(a == 0 and b == n for (a, b), n in zip(box, shape, strict=True)):
        return name
    return f"{name}[{', '.join(f'{a}:{b}' for a, b in box)}]"


# ---- to JSON

def to_json(checkpoint: Checkpoint) -> dict:
    """The manifest as it is written."""
    content = {
        "format": FORMAT, "version": VERSION, "step": checkpoint.step, "layout": asdict(checkpoint.layout),
        "depth": asdict(checkpoint.depth) if checkpoint.depth else None, "values": checkpoint.values,
        "files": dict(sorted(checkpoint.files.items())),
        "tensors": {name: _entry_json(entry) for name, entry in sorted(checkpoint.entries.items())},
    }
    return content | {"checksum": checksum(content)}


def _entry_json(entry: Entry) -> dict:
    cuts = {axis: {k: v for k, v in asdict(cut).items() if v != getattr(Cut(0), k) or k == "dim"}
            for axis, cut in entry.cuts.items()}
    return {"shape": entry.shape, "dtype": entry.dtype, "cuts": cuts, "where": entry.where, "pieces": [
        {"box": p.box, "ranks": p.ranks, "file": p.file, "key": p.key, "crc32": p.crc32} for p in entry.pieces]}


def checksum(content: dict) -> str:
    """SHA-256 of the manifest without its checksum, in one spelling."""
    rest = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# ---- from JSON, checked

def newest(folder) -> Path:
    """Where the newest checkpoint of a folder is: see `open_newest`."""
    return open_newest(folder).folder


def open_newest(folder) -> Checkpoint:
    """The checkpoint in a folder: itself, or of those in it the one with the highest step that is whole."""
    folder, first = Path(folder), None
    with files.in_words(folder):
        if not folder.is_dir():
            raise Refused("checkpoint_run.no_checkpoint", folder=str(folder))
        if (folder / NAME).exists():
            return open_checkpoint(folder)
        found = sorted(((int(m[1]), p) for p in folder.iterdir() if (m := STEP.fullmatch(p.name))), reverse=True)
        for _, path in found:
            try:
                return open_checkpoint(path)
            except Refused as refused:
                first = first or refused
    raise first or Refused("checkpoint_run.no_checkpoint", folder=str(folder))


def steps(folder) -> list[int]:
    """The steps of which a folder has a checkpoint, whole or not, rising."""
    folder = Path(folder)
    return sorted(int(m[1]) for p in folder.iterdir() if (m := STEP.fullmatch(p.name))) if folder.is_dir() else []


def open_checkpoint(folder) -> Checkpoint:
    """Reads and checks the manifest of one checkpoint, and the headers of all its files."""
    folder = Path(folder)
    path = str(folder / NAME)
    with files.in_words(folder):
        content = files.read_json(folder, NAME, rendered=True)
        try:
            found = _parse(folder, content)
            _check_files(found)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, Refused):
                raise
            raise Refused("checkpoint_run.manifest", file=path, what=named(str(error))) from None
    for name, entry in found.entries.items():
        wrong = problems(name, {"shape": entry.shape, "pieces": [{"box": p.box} for p in entry.pieces]})
        if wrong:
            raise Refused("checkpoint_run.lies", file=path, what=wrong[0])
    return found


def _parse(folder, content) -> Checkpoint:
    path = str(folder / NAME)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise Refused("checkpoint_run.format", file=path)
    if content.get("version") != VERSION:
        raise Refused("checkpoint_run.version", file=path, version=written(content.get("version")), ours=VERSION)
    if content.get("checksum") != checksum(content):
        raise Refused("checkpoint_run.checksum", file=path)
    try:
        layout = Layout(**content["layout"])
    except Refused as refused:
        raise ValueError(str(refused)) from None
    depth = Depth(**content["depth"]) if content["depth"] else None
    if depth and not (_whole(depth.layers) and _whole(depth.chunks) and depth.placement in ("loop", "v")):
        raise ValueError("depth")
    entries = {}
    for name, given in content["tensors"].items():
        cuts = {axis: Cut(**(cut | {"parts": tuple(cut.get("parts", ()))})) for axis, cut in given["cuts"].items()}
        shape = tuple(_whole(n) for n in given["shape"])
        if any(axis not in AXES or cut.rule not in RULES or not 0 <= cut.dim < len(shape)
               for axis, cut in cuts.items()) or given["dtype"] not in files.ITEM:
            raise ValueError(name)
        pieces = [Stored(tuple((_whole(a), _whole(b)) for a, b in p["box"]), p["file"], 0, 0, p["crc32"], p["key"],
                         tuple(p["ranks"])) for p in given["pieces"]]
        if any(type(r) is not int or not 0 <= r < layout.world_size for p in pieces for r in p.ranks):
            raise ValueError(name)
        entries[name] = Entry(shape, given["dtype"], cuts, tuple(given["where"]), pieces)
    if type(content["step"]) is not int or not isinstance(content["values"], dict):
        raise ValueError("step")
    return Checkpoint(folder, layout, depth, content["step"], content["values"], entries, dict(content["files"]))


def _whole(n) -> int:
    if type(n) is not int or n < 0:
        raise ValueError(shown(n))
    return n


def _check_files(found: Checkpoint) -> None:
    """Every piece lies in a file of the list, under its key, with its type and shape; files have their sizes."""
    headers = {}
    for name, wrote in found.files.items():
        headers[name], actual, header = files.read_header(found.folder, name)
        if actual != wrote["bytes"]:
            raise Refused("checkpoint_run.file_size", file=str(found.folder / name), size=actual,
                          expected=written(wrote["bytes"]))
        if header != wrote["header"]:
            raise Refused("checkpoint_run.header", file=str(found.folder / name))
    for name, entry in found.entries.items():
        for i, piece in enumerate(entry.pieces):
            file = str(found.folder / NAME)
            if piece.file not in headers:
                raise Refused("checkpoint_run.lies", file=file, what=f"{name}: {named(piece.file)}")
            dtype, shape, start, size = headers[piece.file].get(piece.key, ("", (), 0, 0))
            of_box = piece.key == key_of(name, piece.box, entry.shape)
            if dtype != entry.dtype or shape != tuple(b - a for a, b in piece.box) or not of_box:
                file = str(found.folder / piece.file)
                raise Refused("checkpoint_run.piece", file=file, name=name, box=piece.box, key=named(piece.key))
            entry.pieces[i] = Stored(piece.box, piece.file, start, size, piece.crc32, piece.key, piece.ranks)
