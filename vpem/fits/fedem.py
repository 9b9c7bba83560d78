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
from vpem.checks import Floats, as_array, check_int, check_number
from vpem.engines.placement import Placement
from vpem.errors import InputError, NotConvergedWarning, VpemWarning
from vpem.fits.fedem_setup import ITEM, Setup, codec_of_first, codec_of_moments
from vpem.fits.fingerprint import checksum, describe_run, describe_steps, start_facts
from vpem.fits.local_rows import LocalRows
from vpem.fits.prepare import prepare
from vpem.fits.results import MixtureResult
from vpem.network.codecs import Cast, Codec, parse_codec
from vpem.network.holdings import Workers
from vpem.network.ledger import Ledger
from vpem.network.schema import Integer, Maybe, Report
from vpem.network.topologies import make_graph
from vpem.settings import MixtureSettings
from vpem.steps.fedem import run_fedem
from vpem.steps.fedruns import FedProgress, FedRun, StepSize
from vpem.steps.restarts import OneRun
from vpem.steps.runs import Progress
from vpem.steps.saver import Saver
from vpem.sums.connect import Network, connect_workers
from vpem.terms.mixture import Mixture
from vpem.terms.mixture_statistics import FLOOR, MixtureStatistics
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


def fit_fedem(
    X: Floats,
    workers: Workers,
    network: Network | None = None,
    *,
    n_components: int = 2,
    covariance_type: str = "full",
    known_covariance: Any = None,
    init: str | Sequence[int] | Floats | Mixture = "kmeans",
    max_iter: int = 1000,
    n_epochs: float | None = None,
    tol: float = 1e-10,
    compress: str | None = None,
    step_size: str | float | StepSize = "constant:0.5",
    alpha: float | None = None,
    participation: float = 1.0,
    batch_size: int | None = None,
    variance_reduction: bool = False,
    inner: int | None = None,
    weighting: str = "rows",
    memory: str = "first",
    reg_covar: float = 1e-6,
    floor: float | None = None,
    scale: str = "none",
    record_every: int = 1,
    seed: int = 0,
    n_threads: int | None = None,
    feature_names: Sequence[str] | None = None,
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
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
    n_components : int
        Number of components, K.
    covariance_type : str
        "full", "diag", "spherical"; "tied", "tied-diag", "tied-spherical" for one shared by all
        components, as in the paper: its statistic has no second moments.
    known_covariance : ndarray of shape (d, d) or (K, d, d), optional
        Covariances that are not estimated, with covariance type "tied" or "full".
    init : {"random", "k-means++", "kmeans"}, row indices, or Mixture
        Where to start; see `vpem.steps.seeding`. Row indices (K,): means at those rows, equal
        weights, every covariance the sample covariance of all rows. "kmeans": the statistics of the
        hard assignment that Lloyd's iterations end with.
    max_iter, n_epochs, tol
        Most iterations, most epochs, and the squared norm of ``H`` relative to the statistic's, in
        units in which the data are white, at which to stop (0: never; see
        `vpem.steps.fedem.run_fedem`).
    compress : str, optional
        Codec of the corrections that workers send to the server
        (`vpem.network.codecs.parse_codec`); "qsgd:4bits:32" needs the fewest bytes up with a shared
        covariance, "qsgd:6bits:32" is safer with one a component.
    step_size, alpha, participation, batch_size, variance_reduction, inner, weighting, memory, \
record_every
        See `vpem.steps.fedem.run_fedem`.
    reg_covar : float
        Added to the diagonal of every covariance.
    floor : float, optional
        Least variance in any direction relative to the features' own; smaller or negative ones,
        which noise can ask for, are raised and counted. None: 1e-4, and 0 where nothing is noisy
        (no codec, all workers and all their rows in every iteration, a server): then only what no
        rows can have is raised, and it is EM.
    scale : {"none", "standard"}
        Whether features are divided by their standard deviations, undone in results. Where their
        units differ much, a quantizer's common scale would drown the small ones.
    seed : int
        Of everything that is drawn.
    n_threads : int, optional
        Threads of the kernels.
    feature_names : sequence of str, optional
        For messages.
    callback : callable, optional
        Told of every iteration; log-likelihoods are those recorded last.
    saver : Saver, optional
        Keeps checkpoints, and has the one to go on from (`vpem.files.checkpoints.FileSaver`).

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
    X = as_array("data", X[:] if hasattr(X, "runs") else X)
    if not isinstance(workers, Workers):
        raise InputError(f"the workers must be vpem.Workers, got {type(workers).__name__}")
    n_workers = workers.n_workers
    holders = network.total.holders if isinstance(network, Network) else Placement.here(n_workers)
    here = LocalRows(holders, workers.counts)
    if holders.apart:
        here.check(X)
    known_scale = known_covariance is not None and scale != "none"
    if known_scale:
        raise InputError("a known covariance is in the user's units, got scale 'standard'")
    given = prepare(
        X,
        X.shape[1] if X.ndim == 2 else 0,
        MixtureSettings(
            n_components=n_components,
            covariance_type=covariance_type,
            init=init,
            reg_covar=reg_covar,
            scale=scale,
            seed=seed,
        ),
        feature_names=feature_names,
        here=here if holders.apart else None,
    )
    check_int("max_iter", max_iter, least=1)
    check_number("tol", tol, least=0.0)
    if floor is not None:
        floor = check_number("floor", floor, least=0.0, most=1.0)
    if workers.n_samples != given.n_samples:
        raise InputError(f"the workers hold {workers.n_samples} rows, but the data have {len(X)}")
    codec = None if compress is None else parse_codec(compress)
    if network is None:
        network = connect_workers(make_graph("star", workers.n_workers, names=workers.names))
    if not isinstance(network, Network) or network.graph.n_agents != workers.n_workers:
        raise InputError(
            f"there are {workers.n_workers} workers: the network must come from "
            "vpem.connect_workers, with a graph of as many agents"
        )
    if floor is None:
        exact = codec is None or (isinstance(codec, Cast) and codec.itemsize == ITEM)
        whole = participation == 1 and batch_size is None and not variance_reduction
        floor = 0.0 if exact and whole and network.graph.has_server else FLOOR
    threads = thread_count(n_threads)
    ledger = Ledger(network.graph)
    if saver is not None:
        saver.begin(
            describe_run(
                "vr-fedem" if variance_reduction else "fedem",
                given.X,
                None,
                network,
                n_components=n_components,
                covariance_type=covariance_type,
                init=init,
                max_iter=max_iter,
                n_epochs=n_epochs,
                tol=float(tol),
                codec=None if codec is None else codec.name,
                step_size=describe_steps(step_size),
                alpha=alpha,
                participation=participation,
                batch_size=batch_size,
                inner=inner,
                weighting=weighting,
                memory=memory,
                reg_covar=float(reg_covar),
                floor=float(floor),
                scale=scale,
                record_every=record_every,
                seed=seed,
                n_threads=threads,
                **{
                    "who holds which rows": checksum(workers.order, workers.counts),
                    "what covariances are known": start_facts(known_covariance),
                },
            )
        )
    saving = OneRun(saver, ledger)
    with one_blas_thread(), np.errstate(over="ignore"):
        network.charge_setup(ledger, given.n_samples, ITEM)
        rng = np.random.default_rng([seed, 1])
        rows_here = given.X.astype(np.float64)
        if not holders.apart:
            rows_here = rows_here[workers.order]
        short = codec_of_moments(codec) if network.graph.has_server else None
        setup = Setup(rows_here, workers, network, ledger, short, rng)
        scaling, second = setup.units(scale, weighting)
        model = MixtureStatistics(
            scaling.apply(setup.rows),
            here.runs,
            n_components,
            covariance_type,
            scaling=scaling,
            second=second,
            reg_covar=reg_covar,
            known=known_covariance,
            floor=floor,
            n_threads=threads,
            counts=workers.counts,
        )
        model.add_up = lambda value: float(holders.allreduce(np.array([float(value)]))[0])
        model.radius = setup.largest(model.radius)
        rows: tuple[int, ...] | None
        if saving.saved is None:
            start, rows = setup.start(model, init, given.rows, seed)
        else:
            own = (Integer(most=given.n_samples - 1),) * n_components
            start, rows = None, saving.restored(Maybe(own))
        run = run_fedem(
            model,
            start,
            n_iter=max_iter,
            n_epochs=n_epochs,
            step_size=step_size,
            codec=codec,
            first_codec=codec_of_first(codec),
            basis=Whitening(model),
            alpha=alpha,
            participation=participation,
            batch_size=batch_size,
            variance_reduction=variance_reduction,
            inner=inner,
            weighting=weighting,
            memory=memory,
            network=network,
            ledger=ledger,
            tol=tol,
            record_every=record_every,
            rng=rng,
            n_threads=threads,
            callback=None if callback is None else _Told(callback),
            saver=saving.inner(rows),
        )
    if run.n_iter >= FEW and run.projected_share > OFTEN:
        finer = "" if codec is None else ", more bits (such as qsgd:6bits:32 or qsgd:8bits:32)"
        warnings.warn(
            f"weights or covariances had to be projected in {run.projected_share:.0%} of the later "
            f"half of the iterations: noise is large for what the data tell of a component, or a "
            f"component collapses; take a smaller step size{finer}, fewer components, or one "
            "covariance for all (tied)",
            VpemWarning,
            stacklevel=2,
        )
    if tol > 0 and not run.converged:
        noise = _lasting_noise(batch_size, variance_reduction, memory, codec, participation)
        warnings.warn(
            f"not converged within {run.n_iter} iterations: corrections are still above tol="
            f"{tol:g}; {noise or 'allow more iterations'}",
            NotConvergedWarning,
            stacklevel=2,
        )
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
        options={
            "compress": network.compress if codec is None else codec.name,
            "step_size": step_size if isinstance(step_size, str | float | int) else "function",
            "alpha": run.alpha,
            "participation": float(participation),
            "batch_size": batch_size,
            "variance_reduction": bool(variance_reduction),
            "weighting": weighting,
            "memory": memory,
            "scale": scale,
            "tol": float(tol),
        },
    )


def _lasting_noise(
    batch_size: int | None,
    variance_reduction: bool,
    memory: str,
    codec: Codec | None,
    participation: float,
) -> str | None:
    """Say which noise stays in corrections however long a run is, and what to do about it."""
    if batch_size is not None and not variance_reduction:
        return "the noise of batches keeps them there: take variance reduction, or tol 0"
    if memory == "none" and (codec is not None or participation < 1):
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
