"""The grid: cells in rows and columns. One drawing for cut matrices, copied heads, exchanges and rank maps.

A cell has a text, an owner, an axis (its colour) and a shade. What one owner has is outlined, and shades are printed as
numbers too, so nothing rests on colour.

    >>> cells = [[Cell("0", owner=0), Cell("1", owner=1)]]
    >>> picture = grid(cells, name="pair", title="Two", desc="Two cells.")
    >>> picture.count('class="pl-edge"'), picture == grid(cells, name="pair", title="Two", desc="Two cells.")
    (5, True)

`kv_heads`, `exchange`, `matrix` and `rank_map` draw what `predict` hands out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paralelo.draw.svg import Svg, text_width
from paralelo.words import Refused, number, say

AXES = ("data", "tensor", "pipeline", "sequence", "expert")
AXIS_OF = {"dp": "data", "tp": "tensor", "pp": "pipeline", "cp": "sequence", "ep": "expert", "etp": "tensor",
           "edp": "data"}
MOST = 4096
ROW, FONT, GAP = 28, 12, 8


@dataclass(frozen=True)
class Cell:
    """A cell: `text` inside, `owner` (anything that compares), colour of an `axis` or none, `shade` from 0 to 1.

    `note` is what a pointer shows and a screen reader says; `hatched` marks what is there twice or not at all.
    """

    text: str = ""
    owner: object = None
    axis: str = ""
    shade: float | None = None
    note: str = ""
    hatched: bool = False


def grid(cells: Sequence[Sequence[Cell]], *, name: str, title: str, desc: str, rows: Sequence[str] = (),
         columns: Sequence[str] = (), corner: str = "", above: str = "", legend: Sequence[tuple[Cell, str]] = (),
         least: float = 34, breaks: Sequence[int] = ()) -> str:
    """One SVG. `rows` and `columns` are labels, `corner` names the rows and `above` the columns.

    `breaks` are row numbers before which a gap is left. `legend` explains cells in words, below.
    """
    cells = [list(row) for row in cells]
    count = sum(map(len, cells))
    if not count:
        raise Refused("draw.no_cells")
    if count > MOST:
        raise Refused("draw.too_many_cells", cells=count, limit=MOST)
    across = max(map(len, cells))
    texts = [c.text for row in cells for c in row] + list(columns)
    width = max(least, max(text_width(t, FONT) for t in texts) + 12)
    left = 6 + max([text_width(t, FONT) for t in [*rows, corner]] + [0]) + (GAP if rows or corner else 0)
    top = 6 + (18 if above else 0) + (20 if columns or corner else 0)
    y_of, y = [], top
    for i in range(len(cells)):
        y += GAP if i in breaks else 0
        y_of.append(y)
        y += ROW
    lines = _flow(legend, max(left + across * width, 300))
    wide = max(left + across * width + 6, left + text_width(above, FONT),
               *[10 + sum(30 + text_width(words, FONT) + 14 for _, words in line) for line in lines], 120)
    svg = Svg(name, wide, y + 8 + 20 * len(lines), title, desc)
    hatch = svg.hatch("twice", "pl-hatch-copy")
    if above:
        svg.text(left, 18, above, "pl-soft")
    if corner:
        svg.text(left - GAP, top - 7, corner, "pl-soft", "end")
    for j, label in enumerate(columns):
        svg.text(left + (j + 0.5) * width, top - 7, label, "pl-tick", "middle")
    for i, row in enumerate(cells):
        if i < len(rows):
            svg.text(left - GAP, y_of[i] + ROW / 2 + 4, rows[i], anchor="end")
        for j, cell in enumerate(row):
            _cell(svg, left + j * width, y_of[i], width, cell, hatch)
    _edges(svg, cells, left, y_of, width)
    y += 20
    for line in lines:
        x = 6.0
        for cell, words in line:
            _cell(svg, x, y - 11, 22, Cell("", cell.owner, cell.axis, cell.shade, "", cell.hatched), hatch, 14)
            svg.text(x + 28, y, words)
            x += 28 + text_width(words, FONT) + 16
        y += 20
    return str(svg)


def _cell(svg, x, y, width, cell, hatch, height=ROW):
    if cell.shade is not None:
        svg.rect(x, y, width, height, "pl-empty", cell.note)
        share = round(0.08 + 0.52 * min(1, max(0, cell.shade)), 3)
        svg.rect(x, y, width, height, f"pl-heat pl-heat-{cell.axis or 'data'}", cell.note, fill_opacity=share)
    else:
        svg.rect(x, y, width, height, f"pl-{cell.axis}" if cell.axis else "pl-empty", cell.note)
    if cell.hatched:
        svg.rect(x, y, width, height, "pl-idle", cell.note, fill=hatch)
    if cell.text:
        on = "pl-on-pipeline" if cell.axis == "pipeline" and cell.shade is None else ""
        svg.text(x + width / 2, y + height / 2 + 0.36 * FONT, cell.text, on, "middle")


def _edges(svg, cells, left, y_of, width):
    """Thick outlines around what one owner has: sides of its cells behind which it has nothing, joined into lines."""
    def owner(i, j):
        return cells[i][j].owner if 0 <= i < len(cells) and 0 <= j < len(cells[i]) else None

    def together(i):                                        # no gap between row i − 1 and row i
        return 0 < i < len(cells) and y_of[i] - y_of[i - 1] == ROW

    across, down = set(), set()                             # (y, column) and (column, y)
    for i, row in enumerate(cells):
        for j, cell in enumerate(row):
            if cell.owner is None:
                continue
            if not together(i) or owner(i - 1, j) != cell.owner:
                across.add((y_of[i], j))
            if not together(i + 1) or owner(i + 1, j) != cell.owner:
                across.add((y_of[i] + ROW, j))
            if owner(i, j - 1) != cell.owner:
                down.add((j, y_of[i]))
            if owner(i, j + 1) != cell.owner:
                down.add((j + 1, y_of[i]))
    for y, start, stop in _runs(across, 1):
        svg.line(left + start * width, y, left + stop * width, y, "pl-edge", stroke_linecap="square")
    for j, start, stop in _runs(down, ROW):
        svg.line(left + j * width, start, left + j * width, stop, "pl-edge", stroke_linecap="square")


def _runs(pieces, step):
    """Pieces (line, start) of equal length, joined where they touch: (line, start, stop).

    >>> list(_runs({(0, 1), (0, 2), (3, 1)}, 1))
    [(0, 1, 3), (3, 1, 2)]
    """
    joined: list[list] = []
    for line, start in sorted(pieces):
        if joined and joined[-1][0] == line and joined[-1][2] == start:
            joined[-1][2] = start + step
        else:
            joined.append([line, start, start + step])
    return [tuple(run) for run in joined]


def _flow(legend, width):
    lines, x = [], 0.0
    for item in legend:
        needs = 44 + text_width(item[1], FONT)
        if not lines or x + needs > width:
            lines.append([])
            x = 0.0
        lines[-1].append(item)
        x += needs
    return lines


# ---- what predict hands out

def kv_heads(H: int, K: int, N: int, lang: str = "en", *, name: str = "kv_heads") -> str:
    """Which KV heads each of N ranks holds; copies hatched.

    >>> kv_heads(24, 4, 8).count('class="pl-idle"')                # four copies and the legend
    5
    """
    from paralelo.predict.tensor import kv_copies, kv_head_map

    held, copies = kv_head_map(H, K, N), kv_copies(K, N)
    cells = []
    for rank, heads in enumerate(held):
        row = []
        for head in range(K):
            mine, copied = head in heads, copies > 1 and rank % copies > 0
            note = say("tensor.diagram.holds" if mine else "tensor.diagram.holds_not", lang, rank=rank, head=head)
            row.append(Cell(str(head) if mine else "", (rank // copies, head) if mine else None,
                            "tensor" if mine else "", note=note, hatched=mine and copied))
        cells.append(row)
    words = {"H": H, "K": K, "N": N, "copies": copies, "heads": K // N if N <= K else 1}
    legend = [(Cell(axis="tensor"), say("tensor.diagram.held", lang))]
    if copies > 1:
        legend.append((Cell(axis="tensor", hatched=True), say("tensor.diagram.copy", lang)))
    which = "copied" if copies > 1 else "split"
    return grid(cells, name=name, title=say("tensor.diagram.kv_title", lang, **words),
                desc=say(f"tensor.diagram.kv_{which}", lang, **words), rows=_ranks(N, lang),
                columns=[str(h) for h in range(K)], above=say("tensor.diagram.kv_head", lang), legend=legend)


def exchange(matrix: Sequence[Sequence[int]], lang: str = "en", *, name: str = "exchange") -> str:
    """An exchange matrix: row s sends to column t; the diagonal stays at home.

    >>> exchange([[3, 1], [2, 0]]).count('class="pl-heat pl-heat-expert"')
    4
    """
    total, N = sum(map(sum, matrix)), len(matrix)
    most = max((v for row in matrix for v in row), default=0) or 1
    staying = sum(matrix[i][i] for i in range(N))
    cells = [[Cell(number(v, lang), axis="expert", shade=v / most, owner=("here", s) if s == t else None, note=say(
        "experts.diagram.cell", lang, value=v, source=s, target=t)) for t, v in enumerate(row)]
        for s, row in enumerate(matrix)]
    desc = say("experts.diagram.exchange_desc", lang, N=N, total=total, most=most,
               leaving=(total - staying) / total if total else 0)
    return grid(cells, name=name, title=say("experts.diagram.exchange_title", lang), desc=desc, rows=_ranks(N, lang),
                columns=[str(t) for t in range(N)], corner=say("experts.diagram.from", lang),
                above=say("experts.diagram.to", lang))


def rank_map(layout, gpus_per_node: int = 8, axis: str = "tp", lang: str = "en", *, group: int = 0,
             name: str = "rank_map") -> str:
    """Every rank where it sits, a row per node (nodes wider than 16 take several), with one group of an axis marked.

    >>> from paralelo.predict.layout import Layout
    >>> rank_map(Layout(dp=2, tp=2), 2, "dp").count('class="pl-data"')         # two ranks and the legend
    3
    """
    groups = layout.groups(axis)
    marked = set(groups[group])
    across = min(gpus_per_node, layout.world_size, 16)
    cells, labels, breaks = [], [], []
    color = AXIS_OF[axis.split("-")[0]]
    for node, ranks in enumerate(layout.nodes(gpus_per_node)):
        breaks.append(len(cells))
        for start in range(0, len(ranks), across):
            row = []
            for rank in ranks[start:start + across]:
                at = ", ".join(f"{a} {v}" for a, v in layout.coordinates(rank).items() if getattr(layout, a) > 1)
                note = say("layout.diagram.cell", lang, rank=rank, at=at or "0")
                mine = rank in marked
                row.append(Cell(str(rank), rank if mine else None, color if mine else "", note=note))
            cells.append(row)
            labels.append(say("layout.diagram.node", lang, node=node) if start == 0 else "")
    words = {"axis": axis, "size": layout.size(axis), "groups": len(groups), "world_size": layout.world_size,
             "nodes": layout.nodes_crossed(axis, gpus_per_node), "ranks": groups[group][:16]}
    crosses = "crosses" if words["nodes"] > 1 else "stays"
    return grid(cells, name=name, title=say("layout.diagram.title", lang, **words),
                desc=say(f"layout.diagram.{crosses}", lang, **words), rows=labels, breaks=breaks[1:],
                legend=[(Cell(axis=color), say("layout.diagram.group", lang, **words))])


def matrix(shape: tuple[int, int], held, lang: str = "en", *, axis: str = "tensor", name: str = "matrix",
           size: float = 220, parts: Sequence[tuple[str, int]] = ()) -> str:
    """A matrix and who holds which part of it, to scale: `held` is what `checkpoint.over` or `shards` gives.

    Pieces that several ranks hold are written once with all of them. `parts` names fused rows, from the top.

    >>> from paralelo.predict.checkpoint import Cut, over
    >>> matrix((8, 4), over((8, 4), 2, Cut(0, parts=(4, 4)))).count('class="pl-tensor"')
    4
    """
    owners: dict = {}
    for rank, pieces in enumerate(held):
        for piece in pieces:
            owners.setdefault(piece.box, []).append(rank)
    if len(owners) > MOST:
        raise Refused("draw.too_many_cells", cells=len(owners), limit=MOST)
    longest = max(*shape, 1)
    height, width = (max(64, size * s / longest) for s in shape)
    left = 12 + max([text_width(f"{p} ({number(n, lang)})", FONT) for p, n in parts]
                    + [text_width(number(shape[0], lang), FONT)])
    words = {"rows": shape[0], "columns": shape[1], "ranks": len(held), "pieces": len(owners),
             "share": max((sum(p.elements for p in pieces) for pieces in held), default=0) / (shape[0] * shape[1] or 1)}
    svg = Svg(name, left + width + 12, height + 38, say("tensor.diagram.matrix_title", lang, **words),
              say("tensor.diagram.matrix_desc", lang, **words))
    hatch = svg.hatch("odd")
    svg.text(left + width / 2, 16, number(shape[1], lang), "pl-tick", "middle")
    if not parts:
        svg.text(left - 8, 24 + height / 2 + 4, number(shape[0], lang), "pl-tick", "end")
    row = 0
    for part, n in parts:
        middle = 24 + height * (row + n / 2) / shape[0]
        svg.text(left - 8, middle + 4, f"{part} ({number(n, lang)})", "pl-tick", "end")
        row += n
    for box, ranks in sorted(owners.items()):
        (a, b), (p, q) = box
        x, y = left + width * p / shape[1], 24 + height * a / shape[0]
        w, h = width * (q - p) / shape[1], height * (b - a) / shape[0]
        who = _several(ranks)
        note = say("tensor.diagram.piece", lang, ranks=ranks[:16], rows=f"{a}–{b - 1}", columns=f"{p}–{q - 1}")
        svg.rect(x, y, w, h, f"pl-{axis}", note)
        if min(ranks) % 2:
            svg.rect(x, y, w, h, "pl-idle", note, fill=hatch)
        label = next((t for t in (say("tensor.diagram.rank", lang, ranks=who), who) if text_width(t, FONT) + 4 < w), "")
        if label and h > 13:
            back = text_width(label, FONT) + 6
            svg.rect(x + (w - back) / 2, y + h / 2 - 8, back, 16, "pl-plate")
            svg.text(x + w / 2, y + h / 2 + 0.36 * FONT, label, anchor="middle")
    row = 0
    for _, n in parts[:-1]:
        row += n
        svg.line(left, 24 + height * row / shape[0], left + width, 24 + height * row / shape[0], "pl-edge")
    return str(svg)


def _several(ranks: Sequence[int]) -> str:
    """`0`, `0, 4` or `0–7`."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}–{ranks[-1]}"
    return ", ".join(map(str, ranks[:4])) + ("…" if len(ranks) > 4 else "")


def _ranks(N, lang):
    return [say("tensor.diagram.rank", lang, ranks=str(r)) for r in range(N)]
