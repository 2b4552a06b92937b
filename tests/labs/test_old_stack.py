"""The labs on the Jupyter stack of Colab and Kaggle: ipywidgets 7.7, ipykernel 6.17, jupyter_client 7.4."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from paralelo.words import languages

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def old_python(tmp_path_factory):
    """The interpreter of an environment with the old stack, which sees this one's torch and library behind its own."""
    folder = tmp_path_factory.mktemp("old") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r",
                    ROOT / "labs" / "old-stack.txt"], check=True, capture_output=True)
    own = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True,
                         capture_output=True, text=True).stdout.strip()
    here = sysconfig.get_path("purelib")                  # addsitedir: the library itself is there by a .pth
    (Path(own) / "zz_this_environment.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    return python


@pytest.mark.long
def test_labs_on_the_old_stack(lab, nbval, old_python):
    versions = "import ipywidgets, ipykernel, paralelo, torch; print(ipywidgets.__version__, ipykernel.__version__)"
    shown = subprocess.run([old_python, "-c", versions], check=True, capture_output=True, text=True).stdout
    assert shown.split() == ["7.7.1", "6.17.1"]
    done = nbval([lab.path(languages()[0])], python=old_python)
    assert done.returncode == 0, done.stdout[-6000:]
