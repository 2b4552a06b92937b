"""From a layout to process groups: a device mesh whose coordinates are those that `paralelo map` prints.

    m = mesh(Layout(dp=2, tp=2, pp=2))
    m.coordinates                       # {'dp': 0, 'tp': 1, 'pp': 0, ...} of this rank
    m.group("tp"), m.group("dp-cp")     # process groups, to be given to layers

Two meshes stand on the same ranks: `dense`, with the axes pp, dp, cp, tp, and `experts`, with pp, edp, ep, etp. Each
lists its axes from the outermost to the innermost, so that its ranks come in rising order, as `init_device_mesh` lays
them. Where experts fold over data ranks on both sides of the pipeline (order "tp-cp-ep-pp-dp", ep above tp·cp) their
ranks do not rise; so their mesh is given its grid of ranks, and the groups.

A group is made by all ranks of the world at once, also by those outside it; so all groups are made here, once, and
none inside a layer. Which rank is in which group is `predict.layout`'s word, and a group's ranks are numbered by their
coordinate. Axes with the same groups share them: a group costs memory, and under gloo three threads that wake a hundred
times a second. `close()` (or `with mesh(...) as m`) gives them back.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from paralelo.predict.layout import DENSE, EXPERT, Layout
from paralelo.words import Refused

COMBINED = ("dp-cp", "dp-cp-tp")                           # those who share dense parameters; all of a stage


class Mesh:
    """A rank's place in a layout, with the groups it belongs to. All ranks of the world make it together."""

    def __init__(self, layout: Layout, device: str | torch.device = "cpu", combined: tuple[str, ...] = COMBINED):
        world_size = dist.get_world_size()
        if world_size != layout.world_size:
            raise Refused("run_layout.world_size", ranks=world_size, needed=layout.world_size, dp=layout.dp,
                          tp=layout.tp, pp=layout.pp, cp=layout.cp)
        self.layout, self.device = layout, torch.device(device)
        self.rank, self.coordinates = dist.get_rank(), layout.coordinates(dist.get_rank())
        names = outermost_first(layout, DENSE)
        self.dense = init_device_mesh(self.device.type, tuple(layout.size(a) for a in names), mesh_dim_names=names)
        self._groups = {axis: self.dense.get_group(axis) for axis in DENSE}
        made = {str(layout.groups(axis)): group for axis, group in self._groups.items()}
        for axis in (*EXPERT, *combined):
            groups = layout.groups(axis)
            if str(groups) not in made:
                made[str(groups)], _ = dist.new_subgroups_by_enumeration(groups)
            self._groups[axis] = made[str(groups)]
        names = outermost_first(layout, ("pp", *EXPERT))
        self.experts = DeviceMesh.from_group([self._groups[a] for a in names], self.device.type,
                                             torch.tensor(layout.grid(*names)), mesh_dim_names=names)
        dist.barrier()                                    # a rank that went on and closed would cut off a slower one

    def group(self, axis: str) -> dist.ProcessGroup:
        """This rank's group of an axis, or of several that were named in `combined`."""
        if axis not in self._groups:
            raise Refused("run_layout.axis", axis=axis, axes=list(self._groups))
        return self._groups[axis]

    def close(self) -> None:
        """Destroy the groups that were made, once all ranks have come here."""
        dist.barrier()
        for group in {id(g): g for g in self._groups.values()}.values():
            if group != dist.group.WORLD:
                dist.destroy_process_group(group)
        self._groups.clear()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:                                  # after an error the others may never come
            self.close()

    def __repr__(self):
        at = ", ".join(f"{a}={i}" for a, i in self.coordinates.items())
        return f"<rank {self.rank} of {self.layout}: {at}>"


def mesh(layout: Layout, device: str | torch.device = "cpu", combined: tuple[str, ...] = COMBINED) -> Mesh:
    """The layout on the ranks of this world; `combined` names groups over several axes that will be needed."""
    return Mesh(layout, device, combined)


def outermost_first(layout: Layout, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes of a mesh in the order that makes its ranks rise.

    >>> outermost_first(Layout(dp=2, tp=2, pp=2), DENSE), outermost_first(Layout(dp=2, tp=2, ep=2), ("pp", *EXPERT))
    (('cp', 'pp', 'dp', 'tp'), ('pp', 'etp', 'edp', 'ep'))
    """
    return tuple(sorted(axes, key=lambda axis: _stride(layout, axis), reverse=True))


def _stride(layout: Layout, axis: str) -> tuple[int, int]:
    """How far apart neighbours on an axis are; axes of one rank go outside."""
    if getattr(layout, axis) == 1:
        return layout.world_size, 0
    return layout.rank(**{axis: 1}), 1
