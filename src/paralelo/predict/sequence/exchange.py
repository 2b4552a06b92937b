"""What sequence and context parallelism send. Elements a rank, per layer and microbatch, N ranks, T positions in all:

    tensor parallelism            4 all-reduces                                      8 (N−1)/N · B·T·D
    with sequence parallelism     the same as all-gather and reduce-scatter,         8 (N−1)/N · B·T·D, inputs whole
                                  or the inputs of both column pairs gathered again  10 (N−1)/N · B·T·D
    Ulysses                       all-to-all of q, k, v and of the output, forward   (N−1)/N · B·T/N · 2(H+K)d, and as
                                                                                     much backward
    ring                          k and v pass on N−1 times forward                  (N−1) · B·T/N · 2Kd
                                  backward once more, and their gradients N times    (2N−1) · B·T/N · 2Kd
    state passing                 one state and one halo to the next rank            B·H·d_k·d_v + B·(width−1)·channels

A state does not depend on T. Sources: Korthikanti et al. 2022, section 4.2.2; Jacobs et al. 2023; Liu et al. 2023.
"""

from fractions import Fraction

from paralelo.predict.quantity import whole
from paralelo.predict.tensor.heads import head_degrees
from paralelo.words import Refused


def _elements(name_sizes):
    out = 1
    for name, size in name_sizes.items():
        out *= whole(name, size)
    return out


def _plain(x):
    return int(x) if Fraction(x).denominator == 1 else float(x)


def tensor_parallel_bytes(B: int, T: int, D: int, N: int, element: int = 2):
    """Bytes a rank sends per layer with plain tensor parallelism: 8(N−1)/N·B·T·D elements.

    >>> tensor_parallel_bytes(1, 4096, 5120, 8)
    293601280
    """
    return _plain(Fraction(8 * (N - 1), whole("N", N)) * _elements({"B": B, "T": T, "D": D}) * element)


def sequence_parallel_bytes(B: int, T: int, D: int, N: int, element: int = 2, regather: bool = True):
    """The same with Megatron's sequence parallelism; `regather` gathers the two inputs again in backward.

    >>> sequence_parallel_bytes(1, 4096, 5120, 8) / tensor_parallel_bytes(1, 4096, 5120, 8)
    1.25
    >>> sequence_parallel_bytes(1, 4096, 5120, 8, regather=False) == tensor_parallel_bytes(1, 4096, 5120, 8)
    True
    """
    elements = _elements({"B": B, "T": T, "D": D})
    return _plain(Fraction((10 if regather else 8) * (N - 1), whole("N", N)) * elements * element)


def ulysses_degrees(H: int, K: int, most: int = 64) -> tuple[list[int], list[int]]:
    """Degrees that the heads allow: with their KV heads divided, and the further ones with KV heads repeated.

    >>> ulysses_degrees(40, 8)
    ([1, 2, 4, 8], [40])
    """
    return head_degrees(H, K, most)


def ulysses_bytes(B: int, T: int, H: int, K: int, d: int, N: int, element: int = 2):
    """Bytes a rank sends in one forward: all-to-all of q, k, v and of the output. Backward sends as much again.

    Where N exceeds K, KV heads are repeated up to N before they are sent.

    >>> ulysses_bytes(1, 4096, 24, 4, 256, 4)
    22020096
    """
    _fits(T, N)
    kv = K if whole("K", K) >= N else N
    fits = [n for some in head_degrees(H, K, H) for n in some]
    if N not in fits:
        raise Refused("sequence.ulysses", H=H, K=K, N=N, would_do=fits)
    local = _elements({"B": B, "T": T, "d": d}) * (2 * H + 2 * kv) * element
    return _plain(Fraction(N - 1, N) * Fraction(local, N))


def ring_bytes(B: int, T: int, K: int, d: int, N: int, element: int = 2) -> int:
    """Bytes a rank sends in one forward of ring attention: its k and v blocks, N−1 times.

    >>> ring_bytes(1, 4096, 4, 256, 4)
    12582912
    """
    _fits(T, N)
    return (N - 1) * _elements({"B": B, "T": T // N, "K": K, "d": d}) * 2 * element


def ring_backward_bytes(B: int, T: int, K: int, d: int, N: int, element: int = 2, gradient: int | None = None) -> int:
    """The same backward: k and v again, and their gradients one hop more, so that they come home.

    >>> ring_backward_bytes(1, 4096, 4, 256, 4) / ring_bytes(1, 4096, 4, 256, 4)      # (2N−1)/(N−1)
    2.3333333333333335
    """
    _fits(T, N)
    block = 2 * _elements({"B": B, "T": T // N, "K": K, "d": d})
    gradient = element if gradient is None else gradient
    return 0 if N == 1 else block * ((N - 1) * element + N * gradient)


def _fits(T, N):
    if whole("T", T) % whole("N", N):
        raise Refused("sequence.length", T=T, N=N, parts=N, order="contiguous",
                      would_do=[x for x in (T // N * N, (T // N + 1) * N) if x])


def state_bytes(B: int, H: int, d_k: int, d_v: int, element: int = 4) -> int:
    """The state of a linear-attention layer, whatever the length: B·H·d_k·d_v elements.

    >>> state_bytes(1, 48, 128, 128)                           # the reference giant: 3.1 MB
    3145728
    """
    return _elements({"B": B, "H": H, "d_k": d_k, "d_v": d_v}) * element


def halo_bytes(B: int, width: int, channels: int, element: int = 2) -> int:
    """The last width − 1 positions of the convolution's input, which the next rank needs.

    >>> halo_bytes(1, 4, 10240)
    61440
    """
    return _elements({"B": B, "width": width, "channels": channels}) // width * (width - 1) * element


def state_passing_bytes(B: int, H: int, d_k: int, d_v: int, width: int, channels: int, *, pairs: bool = False,
                        element: int = 4) -> int:
    """What a rank sends to the next for one layer forward: a state and a halo.

    With `pairs` the transition (d_k × d_k a head) goes along, so that states can be combined as a scan in
    ⌈log₂N⌉ rounds (`scan_rounds`) instead of N − 1 in a row; this is the size of one such message.

    >>> state_passing_bytes(1, 48, 128, 128, 4, 10240)
    3207168
    """
    state = state_bytes(B, H, d_k, d_v, element)
    return state + halo_bytes(B, width, channels) + (state_bytes(B, H, d_k, d_k, element) if pairs else 0)


def scan_rounds(N: int, pairs: bool) -> int:
    """Messages in a row until the last rank has its state.

    >>> scan_rounds(8, pairs=False), scan_rounds(8, pairs=True)
    (7, 3)
    """
    return (whole("N", N) - 1).bit_length() if pairs else N - 1
