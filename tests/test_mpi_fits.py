"""VP-EM over MPI ranks finds what one process does (see mpi_fits.py)."""

from pathlib import Path

import pytest

from .mpi_support import run_ranks

SCRIPT = Path(__file__).with_name("mpi_fits.py")


# Nine ranks share the processors of a small machine: they run the networks, not all else.
@pytest.mark.parametrize(
    ("n_ranks", "how", "n_compared"),
    [(1, "all", 43), (2, "all", 43), (4, "brief", 16), (5, "brief", 16), (9, "brief", 16)],
)
def test_fits_over_ranks(n_ranks, how, n_compared):
    done = run_ranks(n_ranks, "-m", "mpi4py", SCRIPT, how)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"compared {n_compared}\n"
