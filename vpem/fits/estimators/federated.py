"""Estimators of federated EM, with scikit-learn's interface and names."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.fits.estimators.fitted import FittedMixture
from vpem.fits.estimators.on_graph import Rows
from vpem.fits.estimators.row_estimators import workers_of
from vpem.fits.fedem import fit_fedem
from vpem.settings import FedMixtureSettings, SumSettings
from vpem.sums.connect import connect_workers
from vpem.sums.exchanges import way_of


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
        "auto": 1 where nothing is noisy, else what noise allows; "constant:g", "decreasing:g,a"
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
        What the workers' memories start from.
    alpha : float or None, default=None
        Step of the memories; None: ``1 / (1 + omega)`` of the codec.
    weighting : {"rows", "workers"}, default="rows"
        What a mean over workers counts alike.
    covariance_type : str, default="full"
        "full", "diag", "spherical", "tied", "tied-diag" or "tied-spherical".
    known_covariance : array or None, default=None
        Covariances that are not estimated, (d, d) with "tied" or (K, d, d) with "full".
    max_iter : int or None, default=None
        Most iterations; None: 1000 where steps are whole, as many more as they are shorter.
    n_epochs : float or None, default=None
        Most epochs.
    tol : float, default=1e-10
        Squared norm of the mean correction, relative to the statistic's, at which to stop. Where
        noise stays (of batches, or without memories) a run of constant steps ends besides when
        noise is all that moves the statistic. 0: never.
    reg_covar, floor, scale
        As for `vpem.fits.fedem.fit_fedem`.
    missing : {"refuse", "marginalize"}, default="refuse"
        What is done where values are missing (NaN): "marginalize" integrates them out, in `fit` and
        in everything else.
    sum : {"server", "tree", "consensus"}, optional
        How they sum. Default: at a server on a star, else by consensus; "tree" is exact on any
        graph.
    n_rounds, weights, acceleration, consensus_tol, link_failure, stragglers
        Of the rounds on a graph; see `vpem.VPEM`.
    secure_sum : bool, default=False
        Whether sums are masked: nobody sees what one party adds (`vpem.SumSettings`).
    record_every : int, default=1
        Iterations from one record of the history to the next.
    random_state : int, Generator, RandomState or None, default=0
        Seeds everything that is drawn; None: another one in every fit.
    verbose, verbose_interval : int, default=0 and 10
        1: print how far the fit is, a line every so many iterations; 2: of every iteration.
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
        Who held which rows, who talked to whom, and all there is to report.

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

    def __init__(
        self,
        n_components: int = 2,
        workers: Any = 1,
        graph: Any = "star",
        compress: str | None = None,
        init: Any = "kmeans",
        *,
        step_size: Any = "auto",
        participation: float = 1.0,
        batch_size: int | None = None,
        variance_reduction: bool = False,
        inner: int | None = None,
        memory: str = "first",
        alpha: float | None = None,
        weighting: str = "rows",
        covariance_type: str = "full",
        known_covariance: Any = None,
        max_iter: int | None = None,
        n_epochs: float | None = None,
        tol: float = 1e-10,
        reg_covar: float | str = "auto",
        floor: float | None = None,
        scale: str = "none",
        missing: str = "refuse",
        sum: str | None = None,
        n_rounds: int | str = "auto",
        weights: str = "metropolis",
        acceleration: str | None = None,
        consensus_tol: float = 1e-6,
        link_failure: float = 0.0,
        stragglers: float = 0.0,
        secure_sum: bool = False,
        record_every: int = 1,
        random_state: Any = 0,
        verbose: int = 0,
        verbose_interval: int = 10,
        n_threads: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.workers = workers
        self.graph = graph
        self.compress = compress
        self.init = init
        self.step_size = step_size
        self.participation = participation
        self.batch_size = batch_size
        self.variance_reduction = variance_reduction
        self.inner = inner
        self.memory = memory
        self.alpha = alpha
        self.weighting = weighting
        self.covariance_type = covariance_type
        self.known_covariance = known_covariance
        self.max_iter = max_iter
        self.n_epochs = n_epochs
        self.tol = tol
        self.reg_covar = reg_covar
        self.floor = floor
        self.scale = scale
        self.missing = missing
        self.sum = sum
        self.n_rounds = n_rounds
        self.weights = weights
        self.acceleration = acceleration
        self.consensus_tol = consensus_tol
        self.link_failure = link_failure
        self.stragglers = stragglers
        self.secure_sum = secure_sum
        self.record_every = record_every
        self.random_state = random_state
        self.verbose = verbose
        self.verbose_interval = verbose_interval
        self.n_threads = n_threads

    def fit(self, X: Rows, y: Any = None, sample_weight: ArrayLike | None = None) -> FedEM:
        """Fit the mixture.

        Parameters
        ----------
        X : array of shape (M, d), data frame or Dataset
            One row a sample; of a dataset the names of features and the weights of rows are taken.
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
        of_rounds = None if central else self.compress
        names = getattr(self, "feature_names_in_", None)
        lines = self._lines()
        fit = fit_fedem(
            data,
            workers,
            connect_workers(graph, self._settings(SumSettings, seed=seed, compress=of_rounds)),
            self._settings(
                FedMixtureSettings,
                seed=seed,
                compress=self.compress if central else None,
            ),
            sample_weight=self._weights_of(X, sample_weight),
            known_covariance=self.known_covariance,
            feature_names=None if names is None else list(names),
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

    def fit_predict(  # type: ignore[override]
        self, X: Rows, y: Any = None
    ) -> NDArray[np.intp]:
        """Fit the mixture and return the most responsible component of each row, shape (M,)."""
        return self.fit(X, y).predict(X)
