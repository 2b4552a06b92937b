"""How much an expert takes, which rank it is on, how many bytes go round.

    capacity = min(n, ⌈cf·k·n/E⌉)        in exact fractions: 1.1 is 11/10, whatever its float is

rounded up to a multiple where the buffer is cut once more (by tensor-parallel ranks). Assignments are taken in token
order; those of an expert beyond its capacity are dropped. Experts lie on ranks in order, the larger shares first.

Source: Lepikhin et al. 2020, section 2.2; Fedus et al. 2021, section 2.2.
"""

from collections import Counter
from fractions import Fraction

from paralelo.predict.collectives import all_to_all_bytes
from paralelo.predict.quantity import ranges, real, shares, shown, whole
from paralelo.words import Refused


def exact(factor) -> Fraction:
    """A factor as it was written: the float 1.1 means 11/10.

    >>> exact(1.1), exact("1.25")
    (Fraction(11, 10), Fraction(5, 4))
    """
    try:
        real("capacity_factor", float(factor), above=True)  # before an exponent of a million digits is written out
        value = Fraction(str(factor)) if not isinstance(factor, Fraction) else factor
    except Refused:
        raise
    except (TypeError, ValueError, OverflowError):
        raise Refused("quantity.above", name="capacity_factor", value=shown(factor), least=0) from None
    return real("capacity_factor", value, above=True)


def capacity(n: int, E: int, k: int = 1, factor=1, multiple: int = 1) -> int:
    """The most assignments that an expert takes of n tokens.

    >>> capacity(4, 2, 1, 4)                                   # never more than there are tokens
    4
    >>> capacity(10, 4, 1, 1), capacity(10, 4, 1, 1, multiple=2)
    (3, 4)
    >>> capacity(100, 10, 1, 1.1)                              # in floats 1.1·10 is a little above 11, its ceiling 12
    11
    """
    whole("n", n, 0)
    if whole("k", k) > whole("E", E):
        raise Refused("experts.k_rule", k=k, E=E)
    room = exact(factor) * k * n / E
    slots = min(n, -(-room.numerator // room.denominator))
    return -(-slots // whole("multiple", multiple)) * multiple


def dropped(counts, capacity: int) -> list[int]:
    """Assignments that each expert refuses.

    >>> dropped([5, 1, 2], 3)
    [2, 0, 0]
    """
    return [max(0, c - capacity) for c in counts]


def kept(choices, capacity: int | None) -> list[list[bool]]:
    """For every token and each of its experts, whether the assignment is taken, in token order.

    >>> kept([[0], [0], [0, 1]], 2)
    [[True], [True], [False, True]]
    """
    taken: Counter = Counter()
    out = []
    for experts in choices:
        row = []
        for e in experts:
            row.append(capacity is None or taken[e] < capacity)
            taken[e] += row[-1]
        out.append(row)
    return out


def experts_of(E: int, N: int) -> list[range]:
    """The experts of each rank, uneven numbers allowed, none too.

    >>> experts_of(5, 2), experts_of(1, 2)
    ([range(0, 3), range(3, 5)], [range(0, 1), range(1, 1)])
    """
    return ranges(shares(whole("E", E), N))


def rank_of_expert(E: int, N: int, expert: int) -> int:
    """The rank that an expert is on.

    >>> [rank_of_expert(5, 2, e) for e in range(5)]
    [0, 0, 0, 1, 1]
    """
    whole("expert", expert, 0, whole("E", E) - 1)
    each, more = divmod(E, whole("N", N))                   # the first `more` ranks have one more
    return expert // (each + 1) if expert < more * (each + 1) else more + (expert - more * (each + 1)) // each


def exchange_bytes(n: int, k: int, D: int, element: int = 2) -> int:
    """The payload of one exchange: k copies of each of the rank's own n tokens. A layer has two forward, two backward.

    >>> exchange_bytes(4096, 2, 5120)
    83886080
    """
    return whole("n", n, 0) * whole("k", k) * whole("D", D) * element


def leaving_bytes(n: int, k: int, D: int, N: int, element: int = 2):
    """What of it leaves the rank when routing is uniform: (N−1)/N.

    >>> leaving_bytes(4096, 2, 5120, 8)
    73400320
    """
    return all_to_all_bytes(exchange_bytes(n, k, D, element), N)
