"""What estimators of EM say of their model: tables of BIC, standard errors, tests of components."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import product
from numbers import Integral
from typing import Any, Self

from numpy.typing import ArrayLike

from vpem.checks import Floats, check_int
from vpem.errors import InputError, NumericalError, VpemWarning
from vpem.fits.estimators.base import Rows
from vpem.fits.results import Fit
from vpem.fits.selection.bootstrap import (
    Errors,
    Resampling,
    bootstrap_errors,
    check_components,
    check_rows,
)
from vpem.fits.selection.search import choose
from vpem.fits.selection.trials import Cell, Problem
from vpem.fits.settings import PrivacySettings, parse_covariances
from vpem.network.schema import Report
from vpem.settings import WEIGHT_PRIORS, FitSettings
from vpem.terms.merging import MERGES, Merging, merge_components


def clone(estimator: Any) -> Any:
    from sklearn.base import clone

    return clone(estimator)


class Inferring:
    """Estimator that has a ``fit_`` after `fit`, and parameters by scikit-learn's rules."""

    predict_proba: Callable[[Rows], Any]
    mixture_: Any

    def merge_components(self, X: Rows, sample_weight: ArrayLike | None = None) -> Merging:
        """Merge components to clusters by entropy, two at a time; see `vpem.merge_components`.

        Parameters
        ----------
        X : array of shape (M, d)
        sample_weight : array of shape (M,), optional

        Returns
        -------
        Merging
            Its ``predict(n_clusters)`` labels these rows.
        """
        proba = self.predict_proba(X)
        self.mixture_.refuse_outliers(MERGES)
        return merge_components(proba, sample_weight)

    def select(
        self,
        X: Rows,
        n_components: int | Iterable[int] = range(1, 9),
        covariance_type: str | Sequence[str] = "all",
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Fit every number of components with every covariance type, and become the best by BIC.

        Degenerate fits are chosen only if all are. ``bic_table_`` has the BIC of each model, a row
        for each number of components and a column for each covariance type, nan where a fit failed
        or is degenerate: a data frame if pandas is installed, else a dict of dicts, by type.

        Parameters
        ----------
        X : array of shape (M, d), data frame or Dataset
        n_components : int or iterable of int
        covariance_type : str or sequence of str
            Names, or "all".
        sample_weight : array of shape (M,), optional

        Returns
        -------
        estimator
            This one, with the best model's parameters and attributes.

        Raises
        ------
        InputError
            If no model could be fitted.
        """
        named = covariance_type if isinstance(covariance_type, str) else ",".join(covariance_type)
        estimator: Any = self
        settings = estimator._settings(FitSettings, seed=0)
        types = parse_covariances(named, settings, "covariance_type")
        counts = _counts_of(n_components)
        cells: list[Report] = []
        best = None
        table: dict[str, dict[int, float]] = {one: {} for one in types}
        for k, one in product(counts, types):
            model = clone(estimator).set_params(n_components=k, covariance_type=one)
            cell: Report = {"status": "failed", "bic": math.nan, "degenerate": False}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", VpemWarning)
                    fit = model.fit(X, sample_weight=sample_weight).fit_
                cell |= {
                    "status": "converged" if fit.converged else "not converged",
                    "bic": fit.bic, "degenerate": bool(fit.degenerate),
                    "n_parameters": fit.n_parameters,
                }  # fmt: skip
            except (InputError, NumericalError) as error:
                cell["reason"] = str(error)
            cells.append(cell)
            table[one][k] = math.nan if cell["degenerate"] else cell["bic"]
            if cell["status"] != "failed" and choose(cells, "bic").best == len(cells) - 1:
                best = model
        choose(cells, "bic")
        self.__dict__.update(vars(best))
        self.bic_table_: Any = table
        with suppress(ImportError):
            self.bic_table_ = import_module("pandas").DataFrame(table)
        return self

    def bootstrap(
        self: Any,
        X: Rows,
        sample_weight: ArrayLike | None = None,
        *,
        kind: str = "weighted",
        n_replicates: int = 999,
        level: float = 0.95,
        n_jobs: int = 1,
    ) -> Errors:
        """Standard errors and intervals of the fitted mixture's parameters.

        Every refit begins at the fit, and its components are matched with the fit's, so that labels
        do not switch. ``random_state`` seeds what is drawn.

        Parameters
        ----------
        X : array of shape (M, d)
            The rows of the fit.
        sample_weight : array of shape (M,), optional
            Their weights.
        kind : {"weighted", "parametric"}
            Rows weighed by exponentials, or drawn from the model.
        n_replicates : int
        level : float
            Of the percentile intervals.
        n_jobs : int
            Processes, which do not change the results.

        Returns
        -------
        vpem.fits.selection.bootstrap.Errors

        Raises
        ------
        InputError
            If an argument cannot be used, or hardly any replicate is sound.
        """
        _, data = self._fitted(X)
        model, fit = self._anew(), getattr(self, "fit_", None)
        if fit is None:  # the model is from a file
            model.set_params(init=self.mixture_, n_init=1)
            fit = clone(model).set_params(max_iter=0).fit(X, sample_weight=sample_weight).fit_
            then = self._stored.report
            found = fit.log_likelihood, fit.total_weight
            check_rows("the model", then.get("log_likelihood"), then.get("total_weight"), *found)
        elif fit.labels_for_fit is not None:
            raise InputError(
                "the bootstrap takes fits without labels of rows, which refits would not have; "
                "fit again without labels_for_fit"
            )
        problem = _problem(model, data, fit, self._weights_of(X, sample_weight))
        cell = Cell(fit.mixture.n_components, 0, fit.mixture.covariance_type)
        resampling = Resampling(problem, cell, fit, kind, model.random_state)
        judged = problem.held(0).judge(fit, None)
        total, weight = judged.log_likelihood, judged.weight
        if fit.mixture.outliers == "trimmed":  # a row at the border counts in part
            _, total, weight = self._scores(X, sample_weight)
        each = total / weight
        if getattr(self, "weight_concentration_prior_type", None) in WEIGHT_PRIORS:
            each = fit.log_likelihood  # a posterior's own, not that of its mean
        check_rows("the model", fit.log_likelihood, fit.total_weight, each, weight)
        return bootstrap_errors(resampling, n_replicates, level, n_jobs)

    def _anew(self: Any) -> Any:
        """Return an estimator like this one, not fitted, with a seed."""
        if self._settings(PrivacySettings).is_asked:
            raise InputError(
                "the bootstrap fits rows again without noise, which a private fit promises to have"
            )
        return clone(self).set_params(random_state=self._seed(), warm_start=False)

    def test_components(
        self: Any,
        X: Rows,
        n_components: int | Iterable[int] = range(1, 9),
        *,
        n_replicates: int = 999,
        significance: float = 0.05,
        n_jobs: int = 1,
    ) -> list[Report]:
        """Test numbers of components, each against one more, by bootstrap likelihood ratios.

        The first that is not rejected ends the sequence.

        Parameters
        ----------
        X : array of shape (M, d)
        n_components : int or iterable of int
            One number tests that alone.
        n_replicates : int
            Most that are drawn; drawing stops after 20 statistics as large as the observed one.
        significance : float
        n_jobs : int
            Processes, which do not change the results.

        Returns
        -------
        list of dict
            See `vpem.fits.selection.bootstrap.check_components`.

        Raises
        ------
        InputError
            If an argument cannot be used, or a fit is degenerate.
        """
        counts = _counts_of(n_components)
        model = self._anew()
        fit = clone(model).set_params(n_components=counts[0]).fit(X).fit_
        problem = _problem(model, model._validate(X, reset=True), fit, self._weights_of(X, None))
        return check_components(
            problem, fit.mixture.covariance_type, counts, n_init=model.n_init,
            n_replicates=n_replicates, significance=significance, n_jobs=n_jobs,
        )  # fmt: skip


def _counts_of(n_components: int | Iterable[int]) -> list[int]:
    several: Any = [n_components] if isinstance(n_components, Integral) else n_components
    counts = [check_int("n_components", one, least=1) for one in several]
    if not counts:
        raise InputError("n_components must have at least one number")
    return counts


def _problem(model: Any, data: Floats, fit: Fit, sample_weight: Any) -> Problem:
    """Return the problem of fits as one of an estimator, over its network."""
    settings = model._settings(FitSettings, seed=model.random_state, **model._start(data))
    options = settings.values("n_components", "covariance_type", "n_init")
    options |= {"feature_names": model._given_names, "kinds": fit.mixture.kinds}
    workers = getattr(fit, "workers", None)
    return Problem(data, {0: fit.network}, workers, options, sample_weight=sample_weight)
