"""Bad input to every command there is: exit 2, one line on stderr, no traceback, no hang.

Numbers that cannot be meant are tried on every numeric option, files that cannot be meant on every argument. A value
that might be meant (0 for a seed) may also be answered; then the rules for answers hold: 0 or 1, and stderr quiet.
"""

import time

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paralelo.cli import command, main
from paralelo.cli.frame import Number, Whole

GROUP = command("en")
COMMANDS = {name: GROUP.get_command(None, name) for name in GROUP.list_commands(None)}
TAKES_FILES = [n for n, c in COMMANDS.items() if any(isinstance(p, click.Argument) for p in c.params)]
STARTS_PROCESSES = {"doctor", "links"}
NEVER = ["", "x", "nan", "-nan", "inf", "-inf", "1e400", "0x10", "1_0", "9" * 5000, "½", "1,5", "٣٫٥", "\x00", "a\nb",
         "[]", "--"]
ODD = ["0", "-1", "1", "7", "1000000007", "999999999999999", "-999999999999999"]
FILES = {
    "empty": b"", "binary": bytes(range(256)) * 4, "not utf-8": b'{"a": "\xff\xfe"}', 
    "truncated": b'{"hidden_size": 51',
    "deep": b"[" * 100_000 + b"]" * 100_000, "list": b"[1, 2]", "number": b"3", "null": b"null", "string": b'"x"',
    "types": b'{"hidden_size": "many", "num_hidden_layers": [], "num_attention_heads": null, "vocab_size": {}}',
    "nan": b'{"hidden_size": NaN, "num_hidden_layers": Infinity, "num_attention_heads": -Infinity}',
    "zero": b'{"model_type": "llama", "hidden_size": 0, "num_hidden_layers": 0, "num_attention_heads": 0}',
    "absurd": b'{"model_type": "llama", "hidden_size": 1e300, "num_hidden_layers": 999999999999999999}',
    "long number": b'{"hidden_size": ' + b"9" * 6000 + b"}", "nul": b"\x00" * 100, "bom": b"\xef\xbb\xbf{}",
}


def numeric(param):
    return isinstance(param, click.Option) and (isinstance(param.type, Number | Whole)
                                                or param.type in (click.INT, click.FLOAT))


def rules_hold(argv, capsys, must_refuse=False):
    begin = time.process_time()                      # work, whatever else the machine does
    code = main(argv)
    out, err = capsys.readouterr()
    assert code in ((2,) if must_refuse else (0, 1, 2)), (argv, code)
    if code == 2:
        assert out == "" and err.startswith("paralelo: ") and err.count("\n") == 1 and len(err) < 700, (argv, out, err)
    assert "Traceback" not in err
    assert time.process_time() - begin < 20, argv
    return code


def good(made, tmp_path):
    """Arguments that a command could take, as far as its parameters tell."""
    file = tmp_path / "config.json"
    file.write_bytes(b'{"model_type": "llama", "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4, '
                     b'"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000}')
    argv = []
    for param in made.params:
        if isinstance(param, click.Argument):
            argv.append("1f1b" if made.name == "schedule" else str(file))
        elif param.required:
            argv += [param.opts[0], "4"]
    return argv


@pytest.mark.parametrize("name", COMMANDS)
def test_numbers_that_cannot_be_meant(name, capsys, tmp_path):
    made = COMMANDS[name]
    for param in filter(numeric, made.params):
        for value in NEVER:
            rules_hold([name, *good(made, tmp_path), f"{param.opts[0]}={value}"], capsys, must_refuse=True)


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - STARTS_PROCESSES))
def test_numbers_that_are_odd(name, capsys, tmp_path):
    made = COMMANDS[name]
    for param in filter(numeric, made.params):
        for value in ODD:
            rules_hold([name, *good(made, tmp_path), f"{param.opts[0]}={value}"], capsys)


@pytest.mark.parametrize("name", TAKES_FILES)
def test_files_that_cannot_be_meant(name, capsys, tmp_path):
    made = COMMANDS[name]
    bad = {"missing": tmp_path / "missing", "folder": tmp_path, "under a file": tmp_path / "config.json" / "x"}
    for kind, content in FILES.items():
        bad[kind] = tmp_path / (kind.replace(" ", "_") + ".json")
        bad[kind].write_bytes(content)
    for kind, path in bad.items():
        argv = good(made, tmp_path)
        at = next(i for i, p in enumerate(p for p in made.params if isinstance(p, click.Argument)))
        argv[at] = str(path)
        rules_hold([name, *argv], capsys, must_refuse=kind not in ("types", "zero", "folder"))
    for value in ("", "\x00", "a\nb", "x" * 5000):
        argv = good(made, tmp_path)
        argv[0] = value
        rules_hold([name, *argv], capsys, must_refuse=True)


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - STARTS_PROCESSES))
def test_missing_and_surplus(name, capsys, tmp_path):
    made = COMMANDS[name]
    full = good(made, tmp_path)
    for cut in range(len(full)):
        rules_hold([name, *full[:cut]], capsys, must_refuse=True)
    rules_hold([name, *full, "--no-such-option"], capsys, must_refuse=True)
    rules_hold([name, *full, "surplus", "more"], capsys)


words = st.one_of(st.sampled_from([*NEVER, *ODD, "1f1b", "zb-v", "dualpipe-v", "--stages", "--microbatches", "--chunks",
                                   "--slow", "1=2", "=", "1=", "--json", "--lang", "es", "4", "8", "2"]),
                  st.text(max_size=8))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(words, max_size=8))
def test_any_words_after_schedule(capsys, argv):
    if any(a.startswith(("--svg", "--me", "--sv", "--m")) and not a.startswith("--mi") for a in argv):
        return                                          # would write files of any name
    rules_hold(["schedule", *argv], capsys)


def test_absurd_sizes_are_refused_with_the_limit(capsys):
    for S, M in ((10**6, 10**6), (4_000_001, 1), (1, 10**14)):
        begin = time.process_time()
        assert main(["schedule", "1f1b", "--stages", str(S), "--microbatches", str(M)]) == 2
        assert "4,000,000" in capsys.readouterr().err and time.process_time() - begin < 2
