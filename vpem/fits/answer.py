"""Answers of fits: how large components or clusters are, and in which features each differs.

Differences are counted in standard deviations of all rows together, so that features in any units
can be compared; those of categories lie in the shares of levels, those of t features in their
tails. They follow from the parameters, and for clusters from the standard deviations of features,
which are measured as the data are checked. At the end, how clusters agree with labels that fitting
never saw.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import singledispatch
from math import floor, log10
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import AnyArray, Doubles, Labels
from vpem.errors import FileError, InputError, Setting
from vpem.files.hdf5 import find, open_read, read_column
from vpem.files.opening import check_unpacked, read_text
from vpem.files.results import StoredClustering
from vpem.network.schema import Report
from vpem.records import Table, stated
from vpem.terms.density import Density
from vpem.terms.families.student import dof_of
from vpem.terms.units import Scaling

if TYPE_CHECKING:
    from vpem.records import Sentence
    from vpem.settings import FitSettings


@dataclass(frozen=True)
class Difference:
    """How a component differs from all rows in one feature.

    ``deviations`` is its mean less that of all rows, in standard deviations of all rows; of a
    category see `CategoryLevels.away`. ``mean`` is in the data's units. A category has none; its
    ``level`` is the one that the component has most more of than all rows, with the ``share`` there
    and in all rows.
    """

    feature: str
    deviations: float
    mean: float | None = None
    level: str | None = None
    share: float | None = None
    share_of_all: float | None = None

    def __str__(self) -> str:
        if self.level is None:
            return f"{self.feature} {self.deviations:+.1f} sd"
        return f"{self.feature} {self.level} {self.share:.0%} (all {self.share_of_all:.0%})"

    def describe(self) -> Report:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class CategoryLevels:
    names: tuple[str, ...]  # what they are called; numbers where they have no names
    shares: Doubles  # (K, L) of each level in each component

    def away(self, weights: Doubles) -> Doubles:
        """How far the shares of each component (K,) lie from those of all rows.

        ``sqrt(sum_l (p_kl - p_l)^2 / (1 - sum_l p_l^2))``: of two levels these are standard
        deviations, and the weighted mean of their squares is the share of the whole variance of
        levels that lies between components (the tau of Goodman and Kruskal 1954).
        """
        whole = weights @ self.shares
        variance = 1 - whole @ whole
        squares = np.square(self.shares - whole).sum(axis=1)
        return np.sqrt(squares / variance) if variance > 1e-12 else np.zeros(len(weights))

    def modes(self) -> list[str]:
        """The most frequent level of each component, with its share."""
        return [f"{self.names[row.argmax()]} {row.max():.0%}" for row in self.shares]

    def most(self, weights: Doubles, component: int) -> int:
        """The level that a component has most more of than all rows."""
        return int(np.argmax(self.shares[component] - weights @ self.shares))


NAMED = 3
"""Features that are named of each component, those in which it differs most."""

NOT_MEASURED = (
    "Standard deviations (sd) were not measured: within clusters one variance is taken for all "
    "features."
)
"""A note on differences that follow from centres and inertia alone."""

SEEN = 0.05
"""Standard deviations from which on a difference is shown: less is written as 0.0."""


MOST_OF_IT = 0.9
"""Share of all squares from which on one feature decides clusters, or imputed values."""


def note_of_one(name: str, share: float, whole: str, others: str) -> Sentence:
    """Return a note that one feature, or column, decides alone; none where it does not."""
    if share >= MOST_OF_IT:
        largest = f"{name} makes up {share:.1%} of {whole}, since its values are the largest; "
        return largest, Setting("scale", "standard"), f" lets all {others} count"
    return ()  # NaN, where squares are unknown, decides nothing either


def note_of_parameters(
    settings: FitSettings, fitted: Any, n_parameters: int, n_rows: int
) -> Sentence:
    """Return a note that a mixture has more parameters than there are rows, and which has fewer."""
    if n_parameters <= n_rows:
        return ()
    kind, k = fitted.covariance_type, fitted.n_components
    ways: dict[str | Setting, bool] = {
        Setting("covariance_type", "diag"): not kind.endswith(("diag", "spherical")),
        Setting("covariance_type", "tied"): k > 1 and not kind.startswith("tied"),
        Setting("weight_concentration_prior_type", "map"): settings.weight_concentration_prior_type
        is None,
        "fewer components": k > 1,
    }
    *more, last = [way for way, helps in ways.items() if helps] or ["fewer features"]
    listed = [part for way in more for part in (", ", way)][1:]
    counts = stated("{0:parameter} for {1:row}", lambda n: (n_parameters, n_rows)[int(n)])
    return f"{counts}: the fit may follow chance; try ", *listed, " or " * bool(more), last


def standardized_means(weights: Doubles, means: Doubles, spread: Doubles) -> Doubles:
    """How far means (K, d) lie from that of all rows, in standard deviations (d,) of all rows.

    ``weights`` (K,) are mixing weights, or shares of the rows. It is 0 where a feature is constant.
    """
    with np.errstate(all="ignore"):
        away = (means - weights @ means) / spread
    return np.where(np.isfinite(away), away, 0.0)


def telling_shares(weights: Doubles, standardized: Doubles) -> Doubles:
    """How well each feature (d,) separates components: the share of its variance between them.

    It is the weighted mean square of `standardized_means` (K, d): 0 where all means are the same, 1
    where rows of a component do not differ.
    """
    return weights @ standardized**2


def most_telling(weights: Doubles, standardized: Doubles) -> NDArray[np.intp]:
    """Return the columns (d,) in order of `telling_shares`, the most telling feature first."""
    return np.argsort(-telling_shares(weights, standardized), kind="stable")


def spread_of_clusters(
    centres: Doubles, sizes: Doubles, within: float | Doubles, scaling: Scaling | None
) -> Doubles:
    """Return standard deviations (d,) of features over all rows where they were not measured.

    Standardized features have theirs from the start. Of others (`NOT_MEASURED`) variances between
    centres (K, d), in the user's units, are known, and within clusters k-means takes one for all
    features (``within``: that, or one of each feature).
    """
    if scaling is not None:
        return scaling.scale
    return _spread(_shares(sizes), centres, np.broadcast_to(within, centres.shape))


def _spread(weights: Doubles, means: Doubles, variances: Doubles) -> Doubles:
    with np.errstate(over="ignore", invalid="ignore"):
        between = weights @ (means - weights @ means) ** 2
        return np.asarray(np.sqrt(between + weights @ variances))


def _shares(sizes: Doubles) -> Doubles:
    """Return shares (K,) of the rows; noisy sizes may be below 0, which counts as no row."""
    sizes = np.maximum(sizes, 0.0)
    total = sizes.sum()
    return sizes / total if total > 0 else np.full(len(sizes), 1.0 / len(sizes))


@dataclass(frozen=True)
class Answer:
    """What the components of a mixture, or the clusters of rows, are.

    ``sizes`` (K,) are rows of each, or their weight: expected of a mixture, counted of clusters,
    with noise where rows are protected; None where a file does not say of how many rows it is.
    ``means`` (K, d) are in the data's units, ``standardized`` see `standardized_means`; it is
    ``measured`` if standard deviations are those of the data, or of the mixture. ``levels`` are by
    column, ``degrees_of_freedom`` (K, B) of each hub's t features, NaN of hubs without any.
    ``labels`` are of the first components, where labels of some rows were given to the fit;
    ``degenerate`` components are singular but for the floor.
    """

    feature_names: tuple[str, ...]
    weights: Doubles
    sizes: Doubles | None
    means: Doubles
    standardized: Doubles
    measured: bool = True
    levels: Mapping[int, CategoryLevels] = field(default_factory=dict)
    degrees_of_freedom: Doubles | None = None
    labels: tuple[str, ...] = ()
    degenerate: tuple[int, ...] = ()

    @classmethod
    def of_mixture(
        cls, mixture: Density, feature_names: Sequence[str], total_weight: float | None = None
    ) -> Answer:
        """Return that of a mixture fitted to rows of so much weight in all."""
        # The variance of a mixture is that between the means of its components and that within.
        weights, freedom = mixture.assembled_weights, None
        levels: dict[int, CategoryLevels] = {}  # of categories, by their columns
        away = np.empty((mixture.n_components, mixture.n_features))
        for columns, means, variances in mixture.moments():
            spread = _spread(weights, means, variances)
            away[:, columns] = standardized_means(weights, means, spread)
        level_names = {} if mixture.kinds is None else mixture.kinds.levels
        for part in mixture.parts:
            features = part.features
            if part.family == "t":
                freedom = np.where(features.blocks.widths > 0, dof_of(part), np.nan)
            named = features.ordered.tolist() if part.family == "categorical" else ()
            for place, j in enumerate(named):
                begin, end = features.level_offsets[place : place + 2]
                shares = part.tables["probabilities"][:, begin:end]
                numbers = tuple(map(str, range(shares.shape[1])))
                levels[j] = CategoryLevels(level_names.get(j, numbers), shares)
                away[:, j] = levels[j].away(weights)
        within = 1 - mixture.outlier_share
        sizes = None if total_weight is None else weights * (total_weight * within)
        return cls(
            tuple(feature_names), weights, sizes, mixture.assembled_means, away, levels=levels,
            degrees_of_freedom=freedom,
        )  # fmt: skip

    @classmethod
    def of_clusters(
        cls,
        centres: Doubles,
        sizes: Doubles,
        spread: Doubles,
        feature_names: Sequence[str],
        measured: bool = True,
    ) -> Answer:
        """Return that of clusters; ``spread`` (d,) is measured, or from `spread_of_clusters`."""
        shares = _shares(sizes)
        standardized = standardized_means(shares, centres, spread)
        return cls(tuple(feature_names), shares, sizes, centres, standardized, measured)

    @property
    def notes(self) -> list[str]:
        return [] if self.measured else [NOT_MEASURED]

    @property
    def telling(self) -> NDArray[np.intp]:
        """Columns of the features (d,), those that separate components best first."""
        return most_telling(self.weights, self.standardized)

    @property
    def telling_shares(self) -> Doubles:
        """Share (d,) of each feature's variance that lies between components."""
        return telling_shares(self.weights, self.standardized)

    def differences(self, component: int, most: int = NAMED) -> list[Difference]:
        """Return the features in which a component differs most from all rows, most first."""
        away = self.standardized[component]
        order = np.argsort(-np.abs(away), kind="stable")[:most]
        return [self._difference(component, int(j)) for j in order if abs(away[j]) >= SEEN]

    def _difference(self, component: int, j: int) -> Difference:
        name, away = self.feature_names[j], float(self.standardized[component, j])
        if j not in self.levels:
            return Difference(name, away, float(self.means[component, j]))
        levels = self.levels[j]
        level = levels.most(self.weights, component)
        shares = (
            float(levels.shares[component, level]),
            float((self.weights @ levels.shares)[level]),
        )
        return Difference(name, away, None, levels.names[level], *shares)

    @property
    def leading(self) -> tuple[str, float]:
        """The feature of which most of the distances between means is, in the data's units.

        Its name, and its share of the squared distances of means from that of all rows.
        """
        with np.errstate(all="ignore"):
            apart = self.weights @ (self.means - self.weights @ self.means) ** 2
            shares = np.nan_to_num(apart / apart.sum())
        first = int(shares.argmax())
        return self.feature_names[first], float(shares[first])

    def note_of_scale(self) -> Sentence:
        """Return a note if one feature with large values decides the clusters."""
        leader, share = self.leading
        share *= len(self.feature_names) > 1
        return note_of_one(leader, share, "the distances between the centres", "features")

    def describe(self, noun: str = "component") -> list[Report]:
        described: list[Report] = [
            {
                noun: k,
                **({"label": self.labels[k]} if k < len(self.labels) else {}),
                **({"degenerate": True} if k in self.degenerate else {}),
                "share": float(weight),
                "size": None if self.sizes is None else float(self.sizes[k]),
                "differs_most_in": [one.describe() for one in self.differences(k)],
            }
            for k, weight in enumerate(self.weights)
        ]
        if self.degrees_of_freedom is not None:
            for one, values in zip(described, self.degrees_of_freedom, strict=True):
                one["degrees_of_freedom"] = [None if np.isnan(nu) else float(nu) for nu in values]
        return described


