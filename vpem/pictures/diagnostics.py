"""Pictures of whether a fit of SAEM describes data: predictions, residuals, simulated data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from vpem.pictures.figure import WIDTH, Picture, legend_below, new_figure, words
from vpem.pictures.style import BAND, CURVE, INK, LIGHT, RULE, SHADE, few_ticks, tidy
from vpem.saem.diagnostics import Check, Share, residuals_of, visual_checks
from vpem.saem.fitted import Maker
from vpem.saem.individuals import Individuals
from vpem.saem.prediction import Predictor
from vpem.saem.results import SaemFit
from vpem.saem.saved import SavedSaem

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Numbers = NDArray[np.float64]

BROKEN = (0, (5, 3))
MOST_POINTS = 3000
TREND = 10
"""Bins of a running median."""
MOST_LATENTS = 6
MOST_COVARIATES = 4


def _column(at: Individuals, name: str) -> str:
    """What a column is called where the data are from."""
    return words(str(at.columns.get(name, name)), 32)


def _points(axes: Axes, x: Numbers, y: Numbers, label: str) -> None:
    """Draw points, of very many some."""
    some = slice(None, None, max(1, len(x) // MOST_POINTS))
    axes.plot(
        x[some], y[some], color="white", marker="o", markersize=3.4, markeredgecolor=RULE,
        markeredgewidth=0.7, linestyle="", label=label, zorder=3,
    )  # fmt: skip


def _trend(axes: Axes, x: Numbers, y: Numbers) -> None:
    """Draw medians of the points from left to right."""
    known = np.isfinite(x) & np.isfinite(y)
    order = np.argsort(x[known], kind="stable")
    if len(order) < 2 * TREND:
        return
    parts = np.array_split(order, TREND)
    axes.plot(
        [np.median(x[known][part]) for part in parts],
        [np.median(y[known][part]) for part in parts],
        color=CURVE, linewidth=1.6, linestyle=BROKEN, label="median of ten parts", zorder=4,
    )  # fmt: skip


def _level_line(axes: Axes, *heights: float) -> None:
    for height in heights:
        axes.axhline(height, color=INK, linewidth=0.9 if height == 0 else 0.6,
                     linestyle="-" if height == 0 else ":", zorder=2)  # fmt: skip


def draw_observed(
    fit: SaemFit | SavedSaem, individuals: Individuals, *, model: Maker | None = None
) -> Picture:
    """Draw measurements against predictions: of the population, and of each individual.

    ``model`` is as for `vpem.saem.prediction.Predictor`, and has curves.
    """
    predictor = Predictor(fit, model)
    given = predictor.curves(individuals)
    typical = predictor.population(individuals=individuals)
    figure = new_figure(WIDTH, 4.2)
    told = []
    for axes, fitted, title in zip(
        figure.subplots(1, 2, sharey=True), (typical.fitted, given.fitted),
        ("population", "individuals"), strict=True,
    ):  # fmt: skip
        y = individuals.values
        low, high = min(y.min(), fitted.min()), max(y.max(), fitted.max())
        axes.plot([low, high], [low, high], color=INK, linewidth=0.9, label="equal", zorder=2)
        _points(axes, fitted, y, "measured")
        _trend(axes, fitted, y)
        tidy(axes)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(f"predicted {_column(individuals, 'value')}", fontsize=9)
        told.append(f"{title} {_fit_of(y, fitted):.3f}")
    figure.axes[0].set_ylabel(f"measured {_column(individuals, 'value')}", fontsize=9)
    figure.suptitle(f"SAEM, {words(predictor.saved.model)}: measured and predicted", fontsize=11)
    legend_below(figure, figure.axes[0].get_legend_handles_labels()[0], size=9)
    return Picture(
        figure,
        f"{individuals.n_rows} measurements against what is predicted, with the line where both "
        f"are equal. Share of the measurements' variance that predictions leave: {told[0]}, "
        f"{told[1]}.",
    )


def _fit_of(y: Numbers, fitted: Numbers) -> float:
    """Share of the variance of values that is left about predictions."""
    return float(np.mean((y - fitted) ** 2) / np.var(y)) if np.var(y) > 0 else np.nan


def draw_residuals(
    fit: SaemFit | SavedSaem, individuals: Individuals, *, model: Maker | None = None
) -> Picture:
    """Draw residuals against time, prediction, and what a normal law would have.

    Above are weighted residuals of individuals (IWRES), below prediction distribution errors
    (npde). Both should scatter about 0 as standard normal numbers do, everywhere; the first less
    where individuals' curves are drawn to their few rows.
    """
    predictor = Predictor(fit, model)
    found = residuals_of(predictor, individuals)
    figure = new_figure(WIDTH, 5.4)
    grid = figure.subplots(2, 3, sharey="row")
    told = []
    for row, (name, values, fitted, of) in enumerate(
        (("IWRES", found.individual, found.fitted, "individual's"),
         ("npde", found.npde, found.population, "population's"))
    ):  # fmt: skip
        for axes, x, label in (
            (grid[row, 0], individuals.times, _column(individuals, "time")),
            (grid[row, 1], fitted, f"{of} prediction"),
        ):
            _level_line(axes, 0.0, -1.96, 1.96)
            _points(axes, x, values, "residual")
            _trend(axes, x, values)
            axes.set_xlabel(label, fontsize=9)
        grid[row, 0].set_ylabel(name, fontsize=9)
        known = np.sort(values[np.isfinite(values)])
        places = ndtri((np.arange(1, len(known) + 1) - 0.375) / (len(known) + 0.25))
        axes = grid[row, 2]
        axes.axline((0, 0), slope=1, color=INK, linewidth=0.9, zorder=2)
        _points(axes, places, known, "residual")
        axes.set_xlabel("standard normal", fontsize=9)
        if len(known):
            told.append(f"{name} mean {known.mean():.2f}, sd {known.std():.2f}")
    for axes in grid.ravel():
        tidy(axes)
        axes.tick_params(labelsize=8)
    figure.suptitle(f"SAEM, {words(predictor.saved.model)}: residuals", fontsize=11)
    legend_below(figure, grid[0, 0].get_legend_handles_labels()[0], size=9)
    left = int((~np.isfinite(found.individual)).sum())
    notes = [f"{left} rows have no IWRES: limits, or certain"] if left else []
    return Picture(
        figure,
        "Weighted residuals of individuals and prediction distribution errors, against time, "
        f"prediction and normal quantiles: {'; '.join(told)}.",
        notes,
    )


def draw_check(
    fit: SaemFit | SavedSaem,
    individuals: Individuals,
    *,
    model: Maker | None = None,
    n_bins: int | None = None,
) -> Picture:
    """Draw percentiles of measurements by time, with what simulated individuals would have."""
    predictor = Predictor(fit, model)
    checks = visual_checks(predictor, individuals, n_bins=n_bins)
    high = 2 if any(one.limited for one in checks) else 1
    figure = new_figure(WIDTH if len(checks) > 1 else 6.4, 4.4 + 2.0 * (high - 1))
    ratios = [3, 1][:high]
    grid = figure.subplots(high, len(checks), squeeze=False, height_ratios=ratios, sharex="col")
    outside = total = 0
    for column, check in zip(grid.T, checks, strict=True):
        _draw_check(column[0], check, individuals)
        for share in check.limited:
            _draw_share(column[1], check, share, None)
            column[1].set_ylabel(words(share.name), fontsize=9)
        column[-1].set_xlabel(_column(individuals, "time"), fontsize=9)
        if check.outcome is not None:
            column[0].set_title(f"outcome {check.outcome:g}", fontsize=10)
        for share in (*check.shares, *check.limited):
            outside += int(((share.observed < share.lower) | (share.observed > share.upper)).sum())
            total += len(share.observed)
    for axes in grid.ravel():
        tidy(axes)
    figure.suptitle(f"SAEM, {words(predictor.saved.model)}: visual predictive check", fontsize=11)
    legend_below(figure, grid[0, 0].get_legend_handles_labels()[0], size=9)
    return Picture(
        figure,
        f"{', '.join(share.name for share in checks[0].shares)} of the measurements in "
        f"{sum(len(one.times) for one in checks)} bins of time, with {100 * predictor.level:.3g} % "
        f"intervals of simulated data; {outside} of {total} lie outside.",
    )


def _draw_check(axes: Axes, check: Check, at: Individuals) -> None:
    """Draw one outcome: points, percentiles, and bands of what was simulated."""
    if len(check.shares) == 1:
        _draw_share(axes, check, check.shares[0], check.shares[0].name)
        axes.set_ylabel(check.shares[0].name, fontsize=9)
        return
    _points(axes, at.times[check.rows], at.values[check.rows], "measured")
    low, middle, high = check.shares
    _draw_share(axes, check, low, "percentiles 5 and 95", outer=True)
    _draw_share(axes, check, high, None, outer=True)
    _draw_share(axes, check, middle, middle.name)
    axes.set_ylabel(_column(at, "value"), fontsize=9)


def _draw_share(
    axes: Axes, check: Check, share: Share, name: str | None, outer: bool = False
) -> None:
    """Draw the band of what was simulated, and what was observed; named for the legend, or not."""
    out = (share.observed < share.lower) | (share.observed > share.upper)
    shade, height = (LIGHT, 1) if outer else (BAND, 2)
    drawn = None if name is None else f"{name}, simulated"
    if len(check.times) > 1:
        axes.fill_between(
            check.times, share.lower, share.upper, color=shade, linewidth=0, zorder=height,
            label=drawn,
        )  # fmt: skip
        for end in (share.lower, share.upper):
            axes.plot(check.times, end, color=SHADE, linewidth=0.6, zorder=2)
    else:
        axes.vlines(
            check.times, share.lower, share.upper, colors=shade, linewidth=12, zorder=height,
            label=drawn or "",
        )  # fmt: skip
    axes.plot(
        check.times, share.observed, color="black", linewidth=1.5, zorder=5,
        linestyle=BROKEN if outer else "-", label=None if name is None else f"{name}, measured",
    )  # fmt: skip
    axes.plot(
        check.times[out], share.observed[out], color="white", marker="s", markersize=6.5,
        markeredgecolor="black", markeredgewidth=1.4, linestyle="", zorder=6,
        label="outside" if out.any() else None,
    )  # fmt: skip


def draw_effects(
    fit: SaemFit | SavedSaem, individuals: Individuals, *, model: Maker | None = None
) -> Picture:
    """Draw how individuals' latents are spread about the population's, and against covariates.

    Of each latent a histogram of conditional means less the mean that the model has for such
    individuals, in standard deviations between individuals, under the standard normal density;
    shrinkage makes it narrower. Beside it the same against each covariate that does not change
    within individuals: a trend there is a covariate that the model lacks.
    """
    predictor = Predictor(fit, model)
    saved = predictor.saved
    made = predictor.model.of(individuals)
    prior, covariance = made.prior(saved.theta, individuals)
    latents = [f"var({name})" in saved.parameters for name in saved.latents]
    which = np.flatnonzero(latents if any(latents) else np.ones(len(latents)))
    effects = (predictor.latents(individuals).means - prior) / np.sqrt(np.diag(covariance))
    covariates = _constant(individuals)
    names = list(covariates)[:MOST_COVARIATES]
    shown = min(len(which), MOST_LATENTS)
    figure = new_figure(2.6 * (1 + len(names)) + 0.6, 1.9 * shown + 0.9)
    grid = figure.subplots(shown, 1 + len(names), squeeze=False, sharey=False)
    told = []
    for j, place in enumerate(which[:shown]):
        latent, values = saved.latents[place], effects[:, place]
        _draw_histogram(grid[j, 0], values)
        grid[j, 0].set_ylabel(words(latent, 20), fontsize=9)
        told.append(f"{latent} {values.std():.2f}")
        for axes, name in zip(grid[j, 1:], names, strict=True):
            _level_line(axes, 0.0)
            _points(axes, covariates[name], values, "an individual")
            _trend(axes, covariates[name], values)
            known = np.isfinite(covariates[name])
            if known.sum() > 2 and np.ptp(covariates[name][known]) > 0:
                r = float(np.corrcoef(covariates[name][known], values[known])[0, 1])
                axes.set_title(f"correlation {r:.2f}", fontsize=8)
                told.append(f"{latent} with {name} {r:.2f}")
    for axes in grid.ravel():
        tidy(axes)
        axes.tick_params(labelsize=8)
        few_ticks(axes, 5)
    for axes, name in zip(grid[-1], ("effect, in sds", *names), strict=True):
        axes.set_xlabel(words(name), fontsize=9)
    figure.suptitle(f"SAEM, {words(saved.model)}: random effects", fontsize=11)
    left = len(which) - shown, len(covariates) - len(names)
    what = (f"{left[0]} more latents" if left[0] else "", f"{left[1]} more covariates"
            if left[1] else "")  # fmt: skip
    return Picture(
        figure,
        "Conditional means of the random effects of individuals, in standard deviations between "
        f"them, with the normal density; their standard deviation, and correlations with "
        f"covariates: {', '.join(told)}.",
        [f"{one} are not drawn" for one in what if one],
    )


def _draw_histogram(axes: Axes, values: Numbers) -> None:
    """Draw a histogram under the standard normal density."""
    bins = int(np.clip(np.sqrt(len(values)) * 1.5, 4, 40))
    axes.hist(values, bins=bins, density=True, color=BAND, edgecolor="white", linewidth=0.6)
    x = np.linspace(-3.5, 3.5, 141)
    axes.plot(x, np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi), color=CURVE, linewidth=1.6)


def _constant(at: Individuals) -> dict[str, Numbers]:
    """Covariates (n,) that differ between individuals, and do not change within any."""
    found = {}
    for name, values in at.covariates.items():
        each = values[at.first[:-1]]
        changes = (values != each[at.individual_of]) & ~np.isnan(values)
        if not changes.any() and len(np.unique(each[~np.isnan(each)])) > 1:
            found[name] = each
    return found
