"""The book in the real browser, as a reader meets it; every other host is blocked and the console must stay silent."""

import re
import socket
import struct
import time
from urllib.parse import urlsplit

import pytest

from paralelo.words import table

pytestmark = [pytest.mark.browser]
LANGS = ("en", "es", "pt")
TAGS = {"en": "en", "es": "es", "pt": "pt-BR"}


@pytest.fixture(scope="module")
def small(small_book, serve):
    """Address of a book with one page of each kind."""
    return serve(small_book[0] / "site")


@pytest.fixture(scope="module")
def real(real_site, serve):
    """Address of the book itself."""
    return serve(real_site)


def pages(site, lang="es"):
    return sorted(p.relative_to(site).as_posix() for p in (site / lang).rglob("*.html"))


@pytest.mark.parametrize("page", ["pipeline", "labs/pipeline"])
def test_the_language_switch_keeps_the_page(visit, small, page):
    tab = visit(f"{small}en/{page}.html")
    for name, lang in (("Español", "es"), ("Português", "pt"), ("English", "en")):
        tab.get_by_role("link", name=name, exact=True).click()
        tab.wait_for_url(f"{small}{lang}/{page}.html")
        assert tab.locator("html").get_attribute("lang") == TAGS[lang]
        assert tab.locator(".languages [aria-current]").inner_text().strip() == name


@pytest.mark.parametrize(("lang", "word", "in_page"), [
    ("es", "etapas", "etapa"), ("pt", "estágios", "estágio"), ("en", "stages", "stage"),
    ("pt", "estagio", "estágio"), ("es", "activacion", "activaci"), ("pt", "ativacao", "ativaç"),
    ("es", "planificaciones", "planificación"),
])
def test_search_finds_other_forms_of_a_word_in_its_language_only(visit, small, lang, word, in_page):
    tab = visit(f"{small}{lang}/tensor.html")
    box = tab.get_by_role("search").get_by_role("searchbox")
    box.fill(word)
    box.press("Enter")
    tab.wait_for_selector("#results li")
    found = [tab.evaluate("a => a.href", a) for a in tab.locator("#results a").element_handles()]
    assert found and all(href.startswith(f"{small}{lang}/") for href in found)
    tab.wait_for_function("w => document.getElementById('results').textContent.includes(w)", arg=in_page)
    if lang != "en":
        tab.locator("#query").fill("answer")                # English, and in the glossary alone
        tab.wait_for_function("() => [...document.querySelectorAll('#results a')]"
                              ".map(a => a.getAttribute('href')).join() === 'glossary.html'")
        tab.locator("#query").fill("whatever")
        tab.wait_for_function("() => document.querySelectorAll('#results li').length === 0")
        assert tab.locator("#found").inner_text() == tab.locator("#found").get_attribute("data-none")


def test_dark_follows_the_system_and_the_readers_choice(visit, small):
    tab = visit(f"{small}es/pipeline.html", color_scheme="dark")
    paper = lambda: tab.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
    ink = "getComputedStyle(document.querySelector('.pl')).getPropertyValue('--pl-ink')"
    box = lambda: tab.evaluate(ink)  # noqa: E731
    dark = paper(), box()
    button = tab.locator(".theme-button")
    assert button.get_attribute("aria-label").endswith("Como el sistema")
    button.click()
    assert button.get_attribute("aria-label").endswith("Claro")
    light = paper(), box()
    assert light[0] != dark[0] and light[1] != dark[1]
    tab.goto(f"{small}pt/labs/pipeline.html")
    assert paper() == light[0] and tab.locator("html").get_attribute("data-theme") == "light"
    tab.locator(".theme-button").click()
    assert paper() == dark[0]


@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1440, 1920])
def test_no_page_scrolls_sideways(visit, small, small_book, width):
    tab = visit(f"{small}index.html", width=width, height=844)
    for page in ["index.html", "404.html", *pages(small_book[0] / "site")]:
        tab.goto(small + page)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, page


@pytest.mark.parametrize("lang", LANGS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit, small, small_book, lang, scheme):
    from axe_playwright_python.sync_playwright import Axe

    tab = visit(f"{small}index.html", width={"light": 1440, "dark": 390}[scheme], color_scheme=scheme)
    for page in ["index.html", "404.html", *pages(small_book[0] / "site", lang)]:
        tab.goto(small + page)
        if page.endswith("pipeline.html"):
            tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        found = Axe().run(tab).response["violations"]
        assert not found, (page, [(v["id"], v["nodes"][0]["html"][:200], v["nodes"][0].get("failureSummary"))
                                  for v in found])


