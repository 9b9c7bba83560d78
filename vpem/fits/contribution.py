"""Contributions: what a fitted mixture loses without a party's term, and which features separate.

A party's features ``a`` and those of all others ``r`` have densities of their own under the same
mixture: its marginals, ``p(r)`` and ``p(a)``, are sums over components without the other's terms.
So nothing is fitted again, and the figures of a party are means over rows of

* ``log p(x) - log p(r)``: the log-likelihood that is lost without it;
* ``log p(x) - log p(r) - log p(a)``: of that, what its features do not have by themselves: the
  pointwise mutual information of its features and those of others, free of units;
* ``KL(p(z | a) || p(z))``: what its features alone say of the component ``z``;
* ``KL(p(z | x) || p(z | r))``: what they say of it that no others do.

If rows are drawn from the mixture, their expected values are ``I(a; r)``, ``I(z; a)`` and
``I(z; a | r)`` (Cover and Thomas, Elements of Information Theory, chapter 2). A variational
posterior is judged by the mixture at its means.

Of parties in several processes a root has the sum of all terms, and those of its own hub: the sum
without a party of the hub is their difference. So nothing is sent but what any use of a model sends
(the terms of one sum), and then a few figures of each party and feature, means over all rows, which
all get.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem._core.threads import one_blas_thread
from vpem.checks import AnyArray, Doubles, Floats, Matrix, check_finite, check_weights
from vpem.engines.engine import set_topic
from vpem.errors import InputError
from vpem.files.models import Model
from vpem.fits.answer import adjusted_rand_index
from vpem.fits.spread_rows import FIGURES, SpreadRows
from vpem.network.schema import Report
from vpem.records import Shown
from vpem.terms.density import CHUNK_VALUES, Density, as_rows_of
from vpem.terms.mixture import Mixture
from vpem.terms.rows import check_missing

Piece = tuple[Density, NDArray[np.intp]]
"""A marginal of a mixture, and of which features it is, in its order."""


# ---- parts of a mixture --------------------------------------------------------------------------


def piece(mixture: Density, features: Sequence[int] | NDArray[np.intp]) -> Piece:
    """Return the marginal of some features; of a Gaussian mixture with no hubs but theirs."""
    if type(mixture) is not Mixture:
        columns = np.sort(np.asarray(features, dtype=np.intp))
        return mixture.marginal(columns.tolist()), columns
    chosen = np.zeros(mixture.n_features, dtype=np.bool_)
    chosen[np.asarray(features, dtype=np.intp)] = True
    hubs = hubs_of(mixture, chosen)
    part, columns = mixture.of_hubs(hubs), mixture.blocks.columns_of(hubs)
    inside = np.flatnonzero(chosen[columns])
    if len(inside) < len(columns):
        return part.marginal(inside.tolist()), columns[inside]
    return part, columns


def hubs_of(mixture: Density, chosen: NDArray[np.bool_]) -> list[int]:
    return [b for b, columns in enumerate(mixture.blocks.features) if chosen[columns].any()]


def apart(one: Piece, values: Doubles, there: NDArray[np.bool_]) -> tuple[Floats, Doubles | float]:
    """Terms (m, K) of a piece on rows (m, d), and what its log-density has besides, (m,)."""
    part, columns = one
    terms, constant = part.terms_of(values[:, columns], there[:, columns])
    return terms.sum(axis=0), constant


# ---- figures -------------------------------------------------------------------------------------


def log_posterior(log_weights: Doubles, terms: Floats) -> tuple[Doubles, Doubles]:
    """Log-densities (m,) of summed terms (m, K), without constants, and log-responsibilities."""
    joint = log_weights - 0.5 * terms
    top = joint.max(axis=1, keepdims=True)
    log_density = top + np.log(np.exp(joint - top).sum(axis=1, keepdims=True))
    return log_density[:, 0], joint - log_density


def divergence(p: Doubles, q: Doubles) -> Doubles:
    """Kullback-Leibler divergence (m,) of probabilities from others, by their logarithms."""
    with np.errstate(invalid="ignore"):
        each = np.where(p > -np.inf, np.exp(p) * (p - q), 0.0)
    total: Doubles = each.sum(axis=1)
    return total


Everything = tuple[Doubles, Doubles, NDArray[np.intp]]
"""Log-densities, log-responsibilities and components of some rows by all features."""


class Whole:
    """Figures of the whole mixture, added up over rows; ``codes`` (M,) are labels, from 0."""

    def __init__(self, mixture: Density, codes: NDArray[np.intp] | None = None) -> None:
        self.weights, self.codes = mixture.assembled_weights, codes
        with np.errstate(divide="ignore"):
            self.log_weights = np.log(self.weights)
        self.n_samples, self.total, self.log_likelihood = 0, 0.0, 0.0
        self.confusion = _counts(codes, len(self.weights))

    def add(
        self, terms: Floats, constant: Doubles | float, weights: Doubles, rows: slice
    ) -> Everything:
        """Add rows whose terms are summed, (m, K); return what is known of them."""
        log_density, shares = log_posterior(self.log_weights, terms)
        components = shares.argmax(axis=1)
        self.n_samples += int(np.count_nonzero(weights))
        self.total += float(weights.sum())
        self.log_likelihood += float(weights @ (log_density + constant))
        if self.codes is not None:
            np.add.at(self.confusion, (self.codes[rows], components), weights)
        return log_density, shares, components

    @property
    def entropy(self) -> float:
        """Of the mixing weights."""
        return float(-(self.weights * np.where(self.weights > 0, self.log_weights, 0.0)).sum())


class Tally:
    """Figures of one party, added up over rows.

    ``hubs`` are the mixture, or its hubs of this process, whose features the ``columns`` of the
    party are. ``with_constants``: sums that it is given have the constants of their densities.
    """

    def __init__(
        self, whole: Whole, hubs: Density, columns: Sequence[int] | NDArray[np.intp],
        with_constants: bool = False,
    ) -> None:  # fmt: skip
        self.whole, self.with_constants = whole, with_constants
        chosen = np.zeros(hubs.n_features, dtype=np.bool_)
        chosen[np.asarray(columns, dtype=np.intp)] = True
        self.hubs = hubs_of(hubs, chosen)
        self.own = piece(hubs, np.flatnonzero(chosen))
        touched = hubs.blocks.columns_of(self.hubs)
        left = touched[~chosen[touched]]
        self.beside = piece(hubs, left) if len(left) else None
        """What is left of these hubs."""
        self.rest = np.flatnonzero(~chosen)
        """All other features."""
        self.sums = np.zeros(4)
        self.moved = np.zeros((len(whole.weights),) * 2)
        self.confusion = _counts(whole.codes, len(whole.weights))

    def add(
        self,
        every: Everything,
        others: Floats,
        values: Doubles,
        there: NDArray[np.bool_],
        weights: Doubles,
        rows: slice,
    ) -> None:
        """Add rows of which the summed terms of all others are ``others`` (m, K)."""
        log_weights, codes = self.whole.log_weights, self.whole.codes
        log_density, responsibilities, most = every
        terms, constant = apart(self.own, values, there)
        alone, posterior = log_posterior(log_weights, terms)
        without, rest = log_posterior(log_weights, others)
        lost = log_density - without
        if not self.with_constants:
            lost = lost + constant
        each = (
            lost,
            lost - alone - constant,
            divergence(posterior, log_weights),
            divergence(responsibilities, rest),
        )
        self.sums += [weights @ one for one in each]
        components = rest.argmax(axis=1)
        np.add.at(self.moved, (most, components), weights)
        if codes is not None:
            np.add.at(self.confusion, (codes[rows], components), weights)

    def left(self, others: Floats, values: Doubles, there: NDArray[np.bool_]) -> Floats:
        """Sum of all others' terms, (m, K), from that of hubs that the party is not in."""
        if self.beside is None:
            return others
        terms, constant = apart(self.beside, values, there)
        return others + (with_constant(terms, constant) if self.with_constants else terms)

    def figures(self) -> list[float]:
        """Figures of `PartyContribution`, the last where there are labels."""
        weight = self.moved.sum()
        moved = float(1 - np.trace(self.moved) / weight)
        labelled = [] if self.whole.codes is None else [adjusted_rand_index(self.confusion)]
        means = (self.sums / weight).tolist()
        return [*means, moved, adjusted_rand_index(self.moved), *labelled]