@singledispatch
def answer_of(stored: Any) -> Answer:
    """Return the answer that a model, or a clustering, holds; its report may lack anything."""
    report = stored.report
    total = report.get("total_weight") or report.get("n_samples")
    answer = Answer.of_mixture(stored.mixture, stored.feature_names, total)
    degenerate = tuple(report.get("degenerate") or ())
    return replace(answer, labels=labels_of(report), degenerate=degenerate)


@answer_of.register(StoredClustering)
def _(stored: StoredClustering) -> Answer:
    report = stored.report
    sizes = _vector(report.get("cluster_sizes"), len(stored.centres))
    if sizes is None:
        sizes = np.bincount(stored.labels, minlength=len(stored.centres)).astype(np.float64)
    measured = stored.deviations is not None or stored.scaling is not None
    spread = stored.deviations
    if spread is None:
        spread = _vector(report.get("spread"), len(stored.feature_names))
    if spread is None:
        squares = np.square(stored.distances).mean() if len(stored.labels) else 0.0
        within = float(squares) / len(stored.feature_names)
        spread = spread_of_clusters(stored.centres, sizes, within, stored.scaling)
    return Answer.of_clusters(stored.centres, sizes, spread, stored.feature_names, measured)


def labels_of(report: Report) -> tuple[str, ...]:
    labels_for_fit = report.get("labels_for_fit")
    names = labels_for_fit.get("names") if isinstance(labels_for_fit, dict) else None
    return tuple(map(str, names)) if isinstance(names, list) else ()


