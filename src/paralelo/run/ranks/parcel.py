"""How functions and values travel between processes: by value (cloudpickle), with what a traceback needs to quote."""

import io
import linecache
import os
import types


def dumps(value) -> bytes:
    return pack(value)[0]


def pack(value) -> tuple[bytes, dict[str, str]]:
    """(`value` pickled, the text of every notebook cell its functions come from, by file name).

    Tensors go on the host, and with no more of a storage than the tensor shows; code keeps the name of its file.
    """
    import cloudpickle
    import torch

    files = set()

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj):
            if isinstance(obj, types.CodeType):
                make, args = self.dispatch_table[types.CodeType](obj)
                files.add(obj.co_filename)
                return make, tuple(obj.co_filename if a == "<dynamic-code>" else a for a in args)
            if type(obj) is torch.Tensor and obj.layout is torch.strided and obj.device.type != "meta":
                plain = obj.detach()
                if plain.is_cuda or plain.untyped_storage().nbytes() != plain.numel() * plain.element_size():
                    plain = plain.cpu().clone(memory_format=torch.contiguous_format)
                    return _tensor, (plain, obj.requires_grad)
                if obj.grad_fn is not None:
                    return _tensor, (plain, obj.requires_grad)
            return super().reducer_override(obj)

    out = io.BytesIO()
    Pickler(out, protocol=5).dump(value)
    return out.getvalue(), {f: "".join(linecache.getlines(f)) for f in files if not os.path.exists(f)}


def _tensor(plain, requires_grad):
    return plain.requires_grad_(requires_grad)


def loads(data: bytes):
    import cloudpickle

    return cloudpickle.loads(data)


def remember(sources: dict[str, str]) -> None:
    """Keep these texts, so that a traceback of this process can quote them."""
    for name, text in sources.items():
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
