"""Rules: options and settings that exclude each other, or have no effect, in a shell and in Python.

Every rule of every command is tried: among the values that options can take a command line is
searched for that breaks this rule and no other one before it; it is refused with the sentence of
the rule. Most are refused before a file is read; rules that depend on the data or the model are
tried on small ones.
"""

from functools import cache
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest

import vpem_cli
from vpem import (
    Dataset,
    InputError,
    connect,
    fit_vpem,
    kmeans_features,
    make_graph,
    read_dataset,
    write_dataset,
)
from vpem.network.partition import contiguous
from vpem.records import refused
from vpem.rules import OF_COMMANDS, ROWS, algorithm_of
from vpem.saem.formats import fits
from vpem_cli.app import command
from vpem_cli.commands.individuals import SHOWN
from vpem_cli.names import in_options, is_flag, leaves, name_of
from vpem_cli.options import rules_of

from .cli_support import done, kinds_of, overlapping, run
from .tables import each

TREE = {" ".join(path): leaf for path, leaf in leaves(command())}

RULES = {}
"""By sentence: a command, the name of a parameter, and when the rule holds."""
for _path, _leaf in TREE.items():
    # A study is read while the command line is parsed: tests/test_tls_cli.py has its rule.
    _names = {param.name for param in _leaf.params} - {"study"}
    for _name, _rules in rules_of(_leaf).items():
        for _when, _why in _rules if _name in _names else ():
            RULES.setdefault((_name, _why), []).append((_path, _when))

OTHERS = {
    "random": ["ka", "ka,cl"], "init_rows": ["1,9"], "bounds": ["0,1"], "hops": ["1"],
    "n_components": ["2-4", "3"], "output": ["x.h5", "x.csv"], "n_clusters": [3],
    "memory_limit": ["2G"], "init": ["random"], "encoding": ["latin-1"], "thousands": ["'"],
    "features": ["3"], "na": ["?"], "agents": [2],
}  # fmt: skip
"""Values of options that know none of their own."""


BESIDE = {SHOWN[1]: {"model": "lda", "vocabulary": "words.txt"}}
"""Further options without which another rule of a setting comes first."""


FITTED = {"data": "rows.h5", "source": "rows.h5", "files": "rows.h5", "model": "mixture.h5"}
OF_SAEM = ["predict", "score", "plot", "report"]
SITUATIONS = [
    ([], {}, {}),
    ([], {"data": [Path("data.h5")]}, {"data": "data.h5"}),
    ([], {"data": [Path("-")]}, {"data": "-"}),
    ([], {"data": None}, {}),
    (["topology describe"], {"source": "cycle"}, {"source": "cycle"}),
    (["topology describe"], {"source": "rows.h5"}, {"source": "rows.h5"}),
    ([], {"format": "hdf5"}, FITTED),
    (["impute"], {"format": "entries"}, {"data": "entries.csv"}),
    ([], {"holds": "rows"}, FITTED),
    ([], {"holds": "rows", "classes": False}, FITTED | {"model": "clusters.h5"}),
    (OF_SAEM, {"holds": "individuals", "classes": False, "curves": True},
     {"model": "growth.h5", "data": "growth.csv"}),
    (OF_SAEM, {"holds": "individuals", "classes": True, "curves": False},
     {"model": "classes.h5", "data": "growth.csv"}),
    (OF_SAEM, {"holds": "documents", "classes": False, "curves": False},
     {"model": "topics.h5", "data": "topics.csv"}),
    (["plot", "report"], {"holds": "entries"}, {"model": "filled.h5", "data": "rows.h5"}),
    (["plot"], {"holds": "iterates"}, {"model": "run.jsonl"}),
    (["plot"], {"holds": "iterates", "data": [Path("run.h5")]},
     {"model": "run.jsonl", "data": "run.h5"}),
    (["plot"], {"holds": "rows", "shows_labels": False, "shows_data": False}, FITTED),
    (["plot"], {"holds": "individuals", "classes": False, "curves": True, "shows_labels": False,
                "shows_data": False}, {"model": "growth.h5", "data": "growth.csv"}),
    ([], {"apart": True}, None),
]  # fmt: skip
"""Of some commands or all: what rules may ask about, and arguments of which it is true.

None: ranks of a job, of which tests/test_mpi.py has some.
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data and fits of every kind."""
    home = tmp_path_factory.mktemp("rules")
    X = overlapping(n_samples=60, n_features=4)[0]
    write_dataset(home / "rows.h5", Dataset(X, tuple("abcd")))
    entries = "\n".join(f"o,{i},{j},{i + j % 3}" for i in range(6) for j in range(4))
    (home / "entries.csv").write_text(f"observer,row,column,value\n{entries}\n")
    curves = "\n".join(
        f"{i},{t},{i % 2 + t + 0.1 * (i * t % 7)}" for i in range(8) for t in range(3)
    )
    (home / "growth.csv").write_text(f"id,time,value\n{curves}\n")
    words = "\n".join(f"{i},w{j},{1 + (i + j) % 3}" for i in range(8) for j in range(5))
    (home / "topics.csv").write_text(f"document,word,count\n{words}\n")
    quick = ("--iterations", 20, "--quiet", "-o")
    for words in (
        ("fit", home / "rows.h5", "-q", "--max-iter", 3, "-o", home / "mixture.h5"),
        ("fit", home / "rows.h5", "-q", "--max-iter", 3, "--trace", home / "run.jsonl"),
        ("fit", home / "rows.h5", "-q", "--max-iter", 3, "--trace", home / "run.h5"),
        ("kmeans", home / "rows.h5", "-q", "-o", home / "clusters.h5"),
        ("impute", home / "entries.csv", "-r", 1, "-q", "-o", home / "filled.h5"),
        ("saem", home / "growth.csv", *quick, home / "growth.h5"),
        ("saem", home / "growth.csv", "--model", "gmm", *quick, home / "classes.h5"),
        ("saem", home / "topics.csv", "--model", "lda", "-k", 2, *quick, home / "topics.h5"),
    ):
        assert vpem_cli.run([str(word) for word in words]) == 0
    return home


