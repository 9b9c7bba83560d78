"""What is summed where data are split by rows: statistics of rows that workers hold.

Private sums are of residuals about components that all know (`Residuals`): each says how far one
row can move it. Rows are clipped to public bounds, and everything that is summed lies on a grid of
integers (`Grid`). Responsibilities are rounded down to multiples of ``2^-g`` and coordinates toward
zero to multiples of ``2^-h``, so that every product of a responsibility and two coordinates is a
multiple of ``2^-(g + 2 h)``; so few rows are added at a time that a double holds their sum exactly,
whatever the order, and sums of chunks are added as integers. Hence what a row adds does not depend
on which other rows there are, to the last bit: no rounding of floating point sums reveals them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Indices
from vpem.errors import InputError
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Factors, Mixture, block_views
from vpem.terms.rows import Rows
from vpem.terms.statistics import Message, arrays_of, leaves
from vpem.terms.units import Reach, lower_half

Integers = NDArray[np.int64]

WIDEST = 3.5
"""Standard deviations at which single coordinates are clipped, where their squares are summed."""

SHARE_BITS, COORDINATE_BITS = 12, 10
"""g and h, where there are not too many rows."""

EXACT_BITS = 53
"""Bits of a double."""

MOST_ROWS = 2048
"""Rows that are added at a time."""

BELOW_ONE = 1 - 2.0**-40
"""By which lengths that are clipped are multiplied: rounding does not make them longer then."""


def farthest(n_features: int) -> float:
    """Return the squared distance, in standard deviations, at which residuals are clipped.

    Of a Gaussian's rows it is d on average, with a standard deviation of ``sqrt(2 d)``: two of
    these above it, and 2 more where there are few features, lie fewer than 4 in 100.
    """
    return n_features + 2 * sqrt(2 * n_features) + 2


@dataclass(frozen=True)
class Parts:
    """Components as all know them, in bounded units: where residuals are taken from.

    ``spreads`` are lower Cholesky factors (K, d, d) of the covariances, or standard deviations (K,
    d).
    """

    weights: Doubles  # (K,)
    means: Doubles  # (K, d) within -1 and 1
    spreads: Doubles
    kind: str
    hard: bool = False  # the nearest alone, as in k-means

    def residuals(self, rows: Doubles, component: int) -> Doubles:
        """Return rows (m, d) about a mean, in units of the component's spread."""
        from scipy.linalg import solve_triangular

        spread, residuals = self.spreads[component], rows - self.means[component]
        if spread.ndim == 1:
            residuals /= spread
        else:
            residuals = solve_triangular(spread, residuals.T, lower=True, check_finite=False).T
        return np.asarray(residuals)

    def log_volumes(self) -> Doubles:
        """Return the logarithms of the determinants of the spreads, (K,)."""
        spreads = self.spreads
        diagonals = spreads if spreads.ndim == 2 else np.diagonal(spreads, axis1=1, axis2=2)
        return np.asarray(np.log(diagonals).sum(axis=1))

    def responsibilities(self, norms: Doubles) -> Doubles:
        """Return the responsibilities (m, K) of rows with squared residuals (m, K)."""
        if self.hard:
            return np.asarray(np.eye(len(self.weights))[norms.argmin(axis=1)])
        logs = np.log(self.weights) - self.log_volumes() - 0.5 * norms
        logs -= logs.max(axis=1, keepdims=True)
        shares = np.exp(logs)
        shares /= shares.sum(axis=1, keepdims=True)
        return shares


