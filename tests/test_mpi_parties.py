"""Parties whose files are at their own ranks only, over MPI: fits, what is refused, checkpoints."""

import csv
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from vpem.files.data import read_dataset
from vpem.files.models import read_model

from .cli_support import done, make_data
from .forks import MAIN, environment, interpreter
from .mpi_support import LAUNCHER, run_cli
from .test_cli_checkpoints import check_same_file

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
def test_a_fit_is_that_of_one_process(capsys, monkeypatch, whole, tmp_path, held, words):
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
    length = ("--max-iter", "120")
    ended = run_cli(2, *fit, *length, "-o", tmp_path / "whole.h5")
    assert ended.returncode == 0, ended.stderr
    rng = np.random.default_rng(5)
    kills = 0
    for _ in range(12):
        if kills == 2:
            break
        job = begin(2, *fit, *length, *kept)
        wait_for(job, last, int(rng.integers(2, 25)))
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
