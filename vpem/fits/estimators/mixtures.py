"""Estimators of mixtures, with scikit-learn's interface and names.

Of features that agents hold, also of rows that come in batches one after the other; and of rows
that workers hold, by distributed and by federated EM.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import Floats, check_int, check_number
from vpem.errors import InputError, NotConvergedWarning, Setting, check_choice
from vpem.files.datasets import Dataset
from vpem.files.families import FamilyChoice
from vpem.files.models import Model
from vpem.files.traces import Trace
from vpem.fits.contribution import Contribution, contribution
from vpem.fits.estimators import DensityEstimator, streams
from vpem.fits.estimators.base import (
    ALL_OR_EACH,
    WORKERS,
    OnGraph,
    Rows,
    dataset_for_fit,
    dataset_for_model,
    number_in,
    stored_in,
    warn_of_columns,
    with_settings,
    workers_of,
)
from vpem.fits.estimators.clusters import OverClusters
from vpem.fits.estimators.inference import Inferring
from vpem.fits.fedem import FedFit, fit_fedem
from vpem.fits.labels import KnownLabels
from vpem.fits.likely_hubs import connect_by_likelihood
from vpem.fits.prepare import weighed_kept
from vpem.fits.results import Fit, MixtureResult, RowFit
from vpem.fits.rows import fit_em, fit_next
from vpem.fits.settings import PrivacySettings
from vpem.fits.vpem import fit_vpem
from vpem.network.graph import from_edges
from vpem.network.partition import Partition, Workers
from vpem.records import changed, setting
from vpem.settings import (
    FAMILY_NAMES,
    FedMixtureSettings,
    FitSettings,
    SumSettings,
)
from vpem.steps.batches import STEP_SIZE
from vpem.steps.runs import mean_over_roots
from vpem.steps.starts import GivenStart
from vpem.sums.connect import connect, connect_workers, way_of
from vpem.terms.families.kinds import Kinds
from vpem.terms.mixture import Mixture
from vpem.terms.rows import check_columns, rows_with_values

OF_FEATURES = dict.fromkeys(("hops", "hubs"), "workers do not show their rows to others")

STARTS = {
    "kmeans": "kmeans",
    "k-means++": "k-means++",
    "farthest": "farthest",
    "random": "random",
    "random_from_data": "random",
}
"""Starts by scikit-learn's names, and what they are called here."""


class FittedMixture(DensityEstimator, OnGraph):
    """Estimator that has a ``mixture_`` after `fit`, and parameters ``graph``, ``random_state``."""

    init: Any = changed(
        FitSettings,
        "init",
        help="Start: random (shared rows), k-means++, kmeans, farthest, small-em (the best of "
        "short runs; not of FedEM), row indices (K,), or a Mixture.",
    )
    keep_trace: bool = setting(False, "Keep every iterate of a fit: ``trace_`` is a vpem.Trace.")
    mixture_: Mixture
    fit_: MixtureResult
    trace_: Trace
    _result = "mixture_", "fit_"
    _dtype: np.dtype[np.floating]
    """Of the data of the fit, in which results are given."""

    def _lines(self) -> Any:
        lines = super()._lines()
        if not self.keep_trace:
            self.__dict__.pop("trace_", None)
            return lines
        self.trace_ = Trace(lines)
        return self.trace_

    # ---- use -----------------------------------------------------------------------------------

    def fit_predict(
        self, X: Rows, y: object = None, sample_weight: ArrayLike | None = None
    ) -> NDArray[np.intp]:
        """Fit the mixture and return the most responsible component of each row, shape (M,)."""
        labels: NDArray[np.intp] = self.fit(X, y, sample_weight).predict(X)
        return labels

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
        self._check_fitted("mixture_")
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
        mixture, data = self._fitted(X)
        scores = mixture.score_samples(data, missing=self.missing)
        return scores.astype(data.dtype, copy=False)

    def _scores(
        self, X: Rows, sample_weight: ArrayLike | None = None
    ) -> tuple[Floats, float, float]:
        """Return log-likelihoods of rows, their sum, and the weight of rows that have a value."""
        mixture, data = self._fitted(X)
        missing = self.missing
        scores = mixture.score_samples(data, missing=missing)
        there, trim = rows_with_values(data, missing), getattr(self, "trim", 0.0)
        total, used = weighed_kept(mixture, scores, there, sample_weight, trim)
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
        self._check_fitted("mixture_")
        count = check_int("n_samples", n_samples, least=1)
        return self.mixture_.sample(count, np.random.default_rng(self._seed()))


