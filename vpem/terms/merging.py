"""Components merged to clusters by entropy: the tree of merges, and labels at any level of it.

A cluster that is no ellipse takes several components, whose rows are hard to tell apart. Merging
those two that are hardest to tell apart, again and again, leaves the density as it is (Baudry,
Raftery, Celeux, Lo and Gottardo, 2010).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from vpem.checks import Doubles, Indices, as_array, check_int, check_weights
from vpem.errors import InputError, Setting, shorten
from vpem.network.schema import Report
from vpem.records import Shown, words_in

Groups = tuple[tuple[int, ...], ...]
"""Components of each cluster; clusters are in the order of their first component."""

MOST_DIGITS = 10
"""Of the number of a component."""

MERGES = "components merge to clusters to which all rows belong"

UNEVEN = 1e-4
"""By how much responsibilities of a row may miss 1."""


@dataclass(frozen=True)
class Merge:
    """Two clusters that are merged, each given by its components, and what that leaves.

    The entropy is that of the responsibilities that are left, in nats, summed over rows.
    """

    one: tuple[int, ...]
    other: tuple[int, ...]
    n_clusters: int
    entropy: float


@dataclass(frozen=True, repr=False)
class Merging(Shown, facts="{n_components:component}"):
    """The tree of merges of a mixture's components.

    Attributes
    ----------
    proba : ndarray of shape (M, K)
        Responsibilities of the rows that it was found from.
    entropy : float
        Their entropy before any merge, in nats, summed over rows.
    merges : tuple of Merge
        The K - 1 merges, the first one first.
    """

    proba: Doubles
    entropy: float
    merges: tuple[Merge, ...]

    @property
    def n_components(self) -> int:
        """Components that there are without a merge, K."""
        return len(self.merges) + 1

    @property
    def entropies(self) -> Doubles:
        """Entropy with 1, 2, ... K clusters, shape (K,), in nats."""
        return np.array([one.entropy for one in reversed(self.merges)] + [self.entropy])

    def groups(self, n_clusters: int) -> Groups:
        """Return the components of each cluster where there are so many, 1 to K."""
        count = check_int("n_clusters", n_clusters, least=1, most=self.n_components)
        left: set[tuple[int, ...]] = {(k,) for k in range(self.n_components)}
        for merge in self.merges[: self.n_components - count]:
            left -= {merge.one, merge.other}
            left.add(tuple(sorted(merge.one + merge.other)))
        return tuple(sorted(left))

    def predict_proba(self, n_clusters: int) -> Doubles:
        """Return the responsibilities (M, n_clusters) of clusters for the rows."""
        return merged(self.proba, self.groups(n_clusters))

    def predict(self, n_clusters: int) -> Indices:
        """Return the most responsible cluster (M,) of each row."""
        labels: Indices = self.predict_proba(n_clusters).argmax(axis=1)
        return labels

    def levels(self) -> Iterator[tuple[int, Indices]]:
        """Yield the clusters (M,) of rows at each level, from 1 cluster to K."""
        for count in range(1, self.n_components + 1):
            yield count, self.predict(count)

    def leaves(self) -> list[int]:
        """Return the components in an order in which no branches of the tree cross."""
        branches: dict[tuple[int, ...], list[int]] = {(k,): [k] for k in range(self.n_components)}
        for merge in self.merges:
            both = branches.pop(merge.one) + branches.pop(merge.other)
            branches[tuple(sorted(both))] = both
        [order] = branches.values()
        return order

    def describe(self) -> Report:
        """Return the tree of merges as JSON has it."""
        merges = [
            {"merged": [list(one.one), list(one.other)], "n_clusters": one.n_clusters,
             "entropy": one.entropy, "groups": [list(g) for g in self.groups(one.n_clusters)]}
            for one in self.merges
        ]  # fmt: skip
        return {"n_components": self.n_components, "entropy": self.entropy, "merges": merges}


def merge_components(proba: ArrayLike, sample_weight: ArrayLike | None = None) -> Merging:
    """Merge components of a mixture to clusters, two at a time, by the entropy that is left.

    Each merge joins the two clusters by which the entropy of the responsibilities falls most, of
    equals the first (Baudry et al. 2010, equation 6 and section 3.1; ``clustCombi`` of mclust).

    Parameters
    ----------
    proba : array of shape (M, K)
        Responsibilities, as from ``predict_proba``.
    sample_weight : array of shape (M,), optional
        Weight of each row. Zero has no effect, an integer equals as many copies.

    Returns
    -------
    Merging

    Raises
    ------
    InputError
        If these are no responsibilities, or the weights cannot be used.

    References
    ----------
    J.-P. Baudry, A. E. Raftery, G. Celeux, K. Lo, R. Gottardo (2010), Combining mixture components
    for clustering, Journal of Computational and Graphical Statistics 19(2).
    """
    shares = check_responsibilities(proba)
    weights = np.ones(len(shares))
    if sample_weight is not None:
        weights = check_weights(sample_weight, len(shares))
    k = shares.shape[1]
    columns = [np.ascontiguousarray(column) for column in shares.T]
    own = [_entropy(column, weights) for column in columns]
    before = sum(own)
    falls = np.full((k, k), -np.inf)  # of the entropy, if two clusters are merged

    def compare(i: int, j: int) -> None:
        falls[i, j] = own[i] + own[j] - _entropy(columns[i] + columns[j], weights)

    for i in range(k):
        for j in range(i + 1, k):
            compare(i, j)
    clusters: list[tuple[int, ...]] = [(i,) for i in range(k)]
    merges: list[Merge] = []
    left = list(range(k))
    for count in range(k - 1, 0, -1):
        i, j = (int(place) for place in np.unravel_index(falls.argmax(), falls.shape))
        falls[j], falls[:, j] = -np.inf, -np.inf
        left.remove(j)
        columns[i] = columns[i] + columns[j]
        own[i] = _entropy(columns[i], weights)
        # With one cluster nothing is uncertain, though rounding may leave some.
        entropy = sum(own[place] for place in left) if count > 1 else 0.0
        merges.append(Merge(clusters[i], clusters[j], count, entropy))
        clusters[i] = tuple(sorted(clusters[i] + clusters[j]))
        for other in left:
            if other != i:
                compare(min(i, other), max(i, other))
    return Merging(shares, before, tuple(merges))


def check_responsibilities(proba: ArrayLike) -> Doubles:
    """Return responsibilities (M, K) as such, or raise InputError."""
    shares = as_array("responsibilities", proba)
    if shares.ndim != 2 or not shares.size or shares.dtype.kind not in "fiu":
        raise InputError(
            f"responsibilities must be numbers of shape (rows, components), got shape "
            f"{shares.shape} of type {shares.dtype}"
        )
    shares = shares.astype(np.float64)
    if not (shares >= 0).all() or not (abs(shares.sum(axis=1) - 1) <= UNEVEN).all():
        raise InputError("responsibilities of a row must be at least 0 and sum to 1")
    return shares


def _entropy(shares: Doubles, weights: Doubles) -> float:
    """Return what a cluster's responsibilities (M,) have of the entropy."""
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return -float(weights @ (shares * logs))


