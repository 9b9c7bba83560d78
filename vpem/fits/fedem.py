"""FedEM of a Gaussian mixture: units, start, run, and what there is to report."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import Floats, as_array
from vpem.engines.placement import Placement
from vpem.errors import InputError, NotConvergedWarning, VpemWarning
from vpem.files.fingerprint import checksum, describe_run, describe_steps, start_facts
from vpem.fits.fedem_setup import ITEM, Setup, codec_of_first, codec_of_moments
from vpem.fits.local_rows import LocalRows
from vpem.fits.prepare import Prepared, prepare
from vpem.fits.results import MixtureResult
from vpem.network.codecs import Cast, Codec, parse_codec
from vpem.network.holdings import Workers
from vpem.network.ledger import Ledger
from vpem.network.schema import Integer, Maybe, Report, State
from vpem.network.topologies import make_graph
from vpem.settings import FedMixtureSettings, FedSettings
from vpem.steps.fedem import run_fedem
from vpem.steps.fedruns import FedProgress, FedRun
from vpem.steps.restarts import OneRun
from vpem.steps.runs import Progress
from vpem.steps.saver import Saver
from vpem.sums.combinations import refuse_codec
from vpem.sums.connect import Network, connect_workers
from vpem.terms.mixture_statistics import FLOOR
from vpem.terms.whitening import Whitening

__all__ = ["FedFit", "fit_fedem"]

Vector = NDArray[np.float64]

OFTEN = 0.1
"""Share of the later iterations that project something, from which on there is a warning."""

FEW = 10
"""Iterations of which no share is told."""


@dataclass(kw_only=True)
class FedFit(MixtureResult):
    """A mixture fitted by FedEM and how it came about.

    Attributes
    ----------
    mixture : Mixture
        Parameters; on a graph those of the mean of the workers' statistics.
    history : ndarray of shape (n, 1)
        Total log-likelihood of the iterations recorded.
    run : FedRun
        Statistic, history, memories.
    workers : Workers
        Who held which rows.
    options : dict
        Of the algorithm, as they were taken.
    network, total_weight, converged, init_rows, seconds, communication
        See `vpem.fits.results.MixtureResult`.
    """

    run: FedRun
    workers: Workers
    options: Report = field(default_factory=dict)

    @property
    def n_iter(self) -> int:
        """Iterations."""
        return self.run.n_iter

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood per sample of the mixture, on all rows."""
        return self.run.history.objective[-1]

    def describe(self, feature_names: Sequence[str], holders: Sequence[str]) -> Report:
        """Summarize the fit in values that JSON can hold; see `NetworkResult.describe`.

        The mean field is in the units of fitting.
        """
        run, mixture, workers, network = self.run, self.mixture, self.workers, self.network
        history = run.history
        return {
            "algorithm": "vr-fedem" if self.options["variance_reduction"] else "fedem",
            "split": "rows",
            "n_samples": workers.n_samples,
            "n_features": mixture.n_features,
            "n_agents": workers.n_workers,
            "n_workers": workers.n_workers,
            "worker_names": list(holders),
            "agent_names": list(holders),
            "worker_rows": workers.counts.tolist(),
            **self._size(),
            "feature_names": list(feature_names),
            **network.describe("topology", "edges", "positions", "server"),
            "hops": 0,
            **network.describe("rounds", "weights", "mixing_rate", "consensus_error", "faults"),
            "partitions": [{"iteration": at, "reason": reason} for at, reason in run.partitions],
            **self.options,
            "omega": run.omega,
            "statistic_size": len(run.statistic),
            "mixing_weights": mixture.assembled_weights.tolist(),
            "log_likelihood": self.log_likelihood,
            "bic": self.bic,
            "aic": self.aic,
            "converged": self.converged,
            "n_iter": self.n_iter,
            "n_epochs": run.epochs,
            "projections": run.projections,
            "projected_share": run.projected_share,
            "disagreement": history.disagreement[-1],
            "mean_field": history.mean_field,
            "epochs": history.epochs,
            "history": history.objective,
            "recorded": history.iteration,
            "bytes_up": history.bytes_up,
            "init_rows": self._starts,
            "communication": self.communication,
            "seconds": self.seconds,
        }


def _prepared(
    X: Floats,
    workers: Workers,
    network: Network | None,
    how: FedMixtureSettings,
    feature_names: Sequence[str] | None,
) -> Prepared:
    """Check the rows, of which each process may have those of its own workers."""
    if not isinstance(workers, Workers):
        raise InputError(f"the workers must be vpem.Workers, got {type(workers).__name__}")
    n_workers = workers.n_workers
    holders = network.total.holders if isinstance(network, Network) else Placement.here(n_workers)
    given = prepare(
        X,
        X.shape[1] if X.ndim == 2 else 0,
        how,
        feature_names=feature_names,
        here=LocalRows.of(holders, workers.counts, X, workers.order),
    )
    if workers.n_samples != given.n_samples:
        raise InputError(f"the workers hold {workers.n_samples} rows, but the data have {len(X)}")
    return given


