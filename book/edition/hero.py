"""The drawing of the title page: the schedule that the course runs, four stages and eight microbatches."""

from edition import words
from edition.figures import inline


def hero(lang: str | None) -> str:
    """In the words of a language; in symbols alone, called by its sizes, for the page that offers all languages."""
    try:
        from paralelo.draw.timeline import timeline
        from paralelo.predict.pipeline import build, simulate
    except ImportError:
        return ""
    schedule = build("1f1b", 4, 8)
    return inline(timeline(simulate(schedule), lang), words(lang)["hero"] if lang else "1F1B, 4 × 8")
