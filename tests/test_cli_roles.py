"""No result takes the place of an input, or of another result, by whatever name."""

import re
import typing
from pathlib import Path
from types import SimpleNamespace

import pytest

import vpem_cli.app
from vpem.errors import FileError
from vpem_cli import names, outputs
from vpem_cli.names import leaves

from .cli_support import done, listing, make_data, run
from .tables import each

COMMANDS = {" ".join(path): leaf for path, leaf in leaves(vpem_cli.app.command())}
NAMES_PLACES = {"align", "curve", "dataset", "data fetch name", "engine", "fix", "participation",
                "plot kind", "sample_weight", "weights"}  # fmt: skip
"""Options whose help speaks of files, and which name none."""


def name_of(param):
    return max(param.opts, key=len) if param.param_type_name == "option" else names.name_of(param)


@each("command", COMMANDS)
def test_every_option_that_is_a_file_says_whether_it_is_written(command):
    leaf = COMMANDS[command]
    known, hints = leaf.callback.roles, typing.get_type_hints(leaf.callback)
    for param in leaf.params:
        kind = str(hints.get(param.name, Path if param.name == "config" else ""))
        speaks = re.search(r"\bfiles?\b", param.help or "") and "str" in kind
        named = {param.name, f"{command} {param.name}"} & NAMES_PLACES
        if "Path" in kind or (speaks and not named):
            assert param.name in known, f"vpem {command}: {name_of(param)} has no role"


# ---- all pairs ----------------------------------------------------------------------------------


def words_of(leaf, one, first, two, second):
    """A command line in which two options name these files, and all that must be given is."""
    words = []
    known = leaf.callback.roles
    for param in leaf.params:
        value = {one.name: first, two.name: second}.get(param.name)
        if value is None and (param.required or param.param_type_name == "argument"):
            name = "wine" if "copy" in leaf.name else "htru2"
            value = f"other-{param.name}.h5" if param.name in known else name
        if value is None:
            continue
        words += [value] if param.param_type_name == "argument" else [name_of(param), value]
    return words


def pairs_of(leaf):
    """Pairs of options of which the first is written and the second is read or written."""
    known = leaf.callback.roles
    named = [p for p in leaf.params if p.name in known and known[p.name] is not outputs.FOLDER]
    for one in named:
        for two in named:
            goes_on = known[two.name].goes_on_in == name_of(one)
            if known[one.name].writes and one is not two and not goes_on and two.name != "study":
                yield one, two


