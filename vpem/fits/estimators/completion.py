"""FedMissEM with scikit-learn's interface and names."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import OneToOneFeatureMixin, TransformerMixin

from vpem.checks import Floats
from vpem.errors import InputError, Setting
from vpem.fits.estimators import describe_end
from vpem.fits.estimators.base import (
    OnGraph,
    Rows,
    stored_in,
    validated,
    with_settings,
)
from vpem.fits.imputation import fit_imputation
from vpem.fits.mixture_imputation import write_imputation
from vpem.fits.observers import Completed
from vpem.fits.settings import ImputeSettings
from vpem.records import Table, setting
from vpem.settings import DEALS, SumSettings
from vpem.sums.connect import connect_workers, way_of
from vpem.terms.lowrank.entries import from_matrices, split
from vpem.terms.lowrank.observations import Observations


@with_settings(
    ImputeSettings,
    SumSettings,
    first=("rank", "ridge", "law"),
    without={
        "agent_dropout": "participation is what FedMissEM has for it",
    }
    | dict.fromkeys(("hops", "hubs"), "observers show no other their entries"),
)
class FedMissEM(OneToOneFeatureMixin, TransformerMixin, OnGraph):
    """Imputation of a matrix from what observers saw of it, by federated EM.

    FedMissEM of Dieuleveut, Fort, Moulines and Robin, "Federated Expectation Maximization with
    heterogeneity mitigation and variance reduction". With one observer, everything sent exactly
    and the Gaussian law it is the iterated soft-thresholded singular value decomposition
    ("softImpute") of that rank. With ``method="mixture"`` a Gaussian mixture fills the gaps.

    Attributes
    ----------
    factors_ : tuple of ndarray of shape (I, rank) and (J, rank)
        U and V, balanced; ``theta_ = U V^T``.
    theta_ : ndarray of shape (I, J)
        Natural parameters.
    fitted_ : ndarray of shape (I, J)
        Expectations of all entries.
    row_trend_, column_trend_ : ndarray of shape (I,) and (J,)
        Means of `fitted_` along rows and columns.
    singular_values_ : ndarray of shape (rank,)
        Of `theta_`.
    intercepts_ : dict or None
        Of each observer by name, with ``observer_shrinkage``.
    log_likelihood_ : float
        Per entry seen, in nats.
    n_iter_ : int
        Iterations.
    converged_ : bool
        Whether the statistic came to rest.
    history_ : ndarray
        Penalized log-likelihood per entry, of the start and after every iteration.
    imputation_ : Imputation or MixtureImputation
        The full result. A mixture has no factors, `theta_` and singular values; `log_likelihood_`
        and `history_` are per row.

    Examples
    --------
    >>> import numpy as np
    >>> from vpem import FedMissEM
    >>> X = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0])
    >>> X[3, 2] = np.nan
    >>> model = FedMissEM(rank=1, ridge=1e-4, tol=1e-8).fit(X)
    >>> float(model.impute()[3, 2].round(1))
    16.0
    """

    n_workers: int = setting(1, "Number of observers that share the entries of one matrix.")
    split: str | None = setting(
        None,
        "How they share them: entries at random, or whole rows or "
        "columns. Default: at random, with a mixture by rows.",
        choices=DEALS,
    )
    missing = "marginalize"
    _also: ClassVar = {
        "step_size": "Or a number, or a function of the iteration.",
        "draws": "They are ``imputation_.completed``.",
        "compress": "On a graph it is the codec of the rounds.",
    }

    @property
    def set_fit_request(self) -> NoReturn:
        """It is not there: `fit` takes no weights, whatever a base class hands down."""
        raise AttributeError("FedMissEM has no set_fit_request: its fit takes no sample_weight")

    def fit(self, X: Any, y: object = None) -> FedMissEM:  # type: ignore[override]
        """Impute what no observer saw.

        Parameters
        ----------
        X : array of shape (I, J), list or dict of such arrays, or Observations
            NaN where nothing was seen: one matrix, or that of each observer.
        y : ignored
            Present by scikit-learn's convention.

        Returns
        -------
        FedMissEM
            This estimator.

        Raises
        ------
        InputError
            A ValueError, if the data or a parameter cannot be used.
        """
        seed = self._seed()
        several = isinstance(X, list | tuple) and len(X) > 0 and np.ndim(X[0]) == 2
        # Some sparse matrices are mappings, and are for validation to refuse.
        several |= isinstance(X, Mapping) and not hasattr(X, "shape")
        if not several and not isinstance(X, Observations):
            rows = self._validate(X, reset=True)
            self._dtype = rows.dtype
            observations = from_matrices(rows.astype(np.float64, copy=False))
        else:
            self._dtype = np.dtype(np.float64)
            if hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
            observations = X if isinstance(X, Observations) else from_matrices(X)
        n = observations.n_observers
        if n == 1 and self.n_workers != 1:
            by = self.split or ("rows" if self.method == "mixture" else "random")
            rng = np.random.default_rng([seed, 1])
            observations = split(observations, self.n_workers, by, rng)
        elif self.n_workers != 1:
            raise InputError(
                Setting("n_workers"),
                f" splits the matrix of one observer, but there are {n}; leave it at 1",
            )
        rank = self.rank
        if isinstance(rank, Integral) and not isinstance(rank, bool) and self.method != "mixture":
            rank = min(int(rank), *observations.shape)
        graph = self._graph(observations.n_observers, seed)
        # Rounds among neighbours are compressed themselves; elsewhere corrections are.
        central = not way_of(graph, self._settings(SumSettings, compress=None)).has_rounds
        of_rounds = None if central else self.compress
        sums = self._settings(SumSettings, seed=seed, compress=of_rounds)
        settings = self._settings(ImputeSettings, rank=rank, seed=seed)
        lines = self._lines()
        fit = fit_imputation(
            observations,
            settings if central else settings.changed(compress=None),
            network=connect_workers(graph, sums),
            callback=lines,
        )
        if lines is not None:
            lines.end(fit)
        self.imputation_: Completed = fit
        self.n_features_in_ = observations.shape[1]
        if fit.factors is not None:
            self.factors_ = (fit.factors.U, fit.factors.V)
            self.theta_ = fit.factors.theta
            self.singular_values_ = fit.factors.singular_values
            self.intercepts_ = getattr(fit, "intercepts", None)
        self.fitted_ = fit.fitted
        self.row_trend_ = fit.row_trend
        self.column_trend_ = fit.column_trend
        self.log_likelihood_ = fit.log_likelihood
        self.n_iter_ = fit.n_iter
        self.converged_ = fit.converged
        self.history_ = np.array(fit.describe()["history"])
        return self

    _write: ClassVar = staticmethod(write_imputation)

    _result = "imputation_", "imputation_"

    def kept(self) -> Completed:
        """Return the imputation that a file keeps; `InputError` if nothing was fitted."""
        self._refuse_unfitted()
        return self.imputation_

    def _table(self) -> tuple[str, Table | None]:
        facts = self.kept().describe()
        rows, columns = facts["n_samples"], facts["n_features"]
        of, each = "FedMissEM of rank {rank}", "entry seen"
        if "rank" not in facts:
            of, each = "Imputation by a mixture of n_components = {n_components}", "sample"
        return (
            f"{of.format(**facts)}, {rows} x {columns}, {facts['share_seen']:.1%} of it seen: "
            f"{describe_end(facts, each)}"
        ), None

    def impute(self) -> Floats:
        """Return the matrix (I, J): as seen (mean over observers), and as predicted elsewhere."""
        self._check_fitted("imputation_")
        return self.imputation_.imputed.astype(self._dtype, copy=False)

    def fit_transform(self, X: Any, y: object = None, **options: object) -> Floats:
        """Fit and return `impute`, shape (I, J)."""
        return self.fit(X, y).impute()

    def transform(self, X: ArrayLike) -> Floats:
        """Impute rows, which need not have been in the fit, by the factors of the columns.

        Parameters
        ----------
        X : array of shape (m, J)
            NaN where nothing was seen.

        Returns
        -------
        ndarray of shape (m, J)
            What was seen stays. For the one matrix of a fit that converged it is `impute`'s.

        Raises
        ------
        InputError
            A ValueError, if the rows have another number of columns, values that cannot be of the
            law, or a row has none.
        """
        self._check_fitted("imputation_")
        data = self._validate(X, reset=False)
        filled = self.imputation_.fill(data.astype(np.float64, copy=False))
        return filled.astype(data.dtype, copy=False)

    def _validate(self, X: Rows, *, reset: bool) -> Floats:
        stored = stored_in(X)
        data = X if stored is None else stored.X[:]
        return validated(self, data, reset=reset, ensure_all_finite="allow-nan")
