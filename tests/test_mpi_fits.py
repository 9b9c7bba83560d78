"""VP-EM over MPI ranks finds what one process does (see mpi_fits.py)."""

from pathlib import Path

import pytest

from .mpi_support import run_ranks

SCRIPT = Path(__file__).with_name("mpi_fits.py")


@pytest.mark.parametrize("n_ranks", [1, 2, 4, 5, 9])
def test_fits_over_ranks(n_ranks):
    done = run_ranks(n_ranks, "-m", "mpi4py", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "compared 43\n"
