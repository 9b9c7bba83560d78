"""Methods of fitted mixtures, by scikit-learn's conventions, and starts of EM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted

from vpem.checks import Floats, check_int
from vpem.errors import InputError, Setting, check_choice
from vpem.files.models import Model
from vpem.fits.contribution import Contribution, contribution
from vpem.fits.estimators.base import OnGraph, Rows, dataset_for_model
from vpem.fits.prepare import weighed
from vpem.fits.results import Fit, MixtureResult
from vpem.settings import FitSettings
from vpem.steps.runs import mean_over_roots
from vpem.steps.starts import GivenStart
from vpem.terms.mixture import Mixture
from vpem.terms.rows import rows_with_values


class FittedMixture(DensityMixin, OnGraph):
    """Estimator that has a ``mixture_`` after `fit`, and parameters ``graph``, ``random_state``."""

    n_components: int
    init: Any
    mixture_: Mixture
    fit_: MixtureResult
    _holders: Sequence[str]
    """Names of the agents or workers."""
    _dtype: np.dtype[np.floating]
    """Of the data of the fit, in which results are given."""

    def kept(self) -> Model:
        """Return the model that a file keeps, as `vpem fit` and `vpem fedem` write it.

        Its options are the estimator's parameters; InputError if nothing was fitted.
        """
        self._refuse_unfitted("mixture_")
        if not hasattr(self, "fit_"):
            stored: Model = self._stored
            return stored
        names = self._names(self.mixture_.n_features)
        options = self._options()
        report = {**self.fit_.describe(names, self._holders), "seed": options["random_state"]}
        return self.fit_.kept(names, report, options)

    # ---- use -----------------------------------------------------------------------------------

    def fit_predict(
        self, X: Rows, y: object = None, sample_weight: ArrayLike | None = None
    ) -> NDArray[np.intp]:
        """Fit the mixture and return the most responsible component of each row, shape (M,)."""
        labels: NDArray[np.intp] = self.fit(X, y, sample_weight).predict(X)
        return labels

    def __sklearn_is_fitted__(self) -> bool:
        """Whether `fit` was called."""
        return hasattr(self, "mixture_")

    def _in_their_precision(self, mixture: Mixture, dtype: np.dtype[np.floating]) -> None:
        self._dtype = dtype
        self.mixture_ = mixture

    @property
    def weights_(self) -> Floats:
        """Mixing weights, shape (K,)."""
        return self._mixture_for("weights_").assembled_weights.astype(self._dtype, copy=False)

    @property
    def means_(self) -> Floats:
        """Means in the user's order and units, shape (K, d)."""
        return self._mixture_for("means_").assembled_means.astype(self._dtype, copy=False)

    @property
    def covariances_(self) -> Floats:
        """Covariances in the user's order and units; see `vpem.Mixture.assembled_covariances`."""
        covariances = self._mixture_for("covariances_").assembled_covariances
        return covariances.astype(self._dtype, copy=False)

    @property
    def loadings_(self) -> Floats:
        """Loadings of factors that hubs share (K, d, q), in the user's order and units."""
        loadings = self._mixture_for("loadings_").assembled_loadings
        return loadings.astype(self._dtype, copy=False)

    @property
    def precisions_cholesky_(self) -> Floats:
        """Factors of the precisions, which are ``P P^T``; of variances ``1 / sqrt(v)``."""
        return self._factors("precisions_cholesky_")[0].astype(self._dtype, copy=False)

    @property
    def precisions_(self) -> Floats:
        """Inverse covariances, shaped as `covariances_`."""
        factors, are_variances = self._factors("precisions_")
        if are_variances:
            return (factors**2).astype(self._dtype, copy=False)
        return (factors @ np.swapaxes(factors, -1, -2)).astype(self._dtype, copy=False)

    def _mixture_for(self, name: str) -> Mixture:
        if not hasattr(self, "mixture_"):
            raise AttributeError(f"{name} exists after fit only")
        return self.mixture_

    def _factors(self, name: str) -> tuple[NDArray[np.float64], bool]:
        """Return factors of the precisions, and whether these are of variances alone."""
        mixture = self._mixture_for(name)
        covariances = mixture.assembled_covariances
        if mixture.is_diagonal and not mixture.n_factors:
            return 1 / np.sqrt(covariances), True
        lower = np.linalg.cholesky(covariances)
        return np.triu(np.swapaxes(np.linalg.inv(lower), -1, -2)), False

    def _fitted(self, X: Rows) -> tuple[Mixture, Floats]:
        check_is_fitted(self, "mixture_")
        kinds = self.mixture_.kinds
        if kinds is not None:
            names = self._names(self.mixture_.n_features)
            X = dataset_for_model(X, kinds, names, self.missing)
        return self.mixture_, self._validate(X, reset=False)

    def predict(self, X: Rows) -> NDArray[np.intp]:
        """Most responsible component of each row of X (M, d), shape (M,)."""
        mixture, data = self._fitted(X)
        return mixture.predict(data, missing=self.missing)

    def predict_proba(self, X: Rows) -> Floats:
        """Responsibilities of each row, shape (M, K), in the precision of the data."""
        mixture, data = self._fitted(X)
        shares = mixture.predict_proba(data, missing=self.missing)
        return shares.astype(data.dtype, copy=False)

    def score_samples(self, X: Rows) -> Floats:
        """Log-likelihood of each row, in nats, shape (M,), in the precision of the data."""
        return self._scores(X)[0]

    def _scores(
        self, X: Rows, sample_weight: ArrayLike | None = None
    ) -> tuple[Floats, float, float]:
        """Return log-likelihoods of rows, their sum, and the weight of rows that have a value."""
        mixture, data = self._fitted(X)
        missing = self.missing
        scores = mixture.score_samples(data, missing=missing)
        total, used = weighed(scores, rows_with_values(data, missing), sample_weight)
        return scores.astype(data.dtype, copy=False), total, used

    def score(self, X: Rows, y: object = None, sample_weight: ArrayLike | None = None) -> float:
        """Log-likelihood per sample, in nats: the mean over rows that have a value."""
        scores, total, used = self._scores(X, sample_weight)
        if sample_weight is None and used == len(scores):
            return float(scores.mean())  # in the data's precision, as those of rows are
        return total / used

    def bic(self, X: Rows) -> float:
        """Bayesian information criterion on ``X``, by the parameters that are free."""
        _, total, used = self._scores(X)
        return self.mixture_.bic(total, used)

    def aic(self, X: Rows) -> float:
        """Akaike information criterion on ``X``, by the parameters that are free."""
        total = self._scores(X)[1]
        return self.mixture_.aic(total)

    def contribution(
        self, X: Rows, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Contribution:
        """Say what is lost without each agent's features, and which features separate.

        Parameters
        ----------
        X : array of shape (M, d)
        y : array of shape (M,), optional
            Known labels of the rows.
        sample_weight : array of shape (M,), optional

        Returns
        -------
        Contribution
            See `vpem.contribution`.
        """
        _, data = self._fitted(X)
        missing = self.missing
        return contribution(
            self.kept(), data, labels=y, sample_weight=sample_weight, missing=missing
        )

    def sample(self, n_samples: int = 1) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Draw rows (n_samples, d) of the mixture, and the component (n_samples,) of each."""
        check_is_fitted(self, "mixture_")
        count = check_int("n_samples", n_samples, least=1)
        return self.mixture_.sample(count, np.random.default_rng(self._seed()))


STARTS = {
    "kmeans": "kmeans",
    "k-means++": "k-means++",
    "random": "random",
    "random_from_data": "random",
}
"""Starts by scikit-learn's names, and what they are called here."""


@dataclass(eq=False, repr=False, kw_only=True)
class FittedByEM(FittedMixture):
    """Gaussian mixture fitted by EM to what agents or workers hold."""

    fit_: Fit = field(init=False)
    covariance_type: str = "full"
    weight_concentration_prior_type: str | None = None
    weight_concentration_prior: float | None = None
    mean_precision_prior: float | None = None
    degrees_of_freedom_prior: float | None = None
    prior_covariance: float | None = None
    delta: float | None = None
    bounds: object = None
    repeatable_noise: int | None = None
    agent_dropout: float = 0.0
    init_params: str | None = None
    weights_init: ArrayLike | None = None
    means_init: ArrayLike | None = None
    precisions_init: ArrayLike | None = None
    n_init: int = 1
    floor_fits: str = "last"
    least_rows: float = 0.5
    every_weight: bool = False
    tol: float = 1e-7
    max_iter: int = 1000
    batch_size: int | None = None
    step_size: float | None = None
    accelerate: str | None = None
    reg_covar: float | str = "auto"
    scale: str = "none"
    missing: str = "refuse"
    warm_start: bool = False

    def _start(self, data: Floats) -> dict[str, Any]:
        """Return where to start, and how many times, as settings."""
        if not isinstance(self.warm_start, bool | np.bool_):
            raise InputError(f"warm_start must be true or false, got {self.warm_start!r}")
        if self.warm_start and hasattr(self, "mixture_"):
            return {"init": GivenStart(self.mixture_, last=self._last()), "n_init": 1}
        init = self.init
        if self.init_params is not None:
            if not isinstance(init, str) or init != FitSettings().init:
                raise InputError(
                    Setting("init_params"), " is scikit-learn's name of ", Setting("init"),
                    "; give one of them",
                )  # fmt: skip
            init = STARTS[check_choice("init_params", self.init_params, STARTS)]
        inits = (self.weights_init, self.means_init, self.precisions_init)
        if all(one is None for one in inits):
            return {"init": init}
        k, kind = self.n_components, self.covariance_type
        self._settings(FitSettings, seed=0)
        start = GivenStart.from_parameters(init, kind, (k, data.shape[1]), *inits)
        return {"init": start} if isinstance(start.init, str) else {"init": start, "n_init": 1}

    def _last(self) -> NDArray[np.float64] | None:
        """Return the last log-likelihoods per sample of the roots of the fit that is resumed."""
        fit = getattr(self, "fit_", None)
        if fit is None:
            return np.array([self.lower_bound_]) if np.isfinite(self.lower_bound_) else None
        last: NDArray[np.float64] = fit.history[-1:].ravel() / fit.total_weight
        return last if len(last) else None

    def _take(self, fit: Fit, dtype: np.dtype[np.floating]) -> None:
        self.fit_ = fit
        self._in_their_precision(fit.mixture, dtype)
        self.converged_ = fit.converged
        self.n_iter_ = fit.n_iter
        self.history_ = fit.history
        last = fit.history[-1] if len(fit.history) else fit.root_log_likelihood
        self.lower_bound_ = mean_over_roots(last) / fit.total_weight

    @property
    def lower_bounds_(self) -> list[float]:
        """Log-likelihood per sample in the E-step of each iteration, mean over roots."""
        if not hasattr(self, "fit_"):
            raise AttributeError("lower_bounds_ exists after fit only")
        return [mean_over_roots(values) / self.fit_.total_weight for values in self.history_]
