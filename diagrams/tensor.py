"""Tensor parallelism: the cut MLP, heads with and without copies, the cut embedding."""

from mermaid.flowchart import FlowChart, Link, Node

from paralelo.draw.grid import Cell, grid
from paralelo.predict.tensor import kv_copies, kv_head_map, query_heads, vocab_range
from paralelo.words import say


def figures(lang: str) -> dict[str, str]:
    return {
        "tensor_mlp.mmd": mlp(lang),
        "tensor_embedding.mmd": embedding(lang),
        "tensor_attention_4.svg": attention(24, 4, 4, lang),
        "tensor_attention_8.svg": attention(24, 4, 8, lang),
    }


def mlp(lang: str, N: int = 2) -> str:
    """Column, activation, row: each rank works alone until the all-reduce."""
    x, all_reduce, z = _ends("X", "Z = Z₀ + Z₁", lang)
    nodes, links = [x, all_reduce, z], [Link(all_reduce, z)]
    for r in reversed(range(N)):                             # Mermaid lays out from the bottom
        column = Node(f"column{r}", _say("column", lang), shape="normal")
        hidden = Node(f"hidden{r}", _say("activation", lang), shape="round-edge")
        row = Node(f"row{r}", _say("row", lang), shape="normal")
        nodes.append(Node(f"rank{r}", _say("rank", lang, ranks=r), sub_nodes=[column, hidden, row]))
        links += [Link(x, column), Link(column, hidden), Link(hidden, row)]
        links.append(Link(row, all_reduce, message=f"Z{'₀₁'[r]}"))
    return _script(nodes, links)


def embedding(lang: str, N: int = 2, V: int = 8) -> str:
    """A masked lookup of four tokens in a table of V rows."""
    tokens = [1, 6, 3, 4]
    x, all_reduce, z = _ends(_say("tokens", lang, tokens=tokens), _say("found", lang), lang)
    nodes, links = [x, all_reduce, z], [Link(all_reduce, z)]
    for r in reversed(range(N)):
        rows = vocab_range(V, N, r)
        table = Node(f"table{r}", _say("rows", lang, first=rows[0], last=rows[-1]))
        answer = Node(f"answer{r}", " · ".join(f"e{t}" if t in rows else "0" for t in tokens), shape="round-edge")
        nodes.append(Node(f"rank{r}", _say("rank", lang, ranks=r), sub_nodes=[table, answer]))
        links += [Link(x, table), Link(table, answer), Link(answer, all_reduce)]
    return _script(nodes, links)


def attention(H: int, K: int, N: int, lang: str) -> str:
    """Who holds which query heads and KV heads: a row for each rank."""
    held, copies, cells = kv_head_map(H, K, N), kv_copies(K, N), []
    for rank in range(N):
        mine = query_heads(H, N, rank)
        queries = [Cell(str(h) if h in mine else "", ("q", rank) if h in mine else None, "tensor" if h in mine else "")
                   for h in range(H)]
        pairs = [Cell(f"K{h}" if h in held[rank] else "", ("kv", rank, h) if h in held[rank] else None,
                      "tensor" if h in held[rank] else "", hatched=h in held[rank] and rank % copies > 0)
                 for h in range(K)]
        cells.append([*queries, Cell(), *pairs])
    words = {"H": H, "K": K, "N": N, "copies": copies}
    legend = [(Cell(axis="tensor"), _say("heads", lang))]
    if copies > 1:
        legend.append((Cell(axis="tensor", hatched=True), _say("kv_copy", lang)))
    name = f"tensor_attention_{N}"
    return grid(cells, name=name, title=_say("heads_title", lang, **words), legend=legend, least=20,
                desc=_say("heads_copied" if copies > 1 else "heads_split", lang, **words),
                rows=[_say("rank", lang, ranks=r) for r in range(N)])


def _ends(first: str, last: str, lang: str) -> tuple[Node, Node, Node]:
    return (Node("x", first, shape="round-edge"), Node("allreduce", "all-reduce", shape="hexagon"),
            Node("z", last, shape="round-edge"))


def _script(nodes, links) -> str:
    return FlowChart("", nodes=nodes, links=links, orientation="LR").script.strip() + "\n"


def _say(id: str, lang: str, **fields) -> str:
    return say(f"tensor.diagram.{id}", lang, **fields)
