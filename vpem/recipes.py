"""Named algorithms: what is summed, how, and by which step."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vpem import em
from vpem.blocks import Blocks
from vpem.checks import (
    check_data,
    check_int,
    check_number,
    check_rows,
    check_weights,
    row_blocks,
)
from vpem.distances import diameter
from vpem.errors import InputError, NotConvergedWarning, VpemWarning, check_choice, shorten
from vpem.graph import Graph, check_connected
from vpem.hubs import Hub, find_hubs
from vpem.mixing import WEIGHTS, mixing_matrix, mixing_rate
from vpem.mixture import COVARIANCE_TYPES, Mixture
from vpem.network.ledger import Ledger
from vpem.network.setup import charge_features, charge_hubs, find_routes
from vpem.partition import Partition
from vpem.rows import FileMatrix
from vpem.scaling import SCALES, Scaling
from vpem.starts import INITS, RowStream, draw_start
from vpem.sums.consensus import (
    ACCELERATIONS,
    PATHS,
    ConsensusSum,
    consensus_error_bound,
    rounds_needed,
)
from vpem.sums.server import ServerSum
from vpem.terms.features import FeatureTerms
from vpem.threads import one_blas_thread, thread_count

__all__ = ["Fit", "Network", "connect", "fit_vpem"]

MOST_ROUNDS = {"none": 10**9, "chebyshev": 10**6}
"""By acceleration."""

CONSENSUS_TOL = 1e-6
"""Consensus error that automatic rounds reach."""

LARGEST_VALUE = {8: 1e140, 4: 1e17}
"""Largest value to be squared and summed, by bytes of the precision."""

LARGEST_CONSENSUS_ERROR = 1e-3
"""A run whose operator is further than this from all ones is warned about."""


@dataclass(frozen=True)
class Network:
    """Agents on a graph, grouped in hubs, and how they sum.

    Attributes
    ----------
    graph : Graph
        Who talks to whom.
    hubs : list of Hub
        In the order of extraction.
    blocks : Blocks
        Features of each hub.
    total : ServerSum or ConsensusSum
        The distributed sum.
    widths : tuple of int
        Number of features of each agent.
    hops : int
        How far raw features may travel, at setup.
    n_rounds : int or None
        Rounds of each average; None where the sum is exact.
    weights : str or None
        Name of the mixing weights; None where the sum is exact.
    mixing_rate : float or None
        Second largest eigenvalue modulus of the mixing weights; None where the sum is exact.
    consensus_error : float
        ``max |C - 1|``: 0 where the sum is exact, its bound where C is too large to form.
    error_is_bound : bool
        Whether `consensus_error` is a bound.
    acceleration : str
        "chebyshev", or "none" where rounds are plain or the sum is exact.
    consensus_tol : float or None
        Error for which the number of rounds was found; None where it was given.
    """

    graph: Graph
    hubs: list[Hub]
    blocks: Blocks
    total: Any
    widths: tuple[int, ...]
    hops: int
    n_rounds: int | None
    weights: str | None
    mixing_rate: float | None
    consensus_error: float
    error_is_bound: bool = False
    acceleration: str = "none"
    consensus_tol: float | None = None

    def charge_setup(self, ledger: Ledger, n_samples: int, itemsize: int) -> None:
        """Count what is sent before the first iteration."""
        if self.hops > 0:
            if not self.graph.has_server:
                charge_hubs(ledger, self.graph)
            routes = find_routes(self.graph, self.hubs)
            charge_features(ledger, routes, self.widths, n_samples, itemsize)


def connect(
    graph: Graph,
    partition: Partition,
    *,
    hops: int = 1,
    n_rounds: int | str = "auto",
    weights: str = "metropolis",
    acceleration: str = "chebyshev",
    consensus_tol: float = CONSENSUS_TOL,
    path: str = "auto",
    seed: int = 0,
    n_threads: int | None = None,
) -> Network:
    """Group the agents of a graph in hubs and set up their sum.

    Parameters
    ----------
    graph : Graph
        Communication graph of the agents, or a star around a server.
    partition : Partition
        Features of each agent.
    hops : int
        Agents at most this many hops from a root send it their features, once.
    n_rounds : int or "auto"
        Consensus rounds of each average; "auto" takes the fewest that reach ``consensus_tol``.
    weights : {"metropolis", "laplacian", "max-degree"}
        Mixing weights.
    acceleration : {"chebyshev", "none"}
        Whether rounds are accelerated; see `vpem.mixing.chebyshev_steps`.
    consensus_tol : float
        Consensus error ``max |C - 1|`` to reach, where the number of rounds is "auto".
    path : {"auto", "operator", "rounds"}
        How the rounds are computed; see `ConsensusSum`.
    seed : int
        Settles ties between hubs.
    n_threads : int, optional
        Threads of the rounds.

    Returns
    -------
    Network

    Raises
    ------
    InputError
        If the graph is not connected, has another number of agents, or an option is out of range.

    Warns
    -----
    VpemWarning
        If the rounds are too few for the graph, or the hubs centralize the data.
    """
    if not isinstance(graph, Graph) or not isinstance(partition, Partition):
        raise InputError(
            "connect takes a vpem.Graph (from make_graph or from_networkx) and a vpem.Partition, "
            f"got {type(graph).__name__} and {type(partition).__name__}"
        )
    if graph.n_agents != partition.n_agents:
        raise InputError(
            f"the graph has {graph.n_agents} agents but the features are held by "
            f"{partition.n_agents}; give a graph of as many agents, or another partition"
        )
    hops = check_int("hops", hops, least=0)
    check_choice("acceleration", acceleration, ACCELERATIONS)
    automatic = n_rounds == "auto"
    if not automatic:
        n_rounds = check_int("rounds", n_rounds, least=1, most=MOST_ROUNDS[acceleration])
    consensus_tol = check_number("consensus_tol", consensus_tol, least=1e-12, most=1.0)
    seed = check_int("seed", seed, least=0)
    check_choice("weights", weights, WEIGHTS)
    check_choice("consensus path", path, PATHS)
    check_connected(graph)
    threads = thread_count(n_threads)
    hubs = find_hubs(graph, hops, seed=seed)
    blocks = Blocks.from_hubs(hubs, partition.features)
    widths = tuple(len(features) for features in partition.features)
    if graph.has_server:
        total = ServerSum(len(hubs))
        return Network(graph, hubs, blocks, total, widths, hops, None, None, None, 0.0)
    mixing = mixing_matrix(graph, weights)
    rate = mixing_rate(mixing)
    accelerated = acceleration == "chebyshev"
    if automatic:
        n_rounds = rounds_needed(
            mixing, hubs, rate, consensus_tol, threads, accelerated=accelerated
        )
    assert isinstance(n_rounds, int)
    consensus = ConsensusSum(
        mixing,
        hubs,
        n_rounds,
        rate=rate if accelerated else None,
        path=path,
        n_threads=threads,
        routes=find_routes(graph, hubs),
        diameter=diameter(graph),
    )
    error = consensus.error
    bounded = error is None
    if error is None:
        error = consensus_error_bound(rate, hubs, graph.n_agents, n_rounds, accelerated=accelerated)
    if error > LARGEST_CONSENSUS_ERROR and not automatic:
        enough = rounds_needed(
            mixing, hubs, rate, LARGEST_CONSENSUS_ERROR, threads, accelerated=accelerated
        )
        warnings.warn(
            f"{n_rounds} rounds are too few for this graph (mixing rate {rate:.4f}): the consensus "
            f"error is {'at most ' if bounded else ''}{error:.2g}, more than "
            f"{LARGEST_CONSENSUS_ERROR:g}, so the hubs disagree; "
            f"{enough} rounds would do",
            VpemWarning,
            stacklevel=2,
        )
    return Network(
        graph,
        hubs,
        blocks,
        consensus,
        widths,
        hops,
        n_rounds,
        weights,
        rate,
        error,
        bounded,
        acceleration,
        consensus_tol if automatic else None,
    )


@dataclass
class Fit:
    """A fitted mixture and how it came about.

    Attributes
    ----------
    mixture : Mixture
        The parameters, hub by hub.
    network : Network
        Who took part.
    history : ndarray of shape (n_iter, B)
        Total log-likelihood as each root finds it in the E-step of each iteration; the first row
        belongs to the start.
    root_log_likelihood : ndarray of shape (B,)
        Total log-likelihood of `mixture`, as each root finds it.
    total_weight : float
        Sum of the row weights (the number of rows when there are none).
    n_samples : int
        Number of rows.
    converged : bool
        Whether all roots proposed to stop.
    recoveries : list of Recovery
        Components that collapsed and were placed anew.
    init_rows : tuple of int, or None
        Rows the means were first placed at; None when started from a model.
    best_restart : int
        Which of the restarts this is, from 0.
    seconds : float
        Wall time of all restarts.
    total_iterations : int
        Of all restarts.
    communication : dict
        What was sent, over all restarts (`vpem.network.ledger.Ledger.summary`);
        ``bytes_by_iteration`` belongs to the entries of ``history``.
    """

    mixture: Mixture
    network: Network
    history: NDArray[np.float64]
    root_log_likelihood: NDArray[np.float64]
    total_weight: float
    n_samples: int
    converged: bool
    recoveries: list[em.Recovery] = field(default_factory=list)
    init_rows: tuple[int, ...] | None = None
    best_restart: int = 0
    seconds: float = 0.0
    total_iterations: int = 0
    communication: dict[str, Any] = field(default_factory=dict)

    @property
    def n_iter(self) -> int:
        """Iterations of the restart that was kept."""
        return len(self.history)

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood per sample of the fitted mixture, mean over roots."""
        return float(self.root_log_likelihood.mean() / self.total_weight)

    @property
    def bic(self) -> float:
        """Bayesian information criterion, from the mean log-likelihood over roots."""
        return self.mixture.bic(self.log_likelihood * self.total_weight, self.total_weight)

    @property
    def aic(self) -> float:
        """Akaike information criterion, from the mean log-likelihood over roots."""
        return self.mixture.aic(self.log_likelihood * self.total_weight)


