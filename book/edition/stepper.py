"""Figures that one steps through: with a range, buttons and keys, and to be read whole where no script runs.

A drawing with steps of its own is an ordinary image. Its elements say when they are there: `data-step="2"` from step 2
on, `data-only="2"` in step 2 alone (drawn with `display="none"`, so that the picture is whole without a script);
`data-says` is the sentence of their step. Several drawings become one figure, a step each, in a fence:

    :::{stepper}
    ![One](../../diagrams/en/x_1.svg "Caption of the first step.")

    ![Two](../../diagrams/en/x_2.svg "Caption of the second step.")
    :::

Without a script all of them stand there, one below the other. `theme/assets/stepper.js` does the rest: a drawing with
steps of its own opens whole, at -1 of its range, so that the next button goes to its first step; of several drawings
the first is shown. On paper every figure is whole.
"""

import re
from html import escape

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

from paralelo.words import table

STEP = re.compile(r'\bdata-(?:only|step)="(\d+)"')
log = logging.getLogger(__name__)


class steps(nodes.General, nodes.Element):
    """Several figures, one of which is shown."""


class Stepper(Directive):
    """The fence `:::{stepper}`."""

    has_content = True

    def run(self):
        node = steps()
        self.state.nested_parse(self.content, self.content_offset, node)
        node.source, node.line = self.state_machine.get_source_and_line(self.lineno)
        return [node]


class AddControls(SphinxTransform):
    """Controls under every figure that has steps; runs when drawings are figures."""

    default_priority = 215

    def apply(self, **kwargs) -> None:
        for node in list(self.document.findall(steps)):
            frames = [child for child in node.children if isinstance(child, nodes.figure)]
            if len(frames) < 2 or len(frames) < len(node.children):
                log.warning("a stepper holds two or more drawings, each alone in its paragraph", location=node)
            node += controls(len(frames), 0, self.config.edition)
        for figure in list(self.document.findall(nodes.figure)):
            drawing = next((c for c in figure.children if isinstance(c, nodes.raw)), None)
            if drawing is None or isinstance(figure.parent, steps):
                continue
            if found := [int(n) for n in STEP.findall(drawing.astext())]:
                figure["classes"].append("stepper")
                figure.insert(figure.index(drawing) + 1, controls(max(found) + 1, -1, self.config.edition))


def controls(count: int, first: int, lang: str) -> nodes.raw:
    """The bar, which a script shows: `first` is where the page opens, a step or -1, the whole figure."""
    say = {key: escape(text) for key, text in table("tools", lang)["stepper"].items()}
    return nodes.raw("", (
        f'<div class="steps" hidden data-of="{say["step"]}" data-whole="{say["whole"]}">'
        f'<button type="button" data-go="-1" '
        f'aria-label="{say["previous"]}">‹</button><input type="range" min="{first}" max="{count - 1}" value="{first}" '
        f'aria-label="{say["label"]}"><button type="button" data-go="1" aria-label="{say["next"]}">›</button>'
        f'<button type="button" data-play="{say["play"]}" data-pause="{say["pause"]}" '
        f'aria-label="{say["play"]}">▶</button>'
        '<p aria-live="polite"></p></div>'), format="html")


def page(app, pagename, templatename, context, doctree) -> None:
    """Only a page that has a stepper loads its script."""
    figures = doctree.findall(nodes.figure) if doctree else ()
    context["stepper"] = any("stepper" in f["classes"] or isinstance(f.parent, steps) for f in figures)


def visit(translator, node) -> None:
    translator.body.append('<div class="stepper" role="group">\n')


def depart(translator, node) -> None:
    translator.body.append("</div>\n")


def setup(app) -> None:
    app.add_node(steps, html=(visit, depart))
    app.add_directive("stepper", Stepper)
    app.add_transform(AddControls)
    app.connect("html-page-context", page)
