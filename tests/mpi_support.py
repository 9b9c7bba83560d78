"""Run scripts and the command line on MPI ranks, with the mpiexec beside the interpreter."""

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

from vpem.errors import VpemWarning

ROOT = Path(__file__).resolve().parent.parent
MAIN = "import sys, vpem_cli; vpem_cli.main(sys.argv[1:])"

LAUNCHER = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")


def on_ranks(main):
    """Run ``main(engine, brief)`` on this rank; what it returns is printed by the first."""
    from vpem.engines.mpi import MpiEngine

    warnings.simplefilter("error")
    warnings.simplefilter("ignore", VpemWarning)
    engine = MpiEngine(timeout=30)
    found = main(engine, brief=sys.argv[1:] == ["brief"])
    if engine.rank == 0:
        print(found)


def environment(**more):
    """One thread a rank; nothing of a launcher that these tests may run under themselves."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PMI", "OMPI_", "PMIX", "SLURM_", "MPI_", "HYDRA_", "HYDI_"))
    }
    paths = [str(ROOT / "tests"), str(ROOT), *kept.get("PYTHONPATH", "").split(os.pathsep)]
    kept["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **more}


def command(n_ranks, *words):
    """Words that run the interpreter on so many ranks."""
    assert LAUNCHER is not None, "the tests need mpiexec: pip install mpich"
    return [LAUNCHER, "-n", str(n_ranks), sys.executable, *map(str, words)]


def run_ranks(n_ranks, *words, timeout=60, **more):
    """Run the interpreter on so many ranks."""
    return subprocess.run(
        command(n_ranks, *words), capture_output=True, text=True, timeout=timeout, check=False,
        env=environment(**more), stdin=subprocess.DEVNULL,
    )  # fmt: skip


def run_cli(n_ranks, *words, timeout=60, **more):
    """Run the command line on so many ranks."""
    return run_ranks(n_ranks, "-c", MAIN, *words, timeout=timeout, **more)
