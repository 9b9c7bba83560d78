"""Checkpoints on the command line: kill -9 at any moment, signals; scripts for batch systems."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest

from .cli_support import MAIN, done, make_data
from .forks import folder as folder_of_vpem
from .forks import interpreter

pytestmark = pytest.mark.filterwarnings("ignore::vpem.VpemWarning")

KILLS = 3
"""Of each fit."""

LONG = ("--threads", 1, "--seed", 3)
FITS = {
    "exact": (
        "fit", "-k", 3, "--topology", "star", "--max-iter", 40, "--n-init", 2, "--init", "random",
        "--tol", 0,
    ),
    "rows": (
        "fit", "-k", 2, "--split", "rows", "--workers", 4, "--topology", "cycle", "--rounds", 9,
        "--max-iter", 60, "--tol", 0,
    ),
    "kmeans": ("kmeans", "-k", 7, "--workers", 4, "--n-init", 8, "--init", "random"),
    "impute": (
        "impute", "-r", 2, "--workers", 4, "--scale", "standard", "--participation", 0.7,
        "--compress", "natural:12bits", "--max-iter", 60, "--tol", 0,
    ),
}  # fmt: skip
"""That every recipe goes on to the same bits, `tests/test_resume.py` tells."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data") / "data.h5")


def words(name, data, output, *more):
    command, *options = FITS[name]
    return [command, data, *options, *LONG, "-q", "-o", output, *more]


def contents(file):
    """All that a result holds but for the time it took and the file it is in."""
    found = {}
    with h5py.File(file) as opened:

        def note(name, item):
            if not isinstance(item, h5py.Dataset):
                return
            value = item[()]
            if name == "report":
                value = json.loads(value.tobytes())
                for told in ("seconds", "model", "iterations_per_second"):
                    value.pop(told, None)
            found[name] = value

        opened.visititems(note)
    return found


def check_same_file(one, other):
    one, other = contents(one), contents(other)
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, np.ndarray):
            assert value.dtype == other[name].dtype, name
            assert value.tobytes() == other[name].tobytes(), name
        else:
            assert value == other[name], name


def begin(*given, main=MAIN):
    """Begin a command as a process of its own, which a signal ends as in a terminal."""
    command = [interpreter(), "-c", main, *map(str, given)]
    # Where the tests run in the background of a shell, SIGINT is ignored, and that is inherited.
    with default_handling(signal.SIGINT):
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


@contextmanager
def default_handling(number):
    """Handle a signal as Python does by itself."""
    before = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


class Nursery:
    """Begins commands as processes of their own, without loading the libraries for each."""

    PROGRAM = """
import json, os, sys
import vpem_cli
out, sys.stdout = sys.stdout, open(os.devnull, "w")
for words in json.loads(sys.argv[1]):
    vpem_cli.run(words)
for line in sys.stdin:
    words = json.loads(line)
    child = os.fork()
    if not child:
        os._exit(vpem_cli.run(words))
    print(child, file=out, flush=True)
    print(os.waitpid(child, 0)[1], file=out, flush=True)
"""

    def __init__(self, *first):
        """Run some commands first, so that all they need is loaded."""
        first = json.dumps([list(map(str, given)) for given in first])
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM, first], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self.ended = None

    def begin(self, *given):
        """Begin a command; the number of its process."""
        self.process.stdin.write(json.dumps([str(word) for word in given]) + "\n")
        self.process.stdin.flush()
        self.ended = None
        return int(self.process.stdout.readline())

    def poll(self):
        """How the process that was begun last ended, None while it runs."""
        if self.ended is None and select.select([self.process.stdout], [], [], 0)[0]:
            self.wait()
        return self.ended

    def wait(self):
        """Wait for its end."""
        if self.ended is None:
            self.ended = os.waitstatus_to_exitcode(int(self.process.stdout.readline()))
        return self.ended

    def close(self):
        """Begin no more."""
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@pytest.fixture(scope="module")
def nursery(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    first = words("exact", data, folder / "model.h5", "--checkpoint", folder / "run.ckpt")
    made = Nursery(first)
    yield made
    made.close()


def wait_for_writes(process, file, count):
    """Wait until a file was replaced so many times, or the process is over."""
    seen, last = 0, file.stat().st_ino if file.exists() else None
    deadline = time.monotonic() + 300
    while seen < count and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.0005)
        now = file.stat().st_ino if file.exists() else None
        seen, last = seen + (now != last), now


