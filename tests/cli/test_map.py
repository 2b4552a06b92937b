"""`paralelo map`: the layout that the mesh is built from, on paper."""

import json
import xml.etree.ElementTree as ET

import pytest

from paralelo.cli import main
from paralelo.predict.layout import Layout
from paralelo.words import languages

pytestmark = pytest.mark.layout


def answer(capsys, *argv):
    assert main(["map", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_seventy_billion_on_eight_nodes(capsys):
    found = answer(capsys, "--dp", "2", "--tp", "8", "--pp", "4")
    layout = Layout(dp=2, tp=8, pp=4, etp=8)
    assert found["world_size"] == len(found["ranks"]) == 64
    assert found["ranks"][19] == {"rank": 19, "node": 2, **layout.coordinates(19)}
    assert found["groups"]["pp"] == layout.groups("pp") and found["nodes_crossed"]["tp"] == 1
    assert found["nodes_crossed"]["dp"] == 2 and found["nodes_crossed"]["pp"] == 4


def test_both_orders(capsys):
    argv = ("--dp", "2", "--pp", "2", "--tp", "2")
    inner, outer = answer(capsys, *argv), answer(capsys, *argv, "--order", "tp-cp-ep-pp-dp")
    assert inner["groups"]["dp"][0] == [0, 2] and outer["groups"]["dp"][0] == [0, 4]


def test_experts_fold_over_context(capsys):
    """C70: ep may exceed dp, because experts take the places of context ranks too."""
    found = answer(capsys, "--dp", "2", "--cp", "16", "--ep", "32")
    assert found["groups"]["ep"] == [list(range(32))] and found["degrees"]["edp"] == 1
    assert main(["map", "--dp", "2", "--cp", "16", "--ep", "64", "--lang", "en"]) == 2
    assert "64 must divide" in capsys.readouterr().err


@pytest.mark.parametrize("lang", languages())
def test_tables_and_drawing(capsys, tmp_path, lang):
    file = tmp_path / "map.svg"
    assert main(["map", "--dp", "4", "--tp", "8", "--pp", "4", "--axis", "dp", "--svg", str(file), "--lang", lang]) == 0
    out = capsys.readouterr().out
    assert "0 8 16 24" in out and "…" in out and ET.parse(file).getroot().get("role") == "img"


@pytest.mark.parametrize("argv", [
    ["--tp", "0"], ["--tp", "x"], ["--order", "tp-dp"], ["--tp", "1048576", "--dp", "2"], ["--dp", "65536"],
    ["--axis", "zz"], ["--gpus-per-node", "0"], ["--etp", "3"], ["--order", ""]])
def test_bad_input(capsys, argv):
    for lang in languages():
        assert main(["map", *argv, "--lang", lang]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
