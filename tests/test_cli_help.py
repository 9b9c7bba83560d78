"""Help answers at once, shows an example of every command, and the examples are true."""

import ast
import io
import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import vpem_cli
from vpem import connect, fit_vpem, make_graph
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.studies.logs import MessageLog
from vpem.fits.parts import shard_path, write_shard
from vpem.network.partition import contiguous
from vpem_cli import app
from vpem_cli.app import command, in_brief, often
from vpem_cli.names import key_of

from .cli_support import ROOT, done, run
from .pages_support import UNDRAWN
from .study_support import folder_of, make_study
from .tables import each, over


def commands(member, path=()):
    """Every command and group of commands: its words and its help."""
    yield path, member.help
    for name, below in getattr(member, "commands", {}).items():
        yield from commands(below, (*path, name))


HELP = dict(commands(command()))


def member_of(path):
    """A command, or a group of commands."""
    node = command()
    for name in path:
        node = node.commands[name]
    return node


def examples(path):
    """Words of the examples in a command's help."""
    lines = [line for line in HELP[path].splitlines() if line.startswith("Example: ")]
    assert lines
    return [shlex.split(line.removeprefix("Example: ")) for line in lines]


@over(path=HELP, flag=["--help", "-h", "--help-all", None])
def test_help_has_usage_options_and_an_example(capsys, path, flag):
    result = done(capsys, *path, flag) if flag else done(capsys, "help", *path)
    assert result.err == ""
    assert result.out.startswith(f"Usage: {' '.join(('vpem', *path))} ")
    assert "Example: vpem " in result.out
    assert "--help" in result.out
    assert "\x1b" not in result.out


@each("path", HELP)
def test_commands_that_need_words_say_which(capsys, path):
    needed = [one for one in member_of(path).params if one.required]
    if needed:
        result = run(capsys, *path)
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
        assert result.err.startswith(f"vpem: error: missing {needed[0].param_type_name} '")
        assert result.err.endswith(f"; see 'vpem {' '.join(path)} --help'\n")


@each("path", HELP)
def test_help_is_short_and_all_of_it_a_flag_away(capsys, monkeypatch, path):
    monkeypatch.setenv("COLUMNS", "80")
    node, text = member_of(path), done(capsys, *path, "--help").out
    whole = done(capsys, *path, "--help-all").out
    assert done(capsys, "help", "--all", *path).out == whole
    if path:
        assert text.count("\n") <= 48, path  # a screen of 50 lines, with the prompt
        assert all(len(line) <= 80 or "Example: " in line for line in text.splitlines())
    wanted = often(node)
    if wanted is None:
        assert path == () or text == whole or hasattr(node, "commands")
        return
    shown = re.findall(r"^  (?:-\w, )?--([\w-]+)", text, re.MULTILINE)
    assert shown == [key_of(one) for one in wanted]
    known = {f"--{key_of(one)}" for one in node.params if not one.hidden}
    known -= {f"--{key_of(one)}" for one in node.params if one.param_type_name == "argument"}
    assert len(set(shown) - {"output", "force", "json", "quiet"}) <= 11
    assert len(shown) <= (10 if path == ("fit",) else 14), path
    assert set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", whole, re.MULTILINE)) == known
    assert f"{len(known) - len(shown)} more options: vpem {' '.join(path)} --help-all" in text


@each(
    ("text", "told"),
    [("Maximum number of iterations.", "Maximum number of iterations."),
     ("One. Two. Default: 4. But 5.", "One.  [default: 4]"),
     ("Up to 0.5 (e.g. here), or more. Yes.", "Up to 0.5 (e.g. here), or more.")],
)  # fmt: skip
def test_help_in_brief(text, told):
    assert in_brief(text) == told


def test_every_command_is_listed_somewhere(capsys):
    rows = done(capsys, "--help-all").out.partition("Commands:\n")[2]
    assert all(f"\n  {' '.join(path)} " in f"\n{rows}" for path in HELP if path)


@each("group", [path for path in HELP if hasattr(member_of(path), "commands")])
def test_lists_of_commands_have_whole_sentences(capsys, monkeypatch, group):
    monkeypatch.setenv("COLUMNS", "80")
    rows = done(capsys, *group, "--help").out.partition("Commands:\n")[2]
    rows = rows.partition("\n\n")[0].splitlines()
    below = [path for path in HELP if len(path) == len(group) + 1 and path[:-1] == group]
    assert len(rows) == len(below)
    for path, row in zip(below, rows, strict=True):
        name, told = row.split(maxsplit=1)
        assert name == path[-1]
        assert told == HELP[path].partition("\n\n")[0]
        assert told.endswith(".")
        assert len(row) < 80


def test_only_the_command_that_is_asked_for_is_made():
    parser = app.command.__wrapped__()
    assert list(parser.commands)[:2] == ["fit", "select"]
    made = {name for name, member in parser.commands.data.items() if member is not None}
    assert made <= {"data", "model", "topology"}
    assert parser.commands["saem"] is parser.commands["saem"]
    assert parser.commands.data["fit"] is None


@each("path", HELP)
def test_flags_mean_the_same_everywhere(path):
    """Short names, and what they stand for; what is alike is called alike."""
    node = member_of(path)
    short = {"-o": "--output", "-q": "--quiet", "-k": None, "-n": None, "-j": "--jobs",
             "-h": "--help", "-V": "--version", "-r": "--rank", "-d": "--features",
             "-p": None}  # fmt: skip
    for param in getattr(node, "params", []):
        for opt in param.opts:
            if opt.startswith("-") and not opt.startswith("--"):
                assert opt in short
                assert short[opt] is None or short[opt] in param.opts
        if "--n-init" in param.opts:
            assert "--restarts" in param.opts
        if param.name in ("output", "quiet") and param.param_type_name == "option":
            assert any(not opt.startswith("--") for opt in param.opts), param.opts


