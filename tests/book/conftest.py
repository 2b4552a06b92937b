"""A small book that has everything a page can have, and the real site, each built once for all tests here."""

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
from importlib import util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = {
    "en": ("Pipelines", "Each rank holds a stage.", "The question", "Answer", "half of them", "Figure of a schedule"),
    "es": ("Pipelines", "Cada rank guarda una etapa.", "La pregunta", "Respuesta", "la mitad",
           "Figura de una planificación"),
    "pt": ("Pipelines", "Cada rank guarda um estágio.", "A pergunta", "Resposta", "a metade",
           "Figura de um agendamento"),
}
PAGE = """---
description: {lead}
{front}---
# {title}

{lead} **15.8%**<!--= percent: idle_share(4, 16) --> ≠ 16.

## {question}

{cite}, `[not](a-link.md)` [lab](../../labs/{lang}/04_pipeline.ipynb), [tool](../tools/schedule.py),
[back](index.md), [`build.py`](../build.py), [here](#cost).[^1]

[^1]: One footnote.

![{alt}: A](../../diagrams/{lang}/pipeline_1f1b_4_8.svg "{alt}.")

![{alt}: B](../../diagrams/{lang}/pipeline_1f1b_4_8.svg)

![{alt}: C](../../diagrams/{lang}/pipeline_all_4_8.svg "{alt}, {alt}.")

(cost)=
## Costs & $\\alpha$

$$
T = \\underbrace{{(M + S - 1)}}_{{\\text{{steps}}}} \\cdot
\\left(t_F + t_B + \\sum_{{s=0}}^{{S-1}} \\frac{{1}}{{1 + e^{{-x_s}}}}
+ \\max_i a_i + \\prod_{{j}} b_j \\right) + \\alpha N
$$

| a | b | c | d | e | f | g | h |
|---|--:|---|---|---|---|---|---|
| one long cell | 17,408 | another long cell | $x$ | `code_that_is_long` | `more_code` | word | word |

```python
def forward(self, x):  # [link](nowhere.md) <!-- stays -->
    return self.stage(x) @ self.weight.T + self.bias  # a line so long that it has to scroll inside of its own box
```

```console
$ paralelo schedule 1f1b --stages 4 --microbatches 8
```

:::{{warning}}
A note with $x^2$ and a [link](tensor.md).
:::

<details>
<summary>{answer}</summary>

{half}, $S/2$.

</details>
"""
TOOL = '''"""A tool's page."""
def page(lang):
    return f"# Explorer {lang}\\n\\nA form stands here. [chapter](../{lang}/pipeline.md)\\n"
'''


def notebook(lang: str) -> dict:
    """A lab with what labs put out: prose, a stream, a picture, a table, a cell for hosted notebooks."""
    png = base64.b64encode(bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d4944415478da63f8ffff3f0300"
        "05fe02fea7d6a90a0000000049454e44ae426082")).decode()
    def code(n, source, outputs=(), tags=()):
        return {"cell_type": "code", "id": f"c{n}", "execution_count": n, "source": source, "outputs": list(outputs),
                "metadata": {"tags": list(tags)}}

    text = lambda n, source: {"cell_type": "markdown", "id": f"m{n}", "metadata": {}, "source": source}  # noqa: E731
    cells = [
        text(0, f"# Lab: {TEXT[lang][0]}\n\n{TEXT[lang][1]} [chapter](../../book/{lang}/pipeline.md#cost)"),
        code(1, "%pip install nothing", tags=["remove-cell"]),
        text(2, f"## {TEXT[lang][2]}\n\n$x$ <details>\n<summary>1</summary>\n\nhint\n\n</details>"),
        code(2, "from paralelo.run.ranks import Ranks\nRanks(2)", [
            {"output_type": "stream", "name": "stdout", "text": "[rank 0] 1\n[rank 1] 2 " + "x" * 150 + "\n"}]),
        code(3, "plot()", [{"output_type": "display_data", "metadata": {},
                            "data": {"image/png": png, "text/plain": "<Figure>"}}]),
        code(4, "table", [{"output_type": "execute_result", "execution_count": 4, "metadata": {},
                           "data": {"text/html": "<table><tr><th>a</th></tr><tr><td>1</td></tr></table>",
                                    "text/plain": "a 1"}}]),
    ]
    return {"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"}}}


