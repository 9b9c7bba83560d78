"""What every fitted mixture can do, by scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted

from vpem.checks import Floats, check_int
from vpem.files.models import Model
from vpem.fits.estimators.on_graph import OnGraph
from vpem.fits.results import MixtureResult
from vpem.terms.mixture import Mixture

__all__ = ["FittedMixture"]


class FittedMixture(DensityMixin, OnGraph):
    """Estimator that has a ``mixture_`` after `fit`, and parameters ``graph``, ``random_state``."""

    mixture_: Mixture
    fit_: MixtureResult
    _holders: Sequence[str]
    """Names of the agents or workers."""

    def kept(self) -> Model:
        """Return the model that a file keeps, as `vpem fit` and `vpem fedem` write it.

        Returns
        -------
        Model
            Its options are the estimator's parameters.

        Raises
        ------
        InputError
            If nothing was fitted.
        """
        self._refuse_unfitted("mixture_")
        names = self._names(self.mixture_.n_features)
        options = self._options()
        report = {**self.fit_.describe(names, self._holders), "seed": options["random_state"]}
        return self.fit_.kept(names, report, options)

    # ---- use -----------------------------------------------------------------------------------

    def fit_predict(
        self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None
    ) -> NDArray[np.intp]:
        """Fit the mixture and return the most responsible component of each row, shape (M,)."""
        labels: NDArray[np.intp] = self.fit(X, y, sample_weight).predict(X)
        return labels

    @property
    def covariances_(self) -> NDArray[np.float64]:
        """Covariances in the user's order and units; see `vpem.Mixture.assembled_covariances`."""
        if not hasattr(self, "mixture_"):
            raise AttributeError("covariances_ is there after fit")
        return self.mixture_.assembled_covariances

    def _fitted(self, X: ArrayLike) -> tuple[Mixture, Floats]:
        check_is_fitted(self, "mixture_")
        return self.mixture_, self._validate(X, reset=False)

    def predict(self, X: ArrayLike) -> NDArray[np.intp]:
        """Most responsible component of each row.

        Parameters
        ----------
        X : array of shape (M, d)

        Returns
        -------
        ndarray of shape (M,)
        """
        mixture, data = self._fitted(X)
        return mixture.predict(data, missing=getattr(self, "missing", "refuse"))

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Responsibilities of each row, shape (M, K)."""
        mixture, data = self._fitted(X)
        return mixture.predict_proba(data, missing=getattr(self, "missing", "refuse"))

    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """Log-likelihood of each row, in nats, shape (M,)."""
        mixture, data = self._fitted(X)
        return mixture.score_samples(data, missing=getattr(self, "missing", "refuse"))

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Log-likelihood per sample, in nats."""
        return float(self.score_samples(X).mean())

    def bic(self, X: ArrayLike) -> float:
        """Bayesian information criterion on ``X``, by the parameters that are free."""
        scores = self.score_samples(X)
        return self.mixture_.bic(float(scores.sum()), len(scores))

    def aic(self, X: ArrayLike) -> float:
        """Akaike information criterion on ``X``, by the parameters that are free."""
        scores = self.score_samples(X)
        return self.mixture_.aic(float(scores.sum()))

    def sample(self, n_samples: int = 1) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Draw rows from the fitted mixture.

        Parameters
        ----------
        n_samples : int
            How many.

        Returns
        -------
        X : ndarray of shape (n_samples, d)
        y : ndarray of shape (n_samples,)
            Component of each row.
        """
        check_is_fitted(self, "mixture_")
        count = check_int("n_samples", n_samples, least=1)
        return self.mixture_.sample(count, np.random.default_rng(self._seed()))
