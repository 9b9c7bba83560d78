"""The shell on MPI ranks: the same as in one process, and how it ends where something fails."""

import csv
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from vpem.errors import FileError
from vpem.files.data import read_dataset
from vpem.files.datasets import Dataset, write_dataset
from vpem.files.matrix import FileMatrix
from vpem.files.models import read_model
from vpem.fits.local_rows import read_rows
from vpem.fits.spread import own_part

from .cli_support import AGENTS, done, make_data, run
from .forks import MAIN, environment, interpreter
from .mpi_support import LAUNCHER, command, run_cli, run_ranks
from .test_cli_checkpoints import check_same_file
from .tls_support import at_once

HERE = Path(__file__).parent
MPI = ("--engine", "mpi")
PATH = (*MPI, "--topology", "path")
FILES = tuple(f"{name}.h5" for name in AGENTS)
SHORT = ("--seed", "2", "--max-iter", "6", "--tol", "0", "--json")
WORKERS = ("--workers", "4", "--topology", "cycle", "--seed", "2", "--json")
ENDLESS = ("--tol", "0", "--max-iter", "100000", "--quiet")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A dataset, the files of its parties, shuffled and incomplete, and a key."""
    home = tmp_path_factory.mktemp("whole")
    words = ("data", "split", make_data(home / "data.h5"), "-o", home, "--shuffle", "--drop-ids",
             "0.1", "--seed", "3")  # fmt: skip
    subprocess.run(
        [interpreter(), "-c", MAIN, *map(str, words)], check=True, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    (home / "key").write_text(secrets.token_hex(32))
    return home


@pytest.fixture(scope="module")
def data(whole):
    return whole / "data.h5"


def said(stderr):
    """What vpem says on stderr: the launcher says things, too."""
    return [line for line in stderr.splitlines() if line.startswith("vpem: ")]


def sentence(result):
    """The one line of vpem's on stderr."""
    (line,) = said(result.stderr)
    return line


def compare(ours, theirs, exact, close):
    """Hold a report of ranks against that of one process."""
    found = json.loads(ours.stdout)
    for name in exact:
        assert found[name] == theirs[name], name
    for name in close:
        np.testing.assert_allclose(found[name], theirs[name], rtol=1e-9, err_msg=name)
    return found


# ---- commands on one dataset ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_ranks", "words", "close"),
    [
        (3, ("fit", *SHORT, "--topology", "path", "--hops", "1", "--memory-limit", "1K"),
         ("log_likelihood", "bic", "mixing_weights")),
        (2, ("fit", *SHORT, "--topology", "complete", "--compress", "qsgd:8bits", "--link-failure",
             "0.05"), ("log_likelihood", "bic", "mixing_weights")),
        (3, ("fit", "--split", "rows", "--memory-limit", "1K", "--max-iter", "6", *WORKERS),
         ("log_likelihood", "bic", "mixing_weights", "history")),
        (2, ("kmeans", "-k", "3", "--memory-limit", "1K", *WORKERS),
         ("inertia", "cluster_sizes", "history")),
        (3, ("fedem", "--batch-size", "9", "--max-iter", "9", *WORKERS, "--workers", "2"),
         ("log_likelihood", "mean_field")),
    ],
    ids=["columns from disk", "rounds that fail", "rows", "clusters", "an idle rank"],
)  # fmt: skip
def test_a_command_is_that_of_one_process(n_ranks, words, close, data, tmp_path, capsys):
    outputs = [("-o", tmp_path / f"{whose}.h5", "--labels", tmp_path / f"{whose}.csv")
               for whose in ("ours", "theirs")]  # fmt: skip
    words = (words[0], data, *words[1:])
    # Columns are read from disk, and those that travel are kept there.
    ours = run_cli(n_ranks, *words, *MPI, *outputs[0])
    assert ours.returncode == 0, ours.stderr
    theirs = done(capsys, *words, *outputs[1]).json
    found = compare(ours, theirs, ("communication",), close)
    assert (found["engine"], found["ranks"], theirs["engine"]) == ("mpi", n_ranks, "simulator")
    assert set(found) == {*theirs, "ranks", "handed"}
    kinds = theirs["communication"]["by_kind"]
    for kind in set(found["handed"]) - {"setup", "labels"}:
        assert found["handed"][kind]["between_agents"] == kinds[kind]["bytes"]
    assert labels_in(tmp_path / "ours.csv") == labels_in(tmp_path / "theirs.csv")
    assert len([*tmp_path.iterdir()]) == 4
    if words[0] == "kmeans":
        with h5py.File(tmp_path / "ours.h5") as one, h5py.File(tmp_path / "theirs.h5") as other:
            np.testing.assert_array_equal(one["labels"][()], other["labels"][()])
            np.testing.assert_allclose(one["centres"][()], other["centres"][()], rtol=1e-9)
        return
    one, other = (read_model(tmp_path / name) for name in ("ours.h5", "theirs.h5"))
    np.testing.assert_allclose(one.mixture.means, other.mixture.means, rtol=1e-9)
    assert one.feature_names == other.feature_names