def test_the_book_itself_in_every_language(visit, real, real_site):
    """Every real page: no console message, no other host, no sideways scroll on a phone, nothing serious for axe."""
    from axe_playwright_python.sync_playwright import Axe

    tab = visit(f"{real}index.html", width=390, height=844)
    for lang in LANGS:
        for page in pages(real_site, lang):
            tab.goto(real + page)
            tab.wait_for_load_state("networkidle")
            assert tab.evaluate("document.documentElement.scrollWidth") <= 390, page
            small = tab.locator(".cell_output svg.pl").evaluate_all("all => all.map(e => e.clientWidth / "
                                                                    "Math.min(640, e.viewBox.baseVal.width))")
            assert all(share > .95 for share in small), (page, small)       # drawings of a lab scroll, to be read
            found = [v for v in Axe().run(tab).response["violations"] if v["impact"] in ("serious", "critical")]
            assert not found, (page, [(v["id"], v["nodes"][0]["html"][:200]) for v in found])


@pytest.mark.parametrize(("locale", "yours"), [("pt-BR", "pt-BR"), ("es-MX", "es"), ("en-GB", "en"), ("de-DE", None)])
def test_the_landing_page_marks_the_readers_language(visit, small, locale, yours):
    tab = visit(f"{small}index.html", locale=locale)
    marked = tab.locator(".choose .yours")
    assert marked.count() == (yours is not None)
    if yours:
        assert marked.get_attribute("lang") == yours


def test_the_landing_page_speaks_no_language_before_the_readers(visit, small):
    """Fault: its drawing had English labels for every reader."""
    tab = visit(f"{small}index.html")
    labels = tab.locator(".hero-drawing text").all_text_contents()
    assert "F7" in labels and "rank 3" in labels
    assert not [word for word in labels if not re.fullmatch(r"[FB]\d?|\d+|rank \d|t|–", word)]
    for lang in LANGS:
        said = tab.locator(f".hero-drawing p[lang={TAGS[lang]}]")
        assert said.text_content() == table("book", lang)["hero"]


def test_without_javascript_everything_is_there_to_read(visit, small):
    tab = visit(f"{small}index.html", java_script_enabled=False, width=390)
    tab.get_by_role("link", name="Español").click()
    tab.get_by_role("link", name="Pipelines").first.click()
    tab.wait_for_url(f"{small}es/pipeline.html")
    assert tab.locator("figure.drawing svg").first.is_visible() and tab.locator(".katex-html").first.is_visible()
    assert not tab.locator(".theme-button").is_visible()
    tab.get_by_text("Respuesta").click()
    assert tab.get_by_text("la mitad").is_visible()
    tab.get_by_role("button", name="Contenido").click()
    assert tab.get_by_role("navigation", name="Contenido").is_visible()
    tab.goto(f"{small}es/search.html")
    assert "JavaScript" in tab.locator("main").inner_text()


def test_the_keyboard_is_enough(visit, small):
    tab = visit(f"{small}pt/pipeline.html", width=390, height=844)
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    box = tab.evaluate("document.activeElement.getBoundingClientRect().top")
    assert box >= 0
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "text"
    tab.reload()
    tab.keyboard.press("Tab")
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    contents = tab.get_by_role("navigation", name="Sumário")
    assert contents.is_visible()
    tab.keyboard.press("Escape")
    assert not contents.is_visible()
    wide = visit(f"{small}pt/pipeline.html")
    wide.keyboard.press("/")
    assert wide.evaluate("document.activeElement.type") == "search"
    focused = "el => { el.focus(); const s = getComputedStyle(el); return s.outlineStyle !== 'none'; }"
    wide.keyboard.press("Tab")
    assert wide.evaluate(focused, wide.locator(".languages a").first.element_handle())


