"""Experts: the two exchanges of a layer, a routing before and after balancing with its exchanges, the folded ranks."""

from functools import cache

from mermaid.flowchart import FlowChart, Link, Node

from paralelo.draw.grid import Cell, exchange, grid
from paralelo.predict.experts import Routing, draw, experts_of, rank_of_expert, steer
from paralelo.predict.layout import Layout
from paralelo.predict.quantity import ranges, shares
from paralelo.words import say

TOKENS, E, K, N, SKEW, SEED, FACTOR = 16, 8, 2, 4, 1.0, 15, 1.25     # the chapter's example


@cache
def routings() -> dict[str, Routing]:
    """The same logits twice: as drawn, and with the bias that evens them."""
    bias = steer(TOKENS, E, K, SKEW, SEED, steps=200)
    return {"skewed": draw(TOKENS, E, K, SKEW, SEED),
            "even": draw(TOKENS, E, K, SKEW, SEED, "sigmoid_bias", bias)}


def figures(lang: str) -> dict[str, str]:
    out = {"experts_layer.mmd": layer(lang), "experts_folding.svg": folding(lang)}
    for which, one in routings().items():
        out[f"experts_routing_{which}.svg"] = routing(one, lang, f"experts_routing_{which}")
        out[f"experts_exchange_{which}.svg"] = exchange(one.exchange(N), lang, name=f"experts_exchange_{which}")
    return out


def layer(lang: str, E: int = 4, N: int = 2) -> str:
    """Router, dispatch, experts, combine: two exchanges, and between them every rank works alone."""
    dispatch = Node("dispatch", _say("dispatch", lang), shape="hexagon")
    combine = Node("combine", _say("combine", lang), shape="hexagon")
    nodes, links = [dispatch, combine], []
    for r in range(N):
        x = Node(f"x{r}", _say("tokens", lang, rank=r), shape="round-edge")
        router = Node(f"router{r}", _say("router", lang), shape="normal")
        experts = Node(f"experts{r}", _say("experts", lang, rank=r, experts=list(experts_of(E, N)[r])), shape="normal")
        y = Node(f"y{r}", _say("outputs", lang, rank=r), shape="round-edge")
        nodes += [x, router, experts, y]
        links += [Link(x, router), Link(router, dispatch), Link(dispatch, experts), Link(experts, combine),
                  Link(combine, y)]
    return FlowChart("", nodes=nodes, links=links, orientation="LR").script.strip() + "\n"


def routing(one: Routing, lang: str, name: str) -> str:
    """A row per expert, a column per token: first and second choices, what is dropped, what stays on its rank."""
    capacity = one.capacity(FACTOR)
    kept, counts = one.kept(capacity), one.counts
    rank_of_token = [r for r, tokens in enumerate(ranges(shares(one.tokens, N))) for _ in tokens]
    cells, rows = [], []
    for e in range(E):
        rank, row, lost = rank_of_expert(E, N, e), [], 0
        for t, chosen in enumerate(one.choices):
            home = ("home", rank) if rank_of_token[t] == rank else None
            if e not in chosen:
                row.append(Cell(owner=home))
                continue
            place = chosen.index(e)
            lost += not kept[t][place]
            note = _say("choice" if kept[t][place] else "choice_dropped", lang, token=t, expert=e, place=place + 1)
            row.append(Cell(str(place + 1), home, "expert", note=note, hatched=not kept[t][place]))
        cells.append([*row, Cell(str(counts[e])), Cell(str(lost) if lost else "")])
        first = e == experts_of(E, N)[rank].start
        rows.append(_say("rank_expert" if first else "expert", lang, rank=rank, expert=e))
    lost = sum(not taken for row in kept for taken in row)
    words = {"tokens": one.tokens, "E": E, "k": K, "capacity": capacity, "lost": lost, "all": one.tokens * K,
             "most": max(counts), "least": min(counts)}
    legend = [(Cell(axis="expert"), _say("chosen", lang)), (Cell(axis="expert", hatched=True), _say("dropped", lang))]
    return grid(cells, name=name, title=_say("routing_title", lang, **words), desc=_say("routing_desc", lang, **words),
                rows=rows, columns=[*map(str, range(one.tokens)), "Σ", "✗"], above=_say("token", lang), legend=legend,
                least=26)


def folding(lang: str, dp: int = 2, cp: int = 4) -> str:
    """The same ranks as the dense layers see them and, for two expert degrees, the experts: coordinates."""
    cells, rows, breaks = [], [], []
    for axes, ep in ((("dp", "cp"), 1), (("edp", "ep"), 4), (("edp", "ep"), 8)):
        layout = Layout(dp=dp, cp=cp, ep=ep)
        breaks.append(len(cells))
        for axis in axes:
            at = [layout.coordinates(r)[axis] for r in range(layout.world_size)]
            size = layout.size(axis)
            cells.append([Cell(str(c), (axis, c), AXES_COLOR[axis], c / max(1, size - 1)) for c in at])
            rows.append(f"{axis} = {size}")
    return grid(cells, name="experts_folding", title=_say("folding_title", lang, dp=dp, cp=cp),
                desc=_say("folding_desc", lang, dp=dp, cp=cp), rows=rows, breaks=breaks[1:],
                columns=[str(r) for r in range(dp * cp)], above="rank", least=44)


AXES_COLOR = {"dp": "data", "cp": "sequence", "ep": "expert", "edp": "data"}


def _say(id: str, lang: str, **fields) -> str:
    return say(f"experts.diagram.{id}", lang, **fields)