class FittedByEM(Inferring, FittedMixture):
    """Gaussian mixture fitted by EM to what agents or workers hold."""

    fit_: Fit
    init_params: str | None = setting(
        None,
        "scikit-learn's name of ``init``: kmeans, k-means++, random or random_from_data.",
    )
    weights_init: ArrayLike | None = setting(None, "Mixing weights (K,) to start at.")
    means_init: ArrayLike | None = setting(None, "Means (K, d) to start at.")
    precisions_init: ArrayLike | None = setting(
        None,
        "Inverse covariances to start at, shaped as ``precisions_``; ``init`` finds what is not "
        "given.",
    )
    warm_start: bool = setting(
        False,
        "Start from the last fit instead of ``init``, and judge convergence by its last iteration.",
    )
    _also: ClassVar = {
        "bounds": "Or a pair of numbers or arrays. There is no log-likelihood then, and the noise "
        "comes from the system, not from ``random_state``.",
        "compress": "Or one of your own (`vpem.Codec`).",
        "step_size": "`vpem.VPEM.partial_fit` takes 0.6 for None.",
        "weight_concentration_prior_type": "Variational Bayes is that of "
        "`sklearn.mixture.BayesianGaussianMixture`, and ``lower_bound_`` that of the log-evidence; "
        "under map it is the penalised log-likelihood.",
    }

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
        k, kind = self.n_components, self._settings(FitSettings, seed=0).covariance_type
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


