"""`paralelo read`: another tool's configuration, explained and checked."""

import click

from paralelo.cli.frame import Whole, build, option
from paralelo.words import say

SIGNS = {"divides": "✓", "padded": "✓", "replicated": "!", "note": "·", "breaks": "✗"}


def command(lang: str) -> click.Command:
    @build("read", lang)
    @click.argument("file", metavar=say("cli.word.file", lang).upper())
    @option("--gpus", lang, type=Whole(1, 2**20))
    def read(out, file, gpus):
        from paralelo.predict import dialects

        found = dialects.load(file, gpus)
        at = found.layout
        layout = {axis: getattr(at, axis) for axis in ("dp", "tp", "pp", "cp", "ep", "etp", "order", "world_size")}
        options = [{"option": o.name, "value": o.value, "message": o.message.say(out.lang)} for o in found.options]
        answer = {
            "dialect": found.dialect,
            "layout": layout,
            "valid": found.valid,
            "settings": {k: v for k, v in found.settings.items() if v is not None},
            "options": options,
            "findings": [f.json(out.lang) for f in found.findings],
        }
        if not out.json(answer):
            show(out, found, answer)
        return 0 if found.valid else 1

    return read


def show(out, found, answer) -> None:
    at = answer["layout"]
    out.say("read.show.title", dialect=found.dialect, **at)
    others = [o for o in found.options if o.message.id == "read.other_option"]
    for o in found.options:
        if o not in others:
            print("  ", o.message.say(out.lang))
    if others:
        print("  ", say("read.show.others", out.lang, options=[o.name for o in others]))
    print()
    for f in found.findings:
        print(SIGNS[f.verdict], f.message.say(out.lang))
    out.say("read.show.valid" if found.valid else "read.show.invalid")
