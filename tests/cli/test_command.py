"""The command's frame: languages, help, errors of one line, completion, start-up."""

import os
import re
import subprocess
import sys
import time

import click
import pytest

from paralelo.cli import command, language, main
from paralelo.words import languages, say

LANGS = languages()
SCHEDULE = ["schedule", "1f1b", "--stages", "4", "--microbatches", "8"]


def run(*argv, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "_PARALELO"))}
    return subprocess.run([sys.executable, "-m", "paralelo.cli", *argv], capture_output=True, text=True, timeout=60,
                          encoding="utf-8", env={**clean, "PYTHONIOENCODING": "utf-8", **env})


@pytest.mark.parametrize("lang", LANGS)
def test_help_speaks_the_language(lang, capsys):
    for argv in ([], ["--help"], ["schedule", "--help"]):
        assert main(["--lang", lang, *argv]) == 0
        out = capsys.readouterr().out
        assert out.startswith(say("cli.word.usage", lang)) and say("cli.word.options", lang) + ":" in out
        if lang != "en":
            for english in ("Usage", "Options", "Commands", "Show this message", "required", "default"):
                assert english not in out
    assert main(["schedule", "--lang", lang, "--help"]) == 0
    assert say("cli.schedule", lang) in capsys.readouterr().out


def test_every_command_has_its_help_in_every_language():
    for lang in LANGS:
        group = command(lang)
        for name in group.list_commands(None):
            assert say(f"cli.{name}", lang)
            made = group.get_command(None, name)
            assert made.name == name and {"json", "lang"} <= {p.name for p in made.params}


ERRORS = [
    (["nothing"], "cli.error.no_command"),
    (["schedul"], "cli.error.no_command_near"),
    (["schedule", "1f1b", "--stages", "4"], "cli.error.missing"),
    ([*SCHEDULE, "--stagse", "2"], "cli.error.no_option_near"),
    ([*SCHEDULE, "--quux"], "cli.error.no_option"),
    ([*SCHEDULE, "more"], "cli.error.extra"),
    (["schedule", "1f1b", "--stages"], "cli.error.needs_value"),
    ([*SCHEDULE, "--json=3"], "cli.error.no_value"),
    (["schedule", "1f1b", "--stages", "x", "--microbatches", "4"], "cli.error.whole_from"),
    ([*SCHEDULE, "--forward", "nan"], "cli.error.number_above"),
    ([*SCHEDULE, "--message", "-1"], "cli.error.number_from"),
    ([*SCHEDULE, "--slow", "2"], "cli.error.slow"),
    ([*SCHEDULE, "--svg", "/nowhere/at/all.svg"], "cli.error.file"),
    ([*SCHEDULE, "--svg", "/"], "cli.error.file"),
    (["--lang", "xx", *SCHEDULE], "words.no_language"),
    (["schedule", "1f2b", "--stages", "4", "--microbatches", "8"], "pipeline.no_schedule"),
]


@pytest.mark.parametrize(("argv", "id"), ERRORS, ids=[i for _, i in ERRORS])
def test_errors_are_one_line_in_the_language(argv, id, capsys):
    """Exit 2, nothing on stdout, one line on stderr, whose fixed words are those of the language."""
    for lang in LANGS:
        ask = argv if id == "words.no_language" else [*argv[:1], "--lang", lang, *argv[1:]]
        if argv[0] in ("nothing", "schedul"):
            ask = ["--lang", lang, *argv]
        assert main(ask) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and err.startswith("paralelo: ")
        from paralelo.words import table
        sentence = table("cli" if id.startswith("cli") else id.split(".")[0], lang if id[0] != "w" else "en")
        for part in id.split(".")[1:]:
            sentence = sentence[part]
        for fixed in re.split(r"\{[^}]*\}", sentence):
            assert fixed in err, (fixed, err)


def test_language_before_after_and_from_the_locale(monkeypatch):
    assert language(["--lang", "es", "schedule"]) == language(["schedule", "--lang=es"]) == "es"
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LANG", "pt_BR.UTF-8")
    assert language([]) == "pt"
    monkeypatch.setenv("LC_ALL", "es_MX.UTF-8")
    assert language([]) == "es"
    monkeypatch.setenv("LC_ALL", "fi_FI.UTF-8")
    assert language([]) == "en"


def test_no_colour_off_a_terminal():
    done = run(*SCHEDULE)
    assert done.returncode == 0 and "\x1b" not in done.stdout and "27.3%" in done.stdout


