"""Estimators of data split by rows: distributed and federated EM, with scikit-learn's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import check_int
from vpem.errors import InputError
from vpem.fits.estimators.base import Rows
from vpem.fits.estimators.fitted import FittedByEM, FittedMixture
from vpem.fits.fedem import fit_fedem
from vpem.fits.rows import fit_em
from vpem.fits.settings import PrivacySettings
from vpem.network.partition import Workers, evenly, from_worker_of_row
from vpem.settings import FedMixtureSettings, FitSettings, SumSettings
from vpem.sums.connect import connect_workers, way_of


def workers_of(workers: Any, n_samples: int) -> Workers:
    """Return who holds which rows, each held once, of an estimator's parameter ``workers``."""
    if isinstance(workers, Workers):
        return workers
    if isinstance(workers, Integral):
        return evenly(n_samples, check_int("workers", workers, least=1))
    if isinstance(workers, Mapping):
        return from_worker_of_row(_holders(workers, n_samples), list(map(str, workers)))
    listed = isinstance(workers, Sequence) or hasattr(workers, "__array__")
    if listed and not isinstance(workers, str | bytes):
        return from_worker_of_row(workers)
    raise InputError(
        "workers must be a number of workers, the worker of each row, the rows of each by its "
        f"name, or vpem.Workers, got {workers!r}"
    )


def _holders(rows_of: Mapping[object, ArrayLike], n_samples: int) -> NDArray[np.intp]:
    """Return the number of the worker of each row (M,), of the rows that each has by its name."""
    holders = np.full(n_samples, -1)
    for number, (name, listed) in enumerate(rows_of.items()):
        rows = np.asarray(listed)
        if rows.dtype == bool and rows.shape == (n_samples,):
            rows = np.flatnonzero(rows)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise InputError(
                f"worker {name!r} must have a list of row numbers, or of {n_samples} truth values, "
                f"got {rows.dtype} of shape {rows.shape}"
            )
        rows = rows.astype(np.intp)
        if rows.size and not 0 <= rows.min() <= rows.max() < n_samples:
            raise InputError(
                f"worker {name!r} has rows beyond those of the data, which are numbered 0 to "
                f"{n_samples - 1}"
            )
        taken = rows[holders[rows] >= 0]
        if len(taken) or len(np.unique(rows)) < len(rows):
            first = taken[0] if len(taken) else np.sort(rows)[np.diff(np.sort(rows)) == 0][0]
            raise InputError(f"row {first} is given twice, last to worker {name!r}")
        holders[rows] = number
    if (holders < 0).any():
        raise InputError(f"row {int(np.argmin(holders))} has no worker; every row needs one")
    return holders


