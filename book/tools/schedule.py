"""The schedule explorer: a pipeline schedule built, simulated and drawn, with a cursor through its time."""

from paralelo.draw.moments import Moments
from paralelo.draw.timeline import MOST, timeline
from paralelo.predict.pipeline import NAMES, build, simulate
from paralelo.words import Refused, number, percent, say
from tools.frame import Answer, Choice, Number, Pairs, Table, Tool, Whole

SPLIT = tuple(name for name in NAMES if build(name, 2, 4).split)
FIELDS = (
    Choice("name", "1f1b", positional=True, options=NAMES),
    Whole("stages", 4, most=64),
    Whole("microbatches", 8, most=1024),
    Whole("chunks", 2, when=("name", ("interleaved",)), most=32),
    Number("forward", 1, above=True, optional=True),
    Number("backward", 2, above=True, optional=True),
    Number("weight", 1, when=("name", SPLIT), optional=True),
    Number("message", 0, optional=True),
    Pairs("slow", optional=True),
)


def answer(values: dict, lang: str) -> Answer:
    made = build(values["name"], values["stages"], values["microbatches"], values.get("chunks", 1))
    if len(made) > MOST:
        raise Refused("draw.too_many", boxes=len(made), limit=MOST)
    result = simulate(made, values["forward"], values["backward"], values.get("weight", 1), values["message"],
                      dict(values["slow"]))
    figure = timeline(result, lang, name="tool-timeline", plain=len(made) > 1000)
    moments = Moments(result)
    peak = max(result.live_activations)
    facts = [(name, value, write(value, lang)) for name, value, write in (
        ("idle_share", result.idle_share, percent), ("idle_over_ideal", result.idle_over_ideal, percent),
        ("makespan", result.makespan, number), ("ideal", result.ideal, number), ("messages", result.messages, number),
        ("live", peak, number))]
    word = lambda key: say(f"tools.schedule.heads.{key}", lang)  # noqa: E731
    ranks = [[say("pipeline.diagram.rank", lang, rank=rank), ", ".join(map(str, made.stages_of(rank))),
              *result.windows[rank], percent(result.idle_in_window(rank), lang), result.live_activations[rank]]
             for rank in range(made.stages)]
    return Answer(
        figure, facts,
        {"ranks": Table([word(k) for k in ("rank", "stages", "first", "last", "idle", "live")], ranks),
         "actions": Table([word(k) for k in ("rank", "kind", "stage", "microbatch", "start", "end")], lambda: [
             [say("pipeline.diagram.rank", lang, rank=rank), kind, stage, microbatch, start, end]
             for rank, kind, stage, microbatch, start, end in result.timeline()], later=True)},
        places=moments.places(figure), cursor=moments.rows(), moment=lambda i: moments.say(i, lang))


TOOL = Tool("schedule", FIELDS, answer)


def page(lang: str) -> str:
    from edition.tools import markdown

    return markdown(TOOL, lang)
