"""How parameters vary between individuals: means by covariates, which vary at all, how together.

``phi_i = B c_i + eta_i``: parameters phi (m,) of individual i on the scales on which they are
normal, coefficients B (m, L), some of them zero, covariates c_i (L,) of which the first is 1, and
random effects ``eta_i ~ N(0, Omega)`` of the q parameters that vary.

Fits are made in columns that are as unrelated as the model lets them be, and of the same size
(`ColumnFrame`). A slope and an intercept whose estimates are all but one (years, say, far from 0)
are found slowly in turn, and what draws say of them cancels. So columns of rows X, and covariates C
of individuals, are taken about what other columns say of them: ``X W`` and ``C V`` have mean
squares of 1. Where ``phi = B c`` are the coefficients of X, those of ``X W`` are ``W^-1 phi = (W^-1
B V^-T) (V^T c)``: the model is the same, and its parameters are linear in those of the other. A
fixed coefficient of a column that is another, whose coefficient varies, times a covariate of the
individual is an effect of that covariate: it moves with the latents, and not against them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from vpem.checks import Doubles, Indices, Mask, read_float
from vpem.errors import InputError, Setting, check_choice
from vpem.saem.individuals import Individuals
from vpem.saem.models.model import LEAST, LOG_2_PI, SaemModel, floored, triangle_names
from vpem.saem.structures.structure import Structure
from vpem.terms.units import lower_half, symmetric

if TYPE_CHECKING:
    from vpem.terms.priors import Penalty

COVARIANCES = ("diagonal", "full")
"""Covariances of random effects."""

ROUNDS = 20
CLOSE = 1e-12
"""Of means and covariances in turn, which depend on each other where covariates differ."""

SWEEPS = 1000
"""Over coefficients under a lasso and their variance."""

SAME = 1e-10
"""Share of a column's square that others leave, below which it says nothing beside them."""
FLAT = 1e-24
"""Share of it that the mean leaves, below which a column is constant but for rounding."""
ROUNDING = 1e-12
"""To which a column is another times a covariate."""
PASSES = 2
"""The second for what rounding left."""

FORM = re.compile(
    r"(?P<log>log\()?\s*(?P<name>[^()/\-+*:,]+?)\s*((?P<by>[/-])\s*(?P<value>[0-9.eE]+))?\s*(?(log)\))"
)


def _share(at: Individuals, X: Doubles, j: int, k: int) -> Doubles:
    """By what (n,) the first row of each individual's column k that is not 0 makes its column j."""
    known = np.flatnonzero(X[:, k] != 0)
    shares = np.zeros(at.n_individuals)
    who, first = np.unique(at.individual_of[known], return_index=True)
    shares[who] = X[known[first], j] / X[known[first], k]
    return shares


def _unrelated(mean: Callable[[Doubles], Doubles], columns: Doubles, may: Mask) -> Doubles:
    """The matrix (m, m) that makes columns unrelated, as far as they may be mixed.

    Means are taken off before products are added up: of years, say, nothing else would be left.
    """
    matrix, places = np.eye(len(may)), np.arange(len(may))
    sizes, first = mean(columns**2), mean(columns[:, :1] * columns)
    matrix[0, 1:] = np.where(may[1:, 0], -first[1:] / first[0], 0.0)
    flat = mean(_mixed(columns, matrix) ** 2) <= FLAT * sizes
    matrix[0, 1:][flat[1:]] = 0.0
    may = may & ~flat[:, None] & ~flat
    for _ in range(PASSES):
        now = _mixed(columns, matrix)
        squares = mean(now[:, :, None] * now[:, None, :])
        step = np.eye(len(may))
        for j in places:
            about = may[j] & (~may[:, j] | (places < j)) & (places != j)
            right, left = squares[about, j], squares[j, j]
            taken = np.linalg.lstsq(squares[np.ix_(about, about)], right, rcond=None)[0]
            if left - right @ taken > SAME * left:
                left -= right @ taken
                step[about, j] = -taken
            step[:, j] /= np.sqrt(left) if left > 0 else 1.0
        matrix = matrix @ step
    return matrix


