"""Sources as each language writes them: (Patarasuk y Yuan, 2009) in the text, and a list by author on its page.

What nobody signed, a discussion or a manual, is called by where it was published (`howpublished`), without a year.
"""

from dataclasses import dataclass, field

import pybtex.plugin
import sphinxcontrib.bibtex.plugin
from pybtex.richtext import HRef, Tag, Text
from pybtex.style import FormattedEntry
from pybtex.style.formatting.unsrt import Style
from sphinxcontrib.bibtex.style.referencing import BracketStyle, PersonStyle
from sphinxcontrib.bibtex.style.referencing.author_year import AuthorYearReferenceStyle
from sphinxcontrib.bibtex.style.referencing.basic_author_year import BasicAuthorYearParentheticalReferenceStyle
from sphinxcontrib.bibtex.style.template import field as entry_field
from sphinxcontrib.bibtex.style.template import first_of, join2, names, optional, post_text, pre_text, reference
from sphinxcontrib.bibtex.style.template import join as joined

from edition import words


def setup(app) -> None:
    app.connect("config-inited", register, priority=100)


class Parenthetical(BasicAuthorYearParentheticalReferenceStyle):
    """(Shoeybi et al., 2019), or (NVIDIA/Megatron-LM, issue 7452)."""

    def inner(self, role_name: str):
        person = self.person
        signed = names("author", sep=person.sep, sep2=person.sep2, last_sep=person.last_sep,
                       other=None if "s" in role_name else person.other)
        who = first_of[optional[signed], optional[entry_field("howpublished")], entry_field("title")]
        return join2(sep1=self.pre_text_sep, sep2=self.post_text_sep)[
            pre_text, reference[joined(sep=self.author_year_sep)[who, optional[entry_field("year")]]], post_text]


def register(app, config) -> None:
    """The two styles called `book`, in the language of this edition."""
    join = f" {words(config.edition)['bibliography']['and']} "
    round_ = lambda: BracketStyle(left="(", right=")")  # noqa: E731

    @dataclass
    class Citation(AuthorYearReferenceStyle):
        bracket_textual: BracketStyle = field(default_factory=round_)
        bracket_parenthetical: BracketStyle = field(default_factory=round_)
        bracket_year: BracketStyle = field(default_factory=round_)
        person: PersonStyle = field(default_factory=lambda: PersonStyle(sep2=join, last_sep=join))

        def __post_init__(self):
            super().__post_init__()
            self.styles[0] = Parenthetical(bracket=self.bracket_parenthetical, person=self.person)
            self.role_style.update(dict.fromkeys(self.styles[0].role_names(), self.styles[0]))

    class List(Style):
        default_sorting_style = "author_year_title"

        def format_entry(self, label, entry, bib_data=None):
            return FormattedEntry(entry.key, written(entry, join), label)

    sphinxcontrib.bibtex.plugin.register_plugin("sphinxcontrib.bibtex.style.referencing", "book", Citation)
    pybtex.plugin.register_plugin("pybtex.style.formatting", "book", List)


def written(entry, join: str) -> Text:
    """Authors (year). Title. *Where* volume(number), with a link to the text.

    An entry without a title, or with neither an author nor a place, is refused: nobody could find it.
    """
    if "title" not in entry.fields or not ("author" in entry.persons or "howpublished" in entry.fields):
        raise ValueError(f"references.bib: {entry.key} needs a title, and an author or howpublished")
    fields = {key: Text.from_latex(value) for key, value in entry.fields.items()}
    who = people(entry.persons["author"], join) if "author" in entry.persons else fields["howpublished"]
    parts = [who, *([" (", fields["year"], ")"] if "year" in fields else []), ". ", fields["title"], ". "]
    where = fields.get("journal") or fields.get("booktitle") or fields.get("publisher")
    preprint = entry.fields.get("eprint")
    if where and not (preprint and str(where) == "arXiv"):
        volume = [" ", fields["volume"]] if "volume" in entry.fields else []
        number = ["(", fields["number"], ")"] if "number" in entry.fields else []
        parts += [Tag("em", where), *volume, *number, ". "]
    if preprint:
        parts += [HRef(f"https://arxiv.org/abs/{preprint}", f"arXiv:{preprint}"), "."]
    elif doi := entry.fields.get("doi"):
        parts += [HRef(f"https://doi.org/{doi}", f"doi:{doi}"), "."]
    elif url := entry.fields.get("url"):
        parts += [HRef(url, url.removeprefix("https://")), "."]
    return Text(*parts)


def people(persons, join: str) -> Text:
    names = []
    for person in persons:
        pieces = [*person.rich_first_names, *person.rich_middle_names, *person.rich_prelast_names,
                  *person.rich_last_names]
        names.append(Text(" ").join(pieces))
    if str(names[-1]) == "others":
        return Text(Text(", ").join(names[:-1]), " ", Tag("em", "et al."))
    return Text(Text(", ").join(names[:-1]), join, names[-1]) if len(names) > 1 else names[0]
