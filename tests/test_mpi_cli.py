"""`vpem fit --engine mpi`: the same as in one process, and how it ends where something fails."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vpem.files.data import read_dataset
from vpem.files.models import read_model
from vpem.fits.spread import own_part

from .cli_support import AGENTS, done, make_data, run
from .forks import MAIN, environment
from .mpi_support import command, run_cli, run_ranks

FAILING = Path(__file__).with_name("mpi_failing.py")

CYCLE = ("--engine", "mpi", "--topology", "path")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("mpi") / "data.h5")


def sentence(result):
    """The one line of vpem's on stderr."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("vpem: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


def failing(what, where, data, *words, n_ranks=3):
    endless = ("--tol", "0", "--max-iter", "100000", "--quiet")
    return run_ranks(n_ranks, FAILING, what, where, "fit", data, *CYCLE, *endless, *words)


@pytest.mark.parametrize(
    ("n_ranks", "more"),
    [
        (3, ("--topology", "path", "--hops", "0")),
        (2, ("--topology", "path", "--hops", "1")),
        (3, ("--topology", "complete", "--compress", "qsgd:8bits", "--link-failure", "0.05")),
        (2, ("--compress", "natural:12bits")),
    ],
)
def test_a_fit_is_that_of_one_process(n_ranks, more, data, tmp_path, capsys):
    words = ("fit", data, *more, "--json", "--seed", "2")
    # Columns are read from disk, and those that travel are kept there.
    limit = () if "--compress" in more else ("--memory-limit", "1K")
    here = ("--engine", "mpi", *limit, "-o", tmp_path / "ours.h5")
    ours = run_cli(n_ranks, *words, *here)
    assert ours.returncode == 0, ours.stderr
    theirs = done(capsys, *words, "-o", tmp_path / "theirs.h5").json
    found = json.loads(ours.stdout)
    assert found.pop("engine") == "mpi"
    assert found.pop("ranks") == n_ranks
    handed = found.pop("handed")
    kinds = theirs["communication"]["by_kind"]
    for kind in set(handed) - {"setup"}:
        assert handed[kind]["between_agents"] == kinds[kind]["bytes"]
    assert theirs.pop("engine") == "simulator"
    assert found["communication"] == theirs["communication"]
    for name in ("log_likelihood", "bic", "mixing_weights"):
        np.testing.assert_allclose(found[name], theirs[name], rtol=1e-10)
    assert set(found) == set(theirs)
    one, other = (read_model(tmp_path / name) for name in ("ours.h5", "theirs.h5"))
    np.testing.assert_allclose(one.mixture.means, other.mixture.means, rtol=1e-9)
    assert one.feature_names == other.feature_names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours.h5", "theirs.h5"]


def test_shards_hold_one_party_each_and_can_be_joined(data, tmp_path, capsys):
    words = ("fit", data, "--topology", "path", "--seed", "2", "--json")
    ended = run_cli(2, *words, "--engine", "mpi", "--shards", "-o", tmp_path / "m.h5")
    assert ended.returncode == 0, ended.stderr
    shards = sorted(tmp_path.iterdir())
    assert [path.name for path in shards] == sorted(f"m.{name}.h5" for name in AGENTS)
    again = run_cli(2, *words, "--engine", "mpi", "--shards", "-o", tmp_path / "m.h5")
    assert again.returncode == 2
    assert "exists" in sentence(again)
    whole = tmp_path / "whole.h5"
    told = done(capsys, *words, "-o", whole).json
    assert json.loads(ended.stdout)["bic"] == pytest.approx(told["bic"], rel=1e-10)
    lab = read_model(tmp_path / "m.lab.h5")
    assert lab.feature_names == ("pulse", "iron", "sugar")
    assert lab.mixture.n_features == 3
    joined = tmp_path / "joined.h5"
    done(capsys, "model", "join", *shards, "-o", joined)
    ours, theirs = read_model(joined).mixture, read_model(whole).mixture
    np.testing.assert_allclose(ours.means, theirs.means, rtol=1e-9)
    np.testing.assert_allclose(ours.assembled_covariances, theirs.assembled_covariances, atol=1e-9)
    np.testing.assert_allclose(ours.weights, theirs.weights, rtol=1e-9)
    done(capsys, "model", "show", joined)
    told = run(capsys, "model", "join", *shards[:-1], "-o", tmp_path / "x.h5").sentence
    assert told == "shards are missing: those of registry"


def test_a_rank_keeps_its_own_columns_only(data):
    whole, lazy = read_dataset(data), read_dataset(data, memory_limit=0)
    agents = SimpleNamespace(apart=True, own=[1])
    network = SimpleNamespace(agents=agents, features=[np.array([0]), np.array([4, 1])])
    for source in (lazy, whole):
        kept, _, names = own_part(source, network, None)
        assert kept.shape == (len(whole.X), 2)
        assert kept.base is None
        np.testing.assert_array_equal(kept, whole.X[:, [4, 1]])
        assert names == [whole.feature_names[4], whole.feature_names[1]]


