"""`paralelo audit`: one model, one layout, everything that there is to say about it."""

import click

from paralelo.cli.frame import Whole, build, option
from paralelo.words import Message, percent, say, size

SIGNS = {"divides": "✓", "padded": "✓", "replicated": "!", "note": "·", "breaks": "✗"}


def command(lang: str) -> click.Command:
    @build("audit", lang)
    @click.argument("config", metavar=say("cli.word.config", lang).upper(), shell_complete=included)
    @option("--tp", lang, type=Whole(1), default=1)
    @option("--pp", lang, type=Whole(1), default=1)
    @option("--cp", lang, type=Whole(1), default=1)
    @option("--ep", lang, type=Whole(1), default=1)
    @option("--etp", lang, type=Whole(1), shown="etp")
    @option("--dp", lang, type=Whole(1), default=1)
    @option("--order", lang, default="tp-cp-ep-dp-pp")
    @option("--sequence-length", lang, type=Whole(1), default=4096)
    @option("--microbatch-size", lang, type=Whole(1), default=1)
    @option("--microbatches", lang, type=Whole(1), shown="microbatches")
    @option("--schedule", lang, default="1f1b")
    @option("--chunks", lang, type=Whole(1), default=1)
    @option("--zero", lang, type=Whole(0, 3), default=0)
    @option("--sequence-parallel", lang, is_flag=True)
    @option("--recompute", lang, type=click.Choice(["none", "selective", "full"]), default="none")
    @option("--cluster", lang)
    def audit(out, config, tp, pp, cp, ep, etp, dp, order, microbatches, cluster, **options):
        from paralelo.predict import audit as a
        from paralelo.predict import model

        degrees = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "dp": dp, "order": order} | ({"etp": etp} if etp else {})
        where = None
        if cluster is not None:
            from paralelo.predict.links import cluster as named

            where = named(cluster)
        options = a.Options(microbatches=microbatches or pp, **options)
        result = a.audit(model.load(config), options, where, **degrees)
        answer = result.json(out.lang)
        if where:
            answer["seconds_per_step"] = a.seconds_per_step(result, where)
        if not out.json(answer):
            show(out, result, answer)
        return 0 if result.valid else 1

    return audit


def included(ctx, param, incomplete):
    """Completion: the configurations that come with the package."""
    from paralelo.predict.model import shipped

    return [n for n in shipped() if n.startswith(incomplete)]


def show(out, result, answer) -> None:
    from paralelo.predict.audit import layers_of

    lang, m = out.lang, answer["model"]
    out.say("audit.show.model", **m, kinds=layers_of(m["layer_kinds"]))
    if m["experts"]:
        out.say("audit.show.experts", experts=m["experts"])
    for note in answer["notes"]:
        print("·", note)
    degrees = result.layout
    out.say("audit.show.layout", tp=degrees.tp, pp=degrees.pp, cp=degrees.cp, dp=degrees.dp, ep=degrees.ep,
            etp=degrees.etp, world=degrees.world_size)
    print()
    for finding in result.findings:
        print(SIGNS[finding.verdict], finding.message.say(lang))
    print()
    more = answer["tp_degrees_with_replication"]
    copied = {d.name: Message(f"audit.show.copied_{d.name}") for d in result.model.dims if d.rule == "replicate"}
    out.say("audit.show.tensor_degrees_copied" if more else "audit.show.tensor_degrees", tp=answer["tp_degrees"],
            more=more, copied=list(copied.values()))
    out.say("audit.show.pipeline_degrees", pp=answer["pp_equal_stages"])
    if m["experts"]:
        out.say("audit.show.expert_degrees", ep=answer["ep_degrees"])
    print()
    if result.stages:
        tables(out, answer)
    if "seconds_per_step" in answer and answer["seconds_per_step"] is not None:
        out.say("audit.show.seconds", seconds=answer["seconds_per_step"])
    elif result.valid and "seconds_per_step" not in answer:
        out.say("audit.show.unjudged", total=answer["bytes_per_rank"]["total"])
    out.say("audit.show.valid" if result.valid else "audit.show.invalid")


def tables(out, answer) -> None:
    """Memory by stage, traffic by axis."""
    lang = out.lang
    parts = ("parameters", "gradients", "optimizer", "activations", "total")
    stages = answer["stages"] if len(answer["stages"]) <= 16 else [*answer["stages"][:8], *answer["stages"][-8:]]
    heads = [say(f"audit.show.{h}", lang) for h in ("stage", "layers", *parts)]
    rows = [[str(s["rank"]), str(s["layers"]), *(size(s["bytes"][p], lang) for p in parts)] for s in stages]
    out.table(heads, rows, say("audit.show.memory", lang))
    sent = answer["bytes_per_step"]
    total = sum(sent.values()) or 1
    rows = [[axis, size(n, lang), percent(n / total, lang)] for axis, n in sent.items()]
    out.table([say(f"audit.show.{h}", lang) for h in ("axis", "bytes", "share")], rows, say("audit.show.traffic", lang))
