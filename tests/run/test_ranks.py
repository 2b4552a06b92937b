"""Ranks: start, call, print, fail and go on; nothing is left behind."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from paralelo.run.ranks import RankError, Ranks
from paralelo.words import Refused

MARGIN = 2.0        # seconds past the timeout in which a failed call must have ended


def total(x):
    y = torch.full((3,), float(x + dist.get_rank()))
    dist.all_reduce(y)
    return y


def test_values_come_back_in_rank_order_and_prints_too(ranks, capsys):
    def who(word):
        print(word, dist.get_rank())
        if dist.get_rank() == 0:
            time.sleep(0.05)
        print("second line")
        return dist.get_rank(), dist.get_world_size()

    assert ranks(2).run(who, "hello") == [(0, 2), (1, 2)]
    assert capsys.readouterr().out.splitlines() == [
        "[rank 0] hello 0", "[rank 0] second line", "[rank 1] hello 1", "[rank 1] second line"]


def test_same_processes_answer_every_call(ranks):
    pids = ranks(2).pids
    assert [t.tolist() for t in ranks(2).run(total, 1)] == [[3.0] * 3] * 2
    assert ranks(2).pids == pids


def test_a_rank_runs_one_thread(ranks):
    assert ranks(2).run(torch.get_num_threads) == [1, 1]


def test_tensors_come_back_by_value(ranks):
    """A view must not drag its storage along, a result of autograd must not drag its graph."""

    def make():
        big = torch.zeros(1_000_000)
        leaf = torch.ones(2, requires_grad=True)
        return big[:2], leaf * 2, leaf, torch.nn.Linear(2, 2)

    view, made, leaf, layer = ranks(2).run(make)[0]
    assert view.untyped_storage().nbytes() == 8
    assert made.requires_grad and made.is_leaf and leaf.requires_grad
    assert isinstance(layer.weight, torch.nn.Parameter)


def test_more_ranks_than_cores():
    with Ranks(os.cpu_count() + 2, device="cpu") as many:
        assert [t[0].item() for t in many.run(total, 0)] == [sum(range(many.n))] * many.n


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="threads are counted in /proc")
def test_groups_of_a_call_go_with_it(ranks):
    """A process group holds three threads, which do not sleep soundly: a hundred calls must not pile them up."""

    def threads(make):
        here = [dist.new_group([0, 1]) for _ in range(make)]
        x = torch.ones(1)
        for group in here:
            dist.all_reduce(x, group=group)
        return len(os.listdir("/proc/self/task"))

    before = ranks(2).run(threads, 0)
    assert min(ranks(2).run(threads, 5)) >= max(before) + 5
    assert ranks(2).run(threads, 0) == before
    ranks(2).cell("kept = dist.new_group([0, 1])")                          # what a cell makes stays
    ranks(2).run(threads, 1)
    assert ranks(2).cell("y = torch.ones(1)\ndist.all_reduce(y, group=kept)\ny.item()") == [2, 2]
    ranks(2).cell("dist.destroy_process_group(kept)")


# ---- faults: each names its rank within the timeout plus two seconds, and the next call works

def raises():
    """C92 also: one rank leaves before a collective that the others enter."""
    if dist.get_rank() == 1:
        raise KeyError("no such layer")
    dist.all_reduce(torch.ones(4))


def leaves():
    if dist.get_rank() == 1:
        os._exit(3)
    dist.all_reduce(torch.ones(4))


def exits():
    if dist.get_rank() == 1:
        sys.exit(3)
    dist.all_reduce(torch.ones(4))


def is_killed():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def sleeps():
    if dist.get_rank() == 1:
        time.sleep(1000)
    dist.all_reduce(torch.ones(4))


def is_stopped():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(4))


@pytest.mark.parametrize(("fault", "sentence"), [
    (raises, "rank 1 raised KeyError: 'no such layer'"),
    (exits, "rank 1 raised SystemExit: 3"),
    (leaves, "rank 1 exited with code 3"),
    (is_killed, "rank 1 was killed by SIGKILL"),
    (sleeps, "rank 1 did not answer within 2 s; it stood at"),
    (is_stopped, "rank 1 did not answer within 2 s; it stood at"),
])
def test_a_fault_names_its_rank_and_the_next_call_works(ranks, fault, sentence):
    """C92 (a rank leaves its step, the others wait in the collective): by an exception, an exit, a kill, silence."""
    two = ranks(2)
    two.run(dist.get_rank)                        # started, so that only the fault is timed
    start = time.monotonic()
    with pytest.raises(RankError) as error:
        two.run(fault, timeout=2)
    assert time.monotonic() - start < 2 + MARGIN
    assert str(error.value).startswith(sentence)
    assert error.value.rank == 1
    text = str(error.value)
    if fault is raises:
        assert 'raise KeyError("no such layer")' in text                    # its own traceback
    if fault in (raises, exits, sleeps, is_stopped):
        assert "rank 0 stood at" in text and "in all_reduce" in text        # where the other one stood
    if fault is sleeps:
        assert "in sleeps" in text.split("rank 0 stood")[0]
    for lang, other in (("es", "el rank 0"), ("pt", "o rank 0")):
        assert other in error.value.say(lang)
    assert [t[0].item() for t in ranks(2).run(total, 1)] == [3.0, 3.0]


def test_what_a_dying_rank_printed_is_not_lost(ranks, capsys):
    def speaks():
        print("before the end")
        os._exit(1)

    with pytest.raises(RankError):
        ranks(2).run(speaks)
    assert "[rank 0] before the end" in capsys.readouterr().out


def test_deadlock_names_all(ranks):
    def both_receive():
        dist.recv(torch.ones(1), 1 - dist.get_rank())

    with pytest.raises(RankError) as error:
        ranks(2).run(both_receive, timeout=1)
    assert error.value.ranks == [0, 1]
    assert "it waits in a collective" in str(error.value)


def test_a_mistake_of_all_ranks_keeps_the_processes(ranks):
    """A NameError in a cell must not cost the learner what stands on the ranks."""
    ranks(2).run(total, 1)
    pids = ranks(2).pids
    with pytest.raises(RankError) as error:
        ranks(2).run(lambda: undefined)  # noqa: F821
    assert error.value.ranks == [0, 1]
    assert str(error.value).count("Traceback") + str(error.value).count('File "') == 1     # told once
    assert ranks(2).pids == pids


def test_a_mistake_that_leaves_the_group_out_of_step_does_not(ranks):
    """Both ranks end, but one has begun a collective more: on the old processes the next pair would not match."""

    def uneven():
        work = dist.all_reduce(torch.ones(1), async_op=True) if dist.get_rank() == 0 else None
        raise ValueError(work is None)

    pids = ranks(2).pids
    with pytest.raises(RankError):
        ranks(2).run(uneven)
    assert [t[0].item() for t in ranks(2).run(total, 1)] == [3.0, 3.0]
    assert ranks(2).pids != pids


# ---- cells

def test_cells_share_a_namespace_that_lives_on(ranks, capsys):
    two = ranks(2)
    assert two.cell("x = torch.ones(2) * (rank + 1)\ndist.all_reduce(x, group=group)") == [None, None]
    assert [v.tolist() for v in two.cell("x + world_size")] == [[5.0, 5.0]] * 2
    with pytest.raises(RankError) as error:
        two.cell("y = 1\ny / 0")
    assert "y / 0" in str(error.value) and "ZeroDivisionError" in str(error.value)
    assert [v.tolist() for v in two.cell("x")] == [[3.0, 3.0]] * 2          # still there


def test_cell_magic():
    """On the Ranks made last, by number, by name; cells twice; a mistake shows the rank's traceback; no stderr."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "paralelo.run.ranks")
    shell.run_cell("from paralelo.run.ranks import Ranks\nmine = Ranks(2, device='cpu')\nran = mine.run(lambda: 1)")
    with capture_output() as out:
        for _ in range(2):
            assert shell.run_cell("%%ranks\nn = rank + 1\nn").result == [1, 2]
        assert shell.run_cell("%%ranks mine\nn").result == [1, 2]
        assert shell.run_cell("%%ranks 2\nn").result == [1, 2]
        assert shell.run_cell("%%ranks\nn;").result is None
        assert shell.run_cell("%%ranks 1\nworld_size").result == [1]
        shell.run_cell("%%ranks mine\nn / 0")
    assert "[rank" not in out.stderr and "ZeroDivisionError" in out.stdout
    assert shell.user_ns["ran"] == [1, 1]
    shell.user_ns["mine"].close()


