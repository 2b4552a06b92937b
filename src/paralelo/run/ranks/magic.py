"""`%%ranks`: a cell that runs on every rank.

    %%ranks             on the Ranks made last in this notebook (two ranks, if there is none)
    %%ranks 4           on four ranks
    %%ranks name        on the Ranks called `name` in this notebook

The names a cell makes stay on the ranks for the next one. `rank`, `world_size`, `group`, `device`, `torch` and `dist`
are there. The cell's value is the list of its last expression on every rank; a last line that ends in `;` hides it.
"""

from paralelo.run.ranks import pool
from paralelo.run.ranks.pool import Ranks
from paralelo.run.ranks.report import RankError
from paralelo.words import Refused


def load(ipython) -> None:
    made: dict[int, Ranks] = {}

    def of(line: str) -> Ranks:
        asked = line.strip()
        latest = pool.latest()
        if not asked:
            return latest or made.setdefault(2, Ranks(2))
        if asked.isdigit():
            n = int(asked)
            if latest and latest.n == n:
                return latest
            if n not in made:
                made[n] = Ranks(n)
            return made[n]
        found = ipython.user_ns.get(asked)
        if not isinstance(found, Ranks):
            raise Refused("ranks.magic_usage", line=asked)
        return found

    def ranks(line, cell):
        values = of(line).cell(cell)
        quiet = cell.rstrip().endswith(";") or all(v is None for v in values)
        return None if quiet else values

    def show(shell, kind, error, traceback, tb_offset=None):
        """A RankError carries the traceback that matters; that of the parent would hide it."""
        print(f"RankError: {error}")
        return [f"RankError: {error}"]

    ipython.register_magic_function(ranks, "cell")
    ipython.set_custom_exc((RankError,), show)
