"""What is wrong with a schedule, and which kind of send it survives.

Three kinds of send. **Buffered**: a send never waits. **Rendezvous**: a send waits until the other side is in the
matching receive, one operation at a time, in program order: receive what the action needs, run it, send what it made.
**Batched**: rendezvous too, but both directions with a peer are posted together: with a send go all receives that the
rank still expects from that peer, and what its next action receives. The rank goes on when its send is taken and the
input of its next action is there.

1F1B at S = 2, M = 2 shows why it matters. Unbatched, rank 0 stands in the send of F1 while rank 1 stands in the send
of B0, and neither reaches the receive the other is waiting for:

    >>> from paralelo.predict.pipeline import build
    >>> for wrong in check(build("1f1b", 2, 2), sends="rendezvous"):
    ...     print(wrong)
    rank 0 is stuck in the send of F1 (stage 0) to rank 1, which is not receiving it
    rank 1 is stuck in the send of B0 (stage 1) to rank 0, which is not receiving it
    >>> check(build("1f1b", 2, 2), sends="batched")
    []
"""

from paralelo.predict.pipeline.schedule import Action, Schedule
from paralelo.words import Message, Refused

SENDS = ("buffered", "rendezvous", "batched")


def check(schedule: Schedule, sends: str = "buffered") -> list[Message]:
    """Everything that keeps the schedule from running, as messages; empty if it runs.

    Looked for in this order, and later ones only if there are no earlier ones: actions that are missing, doubled, on a
    rank where their stage does not live, or a backward that is both whole and split; an action before one it needs on
    the same rank; ranks that wait for one another for ever.

    >>> from paralelo.predict.pipeline import from_text
    >>> [str(m) for m in check(from_text("F0 B0 F1 B1 / F0 F1 B0"))]
    ['rank 1 never runs the backward of microbatch 1 at stage 1']
    """
    if sends not in SENDS:
        raise Refused("pipeline.sends", sends=sends, names=list(SENDS))
    return _contents(schedule) or _order(schedule) or _stuck(schedule, sends)


def _say(id: str, rank: int, action: Action, **fields) -> Message:
    return Message(f"pipeline.check.{id}", {"rank": rank, "action": f"{action.kind}{action.microbatch}",
                                            "stage": action.stage, "microbatch": action.microbatch, **fields})


def _contents(schedule: Schedule) -> list[Message]:
    wrong, seen = [], set()
    for rank in range(schedule.stages):
        for action in schedule.actions(rank):
            if (home := schedule.rank_of(action.stage)) != rank:
                wrong.append(_say("wrong_rank", rank, action, home=home))
            elif action in seen:
                wrong.append(_say("twice", rank, action))
            seen.add(action)
    for stage in range(schedule.num_stages):
        rank = schedule.rank_of(stage)
        for m in range(schedule.microbatches):
            has = {kind for kind in "FBIW" if (kind, stage, m) in seen}
            if "F" not in has:
                wrong.append(_say("no_forward", rank, Action("F", stage, m)))
            if "B" in has and has & {"I", "W"}:
                wrong.append(_say("whole_and_split", rank, Action("B", stage, m)))
            elif not has & {"B", "I", "W"}:
                wrong.append(_say("no_backward", rank, Action("B", stage, m)))
            elif "B" not in has and len(has & {"I", "W"}) == 1:
                kind = "W" if "I" in has else "I"
                wrong.append(_say("half_a_backward", rank, Action(kind, stage, m)))
    return wrong


def needed(action: Action, schedule: Schedule, split: set) -> list[Action]:
    """The actions whose results this one needs. `split` holds the (stage, microbatch) whose backward is `I` and `W`."""
    kind, stage, m = action
    if kind == "F":
        return [Action("F", stage - 1, m)] if stage else []
    if kind == "W":
        return [Action("I", stage, m)]
    own = [Action("F", stage, m)]
    if stage == schedule.num_stages - 1:
        return own
    return [*own, Action("I" if (stage + 1, m) in split else "B", stage + 1, m)]


def _split(schedule: Schedule) -> set:
    return {(a.stage, a.microbatch) for rank in range(schedule.stages) for a in schedule.actions(rank) if a.kind == "I"}


def _order(schedule: Schedule) -> list[Message]:
    wrong, split = [], _split(schedule)
    for rank in range(schedule.stages):
        done = set()
        for action in schedule.actions(rank):
            for need in needed(action, schedule, split):
                if schedule.rank_of(need.stage) == rank and need not in done:
                    wrong.append(_say("before", rank, action, needs=f"{need.kind}{need.microbatch}",
                                      needs_stage=need.stage))
            done.add(action)
    return wrong


def _stuck(schedule: Schedule, sends: str) -> list[Message]:
    """Run the programs without times. A step is a set of transfers that are posted together and waited for together.

    A transfer is named by the action whose result it carries: it has one sender and one receiver.
    """
    split = _split(schedule)
    programs = [_program(schedule, rank, split, sends) for rank in range(schedule.stages)]
    expected = [{} for _ in programs]                    # by peer: what is to be received from it
    for rank, program in enumerate(programs):
        for way, action, peer in (transfer for step in program for transfer in step):
            if way == "receive":
                expected[rank].setdefault(peer, []).append(action)
    waits = [set() for _ in programs]                    # ("send" | "receive", action, peer)
    posted, arrived, standing = set(), set(), {}         # receives, finished transfers, sends not taken yet
    position, runnable = [0] * len(programs), list(range(len(programs)))

    def finished(rank, transfer):
        if transfer in waits[rank]:
            waits[rank].remove(transfer)
            if not waits[rank]:
                runnable.append(rank)

    def post(rank, action):
        if action in standing:
            arrived.add(action)
            finished(standing.pop(action), ("send", action, rank))
        elif action not in arrived:
            posted.add(action)

    while runnable:
        rank = runnable.pop()
        while not waits[rank] and position[rank] < len(programs[rank]):
            step = programs[rank][position[rank]]
            position[rank] += 1
            for way, action, peer in step:
                if way == "receive":
                    post(rank, action)
                    if action not in arrived:
                        waits[rank].add((way, action, peer))
                    continue
                if sends == "batched":
                    for other in expected[rank].pop(peer, ()):
                        post(rank, other)
                if sends == "buffered" or action in posted:
                    posted.discard(action)
                    arrived.add(action)
                    finished(peer, ("receive", action, rank))
                else:
                    standing[action] = rank
                    waits[rank].add((way, action, peer))
    return [_say("sends" if way == "send" else "waits", rank, action, peer=peer)
            for rank, now in enumerate(waits) for way, action, peer in sorted(now)]


def _program(schedule: Schedule, rank: int, split: set, sends: str) -> list[list[tuple]]:
    steps, last = [[]], schedule.num_stages - 1
    for action in schedule.actions(rank):
        receives = [("receive", need, peer) for need in needed(action, schedule, split)
                    if (peer := schedule.rank_of(need.stage)) != rank]
        if sends == "batched":
            steps[-1] += receives
        else:
            steps.append(receives)
        target = {"F": action.stage + 1, "B": action.stage - 1, "I": action.stage - 1, "W": -1}[action.kind]
        if 0 <= target <= last and (peer := schedule.rank_of(target)) != rank:
            steps.append([("send", action, peer)])
        else:
            steps.append([])
    return steps