def with_constant(terms: Floats, constant: Doubles | float) -> Floats:
    """Return terms (m, K) minus half of which is the whole log-density."""
    whole: Floats = terms - 2 * np.broadcast_to(constant, len(terms))[:, None]
    return whole


def _counts(codes: NDArray[np.intp] | None, n_components: int) -> Doubles:
    return np.zeros((0 if codes is None else int(codes.max(initial=0)) + 1, n_components))


def without_each(
    mixture: Density,
    terms: Floats,
    parties: Sequence[Tally],
    values: Doubles,
    there: NDArray[np.bool_],
) -> Iterator[Floats]:
    """Yield sums (m, K) without each party's features, of which none is got by subtraction.

    Terms are of the mixture's hubs (B, m, K), or one of all hubs together where these are no sum
    (of hubs that share factors); then the others' is that of their marginal.
    """
    if len(terms) != mixture.blocks.n_blocks:
        for party in parties:
            others: Floats = np.zeros(terms.shape[1:])
            if len(party.rest):
                others = apart(piece(mixture, party.rest), values, there)[0]
            yield others
        return
    before, after = np.zeros((2, len(terms) + 1, *terms.shape[1:]))
    np.cumsum(terms, axis=0, out=before[1:])
    np.cumsum(terms[::-1], axis=0, out=after[1:])
    for party in parties:
        first, last = party.hubs[0], party.hubs[-1]
        total: Floats = before[first] + after[len(terms) - 1 - last]
        for b in range(first + 1, last):
            if b not in party.hubs:
                total += terms[b]
        yield party.left(total, values, there)