def test_what_scrolls_inside_the_page_can_be_reached_by_keyboard(visit, small):
    tab = visit(f"{small}es/pipeline.html", width=390, height=844)
    tab.wait_for_function("() => document.querySelector('figure .scroll').tabIndex === 0")
    tab.locator("figure .scroll").first.focus()
    tab.keyboard.press("ArrowRight")
    tab.wait_for_function("() => document.querySelector('figure .scroll').scrollLeft > 0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("what", ["article > section .table", "figure .scroll"])
def test_an_edge_is_shaded_as_long_as_something_goes_on_beyond_it(visit, small, scheme, what):
    """Fault: on a phone nothing said that tables and figures go on."""
    from io import BytesIO

    from PIL import Image

    tab = visit(f"{small}es/pipeline.html", width=390, height=844, color_scheme=scheme)
    box = tab.locator(what).first

    def edges():
        """Of the columns of pixels at the left and the right edge, how far the most common colour is from the paper."""
        picture = Image.open(BytesIO(box.screenshot(animations="disabled"))).convert("L")
        width, height = picture.size
        paper = picture.resize((1, 1), Image.Resampling.NEAREST, (width // 2, 1, width // 2 + 1, 2)).getpixel((0, 0))
        common = lambda x: max(picture.crop((x, 0, x + 1, height)).getcolors())[1]  # noqa: E731
        return abs(common(1) - paper) > 12, abs(common(width - 2) - paper) > 12

    assert box.evaluate("e => e.scrollWidth > e.clientWidth") and edges() == (False, True)
    box.evaluate("e => { e.scrollLeft = 60; }")
    assert edges() == (True, True)
    box.evaluate("e => { e.scrollLeft = e.scrollWidth; }")
    assert edges() == (True, False)
    tab.set_viewport_size({"width": 1800, "height": 900})
    assert box.evaluate("e => e.scrollWidth <= e.clientWidth") and edges() == (False, False)


def test_on_paper_there_is_the_text_and_every_answer(visit, small):
    tab = visit(f"{small}es/pipeline.html", color_scheme="dark")
    tab.emulate_media(media="print")
    for gone in (".bar", ".contents", ".path", ".turn", ".foot"):
        assert not tab.locator(gone).first.is_visible()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.get_by_text("la mitad").evaluate("e => e.getBoundingClientRect().height > 0 && e.checkVisibility()")
    assert len(tab.pdf()) > 10_000


def test_nothing_moves_for_who_asked_for_rest(visit, small):
    tab = visit(f"{small}es/pipeline.html", reduced_motion="reduce")
    assert tab.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    assert tab.evaluate("document.getAnimations().length") == 0


def test_code_is_copied_without_its_prompt(visit, small):
    tab = visit(f"{small}es/pipeline.html", permissions=["clipboard-read", "clipboard-write"])
    block = tab.locator(".highlight-console")
    block.hover()
    block.get_by_role("button", name="Copiar").click()
    tab.wait_for_function("() => document.querySelector('.highlight-console .copy').textContent === 'Copiado'")
    copied = tab.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == "paralelo schedule 1f1b --stages 4 --microbatches 8"


def test_a_lost_reader_finds_the_way_back(chromium, small):
    page = chromium.new_context().new_page()
    answer = page.goto(f"{small}es/no/such/page.html")
    assert answer.status == 404
    said = page.locator("main").inner_text()
    assert "no such page" in said and "no existe" in said and "não existe" in said
    page.get_by_role("link", name="Português").click()
    page.wait_for_url(f"{small}pt/index.html")
    page.context.close()


def test_a_reader_who_leaves_half_way_is_no_error(small_book, serve, capfd):
    address = urlsplit(serve(small_book[0] / "site"))
    with socket.create_connection((address.hostname, address.port)) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))      # ends with a reset
        line.sendall(b"GET /en/pipeline.html HTTP/1.0\r\n\r\nGET")
    with socket.create_connection((address.hostname, address.port)) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(0.5)
    assert "Traceback" not in capfd.readouterr().err


def test_types_are_those_that_browsers_want(small_book, serve):
    from urllib.request import urlopen

    site = small_book[0] / "site"
    for name, kind in (("x.mjs", "text/javascript"), ("x.wasm", "application/wasm"), ("x.woff2", "font/woff2"),
                       ("x.svg", "image/svg+xml"), ("x.html", "text/html; charset=utf-8")):
        (site / name).write_bytes(b"")
        with urlopen(serve(site) + name) as answer:
            assert answer.headers["Content-Type"] == kind
        (site / name).unlink()
