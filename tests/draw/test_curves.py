"""Measured curves: the crossing, and an SVG that is the same to the byte."""

import doctest
import xml.etree.ElementTree as ET

import pytest

pytest.importorskip("matplotlib")

from paralelo.draw import curves

POINTS = {"t₁/t₂": [(64, 0.2), (256, 0.8), (1024, 1.6)], "t∀/t₂": [(64, 0.1), (256, 0.5), (1024, 0.9)]}


def test_doctests():
    assert doctest.testmod(curves).failed == 0


def test_the_crossing_lies_on_the_line():
    assert 256 < curves.crossing(POINTS["t₁/t₂"]) < 1024
    assert curves.crossing(POINTS["t∀/t₂"]) is None


def test_an_svg_the_same_to_the_byte():
    first = curves.lines(POINTS, "D", "t₁/t₂", level=1, fit={"p": [(64, 0.3), (1024, 1.5)]})
    assert first == curves.lines(POINTS, "D", "t₁/t₂", level=1, fit={"p": [(64, 0.3), (1024, 1.5)]})
    ET.fromstring(first)
    assert f"{curves.crossing(POINTS['t₁/t₂']):.0f}</text>" in first.replace("<!--", "")
    assert "t∀/t₂" in first
