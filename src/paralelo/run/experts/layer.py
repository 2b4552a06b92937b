"""Mixture of experts: E MLPs, of which each token passes k; dense, and split over ranks.

    y = Σ_{e chosen} w_e · MLP_e(x)  [+ σ(x g) · MLP_shared(x), or without the gate g]        one token

    MLP_e(x) = (silu(x G_eᵀ) ⊙ x U_eᵀ) W_eᵀ                     G, U (E, F, D), W (E, D, F): experts first

Split over an expert group of N ranks, rank r holds E/N of the experts (the first ranks one more where N does not divide
E) and its own tokens; router and shared expert stand whole on every rank. What is sent: see `dispatch`.

    group           the expert group: ranks that hold different experts
    tensor          a tensor group whose ranks all hold the same tokens. Each takes its part of them before the dispatch
                    and they gather the outputs, so no token is sent twice. The parts' gradients of router and shared
                    expert are summed over it (`Shared`)
    expert_tensor   a group over which every expert is split by its F hidden units; its ranks hold different tokens

A rank's experts see the tokens of all ranks of the expert group, so their gradients are sums over the group already;
those of router and shared expert are this rank's part. See `synchronise` for what is still to add.

With a `capacity_factor` cf, an expert takes at most min(n, ⌈cf·k·n/E⌉) of *a rank's* n tokens, in token order, and the
others pass it by; without, nothing is dropped.

Source: Lepikhin et al. 2020 (GShard); Liu et al. 2025 (MoE Parallel Folding).
"""

from copy import deepcopy

import torch
from torch import nn
from torch.nn import functional as F

from paralelo.predict.experts import capacity, experts_of
from paralelo.predict.quantity import divisors
from paralelo.run.collectives import gather_from, split_sizes, split_to
from paralelo.run.experts.dispatch import combine, dispatch, plan, share_rows
from paralelo.run.experts.router import Router
from paralelo.run.sequence.megatron import Shared
from paralelo.words import Refused


