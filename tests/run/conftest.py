"""Persistent ranks, shared by all tests of a process: `ranks(2)` starts them once."""

import cloudpickle
import pytest

torch = pytest.importorskip("torch")

_pool = {}


@pytest.fixture
def ranks(request):
    """`ranks(n)`: n persistent ranks on the CPU. The functions of the test's module travel by value."""
    from paralelo.run.ranks import Ranks

    cloudpickle.register_pickle_by_value(request.module)

    def of_size(n):
        if n not in _pool:
            _pool[n] = Ranks(n, device="cpu", timeout=60)
        return _pool[n]

    yield of_size
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(scope="session", autouse=True)
def _end_of_ranks():
    yield
    for pool in _pool.values():
        pool.close()
    _pool.clear()
