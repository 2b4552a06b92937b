"""Publishing, on this machine: the branch on a local bare repository, its notebooks, its wheel; workflows, clouds."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "https://github.com/someone/fork"
BIN = Path(sys.executable).parent


def git(*args, **kwargs):
    return subprocess.run(["git", *args], capture_output=True, text=True, check=True, **kwargs).stdout


def publish(*args):
    return subprocess.run([sys.executable, "book/publish.py", *args], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A bare repository that was published to twice, what was said, and a clone of its branch."""
    base = tmp_path_factory.mktemp("a remote, é")
    git("init", "-q", "--bare", base / "remote.git")
    asked = ["--address", ADDRESS, "--push", str(base / "remote.git"), "--folder", str(base / "branch"), "--no-site"]
    before = (ROOT / "_config.yml").read_bytes()
    first, again = publish(*asked), publish(*asked)
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert (ROOT / "_config.yml").read_bytes() == before
    git("clone", "-q", "-b", "published", base / "remote.git", base / "clone")
    return first.stdout, again.stdout, base / "clone"


def test_the_branch_has_one_commit_and_is_pushed_once(published):
    first, again, clone = published
    assert "published: pushed" in first and "published: nothing new" in again
    assert git("-C", clone, "rev-list", "--count", "HEAD").strip() == "1"


def test_notebooks_install_the_wheel_beside_them(published):
    clone = published[2]
    wheels = [p.name for p in clone.glob("*.whl")]
    assert len(wheels) == 1
    notebooks = sorted(clone.glob("labs/*/*.ipynb"))
    assert {p.parent.name for p in notebooks} >= {"en", "es", "pt"}
    for path in notebooks:
        cell = "".join(json.loads(path.read_text())["cells"][0]["source"])
        assert f'REPOSITORY = "{ADDRESS}"' in cell
        assert f"'paralelo[labs] @ {{REPOSITORY}}/raw/published/{wheels[0]}'" in cell
        compile(cell, path.name, "exec")


def test_notebooks_are_otherwise_those_of_main(published):
    for path in published[2].glob("labs/*/*.ipynb"):
        ours = json.loads((ROOT / "labs" / path.parent.name / path.name).read_text())["cells"]
        assert json.loads(path.read_text())["cells"][1:] == ours[1:]


def test_the_wheel_has_the_library_with_its_words(published):
    names = zipfile.ZipFile(next(published[2].glob("*.whl"))).namelist()
    for wanted in ("paralelo/predict/layout.py", "paralelo/words/es/language.toml", "paralelo/cli/schedule.py"):
        assert wanted in names
    assert not [n for n in names if n.startswith("tests") or "__pycache__" in n]


@pytest.mark.parametrize("address", ["", "not an address", "https://github.com/only-owner"])
def test_a_wrong_address_is_refused_in_one_line(address):
    done = publish(f"--address={address}")
    if not address and re.search(r'(?m)^  url: "h', (ROOT / "_config.yml").read_text()):
        pytest.skip("this fork has set its address")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--address" in done.stderr


def test_no_address_is_invented():
    """Until somebody sets it, main's notebooks name no repository and say what to set."""
    if re.search(r'(?m)^  url: "h', (ROOT / "_config.yml").read_text()):
        pytest.skip("this fork has set its address")
    for path in ROOT.glob("labs/*/*.ipynb"):
        cell = "".join(json.loads(path.read_text())["cells"][0]["source"])
        assert "https://github.com" not in cell and "_config.yml" in cell


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_workflows_have_the_right_form():
    command = [BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_workflows_are_safe():
    done = subprocess.run([BIN / "zizmor", "--offline", "--quiet", *WORKFLOWS], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_workflow_with_a_hole_is_found(tmp_path):
    """The two tests above can fail."""
    (tmp_path / "x.yml").write_text(
        "on: pull_request_target\njobs:\n  a:\n    runs-on: x\n    steps:\n"
        "      - run: echo ${{ github.event.pull_request.title }}\n")
    assert subprocess.run([BIN / "zizmor", "--offline", "--quiet", tmp_path / "x.yml"], capture_output=True).returncode


@pytest.mark.parametrize("script", ["clouds/two-gpus.slurm", ".ci/run"])
def test_shell_scripts(script):
    subprocess.run(["bash", "-n", ROOT / script], check=True)
    done = subprocess.run([BIN / "shellcheck", ROOT / script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_skypilot_takes_the_task():
    sky = pytest.importorskip("sky", reason="SkyPilot (460 MB) is optional: pip install skypilot")
    task = sky.Task.from_yaml(str(ROOT / "clouds" / "two-gpus.sky.yaml"))
    assert {next(iter(r.accelerators.values())) for r in task.resources} == {2}


def test_two_nodes_of_one_rank_each():
    """`torchrun --nnodes 2` with two "nodes" on this machine, as the Slurm script starts it."""
    if not shutil.which("bash"):
        pytest.skip("needs bash")
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node),
             "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port),
             "-m", "paralelo.run.tutor", "--tp", "2", "--steps", "2"],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
        for node in range(2)
    ]
    said = [node.communicate(timeout=120)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(said)
