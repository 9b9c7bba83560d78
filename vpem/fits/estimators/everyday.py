"""What every estimator does beside its fit: saves, sums up and shows itself, says how far it is."""

from __future__ import annotations

import inspect
import os
import time
from abc import abstractmethod
from collections.abc import Callable
from html import escape
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator

from vpem.checks import check_int
from vpem.errors import did_you_mean, printable
from vpem.files.clusterings import StoredClustering, write_clustering
from vpem.files.models import Model, write_model
from vpem.fits.answer import answer_of, as_table
from vpem.fits.completed import Completed
from vpem.fits.imputed import write_imputation
from vpem.shown import html_table, table

Cells = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Heads and rows of a table."""

MEANT = {
    "agents": ("parties", "partition", "n_agents"),
    "compress": ("codec", "compression"),
    "covariance_type": ("covariance", "cov_type"),
    "graph": ("topology", "network"),
    "init": ("init_params", "initialization", "start"),
    "max_iter": ("n_iter", "iterations", "epochs", "max_iterations", "maxiter"),
    "n_clusters": ("k", "K", "n_components", "clusters", "centers"),
    "n_components": ("k", "K", "n_clusters", "components", "G", "n_mixtures"),
    "n_init": ("restarts", "n_restarts", "n_starts"),
    "n_rounds": ("rounds", "consensus_rounds"),
    "n_threads": ("n_jobs", "threads"),
    "n_workers": ("workers", "clients", "observers"),
    "random_state": ("seed", "random_seed"),
    "rank": ("k", "n_components", "n_factors"),
    "reg_covar": ("ridge", "regularization", "reg"),
    "ridge": ("alpha", "regularization", "lam", "lambda_"),
    "tol": ("tolerance", "eps", "threshold"),
    "workers": ("clients", "sites", "n_workers", "n_clients"),
}
"""What users call parameters, by what they are called here."""


class Everyday(BaseEstimator):
    """Estimator that can be kept in a file, and tells what it found."""

    verbose: int
    verbose_interval: int
    _without: ClassVar[dict[str, str]] = {}
    """Parameters of scikit-learn's that there are not, and why."""

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """Refuse parameters that there are not, with the name of the one that is meant."""
        parameters = inspect.signature(cls.__init__).parameters
        known = [name for name in parameters if name != "self"]
        takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        for name in () if takes_any else given:
            if name not in known:
                meant = [one for one in known if name in MEANT.get(one, ())]
                hint = f"; it is called {meant[0]}" if meant else did_you_mean(name, known)
                hint = f": {cls._without[name]}" if name in cls._without else hint
                raise TypeError(f"{cls.__name__} has no parameter {name!r}{hint}")
        made: Self = super().__new__(cls)
        return made

    @abstractmethod
    def kept(self) -> Model | StoredClustering | Completed:
        """Return what a file keeps; `InputError` if nothing was fitted."""

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write what was fitted to a file that `vpem.load` and the command line read.

        Parameters
        ----------
        path : path
            The file, HDF5; written completely or not at all.
        force : bool
            Replace an existing file.

        Raises
        ------
        InputError
            If nothing was fitted.
        FileError
            If the file exists and ``force`` is False, or cannot be written.
        """
        kept = self.kept()
        if isinstance(kept, Model):
            write_model(path, kept, force)
        elif isinstance(kept, StoredClustering):
            write_clustering(path, kept, force)
        else:
            write_imputation(path, kept, force=force)

    def summary(self) -> str:
        """Return what was found, in lines: components or clusters, and how each differs.

        Raises
        ------
        InputError
            If nothing was fitted.
        """
        title, cells = self._found()
        if cells is None:
            return title
        heads, rows = cells
        return f"{title}\n\n{table([[*map(printable, row)] for row in rows], [*heads])}"

    _noun = "component"

    def _found(self) -> tuple[str, Cells | None]:
        """Return what was fitted in a sentence, and the table of its components."""
        kept = self.kept()
        assert not isinstance(kept, Completed)
        report = kept.report
        size = f"{len(kept.feature_names)} features"
        n_workers, n_agents = report.get("n_workers"), report.get("n_agents")
        if n_workers is None and n_agents is not None and n_agents > 1:
            size += f" of {n_agents} agents"
        if report.get("n_samples") is not None:
            rows = f"{report['n_samples']} rows"
            rows += f" of {n_workers} workers" if n_workers is not None and n_workers > 1 else ""
            size = f"{rows}, {size}"
        answer = answer_of(kept)
        title = f"{len(answer.weights)} {self._noun}s, {size}: {told_of(report)}"
        noisy = report.get("privacy") is not None
        cells = as_table(answer.describe(self._noun), self._noun, noisy)
        return f"{type(self).__name__} of {title}", cells

    @property
    def _repr_html_(self) -> Callable[[], str]:
        """Show the parameters, as scikit-learn does, and what was found."""
        shown: Callable[[], str] = super()._repr_html_
        return lambda: shown() + self._found_as_html()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        """Show the parameters, as scikit-learn does, and what was found."""
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] += self._found_as_html()
        return bundle

    def _found_as_html(self) -> str:
        """Return what was found, or nothing before `fit`."""
        if not self.__sklearn_is_fitted__():
            return ""
        title, cells = self._found()
        shown = f"<p>{escape(printable(title))}</p>"
        if cells is None:
            return shown
        heads, rows = cells
        return shown + html_table(
            [[escape(printable(cell)) for cell in row] for row in rows], [*heads]
        )

    @abstractmethod
    def __sklearn_is_fitted__(self) -> bool:
        """Whether `fit` was called."""

    def _lines(self) -> Lines | None:
        """Return what prints how far a fit is, if anything is to be printed."""
        flag = isinstance(self.verbose, bool | np.bool_)
        verbose = check_int("verbose", int(self.verbose) if flag else self.verbose, least=0)
        every = check_int("verbose_interval", self.verbose_interval, least=1)
        return Lines(verbose, every) if verbose else None


def told_of(report: dict[str, Any], unit: str = "sample") -> str:
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


class Lines:
    """Prints how far a fit is, as the recipes tell a callback.

    Parameters
    ----------
    verbose : int
        1: a line every so many iterations; 2 and more: of every iteration, with the seconds.
    every : int
        How many.
    """

    def __init__(self, verbose: int, every: int) -> None:
        self.verbose, self.every = verbose, 1 if verbose > 1 else every
        self.began = time.perf_counter()

    def restarting(self, number: int, count: int, max_iter: int) -> None:
        """Tell which of several restarts begins."""
        if count > 1:
            print(f"restart {number} of {count}")

    def starting(self, what: str) -> None:
        """Tell of a step of the start."""
        if self.verbose > 1:
            print(f"start: {what}")

    def __call__(self, progress: Any) -> None:
        """Tell of an iteration, if it is one of those that are told."""
        if progress.iteration % self.every == 0:
            print(self.line(progress))

    def line(self, progress: Any) -> str:
        """Return what there is to say of an iteration."""
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

    def end(self, converged: bool, n_iter: int) -> None:
        """Tell how it ended."""
        seconds = time.perf_counter() - self.began
        word = "converged" if converged else "not converged"
        print(f"{word} after {n_iter} iterations, {seconds:.2f} s")
