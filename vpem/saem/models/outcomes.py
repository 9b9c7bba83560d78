"""Laws of what is measured, given a curve: normal errors of several kinds, yes or no, counts.

The variance of a normal error is a sum ``g^2 = sum_k v_k w_k(f)`` of known functions of the curve f
with parameters v: its standard deviations squared. A value may be censored: it is then known to be
below (or above) a limit, which is written in its place. Rows may be of several outcomes, each with
a law of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Self

import numpy as np
from numpy.typing import NDArray

from vpem._core.latents import Curves
from vpem._core.threads import thread_count
from vpem.checks import Doubles, Indices, Mask
from vpem.errors import InputError, check_choice
from vpem.saem import special
from vpem.saem.individuals import Individuals
from vpem.saem.models.model import LOG_2_PI, Counts, known_scale, slices_of


class Outcome(ABC):
    """Rows of one outcome, and the law by which they are measured given curves f (chains, m) there.

    Standard deviations (k,) are those of all outcomes, ``sds`` says which are its own: of its
    ``parameters``. The variance is ``steady`` where it does not depend on the curve, and ``exact``
    if it is a mean of squares then, without other parameters. ``code`` and ``form``, of which
    parts the variance is a sum, are those of kernels.
    """

    parameters: tuple[str, ...] = ()
    steady = False
    code: int
    form = 0
    here: Indices  # (m,) which rows they are
    values: Doubles  # (m,) measurements, or limits
    censored: NDArray[np.int8]  # (m,) 1 where the value is below the limit, -1 above, 0 measured
    of: Indices  # (m,) whose they are
    sds: slice
    exact = False
    size = 0.0  # mean square of the values
    floor = 0.0  # least variance

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def in_rows(self, individuals: Individuals, number: int | None) -> Self:
        """The same of the rows of individuals that have the outcome of a number; None: all."""
        part, zeros = copy(self), np.zeros(individuals.n_rows)
        part.here = np.arange(individuals.n_rows)
        if number is not None:
            part.here = np.flatnonzero(individuals.covariates.get("outcome", zeros) == number)
        limits = individuals.covariates.get("censored", zeros)
        part.values = individuals.values[part.here]
        part.censored = limits[part.here].astype(np.int8)
        part.of = individuals.individual_of[part.here]
        return part

    def check(self, individuals: Individuals) -> None:
        """Refuse values that cannot be of this law."""
        wrong, why = self.wrong()
        if wrong.any():
            row = self.here[int(wrong.argmax())]
            who = individuals.names[individuals.individual_of[row]]
            raise InputError(
                f"{individuals.source}: individual {who!r} has the value "
                f"{individuals.values[row]:g}, {why}"
            )

    @abstractmethod
    def wrong(self) -> tuple[Mask, str]:
        """Which values (m,) cannot be of this law, and in a sentence's words why."""

    @abstractmethod
    def log_density(self, f: Doubles, sds: Doubles) -> Doubles:
        """Log-density (chains, m), of a censored row the logarithm of its probability."""

    @abstractmethod
    def bends(self, f: Doubles, sds: Doubles) -> tuple[Doubles, Doubles, Doubles, Doubles, Doubles]:
        """What the log-density says of the curve and its k variances v, row by row.

        Derivative in the curve and information about it (chains, m), which is not negative;
        derivatives in the variances and information about curve and variances together (k, chains,
        m), and about the variances (k, k, chains, m).
        """

    def mean(self, f: Doubles) -> Doubles:
        """Value that is expected (of exponential errors: the median), by default the curve."""
        return f

    @abstractmethod
    def deviation(self, f: Doubles, sds: Doubles) -> Doubles:
        """Standard deviation about `mean`, on the scale of `errors`."""

    def errors(self, f: Doubles) -> Doubles:
        """Errors (chains, m), on their scale."""
        return self.values - self.mean(f)

    def residuals(self, f: Doubles, sds: Doubles) -> Doubles:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.asarray(self.errors(f) / self.deviation(f, sds), np.float64)

    @abstractmethod
    def draw(self, f: Doubles, sds: Doubles, chances: Doubles) -> Doubles:
        """Draw measurements of which ``chances`` (chains, m) are the uniform numbers."""


