"""`paralelo links`: α and β of every collective on this machine, measured and fitted."""

import click

from paralelo.cli.frame import Whole, build, option
from paralelo.words import Refused, number, percent


def command(lang):
    @build("links", lang)
    @option("--ranks", lang, type=Whole(2, 64), default=2)
    @option("--device", lang, type=click.Choice(["cpu", "cuda"]), shown="device")
    def links(out, ranks, device):
        from importlib.util import find_spec

        if find_spec("torch") is None:
            raise Refused("ranks.no_torch")
        from paralelo.predict.links import fit
        from paralelo.run.links import measured
        from paralelo.run.ranks import Ranks

        with Ranks(ranks, device=device) as pool:
            found, device, backend = measured(pool), pool.device, pool.backend
        fits = {kind: fit(kind, ranks, *timing) for kind, timing in found.items()}
        poor = [kind for kind, fitted in fits.items() if not fitted.good()]
        answer = {
            "ranks": ranks, "device": device, "backend": backend,
            "collectives": [{"name": kind, "alpha": f.alpha, "beta": f.beta, "median_error": f.median_error,
                             "points": [list(p) for p in zip(*found[kind], strict=True)]} for kind, f in fits.items()],
        }
        if not out.json(answer):
            rows = [[kind, number(f.alpha * 1e6, out.lang, 1), number(f.bandwidth / 1e9, out.lang, 2),
                     percent(f.median_error, out.lang, 0), "✗" if kind in poor else "✓"]
                    for kind, f in fits.items()]
            out.say("links_run.machine", ranks=ranks, device=device, backend=backend)
            out.table(["", "α / µs", "1/β / GB/s", "±", ""], rows)
            if poor:
                out.say("links_run.poor", names=poor)
        return bool(poor)

    return links
