"""The timeline of a schedule: what was simulated, or what was measured, in one drawing.

A row is a rank, a box an action with its kind and microbatch, hatching is waiting. The drawing takes a
`predict.pipeline.Simulation` or any events `(rank, kind, stage, microbatch, start, end)`, so a trace of a real run is
drawn by the same code as its prediction. Kinds differ in lightness and letter: F light, B dark, I in between, W hollow.
A bar at the top of a box marks chunks after the first (shorter bars are earlier chunks).

    >>> from paralelo.predict.pipeline import build, simulate
    >>> picture = timeline(simulate(build("1f1b", 2, 2)), name="small")
    >>> picture.count("<rect") > 8, picture == timeline(simulate(build("1f1b", 2, 2)), name="small")
    (True, True)
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from paralelo.draw.svg import Svg, text_width
from paralelo.words import Refused, number, say

MOST = 20_000
LEFT, ROW, GAP, WIDTH, FONT = 62, 26, 6, 720, 11
SYMBOLS = {"rank": "rank {rank}", "time": "t", "time_ms": "t / ms", "idle": "–", "chunk": "1, 2, …", "box":
           "{action} · rank {rank} · stage {stage} · {start}–{end}", "summary": "{makespan:.4g} · {idle_share:.1%}",
           "makespan": "{makespan:.4g}", "numbers": "{idle_share:.1%} · {idle_over_ideal:.1%} · {live}",
           **{kind: kind for kind in "FBIW"}}


class _Panel:
    """Events of one timeline with what must be known to draw them."""

    def __init__(self, source, label: str = ""):
        self.label = label
        simulated = hasattr(source, "timeline")
        if simulated and len(source.schedule) > MOST:
            raise Refused("draw.too_many", boxes=len(source.schedule), limit=MOST)
        self.events = list(source.timeline()) if simulated else [tuple(e)[:6] for e in source]
        if not self.events:
            raise Refused("draw.nothing")
        if len(self.events) > MOST:
            raise Refused("draw.too_many", boxes=len(self.events), limit=MOST)
        self.events = sorted(((r, str(k), s, m, float(a), float(b)) for r, k, s, m, a, b in self.events),
                             key=lambda e: (e[0], e[4], e[5]))
        self.begin = min(e[4] for e in self.events)
        self.end = max(e[5] for e in self.events)
        self.ranks = source.schedule.stages if simulated else 1 + max(e[0] for e in self.events)
        self.microbatches = len({e[3] for e in self.events})
        self.schedule = source.schedule if simulated else None
        self.simulation = source if simulated else None
        held = {}
        for rank, _, stage, *_ in self.events:
            held.setdefault(rank, set()).add(stage)
        self.chunk = {(rank, stage): i for rank, stages in held.items() for i, stage in enumerate(sorted(stages))}
        self.chunks = max(map(len, held.values()))
        busy = sum(b - a for *_, a, b in self.events)
        span = self.end - self.begin
        self.idle_share = 1 - busy / (self.ranks * span) if span else 0.0
        if simulated:
            self.idle_share = source.idle_share

    def broken(self) -> set[int]:
        """Boxes that start before their input exists: indices into `events`."""
        done, last = {}, max(e[2] for e in self.events)
        for _, kind, stage, m, _, end in self.events:
            done["B" if kind == "I" else kind, stage, m] = end
        wrong = set()
        for i, (_, kind, stage, m, start, _) in enumerate(self.events):
            needs = {"F": [("F", stage - 1)] if stage else [], "W": [("B", stage)]}.get(
                kind, [("F", stage)] + [("B", stage + 1)] * (stage < last))
            if any((k, s, m) not in done or done[k, s, m] > start + 1e-9 for k, s in needs):
                wrong.add(i)
        return wrong


def _say(id: str, lang: str | None, **fields) -> str:
    if lang is None:
        return SYMBOLS.get(id, "{name} {stages} × {microbatches}" if "title" in id else "").format(**fields)
    return say(f"pipeline.diagram.{id}", lang, **fields)


def timeline(source, lang: str | None = "en", *, name: str = "timeline", title: str | None = None,
             desc: str | None = None, scale: float | None = None, until: float | None = None, unit: str = "units",
             mark_broken: bool = False, ratios: bool = False, plain: bool = False) -> str:
    """One SVG of a simulation, of events, or of several of them by label (`{label: simulation}`), on one scale.

    Without a language (`None`) it says everything in symbols: length and idle share stand beside a label.
    `scale` is pixels per unit of time and `until` the end of the axis: give both to make separate pictures comparable.
    `unit` is `"units"` or `"ms"` (measured). `mark_broken` outlines boxes that start before their input exists.
    `ratios` prints both idle ratios and each rank's live activations beneath every simulation. `plain` draws all boxes
    of a kind as one shape, without a name for each: for thousands of boxes that are drawn again at every change.
    """
    panels = ([_Panel(s, str(label)) for label, s in source.items()] if isinstance(source, Mapping)
              else [_Panel(source)])
    span = until or max(p.end - p.begin for p in panels) or 1.0
    shortest = min((e[5] - e[4] for p in panels for e in p.events if e[5] > e[4]), default=span)
    scale = scale or min(WIDTH / span, max(34 / shortest, 12 / span))
    ranks = sum(p.ranks for p in panels)
    heads = sum(1 for p in panels if p.label)
    height = 8 + ranks * (ROW + GAP) + heads * 24 + (len(panels) - 1) * 10 + 66
    height += sum(24 for p in panels if ratios and p.simulation)
    broken = [p.broken() if mark_broken else set() for p in panels]
    wrong, first = sum(map(len, broken)), panels[0]
    fields = {"name": ", ".join(p.label for p in panels if p.label) or (first.schedule.name if first.schedule else ""),
              "stages": max(p.ranks for p in panels), "microbatches": max(p.microbatches for p in panels)}
    if title is None:
        kind = "title" if unit != "ms" and (first.schedule or heads) else "title_measured"
        title = _say(f"{kind}{'_of' if kind != 'title' and fields['name'] else ''}", lang, **fields)
    if desc is None:
        kind = "broken" if wrong else "several" if heads > 1 else "measured" if unit == "ms" else ""
        numbers = {"broken": wrong, "makespan": max(p.end - p.begin for p in panels),
                   "idle_share": first.idle_share, "name": fields["name"]}
        desc = _say(f"desc{'_' + kind if kind else ''}", lang, **numbers)

    kinds = [k for k in "FBIW" if any(e[1] == k for p in panels for e in p.events)]
    legend = [(k, _say(k, lang)) for k in kinds] + [("idle", _say("idle", lang))]
    legend_width = LEFT + sum(32 + text_width(words, 12) for _, words in legend)
    width = max(LEFT + span * scale + 14, min(legend_width, LEFT + WIDTH + 14), 260)
    lines = _flow(legend, width)
    height += 20 * (len(lines) - 1) + (18 if any(p.chunks > 1 for p in panels) else 0)
    svg = Svg(name, width, height, title, desc, left=LEFT, scale=f"{scale:g}")
    hatch = svg.hatch()
    y = 8.0
    for panel, marked in zip(panels, broken, strict=True):
        if panel.label:
            svg.text(LEFT, y + 12, panel.label, "pl-head")
            below = ratios and panel.simulation
            summary = _say("makespan" if below else "summary", lang,
                          makespan=panel.end - panel.begin, idle_share=panel.idle_share)
            svg.text(LEFT + text_width(panel.label, 13) + 12, y + 12, summary, "pl-soft")
            y += 24
        _rows(svg, panel, marked, y, scale, hatch, lang, plain)
        y += panel.ranks * (ROW + GAP) + 10
        if ratios and (result := panel.simulation):
            svg.text(LEFT, y + 4, _say(
                "numbers", lang, idle_share=float(result.idle_share), idle_over_ideal=float(result.idle_over_ideal),
                live=" · ".join(number(x, lang or "en") for x in result.live_activations)), "pl-soft")
            y += 24
    _axis(svg, y - 10, span, scale, lang, unit)
    y += 48
    for line in lines:
        x = float(LEFT)
        for kind, words in line:
            svg.rect(x, y - 10, 16, 12, f"pl-{kind}", **({"fill": hatch} if kind == "idle" else {}))
            svg.text(x + 21, y, words)
            x += 32 + text_width(words, 12)
        y += 20
    if any(p.chunks > 1 for p in panels):
        svg.rect(LEFT, y - 7, 16, 3, "pl-chunk")
        svg.text(LEFT + 21, y, _say("chunk", lang))
    return str(svg)


def _rows(svg: Svg, panel: _Panel, marked: set[int], top: float, scale: float, hatch: str, lang: str,
          plain: bool) -> None:
    for rank in range(panel.ranks):
        y = top + rank * (ROW + GAP)
        svg.text(LEFT - 8, y + ROW / 2 + 4, _say("rank", lang, rank=rank), anchor="end")
        svg.rect(LEFT, y, (panel.end - panel.begin) * scale, ROW, "pl-idle", fill=hatch)
    label, wide, beneath, shapes = _label(lang), cache(text_width), len(svg.parts), {}
    least, outline = text_width("0", 7) + 1.5, cache(lambda width, height: f"h{width:.2f}v{height}h-{width:.2f}z")
    for i, (rank, kind, stage, m, start, end) in enumerate(panel.events):
        x, y = LEFT + (start - panel.begin) * scale, top + rank * (ROW + GAP)
        width, action = (end - start) * scale, f"{kind}{m}"
        if plain:
            shapes.setdefault("pl-" + kind, []).append(f"M{x:.2f} {y:g}{outline(width, ROW)}")
        else:
            svg.rect(x, y, width, ROW, f"pl-{kind}",
                     title=label(action, rank, stage, start - panel.begin, end - panel.begin))
        for text, size in ((action, FONT), (str(m), FONT), (str(m), 9), (str(m), 7)) if width >= least else ():
            if wide(text, size) + 1.5 <= width:
                svg.text(x + width / 2, y + ROW / 2 + 0.36 * size + 1.5 * (panel.chunks > 1), text, f"pl-on-{kind}",
                         "middle", size)
                break
        if chunk := panel.chunk[rank, stage]:
            bar, cls = (width - 3) * chunk / (panel.chunks - 1), "pl-chunk-B" if kind == "B" else "pl-chunk"
            if bar > 0 and plain:
                shapes.setdefault(cls, []).append(f"M{x + 1.5:.2f} {y + 1.5:g}{outline(bar, 3)}")
            elif bar > 0:
                svg.rect(x + 1.5, y + 1.5, bar, 3, cls)
        if i in marked:
            svg.rect(x + 1.5, y + 1.5, max(width - 3, 1), ROW - 3, "pl-broken")
    for cls in sorted(shapes):                          # beneath the letters; bars after the boxes that they are on
        svg.path("".join(shapes[cls]), cls)
    svg.parts[beneath:] = svg.parts[len(svg.parts) - len(shapes):] + svg.parts[beneath:len(svg.parts) - len(shapes)]


def _label(lang: str) -> Callable[..., str]:
    """Names of boxes: the sentence is looked up once, every number is written once."""
    sentence = _say("box", lang, action="{0}", rank="{1}", stage="{2}", start="{3}", end="{4}")
    write = cache(lambda x: number(x, lang or "en"))
    return lambda action, *numbers: sentence.format(action, *map(write, numbers))


def _axis(svg: Svg, y: float, span: float, scale: float, lang: str, unit: str) -> None:
    svg.line(LEFT, y, LEFT + span * scale, y, "pl-axis")
    step = tick_step(span, most=max(2, int(span * scale / 56)))
    at = 0
    while at * step <= span * (1 + 1e-9):
        x = LEFT + at * step * scale
        svg.line(x, y, x, y + 4, "pl-axis")
        svg.text(x, y + 17, number(at * step, lang or "en"), "pl-tick", "middle")
        at += 1
    words = _say("time_ms" if unit == "ms" else "time", lang)
    svg.text(LEFT, y + 33, words, "pl-soft")


def tick_step(span: float, most: int = 10) -> float:
    """A round distance between ticks (1, 2 or 5 times a power of ten) such that there are at most `most` steps.

    >>> tick_step(33), tick_step(7, 20), tick_step(0.4)
    (5, 0.5, 0.05)
    """
    size = 10.0 ** -9
    while True:
        for factor in (1, 2, 5):
            step = factor * size
            if span / step <= most:
                step = float(f"{step:.3g}")
                return int(step) if step == int(step) else step
        size *= 10


def _flow(items: list[tuple], width: float) -> list[list[tuple]]:
    """Items into lines no wider than the picture."""
    lines, x = [[]], float(LEFT)
    for item in items:
        needs = 32 + text_width(item[1], 12)
        if lines[-1] and x + needs > width:
            lines.append([])
            x = float(LEFT)
        lines[-1].append(item)
        x += needs
    return lines


def timeline_mermaid(source, lang: str = "en", *, title: str | None = None) -> str:
    """The same timeline as a Mermaid Gantt chart. A unit of time is drawn as one second.

    >>> from paralelo.predict.pipeline import build, simulate
    >>> print(timeline_mermaid(simulate(build("gpipe", 1, 1))).splitlines()[-1])
        B0 :done, 1000, 3000
    """
    panel = _Panel(source)
    fields = {"name": panel.schedule.name if panel.schedule else "", "stages": panel.ranks,
              "microbatches": panel.microbatches}
    title = title or _say("gantt" if panel.schedule else "title_measured", lang, **fields)
    desc = _say("desc_gantt", lang, makespan=panel.end - panel.begin, idle_share=panel.idle_share)
    step = max(1, round(tick_step(panel.end - panel.begin)))
    lines = ["---", "displayMode: compact", "---", "gantt", f"    accTitle: {_line(title)}",
             f"    accDescr: {_line(desc)}", f"    title {_line(title)}", "    dateFormat x", "    axisFormat %s",
             f"    tickInterval {step}second"]
    tag = {"F": "active, ", "B": "done, ", "I": "crit, ", "W": ""}
    rank = None
    for r, kind, stage, m, start, end in panel.events:
        if r != rank:
            rank = r
            lines.append(f"    section {_say('rank', lang, rank=r)}")
        action = f"{stage}{kind}{m}" if panel.chunks > 1 else f"{kind}{m}"
        begin, stop = (round(1000 * (t - panel.begin)) for t in (start, end))
        lines.append(f"    {action} :{tag[kind]}{begin}, {stop}")
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    """A text that Mermaid takes as one line: no line breaks, and no signs that end a statement."""
    return " ".join(text.replace(";", ",").replace("#", "").replace(":", ",").split())


def simulations(names: Iterable[str], stages: int, microbatches: int, chunks: int = 2, **durations) -> dict:
    """Several schedules of one size by name, ready for one picture."""
    from paralelo.predict.pipeline import build, simulate

    return {n: simulate(build(n, stages, microbatches, chunks if n == "interleaved" else 1), **durations)
            for n in names}