def _mixed(columns: Doubles, by: Doubles) -> Doubles:
    """Columns (N, m) times a matrix, each row by itself: the same whichever others are there."""
    mixed = np.zeros((len(columns), by.shape[1]))
    for i, j in zip(*np.nonzero(by), strict=True):
        mixed[:, j] += columns[:, i] * by[i, j]
    return mixed


class ColumnFrame:
    """Columns instead of those of the user, for a model; all devices add up what they are made of.

    ``columns`` gives columns (N, m) of the individuals' rows, or none, (N, 0); ``people`` (n, L)
    are covariates, the first 1, and ``mask`` (m, L) says which coefficients there are. Coefficients
    of the columns ``random`` (q,) vary; ``full``: with all covariances, without which they cannot
    be mixed.

    Of the columns those ``kept`` (k,) stay, and ``moved`` are others: the second of a pair times an
    individual's covariate. ``rows`` (m, k) is W, how columns make those that stay, of these and
    then of ``moved``; ``people`` (L, L) is V, likewise, of the covariates, those of ``moved`` last.
    """

    def __init__(
        self,
        data: Individuals,
        columns: Callable[[Individuals], Doubles],
        people: Doubles,
        mask: Mask,
        random: Indices,
        full: bool,
    ) -> None:
        X = columns(data)
        varies = np.isin(np.arange(len(mask)), random)
        moved = []
        for j in np.flatnonzero(~varies & ~mask[:, 1:].any(axis=1)) if X.shape[1] else ():
            for k in random:
                share: Doubles = _share(data, X, int(j), int(k))[data.individual_of]
                left = X[:, j] - share * X[:, k]
                apart = (np.abs(left) > ROUNDING * np.abs(X[:, j])).any()
                if not data.largest(np.array([apart], np.uint8))[0]:
                    moved.append((int(j), int(k)))
                    break
        unmoved = np.setdiff1d(np.arange(len(mask)), [j for j, _ in moved])
        there = np.pad(mask, ((0, 0), (0, len(moved))))
        for place, (_, k) in enumerate(moved):
            there[k, mask.shape[1] + place] = True
        there, varies = there[unmoved], varies[unmoved]
        # Whether a column may be taken about another: that one's coefficient then depends on all
        # that its own does.
        may = (there[:, None] <= there).all(axis=2) & (~varies[:, None] | (varies & full))
        n, m, W = len(unmoved), len(mask), np.eye(len(mask))
        if X.shape[1]:
            alone = ~varies & ~there[:, 1:].any(axis=1)
            every = np.zeros((m, m), dtype=np.bool_)
            every[:n, :n], every[:n, n:], every[n:, 0] = may, alone[:, None], True
            order = np.append(unmoved, [j for j, _ in moved]).astype(np.intp)
            W = _unrelated(data.mean_of_rows, X[:, order], every)[:, :n]
        C = np.column_stack([people, *[_share(data, X, *pair) for pair in moved]])
        V = _unrelated(data.mean, C, (there.T[:, None] <= there.T).all(axis=2))
        self.columns, self.kept, self.moved, self.rows, self.people = columns, unmoved, moved, W, V

    def design(self, at: Individuals) -> Doubles:
        """Columns (N, k) of individuals' rows."""
        order = np.append(self.kept, [j for j, _ in self.moved]).astype(np.intp)
        return _mixed(self.columns(at)[:, order], self.rows)

    def covariates(self, original: Doubles, at: Individuals) -> Doubles:
        """Covariates (n, L) of individuals, of whom the user's are ``original``."""
        more = [_share(at, self.columns(at), *pair) for pair in self.moved]
        return _mixed(np.column_stack([original, *more]), self.people)


def effect_of(effect: str, names: Mapping[str, str]) -> str:
    """An effect by the name that its parameter has: ``slope:sex`` of ``time:sex``."""
    parameter, colon, covariate = effect.partition(":")
    return f"{names.get(parameter, parameter)}{colon}{covariate}"


