"""Ellipses of the mixture over rows of data, for pairs of features or all features at once.

The latter lie in the plane in which components are farthest apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Doubles, Labels
from vpem.errors import InputError, Setting
from vpem.fits.answer import boundaries
from vpem.pictures.densities import are_counts, others, pick_features, span
from vpem.pictures.figure import (
    INK,
    WIDTH,
    Picture,
    colour,
    few_ticks,
    halo,
    legend_below,
    line,
    marker,
    new_figure,
    one_panel,
    place_panels,
    tidy,
    words,
)
from vpem.pictures.saved import DrawnParts, EvaluationData, SavedFit, in_a_plane

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backend_bases import RendererBase
    from matplotlib.lines import Line2D


PAIRED = 4
"""Features of the pairs, unless they are chosen."""

MOST_PAIRED = 8

ROWS_OF_SCATTER = 3_000

DEVIATIONS = (1.0, 2.0)
"""Of the ellipses, in standard deviations along their axes."""

CROWDED = 6
"""Components beyond which each has but the inner ellipse."""

ROUNDS = 500
"""Steps in which numbers that would hide one another are moved apart."""

HEAP = 1.7
"""Times their size that numbers in a heap take, so that their lines are seen between them."""

FINE = 400
"""Places along an axis at which boundaries are looked for."""

NAMED = 3
"""Features that are named at each axis, those that go with it most."""

RIDGE = 1e-9
"""Added to variances of standardized features, so that those that say the same can be there."""


def _apart_from_each_other(
    share: NDArray[np.float64], correlation: NDArray[np.float64], most: int
) -> list[int]:
    """Features in which components differ, and which differ from each other."""
    chosen = [int(np.argmax(share))]
    while len(chosen) < most:
        same = np.abs(correlation[:, chosen]).max(axis=1)
        worth = share * (1 - np.minimum(same, 1))
        worth[chosen] = -1
        chosen.append(int(np.argmax(worth)))
    return sorted(chosen)


def rows_to_scatter(
    saved: SavedFit, parts: DrawnParts, rows: EvaluationData | None, notes: list[str]
) -> tuple[NDArray[np.float64], Labels] | tuple[None, None]:
    """Rows that are drawn, and their components; ``notes`` get what is to be said."""
    if rows is None:
        if parts.variances is None:
            notes.append("only centres are drawn; give the data to see the rows of clusters")
        return None, None
    X = rows.sample(ROWS_OF_SCATTER)
    if len(X) < len(rows):
        notes.append(f"{len(X)} of {len(rows)} rows are drawn, chosen at random")
    labels = saved.assign(X)
    if (labels < 0).any():
        notes.append("crosses are rows that belong to no component")
    return X, labels


def draw_pairs(
    saved: SavedFit, rows: EvaluationData | None = None, features: Sequence[str] | None = None
) -> Picture:
    notes: list[str] = []
    parts = saved.parts()
    d = len(saved.feature_names)
    columns = pick_features(saved, features, MOST_PAIRED)
    if columns is not None and len(columns) < 2:
        raise InputError("pairs need two features, got one; try marginals")
    along = in_a_plane(saved, columns, notes) or list(range(d))
    X, labels = rows_to_scatter(saved, parts, rows, notes)
    if columns is None:
        columns, most = list(along), min(PAIRED, len(along))
        if len(along) > most:
            share = saved.answer.telling_shares[along]
            correlation = _correlation(parts, X)[np.ix_(along, along)]
            columns = [along[j] for j in _apart_from_each_other(share, correlation, most)]
            notes.append(
                f"{most} of {len(along)} features are drawn, in which components differ and which "
                f"differ from each other; {others(MOST_PAIRED)}"
            )
    if X is not None:
        ends = np.array([_reach(X[:, j], parts, j) for j in columns])
        with np.errstate(invalid="ignore"):
            beyond = (X[:, columns] < ends[:, 0]) | (X[:, columns] > ends[:, 1])
        far = int(beyond.any(axis=1).sum())
        if far:
            notes.append(f"{far} rows lie far out, beyond the axes of a panel or more")
    whole = set() if X is None else {j for j in columns if are_counts(X[:, j])}
    n = len(columns)
    side = 2.0 if n > 3 else 2.8
    figure = new_figure(max(side * (n - 1) + 1.6, 6.4), max(side * (n - 1) + 0.6, 4.8), None)
    grid = figure.subplots(n - 1, n - 1, squeeze=False, sharex="col", sharey="row")
    for (row, column), axes in np.ndenumerate(grid):
        if column > row:
            axes.set_axis_off()
            continue
        x, y = columns[column], columns[row + 1]
        draw_pair(axes, parts, x, y, X, labels)
        tidy(axes, None)
        axes.tick_params(labelsize=7.5)
        few_ticks(axes, 4)
        for axis, j in ((axes.xaxis, x), (axes.yaxis, y)):
            axis.get_major_locator().set_params(nbins=4, integer=j in whole)
        if row == n - 2:
            axes.set_xlabel(words(saved.feature_names[x], 26), fontsize=8)
        if column == 0:
            axes.set_ylabel(words(saved.feature_names[y], 26), fontsize=8)
    entries, title = _entries(saved, parts, X is not None)
    legend = 0.0  # inches that it takes below the panels
    if n > 2:
        figure.legend(
            handles=entries, loc="upper right", frameon=False, fontsize=8, title=title,
            title_fontsize=8, ncols=1 if saved.n_components <= 8 else 2,
        )  # fmt: skip
    else:
        legend = legend_below(figure, entries, title=title)
    place_panels(figure, (n - 1, n - 1), (0.72, 0.2, legend + 0.55, 0.18), (0.18, 0.18))
    listed = ", ".join(saved.feature_names[j] for j in columns)
    alt = f"Rows and components for every pair of {listed}."
    return Picture(figure, alt, notes)


def draw_boundaries(
    saved: SavedFit, rows: EvaluationData | None = None, features: Sequence[str] | None = None
) -> Picture:
    """Draw where each component is the most likely, of those who see two features alone."""
    notes: list[str] = []
    parts, (weights, means, covariances) = saved.parts(), saved.gaussians()
    columns = pick_features(saved, features, MOST_PAIRED)
    if columns is None:
        correlation = _correlation(parts, None)
        columns = _apart_from_each_other(saved.answer.telling_shares, correlation, 2)
    if len(columns) != 2:
        raise InputError(f"boundaries are drawn in two features, got {len(columns)}; name two")
    x, y = columns
    X, labels = rows_to_scatter(saved, parts, rows, notes)
    figure = new_figure(WIDTH, 4.8, None)
    axes = figure.subplots()
    draw_pair(axes, parts, x, y, X, labels)
    tidy(axes, None)
    axes.set_xlabel(words(saved.feature_names[x], 40))
    axes.set_ylabel(words(saved.feature_names[y], 40))
    limits = axes.get_xlim(), axes.get_ylim()
    grid = np.meshgrid(*(np.linspace(*ends, FINE) for ends in limits))
    places = np.column_stack([one.ravel() for one in grid])
    here = covariances[:, [x, y]][:, :, [x, y]]
    lines = boundaries(weights, means[:, [x, y]], here)
    # By log-ratios to the first component in use: those of others follow.
    used = np.flatnonzero(weights > 0)
    against = np.zeros((len(used), len(places)))
    for place, one in enumerate(one for one in lines if one.one == used[0]):
        against[place + 1] = -one.at(places)
    region = used[against.argmax(axis=0)].reshape(grid[0].shape)
    for c in np.unique(region):
        axes.contourf(
            *grid, region == c, levels=[0.5, 1.5], colors=[colour(int(c))], alpha=0.12, zorder=0
        )
    for place in range(len(used) if len(used) > 1 else 0):
        ahead = against[place] - np.delete(against, place, axis=0).max(axis=0)
        if ahead.min() < 0 < ahead.max():
            ahead = ahead.reshape(grid[0].shape)
            axes.contour(*grid, ahead, levels=[0.0], colors=INK, linewidths=1.1, zorder=2.5)
    axes.set_xlim(limits[0])
    axes.set_ylim(limits[1])
    kinds = {"lines" if one.quadratic is None else "curves" for one in lines}
    if len(saved.feature_names) > 2:
        notes.append("boundaries are those of who sees these two features alone")
    entries, title = _entries(saved, parts, X is not None)
    legend = legend_below(figure, entries, title=title)
    place_panels(figure, (1, 1), (0.8, 0.2, legend + 0.6, 0.18), (0.0, 0.0))
    alt = (
        f"Where each {saved.noun} is the most likely in {saved.feature_names[x]} and "
        f"{saved.feature_names[y]}, divided by {' and '.join(sorted(kinds)) or 'nothing'}."
    )
    return Picture(figure, alt, notes)


def _correlation(parts: DrawnParts, X: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Correlations (d, d) of the data, or of the mixture where there are none."""
    if X is not None and len(X) > 2:
        centred = X - np.nanmean(X, axis=0)
        filled = np.where(np.isfinite(centred), centred, 0.0)
        covariance = filled.T @ filled
    else:
        centred = parts.means - parts.weights @ parts.means
        covariance = centred.T @ (parts.weights[:, None] * centred)
        covariance = covariance if parts.variances is None else covariance + parts.within
    spread = np.sqrt(np.maximum(np.diagonal(covariance), 1e-300))
    return np.asarray(covariance / np.outer(spread, spread))


