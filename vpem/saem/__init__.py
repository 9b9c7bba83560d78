"""SAEM: stochastic approximation EM of models with latent variables that must be sampled."""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from types import ModuleType
from typing import Any

import scipy


def _load_special() -> Any:
    """Load functions of `scipy.special`, and kernels that call some, without what else it loads.

    Its modules are then forgotten, as in `vpem._core`: who imports it later has all of it, with
    these very functions. It is loaded whole where another thread might import it meanwhile.
    """
    name = "scipy.special"
    alone = name not in sys.modules and threading.active_count() == 1
    if alone:
        package = ModuleType(name)
        package.__path__ = [os.path.join(folder, "special") for folder in scipy.__path__]
        sys.modules[name] = package
    try:
        functions = import_module(f"{name}._ufuncs")
        for kernel in ("langevin", "latents", "proposals", "topics"):
            import_module(f"vpem._core.{kernel}")
    finally:
        for one in [one for one in sys.modules if alone and one.startswith(name)]:
            del sys.modules[one]
    return functions


special = _load_special()
