"""Tensor parallelism: degrees, heads, shapes and bytes, against brute force and the faults people met."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paralelo.predict import tensor as t
from paralelo.words import Refused, languages

pytestmark = pytest.mark.tensor


# ---- heads

def brute_force(H, K, N):
    """Give every rank H/N whole query heads; may it hold the same number of whole KV heads as every other?"""
    if H % N:
        return None
    needed = [sorted({q * K // H for q in range(r * H // N, (r + 1) * H // N)}) for r in range(N)]
    held = [h for heads in needed for h in heads]
    equal = len({len(h) for h in needed}) == 1 and len({held.count(k) for k in range(K)}) == 1
    return needed if equal else None


@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 64))
def test_the_map_is_the_one_that_query_heads_need(group, K, N):
    H = group * K
    plain, copied = t.head_degrees(H, K)
    if N in plain or N in copied:
        assert t.kv_head_map(H, K, N) == brute_force(H, K, N)
        assert (N in copied) == (t.kv_copies(K, N) > 1)
        for ranks in t.kv_repair(K, N):
            assert len({tuple(t.kv_head_map(H, K, N)[r]) for r in ranks}) == 1
    elif H % N == 0:
        heads = brute_force(H, K, N)                        # equal numbers may exist, but not of K/N or of one head
        assert heads is None or len(heads[0]) != max(1, K // N) or (K % N and N % K)
    else:
        with pytest.raises(Refused):
            t.kv_head_map(H, K, N)


def test_degree_above_the_number_of_kv_heads():
    """C01: a column split of k_proj left half a KV head per rank and died in a reshape; C02: the columns divide."""
    with pytest.raises(Refused, match=r"2 KV heads cannot be split over 4 ranks"):
        t.check_heads(16, 2, 4, replicate=False)
    assert t.kv_head_map(16, 2, 4) == [[0], [0], [1], [1]]
    k = t.attention_shapes(2048, 16, 4, 128, 8)["k"]
    assert (4 * 128) % 8 == 0 and k.local[0] == 128 and k.copies == 2          # not 64


def test_all_valid_degrees():
    """C04, C05: degrees 7 and 14 divide the 28 query heads and cut the 4 KV heads; C13: sp = 40 works, 10 does not."""
    assert t.head_degrees(28, 4) == ([1, 2, 4], [28])
    assert t.tp_degrees(28, 4, 18944) == ([1, 2, 4], [])
    assert t.head_degrees(40, 8) == ([1, 2, 4, 8], [40])
    assert t.head_degrees(25, 25) == ([1, 5, 25], [])
    assert t.tp_degrees(24, 4) == ([1, 2, 4], [8, 12, 24])
    for N in (7, 14):
        with pytest.raises(Refused, match="1, 2 or 4, with copies also 28"):
            t.check_heads(28, 4, N)
    with pytest.raises(Refused, match=r"tp must divide 25.*1, 5 or 25"):
        t.check_heads(25, 25, 2)                            # C06


# ---- vocabulary

def test_padding_of_the_vocabulary():
    """C06, C08, C52: the padded size follows from the real vocabulary and tp; a load compared two padded sizes."""
    assert t.padded_vocab(50257, 5, 128) == 50560 and len(t.vocab_range(50257, 5, 0, 128)) == 10112
    assert 151552 % 6 and t.padded_vocab(151552, 6, 128) == 152064
    assert [t.padded_vocab(32000, tp, 128) for tp in (1, 2, 4, 8)] == [32000, 32000, 32256, 32768]
    assert [t.padded_vocab(32002, tp, 128) for tp in (1, 2, 4, 8)] == [32128, 32256, 32256, 32768]
    assert 248_320 == 512 * 485 and t.padded_vocab(248_320, 8, 1) == 248_320


@given(st.integers(1, 2000), st.integers(1, 16), st.integers(1, 4))
def test_ranges_tile_the_padded_vocabulary(V, N, multiple):
    """C54: the real rows come back, no more."""
    rows = [t.vocab_range(V, N, r, multiple) for r in range(N)]
    assert [i for r in rows for i in r] == list(range(t.padded_vocab(V, N, multiple)))
    assert sum(t.real_rows(V, N, r, multiple) for r in range(N)) == V
    assert len({len(r) for r in rows}) == 1


# ---- fused matrices

def test_fused_parts_are_cut_one_by_one():
    """C43: gate on rank 0 and up on rank 1; C45: an even cut of [Q|K|V|Z|beta|alpha]; C84: rank 0 gets only Q."""
    assert [t.fused_rows([4, 4], 2, r) for r in (0, 1)] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [t.qkv_rows(4, 2, 1, 2, r) for r in (0, 1)] == [[0, 1, 4, 6], [2, 3, 5, 7]]
    parts = [2048, 2048, 4096, 4096, 32, 32]
    rows = t.fused_rows(parts, 2, 0)
    assert len(rows) == 6176 and rows != list(range(6176))
    assert [sum(a <= r < a + size for r in rows) for a, size in zip((0, 2048, 4096, 8192, 12288, 12320), parts,
                                                                     strict=True)] == [1024, 1024, 2048, 2048, 16, 16]
    with pytest.raises(Refused, match=r"does not divide by 3: 1, 2 or 4 would do"):
        t.fused_rows([6, 4], 3, 0)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 5))
def test_fused_rows_partition_the_matrix(parts, N):
    parts = [p * N for p in parts]
    rows = [t.fused_rows(parts, N, r) for r in range(N)]
    assert sorted(i for r in rows for i in r) == list(range(sum(parts)))


# ---- shapes

def test_the_reference_giant():
    at4 = t.attention_shapes(5120, 24, 4, 256, 4, gated_query=True, qk_norm="head")
    assert at4["q"].shape == (12288, 5120) and at4["q"].local == (3072, 5120)
    assert at4["k"].shape == (1024, 5120) and at4["k"].local == (256, 5120) and at4["o"].local == (5120, 1536)
    assert at4["q_norm"].local == (256,) and at4["q_norm"].copies == 4
    assert t.mlp_shapes(5120, 17408, 8, gated=True)["up"].local == (2176, 5120)
    linear = t.linear_attention_shapes(5120, 16, 48, 128, 128, 4, 8)
    assert linear["o"].local == (5120, 768) and linear["conv"].local == (1280, 1, 4)
    with pytest.raises(Refused, match="16 heads of linear attention do not divide by 3"):
        t.linear_attention_shapes(5120, 16, 48, 128, 128, 4, 3)


@given(st.sampled_from([1, 2, 4, 8]), st.booleans(), st.booleans(), st.booleans())
def test_copies_account_for_every_element(N, bias, gated, fused):
    layers = [t.mlp_shapes(32, 64, N, gated=gated, bias=bias, fused=fused),
              t.attention_shapes(32, 8, 4, 4, N, bias=bias, gated_query=gated, qk_norm="all"),
              t.linear_attention_shapes(32, 8, 16, 4, 4, 4, N), t.norm_shapes(32, N, bias)]
    for name, piece in ((n, p) for layer in layers for n, p in layer.items()):
        assert N * prod(piece.local) == piece.copies * prod(piece.shape), name
    if N == 1:
        assert all(p.local == p.shape for layer in layers for p in layer.values())


def test_price_of_copied_heads():
    assert t.wasted_kv_parameters(5120, 4, 256, 4) == 0
    assert t.wasted_kv_parameters(5120, 4, 256, 8) == 2 * 4 * 256 * 5120
    at4, at8 = (t.attention_shapes(5120, 24, 4, 256, N) for N in (4, 8))
    assert at8["k"].local == at4["k"].local                 # twice the ranks, not one byte less


def test_bytes():
    assert t.layer_bytes(1, 4096, 5120, 8) == 8 * 7 * 4096 * 5120 * 2 // 8      # 8(N−1)/N·B·T·D elements
    assert t.embedding_bytes(2, 8, 16, 4, 4) == 2 * 3 * 2 * 8 * 16 * 4 // 4
    assert 600_000 * 4096 * 4 == 9_830_400_000
    assert t.cross_entropy_bytes(10, 2) == 120
    assert t.loss_of_gathered_logits(4.4583, 2) == pytest.approx(5.1515, abs=1e-4)                # C48


@pytest.mark.parametrize("ask", [
    lambda: t.mlp_shapes(8, 10, 4), lambda: t.attention_shapes(8, 4, 4, 2, 3), lambda: t.check_heads(4, 2, 3),
    lambda: t.kv_heads(4, 6, 0), lambda: t.vocab_range(10, 2, 2), lambda: t.padded_vocab(0, 2),
    lambda: t.fused_rows([3], 2, 0), lambda: t.head_degrees(0, 1), lambda: t.query_heads(4, 3, 0),
    lambda: t.linear_attention_shapes(8, 3, 6, 2, 2, 4, 2), lambda: t.check_heads(8, 8, 3),
    lambda: t.kv_heads(4, 4, -1), lambda: t.check_heads(6, 4, 3), lambda: t.head_degrees(6, 4)])
def test_refused_in_every_language(ask):
    with pytest.raises(Refused) as refused:
        ask()
    assert len({refused.value.say(lang) for lang in languages()}) == len(languages())
