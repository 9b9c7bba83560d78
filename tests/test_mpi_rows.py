"""Commands over rows find on MPI ranks what one process does."""

import json
import os
import shutil
import signal
from itertools import pairwise

import h5py
import numpy as np
import pytest

from vpem.errors import FileError
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.matrix import FileMatrix
from vpem.files.models import read_model
from vpem.fits.local_rows import read_rows

from .cli_support import done, make_data
from .forks import MAIN
from .mpi_support import run_cli
from .test_cli_checkpoints import check_same_file
from .test_mpi_parties import begin, launch, ranks_of, wait_for


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("mpi") / "data.h5")


WORKERS = ("--workers", "4", "--topology", "cycle", "--seed", "2", "--json")


@pytest.mark.parametrize(
    ("n_ranks", "words", "names"),
    [
        (
            3,
            ("fit", "--split", "rows", "--memory-limit", "1K"),
            ("log_likelihood", "bic", "mixing_weights", "history"),
        ),
        (2, ("kmeans", "-k", "3", "--memory-limit", "1K"), ("inertia", "cluster_sizes", "history")),
        (2, ("fedem", "--batch-size", "9", "--max-iter", "9"), ("log_likelihood", "mean_field")),
    ],
)
def test_commands_over_ranks(n_ranks, words, names, data, tmp_path, capsys):
    words = (words[0], data, *words[1:], *WORKERS)
    ours = run_cli(n_ranks, *words, "--engine", "mpi", "-o", tmp_path / "ours.h5")
    assert ours.returncode == 0, ours.stderr
    theirs = done(capsys, *words, "-o", tmp_path / "theirs.h5").json
    found = json.loads(ours.stdout)
    assert (found.pop("engine"), found.pop("ranks")) == ("mpi", n_ranks)
    handed = found.pop("handed")
    kinds = theirs["communication"]["by_kind"]
    assert handed["estep"]["between_agents"] == kinds["estep"]["bytes"]
    assert theirs.pop("engine") == "simulator"
    assert set(found) == set(theirs)
    assert found["communication"] == theirs["communication"]
    for name in names:
        np.testing.assert_allclose(found[name], theirs[name], rtol=1e-9)
    if words[0] != "kmeans":
        one, other = (read_model(tmp_path / name) for name in ("ours.h5", "theirs.h5"))
        np.testing.assert_allclose(one.mixture.means, other.mixture.means, rtol=1e-9)
        return
    with h5py.File(tmp_path / "ours.h5") as one, h5py.File(tmp_path / "theirs.h5") as other:
        np.testing.assert_array_equal(one["labels"][()], other["labels"][()])
        np.testing.assert_allclose(one["centres"][()], other["centres"][()], rtol=1e-9)


def test_a_rank_without_workers_takes_part_in_labels(data, tmp_path, capsys):
    words = ("fedem", data, "--workers", "2", "--max-iter", "3")
    ours = run_cli(3, *words, "--engine", "mpi", "--labels", tmp_path / "ours.csv")
    assert ours.returncode == 0, ours.stderr
    done(capsys, *words, "--labels", tmp_path / "theirs.csv")
    assert (tmp_path / "ours.csv").read_text() == (tmp_path / "theirs.csv").read_text()


# ---- parties that hold rows ----------------------------------------------------------------------


