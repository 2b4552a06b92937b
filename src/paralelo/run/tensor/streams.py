"""Random streams: which ranks draw the same numbers, and which must not.

    initial      the same on every rank     initial values are drawn whole and cut, so that split and dense start equal
    replicated   the same along tp          dropout on activations that all tensor ranks hold (the residual stream)
    sharded      different everywhere       dropout on what a rank alone holds (its heads, hidden units, positions)

Along the axes that split examples or positions (dp, cp) and depth (pp) both dropout streams differ. One seed for the
whole world makes every example lose the same features and every rank's heads the same positions; one seed per device
makes the ranks of a tensor group disagree about an activation that they should hold in common. Neither shows in a loss.

The seed of a stream is a hash of (seed, name, coordinates), so it depends on no order of creation. `state_dict` is what
a checkpoint keeps.
"""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from paralelo.run.tensor.split import Split, one_group, piece, splits
from paralelo.words import Refused

__all__ = ["Streams", "draw", "dropout", "initialise", "stream_seed"]


def stream_seed(seed: int, name: str, coordinates: Iterable[tuple[str, int]] = ()) -> int:
    """63 bits of SHA-256 of the seed, the stream's name and the coordinates that set it apart."""
    text = f"{seed}/{name}/" + ",".join(f"{axis}={at}" for axis, at in sorted(coordinates))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class Streams:
    """The three generators of one rank, from a seed and its coordinates: `Streams(7, tp=1, dp=0, pp=2)`."""

    NAMES = ("initial", "replicated", "sharded")

    def __init__(self, seed: int, *, tp: int = 0, device: str | torch.device = "cpu", **coordinates: int):
        elsewhere = coordinates.items()
        self.initial = torch.Generator("cpu").manual_seed(stream_seed(seed, "initial"))
        self.replicated = torch.Generator(device).manual_seed(stream_seed(seed, "replicated", elsewhere))
        self.sharded = torch.Generator(device).manual_seed(stream_seed(seed, "sharded", (*elsewhere, ("tp", tp))))

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).get_state() for name in self.NAMES}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in self.NAMES:
            getattr(self, name).set_state(state[name])


def dropout(x: Tensor, p: float, generator: torch.Generator, training: bool = True) -> Tensor:
    """x with each number zeroed with probability p and the others divided by 1 − p, by the given stream."""
    if not 0 <= p < 1:
        raise Refused("run_tensor.dropout", p=p)
    if not training or p == 0:
        return x
    keep = torch.rand(x.shape, generator=generator, device=x.device) >= p
    return x * keep / (1 - p)


def draw(split: Split, rank: int, world_size: int, generator: torch.Generator, std: float = 0.02,
         dtype: torch.dtype | None = None) -> Tensor:
    """A rank's piece of a normal tensor of `split.shape`: drawn whole, then cut, one parameter at a time."""
    return piece(torch.randn(split.shape, generator=generator, dtype=dtype) * std, split, rank, world_size)


def initialise(module: nn.Module, generator: torch.Generator, rank: int = 0, world_size: int = 1,
               std: float = 0.02) -> nn.Module:
    """Draws every parameter of two dims or more, in order of name: dense and split modules get the same numbers.

    Experts that are split over ranks are refused: draw the dense layer, then split it.
    """
    how, parameters = splits(one_group(module)), dict(module.named_parameters())
    with torch.no_grad():
        for name in sorted(parameters):
            p = parameters[name]
            if len(how[name].shape) > 1:
                p.copy_(draw(how[name], rank, world_size, generator, std, torch.float64))
    return module
