"""Run scripts and the command line on MPI ranks, with the mpiexec beside the interpreter."""

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

from tests.forks import MAIN, environment, interpreter
from vpem.errors import VpemWarning

LAUNCHER = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")


def on_ranks(main):
    """Run ``main(engine)`` on this rank; what it returns is printed by the first."""
    from vpem.engines.mpi import MpiEngine

    warnings.simplefilter("error")
    warnings.simplefilter("ignore", VpemWarning)
    engine = MpiEngine(timeout=120)
    engine.crowded = True  # other tests run beside
    found = main(engine)
    if engine.rank == 0:
        print(found)


def command(n_ranks, *words):
    """Words that run the interpreter on so many ranks."""
    assert LAUNCHER is not None, "the tests need mpiexec: pip install mpich"
    return [LAUNCHER, "-n", str(n_ranks), interpreter(), *map(str, words)]


def run_ranks(n_ranks, *words, timeout=180, **more):
    """Run the interpreter on so many ranks."""
    return subprocess.run(
        command(n_ranks, *words), capture_output=True, text=True, timeout=timeout, check=False,
        env=environment(**more), stdin=subprocess.DEVNULL,
    )  # fmt: skip


def run_cli(n_ranks, *words, timeout=180, **more):
    """Run the command line on so many ranks."""
    return run_ranks(n_ranks, "-c", MAIN, *words, timeout=timeout, **more)