def test_shards_hold_one_party_each_and_can_be_joined(data, tmp_path, capsys):
    words = ("fit", data, "--topology", "path", *SHORT)
    ended = run_cli(2, *words, *MPI, "--shards", "-o", tmp_path / "m.h5")
    assert ended.returncode == 0, ended.stderr
    shards = sorted(tmp_path.iterdir())
    assert [path.name for path in shards] == sorted(f"m.{name}.h5" for name in AGENTS)
    again = run_cli(2, *words, *MPI, "--shards", "-o", tmp_path / "m.h5")
    assert again.returncode == 2
    assert "exists" in sentence(again)
    compare(ended, done(capsys, *words, "-o", tmp_path / "whole.h5").json, (), ("bic",))
    lab = read_model(tmp_path / "m.lab.h5")
    assert lab.feature_names == ("pulse", "iron", "sugar")
    assert lab.mixture.n_features == 3
    done(capsys, "model", "join", *shards, "-o", tmp_path / "joined.h5")
    ours, theirs = (read_model(tmp_path / f"{name}.h5").mixture for name in ("joined", "whole"))
    for name in ("means", "weights", "assembled_covariances"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), 1e-9, 1e-9)
    done(capsys, "model", "show", tmp_path / "joined.h5")
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


def test_warnings_of_all_ranks_are_told_once_and_one_rank_is_said_to_be_alone(tmp_path):
    path = make_data(tmp_path / "data.h5")
    with h5py.File(path, "r+") as file:
        file["X"][:, 4] = 1.0
    for n_ranks in (1, 2):
        ended = run_cli(n_ranks, "fit", path, *PATH, "--max-iter", "3", "--strict", "--json")
        assert ended.returncode == 3
        lines = [line for line in ended.stderr.splitlines() if "warning" in line]
        assert len(lines) == 2, ended.stderr
        unconverged, constant = sorted(lines, key=lambda line: "constant" in line)
        assert "not converged" in unconverged
        who = "rank 1 (registry to lab): " if n_ranks == 2 else ""
        assert f"{who}constant features" in constant
        assert "'iron'" in constant
        alone = ended.stderr.startswith("one rank holds all agents; for more: mpiexec")
        assert alone == (n_ranks == 1)


# What is MPI's own are sums and values of all kinds, of which fits and rows make use; all that
# suites have runs on threads (see test_engines.py). The sixth rank holds nothing.
@pytest.mark.parametrize(("n_ranks", "suites"), [(2, ("sums", "fits", "rows")), (6, ("sums",))])
def test_suites_of_engines(n_ranks, suites):
    ended = run_ranks(n_ranks, "-m", "mpi4py", HERE / "over_all.py", *suites, timeout=300)
    assert ended.returncode == 0, ended.stderr
    told = [line.split() for line in ended.stdout.splitlines()]
    assert [word for word, number in told if int(number) > 0] == [
        {"sums": "checked"}.get(suite, "compared") for suite in suites
    ]


# ---- how it ends ---------------------------------------------------------------------------------

