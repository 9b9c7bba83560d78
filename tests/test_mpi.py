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
    words = ("fit", data, *more, "--json", "--seed", "2", "--max-iter", "6")
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
    words = ("fit", data, "--topology", "path", "--seed", "2", "--json", "--max-iter", "6")
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


# ---- parties whose files are at their own ranks only ---------------------------------------------


HERE = Path(__file__).parent
PARTIES = ("clinic", "registry", "lab")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, request):
    """A folder with the files of all parties, shuffled and incomplete, and a key."""
    home = tmp_path_factory.mktemp("whole")
    data = make_data(home / "data.h5")
    words = ("data", "split", data, "-o", home, "--shuffle", "--drop-ids", "0.1", "--seed", "3")
    ended = subprocess.run(
        [interpreter(), "-c", MAIN, *map(str, words)], check=True, capture_output=True,
        env=environment(),
    )  # fmt: skip
    assert not ended.stdout
    (home / "key").write_text(secrets.token_hex(32))
    return home


def apart(whole, home, *held):
    """Directories, one a rank, each with the files of its own parties and the key."""
    folders = []
    for rank, parties in enumerate(held):
        folder = home / f"rank{rank}"
        folder.mkdir(parents=True)
        shutil.copy(whole / "key", folder)
        for party in parties:
            shutil.copy(whole / f"{party}.h5", folder)
        folders.append(folder)
    return folders


def launch(folders, *words, timeout=60):
    """Run the same words on a rank in each folder."""
    command = [LAUNCHER]
    for folder in folders:
        command += [":"] * (len(command) > 1)
        command += ["-n", "1", "-wdir", str(folder), interpreter(), *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, env=environment(),
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def labels_in(path):
    """Who the rows of a table are, and what they belong to."""
    with open(path, newline="") as file:
        return [(row["id"], row["label"]) for row in csv.DictReader(file)]


def told(ended):
    """What was said on stderr, but for what the launcher says."""
    return [line for line in ended.stderr.splitlines() if not line.startswith("Abort(")]


FILES = tuple(f"{name}.h5" for name in PARTIES)
SHORT = ("--seed", "2", "--max-iter", "8", "--tol", "0", "--json")


# ---- each opens its own file ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ([[name] for name in PARTIES], ("--topology", "path", "--align", "ids")),
        (
            [["clinic"], ["registry", "lab"]],
            ("--topology", "star", "--align", "hmac", "--align-key", "key"),
        ),
        (
            [["clinic"], ["registry"], ["lab"], []],
            ("--topology", "path", "--hops", "1", "--align", "ids", "--missing-parties"),
        ),
    ],
    ids=["a rank each", "two at a rank", "an idle rank"],
)
def test_a_fit_of_parties_is_that_of_one_process(capsys, monkeypatch, whole, tmp_path, held, words):
    folders = apart(whole, tmp_path, *held)
    asked = ("fit", *FILES, "--parties", *words, *SHORT, "--labels", "l.csv", "--force")
    ended = launch(folders, "-c", MAIN, *asked, "--engine", "mpi", "-o", "model.h5")
    assert ended.returncode == 0, ended.stderr
    monkeypatch.chdir(whole)
    alone = done(capsys, *asked)
    found, expected = json.loads(ended.stdout), alone.json
    assert told(ended) == alone.err.splitlines()
    for name in ("alignment", "communication", "hubs", "feature_names", "n_iter", "warnings"):
        assert found[name] == expected[name]
    for name in ("history", "log_likelihood", "mixing_weights", "bic"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10)
    assert read_model(folders[0] / "model.h5").report["alignment"] == expected["alignment"]
    for folder, parties in zip(folders, held, strict=True):
        tables = [f"l.{name}.csv" for name in parties]
        left = {"key", *(f"{name}.h5" for name in parties), *tables}
        assert {path.name for path in folder.iterdir()} - {"model.h5"} == left
        for name in tables:
            ours, theirs = (labels_in(home / name) for home in (folder, whole))
            assert ours == theirs
    counted = expected["communication"]["by_kind"]
    if "path" in words:
        for kind in ("estep", "labels"):
            assert found["handed"][kind]["between_agents"] == counted[kind]["bytes"]


def test_a_model_is_used_where_the_data_are(capsys, monkeypatch, whole, tmp_path):
    """Each rank has the model and its party's file, and writes what became of its own rows."""
    folders = apart(whole, tmp_path, *([name] for name in PARTIES[::-1]), [])
    monkeypatch.chdir(whole)
    fitted = ("fit", *FILES, "--parties", "--align", "ids", "--topology", "path", "--hops", "1")
    done(capsys, *fitted, "--max-iter", "5", "-o", "model.h5", "--force")
    for folder in folders:
        shutil.copy(whole / "model.h5", folder)
    asked = ("predict", "model.h5", *FILES[::-1], "--parties", "--align", "ids", "-o", "labels.csv")
    ended = launch(folders, "-c", MAIN, *asked, "--engine", "mpi")
    assert ended.returncode == 0, ended.stderr
    alone = done(capsys, *asked, "--force")
    lines = told(ended)
    ours = [line for line in lines if "of their hub" not in line and "labels." not in line]
    assert ours == alone.err.splitlines()[:-1]
    assert sum("rows took no part" in line for line in lines) == 3
    assert any("registry sends" in line or "sends registry" in line for line in lines)
    together = dict(labels_in(whole / "labels.csv"))
    for folder, name in zip(folders, PARTIES[::-1], strict=False):
        rows = labels_in(folder / f"labels.{name}.csv")
        assert [who for who, _ in rows] == read_dataset(folder / f"{name}.h5").ids.tolist()
        assert all(label == together.get(who, "") for who, label in rows)
    assert not any((folder / "labels.csv").exists() for folder in folders)