def small_tree(to: Path) -> Path:
    """A copy of what builds the book, with one page of each kind."""
    left_out = shutil.ignore_patterns("__pycache__", "*.pyc", "checks", "tools")
    shutil.copytree(ROOT / "book", to / "book", ignore=left_out)
    for name in ("_config.yml", "package-lock.json"):
        shutil.copy(ROOT / name, to / name)
    (to / "node_modules").symlink_to(ROOT / "node_modules")
    for lang, (title, lead, question, answer, half, alt) in TEXT.items():
        edition = to / "book" / lang
        for page in edition.glob("*.md"):
            if page.name not in ("index.md", "bibliography.md", "glossary.md"):
                page.unlink()
        (edition / "tensor.md").write_text(f"# Tensor {lang}\n\n{lead}\n", encoding="utf-8")
        (edition / "pipeline.md").write_text(PAGE.format(
            title=title, lead=lead, question=question, answer=answer, half=half, alt=alt, lang=lang,
            cite="{cite:t}`huang2019`, {cite:p}`patarasuk2009`",
            front="behind: true\n" if lang == "pt" else ""), encoding="utf-8")
        (to / "labs" / lang).mkdir(parents=True)
        (to / "labs" / lang / "04_pipeline.ipynb").write_text(json.dumps(notebook(lang)), encoding="utf-8")
        (to / "diagrams" / lang).mkdir(parents=True)
        for name in ("pipeline_1f1b_4_8.svg", "pipeline_all_4_8.svg"):
            shutil.copy(ROOT / "diagrams" / lang / name, to / "diagrams" / lang / name)
    (to / "book" / "tools").mkdir()
    (to / "book" / "tools" / "schedule.py").write_text(TOOL, encoding="utf-8")
    return to


def build(tree: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "book/build.py", *arguments], cwd=tree, capture_output=True, text=True,
                          timeout=240)


@pytest.fixture(scope="session")
def make():
    """Functions for a test that wants a book of its own: `make.tree(folder)`, `make.build(tree)`."""
    class Make:
        tree, build = staticmethod(small_tree), staticmethod(build)
    if not (ROOT / "node_modules" / "katex").is_dir():
        missing("node_modules is missing: run `make setup`")
    return Make


@pytest.fixture(scope="session")
def small_book(make, tmp_path_factory):
    """The small book, built: its folder and what the build said."""
    tree = make.tree(tmp_path_factory.mktemp("small"))
    done = make.build(tree)
    assert done.returncode == 0, done.stderr
    return tree, done


@pytest.fixture(scope="session")
def real_site(make):
    """The site of the repository itself, up to date."""
    done = make.build(ROOT)
    assert done.returncode == 0, done.stderr
    return ROOT / "site"


def missing(why: str) -> None:
    """Skip on a reader's machine; on CI what is missing is a failure."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def serve():
    """`serve(folder)` is the address of a running server of it; all end with the session."""
    spec = util.spec_from_file_location("book_serve", ROOT / "book" / "serve.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    running = []

    def start(folder: Path) -> str:
        server = module.server(folder, port=0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def chromium():
    """The real browser of this machine; no name but this machine's own leads anywhere."""
    sync_api = pytest.importorskip("playwright.sync_api") if not os.environ.get("CI") else __import__(
        "playwright.sync_api", fromlist=["sync_playwright"])
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        missing("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=[
            "--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """`visit(address, …)` opens a page; it must have said nothing bad, and asked no other host, when the test ends."""
    contexts, said = [], []

    def go(address: str, width: int = 1280, height: int = 900, **options):
        options = {"locale": "en-US", **options}
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        home = address.split("/")[2]

        def watch(request):                                 # routing would switch the browser's cache off
            if request.url.startswith("http") and request.url.split("/")[2] != home:
                said.append(f"asks another host: {request.url}")

        context.on("request", watch)
        page = context.new_page()
        page.on("console", lambda m: said.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: said.append(f"error: {e}"))
        page.goto(address)
        page.wait_for_load_state("networkidle")
        return page

    yield go
    for context in contexts:
        context.close()
    assert not said, said
