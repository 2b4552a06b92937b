"""The drawing of the title page: the schedule that the course runs, four stages and eight microbatches."""

from edition import words
from edition.figures import inline


def hero(lang: str) -> str:
    try:
        from paralelo.draw.timeline import timeline
        from paralelo.predict.pipeline import build, simulate
    except ImportError:
        return ""
    schedule = build("1f1b", 4, 8)
    return inline(timeline(simulate(schedule), lang=lang), words(lang)["hero"])