@dataclass(frozen=True)
class PartyContribution:
    """What a mixture loses without one party's features; see `vpem.fits.contribution`.

    In nats: ``log_likelihood_lost``, per sample, less that of the mixture of all other features,
    depends on units and on how many features there are; ``shared_information`` is the part of it
    that the party's own marginal mixture does not have, mutual information of its features and
    those of others, and can be compared between parties; ``information`` is what its features alone
    say of the component, ``information_lost`` what no others' features say of it, the expected
    divergence of responsibilities from those without the party.

    ``rows_moved`` is the share of the rows whose most responsible component is another without it,
    ``agreement`` the adjusted Rand index of the components with and without it (1 if nothing
    changes), and ``adjusted_rand_index`` that of those without it and labels, if there are any.
    """

    name: str
    features: tuple[str, ...]
    log_likelihood_lost: float
    shared_information: float
    information: float
    information_lost: float
    rows_moved: float
    agreement: float
    adjusted_rand_index: float | None = None


OF_PARTIES = (
    "information_lost", "shared_information", "log_likelihood_lost", "rows_moved", "agreement",
    "adjusted_rand_index",
)  # fmt: skip
"""Figures that features do not have; the last where rows have labels."""


@dataclass(frozen=True)
class FeatureContribution:
    """How well the feature of a party alone separates components.

    ``information`` is what it says of the component, in nats, and ``share`` the part that this is
    of the entropy of the mixing weights, which is all that there is to be known.
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

    def columns(self) -> dict[str, AnyArray]:
        """Return columns of a table: a row for each party, then for each feature."""
        parties, features = self.parties, self.features
        names = [one.name for one in parties]
        owners = [*names, *(one.party or "" for one in features)]
        names += [one.name for one in features]
        each = [one.information for one in parties] + [one.information for one in features]
        information = np.array(each)
        columns: dict[str, AnyArray] = {
            "kind": np.repeat(["party", "feature"], [self.n_parties, self.n_features]),
            "name": np.array(names, np.str_),
            "party": np.array(owners, np.str_),
            "information": information,
            "share": information / (self.entropy or 1.0),
        }
        for name in OF_PARTIES[: None if self.adjusted_rand_index is not None else -1]:
            values = [*(getattr(one, name) for one in parties), *[np.nan] * len(features)]
            columns[name] = np.ma.masked_invalid(values)
        return columns


def contribution(
    model: Model,
    X: Matrix,
    *,
    parties: Mapping[str, Sequence[int] | NDArray[np.intp]] | None = None,
    labels: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    missing: str = "refuse",
) -> Contribution:
    """Say what a mixture loses without each party's features, without fitting again.

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
    if model.powers is not None:
        raise InputError(
            "the model is one of features after a power transform, whose contributions the "
            "command tells: vpem model contribution"
        )
    mixture = model.mixture
    mixture.refuse_outliers("a contribution tells of which component a row is")
    if mixture.is_proper:  # a posterior
        mixture = mixture.plain
    X = as_rows_of(mixture, X, missing)
    (check_finite if missing == "refuse" else check_missing)(X, model.feature_names)
    weights = None if sample_weight is None else check_weights(sample_weight, len(X), some=True)
    codes = None if labels is None else _codes(labels, len(X))
    columns_by_party = (
        parties_of(model) if parties is None else _checked(parties, mixture.n_features)
    )
    whole = Whole(mixture, codes)
    tallies = [Tally(whole, mixture, columns) for columns in columns_by_party.values()]
    alone = [piece(mixture, [j]) for j in range(mixture.n_features)]
    information = np.zeros(mixture.n_features)
    with one_blas_thread():
        for rows, values, there in _chunks(mixture, X):
            row_weights = _weighed(there, weights, rows)
            terms, constant = mixture.terms_of(values, there)
            every = whole.add(terms.sum(axis=0), constant, row_weights, rows)
            each = without_each(mixture, terms, tallies, values, there)
            for tally, others in zip(tallies, each, strict=True):
                tally.add(every, others, values, there, row_weights, rows)
            information += separation(alone, whole, values, there, row_weights)
    if whole.total == 0:
        raise InputError("no row has a value and a weight: there is nothing to judge by")
    names = model.feature_names
    judged = [
        PartyContribution(name, tuple(names[j] for j in columns), *tally.figures())
        for (name, columns), tally in zip(columns_by_party.items(), tallies, strict=True)
    ]
    owner = {int(j): name for name, columns in columns_by_party.items() for j in columns}
    return in_order(whole, judged, names, owner, information)


