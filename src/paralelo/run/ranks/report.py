"""What to say when a call of several ranks fails: which rank is at fault, and where the others stood."""

import os
import re
from dataclasses import dataclass

from paralelo.words import say

WAITING = re.compile(r"torch/distributed/|paralelo/run/collectives")
HIDDEN = re.compile(
    r"paralelo/run/(ranks/|ledger)|multiprocessing/|^<frozen |^<string>|runpy\.py|contextlib|typing_extensions"
    r"|torch/(distributed/c10d_logger|_compile|_dynamo/|_ops|autograd/|_tensor\.py|utils/_)")


@dataclass
class State:
    """How one rank ended its part of a call.

    `kind` is `done`, `raised`, `echo` (raised because another was gone), `died` or `silent`; `head` one line, `text`
    the traceback, or for a rank that did not end the stack where it stood.
    """

    kind: str
    head: str = ""
    text: str = ""
    code: int | None = None

    @property
    def waiting(self) -> bool:
        """Whether the rank stood in a collective: then it waits for the one at fault, and is not."""
        return self.kind == "silent" and bool(WAITING.search("\n".join(self.text.splitlines()[:6])))


class RankError(RuntimeError):
    """A call that one rank, or several, did not finish.

    `rank` is the one at fault (the first, where there are several), `ranks` all of them, `states` how every rank
    ended. The sentence is in `lang`; `say(lang)` gives it in another.
    """

    def __init__(self, states: list[State], timeout: float = 0):
        super().__init__(states, timeout)
        self.states, self.timeout = states, timeout
        self.ranks = at_fault(states)
        self.rank = self.ranks[0]

    def __str__(self) -> str:
        return self.say()

    def say(self, lang: str = "en") -> str:
        parts, told = [], {}
        for rank in self.ranks:                       # the same fault on several ranks is told in full once
            state = self.states[rank]
            first = told.setdefault((state.kind, state.text), rank)
            parts.append(self._fault(rank, lang) if first == rank or not state.text else self._other(rank, state, lang))
        for rank, state in enumerate(self.states):
            if rank not in self.ranks:
                parts.append(self._other(rank, state, lang))
        return "\n".join(parts)

    def _fault(self, rank, lang):
        state = self.states[rank]
        match state.kind:
            case "died" if state.code is not None and state.code < 0:
                head = say("ranks.killed", lang, rank=rank, signal=_signal(-state.code))
            case "died":
                head = say("ranks.exited", lang, rank=rank, code=state.code)
            case "silent" if state.waiting:
                head = say("ranks.waiting", lang, rank=rank, timeout=self.timeout)
            case "silent":
                head = say("ranks.silent", lang, rank=rank, timeout=self.timeout)
            case _:
                head = say("ranks.raised", lang, rank=rank, error=state.head)
        return "\n".join([head, *(f"    {line}" for line in state.text.rstrip().splitlines())])

    def _other(self, rank, state, lang):
        match state.kind:
            case "done":
                return say("ranks.other_done", lang, rank=rank)
            case "silent":
                head = say("ranks.other_stood", lang, rank=rank)
                return "\n".join([head, *(f"    {line}" for line in state.text.rstrip().splitlines()[:6])])
            case _:
                return say("ranks.other_raised", lang, rank=rank, error=state.head)


def at_fault(states: list[State]) -> list[int]:
    """The ranks to name: those that died; else those that raised by themselves; else those that did not answer,
    the ones outside a collective first; else those that raised because another was gone."""
    for blamed in (
        lambda s: s.kind == "died",
        lambda s: s.kind == "raised",
        lambda s: s.kind == "silent" and not s.waiting,
        lambda s: s.kind == "silent",
        lambda s: s.kind == "echo",
    ):
        found = [rank for rank, state in enumerate(states) if blamed(state)]
        if found:
            return found
    return [0]


def stack(dump: str) -> str:
    """The frames of a faulthandler dump that the caller wrote or that wait, innermost first."""
    frames = re.findall(r'File "(.*)", line (\d+|\?\?\?) in (.*)', dump)
    frames = [(short(f), n, name) for f, n, name in frames]
    return "\n".join(f'File "{f}", line {n}, in {name}' for f, n, name in frames if not HIDDEN.search(f))


def short(file: str) -> str:
    """A file's name for people: `<cell>` for a notebook's cell, a module's path without its place of installation.

    faulthandler writes `clón` as `cl\\xf3n`.
    """
    if not file.startswith("<") and not os.path.exists(file):
        file = re.sub(r"\\(?:x(..)|u(.{4})|U(.{8}))", lambda m: chr(int(m[1] or m[2] or m[3], 16)), file)
        if not os.path.exists(file):
            return "<cell>"
    file = file.replace(os.sep, "/")
    return re.sub(r"^.*/(?:site-packages|dist-packages)/|^.*/src/(?=paralelo/)", "", file)


def _signal(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
