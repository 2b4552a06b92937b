"""The schedule: for every rank an ordered list of actions, and where each stage lives.

An action is (kind, stage, microbatch). `stage` is the global one, 0 … S·C−1. Placement `"loop"` puts stage s on rank
s mod S; placement `"v"` (two chunks) goes down the ranks and comes back, so that rank r holds stages r and 2S−1−r,
and the first stage and the loss live on rank 0:

    S = 4, C = 2    loop  [0, 4] [1, 5] [2, 6] [3, 7]        v  [0, 7] [1, 6] [2, 5] [3, 4]

Storage: one integer an action, `4·(microbatch·S·C + stage) + kind`, in one array a rank (8 bytes an action).

What a runtime must know. Actions of a rank run one after the other in this order. `F` of stage s < S·C−1 hands its
output to stage s+1, `B` or `I` of stage s > 0 hands the gradient of its input to stage s−1: a message if that stage
lives on another rank, a local hand-over if not; `W` sends nothing. What `F` keeps is released when `B` ends, or, where
the backward is split, when `W` ends (between `I` and `W` the stage's input and the gradient of its output are needed).
"""

import re
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from paralelo.words import Refused

KINDS = "FBIW"


class Action(NamedTuple):
    """One piece of work: `kind` one of F B I W, the global `stage`, the `microbatch`."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


class Schedule:
    """Who runs what, in which order: `stages` ranks (S), `microbatches` (M), `chunks` (C), `placement`, `codes`.

    >>> from paralelo.predict.pipeline import build
    >>> s = build("zb-v", 4, 8)
    >>> s.stages, s.chunks, s.num_stages, s.stages_of(1), s.rank_of(6)
    (4, 2, 8, (1, 6), 1)
    >>> list(build("gpipe", 2, 1).actions(1))
    [Action(kind='F', stage=1, microbatch=0), Action(kind='B', stage=1, microbatch=0)]
    """

    __slots__ = ("chunks", "codes", "made_by_hand", "microbatches", "name", "placement", "stages")

    def __init__(self, name: str, stages: int, microbatches: int, chunks: int, placement: str,
                 orders: Iterable[Iterable[tuple]], made_by_hand: bool = False):
        self.name, self.stages, self.microbatches, self.chunks = name, stages, microbatches, chunks
        self.placement, self.made_by_hand = placement, made_by_hand
        width, at = stages * chunks, {kind: i for i, kind in enumerate(KINDS)}
        self.codes = [array("q", [4 * (m * width + s) + at[k] for k, s, m in order]) for order in orders]

    @property
    def num_stages(self) -> int:
        """Global stages, S·C."""
        return self.stages * self.chunks

    @property
    def split(self) -> bool:
        """Whether some backward is split into `I` and `W`."""
        return any(code & 3 == 2 for codes in self.codes for code in codes)

    def rank_of(self, stage: int) -> int:
        return place(stage, self.stages, self.placement)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The global stages of a rank, by chunk."""
        if self.placement == "v":
            return (rank, 2 * self.stages - 1 - rank)[: self.chunks]
        return tuple(range(rank, self.num_stages, self.stages))

    def actions(self, rank: int) -> Iterator[Action]:
        """The rank's actions in order."""
        return map(self.action, self.codes[rank])

    def action(self, code: int) -> Action:
        rest, width = code >> 2, self.num_stages
        return Action(KINDS[code & 3], rest % width, rest // width)

    def __len__(self) -> int:
        return sum(map(len, self.codes))

    def __eq__(self, other) -> bool:
        return isinstance(other, Schedule) and all(
            getattr(self, what) == getattr(other, what)
            for what in ("stages", "microbatches", "chunks", "placement", "codes"))

    __hash__ = None

    def __str__(self) -> str:
        """One line a rank, as `from_text` reads it: `F0 F1 B0 B1`, with the stage in front where a rank has several."""
        return "\n".join(
            " ".join(str(a) if self.chunks > 1 else f"{a.kind}{a.microbatch}" for a in self.actions(rank))
            for rank in range(self.stages))

    def __repr__(self) -> str:
        return f"<schedule {self.name}: {self.stages} ranks × {self.chunks} chunks, {self.microbatches} microbatches>"


def place(stage: int, ranks: int, placement: str) -> int:
    """The rank a global stage lives on."""
    if placement == "v":
        return stage if stage < ranks else 2 * ranks - 1 - stage
    return stage % ranks


def from_actions(orders: Iterable[Iterable[tuple]], placement: str = "loop", name: str = "by hand") -> Schedule:
    """A schedule made by hand: for every rank its (kind, stage, microbatch) in order. Nothing is checked: see `check`.

    >>> from_actions([[("F", 0, 0), ("B", 0, 0)], [("F", 1, 0), ("B", 1, 0)]])
    <schedule by hand: 2 ranks × 1 chunks, 1 microbatches>
    """
    orders = [[Action(*a) for a in order] for order in orders]
    if not any(orders):
        raise Refused("pipeline.nothing")
    if placement not in ("loop", "v"):
        raise Refused("pipeline.placement", placement=placement)
    for action in (a for order in orders for a in order):
        if action.kind not in KINDS or len(action.kind) != 1 or action.stage < 0 or action.microbatch < 0:
            raise Refused("pipeline.token", token=str(action))
    ranks = len(orders)
    chunks = 1 + max(a.stage for order in orders for a in order) // ranks
    microbatches = 1 + max(a.microbatch for order in orders for a in order)
    if placement == "v" and chunks > 2:
        raise Refused("pipeline.v_has_two", stage=chunks * ranks - 1, stages=ranks, last=2 * ranks - 1)
    chunks = 2 if placement == "v" else chunks
    if ranks * chunks * microbatches > 1_000_000:
        raise Refused("pipeline.too_large", actions=2 * ranks * chunks * microbatches, limit=2_000_000)
    return Schedule(name, ranks, microbatches, chunks, placement, orders, made_by_hand=True)


def from_text(text: str | Iterable[str], placement: str = "loop", name: str = "by hand") -> Schedule:
    """A schedule made by hand, one line a rank: kind and microbatch, with the global stage in front where needed.

    >>> str(from_text("F0 F1 B0 B1 / F0 B0 F1 B1"))
    'F0 F1 B0 B1\\nF0 B0 F1 B1'
    >>> from_text(["0F0 2F0 2B0 0B0", "1F0 3F0 3B0 1B0"]).chunks
    2
    """
    lines = re.split(r"[\n/]", text.strip()) if isinstance(text, str) else list(text)
    return from_actions([[_token(t, rank) for t in re.split(r"[\s,]+", line.strip()) if t]
                         for rank, line in enumerate(lines)], placement, name)


def _token(token: str, rank: int) -> Action:
    found = re.fullmatch(r"(\d{1,6})?([FBIW])(\d{1,6})", token)
    if not found:
        raise Refused("pipeline.token", token=token[:40])
    stage, kind, microbatch = found.groups()
    return Action(kind, rank if stage is None else int(stage), int(microbatch))
