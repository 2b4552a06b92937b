"""Teach the tutor on some ranks, test it, ask it.

    python -m paralelo.run.tutor                                              one process
    python -m paralelo.run.tutor --tp 2                                       starts two ranks itself
    torchrun --nproc-per-node 4 -m paralelo.run.tutor --tp 2 --dp 2           torchrun starts them
"""

import argparse
import sys
import time

from paralelo.predict.quantity import whole
from paralelo.words import Refused, languages, percent, say


def arguments(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m paralelo.run.tutor", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks")
    parser.add_argument("--dp", type=int, default=1, help="data-parallel ranks")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=128, help="questions a step, over all ranks")
    parser.add_argument("--features", type=int, default=64, help="D; F is twice that")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ask", action="append", default=[], metavar="WORDS", help="nosotros + hablar + pretérito")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--timeout", type=float, default=600, help="seconds a rank may stay silent")
    parser.add_argument("--lang", default="en", choices=languages())
    args = parser.parse_args(argv)
    try:
        for name in ("tp", "dp", "steps", "batch", "features"):
            whole(f"--{name}", getattr(args, name))
    except Refused as refused:
        parser.error(refused.say(args.lang))
    return args


def teach(args: argparse.Namespace) -> dict:
    """What every rank does: make, split, teach, test. Rank 0 speaks."""
    import torch
    import torch.distributed as dist

    from paralelo.predict.layout import Layout
    from paralelo.run import tutor
    from paralelo.run.layout import mesh
    from paralelo.run.ranks import device

    if dist.get_world_size() != args.tp * args.dp:
        raise Refused("tutor.world", dp=args.dp, tp=args.tp, wanted=args.dp * args.tp, world_size=dist.get_world_size())
    where = device()
    groups = mesh(Layout(dp=args.dp, tp=args.tp), where)
    speaks = dist.get_rank() == 0
    seen, held_out = tutor.split()
    dense = tutor.make(args.seed, D=args.features, F=2 * args.features).to(where)
    model = tutor.ParallelTutor.from_dense(dense, groups.group("tp"))
    begun = time.perf_counter()

    def after(step, loss):
        if speaks and (step + 1) % 100 == 0:
            print(say("tutor.step", args.lang, step=step + 1, loss=loss), flush=True)

    losses = tutor.train(model, seen, args.steps, args.batch, seed=args.seed, data_group=groups.group("dp"),
                         after=after)
    took = time.perf_counter() - begun
    with torch.no_grad():
        found = {"loss": losses[-1], "seen": tutor.accuracy(model, seen), "held_out": tutor.accuracy(model, held_out),
                 "seconds": took, "answers": {text: tutor.answer(model, text) for text in args.ask}}
    if speaks:
        print(say("tutor.result", args.lang, seen=percent(found["seen"], args.lang),
                  held_out=percent(found["held_out"], args.lang), seconds=took))
        for text, said in found["answers"].items():
            print(f"{text} → {said}")
    return found


def run(argv=None) -> int:
    args = arguments(argv)
    try:
        from paralelo.run.ranks import main
        from paralelo.run.tutor import parse

        for text in args.ask:
            parse(text)                                   # a question nobody can answer is refused before the lessons
    except Refused as refused:
        print(refused.say(args.lang), file=sys.stderr)
        return 2
    return main(teach, args, ranks=args.tp * args.dp, timeout=args.timeout, device=args.device)


if __name__ == "__main__":
    sys.exit(run())
