"""Mathematics without a script on the page: KaTeX renders each formula once, when the book is built.

One Node process per edition answers formulas line by line; what it answered is kept in build/, so a chapter that is
built again starts no process for formulas that it already had. A formula that KaTeX does not accept is a warning at its
place in the source, and a warning stops the build.
"""

import hashlib
import json
import subprocess

from docutils import nodes
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

from edition import BUILD, ROOT, nodejs

KATEX = ROOT / "node_modules" / "katex" / "dist" / "katex.js"
SERVER = r"""
const katex = require(process.argv[1]);
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { tex, displayMode } = JSON.parse(line);
  let answer;
  try { answer = { html: katex.renderToString(tex, { displayMode, throwOnError: true, strict: "error" }) }; }
  catch (error) { answer = { error: error.message }; }
  process.stdout.write(JSON.stringify(answer) + "\n");
});
"""
log = logging.getLogger(__name__)


class Mathematics:
    """Rendered formulas, asked of Node only when they are new."""

    def __init__(self, lang: str):
        self.file = BUILD / f"formulas-{lang}.json"
        self.version = hashlib.sha256(KATEX.read_bytes()).hexdigest()[:12]
        kept = json.loads(self.file.read_text()) if self.file.is_file() else {}
        self.known = kept.get("formulas", {}) if kept.get("version") == self.version else {}
        self.process = None

    def render(self, tex: str, display: bool) -> str:
        """HTML and MathML of a formula. ValueError where KaTeX refuses it."""
        key = ("$$" if display else "$") + tex
        if key not in self.known:
            self.known[key] = self.ask(tex, display)
        return self.known[key]

    def ask(self, tex: str, display: bool) -> str:
        if self.process is None:
            self.process = subprocess.Popen([nodejs(), "-e", SERVER, str(KATEX)], text=True, encoding="utf-8",
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.process.stdin.write(json.dumps({"tex": tex, "displayMode": display}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["html"]

    def close(self) -> None:
        self.file.write_text(json.dumps({"version": self.version, "formulas": self.known}, ensure_ascii=False))
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait(timeout=10)
            self.process = None


def setup(app) -> None:
    app.add_html_math_renderer("katex", inline_renderers=(inline, None), block_renderers=(block, None))
    app.connect("builder-inited", lambda app: setattr(app, "mathematics", Mathematics(app.config.edition)))
    app.connect("build-finished", lambda app, error: app.mathematics.close())


def rendered(translator, node, display: bool) -> str:
    try:
        return translator.builder.app.mathematics.render(node.astext().strip(), display)
    except ValueError as error:
        log.warning("KaTeX: %s", error, location=node)
        return ""


def inline(translator, node) -> None:
    translator.body.append(f'<span class="math">{rendered(translator, node, False)}</span>')
    raise nodes.SkipNode


def block(translator, node) -> None:
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    if node["number"]:
        translator.body.append(f'<span class="eqno">({get_node_equation_number(translator, node)})</span>')
    translator.body.append(rendered(translator, node, True) + "</div>\n")
    raise nodes.SkipNode
