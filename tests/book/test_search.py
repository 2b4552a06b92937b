"""What the search of an edition finds, and what it finds first: the page that is about the words, prose before code."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book"))

from edition import search  # noqa: E402

LANGS = ("en", "es", "pt")


def page(title="", heading="", text="", code=""):
    return (f"<body><nav><p>microlotes</p></nav><main><article><h1>{title}</h1><h2>{heading}</h2><p>{text}</p>"
            f"<div class='cell_output'><table><tr><td>salida</td></tr></table></div><pre>{code}</pre></article></main>")


def ranked(word: str, **pages: str) -> list[str]:
    """Which of the pages have the word, best first."""
    rules = search.language("es")
    found = search.weights({name: search.counts(search.Reader(html).fields, rules) for name, html in pages.items()})
    hits = found.get(search.fold(rules.stem(word)), {}) | found.get(word.lower(), {})
    return sorted(hits, key=lambda name: -hits[name])


def test_the_page_that_is_about_a_word_comes_first():
    filler = "Otra frase con palabras distintas. " * 20
    assert ranked("microlotes",
                  once=page("Expertos", text=filler + "microlotes"),
                  often=page("Etapas", text=filler + "microlote " * 9),
                  heading=page("Burbuja", "Los microlotes", filler), title=page("Microlotes", text=filler),
                  none=page("Otra", text=filler)) == ["title", "heading", "often", "once"]


def test_a_word_of_code_is_not_prose_and_a_name_of_code_is_found_behind_prose():
    code = page("Lab", code="answer = split(all_reduce(x), ColumnParallelLinear)  # answer")
    assert ranked("answer", lab=code, other=page("Otra")) == []
    assert ranked("salida", lab=code, other=page("Otra")) == []
    assert ranked("columnparallellinear", lab=code, chapter=page(text="La capa <code>ColumnParallelLinear</code>."),
                  other=page("Otra")) == ["chapter", "lab"]
    assert ranked("all_reduce", lab=code, other=page("Otra")) == ["lab"]


def test_navigation_is_no_text_of_a_page():
    assert ranked("microlotes", one=page("Otra"), two=page("Nada")) == []


@pytest.fixture(scope="module")
def ask(real_site, serve, chromium):
    """`ask(lang, words)` types into the search of the real book: addresses of what it finds, best first."""
    address, pages = serve(real_site), {}

    def found(lang: str, words: str) -> list[str]:
        if lang not in pages:
            pages[lang] = chromium.new_page()
            pages[lang].goto(f"{address}{lang}/search.html")
        tab = pages[lang]
        tab.locator("#query").fill(words)
        tab.wait_for_function("() => document.getElementById('found').textContent")
        hrefs = tab.locator("#results a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
        return [href.removesuffix(".html") for href in hrefs]

    yield found
    for tab in pages.values():
        tab.close()


@pytest.mark.browser
@pytest.mark.parametrize(("lang", "words", "first"), [
    ("es", "microlotes", "pipeline"), ("pt", "microlotes", "pipeline"), ("en", "microbatches", "pipeline"),
    ("es", "burbuja", "pipeline"), ("pt", "bolha", "pipeline"), ("en", "bubble", "pipeline"),
    ("es", "expertos", "experts"), ("pt", "especialistas", "experts"), ("en", "experts", "experts"),
    ("es", "planificacion", "pipeline"), ("pt", "agendamento", "pipeline"), ("en", "schedule", "pipeline"),
    ("es", "capacidad", "experts"), ("en", "attention", "tensor"), ("pt", "atencao", "tensor"),
    *[(lang, name, "tensor") for lang in LANGS for name in ("ColumnParallelLinear", "all_reduce")],
])
def test_the_chapter_about_it_is_found_first(ask, lang, words, first):
    assert ask(lang, words)[0] == first


@pytest.mark.browser
@pytest.mark.parametrize("lang", ["es", "pt"])
@pytest.mark.parametrize("word", ["answer", "return", "print"])
def test_an_english_word_of_the_code_finds_no_lab(ask, lang, word):
    assert not [page for page in ask(lang, word) if page.startswith("labs/")]
