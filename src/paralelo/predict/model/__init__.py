"""A model's shape, read from its `config.json`.

    read(config) → Model        load(path), parse(text), ship(name) for files, texts and what the package includes

What a family's field names mean is one table, `families.toml`; the blocks that it puts together are classes. A model
is counted tensor by tensor, so parameters, what a split may cut and what a rank holds come from one list.

    >>> giant = ship("Qwen3.5-27B")
    >>> giant.parameters, giant.heads, giant.kv_heads, giant.layer_kinds
    (26895998464, 24, 4, {'linear': 48, 'full': 16})
"""

from paralelo.predict.model.blocks import BLOCKS
from paralelo.predict.model.reading import families, load, parse, read, ship, shipped
from paralelo.predict.model.shape import Layer, Model
from paralelo.predict.model.tensors import Block, Dim, Tensor

__all__ = ["BLOCKS", "Block", "Dim", "Layer", "Model", "Tensor", "families", "load", "parse", "read", "ship", "shipped"]
