"""What estimators have in common that are fitted by EM: where it starts, and what it leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.errors import InputError, Setting, check_choice
from vpem.fits.estimators.fitted import FittedMixture
from vpem.fits.results import Fit
from vpem.settings import FitSettings
from vpem.steps.given_starts import GivenStart
from vpem.steps.runs import mean_over_roots

STARTS = {
    "kmeans": "kmeans",
    "k-means++": "k-means++",
    "random": "random",
    "random_from_data": "random",
}
"""Starts by scikit-learn's names, and what they are called here."""


class FittedByEM(FittedMixture):
    """Gaussian mixture fitted by EM to what agents or workers hold."""

    fit_: Fit
    n_components: int
    covariance_type: str
    init: Any
    init_params: str | None
    n_init: int
    weights_init: Any
    means_init: Any
    precisions_init: Any
    warm_start: bool

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
                    Setting("init_params"), " is what scikit-learn calls ", Setting("init"),
                    "; give one of them",
                )  # fmt: skip
            init = STARTS[check_choice("init_params", self.init_params, STARTS)]
        given = (self.weights_init, self.means_init, self.precisions_init)
        if all(one is None for one in given):
            return {"init": init}
        k, kind = self.n_components, self.covariance_type
        self._settings(FitSettings, seed=0)
        start = GivenStart.at(init, kind, (k, data.shape[1]), *given)
        return {"init": start} if isinstance(start.init, str) else {"init": start, "n_init": 1}

    def _last(self) -> NDArray[np.float64] | None:
        """Return what the roots found last of the fit that is gone on from, a row of data."""
        fit = getattr(self, "fit_", None)
        if fit is None:
            return np.array([self.lower_bound_]) if np.isfinite(self.lower_bound_) else None
        last: NDArray[np.float64] = fit.history[-1:].ravel() / fit.total_weight
        return last if len(last) else None

    def _take(self, fit: Fit, dtype: np.dtype[np.floating]) -> None:
        """Take what was fitted for the attributes."""
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
            raise AttributeError("lower_bounds_ is there after fit")
        return [mean_over_roots(found) / self.fit_.total_weight for found in self.history_]