FAILING = """
import os, signal, sys
from mpi4py import MPI
import vpem_cli
from vpem.errors import InputError
from vpem.steps import em

what, where, expect, calls = sys.argv[1], int(sys.argv[2]), em.expect, []

def fails(*arguments, **options):
    calls.append(1)
    if len(calls) == 3 and where in (-1, MPI.COMM_WORLD.Get_rank()):
        if what == "input":
            raise InputError("this cannot be used; try that")
        if what == "defect":
            raise ZeroDivisionError("a programmer was here")
        if what == "ready":
            print("ready", flush=True)
        number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}.get(what)
        if number is not None:
            os.kill(os.getpid(), number)
    return expect(*arguments, **options)

em.expect = fails
vpem_cli.main(sys.argv[3:])
"""
"""A command in whose third E-step something happens, at one rank (-1: at all)."""


@pytest.mark.parametrize(
    ("what", "where", "code", "told"),
    [
        ("input", 1, 2, "error: rank 1 (registry to lab): this cannot be used; try that"),
        ("input", -1, 2, "error: this cannot be used; try that"),
        ("defect", 1, 1, "rank 1 (registry to lab): ZeroDivisionError: a programmer was here (a "
         "defect of vpem)"),
        ("kill", 1, 9, None),
    ],
)  # fmt: skip
def test_whatever_happens_ends_all_with_one_message(what, where, code, told, data):
    ended = run_ranks(2, "-c", FAILING, what, where, "fit", data, *PATH, *ENDLESS)
    assert ended.returncode == code
    assert told is None or sentence(ended).startswith(f"vpem: {told}")
    assert what != "defect" or "in fails" in ended.stderr


def test_a_rank_that_does_not_answer_is_named(data):
    """Of three, two are heard of. Both jobs wait at once."""
    words = ("fit", data, *PATH, *ENDLESS, "--timeout", "1")
    jobs = [partial(run_ranks, max(2, at + 1), "-c", FAILING, "stop", at, *words) for at in (0, 2)]
    for ended, who in zip(at_once(jobs), ("0 (clinic)", "2 (lab)"), strict=True):
        assert ended.returncode == 4
        assert sentence(ended).startswith(f"vpem: error: rank {who} has not answered for 1 s")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_to_the_launcher_end_all_ranks(number, code, data):
    words = command(2, "-c", FAILING, "ready", 0, "fit", data, *PATH, *ENDLESS)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as job:
        assert job.stdout.readline() == "ready\n"
        job.send_signal(number)
        _, told = job.communicate(timeout=120)
    assert job.returncode == code
    assert said(told) == ["vpem: error: interrupted; nothing was written"]


@pytest.mark.parametrize(
    ("n_ranks", "words", "told"),
    [
        (2, ("--topologie", "star"), "no such option: --topologie"),
        (2, ("--ranks", "3"), "--ranks requires 3 ranks, but the job has 2"),
        (1, ("--shards",), "--shards are named after --output"),
        (1, ("--timeout", "-1"), "--timeout must be"),
        (1, ("--split", "rows", "--workers", "4", "--shards"), "every worker's model has all feat"),
    ],
)
def test_what_ranks_cannot_do_is_refused(n_ranks, words, told, data):
    ended = run_cli(n_ranks, "fit", data, *MPI, *words)
    assert ended.returncode == 2
    assert told in sentence(ended)


@pytest.mark.parametrize("first", [True, False])
def test_a_launcher_of_another_mpi_is_found_out(first, data):
    more = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0" if first else "1"}
    words = [interpreter(), "-c", MAIN, "fit", str(data), *PATH]
    ended = subprocess.run(
        words, capture_output=True, text=True, timeout=180, env=environment(**more)
    )
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
    assert "pip install 'vpem[mpi]'" in run(capsys, "fit", data, *MPI).sentence


# ---- parties whose files are at their own ranks only ---------------------------------------------


def apart(whole, home, *held):
    """Directories, one a rank, each with the files of its own parties and the key."""
    folders = []
    for rank, parties in enumerate(held):
        folders.append(home / f"rank{rank}")
        folders[-1].mkdir(parents=True)
        for file in ("key", *(f"{party}.h5" for party in parties)):
            shutil.copy(whole / file, folders[-1])
    return folders


