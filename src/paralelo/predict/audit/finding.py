"""One thing that an audit has to say."""

from dataclasses import dataclass

from paralelo.words import Message


def layers_of(kinds: dict[str, int]) -> list[Message]:
    """How many layers of each kind, as something to say. A kind may have two parts: `moe/full`, `attn/14336`.

    >>> [m.say("es") for m in layers_of({"linear": 48, "moe/full": 1})]
    ['48 × atención lineal', '1 × con expertos + atención completa']
    """
    def part(name):
        return Message("audit.layer.width", {"width": int(name)}) if name.isdigit() else Message(f"audit.layer.{name}")

    def named(kind):
        first, _, second = kind.partition("/")
        both = {"first": part(first), "second": part(second)} if second else {}
        return Message("audit.layer.both", both) if second else part(first)

    return [Message("audit.layer.count", {"n": n, "kind": named(kind)}) for kind, n in kinds.items()]


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
