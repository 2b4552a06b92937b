"""From a layout to process groups: a device mesh whose coordinates are those that `paralelo map` prints.

    m = mesh(Layout(dp=2, tp=2, pp=2))
    m.coordinates                       # {'dp': 0, 'tp': 1, 'pp': 0, ...} of this rank
    m.group("tp"), m.group("dp-cp")     # process groups, to be given to layers

Two meshes stand on the same ranks: `dense`, with the axes pp, dp, cp, tp, and `experts`, with pp, edp, ep, etp. Each
lists its axes from the outermost to the innermost, so that its ranks come in rising order, as `init_device_mesh` lays
them. Where experts fold over data ranks on both sides of the pipeline (order "tp-cp-ep-pp-dp", ep above tp·cp), no
row-major mesh exists, and the mesh is given its grid of ranks.

A group is made by all ranks of the world at once, also by those outside it; so all groups are made here, once, and
none inside a layer. Which rank is in which group is `predict.layout`'s word, and a group's ranks are numbered by their
coordinate.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from paralelo.predict.layout import DENSE, EXPERT, Layout
from paralelo.words import Refused

COMBINED = ("dp-cp",)


class Mesh:
    """A rank's place in a layout, with the groups it belongs to. All ranks of the world make it together."""

    def __init__(self, layout: Layout, device: str | torch.device = "cpu", combined: tuple[str, ...] = COMBINED):
        world_size = dist.get_world_size()
        if world_size != layout.world_size:
            raise Refused("run_layout.world_size", ranks=world_size, needed=layout.world_size, dp=layout.dp,
                          tp=layout.tp, pp=layout.pp, cp=layout.cp)
        self.layout, self.device = layout, torch.device(device)
        self.rank, self.coordinates = dist.get_rank(), layout.coordinates(dist.get_rank())
        self.dense = device_mesh(layout, self.device.type, DENSE)
        self.experts = device_mesh(layout, self.device.type, ("pp", *EXPERT))
        self._groups = {axis: self.dense.get_group(axis) for axis in DENSE}
        self._groups |= {axis: self.experts.get_group(axis) for axis in EXPERT}
        for axes in combined:
            self._groups[axes], _ = dist.new_subgroups_by_enumeration(layout.groups(axes))

    def group(self, axis: str) -> dist.ProcessGroup:
        """This rank's group of an axis, or of several that were named in `combined`."""
        if axis not in self._groups:
            raise Refused("run_layout.axis", axis=axis, axes=list(self._groups))
        return self._groups[axis]

    def __repr__(self):
        at = ", ".join(f"{a}={i}" for a, i in self.coordinates.items())
        return f"<rank {self.rank} of {self.layout}: {at}>"


def mesh(layout: Layout, device: str | torch.device = "cpu", combined: tuple[str, ...] = COMBINED) -> Mesh:
    """The layout on the ranks of this world; `combined` names groups over several axes that will be needed."""
    return Mesh(layout, device, combined)


def device_mesh(layout: Layout, device_type: str, axes: tuple[str, ...]) -> DeviceMesh:
    """A `DeviceMesh` over these axes, the outermost first."""
    names = sorted(axes, key=lambda axis: _stride(layout, axis), reverse=True)
    grid = torch.tensor(layout.grid(*names))
    if torch.equal(grid.flatten(), torch.arange(layout.world_size)):
        return init_device_mesh(device_type, tuple(grid.shape), mesh_dim_names=tuple(names))
    return DeviceMesh(device_type, grid, mesh_dim_names=tuple(names))


def _stride(layout: Layout, axis: str) -> tuple[int, int]:
    """How far apart neighbours on an axis are; axes of one rank go outside."""
    if getattr(layout, axis) == 1:
        return layout.world_size, 0
    return layout.rank(**{axis: 1}), 1
