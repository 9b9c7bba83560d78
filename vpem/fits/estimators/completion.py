"""FedMissEM with scikit-learn's interface and names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from vpem.checks import Floats
from vpem.errors import InputError, Setting
from vpem.fits.estimators.base import Cells, OnGraph, Rows, describe_end, stored_in, validated
from vpem.fits.imputation import fit_imputation
from vpem.fits.mixture_imputation import write_imputation
from vpem.fits.observers import Completed
from vpem.fits.settings import ImputeSettings
from vpem.settings import SumSettings
from vpem.sums.connect import connect_workers, way_of
from vpem.terms.lowrank.entries import from_matrices, split
from vpem.terms.lowrank.observations import Observations


@dataclass(eq=False, repr=False)
class FedMissEM(OneToOneFeatureMixin, TransformerMixin, OnGraph):
    """Imputation of a matrix from what observers saw of it, by federated EM.

    FedMissEM of Dieuleveut, Fort, Moulines and Robin, "Federated Expectation Maximization with
    heterogeneity mitigation and variance reduction". With one observer, everything sent exactly
    and the Gaussian law it is the iterated soft-thresholded singular value decomposition
    ("softImpute") of that rank. With ``method="mixture"`` a Gaussian mixture fills the gaps.

    Parameters
    ----------
    rank : int or "auto", optional
        Of the matrix of natural parameters; where the data's smaller side is less, that. "auto":
        chosen by held-out entries. Default: "auto", or beside a ``ridge`` 2.
    ridge : float or "auto", optional
        Penalty of the factors; above 0 unless the law is Gaussian. Default: "auto", or beside a
        ``rank`` 1.
    law : {"gaussian", "poisson", "bernoulli"}, default="gaussian"
        Of an entry, whose natural parameter is the mean, the log intensity or the log odds.
    variance : float, default=1.0
        Of the Gaussian law.
    method : {"auto", "lowrank", "mixture"}, default="auto"
        What fills the gaps. "auto": a matrix of low rank with several observers, another law, or
        an option of it; else that or a mixture, whichever predicts held-out entries best.
    n_components, covariance_type, reg_covar, n_init
        Of a mixture; see `vpem.ImputeSettings`.
    draws : int, optional
        With a mixture: number of multiple imputations, for Rubin's rules
        (``imputation_.completed``).
    n_workers : int, default=1
        Number of observers that share the entries of one matrix.
    split : {"random", "rows", "features"}, optional
        How they share them: entries at random, or whole rows or columns. Default: at random, with
        a mixture by rows.
    copies : {"auto", "observers", "fewest"}, default="auto"
        Number of copies of the matrix that observers saw parts of; see
        `vpem.fits.imputation.fit_imputation`.
    scale : {"auto", "none", "standard"}, default="auto"
        Whether columns are standardized before, and results scaled back; Gaussian law only, where
        it is the default.
    graph : str, networkx.Graph or vpem.Graph, default="star"
        "star": a server. On any other graph every observer keeps a statistic of its own.
    compress : str, optional
        Codec of what observers send, such as "qsgd:8bits"; on a graph that of the rounds.
    participation : float, default=1.0
        Probability that an observer takes part in an iteration.
    step_size : str, float or callable, default="auto"
        Steps of the statistic.
    batch_size : int, optional
        Entries of its own that an observer draws in an iteration. Default: all.
    variance_reduction : bool, default=False
        VR-FedEM.
    memory : {"first", "zero", "none"}, default="first"
        Start of the observers' memories.
    alpha : float, optional
        Step of the memories. Default: ``1 / (1 + omega)`` of the codec.
    sum : {"server", "tree", "consensus"}, optional
        How they sum. Default: at a server on a star, else by consensus; "tree" is exact on any
        graph.
    n_rounds, weights, acceleration, consensus_tol, eigenvalue, consensus, link_failure, stragglers
        Of the rounds on a graph; see `vpem.VPEM`.
    secure_sum : bool, default=False
        Whether sums are masked: only totals are seen, no party's own terms (`vpem.SumSettings`).
    max_iter : int, optional
        Maximum number of iterations. Default: 1000 with steps of 1, and more with shorter steps.
    tol : float, optional
        Stop when the statistic moves by less than this part of its norm, with a mixture when the
        log-likelihood per sample changes by less. Default: 1e-5, with a mixture 1e-7.
    verbose, verbose_interval : int, default=0 and 10
        1: print progress, a line every so many iterations; 2: a line every iteration.
    random_state : int, Generator, RandomState or None, default=0
        Seed of the split, observers, batches and noise; None: another seed in every fit.
    n_threads : int, optional
        Threads of the codec. Default: all processors.

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

    rank: int | str | None = None
    ridge: float | str | None = None
    law: str = "gaussian"
    _: KW_ONLY
    variance: float = 1.0
    method: str = "auto"
    n_components: int | str = 1
    covariance_type: str = "full"
    reg_covar: float | str = "auto"
    n_init: int = 1
    draws: int | None = None
    n_workers: int = 1
    split: str | None = None
    copies: str = "auto"
    scale: str = "auto"
    graph: Any = "star"
    compress: str | None = None
    participation: float = 1.0
    step_size: object = "auto"
    batch_size: int | None = None
    variance_reduction: bool = False
    memory: str = "first"
    alpha: float | None = None
    n_rounds: int | str = "auto"
    max_iter: int | None = None
    tol: float | None = None

    def __sklearn_tags__(self) -> Any:
        """Say that values may be missing."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: object = None) -> FedMissEM:
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
        central = way_of(graph, self._settings(SumSettings, compress=None)) != "consensus"
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
            lines.end(fit.converged, fit.n_iter)
        self.imputation_: Completed = fit
        self.n_features_in_ = observations.shape[1]
        if fit.factors is not None:
            self.factors_ = (fit.factors.U, fit.factors.V)
            self.theta_ = fit.factors.theta
            self.singular_values_ = fit.factors.singular_values
        self.fitted_ = fit.fitted
        self.row_trend_ = fit.row_trend
        self.column_trend_ = fit.column_trend
        self.log_likelihood_ = fit.log_likelihood
        self.n_iter_ = fit.n_iter
        self.converged_ = fit.converged
        self.history_ = np.array(fit.describe()["history"])
        return self

    _write: ClassVar = staticmethod(write_imputation)

    def kept(self) -> Completed:  # type: ignore[override]
        """Return the imputation that a file keeps; `InputError` if nothing was fitted."""
        self._refuse_unfitted("imputation_")
        return self.imputation_

    def _table(self) -> tuple[str, Cells | None]:
        facts = self.kept().describe()
        rows, columns = facts["n_samples"], facts["n_features"]
        of, each = "FedMissEM of rank {rank}", "entry seen"
        if "rank" not in facts:
            of, each = "Imputation by a mixture of n_components = {n_components}", "sample"
        return (
            f"{of.format(**facts)}, {rows} x {columns}, {facts['share_seen']:.1%} of it seen: "
            f"{describe_end(facts, each)}"
        ), None

    def __sklearn_is_fitted__(self) -> bool:
        """Whether `fit` was called."""
        return hasattr(self, "imputation_")

    def impute(self) -> Floats:
        """Return the matrix (I, J): as seen (mean over observers), and as predicted elsewhere."""
        check_is_fitted(self, "imputation_")
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
        check_is_fitted(self, "imputation_")
        data = self._validate(X, reset=False)
        filled = self.imputation_.fill(data.astype(np.float64, copy=False))
        return filled.astype(data.dtype, copy=False)

    def _validate(self, X: Rows, *, reset: bool) -> Floats:
        stored = stored_in(X)
        data = X if stored is None else stored.X[:]
        kinds = [np.float64, np.float32]
        return validated(self, data, reset=reset, dtype=kinds, ensure_all_finite="allow-nan")