@each("path", HELP)
def test_an_example_is_of_the_command_it_stands_at(path):
    for words in examples(path):
        assert words[0] == "vpem"
        assert tuple(words[1 : 1 + len(path)]) == path or path == ("model", "show")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder such as a newcomer has: datasets, smaller here, a table, a fitted model."""
    home = tmp_path_factory.mktemp("home")
    (home / "data").mkdir()
    for name, step in (("breast_cancer.h5", 6), ("wine.h5", 2)):  # some rows and features
        whole = read_dataset(ROOT / "data" / name)
        rows, names = whole.X[::3, ::step], whole.feature_names[::step]
        write_dataset(home / "data" / name, Dataset(rows, names, labels=whole.labels[::3]))
    for name, n_lines in (("oxford_boys.csv", 73), ("theophylline.csv", 56)):  # a few people
        lines = (ROOT / "data" / name).read_text().splitlines()[:n_lines]
        (home / "data" / name).write_text("\n".join(lines) + "\n")
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.standard_normal((50, 8)), np.arange(50) % 2])
    np.savetxt(home / "pulsars.csv", table, delimiter=",")
    few = ["--max-iter", "3"]
    made = [examples((name,))[0][1:] for name in ("fit", "kmeans")]  # others' examples need them
    made.append([*examples(("saem",))[0][1:], "--iterations", "60"])
    made += [["fit", "data/wine.h5", "--agents", "2", *few, "-o", "vpem.h5"],
             ["fit", "data/wine.h5", *few, "-o", "em.h5"]]  # fmt: skip
    made += [["fedem", "data/wine.h5", "--workers", "2", *few, "--tol", "0", "--seed", f"{seed}",
              "--trace", f"seed{seed}.jsonl"] for seed in range(3)]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert [vpem_cli.run([*words, "--quiet"]) for words in made] == [0] * len(made)
    (home / "fits").mkdir()
    for number in range(2):
        shutil.copy(home / "model.h5", home / f"fits/{number}.h5")
    cut_in_shards(home, ("hospital", "lab"))
    return home


def cut_in_shards(home, names):
    """Shards as ranks of MPI leave them."""
    X = np.random.default_rng(0).standard_normal((40, 4))
    network = connect(make_graph("cycle", 2), contiguous(4, 2, names), hops=0)
    fit = fit_vpem(X, network, tol=1e-2)
    for place, name in enumerate(names):
        features = [f"feature {j}" for j in network.blocks.features[place]]
        write_shard(shard_path(home / "model.h5", name), fit, place, names, features, {})


SERVING = {("relay",), ("party", "check"), ("study", "demo"), ("demo",)}
"""Commands that need others, or run long; tests of their own run them."""


@pytest.fixture(scope="module")
def meeting(tmp_path_factory):
    """Where examples of studies run: a folder with a key alone, and two with a study."""
    top = tmp_path_factory.mktemp("meeting")
    options = {"fit": {"topology": "star", "hops": 0, "components": 2, "align": "ids"}}
    made = make_study(top, "lab", options=options)["hub"].folder
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder_of(top, "lab"))
        (top / "lab" / "lab.csv").write_text("patient,iron\na,1\nb,2\n")
        assert vpem_cli.run(["party", "request", "heart.toml"]) == 0
        MessageLog("lab-heart.log").close()
        shutil.copy("lab.request", made)
        patch.chdir(folder_of(top, "alone"))
        assert vpem_cli.run(["party", "init", "--name", "hub"]) == 0
    return top


MEETING = {"party init": "new", "study init": "alone", "study approve": "hub",
           "study revoke": "hub", "study change": "hub", "party": "newer",
           "study": "hub"}  # fmt: skip
"""In which folder examples of studies run; others in that of a member."""


FEWER = {"--replicates": "9", "--draws": "2"}
"""Of what examples have many of."""


@pytest.mark.parametrize("path", [path for path in HELP if path not in SERVING], ids=" ".join)
def test_examples_run(capsys, monkeypatch, home, meeting, path):
    monkeypatch.chdir(home)
    for name, value in UNDRAWN.items():
        monkeypatch.setattr(name, value)
    if path[:1] in (("party",), ("study",)):
        monkeypatch.chdir(folder_of(meeting, MEETING.get(" ".join(path), "lab")))
        monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    for _, *words in examples(path):
        words = [FEWER.get(before, word) for before, word in pairwise(["", *words])]
        words += ["--iterations", "60"] if path == ("saem",) else []
        made = [words[place + 1] for place, word in enumerate(words) if word in ("-o", "--output")]
        there = any((home / file).exists() for file in made)
        done(capsys, *words, *(["--force"] if there else []))
        for file in made:
            assert (home / file).stat().st_size > 0


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self):
        return True


def test_the_version(capsys):
    from vpem import __version__

    for flag in ("--version", "-V"):
        assert done(capsys, flag).out == f"vpem {__version__}\n"


# ---- names in Python ----------------------------------------------------------------------------


def test_public_names_are_there_and_listed():
    import vpem

    for name in vpem.__all__:
        assert getattr(vpem, name) is not None
    assert dir(vpem) == sorted(vpem.__all__)
    tree = ast.parse(Path(vpem.__file__).read_text(encoding="utf-8"))
    typed = {
        name.name: one.module
        for one in ast.walk(tree) if isinstance(one, ast.ImportFrom) and one.module[:5] == "vpem."
        for name in one.names
    }  # fmt: skip
    assert typed == vpem._HOMES
    with pytest.raises(AttributeError, match="no attribute 'VPEN'"):
        _ = vpem.VPEN