def values_of(leaf, param):
    """Values that an option may be given, apart from its default."""
    setting = leaf.callback.settings.get(param.name)
    if is_flag(param):
        return [not param.default]
    if param.name in OTHERS:
        numbers = kinds_of(leaf, param) <= {int, float}
        return [one for one in OTHERS[param.name] if not numbers or one != "2-4"]
    words = [word for word in (setting.choices or setting.words if setting else ())
             if word != param.default]  # fmt: skip
    if words:
        return [*words, param.default]  # which may be given too
    kinds = kinds_of(leaf, param)
    if kinds & {int, float} or (setting and setting.least is not None):
        usual = 0.5 if float in kinds else 1
        least = usual if setting is None or setting.least is None else setting.least
        most = 100 if setting is None or setting.most is None else setting.most
        if isinstance(param.default, int) or (least == int(least) and float not in kinds):
            several = [int(least), int(least) + 1, int(least) + 2]
        else:
            several = [least, (least + min(most, least + 1)) / 2]
        return [one for one in several if one != param.default and one <= most]
    return [f"{param.name}.x"]


def broken(rules, given, states):
    """The first rule that a command line breaks: the name of its parameter, and why."""
    for known in states:
        for name, several in rules.items():
            for when, why in several if name in given else ():
                if when(known):
                    return name, why
    return None


ASKED = set()
"""Names of settings that rules have looked at."""


class Noted(dict):
    """Values of settings, of which those that are looked at are noted."""

    def get(self, name, default=None):
        ASKED.add(name)
        return super().get(name, default)

    def __getitem__(self, name):
        ASKED.add(name)
        return super().__getitem__(name)


@cache
def parts_of(path):
    """Of a command: rules of its options, options, its usual values, and those of each option."""
    leaf = TREE[path]
    of_leaf = rules_of(leaf)
    rules = {param.name: of_leaf[param.name] for param in leaf.params if param.name in of_leaf}
    options = {param.name: param for param in leaf.params if param.param_type_name == "option"}
    usual = {param.name: param.default for param in leaf.params}
    usual |= {param.name: f"{param.name}.h5" for param in leaf.params if param.required}
    usual |= {name: [Path("x")] for name in ("data", "files") if usual.get(name)}
    return rules, options, usual, {one: values_of(leaf, options[one]) for one in options}


