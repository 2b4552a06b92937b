"""Dispatch and combine: every assignment goes to the rank that holds its expert, and its output comes back.

    x (n, D)                    this rank's tokens
    rows sent (k·n, D)          one for every kept assignment, sorted by expert, so by rank too
    rows received (m, D)        from every rank of the group those for this rank's experts; m is known only now

Forward: E counts to say how much comes (8 bytes each), then two all-to-all of k·n·D elements; (N−1)/N of them leave the
rank where routing is uniform. Backward: two all-to-all of the same sizes, the other way; the counts are known.

Splits are uneven and may be zero. A rank without tokens, or whose experts get none, sends and receives nothing but
takes part in every exchange, forward and backward: its rows have shape (0, D) and stay in the graph.

Over an expert-tensor group every rank holds a slice of each expert, and all of them need the same rows: an all-gather
before the experts, a reduce-scatter after.
"""

from dataclasses import dataclass

import torch

from paralelo.run.collectives import all_gather, all_to_all, gather_from, reduce_scatter


@dataclass(frozen=True)
class Exchange:
    """What goes where, for one routing.

    tokens    (rows,)   the token of every row sent, rows sorted by expert
    choice    (rows,)   which assignment of n·k it is
    send      rows to each rank
    receive   rows from each rank
    order     (m,)      puts what was received (by rank, then expert) in the order of the experts
    counts    rows for each of this rank's experts
    """

    tokens: torch.Tensor
    choice: torch.Tensor
    send: list[int]
    receive: list[int]
    order: torch.Tensor
    counts: list[int]


def plan(experts: torch.Tensor, kept: torch.Tensor, held: list[int], group) -> Exchange:
    """The exchange of a routing.

    experts, kept  (n, k)
    held           how many experts each rank of `group` holds, in order
    """
    k, E, N, rank = experts.shape[1], sum(held), len(held), group.rank()
    flat = experts.flatten()
    choice = kept.flatten().nonzero().squeeze(1)
    choice = choice[flat[choice].argsort(stable=True)]
    counts = torch.bincount(flat[choice], minlength=E)                                # (E,)
    send = [int(part.sum()) for part in counts.split(held)]
    coming = all_to_all(counts, group, send=held, receive=[held[rank]] * N)
    coming = coming.view(N, held[rank])                                               # from whom, for which expert
    receive = coming.sum(1).tolist()
    expert = torch.arange(held[rank], device=flat.device).repeat(N).repeat_interleave(coming.flatten())
    return Exchange(choice // k, choice, send, receive, expert.argsort(stable=True), coming.sum(0).tolist())


def dispatch(x: torch.Tensor, exchange: Exchange, group) -> torch.Tensor:
    """The rows for this rank's experts, expert after expert: (n, D) → (m, D)."""
    rows = all_to_all(x.index_select(0, exchange.tokens), group, send=exchange.send, receive=exchange.receive)
    return rows.index_select(0, exchange.order)


def combine(y: torch.Tensor, weights: torch.Tensor, exchange: Exchange, group) -> torch.Tensor:
    """The experts' outputs back at their tokens, weighted and added: (m, D) and weights (n, k) → (n, D)."""
    y = y.index_select(0, exchange.order.argsort())
    rows = all_to_all(y, group, send=exchange.receive, receive=exchange.send)
    rows = rows * weights.flatten().index_select(0, exchange.choice).unsqueeze(1)
    return rows.new_zeros(weights.shape[0], y.shape[1]).index_add(0, exchange.tokens, rows)


def share_rows(x: torch.Tensor, counts: list[int], group):
    """The rows of all ranks of an expert-tensor group, in the order of the experts, and how to undo it.

    x          (m, D)           this rank's rows, `counts[e]` for expert e
    returned   (Σ m, D), the counts of all together, and `add(y)`: (Σ m, D) partial outputs → (m, D) their sum
    """
    N = group.size()
    each = all_gather(torch.tensor(counts, device=x.device), group).view(N, len(counts))
    sizes = each.sum(1).tolist()
    expert = torch.arange(len(counts), device=x.device).repeat(N).repeat_interleave(each.flatten())
    order = expert.argsort(stable=True)
    rows = gather_from(x, group, 0, sizes, partial=True).index_select(0, order)

    def add(y: torch.Tensor) -> torch.Tensor:
        return reduce_scatter(y.index_select(0, order.argsort()), group, 0, sizes)

    return rows, each.sum(0).tolist(), add
