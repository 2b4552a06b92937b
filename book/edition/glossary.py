"""The glossary as a table: a column per language, a part per chapter, made from book/glossary.yml.

    ```{glossary-table}
    ```
"""

from html import escape

import yaml
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from edition import editions, name_of, tag
from edition.stage import reading_order


def setup(app) -> None:
    app.add_directive("glossary-table", GlossaryTable)
    app.add_node(Foreign, html=(write_foreign, None))
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
        """A row whose words in other languages stand there for the eye: a search looks in its own language only."""
        own, *others = cells
        shown = [nodes.Text(own), *(Foreign("", lang=tag(lang), words=cell)
                                    for lang, cell in zip(langs[1:], others, strict=True))]
        return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in shown))


class Foreign(nodes.Element, nodes.Inline):
    """Words of another language: in an attribute, where the index of the search does not look."""


def write_foreign(translator, node) -> None:
    translator.body.append(f'<span lang="{node["lang"]}">{escape(node["words"])}</span>')
    raise nodes.SkipNode


class Chapter(nodes.Element, nodes.Body):
    """Where the title of a chapter will stand, once every page has been read."""


def head(app, doctree, docname) -> None:
    for place in list(doctree.findall(Chapter)):
        title = app.env.titles.get(place["chapter"])
        place.replace_self(nodes.rubric("", title.astext()) if title else [])
