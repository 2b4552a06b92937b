"""Our orders beside those of torch.distributed.pipelining, action by action.

torch's schedules are asked for their order without processes: the method that makes it reads a handful of sizes from
`self`. torch writes a grid of time slots, so its lists hold `None` where a slot is empty, and `REDUCE_GRAD` where a
data-parallel reduction may start; both are no actions and are left out.
"""

from types import SimpleNamespace

import pytest

from paralelo.predict.pipeline import build, simulate
from paralelo.words import Refused

torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
pytestmark = pytest.mark.pipeline

KIND = {getattr(torch_schedules, letter): letter for letter in "FBIW"}
SIZES = [(S, M) for S in (1, 2, 3, 4, 8) for M in (1, 2, 3, 4, 5, 8, 10, 16, 24)]


def flat(actions):
    """torch's list as (kind, stage, microbatch); a forward and a backward that overlap stand one after the other."""
    for a in actions:
        if a is not None and a.sub_actions:
            yield from flat(a.sub_actions)
        elif a is not None and a.computation_type in KIND:
            yield KIND[a.computation_type], a.stage_index, a.microbatch_index


def ours(schedule):
    return [[tuple(a) for a in schedule.actions(r)] for r in range(schedule.stages)]


def single(cls, S, M):
    order = cls._get_pipeline_order(SimpleNamespace(_num_stages=S, _n_microbatches=M))
    return [list(flat(order[r])) for r in range(S)]


def multi(cls, S, M, C):
    me = SimpleNamespace(pp_group_size=S, _n_microbatches=M, n_local_stages=C, num_stages=S * C,
                         microbatches_per_round=M // max(1, M // S))
    return [list(flat(cls._calculate_single_rank_operations(me, r))) for r in range(S)]


@pytest.mark.parametrize(("S", "M"), SIZES)
def test_gpipe(S, M):
    assert ours(build("gpipe", S, M)) == single(torch_schedules.ScheduleGPipe, S, M)


class Recorder:
    """A stage that computes and sends nothing and remembers what it was asked for."""

    def __init__(self, index):
        self.stage_index, self.asked = index, []

    def forward_one_chunk(self, m, *args, **kwargs):
        self.asked.append(("F", self.stage_index, m))

    def backward_one_chunk(self, m, **kwargs):
        self.asked.append(("B", self.stage_index, m))

    def get_fwd_recv_ops(self, m):
        return []

    get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = get_fwd_recv_ops

    def perform_reduce_grad(self, scale):
        pass


def played(cls, S, M, stage):
    """What torch's own loop asks of a stage."""
    def nothing(*args, **kwargs):
        return None

    recorder = Recorder(stage)
    cls._step_microbatches(SimpleNamespace(
        _n_microbatches=M, _num_stages=S, _stage=recorder, scale_grads=False,
        _check_inputs=lambda *a: ([()] * M, [{}] * M), _initialize_stage=nothing, _maybe_compute_loss=nothing,
        _maybe_get_loss=nothing, _update_losses=nothing))
    return recorder.asked


@pytest.mark.parametrize(("S", "M"), SIZES)
def test_1f1b(S, M):
    """What torch's loop runs equals our order, also for M < S, where its constructor refuses although the loop caps the
    fill at M."""
    assert ours(build("1f1b", S, M)) == [played(torch_schedules.Schedule1F1B, S, M, r) for r in range(S)]


@pytest.mark.parametrize(("S", "M"), [(S, M) for S, M in SIZES if M >= S])
def test_1f1b_as_torch_describes_it(S, M):
    """The order that torch draws (`_get_pipeline_order`) equals what it runs on every rank but the last: there it
    counts the forwards from 1, so it names a microbatch M that does not exist and leaves out microbatch 0."""
    mine, drawn = ours(build("1f1b", S, M)), single(torch_schedules.Schedule1F1B, S, M)
    assert mine[:-1] == drawn[:-1]
    off_by_one = [(k, s, m + (k == "F")) for k, s, m in mine[-1]]
    assert drawn[-1] == off_by_one


@pytest.mark.parametrize("C", [1, 2, 3])
@pytest.mark.parametrize(("S", "M"), SIZES)
def test_interleaved(S, M, C):
    """Equal wherever both are defined, and refused for the same sizes: the number of groups must divide M."""
    if M % max(1, M // S):
        with pytest.raises(Refused):
            build("interleaved", S, M, C)
    else:
        assert ours(build("interleaved", S, M, C)) == multi(torch_schedules.ScheduleInterleaved1F1B, S, M, C)


@pytest.mark.parametrize(("S", "M"), SIZES)
def test_zb_h1(S, M):
    """torch's interleaved zero-bubble schedule at one chunk is ZB-H1. It refuses M that the number of groups does not
    divide (a rule for chunks, of which there is one here); ours does not."""
    mine = ours(build("zb-h1", S, M))
    assert mine == multi(torch_schedules.ScheduleInterleavedZeroBubble, S, M, 1)


@pytest.mark.parametrize(("S", "M"), SIZES)
def test_zb_v(S, M):
    """Equal: torch too writes the order for at least 2S−1 microbatches and leaves out those that do not exist."""
    assert ours(build("zb-v", S, M)) == multi(torch_schedules.ScheduleZBVZeroBubble, S, M, 2)


@pytest.mark.parametrize(("S", "M"), [(S, M) for S, M in SIZES if M >= 2 * S])
def test_dualpipe_v(S, M):
    """Equal once torch's overlapped pairs are written one after the other, forward first. torch runs the two halves of
    such a pair one after the other too unless a custom function overlaps them."""
    assert ours(build("dualpipe-v", S, M)) == multi(torch_schedules.ScheduleDualPipeV, S, M, 2)


def test_zb_h2_has_no_torch_schedule():
    """The paper's properties stand in test_pipeline.py. ZB-H2 is ZB-H1 with the fill and the delay of W doubled, so at
    S = 1 the two are the same."""
    assert ours(build("zb-h2", 1, 5)) == ours(build("zb-h1", 1, 5))


@pytest.mark.parametrize(("name", "cls", "C"), [
    ("interleaved", "ScheduleInterleaved1F1B", 2), ("zb-v", "ScheduleZBVZeroBubble", 2)])
def test_torchs_own_simulation_plays_the_same_work(name, cls, C):
    """`_simulate_comms_compute` plays an order in slots, a slot for an action and a slot for a send or a receive. It
    ends with the same work on every rank, and, since messages take slots there, not before ours with free messages."""
    S, M = 4, 8
    me = SimpleNamespace(pp_group_size=S, _n_microbatches=M, n_local_stages=C, num_stages=S * C,
                         microbatches_per_round=M // max(1, M // S))
    order = {r: getattr(torch_schedules, cls)._calculate_single_rank_operations(me, r) for r in range(S)}
    schedule = build(name, S, M, C)
    with_comms = torch_schedules._add_send_recv(
        {r: [a for a in acts if a is not None] for r, acts in order.items()}, schedule.rank_of, S * C)
    slots = torch_schedules._simulate_comms_compute(with_comms, schedule.rank_of, S * C)
    compute = [sum(a is not None and a.computation_type in KIND for a in slots[r]) for r in range(S)]
    assert compute == [len(codes) for codes in schedule.codes]                # it finishes, with the same work
    assert max(map(len, slots.values())) >= simulate(schedule, C, 2 * C if name == "zb-v" else C, C).makespan
