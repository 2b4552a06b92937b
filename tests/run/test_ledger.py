"""The ledger: what it counts, whoever sends; against the predictions and against what the loopback really carried."""

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from paralelo.predict import collectives as predict
from paralelo.run.collectives import (
    Ledger,
    all_reduce,
    all_to_all,
    exchange,
    gather_from,
    reduce_from,
    reduce_scatter,
    unchecked,
)

pytestmark = pytest.mark.collectives


@pytest.mark.parametrize("N", [1, 2, 3, 4])
def test_counted_equals_predicted(ranks, N):
    def count():
        group = dist.group.WORLD
        x = torch.ones(12 * group.size(), 5)
        with Ledger(tensor=group) as ledger:
            reduce_from(x, group)
            gather_from(x, group, 0)
            reduce_scatter(x, group, 0)
            all_to_all(x, group)
        return ledger.rows(), ledger["all_reduce"].calls, ledger["tensor"].ring, ledger.total.payload

    n = 12 * N * 5 * 4
    expect = [] if N == 1 else [
        ("tensor", "all_gather", 1, N * n, predict.all_gather_bytes(N * n, N)),
        ("tensor", "all_reduce", 1, n, predict.all_reduce_bytes(n, N)),
        ("tensor", "all_to_all", 1, n, predict.all_to_all_bytes(n, N)),
        ("tensor", "reduce_scatter", 1, n, predict.reduce_scatter_bytes(n, N)),
    ]
    for rows, calls, ring, payload in ranks(N).run(count):
        assert rows == expect and calls == (N > 1)
        assert ring == sum(row[4] for row in expect) and payload == sum(row[3] for row in expect)


def test_uneven_counts_what_leaves(ranks):
    """Rank r holds r + 1 rows of 8 bytes: all-gather sends its own N−1 times; reduce-scatter what others get."""

    def count():
        group = dist.group.WORLD
        r = group.rank()
        with Ledger(tensor=group) as ledger:
            gather_from(torch.ones(r + 1, dtype=torch.float64), group, 0)
            reduce_scatter(torch.ones(6, dtype=torch.float64), group, 0, [1, 2, 3])
            all_to_all(torch.ones(4, dtype=torch.float64), group, send=[0, 4, 0])
        return [ledger.entries[kind, "tensor"] for kind in ("all_gather", "reduce_scatter", "all_to_all")]

    for r, (gathered, scattered, sent) in enumerate(ranks(3).run(count)):
        assert (gathered.payload, gathered.ring) == (6 * 8, 2 * (r + 1) * 8)
        assert (scattered.payload, scattered.ring) == (6 * 8, (6 - r - 1) * 8)
        assert (sent.payload, sent.ring) == (32, 0 if r == 1 else 32)


def test_axes_by_group_and_by_mesh(ranks):
    def count():
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        data, tensor = mesh.get_group("data"), mesh.get_group("tensor")
        found = []
        for ledger in (Ledger(data=data, tensor=tensor), Ledger(mesh), Ledger(tensor=tensor)):
            with ledger:
                all_reduce(torch.ones(2), data)
                all_reduce(torch.ones(8), tensor)
                all_reduce(torch.ones(4), dist.group.WORLD)
            found.append({axis: payload for axis, kind, calls, payload, ring in ledger.rows()})
        return found, data.group_name

    for (by_group, by_mesh, partly), name in ranks(4).run(count):
        assert by_group == by_mesh == {"data": 8, "tensor": 32, "world": 16}
        assert partly == {name: 8, "tensor": 32, "world": 16}          # a group it was not told of, under torch's name


