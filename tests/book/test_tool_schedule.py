"""The schedule explorer: what a reader does with it in the real browser, every number held against the command's."""

import ast
import json
import math
import re
import shlex
import sys
import threading
import zipfile
from functools import partial
from http.server import ThreadingHTTPServer
from importlib import util
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paralelo.cli import main
from paralelo.draw.moments import Moments
from paralelo.predict.pipeline import NAMES, build, simulate
from paralelo.words import Refused, number, percent, say, table

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "book"), str(ROOT / "benchmarks")]

import bench_page  # noqa: E402
from tools.frame import Session, decimal  # noqa: E402
from tools.schedule import TOOL  # noqa: E402

pytestmark = [pytest.mark.pipeline]
LANGS = ("en", "es", "pt")
FACTS = ("idle_share", "idle_over_ideal", "makespan", "ideal", "messages", "live")


@pytest.fixture(scope="module")
def site(real_site, serve):
    return serve(real_site)


def command(line: str, capsys, lang: str = "en") -> dict:
    """What the command says to this line of the shell."""
    program, *words = shlex.split(line)
    assert program == "paralelo"
    assert main([*words, "--json", "--lang", lang]) == 0
    return json.loads(capsys.readouterr().out)


def facts(tab) -> dict:
    """The numbers that the page shows: exact, and as written."""
    found = tab.locator("[data-slot=facts] data").evaluate_all("a => a.map(e => [Number(e.value), e.textContent])")
    return dict(zip(FACTS, found, strict=True))


def settle(tab) -> None:
    """Until the page has answered all that it was asked."""
    tab.wait_for_function("() => !document.querySelector('.tool').hasAttribute('aria-busy')", timeout=60_000)


def fill(tab, **values) -> None:
    for name, value in values.items():
        field = tab.locator(f"#tool-{name}")
        if name == "name":
            field.select_option(value)
        else:
            field.fill(str(value))
    settle(tab)


def rows(tab, slot: str) -> list[list[str]]:
    found = tab.locator(f"[data-slot={slot}] tbody tr")
    return found.evaluate_all("a => a.map(r => [...r.cells].map(c => c.textContent))")


# ---- in the browser


@pytest.mark.browser
@pytest.mark.parametrize("lang", LANGS)
def test_a_reader_explores_and_the_command_agrees(visit, site, lang, capsys):
    asked = []
    tab = visit(f"{site}{lang}/tools/schedule.html", permissions=["clipboard-read", "clipboard-write"])
    tab.on("request", lambda r: asked.append(urlsplit(r.url).path))
    before = facts(tab)
    assert before["idle_share"] == [3 / 11, percent(3 / 11, lang)] and not any("/vendor/" in p for p in asked)

    tab.get_by_role("button", name=table("tools", lang)["frame"]["start"]).click()
    settle(tab)
    assert facts(tab) == before                              # the example is what Python in the page says
    assert [p for p in asked if p.endswith(".wasm")] == ["/vendor/pyodide/pyodide.asm.wasm"]

    fill(tab, name="zb-h1", stages=6, microbatches=13, forward="1,5", weight="0.5", message="0.25", slow="2=1.5 0=2")
    line = tab.locator(".tool-command code").inner_text()
    assert line == ("paralelo schedule zb-h1 --stages 6 --microbatches 13 --forward 1.5 --weight 0.5 --message 0.25 "
                    "--slow 2=1.5 --slow 0=2")
    said, shown = command(line, capsys, lang), facts(tab)
    said["live"] = max(said["live_activations"])
    for name in FACTS:
        write = percent if name.startswith("idle") else number
        assert shown[name] == [said[name], write(said[name], lang)], name
    assert [(r[2], r[3], r[5]) for r in rows(tab, "ranks")] == [
        (number(a, lang), number(b, lang), number(held, lang))
        for (a, b), held in zip(said["windows"], said["live_activations"], strict=True)]
    tab.locator("details.tool-table summary").last.click()
    tab.wait_for_selector("[data-slot=actions] tbody tr")
    assert rows(tab, "actions") == [
        [f"rank {a['rank']}", a["kind"], str(a["stage"]), str(a["microbatch"]), number(a["start"], lang),
         number(a["end"], lang)] for a in said["actions"]]
    assert tab.locator("[data-slot=figure] svg > rect > title").count() == len(said["actions"])

    tab.get_by_role("button", name=table("tools", lang)["frame"]["copy"]).click()
    tab.wait_for_function("text => document.querySelector('[data-do=copy]').textContent === text",
                          arg=table("tools", lang)["frame"]["copied"])
    assert tab.evaluate("navigator.clipboard.readText()") == line

    # the state is in the address: another language, and the same address again, have it; Python waits to be asked
    other = LANGS[LANGS.index(lang) - 1]
    tab.locator(f".languages a[hreflang^={other}]").click()
    tab.wait_for_url(f"{site}{other}/tools/schedule.html?*")
    assert parse_qs(urlsplit(tab.url).query)["slow"] == ["2=1.5 0=2"]
    assert tab.locator("#tool-stages").input_value() == "6" and tab.locator("#tool-weight").is_visible()
    assert tab.locator(".tool-status").inner_text() == table("tools", other)["frame"]["asks"]
    tab.get_by_role("button", name=table("tools", other)["frame"]["start"]).click()
    settle(tab)
    assert {k: v[0] for k, v in facts(tab).items()} == {k: v[0] for k, v in shown.items()}
    assert tab.locator(".tool-command code").inner_text() == line
    tab.get_by_role("button", name=table("tools", other)["frame"]["reset"]).click()
    tab.wait_for_function("() => !location.search")
    settle(tab)
    assert {k: v[0] for k, v in facts(tab).items()} == {k: v[0] for k, v in before.items()}


