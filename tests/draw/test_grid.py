"""The grid: well-formed, stable, accessible, and showing exactly what it was given."""

import re
import xml.etree.ElementTree as ET

import pytest

from paralelo.draw.grid import Cell, exchange, grid, kv_heads, matrix, rank_map
from paralelo.predict.checkpoint import Cut, over
from paralelo.predict.experts import draw
from paralelo.predict.layout import Layout
from paralelo.words import Refused, languages

pytestmark = pytest.mark.layout

PICTURES = {
    "kv": lambda lang: kv_heads(24, 4, 8, lang), "kv_split": lambda lang: kv_heads(24, 4, 2, lang),
    "exchange": lambda lang: exchange(draw(500, 8, 2, 1.0).exchange(4), lang),
    "map": lambda lang: rank_map(Layout(dp=2, tp=8, pp=4), 8, "dp", lang),
    "wide": lambda lang: rank_map(Layout(dp=3, tp=2, cp=4), 40, "tp-cp", lang),
    "fused": lambda lang: matrix((34816, 5120), over((34816, 5120), 4, Cut(0, (17408, 17408))), lang,
                                 parts=[("gate", 17408), ("up", 17408)]),
    "copied": lambda lang: matrix((1024, 5120), over((1024, 5120), 8, Cut(0, copies=2)), lang),
}


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_in_every_language(name):
    pictures = {lang: PICTURES[name](lang) for lang in languages()}
    assert len(set(pictures.values())) == len(pictures)
    for lang, text in pictures.items():
        root = ET.fromstring(text)
        assert root.get("role") == "img" and PICTURES[name](lang) == text
        ids = re.findall(r' id="([^"]+)"', text)
        assert len(ids) == len(set(ids)) and root.get("aria-labelledby").split() == ids[:2]
        words = [e.text for e in root[:2]]
        assert all(words) and len(words[1]) <= 250 and "{" not in text.split("</style>")[1]
        size = [float(v) for v in root.get("viewBox").split()[2:]]
        for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
            x, y, w, h = (float(rect.get(k)) for k in ("x", "y", "width", "height"))
            assert x >= 0 and x + w <= size[0] and y >= 0 and y + h <= size[1]


def cell_texts(picture):
    """Texts that stand in the middle of something: labels of columns and cells."""
    return re.findall(r'<text [^>]*text-anchor="middle"[^>]*>([^<]*)</text>', picture)


def test_kv_heads_shows_the_map():
    picture = kv_heads(24, 4, 8)
    assert cell_texts(picture)[4:] == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert picture.count('class="pl-idle"') == 4 + 1                              # four copies and the legend
    assert "pl-idle" not in kv_heads(24, 4, 4).split("</style>")[1]
    assert "every head lies on 2 ranks" in picture


def test_exchange_shows_the_matrix():
    counts = draw(500, 8, 2, 1.0).exchange(4)
    assert cell_texts(exchange(counts))[4:] == [str(v) for row in counts for v in row]
    shades = [float(s) for s in re.findall(r'fill-opacity="([\d.]+)"', exchange([[10, 5], [0, 10]]))]
    assert shades == [0.6, 0.34, 0.08, 0.6]
    assert "0% leave" in exchange([[0]]) or "0.0% leave" in exchange([[0]])


def test_rank_map_marks_one_group():
    layout = Layout(dp=2, tp=8, pp=4)
    picture = rank_map(layout, 8, "pp", group=3)
    marked = re.findall(r'class="pl-pipeline"[^>]*><title>rank (\d+):', picture)
    assert [int(r) for r in marked] == layout.groups("pp")[3]
    assert cell_texts(picture) == [str(r) for r in range(64)]
    assert "on 4 nodes" in picture and "never leaves a node" in rank_map(layout, 8, "tp")


def test_matrix_is_to_scale():
    picture = matrix((8, 4), over((8, 4), 2, Cut(0)), parts=())
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" class="pl-tensor"', picture)]
    assert heights == [110, 110]
    uneven = matrix((10, 10), over((10, 10), 4, Cut(0, rule="chunk")))
    assert [float(h) for h in re.findall(r'height="([\d.]+)" class="pl-tensor"', uneven)] == [66, 66, 66, 22]


def test_text_is_escaped():
    picture = grid([[Cell("<b>", note='"&"')]], name="x", title="a < b", desc="&")
    assert ET.fromstring(picture)[0].text == "a < b" and "<b>" not in picture


def test_outlines_close():
    """An owner of an L of cells has an outline of six corners; a gap between rows ends it."""
    cells = [[Cell(owner=1), Cell()], [Cell(owner=1), Cell(owner=1)]]
    edges = lambda p: p.count('class="pl-edge"')  # noqa: E731
    assert edges(grid(cells, name="x", title="t", desc="d")) == 6
    assert edges(grid(cells, name="x", title="t", desc="d", breaks=[1])) == 8


@pytest.mark.parametrize("ask", [
    lambda: grid([], name="x", title="t", desc="d"), lambda: grid([[]], name="x", title="t", desc="d"),
    lambda: grid([[Cell()] * 5000], name="x", title="t", desc="d"), lambda: rank_map(Layout(dp=8192), 8, "dp"),
    lambda: kv_heads(28, 4, 7)])
def test_refused_in_every_language(ask):
    with pytest.raises(Refused) as refused:
        ask()
    assert len({refused.value.say(lang) for lang in languages()}) == len(languages())
