"""labs/build.py as a module, and running a notebook under nbval without leaving a process behind."""

import importlib.util
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]


def _load():
    spec = importlib.util.spec_from_file_location("labs_build", ROOT / "labs" / "build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["labs_build"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def build():
    return _load()


def labs() -> list:
    """The labs there are, for parametrization."""
    module = sys.modules.get("labs_build") or _load()
    return [module.read(path) for path in module.sources()]


def pytest_generate_tests(metafunc):
    if "lab" in metafunc.fixturenames:
        found = labs()
        metafunc.parametrize("lab", found, ids=[lab.slug for lab in found])


@pytest.fixture
def nbval():
    """`nbval(paths, *options, python=…)`: what nbval says; fails if a process of the run is left."""

    def run(paths, *options, python=sys.executable):
        mark = uuid.uuid4().hex
        command = [str(python), "-m", "pytest", "--nbval", "--nbval-current-env", "--nbval-cell-timeout", "120",
                   "-p", "no:cacheprovider", "-q", "-c", os.devnull, "--rootdir", str(ROOT / "labs"), *options,
                   *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT,
                              env=os.environ | {"PARALELO_RUN": mark, "JUPYTER_PLATFORM_DIRS": "1"})
        assert not left(mark), "processes left behind"
        return done

    return run


def left(mark: str, within: float = 10.0) -> list[int]:
    """Processes of a run that are still there after some seconds."""
    end = time.monotonic() + within
    while True:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("PARALELO_RUN") == mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
            except psutil.Error:
                continue
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.1)
