"""Sources become the site's pages: links that hold in the repository hold in the book, and what is wrong is said."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book"))

from edition import figures, stage  # noqa: E402


@pytest.fixture
def here(make, tmp_path, monkeypatch):
    """A stage of the Spanish edition of a small book that is not built."""
    tree = make.tree(tmp_path / "tree")
    monkeypatch.setattr(stage, "ROOT", tree)
    monkeypatch.setattr(stage, "BOOK", tree / "book")
    return stage.Stage("es", tmp_path / "out")


def staged(here, text: str, page: str = "tensor") -> str:
    source = here.pages[page]
    return here.markdown(text, source, page)


@pytest.mark.parametrize(("written", "becomes"), [
    ("[a](pipeline.md)", "[a](pipeline.md)"),
    ("[a](pipeline.md#cost)", "[a](pipeline.md#cost)"),
    ("[a](../../labs/es/04_pipeline.ipynb)", "[a](labs/pipeline.ipynb)"),
    ("[a](../tools/schedule.py)", "[a](tools/schedule.md)"),
    ("![a](../../diagrams/es/pipeline_all_4_8.svg \"A \\\"b\\\".\")",
     "![a](figures/pipeline_all_4_8.svg \"A \\\"b\\\".\")"),
    ("[a](https://example.org/x.md) [b](#here)", "[a](https://example.org/x.md) [b](#here)"),
    ("43 %<!--= percent: idle_share(4, 4) --> of", "43 % of"),
    ("`[a](nowhere.md)`", "`[a](nowhere.md)`"),
    ("```\n[a](nowhere.md)<!-- kept -->\n```\n", "```\n[a](nowhere.md)<!-- kept -->\n```\n"),
    ("````text\n```\n[a](nowhere.md)\n````\n[a](pipeline.md)",
     "````text\n```\n[a](nowhere.md)\n````\n[a](pipeline.md)"),
    (":::{note}\n[a](../../labs/es/04_pipeline.ipynb)\n:::", ":::{note}\n[a](labs/pipeline.ipynb)\n:::"),
    ("[`build.py`](../build.py)", "`build.py`"),
])
def test_links_become_those_of_the_site(here, written, becomes):
    assert staged(here, written) == becomes
    assert not here.findings


def test_links_of_a_lab_start_at_its_folder(here):
    assert staged(here, "[a](../../book/es/pipeline.md#cost) ![b](../../diagrams/es/pipeline_all_4_8.svg)",
                  "labs/pipeline") == "[a](../pipeline.md#cost) ![b](../figures/pipeline_all_4_8.svg)"


def test_links_to_files_of_the_repository_need_its_address(here, monkeypatch):
    monkeypatch.setattr(stage, "repository", lambda: {"url": "https://github.com/a/b", "branch": "main"})
    assert staged(here, "[`x`](../build.py#L3)") == "[`x`](https://github.com/a/b/blob/main/book/build.py#L3)"


@pytest.mark.parametrize(("written", "line", "says"), [
    ("a\n\n[a](nowhere.md)", 3, "does not exist"),
    ("```\nx\n```\n\n[a](nowhere.md)", 5, "does not exist"),
    ("[a](../../diagrams/en/pipeline_all_4_8.svg)", 1, "not of this edition"),
    ("[a](../en/pipeline.md)", 1, "not of this edition"),
    ("[a](../../../../../etc/passwd)", 1, "does not exist"),
])
def test_a_wrong_link_is_found_with_its_line(here, written, line, says):
    staged(here, written)
    [finding] = here.findings
    assert finding.place == f"book/es/tensor.md:{line}" and says in finding.what


def test_the_install_cell_of_a_lab_is_not_in_the_book(here):
    cells = json.loads(here.notebook(here.pages["labs/pipeline"], "labs/pipeline"))["cells"]
    assert not any("pip install" in "".join(cell["source"]) for cell in cells)


def test_pages_that_one_edition_lacks_or_nobody_lists_are_found(here):
    (stage.BOOK / "es" / "tensor.md").unlink()
    for lang in ("en", "es", "pt"):
        (stage.BOOK / lang / "stray.md").write_text("# Stray\n")
    found = list(map(str, stage.parity(["en", "es", "pt"])))
    assert found == ["book/es: lacks tensor, which another edition has", "book/_toc.yml: does not list stray"]


SVG = ('<svg xmlns="http://www.w3.org/2000/svg" class="pl pl-x" viewBox="0 0 30 20" role="img" aria-labelledby="f-t">'
       '<title id="f-t">T</title><style>.pl{}</style><defs><pattern id="f-h"/></defs>'
       '<rect class="pl-F" fill="url(#f-h)"><title>F0</title></rect></svg>')


def test_a_drawing_in_a_page_has_its_name_no_style_and_ids_of_its_own():
    taken = set()
    first, second = (figures.inline(SVG, "Una caja & más", taken) for _ in range(2))
    assert 'aria-label="Una caja &amp; más"' in first and "<style" not in first and ">T<" not in first
    assert "<title>F0</title>" in first and 'width="30"' in first
    assert 'id="f-h"' in first and 'id="f-h-2"' in second and "url(#f-h-2)" in second


def test_a_drawing_that_is_not_ours_keeps_its_style():
    other = SVG.replace("pl pl-x", "m").replace("pl-F", "f").replace(".pl{}", "#f-h .node{fill:red}")
    taken = {"f-h"}
    assert "#f-h-2 .node{fill:red}" in figures.inline(other, "x", taken)


def test_the_dark_half_of_the_style_follows_the_readers_choice():
    css = figures.style_sheet()
    assert css.count("{") == css.count("}")
    assert "html[data-theme=dark] {" in css and "html:not([data-theme]) {" in css
    assert css.count("@media (prefers-color-scheme: dark)") == 1