def classes_in(report: Report, n_components: int) -> tuple[list[str], NDArray[np.float64]] | None:
    """Return the classes of a model in a file, and which components (K, C) are theirs; or None."""
    about = report.get("discriminant")
    if about is None:
        return None
    names, numbers = (
        about.get(one) if isinstance(about, dict) else None for one in ("classes", "class_of")
    )
    if (
        not isinstance(names, list) or not isinstance(numbers, list) or len(numbers) != n_components
        or not all(isinstance(one, str) for one in names) or len({*names}) < len(names)
        or {*numbers} != {*range(len(names))} or not all(type(one) is int for one in numbers)
    ):  # fmt: skip
        raise InputError("the model's report of its classes does not agree with its components")
    return names, np.eye(len(names))[numbers]


def as_table(described: Sequence[Report], noun: str = "component", noisy: bool = False) -> Table:
    """Return a table for a reader, of what `Answer.describe` says.

    Differences are None where no agent has all parameters; ``noisy``: sizes have noise, since rows
    are protected. Sizes have no decimals where they are whole, or many.
    """
    heads: tuple[str, ...] = (noun, f"{'noisy ' if noisy else ''}size", "share", "differs most in")
    rows: list[tuple[str, ...]] = []
    digits, sizes = 0, [one["size"] for one in described if one["size"] is not None]
    if any(size != round(size) for size in sizes):
        digits = max(0, 3 - floor(log10(max(map(abs, sizes)))))
    for one in described:
        size, named = one["size"], one["differs_most_in"]
        label = f" = {one['label']}" if "label" in one else ""
        rows.append((
            f"{one[noun]}{label}{', degenerate' * ('degenerate' in one)}",
            "-" if size is None else f"{size:.{digits}f}",
            f"{one['share']:.1%}",
            ", ".join(str(Difference(**each)) for each in named or ()) or "-",
        ))  # fmt: skip
    if all(one["differs_most_in"] is None for one in described):
        heads, rows = heads[:3], [row[:3] for row in rows]
    if any("degrees_of_freedom" in one for one in described):
        heads = (*heads, "degrees of freedom")
        freedom = [[nu for nu in one["degrees_of_freedom"] if nu is not None] for one in described]
        rows = [
            (*row, ", ".join(f"{nu:.1f}" if nu < 100 else f"{nu:.0f}" for nu in values))
            for row, values in zip(rows, freedom, strict=True)
        ]
    return Table(rows, heads, right=heads[:3])


