"""What estimators of EM say of their model: tables of BIC, standard errors, tests of components."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from typing import Any, Self

from numpy.typing import ArrayLike
from sklearn.base import clone

from vpem.checks import check_int
from vpem.errors import InputError, NumericalError, VpemWarning
from vpem.fits.estimators.base import Rows
from vpem.fits.results import Fit
from vpem.fits.selection.bootstrap import Errors, Resampling, bootstrap_errors, check_components
from vpem.fits.selection.search import choose
from vpem.fits.settings import parse_covariances
from vpem.network.schema import Report
from vpem.settings import FitSettings
from vpem.terms.merging import MERGES, Merging, merge_components


@dataclass
class _Refit:
    """Fits other rows as an estimator does."""

    model: Any

    def __call__(self, X: Any, weights: Any, n_components: int, **more: Any) -> Fit:
        given = dict.fromkeys(("init_params", "weights_init", "means_init", "precisions_init"))
        model = clone(self.model).set_params(
            n_components=n_components, warm_start=False, **((given | more) if more else {})
        )
        fit: Fit = model.fit(X, sample_weight=weights).fit_
        return fit


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
        n_components: Iterable[int] = range(1, 9),
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
        n_components : iterable of int
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
        types = parse_covariances(named, estimator._settings(FitSettings, seed=0))
        counts = [check_int("n_components", k, least=1) for k in n_components]
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
        mixture, data = self._fitted(X)
        if getattr(self.fit_, "labels_for_fit", None) is not None:
            raise InputError(
                "the bootstrap takes fits without labels of rows, which refits would not have; "
                "fit again without labels_for_fit"
            )
        weights = self._weights_of(X, sample_weight)
        model = clone(self).set_params(random_state=self._seed())
        resampling = Resampling(_Refit(model), data, weights, mixture, kind, model.random_state)
        return bootstrap_errors(resampling, n_replicates, level, n_jobs)

    def test_components(
        self: Any,
        X: Rows,
        n_components: Iterable[int] = range(1, 9),
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
        n_components : iterable of int
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
        data = self._validate(X, reset=True)
        model = clone(self).set_params(random_state=self._seed())
        return check_components(
            _Refit(model), data, list(n_components), seed=model.random_state,
            n_replicates=n_replicates, significance=significance, n_jobs=n_jobs,
        )  # fmt: skip
