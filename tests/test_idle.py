"""Settings that would have no effect are refused, in a shell and in Python."""

import numpy as np
import pytest

from vpem import Dataset, InputError, connect, fit_vpem, kmeans_features, make_graph, write_dataset
from vpem.network.holdings import contiguous

from .cli_support import done, overlapping, run

CYCLE = ("--topology", "cycle")
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
        ("fit", ("--n-init", 2, "--init-rows", "1,9"), ("--n-init", 2)),
        ("fit", ("--init", "kmeans", "--init-rows", "1,9"), ("--init", "kmeans")),
        ("fit", ("--split", "rows", "--hops", 0), ("--hops", 0)),
        ("fit", ("--workers", 2), ("--split", "rows", "--workers", 2)),
        ("kmeans", ("--agents", 2), ("--split", "features", "--agents", 2)),
        ("kmeans", ("--init", "random", "--init-rows", "1,9"), ("--init", "random")),
        ("fedem", ("--init", "random", "--init-rows", "1,9"), ("--init", "random")),
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
        with pytest.raises(InputError, match="n_init starts anew from other rows"):
            recipe(X, network, init=[1, 9], n_init=2)