def test_warnings_of_other_ranks_are_told_once(tmp_path):
    path = make_data(tmp_path / "data.h5")
    import h5py

    with h5py.File(path, "r+") as file:
        file["X"][:, 4] = 1.0
    ended = run_cli(3, "fit", path, *CYCLE, "--max-iter", "3")
    lines = [line for line in ended.stderr.splitlines() if "warning" in line]
    assert len(lines) == 2, ended.stderr
    assert "not converged" in lines[0]
    assert "rank 2 (lab): constant features" in lines[1]
    assert "'iron'" in lines[1]


def test_an_error_at_one_rank_ends_all_with_its_code_and_one_message(data):
    ended = failing("input", 1, data)
    assert ended.returncode == 2
    assert sentence(ended) == "vpem: error: rank 1 (registry): this cannot be used; try that"


def test_an_error_at_all_ranks_is_told_once(data):
    ended = failing("input", -1, data)
    assert ended.returncode == 2
    assert sentence(ended) == "vpem: error: this cannot be used; try that"
    ended = run_cli(2, "fit", data, "--engine=mpi", "--topologie", "star")
    assert ended.returncode == 2
    assert "no such option: --topologie" in sentence(ended)


def test_a_defect_at_one_rank_ends_all(data):
    ended = failing("defect", 2, data)
    assert ended.returncode == 1
    assert sentence(ended) == (
        "vpem: rank 2 (lab): ZeroDivisionError: a programmer was here (a defect of vpem)"
    )
    assert "in fails" in ended.stderr


def test_a_killed_rank_ends_the_job(data):
    assert failing("kill", 1, data).returncode == 9


@pytest.mark.parametrize(("where", "name"), [(0, "clinic"), (2, "lab")])
def test_a_stalled_rank_is_named(where, name, data):
    ended = failing("stop", where, data, "--timeout", "1")
    assert ended.returncode == 4
    assert f"rank {where} ({name}) has not answered for 1 s" in sentence(ended)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_to_the_launcher_end_all_ranks(number, code, data):
    endless = ("--tol", "0", "--max-iter", "100000", "--quiet")
    words = command(2, FAILING, "ready", 0, "fit", data, *CYCLE, *endless)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as job:
        assert job.stdout.readline() == "ready\n"
        job.send_signal(number)
        _, told = job.communicate(timeout=30)
    assert job.returncode == code
    lines = [line for line in told.splitlines() if line.startswith("vpem: ")]
    assert lines == ["vpem: error: interrupted; nothing was written"]


def test_as_many_ranks_as_were_asked_for(data):
    ended = run_cli(2, "fit", data, *CYCLE, "--ranks", "3")
    assert ended.returncode == 2
    assert "--ranks requires 3 ranks, but the job has 2" in sentence(ended)


@pytest.mark.parametrize("first", [True, False])
def test_a_launcher_of_another_mpi_is_found_out(first, data):
    more = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0" if first else "1"}
    words = [sys.executable, "-c", MAIN, "fit", data, *CYCLE]
    ended = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=60, check=False,
        env=environment(**more),
    )  # fmt: skip
    assert ended.returncode == 2
    if first:
        assert "started 4 processes" in sentence(ended)
        assert "mpi4py is built for another MPI" in ended.stderr
    else:
        assert not ended.stderr


def test_without_mpi4py_it_is_said_how_to_get_it(data, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    # Another test of this process may have loaded it.
    monkeypatch.delitem(sys.modules, "vpem.engines.mpi", raising=False)
    monkeypatch.delattr("vpem.engines.mpi", raising=False)
    told = run(capsys, "fit", data, "--engine", "mpi").sentence
    assert "pip install 'vpem[mpi]'" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--shards",), "--shards are named after --output"),
        (("--timeout", "-1"), "--timeout must be"),
    ],
)
def test_what_ranks_cannot_do_is_refused(words, told, data):
    assert told in sentence(run_cli(1, "fit", data, "--engine", "mpi", *words))


def test_one_rank_is_said_to_be_alone(data):
    words = ("fit", data, *CYCLE, "--max-iter", "3", "--strict", "--json")
    ended = run_cli(1, *words)
    assert ended.returncode == 3
    assert ended.stderr.splitlines()[0].startswith("one rank holds all agents; for more: mpiexec")
    assert json.loads(ended.stdout)["ranks"] == 1
    ended = run_cli(2, *words)
    assert ended.returncode == 3
    assert "one rank" not in ended.stderr
