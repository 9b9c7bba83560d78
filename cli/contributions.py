"""Who matters: tables of what a mixture loses without each party, and of what features tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .loading import Loaded, labels_of
from .output import plural
from .requests import Request
from .tables import table

if TYPE_CHECKING:
    from vpem.checks import Labels
    from vpem.files.models import Model
    from vpem.fits.contribution import Contribution

    from .tables import Table


MOST_FEATURES = 30
"""Features that a table has; files and JSON have all."""

CAPTION = (
    "In nats: information, what its features alone tell of the component; lost, what no others "
    "tell; shared, what its features and the others' tell of each other; likelihood, lost per "
    "sample. Moved: rows of another component without it. Adjusted Rand index: agreement of the "
    "components with and without it; of those without it with labels."
)
"""Below the table of parties."""

OF_PARTIES = (
    "information_lost", "shared_information", "log_likelihood_lost", "rows_moved", "agreement"
)  # fmt: skip
"""Columns of a file that features have nothing in."""


def held_by(model: Model, request: Request, data: Loaded) -> Mapping[str, Sequence[int]] | None:
    """Return the model's features that each party brings; None: as in the fit of the model."""
    from vpem.files.models import match_features

    partition = data.source.partition
    if not request.parties.parties or request.parties.split == "rows" or partition is None:
        return None
    names = model.feature_names
    columns = match_features(model, data.source.feature_names, ordered=False)
    place = {column: j for j, column in enumerate(columns or range(len(names)))}
    return {
        name: [place[column] for column in own.tolist() if column in place]
        for name, own in zip(partition.names, partition.features, strict=True)
    }


def labels_if_any(request: Request, data: Loaded) -> Labels | None:
    """Return the labels of rows, if they are asked for or there."""
    from vpem.errors import InputError
    from vpem.fits.spread_use import SpreadRows

    named = request.rows.labels != "labels"
    if isinstance(data.X, SpreadRows):
        if named:
            raise InputError(
                "--labels are compared with the components of rows without each party, which only "
                "the root of its hub knows; leave it out, or read all parties' files in one process"
            )
        return None
    if not named and data.source.labels is None:
        return None
    return labels_of(request, data.source)


def shown(found: Contribution) -> list[Table | str]:
    """Return tables for a reader."""
    facts = [
        ("rows", str(found.n_samples)),
        ("log-likelihood", f"{found.log_likelihood:.6f} per sample"),
        ("entropy of the mixing weights", f"{found.entropy:.4f}"),
    ]
    if found.adjusted_rand_index is not None:
        facts.append(("adjusted Rand index with labels", f"{found.adjusted_rand_index:.4f}"))
    parties: list[Table | str] = [_of_parties(found), ""] if found.parties else []
    return [table(facts, "", ""), *parties, _of_features(found)]


def _of_parties(found: Contribution) -> Table:
    """Return what is lost without each party."""
    heads = ["party", "features", "information", "lost", "shared", "likelihood", "moved"]
    heads += ["agreement"] if found.adjusted_rand_index is None else ["agreement", "labels"]
    rows = []
    for one in found.parties:
        nats = (
            one.information, one.information_lost, one.shared_information, one.log_likelihood_lost
        )  # fmt: skip
        cells = [one.name, len(one.features), *(f"{value:.4f}" for value in nats)]
        cells += [f"{one.rows_moved:.1%}", f"{one.agreement:.4f}"]
        if one.adjusted_rand_index is not None:
            cells.append(f"{one.adjusted_rand_index:.4f}")
        rows.append(cells)
    return table(
        rows, *heads, title="Without each party", right=heads[1:],
        spare=("likelihood", "features", "agreement", "shared"),
        caption=CAPTION,
    )  # fmt: skip


def _of_features(found: Contribution) -> Table:
    """Return what each feature alone tells."""
    listed = found.features[:MOST_FEATURES]
    more = len(found.features) - len(listed)
    cells = [
        (place, one.name, one.party or "-", f"{one.information:.4f}", f"{one.share:.1%}")
        for place, one in enumerate(listed, 1)
    ]
    return table(
        cells, "rank", "feature", "party", "information", "share",
        title="Each feature alone", right=("rank", "information", "share"), spare=("party", "rank"),
        caption=f"and {plural(more, 'feature')} that tell less: see --json" if more else None,
    )  # fmt: skip


def columns_of(found: Contribution) -> dict[str, Any]:
    """Return columns of a file: a row for each party, then for each feature."""
    import numpy as np

    parties, features = found.parties, found.features
    information = [one.information for one in parties] + [one.information for one in features]
    names = [one.name for one in parties] + [one.name for one in features]
    owners = [one.name for one in parties] + [one.party or "" for one in features]
    columns: dict[str, Any] = {
        "kind": np.array(["party"] * len(parties) + ["feature"] * len(features), np.str_),
        "name": np.array(names, np.str_),
        "party": np.array(owners, np.str_),
        "information": np.array(information),
        "share": np.array(information) / (found.entropy or 1.0),
    }
    labelled = found.adjusted_rand_index is not None
    for name in (*OF_PARTIES, *(["adjusted_rand_index"] if labelled else [])):
        own = [getattr(one, name) for one in parties]
        columns[name] = np.ma.masked_invalid([*own, *[np.nan] * len(features)])
    return columns