def test_patterns_of_a_manifest_and_sets_that_stay_private(capsys, monkeypatch, whole, tmp_path):
    folders = apart(whole, tmp_path, *([name] for name in PARTIES))
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
    ended = launch(folders, "-c", MAIN, *asked, "--engine", "mpi")
    assert ended.returncode == 0, ended.stderr
    monkeypatch.chdir(everything)
    found, expected = json.loads(ended.stdout), done(capsys, *asked).json
    assert found["alignment"] == expected["alignment"]
    assert found["agent_names"] == ["one", "two", "three"]
    assert found["feature_names"] == expected["feature_names"]
    np.testing.assert_allclose(found["history"], expected["history"], rtol=1e-10)


# ---- what is refused ----------------------------------------------------------------------------


def test_what_cannot_be_aligned_is_said_at_all_ranks(whole, tmp_path):
    folders = apart(whole, tmp_path, [], [], [])
    ended = launch(folders, "-m", "mpi4py", HERE / "mpi_parties.py")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "checked 9\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (FILES, "party 'registry': 'registry.h5' does not exist"),
        (("all.toml",), "rank 0 has the parties a, b, rank 1 has a; give all ranks the same"),
        (
            (*FILES[::2], "-o", "../rank1/lab.h5", "--force"),
            "rank1/lab.h5 is the input lab.h5 (DATA) itself; write to another name",
        ),
        (
            (*FILES[::2], "--checkpoint", "../rank1/lab.h5", "--force"),
            "rank1/lab.h5 is the input lab.h5 (DATA) itself; write to another name",
        ),
        (
            (*FILES[::2], "--align", "ids", "-o", "../rank1/m.h5", "--shards", "--force"),
            "m.lab.h5 (party 'lab') itself; write to another name",
        ),
        ((*FILES[::2], "--split", "rows"), "party 'lab' has no feature 'age', which party"),
    ],
    ids=["no file", "other parties", "output", "checkpoint", "shard", "rows"],
)
def test_errors_are_told_once(whole, tmp_path, words, sentence):
    folders = apart(whole, tmp_path, ["clinic"], ["lab"])
    if "--shards" in words:
        (folders[1] / "lab.h5").rename(folders[1] / "m.lab.h5")
        words = tuple("m.lab.h5" if word == "lab.h5" else word for word in words)
        words = ("all.toml", *words[2:])
    table = '[[party]]\nname = "{0}"\nfile = "{1}.h5"\n'
    for folder in folders:
        first, second = table.format("a", "clinic"), table.format("b", "lab")
        if "--shards" in words:
            second = table.format("lab", "m.lab")
        elif folder == folders[1]:
            second = ""
        (folder / "all.toml").write_text(first + second)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    ended = launch(folders, "-c", MAIN, "fit", *words, "--parties", "--engine", "mpi")
    assert ended.returncode == 2
    assert len(told(ended)) == 1, ended.stderr
    assert sentence in told(ended)[0]
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


# ---- checkpoints --------------------------------------------------------------------------------


def begin(n_ranks, *words):
    """Begin a job of its own."""
    command = [LAUNCHER, "-n", n_ranks, interpreter(), "-c", MAIN, *words]
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
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
    seen, last, deadline = 0, None, time.monotonic() + 60
    while seen < count and job.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
        try:
            now = file.stat().st_ino
        except FileNotFoundError:
            continue
        seen, last = seen + (now != last), now