def _vector(listed: list[float] | None, n: int) -> Doubles | None:
    """Return what a report lists, if there are so many."""
    return np.array(listed, dtype=np.float64) if listed and len(listed) == n else None


@dataclass(frozen=True)
class Agreement:
    """How well clusters agree with labels.

    ``accuracy`` is the share of rows that agree under the best one-to-one ``mapping`` of clusters
    to labels; clusters beyond the number of labels have none. The adjusted Rand index is 1 for the
    same partition, about 0 for independent ones; the normalized mutual information is between 0 and
    1, by the arithmetic mean of the entropies. ``classes`` (L,) are the labels, sorted, and
    ``confusion`` (L, K) rows of each in each cluster.
    """

    accuracy: float
    adjusted_rand_index: float
    normalized_mutual_information: float
    classes: Labels
    confusion: NDArray[np.intp]
    mapping: dict[int, object]

    @property
    def order(self) -> list[int]:
        """Clusters in the order of the labels that they are mapped to; then those without."""
        place = {label: row for row, label in enumerate(self.classes.tolist())}
        last = len(place)
        return sorted(
            range(self.confusion.shape[1]),
            key=lambda cluster: place.get(self.mapping.get(cluster), last),
        )

    def describe(self) -> Report:
        return {"labels" if name == "classes" else name: one for name, one in vars(self).items()}


