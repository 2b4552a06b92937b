"""`paralelo route`: a routing of tokens to experts, its drops, its balance and its exchange matrix."""

import click

from paralelo.cli.frame import Number, Whole, build, option
from paralelo.words import percent, say

MOST_RANKS = 1024


def command(lang: str) -> click.Command:
    @build("route", lang)
    @option("--tokens", lang, type=Whole(1), required=True)
    @option("--experts", lang, type=Whole(1), required=True)
    @option("--k", lang, type=Whole(1), required=True)
    @option("--capacity-factor", lang, type=Number(0, 1e9, above=True))
    @option("--skew", lang, type=Number(0, 100), default=0)
    @option("--ranks", lang, type=Whole(1, MOST_RANKS), default=1)
    @option("--seed", lang, type=Whole(0), default=0)
    @option("--svg", lang, type=click.Path(), metavar="F")
    def route(out, tokens, experts, k, capacity_factor, skew, ranks, seed, svg):
        from paralelo.predict.experts import draw, dropped

        routing = draw(tokens, experts, k, skew, seed)
        room = None if capacity_factor is None else routing.capacity(capacity_factor)
        counts = routing.counts
        lost = dropped(counts, tokens * k if room is None else room)
        answer = {
            "tokens": tokens, "experts": experts, "k": k, "ranks": ranks, "capacity": room, "assigned": counts,
            "dropped": lost, "balance": routing.balance(), "z_loss": routing.z_loss,
            "exchange": routing.exchange(ranks, room),
        }
        if svg:
            from paralelo.draw.grid import exchange

            picture = exchange(answer["exchange"], out.lang)
            with open(svg, "w", encoding="utf-8", newline="\n") as to:
                to.write(picture)
        if not out.json(answer):
            _show(out, answer)
        return 0

    return route


def _show(out, answer) -> None:
    from paralelo.predict.experts import experts_of

    words = {h: say(f"experts.route.{h}", out.lang) for h in ("expert", "rank", "assigned", "share", "dropped")}
    counts, lost, total = answer["assigned"], answer["dropped"], sum(answer["assigned"])
    rank_of = {e: r for r, some in enumerate(experts_of(answer["experts"], answer["ranks"])) for e in some}
    rows = [[e, rank_of[e], counts[e], percent(counts[e] / total, out.lang), lost[e]] for e in range(len(counts))]
    title = say("experts.route.title", out.lang, **{n: answer[n] for n in ("tokens", "experts", "k")})
    out.table(list(words.values()), _few(rows), title)
    if answer["capacity"] is None:
        out.say("experts.route.dropless")
    else:
        out.say("experts.route.capacity", capacity=answer["capacity"])
        out.say("experts.route.dropped_share", dropped=sum(lost), assigned=total, share=sum(lost) / total)
    out.say("experts.route.balance", balance=answer["balance"], experts=answer["experts"])
    matrix = answer["exchange"]
    if 1 < len(matrix) <= 16:
        print()
        rows = [[f"{words['rank']} {s}", *row] for s, row in enumerate(matrix)]
        out.table(["", *map(str, range(len(matrix)))], rows, say("experts.route.exchange", out.lang))
    if len(matrix) > 1:
        sent = sum(map(sum, matrix))
        home = sum(row[i] for i, row in enumerate(matrix))
        out.say("experts.route.leaving", share=(sent - home) / sent if sent else 0)


def _few(rows, most: int = 64):
    """Rows that fit a person: the first and the last ones of many."""
    return rows if len(rows) <= most else [*rows[:most // 2], ["…"] * len(rows[0]), *rows[-most // 4:]]
