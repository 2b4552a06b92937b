"""Pipeline timelines, each drawn from the schedule that the runtime executes; live activations; a model's stages."""

from collections import Counter

from paralelo.draw.moments import stepped
from paralelo.draw.svg import Svg, num, text_width
from paralelo.draw.timeline import simulations, timeline, timeline_mermaid
from paralelo.predict.audit import work_over_mean
from paralelo.predict.layout import chunk_layers
from paralelo.predict.model import Model, ship
from paralelo.predict.pipeline import NAMES, Simulation, build, simulate
from paralelo.words import number, say


def figures(lang: str) -> dict[str, str]:
    out = {}
    for name in ("gpipe", "1f1b"):
        for microbatches in (4, 8):
            result, stem = simulate(build(name, 4, microbatches)), f"pipeline_{name}_4_{microbatches}"
            # one scale for the four, so that a step of twice the work is twice as long
            out[f"{stem}.svg"] = timeline(result, lang, name=stem, scale=21)
            out[f"{stem}.mmd"] = timeline_mermaid(result, lang)
    out["pipeline_1f1b_4_4_steps.svg"] = stepped(simulate(build("1f1b", 4, 4)), lang, name="pipeline_1f1b_4_4_steps",
                                                 scale=30)
    out["pipeline_all_4_8.svg"] = timeline(simulations(NAMES, 4, 8), lang, name="pipeline_all_4_8", ratios=True)
    out["pipeline_drawn.svg"] = timeline(impossible(), lang, name="pipeline_drawn",
                                         title=say("pipeline.diagram.title_drawn", lang),
                                         desc=say("pipeline.diagram.desc_drawn", lang))
    out["pipeline_impossible.svg"] = timeline(impossible(), lang, name="pipeline_impossible", mark_broken=True,
                                              title=say("pipeline.diagram.title_impossible", lang))
    out["pipeline_live_4_8.svg"] = live(lang, simulate(build("gpipe", 4, 8)), simulate(build("1f1b", 4, 8)))
    out["pipeline_stages.svg"] = stages(lang, ship("Qwen3.5-27B"), (3, 4, 8))
    return out


def impossible() -> list[tuple]:
    """A timeline as it is often drawn by hand: neat diagonals, and the last stage one column early.

    Four stages, four microbatches, one unit for a forward and one for a backward. The last stage is drawn straight
    under the third, so it starts each forward while the third is still at work on it, and there is room for three of
    the four microbatches only. The backwards come back as neatly, the fourth out of nowhere.
    """
    drawn = [(rank, "F", rank, m, rank + m, rank + m + 1) for rank in range(3) for m in range(4)]
    drawn += [(3, "F", 3, m, m + 2, m + 3) for m in range(3)]
    drawn += [(3, "B", 3, m, m + 5, m + 6) for m in range(3)]
    return drawn + [(rank, "B", rank, m, 8 - rank + m, 9 - rank + m) for rank in range(3) for m in range(4)]


