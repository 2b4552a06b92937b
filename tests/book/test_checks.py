"""Each check of the editions finds the fault it is for, and is quiet on a book in step."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book"))

from checks import glossary, language, length, links, numbers, quotes, sessions, skeleton, stale  # noqa: E402
from checks.pages import Book  # noqa: E402

ENGLISH = """---
description: A page.
---
# Pipeline parallelism

The bubble is 3/7<!--= Fraction(3, 7) --> or 42.9%<!--= Fraction(3, 7) --> of the step, $x = 0.73$ {cite:p}`huang2019`.

## What each rank holds

A rank calls `run_step`; see [the start](start.md#notation) for 17,408<!--= 1024 * 17 --> columns.

```python
schedule = build("1f1b", 4, 8)
```

<details>
<summary>Answer</summary>

A rank holds 8.0\u00a0GB<!--= 8e9 -->, 27 billion<!--= 27 * 10**9 --> parameters.

</details>
"""
SPANISH = """---
description: Una página.
source: SOURCE
---
# Paralelismo de pipeline

La burbuja es 3/7<!--= Fraction(3, 7) -->, o 42.9\u00a0%<!--= Fraction(3, 7) -->, $x = 0.73$ {cite:p}`huang2019`.

## Qué guarda cada rank

Un rank llama a `run_step`; mira [el comienzo](start.md#notación) y sus 17\u202f408<!--= 1024 * 17 --> columnas.

```python
schedule = build("1f1b", 4, 8)
```

<details>
<summary>Respuesta</summary>

Un rank guarda 8.0\u00a0GB<!--= 8e9 -->, 27 mil millones<!--= 27 * 10**9 --> de parámetros.

</details>
"""
START = {
    "en": "# Start\n\n## Notation\n\nA word.\n",
    "es": "---\nsource: SOURCE\n---\n# Comienzo\n\n## Notación\n\nUna palabra.\n",
}


@pytest.fixture
def write(tmp_path):
    """Writes a book of two editions, the Spanish page changed as asked, and hands it back parsed."""

    def write(*changes, english=()):
        for lang, text in (("en", ENGLISH), ("es", SPANISH)):
            (tmp_path / lang).mkdir(exist_ok=True)
            for old, new in english if lang == "en" else changes:
                assert old in text
                text = text.replace(old, new)
            (tmp_path / lang / "pipeline.md").write_text(text)
            (tmp_path / lang / "start.md").write_text(START[lang])
        for name in ("pipeline.md", "start.md"):
            command = ["git", "hash-object", tmp_path / "en" / name]
            blob = subprocess.run(command, capture_output=True, text=True).stdout.strip()
            page = tmp_path / "es" / name
            page.write_text(page.read_text().replace("SOURCE", blob))
        return Book(tmp_path)

    return write


CHECKS = (skeleton, stale, numbers, quotes, links, glossary, language)


def test_a_book_in_step_has_no_findings(write):
    book = write()
    assert [str(f) for check in CHECKS for f in check.findings(book)] == []


@pytest.mark.parametrize(
    "check, old, new, says",
    [
        (skeleton, "## Qué guarda", "### Qué guarda", "heading"),
        (skeleton, "0.73$", "0.74$", "formula"),
        (skeleton, "`huang2019`", "`narayanan2021`", "citation"),
        (skeleton, "`run_step`", "la función", "name `run_step`"),
        (skeleton, '"1f1b", 4, 8', '"gpipe", 4, 8', "code"),
        (skeleton, "<details>\n<summary>Respuesta</summary>\n", "", "directive"),
        (skeleton, "<!--= 1024 * 17 -->", "", "number"),
        (stale, "source: SOURCE", "source: 0123456789abcdef", "was written from"),
        (numbers, "42.9\u00a0%", "43.9\u00a0%", "should be “42.9\u00a0%”"),
        (numbers, "42.9\u00a0%", "42.9%", "should be “42.9\u00a0%”"),
        (numbers, "3/7<!--", "3/8<!--", "should be “3/7”"),
        (numbers, "17\u202f408", "17,408", "17\u202f408"),
        (numbers, "27 mil millones", "27 billones", "billones"),
        (numbers, "8.0\u00a0GB", "8.1\u00a0GB", "8.0\u00a0GB"),
        (numbers, "Fraction(3, 7) -->, o", "no_such_name(4) -->, o", "fails"),
        (links, "start.md#", "comienzo.md#", "no such file"),
        (links, "#notación", "#notation", "has no #notation"),
        (glossary, "La burbuja es", "La tubería es", "avoided"),
        (language, "Un rank llama a", "This is what the rank calls, which is of that page", "English"),
    ],
)
def test_a_fault_is_found(write, check, old, new, says):
    found = [str(f) for f in check.findings(write((old, new)))]
    assert any(says in f for f in found), found


def test_a_number_is_mended(write, tmp_path):
    for finding in numbers.findings(write(("42.9\u00a0%", "15.8\u00a0%"))):
        finding.fix()
    assert not list(numbers.findings(Book(tmp_path)))


def test_a_page_that_says_it_is_behind_is_left_alone(write):
    book = write(("source: SOURCE", "source: 0123\nbehind: true"), ("## Qué guarda", "### Qué guarda"))
    assert not [*skeleton.findings(book), *stale.findings(book)]


def test_a_missing_page_is_found(write, tmp_path):
    write()
    (tmp_path / "es" / "start.md").unlink()
    assert any("is missing" in str(f) for f in skeleton.findings(Book(tmp_path)))


def test_quoted_code_stands_in_its_source(tmp_path):
    source = "def f(x):\n    a = x + 1\n    b = a * 2\n    return b\n"
    (tmp_path / "m.py").write_text(source)
    assert quotes.source(tmp_path / "m.py", "m.f") == source.rstrip("\n")
    assert quotes.stands_in(["def f(x):", "    a = x + 1"], source) is None
    assert quotes.stands_in(["def f(x):", "    ...", "    return b"], source) is None
    assert quotes.stands_in(["def f(x):", "    return b"], source) == "return b"
    assert quotes.stands_in(["def f(x):", "    a = x + 2"], source) == "a = x + 2"


def test_a_session_shows_what_python_answers():
    """The answer of a fence is run; one that is not Python's, or that fails, is found at its line."""
    assert sessions.wrong(">>> 2 + 2\n4\n>>> x = 3\n") == ()
    assert sessions.wrong(">>> x = 2\n>>> print(x)\n3\n") == ((2, "3", "2"),)
    assert sessions.wrong(">>> nowhere\n3\n")[0][2].startswith("NameError")


def test_the_length_of_a_chapter_is_its_running_text(write):
    """Seven words of a lead and twelve of a section; nothing of code, mathematics, tables, captions, folded answers."""
    page = write().pages["en"]["pipeline.md"]
    before = length.words(page)
    assert before == len("Pipeline parallelism The bubble is 3/7 or 42.9 of the step".split()) + len(
        "What each rank holds A rank calls see the start for 17,408 columns".split())
    found = [str(f) for f in length.findings(write())]
    assert len(found) == 2 and all("words of running text" in f and "2000 to 3500" in f for f in found)
    assert not list(length.findings(write(*[("Un rank llama", "Un rank " + "llama " * 1990)],
                                          english=[("A rank calls", "A rank " + "calls " * 3400)])))
    more = "columns.\n\n| a | b |\n|---|---|\n| c | d |\n\n![e](f.svg \"G.\")\n\n$$\nx\n$$"
    other = write(english=[("columns.", more)]).pages["en"]["pipeline.md"]
    assert length.words(other) == before
    note = write(english=[("columns.", "columns.\n\n:::{note}\nTwo words.\n:::")]).pages["en"]["pipeline.md"]
    assert length.words(note) == before + 2
