"""Small formulas of the family table: Python's expression syntax, a dozen operations, no way out.

    get(num_key_value_heads, num_attention_heads)         the field, or the second value where it is absent or null
    exact(hidden_size, num_attention_heads)               a division that must come out even
    ceil_to(x, 256)                                       rounded up to a multiple
    'full' if (i + 1) % full_attention_interval == 0 else 'linear'

A name is a field of the configuration (`a.b` one inside another), a definition of the family, or `i`, the number of the
layer. A field that is absent or null where a value is needed refuses the configuration by its name.
"""

import ast
import operator
from functools import cache

from paralelo.predict.quantity import named, written
from paralelo.words import Refused

_BINARY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
           ast.FloorDiv: operator.floordiv, ast.Div: operator.truediv}
_COMPARE = {ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
            ast.Gt: operator.gt, ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
            ast.Is: operator.is_, ast.IsNot: operator.is_not}
_FUNCTIONS = {"min": min, "max": max, "len": len, "int": int, "str": str, "ceil_to": lambda x, m: -(-x // m) * m}


class Formulas:
    """Evaluates formulas over one configuration and its family's definitions.

    >>> f = Formulas("tiny", {"hidden": 64, "heads": 4, "rope": {"theta": 1e4}}, {"d": "exact(hidden, heads)"})
    >>> f("get(head_dim, d)"), f("rope.theta"), f("'odd' if i % 2 else 'even'", i=3)
    (16, 10000.0, 'odd')
    >>> f("head_dim")
    Traceback (most recent call last):
    paralelo.words.Refused: the configuration has no field head_dim, which a model of type tiny needs
    """

    def __init__(self, model_type: str, fields: dict, definitions: dict | None = None):
        self.model_type, self.fields, self.definitions = model_type, fields, definitions or {}
        self.layers = 0                                     # once known, lists with one entry a layer must have as many
        self.used: dict = {}                                # fields looked up by the latest formula: whom to blame
        self._constant: dict = {}

    def __call__(self, formula, i: int | None = None):
        """The value of a formula; what is not text (a number or a list in the table) is its own value."""
        if not isinstance(formula, str):
            return formula
        if formula in self._constant:
            value, self.used = self._constant[formula]
            return value
        self.used = {}
        try:
            value = self._value(_parsed(formula), i)
            if not self.about_layer(formula):
                self._constant[formula] = value, self.used
            return value
        except (TypeError, IndexError, KeyError, ZeroDivisionError, AttributeError, OverflowError):
            raise self.blame() from None

    def about_layer(self, formula: str) -> bool:
        """Whether a formula's value may differ from layer to layer."""
        names = {n.id for n in ast.walk(_parsed(formula)) if isinstance(n, ast.Name)}
        return "i" in names or any(self.about_layer(self.definitions[n]) for n in names if n in self.definitions)

    def blame(self, rule: str = "model.field_other") -> Refused:
        """The refusal that names the field behind the latest formula that makes no sense."""
        odd = [(n, v) for n, v in self.used.items() if isinstance(v, bool) or not isinstance(v, int) or v < 1]
        name, value = (odd or list(self.used.items()) or [("model_type", self.model_type)])[0]
        return Refused(rule, field=name, value=written(value), model_type=self.model_type)

    def _field(self, path: str):
        """A field's value, None where it or its parent is absent."""
        here = self.fields
        for part in path.split("."):
            here = here.get(part) if isinstance(here, dict) else None
        if here is not None:
            self.used[path] = here
        return here

    def _needed(self, path: str, i):
        if path in self.definitions:
            return self._value(_parsed(self.definitions[path]), i)
        found = self._field(path)
        if found is None:
            raise Refused("model.missing_field", field=path, model_type=self.model_type)
        return found

    def _value(self, node, i):
        match node:
            case ast.Constant():
                return node.value
            case ast.Name(id="i"):
                assert i is not None, "a formula about layer i, evaluated without one"
                return i
            case ast.Name() | ast.Attribute():
                path = ast.unparse(node)
                if isinstance(node, ast.Attribute) and not _is_path(node):          # block_configs[i].ffn.no_op
                    inside = self._value(node.value, i)
                    if not isinstance(inside, dict) or inside.get(node.attr) is None:
                        raise Refused("model.missing_field", field=path.replace("[i]", f"[{i}]"),
                                      model_type=self.model_type)
                    return inside[node.attr]
                return self._needed(path, i)
            case ast.BinOp():
                return _BINARY[type(node.op)](self._value(node.left, i), self._value(node.right, i))
            case ast.UnaryOp(op=ast.Not()):
                return not self._value(node.operand, i)
            case ast.UnaryOp(op=ast.USub()):
                return -self._value(node.operand, i)
            case ast.BoolOp():
                stop = isinstance(node.op, ast.Or)
                for operand in node.values:
                    value = self._value(operand, i)
                    if bool(value) is stop:
                        break
                return value
            case ast.Compare():
                left = self._value(node.left, i)
                for op, right in zip(node.ops, node.comparators, strict=True):
                    right = self._value(right, i)
                    if not _COMPARE[type(op)](left, right):
                        return False
                    left = right
                return True
            case ast.IfExp():
                return self._value(node.body if self._value(node.test, i) else node.orelse, i)
            case ast.Subscript():
                return self._item(node, i)
            case ast.List():
                return [self._value(e, i) for e in node.elts]
            case ast.Dict():
                return {self._value(k, i): self._value(v, i) for k, v in zip(node.keys, node.values, strict=True)}
            case ast.Call(func=ast.Name(id="get"), args=[wanted, default]):
                return self._get(wanted, default, i)
            case ast.Call(func=ast.Name(id="exact"), args=[top, bottom]):
                return self._exact(top, bottom, i)
            case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS and not node.keywords:
                return _FUNCTIONS[name](*(self._value(a, i) for a in node.args))
        raise AssertionError(f"the family table uses what formulas do not have: {ast.unparse(node)}")

    def _get(self, wanted, default, i):
        try:
            return self._value(wanted, i)
        except Refused as refused:
            if refused.message.id != "model.missing_field":
                raise
            return self._value(default, i)

    def _exact(self, top, bottom, i):
        a, b = self._value(top, i), self._value(bottom, i)
        for node, value in ((top, a), (bottom, b)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise Refused("model.field_whole", field=ast.unparse(node), value=written(value),
                              model_type=self.model_type)
        if a % b:
            raise Refused("model.not_exact", top=ast.unparse(top), a=a, bottom=ast.unparse(bottom), b=b)
        return a // b

    def _item(self, node, i):
        """`layer_types[i]`, or a choice `{'a': 1, 'b': 2}[key]`: the refusal names the value that is not known."""
        holder, key = self._value(node.value, i), self._value(node.slice, i)
        if isinstance(node.value, ast.Dict):
            if not isinstance(key, str | int) or key not in holder:
                value = named(key) if isinstance(key, str) else written(key)
                raise Refused("model.unknown_choice", field=ast.unparse(node.slice).replace("[i]", f"[{i}]"),
                              value=value, known=[str(k) for k in holder], model_type=self.model_type)
            return holder[key]
        per_layer = isinstance(node.slice, ast.Name) and node.slice.id == "i" and isinstance(holder, list | str)
        if per_layer and self.layers and len(holder) != self.layers:
            raise Refused("model.list_length", field=ast.unparse(node.value), length=len(holder), layers=self.layers)
        return holder[key]


def _is_path(node) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_path(node.value))


@cache
def _parsed(formula: str):
    return ast.parse(formula, mode="eval").body
