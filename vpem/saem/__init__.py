"""SAEM: stochastic approximation EM of models with latent variables that must be sampled."""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from types import ModuleType
from typing import Any

import scipy

FUNCTIONS = {"chdtri", "expit", "gammaln", "log_expit", "log_ndtr", "logit", "ndtr", "ndtri",
             "pdtrik", "stdtr", "stdtrit"}  # fmt: skip
"""What is called of `scipy.special`."""


def _load_special() -> Any:
    """Load functions of `scipy.special`, and kernels that call some, without what else it loads.

    Its modules are then forgotten, as in `vpem._core`: who imports it later has all of it, with
    these very functions. It is loaded whole where another thread might import it meanwhile, and
    where a SciPy keeps functions elsewhere.
    """
    name = "scipy.special"
    if name in sys.modules or threading.active_count() > 1:
        return import_module(name)
    package = ModuleType(name)
    package.__path__ = [os.path.join(folder, "special") for folder in scipy.__path__]
    sys.modules[name] = package
    try:
        functions = import_module(f"{name}._ufuncs")
        for kernel in ("langevin", "latents", "proposals", "topics"):
            import_module(f"vpem._core.{kernel}")
    except (ImportError, AttributeError):
        functions = package
    finally:
        for one in [one for one in sys.modules if one.startswith(name)]:
            del sys.modules[one]
    return functions if vars(functions).keys() >= FUNCTIONS else import_module(name)


special = _load_special()