@dataclass(eq=False, repr=False)
class DistributedGaussianMixture(FittedByEM):
    """Gaussian mixture of rows that workers hold: distributed EM.

    On a star, the EM of `sklearn.mixture.GaussianMixture` on pooled rows, iteration by iteration;
    on any other graph the statistics are summed by consensus, and every worker has a model.

    Parameters
    ----------
    n_components : int, default=2
        Number of components, K.
    workers : int, sequence, dict or vpem.Workers, default=1
        Who holds which rows: that many contiguous nearly equal parts, the worker of each row
        (number or name), the rows of each worker by its name, or the workers themselves.
    graph : str, networkx.Graph or vpem.Graph, default="star"
        The communication graph. "star" sums exactly at a server; every other graph by consensus.
    sum : {"server", "tree", "consensus"}, optional
        How they sum. Default: at a server on a star, else by consensus; "tree" is exact on any
        graph.
    n_rounds : int or "auto", default="auto"
        Consensus rounds of each average.
    weights, acceleration, consensus_tol, eigenvalue, consensus
        Of the rounds; see `vpem.VPEM`.
    link_failure, agent_dropout, stragglers : float, default=0.0
        Faults on a graph; the last statistics of silent agents count.
    secure_sum : bool, default=False
        Whether sums are masked: only totals are seen, no party's own terms (`vpem.SumSettings`).
    epsilon, delta, bounds, repeatable_noise : float, float, str or pair of arrays, int, optional
        Differential privacy of one row, by noisy sums of rows clipped to the bounds
        (`vpem.PrivacySettings`). There is no log-likelihood then, ``max_iter`` iterations are
        taken, by default 10, and the noise comes from the system, not from ``random_state``.
    colluding : int, optional
        With ``epsilon`` and ``secure_sum``: number of workers that may collude, without whose noise
        that of the others must do. Default: 1.
    covariance_type : str, default="full"
        "full", "diag", "spherical", "tied", "tied-diag" or "tied-spherical".
    weight_concentration_prior_type : str, optional
        "dirichlet_process" or "dirichlet_distribution": variational Bayes, as
        `sklearn.mixture.BayesianGaussianMixture`; components that the rows do not need end empty,
        and `lower_bound_` is that of the log-evidence. "map": EM to the mode under a prior of means
        and covariances, as mclust's `priorControl`, and `lower_bound_` is the penalised
        log-likelihood. Default: EM.
    weight_concentration_prior, mean_precision_prior, degrees_of_freedom_prior : float, optional
        Of that prior; see `vpem.FitSettings` for the defaults.
    prior_covariance : float, optional
        Prior scale matrix of a hub, as a multiple of the sample covariance of all rows.
    init : {"random", "k-means++", "kmeans"} or row indices, default="kmeans"
        Where EM starts.
    batch_size, step_size, accelerate
        As for `vpem.VPEM`, of each worker's rows (`vpem.steps.row_batches.fit_row_batches`).
    n_init, floor_fits, least_rows, every_weight, tol, max_iter, reg_covar, scale, missing
        As for `vpem.VPEM`.
    warm_start
        As for `vpem.VPEM`.
    random_state
        As for `vpem.VPEM`.
    init_params, weights_init, means_init, precisions_init, verbose, verbose_interval, n_threads
        As for `vpem.VPEM`.

    Attributes
    ----------
    weights_, means_, covariances_, precisions_, precisions_cholesky_
        Of the first worker's model.
    mixtures_ : list of Mixture
        One where all share the sum; under consensus that of each worker.
    mixture_ : Mixture
        The first of them.
    converged_, n_iter_, lower_bound_, lower_bounds_, history_, graph_, fit_
        As for `vpem.VPEM`; ``history_`` has a column a model. Of a private fit the history is
        empty, and the bound nan.
    workers_ : Workers
        Who held which rows.

    Examples
    --------
    >>> import numpy as np
    >>> from vpem import DistributedGaussianMixture
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> X[:100] += 4
    >>> model = DistributedGaussianMixture(n_components=2, workers=5, random_state=0).fit(X)
    >>> model.weights_.round(1).tolist()
    [0.5, 0.5]
    """

    n_components: int = 2
    workers: Any = 1
    graph: Any = "star"
    n_rounds: int | str = "auto"
    init: object = "kmeans"
    _: KW_ONLY
    epsilon: float | None = None
    colluding: int | None = None

    def fit(
        self, X: Rows, y: object = None, sample_weight: ArrayLike | None = None
    ) -> DistributedGaussianMixture:
        """Fit the mixture.

        Parameters
        ----------
        X : array of shape (M, d), data frame or Dataset
            One row per sample; a dataset brings names of features and weights of rows.
        y : ignored
            Present by scikit-learn's convention.
        sample_weight : array of shape (M,), optional
            Weight of each row: zero has no effect, an integer equals as many copies.

        Returns
        -------
        DistributedGaussianMixture
            This estimator.

        Raises
        ------
        InputError
            A ValueError, if the data or a parameter cannot be used.
        NumericalError
            If a computation has no finite answer.
        """
        data = self._validate(X, reset=True)
        seed = self._seed()
        workers = workers_of(self.workers, len(data))
        graph = self._graph(workers.n_workers, seed)
        network = connect_workers(graph, self._settings(SumSettings, seed=seed))
        privacy = self._settings(PrivacySettings)
        dtype = np.float64 if privacy.is_asked else data.dtype
        lines = self._lines()
        fit = fit_em(
            data,
            workers,
            network,
            self._settings(FitSettings, seed=seed, dtype=dtype, **self._start(data)),
            sample_weight=self._weights_of(X, sample_weight),
            feature_names=self._given_names,
            callback=lines,
            privacy=privacy,
        )
        if lines is not None:
            lines.end(fit.converged, fit.n_iter)
        self._take(fit, data.dtype)
        self.workers_ = workers
        self._holders = workers.names
        self.graph_ = network.graph
        self.mixtures_ = fit.mixtures
        return self


