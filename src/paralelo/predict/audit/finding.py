"""One thing that an audit has to say."""

from dataclasses import dataclass

from paralelo.words import Message

VERDICTS = ("divides", "replicated", "padded", "breaks", "note")


@dataclass(frozen=True)
class Finding:
    """`dimension` of `size` at `degree`: the verdict, and a sentence that says what happens on each rank."""

    dimension: str
    size: int
    degree: int
    verdict: str
    message: Message
    price: int = 0                                          # bytes a rank holds beyond an even share

    def __post_init__(self):
        assert self.verdict in VERDICTS, self.verdict

    def json(self, lang: str = "en") -> dict:
        out = {"dimension": self.dimension, "size": self.size, "degree": self.degree, "verdict": self.verdict,
               "message": self.message.say(lang)}
        return out | ({"bytes": self.price} if self.price else {})
