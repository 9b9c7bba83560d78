"""Features of several families in pictures: what can be drawn of each, and how densities look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError, shorten
from vpem.fits.differences import Levels
from vpem.pictures.figure import words
from vpem.pictures.reported import Parts, SavedFit
from vpem.pictures.style import BAND, PALE, colour, halo, hatch
from vpem.terms.covariances import is_diagonal
from vpem.terms.families.mixture import MixedMixture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Vector = NDArray[np.float64]

LEVELS = ("categorical", "bernoulli")
COUNTS = ("poisson", "negative-binomial")
POSITIVE = ("log-normal", "exponential", "gamma")

MOST_LEVELS = 8
"""Levels of a category that have bars, those that are most frequent."""

ROOM = 24
"""Letters below a panel."""

POINTS = 400


def families_of(saved: SavedFit) -> tuple[str, ...] | None:
    """Return the family of each feature; None of clusters, and where all are Gaussian."""
    kinds = getattr(getattr(saved, "mixture", None), "kinds", None)
    return None if kinds is None else kinds.families


def mixed_parts(mixture: MixedMixture) -> Parts:
    """Return means and covariances of all features in the user's units.

    Features of different families do not depend on each other within a component.
    """
    k, d = mixture.n_components, mixture.n_features
    variances = np.empty((k, d))
    full = None if is_diagonal(mixture.covariance_type) else np.zeros((k, d, d))
    for law, part in zip(mixture.laws, mixture.parts, strict=True):
        columns, own = part.features.columns, law.variances(part)
        variances[:, columns] = own
        if full is None or part.core is None:
            continue
        joint = np.broadcast_to(part.core.assembled_covariances, (k, len(own[0]), len(own[0])))
        if part.family == "log-normal":
            means = law.means(part)
            joint = np.expm1(joint) * means[:, :, None] * means[:, None, :]
        elif part.family == "t":
            wider = np.sqrt(own / np.diagonal(joint, axis1=1, axis2=2))
            joint = joint * wider[:, :, None] * wider[:, None, :]
        full[:, columns[:, None], columns] = joint
    if full is not None:
        full[:, range(d), range(d)] = variances
    return Parts(mixture.assembled_weights, mixture.assembled_means, variances, full)


def in_a_plane(saved: SavedFit, asked: Sequence[int] | None, notes: list[str]) -> list[int] | None:
    """Return the columns that have a place on an axis: all but categories, and zeros and ones.

    None where nothing is left out; ``notes`` say what is. InputError if one was asked for that has
    no place, or fewer than two are left.
    """
    families, names = families_of(saved), saved.feature_names
    out = [j for j, family in enumerate(families or ()) if family in LEVELS]
    if not out:
        return None
    for j in asked or ():
        if j in out:
            assert families is not None
            raise InputError(
                f"{names[j]} is {families[j]}, whose levels lie along no axis; marginals and "
                "profile draw it"
            )
    left = [j for j in range(len(names)) if j not in out]
    if len(left) < 2:
        raise InputError(
            f"pairs and projections need two features that lie along an axis, {saved.path} has "
            f"{len(left)}; try marginals or profile"
        )
    listed = shorten((names[j] for j in out), 6)
    notes.append(f"left out, as levels lie along no axis: {listed} (marginals and profile have it)")
    return left


def levels_drawn(saved: SavedFit, j: int) -> Levels | None:
    """Return the levels of a category, or of zeros and ones; None of other features."""
    if j in saved.answer.levels:
        return saved.answer.levels[j]
    families = families_of(saved)
    if families is not None and families[j] == "bernoulli":
        ones = saved.answer.means[:, j]
        return Levels(("0", "1"), np.stack([1 - ones, ones], axis=1))
    return None


def is_count(saved: SavedFit, j: int) -> bool:
    """Whether a feature is a count."""
    families = families_of(saved)
    return families is not None and families[j] in COUNTS


def grid_of(family: str, means: Vector, deviations: Vector, values: Vector | None) -> Vector:
    """Return points at which densities of a feature are drawn, fine where components are narrow."""
    low, high = float((means - 4 * deviations).min()), float((means + 4 * deviations).max())
    own = np.linspace(-4, 4, 81)
    if values is not None and len(values):
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    if family in COUNTS:
        whole = np.arange(max(0.0, np.floor(low)), np.ceil(high) + 1)
        return whole[:: max(1, len(whole) // (4 * POINTS))]
    near = (means[:, None] + np.outer(deviations, own)).ravel()
    grid = np.concatenate([np.linspace(low, high, POINTS), near])
    if family in POSITIVE:
        grid = np.concatenate([grid, np.outer(means, np.geomspace(1e-3, 1, 81)).ravel()])
        grid = grid[grid >= 1e-3 * means.min()]
    return np.unique(grid)


def densities_of(saved: Any, j: int, values: Vector | None, parts: Parts) -> tuple[Vector, Vector]:
    """Return a grid (n,) and the densities of components on it, times their weights (K, n)."""
    families = families_of(saved)
    assert families is not None
    assert parts.variances is not None
    grid = grid_of(families[j], parts.means[:, j], np.sqrt(parts.variances[:, j]), values)
    own = saved.mixture.marginal([j])
    terms, constant = own.terms_of(grid[:, None], np.ones((len(grid), 1), dtype=bool))
    logs = constant - 0.5 * terms.sum(axis=0).T
    return grid, parts.weights[:, None] * np.exp(logs)


def draw_levels(axes: Axes, levels: Levels, weights: Vector, values: Vector | None) -> None:
    """Draw the share of each level: of the data, of the mixture, and what components have of it.

    Components stand beside each other within a level, in their order, each with its part of all
    rows, so that together they are the mixture.
    """
    whole = weights @ levels.shares
    chosen = np.sort(np.argsort(-whole, kind="stable")[:MOST_LEVELS])
    k, places = len(weights), np.arange(len(chosen))
    if values is not None and len(values):
        found = np.bincount(values.astype(np.intp), minlength=len(whole)) / len(values)
        axes.bar(places, found[chosen], 0.9, facecolor=PALE, edgecolor=BAND, linewidth=0.5)
    each = 0.8 / k
    for c in range(k if k > 1 else 0):
        axes.bar(
            places - 0.4 + each * (c + 0.5), weights[c] * levels.shares[c, chosen], each,
            facecolor=colour(c), hatch=hatch(c), edgecolor="white", linewidth=0.3, zorder=2,
        )  # fmt: skip
    axes.hlines(whole[chosen], places - 0.45, places + 0.45, color="black", linewidth=1.8, zorder=3)
    left = len(whole) - len(chosen)
    axes.set_ylim(0, axes.get_ylim()[1] * (1.12 if left else 1.0))
    _name_levels(axes, [levels.names[level] for level in chosen])
    if left:
        said = f"{left} rarer level{'' if left == 1 else 's'}"
        axes.text(0.98, 0.99, said, transform=axes.transAxes, fontsize=7.5, ha="right", va="top")


def _name_levels(axes: Axes, names: list[str]) -> None:
    """Write names below bars, or upright in them where they are long."""
    axes.tick_params(axis="x", length=0)
    if sum(map(len, names)) <= ROOM:
        axes.set_xticks(range(len(names)), [words(name) for name in names])
        return
    axes.set_xticks([])
    for place, name in enumerate(names):
        axes.text(
            place, 0.02, words(name, 22), transform=axes.get_xaxis_transform(), rotation=90,
            fontsize=7, ha="center", va="bottom", path_effects=halo(), zorder=4,
        )  # fmt: skip
