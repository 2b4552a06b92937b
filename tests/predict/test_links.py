"""Fits recover what they were made from; presets are what data sheets say; files that are none are refused."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paralelo.predict import links
from paralelo.predict.collectives import ALGORITHMS, seconds
from paralelo.predict.layout import Layout
from paralelo.words import Refused, languages

pytestmark = pytest.mark.collectives

SIZES = [4 ** i for i in range(4, 13)]


@given(st.floats(1e-7, 1e-3), st.floats(1e-12, 1e-7), st.integers(2, 16), st.sampled_from(ALGORITHMS))
def test_a_fit_recovers_alpha_and_beta(alpha, beta, N, algorithm):
    times = [seconds("all_reduce", n, N, alpha, beta, algorithm) for n in SIZES]
    found = links.fit("all_reduce", N, SIZES, times, algorithm)
    assert found.alpha == pytest.approx(alpha, rel=1e-4) and found.beta == pytest.approx(beta, rel=1e-4)
    assert found.median_error < 1e-6 and found.good()


def test_noise_shows_in_the_error_and_not_in_the_sign():
    noise = random.Random(5)
    times = [seconds("all_reduce", n, 4, 20e-6, 1e-9) * noise.uniform(0.9, 1.1) for n in SIZES]
    found = links.fit("all_reduce", 4, SIZES, times)
    assert found.alpha == pytest.approx(20e-6, rel=0.15) and found.beta == pytest.approx(1e-9, rel=0.15)
    assert 0.01 < found.median_error < 0.1
    nonsense = links.fit("all_reduce", 4, SIZES, [10 ** noise.uniform(-6, -2) for _ in SIZES])
    assert nonsense.alpha >= 0 and nonsense.beta >= 0 and not nonsense.good()
    falling = links.fit("all_reduce", 4, SIZES, [1 / n for n in SIZES])
    assert falling.beta == 0 and falling.bandwidth == float("inf")
    bent = links.fit("all_reduce", 4, SIZES[:4], [1e-9 * n**1.5 for n in SIZES[:4]])      # a line would start below 0
    assert bent.alpha == 0 and bent.beta > 0 and bent.median_error > 0.1


def test_data_sheets():
    both = lambda name: 2 * links.link(name).one_way / 1e9  # noqa: E731
    assert both("nvlink-a100") == 600 and both("nvlink-h100") == 900 and both("pcie-4") == 64
    assert links.link("ib-ndr").one_way * 8 == 400e9
    for name in links.presets()["cluster"]:
        found = links.cluster(name)
        assert found.inside.one_way > found.between.one_way and 0 < found.device.matmul < 1
    for name in links.presets()["link"]:
        assert links.link(name).seconds("all_reduce", 1e6, 2) > 0


def test_the_link_of_an_axis_is_the_slowest_it_crosses():
    a100 = links.cluster("a100")
    assert a100.link(Layout(dp=2, tp=8, pp=4), "tp") == a100.inside
    assert a100.link(Layout(dp=2, tp=8, pp=4), "dp") == a100.between
    assert a100.link(Layout(tp=16), "tp") == a100.between


GOOD = """
[link.mine]
alpha = 1e-6
one_way = 1e9
[cluster.home]
device = "a100"
gpus_per_node = 4
inside = "mine"
between = "loopback"
"""


def test_a_file_describes_another_cluster(tmp_path):
    path = tmp_path / "home.toml"
    path.write_text(GOOD)
    home = links.cluster(str(path))
    assert home.name == "home" and home.gpus_per_node == 4 and home.inside.beta == 1e-9
    assert home.between.name == "loopback" and home.device.name == "a100"


@pytest.mark.parametrize("content", [
    b"", b"\x00\xff\xfe", b"[cluster", b"[cluster]\n", b"cluster = 3\n", b"[cluster.a]\n", b"[" * 5000,
    GOOD.replace('"mine"', '"yours"').encode(), GOOD.replace("1e-6", "nan").encode(), GOOD.replace("1e9", "0").encode(),
    GOOD.replace("1e9", "inf").encode(), GOOD.replace("= 4", '= "4"').encode(), GOOD.replace("= 4", "= 0").encode(),
    GOOD.replace('"a100"', "[1]").encode(), GOOD.replace("alpha = 1e-6", "").encode(),
    b"link = 3\n" + GOOD[60:].encode(),
    b"# " + b"x" * 2**20])
def test_files_that_do_not_describe_one(tmp_path, content):
    path = tmp_path / "cluster.toml"
    path.write_bytes(content)
    with pytest.raises(Refused) as refused:
        links.cluster(str(path))
    sentences = {refused.value.say(lang) for lang in languages()}
    assert len(sentences) == len(languages()) and all("\n" not in s for s in sentences)


@pytest.mark.parametrize("ask", [
    lambda: links.cluster("atlantis"), lambda: links.link("string"), lambda: links.device("abacus"),
    lambda: links.cluster("/nowhere/at/all.toml"), lambda: links.cluster(3), lambda: links.cluster("\0.toml"),
    lambda: links.fit("all_reduce", 4, [1, 2], [1.0]), lambda: links.fit("all_reduce", 4, [8, 8], [1.0, 1.0]),
    lambda: links.fit("all_reduce", 1, [8, 16], [1.0, 1.0]), lambda: links.fit("all_reduce", 4, [8, 16], [0.0, 1.0])])
def test_refused_in_every_language(ask):
    with pytest.raises(Refused) as refused:
        ask()
    assert len({refused.value.say(lang) for lang in languages()}) == len(languages())