def refusal(id: str, **fields):
    return lambda lang: Refused(id, **fields).say(lang)


def refused(function, *arguments):
    """The sentence of the library itself, whatever it is."""
    def sentence(lang):
        with pytest.raises(Refused) as error:
            function(*arguments)
        return error.value.say(lang)

    return sentence


WRONG = [
    (dict(name="interleaved", microbatches=9), "", refused(build, "interleaved", 4, 9, 2)),
    (dict(name="dualpipe-v", stages=6, microbatches=8), "", refused(build, "dualpipe-v", 6, 8)),
    (dict(name="1f1b", stages=""), "stages", refusal("cli.error.needs_value", option="Ranks S")),
    (dict(stages=65), "stages", refusal("cli.error.whole_from", option="Ranks S", value="65", least=1, most=64)),
    (dict(stages=64, microbatches=1024), "", refusal("draw.too_many", boxes=131072, limit=20000)),
    (dict(stages=4, microbatches=8, forward="x<b>"), "forward",
     refusal("cli.error.number_above", option="Forward f", value="x<b>", least=0, most=1e12)),
    (dict(forward="0"), "forward",
     refusal("cli.error.number_above", option="Forward f", value="0", least=0, most=1e12)),
    (dict(forward=1, slow="9=2"), "", refusal("pipeline.slow_stage", stage=9, last=3)),
    (dict(slow="two=2"), "slow", lambda lang: say(
        "tools.frame.pair", lang, option=say("tools.schedule.fields.slow", lang), value="two=2")),
    (dict(name="zb-h1", slow="", weight=3), "", refusal("pipeline.weight_of_backward", weight=3, backward=2)),
]


@pytest.mark.browser
@pytest.mark.parametrize("lang", LANGS)
def test_what_is_wrong_is_said_in_the_pages_language(visit, site, lang):
    tab = visit(f"{site}{lang}/tools/schedule.html")
    alert, answer = tab.locator(".tool-error[role=alert]"), tab.locator(".tool-answer")
    for values, field, sentence in WRONG:
        fill(tab, **values)
        assert alert.text_content() == sentence(lang)
        wrong = tab.locator("[aria-invalid=true]").evaluate_all("a => a.map(e => e.name)")
        assert wrong == [field] * bool(field)
        assert "stale" in answer.get_attribute("class") and "Traceback" not in tab.content()
    stages = tab.locator("#tool-stages")
    stages.press_sequentially("e")                           # "4e": nothing is missing, it is no number
    settle(tab)
    assert alert.text_content() == refusal("cli.error.whole_from", option="Ranks S", value="…", least=1, most=64)(lang)
    assert tab.locator("[aria-invalid=true]").evaluate_all("a => a.map(e => e.name)") == ["stages"]
    stages.fill("4")
    fill(tab, weight=1)
    assert alert.text_content() == "" and "stale" not in answer.get_attribute("class")
    assert facts(tab)["makespan"][0] == simulate(build("zb-h1", 4, 8)).makespan


