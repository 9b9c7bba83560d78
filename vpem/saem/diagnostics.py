"""Whether a fit describes data: predictions, residuals, and what it would have measured instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vpem.checks import Doubles, Indices, check_int, check_memory
from vpem.network.schema import Report
from vpem.saem import special
from vpem.saem.individuals import Individuals, Streams
from vpem.saem.models.model import SaemModel
from vpem.saem.prediction import Predictor, finite, in_batches

SIMULATED = 1 << 32
"""Iteration of the streams whose numbers new measurements are made of."""

PERCENTILES = (5.0, 50.0, 95.0)
MOST_BINS = 12


@dataclass(frozen=True)
class RowResiduals:
    """Predictions of the rows of individuals, and how far measurements are from them.

    ``among`` is what is left of the value once its mean and its covariance with the individual's
    earlier rows, both of simulated data, are taken out (PWRES); NaN of individuals who have a value
    that is a limit, and of values that are whole numbers. ``npde``, normalised prediction
    distribution errors, are the place of PWRES among simulated data, as a standard normal number;
    without PWRES, the place of the value itself; that of a limit is drawn beyond it.
    """

    kind: ClassVar = "vpem-saem-residuals"

    at: Individuals
    population: Doubles  # (N,) curve of mean latents by covariates (PRED)
    fitted: Doubles  # (N,) curve of conditional mean latents (IPRED)
    individual: Doubles  # (N,) in sd of a measurement (IWRES); NaN: a limit
    among: Doubles  # (N,)
    npde: Doubles  # (N,)

    def describe(self) -> Report:
        return {"residuals": self.columns()}

    def columns(self) -> Report:
        """A line for each row of the individuals, residuals as the field calls them."""
        at = self.at
        return {
            "id": at.ids[at.individual_of], "time": at.times, "value": at.values,
            "population": self.population, "fitted": self.fitted, "iwres": self.individual,
            "pwres": self.among, "npde": self.npde,
        }  # fmt: skip


@dataclass(frozen=True)
class CheckedShare:
    """What was observed of each bin (B,), and the middle and ends of what was simulated."""

    name: str
    observed: Doubles
    middle: Doubles
    lower: Doubles
    upper: Doubles


@dataclass(frozen=True)
class Check:
    """A visual predictive check: percentiles of measurements by time, beside simulated ones."""

    outcome: float | None  # which, of several
    edges: Doubles  # (B + 1,) times between bins
    times: Doubles  # (B,) median of the rows of each
    shares: tuple[CheckedShare, ...]  # percentiles; of 0 and 1 the share of ones
    limited: tuple[CheckedShare, ...]  # share of values below (above) the limit
    rows: Indices  # that are checked
    level: float  # probability of the intervals


def simulate(model: SaemModel, theta: Doubles, n_sims: int, seed: int) -> Doubles:
    """Draw latents by the population, and measurements (n_sims, N) at a model's rows.

    Each individual draws by its own stream.
    """
    model, at = model.expand_about(theta), model.individuals
    means, covariance = model.prior(theta, at)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    streams = Streams.from_names(at.names, seed)
    z = means + streams.derive_stream(SIMULATED, 0).normals(n_sims, means.shape[1]) @ root.T
    return model.draw_values(z, theta, streams.derive_stream(SIMULATED, 1), at)


def residuals_of(predictor: Predictor, individuals: Individuals) -> RowResiduals:
    """Return predictions and residuals of individuals' rows, of the fit or others.

    Data sets are simulated as many as the predictor's ``n_draws``.
    """
    residuals: list[tuple[Doubles, ...]] = []
    theta = predictor.saved.theta
    for some in in_batches(individuals, len(predictor.saved.latents), predictor.n_draws):
        model = predictor.for_individuals(some).expand_about(theta)
        fitted, typical, means = _predicted(predictor, model)
        drawn = finite(simulate)(model, predictor.saved.theta, predictor.n_draws, predictor.seed)
        streams = Streams.from_names(some.names, predictor.seed)
        chances = streams.derive_stream(SIMULATED, 2).of_rows(1, some.first)[0]
        among, npde = _prediction_errors(some, drawn, chances)
        residuals.append(
            (typical, fitted, model.weighted_residuals(means[None], theta)[0], among, npde)
        )
    return RowResiduals(
        individuals, *(np.concatenate(part) for part in zip(*residuals, strict=True))
    )


@finite
def _predicted(predictor: Predictor, model: SaemModel) -> tuple[Doubles, Doubles, Doubles]:
    """Curves of the latents given the rows and of the population, (N,), and the first (n, q)."""
    at = model.individuals
    means = predictor.latents(at).means
    typical = model.prior(predictor.saved.theta, at)[0]
    return model.curve(means[None], at)[0], model.curve(typical[None], at)[0], means


def _prediction_errors(
    at: Individuals, drawn: Doubles, chances: Doubles
) -> tuple[Doubles, Doubles]:
    """Weighted population residuals and npde (N,) of values among drawn ones (sims, N)."""
    among, npde = np.full(at.n_rows, np.nan), np.full(at.n_rows, np.nan)
    censored = at.covariates.get("censored", np.zeros(at.n_rows))
    whole = bool((drawn == np.round(drawn)).all())
    for first, last in zip(at.first[:-1], at.first[1:], strict=True):
        rows = slice(first, last)
        apart, observed, limits = drawn[:, rows], at.values[rows], censored[rows]
        if not whole and not limits.any():
            middle = apart.mean(axis=0)
            apart, observed = apart - middle, observed - middle
            try:
                root = np.linalg.cholesky(apart.T @ apart / len(apart))
            except np.linalg.LinAlgError:  # rows are certain, or more than there are simulations
                continue
            apart, observed = np.linalg.solve(root, apart.T).T, np.linalg.solve(root, observed)
            among[rows] = observed
        less, same = (apart < observed).mean(axis=0), (apart == observed).mean(axis=0)
        share = less + chances[rows] * same
        share = np.where(limits > 0, chances[rows] * less, share)
        share = np.where(limits < 0, less + chances[rows] * (1 - less), share)
        npde[rows] = special.ndtri(np.clip(share, 0.5 / len(apart), 1 - 0.5 / len(apart)))
    return among, npde


# ---- the visual predictive check ----------------------------------------------------------------


def visual_checks(
    predictor: Predictor, individuals: Individuals, *, n_sims: int = 500, n_bins: int | None = None
) -> list[Check]:
    """Hold percentiles of measurements, by time, against simulated ones; a check an outcome.

    Simulated individuals have the times and covariates of those that are given. Where values are
    limits (the covariate ``censored`` is not 0), what is simulated beyond the limit counts as the
    limit, and the share of such values is checked too. Bins of times have equal numbers of rows; by
    default there are as many as an individual has rows, 12 at most.
    """
    check_int("n_sims", n_sims, least=20, most=100_000)
    if n_bins is not None:
        check_int("n_bins", n_bins, least=1, most=1000)
    check_memory(8 * n_sims * individuals.n_rows, "the simulated measurements")
    parts = [
        finite(simulate)(
            predictor.for_individuals(some), predictor.saved.theta, n_sims, predictor.seed
        )
        for some in in_batches(individuals, len(predictor.saved.latents), n_sims)
    ]
    drawn = np.concatenate(parts, axis=1)
    outcomes = individuals.covariates.get("outcome")
    several = [None] if outcomes is None else np.unique(outcomes).tolist()
    checks = []
    for outcome in several:
        rows = np.arange(individuals.n_rows)
        if outcomes is not None and outcome is not None:
            rows = np.flatnonzero(outcomes == outcome)
        each = np.bincount(individuals.individual_of[rows])
        usual = int(np.clip(np.median(each[each > 0]), 1, MOST_BINS))
        edges = _edges(individuals.times[rows], n_bins or usual)
        checks.append(_check(individuals, drawn[:, rows], rows, edges, outcome, predictor.level))
    return checks


def _edges(times: Doubles, count: int) -> Doubles:
    """Edges (B + 1,) of bins with about equally many rows, none of them empty."""
    quantiles = np.quantile(times, np.linspace(0, 1, count + 1)[1:-1], method="inverted_cdf")
    different = np.unique(times)
    # An edge lies half way to the next time: rows of one time are in one bin.
    after = np.searchsorted(different, quantiles, side="right")
    inner = [(different[k - 1] + different[k]) / 2 for k in np.unique(after) if k < len(different)]
    return np.array([different[0], *inner, different[-1]])


def _check(
    at: Individuals,
    drawn: Doubles,
    rows: Indices,
    edges: Doubles,
    outcome: float | None,
    level: float,
) -> Check:
    times, values = at.times[rows], at.values[rows]
    place = np.searchsorted(edges[1:-1], times, side="right")
    bins = [np.flatnonzero(place == b) for b in range(len(edges) - 1)]
    limits = at.covariates.get("censored", np.zeros(at.n_rows))[rows]
    limited = []
    for sign, what in ((1.0, "below the limit"), (-1.0, "above the limit")):
        beyond = np.sign(limits) == sign
        if not beyond.any():
            continue
        limit = sign * (sign * values[beyond]).max()
        out = sign * drawn < sign * limit
        limited.append(_share(what, beyond[None].astype(float), out.astype(float), bins, level))
        drawn = np.where(out, limit, drawn)
        values = np.where(beyond | (sign * values < sign * limit), limit, values)
    shares = []
    if np.isin(values, (0.0, 1.0)).all():
        shares.append(_share("share of ones", values[None], drawn, bins, level))
    else:
        for percent in PERCENTILES:
            name = "median" if percent == 50 else f"percentile {percent:g}"
            shares.append(_share(name, values[None], drawn, bins, level, percent))
    middles = np.array([np.median(times[rows_of_bin]) for rows_of_bin in bins])
    return Check(outcome, edges, middles, tuple(shares), tuple(limited), rows, level)


def _share(
    name: str,
    observed: Doubles,
    drawn: Doubles,
    bins: Sequence[Indices],
    level: float,
    percent: float | None = None,
) -> CheckedShare:
    """Means, or percentiles, of bins: of what was observed (1, N), and of what was drawn."""

    def each(values: Doubles) -> Doubles:
        parts = (values[:, rows_of_bin] for rows_of_bin in bins)
        if percent is None:
            return np.stack([part.mean(axis=1) for part in parts], axis=1)
        return np.stack([np.percentile(part, percent, axis=1) for part in parts], axis=1)

    ends = [0.5, (1 - level) / 2, (1 + level) / 2]
    middle, lower, upper = np.quantile(each(drawn), ends, axis=0)
    return CheckedShare(name, each(observed)[0], middle, lower, upper)
