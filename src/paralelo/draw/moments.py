"""Moments of a timeline: what every rank does and holds between one event and the next, in words.

A moment begins where some action starts or ends. In it each rank works on one action or waits, and holds what its
forwards have kept: one more when F starts (a chunk counts 1/C), one less when B, or W where it is split, has ended.

    >>> from paralelo.predict.pipeline import build, simulate
    >>> moments = Moments(simulate(build("1f1b", 2, 2)))
    >>> moments.times
    [0, 1, 2, 4, 5, 6, 7, 9]
    >>> moments.ranks(3)
    [(('B', 0, 0), 2), (('F', 1, 1), 1)]
    >>> moments.say(3)
    ('Time 4 to 5 of 9', ['rank 0: B0 (stage 0), holds 2', 'rank 1: F1 (stage 1), holds 1'])
    >>> moments.say(7)
    ('End of the step, after 9', ['rank 0: done, holds 0', 'rank 1: done, holds 0'])
"""

import re
from bisect import bisect_right

from paralelo.draw.svg import escape, num
from paralelo.draw.timeline import GAP, ROW, timeline
from paralelo.words import say


class Moments:
    """The moments of a simulation; `times[i]` is where moment i begins, the last is the end of the step."""

    def __init__(self, result):
        self.result = result
        self.chunks = result.schedule.chunks
        begins = {time for times in (*result.starts, *result.ends) for time in times}
        self.times = [int(t) if t == int(t) else t for t in sorted(begins)]
        width = result.schedule.num_stages
        self.actions = [[("FBIW"[c & 3], (c >> 2) % width, (c >> 2) // width) for c in codes]
                        for codes in result.schedule.codes]

    def ranks(self, i: int) -> list[tuple]:
        """For every rank its action (kind, stage, microbatch), or None where it waits, and what it holds."""
        now, out = self.times[i], []
        for actions, starts, ends in zip(self.actions, self.result.starts, self.result.ends, strict=True):
            started, ended = bisect_right(starts, now), bisect_right(ends, now)
            held = sum(a[0] == "F" for a in actions[:started]) - sum(a[0] in "BW" for a in actions[:ended])
            held = held / self.chunks
            out.append((actions[started - 1] if started > ended else None, int(held) if held == int(held) else held))
        return out

    def say(self, i: int, lang: str = "en") -> tuple[str, list[str]]:
        """The moment in words: when it is, and a line a rank; who has no action left is done and waits for nothing."""
        last = len(self.times) - 1
        head = say("pipeline.moment.last" if i == last else "pipeline.moment.time", lang, start=self.times[i],
                   end=self.times[min(i + 1, last)], makespan=self.times[last])
        lines = []
        for rank, (action, held) in enumerate(self.ranks(i)):
            ends = self.result.ends[rank]
            if not action and (not ends or self.times[i] >= ends[-1]):
                lines.append(say("pipeline.moment.done", lang, rank=rank, held=held))
            elif action:
                kind, stage, microbatch = action
                lines.append(say("pipeline.moment.works", lang, rank=rank, action=f"{kind}{microbatch}", stage=stage,
                                 held=held))
            else:
                lines.append(say("pipeline.moment.waits", lang, rank=rank, held=held))
        return head, lines

    def places(self, picture: str) -> list[float]:
        """Where the moments are in a picture that `timeline` drew of the same simulation: x of each."""
        left, scale = (float(re.search(rf'data-{key}="([^"]+)"', picture)[1]) for key in ("left", "scale"))
        begin = self.times[0]
        return [round(left + (t - begin) * scale, 2) for t in self.times]

    def rows(self) -> tuple[float, float]:
        """From where to where the ranks' rows reach in that picture: y of the top and of the bottom."""
        return 8 - GAP / 2, 8 + self.result.schedule.stages * (ROW + GAP) - GAP / 2


def stepped(result, lang: str = "en", **options) -> str:
    """The timeline with its moments as steps: what has not happened yet is veiled, and every step has its sentence.

    Where nothing steps through it the picture is whole. `options` are those of `timeline`.
    """
    picture, moments = timeline(result, lang, **options), Moments(result)
    places, (top, bottom), veils = moments.places(picture), moments.rows(), []
    for i, x in enumerate([*places[1:], places[-1]]):
        head, lines = moments.say(i, lang)
        veil = "" if x == places[-1] else (
            f'<rect x="{num(x)}" y="{num(top)}" width="{num(places[-1] - x + 2)}" height="{num(bottom - top)}" '
            f'class="pl-veil"/><line x1="{num(x)}" y1="{num(top)}" x2="{num(x)}" y2="{num(bottom)}" class="pl-axis"/>')
        says = escape(f"{head}: {'; '.join(lines)}.")
        veils.append(f'<g data-only="{i}" display="none" data-says="{says}">{veil}</g>')
    return picture.replace("</svg>", "\n".join([*veils, "</svg>"]))