@pytest.mark.browser
@pytest.mark.parametrize("lang", LANGS)
def test_the_cursor_steps_through_time(visit, site, lang):
    asked = []
    tab = visit(f"{site}{lang}/tools/schedule.html")
    tab.on("request", lambda r: asked.append(r.url))
    slider = tab.get_by_role("slider")

    def check(result, i):
        head, lines = Moments(result).say(i, lang)
        tab.wait_for_function("text => document.querySelector('.tool-moment p').textContent === text", arg=head)
        assert tab.locator(".tool-moment li").all_inner_texts() == lines
        assert slider.get_attribute("aria-valuetext") == head
        assert tab.get_by_role("status").text_content() == ". ".join([head, *lines])     # heard, not only seen
        box = tab.locator(".tool-cursor").evaluate("e => ['x', 'width'].map(k => Number(e.getAttribute(k)))")
        places = Moments(result).places(tab.locator("[data-slot=figure]").inner_html())
        assert box[0] == places[i]
        until = places[i + 1] if i + 1 < len(places) else places[i] + 2
        assert math.isclose(sum(box), until, abs_tol=.02)

    example = simulate(build("1f1b", 4, 8))
    slider.focus()
    tab.keyboard.press("ArrowRight")
    check(example, 1)
    tab.keyboard.press("End")
    check(example, len(Moments(example).times) - 1)
    assert not asked                                         # all of it before Python is there
    fill(tab, name="zb-v", stages=3, microbatches=7, backward=3)
    other = simulate(build("zb-v", 3, 7), backward=3)
    slider.focus()
    tab.keyboard.press("Home")
    check(other, 0)
    tab.get_by_role("button", name=table("tools", lang)["frame"]["next"]).click()
    check(other, 1)
    tab.get_by_role("button", name=table("tools", lang)["frame"]["previous"]).click()
    check(other, 0)
    svg = tab.locator("[data-slot=figure] svg")
    box, width = svg.bounding_box(), svg.evaluate("e => e.viewBox.baseVal.width")
    places = Moments(other).places(tab.locator("[data-slot=figure]").inner_html())
    svg.click(position={"x": (places[9] + 1) * box["width"] / width, "y": box["height"] / 3})
    check(other, 9)


@pytest.mark.browser
@pytest.mark.parametrize("lang", LANGS)
def test_without_javascript_the_example_is_there_to_read(visit, site, lang):
    tab = visit(f"{site}{lang}/tools/schedule.html", java_script_enabled=False, width=390)
    example = simulate(build("1f1b", 4, 8))
    text = tab.locator(".tool").inner_text()
    assert percent(example.idle_share, lang) in text and percent(example.idle_over_ideal, lang) in text
    assert table("tools", lang)["frame"]["noscript"] in text
    assert "paralelo schedule 1f1b --stages 4 --microbatches 8" in text
    assert tab.locator(".tool-form").is_hidden() and tab.get_by_role("slider").count() == 0
    title = say("pipeline.diagram.title", lang, name="1f1b", stages=4, microbatches=8)
    assert tab.get_by_role("img", name=title).count() == 1
    tab.locator("details.tool-table summary").last.click()
    assert tab.locator("[data-slot=actions] tbody tr").count() == 64


