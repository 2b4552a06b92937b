"""Layouts: which rank sits where on the axes, and which ranks form a group.

    world_size = dp · cp · tp · pp                         every rank has four coordinates
    etp · ep · edp = tp · cp · dp                          experts fold inside one pipeline stage

`order` names the axes innermost first, as Megatron-LM does: neighbours on the first axis are neighbours in rank number.
With strides s(axis) = product of the degrees before it,

    rank = Σ coordinate(axis) · s(axis)        over tp, cp, dp, pp

"tp-cp-ep-dp-pp" has the pipeline outermost, "tp-cp-ep-pp-dp" the data. The ranks of one pipeline stage, in rising
order, are numbered once more over (etp, ep, edp), in the order in which `tp`, `ep` and `dp` stand in `order`; so
experts may take the place of tensor, context and data ranks alike, and `ep` may exceed `dp`. With the pipeline
outermost this is Megatron-LM's folding; with the data outermost Megatron-LM accepts only etp·ep = tp·cp, where the two
agree.

Coordinates, groups and links are derived from this and from nothing else.

Sources: Narayanan et al. 2021, section 3.5; Liu et al. 2025, MoE Parallel Folding.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from paralelo.predict.quantity import divisors, named, ranges, shares, shown, whole
from paralelo.words import Refused

DENSE = ("dp", "tp", "pp", "cp")
EXPERT = ("etp", "ep", "edp")
ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
MOST_RANKS = 2**20


@dataclass(frozen=True)
class Layout:
    """Degrees of the axes and the order in which ranks are laid along them.

    >>> layout = Layout(dp=2, tp=8, pp=4)                   # 70 B on 8 nodes of 8 GPUs
    >>> layout.world_size
    64
    >>> layout.coordinates(19)
    {'dp': 0, 'tp': 3, 'pp': 1, 'cp': 0, 'ep': 0, 'etp': 0, 'edp': 3}
    >>> layout.groups("pp")[0], layout.groups("dp")[0]
    ([0, 16, 32, 48], [0, 8])
    >>> Layout(dp=2, tp=8, pp=4, order="tp-cp-ep-pp-dp").groups("pp")[0]
    [0, 8, 16, 24]

    `etp` cuts inside an expert; at 1 experts are split by number alone (`ep`) and every expert has `edp` copies, tensor
    ranks included.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    order: str = ORDERS[0]

    def __post_init__(self):
        for axis in (*DENSE, "ep", "etp"):
            whole(axis, getattr(self, axis), most=MOST_RANKS)
        if self.world_size > MOST_RANKS:
            raise Refused("layout.too_many_ranks", world_size=self.world_size, most=MOST_RANKS)
        told = self.order.split("-") if isinstance(self.order, str) else []
        if sorted(set(told) | {"ep"}) != sorted((*DENSE, "ep")) or len(told) != len(set(told)):
            raise Refused("layout.order", order=named(self.order), orders=list(ORDERS))
        inside = self.tp * self.cp * self.dp
        if inside % (self.etp * self.ep):
            raise Refused("layout.experts_fold", ep=self.ep, etp=self.etp, product=self.etp * self.ep, inside=inside,
                          would_do=[d for d in divisors(inside) if inside % (d * self.etp) == 0] or [1])

    # ---- sizes

    @property
    def world_size(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def edp(self) -> int:
        """How many copies of an expert there are: tp·cp·dp / (etp·ep)."""
        return self.dp * self.tp * self.cp // (self.etp * self.ep)

    def size(self, axis: str) -> int:
        """The number of ranks in a group of this axis: `size("dp-cp")` is dp·cp."""
        return prod(getattr(self, a) for a in self._axes(axis))

    def _axes(self, axis: str) -> list[str]:
        axes = axis.split("-") if isinstance(axis, str) else [axis]
        for a in axes:
            if a not in DENSE and a not in EXPERT:
                raise Refused("layout.axis", axis=named(a), axes=[*DENSE, *EXPERT])
        if any(a in EXPERT for a in axes) and any(a in DENSE and a != "pp" for a in axes):
            raise Refused("layout.mixed", axis=axis, dense=["dp", "tp", "cp"], expert=list(EXPERT))
        return axes

    # ---- coordinates

    @cached_property
    def _order(self) -> list[str]:
        return self.order.split("-")

    @cached_property
    def _strides(self) -> dict[str, int]:
        """Rank numbers between neighbours on each dense axis."""
        return self._along([a for a in self._order if a != "ep"])

    @cached_property
    def _stage_strides(self) -> dict[str, int]:
        """The same among the ranks of one stage, numbered by themselves."""
        return self._along([a for a in self._order if a not in ("ep", "pp")])

    @cached_property
    def _expert_strides(self) -> dict[str, int]:
        order = self._order if "ep" in self._order else ["ep", *self._order]
        return self._along([{"tp": "etp", "dp": "edp"}.get(a, a) for a in order if a in ("tp", "ep", "dp")])

    def _along(self, axes):
        strides, step = {}, 1
        for axis in axes:
            strides[axis] = step
            step *= getattr(self, axis)
        return strides

    def _in_stage(self, rank: int) -> int:
        """The number of a rank among the ranks of its stage."""
        return sum(rank // self._strides[a] % getattr(self, a) * s for a, s in self._stage_strides.items())

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank sits on every axis, those of the experts included."""
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.world_size:
            raise Refused("layout.rank", rank=shown(rank), world_size=self.world_size, last=self.world_size - 1)
        inside = self._in_stage(rank)
        at = {a: rank // s % getattr(self, a) for a, s in self._strides.items()}
        at |= {a: inside // s % getattr(self, a) for a, s in self._expert_strides.items()}
        return {a: at[a] for a in ("dp", "tp", "pp", "cp", "ep", "etp", "edp")}

    def rank(self, **coordinates: int) -> int:
        """The rank at these coordinates, 0 where an axis is not named: dense axes, or expert axes and pp.

        >>> layout = Layout(dp=2, tp=2, pp=2, ep=2)
        >>> layout.rank(dp=1, pp=1), layout.rank(ep=1, edp=1, pp=1)
        (6, 7)
        """
        self._axes("-".join(coordinates) or "pp")
        for axis, at in coordinates.items():
            if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at < getattr(self, axis):
                raise Refused("layout.coordinate", axis=axis, value=shown(at), degree=getattr(self, axis),
                              last=getattr(self, axis) - 1)
        if any(a in EXPERT for a in coordinates):
            inside = sum(coordinates.get(a, 0) * s for a, s in self._expert_strides.items())
            coordinates = {"pp": coordinates.get("pp", 0)} | {
                a: inside // s % getattr(self, a) for a, s in self._stage_strides.items()}
        return sum(at * self._strides[axis] for axis, at in coordinates.items())

    def groups(self, axis: str) -> list[list[int]]:
        """All groups of an axis, or of several joined by `-`; ranks rise, and so do the groups.

        On one axis, a rank's place in its group is its coordinate.

        >>> Layout(dp=2, cp=16).groups("cp")[1][:3], Layout(dp=2, cp=16).groups("dp")[:2]
        ([16, 17, 18], [[0, 16], [1, 17]])
        >>> Layout(dp=2, cp=2, tp=2).groups("dp-cp")
        [[0, 2, 4, 6], [1, 3, 5, 7]]
        """
        axes = self._axes(axis)
        of_experts = any(a in EXPERT for a in axes)
        found: dict[tuple, list[int]] = {}
        for rank in range(self.world_size):
            stage = rank // self._strides["pp"] % self.pp
            place = self._in_stage(rank)
            strides = self._expert_strides if of_experts else self._stage_strides
            for a in axes:
                if a == "pp":
                    stage = 0
                else:
                    place -= place // strides[a] % getattr(self, a) * strides[a]
            found.setdefault((stage, place), []).append(rank)
        return sorted(found.values())

    def group(self, axis: str, rank: int) -> list[int]:
        """The group of an axis that holds this rank."""
        self.coordinates(rank)
        return next(g for g in self.groups(axis) if rank in g)

    def grid(self, *axes: str):
        """The ranks as nested lists, one level per axis, the first axis outermost: what a device mesh is built from.

        >>> Layout(dp=2, tp=2, pp=2).grid("pp", "dp", "tp")
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
        """
        self._axes("-".join(axes) or "pp")

        def level(rest, at):
            if not rest:
                return self.rank(**at)
            return [level(rest[1:], at | {rest[0]: i}) for i in range(getattr(self, rest[0]))]

        return level(axes, {})

    # ---- nodes

    def nodes(self, gpus_per_node: int) -> list[range]:
        """Which ranks share a node, ranks filling the nodes one after another.

        >>> Layout(dp=3).nodes(2)
        [range(0, 2), range(2, 3)]
        """
        whole("gpus_per_node", gpus_per_node)
        return [range(i, min(i + gpus_per_node, self.world_size)) for i in range(0, self.world_size, gpus_per_node)]

    def nodes_crossed(self, axis: str, gpus_per_node: int) -> int:
        """The largest number of nodes that one group of this axis touches; 1 means that it never leaves a node.

        >>> layout = Layout(dp=2, tp=8, pp=4)
        >>> [layout.nodes_crossed(a, 8) for a in ("tp", "dp", "pp")]
        [1, 2, 4]
        """
        whole("gpus_per_node", gpus_per_node)
        return _nodes_crossed(self, axis, gpus_per_node)

    def crosses_nodes(self, axis: str, gpus_per_node: int) -> bool:
        """Whether some group of this axis sends between nodes.

        Evenly spaced groups (step s, n ranks) fill blocks of s·n: some block lies on two nodes unless s·n divides one.
        """
        whole("gpus_per_node", gpus_per_node)
        step, degree = self._spacing(self._axes(axis))
        if step:
            return degree > 1 and self.world_size > gpus_per_node and gpus_per_node % (step * degree) != 0
        return self.nodes_crossed(axis, gpus_per_node) > 1

    def _spacing(self, axes: list[str]) -> tuple[int, int]:
        """(step, ranks) of the groups of these axes together, step 0 where they are not evenly spaced."""
        of_experts = any(a in EXPERT for a in axes)
        if of_experts and self._order[-1] != "pp" and self.pp > 1:
            return 0, 0
        strides = self._expert_strides if of_experts else self._strides
        spaced = sorted((strides[a], getattr(self, a)) for a in set(axes) if getattr(self, a) > 1)
        if not spaced:
            return 1, 1
        step, degree = spaced[0]
        for stride, more in spaced[1:]:
            if stride != step * degree:
                return 0, 0
            degree *= more
        return step, degree


@lru_cache(maxsize=4096)
def _nodes_crossed(layout: Layout, axis: str, per_node: int) -> int:
    axes = layout._axes(axis)
    degree = layout.size(axis)
    if degree == 1:
        return 1
    if len(axes) == 1 and axes[0] in DENSE:                 # evenly spaced ranks: no need to look at them all
        step = layout._strides[axes[0]]
        if per_node % (step * degree) == 0:
            return 1
        if step % per_node == 0:
            return degree
        if per_node % step == 0 and step * degree % per_node == 0:
            return step * degree // per_node
    return max(len({r // per_node for r in g}) for g in layout.groups(axis))


def stages(layers: int, pp: int) -> list[int]:
    """Layers of each stage, the larger stages first; none is lost.

    >>> stages(30, 4)
    [8, 8, 7, 7]
    """
    whole("layers", layers)
    whole("pp", pp)
    if pp > layers:
        raise Refused("layout.stages_rule", layers=layers, stages=pp)
    return shares(layers, pp)


def chunk_layers(layers: int, pp: int, chunks: int = 1, placement: str = "loop") -> list[list[range]]:
    """The layers of every chunk of every pipeline rank: `[rank][chunk]` is a range.

    Stage g = 0 … pp·chunks − 1 takes the g-th piece of the layers. In a loop, chunk c of rank r is stage c·pp + r, so
    it starts at layer c·(L/C) + r·(L/(pp·C)); in a V (two chunks), the second is stage 2·pp − 1 − r.

    >>> chunk_layers(8, 2, 2)
    [[range(0, 2), range(4, 6)], [range(2, 4), range(6, 8)]]
    >>> chunk_layers(8, 2, 2, "v")
    [[range(0, 2), range(6, 8)], [range(2, 4), range(4, 6)]]
    """
    whole("chunks", chunks)
    if placement not in ("loop", "v") or (placement == "v" and chunks != 2):
        raise Refused("layout.placement", placement=named(placement), chunks=chunks)
    pieces = ranges(stages(layers, pp * chunks))
    if placement == "v":
        return [[pieces[r], pieces[2 * pp - 1 - r]] for r in range(pp)]
    return [[pieces[c * pp + r] for c in range(chunks)] for r in range(pp)]
