"""Teaching the tutor and asking it.

    tokens   <es> nosotros hablar pretérito =        hablamos   <pad>
    targets    –      –       –       –     hablamos  <end>       –         – is −100: no loss

Every sequence has LENGTH positions; the loss is the mean over the tokens that count. Batches depend on (seed, step)
only, so that any layout of ranks can draw the same ones.
"""

import math
from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch import Tensor, nn

from paralelo.run import data
from paralelo.run.collectives import all_gather
from paralelo.run.tensor import IGNORE, clip_grad_norm
from paralelo.run.tutor import forms
from paralelo.run.tutor.model import ParallelTutor, Shape, Tutor

__all__ = ["LENGTH", "accuracy", "answer", "batch", "encode", "make", "step_rate", "train"]

LENGTH = 8


@cache
def _rows() -> dict[str, int]:
    return {word: row for row, word in enumerate(forms.vocabulary())}


def make(seed: int = 0, **sizes) -> Tutor:
    """A dense tutor over the vocabulary of all languages, untaught."""
    return Tutor(Shape(V=len(forms.vocabulary()), **sizes), seed)


def encode(questions: Iterable[forms.Question], length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """tokens and targets (n, length); the prompt, the padding and nothing else are −100 in the targets."""
    rows, tokens, targets = _rows(), [], []
    for q in questions:
        words = [rows[w] for w in (*q.tokens, *q.answer, "<end>")]
        start, stop = len(q.tokens) - 1, len(words) - 1
        tokens.append(words[:-1] + [rows["<pad>"]] * (length - stop))
        targets.append([IGNORE] * start + words[start + 1:] + [IGNORE] * (length - stop))
    return torch.tensor(tokens), torch.tensor(targets)


def batch(encoded: tuple[Tensor, Tensor], step: int, size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The batch of a step: `size` of the rows, an epoch of them in an order of its own before any comes again."""
    n = len(encoded[0])
    per_epoch = math.ceil(n / size)
    epoch, at = divmod(step, per_epoch)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed * 100_003 + epoch))
    chosen = order[at * size:(at + 1) * size]
    return encoded[0][chosen], encoded[1][chosen]


def step_rate(step: int, steps: int, peak: float) -> float:
    """A tenth of the steps to rise to the peak, then half a cosine down to nothing."""
    rise = max(1, steps // 10)
    if step < rise:
        return peak * (step + 1) / rise
    return peak * 0.5 * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))


def train(model: nn.Module, questions: list[forms.Question], steps: int = 500, size: int = 128, peak: float = 3e-3,
          seed: int = 0, decay: float = 1.0, max_norm: float = 1.0, data_group=None,
          after: Callable[[int, float], None] | None = None) -> list[float]:
    """AdamW on a dense or a split tutor; the loss of every step.

    Ranks of a tensor group see the same batches. With a `data_group`, each of its ranks takes its rows of every batch,
    and the gradients of the mean over all tokens are added: the same steps, whatever the ranks.
    """
    device = next(model.parameters()).device
    encoded = tuple(t.to(device) for t in encode(questions))
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0}])
    parallel = data.DataParallel(model, data_group, average=False) if data_group is not None else None
    losses = []
    for step in range(steps):
        tokens, targets = batch(encoded, step, size, seed)
        optimizer.zero_grad()
        if parallel is None:
            loss = model.loss(tokens, targets)
            loss.backward()
            loss = loss.item()
        else:
            rank, N = data_group.rank(), data_group.size()
            rows = tokens.tensor_split(N)[rank], targets.tensor_split(N)[rank]
            loss = data.accumulate(parallel, [rows], lambda run, x, y: model.head.loss(run(x), y, "sum"))
        clip(model, max_norm)
        for group in optimizer.param_groups:
            group["lr"] = step_rate(step, steps, peak)
        optimizer.step()
        losses.append(loss)
        if after:
            after(step, loss)
    return losses


def clip(model: nn.Module, max_norm: float):
    if isinstance(model, ParallelTutor):
        return clip_grad_norm(model, max_norm, model.group)
    return nn.utils.clip_grad_norm_(model.parameters(), max_norm)


def whole_logits(model: nn.Module, tokens: Tensor) -> Tensor:
    """(B, T, V) on every rank. A split head's logits are gathered: for answers, never for the loss."""
    logits = model(tokens)
    if isinstance(model, ParallelTutor):
        logits = all_gather(logits, model.group, -1)[..., : model.shape.V]
    return logits


@torch.no_grad()
def respond(model: nn.Module, questions: list[forms.Question]) -> list[tuple[str, ...]]:
    """The tutor's own answers, word by word, the likeliest each time, until it ends."""
    vocabulary, end = forms.vocabulary(), _rows()["<end>"]
    device = next(model.parameters()).device
    tokens = torch.tensor([[_rows()[w] for w in q.tokens] for q in questions], device=device)
    start = tokens.shape[1]
    for _ in range(LENGTH - start + 1):
        tokens = torch.cat((tokens, whole_logits(model, tokens)[:, -1:].argmax(-1)), 1)
    said = []
    for row in tokens[:, start:].tolist():
        row = row[: row.index(end)] if end in row else row
        said.append(tuple(vocabulary[token] for token in row))
    return said


def accuracy(model: nn.Module, questions: list[forms.Question]) -> float:
    """The share of questions answered exactly: every word, and then the end."""
    return sum(said == q.answer for said, q in zip(respond(model, questions), questions, strict=True)) / len(questions)


def answer(model: nn.Module, text: str, lang: str | None = None) -> str:
    """What the tutor says to "nosotros + hablar + pretérito"."""
    return " ".join(respond(model, [forms.parse(text, lang)])[0])
