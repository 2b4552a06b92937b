"""`paralelo schedule`: build a pipeline schedule, simulate it, draw it."""

import click

from paralelo.cli.frame import Number, Whole, build, option
from paralelo.words import Refused, number, percent, say


def command(lang: str) -> click.Command:
    from paralelo.predict.pipeline import NAMES

    def names(ctx, param, incomplete):
        return [n for n in NAMES if n.startswith(incomplete)]

    @build("schedule", lang)
    @click.argument("name", metavar="|".join(NAMES), shell_complete=names)
    @option("--stages", lang, type=Whole(1), required=True)
    @option("--microbatches", lang, type=Whole(1), required=True)
    @option("--chunks", lang, type=Whole(1), default=1)
    @option("--forward", lang, type=Number(0, 1e12, above=True), default=1)
    @option("--backward", lang, type=Number(0, 1e12, above=True), default=2)
    @option("--weight", lang, type=Number(0, 1e12), default=1)
    @option("--message", lang, type=Number(0, 1e12), default=0)
    @option("--slow", lang, multiple=True, metavar=say("cli.word.slow", lang))
    @option("--svg", lang, type=click.Path(), metavar="F")
    @option("--mermaid", lang, type=click.Path(), metavar="F")
    def schedule(out, name, stages, microbatches, chunks, forward, backward, weight, message, slow, svg, mermaid):
        from paralelo.predict import pipeline

        made = pipeline.build(name, stages, microbatches, chunks)
        result = pipeline.simulate(made, forward, backward, weight, message, dict(map(_slow, slow)))
        if svg or mermaid:
            from paralelo.draw.timeline import timeline, timeline_mermaid

            for file, draw in ((svg, timeline), (mermaid, timeline_mermaid)):
                if file:
                    text = draw(result, out.lang)
                    with open(file, "w", encoding="utf-8", newline="\n") as to:
                        to.write(text)
        if not out.json(_answer(result)):
            _show(out, result, bool(slow))
        return 0

    return schedule


def _slow(text: str) -> tuple[int, float]:
    """`2=1.5`: stage 2 takes one and a half times as long."""
    stage, sign, factor = text.partition("=")
    try:
        if not sign:
            raise ValueError
        return int(stage), float(factor)
    except ValueError:
        raise Refused("cli.error.slow", value=text[:40]) from None


def _answer(result) -> dict:
    made = result.schedule
    return {
        "schedule": made.name, "stages": made.stages, "microbatches": made.microbatches, "chunks": made.chunks,
        "makespan": result.makespan, "ideal": result.ideal, "idle_share": result.idle_share,
        "idle_over_ideal": result.idle_over_ideal, "windows": result.windows,
        "live_activations": result.live_activations, "messages": result.messages,
        "actions": ({"rank": rank, "stage": stage, "microbatch": microbatch, "kind": kind, "start": start, "end": end}
                    for rank, kind, stage, microbatch, start, end in result.timeline()),
    }


def _show(out, result, slowed: bool) -> None:
    made, lang = result.schedule, out.lang
    heads = [say(f"cli.schedule_table.{h}", lang) for h in ("rank", "stages", "start", "end", "idle", "live")]
    rows = [[rank, ", ".join(map(str, made.stages_of(rank))), *result.windows[rank],
             percent(result.idle_in_window(rank), lang), result.live_activations[rank]] for rank in range(made.stages)]
    shown = rows if len(rows) <= 40 else [*rows[:20], ["…"] * len(heads), *rows[-20:]]
    title = say("cli.schedule_table.title", lang, name=made.name, stages=made.stages, microbatches=made.microbatches,
                chunks=made.chunks)
    out.table(heads, shown, title)
    for key, value in (("makespan", number(result.makespan, lang)),
                       ("ideal_unslowed" if slowed else "ideal", number(result.ideal, lang)),
                       ("idle_share", percent(result.idle_share, lang)),
                       ("idle_over_ideal", percent(result.idle_over_ideal, lang)),
                       ("messages", number(result.messages, lang))):
        out.say(f"cli.schedule_table.{key}", value=value)
