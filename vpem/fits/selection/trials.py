"""What is fitted to choose a model: cells of a grid, and the trials that judge each.

A cell is a number of components, a number of hops and a covariance type. It is judged on all rows
by its restarts, or by folds: parts of the rows that a fit to the others has not seen. A restart or
a fold is a trial; trials do not depend on each other, so that they can be done in any order.

The data that models are compared on, where they are: here, or spread over processes.

Each of several processes has the columns, or the rows, of its own agents. It fits as it would
without a search, and a model is judged on rows by one more sum: of the terms of its hubs for every
row, exact whatever the rounds of the fit, or of a few numbers of every worker's rows.
"""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing.context import get_spawning_popen
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import Doubles, Floats, Mask, check_int
from vpem.engines.engine import Engine
from vpem.errors import (
    InputError,
    NotConvergedWarning,
    NumericalError,
    OwnDataWarning,
    PartitionedError,
    VpemWarning,
)
from vpem.files.matrix import FileMatrix, select_rows
from vpem.fits.local_rows import AllRows, LocalRows
from vpem.fits.parts import outline
from vpem.fits.prepare import check_count, prepare
from vpem.fits.results import Fit
from vpem.fits.rows import fit_em
from vpem.fits.settings import as_ranges
from vpem.fits.spread import bring, bring_kinds
from vpem.fits.spread_rows import whole_terms
from vpem.fits.vpem import fit_vpem
from vpem.network.ledger import Ledger
from vpem.network.partition import Workers
from vpem.network.schema import (
    COUNT,
    NUMBER,
    TEXT,
    Choice,
    ListOf,
    Maybe,
    Number,
    Report,
    Schema,
    or_nan,
)
from vpem.settings import FitSettings
from vpem.steps.em import posterior_of
from vpem.sums.connect import Network, refuse_directed, sum_exactly
from vpem.sums.counted import add_vectors
from vpem.sums.quantizer import ITEM
from vpem.sums.sum import Sum
from vpem.terms.density import CHUNK_VALUES, normalised, posteriors
from vpem.terms.families.kinds import Kinds
from vpem.terms.mixture import Mixture
from vpem.terms.rows import rows_with_values

ORDER_OF_FOLDS = 2
"""Sets the stream that deals rows out to folds apart from those of starts and batches."""

OF_DATA = ("feature_names", "kinds")
"""Options of a problem that say what its data are, not how they are fitted."""

Outcome = Report
"""What is kept of a trial: plain values."""


OF_ALL_ROWS = ("bic", "aic", "icl", "sabic", "caic", "relative_entropy")
"""What `vpem.terms.density.Density.criteria` returns."""

TAKEN: dict[str, Schema] = {"seconds": Number(0), "warnings": ListOf(TEXT)}
FITTED: dict[str, Schema] = {
    "status": Choice(("converged", "not converged")),
    **dict.fromkeys(
        ("n_parameters", "n_iter", "recoveries", "given_up", "degenerate", "messages", "bytes"),
        COUNT,
    ),
}
RESULTS: dict[str, dict[str, Schema]] = {
    "failed": {"status": Choice(("failed",)), "reason": TEXT, "refused": Choice((False,))} | TAKEN,
    "restart": FITTED
    | dict.fromkeys(("first_root", "log_likelihood", "entropy", *OF_ALL_ROWS), NUMBER)
    | {"average_posteriors": Maybe(ListOf(or_nan(NUMBER)))}
    | TAKEN,
    "fold": FITTED
    | dict.fromkeys(("held_out_total", "held_out", "log_likelihood"), NUMBER)
    | {"n_held_out": Number(0, whole=True)}
    | TAKEN,
}
"""What there is in the result of a trial that is kept, by its kind or that it failed."""


