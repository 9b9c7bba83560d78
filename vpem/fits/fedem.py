"""FedEM of a Gaussian mixture: what workers agree on first, the run, its report, and warnings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import (
    AnyArray,
    Doubles,
    Floats,
    Indices,
    as_matrix,
    check_kind,
    least_participation,
)
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting, not_converged, warn
from vpem.files.checkpoints import checksum, describe_run, describe_steps, start_facts
from vpem.files.matrix import FileMatrix
from vpem.fits.local_rows import (
    MANY,
    SHORT,
    LocalRows,
    MomentSums,
    RowStarts,
    UsedRows,
    agree_on_rows,
    charge_weights,
    codec_of_moments,
)
from vpem.fits.prepare import (
    Prepared,
    check_distinct,
    check_start,
    network_of_all,
    penalised,
    prepare,
    prior_of_penalty,
    read_presence,
)
from vpem.fits.private_fedem import run_private_fedem
from vpem.fits.results import (
    MixtureResult,
    listed,
    of_workers,
    penalised_in_report,
    reported,
    warn_of_copies,
    warn_of_degenerate,
    warn_of_few_values,
)
from vpem.fits.rows import n_columns
from vpem.fits.settings import PrivacySettings
from vpem.network.codecs import Codec, Dither, Natural, parse_codec
from vpem.network.ledger import Ledger
from vpem.network.partition import Blocks, Workers
from vpem.network.schema import Integer, Maybe, Report
from vpem.settings import FedMixtureSettings, FedSettings
from vpem.steps.fedem import FORGETFUL, first_statistics, go_on, run_fedem
from vpem.steps.fedem_sums import FEW, FedProgress, FedRun, check_masked, weights_of
from vpem.steps.recovery import Saver
from vpem.steps.restarts import OneRun
from vpem.steps.row_sampling import PointStream, RowStream
from vpem.steps.runs import Progress, refuse_trace, tracer
from vpem.steps.starts import Tell, teller
from vpem.sums.connect import Network
from vpem.sums.partial import Uplink, describe_presence
from vpem.sums.private import powers_above
from vpem.sums.quantizer import ITEM, Quantizer
from vpem.sums.sum import Sum
from vpem.terms.degenerate import copies_in_noise, degenerate_in_hubs
from vpem.terms.features import FeatureTerms
from vpem.terms.fedem_statistics import FLOOR, MixtureStatistics, in_order
from vpem.terms.mixture import Mixture, mixture_of_start, start_of_mixture
from vpem.terms.units import floors_of, sharing

OFTEN = 0.1
"""Share of the later iterations that project something, from which on there is a warning."""

FIRST = Dither(127, 32)
"""First statistics, 9 bits a number: qsgd:8bits:32."""
LLOYD = Natural(10)
"""What has changed in a worker's sums from one of Lloyd's iterations to the next."""


def codec_of_first(codec: Codec | None) -> Codec | None:
    """Return what first statistics are sent by, of what corrections are; None: exactly.

    The codec itself where it is at least as fine as ``qsgd:8bits:32``, which else takes its place:
    noise of all of a statistic is larger than noise of what has changed in it.
    """
    if codec is None:
        return None
    return codec if codec.variance(MANY) <= FIRST.variance(MANY) else FIRST


def as_short(radius: float) -> float:
    """Return how far out rows lie, as it is sent in 4 bytes."""
    return float(np.nextafter(np.float32(radius), np.float32(np.inf)))


class FedSetup:
    """Rows of workers, what these agree on before the first iteration, and what that costs.

    Moments are sent with the codec, where there is a server; None: everything is exact. Counts and
    masses (n,) are of each worker of all processes.
    """

    def __init__(
        self,
        prepared: Prepared,
        used: UsedRows,
        network: Network,
        ledger: Ledger,
        codec: Codec | None,
        rng: np.random.Generator,
    ) -> None:
        self.prepared, self.network, self.used = prepared, network, used
        self.total = network.total.counted_on(ledger)
        self.holders: Placement = self.total.holders
        self.own = self.holders.own
        self.counts = used.counts
        self.masses: AnyArray = used.counts
        if used.every_weight is not None:
            self.masses = np.array([used.every_weight[run].sum() for run in used.workers.runs])
        self.codec = codec
        self.rng = rng
        self.item = ITEM if codec is None else SHORT
        if used.every_weight is not None:
            charge_weights(self.total, self.counts)

    def model(self, settings: FedMixtureSettings, known_covariance: Any) -> MixtureStatistics:
        """Return the statistics of the mixture, in units that all workers agree on."""
        assert settings.floor is not None
        masses, n_workers, misses = self.masses, len(self.counts), self.prepared.misses
        weights = weights_of(self.counts, masses, settings.weighting)
        n_roots, d = self.network.whole.total.n_roots, int(self.used.data.shape[1])
        agreement = MomentSums(self.total, n_roots, masses, d, self.codec, self.rng)
        parts, n_rows = self.used.parts(), int(self.counts.sum())
        masked = self.holders.masks is not None
        reach = agree_on_rows(parts, self.total, n_rows, d) if masked else None
        agreement.reach = reach
        blocks = Blocks.one(d, n_workers)
        hubs = sharing(blocks, settings.covariance_type, settings.scale)
        scaling, second, there = agreement.moments(parts, weights, hubs, misses)
        self.reach = reach if reach is None else reach.scaled(scaling)
        terms = FeatureTerms(
            self.used.data,
            blocks,
            settings.covariance_type,
            missing=misses,
            scaling=scaling,
            row_weights=self.used.weights,
            reg_covar=floors_of(settings.reg_covar, settings.scale, scaling),
            n_threads=thread_count(settings.n_threads),
            add=self.used.add,
        )
        return MixtureStatistics(
            terms,
            self.used.runs,
            settings.n_components,
            second,
            there,
            counts=self.counts,
            masses=masses,
            known=known_covariance,
            floor=settings.floor,
            add_up=self._add_up,
            largest=self.largest,
            reach=self.reach,
            penalty=None if settings.penalty is None else penalised(terms, settings),
        )

    def _add_up(self, values: Doubles) -> float:
        """Add up a number of each worker (n,), of which those of this process are here."""
        if self.holders.masks is None:
            return float(self.holders.allreduce(np.array([in_order(values)]))[0])
        return float(self.holders.add_up(values[self.own][:, None])[0])

    def largest(self, radius: float) -> float:
        """Return how far out the farthest row is: a number from every worker.

        Where sums are masked, the power of two that it is below.
        """
        if self.holders.masks is not None:
            radii = np.full((len(self.own), 1), radius)
            return float(powers_above(self.total, radii)[0])
        radius = float(self.holders.allreduce(np.array([radius]), "max")[0])
        self.total.begin("setup", 1, 1, self.item)
        if self.codec is None:
            return radius
        return as_short(radius)

    def _lloyd(self, centres: Doubles, observed: bool) -> Sum:
        """Return the sum of Lloyd's iterations: with a codec, of what has changed in messages."""
        if self.codec is None:
            return self.total
        # Weight and sum of each cluster, weights of observed values, inertia, rows that changed.
        size = len(centres) + (2 if observed else 1) * centres.size + 2
        known = np.zeros((len(self.counts), size))
        changes = Uplink(self.total.server, Quantizer(LLOYD, known.shape[1]), self.rng)
        return changes.remember(1.0, known)

    def start(
        self,
        model: MixtureStatistics,
        init: Any,
        start_rows: NDArray[np.intp] | None,
        seed: int,
        tell: Tell | None = None,
    ) -> tuple[Doubles, tuple[int, ...] | None]:
        """Statistics (n, P) to start from, and the user's numbers of the rows that were drawn.

        ``tell`` is called with every step of k-means++ and k-means.
        """
        if start_rows is None and not isinstance(init, str):
            start = init.convert_to(model.blocks, model.covariance_type, model.scaling)
            check_start(start, model.n_components)
            return first_statistics(model, start), None
        used, terms = self.used, model.terms
        parts = used.workers_rows(terms.rows, terms.observed)
        at_random = start_rows is not None or init == "random"
        rng, order = np.random.default_rng([seed, 0]), used.order if at_random else None
        stream = RowStream(rng, used.every_weight, used.n_samples, order)
        if self.reach is not None:
            stream = PointStream(rng, self.reach)
        starts = RowStarts(
            parts, self.total, stream, model.n_components, terms.n_threads, tell, self.item
        )
        places: Indices | None
        if start_rows is not None:
            places = used.places(start_rows)
            means = starts.rows(places)
        else:
            seeding = None if self.codec is None else _OwnPlaces(self.total.server)
            means, places = starts.draw(init, seeding)
        rows = None if places is None else self.prepared.number(used.at_places(places))
        if at_random or init != "kmeans":
            return first_statistics(model, model.start(means)), rows
        fill = not model.is_diagonal
        total = self._lloyd(means, model.misses and not fill)
        variance = float(np.diagonal(model.second).mean())
        run = starts.clusters(means, np.full(self.total.n_roots, variance), fill, total)
        hard = np.zeros((len(self.counts), model.size))
        for place, worker in enumerate(self.own.tolist()):
            if worker not in model.parts:
                continue
            centres = run.centres[0 if len(run.centres) == 1 else place]
            labels = run.labels[self.used.runs[worker]]
            hard[worker] = model.assigned(worker, labels, centres)
        return hard, rows


