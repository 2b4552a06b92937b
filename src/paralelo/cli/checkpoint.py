"""`paralelo checkpoint show`: what is in a checkpoint, and whether it is whole."""

import click

from paralelo.cli.frame import build, option
from paralelo.cli.reshard import Bar, plain
from paralelo.words import say, size

SHOWN = 40


def command(lang: str) -> click.Command:
    @build("checkpoint", lang)
    @click.argument("action", metavar="show", type=click.Choice(["show"]))
    @click.argument("folder", metavar=say("cli.word.folder", lang).upper())
    @option("--verify", lang, is_flag=True)
    def checkpoint(out, action, folder, verify):
        from paralelo.run.checkpoint.manifest import open_newest
        from paralelo.run.checkpoint.resharding import verify as check

        plain(folder)
        found = open_newest(folder)
        if verify:
            done = 0
            with Bar(say("cli.checkpoint_table.checking", out.lang)) as bar:
                def after(n):
                    nonlocal done
                    done += n
                    bar(done, found.bytes)

                check(found.folder, after)
        if not out.json(answer(found, verify)):
            show(out, found, verify)
        return 0

    return checkpoint


def answer(found, verified: bool) -> dict:
    from dataclasses import asdict

    tensors = {name: {
        "shape": list(e.shape), "dtype": e.dtype, "bytes": e.bytes, "pieces": len(e.pieces), "where": list(e.where),
        "cuts": {axis: cut.dim for axis, cut in e.cuts.items()},
        "files": sorted({p.file for p in e.pieces})} for name, e in sorted(found.entries.items())}
    return {"folder": str(found.folder), "step": found.step, "layout": asdict(found.layout),
            "world_size": found.layout.world_size, "bytes": found.bytes, "files": found.files, "verified": verified,
            "values": found.values, "tensors": tensors}


def show(out, found, verified: bool) -> None:
    lang, degrees = out.lang, found.layout
    out.say("cli.checkpoint_table.title", folder=str(found.folder), step=found.step, n=len(found.entries),
            bytes=size(found.bytes, lang), files=len(found.files))
    out.say("cli.checkpoint_table.layout", dp=degrees.dp, tp=degrees.tp, pp=degrees.pp, cp=degrees.cp, ep=degrees.ep,
            etp=degrees.etp, order=degrees.order)
    if verified:
        out.say("cli.checkpoint_table.verified")
    heads = [say(f"cli.checkpoint_table.{h}", lang) for h in ("name", "shape", "type", "cut", "layers", "pieces")]
    rows = [[name, " × ".join(map(str, e.shape)) or "–", e.dtype,
             ", ".join(f"{axis}: dim {cut.dim}" for axis, cut in e.cuts.items()) or "–",
             ", ".join(map(str, e.where)) or "–", len(e.pieces)] for name, e in sorted(found.entries.items())]
    rest = len(rows) - SHOWN
    out.table(heads, rows[:SHOWN] if rest > 0 else rows)
    if rest > 0:
        out.say("cli.checkpoint_table.more", n=rest)
