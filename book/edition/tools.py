"""The page of a live tool as it is built: the form, which waits for its script, and the answer to its defaults."""

import json
import re
import sys

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from edition import BOOK, NotBuilt, vendor
from paralelo.words import say, table

if str(BOOK) not in sys.path:
    sys.path.insert(0, str(BOOK))

from tools import frame

SAYS = ("loading", "failed", "copied", "asks")


def markdown(tool: frame.Tool, lang: str) -> str:
    """Markdown of the page: title and lead, the tool as HTML, what stands below it."""
    if tool.name not in table("tools", lang):
        raise NotBuilt(f"the tool {tool.name} has no words in {lang}: give src/paralelo/words/{lang}/tools.toml a "
                       f"table [{tool.name}]")
    words, common = table("tools", lang)[tool.name], table("tools", lang)["frame"]
    values = tool.read({}, lang)
    answer = tool.answer(values, lang)
    pages = Environment(loader=FileSystemLoader(BOOK / "tools"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    html = pages.get_template("page.html").render(
        tool=tool, lang=lang, words=words, common=common, command=tool.command(values), version=vendor.digest(),
        wheel=vendor.wheel_name(), says=json.dumps({key: common[key] for key in SAYS}, ensure_ascii=False),
        cost=say("tools.frame.cost", lang, size=vendor.download()), fields=[field(tool, f, lang) for f in tool.fields],
        tables=answer.tables, moments=moments(tool, answer),
        slots={name: Markup(html) for name, html in frame.slots(tool, answer, lang, live=False).items()})
    html = re.sub(r"\n\s*\n", "\n", html)               # a blank line would end the HTML in Markdown's eyes
    about = json.dumps(words["description"], ensure_ascii=False)
    return "\n\n".join([f"---\ndescription: {about}\n---\n# {words['title']}", words["lead"], html, words["after"]])


def field(tool: frame.Tool, f: frame.Field, lang: str) -> dict:
    hint = table("tools", lang)[tool.name].get("hints", {}).get(f.name, "")
    id = f"tool-{f.name}"
    described = f' aria-describedby="{id}-hint"' if hint else ""
    return {"id": id, "name": f.name, "label": tool.label(f, lang), "hint": hint, "when": f.when,
            "control": Markup(f.control(id, lang, tool.name, described))}


def moments(tool: frame.Tool, answer: frame.Answer) -> dict | None:
    """The cursor of the example; what it says stands in the page, so it moves before Python is there."""
    if not answer.moment:
        return None
    said = [frame.moment(tool, answer, i) for i in range(len(answer.places))]
    known = {"places": answer.places, "cursor": answer.cursor, "moments": said}
    return {"last": len(said) - 1, "first": Markup(said[0]),
            "data": Markup(json.dumps(known, ensure_ascii=False).replace("<", "\\u003c"))}
