"""The glossary as a table: a column per language, a part per chapter, made from book/glossary.yml.

    ```{glossary-table}
    ```
"""

import yaml
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from edition import editions, name_of, tag
from edition.stage import reading_order


def setup(app) -> None:
    app.add_directive("glossary-table", GlossaryTable)
    app.connect("doctree-resolved", head)


class GlossaryTable(SphinxDirective):
    """Every term of the course; its row can be linked to by the term's id: `glossary.md#rank`."""

    def run(self):
        self.env.note_dependency("glossary.yml")
        terms = yaml.safe_load((self.env.app.srcdir / "glossary.yml").read_text(encoding="utf-8"))
        own = self.config.edition
        langs = [own, *(lang for lang in editions() if lang != own)]
        found = []
        for chapter in dict.fromkeys([e.file for e in reading_order()[1] if e.part == "chapters"]):
            of_chapter = [t for t in terms if t["chapter"] == chapter]
            if of_chapter:
                found += [Chapter("", chapter=chapter), self.table(langs, of_chapter)]
        return found

    def table(self, langs, terms):
        group = nodes.tgroup("", cols=len(langs))
        group += [nodes.colspec("", colwidth=1) for _ in langs]
        group += nodes.thead("", self.row([name_of(lang) for lang in langs], langs))
        body = nodes.tbody()
        for term in sorted(terms, key=lambda t: str(t.get(langs[0], "")).casefold()):
            row = self.row([str(term.get(lang, "")) for lang in langs], langs)
            row["ids"].append(f"term-{term['id']}")
            body += row
        group += body
        return nodes.table("", group, classes=["glossary"])

    @staticmethod
    def row(cells, langs):
        written = [f'<span lang="{tag(lang)}">' for lang in langs]
        return nodes.row("", *(nodes.entry("", nodes.paragraph(
            "", "", nodes.raw("", opens, format="html"), nodes.Text(cell), nodes.raw("", "</span>", format="html")))
            for cell, opens in zip(cells, written, strict=True)))


class Chapter(nodes.Element, nodes.Body):
    """Where the title of a chapter will stand, once every page has been read."""


def head(app, doctree, docname) -> None:
    for place in list(doctree.findall(Chapter)):
        title = app.env.titles.get(place["chapter"])
        place.replace_self(nodes.rubric("", title.astext()) if title else [])