def lines_of(path, name, why, n_more):
    """Command lines that break one rule, with so many more options, of those that rules ask about.

    With each come the arguments of the situation that it needs.
    """
    leaf, (rules, options, usual, single) = TREE[path], parts_of(path)
    others = [one for one in options if one in ASKED and one not in (name, "study")]
    names = {param.name for param in leaf.params if param not in options.values()}
    optional = {param.name for param in leaf.params if not param.required}
    for only, facts, arguments in SITUATIONS:
        lacking = {one for one, fact in facts.items() if fact is None} - optional
        asked = {"data", "source"} & {*facts}
        if (n_more == 2 and facts) or path not in (only or [path]) or lacking or not asked <= names:
            continue
        if arguments and (names.isdisjoint(arguments) or "file" in names):  # of a study
            continue
        files = names & {"data", "files"} & {*(arguments or ())}
        named = usual | {one: [Path(arguments[one])] for one in files}
        named |= {one: facts[one] for one in names & {*facts}}
        for more in combinations(others, n_more):
            choices = [[(name, value) for value in single[name]]]
            choices += [[(one, value) for value in single[one]] for one in more]
            for given in map(dict, product(*choices)):
                given = BESIDE.get(why, {}) | given
                values = Noted({**named, **given})
                values["algorithm"] = algorithm_of(leaf.name, values)
                known = [values, Noted({**values, **facts})] if facts else [values]
                holds = any(when(known[-1]) for when, said in rules[name] if said == why)
                if holds and broken(rules, given, known) == (name, why):
                    yield given, arguments


def words_of(leaf, given, arguments):
    words = []
    for param in leaf.params:
        if param.name in given:
            value = given[param.name]
            flag = name_of(param)
            words += [flag if value else f"--no-{flag[2:]}"] if is_flag(param) else [flag, value]
        elif param.name in arguments or param.required:
            words += [name_of(param)] * (param.param_type_name == "option")
            words.append(arguments.get(param.name, f"{param.name}.h5"))
    return words


read_saem = cache(fits.read_saem)  # commands are refused on the same few files


