"""Links, devices and clusters as data; and the fit of α and β to measured times.

    seconds = steps · α + path · β         with steps and path from `collectives.cost`

The fit is least squares of relative errors (every point divided by its time, so that small messages count as much as
large ones); α and β are never negative. Its error is the median of |predicted/measured − 1|.

Presets are in `clusters.toml`; a file of the same form describes another cluster.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import median

from paralelo.predict.collectives import cost
from paralelo.predict.layout import Layout
from paralelo.predict.quantity import named, real, shown, whole
from paralelo.words import Refused

MOST_FILE = 2**20


@dataclass(frozen=True)
class Link:
    """One direction of a link: `alpha` seconds a message, `one_way` bytes a second at best."""

    name: str
    alpha: float
    one_way: float
    efficiency: float = 1.0

    @property
    def beta(self) -> float:
        """Seconds a byte, as reached."""
        return 1 / (self.one_way * self.efficiency)

    def seconds(self, kind: str, n, N: int, algorithm: str = "ring") -> float:
        """How long a collective of n bytes among N ranks takes over this link."""
        steps, path = _for_one_byte(kind, N, algorithm)
        return steps * self.alpha + path * float(n) * self.beta


@cache
def _for_one_byte(kind: str, N: int, algorithm: str) -> tuple[int, float]:
    """Steps, and path per byte: a cost is linear in its bytes, and a plan asks for the same ones many times."""
    one = cost(kind, 1, N, algorithm)
    return one.steps, float(one.path)


@dataclass(frozen=True)
class Device:
    """An accelerator: peak FLOP/s, bytes of memory, bytes a second to it, and the shares of both that kernels reach."""

    name: str
    flops: float
    memory: float
    bandwidth: float
    matmul: float = 1.0
    moving: float = 1.0


@dataclass(frozen=True)
class Cluster:
    """Nodes of `gpus_per_node` devices, joined inside by one kind of link and between nodes by another."""

    name: str
    device: Device
    gpus_per_node: int
    inside: Link
    between: Link

    def link(self, layout: Layout, axis: str) -> Link:
        """The slowest link that a group of this axis must cross.

        >>> a100 = cluster("a100")
        >>> [a100.link(Layout(dp=2, tp=8, pp=4), axis).name for axis in ("tp", "pp", "dp")]
        ['nvlink-a100', 'ib-hdr', 'ib-hdr']
        """
        return self.between if layout.crosses_nodes(axis, self.gpus_per_node) else self.inside


@cache
def presets() -> dict:
    """Everything in `clusters.toml`.

    >>> sorted(presets()["cluster"])
    ['a100', 'b200', 'h100', 'h200', 'kaggle', 'v100']
    """
    return tomllib.loads(resources.files(__package__).joinpath("clusters.toml").read_text(encoding="utf-8"))


def link(name: str, tables: dict | None = None) -> Link:
    """A link by name.

    >>> nvlink = link("nvlink-h100")
    >>> 2 * nvlink.one_way / 1e9                               # as data sheets print it, both directions
    900.0
    """
    row = _row("link", name, tables)
    return Link(name, _number(row, "alpha", 0, 1e3), _number(row, "one_way", 0, 1e18, above=True),
                _number(row, "efficiency", 0, 1, above=True, default=1.0))


def device(name: str, tables: dict | None = None) -> Device:
    """A device by name.

    >>> device("a100").flops / 1e12
    312.0
    """
    row = _row("device", name, tables)
    sizes = [_number(row, key, 0, 1e24, above=True) for key in ("flops", "memory", "bandwidth")]
    return Device(name, *sizes, *(_number(row, key, 0, 1, above=True, default=1.0) for key in ("matmul", "moving")))


def cluster(name: str, tables: dict | None = None) -> Cluster:
    """A cluster by name, or from a file whose name ends in `.toml` (its only or first cluster).

    >>> cluster("h100").between.one_way * 8 / 1e9              # bits, as networks count
    400.0
    """
    if tables is None and isinstance(name, str) and name.endswith(".toml"):
        tables = read(name)
        name = next(iter(tables.get("cluster") or [""]))
    row = _row("cluster", name, tables)
    names = []
    for key in ("device", "inside", "between"):
        if not isinstance(row.get(key), str):
            raise Refused("links.field", field=key, value=shown(row.get(key)), name=name)
        names.append(row[key])
    per_node = whole("gpus_per_node", row.get("gpus_per_node"), 1, 2**16)
    return Cluster(name, device(names[0], tables), per_node, link(names[1], tables), link(names[2], tables))


def read(path: str) -> dict:
    """The tables of a cluster file; what cannot be read is refused in a sentence."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_FILE + 1)
    except (OSError, ValueError):                           # a zero byte in a path is a ValueError
        raise Refused("links.no_file", path=named(str(path), 200)) from None
    if len(data) > MOST_FILE:
        raise Refused("links.long_file", path=named(str(path), 200), most=MOST_FILE)
    try:
        tables = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Refused("links.not_toml", path=named(str(path), 200)) from None
    if not isinstance(tables.get("cluster"), dict) or not tables["cluster"]:
        raise Refused("links.no_cluster", path=named(str(path), 200))
    return tables


