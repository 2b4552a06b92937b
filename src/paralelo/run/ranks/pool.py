"""The parent's side: start ranks, hand them functions, gather what they return, end them."""

import contextlib
import importlib.util
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import types
import weakref
from multiprocessing import connection

from paralelo.run.ranks import worker
from paralelo.run.ranks.parcel import dumps, loads, pack
from paralelo.run.ranks.report import RankError, State, stack
from paralelo.words import Refused, say

GRACE = 1.0          # seconds the others get to report once one has failed
MOST = 512           # ranks on one machine: each is a process
LONGEST = 10**7      # seconds
PRELOAD = ["torch", "torch.distributed", "cloudpickle", "paralelo.run.ranks.worker"]
_said = set()
_latest = None       # the Ranks made last, for the cell magic


class Ranks:
    """`n` persistent processes in one process group.

    device    "cpu" or "cuda"; by default CUDA where there are as many GPUs as ranks, else the CPU. "cuda" with fewer
              GPUs than ranks shares them: then gloo carries the messages through host memory
    backend   "nccl" or "gloo"; by default NCCL where every rank has a GPU of its own, else gloo
    timeout   seconds a call may take before the ranks that have not answered are given up
    """

    def __init__(self, n: int, device: str | None = None, backend: str | None = None, timeout: float = 60):
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST:
            raise Refused("ranks.count", n=n, most=MOST)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= LONGEST:
            raise Refused("ranks.timeout", timeout=timeout, most=LONGEST)
        if importlib.util.find_spec("torch") is None:
            raise Refused("ranks.no_torch")
        if importlib.util.find_spec("cloudpickle") is None:
            raise Refused("ranks.no_cloudpickle")
        if device not in (None, "cpu", "cuda"):
            raise Refused("ranks.device", device=device)
        if backend not in (None, "gloo", "nccl"):
            raise Refused("ranks.backend", backend=backend)
        global _latest
        self.n, self.timeout = n, timeout
        self._asked = (device, backend)
        self.device, self.backend = device, backend
        self._cells = 0
        self._living: _Processes | None = None
        self._start()
        _latest = weakref.ref(self)

    def __repr__(self):
        return f"Ranks({self.n}, device={self.device!r}, backend={self.backend!r})"

    def __len__(self):
        return self.n

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def run(self, fn, *args, timeout: float | None = None) -> list:
        """`fn(*args)` on every rank at once; the list of what each returned.

        Prints what they printed, in rank order. Raises `RankError` where a rank did not finish.
        """
        return self._call(timeout, "call", *pack((fn, args)))

    def cell(self, source: str, timeout: float | None = None) -> list:
        """Run the source of a cell on every rank, in a namespace that lives on (`rank`, `world_size`, `group`,
        `device`, `torch` and `dist` stand in it); the list of each rank's last expression."""
        self._cells += 1
        return self._call(timeout, "cell", source, f"<ranks cell {self._cells}>")

    def close(self) -> None:
        """End the processes. A later call starts new ones."""
        if self._living:
            self._living.stop()
        self._living = None

    @property
    def pids(self) -> list[int]:
        """The processes, in rank order (none when closed)."""
        return [p.pid for p in self._living.processes] if self._living else []

    def _start(self) -> None:
        living = _Processes(self.n)
        try:
            self.device, self.backend, devices = choose(self.n, *self._asked)
            store = os.path.join(living.folder, "store")
            living.ask([dumps(("join", self.backend, device, store)) for device in devices], 60)
        except BaseException:
            living.kill()
            raise
        self._living = living

    def _call(self, timeout, kind, *content) -> list:
        timeout = self.timeout if timeout is None else timeout
        if self._living and not self._living.alive():
            self._living.kill()
            self._living = None
        if not self._living:
            self._start()
        try:
            return self._living.ask([dumps((kind, *content))] * self.n, timeout)
        finally:
            if not self._living.usable:
                self._living.kill()
                self._living = None


def latest() -> Ranks | None:
    """The Ranks made last, if it still lives."""
    return _latest() if _latest else None


def choose(n: int, device: str | None, backend: str | None) -> tuple[str, str, list[str]]:
    """(kind of device, backend, the device of each rank): NCCL wants a GPU for every rank."""
    import torch

    gpus = torch.cuda.device_count() if device != "cpu" else 0
    if device == "cuda" and not gpus:
        raise Refused("ranks.no_gpu")
    if backend == "nccl" and gpus < n:
        raise Refused("ranks.nccl", n=n, gpus=gpus)
    if gpus >= n and backend != "gloo":
        return "cuda", "nccl", [f"cuda:{r}" for r in range(n)]
    if device == "cuda":
        _say_once("ranks.shared", n=n, gpus=gpus)
        return "cuda", "gloo", [f"cuda:{r % gpus}" for r in range(n)]
    return "cpu", "gloo", ["cpu"] * n


def _say_once(id, **fields):
    if id not in _said:
        _said.add(id)
        print(say(id, **fields))


