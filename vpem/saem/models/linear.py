"""Lines and planes whose coefficients vary between individuals, or do not.

Their random effects may be integrated out: maximum, information and tests are then by formula.
``y_i ~ N(M_i g, Z_i Omega Z_i^T + s I)``, with ``Omega = L L^T``. Devices add up the log-likelihood
and its derivatives, and steps of Newton's method in g, L and log s are made of the totals. In L a
variance of zero is no edge: where it is best, its derivative vanishes there. Columns are mixed
until they are unrelated, so that neither units nor places (years, say) of covariates matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from vpem._core.latents import Lines
from vpem.checks import Doubles, Indices
from vpem.errors import InputError, check_choice
from vpem.saem.conditional import Certainty
from vpem.saem.individuals import Individuals
from vpem.saem.models.model import (
    LEAST,
    LOG_2_PI,
    Counts,
    crossed,
    floored,
    known_scale,
    log_normal,
    quadratic,
    slices_of,
    times,
)
from vpem.saem.models.population import PopulationModel, Varying, effect_of
from vpem.saem.structures.formulas import LinearPredictor
from vpem.terms.units import lower_half, symmetric

MOST_SLOPES = 16
"""Latents that the kernel takes."""
STEPS = 100
PASSES = 3
"""Of making columns unrelated, for what rounding left."""
CLOSE = 1e-18
"""Square of a last step, in standard errors."""
FLAT = 1e-9
"""Eigenvalue of the information, in units of its diagonal, below which there is none."""
LEAST_SCATTER = 0.01
"""Of random effects' variances to begin with, in residual variances."""
NOTHING = 1e-6
"""Random effect as good as none, in residual standard deviations."""


@dataclass(frozen=True)
class Integrated:
    """What formulas say of a linear model.

    Variances that are at their bound have no information, and are known for the others. Errors by
    which coefficients are tested are by the variances of restricted maximum likelihood, with
    Satterthwaite's degrees of freedom.
    """

    theta: Doubles  # (p,)
    far: float  # from the maximum, in standard errors; NaN: not looked for, or not found
    certain: Certainty
    each: Doubles  # (n,) log-likelihoods of the individuals


class _Sums(NamedTuple):
    """The log-likelihood and its derivatives in g (P,), and in Omega's entries and s (K,)."""

    value: float
    of_g: Doubles
    of_spread: Doubles
    gg: Doubles
    gs: Doubles
    quadratic: Doubles  # r' V^-1 V_k V^-1 V_l V^-1 r
    traces: Doubles  # tr(V^-1 V_k V^-1 V_l) / 2
    turns: Doubles  # M' V^-1 V_k V^-1 M, (K, P, P)
    each: Doubles


class _Point(NamedTuple):
    """Coefficients g (P,), the root L (q, q), and the residual variance s."""

    g: Doubles
    L: Doubles
    s: float