@with_settings(
    FitSettings,
    SumSettings,
    PrivacySettings,
    first=("n_components", "agents", "graph", "hops", "n_rounds", "init"),
    without={
        "colluding": "agents who hold features share no noise, as workers who hold rows do",
        "epsilon": "it is for rows; a model of features has release_epsilon",
        "penalty": "it is for rows; a model of features has weight_concentration_prior_type map",
    },
)
class VPEM(FittedByEM):
    """Gaussian mixture of data split by features over agents on a graph.

    VP-EM of Valdeira, Soares and Xavier, "Decentralized EM to Learn Gaussian Mixtures from Datasets
    Distributed by Features": Algorithm 1 on a star, Algorithm 2 on any other connected graph. With
    one agent it is the EM of `sklearn.mixture.GaussianMixture`.

    Attributes
    ----------
    weights_ : ndarray of shape (K,)
        Mixing weights, mean over roots. Parameters are in single precision where the data are.
    means_ : ndarray of shape (K, d)
        Means.
    covariances_ : ndarray
        Covariances, (K, d, d) and block-diagonal over hubs when full; see
        `vpem.Mixture.assembled_covariances` for the other types. (K, d, d) with factors.
    loadings_ : ndarray of shape (K, d, q)
        Loadings of the factors, if there are some.
    precisions_, precisions_cholesky_ : ndarray
        Inverse covariances and their factors, of the same shape.
    converged_ : bool
        Whether all roots proposed to stop.
    n_iter_ : int
        Iterations of the best restart.
    lower_bound_ : float
        Log-likelihood per sample in the E-step of the last iteration, mean over roots.
    lower_bounds_ : list of float
        The same of every iteration.
    history_ : ndarray of shape (iterations, B)
        Total log-likelihood per iteration and root; the first row belongs to the start. A released
        model has none, and its bound is nan.
    hubs_ : list of Hub
        Root and agents of each hub.
    graph_ : Graph
        The communication graph.
    mixing_rate_ : float or None
        Second largest eigenvalue modulus of the mixing weights; None on a star.
    consensus_error_ : float
        ``max |C - 1|`` over the operator of the rounds.
    mixture_ : Mixture
        Parameters hub by hub.
    fit_ : Fit
        The full result; after `partial_fit` history and messages are those of the last batch.
    n_batches_seen_ : int
        Batches that `partial_fit` has seen; a whole fit before them counts as one.

    Examples
    --------
    >>> import numpy as np
    >>> from vpem import VPEM
    >>> X = np.random.default_rng(0).normal(size=(200, 6))
    >>> X[:100] += 4
    >>> model = VPEM(n_components=2, agents=3, graph="cycle", hops=0, random_state=0).fit(X)
    >>> model.weights_.round(1).tolist()
    [0.5, 0.5]
    """

    agents: object = setting(None, ALL_OR_EACH)
    graph: Any = setting(
        None,
        "The communication graph: a topology's name, a networkx.Graph or a vpem.Graph. A star, "
        "also the default, sums exactly at a server; every other graph by consensus.",
    )
    family: object = setting(
        None,
        'Density of each feature: a name for all ("poisson"), "auto" by what columns hold, those '
        'of features and agents ("lab=t,sex=categorical" or a dict; others are "auto"), or a list '
        f"of d. Names are {', '.join(FAMILY_NAMES)}. Text and categories of a data frame become "
        "codes; `predict` and the like find levels by name. None: all are Gaussian.",
    )

    # ---- fitting -------------------------------------------------------------------------------

    def fit(
        self,
        X: Rows,
        y: object = None,
        sample_weight: ArrayLike | None = None,
        labels_for_fit: KnownLabels | ArrayLike | None = None,
    ) -> VPEM:
        """Fit the mixture.

        Parameters
        ----------
        X : array of shape (M, d), data frame or Dataset
            One row per sample; a dataset brings names of features and weights of rows, and agents
            and graph where the parameters name none.
        y : ignored
            Present by scikit-learn's convention.
        sample_weight : array of shape (M,), optional
            Weight of each row: zero has no effect, an integer equals as many copies.
        labels_for_fit : array of shape (M,) or (M, K), optional
            Labels of some rows, -1 where there is none, or probabilities of the components; see
            `vpem.fit_vpem`.

        Returns
        -------
        VPEM
            This estimator.

        Raises
        ------
        InputError
            A ValueError, if the data or a parameter cannot be used.
        NumericalError
            If a computation has no finite answer.
        """
        rows, stored = X, stored_in(X)
        kinds = None if stored is None else stored.kinds
        if self.family is not None:

            def held(dataset: Dataset) -> Partition:
                self.feature_names_in_ = np.array(dataset.feature_names, dtype=object)
                return self._partition_of(self.agents, dataset.n_features, True)

            dataset = dataset_for_fit(X, self.family, held)
            rows, kinds, names = dataset, dataset.kinds, dataset.feature_names
            choice = FamilyChoice.parse(self.family, names)
            coded = () if kinds is None else kinds.columns_of("categorical")
            named = {
                *coded,
                *(j for j, name in enumerate(names) if choice and name in choice.named),
            }
            unnamed = sorted(set(range(len(names))) - named)
            if unnamed and stored is None:
                warn_of_columns(dataset.X[:, unnamed], [names[j] for j in unnamed])
        data = self._validate(rows, reset=True)
        weights = self._weights_of(X, sample_weight)
        return self._fit(data, weights, kinds, labels_for_fit, stored, **self._start(data))

    def _fit(
        self,
        data: Floats,
        sample_weight: ArrayLike | None,
        kinds: Kinds | None = None,
        labels_for_fit: KnownLabels | ArrayLike | None = None,
        stored: Dataset | None = None,
        **options: object,
    ) -> VPEM:
        """Fit again, on the graph and with the hubs of the parameters, or of a dataset."""
        seed = self._seed()
        sums = self._settings(SumSettings, seed=seed)
        stored_partition = None if stored is None else stored.partition
        edges = None if stored is None or self.graph is not None else stored.edges
        agents = stored_partition if self.agents is None else self.agents
        networked = self.graph is not None or edges is not None or sums.is_asked
        partition = self._partition_of(agents, data.shape[1], networked)
        if edges is not None and (
            stored_partition is None or stored_partition.n_agents == partition.n_agents
        ):
            graph = from_edges(edges, partition.n_agents, partition.names, topology="dataset")
        else:
            graph = self._graph(partition.n_agents, seed)
        settings = self._settings(FitSettings, seed=seed, dtype=data.dtype, **options)
        privacy = self._settings(PrivacySettings)
        known: dict[str, Any] = {
            "sample_weight": sample_weight, "feature_names": self._given_names, "kinds": kinds
        }  # fmt: skip
        if sums.hubs == "likelihood":
            network = connect_by_likelihood(
                data, graph, partition, sums, settings, private=privacy.is_asked, **known
            )
        else:
            network = connect(graph, partition, sums)
        lines = self._lines()
        fit = fit_vpem(
            data,
            network,
            settings,
            **known,
            callback=lines,
            privacy=privacy,
            labels_for_fit=labels_for_fit,
        )
        if lines is not None:
            lines.end(fit)
        self.graph_ = network.graph
        self.hubs_ = network.hubs
        self.mixing_rate_ = network.mixing_rate
        self.consensus_error_ = network.consensus_error
        self.n_batches_seen_ = 1
        self._holders = network.graph.names or partition.names
        self._weight_seen = fit.total_weight
        self._draws = np.random.default_rng([seed, 0, 1])
        self._take(fit, data.dtype)
        return self

    def partial_fit(
        self, X: Rows, y: object = None, sample_weight: ArrayLike | None = None
    ) -> VPEM:
        """Fit the mixture to the next batch of a stream, by stochastic EM.

        The first batch starts the mixture (`init` and one iteration of EM on it) and fixes the
        graph, the hubs and the units; it should hold many rows per component. The t-th after it
        moves the statistics by ``(t + 1)^-step_size`` towards its own (Cappe and Moulines 2009).
        Only the parameters are kept. After `fit` batches go on from its mixture.

        Parameters
        ----------
        X : array of shape (m, d)
            One row a sample.
        y : ignored
            Present by scikit-learn's convention.
        sample_weight : array of shape (m,), optional
            Weight of each row.

        Returns
        -------
        VPEM
            This estimator.

        Raises
        ------
        InputError
            A ValueError, if the data or a parameter cannot be used.
        NumericalError
            If a computation has no finite answer.

        Warns
        -----
        VpemWarning
            If components collapsed and were reinitialised.
        """
        if self.family is not None:
            raise InputError(
                "partial_fit takes Gaussian features only: a batch need not have all levels of a "
                "category; call fit, or leave out family"
            )
        if self.weight_concentration_prior_type is not None:
            raise InputError(
                "partial_fit does not know how many rows there will be, against which a prior is "
                "weighed; call fit, or leave out weight_concentration_prior_type"
            )
        untold = "all rows decide about it, and a batch does not show them"
        odd = dict.fromkeys(("noise", "trim", "eigenvalue_ratio"), untold)
        streams.refuse_in_streams(self, {"keep_trace": streams.UNTRACED, **odd})
        if self.release_epsilon is not None:
            raise InputError(
                "partial_fit would spend some of the privacy budget for every batch; call fit, or "
                "leave out release_epsilon"
            )
        size = STEP_SIZE if self.step_size is None else self.step_size
        size = check_number("step_size", size, least=0.5, most=1.0, above=True)
        first = not hasattr(self, "mixture_")
        if not first and not hasattr(self, "fit_"):
            raise InputError(
                "partial_fit goes on from a fit in this process, but a file keeps the model only; "
                "call fit with warm_start=True to start from it"
            )
        data = self._validate(X, reset=first)
        sample_weight = self._weights_of(X, sample_weight)
        if first:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotConvergedWarning)
                one_step: dict[str, Any] = {"n_init": 1, "tol": 0, "max_iter": 1}
                one_step |= {"batch_size": None, "step_size": None}
                return self._fit(
                    data, sample_weight, stored=stored_in(X), **(self._start(data) | one_step)
                )
        used, weights = streams.used_in_batch(data, sample_weight)
        if not used.all():
            data = data[used]
        advice = "give batches in which every feature has a value"
        check_columns(data, getattr(self, "feature_names_in_", None), advice)
        n_iter, t = self.n_iter_ + 1, self.n_batches_seen_ + 1
        fit = fit_next(
            replace(self.fit_, mixture=self.mixture_), data, weights, batch=t, exponent=size,
            weight_seen=self._weight_seen, draws=self._draws, reg_covar=self.reg_covar,
            scale=self.scale, n_threads=self.n_threads,
        )  # fmt: skip
        self.n_batches_seen_, self._weight_seen = t, self._weight_seen + fit.total_weight
        self._take(fit, self._dtype)
        self.n_iter_ = n_iter
        return self


