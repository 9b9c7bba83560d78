"""Options: from files and the environment, shown by --show-config, and as sentences name them."""

import inspect
import pickle
import re
import subprocess
import tomllib

import pytest

import vpem
from vpem.checks import check_int
from vpem.errors import FileError, InputError, Setting, VpemWarning
from vpem.files.json_text import as_toml
from vpem_cli.app import command
from vpem_cli.names import is_flag, key_of, leaves, meant
from vpem_cli.options import variable_of, variables

from .cli_support import MAIN, done, kinds_of, make_data, overlapping, run
from .forks import environment, interpreter
from .mpi_support import LAUNCHER, run_cli
from .tables import each

LEAVES = list(leaves(command()))
OWN = {"config", "show-config", "help-all", "help"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a dataset."""
    make_data(tmp_path / "d.h5", n_samples=60)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(text, name="c.toml"):
    """Write a file of options; its name."""
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
    return name


def shown(capsys, *words):
    """Value and source of every option, as JSON has them and as TOML has them."""
    known = done(capsys, *words, "--show-config", "--json").json["options"]
    out = done(capsys, *words, "--show-config").out
    content = tomllib.loads(out)
    for word in words:
        if word not in content:
            break
        content = content[word]
    for name, option in known.items():
        if name != "json":
            assert content.get(name) == (None if option["value"] == [] else option["value"])
    return known


# ---- every command ------------------------------------------------------------------------------


@each(("path", "member"), LEAVES)
def test_every_command_shows_its_options_and_reads_them_again(capsys, folder, path, member):
    """What is shown with nothing given is the defaults, and as a file it says the same."""
    result = done(capsys, *path, "--show-config")
    content = tomllib.loads(result.out)
    for word in path:
        content = content[word]
    keys = {key_of(param): param for param in member.params if key_of(param) not in OWN}
    assert set(content) <= set(keys)
    for key, param in keys.items():
        assert re.search(rf"^(# )?{key} = ?.*# (default|missing)", result.out, re.MULTILINE)
        if key in content:
            assert content[key] == param.default
        else:
            assert param.default in (None, ())
    again = done(capsys, *path, "--config", written(result.out), "--show-config").out
    assert re.sub(" # .*", "", again) == re.sub(" # .*", "", result.out)
    assert result.err == ""
    if "json" in keys:
        assert done(capsys, *path, "--show-config", "--json").json["options"]


def test_no_two_options_have_the_same_variable_and_none_has_one_of_the_library():
    names = [name for path, member in LEAVES for name in variables(path, member)]
    assert len(names) == len(set(names))
    assert not set(names) & {"VPEM_INSTRUCTIONS", "VPEM_NO_OPENMP", "_VPEM_COMPLETE"}
    assert {"VPEM_FIT_COMPONENTS", "VPEM_FIT_CONFIG", "VPEM_DATA_IMPORT_AGENTS"} <= set(names)
    starts = [variable_of(path) for path, _ in LEAVES]
    assert not [(a, b) for a in starts for b in starts if a != b and b.startswith(a)]
    # Of options, a single letter is never near by spelling.
    assert meant("-n", ["json", "quiet", "new"]) == meant("xyz", []) == []
    assert meant("--n", ["samples", "json"]) == ["samples"]


def test_other_variables_are_nobodys(capsys, monkeypatch):
    """Nor do commands mind what is meant for others."""
    for name in ("VERSION", "HELP", "FIT", "INSTALL_COMPLETION", "FIT_COMPONENT", "HOPS", "CACHE"):
        monkeypatch.setenv(f"VPEM_{name}", "1.2")
    assert shown(capsys, "score")["json"]["value"] is True


# ---- order --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variable", "words"), [("SEED", ["--seed", "3"]), ("OUTPUT", [])])
def test_a_variable_without_its_command_is_told_of_where_nothing_sets_the_option(
    capsys, tmp_path, monkeypatch, variable, words
):
    monkeypatch.setenv(f"VPEM_{variable}", "5")
    line = ["fit", make_data(tmp_path / "d.h5"), "-k", 2, "--hops", 0]
    assert (
        f"has VPEM_{variable}, which sets no option; that of 'vpem fit' is VPEM_FIT_{variable}\n"
    ) in done(capsys, *line).err
    if words:
        assert "which sets no option" not in done(capsys, *line, *words).err
    assert "which sets no option" not in done(capsys, "fit", "--help").err


def test_command_line_environment_file_default(capsys, folder, monkeypatch):
    file = written('[fit]\nhops = 1\ncomponents = 3\ntopology = "cycle"\nmax_iter = 7\n')
    monkeypatch.setenv("VPEM_FIT_HOPS", "2")
    monkeypatch.setenv("VPEM_FIT_COMPONENTS", "4")
    monkeypatch.setenv("VPEM_FIT_SEED", "")
    known = shown(capsys, "fit", "d.h5", "--config", file, "-k", "5")
    found = {name: (o["value"], o["source"], o["from"]) for name, o in known.items()}
    assert found["components"] == ("5", "command line", None)
    assert found["hops"] == (2, "environment", "VPEM_FIT_HOPS")
    assert found["topology"] == ("cycle", "file", "c.toml")
    assert found["max-iter"] == (7, "file", "c.toml")
    assert found["seed"] == (0, "default", None)
    assert found["data"] == (["d.h5"], "command line", None)
    assert found["json"][1] == "command line"


def test_a_command_runs_as_if_the_words_were_typed(capsys, folder, monkeypatch):
    """The file may be what was shown, or be named by a variable, and hold several commands."""
    words = ["-k", "3", "--topology", "path", "--hops", "1", "--max-iter", "4", "--tol", "1.0"]
    typed = done(capsys, "fit", "d.h5", *words, "--json", "-q").json
    written(done(capsys, "fit", "d.h5", *words, "--show-config").out, "shown.toml")
    written('[fit]\ndata = ["d.h5"]\ncomponents = 3\ntopology = "path"\nmax-iter = 4\ntol = 1\n'
            'json = true\nquiet = true\n[data.simulate]\nsamples = 20\n[score]\n')  # fmt: skip
    shown = done(capsys, "fit", "--config", "shown.toml", "--json").json
    monkeypatch.setenv("VPEM_FIT_HOPS", "1")
    told = done(capsys, "fit", "--config", "c.toml").json
    for name in ("log_likelihood", "hops", "topology", "n_iter", "mixing_weights"):
        assert told[name] == typed[name] == shown[name]
    monkeypatch.setenv("VPEM_DATA_SIMULATE_CONFIG", "c.toml")
    done(capsys, "data", "simulate", "-o", "s.h5")
    assert done(capsys, "data", "describe", "s.h5", "--json").json["n_samples"] == 20
    # What was typed needs no source, and help answers whatever the file holds.
    monkeypatch.setenv("VPEM_FIT_SEED", "3")
    for hops in ("-1", "x"):
        assert " is from " not in run(capsys, "fit", "d.h5", "--hops", hops).sentence
    assert done(capsys, "fit", "--help", "--config", "nowhere.toml").out.startswith("Usage")


def test_flags_are_turned_off_again(capsys, folder, monkeypatch):
    written("[fit]\njson = true\nquiet = true\n")
    monkeypatch.setenv("VPEM_FIT_STRICT", "true")
    words = ("fit", "d.h5", "--config", "c.toml", "--no-strict", "--no-quiet")
    known = shown(capsys, *words)
    assert (known["strict"]["value"], known["quiet"]["value"]) == (False, False)
    monkeypatch.setenv("VPEM_FIT_JSON", "0")
    assert "json = false" in done(capsys, *words, "--show-config").out
    monkeypatch.delenv("VPEM_FIT_JSON")
    assert "# vpem fit" in done(capsys, *words, "--show-config").out, "JSON only if typed"
    assert "Components" in done(capsys, *words, "--no-json", "--max-iter", "2").out


def test_options_that_repeat(capsys, folder, monkeypatch):
    words = ("predict", "t.h5", "t.csv")
    monkeypatch.setenv("VPEM_PREDICT_INDIVIDUAL", "a b")
    assert shown_lists(capsys, *words) == ["a", "b"]
    monkeypatch.delenv("VPEM_PREDICT_INDIVIDUAL")
    for text, wanted in (('["a", "c d"]', ["a", "c d"]), ('"a b"', ["a b"]), ("3", ["3"])):
        written(f"[predict]\nindividual = {text}\n")
        assert shown_lists(capsys, *words, "--config", "c.toml") == wanted
    assert shown_lists(capsys, *words, "--config", "c.toml", "--individual", "z") == ["z"]


def shown_lists(capsys, *words):
    """The individuals, as shown."""
    out = done(capsys, *words, "--show-config").out
    return tomllib.loads(out)["predict"]["individual"]


# ---- what is refused ----------------------------------------------------------------------------


@each(
    ("words", "option", "value", "said"),
    [
        (("fit", "d.h5", "--max-iter", "1"), "decimal", ".", "is about numbers that are written"),
        (("data", "describe", "d.h5"), "encoding", "latin-1", "is about text, such as CSV"),
        (("topology", "describe", "cycle", "-n", "4"), "na", "?", "is about the data, but none"),
        (("impute", "d.h5", "-r", "1"), "na", "?", "are words in text"),
        (("predict", "m.h5", "d.h5", "--json"), "digits", "4", "is for CSV, and none is written"),
    ],
)
def test_how_text_is_read_may_be_said_for_several_runs(
    capsys, folder, monkeypatch, words, option, value, said
):
    done(capsys, "fit", "d.h5", "-o", "m.h5", "--force", "-q")
    leaf = words[: 1 + (words[0] in ("data", "topology"))]
    assert run(capsys, *words, f"--{option}", value).sentence.startswith(f"--{option} {said}")
    config = ("--config", written(f"[{'.'.join(leaf)}]\n{option} = '{value}'\n"))
    for more, origin in ((config, "file c.toml"), ((), f"environment {variable_of(leaf, option)}")):
        if not more:
            monkeypatch.setenv(variable_of(leaf, option), value)
        told = done(capsys, *words, *more).err
        assert told.count(f"warning: --{option} ") == 1
        assert f"warning: --{option} {said}" in told
        assert f"; --{option} is from {origin}\n" in told


def test_what_was_shown_before_some_options_went_still_loads(capsys, folder):
    """They had no effect, and have no help now."""
    done(capsys, "fit", "d.h5", "-o", "m.h5", "-q")
    written(
        "[kmeans]\ndigits = 7\n[evaluate]\nsecure-sum = false\n[model.contribution]\ndigits = 7\n"
    )
    options = {"kmeans d.h5": "digits 7", "model contribution m.h5 d.h5": "digits 7",
               "evaluate m.h5 d.h5": "secure-sum"}  # fmt: skip
    for words, gone in options.items():
        assert "digits" not in done(capsys, *words.split(), "--config", "c.toml").err
        assert run(capsys, *words.split(), *f"--{gone}".split()).code == 2
        assert f"--{gone.split()[0]}" not in done(capsys, *words.split(), "--help-all").out


# ---- TOML ---------------------------------------------------------------------------------------

VALUES = [True, False, 0, -3, 1e-7, 1.0, float("inf"), 10**20, "", "plain", 'a"b\\c', "größe 身長",
          "\x00\x1b\x7f\n\t", "\U0001f600", ["a", "b c"], [1, 2]]  # fmt: skip


@each("value", VALUES)
def test_what_is_written_is_read(value):
    assert tomllib.loads(f"x = {as_toml(value)}")["x"] == value


def test_names_of_files_stay_in_their_line(capsys, folder):
    name = "c\n[score].toml"
    written("[fit]\nhops = 1\n", name)
    out = done(capsys, "fit", "x\n#.h5", "--config", name, "--show-config").out
    assert tomllib.loads(out)["fit"]["data"] == ["x\n#.h5"]
    assert set(tomllib.loads(out)) == {"fit"}


# ---- ranks --------------------------------------------------------------------------------------


RANKS = '[fit]\nengine = "mpi"\nagents = 3\nmax-iter = 2\ntol = 1\nquiet = true\njson = true\n'


def test_ranks_join_when_a_file_or_a_variable_says_so(folder):
    found = run_cli(2, "fit", "d.h5", "--config", written(RANKS))
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.count('"ranks": 2') == 1
    # Only ranks that have joined know which of them speaks.
    found = run_cli(2, "fit", "d.h5", "--show-config", VPEM_FIT_ENGINE="mpi")
    assert (found.returncode, found.stdout.count("[fit]")) == (0, 1)


def test_ranks_that_were_told_differently_end_with_one_sentence(folder):
    python = [interpreter(), "-c", MAIN, "fit", "d.h5", "--config", written(RANKS)]
    words = [LAUNCHER, "-n", "1", *python, ":", "-n", "1", "env", "VPEM_FIT_HOPS=1", *python]
    found = subprocess.run(
        words, capture_output=True, text=True, timeout=300, check=False, env=environment(),
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert found.returncode == 2
    assert found.stderr.count("error:") == 1
    assert (
        "--hops is set differently: rank 0 has nothing (default), rank 1 has 1 (environment "
        "VPEM_FIT_HOPS); give it on the command line" in found.stderr
    )


# ---- suggestions --------------------------------------------------------------------------------


def misspelt():
    """Every command, with those of its options that no command before has, or with its last."""
    before = set()
    for path, member in LEAVES:
        options = [one for one in member.params if one.param_type_name == "option"]
        fresh = [one for one in options if one.opts[0] not in before]
        for one in fresh or options[-1:]:
            yield path, member, max(one.opts, key=len)
        before |= {one.opts[0] for one in options}


@each(("path", "member", "option"), list(misspelt()))
def test_every_command_suggests_the_option_that_was_meant(capsys, path, member, option):
    known = {opt for each in member.params for opt in each.opts}
    wrong = option + "x" if len(option) < 5 or option[:-1] in known else option[:-1]
    result = run(capsys, *path, wrong)
    assert result.code == 2
    assert result.sentence.startswith(f"no such option: {wrong} (did you mean '--")
    assert result.sentence.endswith(f"; see 'vpem {' '.join(path)} --help'")


# ---- names of users -----------------------------------------------------------------------------


@pytest.fixture
def named(tmp_path, monkeypatch, capsys):
    """The working directory: a dataset, a table, a matrix, curves, a model."""
    monkeypatch.chdir(tmp_path)
    make_data("d.h5", n_samples=40)
    cells = [f"{o},{i},{j},{(i * j + o) % 5}" for o in range(2) for i in range(6) for j in range(4)]
    curves = [f"s{i},{t},{i + t + 0.1 * ((7 * i + t) % 5)}" for i in range(5) for t in range(4)]
    for name, head, lines in (
        ("t", "a,b", ["1,2", "3,5"]), ("m", "observer,row,column,value", cells),
        ("c", "id,time,value", curves),
    ):  # fmt: skip
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *lines]) + "\n")
    done(capsys, "fit", "d.h5", "-q", "-o", "model.h5", "--max-iter", 500)
    return tmp_path


# ---- names of parameters, in a shell ------------------------------------------------------------

WORDS = {
    "fit": "d.h5", "select": "d.h5 -k 1,2", "bootstrap": "d.h5", "discriminant": "d.h5",
    "kmeans": "d.h5 --workers 2",
    "fedem": "d.h5 --workers 2", "impute": "m.csv", "saem": "c.csv",
    "predict": "model.h5 d.h5", "score": "model.h5 d.h5", "sample": "model.h5",
    "model contribution": "model.h5 d.h5", "model merge": "model.h5 d.h5",
    "outcomes": "d.csv d.h5 --outcome 0",
    "plot": "model.h5 -o p.png",
    "data simulate": "-o s.h5", "data split": "d.h5 -o parts",
    "data import": "t.csv -o t.h5", "topology describe": "cycle --agents 3",
    "plan": "cycle --agents 3",
    "party init": "--name lab", "party renew": "d.h5", "study init": "heart --star h:1",
    "study show": "d.h5 --matrix",
    "party check": "d.h5",
}  # fmt: skip
"""What commands need besides; those without an entry take no numbers."""


def numeric():
    """Yield every option of every command that takes a number."""
    for path, member in LEAVES:
        for param in member.params:
            option = param.param_type_name == "option" and not is_flag(param)
            if option and kinds_of(member, param) & {int, float}:
                yield path, param


@each(("path", "param"), list(numeric()))
def test_a_number_out_of_range_is_named_by_its_option(capsys, named, path, param):
    words = WORDS[" ".join(path)].split()
    result = run(capsys, *path, *words, param.opts[-1], "-1")
    assert result.code == 2
    assert any(f"{word} " in result.sentence for word in param.opts), result.sentence


# ---- names of parameters, in Python -------------------------------------------------------------

NEEDS = {
    "inner": {"variance_reduction": True},
    "step_size": {"batch_size": 10},
    "n_rounds": {"graph": "cycle"},
    "consensus_tol": {"graph": "cycle"},
    "link_failure": {"graph": "cycle"},
    "agent_dropout": {"graph": "cycle"},
    "stragglers": {"graph": "cycle"},
}
"""Other parameters, with which these are looked at."""

NO_DEFAULT = (
    "agents", "batch_size", "step_size", "inner", "alpha", "n_epochs", "floor", "variance",
    "n_rounds", "max_iter", "random_state", "n_threads", "workers",
)  # fmt: skip
"""Numbers that are something else by default."""


def numbers():
    """Yield every parameter of every estimator that takes a number."""
    for name in ("VPEM", "DistributedGaussianMixture", "DistributedKMeans", "FedEM", "FedMissEM"):
        for one in inspect.signature(getattr(vpem, name)).parameters.values():
            plain = isinstance(one.default, int | float) and not isinstance(one.default, bool)
            if plain or one.name in NO_DEFAULT:
                yield name, one.name


@each(("name", "parameter"), list(numbers()))
def test_a_number_out_of_range_is_named_by_its_parameter(name, parameter):
    kind = getattr(vpem, name)
    known = inspect.signature(kind).parameters
    asked = {"workers": 2} if "workers" in known else {}
    asked |= {key: value for key, value in NEEDS.get(parameter, {}).items() if key in known}
    with pytest.raises(ValueError, match=rf"\b{parameter}\b") as caught:
        kind(**{**asked, parameter: -1}).fit(overlapping(40, 6)[0])
    assert "--" not in str(caught.value)


def test_sentences_in_parts():
    for kind in (InputError, FileError, VpemWarning):
        told = kind("m.h5 exists; pass ", Setting("force", True), " to replace ", "it")
        assert str(told) == "m.h5 exists; pass force=True to replace it"
        assert told.args == (str(told),)
        assert told.sentence_with(lambda setting: f"--{setting.name}") == str(told).replace(
            "force=True", "--force"
        )
        assert pickle.loads(pickle.dumps(told)).parts == told.parts
    with pytest.raises(InputError) as caught:
        check_int("levels of qsgd", 0, least=1)
    assert not any(isinstance(part, Setting) for part in caught.value.parts)


# ---- what was meant -----------------------------------------------------------------------------