# ---- who may ask what

@pytest.mark.parametrize(("kwargs", "words"), [
    ({"n": 0}, "from 1 to 512"), ({"n": 2.5}, "2.5"), ({"n": 2, "device": "tpu"}, "cpu or cuda"),
    ({"n": 2, "backend": "mpi"}, "gloo or nccl"),
])
def test_refused_before_anything_starts(kwargs, words):
    with pytest.raises(Refused, match=words):
        Ranks(**kwargs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu():
    with pytest.raises(Refused, match="device='cpu' works"):
        Ranks(2, device="cuda")
    with pytest.raises(Refused, match="2 ranks, 0 GPUs"):
        Ranks(2, backend="nccl")


def test_without_torch_a_sentence_says_what_to_install(monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "torch" else real(name, *a))
    with pytest.raises(Refused, match="pip install torch"):
        Ranks(2)


# ---- nothing is left behind

SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)      # a shell's background job would ignore it
from paralelo.run.ranks import Ranks
two = Ranks(2, device="cpu")                  # no guard: workers must not run this script again
print(*two.pids, flush=True)
{}
"""


def start(rest):
    process = subprocess.Popen([sys.executable, "-c", SCRIPT.format(rest)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)
    pids = [int(p) for p in process.stdout.readline().split()]
    assert len(pids) == 2
    return process, pids + [p.pid for p in psutil.Process(process.pid).children(recursive=True)]


def ending(process):
    """The rest of what it prints, until it ends. (`communicate` would lose what `readline` has read ahead.)"""
    said = process.stdout.read(), process.stderr.read()
    process.wait(60)
    return said


def gone(pids, within=30.0):
    end = time.monotonic() + within
    while any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("busy", ["time.sleep(1000)", "two.run(lambda: __import__('time').sleep(1000))"])
def test_killing_the_parent_leaves_no_process(busy):
    process, pids = start(busy)
    time.sleep(0.2)
    process.kill()
    process.wait()
    assert gone(pids)


def test_an_interrupt_ends_the_call_and_the_next_one_works():
    """The whole process group gets the signal, as from a terminal and from Jupyter."""
    process, _ = start(
        "try:\n    print('ready', flush=True)\n    two.run(lambda: __import__('time').sleep(1000))\n"
        "except KeyboardInterrupt:\n    print('interrupted', two.run(lambda: 7), flush=True)")
    assert process.stdout.readline().strip() == "ready"
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    out, err = ending(process)
    assert out.strip() == "interrupted [7, 7]", err


def test_an_interrupt_between_calls_does_not_reach_the_ranks():
    """Jupyter sends it to the whole process group, whatever the cell was doing: what stands on the ranks must stay."""
    process, _ = start(
        "pids = two.pids\ntwo.run(lambda: 1)\n"
        "try:\n    print('ready', flush=True)\n    time.sleep(1000)\n"
        "except KeyboardInterrupt:\n    print(two.run(lambda: 7), two.pids == pids)")
    assert process.stdout.readline().strip() == "ready"
    os.killpg(process.pid, signal.SIGINT)
    out, err = ending(process)
    assert out.strip() == "[7, 7] True", err


def test_a_script_without_a_guard_ends_by_itself():
    process, pids = start("print(two.run(lambda: 1))")
    out, err = ending(process)
    assert (out.strip(), err) == ("[1, 1]", "")
    assert gone(pids)


# ---- torchrun

TRAIN = """
import os, signal, sys, time
import torch, torch.distributed as dist
from paralelo.run.ranks import main