def fit_vpem(
    X: NDArray[Any] | FileMatrix,
    network: Network,
    *,
    n_components: int = 2,
    covariance_type: str = "full",
    init: str | Sequence[int] | NDArray[Any] | Mixture = "kmeans",
    n_init: int = 1,
    tol: float = 1e-7,
    max_iter: int = 1000,
    reg_covar: float = 1e-6,
    scale: str = "none",
    sample_weight: NDArray[Any] | None = None,
    seed: int = 0,
    n_threads: int | None = None,
    dtype: Any = np.float64,
    skip_negligible: bool = True,
    feature_names: Sequence[str] | None = None,
    callback: Callable[[em.Progress], None] | None = None,
) -> Fit:
    """Fit a Gaussian mixture to data split by features: VP-EM (Valdeira et al., Algorithms 1, 2).

    Parameters
    ----------
    X : ndarray or FileMatrix of shape (M, d)
        The data; column j is seen by the agent that holds feature j and, once, by its root.
    network : Network
        From `connect`.
    n_components : int
        Number of components, K.
    covariance_type : str
        Shape of the covariance inside a hub: "full", "diag", "spherical", and "tied", "tied-diag",
        "tied-spherical" for one shared by all components.
    init : {"random", "k-means++", "kmeans"}, row indices, or Mixture
        Where to start. Row indices (K,): means at those rows, equal weights, every covariance the
        block's sample covariance with divisor M plus ``reg_covar``.
    n_init : int
        Restarts; the one with the best log-likelihood at the first root is kept.
    tol : float
        Change of the log-likelihood per sample, in nats, below which a root proposes to stop.
    max_iter : int
        Most iterations.
    reg_covar : float
        Added to the diagonal of every covariance.
    scale : {"none", "standard"}
        "standard": each agent centres its features and divides them by their standard deviation;
        results are in the user's units all the same.
    sample_weight : ndarray of shape (M,), optional
        Weight of each row. Zero has no effect, an integer equals as many copies.
    seed : int
        Of the stream that all agents share.
    n_threads : int, optional
        Threads of the kernels; None takes what the process may use.
    dtype : {float64, float32}
        Precision of data and terms.
    skip_negligible : bool
        Leave rows out of a component's moments where all such responsibilities together are below
        rounding (`vpem.terms.features.NEGLIGIBLE`). False counts every one of them.
    feature_names : sequence of str, optional
        For messages.
    callback : callable, optional
        Told of every iteration.

    Returns
    -------
    Fit

    Raises
    ------
    InputError
        If the data or an option cannot be used.
    NumericalError
        If a computation has no finite answer.

    Warns
    -----
    NotConvergedWarning
        If the iterations ran out.
    VpemWarning
        If features are constant, or components collapsed and were placed anew.
    """
    began = time.perf_counter()
    if not isinstance(network, Network):
        raise InputError(f"the network must come from vpem.connect, got {type(network).__name__}")
    seed = check_int("seed", seed, least=0)
    precision = _precision(dtype)
    X = check_data(X, network.blocks.n_features, feature_names)
    n_samples = len(X)
    check_choice("covariance type", covariance_type, COVARIANCE_TYPES)
    check_choice("scale", scale, SCALES)
    n_init = check_int("n_init", n_init, least=1)
    max_iter = check_int("max_iter", max_iter, least=1)
    tol = check_number("tol", tol, least=0.0)
    reg_covar = check_number("reg_covar", reg_covar, least=0.0)
    given = None
    if isinstance(init, str):
        check_choice("init", init, INITS)
    elif not isinstance(init, Mixture):
        if init is None:
            raise InputError(f"init must be {', '.join(INITS)}, row indices or a Mixture, got None")
        given = init
    n_components = check_int("n_components", n_components, least=1)
    row_weights = kept = None
    if sample_weight is not None:
        sample_weight = check_weights(sample_weight, n_samples)
        kept = np.flatnonzero(sample_weight > 0)
        if given is not None:
            rows = check_rows(given, n_components, n_samples)
            if not np.isin(rows, kept).all():
                raise InputError("init rows must have a positive sample weight")
            if not isinstance(X, FileMatrix):
                given = np.searchsorted(kept, rows)
        row_weights = sample_weight
        if len(kept) < n_samples and not isinstance(X, FileMatrix):
            X, row_weights = X[kept], sample_weight[kept]
        else:
            kept = None
    if len(X) < n_components:
        raise InputError(
            f"{n_components} components need at least as many rows, got {len(X)}"
            f"{'' if row_weights is None else ' with a positive weight'}; try fewer components"
        )
    if given is not None:
        given = check_rows(given, n_components, len(X))
    _inspect(X, feature_names, reg_covar, precision)
    scaling = _scaling(X, row_weights, scale, precision)
    threads = thread_count(n_threads)

    with one_blas_thread(), np.errstate(over="ignore"):
        terms = FeatureTerms(
            X,
            network.blocks,
            covariance_type,
            scaling=scaling,
            row_weights=row_weights,
            reg_covar=reg_covar,
            n_threads=threads,
            dtype=precision,
            skip_negligible=skip_negligible,
        )
        ledger = Ledger(network.graph)
        network.charge_setup(ledger, n_samples, terms.itemsize)
        total = network.total.on(ledger)
        runs = []
        total_iterations = 0
        restarts = n_init if isinstance(init, str) else 1
        for restart in range(restarts):
            rng = np.random.default_rng([seed, restart])
            stream = RowStream(rng, row_weights, len(X))
            rows_used: NDArray[np.intp] | None
            if isinstance(init, Mixture):
                start, rows_used = init.over(network.blocks, covariance_type, scaling), None
                if start.n_components != n_components:
                    raise InputError(
                        f"the starting model has {start.n_components} components, "
                        f"{n_components} were asked for"
                    )
            elif given is not None:
                rows_used = np.asarray(given, dtype=np.intp)
                start = terms.start(terms.at_rows(rows_used))
            else:
                start, rows_used = draw_start(cast(str, init), terms, total, n_components, stream)
            run = em.fit(
                terms,
                total,
                start,
                tol=tol,
                max_iter=max_iter,
                draw_row=stream.draw,
                callback=callback,
            )
            total_iterations += len(run.history)
            runs.append((run, rows_used))
    best = int(np.argmax([run.log_likelihood[0] for run, _ in runs]))
    run, rows_used = runs[best]
    fit = Fit(
        mixture=run.mixture,
        network=network,
        history=_per_hub(np.array(run.history), network),
        root_log_likelihood=_per_hub(run.log_likelihood[None], network)[0],
        total_weight=terms.total_weight,
        n_samples=n_samples,
        converged=run.converged,
        recoveries=run.recoveries,
        init_rows=None
        if rows_used is None
        else tuple(int(row if kept is None else kept[row]) for row in rows_used),
        best_restart=best,
        seconds=time.perf_counter() - began,
        total_iterations=total_iterations,
        communication={**ledger.summary(), "bytes_by_iteration": run.bytes_sent},
    )
    _warn_of_outcome(fit, max_iter, tol)
    return fit