def live(lang: str, gpipe: Simulation, one_f_one_b: Simulation) -> str:
    """Live activations of rank 0 over a step: GPipe as a light area, 1F1B as a dark one before it."""
    name, left, top, height, scale = "pipeline_live_4_8", 62, 12, 160, 20
    most, end = gpipe.live_activations[0], gpipe.makespan
    svg = Svg(name, left + end * scale + 24, top + height + 74, say("pipeline.diagram.title_live", lang),
              say("pipeline.diagram.desc_live", lang, gpipe=most, one_f_one_b=one_f_one_b.live_activations[0],
                  makespan=end))
    step = height / most
    for n in range(0, most + 1, 2):
        y = top + height - n * step
        svg.line(left, y, left + end * scale, y, "pl-grid")
        svg.text(left - 8, y + 4, number(n, lang), "pl-tick", "end")
    for result, cls in ((gpipe, "pl-F"), (one_f_one_b, "pl-B")):
        change = Counter()                                  # by time: a B that ends as an F starts changes nothing
        for _, kind, _, _, start, stop in (e for e in result.timeline() if e[0] == 0):
            change[start if kind == "F" else stop] += 1 if kind == "F" else -1
        held, d = 0, f"M{num(left)} {num(top + height)}"
        for time in sorted(t for t, n in change.items() if n):
            held += change[time]
            d += f"H{num(left + time * scale)}V{num(top + height - held * step)}"
        svg.path(d + "Z", cls)
    y = top + height
    svg.line(left, y, left + end * scale, y, "pl-axis")
    for t in range(0, end + 1, 5):
        svg.line(left + t * scale, y, left + t * scale, y + 4, "pl-axis")
        svg.text(left + t * scale, y + 17, number(t, lang), "pl-tick", "middle")
    svg.text(left, y + 34, say("pipeline.diagram.live_axis", lang) + " · " + say("pipeline.diagram.time", lang),
             "pl-soft")
    x = left
    for result, cls, words in ((gpipe, "pl-F", "live_gpipe"), (one_f_one_b, "pl-B", "live_1f1b")):
        text = say(f"pipeline.diagram.{words}", lang, n=result.live_activations[0])
        svg.rect(x, y + 46, 16, 12, cls)
        svg.text(x + 21, y + 56, text)
        x += 44 + text_width(text, 12)
    return str(svg)


def stages(lang: str, model: Model, degrees, positions: int = 4096) -> str:
    """A model's layers over several numbers of stages: what each stage holds, and its work over the mean."""
    left, cell, end_cell, gap, height, row = 70, 9, 15, 4, 24, 72
    layers, plan, worst = len(model.layers), {}, (0, 0, 0)
    for degree in degrees:
        cuts = [ranges[0] for ranges in chunk_layers(layers, degree)]
        ratios = work_over_mean(model, map(len, cuts), positions)
        plan[degree] = list(zip(cuts, ratios, strict=True))
        worst = max([worst, *((ratio, degree, stage) for stage, ratio in enumerate(ratios))])
    about = say("pipeline.diagram.worst", lang, ratio=worst[0], degree=worst[1], stage=worst[2])
    width = left + layers * cell + 2 * end_cell + max(degrees) * gap + 8
    svg = Svg("pipeline_stages", width, 14 + row * len(plan) + 44,
              say("pipeline.diagram.title_stages", lang, layers=layers),
              say("pipeline.diagram.desc_stages", lang, worst=about))
    y = 10
    for degree, cuts in plan.items():
        svg.text(left - 8, y + height / 2 + 4, say("pipeline.diagram.degree", lang, n=degree), anchor="end")
        x, slowest = float(left), max(ratio for _, ratio in cuts)
        for cut, ratio in cuts:
            begin = x
            for i in ((-1,) if cut[0] == 0 else ()) + tuple(cut) + ((layers,) if cut[-1] == layers - 1 else ()):
                if 0 <= i < layers:
                    svg.rect(x, y, cell, height, "pl-B" if model.layers[i].kind == "full" else "pl-F")
                    x += cell
                else:
                    svg.rect(x, y, end_cell, height, "pl-W")
                    svg.text(x + end_cell / 2, y + height / 2 + 4, "E" if i < 0 else "H", "pl-on-W", "middle", 11)
                    x += end_cell
            full = sum(model.layers[i].kind == "full" for i in cut)
            middle = (begin + x) / 2
            svg.line(begin, y + height + 4, x, y + height + 4, "pl-axis")
            svg.text(middle, y + height + 18, f"{len(cut) - full} + {full}", "pl-soft", "middle")
            svg.text(middle, y + height + 33, number(ratio, lang, 2) + "×", "pl-head" if ratio == slowest else "",
                     "middle")
            x += gap
        y += row
    x = float(left)
    for cls, words in (("pl-F", "layer_linear"), ("pl-B", "layer_full"), ("pl-W", "ends")):
        text = say(f"pipeline.diagram.{words}", lang)
        svg.rect(x, y - 2, 16, 12, cls)
        svg.text(x + 21, y + 8, text)
        x += 38 + text_width(text, 12)
    svg.text(left, y + 28, say("pipeline.diagram.under_stage", lang), "pl-soft")
    return str(svg)
