"""How the package and its kernels are loaded: without kernels, and what OpenMP is told."""

import os
import shutil
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest

import vpem
from vpem._core import WAITING

WAITS = "OPENBLAS_THREAD_TIMEOUT"
WORDS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", WAITS)


def python(program, folder=None, **variables):
    """Run a program in a folder, without what the tests' own environment says of threads."""
    env = {name: value for name, value in os.environ.items() if name not in WORDS}
    return subprocess.run(
        [sys.executable, *program], cwd=folder, env=env | variables, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A folder as it is cloned: the package as Python, no kernel built."""
    folder = tmp_path_factory.mktemp("clone")
    home = Path(vpem.__file__).parent
    skipped = shutil.ignore_patterns("*.so", "*.pyd", "*.c", "__pycache__")
    shutil.copytree(home, folder / "vpem", ignore=skipped)
    (folder / "conftest.py").write_text("from vpem import fit_vpem\n")
    return folder


@pytest.mark.parametrize(
    "program",
    [
        ["-c", "import vpem; vpem.fit_vpem"],
        ["-c", "from vpem._core import reference"],
        ["-m", "pytest", "-p", "no:cacheprovider"],
    ],
    ids=["attribute", "twin", "pytest"],
)
def test_a_folder_without_kernels_says_what_to_do(clone, program):
    ended = python(program, clone)
    assert ended.returncode != 0
    sentence = f"ImportError: the folder {clone} holds vpem without compiled kernels; leave it "
    assert sentence in ended.stdout + ended.stderr


def test_what_needs_no_kernels_works_without(clone):
    ended = python(["-c", "import vpem; print(vpem.__version__, vpem.InputError)"], clone)
    assert (ended.returncode, ended.stderr) == (0, "")


TOLD = "import os, vpem._core; print([vpem._core.waiting(), dict(os.environ)])"


@pytest.mark.parametrize(
    ("variables", "policy", "spins"),
    [
        ({}, "PASSIVE", "1000"),
        ({"OMP_WAIT_POLICY": "active"}, "ACTIVE", ""),
        ({"GOMP_SPINCOUNT": "77"}, "", "77"),
    ],
)
def test_threads_wait_as_the_user_says_or_give_way(variables, policy, spins):
    ended = python(["-c", TOLD], OMP_DISPLAY_ENV="VERBOSE", OMP_NUM_THREADS="1", **variables)
    assert ended.returncode == 0, ended.stderr
    waiting, environment = literal_eval(ended.stdout)
    assert waiting == (variables or WAITING)
    assert {name: environment[name] for name in WAITING if name in environment} == variables
    if "GOMP_SPINCOUNT" in ended.stderr:  # GCC's OpenMP, which tells what it was told
        assert f"OMP_WAIT_POLICY = '{policy}" in ended.stderr
        assert f"GOMP_SPINCOUNT = '{spins}" in ended.stderr


@pytest.mark.parametrize(("variables", "told"), [({}, "16"), ({WAITS: "20"}, "20")])
def test_threads_of_blas_give_way_in_commands(variables, told):
    program = f"import atexit, os; atexit.register(lambda: print(os.environ['{WAITS}']))"
    ended = python(
        ["-c", f"{program}; from vpem_cli import main; main(['--version'])"], **variables
    )
    assert ended.stdout.split()[-1] == told