class Normal(Outcome):
    """Normal errors with standard deviation a (``constant``), b f (``proportional``).

    Or ``(a^2 + b^2 f^2)^(1/2)`` (``combined``), or a of the logarithm (``exponential``).
    """

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.logs = kind == "exponential"
        self.code = int(self.logs)
        self.steady = kind in ("constant", "exponential")
        self.form = {"proportional": 2, "combined": 3}.get(kind, 1)
        both = ("additive sd", "proportional sd")
        self.parameters = both if kind == "combined" else ("residual sd",)

    def wrong(self) -> tuple[Mask, str]:
        return (self.values <= 0) & self.logs, (
            "which has no logarithm, and the error is exponential; leave out such rows, or take "
            "another error"
        )

    def _variance(self, f: Doubles, sds: Doubles) -> Doubles:
        sds = sds[self.sds]
        if self.steady:
            return np.full(f.shape, sds[0] ** 2)
        with np.errstate(over="ignore", invalid="ignore"):
            steady = 0.0 if self.kind == "proportional" else sds[0] ** 2
            return np.asarray(steady + sds[-1] ** 2 * f**2, np.float64)

    def errors(self, f: Doubles) -> Doubles:
        return np.log(self.values) - np.log(f) if self.logs else super().errors(f)

    def log_density(self, f: Doubles, sds: Doubles) -> Doubles:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            variance = self._variance(f, sds)
            rest = self.errors(f)
            log_density = -0.5 * (rest**2 / variance + np.log(variance) + LOG_2_PI)
            if self.logs:
                log_density = log_density - np.log(self.values)
            if self.censored.any():
                where = self.censored != 0
                u = self.censored[where] * rest[..., where] / np.sqrt(variance[..., where])
                log_density[..., where] = special.log_ndtr(u)
        return log_density

    def bends(self, f: Doubles, sds: Doubles) -> tuple[Doubles, Doubles, Doubles, Doubles, Doubles]:
        """Derivatives, and expected information; of censored rows the observed one."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            variance, rest = self._variance(f, sds), self.errors(f)
            # Functions w_k (chains, N) of which the variance is a sum.
            w = [] if self.kind == "proportional" else [np.ones(f.shape)]
            if not self.steady:
                w.append(f**2)
            grow = np.zeros(f.shape) if self.steady else 2 * sds[self.sds][-1] ** 2 * f
            of_variance = 0.5 * (rest**2 / variance - 1) / variance
            of_f = rest / variance
            precision = 1 / variance
            curve = np.ones(f.shape) if not self.logs else 1 / f
            info = 0.5 / variance**2
            if self.censored.any():
                where = self.censored != 0
                sign = self.censored[where]
                sd = np.sqrt(variance[..., where])
                u = sign * rest[..., where] / sd
                hazard = np.exp(-0.5 * (u**2 + LOG_2_PI) - special.log_ndtr(u))
                of_f[..., where] = -sign * hazard / sd
                precision[..., where] = np.maximum(hazard * (hazard + u), 0.0) / sd**2
                of_variance[..., where] = -0.5 * u * hazard / sd**2
                info[..., where] = of_variance[..., where] ** 2
        slope = of_f * curve + of_variance * grow
        weight = precision * curve**2 + info * grow**2
        variances = np.array([of_variance * one for one in w])
        cross = np.array([info * grow * one for one in w])
        among = np.array([[info * one * two for two in w] for one in w])
        return slope, weight, variances, cross, among

    def deviation(self, f: Doubles, sds: Doubles) -> Doubles:
        return np.sqrt(self._variance(f, sds))

    def draw(self, f: Doubles, sds: Doubles, chances: Doubles) -> Doubles:
        apart = special.ndtri(chances) * self.deviation(f, sds)
        return np.asarray(f * np.exp(apart) if self.logs else f + apart, np.float64)


class Linked(Outcome):
    """Yes (1) or no (0), or counts; the parameters of a measurement are those of the curve alone.

    That is the logit of the probability of yes (``bernoulli``), or the logarithm of the mean
    (``poisson``).
    """

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.counts = kind == "poisson"
        self.code = 3 if self.counts else 2

    def wrong(self) -> tuple[Mask, str]:
        fine, what = np.isin(self.values, (0.0, 1.0)), "0 (no) or 1 (yes)"
        if self.counts:
            fine = (self.values >= 0) & (self.values == np.floor(self.values))
            what = "counts, whole numbers from 0 on"
        return ~fine, f"but values of this outcome must be {what}; take another error"

    def log_density(self, f: Doubles, sds: Doubles) -> Doubles:
        if not self.counts:
            return np.asarray(special.log_expit((2 * self.values - 1) * f), np.float64)
        with np.errstate(over="ignore"):
            return np.asarray(
                self.values * f - np.exp(f) - special.gammaln(self.values + 1), np.float64
            )

    def bends(self, f: Doubles, sds: Doubles) -> tuple[Doubles, Doubles, Doubles, Doubles, Doubles]:
        mean = self.mean(f)
        none = np.zeros((0, *f.shape))
        weight = mean if self.counts else mean * (1 - mean)
        return self.values - mean, weight, none, none, np.zeros((0, 0, *f.shape))

    def mean(self, f: Doubles) -> Doubles:
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(f) if self.counts else special.expit(f), dtype=np.float64)

    def deviation(self, f: Doubles, sds: Doubles) -> Doubles:
        variance = self.mean(f) if self.counts else special.expit(f) * special.expit(-f)
        return np.asarray(np.sqrt(variance), dtype=np.float64)

    def draw(self, f: Doubles, sds: Doubles, chances: Doubles) -> Doubles:
        if not self.counts:
            return np.asarray(chances < special.expit(f), dtype=np.float64)
        counts = np.ceil(np.maximum(special.pdtrik(chances, np.maximum(self.mean(f), 1e-300)), 0.0))
        return np.asarray(counts, np.float64)


NORMAL = ("constant", "proportional", "combined")
"""Laws of values that are normal about the curve."""

LINKED = ("bernoulli", "poisson")
"""Laws whose curve is a logit or a logarithm of a mean."""

LAWS: Mapping[str, type[Outcome]] = {
    **dict.fromkeys((*NORMAL, "exponential"), Normal),
    **dict.fromkeys(LINKED, Linked),
}
"""Laws by name."""


class Outcomes:
    """All rows of individuals by what was measured, with laws by name: one of all, or one each.

    Individuals have a covariate ``outcome``, its number from 0 on, if there are several; and
    ``censored``, 1 where the value is an upper limit, -1 a lower one, if any are. They are
    ``expanded`` where parameters are fixed that the curve depends on, so that variances that depend
    on the curve are to be found together with these.
    """

    def __init__(
        self, individuals: Individuals, error: str | Sequence[str], *, expanded: bool
    ) -> None:
        self.individuals = individuals
        limits = individuals.covariates.get("censored", np.zeros(individuals.n_rows))
        odd = np.flatnonzero(~np.isin(limits, (-1.0, 0.0, 1.0)))
        if len(odd):
            who = individuals.names[individuals.individual_of[odd[0]]]
            raise InputError(
                f"{individuals.source}: censored of individual {who!r} is {limits[odd[0]]:g}; it "
                "is 1 where a value is an upper limit, -1 a lower one, and 0 a measurement"
            )
        # Names of the laws of the outcomes, of all processes as many.
        kinds = [error] if isinstance(error, str) else list(error)
        for kind in kinds:
            check_choice("error", kind, LAWS)
        codes = individuals.covariates.get("outcome")
        most = 1.0 if codes is None else float(codes.max(initial=0.0)) + 1
        n = max(int(individuals.largest(np.array([most]))[0]), len(kinds))
        if len(kinds) == 1:
            kinds *= n
        if len(kinds) < n:
            raise InputError(
                f"{individuals.source} has {n} outcomes, but error names {len(kinds)} laws; name "
                "one for all, or one for each"
            )
        self.kinds, self._each = kinds, [LAWS[kind](kind) for kind in kinds]
        sizes = [len(one.parameters) for one in self._each]
        for one, place in zip(self._each, slices_of(*sizes), strict=True):
            one.sds = place
        self._each = each = self._in_rows(individuals)
        for one in each:
            one.check(individuals)
            limited = np.array([one.censored.any()], dtype=np.uint8)
            measured = not individuals.largest(limited)[0]
            single = len(one.parameters) == 1 and (one.steady or not expanded)
            squares, counted = np.zeros((2, individuals.n_rows))
            squares[one.here] = one.values**2
            counted[one.here] = 1.0
            size, rows = (
                float(individuals.total(individuals.sums(values))) for values in (squares, counted)
            )
            size /= max(rows, 1.0)
            one.exact, one.size = single and measured, size
            one.floor = 1e-10 * (size if one.kind in ("constant", "combined") else 1.0)
        self.n_sds = each[-1].sds.stop
        tails = [""]
        if len(each) > 1:
            words = individuals.columns.get("words", {})
            names = words.get("outcome", ()) if isinstance(words, Mapping) else ()
            numbers = [f"outcome {code}" for code in range(len(each))]
            tails = [f" of {one}" for one in (names if len(names) == len(each) else numbers)]
        self.parameters = tuple(
            f"{name}{tail}"
            for one, tail in zip(each, tails, strict=True)
            for name in one.parameters
        )
        scored = [one for one in each if not one.exact]
        self.scored = [at for one in scored for at in range(one.sds.start, one.sds.stop)]
        self.floors = np.array([one.floor for one in scored for _ in one.parameters])
        self.size = (len(each) - len(scored)) * (1 if len(each) == 1 else 2)

    def coded(self) -> tuple[NDArray[np.uint8], NDArray[np.int8], NDArray[np.int32]]:
        """Outcome (N,) and censoring (N,) of each row, and laws (k,), as kernels have them."""
        n = self.individuals.n_rows
        outcome, censored = np.zeros(n, np.uint8), np.zeros(n, np.int8)
        for code, one in enumerate(self._each):
            outcome[one.here], censored[one.here] = code, one.censored
        return outcome, censored, np.array([one.code for one in self._each], np.int32)

    def noise(self, sds: Doubles) -> Doubles:
        """Standard deviations a and b (k, 2), of which a variance is ``a^2 + b^2 f^2``."""
        noise = np.zeros((len(self._each), 2))
        for code, one in enumerate(self._each):
            if one.parameters and one.kind != "proportional":
                noise[code, 0] = sds[one.sds][0]
            if one.parameters and not one.steady:
                noise[code, 1] = sds[one.sds][-1]
        return noise

    def for_individuals(self, individuals: Individuals) -> Self:
        part = type(self).__new__(type(self))
        part.__dict__.update(self.__dict__)
        part.individuals = individuals
        part._each = self._in_rows(individuals)
        return part

    def _in_rows(self, individuals: Individuals) -> list[Outcome]:
        several = len(self._each) > 1
        return [
            one.in_rows(individuals, number if several else None)
            for number, one in enumerate(self._each)
        ]

    # ---- the start -------------------------------------------------------------------------------

    def start(self) -> Doubles:
        """Standard deviations to begin with, large ones, (k,).

        InputError if values are all the same number 0, or an outcome has no rows.
        """
        there = np.array([len(one.here) > 0 for one in self._each], dtype=np.uint8)
        lacking = np.flatnonzero(self.individuals.largest(there) == 0)
        if len(lacking):
            raise InputError(
                f"{self.individuals.source}: no row has outcome {lacking[0]}, counted from 0, "
                f"but there are laws of {len(self._each)} outcomes; name one law for each (error)"
            )
        starts: list[float] = []
        for one in self._each:
            if one.parameters and len(one.here):
                known_scale(one.values, one.size, self.individuals.source)
            size = float(np.sqrt(np.square(np.sqrt(one.size)))) or 1.0
            parts = {"constant": [0.3 * size], "combined": [0.1 * size, 0.3]}
            starts += parts.get(one.kind, [0.3] * len(one.parameters))
        return np.array(starts)

    # ---- of curves -------------------------------------------------------------------------------

    def by_law(self, f: Doubles, function: Callable[[Outcome, Doubles], Doubles]) -> Doubles:
        """A function of each row's outcome and curves (chains, N)."""
        values = np.empty(f.shape)
        with np.errstate(all="ignore"):
            for one in self._each:
                values[:, one.here] = function(one, f[:, one.here])
        return values

    def squares(self, f: Doubles) -> list[Doubles]:
        """Sums of squares, and rows, of outcomes with one variance: each (chains, n, 1)."""
        sums = []
        for one in self._each:
            if not one.exact:
                continue
            each = np.zeros(f.shape)
            each[:, one.here] = one.residuals(f[:, one.here], np.ones(self.n_sds)) ** 2
            sums.append(self.individuals.sums(each)[..., None])
            sums += self._counted(one, len(f))
        return sums

    def expansion(self, f: Doubles, slopes: Doubles, sds: Doubles) -> tuple[Doubles, Doubles]:
        """Score (chains, n, w) and lower half of the information (chains, n, w, w).

        Of the m parameters in which the curves (chains, N) have slopes (chains, N, m), and of
        variances that are not exact: sums over each individual's rows, of one pair after another,
        since an array of all pairs of all rows would be large.
        """
        m, w = slopes.shape[-1], slopes.shape[-1] + len(self.scored)
        shape = (len(f), self.individuals.n_individuals, w)
        score, info = np.zeros(shape), np.zeros((*shape, w))
        slope, weight = np.zeros((2, *f.shape))
        columns = [np.ascontiguousarray(slopes[..., j]) for j in range(m)]
        place = m
        for one in self._each:
            bends = one.bends(f[:, one.here], sds)
            slope[:, one.here], weight[:, one.here], variances, cross, between = bends
            for j in range(0 if one.exact else len(variances)):
                score[..., place + j] = self._sums(one, variances[j])
                for i, column in enumerate(columns):
                    both = cross[j] * column[:, one.here]
                    info[..., place + j, i] = self._sums(one, both)
                for i in range(j + 1):
                    info[..., place + j, place + i] = self._sums(one, between[j, i])
            place += 0 if one.exact else len(variances)
        sums = self.individuals.sums
        for i, column in enumerate(columns):
            score[..., i] = sums(slope * column)
            heavy = weight * column
            for j in range(i + 1):
                info[..., i, j] = sums(heavy * columns[j])
        return score, info

    def by_kernel(
        self, law: Curves, z: Doubles, shares: Doubles, fixed: Indices, m: int
    ) -> tuple[list[Doubles], Doubles, Doubles]:
        """Return `squares` and `expansion`, of latents z (chains, n, q), by a kernel.

        Latents move by shares (n, r, q) against fixed parameters (r,) of m.
        """
        shape, w = z.shape[:2], m + len(self.scored)
        squares, score = np.zeros((*shape, len(self._each))), np.zeros((*shape, w))
        info = np.zeros((*shape, w, w))
        forms = np.array([one.form for one in self._each], dtype=np.int32)
        where = [m + self.scored.index(one.sds.start) if one.parameters and not one.exact else -1
                 for one in self._each]  # fmt: skip
        z, places = np.ascontiguousarray(z), np.array(where, dtype=np.intp)
        law.expand(z, shares, fixed, forms, places, squares, score, info, thread_count(None))
        sums = []
        for number, one in enumerate(self._each):
            if one.exact:
                sums.append(squares[..., number, None])
                sums += self._counted(one, len(z))
        return sums, score, info

    def _counted(self, one: Outcome, n_chains: int) -> list[Doubles]:
        """Rows of each individual that are of an outcome, (chains, n, 1), if there are others."""
        if len(self._each) == 1:
            return []
        there = np.bincount(one.of, minlength=self.individuals.n_individuals).astype(np.float64)
        return [np.tile(there[None, :, None], (n_chains, 1, 1))]

    def _sums(self, one: Outcome, values: Doubles) -> Doubles:
        """Add up what rows of an outcome have, (chains, m), of each individual: (chains, n)."""
        each = values
        if len(self._each) > 1:
            each = np.zeros((len(values), self.individuals.n_rows))
            each[:, one.here] = values
        return self.individuals.sums(each)

    def exact(self, squares: Doubles, counts: Counts) -> list[tuple[Outcome, Doubles, Doubles]]:
        """Outcomes of one variance, with totals of squares (...) and numbers of rows (...)."""
        exact = [one for one in self._each if one.exact]
        table = squares.reshape(*squares.shape[:-1], len(exact), min(len(self._each), 2))
        rows = table[..., -1] if len(self._each) > 1 else np.full(table.shape[:-1], counts.rows)
        rows = np.maximum(rows, 0.0)
        return [(one, table[..., at, 0], rows[..., at]) for at, one in enumerate(exact)]
