"""The device mesh has the coordinates and groups of `predict.layout`, in both orders, experts folded in."""

import pytest
import torch.distributed as dist

from paralelo.predict.layout import ORDERS, Layout
from paralelo.run.layout import mesh
from paralelo.words import Refused

pytestmark = pytest.mark.layout

LAYOUTS = [dict(dp=2, tp=2, pp=2), dict(dp=2, tp=2, cp=2), dict(dp=2, tp=2, pp=2, ep=2), dict(dp=2, pp=2, cp=2, ep=4),
           dict(dp=4, tp=2, ep=4, etp=2), dict(tp=2, pp=2, cp=2, ep=2, etp=2), dict(dp=2, tp=2, pp=2, ep=4)]
AXES = ("dp", "tp", "pp", "cp", "ep", "etp", "edp", "dp-cp", "tp-pp", "ep-etp")


def seen(degrees, order):
    layout = Layout(**degrees, order=order)
    with mesh(layout, combined=("dp-cp", "tp-pp", "ep-etp")) as m:
        return looked_at(m)


def looked_at(m):
    groups = {axis: dist.get_process_group_ranks(m.group(axis)) for axis in AXES}
    of_mesh = {}
    for device_mesh in (m.dense, m.experts):
        of_mesh |= dict(zip(device_mesh.mesh_dim_names, device_mesh.get_coordinate(), strict=True))
    numbers = {axis: m.group(axis).rank() for axis in AXES}
    return m.coordinates, of_mesh, groups, numbers, list(m.dense.mesh_dim_names)


@pytest.mark.parametrize("order", ORDERS)
def test_coordinates_and_groups_are_the_predicted_ones(ranks, order):
    for degrees in LAYOUTS:
        layout = Layout(**degrees, order=order)
        for rank, (coordinates, of_mesh, groups, numbers, names) in enumerate(ranks(8).run(seen, degrees, order)):
            assert coordinates == layout.coordinates(rank) == {a: of_mesh[a] for a in coordinates}
            for axis in AXES:
                assert groups[axis] == layout.group(axis, rank), (degrees, axis)
                if "-" not in axis:
                    assert numbers[axis] == coordinates[axis]
            if min(degrees.get(a, 1) for a in ("dp", "tp", "pp")) > 1:
                outer = "pp" if order.endswith("pp") else "dp"
                assert next(n for n in names if degrees.get(n, 1) > 1) == outer


def refused(what):
    try:
        if what == "world_size":
            mesh(Layout(dp=3))
        else:
            m = mesh(Layout(dp=2))
            try:
                m.group("dp-tp")
            finally:
                m.close()
    except Refused as refused:
        return refused.message.id, len({refused.say(lang) for lang in ("en", "es", "pt")})


@pytest.mark.parametrize("what", ["world_size", "axis"])
def test_what_does_not_fit_is_refused(ranks, what):
    assert ranks(2).run(refused, what) == [(f"run_layout.{what}", 3)] * 2
