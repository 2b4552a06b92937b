"""`paralelo doctor`: what this machine can run, and what each lab needs.

It asks for packages by name before it imports any, so that it works where nothing but this package is installed.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import click

from paralelo.cli.frame import build
from paralelo.words import say

BASE = ("torch", "numpy", "cloudpickle")
CURVES = (*BASE, "matplotlib")
LABS = {                                                    # what it imports, how many ranks it starts
    "tensor": (CURVES, 2), "pipeline": (CURVES, 4), "experts": (BASE, 4),
}
EXTRAS = ("matplotlib", "ipywidgets")


def command(lang: str) -> click.Command:
    @build("doctor", lang)
    def doctor(out):
        answer = examine()
        if not out.json(answer):
            _show(out, answer)
        return 0 if any(lab["runs"] for lab in answer["labs"].values()) else 1

    return doctor


def examine() -> dict:
    """Everything doctor knows, as plain data; torch is imported only if it is there."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    devices = [{"kind": "cpu", "name": platform.processor() or platform.machine(), "cores": cores}]
    broken, distributed, nccl, gpus = None, False, False, []
    if _there("torch"):
        try:
            import torch
            from torch import distributed as dist

            gpus = [_gpu(torch.cuda.get_device_properties(i)) for i in range(torch.cuda.device_count())]
            distributed = dist.is_available() and dist.is_gloo_available()
            nccl = dist.is_available() and dist.is_nccl_available() and len(gpus) > 1
        except Exception as error:                          # whatever a broken installation raises, doctor reports it
            broken = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    devices += gpus
    works = broken is None and distributed
    names = sorted({p for packages, _ in LABS.values() for p in packages} | set(EXTRAS))
    packages = {p: _version(p) for p in names}
    labs = {}
    for lab, (needed, ranks) in LABS.items():
        missing = [p for p in needed if packages[p] is None or (p == "torch" and not works)]
        labs[lab] = {"runs": not missing, "needs": list(needed), "missing": missing, "ranks": ranks}
    return {
        "python": platform.python_version(), "torch": packages["torch"], "torch_problem": broken, "devices": devices,
        "backend": None if not works else "nccl" if nccl else "gloo", "ranks": len(gpus) if nccl else cores,
        "packages": packages, "labs": labs,
    }


def _there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _version(package: str) -> str | None:
    if not _there(package):
        return None
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def _gpu(properties) -> dict:
    return {"kind": "cuda", "name": properties.name, "memory": properties.total_memory}


def _show(out, answer) -> None:
    def word(key, **fields):
        return say(f"doctor.{key}", out.lang, **fields)

    torch = answer["torch"] or word("no_torch")
    if answer["torch_problem"]:
        torch = word("broken_torch", reason=answer["torch_problem"])
    rows = [[word("python"), answer["python"]], [word("torch"), torch]]
    for device in answer["devices"]:
        cpu = device["kind"] == "cpu"
        rows.append([word("device"), f"{device['name']}, {word('cores', cores=device['cores'])}" if cpu else
                     word("gpu", name=device["name"], memory=device["memory"])])
    rows.append([word("backend"), word(answer["backend"] or "no_backend")])
    rows.append([word("ranks"), str(answer["ranks"])])
    out.table([word("what"), word("found")], rows, word("machine"))
    on = word("gpus_word" if answer["backend"] == "nccl" else "cores_word")
    rows = []
    for name, lab in answer["labs"].items():
        verdict = word("missing", packages=lab["missing"]) if lab["missing"] else word("runs")
        if lab["runs"] and lab["ranks"] > answer["ranks"]:
            verdict = word("shares", devices=on)
        rows.append([name, ", ".join(lab["needs"]), lab["ranks"], verdict])
    out.table([word("lab"), word("needs"), word("num_ranks"), word("verdict")], rows, word("labs"))
    if all(lab["runs"] for lab in answer["labs"].values()):
        out.say("doctor.ready")
    else:
        if answer["torch"] is None:
            out.say("doctor.predict_only")
        out.say("doctor.install", command="pip install '.[labs]'")
