"""All features at once: the plane in which components lie farthest apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Labels
from vpem.pictures.families import in_a_plane
from vpem.pictures.figure import Picture, one_panel, words
from vpem.pictures.reported import Parts, SavedFit
from vpem.pictures.samples import EvaluationData
from vpem.pictures.scatters import draw_pair, legend_of_pair, rows_to_scatter
from vpem.pictures.style import few_ticks, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NAMED = 3
"""Features that are named at each axis, those that go with it most."""

RIDGE = 1e-9
"""Added to variances of standardized features, so that those that say the same can be there."""

Matrix = NDArray[np.float64]


def separating_plane(parts: Parts) -> tuple[Matrix, Matrix, float]:
    """Return the plane in which components lie farthest apart for how wide they are.

    These are Fisher's linear discriminants of the fitted mixture, from its parameters alone: with
    ``W = sum_k w_k Sigma_k`` within components and ``B`` the covariance of their means, the two
    directions of largest ``v' B v / v' W v``. Two components lie apart along one direction only, a
    single one along none; the rest of the plane is then where all rows spread most, at right angles
    (in ``W``) to it.

    Returned are directions (d, 2), along which one unit is the mean standard deviation within
    components; correlations (d, 2) of each feature with each of them, over the whole mixture; and
    the share of what can be told between components, ``trace(W^-1 B)``, that is in this plane.
    """
    weights, means = parts.weights, parts.means
    assert parts.variances is not None
    away = means - weights @ means
    between = away.T @ (weights[:, None] * away)
    if parts.full is None:
        within = np.diag(weights @ parts.variances)
    else:
        within = np.tensordot(weights, parts.full, axes=1)
    spread = np.sqrt(np.diagonal(between + within))
    unit = 1.0 / np.where(spread > 0, spread, 1.0)
    between, within = (unit[:, None] * one * unit for one in (between, within))
    within = within + RIDGE * np.eye(len(unit))
    values, vectors = np.linalg.eigh(within)
    whiten = vectors / np.sqrt(np.maximum(values, RIDGE))
    values, vectors = np.linalg.eigh(whiten.T @ between @ whiten)
    values, found = values[::-1], (whiten @ vectors)[:, ::-1]
    apart = min(len(weights) - 1, 2)
    directions = found[:, :apart]
    if apart < 2:
        directions = np.column_stack([directions, _widest(between + within, within @ directions,
                                                          2 - apart)])  # fmt: skip
        directions /= np.sqrt(np.einsum("ja,ji,ia->a", directions, within, directions))
    total = between + within
    spreads = np.sqrt(np.einsum("ja,ji,ia->a", directions, total, directions))
    correlations = total @ directions / spreads
    turn = np.sign(correlations[np.abs(correlations).argmax(axis=0), [0, 1]])
    whole = float(values.clip(min=0).sum())
    share = float(values[:apart].clip(min=0).sum()) / whole if whole > 0 else 0.0
    return unit[:, None] * directions * turn, correlations * turn, share


def _widest(total: Matrix, beside: Matrix, count: int) -> Matrix:
    """Return directions (d, count) of the largest variance, at right angles to ``beside``."""
    basis = np.linalg.qr(beside)[0]
    rest = np.eye(len(total)) - basis @ basis.T
    return np.asarray(np.linalg.eigh(rest @ total @ rest)[1][:, ::-1][:, :count])


def draw_projection(
    saved: SavedFit, rows: EvaluationData | None = None, ax: Axes | None = None
) -> Picture:
    """Draw rows, if any, and components in the plane that separates components best."""
    notes: list[str] = []
    parts = saved.parts()
    X, labels = rows_to_scatter(saved, parts, rows, notes)
    along = in_a_plane(saved, None, notes)
    if along is not None:
        parts, X = _of(parts, along), None if X is None else X[:, along]
    names_of = [saved.feature_names[j] for j in along or range(len(saved.feature_names))]
    if X is not None and not np.isfinite(X).all():
        notes.append(f"missing values stand at the mean of their row's {saved.noun}")
        X = np.where(np.isfinite(X), X, parts.means[labels])
    origin, directions, names, what = _plane(saved, parts, X, labels, names_of)
    seen = None if X is None else (X - origin) @ directions
    figure, axes = one_panel(ax, 7.0, 5.6)
    draw_pair(axes, _seen(parts, origin, directions), 0, 1, seen, labels)
    tidy(axes, None)
    few_ticks(axes, 6)
    axes.tick_params(labelsize=8)
    axes.set_xlabel(names[0], fontsize=8.5)
    axes.set_ylabel(names[1], fontsize=8.5)
    axes.set_title(what, fontsize=10, loc="left")
    legend_of_pair(figure, axes, saved, parts, X is not None, own=ax is None)
    alt = f"{what[:1].upper()}{what[1:]}. Axes: {'; '.join(names)}."
    return Picture(figure, alt.replace("\n", " "), notes)


def _plane(
    saved: SavedFit, parts: Parts, X: Matrix | None, labels: Labels | None, features: list[str]
) -> tuple[Matrix, Matrix, list[str], str]:
    """Return the plane that is drawn: its origin, directions, names of its axes, and its title."""
    if len(features) == 2:
        # There is no other plane, and as they are they can be read.
        names = [words(name) for name in features]
        return np.zeros(2), np.eye(2), names, f"{saved.noun}s in the two features"
    directions, correlations, share = separating_plane(_with_widths(saved, parts, X, labels))
    names = [_name(saved, features, correlations[:, axis], axis) for axis in (0, 1)]
    what = "plane in which all rows spread most"
    if len(parts.weights) > 1:
        part = f"{100 * share:.3g} % of what separates {saved.noun}s"
        what = f"plane that separates best: {part}"
    return parts.weights @ parts.means, directions, names, what


def _with_widths(saved: SavedFit, parts: Parts, X: Matrix | None, labels: Labels | None) -> Parts:
    """Return parts with variances: clusters have those of rows around their centres.

    Where there are no rows, or too few, features count as if they did not depend on each other
    within clusters, with what their spread over all rows leaves for that.
    """
    if parts.variances is not None:
        return parts
    shape = parts.means.shape
    if X is not None and labels is not None and len(X) > 2 * shape[1]:
        away = X - parts.means[labels]
        full = np.broadcast_to(away.T @ away / len(X), (shape[0], shape[1], shape[1]))
        return Parts(parts.weights, parts.means, np.diagonal(full, axis1=1, axis2=2), full)
    between = parts.weights @ (parts.means - parts.weights @ parts.means) ** 2
    shares = saved.answer.telling_shares
    told = (shares > 0) & (between > 0)
    within = np.where(told, between * np.maximum(1 / np.where(told, shares, 1.0) - 1, 0.01), 1.0)
    return Parts(parts.weights, parts.means, np.broadcast_to(within, shape))


def _seen(parts: Parts, origin: Matrix, directions: Matrix) -> Parts:
    """Return the components as they are in the plane."""
    means = (parts.means - origin) @ directions
    if parts.variances is None:
        return Parts(parts.weights, means)
    if parts.full is None:
        full = np.einsum("ja,kj,jb->kab", directions, parts.variances, directions)
    else:
        full = directions.T @ parts.full @ directions
    return Parts(parts.weights, means, np.diagonal(full, axis1=1, axis2=2), full)


def _of(parts: Parts, columns: list[int]) -> Parts:
    """Return the components in some of the features."""
    variances = None if parts.variances is None else parts.variances[:, columns]
    full = None if parts.full is None else parts.full[:, columns][:, :, columns]
    return Parts(parts.weights, parts.means[:, columns], variances, full)


def _name(saved: SavedFit, names: list[str], correlations: Matrix, axis: int) -> str:
    """Say with which features an axis goes most, and which way."""
    named = np.argsort(-np.abs(correlations), kind="stable")[:NAMED]
    most = 18 if axis else 24
    listed = ", ".join(
        f"{words(names[j], most)} {'+' if correlations[j] > 0 else chr(0x2212)}" for j in named
    )
    inside = f" within {saved.noun}s" if saved.n_components > 1 else ""
    return f"direction {axis + 1} (standard deviations{inside}):\n{listed}"
