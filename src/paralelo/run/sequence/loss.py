"""The mean over all tokens when each rank has some of them.

    L = Σ_r Σ_t ℓ_{r,t} / Σ_r n_r         n_r valid tokens on rank r, not the same on every rank

Every rank returns its share Σ_t ℓ_{r,t} / n, with n of all ranks. Shares add up to L and their gradients to L's, so the
parameters' gradients are *summed* over the group; nothing is divided, and no rank's tokens weigh more because it has
few. The mean of the ranks' means is another number: with 3 and 1 valid tokens, (ℓ_0 + ℓ_1)/2 is not (3ℓ_0 + ℓ_1)/4.
Forward sends one number; backward nothing.
"""

import torch

from paralelo.run.collectives import all_reduce


def token_mean(losses: torch.Tensor, group, valid: torch.Tensor | None = None) -> torch.Tensor:
    """This rank's share of the mean of `losses` over the valid tokens of all ranks.

    losses, valid  any one shape, this rank's tokens; valid None: all are
    """
    valid = torch.ones_like(losses, dtype=torch.bool) if valid is None else valid
    n = valid.sum()
    n = all_reduce(n, group) if group is not None else n
    return torch.where(valid, losses, 0).sum() / n.clamp(min=1)