class _Lines:
    """The marginal law of the rows of a linear model, in columns that are unrelated."""

    def __init__(self, model: LinearModel) -> None:
        self.data, self.law, self.floor = model.individuals, model.law, model.least
        design = model.columns(self.data)
        rows, columns = self.law.places
        M = design[:, rows] * self.law.design[self.data.individual_of][:, columns]
        Z = design[:, self.law.random]
        self.mixed = bool(self.law.free.all())
        self.S, self.T = _unrelated(self.data, M, True), _unrelated(self.data, Z, self.mixed)
        self.M, self.Z = M @ self.S, Z @ self.T
        self.ZF = crossed(self.data, self.Z, np.hstack([self.Z, self.M]))
        q = Z.shape[1]
        self.entries = [(i, j) for i in range(q) for j in range(i + 1) if self.law.free[i, j]]
        self.rows, self.columns = np.array(self.entries).T
        self.basis = np.zeros((len(self.entries), q, q))  # ones at an entry, symmetric
        for unit, (i, j) in zip(self.basis, self.entries, strict=True):
            unit[i, j] = unit[j, i] = 1.0
        self.size = self.n_sums = 0

    # ---- sums ------------------------------------------------------------------------------------

    def evaluate_at(self, now: _Point) -> _Sums:
        """Add up the log-likelihood and its derivatives over all individuals."""
        data, Z, M, (g, L, s) = self.data, self.Z, self.M, now
        q, P, G, who = Z.shape[1], M.shape[1], self.basis, data.individual_of
        r = data.values - M @ g
        ZX = np.concatenate([self.ZF, crossed(data, Z, r[:, None])], axis=2)
        C = ZX[:, :, :q]
        K = s * np.eye(q) + L.T @ C @ L
        inverse = np.linalg.inv(K)
        W = L @ inverse @ L.T
        back = W @ ZX
        E = np.hstack([Z, M, r[:, None]])  # becomes V^-1 of it
        for j in range(q):
            E -= Z[:, j, None] * back[who, j]
        E /= s
        ends = (ZX - C @ back) / s
        A, B, u = ends[:, :, :q], ends[:, :, q : q + P], ends[:, :, -1]
        ends = crossed(data, E[:, :q], E)
        A2, w = ends[:, :, :q], ends[:, :, -1]
        of_M = crossed(data, E[:, q:], E[:, q:])  # squares of V^-1 [M, r]
        MM, Me, ee = of_M[:, :P, :P], of_M[:, :P, -1], of_M[:, -1, -1]
        v = (inverse @ (L.T @ ZX[:, :, -1:]))[..., 0]
        beside = data.counts - q
        logs = beside * np.log(s) + np.linalg.slogdet(K)[1]
        each = -0.5 * (data.counts * LOG_2_PI + logs + s * ee + (v**2).sum(axis=1))
        Gu, AG = np.einsum("kab,nb->nka", G, u), np.einsum("nab,kbc->nkac", A, G)
        score = np.column_stack([
            (np.einsum("nka,na->nk", Gu, u) - np.einsum("nkaa->nk", AG)) / 2,
            (ee - beside / s - np.einsum("naa->n", inverse)) / 2,
        ])  # fmt: skip
        squares = _bordered(
            np.einsum("nka,nab,nlb->nkl", Gu, A, Gu), np.einsum("nka,na->nk", Gu, w),
            (ee - np.einsum("na,nab,nb->n", u, W, u)) / s,
        )  # fmt: skip
        traces = _bordered(
            np.einsum("nkab,nlba->nkl", AG, AG), np.einsum("nab,kba->nk", A2, G),
            beside / s**2 + np.einsum("nab,nba->n", inverse, inverse),
        )  # fmt: skip
        beside_g = np.concatenate([np.einsum("nap,nka->npk", B, Gu), Me[..., None]], axis=2)
        i, j = self.rows, self.columns
        turns = B[:, i, :, None] * B[:, j, None, :]
        turns += np.where((i != j)[:, None, None], np.swapaxes(turns, 2, 3), 0.0)
        turns = np.concatenate([turns, MM[:, None]], axis=1)
        n, K1 = len(each), len(G) + 1
        turns = lower_half(turns).reshape(n, K1 * P * (P + 1) // 2)
        parts = [
            each[:, None], crossed(data, M, E[:, -1:])[..., 0], score,
            lower_half(crossed(data, M, E[:, q : q + P])), beside_g.reshape(n, K1 * P),
            lower_half(squares), lower_half(traces / 2), turns,
        ]  # fmt: skip
        # What there is of each individual, side by side: all a device sends.
        total = data.total(np.concatenate(parts, axis=1))
        self.size, self.n_sums = len(total), self.n_sums + 1
        cuts = np.cumsum([part.shape[1] for part in parts])[:-1]
        value, of_g, of_spread, gg, gs, two, half, turned = np.split(total, cuts)
        return _Sums(
            float(value[0]), of_g, of_spread, symmetric(gg, P), gs.reshape(P, K1),
            symmetric(two, K1), symmetric(half, K1),
            np.array([symmetric(one, P) for one in turned.reshape(K1, -1)]), each,
        )  # fmt: skip

    # ---- the maximum -----------------------------------------------------------------------------

    def inside(self, theta: Doubles) -> _Point:
        B, omega = self.law.unpack(theta)
        inner = np.linalg.solve(self.T, np.linalg.solve(self.T, omega).T)
        values, vectors = np.linalg.eigh((inner + inner.T) / 2)
        root = np.linalg.qr((vectors * np.sqrt(np.maximum(values, 0.0))).T)[1].T
        g = np.asarray(np.linalg.solve(self.S, B[self.law.places]), np.float64)
        return _Point(g, root, float(theta[-1]))

    def slopes(self, now: _Point) -> Doubles:
        """Slopes (K, d) of Omega's entries and s, in L's entries and log s."""
        slopes = np.zeros((len(self.entries) + 1, len(self.entries) + 1))
        i, j, L = self.rows, self.columns, now.L
        slopes[:-1, :-1] = np.where(i[:, None] == i, L[j[:, None], j], 0.0)
        slopes[:-1, :-1] += np.where(j[:, None] == i, L[i[:, None], j], 0.0)
        slopes[-1, -1] = now.s
        return slopes

    def bend(self, now: _Point, sums: _Sums, restricted: bool) -> tuple[float, Doubles, Doubles]:
        """Value, gradient and information in (g, L, log s).

        Restricted: of the likelihood that is integrated over g too. Its information is the average
        of observed and expected (Gilmour, Thompson and Cullis 1995).
        """
        value, score, middle = sums.value, sums.of_spread, sums.quadratic - sums.traces
        if restricted:
            inverse = np.linalg.inv(sums.gg)
            value -= np.linalg.slogdet(sums.gg)[1] / 2
            score = score + np.einsum("pr,kpr->k", inverse, sums.turns) / 2
            middle = (sums.quadratic + sums.gs.T @ inverse @ sums.gs) / 2
        J = self.slopes(now)
        middle = J.T @ middle @ J
        i, j = self.rows, self.columns
        of_omega = np.zeros(now.L.shape)
        of_omega[i, j] = of_omega[j, i] = score[:-1] / np.where(i == j, 1, 2)
        middle[:-1, :-1] -= np.where(j[:, None] == j, 2 * of_omega[i[:, None], i], 0.0)
        middle[-1, -1] -= score[-1] * now.s
        return value, np.append(sums.of_g, J.T @ score), _joined(sums.gg, sums.gs @ J, middle)

    def maximum(self, now: _Point, restricted: bool) -> tuple[_Point, _Sums, float]:
        """Go to the maximum; how far it still is, in standard errors, NaN if it is not found."""
        P, last, damping, widened = len(now.g), np.inf, 0.0, False
        sums = self.evaluate_at(now)
        value, slope, bend = self.bend(now, sums, restricted)
        for _ in range(STEPS):
            units = 1 / np.sqrt(np.maximum(np.abs(np.diag(bend)), 1e-300))
            values, vectors = np.linalg.eigh(bend * np.outer(units, units))
            sizes = np.maximum(np.abs(values), FLAT) + damping
            step = units * (vectors @ ((vectors.T @ (slope * units)) / sizes))
            step /= max(1.0, abs(float(step[-1])))
            gain = float(slope @ step)
            if gain < CLOSE or CLOSE < last / 4 < gain < 1e-9:  # or all that rounding lets
                if values[0] > -NOTHING or widened:
                    return now, sums, float(np.sqrt(max(gain, 0.0)))
                # A variance of zero where one above is better.
                now, widened, last = _wider(now), True, np.inf
                sums = self.evaluate_at(now)
                value, slope, bend = self.bend(now, sums, restricted)
                continue
            root = now.L.copy()
            for at, one in enumerate(self.entries):
                root[one] += step[P + at]
            there = _Point(now.g + step[:P], root, now.s * float(np.exp(step[-1])))
            if not there.s > self.floor:
                break
            sums_there = self.evaluate_at(there)
            ahead = self.bend(there, sums_there, restricted)
            if not ahead[0] >= value - 1e-9 * max(1.0, abs(value)):
                damping = max(10 * damping, 1e-3)
                continue
            damping = damping / 10 if damping > 1e-8 else 0.0
            last, now, sums, (value, slope, bend) = gain, there, sums_there, ahead
        return now, sums, float("nan")

    # ---- what it says ----------------------------------------------------------------------------

    def outside(self, now: _Point) -> tuple[Doubles, Doubles, Doubles]:
        """Parameters theta (p,), what they are multiplied by (p, p), and the slopes of theta.

        By the first, numbers (g, Omega's entries, s) are theta; slopes (p, d) are in (g, L, log s).
        """
        P, K = len(now.g), len(self.entries) + 1
        B = np.zeros(self.law.mask.shape)
        B[self.law.places] = self.S @ now.g
        root = self.T @ now.L
        theta = np.append(self.law.pack(B, floored(root @ root.T)), now.s)
        to, moves = np.zeros((P + K, P + K)), np.eye(P + K)
        to[:P, :P], to[-1, -1], moves[P:, P:] = self.S, 1.0, self.slopes(now)
        for at, unit in enumerate(self.basis):
            whole = self.T @ unit @ self.T.T
            to[P:-1, P + at] = [whole[one] for one in self.entries]
        return theta, to, to @ moves

    def tests(self, now: _Point, sums: _Sums) -> tuple[Doubles, Doubles]:
        """Standard errors (P,) of coefficients, and degrees of freedom of their t laws.

        Satterthwaite's: those of a law of squares whose variance is that of the error's square.
        """
        P, J = len(now.g), self.slopes(now)
        bend = self.bend(now, sums, True)[2]
        spread = J @ _inverse(bend, np.eye(len(bend)))[P:, P:] @ J.T
        by = self.S @ np.linalg.inv(sums.gg)
        squares = np.einsum("ip,ip->i", by, self.S)
        slopes = np.einsum("ip,kpr,ir->ik", by, sums.turns, by)
        wide = np.einsum("ik,kl,il->i", slopes, spread, slopes)
        known = wide > 0
        least = max(1.0, self.data.number[0] - P)  # where variances' information is singular
        freedom = np.where(known, 2 * squares**2 / np.where(known, wide, 1.0), least)
        return np.sqrt(squares), freedom


def _inverse(bend: Doubles, moves: Doubles) -> Doubles:
    """Covariance (p, p) of numbers with slopes ``moves`` (p, d); NaN where rows say nothing."""
    units = 1 / np.sqrt(np.maximum(np.abs(np.diag(bend)), 1e-300))
    values, vectors = np.linalg.eigh(bend * np.outer(units, units))
    turned = (moves * units) @ vectors
    known = values > FLAT
    sizes = np.linalg.norm(moves * units, axis=1, keepdims=True)
    lost = (np.abs(turned[:, ~known]) > NOTHING * sizes).any(axis=1)
    root = turned[:, known] / np.sqrt(values[known])
    covariance = root @ root.T
    covariance[lost] = covariance[:, lost] = np.nan
    return np.asarray(covariance)


def _unrelated(data: Individuals, columns: Doubles, mixed: bool) -> Doubles:
    """The matrix that makes columns (N, p) unrelated, of mean squares 1; or only this."""
    matrix = np.eye(columns.shape[1])
    for _ in range(PASSES if mixed else 1):
        now = columns @ matrix
        squares = data.total(crossed(data, now, now)) / data.everyone[1]
        units = np.sqrt(np.diag(squares))
        if not (units > 0).all():
            raise np.linalg.LinAlgError("a column is zero")
        root = np.diag(units)
        if mixed:
            root = units[:, None] * np.linalg.cholesky(squares / np.outer(units, units))
        matrix = matrix @ np.linalg.inv(root).T
    return matrix


def _wider(now: _Point) -> _Point:
    """Random effects that vary in all directions."""
    wide = now.L @ now.L.T + LEAST_SCATTER * now.s * np.eye(len(now.L))
    return now._replace(L=np.asarray(np.linalg.cholesky(wide), np.float64))


def _joined(first: Doubles, beside: Doubles, last: Doubles) -> Doubles:
    """Symmetric matrix of two on its diagonal, and what is beside the first."""
    return np.vstack([np.hstack([first, beside]), np.hstack([beside.T, last])])


def _bordered(inner: Doubles, beside: Doubles, corner: Doubles) -> Doubles:
    """Matrices (n, K + 1, K + 1) of matrices (n, K, K), a last row (n, K), and a corner (n,)."""
    last = np.column_stack([beside, corner])[:, None]
    return np.concatenate([np.concatenate([inner, beside[..., None]], axis=2), last], axis=1)


class LinearModel(Varying):
    """Linear mixed model: ``y_i = Z_i z_i + X_i b + e`` with ``z_i ~ N(B c_i, Omega)``.

    Coefficients z vary between individuals, coefficients b do not. Parameters are the means of z,
    b, effects of covariates on means, the lower triangle of Omega, and the residual variance.
    Statistics are those of `Population`, ``X^T e`` (and ``X^T X``) where there is a b, and the
    residual sum of squares; residuals are about a first b and z about a first mean, so that little
    cancels where statistics are compressed. Columns besides the intercept are the time, covariates,
    or products ``"time:x"``.
    """

    normal_rows = True

    def __init__(
        self,
        individuals: Individuals,
        slopes: Sequence[str] = ("time",),  # columns besides the intercept
        random: Sequence[str] | None = None,  # columns, or coefficients, that vary; None: all
        effects: Sequence[str] = (),  # "intercept:sex", see `population.PopulationModel`
        covariance: str = "full",
        error: str = "constant",  # others are for `mixed.GeneralizedLinearModel`
        shift: Doubles | float | None = None,  # (m, L); None: the mean of least squares
    ) -> None:
        self.individuals, self.structure = individuals, LinearPredictor(slopes)
        short, latents = ("intercept", *slopes), self.structure.names
        called = dict(zip(short, latents, strict=True))
        varying = [called.get(one, one) for one in (short if random is None else random)]
        for one in varying:
            check_choice("random coefficient", one, (*short, *latents))
        self.law = PopulationModel(
            individuals, latents, varying, [effect_of(one, called) for one in effects], covariance
        )
        changed = {parameter for parameter, _ in self.law.effects}
        fixed = [one for one, name in called.items() if name in changed - set(varying)]
        if fixed:
            raise InputError(
                f"effects are of coefficients that vary, and {fixed[0]} does not; take a product "
                f"with the covariate as a slope, such as {fixed[0]}:x"
            )
        self.latents = self.law.latents
        self.parameters = (*self.law.coefficients, *self.law.spreads, "residual variance")
        self.n_coefficients = len(self.law.coefficients)
        pf = len(self.law.fixed)
        self._slices = slices_of(*self.law.sizes, pf, pf * (pf + 1) // 2, 1)
        self.pieces = tuple(one for one in self._slices if one.stop > one.start)
        design = self.columns(individuals)
        about = individuals.values - individuals.mean_of_rows(individuals.values)
        self._size = float(individuals.mean_of_rows(about**2))
        self.least = LEAST * self._size  # of variances, in the values' units
        widths = individuals.mean_of_rows(design**2)[self.law.random]
        self._floors: Doubles = self.least / np.where(widths > 0, widths, 1.0)
        # Squares are about a first b and each individual's least squares: nothing cancels.
        data, law = individuals, self.law
        Z, X = design[:, law.random], design[:, law.fixed]
        law.shift[:] = 0.0 if shift is None else shift
        if shift is None and X.shape[1]:
            among = data.total(crossed(data, design, design))
            along = data.total(crossed(data, design, data.values[:, None]))[:, 0]
            law.shift[law.fixed, 0] = _solved(among, along)[law.fixed]
        rest = data.values - X @ law.shift[law.fixed, 0]
        self._cross, self._both = crossed(data, Z, Z), crossed(data, Z, X)
        self._among = crossed(data, X, X)
        # Of the smallest size in units of the columns.
        units = np.sqrt(np.einsum("nqq->nq", self._cross) / data.counts[:, None])
        units = np.where(units > 0, units, 1.0)
        self._own, self._turn = np.empty((self.n, Z.shape[1])), np.empty(self._both.shape)
        for size in np.unique(data.counts):
            those = np.flatnonzero(data.counts == size)
            rows = data.first[those, None] + np.arange(size)
            small = np.finfo(np.float64).eps * max(size, Z.shape[1])
            inverse = np.linalg.pinv(Z[rows] / units[those, None], rcond=small)
            inverse /= units[those, :, None]
            self._own[those] = (inverse @ rest[rows, None])[..., 0]
            self._turn[those] = inverse @ X[rows]
        left = rest - np.einsum("nq,nq->n", self._own[data.individual_of], Z)
        self._left = data.sums(left**2)
        self._along = crossed(data, X, rest[:, None])[..., 0]
        if shift is None:
            law.shift[law.random, 0] = data.mean(self._own)

    def take_individuals(self, which: Indices) -> Self:
        part = super().take_individuals(which)
        for name in ("_cross", "_both", "_among", "_own", "_turn", "_left", "_along"):
            setattr(part, name, getattr(self, name)[which])
        return part

    def unpack(self, theta: Doubles) -> tuple[Doubles, Doubles, float]:
        """Coefficients B (m, L), Omega (q, q) and the residual variance."""
        return *self.law.unpack(theta), float(theta[-1])

    def _apart(self, B: Doubles) -> Doubles:
        """How far coefficients b (r,) are from the first."""
        return np.asarray((B - self.law.shift)[self.law.fixed, 0], np.float64)

    def start(self) -> tuple[Doubles, Doubles]:
        """Each individual's least squares, and what follows from them."""
        known_scale(self.individuals.values, self._size, self.individuals.source)
        z: Doubles = self._own.copy()
        return self.maximize(self.individuals.total(self.statistics(z[None])), self.counts), z

    def _squares(self, z: Doubles, away: Doubles) -> Doubles:
        """Residual sums of squares (chains, n) of coefficients b so far ``away`` (r,)."""
        squares: Doubles = self._left + quadratic(z - self._own, self._cross)
        if len(away):
            squares = squares - 2 * (self._residual(z) @ away) + self._among @ away @ away
        return squares

    def _residual(self, z: Doubles) -> Doubles:
        """Products ``X^T e`` (chains, n, r) of residuals about the first b."""
        return np.asarray(self._along - np.einsum("nqr,cnq->cnr", self._both, z), np.float64)

    def log_complete(self, z: Doubles, theta: Doubles) -> Doubles:
        B, omega, variance = self.unpack(theta)
        constant = self.individuals.counts * (LOG_2_PI + np.log(variance))
        rows: Doubles = constant + self._squares(z, self._apart(B)) / variance
        return log_normal(z, self.law.means(B)[:, self.law.random], omega) - 0.5 * rows

    def _fitted(self, B: Doubles) -> Doubles:
        """Least squares (n, q) of each individual, given the coefficients b."""
        away = self._apart(B)
        return self._own - self._turn @ away if len(away) else self._own

    def gradient(self, z: Doubles, theta: Doubles) -> Doubles:
        B, omega, variance = self.unpack(theta)
        mean = self.law.means(B)[:, self.law.random]
        of_rows = times(self._cross, z - self._fitted(B)) / variance
        return -times(np.linalg.inv(omega), z - mean) - of_rows

    def statistics_by_chain(self, z: Doubles) -> Doubles:
        """Moments, products of the fixed columns, and the residual sum of squares."""
        parts = [self.law.statistics(z)]
        if len(self.law.fixed):
            among = lower_half(self._among)
            parts += [self._residual(z), np.broadcast_to(among, (len(z), *among.shape))]
        return np.concatenate([*parts, self._squares(z, np.zeros(0))[..., None]], axis=-1)

    def _taken_apart(self, total: Doubles) -> tuple[Doubles, Doubles, Doubles, float]:
        """Split a total: of latents, ``X^T e`` (r,), ``X^T X`` (r, r), and squares."""
        along, among, _ = self._slices[-3:]
        r = along.stop - along.start
        return total[: along.start], total[along], symmetric(total[among], r), float(total[-1])

    def maximize(self, total: Doubles, counts: Counts) -> Doubles:
        """Moments of the coefficients, least squares of the fixed, and the mean residual square."""
        latent, along, among, squares = self._taken_apart(total)
        near = None if self.theta is None else self.law.unpack(self.theta)[1]
        B, omega, _ = self.law.maximize(latent, counts.individuals, self._floors, near)
        away = _solved(among, along)
        B[self.law.fixed, 0] += away
        left = (squares - along @ away) / counts.rows
        return np.concatenate([self.law.pack(B, omega), [max(left, self.least)]])

    def holds(self, total: Doubles, counts: Counts) -> bool:
        latent, along, among, squares = self._taken_apart(total)
        left = (squares - along @ _solved(among, along)) / counts.rows
        fine = self.law.maximize(latent, counts.individuals, self._floors)[2]
        return bool(left >= self.least) and fine

    def log_density(self, total: Doubles, counts: Counts, theta: Doubles) -> float:
        latent, along, among, squares = self._taken_apart(total)
        B, omega, variance = self.unpack(theta)
        away = self._apart(B)
        squares += float(away @ among @ away - 2 * along @ away)
        latents = self.law.log_density(latent, counts.individuals, B, omega)
        rows = counts.rows * (LOG_2_PI + np.log(variance)) + squares / variance
        return float(latents - 0.5 * rows)

    def posterior(self, theta: Doubles) -> tuple[Doubles, Doubles]:
        means, covariances, _, _ = self._given(theta)
        return means, covariances

    def _given(self, theta: Doubles) -> tuple[Doubles, Doubles, Doubles, Doubles]:
        """Means and covariances of the coefficients, and what likelihoods have beside residuals.

        By a root of Omega, which needs no inverse where times are far from 0. The third (n, q) is
        the means in its units, the fourth (n, q, q) the residual variance and what is explained.
        """
        B, omega, variance = self.unpack(theta)
        root, mean = np.linalg.cholesky(omega), self.law.means(B)[:, self.law.random]
        inner = variance * np.eye(len(root)) + root.T @ self._cross @ root
        inverse = np.linalg.inv(inner)
        units = times(inverse, times(root.T, times(self._cross, self._fitted(B) - mean)))
        return mean + times(root, units), variance * (root @ inverse @ root.T), units, inner

    def curve(self, z: Doubles, at: Individuals) -> Doubles:
        columns, of_rows = self.columns(at).T, z[..., at.individual_of, :]
        lines = np.zeros(of_rows.shape[:-1])
        for i, row in enumerate(self.law.random):
            lines += of_rows[..., i] * columns[row]
        if len(self.law.fixed):
            assert self.theta is not None, "fixed coefficients are those of expand_about(theta)"
            B = self.law.unpack(self.theta)[0]
            for row in self.law.fixed:
                lines += B[row, 0] * columns[row]
        return lines

    def row_sds(self, z: Doubles, theta: Doubles, at: Individuals) -> Doubles:
        return np.full((len(z), at.n_rows), np.sqrt(theta[-1]))

    def kernels(self, theta: Doubles) -> Lines | None:
        """Law of the coefficients, of few enough."""
        if len(self.latents) > MOST_SLOPES:
            return None
        B, omega, variance = self.unpack(theta)
        means = np.ascontiguousarray(self.law.means(B)[:, self.law.random])
        return Lines(means, np.linalg.inv(omega), self._fitted(B), self._cross, variance)

    def marginal(self, theta: Doubles) -> Doubles:
        """Log-likelihood of each individual, its coefficients integrated out."""
        B, _, variance = self.unpack(theta)
        means, _, units, inner = self._given(theta)
        squares = self._squares(means[None], self._apart(B))[0] / variance + (units**2).sum(axis=1)
        logs = (self.individuals.counts - units.shape[1]) * np.log(variance)
        sizes = self.individuals.counts * LOG_2_PI + logs + np.linalg.slogdet(inner)[1]
        return np.asarray(-0.5 * (sizes + squares), np.float64)

    def integrated(
        self,
        theta: Doubles,
        best: bool = True,
        count: Callable[[int, int, int], None] | None = None,
    ) -> Integrated | None:
        """What formulas say, at the maximum of the likelihood or at parameters theta.

        None where columns say the same, so that nothing tells coefficients apart, or where there is
        no maximum, for the residual variance goes to zero.
        """
        p, lines = len(theta), None
        try:
            lines = _Lines(self)
            given = lines.inside(theta)
            # Least squares of the coefficients, variances near theta's: at zero L would not move.
            s = max(given.s, 2 * lines.floor)
            now = _wider(_Point(np.zeros_like(given.g), given.L, s))
            sums = lines.evaluate_at(now)
            now = now._replace(g=np.asarray(np.linalg.solve(sums.gg, sums.of_g), np.float64))
            if best:
                now, sums, far = lines.maximum(now, restricted=False)
                theta, to, moves = lines.outside(now)
                # At a bound: variances of zero, or a singular covariance.
                least = np.abs(np.diag(now.L))
                if lines.mixed:
                    least = np.full(len(lines.T), np.linalg.svd(now.L)[1].min())
                none = least < NOTHING * np.sqrt(now.s)
                bound = np.array(
                    [False] * len(now.g) + [none[i] for i, _ in lines.entries] + [False]
                )
            else:
                now = given
                sums, far, (_, to, moves) = lines.evaluate_at(now), float("nan"), lines.outside(now)
                bound = np.zeros(p, dtype=np.bool_)
            if best and not np.isfinite(far):
                return None
            close = _wider(now) if bound.any() or not best else now
            restricted, beside, settled = lines.maximum(close, restricted=True)
        except np.linalg.LinAlgError:
            return None
        finally:
            if lines is not None and lines.n_sums and count is not None:
                count(lines.size, lines.n_sums, p)
        P = len(now.g)
        middle = _joined(sums.gg, sums.gs, sums.quadratic - sums.traces)
        bend = (lines.bend(now, sums, False)[2], moves) if best else (middle, to)
        covariance = _inverse(*bend)
        covariance[bound] = covariance[:, bound] = np.nan
        back = np.linalg.inv(to)
        information = back.T @ middle @ back
        information[bound] = information[:, bound] = np.nan
        errors, freedom = np.sqrt(np.diag(covariance)), np.full(p, np.inf)
        tested = errors.copy()
        if np.isfinite(settled):
            tests, freedom[:P] = lines.tests(restricted, beside)
            tested[:P] = np.where(np.isfinite(tests), tests, errors[:P])
        information = (information + information.T) / 2
        certain = Certainty(information, covariance, errors, freedom, tested)
        return Integrated(theta, far, certain, sums.each)


def _solved(matrix: Doubles, right: Doubles) -> Doubles:
    """Solve equations of a symmetric matrix, units aside; the smallest solution of several."""
    sizes = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    units = np.where(sizes > 0, sizes, 1.0)
    inverse = np.linalg.pinv(matrix / np.outer(units, units), hermitian=True)
    return np.asarray(inverse @ (right / units) / units, np.float64)
