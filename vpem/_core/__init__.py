"""Compiled kernels, one file an idea; `tests.twins` holds the NumPy twin of each.

Idle threads yield the processor after some microseconds: spinning ones would slow down other
processes. OpenMP reads how long they spin from the environment, once, when the first kernel is
loaded; the environment is then restored. A variable of `WAITING` that the user has set is kept.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

__all__ = ["WAITING", "waiting"]

WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}
"""How threads wait: to any OpenMP, and to GCC's, which then spins for a moment all the same."""

BLAS = ("scipy.linalg.cython_blas", "scipy.linalg.cython_lapack")
"""Modules in which kernels find BLAS and LAPACK."""

CALL_BLAS = ("axes", "cholesky", "differences", "mahalanobis", "missing", "moments")
"""Kernels that do, when they are loaded."""


def _load() -> dict[str, str]:
    """Load a kernel, and OpenMP with it; how its threads wait, by variables."""
    users = {name: os.environ[name] for name in WAITING if name in os.environ}
    added = {} if users else WAITING
    os.environ.update(added)
    try:
        import_module("vpem._core.consensus")
        _load_blas()
    except ModuleNotFoundError as error:
        if error.name != "vpem._core.consensus":
            raise
        raise ImportError(
            f"the folder {Path(__file__).parents[2]} holds vpem without compiled kernels; leave "
            "it (cd elsewhere) to use an installed vpem, or build them there with 'make demo' or "
            "'pip install -e .'",
            name=error.name,
        ) from None
    finally:
        for name in added:
            os.environ.pop(name, None)
    return users or added


def _load_blas() -> None:
    """Load the kernels that call BLAS, and of `scipy.linalg` only what they call.

    The package itself loads `numpy.f2py`, `numpy.testing` and much else, which takes longer than
    most fits. Its two modules are forgotten once kernels have found their functions: who imports
    `scipy.linalg` later has all of it, with these very modules.
    """
    import scipy

    alone = []
    try:
        for name in BLAS:
            folders = [os.path.join(folder, "linalg") for folder in scipy.__path__]
            spec = None if name in sys.modules else PathFinder.find_spec(name, folders)
            if spec is not None and spec.loader is not None:
                sys.modules[name] = module = module_from_spec(spec)
                alone.append(name)
                spec.loader.exec_module(module)
        for kernel in CALL_BLAS:
            # One that was not built is missed by who calls it.
            with suppress(ModuleNotFoundError):
                import_module(f"vpem._core.{kernel}")
    finally:
        for name in alone:
            del sys.modules[name]


_waiting = _load()


def waiting() -> dict[str, str]:
    """Return the variables that say how threads wait: the user's, or else `WAITING`."""
    return dict(_waiting)