def test_sees_torchs_own(ranks):
    """A plain call, point to point, DTensor, DistributedDataParallel and pipelining, in one table."""

    def count():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

        group, r, tables = dist.group.WORLD, dist.get_rank(), {}
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))

        def table(ledger):
            return [(kind, calls, payload, ring) for _, kind, calls, payload, ring in ledger.rows()]

        with Ledger() as ledger:
            dist.all_reduce(torch.ones(4))
            dist.broadcast(torch.ones(4), 0)
            exchange(torch.ones(3), 1 - r, torch.empty(3), 1 - r, group)()
            dist.barrier()
        tables["plain"] = table(ledger)

        x = distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)])
        with Ledger(mesh) as ledger:
            x.redistribute(mesh, [Replicate()]).to_local().sum().item()
            y = (distribute_tensor(torch.ones(4, 6), mesh, [Shard(1)]) @ x)        # a product of halves: partial sums
            assert y.placements == (Partial(),)
            y.redistribute(mesh, [Replicate()]).to_local().sum().item()
        tables["DTensor"] = table(ledger)
        with Ledger(mesh) as ledger:
            torch.relu(y).to_local().sum().item()                # sums inside the operation: a relu of parts is wrong
        tables["inside"] = table(ledger)

        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
        with Ledger(data=group) as ledger:
            model(torch.ones(2, 8)).sum().backward()
        tables["DDP"] = table(ledger)
        return tables

    for tables in ranks(2).run(count):
        assert tables["plain"] == [("all_reduce", 1, 16, 16), ("broadcast", 1, 16, 16), ("recv", 1, 12, 0),
                                   ("send", 1, 12, 12)]
        assert ("all_gather", 1, 96, 48) in tables["DTensor"] and ("all_reduce", 1, 64, 64) in tables["DTensor"]
        assert tables["inside"] == [("all_reduce", 1, 64, 64)]
        assert tables["DDP"] == [("all_reduce", 1, 72 * 4, 72 * 4)]


def test_sees_torchs_pipelining(ranks):
    """A microbatch of (2, 4) float32 is 32 bytes: two cross forward, two gradients back."""

    def count():
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        r = dist.get_rank()
        stage = PipelineStage(nn.Linear(4, 4), r, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)

        def step():
            schedule.step(torch.ones(4, 4)) if r == 0 else schedule.step(target=torch.ones(4, 4))

        step()                                           # the first step also exchanges shapes
        with Ledger(pipeline=dist.group.WORLD) as ledger:
            step()
        return ledger["send"]

    for sent in ranks(2).run(count):
        assert (sent.calls, sent.payload) == (2, 64)


def test_bookkeeping_is_not_counted(ranks):
    def count():
        with Ledger() as checked:
            all_reduce(torch.ones(2), dist.group.WORLD)
        with Ledger() as ledger, unchecked():
            all_reduce(torch.ones(2), dist.group.WORLD)
        return checked.rows() == ledger.rows()

    assert all(ranks(2).run(count))


def test_table_reads(ranks):
    def count():
        with Ledger(tensor=dist.group.WORLD) as ledger:
            all_reduce(torch.ones(1000), dist.group.WORLD)
        return str(ledger).splitlines()

    head, row = ranks(2).run(count)[0]
    assert head.split() == ["axis", "kind", "calls", "payload", "ring"]
    assert row.split() == ["tensor", "all_reduce", "1", "4,000", "B", "4,000", "B"]


# ---- an independent witness: the counters of the loopback interface

LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")


@pytest.mark.skipif(not LOOPBACK.exists(), reason="the kernel's counters are Linux's")
@pytest.mark.parametrize("N", [2, 4])
def test_counted_equals_what_the_loopback_carried(ranks, N):
    """All ranks' bytes together, against the kernel's count of everything that crossed `lo`, within headers.

    gloo's all-reduce and all-gather are rings and its all-to-all is direct: they send what the ledger says. It makes a
    reduce-scatter of an all-reduce, twice the bytes of a ring. Other programs use the interface too, so the quietest of
    five tries counts.
    """

    def send(op):
        group = dist.group.WORLD
        x = torch.ones(1 << 20) if op != "all_gather" else torch.ones((1 << 20) // group.size())
        call = {
            "all_reduce": lambda: reduce_from(x, group), "all_to_all": lambda: all_to_all(x, group),
            "reduce_scatter": lambda: reduce_scatter(x, group, 0),
            "all_gather": lambda: gather_from(x, group, 0, [x.numel()] * group.size()),
            "send": lambda: exchange(x, (group.rank() + 1) % group.size(), torch.empty_like(x),
                                     (group.rank() - 1) % group.size(), group)(),
        }[op]
        with unchecked(), Ledger() as ledger:
            call()
        return ledger.total.ring

    for op, times in {"all_reduce": 1, "all_gather": 1, "all_to_all": 1, "send": 1, "reduce_scatter": 2}.items():
        ranks(N).run(send, op)                                                    # connections are made
        over = []
        for _ in range(5):
            before = int(LOOPBACK.read_text())
            counted = sum(ranks(N).run(send, op))
            time.sleep(0.02)
            over.append((int(LOOPBACK.read_text()) - before) / counted)
        assert times <= min(over) < times + 0.04, (op, over)
