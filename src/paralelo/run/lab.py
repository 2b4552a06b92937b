"""What labs share: checks that grade themselves, the table of predicted and measured, a knob, sizes for this machine.

Output says the same in every language: `✓`, `✗ rank 1: 3 ≠ 4 → hint 2`, numbers with a point. It goes to stdout only. A
check never raises; its value is the points it gives, so that a grader which takes a cell's last value finds them.
"""

import math
from dataclasses import dataclass, field

__all__ = ["Table", "cases", "check", "findings", "gap", "gpus", "knob", "pick", "table"]


def check(got, want, *, hint: int | None = None, points: float = 1, tolerance: float = 1e-9,
          ranks: bool = False) -> float:
    """Points if `got` equals `want`, else 0; says ✓ or what differs.

    `got` may be a function without arguments, so that what it raises is told and not raised. With `ranks`, both are
    lists by rank and the first rank that differs is named. Numbers and tensors are equal within `tolerance`.

    >>> check(2 * 3, 6)
    ✓
    1
    >>> check([3, 4], [3, 3], hint=2, ranks=True)
    ✗ rank 1: 4 ≠ 3 → hint 2
    0
    >>> check(..., 6, hint=1)                        # not answered yet
    ✗ … → hint 1
    0
    >>> check(lambda: 1 / 0, 6)
    ✗ ZeroDivisionError: division by zero
    0
    """
    return _say(_difference(got, want, tolerance, ranks), hint, points)


def cases(function, expected: dict, *, hint: int | None = None, points: float = 1, tolerance: float = 1e-9) -> float:
    """Points if `function` gives what is expected for every case; a case is the tuple of its arguments.

    >>> cases(lambda a, b: a + b, {(1, 2): 3, (2, 2): 4})
    ✓
    1
    >>> cases(lambda a, b: a * b, {(2, 2): 4, (1, 2): 3}, hint=1)
    ✗ (1, 2): 2 ≠ 3 → hint 1
    0
    """
    for arguments, want in expected.items():
        arguments = arguments if isinstance(arguments, tuple) else (arguments,)
        wrong = _difference(lambda a=arguments: function(*a), want, tolerance)
        if wrong:
            shown = f"({', '.join(map(_short, arguments))})"
            return _say(wrong if wrong == "…" else f"{shown}: {wrong}", hint, points)
    return _say("", hint, points)


def _say(wrong: str, hint, points):
    print(f"✗ {wrong}" + (f" → hint {hint}" if hint is not None else "") if wrong else "✓")
    return 0 if wrong else points


def _difference(got, want, tolerance, ranks=False) -> str:
    """What is wrong with `got`, in one line; nothing if it equals `want`."""
    try:
        if callable(got) and not callable(want):
            got = got()
        if got is ... or (got is None and want is not None):
            return "…"
        if ranks:
            if not isinstance(got, list | tuple) or len(got) != len(want):
                return f"{_short(got)} ≠ {_short(want)}"
            for rank, (of_rank, wanted) in enumerate(zip(got, want, strict=True)):
                if wrong := _difference(of_rank, wanted, tolerance):
                    return wrong if wrong == "…" else f"rank {rank}: {wrong}"
            return ""
        return _unequal(got, want, tolerance)
    except Exception as error:                        # a learner's function may raise anything
        ranks_at_fault = getattr(error, "ranks", None)
        if ranks_at_fault:
            return f"rank {ranks_at_fault[0]}: {error.states[ranks_at_fault[0]].head or type(error).__name__}"
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _unequal(got, want, tolerance) -> str:
    if hasattr(want, "shape") and hasattr(want, "dtype"):
        import torch

        got, want = torch.as_tensor(got), torch.as_tensor(want)
        if got.shape != want.shape:
            return f"{tuple(got.shape)} ≠ {tuple(want.shape)}"
        gap = (got.double() - want.double()).abs().max().item() if want.numel() else 0.0
        size = want.double().abs().max().item() if want.numel() else 0.0
        return "" if gap <= tolerance * max(1.0, size) else f"max |Δ| = {gap:.3g}"
    if isinstance(want, dict) and isinstance(got, dict) and got.keys() == want.keys():
        return next((f"{k}: {w}" for k in want if (w := _unequal(got[k], want[k], tolerance))), "")
    if isinstance(want, list | tuple) and isinstance(got, list | tuple) and len(got) == len(want):
        return next((w if hasattr(b, "shape") else f"{_short(got)} ≠ {_short(want)}"
                     for a, b in zip(got, want, strict=True) if (w := _unequal(a, b, tolerance))), "")
    if hasattr(got, "item"):                          # a tensor of one number
        got = got.item()
    if _number(got) and _number(want):
        equal = math.isclose(got, want, rel_tol=tolerance, abs_tol=tolerance)
    elif isinstance(want, set | frozenset | range):
        want, got = sorted(want), sorted(got)
        equal = got == want
    else:
        equal = got == want
    return "" if equal else f"{_short(got)} ≠ {_short(want)}"