def draw_pair(
    axes: Axes, parts: DrawnParts, x: int, y: int, X: Doubles | None, labels: Labels | None
) -> None:
    """Draw rows in the marks of their components, ellipses or centres, in two features.

    Columns ``x`` go across and ``y`` up; ``X`` (n, d) is in the units of ``parts``, ``labels`` (n,)
    are its components.
    """
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Ellipse

    k = len(parts.weights)
    crowded = k > CROWDED
    if X is not None and labels is not None:
        size, edge = (12, 0.7) if len(X) < 800 else (6, 0.5)
        # The largest lie below, so that none hides the others.
        inside = np.greater_equal(labels, 0)
        if (outside := X[~inside]).size:
            axes.scatter(outside[:, x], outside[:, y], s=size, marker="x", color=INK, zorder=1,
                         rasterized=True, linewidths=edge)  # fmt: skip
        counts = np.bincount(labels[inside], minlength=k)
        for c in np.argsort(-counts, kind="stable").tolist():
            rows = X[labels == c]
            axes.scatter(
                rows[:, x], rows[:, y], s=size, marker=marker(c), edgecolors=colour(c),
                rasterized=True, linewidths=edge, zorder=1,
                # In grey it helps that every other one is hollow.
                facecolors="none" if c % 2 else to_rgba(colour(c), 0.4),
            )  # fmt: skip
    centres = parts.means[:, [x, y]]
    axes.update_datalim(centres)
    if parts.variances is not None:
        for c in range(k):
            if crowded and X is not None:  # is another centre inside the inner ellipse?
                away = np.delete(centres, c, axis=0) - centres[c]
                inverse = np.linalg.pinv(_covariance(parts, c, x, y))
                if (np.einsum("ki,ij,kj->k", away, inverse, away) < 1).any():
                    continue
            covariance, angle = _covariance(parts, c, x, y), 0.0
            if covariance[0, 1] == 0:
                # Turned by a right angle, the rounding of one axis could be longer than the other.
                lengths = np.sqrt(np.maximum(np.diagonal(covariance), 0))
            else:
                eigenvalues, directions = np.linalg.eigh(covariance)
                lengths = np.sqrt(np.maximum(eigenvalues, 0))[::-1]
                angle = float(np.degrees(np.arctan2(directions[1, 1], directions[0, 1])))
            for deviations in DEVIATIONS[: 1 if crowded else 2]:
                width, height = (2 * deviations * lengths).tolist()
                axes.add_patch(Ellipse(
                    tuple(centres[c]), width, height, angle=angle, fill=False, edgecolor=colour(c),
                    linestyle=line(c), linewidth=1.6 if deviations == 1 and not crowded else 1.0,
                    zorder=2, path_effects=halo(),
                ))  # fmt: skip
        # Patches do not move limits by themselves as points do.
        if X is None:
            reach = 2.2 * np.sqrt(parts.variances[:, [x, y]])
            axes.update_datalim(np.vstack([centres - reach, centres + reach]))
    _number(axes, centres)
    if X is not None:
        axes.set_xlim(_reach(X[:, x], parts, x))
        axes.set_ylim(_reach(X[:, y], parts, y))
    else:
        axes.margins(0.12)
        axes.autoscale_view()


