"""What work costs, counted and not timed: passes over rows, steps, bytes read, and memory.

Times of larger shapes, beside those of other programs, are `python -m benchmarks table`.
"""

import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from sklearn.mixture import GaussianMixture

from benchmarks.problems import mixture_rows, one_block, sweep_once
from vpem import NotConvergedWarning, connect, fit_vpem, make_graph, read_dataset
from vpem.files import arrow as arrow_columns
from vpem.files.readers import text
from vpem.fits.selection.search import grid, search
from vpem.fits.selection.trials import ByFeatures, Problem
from vpem.network.partition import contiguous
from vpem.steps import starts
from vpem.terms import features

from .tables import each

STANDING = {"init": [0, 1, 2], "reg_covar": 0.0}


def peak(work):
    """Bytes that Python and NumPy hold at most while something is done again."""
    work()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    work()
    found = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return found


# ---- passes and steps ----------------------------------------------------------------------------


@each("init", ["kmeans", [0, 1, 2]])
def test_a_fit_passes_over_all_rows_once_an_iteration_and_at_the_end(init, monkeypatch):
    passed, kernel = [], features.sweep
    monkeypatch.setattr(features, "sweep", lambda X, *a: passed.append(len(X)) or kernel(X, *a))
    X = mixture_rows(900, 6, 3, 1.0)
    found = fit_vpem(X, one_block(6), n_components=3, init=init, tol=1e-6)
    assert passed == [900] * (found.n_iter + 1)


@each(("apart", "tol"), [(0.3, 1e-3), (0.3, 1e-6), (1.0, 1e-5)])
def test_from_one_start_a_fit_takes_no_more_steps_than_scikit_learn(apart, tol):
    X = mixture_rows(1500, 6, 3, apart)
    own = fit_vpem(X, one_block(6), n_components=3, tol=tol, max_iter=500, **STANDING)
    their = GaussianMixture(
        3, tol=tol, max_iter=500, reg_covar=0.0, means_init=X[:3], weights_init=[1 / 3] * 3,
        precisions_init=[np.linalg.inv(np.cov(X.T, bias=True))] * 3,
    ).fit(X)  # fmt: skip
    assert own.n_iter <= their.n_iter_
    assert own.history[-1][0] / len(X) == pytest.approx(their.lower_bound_, abs=1e-9)


@each(  # a sphere of one feature has its own
    ("agents", "units", "init"), [(1, 2, "farthest"), (3, 1, "kmeans")]
)
def test_cells_of_as_many_components_and_units_share_a_start(agents, units, init, monkeypatch):
    """And each is to the bit, messages included, what it is alone."""
    sought, seed = [], starts.seed_features
    monkeypatch.setattr(
        starts, "seed_features", lambda *a, **how: sought.append(a[2]) or seed(*a, **how)
    )
    X, joined = mixture_rows(40, 3, 2), connect(make_graph("star", agents), contiguous(3, agents))
    kinds = ["full", "diag", "tied", "spherical", "VVE"]

    def found():
        problem = Problem(X, {0: joined}, None, {"init": init})
        cells = search(problem, grid([2, 15], [0], kinds), n_init=2).cells
        return [repr(one | {"seconds": 0}) for one in cells]

    shared = found()
    assert Counter(sought) == dict.fromkeys((2, 15), 2 * units)
    # Of the VVE of 15 components some are drawn again, by the stream that its start has left.
    assert init == "kmeans" or "'recoveries': 2, 'given_up': 0" in shared[9]
    with monkeypatch.context() as alone:
        alone.setattr(ByFeatures, "fit", lambda _, rows, how: fit_vpem(X, joined, **how))
        assert shared == found()
    assert Counter(sought) == dict.fromkeys((2, 15), 2 * (units + len(kinds)))


# ---- memory --------------------------------------------------------------------------------------


def test_an_iteration_holds_nothing_that_grows_with_rows():
    """Nor has a number for each row and component."""
    few, many = (peak(sweep_once(mixture_rows(m, 8, 4), one_block(8), 4, 1)) for m in (3000, 9000))
    assert abs(many - few) < 1000
    assert many < 9000 * 4 * 8


