"""Models at work on rows of which parties in several processes have features.

Every process has its own parties' values. A hub's term needs all features of the hub, which go to
the party that has most of them; nothing else but the terms of one sum leaves a process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread
from vpem.checks import Floats, Matrix, check_finite
from vpem.engines.engine import set_topic
from vpem.engines.placement import Placement, agree, for_each
from vpem.errors import InputError, Setting, VpemWarning
from vpem.files.results import StoredClustering
from vpem.fits.prepare import weighed_kept
from vpem.network.graph import make_graph
from vpem.network.ledger import Ledger
from vpem.network.masks import FEWEST
from vpem.network.partition import Blocks, Partition
from vpem.network.schema import Report
from vpem.sums.counted import AtServer
from vpem.sums.private import in_common_units
from vpem.sums.server import ServerSum
from vpem.terms.density import CHUNK_VALUES, Density, normalised
from vpem.terms.families.covariates import logit_coefficients, logit_errors
from vpem.terms.mixture import Mixture
from vpem.terms.rows import check_missing, rows_with_values
from vpem.terms.three_step import inference
from vpem.terms.units import Scaling

Hubs = tuple[Density | None, Floats, NDArray[np.intp]]
"""Of `SpreadRows.hubs_here`."""

Local = Callable[[slice], Floats]
"""What holders of this process have of some rows, (n, m, width)."""


class SpreadRows:
    """Rows of which parties have a model's features; every process calls all methods alike.

    X (M, n) has the columns of this process's parties, party by party. The partition says which
    columns, of those of all parties together, each party has, and ``columns`` which of these each
    of the model's features (d,) is. ``communication`` has messages and bytes of the ``sums`` of the
    terms, and of ``features`` that went to roots.

    InputError, in every process the same, if a value is not finite, or masks would hide nothing.
    """

    def __init__(
        self,
        X: Floats,
        partition: Partition,
        columns: Sequence[int],
        parties: Placement,
        feature_names: Sequence[str],
        missing: str = "refuse",
        secure_sum: bool = False,
    ) -> None:
        self.parties = parties
        self.missing = missing
        self.names = partition.names
        self.communication: Report = {"features": {"messages": 0, "bytes": 0}}
        self._n_samples = int(parties.allreduce(np.array([len(X)]), "max")[0])
        place = {int(column): feature for feature, column in enumerate(columns)}
        self.features = partition.places(columns)
        """Features of the model that each party has."""
        self._held: dict[int, Floats] = {}
        begin = 0
        for party in parties.own.tolist():
            party_columns = partition.features[party]
            used = [begin + at for at, c in enumerate(party_columns.tolist()) if c in place]
            self._held[party] = X[:, used]
            begin += len(party_columns)
        double = any(part.dtype != np.float32 for part in self._held.values())
        size = parties.allreduce(np.array([8 if double else 4]), "max")[0]
        self.dtype: np.dtype[np.floating] = np.dtype(f"f{size}")

        def check(party: int) -> None:
            names = [feature_names[feature] for feature in self.features[party]]
            looked = check_finite if missing == "refuse" else check_missing
            looked(self._held[party], names)

        for_each(parties, range(parties.n_agents), check)
        if not secure_sum:
            return
        n_holding = sum(len(features) > 0 for features in self.features)
        if n_holding < FEWEST:
            raise InputError(
                Setting("secure_sum"),
                f" needs at least {FEWEST} parties with features of the model, got {n_holding}: "
                "with two each could subtract its own term from the sum and have the other's; "
                "leave it out",
            )
        parties.masks = agree(parties, self.names)

    def __len__(self) -> int:
        return self._n_samples

    @property
    def n_blank(self) -> int:
        """Rows of which no party has a value."""
        return int((~self.seen()).sum())

    def seen(self) -> NDArray[np.bool_]:
        """Rows of which any party has a value, (M,)."""
        there = np.zeros(len(self), dtype=np.bool_)
        for part in self._held.values():
            there |= ~np.isnan(part).all(axis=1)
        return self.parties.any(there)

    # ---- mixtures ------------------------------------------------------------------------------

    def moves(self, blocks: Blocks) -> list[tuple[int, int, list[int]]]:
        """Say which party's features another needs for a block: who, to whom, which features."""
        roots = self.roots(blocks)
        return [
            (party, root, shared.tolist())
            for root, features in zip(roots, blocks.features, strict=True)
            for party, shared in self._members(features)
            if party != root
        ]

    def _members(self, features: NDArray[np.intp]) -> list[tuple[int, NDArray[np.intp]]]:
        """Parties that have some of these features, and which."""
        shared = [np.intersect1d(columns, features) for columns in self.features]
        return [(party, some) for party, some in enumerate(shared) if len(some)]

    def roots(self, blocks: Blocks) -> list[int]:
        """Party that has most features of each block, the first of several."""
        members = (self._members(features) for features in blocks.features)
        return [max(some, key=lambda one: len(one[1]))[0] if some else 0 for some in members]

    def posteriors(self, mixture: Mixture) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Responsibilities (M, K) and log-likelihoods (M,) of all rows by one mixture."""
        proba, scores = np.empty((len(self), mixture.n_terms)), np.empty(len(self))

        def store_rows(rows: slice, sums: Floats) -> None:
            proba[rows], scores[rows] = normalised(mixture, sums)

        self.sum_terms(mixture, self.hubs_here(mixture), store_rows)
        return proba, scores

    def hubs_here(self, mixture: Mixture) -> Hubs:
        """Return the hubs of a mixture whose roots live here, to which their features have come.

        Features of these hubs are counted from 0, hub by hub, in the data (M, n); the columns (n,)
        say which of the model's features they are.
        """
        blocks = mixture.blocks
        roots = self.roots(blocks)
        if self.parties.masks is not None and self.moves(blocks):
            party, root, _ = self.moves(blocks)[0]
            raise InputError(
                Setting("secure_sum"),
                f" hides the terms of sums, but {self.names[party]!r} would show "
                f"{self.names[root]!r} features of one block of the model; leave it out, or use a "
                "model of which each party has whole blocks",
            )
        numbers = [b for b, root in enumerate(roots) if self.parties.mine(root)]
        data_by_hub = self._gathered(blocks, roots)
        data = np.concatenate(
            [np.empty((len(self), 0)), *(data_by_hub[b] for b in numbers)], axis=1
        )
        part = mixture.of_hubs(numbers) if numbers else None
        return part, data, blocks.columns_of(numbers)

    def sum_terms(
        self, mixture: Mixture, hubs: Hubs, store: Callable[[slice, Floats], None]
    ) -> None:
        """Sum terms, constants included; every process takes the totals (1, m, K) of some rows."""
        part, data, _ = hubs
        k = mixture.n_terms
        width = k + mixture.n_components * mixture.n_factors
        incomplete = (bool(np.isnan(part).any()) for part in self._held.values())
        if mixture.n_factors and self.parties.any(np.array([any(incomplete)]))[0]:
            raise InputError(
                "values are missing, and for such a row a party would have to send how well it "
                "knows the factors of the model, q x q numbers per component besides the q that it "
                "sends; fill values in first, or use the model on one file"
            )

        def joined(rows: slice, sums: Floats) -> None:
            onto = np.ascontiguousarray(sums[:, :, k:])
            store(rows, mixture.joined(sums[:, :, :k], onto))

        local = whole_terms(part, data, width, self.missing)
        self._sum(self.roots(mixture.blocks), width, local, joined)

    def _gathered(self, blocks: Blocks, roots: Sequence[int]) -> dict[int, Floats]:
        """Bring the features of each block to its root: (M, d_b) of those that live here."""
        moved = [len(self) * len(features) for _, _, features in self.moves(blocks)]
        sent = {"messages": len(moved), "bytes": sum(moved) * self.dtype.itemsize}
        self.communication["features"] = sent
        features_of: dict[int, Floats] = {}
        for b, (root, features) in enumerate(zip(roots, blocks.features, strict=True)):
            if self.parties.mine(root):
                features_of[b] = np.empty((len(self), len(features)), dtype=self.dtype)
            for party, columns in self._members(features):
                values = None
                if party in self._held:
                    at = [int(np.flatnonzero(self.features[party] == j)[0]) for j in columns]
                    values = self._held[party][:, at]
                shape = (len(self), len(columns))
                with set_topic(self.parties.engine, "features"):
                    values = self.parties.send_rows(values, shape, self.dtype, party, root)
                if b in features_of:
                    assert values is not None
                    places = [int(np.flatnonzero(features == j)[0]) for j in columns]
                    features_of[b][:, places] = values
        return features_of

    # ---- clusters ------------------------------------------------------------------------------

    def nearest(
        self, centres: NDArray[np.float64], scaling: Scaling
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Nearest centre (K, d) of each row and its squared distance, in the units of ``scaling``.

        See `vpem.terms.missing.nearest`; centres are the same in every process.
        """
        parties = self.parties.own.tolist()
        columns = [self.features[party] for party in parties]
        places = [(centres[:, one] - scaling.shift[one]) / scaling.scale[one] for one in columns]

        def local(rows: slice) -> Floats:
            squares = np.empty((len(parties), rows.stop - rows.start, len(centres)))
            for out, party, features, at in zip(squares, parties, columns, places, strict=True):
                part = self._held[party][rows].astype(np.float64)
                part = (part - scaling.shift[features]) / scaling.scale[features]
                for k, centre in enumerate(at):
                    out[:, k] = np.nansum(np.square(part - centre), axis=1)
            return squares

        labels, distances = np.empty(len(self), dtype=np.int32), np.empty(len(self))

        def store_rows(rows: slice, sums: Floats) -> None:
            labels[rows], distances[rows] = sums[0].argmin(axis=1), sums[0].min(axis=1)

        self._sum(range(self.parties.n_agents), len(centres), local, store_rows)
        return labels, distances

    def _sum(
        self, roots: Sequence[int], width: int, local: Local, store: Callable[[slice, Floats], None]
    ) -> None:
        """Sum what these parties have of each row, (R_own, m, width), at a server."""
        size = max(64, CHUNK_VALUES // (max(len(roots), 1) * width))
        runs = [slice(at, min(at + size, len(self))) for at in range(0, len(self), size)]
        holders = Placement(self.parties.engine, self.parties.ranks[list(roots)])
        parties = self.parties.own.tolist()
        places = [parties.index(root) for root in roots if root in parties]

        def by_party(rows: slice) -> Floats:
            """What parties have together of their blocks: masks are those of parties."""
            parts = local(rows)
            sums = np.zeros((len(parties), *parts.shape[1:]))
            for place, part in zip(places, parts, strict=True):
                sums[place] += part
            return sums

        masked = self.parties.masks is not None
        holders, terms = (self.parties, by_party) if masked else (holders, local)
        ledger = Ledger(make_graph("star", holders.n_agents))
        total: AtServer = ServerSum(holders.n_agents).spread_over(holders, holders)
        total = total.counted_on(ledger)
        with one_blas_thread():
            if masked:
                most = np.zeros((len(parties), 1))  # the largest number of each party in any row
                for rows in runs:
                    each = np.abs(by_party(rows)).max(axis=(1, 2), initial=0.0)
                    np.maximum(most, each[:, None], out=most)
                total = in_common_units(total, most)
            total.begin("estep", len(self), width, 8)
            for rows, sums in total.flow(iter(runs), terms):
                store(rows, sums)
        sent = ledger.summary()
        self.communication["sums"] = {name: sent[name] for name in ("messages", "bytes", "rounds")}


def whole_terms(part: Density | None, X: Matrix, width: int, missing: str) -> Local:
    """Return terms of a mixture's hubs for some rows; minus half of their sum is the log-density.

    Without a part there are none, of a ``width`` of numbers per row.
    """

    def local(rows: slice) -> Floats:
        if part is None:
            return np.zeros((0, rows.stop - rows.start, width))
        terms, constant = part.hub_terms(X, rows, missing)
        constants = np.broadcast_to(constant, terms.shape[1])[:, None]
        terms[0, :, : part.n_terms] -= 2 * constants
        return terms

    return local


def responsibilities(mixture: Any, X: Any, missing: str) -> NDArray[np.float64]:
    """Responsibilities (M, K) of rows, which may be `SpreadRows`."""
    if isinstance(X, SpreadRows):
        return X.posteriors(mixture)[0]
    return np.asarray(mixture.predict_proba(X, missing=missing))


@singledispatch
def describe_score(
    stored: Any, X: Any, missing: str, sample_weight: Any = None, slopes: Any = 0.0
) -> Report:
    """Report how well a model, or clusters, describe rows, which may be `SpreadRows`.

    ``slopes`` (M,) are added to log-likelihoods, of rows whose features are transformed.

    As in a fit, rows without a value, and trimmed ones, count for nothing.
    """
    mixture = stored.mixture
    if isinstance(X, SpreadRows):
        scores, there = X.posteriors(mixture)[1], X.seen()
    else:
        scores, there = mixture.score_samples(X, missing=missing), rows_with_values(X, missing)
    n_seen, kept, trim = int(there.sum()), there & mixture.counts_rows(scores), 0.0
    trimmed = {"n_trimmed": n_seen - int(kept.sum())} if mixture.outliers == "trimmed" else {}
    if trimmed and isinstance(stored.options.get("trim"), float):
        trim = stored.options["trim"]
    total, used = weighed_kept(mixture, scores, there, sample_weight, trim, slopes)
    stated = stored.report.get("n_parameters") if "discriminant" in stored.report else None
    free = stated if type(stated) is int and stated > 0 else mixture.n_parameters
    coefficients, effects = None if mixture.n_components < 2 else logit_coefficients(mixture), {}
    if coefficients is not None and not isinstance(X, np.ndarray):
        said = "errors of covariates are left out: they need all rows in one process's memory"
        warnings.warn(VpemWarning(said), stacklevel=2)
    elif coefficients is not None:
        found = {"coefficients": coefficients}
        errors = {"coefficients": logit_errors(mixture, X, sample_weight)}
        if stored.report.get("labels_for_fit"):
            said = "errors of covariates are those without the labels that the fit was given"
            warnings.warn(VpemWarning(f"{said}; vpem.logit_errors takes these"), stacklevel=2)
        names = [stored.feature_names[j] for j in mixture.kinds.columns_of("covariate")]
        effects = {"names": names, "estimates": found, "standard_errors": errors}
        effects = {"covariates": effects | inference(found, errors)}
    return {
        "n_samples": len(X),
        "n_without_values": len(X) - n_seen,
        **trimmed,
        "n_parameters": free,
        "log_likelihood": total / used,
        "total_log_likelihood": total,
        "bic": -2 * total + free * float(np.log(used)),
        "aic": -2 * total + 2 * free,
        **effects,
    }


@describe_score.register(StoredClustering)
def _(stored: StoredClustering, X: Any, *_: Any) -> Report:
    inertia = float(np.square(stored.assign(X)[1]).sum())
    each = {"inertia": inertia, "inertia_per_sample": inertia / len(X)}
    return {"n_samples": len(X), "n_clusters": stored.n_components, **each}


FIGURES = 6
"""Of each party."""
