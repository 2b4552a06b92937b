"""What is too large is refused before it is made: in little memory and little time, whatever the number."""

import time
import tracemalloc

import pytest

from paralelo.predict import (
    checkpoint,
    collectives,
    data,
    experts,
    layout,
    measure,
    pipeline,
    quantity,
    sequence,
    tensor,
)
from paralelo.words import Refused

HUGE, PRIME = 10**12 + 39, 10**18 - 11


def little(ask):
    """What `ask()` gives, or None if it is refused; in less than 2 s of work and 1 MB."""
    tracemalloc.start()
    start, found = time.process_time(), None
    try:
        found = ask()
    except Refused:
        pass
    finally:
        took, most = time.process_time() - start, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert took < 2 and most < 2**20, (took, most)
    return found


@pytest.mark.parametrize("ask", [
    lambda: pipeline.build("zb-v", 600_000, 1), lambda: pipeline.build("zb-v", 3000, 1),
    lambda: pipeline.build("1f1b", HUGE, 1), lambda: collectives.rounds("all_reduce", 4096),
    lambda: experts.experts_of(4, HUGE), lambda: experts.Routing(2, [[0], [1]]).exchange(10**6),
    lambda: experts.steer(4, 4, 2, steps=HUGE), lambda: experts.steer(2**15, 64, 2, steps=10**4),
    lambda: quantity.shares(HUGE, HUGE), lambda: quantity.divisors(PRIME), lambda: checkpoint.chunk_sizes(4, HUGE),
    lambda: checkpoint.Depth(HUGE).held(2), lambda: layout.stages(HUGE, HUGE),
    lambda: tensor.tp_degrees(PRIME, 1), lambda: tensor.check_heads(PRIME, 1, 2), lambda: tensor.kv_heads(4, HUGE, 0),
    lambda: tensor.kv_repair(4, 4 * HUGE), lambda: tensor.query_heads(PRIME, 2, 0),
    lambda: tensor.fused_rows([2 * HUGE], 2, 0), lambda: tensor.qkv_rows(8, 8, HUGE, 1, 0),
    lambda: tensor.linear_attention_shapes(8, PRIME, 4, 2, 2, 4, 3), lambda: sequence.positions(2 * HUGE, 1, 0),
    lambda: sequence.packed_positions([0, 2 * HUGE], 1, 0), lambda: sequence.causal_work(4 * HUGE, HUGE),
    lambda: sequence.causal_shares(None, HUGE), lambda: sequence.ring_steps(4 * HUGE, HUGE),
    lambda: sequence.ulysses_degrees(PRIME, 1),
])
def test_too_much_is_refused_at_once(ask):
    assert little(ask) is None


def test_lists_may_be_generators():
    """What was read twice was empty the second time, and so was the answer."""
    assert data.loss_weights(iter([3, 1])) == data.loss_weights([3, 1])
    assert measure.stragglers(iter([1.0, 1.0, 2.0])) == [2]
    assert measure.straggler_cost(iter([1.0, 1.0])) == 0
    assert experts.balance_of(iter([2, 2]), [0.5, 0.5]) == 1


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "gpipe"])
def test_a_rank_that_is_not_there(name):
    for rank in (-1, 4):
        with pytest.raises(Refused):
            pipeline.warmup(name, 4, 8, rank)


def test_large_numbers_that_need_no_list():
    """Closed forms where a loop over all ranks stood."""
    assert little(lambda: experts.rank_of_expert(HUGE, HUGE - 1, HUGE - 1)) == HUGE - 2
    assert little(lambda: collectives.cost("all_to_all", 2, 2**40, "doubling")).path == 40
    for N in range(2, 40):
        ones = sum(j.bit_count() for j in range(N))
        assert collectives.cost("all_to_all", N, N, "doubling").path == ones
        for E in (1, 5, 40):
            owner = [r for r, some in enumerate(experts.experts_of(E, N)) for _ in some]
            assert [experts.rank_of_expert(E, N, e) for e in range(E)] == owner
