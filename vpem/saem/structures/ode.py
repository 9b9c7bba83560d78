"""Curves that are solutions of a small system of differential equations, which a user writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from scipy.integrate import RK45

from vpem.checks import Doubles, Indices
from vpem.errors import InputError
from vpem.saem.doses import Doses, doses_of
from vpem.saem.individuals import Individuals
from vpem.saem.structures.structure import Signature, Structure

RELATIVE = 1e-6
ABSOLUTE = 1e-8
"""Tolerances of a step, the second as a part of the largest amount until then."""

MOST_STEPS = 20_000

Change = Callable[[Doubles, Doubles, Indices], Doubles]


class Ode(Structure):
    """Amounts that change as a user's function says, see `ode`."""

    def __init__(
        self, function: Callable[..., object], states: int, into: int, scales: Mapping[str, str]
    ) -> None:
        self.signature = Signature(function, scales, 2)
        self.names, self.scales = self.signature.names, self.signature.scales
        self.states, self.into = states, into
        self.needs = self.signature.covariates
        self._measured: Signature | None = None
        self._first: Signature | None = None
        self.start = self.scaled(self.signature.begin)
        if not 0 <= into < states:
            raise InputError(f"{self.signature.title}: into must be below states, {states}")
        if not np.isfinite(self.start).all():
            raise InputError(
                f"{self.signature.title}: parameters begin where their scales have no value"
            )

    def measured(self, function: Callable[..., object]) -> Ode:
        """Say what is measured: ``f(time, amounts, a, b, *, covariate)``; by default the last."""
        self._measured = self._same(function, 2)
        self.needs = tuple(dict.fromkeys((*self.needs, *self._measured.covariates)))
        return self

    def first(self, function: Callable[..., object]) -> Ode:
        """Say which amounts there are before any dose: ``f(a, b, *, covariate)``; by default 0."""
        self._first = self._same(function, 0)
        self.needs = tuple(dict.fromkeys((*self.needs, *self._first.covariates)))
        return self

    def _same(self, function: Callable[..., object], first: int) -> Signature:
        """Read a function of the same parameters, which begin where they do."""
        begin = dict(zip(self.names, self.signature.begin.tolist(), strict=True))
        signature = Signature(function, {}, first, begin)
        if signature.names != self.names:
            raise InputError(
                f"{signature.title} must take the parameters of {self.signature.title}: "
                f"{', '.join(self.names)}"
            )
        return signature

    def check(self, at: Individuals) -> None:
        """Check that covariates are there; those of the equations do not change."""
        super().check(at)
        for one in (self.signature, self._first):
            for name in () if one is None else one.covariates:
                at.constant(name, "amounts change by one value an individual")

    def predict(self, phi: Doubles, at: Individuals) -> Doubles:
        n_chains, n = phi.shape[:2]
        natural = np.moveaxis(self.natural(phi), -1, 0)
        flat = natural.reshape(len(self.names), -1)
        who = np.tile(np.arange(n), n_chains)
        each = {name: at.covariates[name][at.first[:-1]][who] for name in self.needs}

        def change(t: Doubles, y: Doubles, some: Indices) -> Doubles:
            covariates = {name: each[name][some] for name in self.signature.covariates}
            return self.signature.call(y.shape, t, y, *flat[:, some], **covariates)

        amounts = np.zeros((self.states, len(who)))
        if self._first is not None:
            covariates = {name: each[name] for name in self._first.covariates}
            amounts[:] = self._first.call(amounts.shape, *flat, **covariates)
        has_doses = at.doses is not None or "dose" in at.covariates
        doses = doses_of(at) if has_doses else Doses.none(n)
        solution = solve(change, amounts, at, doses, who, self.into)
        solution = solution.reshape(self.states, n_chains, at.n_rows)
        if self._measured is None:
            return np.asarray(solution[-1], np.float64)
        rows = natural[:, :, at.individual_of]
        covariates = {name: at.covariates[name] for name in self._measured.covariates}
        return self._measured.call(solution.shape[1:], at.times, solution, *rows, **covariates)


def _stops(at: Individuals, doses: Doses) -> tuple[Indices, Doubles, Doubles, Doubles, Indices]:
    """When the course of an individual is interrupted: at rows, and where doses begin and end.

    Those of each individual begin at the first (n + 1,); all else is (T,): when, what comes in at
    once, by how much the inflow changes, and the row that is there, which is read before a dose;
    -1: none.
    """
    rows, runs = at.n_rows, doses.durations > 0
    ends, flow = doses.times + doses.durations, np.zeros(len(runs))
    np.divide(doses.amounts, doses.durations, out=flow, where=runs)
    who = np.concatenate([at.individual_of, doses.individual_of, doses.individual_of[runs]])
    times = np.concatenate([at.times, doses.times, ends[runs]])
    order = np.lexsort((np.arange(len(who)) >= rows, times, who))
    none = np.zeros(rows)
    jumps = np.concatenate([none, np.where(runs, 0.0, doses.amounts), 0 * flow[runs]])
    rates = np.concatenate([none, flow, -flow[runs]])
    first = np.searchsorted(who[order], np.arange(at.n_individuals + 1))
    return first, times[order], jumps[order], rates[order], np.where(order < rows, order, -1)


