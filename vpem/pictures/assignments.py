"""Which component each row belongs to, how surely, and how that agrees with labels; imputations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError, Setting
from vpem.fits.answer import Agreement, compare, name_of
from vpem.pictures.figure import (
    CURVE,
    INK,
    SHADE,
    WIDTH,
    Picture,
    halo,
    map_of_shares,
    mark_components,
    new_figure,
    one_panel,
    tidy,
    whole_numbers,
    words,
)
from vpem.pictures.saved import EvaluationData, Saved, SavedFit, SavedMixture, numbers
from vpem.terms.lowrank.observations import ENTRY_LAWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vpem.terms.merging import Merging


ROWS_OF_MAP = 4_000
SURE = 0.9
"""Responsibility from which a row counts as surely assigned."""

MOST_CLASSES = 200
COUNTED = 24
"""Classes or components up to which cells bear their counts."""


def draw_responsibilities(saved: SavedMixture, rows: EvaluationData) -> Picture:
    X = rows.sample(ROWS_OF_MAP)
    notes = []
    if len(X) < len(rows):
        notes.append(f"{len(X)} of {len(rows)} rows are drawn, chosen at random")
    proba = saved.mixture.predict_proba(X, missing="marginalize")
    best = proba.argmax(axis=1)
    top = proba.max(axis=1)
    order = np.lexsort((-top, best))
    k, own = proba.shape[1], saved.n_components
    names = [*range(own), saved.mixture.outliers]
    figure = new_figure(WIDTH, float(np.clip(0.32 * k + 3.6, 4.2, 8.0)))
    high = float(np.clip(0.32 * k, 1.2, 5.0))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[high, 1.5])
    image = upper.imshow(
        proba[order].T, aspect="auto", cmap=map_of_shares(), vmin=0, vmax=1,
        interpolation="nearest", extent=(0, len(X), k - 0.5, -0.5),
    )  # fmt: skip
    figure.colorbar(image, ax=upper, label="responsibility", shrink=0.9, pad=0.01)
    sizes = np.bincount(best, minlength=k)
    upper.set_yticks(
        range(k), [f"{names[c]} ({size} rows)" for c, size in enumerate(sizes)],
        fontsize=9 if k <= 16 else 8,
    )  # fmt: skip
    mark_components(upper, range(own), "y")
    upper.set_ylabel("component")
    for end in np.cumsum(sizes)[:-1]:
        for axes in (upper, lower):
            axes.axvline(end, color=SHADE, linewidth=0.8, linestyle="--")
    unsure = 1 - top[order]
    lower.fill_between(np.arange(len(X)) + 0.5, unsure, color=CURVE, step="mid", linewidth=0)
    lower.set_ylabel("uncertainty\n(1 - largest)")
    lower.set_xlabel("rows, sorted by component, surest first")
    lower.set_ylim(0, max(float(unsure.max(initial=0.0)) * 1.08, 1e-3))
    lower.set_xlim(0, len(X))
    tidy(lower, "y")
    sure = float((top >= SURE).mean())
    share = f"{100 * sure:.3g} % of rows have a responsibility of {SURE} or more"
    figure.suptitle(f"{share}; mean of the largest {top.mean():.3f}", fontsize=11)
    return Picture(figure, f"Responsibilities of {len(X)} rows: {share}.", notes)


def agreement_of(saved: SavedFit, rows: EvaluationData) -> Agreement:
    if rows.labels is None:
        raise InputError(
            f"{rows.where} has no labels to hold components against; name where they are with ",
            Setting("labels"),
        )
    n = len(np.unique(rows.labels))
    if n > MOST_CLASSES:
        raise InputError(
            f"the labels of {rows.where} have {n} different values; classes are at most "
            f"{MOST_CLASSES}"
        )
    return compare(rows.labels, saved.assign(rows.X), saved.n_components)


def draw_confusion(saved: SavedFit, rows: EvaluationData, ax: Axes | None = None) -> Picture:
    from matplotlib.patches import Rectangle

    agreement = agreement_of(saved, rows)
    order = agreement.order
    counts = agreement.confusion[:, order]
    n_labels, k = counts.shape
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    longest = max((len(words(label, 22)) for label in agreement.classes), default=1)
    figure, axes = one_panel(
        ax,
        float(np.clip(0.62 * k + 0.09 * longest + 2.8, 5.6, WIDTH)),
        float(np.clip(0.42 * n_labels + 2.4, 3.6, 12)),
    )
    image = axes.imshow(share, cmap=map_of_shares(), vmin=0, vmax=1, aspect="auto")
    figure.colorbar(image, ax=axes, label="share of the label's rows", pad=0.02)
    noun = saved.noun
    notes = []
    small = max(n_labels, k)
    if small <= COUNTED:
        for (row, column), count in np.ndenumerate(counts):
            dark = share[row, column] > 0.6
            axes.text(
                column, row, str(count), ha="center", va="center",
                fontsize=10 if small <= 12 else 8, color="white" if dark else "black",
            )  # fmt: skip
    else:
        notes.append(f"counts are left out: there are more than {COUNTED} labels or {noun}s")
    size = 9 if small <= COUNTED else 5
    axes.set_xticks(range(k), [name_of(c, saved.n_components) for c in order], fontsize=size)
    axes.set_yticks(range(n_labels), [words(c, 22) for c in agreement.classes], fontsize=size)
    axes.set(xlabel=f"{noun}, in the order of its label", ylabel="label")
    axes.set_xticks(np.arange(k + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(n_labels + 1) - 0.5, minor=True)
    axes.grid(visible=True, which="minor", color="white", linewidth=1.0)
    axes.tick_params(which="minor", length=0)
    mark_components(axes, order, "x")
    place = {label: row for row, label in enumerate(agreement.classes.tolist())}
    for column, component in enumerate(order):
        label = agreement.mapping.get(int(component))
        if label in place:
            box = (column - 0.46, place[label] - 0.46)
            axes.add_patch(
                Rectangle(box, 0.92, 0.92, fill=False, lw=1.6, ec=INK, path_effects=halo())
            )
    figures = (
        f"accuracy {agreement.accuracy:.4f}, adjusted Rand index "
        f"{agreement.adjusted_rand_index:.4f},\nnormalized mutual information "
        f"{agreement.normalized_mutual_information:.4f}"
    )
    axes.set_title(f"{figures} (outlined: matched)", fontsize=10)
    plain = figures.replace("\n", " ")
    return Picture(figure, f"Rows of {n_labels} labels in {k} {noun}s: {plain}.", notes)


def draw_merges(merging: Merging) -> Picture:
    """Draw the tree, as high as the entropy that merges have taken away, and what each leaves."""
    k, order = merging.n_components, merging.leaves()
    figure = new_figure(WIDTH, 4.4)
    tree, curve = figure.subplots(1, 2, width_ratios=[1.4, 1])
    places: dict[tuple[int, ...], tuple[float, float]] = {
        (one,): (float(order.index(one)), 0.0) for one in order
    }
    for merge in merging.merges:
        (left, low), (right, other) = (places.pop(one) for one in (merge.one, merge.other))
        high = max(merging.entropy - merge.entropy, 0.0)
        tree.plot([left, left, right, right], [low, high, high, other], color=CURVE, linewidth=1.6)
        place = ((left + right) / 2, high)
        places[tuple(sorted(merge.one + merge.other))] = place
        if k <= NAMED:
            tree.annotate(
                str(merge.n_clusters), place, xytext=(0, -3), textcoords="offset points",
                ha="center", va="top", fontsize=8, color=INK,
            )  # fmt: skip
    tree.set_xticks(range(k), [str(one) for one in order], fontsize=9 if k <= NAMED else 6)
    mark_components(tree, order, "x")
    tree.margins(y=0.08)
    tree.set_ylim(bottom=0)
    tree.set(xlabel="component", ylabel="entropy that merges took away (nats)")
    tree.set_title("clusters that each merge leaves", fontsize=10)
    curve.plot(range(1, k + 1), merging.entropies, color=CURVE, marker="o", markersize=4)
    curve.set(xlabel="clusters", ylabel="entropy (nats)")
    curve.set_ylim(bottom=0)
    whole_numbers(curve.xaxis)
    tidy(tree, "y")
    tidy(curve)
    last = ", ".join(f"{e:.3g} with {n}" for n, e in enumerate(merging.entropies[:5], 1))
    return Picture(figure, f"Tree of the merges of {k} components, and entropy in nats: {last}.")


NAMED = 16
"""Rows or columns up to which each is named."""

MARKED = 60
"""Rows or columns up to which each has a mark."""


def draw_imputation(saved: Saved) -> Picture:
    """Draw trends, and the objective against epochs and against bytes."""
    imputed, report = saved.stored, saved.stored.report
    sent = (report.get("communication") or {}).get("bytes_by_iteration")
    lists = (sent, *(report.get(name) for name in ("epochs", "history", "mean_field")))
    known = [one for one in map(numbers, lists) if one is not None]
    by_row, by_column = imputed.row_trend, imputed.column_trend
    if len(known) < 4 or len({*map(np.shape, known)}) > 1 or by_row is None or by_column is None:
        raise InputError(
            f"{saved.path} does not say how an objective went: an imputation by a mixture has no "
            "picture; that of FedMissEM has one"
        )
    n_bytes, epochs, objective, field = known
    figure = new_figure(WIDTH, 6.2)
    axes = figure.subplots(2, 2)
    unit = ENTRY_LAWS[report["law"]].unit if report.get("law") in ENTRY_LAWS else "value"
    _draw_trend(axes[0, 0], "columns", imputed.column_names, by_column, unit)
    _draw_trend(axes[0, 1], "rows", imputed.row_names, by_row, unit)
    marks = "o" if len(epochs) <= MARKED else ""
    for drawn, along, label, values, what in (
        (axes[1, 0], epochs, "epochs", objective, "objective (nats an entry)"),
        (axes[1, 1], n_bytes / 1e6, "MB sent", field, "mean field, squared norm"),
    ):
        drawn.plot(along, values, color=CURVE, linewidth=1.6, marker=marks, markersize=3.5)
        drawn.set(xlabel=label, ylabel=what)
        drawn.ticklabel_format(useOffset=False)
    if (field > 0).all():
        axes[1, 1].set_yscale("log")
    for drawn in axes.flat:
        tidy(drawn)
    rows, columns = imputed.values.shape
    alt = (
        f"Mean fitted values of {columns} columns and {rows} rows, and how the objective and the "
        f"mean field went in {report.get('n_iter')} iterations."
    )
    return Picture(figure, alt)


def _draw_trend(
    axes: Axes, what: str, names: Sequence[str], trend: NDArray[np.float64], unit: str
) -> None:
    """Draw a trend over rows or columns, a mark each: there is nothing between two of them."""
    places = np.arange(len(trend))
    many = len(trend) > MARKED
    axes.plot(places, trend, color=CURVE, marker="o", markersize=2 if many else 4.5, linestyle="")
    if not many:
        axes.vlines(places, min(0.0, float(trend.min())), trend, color=CURVE, linewidth=0.8)
    axes.set(xlabel=what, ylabel=f"mean fitted {unit}".replace("mean fitted mean", "mean fitted"))
    ticks = places
    if len(trend) > NAMED:
        ticks = np.unique(np.linspace(0, len(trend) - 1, 8).round().astype(int))
    shown = [words(names[tick], 14) for tick in ticks.tolist()]
    axes.set_xticks(ticks, shown, rotation=30, ha="right", fontsize=8)
