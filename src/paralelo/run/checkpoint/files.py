"""Files of a checkpoint: safetensors written and read by bytes, folders that appear whole or not at all.

A safetensors file is 8 bytes (the header's length, little endian), a JSON header, and the tensors' bytes end to end:

    {"w": {"dtype": "F32", "shape": [4, 8], "data_offsets": [0, 128]}, ...}

So a piece of a tensor is a range of bytes; nothing in it is code. A folder is written under a name that begins with a
point, made durable (fsync of every file, then of the folder), and renamed: a rename is one step on a file system, so
whoever looks sees either nothing or all of it.

Source: github.com/huggingface/safetensors, format.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import stat
import zlib
from collections.abc import Iterable
from math import prod
from pathlib import Path

from paralelo.predict.quantity import named
from paralelo.words import Refused

ITEM = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
        "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8}
LONGEST_HEADER = 100_000_000
BLOCK = 1 << 22
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


# ---- reading

def open_plain(folder: Path, name: str, links: bool = False) -> int:
    """A descriptor of a regular file inside the folder; what is elsewhere, or a link, is refused by its name.

    `links`: a link may stand in the folder (a cache of downloads has them).
    """
    if not isinstance(name, str) or not PLAIN.fullmatch(name):
        raise Refused("checkpoint_run.name", file=named(name))
    path = folder / name
    try:
        found = os.stat(path) if links else os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise Refused("checkpoint_run.not_a_file", file=str(path))
        return os.open(path, os.O_RDONLY | (0 if links else getattr(os, "O_NOFOLLOW", 0)) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise Refused("checkpoint_run.missing_file", file=str(path)) from None


def read_header(folder: Path, name: str, links: bool = False) -> tuple[dict[str, tuple], int, str]:
    """({key: (dtype, shape, first byte in the file, bytes)}, size of the file, CRC-32 of the header), checked."""
    path = str(folder / name)
    fd = open_plain(folder, name, links)
    try:
        size = os.fstat(fd).st_size
        length = int.from_bytes(os.pread(fd, 8, 0), "little")
        if size < 8 or not 2 <= length <= min(LONGEST_HEADER, size - 8):
            raise Refused("checkpoint_run.header", file=path)
        text = os.pread(fd, length, 8)
    finally:
        os.close(fd)
    try:
        header = json.loads(text)
        found, spans = {}, []
        for key, given in header.items():
            if key == "__metadata__":
                continue
            shape, (start, stop) = tuple(given["shape"]), given["data_offsets"]
            if not all(type(n) is int and n >= 0 for n in (*shape, start, stop)):
                raise ValueError(key)
            if stop - start != prod(shape) * ITEM[given["dtype"]]:
                raise ValueError(key)
            found[key] = given["dtype"], shape, 8 + length + start, stop - start
            spans.append((start, stop))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Refused("checkpoint_run.header", file=path) from None
    at = 0
    for start, stop in sorted(spans):
        if start != at:
            raise Refused("checkpoint_run.header", file=path)
        at = stop
    if size != 8 + length + at:
        raise Refused("checkpoint_run.file_size", file=path, size=size, expected=8 + length + at)
    return found, size, f"{zlib.crc32(text):08x}"


def checksum_of(fd: int, start: int, size: int) -> str:
    """CRC-32 of a range of bytes, read a block at a time."""
    crc, at, block = 0, start, bytearray(min(BLOCK, max(size, 1)))
    view = memoryview(block)
    while at < start + size:
        got = os.preadv(fd, [view[:min(len(block), start + size - at)]], at)
        if not got:
            break
        crc, at = zlib.crc32(view[:got], crc), at + got
    return f"{crc:08x}"


def read_json(folder: Path, name: str, links: bool = False, rendered: bool = False):
    """A JSON file of the folder; Refused by name where it is not one, or (`rendered`) not as `render` wrote it."""
    fd = open_plain(folder, name, links)
    with os.fdopen(fd, "rb") as file:
        text = file.read()
    try:
        content = json.loads(text.decode("utf-8"))
        sound = not rendered or render(content) == text
    except (ValueError, RecursionError):
        raise Refused("checkpoint_run.not_json", file=str(folder / name)) from None
    if not sound:
        raise Refused("checkpoint_run.checksum", file=str(folder / name))
    return content


# ---- writing

def header_of(tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: dict | None = None):
    """The bytes before the data and {key: (first byte in the data, bytes)} of (key, dtype, shape), in that order."""
    header, places, at = {"__metadata__": metadata} if metadata else {}, {}, 0
    for key, dtype, shape in tensors:
        size = prod(shape) * ITEM[dtype]
        header[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        places[key], at = (at, size), at + size
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places


def aligned(tensors: list[tuple[str, str, tuple[int, ...]]]) -> list[tuple[str, str, tuple[int, ...]]]:
    """In the order in which a file holds them: large items first, so that every tensor is aligned."""
    return sorted(tensors, key=lambda t: (-ITEM[t[1]], t[0]))


def write_file(path: Path, tensors, bytes_of, metadata: dict | None = None, after=None) -> tuple[dict, dict[str, str]]:
    """Writes a safetensors file, durably; (its size and its header's CRC-32, the CRC-32 of every tensor).

    tensors    (key, dtype, shape), in the order in which they will lie
    bytes_of   key → its bytes, asked for one at a time
    after      called with the number of bytes after each
    """
    start, places = header_of(tensors, metadata)
    sums, size = {}, len(start)
    with open(path, "xb", buffering=0) as file:
        _write(file, start)
        for key in places:
            data = memoryview(bytes_of(key)).cast("B")
            assert len(data) == places[key][1], key
            sums[key] = f"{_write(file, data):08x}"
            size += len(data)
            if after:
                after(len(data))
        os.fsync(file.fileno())
    return {"bytes": size, "header": f"{zlib.crc32(start[8:]):08x}"}, sums


def _write(file, data) -> int:
    """All of `data`, a block at a time while it is in the cache; its CRC-32."""
    view, crc, at = memoryview(data), 0, 0
    while at < len(view):
        done = file.write(view[at:at + BLOCK])
        crc, at = zlib.crc32(view[at:at + done], crc), at + done
    return crc


def write_json(path: Path, content: dict) -> None:
    with open(path, "xb") as file:
        file.write(render(content))
        file.flush()
        os.fsync(file.fileno())


def render(content: dict) -> bytes:
    """A dictionary as JSON: one line for each value, and for each value of a dictionary in it."""
    def line(value):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    def lines(value, indent):
        if not isinstance(value, dict) or not value or indent > 1:
            return line(value)
        pad = " " * (indent + 1)
        inner = ",\n".join(f"{pad}{line(k)}: {lines(v, indent + 1)}" for k, v in value.items())
        return "{\n" + inner + "\n" + " " * indent + "}"

    return (lines(content, 0) + "\n").encode()


# ---- folders that appear whole

def free(folder: Path) -> Path:
    """The path itself, where nothing is there yet."""
    with in_words(folder):
        if os.path.lexists(folder) or folder.exists():
            raise Refused("checkpoint_run.exists", folder=str(folder))
    return folder


def begin(folder: Path, name: str) -> Path:
    """A fresh folder for what will be called `name`, its name beginning with a point; those of killed saves go."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".partial-*"):
        shutil.rmtree(left, ignore_errors=True)
    made = folder / f".partial-{name}-{secrets.token_hex(4)}"
    made.mkdir()
    return made


def publish(made: Path, final: Path) -> None:
    """`made` becomes `final`, in one step that outlives a power cut."""
    sync_folder(made)
    try:
        os.rename(made, final)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise Refused("checkpoint_run.exists", folder=str(final)) from None
        raise
    sync_folder(final.parent)


def retire(folder: Path) -> None:
    """Removes a checkpoint; a kill in between leaves nothing that looks like one."""
    with contextlib.suppress(OSError):
        gone = folder.parent / f".partial-old-{folder.name}-{secrets.token_hex(4)}"
        os.rename(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):                     # some file systems cannot sync a folder
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def discard(made: Path | None) -> None:
    if made is not None:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def in_words(folder: Path):
    """Errors of the file system as one sentence that names the folder."""
    try:
        yield
    except OSError as error:
        raise refused(error, folder) from error


def refused(error: OSError, folder: Path) -> Refused:
    """What went wrong on the disk: full, not writable, or what the system says."""
    where = str(error.filename or folder)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return Refused("checkpoint_run.full", folder=str(folder))
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Refused("checkpoint_run.read_only", folder=where)
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return Refused("checkpoint_run.not_a_folder", folder=where)
    return Refused("checkpoint_run.system", folder=where, reason=error.strerror or type(error).__name__)
