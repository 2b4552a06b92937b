"""What the live tools run on, in site/vendor/: Pyodide's core from npm and the library's own wheel, one copy for all.

The core's files are npm's, but for Python's standard library, which is compiled (`stdlib.mjs`): it starts in a third of
the time.

A page that has a tool names the wheel with `digest()`, so a page and the Python that it loads are always of one make.
"""

import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from functools import cache
from pathlib import Path

from edition import BOOK, BUILD, ROOT, SITE, NotBuilt, nodejs

PYODIDE = ROOT / "node_modules" / "pyodide"
STDLIB = BOOK / "edition" / "stdlib.mjs"
NOTICE = """Pyodide {version}: CPython compiled to WebAssembly, {address}
Licence: {license} (https://www.mozilla.org/MPL/2.0/), its Python and standard library under the PSF licence
(https://docs.python.org/3/license.html). The files are as npm delivers them, but for python_stdlib.zip: it holds the
same modules compiled to .pyc, some left out. Their sources are at the address above.
"""


def sources() -> list[Path]:
    """What a tool's answers are made of, besides Pyodide."""
    tools = [p for p in (BOOK / "tools").rglob("*") if p.suffix in (".py", ".js", ".css")]
    library = [p for p in (ROOT / "src" / "paralelo").rglob("*") if p.suffix in (".py", ".toml", ".css", ".json")]
    return sorted(p for p in [*tools, *library, PYODIDE / "package.json", STDLIB, ROOT / "pyproject.toml"]
                  if p.is_file() and "__pycache__" not in p.parts)


@cache
def digest() -> str:
    seen = hashlib.sha256()
    for path in sources():
        seen.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return seen.hexdigest()[:10]


def wheel_name() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return f"{project['name']}-{project['version']}-py3-none-any.whl"


@cache
def download() -> float:
    """Bytes that a reader's first run downloads, compressed as hosts do it."""
    return float(sum(len(gzip.compress(f.read_bytes(), 6)) for f in [*core(), wheel()]))


def made_by(what: str, command: list[str], **options) -> None:
    """Run what makes a file. NotBuilt, with the last line that it said, if it fails."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, **options)
    except FileNotFoundError:
        raise NotBuilt(f"{what} needs {command[0]}, which is not on this machine: run `make setup`") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or [f"exit {error.returncode}"]
        raise NotBuilt(f"{what} cannot be made: {said[-1]}") from None


def core() -> list[Path]:
    """Pyodide's files, as they go into the site."""
    return [*(PYODIDE / name for name in ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json")),
            stdlib()]


def stdlib() -> Path:
    """Python's standard library, compiled; made again for another Pyodide or another `stdlib.mjs`."""
    if not (PYODIDE / "package.json").is_file():
        raise NotBuilt("node_modules/pyodide is missing: run `make setup`")
    made_of = hashlib.sha256((PYODIDE / "package.json").read_bytes() + STDLIB.read_bytes()).hexdigest()[:10]
    made = BUILD / "stdlib" / made_of / "python_stdlib.zip"
    if not made.is_file():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:
            half = Path(folder) / made.name
            made_by("Python's library for the page", [nodejs(), str(STDLIB), str(PYODIDE), str(half)])
            half.replace(made)
    return made


def wheel() -> Path:
    """The library's wheel, built again where its sources have changed."""
    made, stamp = BUILD / "wheel" / wheel_name(), BUILD / "wheel" / "digest"
    if not made.is_file() or not stamp.is_file() or stamp.read_text() != digest():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:
            made_by("the wheel for the page",
                    [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT)
            (Path(folder) / made.name).replace(made)
        stamp.write_text(digest())
    return made


def vendor() -> None:
    """site/vendor: nothing where no page has a live tool."""
    from edition.site import put

    to = SITE / "vendor"
    if not (BOOK / "tools" / "static").is_dir():
        shutil.rmtree(to, ignore_errors=True)
        return
    package = json.loads((PYODIDE / "package.json").read_text(encoding="utf-8"))
    files = {f"pyodide/{p.name}": p.read_bytes() for p in core()}
    files["pyodide/NOTICE.txt"] = NOTICE.format(version=package["version"], address=package["homepage"],
                                                license=package["license"]).encode()
    files[wheel_name()] = wheel().read_bytes()
    files |= {f"tools/{p.name}": p.read_bytes() for p in (BOOK / "tools").glob("*.py")}
    for name, content in files.items():
        put(to / name, content)
    for old in [p for p in to.rglob("*") if p.is_file() and p.relative_to(to).as_posix() not in files]:
        old.unlink()