class _OwnPlaces(Uplink):
    """A sum of vectors in which each sender has places of its own: it sends these, as float32."""

    def send(self, values: Doubles, senders: Indices | None = None) -> Doubles:
        """Send the numbers at each sender's own places of vectors (n, P)."""
        self.count(np.full(len(values), SHORT * values.shape[1] // len(values)), senders)
        return values.astype(np.float32).astype(np.float64)


@dataclass(kw_only=True)
class FedFit(MixtureResult):
    """A mixture fitted by FedEM and how it came about; see `vpem.fits.results.MixtureResult`.

    On a graph parameters are those of the mean of the workers' statistics. ``history`` (n, 1) has
    the iterations recorded; ``run`` has the statistic, history and memories. Under a penalty,
    ``prior``, ``history`` is that of the penalised log-likelihood, and ``log_prior`` minus the
    penalty, of all rows, in nats: see `vpem.fits.results.Fit`.
    """

    run: FedRun
    workers: Workers
    prior: Report | None = None
    log_prior: float = 0.0
    options: Report = field(default_factory=dict)
    units: MixtureStatistics | None = field(default=None, repr=False)
    """The map of a statistic without rows, by which a stream goes on."""

    @property
    def n_iter(self) -> int:
        """Iterations."""
        return self.run.n_iter

    def add_to_likelihoods(self, total: float) -> None:
        super().add_to_likelihoods(total)
        objective = self.run.history.objective
        objective[:] = [value + total / self.total_weight for value in objective]

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood per sample of the mixture, on all rows."""
        return self.run.history.objective[-1] - self.log_prior / self.total_weight

    def describe(self, feature_names: Sequence[str], holders: Sequence[str]) -> Report:
        """Summarize the fit in values that JSON can hold; see `NetworkResult.describe`.

        The mean field is in the units of fitting.
        """
        run, mixture, workers, network = self.run, self.mixture, self.workers, self.network
        history, unknown = run.history, Report()
        if self.guarantee is not None:
            unknown = self.guarantee.in_report()
            unknown |= {"converged": None, "in_noise": None, "mean_field": [], "history": []}
        return {
            "algorithm": "vr-fedem" if self.options["variance_reduction"] else "fedem",
            "split": "rows",
            "n_samples": workers.n_samples,
            **reported(self, "n_features", "total_weight"),
            "n_agents": workers.n_workers,
            **of_workers(workers, holders),
            **self._size(),
            "feature_names": list(feature_names),
            **network.describe("topology", "edges", "positions", "server"),
            "hops": 0,
            **network.describe("sum", "tree", "secure_sum"),
            **network.describe("rounds", "weights", "mixing_rate", "consensus_error", "faults"),
            "partitions": listed(run.partitions),
            **self.options,
            "omega": run.omega,
            "step_ceiling": run.steps.ceiling,
            "safe_step": run.steps.safe,
            "theorem_step": run.steps.theorem,
            "inner": run.settings.inner,
            "statistic_size": len(run.statistic),
            "mixing_weights": mixture.assembled_weights.tolist(),
            **reported(self, "log_likelihood", "bic", "aic", "converged"),
            **penalised_in_report(self),
            **reported(run, "in_noise", "n_iter"),
            "n_epochs": run.epochs,
            **reported(run, "projections", "projected_share"),
            "disagreement": history.disagreement[-1],
            **reported(history, "mean_field", "epochs"),
            "history": history.objective,
            "recorded": history.iteration,
            "bytes_up": history.bytes_up,
            "init_rows": self._starts,
            **reported(self, "communication", "seconds"),
            **unknown,
        }


def options_of(
    run: FedRun, settings: FedMixtureSettings, codec: Codec | None, network: Network
) -> Report:
    """Return what a report says of the algorithm's options, as they were taken."""
    return {
        "compress": network.compress if codec is None else codec.name,
        "step_size": "function"
        if callable(settings.step_size)
        else settings.step_size
        if callable(run.settings.step_size)
        else run.settings.step_size,
        "alpha": run.alpha,
        **describe_presence(settings.participation, len(run.memories)),
        "batch_size": run.settings.batch_size,
        "variance_reduction": bool(settings.variance_reduction),
        **({"replacement": True} if settings.replacement else {}),
        **reported(settings, "weighting", "memory", "scale", "tol"),
    }


def warn_of_noise(
    run: FedRun, settings: FedMixtureSettings, codec: Codec | None, of_rounds: str | None
) -> None:
    """Warn where noise spoiled M-steps, stays in the result, or kept the run from converging.

    The codec is that of corrections; without a server there may be one of the network's rounds.
    """
    at_end = run.n_iter in run.projected[-1:]
    if at_end or (run.n_iter >= FEW and run.projected_share > OFTEN):
        ways: list[str] = []
        finer: list[str | Setting] = ["a smaller step size"]
        assert settings.floor is not None
        if codec is not None:
            ways.append("more bits (such as qsgd:6bits:32 or qsgd:8bits:32)")
        elif of_rounds is not None:  # whose numbers have the features' units
            ways.append("a codec that rounds each number by itself (such as natural:12bits)")
        elif 0 < settings.floor < FLOOR:
            finer = ["a smaller ", Setting("consensus_tol")]
        ways.append("fewer components")
        if not settings.covariance_type.startswith("tied"):
            ways.append("one covariance for all (tied)")
        ended = f", the last too, and the result rests on the floor ({settings.floor:.2g} of the " \
            "data's variance, by the error of a sum)" if at_end else ""  # fmt: skip
        warn(
            "weights or covariances had to be projected in "
            f"{run.projected_share:.0%} of the later half of the iterations{ended}: noise is "
            "large compared with the data of a component, or a component collapses; take ",
            *finer,
            "".join(f", {way}" for way in ways[:-1]) + f" or {ways[-1]}",
        )
    warn_of_rest(run, settings, codec)


def warn_of_rest(run: FedRun, settings: FedSettings, codec: Codec | None) -> None:
    """Warn where noise stays in the result, or the run did not converge."""
    if run.in_noise:
        of, without = "of codecs or absent workers", "memory first"
        if settings.batch_size is not None:
            of, without = "of batches", "variance reduction"
        warn(
            f"at rest after {run.n_iter} iterations, except for the noise {of}, which stays in the "
            f"result: {without} removes it, smaller steps reduce it",
            level=4,
        )
    if run.spoiled and settings.tol > 0:
        warn(
            f"not converged in {run.n_iter} iterations: statistics were projected in most of "
            "them, so that they came to rest where EM would not",
            level=4,
            kind=not_converged,
        )
    elif settings.tol > 0 and not run.converged:
        # Some noise stays in corrections however long a run is.
        absent = least_participation(settings.participation) < 1
        advice = "allow more iterations"
        if settings.batch_size is not None and not settings.variance_reduction:
            advice = f"the noise of batches keeps them there: take variance reduction, or {advice}"
        elif settings.memory in FORGETFUL and (codec is not None or absent):
            advice = f"without memories noise keeps them there: take memory first, or {advice}"
        warn(
            f"not converged within {run.n_iter} iterations: corrections are still above tol="
            f"{settings.tol:g}; {advice}",
            level=4,
            kind=not_converged,
        )


def _prepared(
    X: Floats | FileMatrix,
    workers: Workers,
    network: Network,
    settings: FedMixtureSettings,
    sample_weight: Floats | None,
    feature_names: Sequence[str] | None,
) -> tuple[LocalRows, Prepared]:
    holders = network.total.holders
    # Where sums are masked nothing may be sent of single rows, and all must have a range.
    secure = Setting("secure_sum", True)
    if holders.masks is not None and sample_weight is not None:
        raise InputError(
            "means of workers are weighted by ", Setting("sample_weight"), ", which all workers "
            "learn for every row, but ", secure, " is to hide it; leave out one of the two, or fit "
            "by EM over rows",
        )  # fmt: skip
    if holders.masks is not None and settings.missing == "marginalize":
        raise InputError(
            Setting("missing", settings.missing), " adds what is expected of missing values, for "
            "which corrections have no range that could be agreed on as ", secure, " needs; fill "
            "them in first, leave it out, or fit by EM over rows",
        )  # fmt: skip
    rows = LocalRows(holders, workers)
    return rows, prepare(
        X, n_columns(X), settings, rows, sample_weight=sample_weight, feature_names=feature_names,
        missing=settings.missing,
    )  # fmt: skip


def fit_fedem(
    X: Floats | FileMatrix,
    workers: Workers,
    network: Network | None = None,
    settings: FedMixtureSettings | None = None,
    *,
    sample_weight: Floats | None = None,
    known_covariance: Any = None,
    feature_names: Sequence[str] | None = None,
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
    privacy: PrivacySettings | None = None,
    **changes: object,
) -> FedFit:
    """Fit a Gaussian mixture to rows that workers hold: FedEM or VR-FedEM.

    Before the first iteration two sums give all workers the mean and the second moments of the
    data, about and in which statistics are taken, and a number how far out rows lie; rows drawn as
    a start are sent to all; and every worker sends its statistics at the start (kind "setup" of
    what is counted). Without ``compress`` all of this is exact. With it means and factors of the
    second moments have 16 bits a number (`vpem.fits.local_rows.codec_of_moments`), rows of the
    start are float32, and first statistics go by the finer of the codec and qsgd:8bits:32.
    Corrections and first statistics are compressed in units in which the data are white, so that
    one scale fits.

    Parameters
    ----------
    X : ndarray or FileMatrix of shape (M, d)
        The data; a row is seen by the worker that holds it, and by others only as a start. What
        stays in a file is read a run of rows at a time in every pass.
    workers : Workers
        Who holds which rows.
    network : Network, optional
        From `vpem.sums.connect.connect_workers`; None: a server. See
        `vpem.steps.fedem.run_fedem` for what FedEM is on a graph.
    settings : FedMixtureSettings, optional
        None: the defaults.
    sample_weight : ndarray of shape (M,), optional
        Weight of each row: 2 is as two such rows, and 0 as none. Batches are drawn in proportion
        (`vpem.terms.fedem_statistics.MixtureStatistics.draw`).
    known_covariance : ndarray of shape (d, d) or (K, d, d), optional
        Covariances that are not estimated, with covariance type "tied" or "full".
    feature_names : sequence of str, optional
        For messages.
    callback : callable, optional
        Called after every iteration; log-likelihoods are those recorded last.
    saver : Saver, optional
        Keeps checkpoints, and has the one to go on from (`vpem.files.checkpoints.FileSaver`).
    privacy : PrivacySettings, optional
        With an ``epsilon``: workers add noise to their statistics
        (`vpem.fits.private_fedem`).
    **changes
        Settings that differ: see `vpem.FedMixtureSettings`. Besides the names of starts ``init``
        takes a Mixture, or row indices (K,): means at those rows, equal weights, every covariance
        the sample covariance of all rows; "kmeans": the statistics of the hard assignment that
        Lloyd's iterations end with. With a tied covariance the statistic has no second moments, as
        in the paper. A ``scale`` of "standard" is for units that differ much, where a quantizer's
        common scale would drown the small ones. ``floor`` is by default the error of a mean of
        the workers' statistics: that of the codec and of the rounds between neighbours, 1e-4 at
        most, and as much where workers or rows are drawn. Where it is 0 (a server or a tree, and
        no codec) only what no rows can have is raised.

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
        If something was projected in the last iteration, or in more than a tenth of the later
        half of at least ten, or components are degenerate or coincide.
    """
    began = time.perf_counter()
    settings = FedMixtureSettings.resolve(settings, **changes)
    codec = None if settings.compress is None else parse_codec(settings.compress)
    if privacy is not None and privacy.is_asked:
        refuse_trace(callback)
        run, settings, facts = run_private_fedem(
            X, workers, network, settings, privacy, (codec, codec_of_first(codec)),
            feature_names=feature_names, callback=callback, saved=saver is not None,
            weighted=sample_weight is not None, known=known_covariance is not None,
        )  # fmt: skip
        options = options_of(run, settings, codec, facts["network"])
        return FedFit(mixture=run.parameters, run=run, workers=workers, options=options, **facts)
    X = as_matrix("data", X)
    if known_covariance is not None and settings.scale != "none":
        raise InputError("a known covariance is in the user's units, got scale 'standard'")
    check_kind("the workers must be vpem.Workers", workers, Workers)
    network = network_of_all(network, workers.n_workers, "workers", workers.names)
    local, prepared = _prepared(X, workers, network, settings, sample_weight, feature_names)
    alone = not network.total.holders.apart and workers.counts.max() == workers.n_samples
    check_distinct(prepared.X, settings, alone)
    settings = read_presence(settings, workers.names, network)
    check_masked(network, codec, settings.participation)
    floor = settings.floor
    sampled = least_participation(settings.participation) < 1 or settings.batch_size is not None
    if floor is None and (sampled or settings.variance_reduction):
        floor = FLOOR
    elif floor is None:  # the error of a mean
        sent = codec or network.whole.total.codec
        error, promised = network.whole.consensus_error, network.whole.consensus_tol
        if error is None:  # rounds that fail or are compressed
            error = inf if promised is None else promised
        floor = min(FLOOR, max(error, 0.0 if sent is None else sqrt(sent.variance(MANY))))
    settings = settings.changed(n_threads=thread_count(settings.n_threads), floor=floor)
    if saver is not None:
        facts = settings.values("compress", "variance_reduction") | {
            "codec": None if codec is None else codec.name,
            "step_size": describe_steps(settings.step_size),
            "who holds which rows": checksum(workers.order, workers.counts),
            "what covariances are known": start_facts(known_covariance),
        }
        name = "vr-fedem" if settings.variance_reduction else "fedem"
        saver.begin(describe_run(name, prepared.X, prepared.row_weights, network, **facts))
    ledger = Ledger(network.graph)
    saving = OneRun(saver, ledger)
    with one_blas_thread(), np.errstate(over="ignore"):
        network.charge_setup(ledger, prepared.n_samples, ITEM)
        rng = np.random.default_rng([settings.seed, 1])
        short = codec_of_moments(codec) if network.total.at_server else None
        setup = FedSetup(prepared, prepared.held(local), network, ledger, short, rng)
        model = setup.model(settings, known_covariance)
        shared = network.whole.total.n_roots == 1 or not len(network.agents.own)
        root = 0 if shared else int(network.agents.own[0])
        begun = saving.begins_at(
            lambda loop: start_of_mixture(model.maximize(loop["statistics"][root])[0])
        )
        start: Doubles | None = None
        if saving.saved is not None:
            row_numbers = (Integer(most=prepared.n_samples - 1),) * settings.n_components
            rows = saving.restored(Maybe(row_numbers))
        else:
            like = Mixture.blank(model.blocks, model.covariance_type, model.n_components)
            init = settings.init if begun is None else mixture_of_start(begun, like)
            tell = teller(callback)
            start, rows = setup.start(model, init, prepared.rows, settings.seed, tell)
        run = run_fedem(
            model,
            start,
            settings.into(FedSettings),
            codec=codec,
            first_codec=codec_of_first(codec),
            basis=model,
            network=network,
            ledger=ledger,
            rng=rng,
            callback=None if callback is None else _telling(callback),
            saver=saving.inner(rows),
        )
    if run.spoiled:
        run.converged = run.in_noise = False
    warn_of_noise(run, settings, codec, network.whole.compress)
    fit = FedFit(
        **_found(run, model, workers, settings, codec, network),
        prior=prior_of_penalty(settings),
        log_prior=0.0 if model.penalty is None else model.penalty.log_prior(run.parameters),
        network=network.whole,
        init_rows=rows,
        units=model.without_rows(),
        **saving.took(began, run.converged, run.history.bytes),
    )
    warn_of_degenerate(fit, settings, model.floor)
    warn_of_few_values(fit, prepared.X, feature_names, settings, over_rows=True)
    warn_of_copies(fit)
    return fit


def _found(
    run: FedRun,
    model: MixtureStatistics,
    workers: Workers,
    settings: FedMixtureSettings,
    codec: Codec | None,
    network: Network,
) -> Report:
    """Return what a result says of a run to all rows, or to a batch of a stream."""
    mixture, degenerate = run.parameters, np.zeros(model.n_components, dtype=np.bool_)
    if not (model.knows_covariances or (model.penalty and model.penalty.is_proper)):
        # What only a floor under variances keeps from being singular.
        degenerate = degenerate_in_hubs(mixture, model.reg_covar, model.n_rows)
        if model.floor > 0:
            degenerate |= model.at_floor(mixture)
    return {
        "mixture": mixture,
        "history": np.array(run.history.objective)[:, None] * model.total_weight,
        "total_weight": model.total_weight,
        "run": run,
        "workers": workers,
        "options": options_of(run, settings, codec, network),
        "degenerate": np.flatnonzero(degenerate).tolist(),
        "copies": copies_in_noise(mixture, model.floor > 0),
    }


def fit_next_batch(
    fit: FedFit,
    data: Floats,
    workers: Workers,
    weights: Doubles | None,
    settings: FedMixtureSettings,
    *,
    batch: int,
    rng: np.random.Generator,
) -> FedFit:
    """Move a fit by one iteration of FedEM on the next batch of a stream.

    Batches are counted from 2, as the first began the fit; data (m, d) are complete rows of those
    of the first batch's ``workers`` that have some, of positive ``weights`` (m,). Workers' shares
    and units are those of the first batch. History, messages, and sizes of the result are
    those of this batch. `vpem.steps.fedem.go_on` says which steps are taken.
    """
    began = time.perf_counter()
    units, network = fit.units, fit.network
    assert units is not None
    ledger, codec = Ledger(network.graph), None
    if settings.compress is not None:
        codec = parse_codec(settings.compress)
    data = data[workers.order]
    masses = None
    if weights is not None:
        weights = weights[workers.order]
        masses = np.array([weights[run].sum() for run in workers.runs])
    settings = read_presence(settings, workers.names, network)
    with one_blas_thread(), np.errstate(over="ignore"):
        terms = FeatureTerms(
            data,
            units.blocks,
            units.covariance_type,
            missing=units.there is not None or bool(np.isnan(data).any()),
            scaling=units.scaling,
            row_weights=weights,
            reg_covar=units.reg_covar,
            n_threads=thread_count(settings.n_threads),
        )
        # How far out rows lie.
        network.total.counted_on(ledger).begin("setup", 1, 1, ITEM if codec is None else SHORT)
        largest = float if codec is None else as_short
        model = units.with_rows(terms, workers.runs, masses, largest)
        run = go_on(
            fit.run,
            model,
            weights_of(units.counts, units.masses, settings.weighting),
            settings.into(FedSettings),
            batch,
            codec=codec,
            basis=model,
            network=network,
            ledger=ledger,
            rng=rng,
        )
    return replace(
        fit,
        **_found(run, model, workers, settings, codec, network),
        units=units.without_rows(model),
        converged=False,
        seconds=time.perf_counter() - began,
        communication=ledger.summary(),
    )


def _telling(callback: Callable[[Progress], None]) -> Callable[[FedProgress], None]:
    """Return what calls a callback of `vpem.steps.em` with what FedEM reports."""
    last: float | None = None

    def tell(progress: FedProgress) -> None:
        nonlocal last
        change = None
        if progress.objective is not None:
            change = None if last is None else progress.objective - last
            last = progress.objective
        callback(Progress(progress.iteration, float("nan") if last is None else last, change))

    vars(tell)["tracing"] = tracer(callback)
    return tell