def train():
    x = torch.ones(1)
    dist.all_reduce(x)
    if dist.get_rank() == 1:
        {}
    dist.all_reduce(x)

if __name__ == "__main__":
    sys.exit(main(train, timeout=3))
"""


@pytest.mark.parametrize(("fault", "sentence"), [
    ("pass", None),
    ("raise KeyError('no such layer')", "[rank 1] rank 1 raised KeyError: 'no such layer'"),
    ("os.kill(os.getpid(), signal.SIGKILL)", "rank      : 1 (local_rank: 1)"),       # torchrun sees it first
    ("time.sleep(1000)", "[rank 0] rank 1 is gone or does not answer"),
])
def test_under_torchrun(tmp_path, fault, sentence):
    """C92: non-zero exit of every rank within the timeout, and the message names rank 1."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN.format(fault))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})
    if sentence is None:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0
        assert sentence in done.stderr
    left = [p for p in psutil.process_iter(["cmdline"]) if str(script) in (p.info["cmdline"] or [])]
    assert not left


def test_main_without_torchrun_starts_its_own_ranks(capsys):
    from paralelo.run.ranks import main

    assert main(lambda: print(dist.get_world_size()), ranks=2, device="cpu") == 0
    assert capsys.readouterr().out.splitlines() == ["[rank 0] 2", "[rank 1] 2"]

    def fails():
        raise ValueError("no")

    assert main(fails, ranks=2, device="cpu") == 1
    assert "ranks" not in capsys.readouterr().out