@dataclass(eq=False, repr=False)
class FedEM(FittedMixture):
    """Gaussian mixture of rows that workers hold, by FedEM or VR-FedEM.

    Dieuleveut, Fort, Moulines and Robin 2021, "Federated Expectation Maximization with
    heterogeneity mitigation and variance reduction": workers send quantized corrections of mean
    statistics, of minibatches, and not all of them at a time. With ``step_size=1``,
    ``memory="none"`` and nothing else it is the EM of `sklearn.mixture.GaussianMixture`.

    Parameters
    ----------
    n_components : int, default=2
        Number of components, K.
    workers : int, sequence, dict or vpem.Workers, default=1
        Who holds which rows: that many contiguous nearly equal parts, the worker of each row
        (number or name), the rows of each worker by its name, or the workers themselves.
    graph : str, networkx.Graph or vpem.Graph, default="star"
        "star": a server. On any other graph every worker keeps a statistic of its own.
    compress : str, Codec or None, default=None
        Codec of the corrections, such as "qsgd:8bits" (`vpem.network.codecs.parse_codec`), or one
        of your own (`vpem.Codec`); on a graph of the rounds.
    init : {"random", "k-means++", "kmeans"} or row indices, default="kmeans"
        Where FedEM starts.
    step_size : str, float or callable, default="auto"
        "auto": 1 without noise, else what noise allows; "constant:g", "decreasing:g,a"
        (``g k^-a``), a number, or a function of the iteration.
    participation : float, default=1.0
        Probability that a worker is active in an iteration.
    batch_size : int or None, default=None
        Rows a worker draws of its own in an iteration; None: all, or with `variance_reduction`
        the square root of half of them.
    variance_reduction : bool, default=False
        VR-FedEM.
    inner : int or None, default=None
        Iterations of its outer loops.
    memory : {"first", "zero", "none"}, default="first"
        Start of the workers' memories.
    alpha : float or None, default=None
        Step of the memories; None: ``1 / (1 + omega)`` of the codec.
    weighting : {"rows", "workers"}, default="rows"
        Whether rows or workers have equal weights in a mean over workers.
    covariance_type : str, default="full"
        "full", "diag", "spherical", "tied", "tied-diag" or "tied-spherical".
    known_covariance : array or None, default=None
        Covariances that are not estimated, (d, d) with "tied" or (K, d, d) with "full".
    max_iter : int or None, default=None
        Maximum number of iterations; None: 1000 with steps of 1, and more with shorter steps.
    n_epochs : float or None, default=None
        Maximum number of epochs.
    tol : float, default=1e-10
        Squared norm of the mean correction, relative to the statistic's, at which to stop. Where
        noise stays (of batches, or without memories) a run of constant steps also stops when only
        noise moves the statistic. 0: never.
    reg_covar, floor, scale
        As for `vpem.fits.fedem.fit_fedem`.
    missing : {"refuse", "marginalize"}, default="refuse"
        What to do about missing values (NaN): "marginalize" integrates them out, in `fit` and in
        all later methods.
    sum : {"server", "tree", "consensus"}, optional
        How they sum. Default: at a server on a star, else by consensus; "tree" is exact on any
        graph.
    n_rounds, weights, acceleration, consensus_tol, eigenvalue, consensus, link_failure, stragglers
        Of the rounds on a graph; see `vpem.VPEM`.
    secure_sum : bool, default=False
        Whether sums are masked: only totals are seen, no party's own terms (`vpem.SumSettings`).
    record_every : int, default=1
        Iterations from one record of the history to the next.
    random_state : int, Generator, RandomState or None, default=0
        Seed of everything that is drawn; None: another one in every fit.
    verbose, verbose_interval : int, default=0 and 10
        1: print progress, a line every so many iterations; 2: a line every iteration.
    n_threads : int or None, default=None
        Threads of the kernels.

    Attributes
    ----------
    weights_, means_, covariances_, precisions_, precisions_cholesky_
        Mixing weights (K,), means (K, d), and covariances, their inverses and factors of these.
    mixture_ : Mixture
        The same.
    statistic_ : ndarray of shape (P,)
        The last running statistic.
    history_ : FedHistory
        Objective, squared mean field, epochs and bytes of the iterations recorded.
    converged_ : bool
        Whether the fit came to rest; ``fit_.run.in_noise`` says whether that is to within noise.
    n_iter_ : int
        Iterations.
    n_epochs_ : float
        Conditional expectations computed, divided by the number of rows.
    n_projections_ : int
        Weights and covariances that noise made invalid and that were projected.
    lower_bound_ : float
        Log-likelihood per sample of the mixture.
    workers_, graph_, fit_
        Who held which rows, the communication graph, and the full result.

    Examples
    --------
    >>> import numpy as np
    >>> from vpem import FedEM
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> X[:100] += 4
    >>> model = FedEM(n_components=2, workers=5, compress="qsgd:8bits", random_state=0).fit(X)
    >>> model.weights_.round(1).tolist()
    [0.5, 0.5]
    """

    n_components: int = 2
    workers: Any = 1
    graph: Any = "star"
    compress: str | None = None
    init: object = "kmeans"
    _: KW_ONLY
    step_size: object = "auto"
    participation: float = 1.0
    batch_size: int | None = None
    variance_reduction: bool = False
    inner: int | None = None
    memory: str = "first"
    alpha: float | None = None
    weighting: str = "rows"
    covariance_type: str = "full"
    known_covariance: object = None
    max_iter: int | None = None
    n_epochs: float | None = None
    tol: float = 1e-10
    reg_covar: float | str = "auto"
    floor: float | None = None
    scale: str = "none"
    missing: str = "refuse"
    n_rounds: int | str = "auto"
    record_every: int = 1

    def fit(self, X: Rows, y: object = None, sample_weight: ArrayLike | None = None) -> FedEM:
        """Fit the mixture.

        Parameters
        ----------
        X : array of shape (M, d), data frame or Dataset
            One row per sample; a dataset brings names of features and weights of rows.
        y : ignored
            Present by scikit-learn's convention.
        sample_weight : array of shape (M,), optional
            Weight of each row: zero has no effect, an integer equals as many copies. Rows of
            batches are drawn in proportion.

        Returns
        -------
        FedEM
            This estimator.

        Raises
        ------
        InputError
            A ValueError, if the data or a parameter cannot be used.
        NumericalError
            If noise outgrows the steps.
        """
        data = self._validate(X, reset=True)
        seed = self._seed()
        workers = workers_of(self.workers, len(data))
        graph = self._graph(workers.n_workers, seed)
        # Rounds among neighbours are compressed themselves; elsewhere FedEM's corrections are.
        central = way_of(graph, self._settings(SumSettings, compress=None)) != "consensus"
        of_rounds, compress = (None, self.compress) if central else (self.compress, None)
        lines = self._lines()
        fit = fit_fedem(
            data,
            workers,
            connect_workers(graph, self._settings(SumSettings, seed=seed, compress=of_rounds)),
            self._settings(FedMixtureSettings, seed=seed, compress=compress),
            sample_weight=self._weights_of(X, sample_weight),
            known_covariance=self.known_covariance,
            feature_names=self._given_names,
            callback=lines,
        )
        if lines is not None:
            lines.end(fit.converged, fit.n_iter)
        self.fit_ = fit
        self.workers_ = workers
        self._holders = workers.names
        self.graph_ = graph
        self._in_their_precision(fit.mixture, data.dtype)
        self.statistic_ = fit.run.statistic
        self.history_ = fit.run.history
        self.converged_ = fit.converged
        self.n_iter_ = fit.n_iter
        self.n_epochs_ = fit.run.epochs
        self.n_projections_ = fit.run.projections
        self.lower_bound_ = fit.log_likelihood
        return self

    def fit_predict(self, X: Rows, y: object = None) -> NDArray[np.intp]:  # type: ignore[override]
        """Fit the mixture and return the most responsible component of each row, shape (M,)."""
        return self.fit(X, y).predict(X)