@pytest.mark.parametrize("name", ["exact", "kmeans", "impute"])
def test_kill_at_any_moment(capsys, tmp_path, data, nursery, name):
    whole, model, file = tmp_path / "whole.h5", tmp_path / "model.h5", tmp_path / "run.ckpt"
    done(capsys, *words(name, data, whole))
    rng = np.random.default_rng(len(name))
    command = words(
        name, data, model, "--checkpoint", file, "--checkpoint-every", 1, "--resume-if-any"
    )
    kills = 0
    while kills < KILLS:
        process = nursery.begin(*command)
        wait_for_writes(nursery, file, int(rng.integers(0, 9)))
        time.sleep(rng.uniform(0, 0.02))
        if nursery.poll() is None:
            os.kill(process, signal.SIGKILL)
        kills += nursery.wait() == -signal.SIGKILL
        if model.exists():
            # It was over before: once more from the beginning.
            check_same_file(whole, model)
            model.unlink()
            file.unlink()
    done(capsys, *command)
    check_same_file(whole, model)
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert left == {"whole.h5", "model.h5", "run.ckpt"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_write_first(capsys, tmp_path, data, number):
    """Several at once are one: launchers pass a Ctrl-C on that the process has got already."""
    whole, model, file = tmp_path / "whole.h5", tmp_path / "model.h5", tmp_path / "run.ckpt"
    command = words("rows", data, model, "--checkpoint", file, "--max-iter", 4000)
    process = begin(*command, "--checkpoint-every", 50)
    wait_for_writes(process, file, 1)
    for _ in range(3 if number == signal.SIGINT else 1):
        process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    told = {15: "SIGTERM", 2: "Ctrl-C"}[int(number)]
    assert err.startswith(f"vpem: error: interrupted by {told}; the state after ")
    assert err.endswith(f" is in {file}: give the same command with --resume to go on\n")
    assert (out, model.exists()) == ("", False)
    done(capsys, *command, "--resume", "--max-iter", 200)
    done(capsys, *words("rows", data, whole, "--max-iter", 200))
    check_same_file(whole, model)


TELLING = f"""
import sys
from vpem.steps.runs import Run
record = Run.record_iteration
def told(run, *given, **options):
    if not run.history:
        print("now", file=sys.stderr, flush=True)
    return record(run, *given, **options)
Run.record_iteration = told
{MAIN}
"""
"""Says so once it iterates."""


def test_without_a_checkpoint_signals_do_as_always(tmp_path, data):
    given = words("rows", data, tmp_path / "model.h5", "--max-iter", 10**6)
    process = begin(*given, "--json", main=TELLING)
    assert process.stderr.readline() == "now\n"
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err == "vpem: error: interrupted; nothing was written\n"


def test_a_second_interrupt_ends_at_once(monkeypatch, tmp_path):
    from vpem.errors import Interrupted
    from vpem.files.checkpoints import FileSaver
    from vpem_cli import runner

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("vpem_cli.runner.SAME_KEY", -1.0)
    for exists, kind in ((False, KeyboardInterrupt), (True, Interrupted)):
        saver = FileSaver(tmp_path / "c")
        if exists:
            saver.write({})
        reached = []

        def twice(saver=saver, reached=reached):
            with runner.catching(saver):
                os.kill(os.getpid(), signal.SIGINT)
                reached.append(saver.signal)
                os.kill(os.getpid(), signal.SIGINT)
                reached.append("too far")

        with pytest.raises(kind):
            twice()
        assert reached == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is before


def test_a_finished_run_is_told_again(capsys, tmp_path, data):
    one, model, file = tmp_path / "one.h5", tmp_path / "model.h5", tmp_path / "run.ckpt"
    for name in FITS:
        done(capsys, *words(name, data, one, "--checkpoint", file))
        content = file.read_bytes()
        done(capsys, *words(name, data, model, "--checkpoint", file, "--resume"))
        check_same_file(one, model)
        assert file.read_bytes() == content
        for path in (one, model, file):
            path.unlink()


# ---- batch systems: scripts parse, and the one that requeues does so ----------------------------

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = [
    script
    for page in ("batch-systems.md", "checkpoints.md")
    for script in re.findall(
        r"```bash\n(.*?)```",
        (ROOT / "docs/how-to" / page).read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
]
BASH = shutil.which("bash")


def test_scripts_parse():
    assert len(SCRIPTS) >= 4
    for script in SCRIPTS:
        checked = subprocess.run(
            [BASH, "-n"], input=script, capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, ""), script


@pytest.fixture
def cluster(tmp_path):
    """A folder where `vpem` is this one, and `scontrol` writes down what it is told."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, body in (
        ("vpem", f'exec "{folder_of_vpem()}/vpem" "$@"'),
        ("scontrol", f'echo "$@" >> "{tmp_path}/told"'),
    ):
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    make_data(tmp_path / "data.h5")
    environment = os.environ | {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_JOB_ID": "77",
    }

    def begin(script):
        return subprocess.Popen(
            [BASH, "-c", script], cwd=tmp_path, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    begin.folder = tmp_path
    return begin


def adapted(place, **options):
    """One of the scripts, with other options of the fit."""
    script = SCRIPTS[place].replace("-k 8", "-k 2 --agents 6 -q")
    assert "-k 2" in script
    for name, value in options.items():
        option = f"--{name.replace('_', '-')} {value}"
        script = script.replace("--resume-if-any", f"--resume-if-any {option}")
    return script


def test_a_job_is_requeued_and_goes_on(cluster):
    folder = cluster.folder
    script = adapted(0, tol=0, max_iter=300, checkpoint_every=1)
    job = cluster(script)
    deadline = time.monotonic() + 300
    while not (folder / "fit.ckpt").exists():
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=300)
    assert job.returncode == 143
    assert "--resume to go on" in err
    assert (folder / "told").read_text() == "requeue 77\n"
    assert not (folder / "model.h5").exists()
    # The same line once more.
    again = cluster(script)
    _, err = again.communicate(timeout=300)
    assert (again.returncode, (folder / "model.h5").exists()) == (0, True), err
    assert (folder / "told").read_text() == "requeue 77\n"


def test_a_job_that_has_time_ends(cluster):
    folder = cluster.folder
    for _ in range(2):
        job = cluster(adapted(0, max_iter=15))
        _, err = job.communicate(timeout=300)
        assert (job.returncode, (folder / "model.h5").exists()) == (0, True), err
    assert not (folder / "told").exists()
