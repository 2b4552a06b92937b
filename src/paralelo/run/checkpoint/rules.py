"""How the parameters of the library's layers lie, dense or split, in terms that hold for every layout.

A layer's `splits()` says how it is split now; to split it over another number of ranks one must know what is never cut:
heads. For dense layers there is nothing to read off, so both kinds are described here, by one table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from paralelo.predict.checkpoint import Cut
from paralelo.run import tensor, tutor
from paralelo.run.experts import ExpertParallelMoE, Experts


@dataclass(frozen=True)
class Axis:
    """A cut along an axis of which this rank is number `index` of `size`."""

    cut: Cut
    size: int = 1
    index: int = 0


@dataclass(frozen=True)
class Lie:
    """How a parameter lies. `parts`: (name, size, units) of fused parts along `dim`; `shape`: the whole, if split."""

    axes: Mapping[str, Axis] = field(default_factory=dict)
    parts: tuple[tuple[str, int, int], ...] = ()
    dim: int = 0
    shape: tuple[int, ...] | None = None

    @staticmethod
    def called(name: str, part: str | None) -> str:
        """The name of a part: `mlp.gate_up.weight` has `mlp.gate.weight`, as if it were not fused."""
        if part is None:
            return name
        stem, _, last = name.rpartition(".")
        if last in ("weight", "bias"):
            path, _, owner = stem.rpartition(".")
            inner = part if owner == "gate_up" else f"{owner}.{part}"
            return f"{path}.{inner}.{last}".lstrip(".")
        return f"{name}.{part}"


def rules(module: nn.Module) -> dict[str, Lie]:
    """Own names → how they lie; what is not named is whole on every rank."""
    out: dict[str, Lie] = {}
    whole = tensor.splits(module)
    for path, child in module.named_modules():
        for name, lie in _of(child).items():
            full = f"{path}.{name}" if path else name
            if full in out:
                continue                                    # the outer layer knows more
            apart = any(axis.size > 1 for axis in lie.axes.values())
            shape = lie.shape or (whole[full].shape if full in whole and apart else None)
            out[full] = Lie(lie.axes, lie.parts, lie.dim, shape)
    return out


def _of(layer: nn.Module) -> dict[str, Lie]:
    match layer:
        case tensor.Attention() | tensor.ParallelAttention():
            return _attention(layer)
        case tensor.MLP() | tensor.ParallelMLP():
            F = (layer.F if isinstance(layer, tensor.MLP) else layer.gate_up.splits()["weight"].parts[0]) \
                if layer.fused else 0
            parts = (("gate", F, 0), ("up", F, 0)) if layer.fused else ()
            first = _both(layer, ("gate_up", "gate", "up"), Cut(0), parts)
            return first | _both(layer, ("down",), Cut(1), bias=False)
        case tensor.GatedDelta() | tensor.ParallelGatedDelta():
            return _gated_delta(layer)
        case nn.Embedding() | tensor.VocabParallelEmbedding() | tensor.VocabParallelHead():
            return {"weight": _tp(layer, Cut(0, rule="pad"))}
        case tutor.Head():
            return {"out.weight": _tp(layer, Cut(0, rule="pad"))}
        case ExpertParallelMoE():
            return _experts(layer.experts, sum(layer.held), layer.group, layer.expert_tensor, "experts.")
        case Experts():
            return _experts(layer, layer.E, None, None, "")
    return {name: _generic(layer, split) for name, split in getattr(layer, "splits", dict)().items()}


def _group(layer) -> tuple[int, int]:
    group = getattr(layer, "group", None)
    return (1, 0) if group is None else (group.size(), group.rank())


def _tp(layer, cut: Cut, parts=(), dim: int = 0) -> Lie:
    return Lie({"tp": Axis(cut, *_group(layer))}, tuple(parts), dim)


def _both(layer, names, cut, parts=(), bias: bool = True) -> dict[str, Lie]:
    return {f"{name}.{what}": _tp(layer, cut, parts) for name in names if hasattr(layer, name)
            for what in (("weight", "bias") if bias else ("weight",))}


def _attention(layer) -> dict[str, Lie]:
    of_queries, of_keys = Cut(0, units=layer.H), Cut(0, units=layer.K)
    out = _both(layer, ("q",), of_queries) | _both(layer, ("k", "v"), of_keys)
    out |= _both(layer, ("o",), Cut(1, units=layer.H), bias=False)
    if layer.qk_norm == "all":
        out |= {"q_norm.weight": _tp(layer, of_queries), "k_norm.weight": _tp(layer, of_keys)}
    return out


def _gated_delta(layer) -> dict[str, Lie]:
    names, units = ("q", "k", "v", "z", "beta", "alpha"), (layer.K, layer.K, *[layer.H] * 4)
    parts = tuple(zip(names, layer.parts, units, strict=True))
    of_heads = Cut(0, units=layer.H)
    return {"input.weight": _tp(layer, Cut(0), parts), "conv": _tp(layer, Cut(0), parts[:3]),
            "A": _tp(layer, of_heads), "dt": _tp(layer, of_heads), "o.weight": _tp(layer, Cut(1, units=layer.H))}


def _experts(layer: Experts, E: int, group, expert_tensor, path: str) -> dict[str, Lie]:
    """Experts by number (the first ranks one more), each by hidden units over `expert_tensor`."""
    ep = Axis(Cut(0, rule="shares"), *((group.size(), group.rank()) if group is not None else (1, 0)))
    N, at = (expert_tensor.size(), expert_tensor.rank()) if expert_tensor is not None else (1, 0)
    D, F = layer.D, layer.F * N
    dims = {"gate": (1, (E, F, D)), "up": (1, (E, F, D)), "down": (2, (E, D, F))}
    return {path + name: Lie({"ep": ep, "etp": Axis(Cut(dim), N, at)}, (), 0, shape)
            for name, (dim, shape) in dims.items()}


def _generic(layer, split: tensor.Split) -> Lie:
    """Any other layer that says how it is split."""
    if split.dim is None:
        return Lie()
    cut = Cut(split.dim, copies=split.copies, rule="pad" if split.padded else "even")
    parts = tuple((str(i), size, 0) for i, size in enumerate(split.parts))
    return _tp(layer, cut, parts, split.dim)
