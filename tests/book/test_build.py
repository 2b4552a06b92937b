"""The built book: addresses, languages, weight, policy; and building it again."""

import html
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from paralelo.words import languages, table

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book"))
TAGS = {"en": "en", "es": "es", "pt": "pt-BR"}


def text(page: str) -> str:
    """What a reader sees of a page, by eye or by ear."""
    page = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", page, flags=re.S)
    said = " ".join(re.findall(r'(?:aria-label|title|placeholder|data-\w+|alt)="([^"]*)"', page))
    return html.unescape(re.sub(r"<[^>]+>", " ", page) + " " + said)


@pytest.fixture
def own(small_book, tmp_path):
    """A copy of the small book, built, that a test may change."""
    to = tmp_path / "own"
    shutil.copytree(small_book[0], to, symlinks=True)
    return to


@pytest.mark.parametrize("lang", languages())
def test_every_page_is_at_its_address_in_its_language(small_book, lang):
    site = small_book[0] / "site" / lang
    for page in ("index", "tensor", "pipeline", "labs/pipeline", "tools/schedule", "bibliography", "search"):
        built = (site / f"{page}.html").read_text(encoding="utf-8")
        up = "../" * (1 + page.count("/"))
        assert built.startswith(f'<!DOCTYPE html>\n<html lang="{TAGS[lang]}"')
        for other, tag in TAGS.items():
            assert f'<link rel="alternate" hreflang="{tag}" href="{up}{other}/{page}.html">' in built
            assert re.search(rf'<a href="{up}{other}/{page}.html" lang="{tag}" hreflang="{tag}"', built)
    assert (site / "labs" / "pipeline.ipynb").is_file()


@pytest.mark.parametrize("lang", [lang for lang in languages() if lang != "en"])
def test_the_interface_speaks_the_language_of_the_page(small_book, lang):
    """Fault: a theme without a catalogue leaves its words in English."""
    flat = lambda d: [s for v in d.values() for s in (flat(v) if isinstance(v, dict) else [v])]  # noqa: E731
    own, english = set(flat(table("book", lang))), flat(table("book", "en"))
    foreign = {s for s in english if s not in own and not any(s in o for o in own)}
    foreign |= {"Link to this", "Permalink", "Note", "Warning", "Contents", "Next", "Table of", "Toggle", "Copy to"}
    for page in (small_book[0] / "site" / lang).rglob("*.html"):
        seen = text(page.read_text(encoding="utf-8"))
        for word in foreign:
            assert not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", seen), (page.name, word)


def test_a_page_has_its_figures_formulas_answers_and_sources(small_book):
    page = (small_book[0] / "site" / "es" / "pipeline.html").read_text(encoding="utf-8")
    assert len(re.findall(r'<figure class="drawing\b', page)) == 3 and page.count("<figcaption>") == 2
    assert 'aria-label="Figura de una planificación: A"' in page
    assert '<span class="katex">' in page and "<math" in page and "$" not in re.sub(r"\$\s+paralelo", "", text(page))
    assert "<summary>Respuesta</summary>" in page and "idle_share" not in page
    assert "Patarasuk y Yuan" in text(page)
    assert "[not](a-link.md)" in text(page) and "<!-- stays -->" in text(page)
    assert '<div class="table"><table' in page
    portuguese = (small_book[0] / "site" / "pt" / "pipeline.html").read_text(encoding="utf-8")
    assert table("book", "pt")["behind"] in portuguese and "Patarasuk e Yuan" in text(portuguese)
    assert table("book", "es")["behind"] not in page


def test_the_path_leads_from_chapter_to_lab_to_tool_and_back(small_book):
    site = small_book[0] / "site" / "en"
    steps = [site / f"{page}.html" for page in ("pipeline", "labs/pipeline", "tools/schedule")]
    for page in steps:
        paths = re.findall(r'<nav class="path.*?</nav>', page.read_text(encoding="utf-8"), flags=re.S)
        assert len(paths) == 2                                # under the title, and at the foot
        for path in paths:
            links = re.findall(r'href="([^"]+)"( aria-current="step")?', path)
            assert [(page.parent / href).resolve() for href, _ in links] == steps
            assert [bool(current) for _, current in links] == [step == page for step in steps]


def test_without_an_address_no_link_leaves_the_site(small_book):
    for page in (small_book[0] / "site").rglob("*.html"):
        for link in re.findall(r'href="(https?:[^"]+)"', page.read_text(encoding="utf-8")):
            assert link.startswith(("https://arxiv.org/", "https://doi.org/")), (page, link)