def cut_rows(data, home):
    """Cut a dataset into rows of three parties, features in an order of their own."""
    whole = read_dataset(data)
    names = np.array(whole.feature_names)
    ends = [0, whole.n_samples // 2, whole.n_samples // 2 + 9, whole.n_samples]
    for number, (first, last) in enumerate(pairwise(ends)):
        order = np.roll(np.arange(len(names)), number)
        part = Dataset(whole.X[first:last, order], tuple(names[order]))
        write_dataset(home / f"party{number}.h5", part)
    return [f"party{number}.h5" for number in range(3)]


@pytest.mark.parametrize("held", [[[0], [1], [2]], [[0], [1, 2]], [[0], [1], [2], []]])
def test_parties_with_rows_of_their_own(held, data, tmp_path, monkeypatch, capsys):
    files = cut_rows(data, tmp_path)
    folders = []
    for rank, parties in enumerate(held):
        folders.append(tmp_path / f"rank{rank}")
        folders[-1].mkdir()
        for number in parties:
            shutil.copy(tmp_path / files[number], folders[-1])
    asked = ("fit", *files, "--parties", "--split", "rows", "--topology", "path", "--seed", "2",
             "--max-iter", "6", "--tol", "0", "--json")  # fmt: skip
    ended = launch(folders, "-c", MAIN, *asked, "--engine", "mpi", "-o", "model.h5")
    assert ended.returncode == 0, ended.stderr
    monkeypatch.chdir(tmp_path)
    theirs = done(capsys, *asked, "-o", "model.h5").json
    found = json.loads(ended.stdout)
    for name in ("communication", "worker_rows", "worker_names", "feature_names", "init_rows"):
        assert found[name] == theirs[name]
    for name in ("history", "log_likelihood", "mixing_weights", "bic"):
        np.testing.assert_allclose(found[name], theirs[name], rtol=1e-10)
    one, other = (read_model(path / "model.h5") for path in (folders[0], tmp_path))
    np.testing.assert_allclose(one.mixture.means, other.mixture.means, rtol=1e-10)


def test_parties_with_other_features_end_alike(data, tmp_path):
    files = cut_rows(data, tmp_path)
    last = read_dataset(tmp_path / files[2])
    write_dataset(tmp_path / files[2], Dataset(last.X[:, 1:], last.feature_names[1:]), True)
    asked = ("fit", *files, "--parties", "--split", "rows", "--engine", "mpi")
    ended = launch([tmp_path] * 3, "-c", MAIN, *asked)
    lines = [line for line in ended.stderr.splitlines() if line.startswith("vpem: ")]
    assert ended.returncode == 2
    assert len(lines) == 1
    assert f"party 'party2' has no feature {last.feature_names[0]!r}" in lines[0]


# ---- checkpoints ---------------------------------------------------------------------------------


LONG = {
    "fit": ("--split", "rows", "-k", "2", "--tol", "0", "--max-iter", "150", "--rounds", "9"),
    "kmeans": ("-k", "7", "--n-init", "9", "--init", "random"),
    "fedem": ("--variance-reduction", "--participation", "0.7", "--max-iter", "80"),
}


@pytest.mark.parametrize(
    ("name", "ending"),
    [("fit", signal.SIGKILL), ("kmeans", signal.SIGKILL), ("fedem", signal.SIGTERM)],
)
def test_kill_and_go_on(name, ending, data, tmp_path):
    model, file, last = tmp_path / "m.h5", tmp_path / "run.ckpt", tmp_path / "run.ckpt.rank1"
    asked = (name, data, *LONG[name], "--workers", "4", "--topology", "cycle", "--seed", "3",
             "--engine", "mpi", "--threads", "1", "-q")  # fmt: skip
    kept = ("--checkpoint", file, "--checkpoint-every", "1", "--resume-if-any", "-o", model)
    whole = run_cli(2, *asked, "-o", tmp_path / "whole.h5")
    assert whole.returncode == 0, whole.stderr
    job = begin(2, *asked, *kept)
    wait_for(job, last, 3)
    os.kill(ranks_of(file)[-1], ending)
    _, err = job.communicate(timeout=60)
    assert job.returncode != 0
    assert not model.exists()
    if ending == signal.SIGTERM:
        assert job.returncode == 143, err
        assert f"is in {file}: give" in err
    ended = run_cli(2, *asked, *kept)
    assert ended.returncode == 0, ended.stderr
    check_same_file(tmp_path / "whole.h5", model)


def test_shards_are_of_features(data):
    words = ("fit", data, "--split", "rows", "--workers", "4", "--engine", "mpi", "--shards")
    ended = run_cli(1, *words)
    lines = [line for line in ended.stderr.splitlines() if line.startswith("vpem: ")]
    assert ended.returncode == 2
    assert len(lines) == 1
    assert "every worker's model has all features; leave it out" in lines[0]


def test_of_a_file_only_rows_that_are_wanted_are_kept(tmp_path):
    X = np.arange(600_000.0).reshape(-1, 2)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = X
    rng = np.random.default_rng(0)
    groups = [np.sort(rng.choice(len(X), 500, replace=False)), np.arange(9), np.empty(0, int)]
    wanted = np.concatenate([X[group] for group in groups])
    matrix = FileMatrix(tmp_path / "x.h5", read_bytes=1)
    assert matrix.step < len(X)
    np.testing.assert_array_equal(read_rows(matrix, groups), wanted)
    with pytest.raises((FileError, ValueError, RuntimeError)):
        matrix[:1]
    np.testing.assert_array_equal(read_rows(X, groups), wanted)