class _Held:
    """Rows and their weights, how a fit looks at them, and the exact sum that judges models."""

    def __init__(
        self, X: Any, network: Network, sample_weight: ArrayLike | None,
        feature_names: Sequence[str] | None, missing: str, n_features: int, rows: AllRows,
        kinds: Kinds | None = None,
    ) -> None:  # fmt: skip
        self.X, self.network, self.weights = X, network, sample_weight
        self._names, self.missing, self._n_features = feature_names, missing, n_features
        self._rows, self._kinds = rows, kinds
        self._starts: dict[Any, Any] = {}

    def having(self, X: Any, sample_weight: ArrayLike | None) -> Self:
        """Return these holders with other rows, or what they weigh, counted with these."""
        other = copy(self)
        other.X, other.weights, other._starts = X, sample_weight, {}
        return other

    def _streams(self, seeds: Sequence[int], n_holders: int) -> list[np.random.Generator]:
        """Return a stream that all know, and one of each hub, or worker."""
        return np.random.default_rng(seeds).spawn(1 + n_holders)

    def check(self, settings: FitSettings) -> None:
        """Look at the data as a fit does."""
        prepare(
            self.X, self._n_features, settings, self._rows, sample_weight=self.weights,
            feature_names=self._names, dtype=settings.dtype, missing=settings.missing,
            kinds=self._kinds,
        )  # fmt: skip

    @cached_property
    def _grown(self) -> tuple[Sum, Ledger]:
        """The sum, which is set up for the first model."""
        ledger = Ledger(self.network.graph)
        return sum_exactly(self.network, ledger), ledger

    def count(self) -> None:
        """Begin to count what is sent besides fits: as if it were the only time."""
        self.sent = Ledger(self.network.graph)
        self.sent.add(self._grown[1])

    def _sum(self) -> Sum:
        return self._grown[0].counted_on(self.sent)