def test_with_an_address_pages_can_be_mended_and_labs_opened(own, make):
    config = yaml.safe_load((own / "_config.yml").read_text())
    config["repository"]["url"] = "https://github.com/Someone/course"
    (own / "_config.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    done = make.build(own, "es")
    assert done.returncode == 0, done.stderr
    chapter = (own / "site" / "es" / "pipeline.html").read_text(encoding="utf-8")
    lab = (own / "site" / "es" / "labs" / "pipeline.html").read_text(encoding="utf-8")
    assert "https://github.com/Someone/course/edit/main/book/es/pipeline.md" in chapter
    assert "https://github.com/Someone/course/blob/main/book/build.py" in chapter
    assert '<link rel="canonical" href="https://someone.github.io/course/es/pipeline.html">' in chapter
    assert ("https://colab.research.google.com/github/Someone/course/blob/published/labs/es/04_pipeline.ipynb" in lab
            and "https://github.com/Someone/course/edit/main/labs/pipeline.py" in lab)
    assert 'href="/course/es/index.html"' in (own / "site" / "404.html").read_text(encoding="utf-8")


def test_what_did_not_change_is_not_built_again(own, make):
    done = make.build(own)
    assert done.returncode == 0 and "up to date" in done.stdout


def test_one_changed_chapter_builds_its_edition_only(own, make):
    other = own / "site" / "pt" / "pipeline.html"
    stamp = other.stat().st_mtime_ns
    chapter = own / "book" / "es" / "tensor.md"
    chapter.write_text(chapter.read_text(encoding="utf-8") + "\nUna frase nueva.\n", encoding="utf-8")
    done = make.build(own)
    assert done.returncode == 0 and re.search(r"^building es:", done.stdout), done.stdout + done.stderr
    assert "Una frase nueva." in (own / "site" / "es" / "tensor.html").read_text(encoding="utf-8")
    assert other.stat().st_mtime_ns == stamp


def test_two_builds_at_once_take_turns(own, make):
    import fcntl
    import threading

    with (own / "build" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Timer(1.5, lambda: fcntl.flock(lock, fcntl.LOCK_UN)).start()
        done = make.build(own)
    assert done.returncode == 0 and done.stdout.startswith("another build is at work here: waiting for it\n")
    assert "up to date" in done.stdout


def test_what_reads_the_pages_is_a_source_too(own, make):
    """Fault: pages kept as they were read, after the code that reads them had changed; only --fresh showed it."""
    page, other = own / "site" / "es" / "glossary.html", own / "book" / "es" / "tensor.md"
    other.write_text(other.read_text(encoding="utf-8") + "\nOtra frase.\n", encoding="utf-8")
    assert make.build(own, "es").returncode == 0             # read here once: a copied tree is always read anew
    assert 'class="glossary' in page.read_text(encoding="utf-8")
    reader = own / "book" / "edition" / "glossary.py"
    before = reader.read_text(encoding="utf-8")
    reader.write_text(before.replace('classes=["glossary"]', 'classes=["glossary", "renamed"]'), encoding="utf-8")
    assert reader.read_text(encoding="utf-8") != before
    done = make.build(own, "es")
    assert done.returncode == 0, done.stderr
    assert "glossary renamed" in page.read_text(encoding="utf-8")


def test_what_cannot_be_made_is_one_sentence(monkeypatch, capsys, tmp_path):
    """No Node, no Pyodide, a tool without words: the build says which, with what would do, and no traceback."""
    from edition import NotBuilt, stage, tools, vendor

    build = import_module("build")                           # (an import line is sorted by whether build/ is there)
    monkeypatch.setattr(vendor, "BUILD", tmp_path)
    monkeypatch.setattr(vendor, "nodejs", lambda: str(tmp_path / "node"))
    with pytest.raises(NotBuilt, match=r"needs .*node, which is not on this machine: run `make setup`"):
        vendor.stdlib()
    monkeypatch.setattr(vendor, "nodejs", lambda: sys.executable)
    with pytest.raises(NotBuilt, match="cannot be made: SyntaxError"):
        vendor.stdlib()
    monkeypatch.setattr(vendor, "PYODIDE", tmp_path)
    with pytest.raises(NotBuilt, match="node_modules/pyodide is missing: run `make setup`"):
        vendor.stdlib()
    monkeypatch.setattr(tools, "table", lambda name, lang: {"frame": {}})
    with pytest.raises(NotBuilt, match=r"the tool schedule has no words in es: give .*es/tools.toml a table"):
        stage.tool(ROOT / "book" / "tools" / "schedule.py", "es")
    monkeypatch.setattr(sys, "argv", ["build.py", "es"])
    assert build.main() == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "has no words in es" in said


def test_a_new_title_and_a_new_drawing_reach_every_page_that_shows_them(own, make):
    chapter = own / "book" / "es" / "tensor.md"
    chapter.write_text(chapter.read_text(encoding="utf-8").replace("# Tensor es", "# Otro nombre"), encoding="utf-8")
    drawing = own / "diagrams" / "es" / "pipeline_1f1b_4_8.svg"
    drawing.write_text(drawing.read_text(encoding="utf-8").replace("rank 0", "rank nuevo"), encoding="utf-8")
    assert make.build(own).returncode == 0
    page = (own / "site" / "es" / "pipeline.html").read_text(encoding="utf-8")
    assert "Otro nombre" in page and "rank nuevo" in page
    assert "Otro nombre" in (own / "site" / "es" / "labs" / "pipeline.html").read_text(encoding="utf-8")


def test_a_page_that_is_gone_is_gone_from_the_site(own, make):
    for lang in TAGS:
        (own / "book" / "tools" / "schedule.py").unlink(missing_ok=True)
        chapter = own / "book" / lang / "pipeline.md"
        chapter.write_text(chapter.read_text(encoding="utf-8").replace("[tool](../tools/schedule.py)", "tool"),
                           encoding="utf-8")
    assert make.build(own).returncode == 0
    assert not list((own / "site").rglob("schedule.html"))
    assert "schedule" not in (own / "site" / "es" / "searchindex.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("wrong", [
    {"{cite:p}`nobody1900`": "nobody1900", "$\\nonsense{x}$": "nonsense", "[a](#no-such-anchor)": "no-such-anchor",
     "![](../../diagrams/es/pipeline_1f1b_4_8.svg)": "alt text"},
    {"<script>alert(1)</script>": "script inside the page",
     '<img src="https://example.org/x.png" alt="x">': "another host"},
    {"[a](nowhere.md)": "nowhere.md", "[b](../pt/pipeline.md)": "not of this edition"},
])
def test_a_warning_stops_the_build_and_stops_it_again(own, make, wrong):
    """Fault: a page with a warning is remembered as read, and the next build says nothing."""
    page = own / "book" / "es" / "tensor.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n" + "\n\n".join(wrong) + "\n", encoding="utf-8")
    for _ in range(2):
        done = make.build(own, "es")
        assert done.returncode == 1, done.stdout
        for says in wrong.values():
            assert says in done.stderr
    assert "Traceback" not in done.stderr and "\x1b" not in done.stderr


