"""Who matters: what a fitted mixture loses without a party's term, and which features separate.

A party's features ``a`` and those of all others ``r`` have densities of their own under the same
mixture: its marginals, ``p(r)`` and ``p(a)``, are sums over components without the other's terms.
So nothing is fitted again, and the figures of a party are means over rows of

* ``log p(x) - log p(r)``: the log-likelihood that is lost without it;
* ``log p(x) - log p(r) - log p(a)``: of that, what its features do not have by themselves: the
  pointwise mutual information of its features and those of others, free of units;
* ``KL(p(z | a) || p(z))``: what its features alone tell of the component ``z``;
* ``KL(p(z | x) || p(z | r))``: what they tell of it that no others do.

If rows are drawn from the mixture, their expected values are ``I(a; r)``, ``I(z; a)`` and
``I(z; a | r)`` (Cover and Thomas, Elements of Information Theory, chapter 2). A variational
posterior is judged by the mixture at its means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem._core.threads import one_blas_thread
from vpem.checks import Floats, Matrix, as_array, check_finite, check_weights
from vpem.errors import InputError, check_choice
from vpem.files.models import Model
from vpem.fits.evaluation import adjusted_rand_index
from vpem.fits.leaving_out import (
    Others,
    Piece,
    Tally,
    Whole,
    apart,
    divergence,
    log_posterior,
    piece,
)
from vpem.network.schema import Report
from vpem.settings import MISSINGS
from vpem.shown import Shown
from vpem.terms.density import Density
from vpem.terms.missing_patterns import check_missing
from vpem.terms.posteriors import CHUNK_VALUES
from vpem.terms.variational_mixture import VariationalMixture

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class PartyContribution:
    """What a mixture loses without one party's features; see `vpem.fits.contribution`.

    Attributes
    ----------
    name : str
        The party.
    features : tuple of str
        Which it has.
    log_likelihood_lost : float
        Log-likelihood per sample, in nats, less that of the mixture of all other features. It
        depends on units, and on how many features there are.
    shared_information : float
        The part of it that the party's own marginal mixture does not have: mutual information of
        its features and those of others, in nats; it can be compared between parties.
    information : float
        What its features alone tell of the component, in nats.
    information_lost : float
        What nobody else's features tell of the component: expected divergence of responsibilities
        from those without the party, in nats.
    rows_moved : float
        Share of the rows whose most responsible component is another without it.
    agreement : float
        Adjusted Rand index of the components of rows with and without it: 1 if nothing changes.
    adjusted_rand_index : float or None
        Of these components without it and labels, if there are any.
    """

    name: str
    features: tuple[str, ...]
    log_likelihood_lost: float
    shared_information: float
    information: float
    information_lost: float
    rows_moved: float
    agreement: float
    adjusted_rand_index: float | None


@dataclass(frozen=True)
class FeatureContribution:
    """How well one feature alone separates components.

    Attributes
    ----------
    name : str
        The feature.
    party : str or None
        Who has it.
    information : float
        What it tells of the component, in nats.
    share : float
        Of the entropy of the mixing weights, which is all that there is to be told.
    """

    name: str
    party: str | None
    information: float
    share: float


@dataclass(frozen=True)
class Contribution(Shown, facts="{n_parties:party}, {n_features:feature}"):
    """Who and what matters in a fitted mixture, on some rows.

    Attributes
    ----------
    n_samples : int
        Rows that have a value and a weight.
    n_components : int
        Components of the mixture, K.
    log_likelihood : float
        Per sample, of all features.
    entropy : float
        Of the mixing weights, in nats: what is not known of a row's component before it is seen.
    adjusted_rand_index : float or None
        Of the components of rows and labels, if there are any.
    parties : tuple of PartyContribution
        Those first of whom most is lost: by ``information_lost``.
    features : tuple of FeatureContribution
        Those first that separate best.
    """

    n_samples: int
    n_components: int
    log_likelihood: float
    entropy: float
    adjusted_rand_index: float | None
    parties: tuple[PartyContribution, ...]
    features: tuple[FeatureContribution, ...]

    @property
    def n_parties(self) -> int:
        """Parties that have features."""
        return len(self.parties)

    @property
    def n_features(self) -> int:
        """Features of the mixture."""
        return len(self.features)

    def describe(self) -> Report:
        """Return all of it in values that JSON can hold."""
        return asdict(self)


def contribution(
    model: Model,
    X: Matrix,
    *,
    parties: Mapping[str, Sequence[int]] | None = None,
    labels: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    missing: str = "refuse",
) -> Contribution:
    """Tell what a mixture loses without each party's features, without fitting again.

    Parameters
    ----------
    model : Model
        From `vpem.read_model`, or the ``kept()`` of a fitted estimator.
    X : ndarray or FileMatrix of shape (M, d)
        Rows to judge by, the model's features in its order and in the user's units.
    parties : mapping of str to sequence of int, optional
        Features of each party, some of them or all. None: of each agent of the fit.
    labels : array of shape (M,), optional
        What the rows are known to be, for the agreement with and without each party.
    sample_weight : array of shape (M,), optional
        Weight of each row: an integer equals as many copies, zero is as if it were not there.
    missing : {"refuse", "marginalize"}
        What is done where values are missing (NaN). "marginalize" takes what is there: of a row of
        which a party has nothing its term is 0, and nothing is lost.

    Returns
    -------
    Contribution

    Raises
    ------
    InputError
        If the data, parties, labels or weights do not go with the model.
    """
    mixture = model.mixture
    if isinstance(mixture, VariationalMixture):
        mixture = mixture.plain
    check_choice("missing", missing, MISSINGS)
    X = X if hasattr(X, "runs") else as_array("the data", X)
    if X.ndim != 2 or X.shape[1] != mixture.n_features:
        got = f"{X.shape[1]}" if X.ndim == 2 else f"an array of {X.ndim} dimensions"
        raise InputError(f"the model has {mixture.n_features} features, the data have {got}")
    (check_finite if missing == "refuse" else check_missing)(X, model.feature_names)
    weights = None if sample_weight is None else check_weights(sample_weight, len(X), some=True)
    codes = None if labels is None else _codes(labels, len(X))
    held = parties_of(model) if parties is None else _checked(parties, mixture.n_features)
    whole = Whole(mixture, codes)
    tallies = [Tally(whole, mixture, columns) for columns in held.values()]
    alone = [piece(mixture, [j]) for j in range(mixture.n_features)]
    told = np.zeros(mixture.n_features)
    with one_blas_thread():
        for rows, values, there in _chunks(mixture, X):
            own = _weighed(there, weights, rows)
            terms, constant = mixture.terms_of(values, there)
            every = whole.add(terms.sum(axis=0), constant, own, rows)
            others = Others(mixture, terms)
            for tally in tallies:
                tally.add(every, others.without(tally, values, there), values, there, own, rows)
            told += separation(alone, whole, values, there, own)
    if whole.total == 0:
        raise InputError("no row has a value and a weight: there is nothing to judge by")
    names = model.feature_names
    judged = [
        figures_of(name, [names[j] for j in columns], *tally.figures())
        for (name, columns), tally in zip(held.items(), tallies, strict=True)
    ]
    owner = {int(j): name for name, columns in held.items() for j in columns}
    return in_order(whole, judged, names, owner, told)


def parties_of(model: Model) -> dict[str, NDArray[np.intp]]:
    """Return the features of each agent of a fit, by its name; none where workers held rows."""
    names, owners = model.report.get("agent_names"), model.report.get("partition")
    fitted = model.report.get("feature_names") or model.feature_names
    if not isinstance(owners, list) or not isinstance(names, list):
        return {}
    # A model may have fewer features than its fit: those that the data have.
    owner = dict(zip(fitted, owners, strict=False))
    held: dict[str, list[int]] = {}
    for column, feature in enumerate(model.feature_names):
        agent = owner.get(feature)
        if isinstance(agent, int) and 0 <= agent < len(names):
            held.setdefault(str(names[agent]), []).append(column)
    return {name: np.array(columns, dtype=np.intp) for name, columns in held.items()}


def _checked(parties: Mapping[str, Sequence[int]], n_features: int) -> dict[str, NDArray[np.intp]]:
    """Return features of parties that have some, once it is clear that they are different ones."""
    held = {str(name): np.asarray(own, dtype=np.intp) for name, own in parties.items() if len(own)}
    every = np.concatenate([np.empty(0, dtype=np.intp), *held.values()])
    if len(np.unique(every)) < len(every) or np.any((every < 0) | (every >= n_features)):
        raise InputError(
            f"features of parties must be different numbers from 0 to {n_features - 1}"
        )
    return held


def _codes(labels: ArrayLike, n_samples: int) -> NDArray[np.intp]:
    truth = np.asarray(labels)
    if truth.shape != (n_samples,):
        raise InputError(f"{n_samples} rows need as many labels, got {len(np.atleast_1d(truth))}")
    return np.unique(truth, return_inverse=True)[1].astype(np.intp)


def _chunks(mixture: Density, X: Matrix) -> Iterator[tuple[slice, Vector, NDArray[np.bool_]]]:
    """Yield runs of rows, their values, and which of these are there."""
    size = max(64, CHUNK_VALUES // (4 * max(mixture.blocks.n_blocks, 1) * mixture.n_components))
    for start in range(0, len(X), size):
        rows = slice(start, min(start + size, len(X)))
        values = np.asarray(X[rows], dtype=np.float64)
        yield rows, values, np.isfinite(values)


def _weighed(there: NDArray[np.bool_], weights: Floats | None, rows: slice) -> Vector:
    """Return weights (m,) of rows, 0 of those without a value."""
    seen: Vector = np.array(there.any(axis=1), dtype=np.float64)
    if weights is not None:
        np.multiply(seen, weights[rows], out=seen)
    return seen


def separation(
    alone: Sequence[Piece],
    whole: Whole,
    values: Vector,
    there: NDArray[np.bool_],
    weights: Vector,
) -> Vector:
    """What each feature alone tells of the component of some rows, added up, (n,)."""
    found = np.empty(len(alone))
    for place, one in enumerate(alone):
        shares = log_posterior(whole.log_weights, apart(one, values, there)[0])[1]
        found[place] = weights @ divergence(shares, whole.log_weights)
    return found


def figures_of(
    name: str, features: Sequence[str], figures: Sequence[float], labelled: float | None = None
) -> PartyContribution:
    """Return the figures of a party, in the order of `Tally.figures`."""
    lost, shared, information, information_lost, moved, agreement = map(float, figures)
    return PartyContribution(
        name, tuple(features), lost, shared, information, information_lost, moved, agreement,
        labelled,
    )  # fmt: skip


def in_order(
    whole: Whole,
    parties: Sequence[PartyContribution],
    feature_names: Sequence[str],
    owner: Mapping[int, str],
    told: Vector,
) -> Contribution:
    """Return figures of parties, and of features added up (d,), in the order of what matters."""
    entropy = whole.entropy
    told = told / whole.total
    features = [
        FeatureContribution(name, owner.get(j), float(told[j]), float(told[j]) / (entropy or 1.0))
        for j, name in enumerate(feature_names)
    ]
    return Contribution(
        whole.n_samples,
        len(whole.weights),
        whole.log_likelihood / whole.total,
        entropy,
        None if whole.codes is None else adjusted_rand_index(whole.confusion),
        tuple(sorted(parties, key=lambda one: -one.information_lost)),
        tuple(sorted(features, key=lambda one: -one.information)),
    )
