"""Parties in several processes: each opens its own parties' files, and keeps their rows alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vpem.files.datasets import Dataset
from vpem.files.hdf5 import check_memory
from vpem.network.team import Team, for_each
from vpem.parties.alignment import Alignment
from vpem.parties.manifest import Party
from vpem.parties.opening import align_parties, joined_names, open_parties

__all__ = ["Share", "share_parties"]


@dataclass
class Share(Dataset):
    """What one process has of the parties' data: all names, and the columns of its own parties.

    ``X`` has the columns of the parties held here alone, party by party; ``feature_names`` and
    ``partition`` are those of all.
    """

    def __post_init__(self) -> None:
        """Take everything as it is."""

    @property
    def n_features(self) -> int:
        """Number of features of all parties."""
        return len(self.feature_names)


def share_parties(
    parties: Sequence[Party],
    team: Team,
    level: str = "none",
    *,
    key: str | os.PathLike[str] | None = None,
    keep_missing: bool = False,
    keep_empty: bool = False,
) -> tuple[Share, Alignment]:
    """Align parties that are held by several processes, each of which reads its own files only.

    Every process calls it with the same arguments; see `vpem.parties.opening.join_parties`.

    Parameters
    ----------
    parties : sequence of Party
        Who they are.
    team : Team
        Who holds which.
    level, key, keep_missing
        As for `vpem.parties.opening.align_parties`.
    keep_empty : bool
        As for `vpem.parties.opening.open_parties`.

    Returns
    -------
    share : Share
        Without ids and labels, which no fit needs.
    alignment : Alignment
        What became of whose rows.

    Raises
    ------
    VpemError
        In every process the same, as `open_parties`, `align_parties` and `joined_names`.
    """
    held = open_parties(parties, team, keep_empty=keep_empty)
    try:
        found = align_parties(parties, held, level, key=key, keep_missing=keep_missing, team=team)
        names, partition = joined_names(parties, held, team)
        ends = np.cumsum([0, *(len(holding.feature_names) for holding in held.values())])
        first = dict(zip(held, ends[:-1].tolist(), strict=True))
        dtypes = [holding.dtype for holding in held.values()]
        dtype = np.result_type(*dtypes) if dtypes else np.dtype(np.float32)
        size = found.n_samples * int(ends[-1]) * dtype.itemsize

        def check(party: int) -> None:
            check_memory(size, f"the rows of party {parties[party].name!r}")

        for_each(team, range(len(parties)), check)
        X = np.empty((found.n_samples, int(ends[-1])), dtype=dtype)

        def fill(party: int) -> None:
            holding = held[party]
            own = slice(first[party], first[party] + len(holding.feature_names))
            holding.fill(X[:, own], found.rows[party])

        for_each(team, range(len(parties)), fill)
    finally:
        for holding in held.values():
            holding.close()
    source = ", ".join(str(party.path) for party in parties)
    return Share(X, names, partition=partition, source=source), found