@pytest.mark.browser
@pytest.mark.parametrize("lang", LANGS)
def test_axe_finds_nothing_and_nothing_scrolls_sideways(visit, site, lang):
    from axe_playwright_python.sync_playwright import Axe

    tab = visit(f"{site}{lang}/tools/schedule.html", width=390, height=844, color_scheme="dark")
    found = Axe().run(tab).response["violations"]
    tab.emulate_media(color_scheme="light")
    fill(tab, name="interleaved", stages=8, microbatches=16)
    for details in tab.locator("details.tool-table:not([open]) summary").all():
        details.click()
    tab.wait_for_selector("[data-slot=actions] tbody tr")
    found += Axe().run(tab).response["violations"]
    fill(tab, forward="nothing")
    found += Axe().run(tab).response["violations"]
    assert not found, [(v["id"], v["nodes"][0]["html"][:200], v["nodes"][0].get("failureSummary")) for v in found]
    shaded = "[data-slot=ranks] .table"                      # on a phone it goes on beyond the edge, and says so
    for width in (320, 390, 768, 1440):
        tab.set_viewport_size({"width": width, "height": 844})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        words = tab.locator(".tool-command span")
        assert "".join(words.all_inner_texts()) == tab.locator(".tool-command code").inner_text().replace(" ", "")
        assert words.evaluate_all("all => all.every(e => e.getClientRects().length === 1 && e.offsetHeight < 40)")
        if width == 390:
            assert tab.locator(shaded).evaluate("e => e.scrollWidth > e.clientWidth")
            assert "local" in tab.locator(shaded).evaluate("e => getComputedStyle(e).backgroundAttachment")


