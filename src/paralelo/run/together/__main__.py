"""The tutor on a layout beside the tutor in one process, loss by loss.

    python -m paralelo.run.together --dp 2 --tp 2 --pp 2
    torchrun --standalone --nproc-per-node 8 -m paralelo.run.together --dp 2 --tp 2 --pp 2
"""

import argparse
import copy
import sys
import time

import torch
import torch.distributed as dist

from paralelo.predict.layout import ORDERS, Layout
from paralelo.predict.pipeline import NAMES
from paralelo.predict.quantity import whole
from paralelo.run import ranks, tutor
from paralelo.run.experts import MoE
from paralelo.run.layout import mesh
from paralelo.run.together.trainer import Trainer
from paralelo.words import Refused


def train(degrees: dict, options: dict) -> None:
    """On every rank: the split tutor; on rank 0 afterwards the whole one, and both losses side by side."""
    dense = tutor.make(seed=0, L=options["layers"])
    if options["experts"]:
        torch.manual_seed(0)
        for block in dense.blocks:
            block.mlp = MoE(dense.shape.D, dense.shape.F, options["experts"], 2)
    data = tutor.encode(tutor.split()[0])
    losses, start = [], time.perf_counter()
    with mesh(Layout(**degrees), ranks.device()) as m:
        trainer = Trainer(dense, m, options["microbatches"], options["schedule"], optimizer=adam)
        for step in range(options["steps"]):
            losses.append(trainer.step(*tutor.batch(data, step, options["rows"])))
    seconds = time.perf_counter() - start
    if dist.get_rank() == 0:
        for step, (split, whole) in enumerate(zip(losses, one_process(dense, data, options), strict=True)):
            print(f"{step:4} {split:.6f} {whole:.6f} {abs(split - whole):.1e}")
        print(f"{seconds:.1f} s")


def one_process(dense, data, options) -> list[float]:
    model, losses = copy.deepcopy(dense), []
    optimizer = adam(model.parameters())
    for step in range(options["steps"]):
        loss = model.loss(*tutor.batch(data, step, options["rows"]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=3e-3)


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m paralelo.run.together", description=__doc__.splitlines()[0])
    for axis in ("dp", "tp", "pp", "cp", "ep", "etp"):
        parser.add_argument(f"--{axis}", type=int, default=1)
    parser.add_argument("--order", choices=ORDERS, default=ORDERS[0])
    parser.add_argument("--schedule", choices=[n for n in NAMES if n != "interleaved"], default="1f1b")
    for name, value in (("microbatches", 4), ("layers", 4), ("experts", 0), ("rows", 64), ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = vars(parser.parse_args(argv))
    degrees = {name: options.pop(name) for name in ("dp", "tp", "pp", "cp", "ep", "etp", "order")}
    try:
        world_size = Layout(**degrees).world_size
        for name in ("microbatches", "layers", "experts", "rows", "steps"):
            whole(f"--{name}", options[name], 0 if name == "experts" else 1)
    except Refused as refused:
        parser.error(str(refused))
    return ranks.main(train, degrees, options, ranks=world_size, device="cpu")


if __name__ == "__main__":
    from paralelo.run.together import __main__ as by_its_name  # where the ranks will look for `train`

    sys.exit(by_its_name.main())
