"""The data that models are compared on, where they are: here, or spread over processes.

Each of several processes has the columns, or the rows, of its own agents. It fits as it would
without a search, and a model is judged on rows by one more sum: of the terms of its hubs for every
row, exact whatever the rounds of the fit, or of three numbers of every worker's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import row_blocks
from vpem.files.matrix import select_rows
from vpem.fits.local_rows import LocalRows
from vpem.fits.parts import outline
from vpem.fits.prepare import prepare
from vpem.fits.results import Fit
from vpem.fits.rows import fit_em
from vpem.fits.spread import bring, bring_kinds
from vpem.fits.spread_rows import whole_terms
from vpem.fits.vpem import fit_vpem
from vpem.network.ledger import Ledger
from vpem.network.partition import Workers
from vpem.network.schema import Report
from vpem.settings import FitSettings
from vpem.steps.em import posterior_of
from vpem.sums.connect import Network, sum_exactly
from vpem.sums.counted import add_vectors
from vpem.sums.quantizer import ITEM
from vpem.sums.sum import Sum
from vpem.terms.density import CHUNK_VALUES, normalised, posteriors
from vpem.terms.families.kinds import Kinds
from vpem.terms.mixture import Mixture

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Judged:
    """Figures of a model on some rows.

    ``mixture`` is what was judged: as it is saved, mixing weights are the mean over roots; where
    hubs live in several processes only its shape is that of all. ``log_likelihood`` is the weighted
    sum over rows, ``weight`` that of rows that have a value. ``messages`` and ``bytes`` were sent
    to find this out.

    ``entropy`` is that of responsibilities, ``-sum gamma log gamma`` in nats: 0 where every row
    belongs to one component, at most ``M log K``. ICL is BIC plus twice this (Biernacki, Celeux and
    Govaert 2000, with responsibilities in the place of the classification, as McLachlan and Peel
    2000 take it).
    """

    mixture: Mixture
    log_likelihood: float
    weight: float
    entropy: float
    messages: int
    bytes: int


class _Held:
    """Rows and their weights, how a fit looks at them, and the exact sum that judges models."""

    def __init__(
        self, X: Any, network: Network, sample_weight: ArrayLike | None,
        feature_names: Sequence[str] | None, missing: str, n_features: int, **where: Any,
    ) -> None:  # fmt: skip
        self.X, self._network, self._weights = X, network, sample_weight
        self._names, self._missing, self._n_features = feature_names, missing, n_features
        self._where = where
        """What `prepare` needs to know of other processes, and of families."""

    def check(self, settings: FitSettings) -> None:
        """Look at the data as a fit does."""
        prepare(
            self.X, self._n_features, settings, sample_weight=self._weights,
            feature_names=self._names, dtype=settings.dtype, missing=settings.missing,
            **self._where,
        )  # fmt: skip

    @cached_property
    def _grown(self) -> tuple[Sum, Ledger]:
        """The sum, which is set up for the first model."""
        ledger = Ledger(self._network.graph)
        return sum_exactly(self._network, ledger), ledger

    def _sum(self) -> tuple[Sum, Ledger]:
        """Return the sum, and where it is counted: each time as if it were the only one."""
        ledger, (total, grown) = Ledger(self._network.graph), self._grown
        ledger.add(grown)
        return total.counted_on(ledger), ledger


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
        self._kinds = None if kinds is None or X is None else kinds.counted(X)
        if self._apart:
            self._kinds = bring_kinds(self._kinds, X, network)
            weights = None if sample_weight is None else np.asarray(sample_weight)
            sample_weight = network.agents.bcast(weights)
            X, feature_names = bring(X, network, feature_names, missing)
        where = {"some": network.total.holders.any, "kinds": self._kinds}
        n_features = network.blocks.n_features
        super().__init__(X, network, sample_weight, feature_names, missing, n_features, **where)

    def fit(self, rows: Indices | None, options: Report) -> Fit:
        """Fit by VP-EM."""
        return fit_vpem(
            _some(self.X, rows), self._network, sample_weight=_some(self._weights, rows),
            feature_names=self._names, kinds=self._kinds, **options,
        )  # fmt: skip

    def judge(self, fit: Fit, rows: Indices | None) -> Judged:
        """Judge by the exact sum of the hubs' terms of each row."""
        total, ledger = self._sum()
        X, mixture = _some(self.X, rows), fit.mixture
        total.begin("estep", len(X), mixture.n_components * (1 + mixture.n_factors), 8)
        judged = _Rows(X, self._missing, _some(self._weights, rows))
        if self._apart:
            judged.has_some = self._network.total.holders.any(judged.has_some)
            # This process's part, with the mean of all roots' mixing weights.
            every = self._network.total.roots.join(mixture.weights)
            mixture = replace(mixture, weights=every.mean(axis=0, keepdims=True))
            loaded = mixture.loaded
            known = None if loaded is None else posterior_of(total, loaded, "estep")
            k, n_own = mixture.n_components, len(total.holders.own)
            width = k * (1 + mixture.n_factors)
            local = whole_terms(mixture if n_own else None, X, width, self._missing)
            size = max(64, CHUNK_VALUES // (total.holders.n_agents * k))
            chunks = (slice(at, min(at + size, len(X))) for at in range(0, len(X), size))
            for run, sums in total.flow(chunks, local):
                if known is not None:
                    explained = known.explain(np.ascontiguousarray(sums[:, :, k:]))[1]
                    sums = np.ascontiguousarray(sums[:, :, :k] - explained)
                judged.store_rows(run, *normalised(mixture, sums))
            mixture = outline(fit).mixture
        else:
            judged.judge(mixture)
        return Judged(mixture, *judged.sums(), ledger.messages, ledger.bytes)


class ByRows(_Held):
    """Rows that workers hold; X (M, d) and weights (M,) are of the process's own workers."""

    def __init__(
        self, X: Any, network: Network, workers: Workers, sample_weight: ArrayLike | None,
        feature_names: Sequence[str] | None, missing: str,
    ) -> None:  # fmt: skip
        self._workers = workers
        self._local = LocalRows.find(network.total.holders, workers, X)
        super().__init__(
            X, network, sample_weight, feature_names, missing, X.shape[1], local=self._local
        )

    def _own(self, rows: Indices | None) -> Indices | None:
        """Return which of the rows that are here some of all are."""
        if rows is None or self._local is None:
            return rows
        return np.flatnonzero(np.isin(self._local.numbers, rows))

    def fit(self, rows: Indices | None, options: Report) -> Fit:
        """Fit by EM over rows."""
        workers, local_rows = self._workers, self._own(rows)
        return fit_em(
            _some(self.X, local_rows), workers if rows is None else workers.of_rows(rows),
            self._network, sample_weight=_some(self._weights, local_rows),
            feature_names=self._names, **options,
        )  # fmt: skip

    def judge(self, fit: Fit, rows: Indices | None) -> Judged:
        """Judge the first worker's model by the figures of every worker's own rows."""
        total, ledger = self._sum()
        mixture = fit.mixture
        if self._network.whole.total.n_roots > 1:
            values = [mixture.weights, mixture.means, mixture.covariances]
            total.agree("estep", sum(one.nbytes for one in values), 0)
            weights, means, covariances = self._network.agents.engine.bcast(values)
            mixture = replace(mixture, weights=weights, means=means, covariances=covariances)
        local_rows = self._own(rows)
        judged = _Rows(_some(self.X, local_rows), self._missing, _some(self._weights, local_rows))
        judged.judge(mixture)
        holders = self._network.total.holders
        # Which worker, of those in this process, has each of these rows.
        every: Indices = self._workers.worker_of
        if self._local is not None:
            runs = self._local.own_runs
            every = np.repeat(np.arange(len(runs)), [run.stop - run.start for run in runs])
        each = judged.by_worker(
            every if local_rows is None else every[local_rows], len(holders.own)
        )
        if holders.masks is None:
            added = add_vectors(total, each)[0]
        else:
            total.begin("estep", 1, 3, ITEM)
            added = holders.add_up(each, announced=True)
        score, weight, entropy = added.tolist()
        return Judged(mixture, score, weight, entropy, ledger.messages, ledger.bytes)


Held = ByFeatures | ByRows
"""What a process has of the data."""


class _Rows:
    """Log-likelihood and entropy of some rows, which are taken a run at a time."""

    def __init__(self, X: Any, missing: str, weights: ArrayLike | None) -> None:
        self._X, self._missing, self._weights = X, missing, weights
        self._scores, self._doubts = np.zeros(len(X)), np.zeros(len(X))
        self.has_some = np.ones(len(X), dtype=np.bool_)
        """Rows of which there is a value, (m,)."""
        if missing != "refuse":
            for start, part in row_blocks(X):
                self.has_some[start : start + len(part)] = (~np.isnan(part)).any(axis=1)

    def judge(self, mixture: Mixture) -> None:
        """Take all of them, of which everything is here."""
        for part in posteriors(mixture, self._X, self._missing):
            self.store_rows(*part)

    def store_rows(
        self, rows: slice, proba: NDArray[np.float64], scores: NDArray[np.float64]
    ) -> None:
        """Take a run of rows: responsibilities (n, K) and log-likelihoods (n,)."""
        from scipy.special import entr

        self._scores[rows], self._doubts[rows] = scores, entr(proba).sum(axis=1)

    def sums(self) -> tuple[float, float, float]:
        """Return log-likelihood, weight and entropy of all together."""
        sums = self.by_worker(np.zeros(len(self._scores), dtype=np.intp), 1)[0]
        return float(sums[0]), float(sums[1]), float(sums[2])

    def by_worker(self, owners: Indices, n_workers: int) -> NDArray[np.float64]:
        """Return these three (n, 3) of each worker, who has the rows that ``owners`` says."""
        weights = np.ones(len(self._scores))
        if self._weights is not None:
            weights = np.maximum(np.asarray(self._weights, dtype=np.float64), 0.0)
        used = self.has_some & (weights > 0)
        scored = used if self._weights is not None else np.ones_like(used)
        values = (
            np.where(scored, weights * self._scores, 0.0),
            np.where(used, weights, 0.0),
            np.where(used, weights * self._doubts, 0.0),
        )
        # Of no rows counts are whole numbers, which are no float64 to others.
        added = [np.bincount(owners, part, n_workers).astype(np.float64) for part in values]
        return np.stack(added, axis=1)


def _some(values: Any, rows: Indices | None) -> Any:
    """Return some rows of a matrix or of weights, of which there may be none."""
    if rows is None or values is None:
        return values
    return select_rows(values, [rows])
