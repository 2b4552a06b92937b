"""What goes wrong: kills at random moments, full and read-only disks, damaged files, manifests that lie."""

import contextlib
import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from paralelo.predict.checkpoint import Cut
from paralelo.predict.layout import Layout
from paralelo.run.checkpoint import (
    files,
    load,
    newest,
    open_checkpoint,
    reshard,
    save,
    save_all,
    sharded,
    steps,
    verify,
)
from paralelo.run.checkpoint.manifest import NAME, checksum
from paralelo.run.ranks import RankError, Ranks
from paralelo.words import Refused, languages

pytestmark = pytest.mark.checkpoint
ROWS = 4096


def in_words(refused, *names):
    """One line in every language, each with the names."""
    said = {refused.value.say(lang) for lang in languages()}
    assert len(said) == len(languages()) and all("\n" not in s and all(n in s for n in names) for s in said), said
    return True


# ---- kills

def save_for_ever(folder, start):
    """Checkpoints of tensors in which every number is the step."""
    layout, rank = Layout(tp=2, dp=dist.get_world_size() // 2), dist.get_rank()
    for step in range(start, start + 10_000):
        local = torch.full((ROWS // 2, 16), float(step))
        state = {f"w{i}": sharded(local + 0, (ROWS, 16), {"tp": Cut(0)}, layout, rank) for i in range(4)}
        save(folder, state | {"step": step, "small": torch.tensor(step)}, layout, keep=4)


def killed_saves(folder, kills, seed, say=lambda text: None):
    """Kills one of two ranks at random moments, `kills` times; what must hold after each is checked."""
    chance, last = random.Random(seed), -1
    with Ranks(2, device="cpu", timeout=60) as ranks:
        for kill in range(kills):
            victim, delay = chance.randrange(2), chance.uniform(0, 0.15)
            at = {}

            def strike(victim=victim, delay=delay, at=at, last=last):
                deadline = time.monotonic() + 50
                while max(steps(folder), default=-1) <= last and time.monotonic() < deadline:
                    time.sleep(0.001)
                time.sleep(delay)
                os.kill(ranks.pids[victim], signal.SIGKILL)
                with contextlib.suppress(OSError):          # what the other rank clears away meanwhile
                    at["half written"] = sorted(p.name for p in folder.glob(".partial-*/*"))

            killer = threading.Thread(target=strike)
            killer.start()
            with pytest.raises(RankError):
                ranks.run(save_for_ever, folder, last + 1)
            killer.join()
            found = check_after_a_kill(folder, last)
            say(f"{kill:3}: rank {victim} after {1000 * delay:3.0f} ms, newest {found}, "
                f"half written: {', '.join(at.get('half written', ())) or '–'}")
            last = found
    return last


def check_after_a_kill(folder, last):
    present = steps(folder)
    newest_step = present[-1]
    assert newest_step > last
    for step in present:                                    # nothing that has the name of a checkpoint is half
        assert verify(folder / f"step-{step:08}").step == step
    for layout in (Layout(), Layout(tp=4)):
        found = load(folder, layout, rank=0)
        assert found["step"] == newest_step and found["small"] == newest_step
        assert all((found[f"w{i}"] == newest_step).all() for i in range(4))
    return newest_step


def test_ten_kills(tmp_path):
    """SIGKILL at ten random moments on either rank: the newest checkpoint is whole and loads, on other layouts too."""
    killed_saves(tmp_path, 10, seed=1)
    save(tmp_path, {"x": torch.zeros(1)}, Layout())
    assert not list(tmp_path.glob(".partial-*"))            # what a kill left is cleared away by the next save


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_kills(tmp_path):
    killed_saves(tmp_path, 100, seed=2, say=print)


def test_a_killed_reshard_leaves_nothing(tmp_path):
    state = {f"w{i}": torch.full((2000, 200), float(i)) for i in range(8)}
    save(tmp_path / "a", state, Layout(), step=0)
    script = f"from paralelo.run.checkpoint import reshard\nfrom paralelo.predict.layout import Layout\n" \
             f"print('go', flush=True)\nreshard({str(tmp_path / 'a')!r}, {str(tmp_path / 'b')!r}, Layout(dp=4))"

    chance = random.Random(3)
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(chance.uniform(0, 0.03))
        process.kill()
        process.wait()
        if steps(tmp_path / "b"):
            verify(tmp_path / "b")
            break
    else:
        reshard(tmp_path / "a", tmp_path / "b", Layout(dp=4), verify=True)
    assert torch.equal(load(tmp_path / "b", Layout())["w7"], state["w7"])


# ---- disks

@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder],
                                           capture_output=True).returncode:
        pytest.skip("cannot mount a file system here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk(small_disk):
    save(small_disk, {"x": torch.ones(1000)}, Layout(), step=0)
    with pytest.raises(Refused) as refused:
        save(small_disk, {"x": torch.ones(10**6)}, Layout(), step=1)
    assert in_words(refused, str(small_disk)) and refused.value.message.id == "checkpoint_run.full"
    assert [p.name for p in small_disk.iterdir()] == ["step-00000000"]
    assert load(small_disk, Layout())["x"].sum() == 1000
    with pytest.raises(Refused) as refused:
        reshard(small_disk, small_disk / ("x" * 300), Layout())
    assert refused.value.message.id == "checkpoint_run.system"


def test_a_read_only_folder(small_disk):
    save(small_disk, {"x": torch.ones(10)}, Layout(), step=0)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(Refused) as refused:
        save(small_disk, {"x": torch.ones(10)}, Layout(), step=1)
    assert in_words(refused, "disk") and refused.value.message.id == "checkpoint_run.read_only"
    assert load(small_disk, Layout())["x"].sum() == 10


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_ours(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(Refused) as refused:
        save(tmp_path, {"x": torch.ones(10)}, Layout())
    tmp_path.chmod(0o755)
    assert in_words(refused, str(tmp_path))


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(Refused) as refused:
        save(tmp_path / "x", {"x": torch.ones(10)}, Layout())
    assert in_words(refused, str(tmp_path / "x")) and (tmp_path / "x").read_text() == "mine"


def one_rank_fails(folder):
    """Rank 1 may write no file over 1000 bytes."""
    layout, rank = Layout(tp=2), dist.get_rank()
    state = {"w": sharded(torch.full((500,), 1.0), (1000,), {"tp": Cut(0)}, layout, rank), "step": 0}
    save(folder, state, layout)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        save(folder, state | {"step": 1}, layout)
    except Refused as refused:
        return refused.message.id
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_one_rank_cannot_write_all_refuse(ranks, tmp_path):
    """C92: one rank leaves by an exception, and the others wait in the next collective."""
    assert ranks(2).run(one_rank_fails, tmp_path) == ["checkpoint_run.full"] * 2
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000000"] and load(tmp_path, Layout())["w"].sum() == 1000


def test_errors_of_the_system_in_words(tmp_path):
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOTDIR, errno.EIO):
        refused = files.refused(OSError(number, os.strerror(number), str(tmp_path)), tmp_path)
        assert len({refused.say(lang) for lang in languages()}) >= 1 and str(tmp_path) in str(refused)


# ---- damage

@pytest.fixture
def saved(tmp_path):
    layout = Layout(tp=2)
    torch.manual_seed(0)
    whole = {"a": torch.randn(40, 6), "b": torch.randn(8)}
    states = [{"a": sharded(whole["a"].chunk(2)[r], (40, 6), {"tp": Cut(0)}, layout, r), "b": whole["b"],
               "note": "hello"} for r in range(2)]
    return save_all(tmp_path / "saved", states, layout, step=0)


def refuses(folder, name):
    """Loading is refused with the file's name, and what was to be filled is as it was."""
    into = {"a": torch.full((40, 6), 7.0), "b": torch.full((8,), 7.0)}
    with pytest.raises(Refused) as refused:
        load(folder, Layout(), into)
    assert in_words(refused, name)
    assert all((t == 7).all() for t in into.values())
    with pytest.raises(Refused):
        reshard(folder, folder.parent / "elsewhere", Layout())
    assert not (folder.parent / "elsewhere").exists()
    return True


def test_a_flipped_bit_anywhere(saved):
    """Every byte of a small file, and of the manifest: nothing is loaded."""
    chance = random.Random(0)
    for name in ("rank-00001.safetensors", NAME):
        sound = (saved / name).read_bytes()
        some = range(len(sound)) if name == NAME else sorted(chance.sample(range(len(sound)), 150))
        for at in (chance.sample(some, 150) if name == NAME else some):
            broken = bytearray(sound)
            broken[at] ^= 1 << chance.randrange(8)
            (saved / name).write_bytes(broken)
            with pytest.raises(Refused, match=name):
                load(saved, Layout())
        (saved / name).write_bytes(sound)
    load(saved, Layout())


def test_a_damaged_file_is_named_before_anything_is_loaded(saved):
    file = saved / "rank-00001.safetensors"
    sound = file.read_bytes()
    file.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    assert refuses(saved, file.name)
    for length in (len(sound) - 1, len(sound) // 2, 100, 8, 3, 0):
        file.write_bytes(sound[:length])
        assert refuses(saved, file.name)
    file.write_bytes(sound + b"\0")
    assert refuses(saved, file.name)
    file.unlink()
    assert refuses(saved, file.name)
    file.symlink_to("/etc/hostname")
    assert refuses(saved, file.name)
    file.unlink()
    os.mkfifo(file)
    assert refuses(saved, file.name)


def test_the_newest_whole_one_is_taken(saved):
    save(saved.parent, {"a": torch.zeros(3)}, Layout(), step=4)
    (saved.parent / "step-00000004" / "rank-00000.safetensors").unlink()
    (saved.parent / "step-00000009").mkdir()
    assert newest(saved.parent) == saved


def lies():
    """(name, what changes the manifest): its checksum is put right again."""
    def entry(key, value):
        return lambda m: m["tensors"]["a"].__setitem__(key, value)

    def piece(key, value):
        return lambda m: m["tensors"]["a"]["pieces"][0].__setitem__(key, value)

    yield "a larger shape", entry("shape", [44, 6])
    yield "a smaller shape", entry("shape", [30, 6])
    yield "an endless shape", entry("shape", [10**30, 6])
    yield "a negative shape", entry("shape", [-40, 6])
    yield "fewer dims", entry("shape", [240])
    yield "another type", entry("dtype", "F16")
    yield "no such type", entry("dtype", "F33")
    yield "no pieces", entry("pieces", [])
    yield "a box outside", piece("box", [[20, 60], [0, 6]])
    yield "a box that is wider", piece("box", [[0, 24], [0, 6]])
    yield "a box upside down", piece("box", [[20, 0], [0, 6]])
    yield "a box of words", piece("box", [["0", "20"], [0, 6]])
    yield "pieces swapped", lambda m: m["tensors"]["a"].update(pieces=[
        {**m["tensors"]["a"]["pieces"][i], "box": m["tensors"]["a"]["pieces"][1 - i]["box"]} for i in (0, 1)])
    yield "a path upwards", piece("file", "../secret")
    yield "an absolute path", piece("file", "/etc/passwd")
    yield "another file", piece("file", "rank-00007.safetensors")
    yield "another key", piece("key", "b")
    yield "a rank outside", piece("ranks", [5])
    yield "a negative rank", piece("ranks", [-1])
    yield "a file listed upwards", lambda m: m["files"].update({"../x": {"bytes": 1, "header": "0"}})
    yield "a file listed absolute", lambda m: m["files"].update({"/etc/hostname": {"bytes": 1, "header": "0"}})
    yield "a file hidden", lambda m: m["files"].update({".x": {"bytes": 1, "header": "0"}})
    yield "sizes that are words", lambda m: m["files"].update({"rank-00000.safetensors": "x"})
    yield "an axis that is none", entry("cuts", {"zz": {"dim": 0}})
    yield "a cut of no dim", entry("cuts", {"tp": {"dim": 2}})
    yield "a rule that is none", entry("cuts", {"tp": {"dim": 0, "rule": "os.system"}})
    yield "cuts that are a list", entry("cuts", [1])
    yield "a layout that is none", lambda m: m.update(layout={"tp": 0})
    yield "a layout with more", lambda m: m["layout"].update(x=1)
    yield "depth of words", lambda m: m.update(depth={"layers": "x"})
    yield "a newer version", lambda m: m.update(version=2)
    yield "another format", lambda m: m.update(format="x")
    yield "tensors that are a list", lambda m: m.update(tensors=[1])
    yield "values that are a list", lambda m: m.update(values=[1])
    yield "a step of words", lambda m: m.update(step="x")
    yield "no tensors", lambda m: m.pop("tensors")


@pytest.mark.parametrize("change", [pytest.param(change, id=name) for name, change in lies()])
def test_a_manifest_that_lies(saved, change):
    manifest = json.loads((saved / NAME).read_text(encoding="utf-8"))
    change(manifest)
    manifest["checksum"] = checksum(manifest)
    (saved / NAME).write_bytes(files.render(manifest))
    files_named = [NAME, "rank-0000", "../x", "hostname", ".x"]
    into = {"a": torch.full((40, 6), 7.0), "b": torch.full((8,), 7.0)}
    with pytest.raises(Refused) as refused:
        load(saved, Layout(), into)
    assert any(n in str(refused.value) for n in files_named) and len({refused.value.say(x) for x in languages()}) >= 1
    assert all((t == 7).all() for t in into.values())


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000,
                                  b'{"format": "paralelo-checkpoint"}'])
def test_what_is_no_manifest(saved, text):
    (saved / NAME).write_bytes(text)
    assert refuses(saved, NAME)


def test_an_honest_manifest_loads(saved):
    """The lies above are refused for what they say, not for how they are written."""
    manifest = json.loads((saved / NAME).read_text(encoding="utf-8"))
    manifest["values"]["note"] = "changed"
    manifest["checksum"] = checksum(manifest)
    (saved / NAME).write_bytes(files.render(manifest))
    assert load(saved, Layout())["note"] == "changed" and open_checkpoint(saved).step == 0