def launch(folders, *words):
    """Run the same words on a rank in each folder."""
    command = [LAUNCHER]
    for folder in folders:
        command += [":"] * (len(command) > 1)
        command += ["-n", "1", "-wdir", str(folder), interpreter(), *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=180, env=environment(),
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def labels_in(path):
    """Who the rows of a table are, and what they belong to."""
    with open(path, newline="") as file:
        return [(row["id"], row["label"]) for row in csv.DictReader(file)]


def told(ended):
    """What was said on stderr, but for what the launcher says."""
    return [line for line in ended.stderr.splitlines() if not line.startswith("Abort(")]


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ([["clinic"], ["registry", "lab"]],
         ("--topology", "star", "--align", "hmac", "--align-key", "key")),
        ([["clinic"], ["registry"], ["lab"], []],
         ("--topology", "path", "--hops", "1", "--align", "ids", "--missing-parties")),
    ],
    ids=["two at a rank", "an idle rank"],
)  # fmt: skip
def test_a_fit_of_parties_is_that_of_one_process(capsys, monkeypatch, whole, tmp_path, held, words):
    folders = apart(whole, tmp_path, *held)
    asked = ("fit", *FILES, "--parties", *words, *SHORT, "--labels", "l.csv", "--force")
    ended = launch(folders, "-c", MAIN, *asked, *MPI, "-o", "model.h5")
    assert ended.returncode == 0, ended.stderr
    monkeypatch.chdir(whole)
    alone = done(capsys, *asked)
    expected = alone.json
    assert told(ended) == alone.err.splitlines()
    found = compare(
        ended, expected,
        ("alignment", "communication", "hubs", "feature_names", "n_iter", "warnings"),
        ("history", "log_likelihood", "mixing_weights", "bic"),
    )  # fmt: skip
    assert read_model(folders[0] / "model.h5").report["alignment"] == expected["alignment"]
    for folder, parties in zip(folders, held, strict=True):
        tables = [f"l.{name}.csv" for name in parties]
        left = {"key", *(f"{name}.h5" for name in parties), *tables}
        assert {path.name for path in folder.iterdir()} - {"model.h5"} == left
        for name in tables:
            assert labels_in(folder / name) == labels_in(whole / name)
    counted = expected["communication"]["by_kind"]
    if "path" in words:
        for kind in ("estep", "labels"):
            assert found["handed"][kind]["between_agents"] == counted[kind]["bytes"]


def test_a_model_is_used_where_the_data_are(capsys, monkeypatch, whole, tmp_path):
    """Each rank has the model and its party's file, and writes what became of its own rows."""
    folders = apart(whole, tmp_path, *([name] for name in AGENTS[::-1]), [])
    monkeypatch.chdir(whole)
    fitted = ("fit", *FILES, "--parties", "--align", "ids", "--topology", "path", "--hops", "1")
    done(capsys, *fitted, "--max-iter", "5", "-o", "model.h5", "--force")
    for folder in folders:
        shutil.copy(whole / "model.h5", folder)
    asked = ("predict", "model.h5", *FILES[::-1], "--parties", "--align", "ids", "-o", "labels.csv")
    ended = launch(folders, "-c", MAIN, *asked, *MPI)
    assert ended.returncode == 0, ended.stderr
    alone = done(capsys, *asked, "--force")
    lines = told(ended)
    ours = [line for line in lines if "of their hub" not in line and "labels." not in line]
    assert ours == alone.err.splitlines()[:-1]
    assert sum("rows took no part" in line for line in lines) == 3
    assert any("registry sends" in line or "sends registry" in line for line in lines)
    together = dict(labels_in(whole / "labels.csv"))
    for folder, name in zip(folders, AGENTS[::-1], strict=False):
        rows = labels_in(folder / f"labels.{name}.csv")
        assert [who for who, _ in rows] == read_dataset(folder / f"{name}.h5").ids.tolist()
        assert all(label == together.get(who, "") for who, label in rows)
    assert not any((folder / "labels.csv").exists() for folder in folders)


