"""Pipeline timelines, each drawn from the schedule that the runtime executes."""

from paralelo.draw.timeline import simulations, timeline, timeline_mermaid
from paralelo.predict.pipeline import NAMES, build, simulate
from paralelo.words import say


def figures(lang: str) -> dict[str, str]:
    out = {}
    for name in ("gpipe", "1f1b"):
        for microbatches in (4, 8):
            result, stem = simulate(build(name, 4, microbatches)), f"pipeline_{name}_4_{microbatches}"
            # one scale for the four, so that a step of twice the work is twice as long
            out[f"{stem}.svg"] = timeline(result, lang, name=stem, scale=21)
            out[f"{stem}.mmd"] = timeline_mermaid(result, lang)
    out["pipeline_all_4_8.svg"] = timeline(simulations(NAMES, 4, 8), lang, name="pipeline_all_4_8")
    out["pipeline_impossible.svg"] = timeline(impossible(), lang, name="pipeline_impossible", mark_broken=True,
                                              title=say("pipeline.diagram.title_impossible", lang))
    return out


def impossible() -> list[tuple]:
    """A timeline as it is often drawn by hand: neat diagonals, and the last stage one column early.

    Four stages, four microbatches, forwards only, one unit each. The last stage is drawn straight under the third, so
    it starts each microbatch while the third is still at work on it, and there is room for three of the four only.
    """
    drawn = [(rank, "F", rank, m, rank + m, rank + m + 1) for rank in range(3) for m in range(4)]
    return drawn + [(3, "F", 3, m, m + 2, m + 3) for m in range(3)]
