"""The forms the tutor learns: verbs and nouns of three languages, by rules, the irregular ones listed.

A language is a file here (`es.toml`); another one is another file. Every form is a rewriting of its lemma: of the rules
"ending→replacement" of a slot, the first whose ending fits is applied, unless [irregular] lists the form.

A question is three words in a fixed order, a lemma between the two halves of its slot; its answer is one to three
words:

    nosotros + hablar + pretérito  →  hablamos             posesivo + casa + plural  →  mis casas
    we + speak + progressive  →  are speaking              ele + dizer + futuro  →  vai dizer

The vocabulary is by word: a word is a row, whatever the languages and slots it serves in.
"""

import random
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib import resources

from paralelo.words import Refused

__all__ = ["SPECIAL", "Question", "conjugate", "decline", "language", "languages", "parse", "questions", "split",
           "vocabulary"]

SPECIAL = ("<pad>", "<end>", "=")


@dataclass(frozen=True)
class Question:
    """`first` and `last` are the halves of the slot: subject and tense, or determiner and number."""

    lang: str
    first: str
    lemma: str
    last: str
    answer: tuple[str, ...]

    @property
    def tokens(self) -> tuple[str, ...]:
        """The prompt: `<es> nosotros hablar pretérito =`."""
        return (f"<{self.lang}>", self.first, self.lemma, self.last, "=")


@cache
def languages() -> tuple[str, ...]:
    """The languages there are, by their files."""
    return tuple(sorted(f.name[:-5] for f in resources.files(__name__).iterdir() if f.name.endswith(".toml")))


@cache
def language(lang: str) -> dict:
    if lang not in languages():
        raise Refused("tutor.language", lang=lang, would_do=list(languages()))
    return tomllib.loads((resources.files(__name__) / f"{lang}.toml").read_text(encoding="utf-8"))


def rewrite(lemma: str, rules: list[str]) -> str:
    """The first rule that fits.

    >>> rewrite("vivir", ["ar→amos", "ir→imos"]), rewrite("city", ["ty→ties", "→s"]), rewrite("dog", ["ty→ties", "→s"])
    ('vivimos', 'cities', 'dogs')
    """
    for rule in rules:
        ending, replacement = rule.split("→")
        if lemma.endswith(ending):
            return lemma[: len(lemma) - len(ending)] + replacement
    raise AssertionError(f"no rule of {rules} fits {lemma}")


def conjugate(lang: str, lemma: str, subject: str, tense: str) -> tuple[str, ...]:
    """The words of a verb form.

    >>> conjugate("es", "hablar", "nosotros", "pretérito"), conjugate("pt", "fazer", "eu", "presente")
    (('hablamos',), ('faço',))
    >>> conjugate("en", "write", "she", "perfect")
    ('has', 'written')
    """
    data = language(lang)
    person = data["subjects"][subject]
    if tense in data["tenses"]:
        listed = data.get("irregular", {}).get(lemma, {}).get(tense, {})
        return (listed[person] if person in listed else rewrite(lemma, data["tenses"][tense][person]),)
    how = data["compound"][tense]
    present = next(iter(data["tenses"]))
    listed = data["irregular"].get(lemma, {})
    part = listed.get(how["part"]) or rewrite(lemma, data["parts"][how["part"]])
    return (*conjugate(lang, how["auxiliary"], subject, present), *how["words"], part)


def decline(lang: str, lemma: str, determiner: str, number: str) -> tuple[str, ...]:
    """Determiner and noun, agreeing.

    >>> decline("es", "canción", "indefinido", "plural"), decline("pt", "mão", "possessivo", "plural")
    (('unas', 'canciones'), ('minhas', 'mãos'))
    """
    data = language(lang)
    gender = "f" if lemma in data["nouns"]["f"] else "m"
    noun = lemma
    if data["numbers"][number] == "p":
        noun = data["irregular"].get(lemma, {}).get("plural") or rewrite(lemma, data["nouns"]["plural"])
    return (data["determiners"][determiner][gender + data["numbers"][number]], noun)


@cache
def questions() -> tuple[Question, ...]:
    """Every combination of lemma and slot, in all languages."""
    found = []
    for lang in languages():
        data = language(lang)
        for lemma in data["verbs"]["lemmas"]:
            for subject in data["subjects"]:
                for tense in (*data["tenses"], *data["compound"]):
                    if lemma not in data["compound"].get(tense, {}).get("except", ()):
                        found.append(Question(lang, subject, lemma, tense, conjugate(lang, lemma, subject, tense)))
        for lemma in (*data["nouns"]["m"], *data["nouns"]["f"]):
            for determiner in data["determiners"]:
                for number in data["numbers"]:
                    found.append(Question(lang, determiner, lemma, number, decline(lang, lemma, determiner, number)))
    return tuple(found)


@cache
def vocabulary() -> tuple[str, ...]:
    """The rows of the embedding: special tokens and languages, then every word in alphabetical order.

    >>> 560 <= len(vocabulary()) <= 640
    True
    """
    words = {word for q in questions() for word in (q.first, q.lemma, q.last, *q.answer)}
    return (*SPECIAL, *(f"<{lang}>" for lang in languages()), *sorted(words))


def split(share: float = 0.15, seed: int = 0) -> tuple[list[Question], list[Question]]:
    """(seen, held out): combinations of lemma and slot that training never shows.

    Words are atoms here: nobody can say a word that training never answered with. So a combination is held out only
    where each word of its answer still answers another seen question of its language: `ella + hablar + presente` may
    be held out since `él + hablar + presente` has the same form; `yo + hablar + presente` is the only one with
    *hablo*.
    """
    if not 0 <= share < 1:
        raise Refused("tutor.share", share=share)
    order = list(questions())
    random.Random(seed).shuffle(order)
    uses = Counter((q.lang, word) for q in order for word in q.answer)
    seen, held_out, want = [], [], round(share * len(order))
    for q in order:
        if len(held_out) < want and all(uses[q.lang, word] > 1 for word in q.answer):
            uses.subtract((q.lang, word) for word in q.answer)
            held_out.append(q)
        else:
            seen.append(q)
    return seen, held_out


def parse(text: str, lang: str | None = None) -> Question:
    """The question of "nosotros + hablar + pretérito", its three words in any order.

    >>> parse("pretérito + hablar + nosotros").answer
    ('hablamos',)
    """
    words = [word.strip() for word in text.split("+")]
    if len(words) != 3 or not all(words):
        raise Refused("tutor.three_words", text=text)
    if lang is not None:
        language(lang)
    fits = [q for q in questions() if {q.first, q.lemma, q.last} == set(words) and lang in (None, q.lang)]
    if len({q.lang for q in fits}) > 1:
        raise Refused("tutor.which_language", text=text, languages=sorted({q.lang for q in fits}))
    if not fits:
        asked = {w for q in questions() if lang in (None, q.lang) for w in (q.first, q.lemma, q.last)}
        unknown = [word for word in words if word not in asked]
        raise Refused("tutor.unknown" if unknown else "tutor.no_question", text=text, words=unknown)
    return fits[0]