def test_an_unknown_edition_is_refused(own, make):
    done = make.build(own, "xx")
    assert done.returncode == 2 and "choose en, es, pt" in done.stderr


def test_a_fourth_language_is_a_folder_and_a_table_of_words(own):
    import os
    import subprocess

    shutil.copytree(ROOT / "src", own / "src", ignore=shutil.ignore_patterns("__pycache__"))
    words = own / "src" / "paralelo" / "words"
    shutil.copytree(words / "es", words / "gl")
    shutil.copytree(own / "book" / "es", own / "book" / "gl")
    shutil.copytree(own / "labs" / "es", own / "labs" / "gl")
    shutil.copytree(own / "diagrams" / "es", own / "diagrams" / "gl")
    for file, old, new in ((words / "gl" / "language.toml",
                            'name = "Español"\nhtml = "es"', 'name = "Galego"\nhtml = "gl"'),
                           (own / "book" / "gl" / "pipeline.md", "/es/", "/gl/"),
                           (own / "labs" / "gl" / "04_pipeline.ipynb", "/es/", "/gl/")):
        content = file.read_text(encoding="utf-8")
        assert old in content
        file.write_text(content.replace(old, new), encoding="utf-8")
    done = subprocess.run([sys.executable, "book/build.py"], cwd=own, capture_output=True, text=True, timeout=240,
                          env={**os.environ, "PYTHONPATH": str(own / "src")})
    assert done.returncode == 0, done.stderr
    page = (own / "site" / "gl" / "pipeline.html").read_text(encoding="utf-8")
    assert '<html lang="gl"' in page and "Galego" in (own / "site" / "index.html").read_text(encoding="utf-8")
    assert "../gl/pipeline.html" in (own / "site" / "es" / "pipeline.html").read_text(encoding="utf-8")


def test_the_real_site_keeps_its_rules(real_site):
    from edition import site

    assert site.check(list(TAGS)) == []
    for lang in TAGS:
        for page in (real_site / lang).rglob("*.html"):
            assert site.weight(page) < site.LIMIT, page


def test_the_licences_of_what_the_site_carries_go_with_it(real_site):
    for name in ("fonts/LICENSE", "katex/LICENSE"):
        assert (real_site / "assets" / name).stat().st_size > 500