def test_completion():
    def complete(words, at):
        return run(_PARALELO_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(at)).stdout.split()

    assert "plain,schedule" in complete("paralelo sch", 1)
    assert complete("paralelo schedule zb", 2) == ["plain,zb-h1", "plain,zb-h2", "plain,zb-v"]
    assert complete("paralelo schedule --st", 2) == ["plain,--stages"]
    for shell in ("bash", "zsh", "fish"):
        assert "_PARALELO_COMPLETE" in run(_PARALELO_COMPLETE=f"{shell}_source").stdout


def test_start_up_imports_nothing_heavy():
    """Help and a schedule import neither torch nor matplotlib nor numpy; help does not even import rich."""
    code = ("import sys; from paralelo.cli import main; main({argv}); "
            "print([m for m in {heavy} if m in sys.modules], file=sys.stderr)")
    for argv, heavy in ((["--help"], ["torch", "matplotlib", "numpy", "rich"]),
                        (SCHEDULE, ["torch", "matplotlib", "numpy"])):
        done = subprocess.run([sys.executable, "-c", code.format(argv=argv, heavy=heavy)], capture_output=True,
                              text=True, timeout=60)
        assert done.stderr.strip() == "[]"


def test_start_up_is_quick():
    """At most 0.3 s of processor time more than Python's own start."""
    def seconds(*argv):
        begin = os.times()
        subprocess.run([sys.executable, *argv], capture_output=True, timeout=60, check=True)
        end = os.times()
        return end.children_user + end.children_system - begin.children_user - begin.children_system

    ours = min(seconds("-m", "paralelo.cli", "--help") for _ in range(3))
    assert ours < 0.3


def test_reader_may_stop_early():
    process = subprocess.Popen([sys.executable, "-m", "paralelo.cli", "schedule", "1f1b", "--stages", "8",
                                "--microbatches", "4096", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(100)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(30) == 0 and err == b""


def test_errors_that_nobody_caught_are_still_one_line(capsys, monkeypatch):
    """The last net: a file that is no text, input nested too deep, memory at its end."""
    import paralelo.predict.pipeline as pipeline
    for error in (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), RecursionError(), MemoryError(),
                  PermissionError(13, "no", "x\ny")):
        def fail(*args, error=error):
            raise error
        monkeypatch.setattr(pipeline, "build", fail)
        begin = time.process_time()
        assert main(SCHEDULE) == 2 and time.process_time() - begin < 30
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("lang", LANGS)
def test_help_tells_each_default_once(lang):
    group = command(lang)
    for name in group.list_commands(None):
        made = group.get_command(None, name)
        with click.Context(made) as ctx:
            text = " ".join(made.get_help(ctx).split())
        word = say("cli.word.default", lang, default="").strip(" :")
        for entry in re.split(r" (?=--[a-z])", text):
            assert len(re.findall(rf"\b{word}\b", entry)) <= 1, (name, entry)


@pytest.mark.parametrize("argv", [SCHEDULE, ["map", "--dp", "2"], ["audit", "Qwen2.5-7B", "--pp", "4"], ["doctor"],
                                  "route --tokens 8 --experts 4 --k 1 --ranks 2".split()], ids=" ".join)
def test_no_line_of_a_pipe_ends_in_spaces(argv, capsys):
    main(argv)
    out = capsys.readouterr().out
    assert out and not [line for line in out.splitlines() if line != line.rstrip()]


def test_a_narrow_terminal_keeps_numbers_whole(monkeypatch):
    """At 60 columns numbers parted from their units, at 80 a heading was cut off."""
    import io

    from paralelo.cli.frame import Output

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "69")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", to := Terminal())
    heads = ["etapa", "capas", "parámetros", "gradientes", "optimizador", "activaciones", "total"]
    Output(False, "es").table(heads, [["0", "16", *["401.9\u00a0GB"] * 5]])
    text = to.getvalue()
    assert all(h in text for h in heads) and text.count("401.9\u00a0GB") == 5


@pytest.mark.parametrize(("argv", "name"), [
    (["plan", "no-model", "--gpus", "8"], "no-model"), (["audit", "Qwen3-0.6B", "--cluster", "moon"], "moon"),
    (["map", "--order", "dp-dp"], "dp-dp"), (["audit", "Qwen3-0.6B", "--schedule", "1f2b"], "1f2b"),
    (["read", "/nowhere/at/all.sh"], "/nowhere/at/all.sh"), (["audit", "/nowhere/moon.json"], "/nowhere/moon.json"),
    (["audit", "Qwen3-0.6B", "--cluster", "/nowhere/moon.toml"], "/nowhere/moon.toml")])
def test_names_stand_without_quotes_of_python(argv, name, capsys):
    for lang in LANGS:
        assert main([*argv, "--lang", lang]) == 2
        err = capsys.readouterr().err
        assert name in err and "'" not in err