@each(("agents", "most"), [(1, 1.5), (10, 1.5)])
def test_a_fit_holds_few_times_its_numbers(agents, most):
    X = mixture_rows(16_000, 20, 3)
    joined = connect(make_graph("star", agents), contiguous(20, agents))
    fit = {"n_components": 3, "tol": 0.0, "max_iter": 3, "init": [0, 1, 2]}
    with pytest.warns(NotConvergedWarning):
        assert peak(lambda: fit_vpem(X, joined, **fit)) < most * X.nbytes


@pytest.fixture
def arrow():
    """A pool that counts what pyarrow holds; kept, since what lies in it may be freed later."""
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(before)


def bytes_read():
    """Bytes that this process has asked files for."""
    counts = Path("/proc/self/io")
    if not counts.exists():
        pytest.skip("the system does not count what is read")
    return int(counts.read_text(encoding="ascii").split()[1])


@each(("kind", "passes", "most"), [("csv", 2.01, 2.5), ("parquet", 1.01, 2.5)])
def test_a_file_is_read_few_times_and_held_few_times(kind, passes, most, tmp_path, arrow):
    """What grows with rows, so that buffers of a fixed size do not count."""
    read, held, sizes, numbers = [], [], [], []
    for m in (8000, 16000):
        X, path = mixture_rows(m, 10, 3), tmp_path / f"{m}.{kind}"
        write = csv.write_csv if kind == "csv" else parquet.write_table
        write(pa.table({f"x{j}": X[:, j] for j in range(10)}), path)
        read.append(-bytes_read())
        read_dataset(path)
        read[-1] += bytes_read()
        held.append(peak(lambda path=path: read_dataset(path)) + arrow.max_memory())
        sizes.append(path.stat().st_size)
        numbers.append(X.nbytes)
    assert np.diff(read) < passes * np.diff(sizes)
    assert np.diff(held) < most * np.diff(numbers)


def test_columns_that_have_fractions_late_do_not_take_a_pass_each(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "PIECE_BYTES", 1 << 10)
    monkeypatch.setattr(text, "OF_A_PIECE", 1)
    path, whole = tmp_path / "table.csv", "6,5,4,3,2,1\n1,2,3,4,5,6\n"
    path.write_text(f"a,b,c,d,e,f\n{whole * 4000},1.5,2.5,3.5,4.5,5.5\n", encoding="ascii")
    read = -bytes_read()
    X = read_dataset(path).X
    assert read + bytes_read() < 2.5 * path.stat().st_size + 200_000
    np.testing.assert_array_equal(X[-2:], [[1, 2, 3, 4, 5, 6], [np.nan, 1.5, 2.5, 3.5, 4.5, 5.5]])


def test_what_is_missing_is_unpacked_once_however_many_rows_are_copied_at_a_time(monkeypatch):
    bits, unpack, step = [], np.unpackbits, 80
    monkeypatch.setattr(arrow_columns, "LEAST_ROWS", step)
    monkeypatch.setattr(arrow_columns, "BLOCK_VALUES", step)
    monkeypatch.setattr(
        np, "unpackbits", lambda *a, **how: bits.append(len(a[0])) or unpack(*a, **how)
    )
    there = np.arange(4000) % 7 > 0
    numbers = pa.chunked_array([pa.array(np.arange(4000.0), mask=~there)]).slice(3)
    X = arrow_columns.matrix_of([("x", numbers), ("y", numbers.is_valid())], 3997, "table")
    wanted = np.where(there, np.arange(4000.0), np.nan)[3:]
    np.testing.assert_array_equal(X, np.column_stack([wanted, there[3:]]))
    assert 8 * sum(bits) < 2 * (4000 + 16 * len(bits))


# ---- what is loaded ------------------------------------------------------------------------------

FIT = """
import sys, warnings
import numpy as np
import vpem
from vpem.network.partition import contiguous
warnings.simplefilter("ignore")
X = np.random.default_rng(0).normal(size=(60, 2))
vpem.fit_vpem(X, vpem.connect(vpem.make_graph("star", 1), contiguous(2, 1)), n_components=2)
print(*(name for name in sys.modules if name.startswith({never})))
"""
NEVER = ("matplotlib", "pandas", "polars", "pyarrow", "sklearn", "typer", "rich", "vpem.saem",
         "vpem.pictures", "vpem.engines.tls", "vpem.estimators", "cryptography")  # fmt: skip


def test_a_fit_loads_nothing_of_files_pictures_and_estimators():
    program = FIT.replace("{never}", repr(NEVER))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
