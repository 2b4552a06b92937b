"""Any topology to any other: what is loaded is bit by bit what the unsplit model has."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paralelo.predict.checkpoint import Cut, Depth, holding, local_shape
from paralelo.predict.layout import Layout
from paralelo.run.checkpoint import load, newest, open_checkpoint, reshard, save, save_all, steps, verify
from paralelo.run.checkpoint.state import DTYPES, Sharded
from paralelo.words import Refused, languages

pytestmark = pytest.mark.checkpoint

LAYERS, H, K, V, E, D, F = 5, 8, 2, 37, 6, 16, 48
OF_LAYER = {
    "norm": ((D,), {}, torch.float32),
    "q": ((H * 2, D), {"tp": Cut(0, units=H)}, torch.bfloat16),
    "k": ((K * 2, D), {"tp": Cut(0, units=K)}, torch.bfloat16),
    "o": ((D, H * 2), {"tp": Cut(1, units=H)}, torch.float64),
    "gate": ((F, D), {"tp": Cut(0)}, torch.float32),
    "down": ((D, F), {"tp": Cut(1)}, torch.float16),
    "moment": ((7, 3), {"dp": Cut(0, rule="chunk")}, torch.float32),
    "both": ((F, 5), {"tp": Cut(0), "dp": Cut(0, rule="chunk")}, torch.int64),
    "experts": ((E, F, 3), {"ep": Cut(0, rule="shares"), "etp": Cut(1)}, torch.float32),
    "step": ((), {}, torch.float32),
}


def tensors():
    """Name → (whole tensor, cuts, where): every element is different, so that a wrong order shows."""
    torch.manual_seed(0)
    out = {"embedding": (torch.randn(V, D), {"tp": Cut(0, rule="pad")}, ("first", "last")),
           "head.norm": (torch.randn(D), {}, ("last",)), "empty": (torch.zeros(0, 3), {}, ()),
           "mask": (torch.rand(9) < 0.5, {"tp": Cut(0, rule="chunk")}, ())}
    for layer in range(LAYERS):
        for name, (shape, cuts, dtype) in OF_LAYER.items():
            out[f"blocks.{layer}.{name}"] = (torch.randn(shape) * 1000).to(dtype), cuts, (layer,)
    return out


WHOLE = tensors()


def state_of(layout, rank, depth, blank=False):
    """The state of a rank: its parts cut out of the whole tensors, or to be filled."""
    state = {"step": 3, "note": {"lr": 1e-3, "ünïcode": ["a", None, True]}}
    for name, (whole, cuts, where) in WHOLE.items():
        held = holding(tuple(whole.shape), layout, cuts, where, depth, rank)
        if held is None:
            continue
        local = torch.zeros(local_shape(tuple(whole.shape), layout, cuts, rank), dtype=whole.dtype)
        if blank:
            local.fill_(1)
        else:
            for piece in held:
                local[piece.local_slices()] = whole[piece.slices()]
        parts = tuple((p.box, local[p.local_slices()]) for p in held)
        state[name] = Sharded(tuple(whole.shape), parts, cuts, where, local)
    return state


def same(a, b):
    bits = [t.contiguous().view(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)


def check_loaded(folder, layout, depth, ranks=None):
    saved_so = depth == open_checkpoint(newest(folder)).depth
    for rank in ranks or range(layout.world_size):
        expected, into = state_of(layout, rank, depth), state_of(layout, rank, depth, blank=True)
        found = load(folder, layout, into, rank=rank)
        assert found["step"] == 3 and found["note"] == expected["note"]
        alone = load(folder, layout, rank=rank) if saved_so else {}
        for name, held in expected.items():
            if isinstance(held, Sharded):
                assert same(into[name].local, held.local), name
                if saved_so:
                    assert same(alone[name], held.local), name


degrees = st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3, 5]),
                    st.sampled_from([1, 2]), st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2]),
                    st.sampled_from(["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]))


def layout_of(drawn):
    dp, tp, pp, cp, ep, etp, order = drawn
    if (dp * tp * cp) % (ep * etp) or dp * tp * pp * cp > 24:
        return Layout(dp=dp, tp=tp, pp=pp, order=order)
    return Layout(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, order=order)


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(degrees, degrees, degrees, st.data())
def test_any_topology_to_any_other(tmp_path_factory, a, b, c, data):
    """Saved on one layout, loaded on a second; resharded by files to a third, loaded there and on the second."""
    first, second, third = map(layout_of, (a, b, c))
    folder, depth = tmp_path_factory.mktemp("any"), Depth(LAYERS)
    save_all(folder / "a", [state_of(first, rank, depth) for rank in range(first.world_size)], first)
    some = [data.draw(st.integers(0, second.world_size - 1)) for _ in range(3)]
    check_loaded(folder / "a", second, depth, some)
    made = reshard(folder / "a", folder / "b", third, verify=True)
    assert made.layout == third and made.bytes == sum(t.numel() * t.element_size() for t, _, _ in WHOLE.values())
    check_loaded(folder / "b", third, depth, [data.draw(st.integers(0, third.world_size - 1)) for _ in range(3)])
    check_loaded(folder / "b", second, depth, some[:1])


@pytest.mark.long
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(degrees, degrees, degrees, st.data())
def test_any_topology_to_any_other_often(tmp_path_factory, a, b, c, data):
    test_any_topology_to_any_other.hypothesis.inner_test(tmp_path_factory, a, b, c, data)


def test_chunks_and_a_v(tmp_path):
    """Interleaved stages and a V: layers move between ranks, the tied embedding has both its ends on one."""
    depth = Depth(LAYERS + 0, 2, "v")
    layout = Layout(pp=2, tp=2)
    save_all(tmp_path, [state_of(layout, r, depth) for r in range(4)], layout, chunks=2, placement="v")
    check_loaded(tmp_path, layout, depth)
    check_loaded(tmp_path, Layout(pp=5), Depth(LAYERS))
    made = reshard(tmp_path, tmp_path / "loop", Layout(pp=2), chunks=1, placement="loop")
    assert made.depth == Depth(LAYERS)
    check_loaded(tmp_path / "loop", Layout(pp=2), Depth(LAYERS))


def test_copies_are_written_once(tmp_path):
    layout = Layout(dp=4, tp=2)
    save_all(tmp_path, [state_of(layout, r, Depth(LAYERS)) for r in range(8)], layout)
    total = sum(t.numel() * t.element_size() for t, _, _ in WHOLE.values())
    sizes = [f.stat().st_size for f in newest(tmp_path).glob("*.safetensors")]
    headers = sum(int.from_bytes(f.read_bytes()[:8], "little") + 8 for f in newest(tmp_path).glob("*.safetensors"))
    assert sum(sizes) - headers == total and len(sizes) == 8 and max(sizes) < 2 * min(sizes)


def test_files_are_plain_safetensors(tmp_path):
    """Another library reads them, and the manifest is JSON that says where each piece lies."""
    from safetensors.torch import load_file

    layout = Layout(tp=2)
    save_all(tmp_path, [state_of(layout, r, Depth(LAYERS)) for r in range(2)], layout)
    manifest = json.loads((newest(tmp_path) / "manifest.json").read_text(encoding="utf-8"))
    entry = manifest["tensors"]["blocks.0.k"]
    assert entry["shape"] == [4, 16] and entry["dtype"] == "BF16" and entry["cuts"] == {"tp": {"dim": 0, "units": 2}}
    for piece in entry["pieces"]:
        (a, b), _ = piece["box"]
        assert torch.equal(load_file(newest(tmp_path) / piece["file"])[piece["key"]], WHOLE["blocks.0.k"][0][a:b])
    assert manifest["layout"]["tp"] == 2 and manifest["version"] == 1 and manifest["step"] == 3


def test_gate_and_up_keep_their_order(tmp_path):
    """C82: saved on 8 and loaded on 1, 2 or 4, the rows of [gate; up] came back as 0, 2, 4, …, 1, 3, 5, …"""
    rows = torch.arange(16.0)[:, None]
    cuts = {"tp": Cut(0)}

    def states(tp):
        for rank in range(tp):
            local = torch.cat([part.chunk(tp)[rank] for part in rows.chunk(2)])      # [gate_r; up_r]
            box = (rank * (8 // tp), (rank + 1) * (8 // tp)), (0, 1)
            yield {name: Sharded((8, 1), ((box, half),), cuts, (), None)
                   for name, half in zip(("gate", "up"), local.chunk(2), strict=True)}

    save_all(tmp_path, list(states(8)), Layout(tp=8))
    for tp in (1, 2, 4, 8):
        for rank, wanted in enumerate(states(tp)):
            found = load(tmp_path, Layout(tp=tp), rank=rank)
            assert torch.equal(torch.cat((found["gate"], found["up"])),
                               torch.cat([wanted[n].parts[0][1] for n in ("gate", "up")]))


@pytest.mark.parametrize(("n", "N"), [(6, 4), (10, 4), (5, 4), (2, 4), (1, 3)])
def test_uneven_and_empty_pieces(tmp_path, n, N):
    """C86: 6 rows over 4 ranks could not be loaded again, because the empty shard was forgotten."""
    cuts, whole = {"dp": Cut(0, rule="chunk")}, torch.arange(float(n))
    states = []
    for rank in range(N):
        held = holding((n,), Layout(dp=N), cuts, (), None, rank)
        states.append({"w": Sharded((n,), tuple((p.box, whole[p.slices()]) for p in held), cuts, (), None)})
    save_all(tmp_path, states, Layout(dp=N))
    for M in (1, 2, N, 7):
        parts = [load(tmp_path, Layout(dp=M), rank=rank)["w"] for rank in range(M)]
        assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("V", [32000, 32002, 65535])
def test_vocabulary_is_saved_without_padding(tmp_path, V):
    """C52: 32000 rows in the file, 32256 by the arguments: padded sizes of two layouts were compared. C54: a saved
    model had 65536 rows where the config said 65535. The manifest has the real size; padding is made on load."""
    whole, cuts = torch.arange(float(V))[:, None], {"tp": Cut(0, rule="pad")}

    def local(tp, rank):
        rows = -(-V // tp)
        part = whole[rank * rows:(rank + 1) * rows]
        return torch.cat((part, part.new_zeros(rows - len(part), 1))), len(part)

    states = []
    for rank in range(4):
        padded, real = local(4, rank)
        box = (rank * len(padded), rank * len(padded) + real), (0, 1)
        states.append({"w": Sharded((V, 1), ((box, padded[:real]),), cuts, (), padded)})
    save_all(tmp_path, states, Layout(tp=4))
    assert open_checkpoint(newest(tmp_path)).entries["w"].shape == (V, 1)
    for tp in (1, 2, 8, 3):
        for rank in range(tp):
            assert torch.equal(load(tmp_path, Layout(tp=tp), rank=rank)["w"], local(tp, rank)[0])


def test_every_type_keeps_its_bits(tmp_path):
    kinds = {}
    for dtype in DTYPES:
        size = torch.empty((), dtype=dtype).element_size()
        raw = torch.randint(0, 2 if dtype == torch.bool else 256, (24,), dtype=torch.uint8)
        kinds[str(dtype)] = raw.view(dtype) if dtype != torch.bool else raw.bool()
        assert kinds[str(dtype)].numel() == 24 // size
    save_all(tmp_path, [kinds], Layout())
    for name, value in load(tmp_path, Layout()).items():
        assert value.dtype == kinds[name].dtype
        assert value.view(torch.uint8).tolist() == kinds[name].view(torch.uint8).tolist(), name


def test_reshard_reads_what_it_needs_and_says_how_far_it_is(tmp_path):
    layout, told = Layout(tp=2, pp=2), []
    save_all(tmp_path / "a", [state_of(layout, r, Depth(LAYERS)) for r in range(4)], layout)
    made = reshard(tmp_path / "a", tmp_path / "b", Layout(), verify=True, progress=lambda *at: told.append(at))
    assert told[-1][0] == told[-1][1] and [d for d, _ in told] == sorted(d for d, _ in told)
    assert verify(tmp_path / "b").bytes == made.bytes and len(made.files) == 1


def test_the_newest_and_how_many_are_kept(tmp_path):
    for step in (1, 5, 3, 12):
        save(tmp_path, {"x": torch.tensor(step)}, Layout(), step=step, keep=3)
    assert steps(tmp_path) == [3, 5, 12] and load(tmp_path, Layout())["x"] == 12
    assert load(tmp_path / "step-00000005", Layout())["x"] == 5
    assert save(tmp_path, {"x": torch.tensor(0)}, Layout()).name == "step-00000013"


def bad_states():
    a, layout = torch.zeros(4), Layout(dp=2)
    yield "a layout of two, one state", [{"x": a}], layout
    yield "values differ", [{"s": 1}, {"s": 2}], layout
    yield "a value of one rank only", [{"s": 1}, {}], layout
    yield "no JSON", [{"s": {1, 2}}, {"s": {1, 2}}], layout
    yield "not a number", [{"s": float("nan")}], Layout()
    yield "no name", [{"": a}], Layout()
    yield "shapes differ", [{"x": a}, {"x": torch.zeros(5)}], layout
    yield "types differ", [{"x": a}, {"x": a.double()}], layout
    yield "a part is missing", [{"x": Sharded((4,), ((((0, 2),), a[:2]),))}] * 2, layout
    yield "parts overlap", [{"x": Sharded((4,), ((((0, 3),), a[:3]),))},
                            {"x": Sharded((4,), ((((2, 4),), a[:2]),))}], layout
    yield "a type without a name", [{"x": torch.zeros(2, dtype=torch.complex128)}], Layout()
    yield "a negative step", [{"x": a, "step": -1}], Layout()


@pytest.mark.parametrize(("states", "layout"), [pytest.param(*rest, id=name) for name, *rest in bad_states()])
def test_states_that_cannot_be_saved(tmp_path, states, layout):
    with pytest.raises(Refused) as refused:
        save_all(tmp_path, states, layout)
    assert len({refused.value.say(lang) for lang in languages()}) == len(languages())
    assert list(tmp_path.iterdir()) == []


def test_what_is_asked_for_must_be_there(tmp_path):
    save(tmp_path, {"x": torch.zeros(4)}, Layout(), step=0)
    for into in ({"y": torch.zeros(4)}, {"x": torch.zeros(5)}, {"x": torch.zeros(4).double()}):
        kept = {n: t.clone() for n, t in into.items()}
        with pytest.raises(Refused) as refused:
            load(tmp_path, Layout(), into)
        assert len({refused.value.say(lang) for lang in languages()}) == len(languages())
        assert all(torch.equal(into[n], kept[n]) for n in into)
    for ask in (lambda: save(tmp_path, {}, Layout(), step=0), lambda: load(tmp_path / "none", Layout()),
                lambda: load(tmp_path, Layout(dp=2)), lambda: reshard(tmp_path, tmp_path, Layout())):
        with pytest.raises(Refused) as refused:
            ask()
        assert len({refused.value.say(lang) for lang in languages()}) == len(languages())


def test_a_layout_that_cuts_heads_is_refused(tmp_path):
    layout = Layout()
    save_all(tmp_path / "a", [state_of(layout, 0, Depth(LAYERS))], layout)
    with pytest.raises(Refused, match=r"blocks\.\d\.[oq] cannot be cut"):
        reshard(tmp_path / "a", tmp_path / "b", Layout(tp=3))
    assert not Path(tmp_path / "b").exists()
