"""Enough of the shell to read a launch script: words, quotes, comments, variables, arrays, whole-number arithmetic.

Nothing is executed. A variable that the script does not set itself stays unknown, and is named.
"""

import ast
import re

from paralelo.words import Refused

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGN = re.compile(rf"(?:export\s+|readonly\s+|local\s+)?({_NAME})(\+?=)(.*)", re.S)
_ARRAY = re.compile(rf"\$\{{({_NAME})\[[@*]\]\}}")
_VARIABLE = re.compile(rf"\$\{{({_NAME})(?:(:?[-=])([^}}]*))?\}}|\$({_NAME})|\$([0-9@*#?])")
_ARITHMETIC = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_PARTS = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|(?:\\.|\$\(\([^\n]{0,2000}?\)\)|[^'\"\\])+|[\"']", re.S)
_WORDS = re.compile(r"(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|\$\(\(.{0,2000}?\)\)|\$\{[^}]{0,2000}\}|[^\s\"']|[\"'])+", re.S)
UNKNOWN = "\ufffd"                                          # stands for what the script does not say
MOST_STATEMENTS = 100_000
MOST_WORD = 10_000                                          # brackets in brackets take time by the square of it
MOST_TEXT = 2**24                                           # characters that variables may come to, all together


class Script:
    """The commands of a script as lists of words, variables put in; `unknown` names those that nobody set.

    >>> s = Script('TP=4\\nARGS=(--tp $TP --pp "$((2 * 2))")  # degrees\\npython train.py ${ARGS[@]} --nodes $NODES')
    >>> s.commands
    [['python', 'train.py', '--tp', '4', '--pp', '4', '--nodes', '\ufffd']]
    >>> s.unknown
    ['NODES']
    """

    def __init__(self, text: str):
        self.left = MOST_TEXT
        self.values: dict[str, list[str]] = {}
        self.unknown: list[str] = []
        self.commands: list[list[str]] = []
        for statement in statements(text)[:MOST_STATEMENTS]:
            self._run(statement)

    def _run(self, statement: str) -> None:
        assigned = _ASSIGN.fullmatch(statement)
        if assigned and (assigned[3].startswith("(") or len(words(assigned[3])) <= 1):
            name, how, right = assigned.groups()
            array = right.startswith("(")
            value = self.expand(right[1:].removesuffix(")")) if array else [self._text(right)]
            self.values[name] = self.values.get(name, []) + value if how == "+=" else value
            return
        found = self.expand(statement)
        while found and _ASSIGN.fullmatch(found[0]) and not found[0].startswith("-"):
            name, _, right = _ASSIGN.fullmatch(found.pop(0)).groups()       # VAR=1 python ...
            self.values[name] = [right]
        if found:
            self.commands.append(found)

    def expand(self, text: str) -> list[str]:
        """The words of a text, with variables in them; one that is not quoted may become several words."""
        out: list[str] = []
        for word in words(text):
            array = _ARRAY.fullmatch(word.strip("\"'"))
            if array:
                out += [w for v in self._value(array[1]) for w in self._split(v)]
            elif word[:1] in "\"'" and word[:1] == word[-1:]:
                out.append(self._text(word))
            else:
                out += self._split(self._text(word))
        return out

    def _split(self, text: str) -> list[str]:
        return text.split()

    def _value(self, name: str) -> list[str]:
        if name not in self.values:
            if name not in self.unknown:
                self.unknown.append(name)
            return [UNKNOWN]
        self.left -= sum(map(len, self.values[name])) + 1
        if self.left < 0:                                   # X=$X$X, forty times: a terabyte
            raise Refused("read.endless", most=MOST_TEXT)
        return self.values[name]

    def _text(self, word: str) -> str:
        """One word without its quotes, variables put in except between single quotes."""
        if len(word) > MOST_WORD:
            return UNKNOWN
        out = []
        for part in _PARTS.findall(word):
            if part.startswith("'") and part.endswith("'") and len(part) > 1:
                out.append(part[1:-1])
                continue
            quoted = part.startswith('"') and part.endswith('"') and len(part) > 1
            out.append(self._put(part[1:-1] if quoted else part))
        return "".join(out)

    def _put(self, text: str) -> str:
        text = _ARRAY.sub(lambda m: " ".join(self._value(m[1])), text)

        def arithmetic(m):
            return _whole(re.sub(rf"\$?\{{?\b({_NAME})\b\}}?", lambda v: self._value(v[1])[0], m[1]))

        text = _ARITHMETIC.sub(arithmetic, text)

        def variable(m):
            name, operator, default = m[1] or m[4] or m[5], m[2], m[3]
            if operator and name not in self.values:
                return self._put(default)
            return " ".join(self._value(name))

        return _VARIABLE.sub(variable, text)


def _whole(expression: str) -> str:
    """The value of whole-number arithmetic: + - * / % and brackets."""
    operations = {ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
                  ast.Div: lambda a, b: a // b, ast.Mod: lambda a, b: a % b}

    def value(node):
        match node:
            case ast.Constant(value=int(n)):
                return n
            case ast.BinOp() if type(node.op) in operations:
                result = operations[type(node.op)](value(node.left), value(node.right))
                if abs(result) > 10**15:
                    raise ValueError
                return result
        raise ValueError

    try:
        return str(value(ast.parse(expression.strip(), mode="eval").body))
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        return UNKNOWN


def statements(text: str) -> list[str]:
    """A script cut at line ends and semicolons outside quotes and brackets; comments and line joints are gone.

    >>> statements("a=1 # one\\nb \\\\\\n  --c; d='x;\\ny'")
    ['a=1', 'b    --c', "d='x;\\ny'"]
    """
    out, now, quote, depth, i = [], [], "", 0, 0
    while i < len(text):
        c = text[i]
        if quote:
            if c == "\\" and quote == '"' and text[i + 1:i + 2] == "\n":
                i += 2
                continue
            quote = "" if c == quote and text[i - 1:i] != "\\" else quote
            now.append(c)
        elif c in "\"'":
            quote = c
            now.append(c)
        elif c == "\\" and text[i + 1:i + 2] == "\n":
            now.append(" ")
            i += 1
        elif c == "#" and (not now or now[-1].isspace()):
            while i + 1 < len(text) and text[i + 1] != "\n":
                i += 1
        elif c in "\n;" or (c in "&|" and depth == 0):
            if depth:
                now.append(" ")
            else:
                out.append("".join(now))
                now = []
        else:
            depth += (c == "(") - (c == ")" and depth > 0)
            now.append(c)
        i += 1
    return [s.strip() for s in [*out, "".join(now)] if s.strip()]


def words(text: str) -> list[str]:
    """Words as they stand, quotes kept: what is quoted stays one word.

    >>> words('a "b c"d $((1 + 2))')
    ['a', '"b c"d', '$((1 + 2))']
    """
    return _WORDS.findall(text)