def test_patterns_of_a_manifest_and_sets_that_stay_private(capsys, monkeypatch, whole, tmp_path):
    folders = apart(whole, tmp_path, *([name] for name in AGENTS))
    level = "psi"
    try:
        import private_set_intersection.python  # noqa: F401
    except ImportError:
        level = "ids"
    text = (
        '[[party]]\nname = "one"\nfile = "clin*.h5"\n'
        '[[party]]\nname = "two"\nfile = "2*.csv"\nids = "who"\n'
        '[[party]]\nname = "three"\nfile = "l*.h5"\ncolumns = ["iron", "pulse"]\n'
    )
    source = read_dataset(folders[1] / "registry.h5")
    (folders[1] / "registry.h5").unlink()
    lines = [f"{i},{x!r}" for i, x in zip(source.ids, source.X[:, 0].tolist(), strict=True)]
    everything = tmp_path / "all"
    everything.mkdir()
    for number, part in enumerate((lines[:50], lines[50:])):
        content = "\n".join([f"who,{source.feature_names[0]}", *part])
        for folder in (folders[1], everything):
            (folder / f"20{number}.csv").write_text(content)
    for folder in (*folders, everything):
        (folder / "all.toml").write_text(text)
    for name in ("clinic", "lab"):
        shutil.copy(whole / f"{name}.h5", everything)
    asked = ("fit", "all.toml", "--parties", "--align", level, "--topology", "star", *SHORT, "-q")
    ended = launch(folders, "-c", MAIN, *asked, *MPI)
    assert ended.returncode == 0, ended.stderr
    monkeypatch.chdir(everything)
    exact = ("alignment", "feature_names", "agent_names")
    found = compare(ended, done(capsys, *asked).json, exact, ("history",))
    assert found["agent_names"] == ["one", "two", "three"]


def test_parties_with_rows_of_their_own(data, tmp_path, monkeypatch, capsys):
    """Their features come in an order of their own; the last rank has no party."""
    whole = read_dataset(data)
    names, half = np.array(whole.feature_names), whole.n_samples // 2
    files, folders = [f"party{number}.h5" for number in range(3)], []
    for number, (first, last) in enumerate(pairwise([0, half, half + 9, whole.n_samples])):
        order = np.roll(np.arange(len(names)), number)
        part = Dataset(whole.X[first:last, order], tuple(names[order]))
        write_dataset(tmp_path / files[number], part)
    for rank in range(4):
        folders.append(tmp_path / f"rank{rank}")
        folders[-1].mkdir()
        for file in files[rank : rank + 1]:
            shutil.copy(tmp_path / file, folders[-1])
    asked = ("fit", *files, "--parties", "--split", "rows", "--topology", "path", *SHORT)
    ended = launch(folders, "-c", MAIN, *asked, *MPI, "-o", "model.h5")
    assert ended.returncode == 0, ended.stderr
    monkeypatch.chdir(tmp_path)
    compare(
        ended, done(capsys, *asked, "-o", "model.h5").json,
        ("communication", "worker_rows", "worker_names", "feature_names", "init_rows"),
        ("history", "log_likelihood", "mixing_weights", "bic"),
    )  # fmt: skip
    one, other = (read_model(path / "model.h5") for path in (folders[0], tmp_path))
    np.testing.assert_allclose(one.mixture.means, other.mixture.means, rtol=1e-10)


def test_what_cannot_be_aligned_is_said_at_all_ranks(whole, tmp_path):
    ended = launch(apart(whole, tmp_path, [], [], []), "-m", "mpi4py", HERE / "mpi_parties.py")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "checked 9\n"


TABLE = '[[party]]\nname = "{0}"\nfile = "{1}.h5"\n'
ITSELF = "itself; write to another name"