class Shrinkage(NamedTuple):
    """A penalty of the law of parameters, in nats per individual.

    With effects b of covariates, of ``sizes`` (L,) (0: no effect to be shrunk), it is ``ridge / 2
    sum sizes_j^2 b_j' Omega^-1 b_j + lasso sum sizes_j |b_rj| / sqrt(Omega_rr)``, where Omega is
    diagonal if there is a lasso; and of all individuals ``(power log|Omega| + tr(scale Omega^-1)) /
    2``, the inverse Wishart law's, of a scale (q, q).
    """

    ridge: float
    lasso: float
    sizes: Doubles
    power: float
    scale: Doubles

    def value(self, b: Doubles, omega: Doubles, individuals: float) -> float:
        """Penalty of effects b (q, L) and a covariance, less what it is at least."""
        precision, heavy = np.linalg.inv(omega), b * self.sizes
        total = self.ridge / 2 * float(np.einsum("rj,rs,sj->", heavy, precision, heavy))
        total += self.lasso * float((np.abs(heavy) / np.sqrt(np.diag(omega))[:, None]).sum())
        if self.power:
            turned = np.linalg.inv(self.scale / self.power) @ omega
            beyond = np.trace(np.linalg.inv(turned)) - len(omega) + np.linalg.slogdet(turned)[1]
            total += self.power / 2 / individuals * float(beyond)
        return total

    def sparse(self, by: Doubles, square: float, gram: Doubles, n: float) -> tuple[Doubles, float]:
        """Coefficients (L,) and variance of one latent under a lasso, from its moments.

        As of means in `vpem.terms.priors`, what is minimized is convex in the inverse of the
        standard deviation and in coefficients divided by it, each of which is set in turn.
        """
        free, held = self.sizes == 0, self.sizes > 0
        # What is not shrunk follows from the others.
        follow = np.linalg.lstsq(gram[np.ix_(free, free)], gram[np.ix_(free, held)], rcond=None)[0]
        least = np.linalg.lstsq(gram[np.ix_(free, free)], by[free], rcond=None)[0]
        inner = gram[np.ix_(held, held)] - gram[np.ix_(held, free)] @ follow
        along, known = by[held] - follow.T @ by[free], float(square) - float(least @ by[free])
        power, limits = n + self.power, self.lasso * n * self.sizes[held]
        known = max(known, SAME * float(square))
        f, rate = np.zeros(len(along)), np.sqrt(power / known)
        for _ in range(SWEEPS):
            before = np.append(f, rate)
            for j in np.flatnonzero(np.diag(inner) > 0):
                rest = rate * along[j] - inner[j] @ f + inner[j, j] * f[j]
                f[j] = np.sign(rest) * max(abs(rest) - limits[j], 0.0) / inner[j, j]
            slope = float(f @ along)
            rate = (slope + np.sqrt(slope**2 + 4 * power * known)) / (2 * known)
            moved = np.abs(np.append(f, rate) - before)
            if (moved <= CLOSE * np.maximum(np.abs(before), 1e-3)).all():
                break
        b = np.zeros(len(by))
        b[held] = f / rate
        b[free] = least - follow @ b[held]
        return b, float(rate**-2)