def _number(axes: Axes, centres: NDArray[np.float64]) -> None:
    """Write numbers of components at their centres, beside these where they would hide others."""
    from matplotlib.collections import LineCollection
    from matplotlib.transforms import IdentityTransform

    labels = [
        axes.annotate(
            str(c), (float(x), float(y)), (0, 0), textcoords="offset points", ha="center",
            va="center", fontsize=8, weight="bold", zorder=4,
            bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": colour(c)},
        )
        for c, (x, y) in enumerate(centres)
    ]  # fmt: skip

    class Leaders(LineCollection):
        """Lines from centres to numbers, which are drawn below all numbers and place them.

        Only now, while the figure is drawn, it is known where centres lie on paper.
        """

        def draw(self, renderer: RendererBase) -> None:
            places, sizes = axes.transData.transform(centres), []
            for label in labels:
                label.update_bbox_position_size(renderer)
                box = label.get_bbox_patch()
                assert box is not None
                sizes.append(box.get_window_extent(renderer).size)
            there = [c for c, place in enumerate(places) if axes.bbox.contains(*place)]
            low, high = axes.bbox.get_points()
            apart = places.copy()
            # Very many would then find no room.
            covered = HEAP**2 * np.prod(np.array(sizes)[there], axis=1).sum()
            has_room = covered < 0.4 * np.prod(high - low)
            for room in (1.0, HEAP)[: 2 if has_room else 1]:
                boxes = room * np.array(sizes)[there]
                apart[there] = move_apart(places[there], boxes, low, high)
                far = (np.abs(apart - places)[there] > 0.5 * boxes).any(axis=1)
                if np.count_nonzero(far) < 3:
                    break
            for label, moved in zip(labels, apart - places, strict=True):
                label.xyann = tuple(moved / renderer.points_to_pixels(1))
            self.set_segments([*np.stack([places, apart], axis=1)])
            super().draw(renderer)

    leaders = Leaders(
        [], colors=[colour(c) for c in range(len(centres))], linewidths=0.8, zorder=3.9,
        transform=IdentityTransform(),
    )  # fmt: skip
    leaders.set_in_layout(False)
    axes.add_collection(leaders, autolim=False)


