"""Compiled kernels, one file an idea; `vpem._core.reference` holds the NumPy twin of each.

Threads that have nothing to do give the processor away after some microseconds: beside other
processes, those that spin keep the work from whoever has some. OpenMP reads how long from the
environment, once, when the first kernel is loaded; the environment is then as it was before, for
it is not ours. Whoever sets a variable of `WAITING` decides.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

__all__ = ["WAITING", "waiting"]

WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}
"""How threads wait: to any OpenMP, and to GCC's, which then spins for a moment all the same."""


def _load() -> dict[str, str]:
    """Load a kernel, and OpenMP with it; how its threads wait, by variables."""
    given = {name: os.environ[name] for name in WAITING if name in os.environ}
    added = {} if given else WAITING
    os.environ.update(added)
    try:
        import_module("vpem._core.consensus")
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
    return given or added


_waiting = _load()


def waiting() -> dict[str, str]:
    """Return the variables that say how threads wait: the user's, or else `WAITING`."""
    return dict(_waiting)
