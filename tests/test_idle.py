"""Settings that would have no effect are refused, in a shell and in Python."""

import numpy as np
import pytest

from vpem import Dataset, InputError, connect, fit_vpem, kmeans_features, make_graph, write_dataset
from vpem.network.partition import contiguous

from .cli_support import ROOT, done, overlapping, run
from .tables import each

BOYS, DOSES = (ROOT / "data" / f"{name}.csv" for name in ("oxford_boys", "theophylline"))
CYCLE = ("--topology", "cycle")
TREE = ("--sum", "tree")
CODED = ("--compress", "natural:12bits")
GRID = ("--split", "features", "--method", "grid")
HELD = ("--workers", 4)
FED = ("--workers", 4, "--max-iter", 5)
HELDOUT = ("--criterion", "heldout")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("idle") / "d.h5"
    write_dataset(path, Dataset(overlapping(n_samples=60, n_features=4)[0], tuple("abcd")))
    return path


@pytest.mark.parametrize(
    ("command", "words", "instead"),
    [
        ("fit", ("--rounds", 7), (*CYCLE, "--rounds", 70)),
        ("fit", ("--weights", "laplacian"), (*CYCLE, "--weights", "laplacian")),
        ("fit", ("--acceleration", "none"), (*CYCLE, "--acceleration", "none")),
        ("fit", ("--consensus-tol", "1e-3"), (*CYCLE, "--consensus-tol", "1e-3")),
        ("fit", ("--consensus", "rounds"), (*CYCLE, "--consensus", "rounds")),
        ("fit", (*CYCLE, "--rounds", 70, "--consensus-tol", "1e-6"), (*CYCLE, "--rounds", 70)),
        ("fit", (*CYCLE, *TREE, "--rounds", 70), (*CYCLE, *TREE)),
        ("fit", (*CYCLE, *TREE, "--weights", "metropolis"), (*CYCLE, *TREE)),
        ("fit", (*CYCLE, *CODED, "--consensus-tol", "1e-3"), (*CYCLE, *CODED, "--max-iter", 3)),
        ("fit", ("--graph-seed", 3), ("--topology", "geometric", "--graph-seed", 3)),
        ("fit", (*CYCLE, "--graph-seed", 3), (*CYCLE, "--hops", 1, "--graph-seed", 3)),
        ("fit", ("--force",), ()),
        ("fit", ("--n-init", 2, "--init-rows", "1,9"), ("--n-init", 2)),
        ("fit", ("--init", "kmeans", "--init-rows", "1,9"), ("--init", "kmeans")),
        ("fit", ("--split", "rows", "--hops", 0), ("--hops", 0)),
        ("fit", ("--workers", 2), ("--split", "rows", "--workers", 2)),
        ("kmeans", ("--agents", 2), ("--split", "features", "--agents", 2)),
        ("kmeans", ("--init", "random", "--init-rows", "1,9"), ("--init", "random")),
        ("kmeans", (*GRID, "--n-init", 3), (*GRID, "--n-init", 5)),
        ("kmeans", ("--workers", 4, "--graph-seed", 3), ("--workers", 4)),
        ("kmeans", (*HELD, "--agent-dropout", 0.1), (*HELD, "--participation", 0.9)),
        ("kmeans", (*HELD, *CYCLE, "--rounds", 3, "--participation", 0.9), HELD),
        ("fedem", ("--init", "random", "--init-rows", "1,9"), ("--init", "random")),
        ("fedem", (*FED, "--alpha", 0.5), (*FED, "--participation", 0.5, "--alpha", 0.5)),
        ("fedem", (*FED, "--memory", "zero"), (*FED, "--compress", "float32", "--memory", "zero")),
        ("fedem", (*FED, *CYCLE, *CODED, "--alpha", 0.5), (*FED, *CYCLE, *CODED)),
        ("select", ("-k", 1, "--folds", 5), ("-k", 1, *HELDOUT, "--folds", 5)),
        ("select", ("-k", 1, "--one-standard-error"), ("-k", 1, *HELDOUT, "--one-standard-error")),
        ("select", ("-k", 1, "--rounds", 9), ("-k", 1)),
    ],
)
@pytest.mark.filterwarnings("ignore::vpem.errors.VpemWarning")
def test_an_option_without_effect_is_refused(command, words, instead, file, capsys):
    option = next(word for word in words if str(word).startswith("--") and word not in CYCLE)
    told = run(capsys, command, file, *words)
    assert told.code == 2
    assert told.out == ""
    named = [word for word in words if str(word).startswith("--")]
    assert any(told.sentence.startswith(f"{word} ") for word in named), (option, told.sentence)
    assert "leave" in told.sentence or "add --split" in told.sentence or "needs" in told.sentence
    jobs = ("--jobs", 1) if command == "select" else ()
    done(capsys, command, file, *instead, *jobs, "--quiet")


@each(
    "words",
    [
        ("saem", BOYS, "--tol", 0, "--window", 9),
        ("saem", BOYS, "--force"),
        ("saem", BOYS, "--quote-formulas", "-o", "boys.h5"),
        ("saem", DOSES, "--model", "one-compartment", "--curve", "logistic"),
        ("saem", DOSES, "--model", "one-compartment", "--random", "ka", "--covariance", "full"),
        ("impute", "data.h5", "--quote-formulas", "-o", "imputed.h5"),
        ("predict", "model.h5", "data.h5", "--force"),
        ("predict", "model.h5", "data.h5", "--quote-formulas", "--json"),
        ("sample", "model.h5", "--quote-formulas", "-o", "drawn.h5"),
        ("model", "export", "model.h5", "--quote-formulas", "-o", "model.npz"),
        ("topology", "describe", "cycle", "-n", 5, "--graph-seed", 3),
        ("topology", "describe", "cycle", "-n", 5, "--force"),
        ("topology", "describe", "star", "-n", 5, "--rounds", 9),
        ("topology", "describe", "cycle", "-n", 5, *TREE, "--eigenvalue", "estimated"),
        ("topology", "describe", "cycle", "-n", 5, *CODED, "--consensus-tol", 0.1),
        ("select", "data.h5", "--force"),
    ],
)
def test_before_any_file_is_read(words, capsys):
    found = run(capsys, *words)
    assert (found.code, found.out) == (2, "")
    assert any(word in found.sentence for word in ("leave it out", "leave some out", "to estimate"))
    assert "does not exist" not in found.sentence


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
