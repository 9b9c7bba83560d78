"""VP-EM: what factors that hubs share go with, where a fit starts, and the fit itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import Floats, check_int, check_kind, precision_of
from vpem.errors import InputError, Setting
from vpem.files.checkpoints import describe_run, start_facts
from vpem.files.matrix import FileMatrix, check_kept_beside
from vpem.fits.labels import (
    KnownLabels,
    Labelled,
    label_rows,
    looked_up,
    refuse_labels,
    responsibilities_of_agents,
)
from vpem.fits.local_rows import AllRows
from vpem.fits.parts import complete, own_columns_of_hubs
from vpem.fits.prepare import (
    Prepared,
    acceleration_of,
    believing,
    check_distinct,
    check_start,
    make_terms,
    mode_prior,
    prepare,
    refuse_first,
    refuse_with_kinds,
    restart_numbers,
    short_runs,
    started,
    units_of,
)
from vpem.fits.results import Fit, copies_of, found_by, warn_of_few_values, warn_of_outcome
from vpem.fits.settings import PlanSettings, PrivacySettings
from vpem.network.ledger import Ledger
from vpem.network.schema import Report
from vpem.records import refused
from vpem.rules import OF_ROWS
from vpem.settings import SMALL_EM, FitSettings
from vpem.steps import em
from vpem.steps.accelerate import Acceleration
from vpem.steps.batches import fit_batches
from vpem.steps.recovery import Saver
from vpem.steps.restarts import Kept, Restart, Restarts
from vpem.steps.row_sampling import RowStream
from vpem.steps.runs import Progress, Run, kept_of_mixtures, refuse_trace
from vpem.steps.starts import (
    SMALL_RUN_OF_BEST,
    SMALL_STARTS,
    SMALL_STARTS_OF_KINDS,
    GivenStart,
    Tell,
    best_of_short_runs,
    draw_start,
    held_of,
    short_sample,
    start_at_labels,
    teller,
)
from vpem.steps.summing import agree_on_units
from vpem.sums.connect import Network
from vpem.sums.sum import Sum
from vpem.terms.families.covariates import SEVERAL_HUBS
from vpem.terms.families.kinds import LAWS, Kinds
from vpem.terms.families.mixed import MixedTerms
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Mixture
from vpem.terms.units import Scaling


def check_factors(
    settings: FitSettings, network: Network, *, misses: bool = False, mixed: bool = False
) -> None:
    if not settings.n_factors:
        return
    factors = Setting("n_factors", settings.n_factors)
    refuse_first(
        (misses, (factors, (
            ": for each row with missing values a hub would have to send how well it knows the "
            "factors, q x q numbers per component besides the q that it sends; fill values in "
            "first, or leave out {n_factors}"
        ))),
        (settings.weight_concentration_prior_type is not None, (factors, (
            " would need a prior of their own: that of a hub's covariance does not cover loadings "
            "and noise; leave out {n_factors}, or {weight_concentration_prior_type}"
        ))),
        (settings.init == SMALL_EM, (factors, (
            " are drawn after the start, and {init=small-em} judges starts by models without "
            "them; take {init=kmeans}"
        ))),
        (mixed, (factors, (
            " take Gaussian features, which are linear in factors and noise; features of other "
            "families are not; leave out {n_factors}"
        ))),
    )  # fmt: skip
    check_sums_of_factors(settings, network)


def check_sums_of_factors(settings: FitSettings | PlanSettings, network: Network) -> None:
    if not settings.n_factors:
        return
    factors = Setting("n_factors", settings.n_factors)
    n_features, by_rounds = network.whole.blocks.n_features, not network.total.at_server
    refuse_first(
        (settings.n_factors > n_features, (factors, (
            f" are more than there are features, {n_features}; give fewer"
        ))),
        (precision_of(settings.dtype) == np.float32, (factors, (
            " explain nearly all of each row where noise is small, and float32 leaves few digits "
            "of the difference: a log-likelihood of breast cancer fell by 0.05 nats per row; take "
            "{dtype=float64}"
        ))),
        (settings.batch_size is not None, (
            "{batch_size} keeps statistics of batches, but those of factors depend on loadings "
            "that have moved and turned since; leave it out, or {n_factors}",
        )),
        (by_rounds and network.fails, (factors, (
            " takes two sums per iteration, which must agree, but where links or agents fail, sums "
            "by consensus differ by which agents were heard; take {sum=tree}"
        ))),
        (by_rounds and network.compress is not None, (
            "compressed messages between neighbours encode changes since the last sum of terms, "
            "and the precision of factors would be mistaken for such changes; take {sum=tree}, or "
            "leave out {compress}",
        )),
    )  # fmt: skip


ORDER_OF_BATCHES, LOADINGS = 1, 2
"""Set the streams that order batches, and draw loadings, apart from the one that draws rows."""


def fit_vpem(
    X: Floats | FileMatrix,
    network: Network,
    settings: FitSettings | None = None,
    *,
    first_restart: int = 0,
    sample_weight: Floats | None = None,
    feature_names: Sequence[str] | None = None,
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
    labels: Sequence[int] | None = None,
    privacy: PrivacySettings | None = None,
    kinds: Kinds | None = None,
    labels_for_fit: KnownLabels | ArrayLike | None = None,
    **changes: object,
) -> Fit:
    """Fit a Gaussian mixture to data split by features: VP-EM (Valdeira et al., Algorithms 1, 2).

    Parameters
    ----------
    X : ndarray or FileMatrix of shape (M, d)
        The data; column j is seen by the agent that holds feature j and, once, by its root.
    network : Network
        From `connect`.
    settings : FitSettings, optional
        None: the defaults.
    first_restart : int
        Number of the first restart: restart 3 alone is what it is among more.
    sample_weight : ndarray of shape (M,), optional
        Weight of each row. Zero has no effect, an integer equals as many copies.
    feature_names : sequence of str, optional
        For messages.
    callback : callable, optional
        Called after every iteration; its method ``starting``, if there is one, as a start goes on.
    saver : Saver, optional
        Keeps checkpoints, and has the one to go on from (`vpem.files.checkpoints.FileSaver`).
    labels : sequence of int, optional
        Agents whose `Fit.responsibilities` are kept; with any, even none, all are sent theirs.
    kinds : Kinds, optional
        Family of each feature; None: all are Gaussian.
    labels_for_fit : array of shape (M,) or (M, K), or KnownLabels, optional
        Labels of some rows, of which each is a component, in ascending order; NaN, None, "" and -1
        where there is none. Or probabilities of the components, of which rows of NaN say nothing.
        They are added to the term of the first agent's hub (of another's: `KnownLabels`), so that
        all roots learn the components of labelled rows.
    privacy : PrivacySettings, optional
        With a ``release_epsilon``: noise in every M-step (`vpem.fits.privacy.release_vpem`).
    **changes
        Settings that differ: see `vpem.FitSettings`. Besides the names of starts ``init`` takes a
        Mixture, or row indices (K,): means at those rows, equal weights, every covariance the
        block's sample covariance with divisor M plus ``reg_covar``; or a
        `vpem.steps.starts.GivenStart`. With ``max_iter=0`` the fit is its start. With
        ``batch_size`` (`vpem.steps.batches.fit_batches`) ``max_iter`` and ``history`` count passes.

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
        If features are constant, components collapsed and were reinitialised, or some are
        degenerate.
    """
    began = time.perf_counter()
    settings = FitSettings.resolve(settings, **changes)
    check_kind("the network must come from vpem.connect", network, Network)
    if settings.penalty is not None:
        raise refused(Setting("penalty", settings.penalty), OF_ROWS[1])
    private = privacy is not None and privacy.is_asked
    if isinstance(kinds, Kinds) and not kinds.is_gaussian:
        refuse_with_kinds(settings, private=private, covariates="covariate" in kinds.present)
    if privacy is not None and private:
        refuse_labels(labels_for_fit)
        refuse_trace(callback)
        from vpem.fits.privacy import release_vpem

        return release_vpem(
            X, network, settings, privacy, sample_weight=sample_weight, feature_names=feature_names,
            saver=saver, labels=labels,
        )  # fmt: skip
    began_at, settings = started(settings, network.whole.blocks)
    prepared = prepare(
        X, network.blocks.n_features, settings, AllRows(network.total.holders),
        sample_weight=sample_weight, feature_names=feature_names, dtype=settings.dtype,
        missing=settings.missing, kinds=kinds,
    )  # fmt: skip
    first_restart = check_int("first_restart", first_restart, least=0)
    # What is tried beyond M-steps, once it is clear that what is kept fits in memory.
    whole = bool(network.blocks.widths.max(initial=0) == network.whole.blocks.n_features)
    check_distinct(prepared.X, settings, whole and network.part_of is None)
    pace = acceleration_of(settings, network)
    check_factors(settings, network, misses=prepared.misses, mixed=prepared.kinds is not None)
    if pace is not None and pace.local:
        n_values = len(network.total.holders.own) * len(prepared.X) * (settings.n_components - 1)
        what = "what every hub knows of the rest of a sum, of every row and component,"
        needed = n_values * prepared.precision.itemsize
        check_kept_beside(prepared.X, needed, what, "take ", Setting("accelerate", "squarem"))
    check_kept(prepared.X, network, settings.n_numbers, settings.batch_size)
    settings = settings.changed(
        n_threads=thread_count(settings.n_threads), dtype=prepared.precision.name
    )
    labelled = label_rows(labels_for_fit, network, prepared, settings.n_components)
    if saver is not None:
        facts = settings.values() | ({"first_restart": first_restart} if first_restart else {})
        if settings.fix is not None and began_at.given is not None:
            facts["fixed"] = start_facts(began_at.given)
        if prepared.kinds is not None:
            facts["families"] = ",".join(prepared.kinds.families)
            facts["levels"] = ",".join(map(str, prepared.kinds.n_levels))
        if labelled is not None:
            facts["labels_for_fit"] = labelled.mark
        saver.begin(describe_run("vp-em", prepared.X, prepared.row_weights, network, **facts))
    with one_blas_thread(), np.errstate(over="ignore"):
        terms = _terms(network, prepared, settings, labelled)
        in_sums = settings.batch_size is None and not terms.n_factors
        plain = complete(terms, network, in_sums=in_sums)
        terms = believing(plain, settings)
        if terms is not plain:  # under a prior, which is found from all rows
            terms = terms.informed_by(plain)
        ledger = Ledger(network.graph)
        network.charge_setup(ledger, prepared.n_samples, terms.itemsize)
        if isinstance(settings.init, str) and settings.init != "random":
            # Where sums are masked such starts need units of squared distances.
            agree_on_units(terms.measured, network.total, ledger)
        runs = kept_of_mixtures(terms, network.total, settings.n_components, settings.floor_fits)
        attempts = _Attempts(
            network, prepared, terms, runs, settings, pace, callback, began_at, labelled
        )
        numbers = restart_numbers(settings, first_restart)
        restarts = Restarts(
            saver, ledger, numbers, settings.seed, settings.max_iter, runs, callback
        )
        run, start_rows = restarts.best(network.total, attempts)
    shares = {}
    if labels is not None:
        shares = responsibilities_of_agents(
            X, run.mixture, network, ledger, labels, settings.missing
        )
    fit = Fit(
        **found_by(run, settings),
        network=network,
        history=_per_hub(np.array(run.history).reshape(-1, len(run.log_likelihood)), network),
        root_log_likelihood=_per_hub(run.log_likelihood[None], network)[0],
        prior=mode_prior(settings, network.whole.blocks),
        log_prior=float(run.log_prior.mean()),
        total_weight=terms.total_weight,
        n_samples=prepared.n_samples,
        recoveries=run.recoveries,
        copies=copies_of(run.mixtures, network.total.counted_on(ledger)),
        init_rows=prepared.number(start_rows),
        responsibilities=shares,
        labels_for_fit=looked_up(labelled),
        **restarts.outcome(began),
    )
    warn_of_outcome(fit, settings)
    warn_of_few_values(fit, prepared.X, feature_names, settings, over_rows=False)
    return fit


def _terms(
    network: Network, prepared: Prepared, settings: FitSettings, labelled: Labelled | None
) -> Any:
    """Return the terms of Gaussian features, or of several families, and of labels."""
    terms: Any
    if labelled is not None and settings.seeks_outliers:
        raise InputError(
            Setting("labels_for_fit"), " say to which component rows belong, and ",
            Setting("noise" if settings.noise else "trim"),
            " that some belong to none; give one of the two",
        )  # fmt: skip
    if prepared.kinds is not None:
        hubs = prepared.kinds.features("covariate", network.blocks).blocks.widths
        engine = network.total.holders.engine
        found = int(np.count_nonzero(hubs)), network.blocks.n_features - int(hubs.sum())
        n_hubs, n_features = np.sum(engine.allgather(found), axis=0)
        if n_hubs > 1:
            raise InputError(SEVERAL_HUBS)
        if n_hubs and not n_features:
            raise InputError("all columns are covariates; at least one must be a feature")
        assert settings.n_threads is not None
        terms = MixedTerms(
            prepared.X,
            network.blocks,
            settings.covariance_type,
            kinds=prepared.kinds,
            misses=prepared.misses,
            scale=settings.scale,
            row_weights=prepared.row_weights,
            reg_covar=settings.reg_covar,
            n_threads=settings.n_threads,
            dtype=prepared.precision,
            skip_negligible=not settings.every_weight,
        )
        terms.least_rows = settings.least_rows
    else:
        rows, X, weights = AllRows(network.total.holders), prepared.X, prepared.row_weights
        scaling = units_of(X, weights, network.blocks, settings, prepared.misses, rows)
        terms = make_terms(X, weights, network.blocks, scaling, prepared, settings, rows)
    terms.known = None if labelled is None else labelled.known
    return terms


Drawn = tuple[Mixture, NDArray[np.intp] | None]
"""Where a run starts, and at which rows, if at any."""


@dataclass(frozen=True)
class _Attempts:
    """Runs of one restart after the other, over the same terms."""

    network: Network
    prepared: Prepared
    terms: FeatureTerms
    runs: Kept[Run]
    settings: FitSettings
    acceleration: Acceleration | None
    callback: Callable[[Progress], None] | None
    began_at: GivenStart
    labelled: Labelled | None = None

    def __call__(self, restart: Restart) -> tuple[Run, NDArray[np.intp] | None]:
        """Run one restart, and judge it; returns also the rows that it started at."""
        settings = self.settings
        stream = RowStream(restart.rng, self.prepared.row_weights, len(self.prepared.X))
        start, rows = self._start(restart, stream)
        if restart.saved is None and restart.start is None:
            start = self.began_at.apply_to(start, self._own)
        columns, drawn_by = own_columns_of_hubs(self.network), [*restart.seed, LOADINGS]
        terms = self.terms.drawn(drawn_by, settings.n_components, columns)
        terms.held = held_of(settings.fix, start)
        fit: Callable[..., Run] = em.fit_with_factors if terms.n_factors else em.fit
        going: Report = {
            "callback": self.callback, "draw_row": stream.draw, "saver": restart.saver(rows=rows)
        }  # fmt: skip
        if settings.batch_size is None:
            going |= {"accelerate": self.acceleration, "last": self.began_at.last}
        else:
            order = np.random.default_rng([*restart.seed, ORDER_OF_BATCHES])
            fit, going["rng"] = fit_batches, order
        begun = terms.begun(start)
        share = getattr(settings.init, "share", np.zeros(1))  # of noise, in a model that goes on
        if begun.outliers == "noise" and share.any() and restart.saved is None:
            begun = replace(begun, share=np.full_like(begun.share, share.mean()))
        run = fit(terms, restart.total, begun, settings, **going)
        run.judge(self.terms, restart.total)
        return run, rows

    def _start(self, restart: Restart, stream: RowStream) -> Drawn:
        terms, init, n_components = self.terms, self.settings.init, self.settings.n_components
        if restart.saved is not None:
            return self.runs.parameters(restart.loop)[0], restart.drawn()
        if restart.start is not None:
            begun = self.runs.begun_at(restart.start)
            return begun.convert_to(terms.blocks, terms.covariance_type, terms.scaling), None
        if self.prepared.rows is None and not isinstance(init, str):
            init_kinds, kinds = init.kinds, self.prepared.kinds
            families = [one and (one.families, one.n_levels) for one in (init_kinds, kinds)]
            if self.network.part_of is None and families[0] != families[1]:
                has, have = (
                    "Gaussian features" if one is None else one.summary
                    for one in (init_kinds, kinds)
                )
                raise InputError(
                    f"the starting model has {has}, the data have {have}; families and numbers of "
                    "levels must be the same"
                )
            start = self._own(init)
            check_start(start, n_components, over_rows=False)
            return start, None
        if isinstance(init, str):
            tell = teller(self.callback)
            if init == SMALL_EM:
                return self._small_em(restart.total, stream, tell)
            return self._drawn(init, restart.total, stream, tell)
        rows = self.prepared.rows
        assert rows is not None
        return terms.start(terms.at_rows(rows)), rows

    def _drawn(self, init: str, total: Sum, stream: RowStream, tell: Tell | None) -> Drawn:
        terms, n_components = self.terms, self.settings.n_components
        if self.labelled is not None and n_components > 1:
            known = self.labelled.components
            return start_at_labels(init, terms, total, n_components, known, stream, tell), None
        clusters = draw_start(init, terms, total, n_components, stream, tell)
        return self._best_of_categories(clusters, total, stream)

    def _small_em(self, total: Sum, stream: RowStream, tell: Tell | None) -> Drawn:
        """Return the best of short runs, over some of many rows, and the rows of its start."""
        terms, network, draws = self.terms, self.network, stream
        settings, pace = short_runs(self.settings, network)
        count = short_sample(settings.n_components, terms.widest)
        if count < terms.n_samples and network.compress is None:
            # Compressed sums keep something of each of all rows.
            numbers, draws = stream.sample(count)
            terms = terms.select_rows(numbers, draws.row_weights)

        def run(drawn: Drawn, powers: Sequence[float]) -> Run:
            return em.fit(
                terms, total, drawn[0], settings, draw_row=draws.draw, accelerate=pace,
                powers=powers,
            )  # fmt: skip

        def rank(run: Run) -> tuple[float, ...]:
            run.judge(terms, total)
            return self.runs.rank(run)

        groups = SMALL_STARTS if self.prepared.kinds is None else SMALL_STARTS_OF_KINDS
        best, (_, rows) = best_of_short_runs(
            groups, lambda init: self._drawn(init, total, stream, tell), run, rank
        )
        if pace is not None and terms is not self.terms:
            longer = settings.changed(max_iter=SMALL_RUN_OF_BEST, tol=self.settings.tol)
            best = em.fit(
                self.terms, total, best.mixture, longer, draw_row=stream.draw, accelerate=pace
            )
        return best.mixture, rows

    def _best(self, starts: Sequence[Drawn], n_iter: int, total: Sum, stream: RowStream) -> Drawn:
        """Return the best of these starts after a few iterations, and its rows."""
        short = self.settings.changed(max_iter=n_iter, batch_size=None)
        runs = [em.fit(self.terms, total, one, short, draw_row=stream.draw) for one, _ in starts]
        best = max(range(len(runs)), key=lambda number: self.runs.rank(runs[number]))
        return runs[best].mixture, starts[best][1]

    def _best_of_categories(
        self, clusters: tuple[Mixture, NDArray[np.intp]], total: Sum, stream: RowStream
    ) -> Drawn:
        """Return the best after a few iterations of this start and of random rows.

        Distances between categories take few values, so that clusters are a poor guide there.
        """
        terms, kinds, settings = self.terms, self.prepared.kinds, self.settings
        if kinds is None or settings.init != FitSettings().init or settings.max_iter == 0:
            return clusters
        others = not all(LAWS[family].has_levels for family in kinds.families)
        if self.network.total.holders.any(np.array([others]))[0]:
            return clusters
        starts: list[Drawn] = [clusters]
        for _ in range(STARTS_OF_CATEGORIES):
            starts.append(draw_start("random", terms, total, settings.n_components, stream))
        return self._best(starts, SHORT_RUN, total, stream)

    def _own(self, mixture: Any) -> Any:
        terms = self.terms
        if mixture.n_factors not in (0, terms.n_factors):
            mixture = mixture.joint
        network, scaling = self.network, terms.scaling
        whole = network.whole.blocks
        if network.part_of is None or mixture.blocks is network.blocks:  # what is here of a fit
            return mixture.convert_to(network.blocks, terms.covariance_type, scaling)
        columns = own_columns_of_hubs(network)
        shift, scale = np.zeros(whole.n_features), np.ones(whole.n_features)
        shift[columns], scale[columns] = scaling.shift, scaling.scale
        every = mixture.convert_to(whole, terms.covariance_type, Scaling(shift, scale))
        part = replace(every.of_hubs(network.total.holders.own), blocks=network.blocks)
        return replace(part, scaling=scaling) if part.kinds is None else part


STARTS_OF_CATEGORIES = 9
"""Starts at random rows that are tried beside that by clusters, where all are categories."""

SHORT_RUN = 20
"""Iterations after which the best of these is chosen."""

WORKING = 6
"""Arrays as large as all terms that a compressed sum works with."""


def check_kept(
    X: Floats | FileMatrix, network: Network, n_numbers: int, batch_size: int | None
) -> None:
    """Raise InputError where compressed sums would keep more in memory than there may be.

    ``n_numbers`` are those of a row that every hub has, all but the first of which it sends.
    """
    total, n_rows = network.total, len(X)
    kept_bytes = total.kept_bytes(n_rows * (n_numbers - 1) + 1)
    if kept_bytes == 0:
        return
    together = n_rows if batch_size is None else min(batch_size, n_rows)
    needed = kept_bytes + WORKING * 8 * total.values_per_item * together * n_numbers
    what = "what compressed sums know of every agent, row and component"
    check_kept_beside(X, needed, what, "fit without ", Setting("compress"))


def _per_hub(values: NDArray[np.float64], network: Network) -> NDArray[np.float64]:
    """Spell out an estimate that all roots share: (n, R) to (n, B)."""
    return np.broadcast_to(values, (len(values), len(network.hubs))).copy()
