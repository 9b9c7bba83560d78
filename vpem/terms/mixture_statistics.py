"""A Gaussian mixture as a model of mean statistics: what FedEM sends, and its map to parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem._core.sweep import sweep
from vpem.errors import InputError, NumericalError, Setting, check_choice
from vpem.network.blocks import Blocks
from vpem.network.schema import Schema, State
from vpem.settings import COVARIANCE_TYPES
from vpem.terms.covariances import is_diagonal, is_tied
from vpem.terms.features import NEGLIGIBLE
from vpem.terms.matrices import are_positive, symmetric, white_units
from vpem.terms.mixture import Mixture
from vpem.terms.mixture_states import mixture_schema, mixture_state
from vpem.terms.scaling import Scaling

__all__ = ["FLOOR", "MixtureStatistics"]

Vector = NDArray[np.float64]

FLOOR = 1e-4
"""Least variance in any direction, relative to the features' own variances, where statistics are
noisy: noise can ask for less, or for a negative one."""

LEAST = 1e-12
"""The same where they are exact, for what rounding has left without variance."""

EMPTY = 1e-10
"""Rows that a component has at least, where statistics are exact."""

WORTH_THREADS = 1 << 19
"""Values times components from which on a pass is worth more than one thread."""


class MixtureStatistics:
    """Mean statistics of a Gaussian mixture whose rows are held by workers.

    With a covariance a component the statistic is ``(mean g_k, mean g_k y, mean g_k y y^T)``, of
    symmetric matrices the lower half; for "diag" ``mean g_k y^2`` and for "spherical"
    ``mean g_k |y|^2``. With one covariance for all, or a known one, it is ``(mean g_k,
    mean g_k y)``: ``mean y y^T`` does not depend on parameters and is known from the setup
    (Dieuleveut et al. 2021, F.1). y is in the units of fitting, which are about the mean.

    Parameters
    ----------
    X : ndarray of shape (M, d)
        In the units of fitting, worker by worker, float64 and contiguous.
    runs : sequence of slice
        Where each worker's rows are; n.
    n_components : int
        K.
    covariance_type : str
        One of `vpem.settings.COVARIANCE_TYPES`.
    scaling : Scaling
        How the units of fitting come from the user's.
    second : ndarray of shape (d, d)
        ``mean y y^T`` over all rows, each weighing as in the algorithm's means.
    reg_covar : float
        Added to the diagonal of every covariance.
    known : ndarray of shape (d, d) or (K, d, d), optional
        Covariances in the user's units that are not estimated; the covariance type is then "tied"
        or "full".
    floor : float
        Least variance in any direction, relative to the features' own variances. 0: statistics are
        exact, and only those that no rows can have are projected.
    radius : float, optional
        Distance of the row farthest from the mean in the metric of the covariance of all rows,
        where it was found by the workers; None: of ``X``.
    n_threads : int
        Threads of the kernels.
    counts : ndarray of shape (n,), optional
        Rows of each worker of all processes, of which this one has those that ``runs`` are not
        empty of; None: it has all.

    Raises
    ------
    InputError
        If the covariances given are not positive definite, or of another shape.
    NumericalError
        If a feature is constant and ``reg_covar`` is 0.

    Attributes
    ----------
    size : int
        Numbers of a statistic, P.
    pieces : tuple of slice
        Weights, first moments, second moments of each component: each has a scale of its own where
        statistics are quantized.
    counts : ndarray of shape (n,)
        Rows of each worker.
    """

    def __init__(
        self,
        X: Vector,
        runs: Sequence[slice],
        n_components: int,
        covariance_type: str,
        *,
        scaling: Scaling,
        second: Vector,
        reg_covar: float = 1e-6,
        known: ArrayLike | None = None,
        floor: float = FLOOR,
        radius: float | None = None,
        n_threads: int = 1,
        counts: NDArray[np.intp] | None = None,
    ) -> None:
        check_choice("covariance_type", covariance_type, COVARIANCE_TYPES)
        self.X = np.ascontiguousarray(X, dtype=np.float64)
        self.runs = list(runs)
        self.n_components = k = n_components
        self.n_features = d = X.shape[1]
        self.covariance_type = covariance_type
        self.scaling = scaling
        self.blocks = Blocks((np.arange(d, dtype=np.intp),), (0,), (tuple(range(len(self.runs))),))
        self.reg_covar = reg_covar
        self.floor = floor
        self.second = second
        self.n_threads = n_threads
        here = np.array([run.stop - run.start for run in self.runs], dtype=np.intp)
        self.counts = here if counts is None else counts
        self.n_samples = int(self.counts.sum())
        self.own = np.flatnonzero(here)
        """Workers with rows in this process."""
        self.add_up: Callable[[float], float] = float
        """What all processes have together, from what is here."""
        self.log_constant = -0.5 * d * np.log(2 * np.pi) - float(np.log(scaling.scale).sum())
        self._is_tied, self._is_diagonal = is_tied(covariance_type), is_diagonal(covariance_type)
        self._is_spherical = covariance_type.endswith("spherical")
        self._own_variances = np.diagonal(second) + reg_covar
        if not (self._own_variances > 0).all():
            raise NumericalError(
                f"feature {int(np.argmin(self._own_variances))} is constant, so that its variance "
                "is none; try a larger ",
                Setting("reg_covar"),
            )
        self._white = white_units(second + reg_covar * np.eye(d))
        self._metric = np.linalg.pinv(second + reg_covar * np.eye(d), hermitian=True)
        if radius is None:
            radius = float(np.sqrt(self._squared_norms(self.X).max(initial=0.0)))
        self.radius = radius
        self._known = None if known is None else self._take_known(known)
        widths = [k, k * d]
        if known is None and not self._is_tied:
            each = 1 if self._is_spherical else d if self._is_diagonal else d * (d + 1) // 2
            widths += [each] * k if each > 1 else [k]
        ends = np.cumsum([0, *widths]).tolist()
        self.pieces = tuple(slice(*pair) for pair in pairwise(ends))
        self.size = int(ends[-1])
        self._lower = np.tril_indices(d)
        self._of_all_rows = self._second_moments(second)
        self._passes: dict[int, tuple[Mixture, Vector, float]] = {}

    def _second_moments(self, matrix: Vector) -> Vector:
        """Return what a component's piece of the statistic has of second moments (d, d)."""
        if self._is_spherical:
            return np.array([np.trace(matrix)])
        return np.diagonal(matrix) if self._is_diagonal else matrix[self._lower]

    def expect(self, worker: int, parameters: Mixture, rows: NDArray[np.intp] | None) -> Vector:
        """Mean expected statistic (P,) of some of a worker's rows, or of all."""
        own = self.X[self.runs[worker]]
        if not len(own):
            return np.zeros(self.size)  # Of another process.
        if rows is not None:
            return self._pass(own[rows], parameters)[0]
        return self._whole(worker, parameters)[0]

    def objective(self, parameters: Mixture) -> float:
        """Log-likelihood per sample of all rows, in the user's units."""
        found = self.add_up(sum(self._whole(int(i), parameters)[1] for i in self.own))
        return float(found / self.n_samples + self.log_constant)

    def pack(self, parameters: Mixture) -> State:
        """Parameters as arrays."""
        return mixture_state(parameters)

    def packed(self) -> Schema:
        """Return what these must be."""
        return mixture_schema(self.blocks, self.covariance_type, self.n_components)

    def unpack(self, state: State) -> Mixture:
        """Parameters of these arrays."""
        return Mixture(self.blocks, self.covariance_type, **state, scaling=self.scaling)

    def state(self) -> State:
        """Nothing: an M-step depends on its statistic alone."""
        return {}

    def schema(self) -> Schema:
        """Return what that must be."""
        return {}

    def restore(self, state: State) -> None:
        """Go on from there."""

    def _whole(self, worker: int, parameters: Mixture) -> tuple[Vector, float]:
        """Statistic and log-likelihood of a worker's rows, kept until other parameters come."""
        kept = self._passes.get(worker)
        if kept is None or kept[0] is not parameters:
            found = self._pass(self.X[self.runs[worker]], parameters)
            kept = self._passes[worker] = (parameters, *found)
        return kept[1], kept[2]

    def _pass(self, rows: Vector, mixture: Mixture) -> tuple[Vector, float]:
        """Statistic (P,) and log-likelihood, without its constant, of some rows."""
        k, d = self.n_components, self.n_features
        factors = mixture.factors
        means = factors.means
        copies = mixture.n_copies
        with np.errstate(divide="ignore"):
            log_weights = np.log(mixture.weights)
        counts, first = np.zeros((1, k)), np.zeros((k, d))
        second = np.zeros(copies * (d if mixture.is_diagonal else d * d))
        found = sweep(
            rows,
            np.zeros(0),
            self.blocks.offsets,
            means,
            factors.inverse.reshape(-1),
            mixture.is_diagonal,
            factors.log_dets,
            np.ones((1, 1)),
            log_weights,
            counts,
            first,
            second,
            NEGLIGIBLE / self.n_samples,
            self.n_threads if rows.size * k >= WORTH_THREADS else 1,
        )
        n = counts[0]
        # Moments are about the means; statistics are about zero.
        raw = first + n[:, None] * means
        parts = [n, raw.ravel()]
        if self.size > k + k * d:
            if self._is_diagonal:
                squares = second.reshape(k, d) + means * (first + raw)
                parts.append(squares.sum(axis=1) if self._is_spherical else squares.ravel())
            else:
                left, right = self._lower
                squares = second.reshape(k, d, d)[:, left, right]
                # Symmetric all the same: t' = t + n m, so that m t^T + t' m^T is its transpose.
                squares = (
                    squares + means[:, left] * first[:, right] + raw[:, left] * means[:, right]
                )
                parts.append(squares.ravel())
        return np.concatenate(parts) / len(rows), float(found[0])

    def assigned(self, worker: int, labels: NDArray[np.integer]) -> Vector:
        """Mean statistic (P,) of a worker's rows that each belong to one component (m_i,)."""
        rows = self.X[self.runs[worker]]
        k, d = self.n_components, self.n_features
        n = np.bincount(labels, minlength=k)
        first, second = np.zeros((k, d)), []
        for component in range(k):
            own = rows[labels == component]
            first[component] = own.sum(axis=0)
            second.append(self._second_moments(own.T @ own))
        every = np.concatenate([n, first.ravel(), *second])
        return np.asarray(every[: self.size] / len(rows))

    def maximize(self, statistic: Vector, root: int = 0) -> tuple[Mixture, int]:
        """Mixture of a statistic (P,), and how many of its parts had to be projected.

        * A weight below that of one row is raised to it, by so much of all rows together: a
          component that noise has emptied comes back as a wide one. With ``floor`` 0 only one of
          no rows.
        * A mean farther out than any row, in the metric of the data's covariance, is drawn in.
        * Of a covariance with variances (in any direction) below ``floor`` times the features'
          own, these are raised to that; where there are negative ones, as noise of that size makes
          them, to the size of the most negative. With ``floor`` 0 only those are raised.
        """
        k, d = self.n_components, self.n_features
        least = (1.0 if self.floor > 0 else EMPTY) / self.n_samples
        n = np.where(statistic[:k] < least, 1.0 / self.n_samples, statistic[:k])
        missing = n - statistic[:k]
        weights = n / n.sum()
        means = statistic[k : k + k * d].reshape(k, d) / n[:, None]
        distances = np.sqrt(self._squared_norms(means))
        outside = distances > self.radius * (1 + 1e-9)
        means[outside] *= (self.radius / distances[outside])[:, None]
        projected = int((missing > 0).sum() + outside.sum())
        if self._known is not None:
            covariances = self._known
        else:
            squares = statistic[k + k * d :]
            if squares.size:
                squares = squares + np.outer(missing, self._of_all_rows).ravel()
            covariances, raised = self._covariances(squares, n, weights, means)
            projected += raised
        return self._mixture(weights, means, covariances), projected

    def _squared_norms(self, points: Vector) -> Vector:
        """Squared lengths of points (m, d), in the metric of the data's covariance."""
        found: Vector = np.einsum("ij,ij->i", points @ self._metric, points)
        return np.maximum(found, 0.0)

    def start(self, means: Vector) -> Mixture:
        """Equal weights, means (K, d) in units of fitting, every covariance that of all rows."""
        k = self.n_components
        if self._known is not None:
            covariances = self._known
        else:
            one = self.second + self.reg_covar * np.eye(self.n_features)
            copies = 1 if self._is_tied else k
            if self._is_diagonal:
                own = np.diagonal(one)
                own = np.full_like(own, own.mean()) if self._is_spherical else own
                covariances = np.repeat(own[None], copies, axis=0)
            else:
                covariances = np.tile(one.ravel(), copies)
        return self._mixture(np.full(k, 1.0 / k), np.array(means, dtype=np.float64), covariances)

    def _mixture(self, weights: Vector, means: Vector, covariances: Vector) -> Mixture:
        made = Mixture(
            self.blocks, self.covariance_type, weights[None], means, covariances, self.scaling
        )
        if made.factors.failed.any():
            raise NumericalError(
                "a covariance is not positive definite although its variances were raised: "
                "features are constant or linearly dependent; try a larger ",
                Setting("reg_covar"),
            )
        return made

    def _covariances(
        self, squares: Vector, n: Vector, weights: Vector, means: Vector
    ) -> tuple[Vector, int]:
        """Covariances as a `Mixture` wants them, and how many had to be projected."""
        k, d = self.n_components, self.n_features
        if self._is_diagonal:
            if self._is_tied:
                variances = (np.diagonal(self.second) - weights @ means**2)[None]
            elif self._is_spherical:
                variances = (squares / n - (means**2).sum(axis=1))[:, None] / d
            else:
                variances = squares.reshape(k, d) / n[:, None] - means**2
            if self._is_spherical:
                variances = np.repeat(variances.mean(axis=1, keepdims=True), d, axis=1)
            own = self._own_variances
            own_or_mean = own.mean() if self._is_spherical else own
            ratios = (variances + self.reg_covar) / own_or_mean
            smallest = ratios.min(axis=1, keepdims=True)
            least = np.maximum(self.floor or LEAST, -smallest)
            low = (smallest[:, 0] < self.floor) | (smallest[:, 0] <= 0)
            variances = variances + self.reg_covar
            variances[low] = (np.maximum(ratios, least) * own_or_mean)[low]
            return variances, int(low.sum())
        if self._is_tied:
            matrices = (self.second - (weights * means.T) @ means)[None]
        else:
            matrices = symmetric(squares.reshape(k, -1) / n[:, None], d)
            matrices -= means[:, :, None] * means[:, None, :]
        matrices = matrices + self.reg_covar * np.eye(d)
        matrices, raised = self._raise(matrices)
        return matrices.ravel(), raised

    def _raise(self, matrices: Vector) -> tuple[Vector, int]:
        """Raise small eigenvalues of matrices (n, d, d), in units in which the data are white."""
        if self.floor == 0 and are_positive(matrices):
            return matrices, 0
        into, back = self._white
        white = into @ matrices @ into.T
        if not are_positive(white - self.floor * np.eye(len(into))):
            values, vectors = np.linalg.eigh(white)
            small = ((values < self.floor) | (values <= 0)).any(axis=1)
            least = np.maximum(self.floor or LEAST, -values[small, :1])
            values = np.maximum(values[small], least)
            roots = back @ (vectors[small] * np.sqrt(values)[:, None])
            matrices[small] = roots @ roots.swapaxes(1, 2)
            return matrices, int(small.sum())
        return matrices, 0

    def _take_known(self, known: ArrayLike) -> Vector:
        """Covariances that the user knows, in the units of fitting."""
        given = np.asarray(known, dtype=np.float64)
        k, d = self.n_components, self.n_features
        wanted = {"tied": (d, d), "full": (k, d, d)}.get(self.covariance_type)
        if given.shape != wanted:
            raise InputError(
                f"known covariances are of shape ({d}, {d}) with covariance type tied or "
                f"({k}, {d}, {d}) with full, got shape {given.shape} with {self.covariance_type}"
            )
        given = given / np.outer(self.scaling.scale, self.scaling.scale)
        good = np.isfinite(given).all() and np.allclose(given, given.swapaxes(-1, -2))
        if not good or np.linalg.eigvalsh(given).min() <= 0:
            raise InputError("known covariances must be symmetric and positive definite")
        return given.ravel()