def parties_of(model: Model) -> dict[str, NDArray[np.intp]]:
    """Return the features of each agent of a fit, by its name; none where workers held rows."""
    names, owners = model.report.get("agent_names"), model.report.get("partition")
    fitted = model.report.get("feature_names") or model.feature_names
    if not isinstance(owners, list) or not isinstance(names, list):
        return {}
    # A model may have fewer features than its fit: those that the data have.
    owner = dict(zip(fitted, owners, strict=False))
    columns_by_party: dict[str, list[int]] = {}
    for column, feature in enumerate(model.feature_names):
        agent = owner.get(feature)
        if isinstance(agent, int) and 0 <= agent < len(names):
            columns_by_party.setdefault(str(names[agent]), []).append(column)
    return {name: np.array(columns, dtype=np.intp) for name, columns in columns_by_party.items()}


def _checked(
    parties: Mapping[str, Sequence[int] | NDArray[np.intp]], n_features: int
) -> dict[str, NDArray[np.intp]]:
    """Return features of parties that have some, once it is clear that they are different ones."""
    columns_by_party = {
        str(name): np.asarray(columns, dtype=np.intp)
        for name, columns in parties.items()
        if len(columns)
    }
    every = np.concatenate([np.empty(0, dtype=np.intp), *columns_by_party.values()])
    if len(np.unique(every)) < len(every) or np.any((every < 0) | (every >= n_features)):
        raise InputError(
            f"features of parties must be different numbers from 0 to {n_features - 1}"
        )
    return columns_by_party


def _codes(labels: ArrayLike, n_samples: int) -> NDArray[np.intp]:
    truth = np.asarray(labels)
    if truth.shape != (n_samples,):
        raise InputError(f"{n_samples} rows need as many labels, got {len(np.atleast_1d(truth))}")
    return np.unique(truth, return_inverse=True)[1].astype(np.intp)


