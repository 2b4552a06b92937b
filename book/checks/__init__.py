"""What keeps the three editions in step: one module per kind of fault, each with `findings(book)`.

A finding says where, what, and how to mend it. Those that a program can mend carry a `fix`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """One fault: file, line, what is wrong, how to mend it. `fix()` mends it where a program can."""

    file: Path
    line: int
    what: str
    mend: str
    fix: Callable[[], None] | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what} → {self.mend}"


def replace_line(file: Path, line: int, old: str, new: str) -> Callable[[], None]:
    """A fix that writes `new` for the first `old` of one line (counted from 1)."""

    def fix() -> None:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        lines[line - 1] = lines[line - 1].replace(old, new, 1)
        file.write_text("".join(lines), encoding="utf-8")

    return fix