@each("rule", RULES)
def test_what_a_rule_excludes_is_refused_with_its_sentence(rule, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(fits, "read_saem", read_saem)
    name, why = rule
    tried = False
    for path, _ in RULES[rule]:
        leaf = TREE[path]
        ASKED.clear()
        # With two more options only where no command breaks it with fewer.
        simplest = (next(lines_of(path, name, why, n_more), None) for n_more in range(3 - tried))
        given, arguments = next(filter(None, simplest), (None, None))
        tried |= given is not None
        if arguments is None:  # not with the options of this command, or ranks of a job
            continue
        found = run(capsys, *path.split(), *words_of(leaf, given, arguments))
        param = next(one for one in leaf.params if one.name == name)
        assert (found.code, found.out) == (2, ""), (path, given)
        said = in_options(refused(name_of(param), why)).replace(
            "MODEL", str(arguments.get("model"))
        )
        assert found.sentence.replace("MODEL", str(arguments.get("model"))) == said, (path, given)
    assert tried, f"no command line breaks the rule of {name}: {why}"


LACKING = [
    (path, row) for row in ROWS for path, algorithms in OF_COMMANDS.items()
    if all(row.when({"algorithm": one, "command": path}) for one in algorithms)
    and row.setting not in {param.name for param in TREE[path].params}
]  # fmt: skip
"""Rows of options that no algorithm of a command can have."""


def test_every_row_is_of_an_option_or_of_a_command_that_lacks_it():
    reached = {(name, why) for name, why in RULES} | {(row.setting, row.why) for _, row in LACKING}
    assert {(row.setting, row.why) for row in ROWS} <= reached


@each("lacking", LACKING)
def test_an_option_that_a_command_lacks_says_why(lacking, capsys):
    path, row = lacking
    flag = f"--{row.setting.replace('_', '-')}"
    found = run(capsys, path, "x", flag, "0.2")
    assert (found.code, found.out) == (2, "")
    assert found.sentence == in_options(refused(flag, row.why))


CYCLE = ("--topology", "cycle")
TREE_SUM = ("--sum", "tree")
CODED = ("--compress", "natural:12bits")
FED = ("--workers", 4, "--max-iter", 5)


@each(
    ("command", "words"),
    [
        ("fit", (*CYCLE, "--rounds", 70)),
        ("fit", (*CYCLE, "--weights", "laplacian")),
        ("fit", (*CYCLE, "--acceleration", "none")),
        ("fit", (*CYCLE, "--consensus-tol", "1e-3")),
        ("fit", (*CYCLE, "--consensus", "rounds")),
        ("fit", (*CYCLE, *TREE_SUM)),
        ("fit", (*CYCLE, *CODED, "--max-iter", 3)),
        ("fit", ("--topology", "geometric", "--graph-seed", 3)),
        ("fit", (*CYCLE, "--hops", 1, "--graph-seed", 3)),
        ("fit", ("--n-init", 2)),
        ("fit", ("--init", "kmeans")),
        ("fit", ("--split", "rows", "--workers", 2)),
        ("kmeans", ("--split", "features", "--agents", 2)),
        ("kmeans", ("--init", "random")),
        ("kmeans", ("--split", "features", "--method", "grid", "--n-init", 5)),
        ("kmeans", ("--workers", 4, "--participation", 0.9)),
        ("fedem", (*FED, "--participation", 0.5, "--alpha", 0.5)),
        ("fedem", (*FED, "--compress", "float32", "--memory", "zero")),
        ("impute", ("--method", "mixture", "--step-size", "auto", "--law", "gaussian")),
        ("impute", ("-r", 1, "--ridge", 0.1, "--reg-covar", "auto", "--components", 1)),
        ("select", ("-k", 1, "--criterion", "heldout", "--folds", 5, "--jobs", 1)),
        ("select", ("-k", 1, "--criterion", "heldout", "--one-standard-error", "--jobs", 1)),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_what_no_rule_excludes_works(command, words, file, capsys):
    done(capsys, command, file, *words, "--quiet")


def test_what_is_about_text_needs_one_file_of_text(folder, capsys, tmp_path):
    X = overlapping(n_samples=60, n_features=2)[0]
    write_dataset(tmp_path / "t.h5", Dataset(X, ("e", "f")))
    np.savetxt(tmp_path / "t.csv", X, delimiter=";", header="e;f", comments="")
    np.save(tmp_path / "t.npy", X)
    words = ("--parties", "--delimiter", ";", "--max-iter", 3, "--quiet")
    done(capsys, "fit", folder / "rows.h5", tmp_path / "t.csv", *words)
    refused_sentence = "--delimiter is about text, such as CSV, which the data are not"
    assert (
        refused_sentence
        in run(capsys, "fit", folder / "rows.h5", tmp_path / "t.h5", *words).sentence
    )
    assert len(read_dataset(tmp_path / "t.npy", na=[float(X[0, 0]), "?"]).X) == 60
    for name, value in (("delimiter", ";"), ("encoding", "latin-1"), ("no_header", True)):
        with pytest.raises(InputError, match=f"{name} is about text"):
            read_dataset(tmp_path / "t.npy", **{name: value})
    for name, value in (("decimal", ","), ("thousands", ","), ("na", "?")):
        with pytest.raises(InputError, match=f"{name} (is about|are words in)"):
            read_dataset(tmp_path / "t.npy", **{name: value})


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rules") / "d.h5"
    write_dataset(path, Dataset(overlapping(n_samples=60, n_features=4)[0], tuple("abcd")))
    return path


def test_what_is_shown_of_a_configuration_can_be_given_back(file, capsys, tmp_path):
    config = tmp_path / "fit.toml"
    config.write_text(done(capsys, "select", file, "-k", 1, "--jobs", 1, "--show-config").out)
    done(capsys, "select", "--config", config, "--quiet")


@pytest.mark.parametrize(
    "options",
    [
        {"n_rounds": 7},
        {"weights": "laplacian"},
        {"acceleration": "chebyshev"},
        {"consensus_tol": 1e-3},
        {"consensus": "rounds"},
    ],
)
def test_a_server_has_no_rounds(options):
    with pytest.raises(InputError, match=f"{next(iter(options))} is about consensus rounds"):
        connect(make_graph("star", 4), contiguous(4, 4), **options)


def test_a_start_that_is_given_needs_no_restarts():
    X = np.random.default_rng(0).normal(size=(40, 4))
    network = connect(make_graph("star", 4), contiguous(4, 4))
    for recipe in (fit_vpem, kmeans_features):
        with pytest.raises(InputError, match="n_init starts again from other rows"):
            recipe(X, network, init=[1, 9], n_init=2)
