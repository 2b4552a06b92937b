"""`paralelo plan`: all layouts of a model on N GPUs, ranked, with the reason for each rejection."""

from collections import Counter

import click

from paralelo.cli.frame import Number, Whole, build, option
from paralelo.words import number, say, size


def command(lang: str) -> click.Command:
    @build("plan", lang)
    @click.argument("config", metavar=say("cli.word.config", lang).upper())
    @option("--gpus", lang, type=Whole(1, 2**17), required=True)
    @option("--gpus-per-node", lang, type=Whole(1, 2**16))
    @option("--memory-gib", lang, type=Number(0, 1e6, above=True))
    @option("--sequence-length", lang, type=Whole(1, 10**9), default=4096)
    @option("--global-batch", lang, type=Whole(1, 10**9))
    @option("--cluster", lang, default="h100")
    @option("--order", lang, default="tp-cp-ep-dp-pp")
    @click.option("--zero", type=click.Choice([*"0123", "any"]), default="any", metavar="ZERO", show_default=True,
                  help=say("cli.option.zero_any", lang))
    @option("--microbatch-size", lang, type=Whole(1, 10**6), default=1)
    @option("--top", lang, type=Whole(1), default=20)
    def plan(out, config, gpus, gpus_per_node, memory_gib, sequence_length, global_batch, cluster, order, zero,
             microbatch_size, top):
        from paralelo.predict import model
        from paralelo.predict.plan import default_batch
        from paralelo.predict.plan import plan as make

        m = model.load(config)
        found = make(m, gpus, gpus_per_node=gpus_per_node, sequence_length=sequence_length,
                     memory=memory_gib and memory_gib * 2**30, global_batch=global_batch, cluster=cluster, order=order,
                     zero=None if zero == "any" else int(zero), microbatch_size=microbatch_size)
        fitting = sum(c.fits for c in found)
        answer = {"gpus": gpus, "global_batch": global_batch or default_batch(gpus, microbatch_size),
                  "microbatch_size": microbatch_size, "schedule": "1f1b", "fitting": fitting,
                  "layouts": (c.json(out.lang) for c in found)}
        if not out.json(answer):
            out.say("plan.show.title", count=len(found), gpus=gpus, batch=answer["global_batch"], fitting=fitting,
                    length=sequence_length, cluster=cluster)
            show(out, found, min(top, fitting), microbatch_size, zero == "any", bool(m.experts))
        return 0 if fitting else 1

    return plan


def show(out, found, top: int, microbatch_size: int, any_zero: bool, experts: bool) -> None:
    from paralelo.predict.plan import shared

    lang = out.lang
    if top:
        heads = ["dp", "tp", "pp", "cp", "ep", "ZeRO",
                 *(say(f"plan.show.{h}", lang) for h in ("seconds", "bytes", "microbatches", "recompute"))]
        rows = [[c.layout.dp, c.layout.tp, c.layout.pp, c.layout.cp, c.layout.ep, c.zero,
                 number(c.seconds, lang, 3), size(c.bytes, lang), c.microbatches,
                 say(f"plan.show.recompute_{c.recompute}", lang)] for c in found[:top]]
        out.table(heads, rows)
    else:
        out.say("plan.show.none")
    assumed = ["plan.show.assumed", *(["plan.show.assumed_zero"] if any_zero else [])]
    print(" ".join(say(id, lang, size=microbatch_size) for id in assumed))
    late = [c for c in found[:top] if c.zero >= 2 and shared(c.layout, experts)]
    if late:
        out.say("plan.show.late")
    if any(c.layout.pp > 1 for c in late):
        out.say("plan.show.piped")
    rest = [c for c in found if not c.fits]
    if rest:
        out.say("plan.show.out", count=len(rest))
        reasons = Counter(c.reasons[0].id for c in rest)
        first = {c.reasons[0].id: c.reasons[0] for c in reversed(rest)}
        for id, count in reasons.most_common():
            out.say("plan.show.reason", count=count, reason=first[id].say(lang))
