"""Judging every dimension that a tensor split cuts: whole heads must divide, not columns; fused matrices by parts."""

from paralelo.predict.audit.degrees import MOST
from paralelo.predict.audit.finding import Finding
from paralelo.predict.model import Block, Dim, Model
from paralelo.predict.quantity import divisors
from paralelo.predict.tensor import kv_copies, kv_heads, padded_vocab
from paralelo.words import Message

# How the models' own files lay out a fused matrix, as `transformers` reads them. All others: one part after the other.
MIXED = {("attention", "query_key_value"),                  # by (KV) head: GPT-NeoX, BLOOM, Falcon
         ("linear_attention", "in_proj_qkvz"),              # by key head: Qwen3-Next
         ("linear_attention", "qkv_proj"),                  # by head: MiniMax
         ("moe", "gate_up_proj")}                           # row by row: gpt-oss
BESIDE = {("linear_attention", "in_proj_qkvz"): ("in.beta", "in.alpha"),        # another matrix, in_proj_ba
          ("linear_attention", "qkv_proj"): ("gate",)}                          # another matrix, output_gate


def judge(dim: Dim, degree: int, **fields) -> Finding:
    """What happens to one dimension at this degree, by itself.

    >>> print(judge(Dim("query_heads", 28), 8).message)
    28 query heads over 8 ranks: 8 does not divide 28, ranks would hold 3.5 heads. What divides it: 1, 2, 4, 7, 14 or 28
    >>> judge(Dim("kv_heads", 4, "replicate"), 8).verdict, judge(Dim("kv_heads", 4, "replicate"), 6).verdict
    ('replicated', 'breaks')
    """
    size = dim.size
    about = {"size": size, "degree": degree, "each": round(size / degree, 2) if size % degree else size // degree}
    if dim.name == "vocab":
        return _vocabulary(size, degree)
    if size % degree == 0:
        verdict = "divides"
    elif dim.allows(degree) and dim.rule != "pad":
        verdict = "replicated"
        copies = kv_copies(size, degree)
        head = min(2, size - 1)
        about |= {"copies": copies, "head": head, "ranks": list(range(head * copies, (head + 1) * copies))}
    else:
        verdict = "note" if dim.rule == "pad" else "breaks"
        about["would_do"] = divisors(size, MOST)
        if dim.rule == "replicate":
            about |= {"head": size // degree if degree < size else 0, "ranks": _cut_ranks(size, degree)}
    return Finding(dim.name, size, degree, verdict, Message(f"audit.{dim.name}.{verdict}", about | fields))


def _cut_ranks(K: int, N: int) -> list[int]:
    """The first two ranks that would both hold a piece of one KV head."""
    first = next(r for r in range(N) if (r + 1) * K % N)
    return [first, first + 1]


def _vocabulary(V: int, tp: int) -> Finding:
    megatron = padded_vocab(V, tp, 128)
    about = {"size": V, "degree": tp, "each": V // tp, "megatron": megatron}
    if V % tp == 0:
        verdict, id = "divides", "divides" if megatron == V else "divides_yet_padded"
    else:
        verdict = id = "padded"
        about |= {"rows": megatron // tp, "rest": V % tp, "empty": megatron - V}
    return Finding("vocab", V, tp, verdict, Message(f"audit.vocab.{id}", about))


def dimensions(model: Model, tp: int, etp: int, element: int = 2) -> list[Finding]:
    """Every dimension of the model at once, the price of what is held more than once, and what is fused."""
    out = []
    for dim in model.dims:
        fields, price = {}, 0
        if dim.name == "kv_heads" and tp % dim.size == 0 and tp > dim.size:
            block = next(b for b in model.blocks if b.kind == "attention" and b.kv_heads == dim.size)
            price = copies_bytes(model, dim, tp, element)
            columns = dim.size * block.head_dim
            fields = {"price": price, "columns": columns, "piece": columns / tp, "head_dim": block.head_dim}
        degree = etp if dim.name == "expert_ffn" else tp
        found = judge(dim, degree, **fields)
        out.append(Finding(found.dimension, found.size, found.degree, found.verdict, found.message, price))
    out += latents(model, tp, element)
    out += [f for block in model.blocks if getattr(block, "fused", "") for f in fused(block, model.hidden, tp, etp)]
    if tp > 1:
        out += [Finding("qk_norm", b.heads * b.head_dim, tp, "note", Message("audit.qk_norm.note", {"degree": tp}))
                for b in model.blocks if b.kind == "attention" and b.qk_norm == "all"][:1]
    return out


def copies_bytes(model: Model, dim: Dim, tp: int, element: int = 2) -> int:
    """Bytes of weights a rank holds beyond an even share because KV heads are copied, in all layers together."""
    held = sum(n * (t.per_rank(tp) - t.elements / tp) for _, t, n in model.tensors() if t.dim == dim)
    return round(held * element)


def latents(model: Model, tp: int, element: int = 2) -> list[Finding]:
    """MLA: the latent and what makes it are whole on every tensor rank, and so is the cache."""
    block = next((b for b in model.blocks if b.kind == "latent_attention"), None)
    if block is None or tp == 1:
        return []
    whole = sum(n * t.elements for b, t, n in model.tensors()
                if b.kind == "latent_attention" and not t.dim and t.cols > 1)
    layers = sum(b.kind == "latent_attention" for layer in model.layers for b in layer.blocks)
    size = block.kv_rank + block.rope
    about = {"size": size, "degree": tp, "price": round(whole * element * (tp - 1) / tp), "layers": layers,
             "cache": size * element * layers}
    return [Finding("latents", size, tp, "replicated", Message("audit.latents.replicated", about), about["price"])]


def fused(block: Block, D: int, tp: int, etp: int = 1) -> list[Finding]:
    """A matrix that holds several: every part is cut by its own units, then the pieces are joined on each rank.

    In files where the parts are mixed unit by unit, and every rank has as many units, even cuts do just that.

    >>> from paralelo.predict.model import ship, read
    >>> giant = ship("Qwen3.5-27B")
    >>> print(fused(giant.blocks[0], giant.hidden, 2)[0].message.fields["rows"])
    [1024, 1024, 3072, 3072, 24, 24]
    """
    key = block.kind, block.fused
    parts = [t for t in block.own(D) if t.cols == (getattr(block, "input", 0) or D) and t.dim and t.axis == 0
             and t.name not in BESIDE.get(key, ())]
    degrees = [etp if t.experts else tp for t in parts]
    if len(parts) < 2 or max(degrees) == 1 or not all(
            t.dim.allows(degree) for t, degree in zip(parts, degrees, strict=True)):
        return []
    sizes = [t.rows for t in parts]
    rows = [int(t.rows * t.dim.share(degree)) for t, degree in zip(parts, degrees, strict=True)]
    degree = max(degrees)
    about = {"name": block.fused, "parts": [t.name.removeprefix("in.") for t in parts], "sizes": sizes, "rows": rows,
             "total": sum(rows), "degree": degree}
    id = "even" if key in MIXED and degree * sum(rows) == sum(sizes) else "note"
    return [Finding(block.fused, sum(sizes), degree, "note", Message(f"audit.fused.{id}", about))]


def kv_map(K: int, tp: int) -> list[list[int]]:
    """The KV heads of every rank, [] where heads would be cut."""
    return [list(kv_heads(K, tp, r)) for r in range(tp)] if K % tp == 0 or tp % K == 0 else []