def _number(x):
    return hasattr(x, "__float__") and not isinstance(x, bool)


def _short(x) -> str:
    text = f"{x:.6g}" if isinstance(x, float) else repr(x)
    return text if len(text) <= 60 else text[:57] + "…"


def findings(messages) -> None:
    """What `predict` found wrong, in symbols: the message's own name and its fields. `✓` if it found nothing.

    >>> from paralelo.predict.pipeline import check as refuse, from_text
    >>> findings(refuse(from_text("F0 B0 F1 B1 / B0 F0 F1 B1")))
    ✗ before   rank 1   action B0   stage 1   microbatch 0   needs F0   needs_stage 1
    >>> findings([])
    ✓
    """
    for message in messages:
        print("✗ " + "   ".join([message.id.rpartition(".")[2], *(f"{k} {v}" for k, v in message.fields.items())]))
    if not messages:
        print("✓")


def gap(a, b) -> float:
    """The largest difference between two tensors, wherever they are; infinite if their shapes differ."""
    if a.shape != b.shape:
        return math.inf
    return (a.cpu().double() - b.cpu().double()).abs().max().item() if a.numel() else 0.0


@dataclass
class Table:
    """Rows of (what, p, m): predicted and measured, and their ratio. Shows itself as the last value of a cell."""

    unit: str = ""
    rows: list[tuple[str, float, float]] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """m/p of each row."""
        return [_ratio(p, m) for _, p, m in self.rows]

    def within(self, factor: float) -> bool:
        """Whether every measured value lies within a factor of its prediction, either way."""
        return all(1 / factor <= r <= factor for r in self.ratios)

    def __repr__(self) -> str:
        unit = f" / {self.unit}" if self.unit else ""
        cells = [("", "p" + unit, "m" + unit, "m/p")]
        for (name, p, m), ratio in zip(self.rows, self.ratios, strict=True):
            cells.append((name, _cell(p), _cell(m), f"{ratio:.3f}"))
        widths = [max(len(row[i]) for row in cells) for i in range(4)]
        return "\n".join("   ".join(cell.rjust(w) if i else cell.ljust(w)
                                    for i, (cell, w) in enumerate(zip(row, widths, strict=True))) for row in cells)


def table(*rows: tuple[str, float, float], unit: str = "") -> Table:
    """p (predicted), m (measured) and m/p of each row.

    >>> table(("all_reduce", 4096, 4096), ("idle", 0.5, 0.45), unit="B")
                 p / B   m / B     m/p
    all_reduce   4,096   4,096   1.000
    idle           0.5    0.45   0.900
    """
    return Table(unit, list(rows))


def _ratio(p, m):
    return m / p if p else 1.0 if m == p else math.inf


def _cell(x) -> str:
    return f"{x:,}" if isinstance(x, int) else f"{int(x):,}" if x == int(x) else f"{x:.4g}"


def gpus() -> int:
    """How many GPUs PyTorch finds here."""
    import torch

    return torch.cuda.device_count()


def pick(cpu, two_gpus):
    """`two_gpus` where there are two GPUs or more, else `cpu`: sizes that each kind of machine runs in seconds."""
    return two_gpus if gpus() >= 2 else cpu


def knob(draw, name: str, values: list, start=None) -> None:
    """One control and what it changes: shows `draw(value)`, again for each value that is chosen.

    `draw` gives text, or markup (SVG, HTML). What it gives for `start` is ordinary output: it stands there without a
    kernel, without ipywidgets and on paper. Works with ipywidgets 7.7 and 8.
    """
    from IPython.display import display

    start = values[0] if start is None else start
    shown = display(_shown(draw(start)), display_id=True)
    control(lambda value: shown.update(_shown(draw(value))), name, values, start)


def control(act, name: str, values: list, start):
    """The slider of a `knob`; None where there is no ipywidgets."""
    try:
        import ipywidgets
    except ImportError:
        return None
    from IPython.display import display

    slider = ipywidgets.SelectionSlider(options=values, value=start, description=name, continuous_update=False)
    slider.observe(lambda change: act(change["new"]), names="value")
    display(slider)
    return slider


def _shown(what):
    from IPython.display import HTML, Pretty

    return HTML(what) if what.lstrip().startswith("<") else Pretty(what)