def merged(proba: Doubles, groups: Groups) -> Doubles:
    """Return the responsibilities (M, n) of clusters of components."""
    return np.stack([proba[:, list(group)].sum(axis=1) for group in groups], axis=1)


def read_groups(text: str, n_components: int) -> Groups | int:
    """Read how components are merged: a number of clusters, or 0+2,1, which names all of each."""
    words = [str(word).split("+") for word in words_in("merge_to", text)]
    setting = Setting("merge_to", text)
    numbers = [one.strip() for word in words for one in word]
    if not words or not all(one.isdecimal() and len(one) < MOST_DIGITS for one in numbers):
        raise InputError(setting, " must be a number of clusters, such as 3, or all components, "
                         "merged ones joined by +, such as 0+2,1")  # fmt: skip
    groups: Sequence[tuple[int, ...]] = [tuple(sorted(map(int, word))) for word in words]
    if len(words) == 1 and len(words[0]) == 1:
        return check_int("merge_to", groups[0][0], least=1, most=n_components)
    named = sorted(k for group in groups for k in group)
    if named != list(range(n_components)):
        raise InputError(
            setting, f" must name each of the components 0 to {n_components - 1} once, got "
            f"{shorten(map(str, named))}"
        )  # fmt: skip
    return tuple(sorted(groups))


def name_groups(groups: Groups) -> str:
    """Return clusters as `read_groups` reads them."""
    return ",".join("+".join(map(str, group)) for group in groups)