def _setup(
    given: Prepared,
    workers: Workers,
    network: Network,
    ledger: Ledger,
    codec: Codec | None,
    rng: np.random.Generator,
) -> Setup:
    """Return what workers agree on first, of the rows that are in this process."""
    short = codec_of_moments(codec) if network.total.way == "server" else None
    rows = given.X.astype(np.float64)
    if not network.total.holders.apart:
        rows = rows[workers.order]
    return Setup(rows, workers, network, ledger, short, rng)


def fit_fedem(
    X: Floats,
    workers: Workers,
    network: Network | None = None,
    settings: FedMixtureSettings | None = None,
    *,
    known_covariance: Any = None,
    feature_names: Sequence[str] | None = None,
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
    **changes: Any,
) -> FedFit:
    """Fit a Gaussian mixture to rows that workers hold: FedEM or VR-FedEM.

    Before the first iteration two sums give all workers the mean and the second moments of the
    data, about and in which statistics are taken, and a number how far out rows lie; rows drawn as
    a start are told to all; and every worker sends its statistics at the start (kind "setup" of
    what is counted). Without ``compress`` all of this is exact. With it means and factors of the
    second moments have 16 bits a number (`vpem.fits.fedem_setup.codec_of_moments`), rows of the
    start are float32, and first statistics go by the finer of the codec and qsgd:8bits:32.
    Corrections and first statistics are compressed in units in which the data are white, so that
    one scale fits.

    Parameters
    ----------
    X : ndarray of shape (M, d)
        The data; a row is seen by the worker that holds it, and by others only as a start.
    workers : Workers
        Who holds which rows.
    network : Network, optional
        From `vpem.sums.connect.connect_workers`; None: a server. See
        `vpem.steps.fedem.run_fedem` for what FedEM is on a graph.
    settings : FedMixtureSettings, optional
        None: the defaults.
    known_covariance : ndarray of shape (d, d) or (K, d, d), optional
        Covariances that are not estimated, with covariance type "tied" or "full".
    feature_names : sequence of str, optional
        For messages.
    callback : callable, optional
        Told of every iteration; log-likelihoods are those recorded last.
    saver : Saver, optional
        Keeps checkpoints, and has the one to go on from (`vpem.files.checkpoints.FileSaver`).
    **changes
        Settings that differ: see `vpem.FedMixtureSettings`. Besides the names of starts ``init``
        takes a Mixture, or row indices (K,): means at those rows, equal weights, every covariance
        the sample covariance of all rows; "kmeans": the statistics of the hard assignment that
        Lloyd's iterations end with. With a tied covariance the statistic has no second moments, as
        in the paper. A ``scale`` of "standard" is for units that differ much, where a quantizer's
        common scale would drown the small ones. ``floor`` is 0 by default where no codec is used,
        all workers and all their rows are in every iteration, and they sum at a server or along a
        tree: then only what no rows can have is raised.

    Returns
    -------
    FedFit

    Raises
    ------
    InputError
        If the data or an option cannot be used.
    NumericalError
        If noise outgrows the steps.

    Warns
    -----
    NotConvergedWarning
        If ``tol`` is above 0 and the iterations ran out.
    VpemWarning
        If in more than a tenth of the later half of the iterations something was projected.
    """
    began = time.perf_counter()
    how = FedMixtureSettings.of(settings, **changes)
    X = as_array("data", X[:] if hasattr(X, "runs") else X)
    if known_covariance is not None and how.scale != "none":
        raise InputError("a known covariance is in the user's units, got scale 'standard'")
    given = _prepared(X, workers, network, how, feature_names)
    codec = None if how.compress is None else parse_codec(how.compress)
    network = _network_of(network, workers)
    refuse_codec(network.total.way, codec)
    how = how.changed(n_threads=thread_count(how.n_threads), floor=_floor(how, codec, network))
    if saver is not None:
        saver.begin(_facts(given, workers, network, how, codec, known_covariance))
    ledger = Ledger(network.graph)
    saving = OneRun(saver, ledger)
    with one_blas_thread(), np.errstate(over="ignore"):
        network.charge_setup(ledger, given.n_samples, ITEM)
        rng = np.random.default_rng([how.seed, 1])
        setup = _setup(given, workers, network, ledger, codec, rng)
        model = setup.model(how, known_covariance)
        start, rows = None, None
        if saving.saved is None:
            start, rows = setup.start(model, how.init, given.rows, how.seed)
        else:
            own = (Integer(most=given.n_samples - 1),) * how.n_components
            rows = saving.restored(Maybe(own))
        run = run_fedem(
            model,
            start,
            how.into(FedSettings),
            codec=codec,
            first_codec=codec_of_first(codec),
            basis=Whitening(model),
            network=network,
            ledger=ledger,
            rng=rng,
            callback=None if callback is None else _Told(callback),
            saver=saving.inner(rows),
        )
    _warn_of_noise(run, how, codec)
    return FedFit(
        mixture=run.parameters,
        history=np.array(run.history.objective)[:, None] * workers.n_samples,
        total_weight=workers.n_samples,
        run=run,
        workers=workers,
        network=network.whole,
        converged=run.converged,
        init_rows=rows,
        seconds=time.perf_counter() - began + saving.seconds,
        communication={**ledger.summary(), "bytes_by_iteration": run.history.bytes},
        options=_options(run, how, network.compress if codec is None else codec.name),
    )


