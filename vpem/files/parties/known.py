"""Labels for a fit that one of the parties has."""

from __future__ import annotations

from collections.abc import Mapping

from vpem.errors import InputError, Setting
from vpem.files.parties.alignment import Alignment
from vpem.files.parties.opening import Holding
from vpem.idle import OF_SUMS_OVER_HUBS
from vpem.network.schema import Report


def check_labels(held: Mapping[int, Holding], party: int, name: str) -> None:
    """Raise InputError where another party of this process has labels for the fit too."""
    labelled = [one for one, holding in held.items() if holding.labels_for_fit is not None]
    if party in labelled[1:]:
        raise InputError(
            f"party {name!r} has ", Setting("labels_for_fit"), ", but they are added to the term "
            "of one hub, and another party has some; leave out all but those of one",
        )  # fmt: skip


def labels_of_rows(held: Mapping[int, Holding], found: Alignment) -> Report:
    """Return what a fit is told of the joined rows, and by whom, where a party here has labels."""
    for party, holding in held.items():
        if holding.labels_for_fit is not None:
            values = holding.labels_for_fit.at(found.rows[party])
            return {"labels_for_fit": values, "labelled_by": party}
    return {}


def refuse_labels_of_rows(holding: Holding, name: str) -> None:
    """Raise InputError where a party that holds rows has labels for the fit."""
    if holding.labels_for_fit is not None:
        raise InputError(f"party {name!r}: ", Setting("labels_for_fit"), *OF_SUMS_OVER_HUBS[1])