def _chunks(mixture: Density, X: Matrix) -> Iterator[tuple[slice, Doubles, NDArray[np.bool_]]]:
    """Yield runs of rows, their values, and which of these are there."""
    size = max(64, CHUNK_VALUES // (4 * max(mixture.blocks.n_blocks, 1) * mixture.n_components))
    for start in range(0, len(X), size):
        rows = slice(start, min(start + size, len(X)))
        values = np.asarray(X[rows], dtype=np.float64)
        yield rows, values, np.isfinite(values)


def _weighed(there: NDArray[np.bool_], weights: Floats | None, rows: slice) -> Doubles:
    """Return weights (m,) of rows, 0 of those without a value."""
    seen: Doubles = np.array(there.any(axis=1), dtype=np.float64)
    if weights is not None:
        np.multiply(seen, weights[rows], out=seen)
    return seen


def separation(
    alone: Sequence[Piece],
    whole: Whole,
    values: Doubles,
    there: NDArray[np.bool_],
    weights: Doubles,
) -> Doubles:
    """What each feature alone says of the component of some rows, added up, (n,)."""
    totals = np.empty(len(alone))
    for place, one in enumerate(alone):
        shares = log_posterior(whole.log_weights, apart(one, values, there)[0])[1]
        totals[place] = weights @ divergence(shares, whole.log_weights)
    return totals


def in_order(
    whole: Whole,
    parties: Sequence[PartyContribution],
    feature_names: Sequence[str],
    owner: Mapping[int, str],
    information: Doubles,
) -> Contribution:
    """Return figures of parties, and of features added up (d,), in the order of what matters."""
    entropy = whole.entropy
    each = (information / whole.total).tolist()
    features = [
        FeatureContribution(name, owner.get(j), each[j], each[j] / (entropy or 1.0))
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


def spread_contribution(
    rows_of_all: SpreadRows, mixture: Mixture, feature_names: Sequence[str]
) -> Contribution:
    """Say what a mixture loses without each party's features; all processes call it alike.

    All have the same mixture, and each its parties' features of the rows to judge by. Messages are
    counted in ``rows_of_all.communication``. InputError, everywhere the same, if a party has
    features in hubs of several roots, or the model has factors.
    """
    mixture.refuse_outliers("a contribution tells of which component a row is")
    if mixture.is_proper:  # a posterior
        mixture = mixture.plain
    if mixture.n_factors:
        raise InputError(
            "with factors that hubs share, the density without a party is not a sum of the others' "
            "terms; use the model where one process may read the data of all"
        )
    root_of = np.zeros(mixture.n_features, dtype=np.intp)
    roots = rows_of_all.roots(mixture.blocks)
    for features, root in zip(mixture.blocks.features, roots, strict=True):
        root_of[features] = root
    for party, features in enumerate(rows_of_all.features):
        if len(np.unique(root_of[features])) > 1:
            raise InputError(
                f"{rows_of_all.names[party]!r} has features in hubs of several roots, and none of "
                "them knows all of its terms; use a model with each party in one hub, or use it "
                "where one process may read the data of all"
            )
    hubs = rows_of_all.hubs_here(mixture)
    part, data, columns = hubs
    whole, seen = Whole(mixture), rows_of_all.seen().astype(np.float64)
    # Parties and features of the hubs whose roots live here, and all features of a party's hubs.
    tallies: dict[int, tuple[Tally, Piece]] = {}
    alone: list[Piece] = []
    information = np.zeros(len(columns))
    if part is not None:
        place = {feature: at for at, feature in enumerate(columns.tolist())}
        alone = [piece(part, [at]) for at in range(len(columns))]
        for party, party_columns in enumerate(rows_of_all.features):
            if len(party_columns) and int(party_columns[0]) in place:
                tally = Tally(whole, part, [place[j] for j in party_columns.tolist()], True)
                tallies[party] = tally, piece(part, part.blocks.columns_of(tally.hubs))

    def add_rows(rows: slice, sums: Floats) -> None:
        """Add rows of which all terms, with constants, are summed (m, K)."""
        every = whole.add(sums[0], 0.0, seen[rows], rows)
        if part is None:
            return
        values = np.asarray(data[rows], dtype=np.float64)
        there = ~np.isnan(values)
        for tally, terms in tallies.values():
            others: Floats = sums[0] - with_constant(*apart(terms, values, there))
            others = tally.left(others, values, there)
            tally.add(every, others, values, there, seen[rows], rows)
        information[:] += separation(alone, whole, values, there, seen[rows])

    rows_of_all.sum_terms(mixture, hubs, add_rows)
    if whole.total == 0:
        raise InputError("no row has a value: there is nothing to judge by")
    engine = rows_of_all.parties.engine
    figures = [tally.figures() for tally, _ in tallies.values()]
    sent: dict[str, AnyArray] = {
        "parties": np.array(list(tallies), dtype=np.intp),
        "figures": np.array(figures).reshape(len(figures), FIGURES),
        "features": columns,
        "separation": information,
    }
    with set_topic(engine, "result"):
        every = engine.allgather(sent)
    n_sent = sum(one["figures"].size + one["separation"].size for one in every)
    n_roots = len(set(rows_of_all.roots(mixture.blocks)))
    rows_of_all.communication["figures"] = {"messages": n_roots, "bytes": 8 * n_sent}
    information = np.zeros(len(feature_names))
    owner: dict[int, str] = {}
    for party, features in enumerate(rows_of_all.features):
        owner |= dict.fromkeys(features.tolist(), rows_of_all.names[party])
    judged = []
    for one in every:
        information[one["features"]] = one["separation"]
        for party, numbers in zip(one["parties"].tolist(), one["figures"].tolist(), strict=True):
            named = tuple(feature_names[j] for j in rows_of_all.features[party])
            judged.append(PartyContribution(rows_of_all.names[party], named, *numbers))
    return in_order(whole, judged, feature_names, owner, information)