def move_apart(places: Doubles, sizes: Doubles, low: Doubles, high: Doubles) -> Doubles:
    """Middles (n, 2) of boxes of these sizes (n, 2), moved until none overlaps another.

    All lie between ``low`` and ``high``, (2,) each, where there is room.
    """
    number = np.arange(len(places))
    # What lies at one place gets a direction in which to go.
    places = places + 1e-3 * sizes * np.column_stack([np.cos(2.4 * number), np.sin(2.4 * number)])
    order = np.sign(number[:, None] - number)[..., None]
    least = 0.55 * (sizes[:, None] + sizes)
    for done in range(ROUNDS):
        away = places[:, None] - places
        lacking = least - np.abs(away)
        hit = (lacking > 0.05 * least).all(axis=2) & ~np.eye(len(places), dtype=bool)
        if not hit.any():
            break
        # Rarely the long way: rows and columns that are full would never give way.
        shorter = lacking == lacking.min(axis=2, keepdims=True)
        along = shorter if done % 5 else ~shorter
        side = np.where(away == 0, order, np.sign(away))
        pushes = np.where(hit[..., None] & along, 0.5 * side * lacking, 0.0)
        places = np.clip(places + 0.7 * pushes.sum(axis=1), low + sizes / 2, high - sizes / 2)
    return places


def _reach(values: NDArray[np.float64], parts: DrawnParts, j: int) -> tuple[float, float]:
    """Ends of an axis: over all rows, or without some that lie far out.

    Ellipses are within it too, but such as would leave rows less than half of the room.
    """
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = span(values)
    if parts.variances is not None:
        k = len(parts.weights)
        reach = DEVIATIONS[0 if k > CROWDED else -1] * np.sqrt(parts.variances[:, j])
        # Nor may they be so much larger than the panel that they cannot be drawn.
        room = max(0.5 * (high - low), 0.05 * float(reach.max()))
        low = max(low - room, min(low, float((parts.means[:, j] - reach).min())))
        high = min(high + room, max(high, float((parts.means[:, j] + reach).max())))
    pad = 0.06 * (high - low) or max(abs(low), 1.0) * 0.08
    return float(low - pad), float(high + pad)


def _covariance(parts: DrawnParts, c: int, x: int, y: int) -> NDArray[np.float64]:
    """Covariance (2, 2) of a component in two features."""
    assert parts.variances is not None
    if parts.full is None:
        return np.diag(parts.variances[c, [x, y]])
    return np.asarray(parts.full[c][np.ix_([x, y], [x, y])])


