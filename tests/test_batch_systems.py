"""The scripts for batch systems: they parse, and the one that requeues does so."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .cli_support import make_data
from .forks import folder as folder_of_vpem

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
    deadline = time.monotonic() + 60
    while not (folder / "fit.ckpt").exists():
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 143
    assert "--resume to go on" in err
    assert (folder / "told").read_text() == "requeue 77\n"
    assert not (folder / "model.h5").exists()
    # The same line once more.
    again = cluster(script)
    _, err = again.communicate(timeout=60)
    assert (again.returncode, (folder / "model.h5").exists()) == (0, True), err
    assert (folder / "told").read_text() == "requeue 77\n"


def test_a_job_that_has_time_ends(cluster):
    folder = cluster.folder
    for _ in range(2):
        job = cluster(adapted(0, max_iter=15))
        _, err = job.communicate(timeout=60)
        assert (job.returncode, (folder / "model.h5").exists()) == (0, True), err
    assert not (folder / "told").exists()
