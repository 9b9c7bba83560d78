"""What every fitted mixture can do, by scikit-learn's conventions."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from vpem.checks import check_data, check_int
from vpem.errors import InputError
from vpem.graph import Graph, from_networkx
from vpem.mixture import Mixture
from vpem.topologies import make_graph

__all__ = ["FittedMixture"]


class FittedMixture(DensityMixin, BaseEstimator):
    """Estimator that has a ``mixture_`` after `fit`, and parameters ``graph``, ``random_state``."""

    graph: Any
    random_state: Any
    mixture_: Mixture

    def _validate(self, X: ArrayLike, *, reset: bool) -> NDArray[Any]:
        data = validate_data(
            self,
            X,
            reset=reset,
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,
            ensure_min_samples=1,
        )
        names = getattr(self, "feature_names_in_", None)
        return check_data(data, data.shape[1], None if names is None else list(names))

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral) and not isinstance(self.random_state, bool):
            return check_int("random_state", self.random_state, least=0)
        if isinstance(self.random_state, np.random.Generator):
            return int(self.random_state.integers(np.iinfo(np.int32).max))
        try:
            state = check_random_state(self.random_state)
        except ValueError:
            raise InputError(
                "random_state must be None, an integer of at least 0, a Generator or RandomState, "
                f"got {self.random_state!r}"
            ) from None
        return int(state.randint(np.iinfo(np.int32).max))

    def _graph(self, n_agents: int, seed: int) -> Graph:
        if isinstance(self.graph, Graph):
            return self.graph
        if isinstance(self.graph, str):
            return make_graph(self.graph, n_agents, seed=seed)
        if hasattr(self.graph, "edges") and hasattr(self.graph, "nodes"):
            return from_networkx(self.graph, n_agents)
        raise InputError(
            f"graph must be a topology's name, a networkx graph or a vpem.Graph, got {self.graph!r}"
        )

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

    def _fitted(self, X: ArrayLike) -> tuple[Mixture, NDArray[Any]]:
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
        return mixture.predict(data)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Responsibilities of each row, shape (M, K)."""
        mixture, data = self._fitted(X)
        return mixture.predict_proba(data)

    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """Log-likelihood of each row, in nats, shape (M,)."""
        mixture, data = self._fitted(X)
        return mixture.score_samples(data)

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