def _entries(
    saved: SavedFit, parts: DrawnParts, with_data: bool
) -> tuple[list[Line2D], str | None]:
    """Legend's entry of each component, and what is said above them."""
    from matplotlib.lines import Line2D

    lines = parts.variances is not None
    crowded = saved.n_components > CROWDED
    reach = "1 standard deviation" if crowded else "1 and 2 standard deviations"
    if crowded and with_data:
        reach += ",\nwhere no other centre is inside"
    entries = [
        Line2D(
            [], [], color=colour(c), linestyle=line(c) if lines else "", markersize=5,
            marker=marker(c) if with_data else "" if lines else "s", label=saved.called(c),
            markerfacecolor="none" if c % 2 and with_data else colour(c),
        )
        for c in range(saved.n_components)
    ]  # fmt: skip
    return entries, f"ellipses: {reach}" if lines else "numbers: centres"


def separating_plane(
    parts: DrawnParts, found: tuple[Doubles, Doubles] | None = None
) -> tuple[Doubles, Doubles, float]:
    """Find the plane in which components lie farthest apart for how wide they are.

    These are Fisher's linear discriminants of the fitted mixture, from its parameters alone: with
    ``W = sum_k w_k Sigma_k`` within components and ``B`` the covariance of their means, the two
    directions of largest ``v' B v / v' W v``. Two components lie apart along one direction only, a
    single one along none; the rest of the plane is then where all rows spread most, at right angles
    (in ``W``) to it. Others with their eigenvalues may be ``found`` already.

    Returned are directions (d, 2), along which one unit is the mean standard deviation within
    components; correlations (d, 2) of each feature with each of them, over the whole mixture; and
    the share of what separates components, ``trace(W^-1 B)``, that is in this plane.
    """
    weights, means = parts.weights, parts.means
    away = means - weights @ means
    between, within = away.T @ (weights[:, None] * away), parts.within
    spread = np.sqrt(np.diagonal(between + within))
    unit = 1.0 / np.where(spread > 0, spread, 1.0)
    between, within = (unit[:, None] * one * unit for one in (between, within))
    within = within + RIDGE * np.eye(len(unit))
    values, vectors = np.linalg.eigh(within)
    whiten = vectors / np.sqrt(np.maximum(values, RIDGE))
    values, vectors = np.linalg.eigh(whiten.T @ between @ whiten)
    values, vectors = values[::-1], (whiten @ vectors)[:, ::-1]
    if found is not None:
        values, vectors = found[1], found[0] / unit[:, None]
        vectors /= np.sqrt(np.einsum("ja,ji,ia->a", vectors, within, vectors))
    apart = min(len(weights) - 1 if found is None else len(values), 2)
    directions = vectors[:, :apart]
    total = between + within
    if apart < 2:  # the largest variance, at right angles to these
        basis = np.linalg.qr(within @ directions)[0]
        rest = np.eye(len(total)) - basis @ basis.T
        widest = np.linalg.eigh(rest @ total @ rest)[1][:, ::-1][:, : 2 - apart]
        directions = np.column_stack([directions, widest])
        directions /= np.sqrt(np.einsum("ja,ji,ia->a", directions, within, directions))
    spreads = np.sqrt(np.einsum("ja,ji,ia->a", directions, total, directions))
    correlations = total @ directions / spreads
    turn = np.sign(correlations[np.abs(correlations).argmax(axis=0), [0, 1]])
    whole = float(values.clip(min=0).sum())
    share = float(values[:apart].clip(min=0).sum()) / whole if whole > 0 else 0.0
    return unit[:, None] * directions * turn, correlations * turn, share


