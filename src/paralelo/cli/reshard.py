"""`paralelo reshard`: a checkpoint cut for another topology, from files to files."""

import sys
import time

import click

from paralelo.cli.frame import Whole, build, option
from paralelo.words import Refused, say, size


def command(lang: str) -> click.Command:
    @build("reshard", lang)
    @click.argument("source", metavar=say("cli.word.source", lang).upper())
    @click.argument("target", metavar=say("cli.word.target", lang).upper())
    @option("--dp", lang, type=Whole(1), default=1)
    @option("--tp", lang, type=Whole(1), default=1)
    @option("--pp", lang, type=Whole(1), default=1)
    @option("--cp", lang, type=Whole(1), default=1)
    @option("--ep", lang, type=Whole(1), default=1)
    @option("--etp", lang, type=Whole(1), default=1)
    @option("--order", lang, default="tp-cp-ep-dp-pp")
    @option("--chunks", lang, type=Whole(1))
    @option("--verify", lang, is_flag=True)
    @option("--huggingface", lang, is_flag=True)
    def reshard(out, source, target, order, chunks, verify, huggingface, **degrees):
        from paralelo.predict.layout import Layout
        from paralelo.run.checkpoint.huggingface import is_huggingface, to_huggingface

        layout = Layout(**degrees, order=order)
        if layout.world_size > MOST:
            raise Refused("checkpoint_run.too_many", world_size=layout.world_size, most=MOST)
        for name in (source, target):
            plain(name)
        start = time.perf_counter()
        with Bar(say("cli.reshard_table.progress", out.lang)) as bar:
            if huggingface:
                return leave(out, source, target, to_huggingface(source, target, progress=bar))
            theirs = is_huggingface(source)
            made = (come if theirs else cut)(source, target, layout, chunks, verify, bar)
        answer = {
            "source": source, "target": str(made.folder), "step": made.step, "tensors": len(made.entries),
            "bytes": made.bytes, "files": len(made.files), "world_size": layout.world_size, "verified": verify,
            "seconds": round(time.perf_counter() - start, 3)}
        if not out.json(answer):
            out.say("cli.reshard_table.done", **(answer | {"bytes": size(made.bytes, out.lang)}))
        return 0

    return reshard


def cut(source, target, layout, chunks, verify, bar):
    from paralelo.run.checkpoint.resharding import reshard

    return reshard(source, target, layout, chunks=chunks, verify=verify, progress=bar)


def come(source, target, layout, chunks, verify, bar):
    """From the files of transformers."""
    from paralelo.run.checkpoint.huggingface import from_huggingface
    from paralelo.run.checkpoint.resharding import verify as check

    made = from_huggingface(source, target, layout, chunks=chunks or 1, progress=bar)
    if verify:
        check(made.folder)
    return made


def leave(out, source, target, names) -> int:
    """To the files of transformers: they were read back as safetensors, so count what is there."""
    from pathlib import Path

    from paralelo.run.checkpoint.huggingface import stored

    found = stored(Path(target))
    answer = {"source": source, "target": target, "tensors": len(found), "bytes": sum(t[-1] for t in found.values()),
              "files": len(names)}
    if not out.json(answer):
        out.say("cli.reshard_table.left", **(answer | {"bytes": size(answer["bytes"], out.lang)}))
    return 0


MOST = 2**14


def plain(name: str) -> None:
    """A path that a system call can take."""
    if not name or "\0" in name or len(name) > 1000:
        raise Refused("checkpoint_run.path")


class Bar:
    """Progress on a terminal's stderr; nothing anywhere else."""

    def __init__(self, text: str):
        self.text, self.shown = text, sys.stderr.isatty()

    def __enter__(self):
        if self.shown:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

            self.bar = Progress(TextColumn(self.text), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
                                console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task(self.text, total=None)
            self.bar.start()
        return self

    def __call__(self, done: int, total: int) -> None:
        if self.shown:
            self.bar.update(self.task, completed=done, total=total)

    def __exit__(self, *_):
        if self.shown:
            self.bar.stop()
