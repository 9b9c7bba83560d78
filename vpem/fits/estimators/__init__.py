"""Estimators with scikit-learn's interface, of its classes as soon as these are loaded.

They take longer to load than most fits do, and a program that only fits has no use for them.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from vpem.errors import scikit_learns_warning
from vpem.fits.results import Result
from vpem.network.schema import Report


@cache
def parameters_of(kind: type) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of an estimator by name."""
    every = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    return {name: one for name, one in every.items() if name != "self"}


if TYPE_CHECKING:
    from sklearn.base import BaseEstimator as Early
else:

    class Early:
        """What estimators inherit until scikit-learn's classes are loaded: their parameters."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            known = parameters_of(type(self)).items()
            names = sorted(name for name, one in known if one.kind is not one.VAR_KEYWORD)
            found = {name: getattr(self, name) for name in names}
            if deep and any(hasattr(value, "get_params") for value in found.values()):
                inherit()
                return super(Estimator, self).get_params()
            return found

        def set_params(self, **params: Any) -> Any:
            inherit()
            return super(Estimator, self).set_params(**params)

        def __repr__(self) -> str:
            inherit()
            return super(Estimator, self).__repr__()


class DensityEstimator(Early):
    """What estimators of a density inherit: scikit-learn's ``DensityMixin``."""


class Estimator(Early):
    """What all estimators inherit: scikit-learn's ``BaseEstimator``."""


class _Last:
    """Stands behind scikit-learn's classes, so that only these hear of estimators."""

    def __init_subclass__(cls) -> None:
        return


def inherit() -> None:
    """Let estimators, also those that there are, inherit scikit-learn's classes."""
    from sklearn.base import BaseEstimator, DensityMixin

    if Estimator.__bases__ == (BaseEstimator,):
        return
    DensityEstimator.__bases__ = (DensityMixin,)
    Estimator.__bases__ = (BaseEstimator, _Last)
    scikit_learns_warning()
    kinds: list[type] = [Estimator]
    for kind in kinds:
        kinds += kind.__subclasses__()
        super(Estimator, kind).__init_subclass__()  # type: ignore[misc]
    Estimator.__bases__ = (BaseEstimator,)


class Inheritance:
    """Lets estimators inherit scikit-learn's classes when these are loaded, by whomever."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "sklearn.base":
            return None
        after = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found: Any = (one.find_spec(name, path, target) for one in after)
        spec = next(filter(None, found), None)
        if spec is not None:
            load = spec.loader.exec_module

            def load_and_inherit(module: Any) -> None:
                load(module)
                if module.__name__ == name:  # some loaders have several modules
                    inherit()

            spec.loader.exec_module = load_and_inherit
        return spec


sys.meta_path.insert(0, Inheritance())
if "sklearn.base" in sys.modules:
    inherit()


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