class PopulationModel:
    """Means and covariance of parameters, and their statistics.

    Parameters ``random`` (q,) vary between individuals, ``fixed`` (m - q,) do not. Of coefficients
    ``mask`` (m, L) says which there are, ``coefficients`` names them (the means, then effects), and
    ``places`` are their rows and columns, in the order of parameters. ``shift`` (m, L) are those
    about which statistics are taken, so that little cancels. ``design`` (n, L) are covariates of
    the individuals, the first 1; the last ``n_carried`` have no coefficients: means of latents move
    by them. ``spreads`` are names of variances.
    """

    n_carried = 0
    shrinkage: Shrinkage | None = None

    def __init__(
        self,
        individuals: Individuals,
        names: Sequence[str],  # (m,)
        random: Sequence[str],  # short names of those that vary, one at least
        effects: Sequence[str] = (),  # such as ``cl:weight`` or ``cl:log(weight/70)``
        covariance: str = "diagonal",
    ) -> None:
        # What a parameter is called by itself: ``cl`` of ``log cl``.
        short = [name.removeprefix("log ").removeprefix("logit ") for name in names]
        self.names = tuple(names)
        # Pairs: a parameter by its short name (``cl``, not ``log cl``), and the covariate that its
        # mean depends on, as the user wrote it, such as ``log(weight/70)``.
        self.effects: list[tuple[str, str]] = []
        for text in effects:
            parameter, colon, covariate = (part.strip() for part in text.partition(":"))
            form = FORM.fullmatch(covariate)
            value: float | None = 1.0
            if form is not None and form["value"]:
                value = read_float(form["value"], finite=True)
            known = form is not None and value is not None and (value or form["by"] != "/")
            if not colon or not known:
                raise InputError(
                    "an effect is PARAMETER:COVARIATE, where the covariate may be divided by a "
                    "number, less a number, or its logarithm, such as cl:log(weight/70), got "
                    f"{text!r}"
                )
            effect = check_choice("parameter of an effect", parameter, short), covariate
            if effect in self.effects:
                raise InputError(f"the effect {text!r} is given twice; give it once")
            self.effects.append(effect)
        for word in random:
            check_choice("random parameter", word, short)
        varies = np.array([word in random for word in short])
        if not varies.any():
            raise InputError(
                "no parameter varies between individuals, so that there is nothing to simulate; "
                f"random must name one at least, of {', '.join(short)}"
            )
        self.random, self.fixed = np.flatnonzero(varies), np.flatnonzero(~varies)
        covariates = list(dict.fromkeys(covariate for _, covariate in self.effects))
        self.mask = np.zeros((len(short), 1 + len(covariates)), dtype=np.bool_)
        self.mask[:, 0] = True
        where = []
        for parameter, covariate in self.effects:
            place = (short.index(parameter), 1 + covariates.index(covariate))
            self.mask[place] = True
            where.append(place)
        # Coefficients in the order of parameters: the means, then effects as they were given.
        order = [(row, 0) for row in range(len(short))] + where
        rows, columns = (np.array(part) for part in zip(*order, strict=True))
        self.places: tuple[Indices, Indices] = (rows, columns)
        self.frame: ColumnFrame | None = None
        self.design = self.design_of(individuals)
        self.latents = tuple(names[int(one)] for one in self.random)
        self.free = np.eye(len(self.latents), dtype=np.bool_)
        if check_choice("covariance", covariance, COVARIANCES) == "full":
            self.free[:] = True
        self._in_triangle = lower_half(self.free)
        self.coefficients = (
            *names,
            *(f"beta({names[row]}, {covariates[column - 1]})" for row, column in where),
        )
        self.spreads = tuple(
            name
            for name, there in zip(triangle_names(self.latents), self._in_triangle, strict=True)
            if there
        )
        self.shift: Doubles = np.zeros(self.mask.shape)

    def design_of(self, at: Individuals) -> Doubles:
        """Covariates (n, L) of individuals."""
        columns = [np.ones(at.n_individuals)]
        for covariate in dict.fromkeys(covariate for _, covariate in self.effects):
            form = FORM.fullmatch(covariate)
            assert form is not None
            values = at.constant(
                form["name"],
                "a mean depends on covariates that stay; one that changes may be a slope",
            )
            if form["by"] == "/":
                values = values / float(form["value"])
            elif form["by"] == "-":
                values = values - float(form["value"])
            if form["log"]:
                wrong = np.flatnonzero(values <= 0)
                if len(wrong):
                    raise InputError(
                        f"{at.source}: covariate {form['name']!r} of individual "
                        f"{at.names[wrong[0]]!r} has no logarithm, for {covariate}; take it as it "
                        "is"
                    )
                values = np.log(values)
            columns.append(np.asarray(values, dtype=np.float64))
        design = np.stack(columns, axis=1)
        if self.frame is not None:
            design = self.frame.covariates(design, at)
        return np.pad(design, ((0, 0), (0, self.n_carried)))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of a statistic: latents by covariates, their products, those of covariates."""
        q, wide = len(self.random), self.design.shape[1]
        return (q * wide, q * (q + 1) // 2, wide * (wide + 1) // 2 if wide > 1 else 0)

    def with_design(self, design: Doubles) -> Self:
        """The same of individuals with such covariates (n, L)."""
        part = copy(self)
        part.design = design
        return part

    # ---- parameters ------------------------------------------------------------------------------

    def pack(self, B: Doubles, omega: Doubles) -> Doubles:
        return np.concatenate([B[self.places], lower_half(omega)[self._in_triangle]])

    def unpack(self, theta: Doubles) -> tuple[Doubles, Doubles]:
        """Coefficients B (m, L) and the covariance Omega (q, q)."""
        B = np.zeros(self.mask.shape)
        end = len(self.coefficients)
        B[self.places] = theta[:end]
        lower = np.zeros(len(self._in_triangle))
        lower[self._in_triangle] = theta[end : end + len(self.spreads)]
        return B, symmetric(lower, len(self.random))

    def means(self, B: Doubles) -> Doubles:
        """Means (n, m) of all parameters of the individuals."""
        means: Doubles = np.zeros((len(self.design), len(B)))
        for column in range(B.shape[1]):
            means += self.design[:, column, None] * B[None, :, column]
        return means

    # ---- statistics ------------------------------------------------------------------------------

    def statistics(self, z: Doubles) -> Doubles:
        """Statistics (chains, n, s) of latents (chains, n, q), about the shift."""
        apart = z - self.means(self.shift)[:, self.random]
        half = lower_half(apart[..., :, None] * apart[..., None, :])
        if self.design.shape[1] == 1:
            return np.concatenate([apart, half], axis=-1)
        by = (apart[..., None] * self.design[:, None, :]).reshape(*apart.shape[:-1], -1)
        squares = lower_half(self.design[:, :, None] * self.design[:, None, :])
        return np.concatenate(
            [by, half, np.broadcast_to(squares, (len(z), *squares.shape))], axis=-1
        )

    def _moments(self, total: Doubles, n: float) -> tuple[Doubles, Doubles, Doubles]:
        """Sums of u c^T (q, L), of u u^T (q, q) and of c c^T (L, L), u about the shift."""
        q, wide = len(self.random), self.design.shape[1]
        first, second = self.sizes[0], self.sizes[0] + self.sizes[1]
        gram = np.array([[float(n)]]) if wide == 1 else symmetric(total[..., second:], wide)
        by = total[..., :first].reshape(*total.shape[:-1], q, wide)
        return by, symmetric(total[..., first:second], q), gram

    def carried(
        self, total: Doubles, n: float, B: Doubles, omega: Doubles
    ) -> tuple[Doubles, Doubles]:
        """Score (n_carried, q) of the carried columns in each latent's mean, where they move none.

        And the information (q, n_carried, q, n_carried) of n latents of such statistics.
        """
        by, _, gram = self._moments(total, n)
        precision, e = np.linalg.inv(omega), self.n_carried
        score = precision @ (by - (B - self.shift)[self.random] @ gram)[:, -e:]
        return score.T, np.einsum("kl,ab->kalb", precision, gram[-e:, -e:])

    def without(self, total: Doubles, n: float, D: Doubles) -> Doubles:
        """Statistics of n latents less what carried columns times D (q, n_carried) are."""
        by, squares, gram = self._moments(total, n)
        D = np.hstack([np.zeros((len(D), gram.shape[1] - D.shape[1])), D])
        left = squares - D @ by.T - by @ D.T + D @ gram @ D.T
        return np.concatenate([(by - D @ gram).ravel(), lower_half(left), lower_half(gram)])

    def maximize(
        self, total: Doubles, n: float, least: Doubles | float = LEAST, near: Doubles | None = None
    ) -> tuple[Doubles, Doubles, bool]:
        """Coefficients (m, L) and covariance (q, q) that n latents of such statistics have.

        Those of fixed parameters are as in the shift. Generalised least squares, where covariates
        differ between parameters that vary together, from a covariance ``near`` on; variances are
        ``least`` (q,) at least. The last: whether there are such latents.
        """
        by, squares, gram = self._moments(total, n)
        mask, about, whole = self.mask[self.random], self.shift, n
        shrinkage = self.shrinkage
        if shrinkage is not None:
            # Of effects about 0.
            zero = np.where(shrinkage.sizes > 0, self.shift[self.random], 0.0)
            squares = squares + by @ zero.T + zero @ by.T + zero @ gram @ zero.T
            by, about = by + zero @ gram, self.shift.copy()
            about[self.random] -= zero
            squares, whole = squares + shrinkage.scale, n + shrinkage.power
            gram = gram + n * shrinkage.ridge * np.diag(shrinkage.sizes**2)
        alike = (mask == mask[0]).all() or np.count_nonzero(self.free) == len(mask)
        D, holds = np.zeros(mask.shape), True
        omega = np.eye(len(mask)) if near is None else near
        for _ in range(ROUNDS):
            before = D
            if shrinkage is not None and shrinkage.lasso:
                least_of = np.broadcast_to(least, len(mask))
                D, omega = np.zeros(mask.shape), np.zeros_like(squares)
                for row, there in enumerate(mask):
                    square = max(float(squares[row, row]), n * float(least_of[row]))
                    part = shrinkage._replace(sizes=shrinkage.sizes[there])
                    inner = gram[np.ix_(there, there)]
                    D[row, there], omega[row, row] = part.sparse(by[row, there], square, inner, n)
                holds = bool((np.diag(omega) >= least_of).all())
                omega = floored(omega, least)
                break
            if alike and mask.all():
                D = np.asarray(np.linalg.lstsq(gram, by.T, rcond=None)[0].T)
            elif alike:  # each latent by itself
                D = np.zeros(mask.shape)
                for row, there in enumerate(mask):
                    inner = gram[np.ix_(there, there)]
                    D[row, there] = np.linalg.lstsq(inner, by[row, there], rcond=None)[0]
            else:
                D, precision = np.zeros(mask.shape), np.linalg.inv(omega)
                rows, columns = np.nonzero(mask)
                inner = precision[np.ix_(rows, rows)] * gram[np.ix_(columns, columns)]
                D[mask] = np.linalg.lstsq(inner, (precision @ by)[mask], rcond=None)[0]
            left = (squares - D @ by.T - by @ D.T + D @ gram @ D.T) / whole
            scatter = np.where(self.free, left, 0.0)
            omega = floored(scatter, least)
            holds = not (omega != scatter).any()
            if alike or np.abs(D - before).max() <= CLOSE * max(1.0, float(np.abs(D).max())):
                break
        B = about.copy()
        B[self.random] += D
        return B, omega, holds

    def log_density(self, total: Doubles, n: float, B: Doubles, omega: Doubles) -> Doubles:
        """Sum (...) of the log-densities of n latents of such statistics (..., s)."""
        if not n and not total.any():
            return np.zeros(total.shape[:-1])
        by, squares, gram = self._moments(total, n)
        D = (B - self.shift)[self.random]
        left = squares - D @ by.swapaxes(-1, -2) - by @ D.T + D @ gram @ D.T
        constant = n * (len(omega) * LOG_2_PI + np.linalg.slogdet(omega)[1])
        sums = (np.linalg.inv(omega) * left).sum(axis=(-2, -1))
        return np.asarray(-0.5 * (constant + sums))


class Varying(SaemModel):
    """A model whose latents are the parameters that vary in a population."""

    has_curves = True
    structure: Structure
    law: PopulationModel
    theta: Doubles | None = None  # (p,) that it is about, which have those that do not vary
    always: tuple[str, ...] = ()  # covariates that it reads beside those of slopes and effects

    @classmethod
    def reads(cls, options: Mapping[str, object]) -> tuple[str, ...]:
        """Covariates of slopes and effects, as far as they can be read: of Sex=Male, Sex."""
        slopes, effects = (
            [one for one in listed if isinstance(one, str)]
            if isinstance(listed, list | tuple)
            else []
            for listed in (options.get("slopes"), options.get("effects"))
        )
        parts = [part.partition("=")[0] for name in slopes for part in name.split(":")]
        forms = [FORM.fullmatch(one.partition(":")[2].strip()) for one in effects]
        names = [form["name"].partition("=")[0] for form in forms if form is not None]
        named = dict.fromkeys([*(part for part in parts if part != "time"), *names])
        return (*cls.always, *named)

    def under(self, penalty: Penalty) -> Self:
        law, among = copy(self.law), self.individuals
        named = Setting("penalty", penalty.words)
        q, full = len(law.random), bool(law.free.all()) and len(law.random) > 1
        if penalty.concentration != 1:
            raise InputError(named, ": dirichlet is for weights of components, and there are none")
        if penalty.of_means and not law.effects:
            raise InputError(
                named, " shrinks effects of covariates, but there are none; give ",
                Setting("effects", "cl:weight"), ", or leave it out",
            )  # fmt: skip
        names = [one.removeprefix("log ").removeprefix("logit ") for one in law.names]
        stays = [one for one, _ in law.effects if names.index(one) in law.fixed]
        if penalty.of_means and stays:
            raise InputError(
                named, " shrinks effects in standard deviations between individuals, but "
                f"{stays[0]} does not vary between them; let it vary, or leave its effects out",
            )  # fmt: skip
        if penalty.lasso and full:
            raise InputError(
                named, ": lasso and elastic-net need a diagonal covariance, since with others the "
                "M-step may have several minima; take ", Setting("covariance", "diagonal"),
                ", or ridge",
            )  # fmt: skip
        sizes = np.sqrt(among.variance(law.design))
        if not penalty.of_means:
            sizes = np.zeros_like(sizes)
        power, scale = 0.0, np.zeros((q, q))
        if penalty.wishart:
            width = q if full else 1
            freedom = width + 2 if penalty.freedom is None else penalty.freedom
            if freedom <= width - 1:
                raise InputError(
                    named, ": degrees of freedom must be above the number of parameters that vary "
                    f"less 1, {width - 1}",
                )  # fmt: skip
            power = freedom + width + 1
            begun = np.diag(law.unpack(self.start()[0])[1])
            scale = np.diag(begun) * (1.0 if penalty.scale is None else penalty.scale)
        law.shrinkage = Shrinkage(penalty.ridge, penalty.lasso, sizes, power, scale)
        return self.of(among, law)

    def penalty(self, theta: Doubles) -> float:
        shrinkage = self.law.shrinkage
        if shrinkage is None:
            return 0.0
        B, omega = self.law.unpack(theta)
        return shrinkage.value(B[self.law.random], omega, self.counts.individuals)

    def expand_about(self, theta: Doubles) -> Self:
        """The model with the fixed parameters of theta, about which expansions are."""
        part = object.__new__(type(self))  # many times, so without what a copy asks
        part.__dict__.update(self.__dict__, theta=np.asarray(theta, dtype=np.float64))
        return part

    def columns(self, at: Individuals) -> Doubles:
        """Columns (N, m) of which the curve is a sum; of other curves (N, 0)."""
        return self.structure.design(at)

    def take_individuals(self, which: Indices) -> Self:
        return self.of(self.individuals.take(which), self.law.with_design(self.law.design[which]))

    def of(self, individuals: Individuals, law: PopulationModel) -> Self:
        """The model of other individuals, whose law has their covariates."""
        part = copy(self)
        part.individuals, part.law = individuals, law
        return part

    def statistics(self, z: Doubles) -> Doubles:
        """Mean over chains of `statistics_by_chain`, (n, P)."""
        return np.asarray(self.statistics_by_chain(z).mean(axis=0), np.float64)

    def population(self, theta: Doubles) -> tuple[Doubles, Doubles]:
        """Mean and covariance of the latents, where covariates are 0."""
        B, omega = self.law.unpack(theta)
        return B[self.law.random, 0], omega

    def prior(self, theta: Doubles, at: Individuals) -> tuple[Doubles, Doubles]:
        """Means (n, q) of the latents by covariates, and their covariance."""
        B, omega = self.law.unpack(theta)
        return self.law.with_design(self.law.design_of(at)).means(B)[:, self.law.random], omega