class ByFeatures(_Held):
    """Features that agents hold, which go to the roots of their hubs now, once for all models.

    X (M, d), names and kinds are as for `vpem.fits.spread.fit_spread`; weights (M,) of the first
    agent's process hold for all.
    """

    def __init__(
        self, X: Any, network: Network, sample_weight: ArrayLike | None,
        feature_names: Sequence[str] | None, missing: str, kinds: Kinds | None = None,
    ) -> None:  # fmt: skip
        self._apart = network.agents.apart
        # Levels are those of all rows, of which a fold may have fewer.
        kinds = None if kinds is None or X is None else kinds.counted(X)
        if self._apart:
            kinds = bring_kinds(kinds, X, network)
            weights = None if sample_weight is None else np.asarray(sample_weight)
            sample_weight = network.agents.bcast(weights)
            X, feature_names = bring(X, network, feature_names, missing)
        n_features, rows = network.blocks.n_features, AllRows(network.total.holders)
        super().__init__(X, network, sample_weight, feature_names, missing, n_features, rows, kinds)

    def fit(self, rows: Indices | None, options: Report) -> Fit:
        """Fit by VP-EM; fits to all rows share what they find of starts, where all is here."""
        network, alone = self.network, not self._apart and self.network.agents.masks is None
        if rows is None and alone and network.total.exact:
            network = replace(network, total=copy(network.total))
            network.total.starts = self._starts
        fit = fit_vpem(
            _some(self.X, rows), network, sample_weight=_some(self.weights, rows),
            feature_names=self._names, kinds=self._kinds, **options,
        )  # fmt: skip
        fit.network = self.network
        return fit

    def known(self, fit: Fit) -> Mixture:
        """Return this process's part of a model, with the mean of all roots' mixing weights."""
        mixture: Mixture = fit.mixture
        if not self._apart:
            return mixture
        roots, names = self.network.total.roots, ("weights", *mixture.of_roots)
        every: Any = {name: roots.join(getattr(mixture, name)) for name in names}
        return replace(mixture, **{n: a.mean(axis=0, keepdims=True) for n, a in every.items()})

    def judge(self, fit: Fit, rows: Indices | None) -> Judged:
        """Judge by the exact sum of the hubs' terms of each row."""
        self.count()
        X, mixture = _some(self.X, rows), self.known(fit)
        there, judged = rows_with_values(X, self.missing), mixture
        if self._apart:
            there, judged = self.network.total.holders.any(there), outline(fit).mixture
        parts = self._posteriors(mixture, X)
        each = _by_worker(parts, there, _some(self.weights, rows), mixture.n_terms,
                          trims=mixture.outliers == "trimmed")  # fmt: skip
        return Judged.by_sums(judged, self.sent, each[0])

    def responsibilities(self, mixture: Mixture, rows: Indices | None = None) -> Doubles:
        """Return those of rows (m, K), by the exact sum; ``mixture`` as `known`."""
        parts = [one for _, one, _ in self._posteriors(mixture, _some(self.X, rows))]
        return np.concatenate([np.empty((0, mixture.n_terms)), *parts])

    def total(self, of: Callable[[Any], Doubles], width: int) -> Doubles:
        """Return what is found of all rows, which every process knows: (width,)."""
        return of(slice(None))

    def drawn(self, mixture: Mixture, seeds: Sequence[int]) -> Doubles:
        """Return rows of a model: components that all know, each hub's features by itself."""
        holders = self.network.total.holders
        common, *own = self._streams(seeds, holders.n_agents)
        n, shares = len(self.X), mixture.assembled_weights
        labels = common.choice(mixture.n_components, size=n, p=shares)
        of_hubs = zip(holders.own, self.network.blocks.widths, strict=True)
        noise = [own[hub].standard_normal((n, width)) for hub, width in of_hubs]
        return mixture.spread(labels, np.hstack([np.empty((n, 0)), *noise]))

    def weighed_at_random(self, weights: Doubles, seeds: Sequence[int]) -> Doubles:
        """Return sums of as many exponentials as each row weighs."""
        return self._streams(seeds, 0)[0].standard_gamma(weights)

    def _posteriors(self, mixture: Mixture, X: Any) -> Iterator[tuple[slice, Doubles, Doubles]]:
        """Yield runs of rows as `posteriors` does, by the sum of the terms of all processes."""
        total = self._sum()
        total.begin("estep", len(X), mixture.n_terms + mixture.n_components * mixture.n_factors, 8)
        if not self._apart:
            yield from posteriors(mixture, X, self.missing)
            return
        loaded = mixture.loaded
        known = None if loaded is None else posterior_of(total, loaded, "estep")
        k, n_own = mixture.n_terms, len(total.holders.own)
        width = k + mixture.n_components * mixture.n_factors
        local = whole_terms(mixture if n_own else None, X, width, self.missing)
        size = max(64, CHUNK_VALUES // (total.holders.n_agents * k))
        chunks = (slice(at, min(at + size, len(X))) for at in range(0, len(X), size))
        for run, sums in total.flow(chunks, local):
            if known is not None:
                explained = known.explain(np.ascontiguousarray(sums[:, :, k:]))[1]
                sums = np.ascontiguousarray(sums[:, :, :k] - explained)
            yield run, *normalised(mixture, sums)


class ByRows(_Held):
    """Rows that workers hold; X (M, d) and weights (M,) are of the process's own workers."""

    def __init__(
        self, X: Any, network: Network, workers: Workers, sample_weight: ArrayLike | None,
        feature_names: Sequence[str] | None, missing: str,
    ) -> None:  # fmt: skip
        self._workers = workers
        self._local = LocalRows(network.total.holders, workers)
        self._local.count_all(len(X))
        super().__init__(X, network, sample_weight, feature_names, missing, X.shape[1], self._local)

    def _own(self, rows: Indices | None) -> Indices | None:
        """Return which of the rows that are here some of all are."""
        if rows is None:
            return rows
        return np.flatnonzero(np.isin(self._local.numbers, rows))

    def fit(self, rows: Indices | None, options: Report) -> Fit:
        """Fit by EM over rows."""
        workers, local_rows = self._workers, self._own(rows)
        return fit_em(
            _some(self.X, local_rows), workers if rows is None else workers.of_rows(rows),
            self.network, sample_weight=_some(self.weights, local_rows),
            feature_names=self._names, **options,
        )  # fmt: skip

    def known(self, fit: Fit) -> Mixture:
        """Return the first worker's model."""
        mixture: Mixture = fit.mixture
        if self.network.whole.total.n_roots > 1:
            values = [mixture.weights, mixture.means, mixture.covariances]
            self._sum().agree("estep", sum(one.nbytes for one in values), 0)
            weights, means, covariances = self.network.agents.engine.bcast(values)
            mixture = replace(mixture, weights=weights, means=means, covariances=covariances)
        return mixture

    def judge(self, fit: Fit, rows: Indices | None) -> Judged:
        """Judge the first worker's model by the figures of every worker's own rows."""
        self.count()
        mixture = self.known(fit)
        local_rows = self._own(rows)
        X, weights = _some(self.X, local_rows), _some(self.weights, local_rows)
        holders = self.network.total.holders
        # Which worker, of those in this process, has each of these rows.
        every: Indices = self._workers.worker_of
        if holders.apart:
            runs = self._local.own_runs
            every = np.repeat(np.arange(len(runs)), [run.stop - run.start for run in runs])
        owners = every if local_rows is None else every[local_rows]
        parts, there = posteriors(mixture, X, self.missing), rows_with_values(X, self.missing)
        each = _by_worker(parts, there, weights, mixture.n_components, owners, len(holders.own))
        return Judged.by_sums(mixture, self.sent, self._add(each))

    def _add(self, each: Doubles) -> Doubles:
        """Add up what workers have (n, P)."""
        total, holders = self._sum(), self.network.total.holders
        if holders.masks is None:
            added: Doubles = add_vectors(total, each)[0]
            return added
        total.begin("estep", 1, each.shape[1], ITEM)
        return holders.add_up(each, announced=True)

    def responsibilities(self, mixture: Mixture, rows: Indices | None = None) -> Doubles:
        """Return those of this process's rows (m, K)."""
        found: Doubles = mixture.predict_proba(_some(self.X, self._own(rows)), missing=self.missing)
        return found

    def total(self, of: Callable[[Any], Doubles], width: int) -> Doubles:
        """Return the sum of what is found of the rows of each worker: (width,)."""
        each = [of(rows) for rows in self._local.groups]
        return self._add(np.array(each, dtype=np.float64).reshape(-1, width))

    def drawn(self, mixture: Mixture, seeds: Sequence[int]) -> Doubles:
        """Return rows of a model, of each worker from a stream of its own."""
        drawn = np.empty(self.X.shape)
        for rows, own in self._by_worker(seeds):
            size = drawn[rows].shape
            labels = own.choice(mixture.n_components, size=size[0], p=mixture.assembled_weights)
            drawn[rows] = mixture.spread(labels, own.standard_normal(size))
        return drawn

    def weighed_at_random(self, weights: Doubles, seeds: Sequence[int]) -> Doubles:
        drawn = np.empty(len(self.X))
        for rows, own in self._by_worker(seeds):
            drawn[rows] = own.standard_gamma(weights[rows])
        return drawn

    def _by_worker(self, seeds: Sequence[int]) -> Iterator[tuple[Any, np.random.Generator]]:
        """Yield where each worker's rows stand, and its stream."""
        _, *streams = self._streams(seeds, len(self._local.counts))
        for worker, rows in zip(self._local.own, self._local.groups, strict=True):
            yield rows, streams[worker]


Held = ByFeatures | ByRows
"""What a process has of the data."""


class Judged(NamedTuple):
    """Figures of a model on some rows.

    ``mixture`` is what was judged: as it is saved, mixing weights are the mean over roots; where
    hubs live in several processes only its shape is that of all. ``log_likelihood`` is the weighted
    sum over rows, ``weight`` that of rows that have a value. ``messages`` and ``bytes`` were sent
    to find this out.

    ``entropy`` is that of responsibilities, ``-sum gamma log gamma`` in nats: 0 where every row
    belongs to one component, at most ``M log K``. ICL is BIC plus twice this (Biernacki, Celeux and
    Govaert 2000, with responsibilities in the place of the classification, as McLachlan and Peel
    2000 take it).

    ``average_posteriors`` are, for each component, the mean responsibility over the rows of which
    it is the most responsible; nan if it is of none.
    """

    mixture: Mixture
    messages: int
    bytes: int
    log_likelihood: float
    weight: float
    entropy: float
    average_posteriors: list[float]

    @classmethod
    def by_sums(cls, mixture: Mixture, ledger: Ledger, sums: Doubles) -> Judged:
        """Return what the sums (3 + 2 K,) of `_by_worker` over all rows come to."""
        shares, counts = sums[3:].reshape(2, -1)
        means = np.divide(shares, counts, out=np.full(len(counts), np.nan), where=counts > 0)
        total, weight, entropy = sums[:3].tolist()
        sent = ledger.messages, ledger.bytes
        return cls(mixture, *sent, total, weight, entropy, means.tolist())


def _by_worker(
    parts: Iterable[tuple[slice, Doubles, Doubles]],
    there: Mask,
    sample_weight: ArrayLike | None,
    n_components: int,
    owners: Indices | None = None,
    n_workers: int = 1,
    trims: bool = False,
) -> Doubles:
    """Return sums over the rows of each worker, (n, 3 + 2 K).

    They are log-likelihood, weight and entropy, and for each component the largest responsibilities
    of the rows where these are its own, and what these rows weigh.

    Runs of rows have responsibilities and log-likelihoods (`posteriors`); ``there`` (m,) are rows
    with a value, ``owners`` (m,) says who has each. If rows are trimmed they count for nothing.
    """
    scores, doubts, most = np.zeros((3, len(there)))
    there = there.copy()
    classes = np.zeros(len(there), dtype=np.intp)
    for rows, proba, log_likelihoods in parts:
        logs = np.log(proba, where=proba > 0, out=np.zeros_like(proba))
        scores[rows], doubts[rows] = log_likelihoods, -(proba * logs).sum(axis=1)
        most[rows], classes[rows] = proba.max(axis=1), proba.argmax(axis=1)
        if trims:
            there[rows] &= proba[:, -1] == 0
            scores[rows] *= there[rows]
    weights, used = np.ones(len(there)), there
    if sample_weight is not None:
        weights = np.maximum(np.asarray(sample_weight, dtype=np.float64), 0.0)
        used = there & (weights > 0)
    scored = used if sample_weight is not None else np.ones_like(used)
    values = (
        np.where(scored, weights * scores, 0.0),
        np.where(used, weights, 0.0),
        np.where(used, weights * doubts, 0.0),
    )
    owners = np.zeros(len(there), dtype=np.intp) if owners is None else owners
    # Of no rows counts are whole numbers, which are no float64 to others.
    added = [np.bincount(owners, part, n_workers).astype(np.float64) for part in values]
    of_class, n_classes = owners * n_components + classes, n_workers * n_components
    by_class = [
        np.bincount(of_class, part, n_classes).astype(np.float64).reshape(n_workers, n_components)
        for part in (values[1] * most, values[1])
    ]
    return np.hstack([np.stack(added, axis=1), *by_class])


def _some(values: Any, rows: Indices | None) -> Any:
    """Return some rows of a matrix or of weights, of which there may be none."""
    if rows is None or values is None:
        return values
    return select_rows(values, [rows])


@dataclass(frozen=True)
class Cell:
    """One model of the grid: a number of components, of hops that raw features may travel.

    ``stands_for`` are all numbers of hops of which this is the model, ``hops`` the smallest; () if
    it alone is.
    """

    n_components: int
    hops: int
    covariance_type: str
    stands_for: tuple[int, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        hops = name_hops(self.stands_for or (self.hops,))
        return f"K = {self.n_components}, {hops}, {self.covariance_type}"


def name_hops(numbers: Sequence[int]) -> str:
    """Write "1 hop", "0 or 1 hops", "0-3 hops"."""
    *first, last = as_ranges(numbers)
    before = f"{', '.join(first)} or " if first else ""
    return f"{before}{last} hop{'' if list(numbers) == [1] else 's'}"


@dataclass(frozen=True)
class Trial:
    """One fit that judges a cell: a restart on all rows, or of ``n_folds`` a fold; numbered from 0.

    ``n_init`` are restarts of the fit of a fold; on all rows those that are done in one, of which a
    fit keeps the best.
    """

    cell: Cell
    number: int
    n_folds: int = 0
    n_init: int = 1

    @property
    def key(self) -> str:
        cell = self.cell
        name = f"{cell.n_components}/{cell.hops}/{cell.covariance_type}"
        if self.n_folds:
            return f"{name}/fold {self.number} of {self.n_folds}, {self.n_init} starts"
        return f"{name}/restart {self.number}{self._others}"

    def __str__(self) -> str:
        if self.n_folds:
            return f"{self.cell}, fold {self.number + 1} of {self.n_folds}"
        return f"{self.cell}, restart {self.number}{self._others}"

    @property
    def _others(self) -> str:
        """Restarts that are done with it."""
        return f" to {self.number + self.n_init - 1}" if self.n_init > 1 else ""


def folds_of(n_samples: int, n_folds: int, seed: int) -> list[NDArray[np.intp]]:
    """Deal M rows out to 2 to M folds at random, as evenly as possible; rows of each ascend."""
    check_int("n_folds", n_folds, least=2)
    if n_samples < n_folds:
        raise InputError(f"{n_folds} folds need at least as many rows, got {n_samples}")
    rng = np.random.default_rng([seed, 0, ORDER_OF_FOLDS])
    return [np.sort(part) for part in np.array_split(rng.permutation(n_samples), n_folds)]


class Mapped(np.ndarray):
    """A matrix that processes which this one starts map into their memory: they have no copy."""

    file: int | None = None

    def __reduce__(self) -> Any:
        if self.file is None or get_spawning_popen() is None:
            return super().__reduce__()
        from multiprocessing.reduction import DupFd  # not on Windows

        return _map, (DupFd(self.file), self.dtype, self.shape, "CF"[self.flags.fnc])


def mapped(X: Any) -> Any:
    """Return an array as one that is `Mapped`, where the system has files that are in memory."""
    plain = isinstance(X, np.ndarray) and not isinstance(X, Mapped) and X.size > 0
    if not plain or not hasattr(os, "memfd_create"):
        return X
    order: Any = "CF"[X.flags.fnc]  # in which sums are added
    try:
        with os.fdopen(os.memfd_create("vpem"), "w+b") as file:
            (X.T if X.flags.fnc else X).tofile(file)
            found = np.memmap(file, X.dtype, "r", shape=X.shape, order=order).view(Mapped)
            found.file = os.dup(file.fileno())
    except OSError:  # of a sandbox, or for want of room: processes have copies
        return X
    weakref.finalize(found, os.close, found.file)
    return found


def _map(file: Any, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> NDArray[Any]:
    with os.fdopen(file.detach(), "rb") as opened:
        return np.asarray(np.memmap(opened, dtype, "r", shape=shape, order=order))


@dataclass
class Problem:
    """Data and all options of a fit but those that are chosen.

    X (M, d) and ``sample_weight`` (M,) are, where agents live in several processes, what those of
    this one hold, as `vpem.fits.spread.fit_spread` and `vpem.fits.rows.fit_em` want it.
    ``networks`` are by number of hops, what this process has of them; without ``workers`` data are
    split by features. ``options`` are of `vpem.fit_vpem`, or with workers of `vpem.fit_em`, but
    n_components, covariance_type, n_init, first_restart, sample_weight, callback, saver and labels;
    without n_threads: one thread. ``network_options`` are those of the networks, by which searches
    differ besides. ``n_samples`` are rows of all processes together.
    """

    X: Floats | FileMatrix | None
    networks: dict[int, Network]
    workers: Workers | None
    options: Report
    network_options: Report = field(default_factory=dict)
    sample_weight: Floats | None = None

    def __post_init__(self) -> None:
        self.engine: Engine = next(iter(self.networks.values())).agents.engine
        self._held: dict[int, Held] = {}
        n_local = np.array([0 if self.X is None else len(self.X)])
        everywhere = self.engine.allreduce(n_local, "max")[0]
        self.n_samples = int(everywhere) if self.workers is None else self.workers.n_samples

    @property
    def masked(self) -> bool:
        return next(iter(self.networks.values())).agents.masks is not None

    @property
    def floor_fits(self) -> str:
        return str(self.options.get("floor_fits", "last"))

    @property
    def seed(self) -> int:
        """Seed of the starts, and of the folds."""
        return int(self.options.get("seed", 0))

    @property
    def missing(self) -> str:
        return str(self.options.get("missing", "refuse"))

    def held(self, hops: int) -> Held:
        """Return what this process has of the data, where features have gone so many hops."""
        if hops not in self._held:
            network = self.networks[hops]
            refuse_directed(network, "criteria of models take")
            more = self.sample_weight, self.options.get("feature_names"), self.missing
            self._held[hops] = (
                ByFeatures(self.X, network, *more, self.options.get("kinds"))
                if self.workers is None
                else ByRows(self.X, network, self.workers, *more)
            )
        return self._held[hops]

    def mapped(self) -> Problem:
        """Return the same problem as processes that this one starts should have it."""
        other = copy(self)
        other.X, other._held = mapped(self.X), {}
        return other

    def having(self, hops: int, X: Any, sample_weight: ArrayLike | None) -> Problem:
        """Return the problem of other rows, as what is `held` has them, for so many hops."""
        other = copy(self)
        other._held = {hops: self.held(hops).having(X, sample_weight)}
        return other

    def fit(self, cell: Cell, rows: NDArray[np.intp] | None = None, **more: object) -> Fit:
        """Fit a cell to all rows, or to some.

        Where hubs live in several processes each ends with the parameters of its own; see
        `vpem.fits.parts.gathered`.
        """
        options = {
            "n_threads": 1,
            **self.options,
            "n_components": cell.n_components,
            "covariance_type": cell.covariance_type,
            **more,
        }
        for name in OF_DATA:
            options.pop(name, None)
        # A report says what went in its own fit.
        self.networks[cell.hops].total.traffic.clear()
        return self.held(cell.hops).fit(rows, options)

    def keep(self, fit: Fit, outcome: Outcome, heard: Sequence[VpemWarning]) -> None:
        """Called with a fit to all rows, its result and its warnings."""

    def run(self, trial: Trial) -> Outcome:
        """Do a trial; a failure to fit is a result, too, the same in all processes.

        ``status`` is "converged", "not converged" or "failed"; then ``reason`` says why. See
        `_judged` for the rest. Other errors are raised. One of several processes may find that a
        fit fails while others still work on it: it raises the error.
        """
        began, engine, fit = time.perf_counter(), self.engine, None
        alike = not engine.apart
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", VpemWarning)
            try:
                if not alike:
                    # What all processes find alike.
                    left = self.n_samples
                    if trial.n_folds:
                        left -= len(folds_of(left, trial.n_folds, self.seed)[trial.number])
                    alike = trial.cell.n_components > left
                    check_count(trial.cell.n_components, left)
                fit, outcome = self._judged(trial)
            except (InputError, NumericalError, PartitionedError) as error:
                if not alike:
                    raise
                # Found before any work it is not worth keeping.
                fit, outcome = None, _failed(str(error), refused=isinstance(error, InputError))
            except MemoryError as error:
                if engine.apart:
                    raise
                reason = f"not enough memory ({error}); try fewer jobs"
                fit, outcome = None, _failed(reason, lost=True)
        outcome["seconds"] = time.perf_counter() - began
        caught = [one.message for one in heard if isinstance(one.message, VpemWarning)]
        left_out: tuple[type[VpemWarning], ...] = (NotConvergedWarning,)
        if engine.apart and (self.masked or not engine.open):
            left_out += (OwnDataWarning,)  # said where the data are, before the search began
        texts = [str(one) for one in caught if not isinstance(one, left_out)]
        if engine.apart:
            outcome = engine.bcast(outcome)
            ours, *others = engine.allgather(texts)
            texts = ours + [text for theirs in others for text in theirs if text not in ours]
        outcome["warnings"] = texts
        if fit is not None and not trial.n_folds:
            self.keep(fit, outcome, caught)
        return outcome

    def _judged(self, trial: Trial) -> tuple[Fit, Outcome]:
        """Fit to all rows from one restart, or more, and judge the model on them.

        Or fit to all rows but those of a fold, and judge the model on these.
        """
        fold = None
        if not trial.n_folds:
            fit = self.fit(trial.cell, n_init=trial.n_init, first_restart=trial.number)
        else:
            fold = folds_of(self.n_samples, trial.n_folds, self.seed)[trial.number]
            others = np.setdiff1d(np.arange(self.n_samples), fold)
            fit = self.fit(trial.cell, others, n_init=trial.n_init)
        judged = self.held(trial.cell.hops).judge(fit, fold)
        mixture, total, used = judged.mixture, judged.log_likelihood, judged.weight
        trimmed = fold is None and mixture.outliers == "trimmed" and fit.root_log_likelihood.size
        if trimmed:  # a row at the border counts in part
            total, used = fit.log_likelihood * fit.total_weight, fit.total_weight
        outcome: Outcome = {
            "status": "converged" if fit.converged else "not converged",
            "n_parameters": mixture.n_parameters,
            "n_iter": fit.n_iter,
            "recoveries": len(fit.recoveries),
            "given_up": len({one.component for one in fit.recoveries if one.row is None}),
            "degenerate": len(fit.degenerate),
            "messages": fit.communication["messages"] + judged.messages,
            "bytes": fit.communication["bytes"] + judged.bytes,
        }
        if fold is None:
            name, what = "bic", "log-likelihood"
            outcome |= {
                # Where its roots live elsewhere a process may not know it.
                "first_root": float(next(iter(fit.root_log_likelihood), np.nan)) + fit.log_prior,
                "log_likelihood": total / used,
                "entropy": judged.entropy,
                **mixture.criteria(total, used, judged.entropy),
                "average_posteriors": judged.average_posteriors[: mixture.n_judged],
            }
        else:
            name, what = "held_out", "log-likelihood of the held-out rows"
            outcome |= {
                "held_out_total": total,
                "n_held_out": used,
                "held_out": total / used if used else float("nan"),
                "log_likelihood": fit.log_likelihood,
            }
        if not np.isfinite(outcome[name]):
            outcome = _failed(f"the {what} is not finite")
        return fit, outcome


def _failed(reason: str, *, refused: bool = False, **more: object) -> Outcome:
    return {"status": "failed", "reason": reason, "refused": refused, **more}


Indices = NDArray[np.intp]
