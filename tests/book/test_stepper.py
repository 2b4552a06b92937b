"""Figures with steps: the drawing is whole without a script, every step has its sentence, the script stays small."""

import re
from pathlib import Path

import pytest

from paralelo.draw.moments import Moments, stepped
from paralelo.predict.pipeline import build, simulate
from paralelo.words import table

ROOT = Path(__file__).resolve().parents[2]
LANGS = ("en", "es", "pt")


def test_the_script_is_under_five_kilobytes():
    assert (ROOT / "book" / "theme" / "assets" / "stepper.js").stat().st_size < 5000


@pytest.mark.parametrize("lang", LANGS)
def test_every_moment_is_a_step_and_the_drawing_is_whole_without_a_script(lang):
    result = simulate(build("1f1b", 4, 4))
    picture, moments = stepped(result, lang, scale=30), Moments(result)
    steps = re.findall(r'<g data-only="(\d+)" display="none" data-says="([^"]+)">', picture)
    assert [int(n) for n, _ in steps] == list(range(len(moments.times)))
    assert all(says.startswith(moments.say(int(n), lang)[0]) for n, says in steps)
    assert picture.count("pl-veil\"") == len(steps) - 2        # nothing is veiled in the last box and at the end
    assert {"previous", "next", "play", "pause", "step", "label"} <= set(table("tools", lang)["stepper"])
