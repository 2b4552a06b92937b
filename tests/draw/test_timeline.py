"""The timeline: it shows what was simulated, box for box, in three languages, and says so to whoever cannot see it."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from paralelo.draw.svg import style, text_width
from paralelo.draw.timeline import simulations, timeline, timeline_mermaid
from paralelo.predict.pipeline import NAMES, build, simulate
from paralelo.words import Refused, languages, number, percent

pytestmark = pytest.mark.pipeline
SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[2]


def boxes(svg):
    """(kind, x, width, y, its title) of every action drawn."""
    for rect in ET.fromstring(svg).iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None:
            x, width, y = (float(rect.get(a)) for a in ("x", "width", "y"))
            yield rect.get("class").removeprefix("pl-"), x, width, y, title.text


@pytest.mark.parametrize("name", NAMES)
def test_every_action_is_drawn_where_it_happened(name):
    result = simulate(build(name, 3, 6, 2 if name == "interleaved" else 1), forward=2, backward=4, weight=2)
    svg = timeline(result, name="t", scale=10)
    drawn = sorted((kind, y, x, w) for kind, x, w, y, _ in boxes(svg))
    left, rows = 62, {rank: 8 + 32 * rank for rank in range(3)}
    expected = sorted((kind, rows[rank], left + 10 * start, 10 * (end - start))
                      for rank, kind, _, _, start, end in result.timeline())
    assert len(drawn) == len(expected)
    for one, other in zip(drawn, expected, strict=True):
        assert one[0] == other[0] and one[1:] == pytest.approx(other[1:], abs=0.011)


def test_accessible_in_every_language():
    result, seen = simulate(build("1f1b", 4, 8)), set()
    for lang in languages():
        svg = timeline(result, lang, name="here")
        root = ET.fromstring(svg)
        assert root.get("role") == "img"
        ids = {e.get("id"): e for e in root.iter() if e.get("id")}
        assert all(i.startswith("here-") for i in ids)
        title, desc = (ids[i].text for i in root.get("aria-labelledby").split())
        assert title and "27" in desc and len(desc) < 400
        seen.add((title, desc))
    assert len(seen) == len(languages())
    assert "27,3%" in timeline(result, "pt") and "27.3\u00a0%" in timeline(result, "es")


def test_same_bytes_every_time():
    code = ("from paralelo.draw.timeline import *; from paralelo.predict.pipeline import *; import sys;"
            "sys.stdout.write(timeline(simulate(build('zb-v', 4, 8)), 'es', name='x'))")
    texts = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60,
                            env={"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"}).stdout for seed in ("1", "2")}
    assert len(texts) == 1


def test_one_scale_for_several():
    both = timeline(simulations(["gpipe", "zb-h1"], 4, 8), name="both")
    widths = {kind: {round(w, 2) for k, _, w, *_ in boxes(both) if k == kind} for kind in "FBIW"}
    assert len(widths["F"]) == 1 and widths["B"] == {round(2 * w, 2) for w in widths["F"]}
    separate = [timeline(simulate(build(n, 4, 8)), name=n, scale=20, until=33) for n in ("gpipe", "zb-h1")]
    assert len({ET.fromstring(s).get("width") for s in separate}) == 1


def test_text_stays_inside_its_box():
    """With 64 microbatches the boxes are narrow: a label that does not fit is made smaller or left out."""
    for M in (8, 64, 300):
        svg = timeline(simulate(build("1f1b", 4, M)), name="t")
        rects = {(round(x + w / 2, 1), y): w for _, x, w, y, _ in boxes(svg)}
        for text in ET.fromstring(svg).iter(f"{SVG}text"):
            if (text.get("class") or "").startswith("pl-on-"):
                at, base = float(text.get("x")), float(text.get("y"))
                near = min((c for c in rects if 0 < base - c[1] < 26), key=lambda c: abs(c[0] - at))
                assert text_width(text.text, float(text.get("font-size"))) <= rects[near]


def test_measured_events():
    """A trace has the same names, its times are in milliseconds and start anywhere."""
    events = [(0, "F", 0, 0, 1000.25, 1003.5), (1, "F", 1, 0, 1003.75, 1006.0), (1, "B", 1, 0, 1006.0, 1012.5),
              (0, "B", 0, 0, 1012.75, 1020.25)]
    svg = timeline(events, "es", name="m", unit="ms")
    assert next(t for *_, t in boxes(svg)) == "F0, rank 0, etapa 0: de 0 a 3.25"
    assert min(x for _, x, *_ in boxes(svg)) == 62                  # the axis starts where the trace does
    assert "tiempo (ms)" in svg and "Línea de tiempo medida" in svg
    traced = timeline(simulate(build("1f1b", 2, 2)), "pt", unit="ms")
    assert "Linha do tempo medida de 1f1b" in traced and "tempo (ms)" in traced
    assert "20.0" in ET.fromstring(svg).find(f"{SVG}desc").text


def test_broken_boxes_are_outlined():
    """A hand-drawn timeline in which a stage runs what does not exist yet."""
    events = [(0, "F", 0, 0, 0, 1), (1, "F", 1, 0, 1, 2), (0, "F", 0, 1, 1, 2), (1, "F", 1, 1, 1.5, 2.5)]
    svg = timeline(events, name="b", mark_broken=True)
    assert svg.count('class="pl-broken"') == 1 and "cannot happen" in svg
    for name in NAMES:
        result = simulate(build(name, 3, 6, 2 if name == "interleaved" else 1))
        assert 'class="pl-broken"' not in timeline(result, mark_broken=True)


def test_ratios_and_live_activations_stand_under_each_schedule():
    shown = simulations(NAMES, 4, 8)
    svg = timeline(shown, "pt", ratios=True)
    for result in shown.values():
        live = " · ".join(number(x, "pt") for x in result.live_activations)
        assert f"{percent(result.idle_share, 'pt')} · " in svg and f": {live}</text>" in svg
        assert f" {percent(result.idle_over_ideal, 'pt')} · " in svg
    assert "5,5 · 4,5 · 3,5 · 2,5" in svg and "5,5 · 4,5" not in timeline(shown, "pt")


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(Refused, match="nothing to draw"):
        timeline([])
    with pytest.raises(Refused, match=r"20,000"):
        timeline(simulate(build("gpipe", 8, 2000)))


def test_a_picture_carries_the_rules_it_uses():
    svg = timeline(simulate(build("1f1b", 2, 2)))
    assert "pl-F{" in svg and "pl-W{" not in svg and "--pl-tensor" not in svg and svg.count("@media") == 1
    assert "pl-W{" in timeline(simulate(build("zb-h1", 2, 2)))


def test_style_has_light_and_dark_and_every_class():
    css = style()
    assert "prefers-color-scheme:dark" in css and "*/" not in css
    drawn = timeline(simulations(NAMES, 2, 4), name="t") + timeline(
        [(0, "F", 0, 0, 0, 1), (1, "F", 1, 0, 0, 1)], name="u", mark_broken=True)
    used = set(re.findall(r'class="(pl-[A-Za-z-]+)"', drawn))
    assert all(f".{c}" in css for c in used - {"pl-on-F"}) and "pl-broken" in used
    light, dark = css.split("prefers-color-scheme:dark", 1)
    assert set(re.findall(r"(--pl-[a-z-]+):", light)) == set(re.findall(r"(--pl-[a-z-]+):", dark))


def contrast(one, other):
    def light(colour):
        parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    a, b = sorted((light(one), light(other)), reverse=True)
    return (a + 0.05) / (b + 0.05)


def test_labels_can_be_read_on_their_boxes():
    """WCAG AA: 4.5 to 1 for every label on every kind of box, light and dark."""
    light, dark = (dict(re.findall(r"(--pl-[a-z-]+):(#[0-9a-f]{6})", part))
                   for part in style().split("prefers-color-scheme:dark", 1))
    for v in (light, dark):
        for text, box in (("#1b1f24", "pipeline-soft"), ("#1b1f24", "pipeline"), (v["--pl-on-dark"], "dark"),
                          (v["--pl-ink"], "paper"), (v["--pl-soft"], "paper")):
            assert contrast(text, v[f"--pl-{box}"]) >= 4.5, (text, box)


def test_mermaid_gantt():
    result = simulate(build("zb-v", 2, 4))
    for lang in languages():
        text = timeline_mermaid(result, lang)
        tasks = re.findall(r"^    (\d[FBIW]\d) :(?:\w+, )?(\d+), (\d+)$", text, flags=re.M)
        assert sorted((int(a), int(b)) for _, a, b in tasks) == sorted(
            (round(1000 * s), round(1000 * e)) for *_, s, e in result.timeline())
        assert text.count("section rank") == 2
        for line in text.splitlines():
            if line.strip().startswith(("title", "acc")):
                assert not set(";#") & set(line) and line.count(":") <= line.strip().startswith("acc")


@pytest.mark.long
def test_mermaid_draws_it():
    mermaidx = pytest.importorskip("mermaidx")
    svg = mermaidx.render(timeline_mermaid(simulate(build("1f1b", 4, 4)), "pt")).svg()
    assert svg.count("F3") == 4 and "rank 3" in svg


def test_diagrams_are_as_their_scripts_draw_them():
    done = subprocess.run([sys.executable, ROOT / "diagrams" / "build.py", "--check"], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr


def test_check_names_stale_missing_and_extra(tmp_path):
    """A copy of one drawing script and its builder: each kind of fault is named and exits 1; building mends all."""
    (tmp_path / "build.py").write_text((ROOT / "diagrams" / "build.py").read_text("utf-8"), "utf-8")
    (tmp_path / "one.py").write_text("def figures(lang):\n    return {'a.svg': lang, 'b.svg': 'b'}\n", "utf-8")

    def build_all(*argv):
        return subprocess.run([sys.executable, tmp_path / "build.py", *argv], capture_output=True, text=True,
                              timeout=60)

    assert build_all().returncode == 0 and build_all("--check").returncode == 0
    (tmp_path / "es" / "a.svg").write_text("old")
    (tmp_path / "pt" / "b.svg").unlink()
    (tmp_path / "en" / "c.svg").write_text("who drew this")
    done = build_all("--check")
    assert done.returncode == 1
    for line in ("es/a.svg: stale", "pt/b.svg: missing", "en/c.svg: extra"):
        assert line in done.stderr
    assert build_all().returncode == 0 and build_all("--check").returncode == 0
    assert not (tmp_path / "en" / "c.svg").exists()
