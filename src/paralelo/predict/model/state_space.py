"""State-space blocks: Mamba-1 and Mamba-2."""

from dataclasses import dataclass

from paralelo.predict.model.tensors import Block, Dim, Tensor


@dataclass(frozen=True)
class Mamba(Block):
    """Mamba-1: `inner` channels, cut one by one; x_proj reads them all: its small output is summed over the group."""

    inner: int
    state_size: int
    kernel: int
    dt_rank: int
    bias: bool = False
    conv_bias: bool = True
    inner_norms: bool = False
    norms: int = 1
    norm_bias: bool = False
    fused: str = "in_proj"
    kind = "state_space"

    @property
    def channels(self) -> int:
        return self.inner

    @property
    def bc(self) -> int:
        """Columns of B and C, for every position."""
        return 2 * self.state_size

    @property
    def steps(self) -> int:
        """Step sizes for every position."""
        return self.inner

    def own(self, D: int) -> list[Tensor]:
        c, I, N, R = Dim("state_channels", self.inner), self.inner, self.state_size, self.dt_rank
        out = [Tensor("in.x", I, D, c), Tensor("in.z", I, D, c), Tensor("conv", I, self.kernel, c),
               Tensor("x_proj", R + 2 * N, I, c, axis=1), Tensor("dt_proj", I, R, c), Tensor("dt_proj.bias", I, 1, c),
               Tensor("A", I, N, c), Tensor("D", I, 1, c), Tensor("out", D, I, c, axis=1)]
        out += [Tensor("conv.bias", I, 1, c)] if self.conv_bias else []
        out += [Tensor("in.bias", 2 * I, 1, c), Tensor("out.bias", D)] if self.bias else []
        out += [Tensor("dt_norm", R), Tensor("b_norm", N), Tensor("c_norm", N)] if self.inner_norms else []
        return out

    @property
    def state(self) -> int:
        return self.inner * self.state_size


@dataclass(frozen=True)
class Mamba2(Block):
    """Mamba-2: heads of `head_dim` channels cut whole; B and C belong to `groups`, copied when ranks outnumber them.

    in: z | x | B | C | dt, that is 2·I + 2·G·N + heads rows, each part cut by its own units.
    """

    heads: int
    head_dim: int
    groups: int
    state_size: int
    kernel: int
    bias: bool = False
    conv_bias: bool = True
    inner_norm: bool = True
    judged: bool = True                                     # False: the file does not pin these heads
    norms: int = 1
    norm_bias: bool = False
    fused: str = "in_proj"
    kind = "state_space"

    @property
    def channels(self) -> int:
        return self.heads * self.head_dim

    @property
    def bc(self) -> int:
        return 2 * self.groups * self.state_size

    @property
    def steps(self) -> int:
        return self.heads

    def own(self, D: int) -> list[Tensor]:
        h, g = Dim("state_heads", self.heads), Dim("state_groups", self.groups, "copy")
        if not self.judged:
            h, g = Dim("state_heads", self.heads, "pad"), Dim("state_groups", self.groups, "pad")
        I, B = self.heads * self.head_dim, self.groups * self.state_size
        out = [Tensor("in.z", I, D, h), Tensor("in.x", I, D, h), Tensor("in.b", B, D, g), Tensor("in.c", B, D, g),
               Tensor("in.dt", self.heads, D, h), Tensor("conv.x", I, self.kernel, h),
               Tensor("conv.b", B, self.kernel, g), Tensor("conv.c", B, self.kernel, g), Tensor("dt", self.heads, 1, h),
               Tensor("A", self.heads, 1, h), Tensor("D", self.heads, 1, h), Tensor("out", D, I, h, axis=1)]
        if self.conv_bias:
            out += [Tensor("conv.x.bias", I, 1, h), Tensor("conv.b.bias", B, 1, g), Tensor("conv.c.bias", B, 1, g)]
        out += [Tensor("in.bias", 2 * I + self.heads, 1, h), Tensor("in.bc.bias", 2 * B, 1, g), Tensor("out.bias", D)] \
            if self.bias else []
        out += [Tensor("norm_of_heads", I, 1, h)] if self.inner_norm else []
        return out

    @property
    def state(self) -> int:
        return self.heads * self.head_dim * self.state_size