def name_of(number: int, n_clusters: int) -> str:
    """Name a cluster in a table of `compare`."""
    return str(number) if number < n_clusters else "none"


def compare(
    labels: ArrayLike, clusters: ArrayLike, n_clusters: int, names: Sequence[str] = ()
) -> Agreement:
    """Compare clusters (M,), numbered from 0, with labels (M,): what the rows are known to be.

    Clusters that have ``names`` are right where the label is their name; others by the best
    one-to-one mapping.
    """
    from scipy.optimize import linear_sum_assignment

    truth = np.asarray(labels)
    numbers = np.asarray(clusters)
    if (numbers < 0).any():  # of no cluster: they are one more
        numbers, n_clusters = np.where(numbers < 0, n_clusters, numbers), n_clusters + 1
    if truth.shape != numbers.shape or truth.ndim != 1 or len(truth) == 0:
        raise InputError(f"{len(numbers)} rows need as many labels, got {len(truth)}")
    classes, codes = np.unique(truth, return_inverse=True)
    confusion = np.zeros((len(classes), n_clusters), dtype=np.intp)
    np.add.at(confusion, (codes, numbers), 1)
    rows, columns = linear_sum_assignment(confusion, maximize=True)
    if names:
        from vpem.fits.labels import label_name

        own = {label_name(name): row for row, name in enumerate(classes.tolist())}
        columns = np.array([at for at, name in enumerate(names) if name in own], dtype=np.intp)
        rows = np.array([own[names[at]] for at in columns], dtype=np.intp)
    return Agreement(
        accuracy=float(confusion[rows, columns].sum() / len(truth)),
        adjusted_rand_index=adjusted_rand_index(confusion),
        normalized_mutual_information=_normalized_mutual_information(confusion),
        classes=classes,
        confusion=confusion,
        mapping={
            int(column): classes[row].item() for row, column in zip(rows, columns, strict=True)
        },
    )


@dataclass(frozen=True)
class Boundary:
    """Where two components are as likely: ``constant + linear x + x quadratic x = 0``.

    Left of it, where this is above 0, ``one`` is more likely than ``two``; it is the logarithm of
    the ratio of their posterior probabilities. ``linear`` (d,) and ``quadratic`` (d, d) are of
    features in the data's units; without the latter, where both have one covariance, it is a plane.
    """

    one: int
    two: int
    constant: float
    linear: Doubles
    quadratic: Doubles | None = None

    def at(self, X: Doubles) -> Doubles:
        """Return the log-ratio at rows (m, d), shape (m,)."""
        ratio = self.constant + X @ self.linear
        return ratio if self.quadratic is None else ratio + ((X @ self.quadratic) * X).sum(axis=1)


def boundaries(weights: Doubles, means: Doubles, covariances: Doubles) -> list[Boundary]:
    """Return the decision boundary of every pair of components in use: (0, 1), (0, 2), ...

    Weights (K,), means (K, d) and covariances (K, d, d) are of a Gaussian mixture. Some of the
    features alone, with their means and covariances, are the marginal mixture, whose boundaries are
    those of who sees no others.

    With precisions P they are ``x^T (P_j - P_i) x / 2 + (P_i mu_i - P_j mu_j)^T x + c``, ``c = log
    (pi_i / pi_j) - (log |S_i| - log |S_j| + mu_i^T P_i mu_i - mu_j^T P_j mu_j) / 2``; Poczos,
    "Distributed Clustering", has the case of equal variances.
    """
    used = np.flatnonzero(weights > 0).tolist()
    units = np.sqrt(np.einsum("kjj->kj", covariances).mean(axis=0))
    units = np.where(units > 0, units, 1.0)
    roots = {k: np.linalg.cholesky(covariances[k] / np.outer(units, units)) for k in used}
    found = []
    for place, one in enumerate(used):
        for two in used[place + 1 :]:
            # About the middle of both means, in standard deviations, where little is lost.
            middle = (means[one] + means[two]) / 2
            sides = []
            for k in (one, two):
                inverse = np.linalg.inv(roots[k])
                precision, away = inverse.T @ inverse, (means[k] - middle) / units
                volume = 2 * np.log(np.diagonal(roots[k])).sum()
                level = np.log(weights[k]) - (volume + away @ precision @ away) / 2
                sides.append((precision / np.outer(units, units), precision @ away / units, level))
            (P, pull, level), (Q, push, other) = sides
            linear, constant, quadratic = pull - push, level - other, None
            if not np.array_equal(covariances[one], covariances[two]):
                quadratic = (Q - P) / 2
                constant += middle @ quadratic @ middle
                constant, linear = constant - linear @ middle, linear - 2 * quadratic @ middle
            else:
                constant -= linear @ middle
            found.append(Boundary(one, two, float(constant), linear, quadratic))
    return found


