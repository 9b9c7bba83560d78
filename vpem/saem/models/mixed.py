"""Nonlinear mixed models: a curve of parameters that vary between individuals, measured with error.

``y ~ law(f(t; phi_i))`` and ``phi_i = B c_i + eta_i`` on the scales on which parameters are normal.
Means and covariance of what varies, and variances of errors of one kind, have statistics of an
exponential family. Coefficients of parameters that do not vary, and other variances, have none:
the complete log-likelihood is expanded about the parameters of the moment, to second order with
expected information in place of the second derivative. The coefficients of the expansion are sums
over rows as other statistics are, are averaged over iterations alike, and the M-step is then
Fisher's scoring. At a fixed point the mean score is zero: it is that of the likelihood.

For parameters that do not vary between individuals this is the M-step. For those that do it is a
second one: their means may move with the latents, which stay where they are about them (Yu and Meng
2011 call the first augmentation sufficient and this one ancillary). EM by the first is slow where
rows say little about each individual's parameter, by the second where they say much. The two steps
added up are one of Newton's, where all rows say alike: the covariance of an estimate of a mean is
that of the latents, over the individuals, and the inverse information of the rows.

Curves that have columns are fitted in unrelated ones, see
`vpem.saem.models.population.ColumnFrame`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from vpem._core.latents import Curves, Latents
from vpem.checks import AnyArray, Doubles, Mask
from vpem.errors import InputError, NumericalError, shorten
from vpem.saem.doses import Doses, doses_of
from vpem.saem.individuals import Individuals, Streams
from vpem.saem.models.model import Counts, log_normal, slices_of, times
from vpem.saem.models.outcomes import LINKED, NORMAL, Outcomes
from vpem.saem.models.population import ColumnFrame, PopulationModel, Varying, effect_of
from vpem.saem.structures.formulas import (
    ONE_COMPARTMENT,
    TWO_COMPARTMENTS,
    Compartments,
    LinearPredictor,
    structure_of,
)
from vpem.saem.structures.structure import Structure
from vpem.terms.units import lower_half, symmetric

if TYPE_CHECKING:
    from vpem.saem.conditional import Conditional

MOST_LATENTS = 16
"""Latents that kernels take."""

LEAST_VARIANCE = 0.25
"""Of logarithms, to begin with."""

WIDEST = 1.0
"""Longest step of a coefficient on a logarithmic scale in one iteration."""
FACTOR = 16.0
"""Most by which a variance changes in one iteration."""
SMALLEST = 1e-9
"""Least eigenvalue of the information, in units of the parameters."""


def _outside(law: PopulationModel, theta: Doubles, whole: PopulationModel) -> Doubles:
    """Parameters of a law in a frame as those of the whole one."""
    frame = law.frame
    assert frame is not None
    turn = frame.rows[np.ix_(law.random, law.random)]
    inner, omega = law.unpack(theta)
    k = len(frame.kept)
    outer = frame.rows[:k] @ inner[:, : len(frame.people)] @ frame.people.T
    B = np.zeros(whole.mask.shape)
    B[frame.kept] = outer[:, : B.shape[1]]
    for at, (j, of) in enumerate(frame.moved):
        effect = outer[np.searchsorted(frame.kept, of), B.shape[1] + at]
        B[j, 0] = effect + frame.rows[k + at] @ inner[:, 0]
    rest = theta[len(law.coefficients) + len(law.spreads) :]
    return np.concatenate([whole.pack(B, turn @ omega @ turn.T), rest])


def _within(matrix: Doubles, right: Doubles, free: Mask, least: Doubles, most: Doubles) -> Doubles:
    """Solve equations (s, s) of what is free within bounds; what meets one stays, others follow."""
    step = np.zeros(len(right))
    while free.any():
        part, left = matrix, right
        if not free.all():
            part = matrix[np.ix_(free, free)]
            left = right[free] - matrix[np.ix_(free, ~free)] @ step[~free]
        values, vectors = np.linalg.eigh(part)
        values = np.maximum(values, SMALLEST * max(float(values[-1]), 1.0))
        step[free] = vectors @ ((vectors.T @ left) / values)
        over = free & ((step < least) | (step > most))
        if not over.any():
            break
        step = np.where(over, np.clip(step, least, most), step)
        free = free & ~over
    return step


class MixedModel(Varying):
    """Mixed model of a structure; see this module's first lines.

    Parameters are means of all parameters of the structure on their scales, effects of covariates
    (`vpem.saem.models.population.PopulationModel`), (co)variances of what varies, and standard
    deviations of errors. With a covariate ``outcome`` (codes 0, 1, ...) each outcome has a law of
    its own; with a covariate ``censored`` a value is an upper (1) or lower (-1) limit.

    ``carried`` (q,) are latents that `log_density` has move with their means, about which they stay
    as they are, with a law that is known: those of which rows do not say that they vary.
    """

    outer: Self | None = None  # the model in the user's columns, where this one is in others
    shift: Doubles | float | None = None  # where the user has coefficients begin
    first: Doubles | None = None
    _held: tuple[Doubles | None, bool] = None, False  # a total, and whether it was of latents
    _law: tuple[bytes, Latents | None] = b"", None  # parameters, and the law of latents there
    _constant: tuple[Doubles, tuple[AnyArray, ...], Doses] | None = None  # what laws have of rows

    def __init__(
        self,
        individuals: Individuals,
        structure: Structure,
        error: str | Sequence[str] = "constant",  # of `LAWS`, one for all outcomes or for each
        random: Sequence[str] | None = None,  # None: all vary
        effects: Sequence[str] = (),
        covariance: str = "diagonal",
        first: Sequence[float] | Doubles | None = None,  # (m,) means on their scales; None: by rows
        shift: Doubles | float | None = None,  # (m, L) of `Population`
    ) -> None:
        self.individuals, self.structure = individuals, structure
        structure.check(individuals)
        names = structure.latents
        random = structure.names if random is None else random
        self.law = PopulationModel(individuals, names, random, effects, covariance)
        self.latents = self.law.latents
        self.error = error
        self.first = None if first is None else np.array(first, dtype=np.float64)
        if self.first is not None:
            if self.first.shape != (len(names),):
                raise InputError(f"first must be {', '.join(names)}, got {first!r}")
            if not np.isfinite(self.first).all():
                raise InputError(f"first must be {', '.join(names)}, finite numbers, got {first!r}")
        self.shift = shift
        self.settle(shift)

    def settle(self, shift: Doubles | float | None) -> None:
        """Lay out statistics, and begin about a shift, or about what rows say."""
        individuals, structure, population = self.individuals, self.structure, self.law
        if population.frame is not None and self.columns(individuals).shape[1]:
            self.structure = structure = structure.among(population.names, population.frame.design)
            if not population.mask[population.fixed, 1:].any():
                # Room for columns by which means of latents are carried.
                n = population.n_carried = len(population.random) * len(population.fixed)
                for name in ("mask", "shift", "design"):
                    wide = np.pad(getattr(population, name), ((0, 0), (0, n)))
                    setattr(population, name, wide)
        self.outcomes = Outcomes(individuals, self.error, expanded=bool(len(population.fixed)))
        self.normal_rows = all(kind in NORMAL for kind in self.outcomes.kinds)
        self.found = {"error": list(self.outcomes.kinds)}
        rows = population.places[0]
        linked = not self.outcomes.parameters  # predictors of logits, or of logarithms of means
        # Coefficients on a logarithmic scale, or of a linked predictor; of what does not vary.
        near = np.array([linked or scale != "identity" for scale in structure.scales])[rows]
        self._widest = np.where(near, WIDEST, np.inf)
        self._fixed = np.isin(rows, population.fixed)
        self.parameters = (*population.coefficients, *population.spreads, *self.outcomes.parameters)
        self.n_coefficients = len(population.coefficients)
        s = self._n_scored = len(rows) + len(self.outcomes.scored)
        stays = np.append(self._fixed, np.ones(s - len(rows), dtype=np.bool_))
        self._together = stays[:, None] == stays
        # Parameters and variances, and pairs of them.
        where = np.concatenate([rows, len(structure.names) + np.arange(s - len(rows))])
        one, other = np.tril_indices(s)
        low, high = np.sort([where[one], where[other]], axis=0)
        self._pairs = where, one, other, high * (len(structure.names) + s - len(rows)) + low
        self._slices = slices_of(*self.law.sizes, self.outcomes.size, s, s * (s + 1) // 2)
        self.pieces = tuple(one for one in self._slices if one.stop > one.start)
        self._constant = None if structure.code is None else self._of_rows()
        self._begun: Doubles | None = None
        if shift is None:
            self._begun = self._begin()
            population.shift[:, 0] = individuals.median(self._begun)
        else:
            population.shift[:] = shift

    # ---- unrelated columns -----------------------------------------------------------------------

    def inside(self) -> Self:
        """The model in columns that are unrelated; itself where there are none."""
        data, outer = self.individuals, self.law
        if outer.design.shape[1] == 1 and not self.columns(data).shape[1]:
            return self
        if outer.shrinkage is not None:
            return self  # what is shrunk belongs to the user's columns
        full, L = bool(outer.free.all()), outer.mask.shape[1]
        frame = ColumnFrame(data, self.columns, outer.design, outer.mask, outer.random, full)
        part, law = copy(self), copy(outer)
        part.outer, part.law = self, law
        place = {int(row): at for at, row in enumerate(frame.kept)}
        ends = [(place[row], column, name) for row, column, name in zip(
            *(where.tolist() for where in outer.places), outer.coefficients, strict=True
        ) if row in place]  # fmt: skip
        ends += [(place[k], L + at, outer.names[j]) for at, (j, k) in enumerate(frame.moved)]
        rows, where, law.coefficients = zip(*ends, strict=True)
        law.mask = np.zeros((len(place), L + len(frame.moved)), dtype=np.bool_)
        law.mask[rows, where] = True
        law.frame, law.names = frame, tuple(outer.names[row] for row in frame.kept)
        law.random = np.array([place[row] for row in outer.random.tolist()], dtype=np.intp)
        law.fixed = np.setdiff1d(np.arange(len(place)), law.random)
        law.shift = np.zeros(law.mask.shape)
        law.places = np.array(rows), np.array(where)
        law.design = law.design_of(data)
        c = len(law.coefficients)
        units = np.eye(c, c + len(law.spreads))
        mixed = np.array([_outside(law, one, outer)[:c] for one in units]).T
        B = np.zeros(law.mask.shape)
        B[law.places] = np.linalg.solve(mixed, outer.shift[outer.places])
        part.first = None if self.first is None else B[:, 0]
        begins = self.shift is not None or self.first is not None
        part.settle(B if begins else None)
        return part

    def outside(self, theta: Doubles) -> Doubles:
        return theta if self.outer is None else _outside(self.law, theta, self.outer.law)

    @property
    def jacobian(self) -> Doubles:
        return np.array([self.outside(one) for one in np.eye(len(self.parameters))]).T

    @property
    def turn(self) -> Doubles:
        """By what (q, q) random effects are multiplied outside."""
        if self.law.frame is None:
            return np.eye(len(self.latents))
        return self.law.frame.rows[np.ix_(self.law.random, self.law.random)]

    def shown(self, z: Doubles) -> Doubles:
        if self.outer is None:
            return z
        assert self.theta is not None
        mean, outer = self.law.means(self.law.unpack(self.theta)[0]), self.outer.law
        B = outer.unpack(self.outside(self.theta))[0]
        apart = z - mean[:, self.law.random]
        return outer.means(B)[:, outer.random] + apart @ self.turn.T

    def reported(self, conditional: Conditional) -> Conditional:
        """Latents given rows as they are in the user's columns; ends are already."""
        covariances = np.einsum("ij,njk,lk->nil", self.turn, conditional.covariances, self.turn)
        return replace(conditional, means=self.shown(conditional.means), covariances=covariances)

    # ---- the start -------------------------------------------------------------------------------

    def _begin(self) -> Doubles:
        """Parameters (n, m) of individuals to begin with, on their scales."""
        shape = (self.n, len(self.structure.names))
        if self.first is not None:
            return np.tile(self.first, (self.n, 1))
        phi = np.asarray(self.structure.begin(self.individuals), dtype=np.float64).reshape(shape)
        unknown = ~np.isfinite(phi)
        if not self.individuals.total(~unknown).all():
            raise InputError(
                f"{self.individuals.source}: no individual tells where the parameters "
                f"{', '.join(self.structure.names)} could begin; give the model's option first"
            )
        phi = np.where(unknown, np.nan, phi)
        return np.where(unknown, self.individuals.median(phi), phi)

    def start(self) -> tuple[Doubles, Doubles]:
        """Parameters read from each individual's rows; variances are large at first."""
        data, population = self.individuals, self.law
        sds = self.outcomes.start()
        begun = self._begin() if self._begun is None else self._begun
        middle = population.shift[:, 0]
        near = np.array([scale != "identity" for scale in self.structure.scales])
        z = np.where(near, np.clip(begun, middle - 1.0, middle + 1.0), begun)[:, population.random]
        z = np.ascontiguousarray(z)
        wide = np.where(near, LEAST_VARIANCE, 0.01 * middle**2)[population.random]
        if not self.outcomes.parameters:  # of logits, or logarithms of means
            wide = np.full(len(wide), LEAST_VARIANCE)
        spread = data.mean((z - middle[population.random]) ** 2)
        omega = np.diag(np.maximum(np.maximum(wide, spread), 1e-8))
        theta = np.concatenate([population.pack(population.shift, omega), sds])
        none = ~np.isfinite(self.log_complete(z[None], theta)[0])
        if none.any():
            who = shorten([repr(data.names[one]) for one in np.flatnonzero(none)])
            raise InputError(
                f"{data.source}: rows of {who} have no density where the model begins: the curve "
                "has no value there, or is 0 and its error proportional; leave out such rows, "
                "take another error, or give other means to begin with (first)"
            )
        k = self.outcomes.n_sds
        for _ in range(3 if k else 0):
            model = self.expand_about(theta)
            fitted = model.maximize(data.total(model.statistics(z[None])), self.counts)
            theta = np.concatenate([theta[:-k], fitted[-k:]])
        return theta, z

    # ---- parameters ------------------------------------------------------------------------------

    def of(self, individuals: Individuals, law: PopulationModel) -> Self:
        part = super().of(individuals, law)
        part.outcomes = self.outcomes.for_individuals(individuals)
        part._begun, part._law, part._constant = None, (b"", None), None
        return part

    def __getstate__(self) -> dict[str, object]:
        unsaid = ("_law", "_constant")  # what kernels have of a model
        return {name: value for name, value in self.__dict__.items() if name not in unsaid}

    def unpack(self, theta: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        """Coefficients B (m, L), the covariance (q, q) and standard deviations (k,)."""
        B, omega = self.law.unpack(theta)
        return B, omega, theta[len(theta) - self.outcomes.n_sds :]

    def whole(self, z: Doubles, B: Doubles) -> Doubles:
        """All parameters (chains, n, m) of individuals with latents (chains, n, q)."""
        phi = np.repeat(self.law.means(B)[None], len(z), axis=0)
        phi[..., self.law.random] = z
        return phi

    # ---- the density -----------------------------------------------------------------------------

    def log_complete(self, z: Doubles, theta: Doubles) -> Doubles:
        """Logarithm of the complete density of each individual, (chains, n); -inf: none."""
        B, omega, sds = self.unpack(theta)
        phi = self.whole(z, B)
        f = self.structure.predict(phi, self.individuals)
        each = self.outcomes.by_law(f, lambda one, f: one.log_density(f, sds))
        with np.errstate(all="ignore"):
            mean = self.law.means(B)[:, self.law.random]
            log_density = self.individuals.sums(each) + log_normal(z, mean, omega)
        return np.where(np.isfinite(log_density), log_density, -np.inf)

    def gradient(self, z: Doubles, theta: Doubles) -> Doubles:
        B, omega, sds = self.unpack(theta)
        f, slopes = self.structure.slopes(self.whole(z, B), self.individuals)
        of_f = self.outcomes.by_law(f, lambda one, f: one.bends(f, sds)[0])
        with np.errstate(all="ignore"):
            parts = [self.individuals.sums(of_f * slopes[..., j]) for j in self.law.random]
            mean = self.law.means(B)[:, self.law.random]
            prior = -times(np.linalg.inv(omega), z - mean)  # the gradient of `log_normal`
        return np.stack(parts, axis=-1) + prior

    def kernels(self, theta: Doubles) -> Latents | None:
        """Law of the latents as kernels know it, of structures that they know."""
        code = self.structure.code
        if code is None or len(self.latents) > MOST_LATENTS:
            return None
        about, law = self._law
        if about == theta.tobytes():
            return law
        B, omega, sds = self.unpack(theta)
        whole, data = self.law.means(B), self.individuals
        design, coded, doses = self._constant = self._constant or self._of_rows()
        law = Curves(
            np.ascontiguousarray(whole[:, self.law.random]), np.linalg.inv(omega), code, whole,
            self.law.random, data.first, data.times, design, data.values, *coded,
            self.outcomes.noise(sds), doses.first, *doses.columns,
        )  # fmt: skip
        self._law = (theta.tobytes(), law) if self.theta is not None else self._law
        return law

    def _of_rows(self) -> tuple[Doubles, tuple[AnyArray, ...], Doses]:
        """What a law has of rows at any parameters: columns, outcomes and doses."""
        data = self.individuals
        design = self.columns(data)
        if not design.shape[1]:
            design = np.zeros((0, len(self.structure.names)))
        doses = doses_of(data) if self.structure.dosed else Doses.none(data.n_individuals)
        return design, self.outcomes.coded(), doses

    # ---- statistics ------------------------------------------------------------------------------

    def statistics_by_chain(self, z: Doubles) -> Doubles:
        """Moments of what varies, squares of residuals, and the expansion, (chains, n, P)."""
        assert self.theta is not None, "statistics are about parameters: call expand_about(theta)"
        B, omega, sds = self.unpack(self.theta)
        at, law = self.pack_point(B, sds), self.law
        shares = self._shares(B, omega, sds) if law.n_carried else None
        squares, score, info = self._sums(z, B, sds, shares)
        if shares is not None:
            alone = law.design[:, : -law.n_carried]
            law = law.with_design(np.concatenate([alone, shares.reshape(self.n, -1)], axis=1))
            z = z + np.einsum("njq,j->nq", shares, B[law.fixed, 0])
        scores = self._expansion(score, info, law, at)
        return np.concatenate([law.statistics(z), *squares, *scores], axis=-1)

    def _sums(
        self, z: Doubles, B: Doubles, sds: Doubles, shares: Doubles | None
    ) -> tuple[list[Doubles], Doubles, Doubles]:
        """Squares, score and information of `Outcomes`, with latents that move by shares."""
        assert self.theta is not None
        law, kernel = self.law, self.kernels(self.theta)
        if isinstance(kernel, Curves):
            none = np.empty((self.n, 0, len(law.random)))
            moves = none if shares is None else np.ascontiguousarray(shares)
            fixed = law.fixed[: moves.shape[1]]
            return self.outcomes.by_kernel(kernel, z, moves, fixed, len(self.structure.names))
        f, slopes = self.structure.slopes(self.whole(z, B), self.individuals)
        if shares is not None:
            slopes = np.array(slopes)
            for i, row in enumerate(law.random):
                of_rows = shares[self.individuals.individual_of, :, i]
                for j, column in enumerate(law.fixed):
                    slopes[..., column] -= of_rows[:, j] * slopes[..., row]
        return self.outcomes.squares(f), *self.outcomes.expansion(f, slopes, sds)

    def _shares(self, B: Doubles, omega: Doubles, sds: Doubles) -> Doubles:
        """How far (n, r, q) latents move against a fixed coefficient, for the same rows.

        Where a column differs mostly between individuals, latents given the rows follow its
        coefficient: it moves slowly beside them, and draws hide what rows say of it. Latents that
        are moved by what normal rows would ask for have means that do not follow.
        """
        lower = self._sums(self.law.means(B)[None, :, self.law.random], B, sds, None)[2][0]
        info = np.tril(lower) + np.swapaxes(np.tril(lower, -1), 1, 2)
        inner = info[:, self.law.random[:, None], self.law.random] + np.linalg.inv(omega)
        shares = np.linalg.solve(inner, info[:, self.law.random[:, None], self.law.fixed])
        return np.swapaxes(shares, 1, 2)

    def _carried(self, B: Doubles) -> Doubles:
        """By what (q, n_carried) means of the latents move with the fixed coefficients."""
        q = len(self.law.random)
        return (np.eye(q)[:, None] * B[self.law.fixed, :1]).reshape(q, -1)

    # ---- what is expanded: coefficients of means, then variances that have no statistic ----------

    def pack_point(self, B: Doubles, sds: Doubles) -> Doubles:
        """Where it is (s,): coefficients that are fixed, no move of the others, and variances."""
        coefficients = np.where(self._fixed, B[self.law.places], 0.0)
        return np.concatenate([coefficients, sds[self.outcomes.scored] ** 2])

    def _expansion(
        self, score: Doubles, info: Doubles, law: PopulationModel, at: Doubles
    ) -> list[Doubles]:
        """Coefficients of the expansion: (chains, n, s) and (chains, n, s (s + 1) / 2).

        Of a score (chains, n, w) and information (chains, n, w, w), about ``at`` (s,).
        """
        where, one, other, places = self._pairs
        # By what a coefficient is multiplied in each parameter, and a variance.
        ones = np.ones((len(law.design), len(self.outcomes.scored)))
        by = np.concatenate([law.design[:, law.places[1]], ones], axis=1)
        with np.errstate(all="ignore"):
            second = info.reshape(*score.shape[:2], info.shape[-1] ** 2).take(places, axis=-1)
            second *= by.take(one, axis=-1) * by.take(other, axis=-1)
            first = score.take(where, axis=-1) * by + symmetric(second, self._n_scored) @ at
        if not np.isfinite(second).all():
            raise NumericalError(
                "a curve has no value at simulated parameters; take another start or error"
            )
        return [first, second]

    def _step(self, score: Doubles, half: Doubles, at: Doubles) -> tuple[Doubles, Doubles]:
        """Coefficients (m, L) after a step, how far others move, and variances.

        ``score`` (s,) and ``half`` (s (s + 1) / 2,) are a total of statistics; the expansion is
        about ``at`` (s,), from where steps may not be too long.
        """
        info, floors = symmetric(half, self._n_scored), self.outcomes.floors
        sizes = np.sqrt(np.maximum(info.diagonal(), 0.0))
        known = sizes > 0
        if self.law.shrinkage is not None:  # effects that are shrunk move with the latents alone
            known[: len(self._fixed)] &= self.law.shrinkage.sizes[self.law.places[1]] == 0
        units = np.where(sizes > 0, sizes, 1.0)
        # What is fixed moves given the latents, and means of these given what is fixed: chains
        # that follow slowly would be left behind by a step of both along a ridge.
        alone = np.where(self._together, info / (units[:, None] * units), 0.0)
        c, widest = len(self._fixed), self._widest
        least = np.concatenate([-widest, np.maximum(at[c:] / FACTOR, floors) - at[c:]])
        most = np.concatenate([widest, at[c:] * (FACTOR - 1)])
        apart = (score - info @ at) / units
        step = _within(alone, apart, known, least * units, np.maximum(most, least) * units) / units
        B: Doubles = np.zeros(self.law.mask.shape)
        B[self.law.places] = step[:c] + np.where(self._fixed, at[:c], 0.0)
        return B, np.maximum(at[c:] + step[c:], floors)

    # ---- the M-step ------------------------------------------------------------------------------

    def _taken_apart(self, total: Doubles) -> tuple[Doubles, Doubles, Doubles, Doubles]:
        """Split a total: of latents, squares, and the expansion's (s,) and (s (s + 1) / 2,)."""
        squares, first, second = self._slices[-3:]
        latent = total[..., : squares.start]
        return latent, total[..., squares], total[..., first], total[..., second]

    def maximize(self, total: Doubles, counts: Counts) -> Doubles:
        """Moments of what varies, mean squares, and a step of scoring."""
        assert self.theta is not None, "maximize is about parameters: call expand_about(theta)"
        latent, squares, score, half = self._taken_apart(total)
        before, near, sds = self.unpack(self.theta)
        law, n, sds = self.law, counts.individuals, sds.copy()
        if law.n_carried:
            r, q = len(law.fixed), len(law.random)
            first, second = law.carried(latent, n, before, near)
            info, which = symmetric(half, self._n_scored), np.flatnonzero(self._fixed)
            info[np.ix_(which, which)] += np.einsum("kikljl->ij", second.reshape(q, r, q, q, r, q))
            score, half = score.copy(), lower_half(info)
            score[which] += np.einsum("ikk->i", first.reshape(r, q, q))
        exact = self.outcomes.exact(squares, counts)
        for one, size, rows in exact:
            sds[one.sds] = np.sqrt(max(size / rows if rows else 0.0, one.floor))
        step, variances = self._step(score, half, self.pack_point(before, sds))
        if law.n_carried:
            latent = law.without(latent, n, self._carried(step))
        B, omega, fine = law.maximize(latent, n, near=near)
        fine = fine and all(size >= one.floor * rows for one, size, rows in exact)
        self._held = total, fine
        B[law.fixed] = 0.0
        B += step
        sds[self.outcomes.scored] = np.sqrt(variances)
        return np.concatenate([self.law.pack(B, omega), sds])

    def holds(self, total: Doubles, counts: Counts) -> bool:
        if self._held[0] is not total:
            self.maximize(total, counts)
        return self._held[1]

    def log_density(self, total: Doubles, counts: Counts, theta: Doubles) -> float:
        """Complete log-likelihood of a total of statistics, up to what theta is not in."""
        return float(self._log_densities(total, counts, theta))

    def natural(self, theta: Doubles) -> Doubles:
        return self._log_densities(np.eye(self.size), Counts(0, 0), theta)

    def _log_densities(self, total: Doubles, counts: Counts, theta: Doubles) -> Doubles:
        """Return `log_density` (...) of totals (..., P)."""
        latent, squares, score, half = self._taken_apart(total)
        B, omega, sds = self.unpack(theta)
        moved = np.zeros_like(B)
        if self.carried is not None:
            assert self.theta is not None, "latents move from parameters: call expand_about(theta)"
            before, near, _ = self.unpack(self.theta)
            moved[self.law.random[self.carried]] = (B - before)[self.law.random[self.carried]]
            carried = self.carried[:, None] | self.carried
            B, omega = B - moved, np.where(carried, near, omega)
        if self.law.n_carried:
            B[self.law.random, -self.law.n_carried :] = self._carried(B)
        log_density = self.law.log_density(latent, counts.individuals, B, omega)
        for one, size, rows in self.outcomes.exact(squares, counts):
            variance = float(sds[one.sds][0]) ** 2
            log_density = log_density - 0.5 * (size / variance + rows * np.log(variance))
        at, info = self.pack_point(B, sds), symmetric(half, self._n_scored)
        at[: len(self._fixed)] += moved[self.law.places]
        return np.asarray(log_density + (score @ at - 0.5 * (at @ info @ at)))

    # ---- curves and rows -------------------------------------------------------------------------

    def _curve(self, z: Doubles, at: Individuals) -> tuple[Doubles, Outcomes]:
        """Curves (chains, N) on the scale of the laws, and the outcomes of these rows."""
        assert self.theta is not None, "parameters are those of expand_about(theta)"
        other = self
        if at is not self.individuals:
            self.structure.check(at)
            other = self.of(at, self.law.with_design(self.law.design_of(at)))
        f = self.structure.predict(other.whole(z, self.unpack(self.theta)[0]), at)
        return f, other.outcomes

    def curve(self, z: Doubles, at: Individuals) -> Doubles:
        f, outcomes = self._curve(z, at)
        return outcomes.by_law(f, lambda one, f: one.mean(f))

    def row_sds(self, z: Doubles, theta: Doubles, at: Individuals) -> Doubles:
        """Standard deviation of measurements about the curve; of logarithms, if errors are."""
        f, outcomes = self.expand_about(theta)._curve(z, at)
        sds = self.unpack(theta)[2]
        return outcomes.by_law(f, lambda one, f: one.deviation(f, sds))

    def draw_values(self, z: Doubles, theta: Doubles, stream: Streams, at: Individuals) -> Doubles:
        f, outcomes = self.expand_about(theta)._curve(z, at)
        chances, sds = stream.of_rows(len(z), at.first), self.unpack(theta)[2]
        return outcomes.by_law(f, lambda one, f: one.draw(f, sds, chances[:, one.here]))

    def weighted_residuals(self, z: Doubles, theta: Doubles) -> Doubles:
        """Residuals (chains, N) in units of their sd, NaN of censored rows."""
        f, outcomes = self.expand_about(theta)._curve(z, self.individuals)
        sds = self.unpack(theta)[2]
        residuals = outcomes.by_law(f, lambda one, f: one.residuals(f, sds))
        measured = outcomes.by_law(f, lambda one, _: one.censored == 0) != 0
        return np.where(measured & np.isfinite(residuals), residuals, np.nan)


class _Dosed(MixedModel):
    """Concentrations after doses, in compartments with rates of first order."""

    usual: tuple[str, ...]  # parameters by default
    always = ("dose",)

    def __init__(
        self,
        individuals: Individuals,
        parameters: Sequence[str] | None = None,
        error: str | Sequence[str] = "constant",
        random: Sequence[str] | None = None,
        effects: Sequence[str] = (),
        covariance: str = "diagonal",
        first: Sequence[float] | Doubles | None = None,
        shift: Doubles | float | None = None,
    ) -> None:
        structure = Compartments(parameters, self.usual)
        super().__init__(individuals, structure, error, random, effects, covariance, first, shift)


class OneCompartmentModel(_Dosed):
    """Concentrations in one compartment, after doses that are absorbed, injected or infused.

    Individuals have doses, or the covariate ``dose``, given at time 0. Parameters are those of
    `vpem.saem.structures.formulas.Compartments`, by default ka, cl, ke.
    """

    usual = ONE_COMPARTMENT


class TwoCompartmentModel(_Dosed):
    """Concentrations in the first of two compartments; parameters as of one.

    By default doses are injected or infused, and parameters are cl, v1, q, v2.
    """

    usual = TWO_COMPARTMENTS


class CurveModel(MixedModel):
    """A formula that is known by name, or a function or differential equation of the user's."""

    def __init__(
        self,
        individuals: Individuals,
        curve: str,  # of `vpem.saem.structures.formulas.FORMULAS`, or ``FILE.py:NAME``
        error: str | Sequence[str] = "constant",
        random: Sequence[str] | None = None,
        effects: Sequence[str] = (),
        covariance: str = "diagonal",
        first: Sequence[float] | Doubles | None = None,
        shift: Doubles | float | None = None,
    ) -> None:
        super().__init__(
            individuals, structure_of(curve), error, random, effects, covariance, first, shift
        )


class GeneralizedLinearModel(MixedModel):
    """Linear predictors of yes and no (logit), of counts (logarithm), or of values with any error.

    Slopes, random, effects and covariance are as of `vpem.saem.models.linear.LinearModel`.
    """

    def __init__(
        self,
        individuals: Individuals,
        slopes: Sequence[str] = ("time",),
        random: Sequence[str] | None = None,
        effects: Sequence[str] = (),
        covariance: str = "full",
        error: str | Sequence[str] = "bernoulli",
        first: Sequence[float] | Doubles | None = None,
        shift: Doubles | float | None = None,
    ) -> None:
        kinds = [error] if isinstance(error, str) else error
        linked = any(kind in LINKED for kind in kinds)
        structure = LinearPredictor(slopes, linked=linked)
        called = dict(zip(("intercept", *slopes), structure.names, strict=True))
        vary = None if random is None else [called.get(one, one) for one in random]
        named = [effect_of(one, called) for one in effects]
        super().__init__(individuals, structure, error, vary, named, covariance, first, shift)
