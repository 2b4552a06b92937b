"""Persistent ranks, shared by all tests of a process: `ranks(2)` starts them once."""

import sys
from pathlib import Path

import cloudpickle
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))
import helpers  # noqa: E402

cloudpickle.register_pickle_by_value(helpers)
_pool = {}


@pytest.fixture(autouse=True)
def _by_value(request):
    """The functions of a test's module travel by value: ranks cannot import it."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture
def ranks():
    """`ranks(n)`: n persistent ranks on the CPU, the same for all tests."""
    from paralelo.run.ranks import Ranks

    def of_size(n):
        if n not in _pool:
            _pool[n] = Ranks(n, device="cpu", timeout=60)
        return _pool[n]

    return of_size


@pytest.fixture(scope="session", autouse=True)
def _end_of_ranks():
    yield
    for pool in _pool.values():
        pool.close()
    _pool.clear()
