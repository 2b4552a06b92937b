"""When messages are posted: one order for all ranks, in which no rank can wait for ever.

Play the schedule with unit times. An action happens when it starts, a message when the action that makes it ends, and
at equal times messages come first. Sorted by time, this is one sequence of everything that happens in the step; every
action comes after what it needs. Each rank's program is what concerns it: its own actions, and the messages that it
sends or receives, in this order.

    why nothing deadlocks    the earliest thing not yet done has all it needs done already, and both of its ranks stand
                             before it; so it can always be done, whether sends are buffered or wait for their receiver
    batches                  messages between two actions of a rank are posted together, both directions with a peer in
                             one call, unless one of them could only be made after another had arrived

Posting never waits (`isend`, `irecv`); a rank waits for a message only when an action needs it.
"""

from typing import NamedTuple

from paralelo.predict.pipeline import Action, Schedule, simulate


class Transfer(NamedTuple):
    """One message seen by one rank: `way` is "send" or "receive", `action` the one that made it, `peer` the other."""

    way: str
    action: Action
    peer: int


class Step(NamedTuple):
    """What a rank does next: post these batches, then run the action (None at the end of the program)."""

    batches: list[list[Transfer]]
    action: Action | None


def receiver(action: Action, schedule: Schedule) -> int | None:
    """The stage that gets what the action makes: the next one for F, the one before for B and I, none for W."""
    to = {"F": action.stage + 1, "B": action.stage - 1, "I": action.stage - 1, "W": -1}[action.kind]
    return to if 0 <= to < schedule.num_stages else None


def plan(schedule: Schedule, rank: int) -> list[Step]:
    """The program of one rank. A schedule made by hand that cannot run is refused.

    >>> from paralelo.predict.pipeline import build
    >>> for batches, action in plan(build("1f1b", 2, 3), 0):
    ...     print([[f"{way} {a}" for way, a, _ in batch] for batch in batches], action or "end")
    [] 0F0
    [['send 0F0']] 0F1
    [['send 0F1'], ['receive 1B0']] 0B0
    [] 0F2
    [['send 0F2', 'receive 1B1']] 0B1
    [['receive 1B2']] 0B2
    [] end
    """
    happens = []                                          # (time, 0 for a message, tie, what, start of its action)
    for here, kind, stage, microbatch, start, end in simulate(schedule, 1, 2, 1).timeline():
        action = Action(kind, stage, microbatch)
        if here == rank:
            happens.append((start, 1, here, action, start))
        to = receiver(action, schedule)
        there = None if to is None else schedule.rank_of(to)
        if there not in (None, here) and rank in (here, there):
            way, peer = ("send", there) if here == rank else ("receive", here)
            happens.append((end, 0, here, Transfer(way, action, peer), start))
    happens.sort(key=lambda h: h[:3])

    program, batches, posted_at = [], [], None
    for time, _, _, what, made_from in happens:
        if isinstance(what, Action):
            program.append(Step(batches, what))
            batches = []
        elif batches and made_from < posted_at:
            batches[-1].append(what)
        else:
            batches.append([what])
            posted_at = time
    return [*program, Step(batches, None)]