def _row(kind, name, tables):
    """A row of the given tables, else of the presets: a file may use the links and devices that are known."""
    found = {**presets()[kind], **(tables.get(kind) if tables and isinstance(tables.get(kind), dict) else {})}
    row = found.get(name) if isinstance(name, str) else None
    if not isinstance(row, dict):
        raise Refused(f"links.no_{kind}_called", name=named(name), names=sorted(found))
    return row


def _number(row, key, least, most, above=False, default=None):
    return float(real(key, row.get(key, default), least, most, above))


# ---- fitting

@dataclass(frozen=True)
class Fit:
    """α and β of one collective, with the median relative error over the measured points."""

    alpha: float
    beta: float
    median_error: float
    points: int

    @property
    def bandwidth(self) -> float:
        """Bytes a second; infinite where the times do not grow with the size."""
        return 1 / self.beta if self.beta else float("inf")

    def good(self, most: float = 0.25) -> bool:
        """Whether the model describes the measurements at all."""
        return self.median_error <= most


def fit(kind: str, N: int, sizes, seconds, algorithm: str = "ring") -> Fit:
    """α and β from the times of a collective at several sizes in bytes.

    >>> exact = link("ib-ndr")
    >>> sizes = [2**i for i in range(10, 28, 3)]
    >>> found = fit("all_reduce", 4, sizes, [exact.seconds("all_reduce", n, 4) for n in sizes])
    >>> round(found.alpha * 1e6, 3), round(found.bandwidth / 1e9, 3), found.median_error < 1e-9
    (5.0, 40.0, True)
    """
    costs = [cost(kind, n, N, algorithm) for n in sizes]
    times = [float(real("seconds", t, above=True)) for t in seconds]
    if len(costs) != len(times):
        raise Refused("links.lengths", sizes=len(costs), times=len(times))
    rows = [(c.steps / t, float(c.path) / t) for c, t in zip(costs, times, strict=True)]
    if len({c.path for c in costs}) < 2 or not any(a for a, _ in rows):
        raise Refused("links.too_few", sizes=len({c.path for c in costs}), ranks=N)
    aa, ab, bb = (sum(x[i] * x[j] for x in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a1, b1 = sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    alpha, beta = ((a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant) if determinant else (-1.0, 0.0)
    if beta < 0:
        alpha, beta = a1 / aa, 0.0
    elif alpha < 0:
        alpha, beta = 0.0, b1 / bb
    errors = [abs(a * alpha + b * beta - 1) for a, b in rows]
    return Fit(alpha, beta, median(errors), len(rows))