class Residuals:
    """Which statistics of residuals are sent, how, and what one row can move.

    A row adds, to each component k, ``g_k (1, z_k, z_k z_k' - I)``: its responsibility times
    moments of its residual z_k, which is clipped to the length ``r``. Responsibilities are not
    negative and add up to at most 1, so that what a row adds lies in the convex hull of zero and of
    what it would add if it belonged to one component alone: no norm of it is longer than the
    longest of these. With ``t = |z|^2`` from 0 to ``r^2`` the squared lengths of the three parts
    are 1, t, and ``t^2 - 2 t + d`` where all second moments are sent, which is largest at an end.
    """

    def __init__(self, kind: str, n_components: int, n_features: int) -> None:
        self.kind, self.n_components, self.n_features = kind, n_components, n_features
        d, self.radius = n_features, farthest(n_features)
        """Squared length at which residuals are clipped, r^2."""
        self.shape = "full" if kind in ("full", "tied") else kind.removeprefix("tied-")
        """What is sent of second moments: "full", "diag" or "spherical"."""
        self.copies = 1 if kind.startswith("tied") else n_components
        """Second moments that are sent: of each component, or of all together."""
        self.n_second = {"full": d * (d + 1) // 2, "diag": d, "spherical": 1}[self.shape]
        """Numbers of one of them."""
        self.size = n_components * (1 + d) + self.copies * self.n_second
        """Numbers of a message, P."""
        r = self.radius
        longest = {
            "full": max(d, r * r - 2 * r + d),
            "diag": min(r * r - 2 * r, (WIDEST**2 - 2) * r) + d,
            "spherical": max(d, r - d) ** 2,
        }
        self.lengths = np.array([1.0, r, longest[self.shape]])
        """Largest squared lengths of what a row adds to counts, first and second moments, (3,)."""
        # Half the relative error of a count; of a mean half its square; of a covariance a quarter
        # of the sum of the squared errors of its entries: the Kullback-Leibler divergence, in nats,
        # of the component from the one without noise, to second order.
        second = {"full": d * (d + 1) / 8, "diag": d / 4, "spherical": 1 / (4 * max(d, 1))}
        shared = n_components**2 if self.copies < n_components else 1
        self.losses = np.array([0.5, d / 2, second[self.shape] / shared])
        """What noise of variance 1 on each costs, relative to a component of one row, (3,)."""
        self.cost = float(np.sqrt(self.losses * self.lengths).sum() ** 2)
        """Nats that noise of multiplier 1 costs, relative to a component of one row."""

    @property
    def scales(self) -> Doubles:
        """Standard deviations (3,) of noise of multiplier 1 that costs least.

        What a row adds, divided by them, is never longer than 1.
        """
        return balanced([self])[0]

    def deviations(self, scales: Doubles | None = None) -> Doubles:
        """Return the standard deviation of each number of a message for a multiplier of 1, (P,).

        Where others send of the same rows, scales (3,) are those of `balanced`.
        """
        count, first, second = self.scales if scales is None else scales
        k, d = self.n_components, self.n_features
        one = np.full(self.n_second, second)
        if self.shape == "full":
            # Off the diagonal a number stands for two entries of the matrix.
            rows, columns = np.tril_indices(d)
            one[rows != columns] /= sqrt(2)
        return np.concatenate([np.full(k, count), np.full(k * d, first), np.tile(one, self.copies)])

    def packed(self, counts: Integers, firsts: Integers, seconds: Integers) -> Integers:
        """Lay out counts (K,), first (K, d) and second moments (copies, n_second), shape (P,)."""
        return np.concatenate([counts, firsts.ravel(), seconds.ravel()])

    def unpacked(self, message: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        """Return counts (K,), first moments (K, d), and second ones.

        These are of shape (copies, d, d), or of the diagonal alone (copies, d).
        """
        k, d = self.n_components, self.n_features
        counts, firsts, seconds = np.split(message, [k, k + k * d])
        seconds = seconds.reshape(self.copies, self.n_second)
        if self.shape == "spherical":
            seconds = np.repeat(seconds / d, d, axis=1)
        elif self.shape == "full":
            rows, columns = np.tril_indices(d)
            full = np.empty((self.copies, d, d))
            full[:, rows, columns] = full[:, columns, rows] = seconds
            seconds = full
        return counts, firsts.reshape(k, d), seconds


def balanced(layouts: Sequence[Residuals]) -> list[Doubles]:
    """Return the `Residuals.scales` of several holders of features of the same rows.

    What a row adds to counts, of which all have the same, and to all their moments, divided by
    these, is never longer than 1.
    """
    lengths = np.concatenate([[1.0], *(one.lengths[1:] for one in layouts)])
    losses = np.concatenate([[0.5], *(one.losses[1:] for one in layouts)])
    spent = np.sqrt(losses * lengths)
    scales = np.sqrt(lengths * spent.sum() / spent)
    pairs = scales[1:].reshape(len(layouts), 2)
    return [np.concatenate([scales[:1], pair]) for pair in pairs]


class Grid:
    """Units of what is summed; ``share_bits`` are g, ``coordinate_bits`` h.

    What a worker sends are multiples of ``2^-f`` (``message_bits``), of which doubles hold the sum
    of all.
    """

    def __init__(self, share_bits: int, coordinate_bits: int, message_bits: int) -> None:
        self.share_bits, self.coordinate_bits = share_bits, coordinate_bits
        self.fine_bits = share_bits + 2 * coordinate_bits
        """Sums are multiples of ``2^-(g + 2 h)`` where they are made."""
        self.message_bits, self.unit = message_bits, 2.0**-message_bits
        """What a worker sends are multiples of this."""
        self.rounds = message_bits < self.fine_bits
        """Whether what a worker sends is rounded: by at most half a unit each."""

    @classmethod
    def for_size(cls, n_samples: int, n_features: int) -> Grid:
        """Return the finest grid on which the sums of so many rows fit."""
        needed = log2(max(n_samples, 2) * farthest(n_features))
        coarser = max(0, ceil((needed - 30) / 3))
        bits = SHARE_BITS - coarser, COORDINATE_BITS - coarser
        fine = bits[0] + 2 * bits[1]
        message = min(fine, EXACT_BITS - 3 - ceil(needed))
        if coarser > 4 or message < 8:
            raise InputError(
                f"{n_samples} rows of {n_features} features are too many for sums on a grid of "
                "integers; fit to fewer"
            )
        return cls(*bits, message)

    def sent(self, sums: Integers) -> Doubles:
        """Return sums in units of ``2^-(g + 2 h)`` as a worker sends them, in units of 1."""
        shift = self.fine_bits - self.message_bits
        if shift:
            sums = (sums + (1 << (shift - 1))) >> shift
        return np.asarray(sums.astype(np.float64) * self.unit)


class BoundedRows:
    """Rows of the workers of this process, clipped to bounds and in units of these.

    Rows are in the units of the user. ``bounds`` (2, d), the least and largest value of each
    feature, become -1 and 1, unless ``units`` (2, d) around them do. ``clipped`` counts rows of
    each worker that had values beyond.
    """

    def __init__(
        self, parts: Sequence[Rows], bounds: Doubles, grid: Grid, units: Doubles | None = None
    ) -> None:
        self._parts, self.grid, self._bounds = list(parts), grid, bounds
        units = bounds if units is None else units
        self._middle, self._half = units.mean(axis=0), np.ptp(units, axis=0) / 2
        self.n_workers, self.n_features = len(self._parts), len(self._middle)  # of this process, d
        self.clipped = [0] * self.n_workers
        for worker, part in enumerate(self._parts):
            for run in part.runs() if part.n_samples else ():
                rows = part.read(run)
                beyond = (rows < bounds[0]) | (rows > bounds[1])
                self.clipped[worker] += int(beyond.any(axis=1).sum())

    def chunks(self, worker: int, most: int = MOST_ROWS) -> Iterator[Doubles]:
        """Yield a worker's rows, at most so many at a time."""
        part = self._parts[worker]
        for run in part.runs() if part.n_samples else ():
            rows = part.read(run).astype(np.float64, copy=False)
            for begin in range(0, len(rows), most):
                some = np.clip(rows[begin : begin + most], *self._bounds)
                some = (some - self._middle) / self._half
                yield np.clip(some, -1.0, 1.0, out=some)

    def histograms(self, worker: int, n_bins: int) -> Integers:
        """Count a worker's rows by each feature, in so many equal bins, shape (d, n_bins)."""
        d = len(self._middle)
        counts = np.zeros(d * n_bins, dtype=np.int64)
        for rows in self.chunks(worker):
            cells = np.minimum(((rows + 1) * (n_bins / 2)).astype(np.int64), n_bins - 1)
            cells += np.arange(d) * n_bins
            counts += np.bincount(cells.ravel(), minlength=counts.size)
        return counts.reshape(d, n_bins)

    def sketch(
        self, worker: int, centre: Doubles, directions: Doubles, n_bins: int, reach: float
    ) -> Integers:
        """Count a worker's rows in the cells (n_bins ** q,) of a grid over a few directions (d, q).

        A row's coordinates are ``(x - centre) directions``; cells go from ``-reach`` to ``reach``,
        and what is beyond is counted in the last.
        """
        q = directions.shape[1]
        counts = np.zeros(n_bins**q, dtype=np.int64)
        for rows in self.chunks(worker):
            places = ((rows - centre) @ directions + reach) * (n_bins / (2 * reach))
            cells = np.clip(np.floor(np.nan_to_num(places)), 0, n_bins - 1).astype(np.int64)
            flat = cells @ (n_bins ** np.arange(q - 1, -1, -1, dtype=np.int64))
            counts += np.bincount(flat, minlength=counts.size)
        return counts

    def residuals(self, worker: int, parts: Parts, layout: Residuals) -> Integers:
        """Run the E-step on a worker's rows: sums of `Residuals`, in units of the grid, (P,)."""
        sums = ResidualSums(layout, self.grid)
        for rows in self.chunks(worker):
            every = [parts.residuals(rows, component) for component in range(layout.n_components)]
            norms = np.stack([np.einsum("ij,ij->i", z, z) for z in every], axis=1)
            sums.add(every, parts.responsibilities(norms))
        return layout.packed(sums.counts, sums.firsts, sums.seconds)


class ResidualSums:
    """Sums of `Residuals`, to which rows are added: exactly, whatever their order.

    In units of ``2^-(g + 2 h)``: ``counts`` (K,), ``firsts`` (K, d) and ``seconds`` (copies,
    n_second).
    """

    def __init__(self, layout: Residuals, grid: Grid) -> None:
        self.layout, self.grid = layout, grid
        k = layout.n_components
        self.counts = np.zeros(k, dtype=np.int64)
        self.firsts = np.zeros((k, layout.n_features), dtype=np.int64)
        self.seconds = np.zeros((layout.copies, layout.n_second), dtype=np.int64)
        room = 2.0 ** (EXACT_BITS - grid.fine_bits)
        self._most = max(1, min(MOST_ROWS, floor(room / layout.radius)))

    def add(self, residuals: Sequence[Doubles], shares: Doubles) -> None:
        """Add rows, of which each component has residuals (m, d), and responsibilities (m, K)."""
        layout, h = self.layout, self.grid.coordinate_bits
        # In units of 2^-(g + 2 h), all of them; of the identity too, among second moments.
        rows, columns = np.tril_indices(layout.n_features)
        identity: Integers = np.full(layout.n_second, 1 << 2 * h, dtype=np.int64)
        if layout.shape == "full":
            identity[rows != columns] = 0
        elif layout.shape == "spherical":
            identity *= layout.n_features
        for begin in range(0, len(shares), self._most):
            some = slice(begin, begin + self._most)
            every = np.nan_to_num(np.floor(shares[some] * 2.0**self.grid.share_bits))
            for component, residual in enumerate(residuals):
                z, weights = residual[some], every[:, component]
                # Clipped to their radius, and their coordinates where these are squared.
                if layout.shape == "diag":
                    z = np.clip(z, -WIDEST, WIDEST)
                norms = np.einsum("ij,ij->i", z, z)
                ratios = np.sqrt(layout.radius / np.maximum(norms, layout.radius)) * BELOW_ONE
                z = np.nan_to_num(z * ratios[:, None]) * 2.0**h
                np.trunc(z, out=z)
                count = int(weights.sum())
                self.counts[component] += count << 2 * h
                self.firsts[component] += (weights @ z).astype(np.int64) << h
                if layout.shape == "full":
                    second = ((z * weights[:, None]).T @ z)[rows, columns].astype(np.int64)
                else:
                    second = (weights @ np.square(z)).astype(np.int64)
                    second = second.sum(keepdims=True) if layout.shape == "spherical" else second
                copy = 0 if layout.copies == 1 else component
                self.seconds[copy] += second - count * identity


class WorkerTerms:
    """What each worker adds to the sum: ``(n_k, t_k, U_k)`` of its rows, and their log-likelihood.

    A worker runs the E-step on its own rows with the parameters that it knows. As consensus weighs
    all numbers of a message alike, what a root finds are the statistics of rows that weigh a little
    more or less than they do: covariances stay positive definite.
    """

    def __init__(
        self,
        whole: FeatureTerms,  # worker by worker, all features in one block
        runs: Sequence[slice],  # each worker's rows
        counts: Indices,  # (N,) rows of all workers
        local: Rows,  # rows of this process
        reach: Reach | None = None,  # in units of fitting, where sums are masked
    ) -> None:
        self.whole, self.runs, self.local, self.reach = whole, runs, local, reach
        # From a file the next worker's rows are read ahead, and after the last the first's.
        filled = [run for run in runs if run.stop > run.start]
        after = dict(zip([run.start for run in filled], filled[1:] + filled[:1], strict=True))
        self.parts = [whole.slice_rows(run, after.get(run.start)) for run in runs]
        self.counts, self.n_workers = counts, len(counts)

    def message(self, worker: int, mixture: Mixture, factors: Factors, layout: Message) -> Doubles:
        """Run the E-step on a worker's rows: its statistics and log-likelihood, shape (P,)."""
        part = self.parts[worker]
        statistics = part.empty(mixture.means, 1)
        log_likelihood = 0.0
        if part.n_samples:
            log_likelihood = float(part.sweep(mixture, factors, np.ones((1, 1)), statistics)[0])
        return layout.packed(statistics, log_likelihood)

    def hard(
        self,
        worker: int,
        labels: NDArray[np.int32],
        layout: Message,
        centres: Doubles | None = None,
    ) -> Doubles:
        """Return the statistics of a worker's rows, each in the component of its label, (P,).

        Missing values are filled by the centres (K, d) that the worker knows.
        """
        about = layout.shifts if centres is None else centres
        return layout.packed(self.parts[worker].of_labels(labels, about))


def mean_statistic(terms: FeatureTerms, statistics: Any) -> Doubles | None:
    """Mean statistic (P,) about zero, in units of fitting; of symmetric matrices the lower half.

    It is that of all processes where they share one sum, of the hubs that are here; where roots
    differ weights are the mean of theirs. None with factors that hubs share, whose statistics lie
    about the parameters.
    """
    if statistics.has_factors:
        return None
    about = terms.recentred(statistics, np.zeros_like(statistics.shifts))
    arrays = arrays_of(replace(about, counts=about.counts.mean(axis=0)))
    for part in arrays.get("parts", ()):  # whose weights are the same
        part.pop("counts", None)
    if np.ndim(arrays.get("second", 0.0)) == 1:
        widths = terms.blocks.widths
        copies = arrays["second"].size // max(int((widths**2).sum()), 1)
        views = block_views(arrays["second"], widths, copies)
        arrays["second"] = [lower_half(view) for view in views]
    each = [one.ravel() for one in leaves(arrays, "shifts")]
    return np.asarray(np.concatenate(each) / terms.total_weight)
