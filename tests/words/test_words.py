"""The words: the same sentences with the same fields in every language, and numbers as each language writes them."""

import pickle
import re
import string
from fractions import Fraction
from pathlib import Path

import pytest

import paralelo
from paralelo.words import Message, Refused, languages, number, percent, rules, say, size, table

SOURCE = Path(paralelo.__file__).parent
IDEAS = sorted({f.stem for f in (SOURCE / "words").glob("*/*.toml")} - {"language"})


def flat(found, path=""):
    for key, value in found.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def fields(sentence):
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name is not None}


@pytest.mark.parametrize("idea", IDEAS)
@pytest.mark.parametrize("lang", [x for x in languages() if x != "en"])
def test_same_sentences_and_fields(idea, lang):
    english, other = dict(flat(table(idea, "en"))), dict(flat(table(idea, lang)))
    assert english.keys() == other.keys()
    for key, sentence in english.items():
        if isinstance(sentence, str):
            assert fields(sentence) == fields(other[key]), key


@pytest.mark.parametrize("idea", IDEAS)
def test_sentences_are_tidy(idea):
    for lang in languages():
        for key, sentence in flat(table(idea, lang)):
            assert not isinstance(sentence, str) or (sentence == sentence.strip() and "  " not in sentence), (lang, key)


def test_every_sentence_that_is_asked_for_exists():
    """Ids that stand in the source as plain strings, in `say`, `Refused` and `Message`."""
    asked = re.compile(r'\b(?:say|Refused|Message)\(\s*"([a-z_]+(?:\.[a-z0-9_]+)+)"[,)]')
    found = {(file.name, id) for file in SOURCE.rglob("*.py") for id in asked.findall(file.read_text("utf-8"))}
    assert len(found) > 40
    for name, id in sorted(found):
        if id in ("words.no_message", "pipeline.nothing") or name == "__init__.py":
            continue
        idea, *path = id.split(".")
        for lang in languages():
            sentence = table(idea, lang)
            for part in path:
                sentence = sentence.get(part, {})
            assert isinstance(sentence, str), (name, id, lang)


@pytest.mark.parametrize(("lang", "written"), [
    ("en", ["4096", "17,408", "13.7", "−2.5", "15.8%", "16.6\u00a0GB", "512\u00a0B"]),
    ("es", ["4096", "17\u202f408", "13.7", "−2.5", "15.8\u00a0%", "16.6\u00a0GB", "512\u00a0B"]),
    ("pt", ["4096", "17\u202f408", "13,7", "−2,5", "15,8%", "16,6\u00a0GB", "512\u00a0B"])])
def test_numbers(lang, written):
    assert [number(4096, lang), number(17408, lang), number(13.7, lang), number(-2.5, lang),
            percent(Fraction(3, 19), lang), size(16.6e9, lang), size(512, lang)] == written


def test_lists_and_counts():
    fields = {"stages": 4, "microbatches": 13, "would_do": [12, 15]}
    assert "12 or 15" in say("pipeline.interleaved_microbatches", "en", **fields)
    assert "12 o 15" in say("pipeline.interleaved_microbatches", "es", **fields)
    assert "12 ou 15" in say("pipeline.interleaved_microbatches", "pt", **fields)
    title = {"name": "gpipe", "microbatches": 1}
    assert "1 rank, 1 microbatch" in say("pipeline.diagram.title", "en", stages=1, **title)
    assert "2 ranks, 1 microlote" in say("pipeline.diagram.title", "pt", stages=2, **title)


def test_refused_is_a_value_error_in_every_language_and_travels():
    error = Refused("pipeline.no_schedule", name="x", names=["a", "b"])
    assert isinstance(error, ValueError) and str(error) == error.say("en") != error.say("es")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(Message("pipeline.nothing")) == say("pipeline.nothing")


def test_unknown_language_and_sentence():
    with pytest.raises(Refused, match="no language is called xx"):
        rules("xx")
    with pytest.raises(KeyError):
        say("pipeline.no_such_sentence")
