"""`paralelo route`: what it prints is what `predict` says."""

import json
import xml.etree.ElementTree as ET

import pytest

from paralelo.cli import main
from paralelo.predict.experts import draw
from paralelo.words import languages

pytestmark = pytest.mark.experts


def answer(capsys, *argv):
    assert main(["route", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_keys_and_their_sums(capsys):
    argv = "--tokens 500 --experts 6 --k 2 --ranks 4 --skew 1 --seed 3 --capacity-factor 1"
    found = answer(capsys, *argv.split())
    assert {"assigned", "dropped", "balance", "exchange"} <= found.keys()
    assert sum(found["assigned"]) == 1000 and found["capacity"] == 167
    assert found["dropped"] == [max(0, a - 167) for a in found["assigned"]]
    assert sum(map(sum, found["exchange"])) == 1000 - sum(found["dropped"])
    assert found["assigned"] == draw(500, 6, 2, 1, 3).counts and found["balance"] > 1


def test_without_capacity_nothing_is_dropped_and_the_seed_decides(capsys):
    argv = ("--tokens", "64", "--experts", "8", "--k", "1")
    first, again, other = answer(capsys, *argv), answer(capsys, *argv), answer(capsys, *argv, "--seed", "1")
    assert first == again != other and sum(first["dropped"]) == 0 and first["exchange"] == [[64]]


@pytest.mark.parametrize("lang", languages())
def test_tables(capsys, lang):
    argv = ["route", "--tokens", "100", "--experts", "80", "--k", "2", "--ranks", "2", "--capacity-factor", "1.1"]
    assert main([*argv, "--lang", lang]) == 0
    out = capsys.readouterr().out
    assert "…" in out and "rank 1" in out and "\x1b" not in out


def test_svg(capsys, tmp_path):
    file = tmp_path / "exchange.svg"
    argv = ["route", "--tokens", "50", "--experts", "4", "--k", "1", "--svg", str(file)]
    assert main([*argv, "--ranks", "4"]) == 0 and ET.parse(file).getroot().get("role") == "img"
    refused = tmp_path / "none.svg"
    assert main([*argv[:-1], str(refused), "--ranks", "100"]) == 2 and not refused.exists()


@pytest.mark.parametrize(("argv", "said"), [
    (["--tokens", "4", "--experts", "2", "--k", "3"], "k goes from 1 to 2"),
    (["--tokens", "10000000", "--experts", "1000", "--k", "1"], "at most 2,097,152"),
    (["--tokens", "4", "--experts", "2"], "--k"),
    (["--tokens", "4", "--experts", "2", "--k", "1", "--skew", "nan"], "--skew"),
    (["--tokens", "4", "--experts", "2", "--k", "1", "--capacity-factor", "0"], "--capacity-factor")])
def test_bad_input(capsys, argv, said):
    assert main(["route", *argv, "--lang", "en"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1
