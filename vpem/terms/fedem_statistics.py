"""A Gaussian mixture as a model of mean statistics: what FedEM's workers compute of their rows.

The M-step makes a mixture of a mean statistic, whatever noise has made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import Doubles, Indices, Mask
from vpem.errors import InputError, NumericalError, Setting
from vpem.network.schema import As, Stateful
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Factors, Mixture, is_diagonal
from vpem.terms.priors import MapTerms
from vpem.terms.statistics import Statistics
from vpem.terms.units import Reach, are_positive, lower_half, symmetric

FLOOR = 1e-4
"""Least variance in any direction, relative to the features' own variances, where statistics are
noisy: noise can lead to less, or to a negative one."""

LEAST = 1e-12
"""The same where they are exact, for what rounding has left without variance."""

RESTS = 1 + 1e-6
"""In floors, up to which a variance that was raised to one has remained there."""

SMALLEST = 1e-8
"""Least eigenvalue of the data's correlations; below, directions are noise."""

EMPTY = 1e-10
"""Rows that a component has at least, where statistics are exact."""

WORTH_THREADS = 1 << 19
"""Values times components from which on a pass is worth more than one thread."""

ONE = np.ones((1, 1))
"""The sum of one block."""


def in_order(values: Doubles) -> float:
    """Add numbers (n,) up, one after the other."""
    return float(sum(values.tolist()))