@pytest.fixture
def aside(tmp_path, monkeypatch):
    """The working directory, with other names for one file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / "link").symlink_to("../it.toml")


@each("command", [name for name in COMMANDS if list(pairs_of(COMMANDS[name]))])
def test_no_option_takes_the_place_of_another(capsys, tmp_path, aside, command):
    leaf = COMMANDS[command]
    force = ["--force"] if any("--force" in param.opts for param in leaf.params) else []
    for place, (one, two) in enumerate(pairs_of(leaf)):
        written = leaf.callback.roles[two.name].writes
        told = "are one file; give two names" if written else "is the input"
        # A file that options are read from is looked at before anything else.
        there = place % 3 < 2 or two.name == "config"
        Path("it.toml").write_text("") if there else Path("it.toml").unlink(missing_ok=True)
        before = listing(tmp_path)
        words = words_of(
            leaf, one, ("aside/../it.toml", "aside/link")[place % 3 > 0], two, "it.toml"
        )
        result = run(capsys, *command.split(), *words, *force)
        assert result.code == 2, words
        assert told in result.sentence, words
        for option in (one, two):
            assert name_of(option).lower() in result.sentence.lower()
        assert listing(tmp_path) == before


@each("name", ["it.h5", "{}/it.h5", "hard.h5"])
def test_names_of_one_file(capsys, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    if not (tmp_path / "it.h5").exists():
        make_data(tmp_path / "it.h5")
        (tmp_path / "hard.h5").hardlink_to("it.h5")
    before = listing(tmp_path)
    result = run(capsys, "data", "repack", "it.h5", "-o", name.format(tmp_path), "--force")
    assert (result.code, "is the input it.h5 (SOURCE)" in result.sentence) == (2, True)
    assert listing(tmp_path) == before


# ---- files that no option names as they are -----------------------------------------------------


def begin(leaf, *words):
    """Hold the files of a command line against each other; nothing is run."""
    with leaf.make_context("fit", list(words)) as context:
        outputs.begin(context, leaf.callback.roles)


@pytest.mark.parametrize("name", ["c", "c.before", "c.rank1", "c.rank1.before", ".c.rank1.part"])
def test_no_file_of_a_checkpoint_is_another(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    leaf = COMMANDS["fit"]
    if name != "c":
        begin(leaf, name, "--checkpoint", "c")
    two = SimpleNamespace(engine=SimpleNamespace(size=2))
    monkeypatch.setattr("vpem_cli.session.joined", lambda: two)
    with pytest.raises(FileError, match=re.escape(f"{name} is the input {name} (DATA) itself")):
        begin(leaf, name, "--checkpoint", "c")
    with pytest.raises(FileError, match="are one file"):
        begin(leaf, "d.h5", "--checkpoint", "c", "-o", name)


def test_where_letters_count_for_nothing_results_differ_in_more(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("d.h5", "-o", "Caf\u00e9.h5", "--checkpoint", "CAFE\u0301.h5")
    begin(COMMANDS["fit"], *words)
    monkeypatch.setattr("vpem.files.opening.ignores_case", lambda folder: True)
    with pytest.raises(FileError, match="are one file"):
        begin(COMMANDS["fit"], *words)


def test_a_model_goes_on_in_its_own_file_and_in_no_picture(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_data(tmp_path / "d.h5")
    words = ("d.h5", "--workers", "3", "--max-iter", "2", "-q", "--force")
    done(capsys, "fedem", *words, "-o", "m.h5")
    done(capsys, "fedem", *words, "-o", "m.h5", "--init-model", "m.h5")
    before = listing(tmp_path)
    result = run(capsys, "fedem", *words, "--plot", "m.h5", "--init-model", "m.h5")
    assert (result.code, "is the input" in result.sentence) == (2, True)
    assert listing(tmp_path) == before


def test_a_file_that_a_variable_or_another_file_names_is_one_too(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all.toml").write_text('[fit]\ngraph = "g.json"\n')
    before = listing(tmp_path)
    result = run(capsys, "fit", "d.h5", "--config", "all.toml", "-o", "g.json", "--force")
    assert result.code == 2
    assert result.sentence == (
        "--output g.json is the input g.json (--graph) itself; write to another name; --graph is "
        "from file all.toml"
    )
    monkeypatch.setenv("VPEM_FIT_CHECKPOINT", "all.toml")
    result = run(capsys, "fit", "d.h5", "--config", "all.toml", "--force")
    assert "--checkpoint is from environment VPEM_FIT_CHECKPOINT" in result.sentence
    assert listing(tmp_path) == before


@pytest.mark.parametrize("name", ["x" * 5000, "loop", "nowhere/x.h5"])
def test_names_that_are_none_are_not_the_same(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    begin(COMMANDS["fit"], "d.h5", "-o", name)
    with pytest.raises(FileError, match="is the input"):
        begin(COMMANDS["fit"], name, "-o", name)


def test_files_of_a_checkpoint_may_take_each_others_places_meanwhile(tmp_path):
    kept, before = tmp_path / "run.ckpt", tmp_path / "run.ckpt.before"
    kept.write_text("state")
    before.hardlink_to(kept)  # as another process finds them that looks at one after the other
    outputs._uses.clear()
    outputs.writes("--checkpoint", kept, before)
    with pytest.raises(FileError, match="are one file"):
        outputs.writes("--output", before)
    outputs._uses.clear()
