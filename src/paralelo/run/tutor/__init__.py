"""The grammar tutor, the small model of the course: it inflects verbs and nouns of three languages.

    from paralelo.run import tutor
    seen, held_out = tutor.split()
    model = tutor.make(seed=0)
    tutor.train(model, seen)
    tutor.answer(model, "nosotros + hablar + pretérito")        # hablamos

`forms` makes the words by rules, `model` is the transformer, dense and over a tensor group, `train` teaches and asks.
`python -m paralelo.run.tutor` does it all, alone or under torchrun (`--tp 2 --dp 1`).
"""

from paralelo.run.tutor.forms import Question, conjugate, decline, parse, questions, split, vocabulary
from paralelo.run.tutor.model import Block, Head, ParallelBlock, ParallelHead, ParallelTutor, Shape, Tutor
from paralelo.run.tutor.train import LENGTH, accuracy, answer, batch, encode, make, train

__all__ = [
    "LENGTH", "Block", "Head", "ParallelBlock", "ParallelHead", "ParallelTutor", "Question", "Shape", "Tutor",
    "accuracy", "answer", "batch", "conjugate", "decline", "encode", "make", "parse", "questions", "split", "train",
    "vocabulary",
]