@pytest.mark.parametrize(
    ("words", "second", "sentence"),
    [
        (FILES, "lab", "party 'registry': 'registry.h5' does not exist"),
        (("all.toml",), "lab",
         "rank 0 has the parties a, b, rank 1 has a; give all ranks the same"),
        ((*FILES[::2], "-o", "../rank1/lab.h5", "--force"), "lab",
         f"rank1/lab.h5 is the input lab.h5 (DATA) {ITSELF}"),
        (("all.toml", "--align", "ids", "-o", "../rank1/m.h5", "--shards", "--force"), "m.lab",
         f"m.lab.h5 (party 'lab') {ITSELF}"),
        ((*FILES[::2], "--split", "rows"), "lab", "party 'lab' has no feature 'age', which party"),
    ],
    ids=["no file", "other parties", "output", "shard", "rows"],
)  # fmt: skip
def test_errors_are_told_once(whole, tmp_path, words, second, sentence):
    folders = apart(whole, tmp_path, ["clinic"], ["lab"])
    (folders[1] / "lab.h5").rename(folders[1] / f"{second}.h5")
    shards = second == "m.lab"
    for folder, is_first in zip(folders, (True, False), strict=True):
        both = is_first or shards
        text = TABLE.format("a", "clinic") + TABLE.format("lab" if shards else "b", second) * both
        (folder / "all.toml").write_text(text)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    ended = launch(folders, "-c", MAIN, "fit", *words, "--parties", *MPI)
    assert ended.returncode == 2
    assert len(told(ended)) == 1, ended.stderr
    assert sentence in told(ended)[0]
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


# ---- checkpoints --------------------------------------------------------------------------------


def begin(*words):
    """Begin a job of its own."""
    return subprocess.Popen(
        command(2, "-c", MAIN, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(), stdin=subprocess.DEVNULL,
    )  # fmt: skip


def ranks_of(file):
    """Processes that keep this checkpoint."""
    found = []
    listed = subprocess.run(["ps", "-wweo", "pid,args"], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        if str(file) in line and f"{Path(sys.executable).name} -c" in line and LAUNCHER not in line:
            found.append(int(line.split()[0]))
    return found


def wait_for(job, file, count):
    """Wait until a file was replaced so many times, or the job is over."""
    seen, last, deadline = 0, None, time.monotonic() + 120
    while seen < count and job.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
        try:
            now = file.stat().st_ino
        except FileNotFoundError:
            continue
        seen, last = seen + (now != last), now


@pytest.mark.parametrize("over", ["features", "rows"])
def test_kill_and_go_on(over, whole, tmp_path):
    """A rank is killed, or all are; SIGTERM at one ends all, their state written."""
    model, file, last = tmp_path / "m.h5", tmp_path / "run.ckpt", tmp_path / "run.ckpt.rank1"
    run = (
        "fit", *(whole / name for name in FILES), "--parties", "--align", "ids", "--topology",
        "path", "--missing-parties", "--tol", "0", "--init", "random", "--n-init", "2",
        "--max-iter", "60",
    ) if over == "features" else (
        "fedem", whole / "data.h5", "--variance-reduction", "--participation", "0.7", "--max-iter",
        "40", "--workers", "4", "--topology", "cycle",
    )  # fmt: skip
    run = (*run, *MPI, "--threads", "1", "-q", "--seed", "1")
    kept = ("--checkpoint", file, "--checkpoint-every", "1", "--resume-if-any", "-o", model)
    ended = run_cli(2, *run, "-o", tmp_path / "whole.h5")
    assert ended.returncode == 0, ended.stderr
    rng, endings = np.random.default_rng(5), [signal.SIGKILL, signal.SIGTERM]
    for _ in range(12):
        job = begin(*run, *kept)
        wait_for(job, last, int(rng.integers(2, 12)))
        victims = ranks_of(file)
        assert victims or job.poll() is not None
        every = over == "rows" and endings[0] == signal.SIGKILL
        for victim in victims if every else rng.permutation(victims)[:1]:
            os.kill(int(victim), endings[0])
        _, err = job.communicate(timeout=120)
        if job.returncode == 0:  # it was over before: once more from the beginning
            check_same_file(tmp_path / "whole.h5", model)
            for path in (model, *tmp_path.glob("run.ckpt*")):
                path.unlink()
        elif endings.pop(0) == signal.SIGTERM:
            break
        assert job.returncode == 0 or not model.exists()
    assert not endings
    assert job.returncode == 143, err
    (line,) = said(err)
    assert "interrupted by SIGTERM; the state after" in line
    assert f"is in {file}: give" in line
    if over == "features":
        refused = run_cli(3, *run, *kept)
        assert refused.returncode == 2
        assert "belongs to a run in 2 processes, not in 3; use as many" in refused.stderr
    ended = run_cli(2, *run, *kept)
    assert ended.returncode == 0, ended.stderr
    check_same_file(tmp_path / "whole.h5", model)
