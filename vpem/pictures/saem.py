"""Pictures of a fit of SAEM: traces, curves of individuals, whether it describes data, topics.

Whether it does is seen from predictions, residuals and simulated data; of topics the words are
drawn, the shares in the words of devices, and how the fit went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_int
from vpem.pictures.figure import (
    BAND,
    CURVE,
    GRID,
    INK,
    LIGHT,
    RULE,
    SHADE,
    WIDTH,
    Picture,
    colour,
    few_ticks,
    hatch,
    legend_below,
    new_figure,
    tidy,
    whole_numbers,
    words,
)
from vpem.saem import special
from vpem.saem.diagnostics import Check, CheckedShare, residuals_of, visual_checks
from vpem.saem.individuals import Individuals
from vpem.saem.prediction import Maker, Predictor
from vpem.saem.results import TOP, SaemFit, SavedSaem, Topics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_PANELS = 36
"""Parameters, or individuals, up to which all are drawn."""

BROKEN = (0, (5, 3))

MOST_POINTS = 3000
TREND = 10
"""Bins of a running median."""
MOST_LATENTS = 6
MOST_COVARIATES = 4

MOST_TOPICS = 24
"""Topics up to which all are drawn."""

MOST_DEVICES = 40

COLUMNS = 4

Numbers = NDArray[np.float64]


def draw_traces(fit: SaemFit | SavedSaem) -> Picture:
    """Draw every parameter, of many the first 36, against the iterations.

    A panel has the parameter as it went, the mean of it since the burn-in, which is shaded, and the
    final estimate, whose standard error stands above it.
    """
    saved = fit.saved
    stated = saved.settings.get("burn_in")  # a file may hold anything there
    burn_in = min(stated, saved.n_iter) if isinstance(stated, int) and stated >= 0 else 0
    count = len(saved.parameters)
    shown = min(count, MOST_PANELS)
    figure, panels, columns = _grid(shown, 1.9)
    late = saved.trace[burn_in + 1 :]
    means = np.cumsum(late, axis=0) / np.arange(1, len(late) + 1)[:, None]
    steps = np.arange(saved.n_iter + 1)
    for j, axes in enumerate(panels):
        axes.axvspan(0, burn_in, color=GRID, linewidth=0, label="burn-in", zorder=0)
        axes.plot(steps, saved.trace[:, j], color=CURVE, linewidth=0.9, label="parameter", zorder=3)
        if len(means) > 1:
            axes.plot(
                steps[burn_in + 1 :], means[:, j], color="black", linewidth=1.3, linestyle=BROKEN,
                label="mean since the burn-in", zorder=4,
            )  # fmt: skip
        axes.plot(
            [saved.n_iter * 1.04], [saved.theta[j]], color="white", marker="D", markersize=5.5,
            markeredgecolor="black", markeredgewidth=1.2, linestyle="", label="estimate", zorder=5,
        )  # fmt: skip
        error = saved.standard_errors[j]
        estimate = f"{saved.theta[j]:.4g}" + (f" (s.e. {error:.2g})" if error > 0 else "")
        axes.set_title(f"{words(saved.parameters[j], 32)}\n{estimate}", fontsize=9)
        axes.set_xlim(0, saved.n_iter * 1.07)
        axes.ticklabel_format(axis="y", useOffset=False)
        whole_numbers(axes.xaxis)
    for axes in panels[max(0, shown - columns) :]:
        axes.set_xlabel("iteration", fontsize=9)
    _finish(figure, panels, saved, "parameters", shown, count)
    some = ", ".join(f"{name} {value:.4g}" for name, value in list(saved.estimates.items())[:shown])
    alt = (
        f"{shown} parameters of the model {saved.model} over {saved.n_iter} iterations, and the "
        f"estimates: {some}."
    )
    return Picture(figure, alt, _drawn_of(shown, count, "parameters", "the first "))


def _grid(count: int, height: float) -> tuple[Figure, list[Axes], int]:
    """Figure with so many panels, the panels, and in how many columns they are."""
    columns = min(count, 2 if count <= 4 else 3)
    rows = -(-count // columns)
    figure = new_figure(
        (3.1 if columns < 3 else 2.6) * columns + 0.4, (height if rows <= 6 else 1.5) * rows + 1.1
    )
    return figure, _panels(figure, rows, columns, count), columns


def _panels(figure: Figure, rows: int, columns: int, count: int) -> list[Axes]:
    panels: list[Axes] = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in panels[count:]:
        axes.set_visible(False)
    for axes in panels[:count]:
        tidy(axes)
        axes.tick_params(labelsize=8)
    return panels[:count]


def _finish(
    figure: Figure, panels: list[Axes], saved: SavedSaem, what: str, shown: int = 0, count: int = 0
) -> None:
    part = "" if shown == count else f", {shown} of {count}"
    figure.suptitle(f"SAEM, {words(saved.model)}: {what}{part}", fontsize=11)
    legend_below(figure, panels[0].get_legend_handles_labels()[0], size=9)


def draw_curves(
    fit: SaemFit | SavedSaem,
    individuals: Individuals,
    *,
    model: Maker | None = None,
    n_times: int = 120,
    most: int = MOST_PANELS,
) -> Picture:
    """Draw the curve of each individual given its rows, over what was measured.

    A panel an individual, up to ``most``: its values, its curve with the interval at ``n_times``
    times, and that of the population with the individual's covariates; where these change in time,
    at the times of its rows. ``model`` is as for `vpem.saem.prediction.Predictor`.
    """
    saved = fit.saved
    predictor = Predictor(fit, model)
    count = individuals.n_individuals
    shown = min(count, most)
    some = individuals.take(np.arange(shown))
    times = np.linspace(some.times.min(), some.times.max(), check_int("n_times", n_times, least=2))
    at_rows = predictor.changing(some)
    curves = predictor.curves(some, None if at_rows else times)
    typical = predictor.population(None if at_rows else times, individuals=some)
    figure, panels, columns = _grid(shown, 2.0)
    low = min(some.values.min(), curves.lower.min(), typical.fitted.min())
    high = max(some.values.max(), curves.upper.max(), typical.fitted.max())
    margin = 0.05 * (high - low or 1.0)
    for i, axes in enumerate(panels):
        rows = slice(*some.first[i : i + 2])
        part = np.arange(i * len(times), (i + 1) * len(times))
        if at_rows:
            part = rows.start + np.argsort(some.times[rows], kind="stable")
            times = some.times[part]
        axes.fill_between(
            times, curves.lower[part], curves.upper[part], color=LIGHT, linewidth=0,
            label=f"{100 * saved.level:.3g} % interval of the curve", zorder=2,
        )  # fmt: skip
        axes.plot(
            times, typical.fitted[part], color="black", linewidth=1.1, linestyle=BROKEN,
            label="population", zorder=3,
        )  # fmt: skip
        axes.plot(times, curves.fitted[part], color=CURVE, linewidth=1.6, label="fitted", zorder=4)
        axes.plot(
            some.times[rows], some.values[rows], color="white", marker="o", markersize=4,
            markeredgecolor="black", linestyle="", label="measured", zorder=5,
        )  # fmt: skip
        axes.set_title(words(some.names[i], 32), fontsize=9)
        axes.set_ylim(low - margin, high + margin)
    for axes in panels[max(0, shown - columns) :]:
        axes.set_xlabel(words(str(individuals.columns.get("time", "time")), 32), fontsize=9)
    for axes in panels[::columns]:
        axes.set_ylabel(words(str(individuals.columns.get("value", "value")), 32), fontsize=9)
    _finish(figure, panels, saved, "individuals", shown, count)
    alt = (
        f"Measured values, fitted curves with {100 * saved.level:.3g} % intervals, and the "
        f"population's curve, of {shown} of {count} individuals, times "
        f"{individuals.times.min():.4g} to {individuals.times.max():.4g}."
    )
    return Picture(figure, alt, _drawn_of(shown, count, "individuals", "the first "))


def _column(at: Individuals, name: str) -> str:
    return words(str(at.columns.get(name, name)), 32)


def _points(axes: Axes, x: Numbers, y: Numbers, label: str) -> None:
    some = slice(None, None, max(1, len(x) // MOST_POINTS))
    axes.plot(
        x[some], y[some], color="white", marker="o", markersize=3.4, markeredgecolor=RULE,
        markeredgewidth=0.7, linestyle="", label=label, zorder=3,
    )  # fmt: skip


def _trend(axes: Axes, x: Numbers, y: Numbers) -> None:
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
    curves = predictor.curves(individuals)
    typical = predictor.population(individuals=individuals)
    figure = new_figure(WIDTH, 4.2)
    left = []
    for axes, fitted, title in zip(
        figure.subplots(1, 2, sharey=True), (typical.fitted, curves.fitted),
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
        share = np.mean((y - fitted) ** 2) / np.var(y) if np.var(y) > 0 else np.nan
        left.append(f"{title} {share:.3f}")
    figure.axes[0].set_ylabel(f"measured {_column(individuals, 'value')}", fontsize=9)
    _finish(figure, figure.axes, predictor.saved, "measured and predicted")
    return Picture(
        figure,
        f"{individuals.n_rows} measurements against what is predicted, with the line where both "
        f"are equal. Share of the measurements' variance that predictions leave: {left[0]}, "
        f"{left[1]}.",
    )


def draw_residuals(
    fit: SaemFit | SavedSaem, individuals: Individuals, *, model: Maker | None = None
) -> Picture:
    """Draw residuals against time, prediction, and what a normal law would have.

    Above are weighted residuals of individuals (IWRES), below prediction distribution errors
    (npde). Both should scatter about 0 as standard normal numbers do, everywhere; the first less
    where individuals' curves are drawn to their few rows.
    """
    predictor = Predictor(fit, model)
    residuals = residuals_of(predictor, individuals)
    figure = new_figure(WIDTH, 5.4)
    grid = figure.subplots(2, 3, sharey="row")
    moments = []
    for row, (name, values, fitted, of) in enumerate(
        (
            ("IWRES", residuals.individual, residuals.fitted, "individual's"),
            ("npde", residuals.npde, residuals.population, "population's"),
        )
    ):
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
        places = special.ndtri((np.arange(1, len(known) + 1) - 0.375) / (len(known) + 0.25))
        axes = grid[row, 2]
        axes.axline((0, 0), slope=1, color=INK, linewidth=0.9, zorder=2)
        _points(axes, places, known, "residual")
        axes.set_xlabel("standard normal", fontsize=9)
        if len(known):
            moments.append(f"{name} mean {known.mean():.2f}, sd {known.std():.2f}")
    for axes in grid.ravel():
        tidy(axes)
        axes.tick_params(labelsize=8)
    _finish(figure, [grid[0, 0]], predictor.saved, "residuals")
    left = int((~np.isfinite(residuals.individual)).sum())
    notes = [f"{left} rows have no IWRES: limits, or certain"] if left else []
    return Picture(
        figure,
        "Weighted residuals of individuals and prediction distribution errors, against time, "
        f"prediction and normal quantiles: {'; '.join(moments)}.",
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
        top = column[0]
        if len(check.shares) == 1:
            _draw_share(top, check, check.shares[0], check.shares[0].name)
            top.set_ylabel(check.shares[0].name, fontsize=9)
        else:
            rows = check.rows
            _points(top, individuals.times[rows], individuals.values[rows], "measured")
            low, middle, above = check.shares
            _draw_share(top, check, low, "percentiles 5 and 95", outer=True)
            _draw_share(top, check, above, None, outer=True)
            _draw_share(top, check, middle, middle.name)
            top.set_ylabel(_column(individuals, "value"), fontsize=9)
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
    _finish(figure, [grid[0, 0]], predictor.saved, "visual predictive check")
    return Picture(
        figure,
        f"{', '.join(share.name for share in checks[0].shares)} of the measurements in "
        f"{sum(len(one.times) for one in checks)} bins of time, with {100 * predictor.level:.3g} % "
        f"intervals of simulated data; {outside} of {total} lie outside.",
    )


def _draw_share(
    axes: Axes, check: Check, share: CheckedShare, name: str | None, outer: bool = False
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
    fitted = predictor.for_individuals(individuals)
    prior, covariance = fitted.prior(saved.theta, individuals)
    latents = [f"var({name})" in saved.parameters for name in saved.latents]
    which = np.flatnonzero(latents if any(latents) else np.ones(len(latents)))
    effects = (predictor.latents(individuals).means - prior) / np.sqrt(np.diag(covariance))
    constant = individuals.constant_covariates().items()
    covariates = {name: one for name, one in constant if len(np.unique(one[~np.isnan(one)])) > 1}
    names = list(covariates)[:MOST_COVARIATES]
    shown = min(len(which), MOST_LATENTS)
    figure = new_figure(2.6 * (1 + len(names)) + 0.6, 1.9 * shown + 0.9)
    grid = figure.subplots(shown, 1 + len(names), squeeze=False, sharey=False)
    said = []
    x = np.linspace(-3.5, 3.5, 141)
    normal = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    for j, place in enumerate(which[:shown]):
        latent, values = saved.latents[place], effects[:, place]
        bins, left = int(np.clip(np.sqrt(len(values)) * 1.5, 4, 40)), grid[j, 0]
        left.hist(values, bins=bins, density=True, color=BAND, edgecolor="white", linewidth=0.6)
        left.plot(x, normal, color=CURVE, linewidth=1.6)
        left.set_ylabel(words(latent, 20), fontsize=9)
        said.append(f"{latent} {values.std():.2f}")
        for axes, name in zip(grid[j, 1:], names, strict=True):
            _level_line(axes, 0.0)
            _points(axes, covariates[name], values, "an individual")
            _trend(axes, covariates[name], values)
            known = np.isfinite(covariates[name])
            if known.sum() > 2 and np.ptp(covariates[name][known]) > 0:
                r = float(np.corrcoef(covariates[name][known], values[known])[0, 1])
                axes.set_title(f"correlation {r:.2f}", fontsize=8)
                said.append(f"{latent} with {name} {r:.2f}")
    for axes in grid.ravel():
        tidy(axes)
        axes.tick_params(labelsize=8)
        few_ticks(axes, 5)
    for axes, name in zip(grid[-1], ("effect, in sds", *names), strict=True):
        axes.set_xlabel(words(name), fontsize=9)
    figure.suptitle(f"SAEM, {words(saved.model)}: random effects", fontsize=11)
    more = {"latents": len(which) - shown, "covariates": len(covariates) - len(names)}
    return Picture(
        figure,
        "Conditional means of the random effects of individuals, in standard deviations between "
        f"them, with the normal density; their standard deviation, and correlations with "
        f"covariates: {', '.join(said)}.",
        [f"{count} more {what} are not drawn" for what, count in more.items() if count],
    )


def draw_topics(topics: Topics, most: int = MOST_TOPICS) -> Picture:
    shown = topics.order[:most]
    figure, panels = _topic_panels(len(shown), 1.95)
    tops = topics.top()
    longest = max(tops[k][0][1] for k in shown)
    for axes, k in zip(panels, shown.tolist(), strict=True):
        names = [words(word, 16) for word, _ in tops[k]]
        places = np.arange(len(names))
        axes.barh(places, [weight for _, weight in tops[k]], height=0.72, color=CURVE, zorder=3)
        axes.set_yticks(places, names, fontsize=8)
        axes.set_ylim(TOP - 0.4, -0.6)
        axes.set_xlim(0, 1.05 * longest)
        axes.tick_params(axis="y", length=0)
        axes.set_title(
            f"topic {k}: {topics.shares[k]:.1%}\ncoherence {topics.coherence[k]:.2f}", fontsize=9
        )
    for axes in panels[max(0, len(panels) - COLUMNS) :]:
        axes.set_xlabel("probability", fontsize=8)
    some = "; ".join(
        f"topic {k} ({topics.shares[k]:.1%}): {', '.join(word for word, _ in tops[k][:5])}"
        for k in shown.tolist()
    )
    alt = f"The most probable words of {len(shown)} of {topics.n_topics} topics: {some}."
    return Picture(figure, alt, _drawn_of(len(shown), topics.n_topics, "topics, the largest,"))


def draw_shares(topics: Topics) -> Picture:
    shown = topics.device_names[:MOST_DEVICES] if len(topics.device_shares) else ()
    rows = np.vstack([topics.shares, topics.device_shares[: len(shown)]])
    names = ["all", *shown]
    order = topics.order
    many = len(order) > MOST_TOPICS
    parts = order[: MOST_TOPICS - 1] if many else order
    figure = new_figure(WIDTH, 0.34 * len(names) + 1.0 + 0.22 * (-(-len(parts) // 5)))
    axes: Axes = figure.subplots()
    tidy(axes)
    places, left = np.arange(len(names)), np.zeros(len(names))
    for number, k in enumerate(parts.tolist()):
        axes.barh(
            places, rows[:, k], left=left, height=0.74, color=colour(number), edgecolor="white",
            linewidth=0.5, hatch=hatch(number), label=f"topic {k}", zorder=3,
        )  # fmt: skip
        left = left + rows[:, k]
    if many:
        axes.barh(places, 1 - left, left=left, height=0.74, color="white", edgecolor=INK,
                  linewidth=0.5, label="others", zorder=3)  # fmt: skip
    axes.set_yticks(places, [words(name, 24) for name in names], fontsize=9)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of the words", fontsize=9)
    legend_below(figure, axes.get_legend_handles_labels()[0], size=8)
    largest = ", ".join(
        f"{name} topic {int(row.argmax())} with {row.max():.0%}"
        for name, row in zip(names, rows, strict=True)
    )
    alt = f"Shares of {topics.n_topics} topics in the words of devices; the largest: {largest}."
    return Picture(figure, alt, _drawn_of(len(shown), len(topics.device_shares), "devices"))


def draw_spreads(topics: Topics) -> Picture:
    """Draw the perplexity, and over how many words each topic is spread, by iteration.

    The perplexity is that of the documents' words, where it was seen, and of each topic's; the
    burn-in is shaded.
    """
    shown = topics.order[:MOST_TOPICS]
    seen = len(topics.perplexities) > 0
    figure, panels = _topic_panels(len(shown) + seen, 1.35)
    burn_in = topics.saved.settings.get("burn_in")
    for axes in panels:
        if isinstance(burn_in, int) and burn_in > 0:
            axes.axvspan(0, min(burn_in, topics.saved.n_iter), color=GRID, linewidth=0, zorder=0)
        axes.set_xlim(0, topics.saved.n_iter)
        whole_numbers(axes.xaxis, 4)
    if seen:
        axes = panels[0]
        axes.plot(*topics.perplexities.T, color=CURVE, linewidth=1.0, marker=".", ms=3, zorder=3)
        axes.set_title("perplexity of all words", fontsize=8)
    steps, first = np.arange(topics.saved.n_iter + 1), topics.top(3)
    for axes, k in zip(panels[seen:], shown.tolist(), strict=True):
        axes.plot(steps, topics.saved.trace[:, k], color=CURVE, linewidth=1.0, zorder=3)
        axes.set_title(
            f"topic {k}: {words(', '.join(word for word, _ in first[k]), 20)}", fontsize=8
        )
    for axes in panels[max(0, len(panels) - COLUMNS) :]:
        axes.set_xlabel("iteration", fontsize=8)
    for axes in panels[::COLUMNS]:
        axes.set_ylabel("words", fontsize=8)
    ends = ", ".join(f"topic {k} {topics.saved.trace[-1, k]:.4g}" for k in shown.tolist())
    alt = (
        f"Over how many words topics are spread, by iteration of {topics.saved.n_iter}; at the "
        f"end: {ends}."
    )
    return Picture(figure, alt, _drawn_of(len(shown), topics.n_topics, "topics, the largest,"))


def _topic_panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure = new_figure(max(3.4, WIDTH * columns / COLUMNS), height * rows + 0.5)
    return figure, _panels(figure, rows, columns, count)


def _drawn_of(shown: int, count: int, what: str, which: str = "") -> list[str]:
    return [] if shown == count else [f"{which}{shown} of {count} {what} are drawn"]
