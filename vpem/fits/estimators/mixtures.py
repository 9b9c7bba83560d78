"""Estimators of features that agents hold, also of rows that come in batches one after the other.

They have scikit-learn's interface and names.
"""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from vpem.checks import Floats, check_number, check_weights
from vpem.errors import InputError, NotConvergedWarning
from vpem.files.datasets import Dataset
from vpem.files.families import FamilyChoice
from vpem.fits.estimators.base import Rows, dataset_for_fit, stored_in, warn_of_columns
from vpem.fits.estimators.fitted import FittedByEM
from vpem.fits.labels import KnownLabels
from vpem.fits.likely_hubs import connect_by_likelihood
from vpem.fits.rows import fit_next
from vpem.fits.settings import PrivacySettings
from vpem.fits.vpem import fit_vpem
from vpem.network.graph import from_edges
from vpem.network.partition import Partition
from vpem.settings import FitSettings, SumSettings
from vpem.steps.batches import STEP_SIZE
from vpem.sums.connect import connect
from vpem.terms.families.kinds import Kinds
from vpem.terms.rows import check_columns


@dataclass(eq=False, repr=False)
class VPEM(FittedByEM):
    """Gaussian mixture of data split by features over agents on a graph.

    VP-EM of Valdeira, Soares and Xavier, "Decentralized EM to Learn Gaussian Mixtures from Datasets
    Distributed by Features": Algorithm 1 on a star, Algorithm 2 on any other connected graph. With
    one agent it is the EM of `sklearn.mixture.GaussianMixture`.

    Parameters
    ----------
    n_components : int, default=2
        Number of components, K.
    agents : None, int, dict, list of lists or vpem.Partition, default=None
        Which agent holds which features: that many contiguous nearly equal parts, or the features
        of each, ``{"lab": ["ast", "alt"], ...}``: names of the columns of a data frame, or numbers.
        None: one agent holds all, or each holds one where `graph` or `hops` ask for a network.
    graph : None, str, networkx.Graph or vpem.Graph, default=None
        The communication graph. "star", also the default, sums exactly at a server; every other
        graph by consensus.
    hops : int, default=0
        Agents at most this many hops from a root send it their features, once; 0: none do.
    hubs : {"size", "likelihood"}, default="size"
        Which agents within `hops` share a hub: as many as possible, or those whose features gain
        most from a joint covariance, which takes a fit without hops first (`vpem.SumSettings`).
    sum : {"server", "tree", "consensus"}, optional
        How they sum. Default: at a server on a star, else by consensus; "tree" is exact on any
        graph.
    n_rounds : int or "auto", default="auto"
        Consensus rounds of each average.
    weights : {"metropolis", "laplacian", "max-degree"}, default="metropolis"
        Mixing weights of the consensus.
    acceleration : {"chebyshev", "none"}, optional
        Whether rounds are accelerated. Default: where they can be.
    consensus_tol : float, default=1e-6
        Consensus error to reach, where the number of rounds is "auto".
    eigenvalue : {"computed", "estimated"}, default="computed"
        How the mixing rate, which acceleration needs, is found.
    compress : str or Codec, optional
        Codec of the messages, such as "natural:12bits" (`vpem.network.codecs.parse_codec`), or one
        of your own (`vpem.Codec`).
    link_failure, agent_dropout, stragglers : float, default=0.0
        Probabilities that a link is down in a round, an agent silent for an E-step, an agent late
        in a round.
    secure_sum : bool, default=False
        Whether sums are masked: only totals are seen, no party's own terms (`vpem.SumSettings`).
    release_epsilon, delta, bounds : float, float, str or pair of arrays, optional
        Differential privacy of one row against outsiders who see the model alone, by noise in every
        hub's M-step (`vpem.PrivacySettings`). There is no log-likelihood then, ``max_iter``
        iterations are run, by default 16, and the noise comes from the system, not from
        ``random_state``.
    repeatable_noise : int, optional
        For tests: a seed of that noise, which then protects nothing.
    covariance_type : str, default="full"
        Shape of the covariance inside a hub: "full", "diag", "spherical", "tied", "tied-diag" or
        "tied-spherical".
    family : str, dict, list of str or None, default=None
        Density of each feature: a name for all ("poisson"), "auto" by what columns hold, those of
        features and agents ("lab=t,sex=categorical" or a dict; others are "auto"), or a list of d.
        Names are "gaussian", "t", "log-normal", "categorical", "bernoulli", "poisson",
        "negative-binomial", "exponential" and "gamma". Text and categories of a data frame become
        codes; `predict` and the like find levels by name. None: all are Gaussian.
    n_factors : int, default=0
        Factors that hubs share, by which features of different hubs correlate within a component.
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
        Where EM starts; see `vpem.fit_vpem`.
    init_params : str, optional
        scikit-learn's name of `init`: "kmeans", "k-means++", "random" or "random_from_data".
    weights_init, means_init, precisions_init : array-like, optional
        Mixing weights (K,), means (K, d) and inverse covariances to start at, these shaped as
        `precisions_`; `init` finds what is not given.
    n_init : int, default=1
        Restarts; the best is kept.
    floor_fits : {"last", "keep"}, default="last"
        Whether a restart with components that only the floor under variances keeps from being
        singular is kept only if all have some, or judged like others, without a warning.
    least_rows : float, default=0.5
        Least number of rows (sum of responsibilities) of every component. If below one, a smaller
        component is reinitialised, and left out the fourth time; else the smallest is left out, one
        per iteration.
    every_weight : bool, default=False
        Count even responsibilities whose sum is below rounding (`vpem.FitSettings`).
    tol : float, default=1e-7
        Change of the log-likelihood per sample below which a root proposes to stop.
    max_iter : int, default=1000
        Maximum number of iterations, with `batch_size` of passes over the data. 0: the start alone.
    batch_size : int or None, default=None
        Rows of a batch: incremental EM, an M-step after each batch's E-step; see
        `vpem.steps.batches.fit_batches`. None: ordinary EM over all rows.
    step_size : float or None, default=None
        Exponent in (0.5, 1] of the steps of stochastic EM, which with `batch_size` takes the place
        of incremental EM. `partial_fit` takes 0.6 for None.
    accelerate : str or None, default=None
        Fewer sums to the same end: "squarem" (extrapolated M-steps), "local:8" (up to 8 steps of
        each hub between sums), or both with a comma; see `vpem.steps.accelerate`. None: EM.
    reg_covar : float or "auto", default="auto"
        Added to every variance: a millionth of each feature's variance ("auto"), or a number in the
        data's units, as in scikit-learn.
    scale : {"none", "standard"}, default="none"
        Whether each agent standardizes its features; results stay in the user's units.
    consensus : {"auto", "operator", "rounds"}, default="auto"
        How rounds are computed: the same numbers either way.
    missing : {"refuse", "marginalize"}, default="refuse"
        What to do about missing values (NaN): "marginalize" integrates them out, in `fit` and in
        all later methods.
    warm_start : bool, default=False
        Start from the last fit instead of `init`, and judge convergence by its last iteration.
    random_state : int, Generator, RandomState or None, default=0
        Seed of graph, ties between hubs, and start; None: another one in every fit.
    verbose, verbose_interval : int, default=0 and 10
        1: print progress, a line every so many iterations; 2: a line every iteration.
    n_threads : int or None, default=None
        Threads of the kernels.

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

    n_components: int = 2
    agents: Any = None
    graph: Any = None
    hops: int = 0
    n_rounds: int | str = "auto"
    init: object = "kmeans"
    _: KW_ONLY
    hubs: str = "size"
    compress: str | None = None
    release_epsilon: float | None = None
    family: object = None
    n_factors: int = 0

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
            lines.end(fit.converged, fit.n_iter)
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
        weights = None
        used = ~np.isnan(data).all(axis=1)
        if sample_weight is not None:
            weights = check_weights(np.asarray(sample_weight), len(data))
            used &= weights > 0
            weights = weights[used]
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