class MixtureStatistics(Stateful):
    """Mean statistics of a Gaussian mixture whose rows are held by workers, n in all processes.

    And the map from a mean statistic to the parameters. With a covariance a component the statistic
    is ``(mean g_k, mean g_k y, mean g_k y y^T)``, of symmetric matrices the lower half; for "diag"
    ``mean g_k y^2`` and for "spherical" ``mean g_k |y|^2``. With one covariance for all, or a known
    one, it is ``(mean g_k, mean g_k y)``: ``mean y y^T`` does not depend on parameters and is known
    from the setup (Dieuleveut et al. 2021, F.1). y is in the units of fitting, the terms'
    ``scaling``, which are about the mean.

    Where values are missing, full matrices are of what is expected of the rows given what is there,
    and one covariance for all has ``mean y y^T`` besides, which then depends on parameters. With
    diagonal ones a component's means and variances are of the values that are there, and ``mean g_k
    o`` comes second, o 1 where a value is there.

    ``terms`` are rows of this process, worker by worker, of features in one block. Each worker's
    are in ``runs`` (n), empty ones for others' workers; of all processes they are ``counts`` (n,),
    those of positive weight, and weigh ``masses`` (n,) (None: here are all, and weigh 1). A number
    (n,) is added up, and the ``largest`` found, over all processes. ``reach`` says where rows lie,
    in units of fitting, where sums are masked.

    ``second`` is ``mean y y^T`` (d, d) over all rows, each weighing as in the algorithm's means,
    where missing values are filled by the mean and have the variance of those that are there.
    ``there`` (d,) are the shares of rows that have a value of each feature; None: all have all.
    ``known`` are covariances (d, d) or (K, d, d) in the user's units that are not estimated; the
    covariance type is then "tied" or "full". ``floor`` is the least variance in any direction,
    relative to the features' own variances; 0: statistics are exact, and only those that no rows
    can have are projected. Raises InputError for known covariances that are not positive definite,
    or of another shape, and NumericalError if a feature is constant and ``reg_covar`` is 0.

    Under a ``penalty`` parameters are the mode of the penalised log-likelihood.

    Its ``pieces`` are weights, first moments, and second moments of each component; the slices
    ``first``, ``seen`` and ``squares`` are parts, of which the last two may be empty.
    """

    def __init__(
        self,
        terms: FeatureTerms,
        runs: Sequence[slice],
        n_components: int,
        second: Doubles,
        there: Doubles | None = None,
        *,
        counts: Indices | None = None,
        masses: Doubles | None = None,
        known: ArrayLike | None = None,
        floor: float = FLOOR,
        add_up: Callable[[Doubles], float] = in_order,
        largest: Callable[[float], float] = float,
        reach: Reach | None = None,
        penalty: MapTerms | None = None,
    ) -> None:
        self.add_up = add_up
        self.blocks, self.covariance_type = terms.blocks, terms.covariance_type
        self.scaling = terms.scaling
        self.n_components, self.n_features = n_components, terms.blocks.n_features
        self._take_rows(terms, runs, counts, masses)
        self.second, self.there, self.floor = second, there, floor
        self.reg_covar = reg_covar = terms.reg_covar
        self._is_tied = self.covariance_type.startswith("tied")
        self.is_diagonal = is_diagonal(self.covariance_type)
        self.is_spherical = self.covariance_type.endswith("spherical")
        self._own_variances = np.diagonal(second) + reg_covar
        if not (self._own_variances > 0).all():
            raise NumericalError(
                f"feature {int(np.argmin(self._own_variances))} is constant, so that its variance "
                "is 0; try a larger ",
                Setting("reg_covar"),
            )
        matrix = second + np.diag(reg_covar)
        deviations = np.sqrt(np.diagonal(matrix))
        if self.is_spherical:
            deviations = np.full(self.n_features, np.sqrt(np.diagonal(matrix).mean()))
        self._white = np.diag(1 / deviations), np.diag(deviations)
        if not self.is_diagonal:
            # Features may be in units of any size.
            values, vectors = np.linalg.eigh(matrix / np.outer(deviations, deviations))
            roots = np.sqrt(np.maximum(values, SMALLEST))
            self._white = (vectors / roots).T / deviations, deviations[:, None] * vectors * roots
        self._metric = np.linalg.pinv(matrix, hermitian=True)
        self._known = None if known is None else self._checked(known)
        self._lay_out()
        self.penalty: MapTerms | None = None
        self._added = reg_covar
        if penalty is not None:
            penalty.total_weight = self.total_weight  # of all processes
            self.penalty = penalty.with_sample_covariance(self._of_one())
            if penalty.is_proper:  # which has these
                self._added = np.zeros_like(reg_covar)
        self.is_judged = True
        self.least_batch = 1
        """Rows that have second moments which are not singular, where statistics have such."""
        if self._has_squares:
            self.least_batch = 2 if self.is_diagonal else self.n_features + 1
        self.bounds: Doubles | None = None
        """Of a mean statistic (P,) of rows that are within reach."""
        if reach is not None:
            off, k = reach.off(np.zeros(self.n_features)), n_components
            parts = [np.ones(k), np.tile(off, k)]
            if self._has_squares:
                parts.append(np.tile(self.second_moments(np.outer(off, off)), k))
            self.bounds = np.concatenate(parts)
        self.radius = largest(self._farthest())
        """Distance that no mean is beyond, in the metric of the covariance of all rows."""

    def _take_rows(
        self,
        terms: FeatureTerms,
        runs: Sequence[slice],
        counts: Indices | None,
        masses: Doubles | None,
    ) -> None:
        """Take the rows of each worker, as `__init__` has them."""
        self.terms, self.runs, self.misses = terms, list(runs), terms.misses
        local_counts = np.array([run.stop - run.start for run in self.runs], dtype=np.intp)
        self.counts = local_counts if counts is None else counts
        self.masses = self.counts if masses is None else masses
        self.n_samples = int(self.counts.sum())
        self.total_weight = float(self.masses.sum())
        self.n_rows = max(self.total_weight, float(self.n_samples))
        """What rows weigh where they weigh more than 1."""
        self.own = np.flatnonzero(local_counts * self.counts)
        """Workers with rows in this process."""
        self._held: list[int] = self.counts.tolist()
        self.weighs = terms.row_weights is not None
        self._prepared: tuple[Mixture, Factors] | None = None
        self._passes: dict[int, tuple[Mixture, Doubles, float]] = {}
        self._constant: float | None = None
        # Negligible among all rows, of which some are here.
        terms.least *= terms.n_samples / max(self.n_samples, 1)
        self.parts: dict[int, FeatureTerms] = {}
        for worker, following in zip(self.own, np.roll(self.own, -1), strict=True):
            # After a worker's rows those of the next are read.
            part = terms.slice_rows(self.runs[worker], self.runs[following])
            self.parts[int(worker)] = self._threaded(part)

    @property
    def knows_covariances(self) -> bool:
        """Whether covariances are given, and not estimated."""
        return self._known is not None

    def with_rows(
        self,
        terms: FeatureTerms,
        runs: Sequence[slice],
        masses: Doubles | None,
        largest: Callable[[float], float] = float,
    ) -> MixtureStatistics:
        """Return the same map of a statistic for rows that come after, in the same units.

        Limits are those of all rows so far: how far out they lie, and what one of them weighs.
        """
        later = copy(self)
        later._take_rows(terms, runs, None, masses)
        later.radius = max(self.radius, largest(later._farthest()))
        later.n_rows += self.n_rows
        return later

    def without_rows(self, of: MixtureStatistics | None = None) -> MixtureStatistics:
        """Return it as it can be kept, without rows; with the limits ``of`` another, if any."""
        kept, of = copy(self), of or self
        kept.radius, kept.n_rows, kept.add_up = of.radius, of.n_rows, in_order
        kept.parts, kept._passes, kept._prepared = {}, {}, None
        vars(kept).pop("terms", None)  # which know of rows
        return kept

    def _checked(self, known: ArrayLike) -> Doubles:
        """Return known covariances in the units of fitting, one after the other."""
        d, k, covariance_type = self.n_features, self.n_components, self.covariance_type
        try:
            covariances = np.asarray(known, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"known covariances must be numbers, got {known!r}") from None
        expected = {"tied": (d, d), "full": (k, d, d)}.get(covariance_type)
        if covariances.shape != expected:
            raise InputError(
                f"known covariances are of shape ({d}, {d}) with covariance type tied or "
                f"({k}, {d}, {d}) with full, got shape {covariances.shape} with "
                f"{covariance_type}"
            )
        covariances = covariances / np.outer(self.scaling.scale, self.scaling.scale)
        good = np.isfinite(covariances).all() and np.allclose(
            covariances, covariances.swapaxes(-1, -2)
        )
        if not good or np.linalg.eigvalsh(covariances).min() <= 0:
            raise InputError("known covariances must be symmetric and positive definite")
        return covariances.ravel()

    def _lay_out(self) -> None:
        """Say where in a statistic its parts are."""
        d, k, there = self.n_features, self.n_components, self.there
        self._lower = np.tril_indices(d)
        misses = there is not None
        widths = [k, k * d]
        if misses and self.is_diagonal:
            widths.insert(1, k * d)
        n_first = len(widths)
        each = 1 if self.is_spherical else d if self.is_diagonal else d * (d + 1) // 2
        if self._known is None and not self._is_tied:
            widths += [each] * k if each > 1 else [k]
        elif self._known is None and misses and not self.is_diagonal:
            widths.append(each)
        ends = np.cumsum([0, *widths]).tolist()
        self.pieces = tuple(slice(*pair) for pair in pairwise(ends))
        self.size = int(ends[-1])
        self.first = self.pieces[n_first - 1]
        self.seen = slice(k, self.first.start)
        self.squares = slice(self.first.stop, self.size)
        self._has_seen, self._has_squares = n_first > 2, self.size > self.first.stop
        second = self.second
        if there is not None and self.is_diagonal:  # each feature counts its own values
            second = second * there
        self._of_all_rows = self.second_moments(second)

    def _farthest(self) -> float:
        """Distance of this process's row that is farthest from the mean."""
        # Means of what is expected where values are missing may lie farther out than any row.
        farthest, rows = np.inf if self.misses and self.floor == 0 else 0.0, self.terms.rows
        for run in rows.runs() if farthest == 0 else ():
            norms = self.squared_norms(rows.read(run).astype(np.float64, copy=False))
            if self.terms.row_weights is not None:
                norms = norms[self.terms.row_weights[run] > 0]
            farthest = max(farthest, float(norms.max(initial=0.0)))
        return float(np.sqrt(farthest))

    def _threaded(self, part: FeatureTerms) -> FeatureTerms:
        if part.n_samples * part.blocks.n_features * self.n_components < WORTH_THREADS:
            part.n_threads = 1
        return part

    # ---- what a worker computes ------------------------------------------------------------------

    def expect(self, worker: int, parameters: Mixture, rows: Indices | None) -> Doubles:
        """Rows weigh alike, whole or some: those that weigh more are drawn more often (`draw`)."""
        part = self.parts.get(worker)
        if part is None:
            return np.zeros(self.size)  # Of another process.
        if rows is not None:
            return self._pass(self._threaded(part.select_rows(rows)), parameters)[0]
        return self._whole(worker, parameters)[0]

    def draw(
        self, worker: int, count: int, rng: np.random.Generator, replace: bool = False
    ) -> Indices:
        """Draw so many rows of a worker, fewer than it has, each as often as it weighs on average.

        Where all weigh 1 they are different ones. Else a row is drawn of each of ``count`` slices
        of equal weight, so that the mean over the rows drawn is unbiased and varies less than that
        of independent draws, which are those with ``replace``.
        """
        if not self.weighs:
            n_held = self._held[worker]
            drawn: Indices = rng.choice(n_held, count, replace=replace, shuffle=False)
            return drawn
        # In other processes too, so that the shared stream goes on alike.
        places = rng.random(count)
        if not replace:
            places = (np.arange(count) + places) / count
        if worker not in self.parts:
            return np.zeros(count, dtype=np.intp)
        weights = self.parts[worker].row_weights
        assert weights is not None
        ends = np.cumsum(weights)
        inside = np.minimum(places * ends[-1], np.nextafter(ends[-1], 0))
        numbers: Indices = np.searchsorted(ends, inside, side="right")
        return numbers

    def objective(self, parameters: Mixture) -> float:
        """Log-likelihood per sample of all rows, in the user's units."""
        each = np.zeros(len(self.counts))
        for worker in self.own.tolist():
            each[worker] = self._whole(worker, parameters)[1]
        total = self.add_up(each)
        if self._constant is None:
            # What a sample's log-likelihood has whatever the parameters are.
            if self.misses:
                every = np.zeros(len(self.counts))
                every[self.own[:1]] = self.terms.log_constant
                self._constant = self.add_up(every) / self.total_weight
            else:
                scale, d = self.scaling.scale, self.blocks.n_features
                self._constant = float(-0.5 * d * np.log(2 * np.pi) - float(np.log(scale).sum()))
        mean = float(total / self.total_weight + self._constant)
        if self.penalty is not None:
            mean += self.penalty.log_prior(parameters) / self.total_weight
        return mean

    def _whole(self, worker: int, parameters: Mixture) -> tuple[Doubles, float]:
        """Statistic and log-likelihood of a worker's rows, kept until other parameters come."""
        saved = self._passes.get(worker)
        if saved is None or saved[0] is not parameters:
            passed = self._pass(self.parts[worker], parameters)
            saved = self._passes[worker] = (parameters, *passed)
        return saved[1], saved[2]

    def _pass(self, part: FeatureTerms, mixture: Mixture) -> tuple[Doubles, float]:
        """Mean statistic (P,) and log-likelihood, without its constant, of some rows."""
        statistics = part.empty(mixture.means, 1)
        if not self.misses:
            factors = mixture.factors
        else:
            if self._prepared is None or self._prepared[0] is not mixture:
                self._prepared = mixture, self.terms.prepare(mixture)
            factors = self._prepared[1]
        log_likelihood = part.sweep(mixture, factors, ONE, statistics)
        return self.packed(statistics) / part.total_weight, float(log_likelihood[0])

    def assigned(
        self, worker: int, labels: NDArray[np.int32], centres: Doubles | None = None
    ) -> Doubles:
        """Mean statistic (P,) of a worker's rows that each belong to one component (m_i,).

        Missing values are filled by the component's centre, of (K, d), and have the spread of all
        rows about it.
        """
        part = self.parts[worker]
        if self.misses:
            statistics = part.of_labels(labels, np.asarray(centres))
            return self.packed(statistics) / part.total_weight
        k, d = self.n_components, self.blocks.n_features
        n, first = np.zeros(k), np.zeros((k, d))
        second = np.zeros((k, self.second_moments(np.zeros((d, d))).size))
        for run in part.rows.runs():
            rows, own_labels = part.rows.read(run), labels[run]
            weights = None if part.row_weights is None else part.row_weights[run]
            n += np.bincount(own_labels, weights, minlength=k)
            for component in range(k):
                members = own_labels == component
                of_component = heavy = rows[members]
                if weights is not None:
                    heavy = of_component * weights[members, None]
                first[component] += heavy.sum(axis=0)
                second[component] += self.second_moments(heavy.T @ of_component)
        every = np.concatenate([n, first.ravel(), second.ravel()])
        return np.asarray(every[: self.size] / part.total_weight)

    def second_moments(self, matrix: Doubles) -> Doubles:
        """What a component's piece of the statistic has of second moments (d, d)."""
        if self.is_spherical:
            return np.array([np.trace(matrix)])
        return np.diagonal(matrix) if self.is_diagonal else matrix[self._lower]

    def squared_norms(self, points: Doubles) -> Doubles:
        """Squared lengths of points (m, d), in the metric of the data's covariance."""
        squares: Doubles = np.einsum("ij,ij->i", points @ self._metric, points)
        return np.maximum(squares, 0.0)

    def packed(self, statistics: Statistics) -> Doubles:
        """Lay out sums over rows (P,), of moments about zero, which are about shifts."""
        about, first = statistics.shifts, statistics.first
        n = statistics.counts[0]
        parts, per_feature = [n], n[:, None]
        if self._has_seen:
            per_feature = statistics.per_feature(self.blocks)
            parts.append(per_feature.ravel())
        raw = first + per_feature * about
        parts.append(raw.ravel())
        k, d = self.n_components, self.n_features
        if self._has_squares and self.is_diagonal:
            squares: Doubles = statistics.second.reshape(k, d) + about * (first + raw)
            parts.append(squares.sum(axis=1) if self.is_spherical else squares.ravel())
        elif self._has_squares:
            left, right = self._lower
            squares = statistics.second.reshape(-1, d, d)[:, left, right]
            # Symmetric all the same: t' = t + n m, so that m t^T + t' m^T is its transpose.
            if self._is_tied:
                moved = about[:, left] * first[:, right] + raw[:, left] * about[:, right]
                squares = squares + moved.sum(axis=0)
            else:
                squares = (
                    squares + about[:, left] * first[:, right] + raw[:, left] * about[:, right]
                )
            parts.append(squares.ravel())
        return np.concatenate(parts)

    # ---- in white units --------------------------------------------------------------------------

    def apply(self, statistics: Doubles) -> Doubles:
        """Statistics (m, P) of ``A y``; linear, as `undo` is.

        With ``A = C^(-1/2)``, C the second moments of the data about which all know, the
        statistic's numbers are alike in size whatever the units of the features and however they
        depend on each other. A quantizer's one scale then does not drown the directions in which
        the data vary little, which are those that a covariance's inverse is made of. With diagonal
        covariances, whose statistic has no products of features, A is diagonal; with spherical ones
        it is a number.
        """
        return self._moved(statistics, self._white[0])

    def undo(self, statistics: Doubles) -> Doubles:
        """Statistics (m, P) in the units of fitting, of those of the white data."""
        return self._moved(statistics, self._white[1])

    def _moved(self, statistics: Doubles, matrix: Doubles) -> Doubles:
        m, k, d = len(statistics), self.n_components, self.n_features
        out = statistics.copy()
        first = statistics[:, self.first].reshape(m, k, d)
        out[:, self.first] = (first @ matrix.T).reshape(m, k * d)
        squares = statistics[:, self.squares]
        if squares.size == 0:
            return out
        if self.is_spherical:
            out[:, self.squares] = squares * matrix[0, 0] ** 2
        elif self.is_diagonal:
            scaled = squares.reshape(m, k, d) * np.diagonal(matrix) ** 2
            out[:, self.squares] = scaled.reshape(m, k * d)
        else:
            half = d * (d + 1) // 2
            full = symmetric(squares.reshape(m, squares.shape[1] // half, half), d)
            out[:, self.squares] = lower_half(matrix @ full @ matrix.T).reshape(squares.shape)
        return out

    # ---- the M-step ------------------------------------------------------------------------------

    def maximize(self, statistic: Doubles, root: int = 0) -> tuple[Mixture, int]:
        """Mixture of a statistic (P,), and how many of its parts had to be projected.

        * A weight below that of one row is raised to it, by so much of all rows together: a
          component that noise has emptied comes back as a wide one. With ``floor`` 0 only one of
          no rows. So is the weight of what a component has of one feature.
        * A mean farther out than any row, in the metric of the data's covariance, is drawn in.
        * Of a covariance with variances (in any direction) below ``floor`` times the features'
          own, these are raised to that; where there are negative ones, as noise of that size makes
          them, to the size of the most negative. With ``floor`` 0 only those are raised.
        """
        k, d = self.n_components, self.n_features
        least = max(EMPTY, min(1.0, self.floor * max(self.n_rows, 1 / FLOOR))) / self.n_rows
        n = np.where(statistic[:k] < least, 1.0 / self.n_rows, statistic[:k])
        missing = n - statistic[:k]
        weights = n / n.sum()
        squares, seen, projected = self._completed(statistic, missing, least)
        means = statistic[self.first].reshape(k, d) / (n[:, None] if seen is None else seen)
        distances = np.sqrt(self.squared_norms(means))
        outside = distances > self.radius * (1 + 1e-9)
        means[outside] *= (self.radius / distances[outside])[:, None]
        projected += int((missing > 0).sum() + outside.sum())
        if self._known is not None:
            covariances = self._known
        elif self.is_diagonal:
            variances = self._variances(squares, n, weights, means, seen)
            own_or_mean = of_features = self._own_variances
            if self.is_spherical:
                variances = np.repeat(variances, d, axis=1)
                own_or_mean = self._over_features(of_features)
            covariances = variances + self._added
            ratios = covariances / own_or_mean
            smallest = ratios.min(axis=1, keepdims=True)
            least_ratio = np.maximum(self.floor or LEAST, -smallest)
            low = (smallest[:, 0] < self.floor) | (smallest[:, 0] <= 0)
            covariances[low] = (np.maximum(ratios, least_ratio) * own_or_mean)[low]
            projected += int(low.sum())
        else:
            if self._is_tied:
                second = symmetric(squares / n.sum(), d) if squares.size else self.second
                matrices = (second - (weights * means.T) @ means)[None]
            else:
                matrices = symmetric(squares.reshape(k, -1) / n[:, None], d)
                matrices -= means[:, :, None] * means[:, None, :]
            matrices = matrices + np.diag(self._added)
            into, back = self._white  # in units in which the data are white
            if self.floor > 0 or not are_positive(matrices):
                white = into @ matrices @ into.T
                if not are_positive(white - self.floor * np.eye(d)):
                    values, vectors = np.linalg.eigh(white)
                    small = ((values < self.floor) | (values <= 0)).any(axis=1)
                    values = values[small]
                    values = np.maximum(values, np.maximum(self.floor or LEAST, -values[:, :1]))
                    roots = back @ (vectors[small] * np.sqrt(values)[:, None])
                    matrices[small] = roots @ roots.swapaxes(1, 2)
                    projected += int(small.sum())
            covariances = matrices.ravel()
        if self.penalty is None:
            return self._mixture(weights, means, covariances), projected
        plain = self.terms.mixture(weights[None], means, covariances)
        rows = np.repeat(n[:, None], d, axis=1) if seen is None else seen
        mode = self.penalty.mode(plain, rows / n.sum() * self.total_weight)
        kept = covariances if self._known is not None else mode.covariances
        return self._mixture(mode.weights[0], mode.means, kept), projected

    def _completed(
        self, statistic: Doubles, missing: Doubles, least: float
    ) -> tuple[Doubles, Doubles | None, int]:
        """Squares, and weights of features (K, d), once components have enough of all rows."""
        k, d = self.n_components, self.n_features
        squares, there = statistic[self.squares], self.there
        if squares.size and self._is_tied:
            squares = squares + missing.sum() * self._of_all_rows
        elif squares.size:
            squares = squares + np.outer(missing, self._of_all_rows).ravel()
        if there is None or not self.is_diagonal:
            return squares, None, 0
        seen = statistic[self.seen].reshape(k, d) + missing[:, None] * there
        extra = np.where(seen < least, 1.0 / self.n_rows - seen, 0.0)
        if squares.size:
            more = extra * np.diagonal(self.second)
            squares = squares + (more.sum(axis=1) if self.is_spherical else more.ravel())
        return squares, seen + extra, int((extra > 0).any(axis=1).sum())

    def start(self, means: Doubles) -> Mixture:
        """Equal weights, means (K, d) in units of fitting, every covariance that of all rows."""
        k = self.n_components
        covariances = self._known
        if covariances is None:
            one = self._of_one()
            copies = 1 if self._is_tied else k
            covariances = np.repeat(one, copies, axis=0) if one.ndim > 1 else np.tile(one, copies)
        return self._mixture(np.full(k, 1.0 / k), np.array(means, dtype=np.float64), covariances)

    def _of_one(self) -> Doubles:
        """Covariance of all rows, laid out as that of one component."""
        one = self.second + np.diag(self.reg_covar)
        if not self.is_diagonal:
            return one.ravel()
        diag = np.diagonal(one)
        if self.is_spherical:
            diag = np.full_like(diag, self._over_features(diag))
        return diag[None].copy()

    def _mixture(self, weights: Doubles, means: Doubles, covariances: Doubles) -> Mixture:
        mixture = Mixture(
            self.blocks, self.covariance_type, weights[None], means, covariances, self.scaling
        )
        if mixture.factors.failed.any():
            raise NumericalError(
                "a covariance is not positive definite although its variances were raised: "
                "features are constant or linearly dependent; try a larger ",
                Setting("reg_covar"),
            )
        return mixture

    def _over_features(self, variances: Doubles) -> Doubles:
        """Mean over the observed values of variances of their features (..., d)."""
        there = self.there
        means: Doubles
        means = variances.mean(axis=-1) if there is None else variances @ there / there.sum()
        return means

    def _variances(
        self, squares: Doubles, n: Doubles, weights: Doubles, means: Doubles, seen: Doubles | None
    ) -> Doubles:
        """Variances (copies, d), or (copies, 1) of spherical covariances, without ``reg_covar``."""
        k, d = self.n_components, self.n_features
        if self._is_tied:
            shares = weights if seen is None else seen / seen.sum(axis=0)
            drop = weights @ means**2 if seen is None else (shares * means**2).sum(axis=0)
            variances: Doubles = (np.diagonal(self.second) - drop)[None]
            return self._over_features(variances)[:, None] if self.is_spherical else variances
        if not self.is_spherical:
            variances = squares.reshape(k, d) / (n[:, None] if seen is None else seen) - means**2
        elif seen is None:
            variances = (squares / n - (means**2).sum(axis=1))[:, None] / d
        else:
            variances = ((squares - (seen * means**2).sum(axis=1)) / seen.sum(axis=1))[:, None]
        return variances

    def at_floor(self, mixture: Mixture) -> Mask:
        """Which components (K,) have variances that are raised to the floor of noisy statistics."""
        most = self.floor * RESTS
        if self.is_diagonal:
            variances = self._own_variances
            smallest = (mixture.covariances / variances).min(axis=1)
            if self.is_spherical:
                smallest = mixture.covariances.min(axis=1) / self._over_features(variances)
        else:
            (matrices,), (into, _) = mixture.covariance_blocks, self._white
            smallest = np.linalg.eigvalsh(into @ matrices @ into.T)[:, 0]
        return np.broadcast_to(smallest <= most, self.n_components)

    def traced(self, parameters: Mixture) -> Mixture:
        return parameters

    def parameters_schema(self) -> As:
        like = self.terms.blank(self.n_components)
        return As(like.schema(), lambda mixture: mixture.arrays(), like.having)