def test_a_stack_in_a_folder_with_an_accent_keeps_its_file_names(tmp_path):
    """faulthandler escapes what is not ASCII; the rank that waits must still be told from the one that does not."""
    from paralelo.run.ranks.report import State, stack

    folder = tmp_path / "clón uno" / "site-packages" / "torch" / "distributed"
    folder.mkdir(parents=True)
    (folder / "distributed_c10d.py").touch()
    escaped = str(folder).replace("ó", r"\xf3")
    text = stack(f'  File "{escaped}/distributed_c10d.py", line 7 in all_reduce\n  File "/nowhere/3.py", line 1 in f\n')
    assert text == 'File "torch/distributed/distributed_c10d.py", line 7, in all_reduce\nFile "<cell>", line 1, in f'
    assert State("silent", text=text).waiting


@pytest.mark.parametrize(("n", "timeout", "id"), [
    (0, 60, "count"), (-1, 60, "count"), (2.0, 60, "count"), ("2", 60, "count"), (True, 60, "count"),
    (10**6, 60, "count"), (1, 0, "timeout"), (1, float("nan"), "timeout"), (1, float("inf"), "timeout"),
    (1, "60", "timeout")])
def test_numbers_that_cannot_be_meant_start_no_process(n, timeout, id):
    """A million ranks were tried."""
    with pytest.raises(Refused) as error:
        Ranks(n, device="cpu", timeout=timeout)
    assert error.value.message.id == f"ranks.{id}"


@pytest.mark.parametrize("argv", ["tutor --tp 0", "tutor --steps -1", "together --steps -1", "together --rows 0"])
def test_entry_points_refuse_in_one_line(argv, capsys):
    from importlib import import_module

    name, *rest = argv.split()
    module = import_module(f"paralelo.run.{name}.__main__")
    with pytest.raises(SystemExit) as stop:
        (module.run if name == "tutor" else module.main)(rest)
    assert stop.value.code == 2 and capsys.readouterr().err.splitlines()[-1].count(rest[0]) == 1
