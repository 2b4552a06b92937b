"""One rank: a process that waits for functions, runs them, and sends back what they return and print.

Its main thread runs what it is given. A second thread listens to the pipe, so that the process ends at once when the
other end closes: whatever happens to the parent, SIGKILL included, no rank is left behind.
"""

import builtins
import contextlib
import ctypes
import faulthandler
import io
import os
import queue
import signal
import sys
import threading
import traceback
from datetime import timedelta

from paralelo.run.ranks.parcel import dumps, loads, remember
from paralelo.run.ranks.report import HIDDEN, short

LOOPBACK = {"linux": "lo", "darwin": "lo0"}


def environment(rank: int, n: int) -> dict[str, str]:
    """What a rank's process must find in its environment, the same names as under torchrun."""
    env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n)}
    if sys.platform in LOOPBACK:
        env["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
    return env


def main(rank: int, n: int, pipe, stacks: str) -> None:
    """Serve until the pipe closes or says stop. `stacks` is the file this rank writes where it stands to, if asked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)      # the parent decides what an interrupt means
    _die_with_parent()
    os.environ.update(environment(rank, n))
    where = open(stacks, "w")  # noqa: SIM115  faulthandler writes to it as long as the process lives
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=where, all_threads=False)
    Rank(rank, n, pipe, where).serve()


def _die_with_parent() -> None:
    """On Linux the kernel ends this process with the fork server, even if it never lets go of the interpreter."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))


class Rank:
    def __init__(self, rank, n, pipe, where):
        self.rank, self.n, self.pipe, self.where = rank, n, pipe, where
        self.calls, self.lock, self.namespace = queue.SimpleQueue(), threading.Lock(), {}
        self.spent = []                                # process groups that an earlier call made
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        try:
            while True:
                self.calls.put(self.pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)

    def send(self, kind: str, *content) -> None:
        data = dumps((kind, *content))
        with self.lock:
            self.pipe.send_bytes(data)

    def serve(self):
        import torch.distributed as dist

        while True:
            kind, *content = loads(self.calls.get())
            if kind == "stop":
                break
            with contextlib.redirect_stdout(_Lines(self)) as out, contextlib.redirect_stderr(out):
                try:
                    answer = ("done", getattr(self, kind)(*content))
                    data = dumps((*answer, sequence_numbers()))
                except BaseException as error:
                    data = dumps(("error", *describe(error), sequence_numbers()))
                out.rest()
            with self.lock:
                self.pipe.send_bytes(data)
        if dist.is_initialized():
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
        os._exit(0)

    def join(self, backend: str, device: str, store: str):
        """Enter the world: one process group of all ranks, this rank's device, one thread on a CPU."""
        import torch
        import torch.distributed as dist

        os.environ["PARALELO_DEVICE"] = device
        if device == "cpu":
            torch.set_num_threads(1)
        else:
            torch.cuda.set_device(device)
        # The parent's timeout rules; the group's own must not come before it.
        dist.init_process_group(backend, store=dist.FileStore(store, self.n), rank=self.rank, world_size=self.n,
                                timeout=timedelta(days=1))
        self.namespace = {"__name__": "__ranks__", "rank": self.rank, "world_size": self.n, "torch": torch,
                          "dist": dist, "group": dist.group.WORLD, "device": torch.device(device)}

    def call(self, payload: bytes, sources: dict[str, str]):
        self._clear()
        remember(sources)
        function, args = loads(payload)
        before = set(groups())
        try:
            return function(*args)
        finally:
            self.spent = [g for g in groups() if g not in before]

    def _clear(self):
        """Destroy the groups that the call before this one made: nobody can hold them any more, and each keeps three
        threads and a little of a core. (Not at the end of that call: other ranks might still be in it.)"""
        import torch.distributed as dist

        for group in self.spent:
            with contextlib.suppress(Exception):
                dist.destroy_process_group(group)
        self.spent = []

    def cell(self, source: str, name: str):
        """Run a cell's source in the namespace that lives on; the value of a last expression is the answer."""
        import ast

        remember({name: source})
        body = ast.parse(source, name).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), name, "exec"), self.namespace)
        if last is not None:
            return eval(compile(ast.Expression(last.value), name, "eval"), self.namespace)


class _Lines(io.TextIOBase):
    """Sends whole lines to the parent as they are printed, so that nothing is lost when a rank dies."""

    def __init__(self, to: Rank):
        self.to, self.part = to, ""

    def writable(self):
        return True

    def write(self, text):
        *lines, self.part = (self.part + text).split("\n")
        if lines:
            self.to.send("out", lines)
        return len(text)

    def rest(self):
        if self.part:
            self.to.send("out", [self.part])
            self.part = ""


def describe(error: BaseException) -> tuple[str, str, bool]:
    """(type and message, the traceback of the caller's code, whether it only echoes another rank's end)."""
    frames = [traceback.FrameSummary(short(f.filename), f.lineno, f.name, line=f.line)
              for f in traceback.extract_tb(error.__traceback__)]
    frames = [f for f in frames if not HIDDEN.search(f.filename)]
    text = "".join(traceback.format_list(frames) + traceback.format_exception_only(error))
    head = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
    return head, text, is_echo(error)


def is_echo(error: BaseException) -> bool:
    """A backend's complaint that a peer is gone: the consequence of another rank's fault, not the fault."""
    import torch.distributed as dist

    if isinstance(error, builtins.ConnectionError | dist.DistNetworkError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        w in text for w in ("closed by peer", "reset by peer", "connection refused", "broken pipe", "remote process",
                            "timed out waiting", "nccl communicator was aborted"))


def groups() -> dict:
    """The process groups of this process, and their names, in the order they were made."""
    import torch.distributed as dist

    return dict(dist.distributed_c10d._world.pg_names) if dist.is_initialized() else {}


def sequence_numbers() -> dict[str, int]:
    """How many collectives each of this process's groups has begun, by the group's name."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return {}
    numbers = {}
    for group, name in groups().items():
        with contextlib.suppress(RuntimeError):
            numbers[name] = group._get_sequence_number_for_group()
    return numbers
