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


@pytest.fixture(scope="module")
def site(real_site, serve):
    return serve(real_site)


@pytest.mark.parametrize("lang", LANGS)
def test_nobody_waits_after_the_end_and_who_has_finished_says_so(lang):
    result = simulate(build("1f1b", 4, 4))
    moments = Moments(result)
    said = table("pipeline", lang)["moment"]
    for i, time in enumerate(moments.times):
        for rank, line in enumerate(moments.say(i, lang)[1]):
            over = time >= result.ends[rank][-1]
            assert (line == said["done"].format(rank=rank, held=0)) is over, (i, line)
    assert moments.times[-1] >= max(ends[-1] for ends in result.ends)
    assert said["done"] != said["waits"]


@pytest.mark.browser
@pytest.mark.parametrize("lang", LANGS)
def test_a_figure_opens_whole_and_the_next_button_goes_to_its_first_step(visit, site, lang):
    tab = visit(f"{site}{lang}/pipeline.html")
    box, words = tab.locator("figure.stepper"), table("tools", lang)["stepper"]
    moments = Moments(simulate(build("1f1b", 4, 4)))
    veils, says = box.locator(".pl-veil"), box.locator(".steps p")
    seen = lambda: veils.evaluate_all("all => all.filter(e => e.getClientRects().length).length")  # noqa: E731
    back, on = (box.get_by_role("button", name=words[name]) for name in ("previous", "next"))

    assert seen() == 0 and says.inner_text() == words["whole"]
    assert back.get_attribute("aria-disabled") == "true" and on.get_attribute("aria-disabled") == "false"
    on.click()
    assert seen() == 1 and says.inner_text().startswith(moments.say(0, lang)[0])
    tab.emulate_media(media="print")
    assert seen() == 0 and not box.locator(".steps").is_visible()          # on paper it is whole, wherever one was
    tab.emulate_media(media="screen")
    back.click()
    assert seen() == 0 and says.inner_text() == words["whole"]
    box.get_by_role("slider").press("End")
    assert says.inner_text().startswith(moments.say(len(moments.times) - 1, lang)[0])
    assert on.get_attribute("aria-disabled") == "true" and back.get_attribute("aria-disabled") == "false"


@pytest.mark.browser
def test_without_a_script_a_figure_is_whole_and_has_no_buttons(visit, site):
    tab = visit(f"{site}es/pipeline.html", java_script_enabled=False)
    box = tab.locator("figure.stepper")
    assert box.locator("svg").is_visible() and not box.locator(".steps").is_visible()
    assert not any(veil.is_visible() for veil in box.locator(".pl-veil").all())