@pytest.mark.browser
def test_python_runs_under_the_strictest_policy(visit, real_site):
    """The page's own policy binds the page only; a host may send it with every file. Nothing here may need more."""
    spec = util.spec_from_file_location("book_serve", ROOT / "book" / "serve.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (real_site / "en" / "tools" / "schedule.html").read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert "'unsafe-eval'" not in policy and "'wasm-unsafe-eval'" in policy

    class Strict(module.Handler):
        def end_headers(self):
            self.send_header("Content-Security-Policy", policy)
            super().end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Strict, directory=str(real_site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        tab = visit(f"http://127.0.0.1:{server.server_address[1]}/en/tools/schedule.html")
        fill(tab, microbatches=16)
        assert facts(tab)["makespan"][0] == 57
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.browser
@pytest.mark.parametrize("lang", LANGS)
def test_a_lost_connection_is_said_and_the_next_try_works(chromium, site, lang):
    with chromium.new_context() as context:
        tab = context.new_page()
        broken = [True]
        context.route("**/*.wasm", lambda route: route.abort() if broken[0] else route.continue_())
        tab.goto(f"{site}{lang}/tools/schedule.html")
        fill(tab, microbatches=16)
        alert = tab.locator(".tool-error[role=alert]")
        assert alert.text_content() == table("tools", lang)["frame"]["failed"]
        broken[0] = False
        tab.get_by_role("button", name=table("tools", lang)["frame"]["start"]).click()
        settle(tab)
        assert alert.text_content() == "" and facts(tab)["makespan"][0] == 57


@pytest.mark.browser
def test_times_are_measured(chromium, real_site, record_property):
    """The benchmark measures what it says, each time once; how long it took is on record, and no test's business."""
    times = bench_page.measure(chromium.browser_type, real_site, runs=1, names=["1f1b", "zb-v"])
    record_property("milliseconds", times)
    assert list(times) == ["cold", "warm", "1f1b", "zb-v"] and all(min(found) > 0 for found in times.values())


# ---- without a browser


def test_one_copy_for_all_languages_and_its_licence(real_site):
    core = real_site / "vendor" / "pyodide"
    for name in ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json"):
        assert (core / name).read_bytes() == (ROOT / "node_modules" / "pyodide" / name).read_bytes()
    assert [p.parent for p in real_site.rglob("*.wasm")] == [core]
    version = json.loads((ROOT / "package.json").read_text())["dependencies"]["pyodide"]
    assert re.fullmatch(r"[\d.]+", version) and version in (core / "NOTICE.txt").read_text()
    assert "MPL-2.0" in (core / "NOTICE.txt").read_text()
    [wheel] = (real_site / "vendor").glob("paralelo-*.whl")
    for lang in LANGS:
        page = (real_site / lang / "tools" / "schedule.html").read_text(encoding="utf-8")
        assert f'data-wheel="{wheel.name}"' in page


def imported(source: Path) -> set[str]:
    """What a file imports, also inside its functions."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return found


def test_the_compiled_library_has_all_that_a_tool_may_import(real_site):
    """Same modules as npm's sources, each one compiled; nothing that the page's code names was left out."""
    with (zipfile.ZipFile(real_site / "vendor" / "pyodide" / "python_stdlib.zip") as made,
          zipfile.ZipFile(ROOT / "node_modules" / "pyodide" / "python_stdlib.zip") as given):
        here, there = set(made.namelist()), set(given.namelist())
        assert made.testzip() is None and {name.removesuffix("c") for name in here} < there
        assert len({made.read(name)[:4] for name in here}) == 1            # one Python's magic number
        assert (real_site / "vendor" / "pyodide" / "python_stdlib.zip").stat().st_size < 3_000_000
    library = ROOT / "src" / "paralelo"
    code = [p for part in ("predict", "draw", "words") for p in (library / part).rglob("*.py")]
    code += [library / "__init__.py", *(ROOT / "book" / "tools").glob("*.py")]
    wanted = set().union(*map(imported, code))
    known = {n for n in wanted if {f"{n.replace('.', '/')}.py", f"{n.replace('.', '/')}/__init__.py"} & there}
    assert {"fractions", "json", "urllib.parse"} <= known
    lost = {n for n in known if not {f"{n.replace('.', '/')}.pyc", f"{n.replace('.', '/')}/__init__.pyc"} & here}
    assert not lost


numbers = st.one_of(st.integers(1, 50), st.floats(0.01, 100).map(lambda x: decimal(repr(round(x, 4)))))


@st.composite
def values(draw):
    name = draw(st.sampled_from(NAMES))
    stages = draw(st.integers(1, 5))
    found = {"name": name, "stages": stages, "microbatches": stages * draw(st.integers(2, 3)), "forward": draw(numbers),
             "backward": draw(numbers), "message": draw(st.one_of(st.just(0), numbers)),
             "slow": tuple(draw(st.dictionaries(st.integers(0, stages - 1), numbers, max_size=2)).items())}
    if name == "interleaved":
        found["chunks"] = draw(st.integers(1, 3))
    if "weight" in {f.name for f in TOOL.asked(found)}:
        found["weight"] = decimal(repr(round(found["backward"] / draw(st.integers(1, 3)), 4)))
        found["weight"] = min(found["weight"], found["backward"])
    return found


@settings(max_examples=40, deadline=None)
@given(values())
def test_address_command_and_answer_say_the_same(found):
    """Whatever is asked: the address gives it back, and the command that is offered prints the page's numbers."""
    import contextlib
    import io

    query = TOOL.query(found)
    texts = {name: texts[0] for name, texts in parse_qs(query, keep_blank_values=True).items()}
    assert TOOL.read(texts, "en") == found
    session = Session(TOOL, "en")
    reply = json.loads(session.ask(query))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*shlex.split(reply["command"])[1:], "--json"]) == 0
    said = json.loads(out.getvalue())
    said["live"] = max(said["live_activations"])
    shown = dict(zip(FACTS, map(float, re.findall(r'<data value="([^"]+)"', reply["slots"]["facts"])), strict=True))
    assert shown == {name: said[name] for name in FACTS} and reply["query"] == query
    assert session.table("actions").count("<tr>") == len(said["actions"]) + 1
    assert len(reply["places"]) == len({t for a in said["actions"] for t in (a["start"], a["end"])})


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from([f.name for f in TOOL.fields]), st.text(max_size=12)), st.sampled_from(LANGS))
def test_whatever_is_typed_gets_an_answer_or_a_sentence(texts, lang):
    from urllib.parse import urlencode

    reply = json.loads(Session(TOOL, lang).ask(urlencode(texts)))
    assert ("slots" in reply) != ("error" in reply and bool(reply["error"]))


def test_moments_hold_what_the_simulation_says_at_most():
    """The most that a rank holds over all moments is its live activations; it works as long as it is busy."""
    for name in NAMES:
        result = simulate(build(name, 3, 6, 2 if name == "interleaved" else 1), 1.5, 2.5, 1, 0.25)
        moments = Moments(result)
        seen = [moments.ranks(i) for i in range(len(moments.times))]
        assert [max(at[rank][1] for at in seen) for rank in range(3)] == result.live_activations, name
        lengths = [b - a for a, b in zip(moments.times, moments.times[1:], strict=False)] + [0]
        for rank in range(3):
            busy = sum(length for length, at in zip(lengths, seen, strict=True) if at[rank][0])
            assert math.isclose(busy, result.busy(rank)), name
