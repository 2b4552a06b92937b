"""What a chapter shows of a Python session is what Python answers.

A Python fence with `>>>` in it is run as a doctest, each fence by itself, and once for all editions that show it.
"""

import doctest
from functools import cache

from . import Finding
from .pages import Book


@cache
def wrong(code: str) -> tuple[tuple[int, str, str], ...]:
    """(line in the fence, what it should print, what it printed) of every answer that is another."""
    test = doctest.DocTestParser().get_doctest(code, {}, "session", None, 0)
    answers, said = [], []

    class Runner(doctest.DocTestRunner):
        def report_failure(self, out, test, example, got):
            answers.append((example.lineno + 1, example.want.strip(), got.strip()))

        def report_unexpected_exception(self, out, test, example, failure):
            answers.append((example.lineno + 1, example.want.strip(), f"{failure[0].__name__}: {failure[1]}"))

    Runner().run(test, out=said.append)
    return tuple(answers)


def _one(text: str) -> str:
    return " ⏎ ".join(text.splitlines())


def findings(book: Book):
    for page in book:
        for part in page.parts:
            if part.kind != "code" or ">>> " not in part.key or not part.key.startswith("python"):
                continue
            for line, want, got in wrong(part.key.partition("\n")[2] + "\n"):
                yield Finding(page.shown, part.line + line, f"shows “{_one(want)}”, Python answers “{_one(got)}”",
                              "paste the answer again")