def test_kill_and_go_on(whole, tmp_path):
    model, file, last = tmp_path / "m.h5", tmp_path / "run.ckpt", tmp_path / "run.ckpt.rank1"
    fit = (
        "fit", *(whole / name for name in FILES), "--parties", "--align", "ids", "--topology",
        "path", "--missing-parties", "--engine", "mpi", "--tol", "0", "--threads", "1", "-q",
        "--init", "random", "--n-init", "2", "--seed", "1",
    )  # fmt: skip
    kept = ("--checkpoint", file, "--checkpoint-every", "1", "--resume-if-any", "-o", model)
    length = ("--max-iter", "60")
    ended = run_cli(2, *fit, *length, "-o", tmp_path / "whole.h5")
    assert ended.returncode == 0, ended.stderr
    rng = np.random.default_rng(5)
    kills = 0
    for _ in range(12):
        if kills == 2:
            break
        job = begin(2, *fit, *length, *kept)
        wait_for(job, last, int(rng.integers(2, 12)))
        time.sleep(rng.uniform(0, 0.02))
        victims = ranks_of(file)
        assert victims or job.poll() is not None
        # A random rank, or all of them.
        for victim in victims if kills == 1 else rng.choice(victims, min(1, len(victims))):
            os.kill(int(victim), signal.SIGKILL)
        job.communicate(timeout=60)
        kills += job.returncode != 0
        if model.exists():
            # It was over before: once more from the beginning.
            check_same_file(tmp_path / "whole.h5", model)
            for path in (model, *tmp_path.glob("run.ckpt*")):
                path.unlink()
    assert kills == 2
    # SIGTERM at one rank ends all, their state written.
    for _ in range(12):
        job = begin(2, *fit, *length, *kept)
        wait_for(job, last, 3)
        for victim in ranks_of(file)[-1:]:
            os.kill(victim, signal.SIGTERM)
        _, err = job.communicate(timeout=60)
        if job.returncode != 0:
            break
        for path in (model, *tmp_path.glob("run.ckpt*")):
            path.unlink()
    assert job.returncode == 143, err
    lines = [line for line in err.splitlines() if line.startswith("vpem:")]
    assert len(lines) == 1, err
    assert "interrupted by SIGTERM; the state after" in lines[0]
    assert f"is in {file}: give" in lines[0]
    refused = run_cli(3, *fit, *length, *kept)
    assert refused.returncode == 2
    assert "belongs to a run in 2 processes, not in 3; use as many" in refused.stderr
    ended = run_cli(2, *fit, *length, *kept)
    assert ended.returncode == 0, ended.stderr
    check_same_file(tmp_path / "whole.h5", model)


# ---- commands over rows --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows_data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("mpi") / "data.h5")


WORKERS = ("--workers", "4", "--topology", "cycle", "--seed", "2", "--json")


@pytest.mark.parametrize(
    ("n_ranks", "words", "names"),
    [
        (
            3,
            ("fit", "--split", "rows", "--memory-limit", "1K", "--max-iter", "6"),
            ("log_likelihood", "bic", "mixing_weights", "history"),
        ),
        (2, ("kmeans", "-k", "3", "--memory-limit", "1K"), ("inertia", "cluster_sizes", "history")),
        (2, ("fedem", "--batch-size", "9", "--max-iter", "9"), ("log_likelihood", "mean_field")),
    ],
)
def test_commands_over_ranks(n_ranks, words, names, rows_data, tmp_path, capsys):
    words = (words[0], rows_data, *words[1:], *WORKERS)
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


def test_a_rank_without_workers_takes_part_in_labels(rows_data, tmp_path, capsys):
    words = ("fedem", rows_data, "--workers", "2", "--max-iter", "3")
    ours = run_cli(3, *words, "--engine", "mpi", "--labels", tmp_path / "ours.csv")
    assert ours.returncode == 0, ours.stderr
    done(capsys, *words, "--labels", tmp_path / "theirs.csv")
    assert (tmp_path / "ours.csv").read_text() == (tmp_path / "theirs.csv").read_text()


# ---- parties that hold rows ----------------------------------------------------------------------


def cut_rows(rows_data, home):
    """Cut a dataset into rows of three parties, features in an order of their own."""
    whole = read_dataset(rows_data)
    names = np.array(whole.feature_names)
    ends = [0, whole.n_samples // 2, whole.n_samples // 2 + 9, whole.n_samples]
    for number, (first, last) in enumerate(pairwise(ends)):
        order = np.roll(np.arange(len(names)), number)
        part = Dataset(whole.X[first:last, order], tuple(names[order]))
        write_dataset(home / f"party{number}.h5", part)
    return [f"party{number}.h5" for number in range(3)]


@pytest.mark.parametrize("held", [[[0], [1, 2]], [[0], [1], [2], []]])
def test_parties_with_rows_of_their_own(held, rows_data, tmp_path, monkeypatch, capsys):
    files = cut_rows(rows_data, tmp_path)
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


def test_parties_with_other_features_end_alike(rows_data, tmp_path):
    files = cut_rows(rows_data, tmp_path)
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
    "kmeans": ("-k", "7", "--n-init", "5", "--init", "random"),
    "fedem": ("--variance-reduction", "--participation", "0.7", "--max-iter", "40"),
}


@pytest.mark.parametrize(
    ("name", "ending"),
    [("kmeans", signal.SIGKILL), ("fedem", signal.SIGTERM)],
)
def test_kill_and_go_on_over_rows(name, ending, rows_data, tmp_path):
    model, file, last = tmp_path / "m.h5", tmp_path / "run.ckpt", tmp_path / "run.ckpt.rank1"
    asked = (name, rows_data, *LONG[name], "--workers", "4", "--topology", "cycle", "--seed", "3",
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


def test_shards_are_of_features(rows_data):
    words = ("fit", rows_data, "--split", "rows", "--workers", "4", "--engine", "mpi", "--shards")
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