@with_settings(
    FitSettings,
    SumSettings,
    PrivacySettings,
    first=("n_components", "workers", "graph", "n_rounds", "init"),
    without={"compress": "compressed statistics of rows are FedEM's"}
    | OF_FEATURES
    | {
        "n_factors": "workers hold all features of their rows, with every correlation",
        "release_epsilon": "it is for features; a fit of rows has epsilon",
    },
)
class DistributedGaussianMixture(OverClusters, FittedByEM):
    """Gaussian mixture of rows that workers hold: distributed EM.

    On a star, the EM of `sklearn.mixture.GaussianMixture` on pooled rows, iteration by iteration;
    on any other graph the statistics are summed by consensus, and every worker has a model.

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

    workers: object = setting(1, WORKERS)

    def _fit_to(self, data: Floats, **known: Any) -> RowFit:
        seed = self._seed()
        workers = workers_of(self.workers, len(data))
        graph = self._graph(workers.n_workers, seed)
        network = connect_workers(graph, self._settings(SumSettings, seed=seed))
        privacy = self._settings(PrivacySettings)
        dtype = np.float64 if privacy.is_asked else data.dtype
        settings = self._settings(FitSettings, seed=seed, dtype=dtype, **self._start(data))
        fit = fit_em(data, workers, network, settings, privacy=privacy, **known)
        self._take_rows(fit, data.dtype)
        return fit

    def _take_rows(self, fit: RowFit, dtype: np.dtype[np.floating]) -> None:
        self._take(fit, dtype)
        self.workers_ = fit.workers
        self._holders = fit.workers.names
        self.graph_ = fit.network.graph
        self.mixtures_ = fit.mixtures


@with_settings(
    FedMixtureSettings,
    SumSettings,
    PrivacySettings,
    first=("n_components", "workers", "graph", "compress", "init"),
    without={
        "agent_dropout": "participation is what FedEM has for it",
        **OF_FEATURES,
        "release_epsilon": "it is for features; FedEM has epsilon",
        "colluding": "workers share no noise: each adds all of it to its own",
    },
)
class FedEM(streams.FedStream, FittedMixture):
    """Gaussian mixture of rows that workers hold, by FedEM or VR-FedEM.

    Dieuleveut, Fort, Moulines and Robin 2021, "Federated Expectation Maximization with
    heterogeneity mitigation and variance reduction": workers send quantized corrections of mean
    statistics, of minibatches, and not all of them at a time. With ``step_size=1``,
    ``memory="none"`` and nothing else it is the EM of `sklearn.mixture.GaussianMixture`.

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
    n_batches_seen_ : int
        Batches that `partial_fit` has seen; a whole fit before them counts as one.
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

    workers: object = setting(1, WORKERS)
    known_covariance: object = setting(
        None,
        "Covariances that are not estimated, (d, d) with a tied covariance or (K, d, d) with full.",
    )
    _also: ClassVar = {
        "compress": "Or one of your own (`vpem.Codec`). On a graph it is that of the rounds.",
        "step_size": "Or a function of the iteration.",
    }

    def _fit_to(self, data: Floats, **known: Any) -> FedFit:
        return self._fit(data, workers_of(self.workers, len(data)), {}, **known)

    def _fit(
        self, data: Floats, workers: Workers, options: Mapping[str, Any], **known: Any
    ) -> FedFit:
        seed = self._seed()
        graph = self._graph(workers.n_workers, seed)
        # Rounds among neighbours are compressed themselves; elsewhere FedEM's corrections are.
        central = not way_of(graph, self._settings(SumSettings, compress=None)).has_rounds
        of_rounds, compress = (None, self.compress) if central else (self.compress, None)
        fit = fit_fedem(
            data,
            workers,
            connect_workers(graph, self._settings(SumSettings, seed=seed, compress=of_rounds)),
            self._settings(FedMixtureSettings, seed=seed, compress=compress, **options),
            known_covariance=self.known_covariance,
            privacy=self._settings(PrivacySettings),
            **known,
        )
        self.workers_ = workers
        self._holders = workers.names
        self.graph_ = graph
        self.n_batches_seen_ = 1
        self._draws = np.random.default_rng([seed, 1, 1])
        return self._take(fit, data.dtype)

    def _take(self, fit: FedFit, dtype: np.dtype[np.floating]) -> FedFit:
        self.fit_ = fit
        self._in_their_precision(fit.mixture, dtype)
        self.statistic_ = fit.run.statistic
        self.history_ = fit.run.history
        self.converged_ = fit.converged
        self.n_iter_ = fit.n_iter
        self.n_epochs_ = fit.run.epochs
        self.n_projections_ = fit.run.projections
        self.lower_bound_ = fit.log_likelihood
        return fit


def estimator_of(stored: Model) -> FittedMixture:
    """Return a fitted estimator of a model in a file, as its report says."""
    report = stored.report
    federated = "participation" in report  # as FedEM's are
    of_rows = report.get("algorithm") == "em-rows"
    kind: type[FittedMixture] = DistributedGaussianMixture if of_rows else VPEM
    estimator = (FedEM if federated else kind).of_stored(stored)
    single = stored.options.get("dtype") == "float32"
    estimator._in_their_precision(stored.mixture, np.dtype(np.float32 if single else np.float64))
    estimator.converged_ = bool(report.get("converged"))
    if federated:
        estimator.lower_bound_ = number_in(report, "log_likelihood")
        return estimator
    history = stored.history if stored.root_history is None else stored.root_history
    estimator.history_ = history
    total = mean_over_roots(history[-1]) if len(history) else float("nan")
    estimator.lower_bound_ = total / number_in(report, "total_weight")
    return estimator