def _network_of(network: Network | None, workers: Workers) -> Network:
    """Return the network, a server by default, or raise InputError if it joins others."""
    if network is None:
        return connect_workers(make_graph("star", workers.n_workers, names=workers.names))
    if not isinstance(network, Network) or network.graph.n_agents != workers.n_workers:
        raise InputError(
            f"there are {workers.n_workers} workers: the network must come from "
            "vpem.connect_workers, with a graph of as many agents"
        )
    return network


def _floor(how: FedMixtureSettings, codec: Codec | None, network: Network) -> float:
    """Return the least relative variance: by default 0 where nothing is noisy."""
    if how.floor is not None:
        return how.floor
    exact = codec is None or (isinstance(codec, Cast) and codec.itemsize == ITEM)
    whole = how.participation == 1 and how.batch_size is None and not how.variance_reduction
    return 0.0 if exact and whole and network.total.way != "consensus" else FLOOR


def _facts(
    given: Prepared,
    workers: Workers,
    network: Network,
    how: FedMixtureSettings,
    codec: Codec | None,
    known_covariance: Any,
) -> State:
    """Return what must be the same when a run goes on from a checkpoint."""
    facts = how.values("compress", "variance_reduction") | {
        "codec": None if codec is None else codec.name,
        "step_size": describe_steps(how.step_size),
        "who holds which rows": checksum(workers.order, workers.counts),
        "what covariances are known": start_facts(known_covariance),
    }
    name = "vr-fedem" if how.variance_reduction else "fedem"
    return describe_run(name, given.X, None, network, **facts)


def _options(run: FedRun, how: FedMixtureSettings, compress: str | None) -> Report:
    """Return what a report says of the algorithm's options, as they were taken."""
    return {
        "compress": compress,
        "step_size": "function" if callable(how.step_size) else how.step_size,
        "alpha": run.alpha,
        "participation": how.participation,
        "batch_size": how.batch_size,
        "variance_reduction": bool(how.variance_reduction),
        "weighting": how.weighting,
        "memory": how.memory,
        "scale": how.scale,
        "tol": how.tol,
    }


def _warn_of_noise(run: FedRun, how: FedMixtureSettings, codec: Codec | None) -> None:
    """Warn where noise spoiled M-steps, or kept the run from its end."""
    if run.n_iter >= FEW and run.projected_share > OFTEN:
        finer = "" if codec is None else ", more bits (such as qsgd:6bits:32 or qsgd:8bits:32)"
        warnings.warn(
            f"weights or covariances had to be projected in {run.projected_share:.0%} of the later "
            f"half of the iterations: noise is large for what the data tell of a component, or a "
            f"component collapses; take a smaller step size{finer}, fewer components, or one "
            "covariance for all (tied)",
            VpemWarning,
            stacklevel=3,
        )
    if how.tol > 0 and not run.converged:
        warnings.warn(
            f"not converged within {run.n_iter} iterations: corrections are still above tol="
            f"{how.tol:g}; {_lasting_noise(how, codec) or 'allow more iterations'}",
            NotConvergedWarning,
            stacklevel=3,
        )


def _lasting_noise(how: FedMixtureSettings, codec: Codec | None) -> str | None:
    """Say which noise stays in corrections however long a run is, and what to do about it."""
    if how.batch_size is not None and not how.variance_reduction:
        return "the noise of batches keeps them there: take variance reduction, or tol 0"
    if how.memory == "none" and (codec is not None or how.participation < 1):
        return "without memories noise keeps them there: take memory first, or tol 0"
    return None


class _Told:
    """Tells a callback of `vpem.steps.em` what FedEM tells."""

    def __init__(self, callback: Callable[[Progress], None]) -> None:
        self.callback = callback
        self.last: float | None = None

    def __call__(self, progress: FedProgress) -> None:
        change = None
        if progress.objective is not None:
            change = None if self.last is None else progress.objective - self.last
            self.last = progress.objective
        found = float("nan") if self.last is None else self.last
        self.callback(Progress(progress.iteration, found, change))