def _per_hub(values: NDArray[np.float64], network: Network) -> NDArray[np.float64]:
    """Spell out an estimate that all roots share: (n, R) to (n, B)."""
    return np.broadcast_to(values, (len(values), len(network.hubs))).copy()


def _precision(dtype: Any) -> np.dtype[Any]:
    for known in (np.dtype(np.float64), np.dtype(np.float32)):
        with contextlib.suppress(TypeError):
            if np.dtype(dtype) == known:
                return known
    raise InputError(f"dtype must be float32 or float64, got {dtype!r}")


def _scaling(
    X: Any, row_weights: NDArray[np.float64] | None, scale: str, precision: np.dtype[Any]
) -> Scaling:
    """Units to fit in: as asked, and about the mean where single precision would lose digits."""
    if scale == "standard":
        return Scaling.standard(X, row_weights)
    if precision.itemsize < X.dtype.itemsize:
        return Scaling(Scaling.standard(X, row_weights).shift, np.ones(X.shape[1]))
    return Scaling.none(X.shape[1])


def _inspect(
    X: Any, feature_names: Sequence[str] | None, reg_covar: float, precision: np.dtype[Any]
) -> None:
    """Refuse values whose squares overflow, and warn of constant features."""
    most = LARGEST_VALUE[precision.itemsize]
    first = X[:1]
    constant = np.arange(X.shape[1])
    for start, part in row_blocks(X):
        large = np.abs(part).max(axis=0).astype(np.float64) > most
        if large.any():
            column = int(np.flatnonzero(large)[0])
            row = start + int(np.abs(part[:, column]).argmax())
            name = "" if feature_names is None else f" ({feature_names[column]!r})"
            raise InputError(
                f"row {row}, feature {column}{name} is {float(X[row : row + 1][0, column]):g}, but "
                f"values beyond {most:g} cannot be squared in {precision.name}; use other units"
                f"{' or float64' if precision.itemsize < 8 else ''}"
            )
        constant = constant[(part[:, constant] == first[:, constant]).all(axis=0)]
    if len(constant) and len(X) > 1:
        listed = shorten(
            repr(feature_names[j]) if feature_names is not None else j for j in constant.tolist()
        )
        warnings.warn(
            f"constant features carry nothing to tell rows apart: {listed}; their variance is "
            f"reg_covar ({reg_covar:g}) alone",
            VpemWarning,
            stacklevel=3,
        )


def _warn_of_outcome(fit: Fit, max_iter: int, tol: float) -> None:
    if fit.recoveries:
        told = shorten(
            f"component {r.component} in hub {r.hub} ({r.reason}, iteration {r.iteration}"
            f"{', given up' if r.row is None else ''})"
            for r in fit.recoveries
        )
        warnings.warn(
            f"{len(fit.recoveries)} times a collapsed component was placed anew: {told}; "
            "try fewer components or a larger reg_covar",
            VpemWarning,
            stacklevel=3,
        )
    if not fit.converged:
        change = (
            ""
            if fit.n_iter < 2
            else f": the log-likelihood per sample still changed by "
            f"{np.abs(fit.history[-1] - fit.history[-2]).max() / fit.total_weight:.2g}"
        )
        warnings.warn(
            f"not converged after {max_iter} iterations{change} (tol {tol:g}); try more iterations",
            NotConvergedWarning,
            stacklevel=3,
        )