def draw_projection(
    saved: SavedFit,
    rows: EvaluationData | None = None,
    ax: Axes | None = None,
    directions: float | None = None,
) -> Picture:
    """Draw rows, if any, and components in the plane that separates components best.

    With ``directions`` the plane has those of `vpem.Mixture.directions`, with that share.
    """
    notes: list[str] = []
    found = None
    if directions is not None:
        if not hasattr(saved, "mixture"):
            raise InputError(Setting("directions"), f" are those of a mixture, not {saved.holds}")
        found = saved.mixture.directions(directions)
        if not len(found[1]):
            nowhere = "components differ in no direction; leave out "
            raise InputError(nowhere, Setting("directions"))
    parts = saved.parts()
    X, labels = rows_to_scatter(saved, parts, rows, notes)
    along = in_a_plane(saved, None, notes)
    if along is not None:
        parts, X = _of(parts, along), None if X is None else X[:, along]
    names_of = [saved.feature_names[j] for j in along or range(len(saved.feature_names))]
    if X is not None and not np.isfinite(X).all():
        notes.append(f"missing values stand at the mean of their row's {saved.noun}")
        X = np.where(np.isfinite(X), X, parts.means[labels])
    if len(names_of) == 2 and found is None:
        # There is no other plane, and as they are they can be read.
        names, what = [words(name) for name in names_of], f"{saved.noun}s in the two features"
        origin, plane = np.zeros(2), np.eye(2)
    else:
        wide = _with_widths(saved, parts, X, labels)
        plane, correlations, share = separating_plane(wide, found)
        names = [_name(saved, names_of, correlations[:, axis], axis) for axis in (0, 1)]
        origin, what = parts.weights @ parts.means, "plane in which all rows spread most"
        if len(parts.weights) > 1:
            part = f"{100 * share:.3g} % of what separates {saved.noun}s"
            what = f"plane that separates best: {part}"
            if directions is not None:
                part = f"{100 * share:.3g} % of the eigenvalues"
                what = f"directions with share {directions:g} of the means: {part}"
    seen = None if X is None else (X - origin) @ plane
    figure, axes = one_panel(ax, 7.0, 5.6)
    draw_pair(axes, _seen(parts, origin, plane), 0, 1, seen, labels)
    tidy(axes, None)
    few_ticks(axes, 6)
    axes.tick_params(labelsize=8)
    axes.set_xlabel(names[0], fontsize=8.5)
    axes.set_ylabel(names[1], fontsize=8.5)
    axes.set_title(what, fontsize=10, loc="left")
    entries, title = _entries(saved, parts, X is not None)
    if ax is None:
        legend_below(figure, entries, title=title)
    else:  # in a panel of the user's
        axes.legend(handles=entries, title=title, fontsize=7, title_fontsize=7, framealpha=0.8)
    alt = f"{what[:1].upper()}{what[1:]}. Axes: {'; '.join(names)}."
    return Picture(figure, alt.replace("\n", " "), notes)


def _with_widths(
    saved: SavedFit, parts: DrawnParts, X: Doubles | None, labels: Labels | None
) -> DrawnParts:
    """Parts with variances: clusters have those of rows around their centres.

    Where there are no rows, or too few, features count as if they did not depend on each other
    within clusters, with what their spread over all rows leaves for that.
    """
    if parts.variances is not None:
        return parts
    shape = parts.means.shape
    if X is not None and labels is not None and len(X) > 2 * shape[1]:
        away = X - parts.means[labels]
        full = np.broadcast_to(away.T @ away / len(X), (shape[0], shape[1], shape[1]))
        return DrawnParts(parts.weights, parts.means, np.diagonal(full, axis1=1, axis2=2), full)
    between = parts.weights @ (parts.means - parts.weights @ parts.means) ** 2
    shares = saved.answer.telling_shares
    known = (shares > 0) & (between > 0)
    within = np.where(known, between * np.maximum(1 / np.where(known, shares, 1.0) - 1, 0.01), 1.0)
    return DrawnParts(parts.weights, parts.means, np.broadcast_to(within, shape))


def _seen(parts: DrawnParts, origin: Doubles, directions: Doubles) -> DrawnParts:
    means = (parts.means - origin) @ directions
    if parts.variances is None:
        return DrawnParts(parts.weights, means)
    if parts.full is None:
        full = np.einsum("ja,kj,jb->kab", directions, parts.variances, directions)
    else:
        full = directions.T @ parts.full @ directions
    return DrawnParts(parts.weights, means, np.diagonal(full, axis1=1, axis2=2), full)


def _of(parts: DrawnParts, columns: list[int]) -> DrawnParts:
    variances = None if parts.variances is None else parts.variances[:, columns]
    full = None if parts.full is None else parts.full[:, columns][:, :, columns]
    return DrawnParts(parts.weights, parts.means[:, columns], variances, full)


def _name(saved: SavedFit, names: list[str], correlations: Doubles, axis: int) -> str:
    named = np.argsort(-np.abs(correlations), kind="stable")[:NAMED]
    most = 18 if axis else 24
    listed = ", ".join(
        f"{words(names[j], most)} {'+' if correlations[j] > 0 else chr(0x2212)}" for j in named
    )
    inside = f" within {saved.noun}s" if saved.n_components > 1 else ""
    return f"direction {axis + 1} (standard deviations{inside}):\n{listed}"