def adjusted_rand_index(confusion: AnyArray) -> float:
    """Return the index of Hubert and Arabie, of a table of counts.

    scikit-learn has it too, whose import takes longer than a whole evaluation.
    """
    together, in_rows, in_columns, all_pairs = (
        float((counts * (counts - 1.0)).sum())
        for counts in (confusion, confusion.sum(axis=1), confusion.sum(axis=0), confusion.sum())
    )
    by_chance = in_rows * in_columns / all_pairs if all_pairs > 0 else 0.0
    most = (in_rows + in_columns) / 2
    return 1.0 if most == by_chance else (together - by_chance) / (most - by_chance)


def _normalized_mutual_information(confusion: NDArray[np.intp]) -> float:
    """Return the mutual information over the mean entropy of rows and columns of a table."""

    def entropy(shares: NDArray[np.float64]) -> float:
        there = shares[shares > 0]
        return float(-(there * np.log(there)).sum())

    joint = confusion / confusion.sum()
    rows, columns = entropy(joint.sum(axis=1)), entropy(joint.sum(axis=0))
    if rows == columns == 0:
        return 1.0
    shared = max(rows + columns - entropy(joint.ravel()), 0.0)
    # What rounding leaves of two labellings that do not depend on each other.
    return 0.0 if shared < 1e-14 else min(shared / ((rows + columns) / 2), 1.0)


def read_labels(where: str, data: str | os.PathLike[str], n_samples: int) -> Labels:
    """Read labels (M,) from a text file with one a line, or from a place inside an HDF5 dataset.

    ``where`` is the name of a text file, or the path of a dataset inside ``data``, the HDF5 file.
    """
    labels: Labels
    if os.path.lexists(where):
        lines = read_text(where).split("\n")
        check_unpacked(4 * max(map(len, lines)) * len(lines), where)  # as numpy has text
        labels = np.array(lines)
        labels = labels[:-1] if len(labels) and labels[-1] == "" else labels
    else:
        with open_read(data) as file:
            if find(file, where) is None:
                raise FileError(f"there is neither a file {where!r} nor such a dataset in {data}")
            labels = read_column(file, where)
    if labels.shape != (n_samples,):
        raise InputError(f"{data} has {n_samples} rows, {where} has {len(labels)} labels")
    return labels


STATISTICS = {
    "estimates": "estimate", "standard_errors": "s.e.", "z": "z", "p_values": "p",
    "lower": "lower", "upper": "upper",
}  # fmt: skip

COVARIATES = "Covariates of the mixing weights"


def estimates_table(report: Report, caption: str = "") -> Table:
    """Return what `vpem.three_step` found, or estimates alike, class by class."""
    parts = [one for one in STATISTICS if one in report]
    heads = ("class", "parameter", *map(STATISTICS.__getitem__, parts))
    rows = []
    for kind, estimates in report["estimates"].items():
        logits = kind == "coefficients"  # of which the first class, the reference, has none
        names = ["intercept", *report["names"]] if logits else report["names"]
        for place in np.ndindex(estimates.shape):
            word = kind[:-1] if len(place) < 2 else names[place[1]]
            if len(place) > 1 and not logits:
                word = f"{kind[:-1]} {word}"
            cells = [f"{report[one][kind][place]:.{3 if logits else 4}g}" for one in parts]
            if not logits or place[0]:
                called = report.get("classes", range(len(estimates)))[place[0]]
                rows.append((str(called), word, *cells))
    return Table(rows, heads, caption, heads[2:], spare=("z",))