class _Processes:
    """One generation of worker processes, with their pipes."""

    def __init__(self, n: int):
        self.folder = tempfile.mkdtemp(prefix="ranks-")
        self.processes, self.pipes, self.usable = [], [], True
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(PRELOAD)
        with _quiet_start():
            for rank in range(n):
                ours, theirs = context.Pipe()
                args = rank, n, theirs, self._stack_file(rank)
                process = context.Process(target=worker.main, args=args, daemon=True)
                process.start()
                theirs.close()
                self.processes.append(process)
                self.pipes.append(ours)
        self.end = weakref.finalize(self, _end, self.processes, self.pipes, self.folder)

    def _stack_file(self, rank):
        return os.path.join(self.folder, f"stack{rank}")

    def alive(self) -> bool:
        return all(p.is_alive() for p in self.processes)

    def ask(self, messages: list[bytes], timeout: float) -> list:
        """Send each rank its message and gather the answers, or raise RankError. Prints what the ranks printed."""
        self.usable = False                                   # until everything has come back in order
        n, deadline = len(messages), time.monotonic() + timeout
        states: list[State | None] = [None] * n
        answers, numbers, lines = [None] * n, [{} for _ in range(n)], [[] for _ in range(n)]
        try:
            for rank, message in enumerate(messages):
                try:
                    self.pipes[rank].send_bytes(message)
                except OSError:
                    states[rank] = self._death(rank)
            failed = any(states)
            if failed:
                deadline = min(deadline, time.monotonic() + GRACE)
            while None in states:
                open_ = {self.pipes[r]: r for r in range(n) if states[r] is None}
                left = deadline - time.monotonic()
                ready = connection.wait(open_, None if left == float("inf") else max(0, left))
                if not ready:
                    break
                for pipe in ready:
                    rank = open_[pipe]
                    states[rank] = self._receive(rank, answers, numbers, lines)
                    if states[rank] and states[rank].kind != "done" and not failed:
                        failed, deadline = True, min(deadline, time.monotonic() + GRACE)
            silent = [r for r in range(n) if states[r] is None]
            for rank, where in zip(silent, self._where(silent), strict=True):
                states[rank] = State("silent", text=where)
        finally:
            for rank in range(n):
                for line in lines[rank]:
                    print(f"[rank {rank}] {line}")
        ended = all(s.kind in ("done", "raised") for s in states)
        self.usable = ended and (not failed or _in_step(numbers))
        if any(s.kind != "done" for s in states):
            raise RankError(states, timeout)
        return answers

    def _receive(self, rank, answers, numbers, lines) -> State | None:
        try:
            kind, *content = loads(self.pipes[rank].recv_bytes())
        except (EOFError, OSError):
            return self._death(rank)
        if kind == "out":
            lines[rank].extend(content[0])
            return None
        if kind == "done":
            answers[rank], numbers[rank] = content
            return State("done")
        head, text, echo, numbers[rank] = content
        return State("echo" if echo else "raised", head, text)

    def _death(self, rank) -> State:
        self.processes[rank].join(1)
        return State("died", code=self.processes[rank].exitcode)

    def _where(self, ranks: list[int]) -> list[str]:
        """Where each of these ranks stands, by its own account (faulthandler)."""
        if not ranks or not hasattr(signal, "SIGUSR1"):
            return [""] * len(ranks)
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.processes[rank].pid, signal.SIGUSR1)
        files, end = [self._stack_file(rank) for rank in ranks], time.monotonic() + 0.4
        while time.monotonic() < end and not all(os.path.getsize(f) for f in files):
            time.sleep(0.01)
        time.sleep(0.02)
        texts = []
        for file in files:
            with open(file) as text:
                texts.append(stack(text.read()))
        return texts

    def stop(self) -> None:
        """Ask the processes to end; kill those that do not."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send_bytes(dumps(("stop",)))
        end = time.monotonic() + 1
        for process in self.processes:
            process.join(max(0, end - time.monotonic()))
        self.end()

    def kill(self) -> None:
        self.end()


def _end(processes, pipes, folder) -> None:
    for process in processes:
        with contextlib.suppress(Exception):
            process.kill()
    for process in processes:
        with contextlib.suppress(Exception):
            process.join(2)
    for pipe in pipes:
        pipe.close()
    shutil.rmtree(folder, ignore_errors=True)


def _in_step(numbers: list[dict[str, int]]) -> bool:
    """Whether the ranks of every group have begun equally many collectives, so that the next one pairs up."""
    seen: dict[str, set[int]] = {}
    for of_rank in numbers:
        for name, number in of_rank.items():
            seen.setdefault(name, set()).add(number)
    return all(len(found) == 1 for found in seen.values())


@contextlib.contextmanager
def _quiet_start():
    """While processes start: an empty `__main__`, so that none imports the caller's script or a notebook's kernel
    again; and the environment a fork server hands down to all of them."""
    wanted = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    before = {k: os.environ.get(k) for k in wanted}
    script, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    os.environ.update({k: v for k, v in wanted.items() if before[k] is None})
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        for k, v in before.items():
            if v is None:
                del os.environ[k]
