"""How the package and its kernels are loaded: without kernels, and what OpenMP is told."""

import os
import shutil
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import numpy as np
import pytest

import vpem
import vpem_cli
from vpem._core import CALL_BLAS, WAITING
from vpem_cli.app import command
from vpem_cli.names import leaves

from .tables import each

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
        ["-c", "from vpem._core import sweep"],
        ["-m", "pytest", "-p", "no:cacheprovider"],
    ],
    ids=["attribute", "kernel", "pytest"],
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


# ---- what is loaded is what is used -------------------------------------------------------------

LIBRARIES = {"numpy", "h5py", "scipy", "sklearn", "networkx", "matplotlib", "pandas", "pyarrow"}
"""None of them is needed to say what there is."""

UNUSED = {
    "sklearn", "networkx", "matplotlib", "pandas", "scipy.linalg", "scipy.special", "scipy.sparse",
    "scipy.stats", "numpy.f2py", "numpy.testing", "pyarrow.compute", "pydantic", "ssl",
    "vpem.saem.results", "vpem.fits.selection.trials", "vpem.files.parties.joining",
    "vpem.files.networks",
}  # fmt: skip
"""What numbers of which Gaussians are fitted do not need."""

FIT = ["fit", "numbers.csv", "-k", "2"]
HELPS = [[*path, "--help"] for path, _ in leaves(command())]

LOADED = {
    "version": ([["--version"]], LIBRARIES | {"typer", "rich", "pydantic", "vpem.errors"}),
    "help": (
        [["--help"]],
        LIBRARIES | {"rich", "pydantic", "vpem_cli.commands.fit", "vpem.settings"},
    ),
    "help of all": ([["--help-all"]], LIBRARIES | {"rich", "pydantic"}),
    "every help": (HELPS, LIBRARIES | {"rich", "pydantic"}),
    "help of a command": ([["help", "saem"], ["help", "data", "copy"]], LIBRARIES | {"rich"}),
    "fit": ([FIT], UNUSED | {"concurrent.futures"}),
    "fit quietly": ([[*FIT, "--quiet", "--seed", "3", "-o", "again.h5"]], UNUSED | {"rich"}),
    "fit on a graph": (
        [[*FIT, "--topology", "cycle", "--hops", "1"]],
        UNUSED - {"scipy.sparse", "scipy.linalg", "numpy.f2py", "numpy.testing"},
    ),
    "fit with gaps": ([["fit", "gaps.csv", "-k", "2", "--missing", "marginalize"]], UNUSED),
    "fit HDF5": ([["fit", "data.h5", "-k", "2"]], UNUSED | {"pyarrow"}),
    "fit with text": (
        [["fit", "text.csv", "-k", "2", "--label-column", "kind"]], UNUSED - {"pyarrow.compute"},
    ),
    "predict": ([["predict", "model.h5", "numbers.csv"]], UNUSED),
    "score": ([["score", "model.h5", "numbers.csv"]], UNUSED),
    "show": ([["model", "show", "model.h5"]], UNUSED | {"pyarrow"}),
    "plot": (
        [["plot", "model.h5", "-o", "picture.png"]],
        UNUSED - {"matplotlib"} | {"matplotlib.pyplot", "pyarrow"},
    ),
    "import": ("import vpem", LIBRARIES | {"typer", "rich"}),
    "names": ("import vpem; vpem.load; vpem.fit_vpem; vpem.connect", UNUSED | {"pyarrow"}),
    "load a table": ("import vpem; vpem.load('numbers.csv')", UNUSED),
    "load a model": (
        "import vpem; vpem.load('model.h5')", {"matplotlib", "networkx", "vpem.saem.results"},
    ),
}  # fmt: skip
"""Commands, or a program, and what must not be loaded after them."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A folder with a table of numbers, one with gaps, one with text, and a model."""
    folder = tmp_path_factory.mktemp("tables")
    X = np.random.default_rng(0).normal(size=(60, 3)).round(3)
    X[::2, 0] += 4
    for name, hidden, kinds in (("numbers", 0, ""), ("gaps", 9, ""), ("text", 0, "ab")):
        rows = X.astype(str)
        rows[:hidden, 1] = ""
        lines = [",".join([*row, *kinds[i % 2 : i % 2 + 1]]) for i, row in enumerate(rows)]
        head = ",".join(["x", "y", "z", *(["kind"] if kinds else [])])
        (folder / f"{name}.csv").write_text("\n".join([head, *lines, ""]))
    numbers = str(folder / "numbers.csv")
    for made in (
        ["fit", numbers, "-k", "2", "-o", str(folder / "model.h5"), "-q"],
        ["data", "import", numbers, "-o", str(folder / "data.h5"), "-q"],
    ):
        assert vpem_cli.run(made) == 0
    return folder


@each("case", LOADED)
def test_what_is_loaded_is_what_is_used(tables, case):
    done, unused = LOADED[case]
    if not isinstance(done, str):
        done = f"import vpem_cli; print([vpem_cli.run(words) for words in {done}])"
    ended = python(["-c", f"{done}\nimport sys; print(*sys.modules, file=sys.stderr)"], tables)
    assert ended.returncode == 0, ended.stderr
    assert "vpem: error" not in ended.stderr
    loaded = ended.stderr.splitlines()[-1].split()
    assert "vpem" in loaded
    assert {name for name in unused for one in loaded if f"{one}.".startswith(f"{name}.")} == set()


def test_kernels_that_call_blas_are_listed():
    """Those that are not would load all of `scipy.linalg`."""
    home = Path(vpem.__file__).parent / "_core"
    words = "scipy.linalg.cython_", "vpem._core.blas", "vpem._core.lapack"
    texts = {path.stem: path.read_text(encoding="utf-8") for path in home.glob("*.pyx")}
    assert {name for name, text in texts.items() if any(word in text for word in words)} == {
        *CALL_BLAS
    }


@pytest.mark.parametrize("first", ["vpem._core", "scipy.linalg"])
def test_what_kernels_took_of_scipy_is_whole_for_others(first):
    program = f"""
import sys, {first}
import vpem._core.cholesky, scipy.linalg.cython_blas, scipy.linalg.cython_lapack
print(scipy.linalg.cython_blas is sys.modules["scipy.linalg.cython_blas"])
print(len(scipy.linalg.cython_lapack.__pyx_capi__) > 100, scipy.linalg.det([[2.0, 1], [1, 2]]))
"""
    ended = python(["-c", program])
    assert ended.stdout.split() == ["True", "True", "3.0"], ended.stderr
