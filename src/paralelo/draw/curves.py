"""Measured curves, with matplotlib: points, their lines, and where one crosses a level.

    lines({"t₁/t₂": [(64, 0.2), (1024, 1.6)]}, "D", "t₁/t₂", level=1)

Returns the text of an SVG, the same to the byte for the same numbers. Labels are symbols, so one picture serves every
language. A series is told from the next by its marker and its dashes as well as its colour.
"""

import io
import math
from itertools import pairwise

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#6b7280"]
MARKERS = ["o", "s", "^", "D", "v"]
DASHES = ["-", "--", "-.", ":", "-"]


def crossing(points: list[tuple[float, float]], level: float = 1.0) -> float | None:
    """The first x at which the line through `points` comes to `level`, between points on a scale of logarithms.

    >>> crossing([(1, 0.5), (4, 2.0)])
    2.0
    >>> crossing([(1, 0.5), (4, 0.9)]) is None
    True
    """
    points = sorted(points)
    for (x0, y0), (x1, y1) in pairwise(points):
        if y0 < level <= y1 or y1 <= level < y0:
            share = (math.log(level) - math.log(y0)) / (math.log(y1) - math.log(y0))
            return math.exp(math.log(x0) + share * (math.log(x1) - math.log(x0)))
    return None


def lines(series: dict[str, list[tuple[float, float]]], xlabel: str, ylabel: str, *, level: float | None = None,
          fit: dict[str, list[tuple[float, float]]] | None = None, title: str = "", name: str = "curves") -> str:
    """An SVG of several series over a common x, both axes logarithmic; `fit` are lines without points.

    With `level`, a horizontal line there, and the x where each series crosses it.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif",
                                "font.sans-serif": ["DejaVu Sans"], "font.size": 11}):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for i, (label, points) in enumerate(series.items()):
            xs, ys = zip(*sorted(points), strict=True)
            axes.plot(xs, ys, DASHES[i % 5], marker=MARKERS[i % 5], color=COLOURS[i % 5], label=label, linewidth=1.8)
            at = crossing(points, level) if level else None
            if at:
                colour = COLOURS[i % 5]
                axes.plot([at], [level], marker="x", markersize=10, markeredgewidth=2, color=colour)
                axes.annotate(f"{at:.0f}", (at, level), textcoords="offset points", xytext=(6, -14), color=colour)
        for label, points in (fit or {}).items():
            xs, ys = zip(*sorted(points), strict=True)
            axes.plot(xs, ys, ":", color="#6b7280", label=label, linewidth=1.5)
        if level is not None:
            axes.axhline(level, color="#6b7280", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2 if level is not None else 10)
        axes.set_xticks(sorted({x for points in series.values() for x, _ in points}))
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        if title:
            axes.set_title(title)
        axes.grid(True, which="major", color="#d1d5db", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    return svg[svg.index("<svg"):]