def solve(
    change: Change, amounts: Doubles, at: Individuals, doses: Doses, who: Indices, into: int
) -> Doubles:
    """Solve for many individuals at once, each with steps of its own: (states, chains N).

    By Dormand and Prince's pair of orders 5 and 4. The solution of an individual does not depend
    on which others are there. Where it is not finite, or needs too many steps, it is NaN.
    ``change`` gives derivatives (states, k) at times (k,) of amounts (states, k); ``amounts``
    (states, J) are those at each individual's first stop, ``who`` (J,) says whose each course is, a
    chain after the other, and doses go ``into`` a state.
    """
    first, times, jumps, rates, row_of = _stops(at, doses)
    n_chains = len(who) // max(1, at.n_individuals)
    states = np.full((len(amounts), n_chains, at.n_rows), np.nan)
    chain = np.repeat(np.arange(n_chains), at.n_individuals)
    y, place, last = amounts.copy(), first[:-1][who], first[1:][who]
    t = times[np.minimum(place, len(times) - 1)]
    inflow, largest = np.zeros(len(who)), np.abs(y).max(axis=0)
    span = times[last - 1] - t
    h = np.where(span > 0, 1e-3 * span, 1.0)
    live = np.arange(len(who))
    for _ in range(MOST_STEPS):
        while True:  # rows are read, and doses taken, of the courses that are there
            live = live[place[live] < last[live]]
            due = live[times[place[live]] <= t[live]]
            if not len(due):
                break
            now = place[due]
            rows = row_of[now]
            read = rows >= 0
            states[:, chain[due[read]], rows[read]] = y[:, due[read]]
            y[into, due] += jumps[now]
            inflow[due] = inflow[due] + rates[now]
            place[due] += 1
        if not len(live):
            break
        np.maximum.at(largest, live, np.abs(y[:, live]).max(axis=0))
        until = times[place[live]]
        step = np.minimum(h[live], until - t[live])
        new, error = _step(change, t[live], y[:, live], step, inflow[live], live, into)
        scale = RELATIVE * np.maximum(np.abs(new), np.abs(y[:, live])) + ABSOLUTE * largest[live]
        with np.errstate(all="ignore"):
            size = np.sqrt(np.mean((error / np.maximum(scale, 1e-300)) ** 2, axis=0))
            factor = np.clip(0.9 * size**-0.2, 0.2, 5.0)
        factor = np.where(np.isfinite(size), factor, 0.2)
        good = size <= 1
        whole = good & (step >= until - t[live])
        y[:, live[good]] = new[:, good]
        t[live] = np.where(whole, until, np.where(good, t[live] + step, t[live]))
        # A step that a stop cut short says little of how long the next may be.
        h[live] = np.where(whole & (factor >= 1), np.maximum(h[live], step * factor), step * factor)
        live = live[h[live] > 1e-14 * np.maximum(np.abs(t[live]), span[live])]
    return states.reshape(len(amounts), -1)


def _step(
    change: Change, t: Doubles, y: Doubles, h: Doubles, inflow: Doubles, some: Indices, into: int
) -> tuple[Doubles, Doubles]:
    """One step of some courses, and its error."""
    stages = np.empty((7, *y.shape))
    for stage in range(6):
        moved = y + h * _weighted(RK45.A[stage, :stage], stages)
        stages[stage] = change(t + RK45.C[stage] * h, moved, some)
        stages[stage, into] += inflow
    new = y + h * _weighted(RK45.B, stages)
    stages[6] = change(t + h, new, some)
    stages[6, into] += inflow
    return new, h * _weighted(RK45.E, stages)


def _weighted(weights: Doubles, stages: Doubles) -> Doubles:
    """Sum of stages, one after the other: rounded alike, whichever others are there."""
    total = np.zeros(stages.shape[1:])
    for weight, stage in zip(weights, stages, strict=False):
        if weight:
            total += weight * stage
    return total


def ode(states: int, into: int = 0, **scales: str) -> Callable[[Callable[..., object]], Ode]:
    """Make a curve of equations: ``@ode(2, ka="log")`` before ``def f(time, amounts, ka=1.0)``.

    Of ``states`` amounts that change, doses go ``into`` one, at once or, if they have a duration,
    at a constant rate. Scales are as of `vpem.saem.structures.structure.curve`. Arguments of the
    function are arrays of times, and of amounts (states, ...), then come parameters, whose values
    are where a fit begins, and after ``*`` covariates. It returns how fast each amount changes.
    Without more, the last amount is what is measured.
    """
    return lambda function: Ode(function, states, into, scales)
