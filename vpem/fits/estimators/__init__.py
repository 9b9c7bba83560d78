"""Estimators with scikit-learn's interface, of its class as soon as that is loaded.

It takes longer to load than most fits do, and a program that only fits has no use for it.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Mapping
from functools import cache
from importlib import import_module, util
from typing import TYPE_CHECKING, Any, TypeAlias

from vpem.fits.results import Result
from vpem.network.schema import Report


@cache
def parameters_of(kind: type) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of an estimator by name."""
    every = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    return {name: one for name, one in every.items() if name != "self"}


if TYPE_CHECKING or "sklearn.base" in sys.modules:
    from sklearn.base import BaseEstimator

    Estimator: TypeAlias = BaseEstimator
else:
    early: list[type] = []
    """Estimators that there were before it was loaded, first the one that others inherit."""

    class Estimator:
        """What estimators inherit until then: their parameters."""

        def __init_subclass__(cls, **known: Any) -> None:
            super().__init_subclass__(**known)
            early.append(cls)

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            return {name: getattr(self, name) for name in sorted(parameters_of(type(self)))}

        def set_params(self, **params: Any) -> Any:
            import_module("sklearn.base")
            return super(early[0], self).set_params(**params)

        def __repr__(self) -> str:
            import_module("sklearn.base")
            return repr(self)

    class Inheritance:
        """Lets estimators inherit scikit-learn's class when that is loaded, by whomever."""

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if name != "sklearn.base":
                return None
            sys.meta_path.remove(self)
            spec: Any = util.find_spec(name)
            sys.meta_path.insert(0, self)
            load = spec.loader.exec_module

            def load_and_inherit(module: Any) -> None:
                load(module)
                sys.meta_path.remove(self)
                early[0].__bases__ = (module.BaseEstimator,)
                for kind in early:
                    module.BaseEstimator.__init_subclass__.__func__(kind)

            spec.loader.exec_module = load_and_inherit
            return spec

    sys.meta_path.insert(0, Inheritance())


def describe_end(report: Report, unit: str = "sample") -> str:
    """Return how a fit ended, by its report; the log-likelihood is one of a unit."""
    converged, n_iter = report.get("converged"), report.get("n_iter")
    ended = "converged" if converged else "not converged"
    said = f"{ended} after {n_iter} iteration{'' if n_iter == 1 else 's'}"
    if n_iter == 0:
        said = "the start"
    elif report.get("privacy") is not None:
        said = f"{n_iter} iterations"
    for name, called in (("log_likelihood", f"log-likelihood per {unit}"), ("inertia", "inertia")):
        value = report.get(name)
        if isinstance(value, float) and value == value:
            said += f", {called} {value:.6g}"
    return said


class ProgressPrinter:
    """Prints the progress of a fit, a line ``every`` so many iterations.

    With ``verbose`` of 2 or more it prints every iteration, with the seconds.
    """

    def __init__(self, verbose: int, every: int) -> None:
        self.verbose, self.every = verbose, 1 if verbose > 1 else every
        self.began = time.perf_counter()

    def restarting(self, number: int, count: int, max_iter: int) -> None:
        if count > 1:
            print(f"restart {number} of {count}")

    def starting(self, what: str) -> None:
        if self.verbose > 1:
            print(f"start: {what}")

    def __call__(self, progress: Any) -> None:
        if progress.iteration % self.every == 0:
            print(self.line(progress))

    def line(self, progress: Any) -> str:
        said = f"iteration {progress.iteration}"
        for name, called in (
            ("log_likelihood", "log-likelihood per sample"), ("objective", "objective"),
            ("inertia", "inertia"), ("change", "change"), ("changed", "rows that moved"),
        ):  # fmt: skip
            value = getattr(progress, name, None)
            if value is not None and value == value:
                said += f", {called} {value:.6g}"
        if self.verbose > 1:
            said += f", {time.perf_counter() - self.began:.2f} s"
        return said

    def end(self, found: Result) -> None:
        seconds = time.perf_counter() - self.began
        word = "converged" if found.converged else "not converged"
        if getattr(found, "guarantee", None) is not None:  # all iterations are run, and none tested
            word = "ended"
        print(f"{word} after {found.n_iter} iterations, {seconds:.2f} s")
