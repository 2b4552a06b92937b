"""`paralelo map`: coordinates of every rank, groups of every axis, which link each group crosses."""

import click

from paralelo.cli.frame import Whole, build, option
from paralelo.words import Refused, say

AXES = ("tp", "cp", "dp", "pp", "ep", "etp", "edp")
MOST = 2**15
DEGREE = Whole(1, 2**20)


def command(lang: str) -> click.Command:
    @build("map", lang)
    @option("--dp", lang, type=DEGREE, default=1)
    @option("--tp", lang, type=DEGREE, default=1)
    @option("--pp", lang, type=DEGREE, default=1)
    @option("--cp", lang, type=DEGREE, default=1)
    @option("--ep", lang, type=DEGREE, default=1)
    @option("--etp", lang, type=DEGREE, shown="etp")
    @option("--order", lang, default="tp-cp-ep-dp-pp")
    @option("--gpus-per-node", lang, type=DEGREE, default=8)
    @option("--axis", lang, type=click.Choice(AXES), default="tp")
    @option("--svg", lang, type=click.Path(), metavar="F")
    def map_(out, order, gpus_per_node, axis, svg, etp, **degrees):
        from paralelo.predict.layout import Layout

        etp = etp or (degrees["tp"] if degrees["ep"] == 1 else 1)
        layout = Layout(**degrees, etp=etp, order=order)
        if layout.world_size > MOST:
            raise Refused("layout.map.too_many", world_size=layout.world_size, most=MOST)
        if svg:
            from paralelo.draw.grid import rank_map

            picture = rank_map(layout, gpus_per_node, axis, out.lang)
            with open(svg, "w", encoding="utf-8", newline="\n") as to:
                to.write(picture)
        groups = {a: layout.groups(a) for a in AXES}
        if not out.json(_answer(layout, groups, gpus_per_node)):
            _show(out, layout, groups, gpus_per_node)
        return 0

    return map_


def _answer(layout, groups, per_node) -> dict:
    return {
        "world_size": layout.world_size, "order": layout.order, "gpus_per_node": per_node,
        "degrees": {a: getattr(layout, a) for a in AXES},
        "ranks": [{"rank": r, "node": r // per_node, **layout.coordinates(r)} for r in range(layout.world_size)],
        "groups": groups,
        "nodes_crossed": {a: layout.nodes_crossed(a, per_node) for a in AXES},
    }


def _show(out, layout, groups, per_node) -> None:
    words = {w: say(f"layout.map.{w}", out.lang) for w in
             ("rank", "node", "axis", "size", "count", "first", "link", "groups", "inside", "alone")}
    shown = [a for a in AXES if getattr(layout, a) > 1] or ["tp"]
    rows = [[r, r // per_node, *(layout.coordinates(r)[a] for a in shown)] for r in range(layout.world_size)]
    few = rows if len(rows) <= 64 else [*rows[:32], ["…"] * len(rows[0]), *rows[-16:]]
    title = say("layout.map.ranks", out.lang, world_size=layout.world_size, order=layout.order,
                nodes=-(-layout.world_size // per_node), gpus_per_node=per_node)
    out.table([words["rank"], words["node"], *shown], few, title)
    table = []
    for axis in AXES:
        size, crossed = layout.size(axis), layout.nodes_crossed(axis, per_node)
        link = (words["alone"] if size == 1 else words["inside"] if crossed == 1
                else say("layout.map.between", out.lang, nodes=crossed))
        first = groups[axis][0]
        text = " ".join(map(str, first[:8])) + (" …" if len(first) > 8 else "")
        table.append([axis, size, len(groups[axis]), text, link])
    out.table([words["axis"], words["size"], words["count"], words["first"], words["link"]], table, words["groups"])