class Experts(nn.Module):
    """E gated MLPs of F hidden units, fed with rows sorted by expert.

    It declares no `Split`: that is over one tensor group, and experts are cut over two others, by number over the
    expert group and by hidden units over the expert-tensor group. `checkpoint.rules` has both cuts.
    """

    def __init__(self, E: int, D: int, F: int, device=None, dtype=None):
        super().__init__()
        self.E, self.D, self.F = E, D, F
        for name, shape, size in (("gate", (E, F, D), D), ("up", (E, F, D), D), ("down", (E, D, F), F)):
            setattr(self, name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
            nn.init.normal_(getattr(self, name), std=size**-0.5)

    def forward(self, x: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """x (Σ counts, D), the first `counts[0]` rows for expert 0, …; any count may be 0. Returned: the same shape."""
        if not self.E:
            return x + 0 * (self.gate.sum() + self.up.sum() + self.down.sum())        # stays in the graph
        weights = zip(self.gate.unbind(), self.up.unbind(), self.down.unbind(), strict=True)
        return torch.cat([F.linear(F.silu(F.linear(rows, gate)) * F.linear(rows, up), down)
                          for rows, (gate, up, down) in zip(x.split(counts), weights, strict=True)])


class MoE(nn.Module):
    """The dense reference: all experts on one rank.

    D, F, E, k       sizes; `router` may be a `Router` of one's own making
    shared           a dense module beside the experts that every token passes, or None
    shared_gate      whether a sigmoid of the token scales the shared expert's output
    capacity_factor  None: nothing is dropped
    """

    def __init__(self, D: int, F: int, E: int, k: int, *, router: Router | None = None, shared: nn.Module | None = None,
                 shared_gate: bool = False, capacity_factor=None, device=None, dtype=None):
        super().__init__()
        self.router = router if router is not None else Router(D, E, k, device=device, dtype=dtype)
        if (self.router.D, self.router.E, self.router.k) != (D, E, k):
            raise Refused("run_experts.router", D=D, E=E, k=k, router=(self.router.D, self.router.E, self.router.k))
        self.experts = Experts(E, D, F, device, dtype)
        self.shared, self.shared_gate = shared, None
        if shared is not None and shared_gate:
            self.shared_gate = nn.Linear(D, 1, bias=False, device=device, dtype=dtype)
        self.capacity_factor, self.routing = capacity_factor, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (…, D) → (…, D). `self.routing` is then the `Routing`, for the losses of `router`."""
        tokens = x.reshape(-1, x.shape[-1])                                            # (n, D)
        routing = self.routing = self._route(self.router, tokens)
        choice = routing.kept.flatten().nonzero().squeeze(1)
        flat = routing.experts.flatten()[choice]
        order = flat.argsort(stable=True)
        choice, counts = choice[order], torch.bincount(flat, minlength=self.router.E).tolist()
        token = choice // self.router.k
        rows = self.experts(tokens[token], counts) * routing.weights.flatten()[choice].unsqueeze(1)
        y = torch.zeros_like(tokens).index_add(0, token, rows)
        if self.shared is not None:
            y = y + self._scaled(self.shared(tokens), self.shared_gate, tokens)
        return y.view_as(x)

    def _route(self, router, tokens):
        routing = router(tokens)
        if self.capacity_factor is None:
            return routing
        n, E = routing.logits.shape
        return routing.keep(capacity(n, E, routing.experts.shape[1], self.capacity_factor))

    @staticmethod
    def _scaled(y, gate, tokens):
        return y if gate is None else y * gate(tokens).sigmoid()


class ExpertParallelMoE(nn.Module):
    """`MoE` over an expert group; parameters have the dense names, experts this rank's part of them."""

    def __init__(self, router: Router, experts: Experts, held: list[int], group, *, shared=None, shared_gate=None,
                 tensor=None, expert_tensor=None, capacity_factor=None):
        super().__init__()
        self.router, self.experts, self.shared, self.shared_gate = router, experts, shared, shared_gate
        self.held, self.group, self.tensor, self.expert_tensor = held, group, tensor, expert_tensor
        self.capacity_factor, self.routing = capacity_factor, None

    @classmethod
    def from_dense(cls, dense: MoE, group, *, tensor=None, expert_tensor=None) -> "ExpertParallelMoE":
        rest = {name: deepcopy(getattr(dense, name)) for name in ("router", "shared", "shared_gate")}
        experts = part_of_experts(dense.experts, group, expert_tensor)
        held = [len(r) for r in experts_of(dense.experts.E, group.size())]
        return cls(rest["router"], experts, held, group, shared=rest["shared"], shared_gate=rest["shared_gate"],
                   tensor=tensor, expert_tensor=expert_tensor, capacity_factor=dense.capacity_factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (…, D) → (…, D). `self.routing` is then the `Routing` of the tokens this rank dispatched."""
        tokens = x.reshape(-1, x.shape[-1])
        if self.tensor is not None:
            tokens = split_to(tokens, self.tensor, 0)                                 # (n/tp, D), the first ranks more
        routing = self.routing = self._route(self._whole("router"), tokens)
        exchange = plan(routing.experts, routing.kept, self.held, self.group)
        rows, counts, add = dispatch(tokens, exchange, self.group), exchange.counts, None
        if self.expert_tensor is not None:
            rows, counts, add = share_rows(rows, counts, self.expert_tensor)
        rows = self.experts(rows, counts)
        if add is not None:
            rows = add(rows)
        y = combine(rows, routing.weights, exchange, self.group)
        if self.shared is not None:
            gate = self._whole("shared_gate") if self.shared_gate is not None else None
            y = y + self._scaled(self._whole("shared")(tokens), gate, tokens)
        if self.tensor is not None:
            n = x.numel() // x.shape[-1]
            y = gather_from(y, self.tensor, 0, split_sizes(n, self.tensor.size()))
        return y.view_as(x)

    @property
    def other_groups(self) -> bool:
        """Whether its experts lie over groups that a tensor group knows nothing of (see `tensor.split.one_group`)."""
        return self.group.size() > 1 or (self.expert_tensor is not None and self.expert_tensor.size() > 1)

    def _whole(self, name: str):
        """A module that stands whole on every rank; over a tensor group, its gradient is summed."""
        module = getattr(self, name)
        return module if self.tensor is None else Shared(module, self.tensor)

    _route, _scaled = MoE._route, staticmethod(MoE._scaled)


def part_of_experts(dense: Experts, group, expert_tensor=None) -> Experts:
    """This rank's experts of `group`, this rank's hidden units of `expert_tensor`."""
    mine = experts_of(dense.E, group.size())[group.rank()]
    N, at = (1, 0) if expert_tensor is None else (expert_tensor.size(), expert_tensor.rank())
    if dense.F % N:
        raise Refused("run_experts.width", F=dense.F, N=N, would_do=divisors(dense.F))
    F = dense.F // N
    units = slice(at * F, (at + 1) * F)
    # drawing what is overwritten would leave the ranks' generators apart, where their numbers of experts differ
    experts = nn.utils.skip_init(Experts, len(mine), dense.D, F, device=dense.gate.device, dtype=dense.gate.dtype)
    with torch.no_grad():
        experts.gate.copy_(dense.gate[mine.start:mine.stop, units])
        experts.up.copy_(dense.up[mine.start:mine.stop, units])
        experts.down.copy_(dense.down[mine.start:mine.stop, :, units])
    for name in ("gate", "up", "down"):
        getattr(experts, name).requires_grad_(getattr(dense, name).requires_grad)
    return experts
