"""Checkpoints that survive a change of topology, and a save that is killed.

    save(folder, state, layout)                      on all ranks of a layout, together
    load(folder, layout, into=state)                 on all ranks of any other
    reshard(source, target, layout)                  from files to files, without ranks and without torch

A checkpoint is safetensors files and one JSON manifest (see `manifest`) that speaks of logical tensors: whole shapes,
no padding, no fused matrices, which axis cuts which dim, and where each piece lies. To load on another topology is to
intersect boxes (`predict.checkpoint`), not to put files of ranks together again. Nothing is unpickled.

`state` turns modules and optimizers into a state, `training` a whole trainer; `huggingface` reads and writes the
single and indexed safetensors of transformers.
"""

from importlib import import_module

_WHERE = {
    "save": "saving", "save_all": "saving", "load": "loading", "reshard": "resharding", "verify": "resharding",
    "Checkpoint": "manifest", "newest": "manifest", "open_checkpoint": "manifest", "steps": "manifest",
    "Sharded": "state", "describe": "state", "model_state": "state", "optimizer_state": "state", "sharded": "state",
    "load_options": "state", "capture": "training", "restore": "training", "zero_state": "zero", "restore_zero": "zero",
    "from_huggingface": "huggingface", "to_huggingface": "huggingface",
}
__all__ = sorted(_WHERE)


def __getattr__(name):                                      # what needs no torch imports none
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
