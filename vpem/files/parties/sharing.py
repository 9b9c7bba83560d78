"""Parties in several processes: each opens its own parties' files, and keeps their rows alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_memory
from vpem.engines.team import Team, for_each
from vpem.files.datasets import Dataset
from vpem.files.parties.alignment import Alignment
from vpem.files.parties.manifest import Party
from vpem.files.parties.opening import (
    Holding,
    align_parties,
    check_same_features,
    joined_names,
    open_parties,
)
from vpem.network.holdings import Workers

__all__ = ["RowShare", "Share", "share_parties", "share_rows"]


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

    Every process calls it with the same arguments; see `vpem.files.parties.opening.join_parties`.

    Parameters
    ----------
    parties : sequence of Party
        Who they are.
    team : Team
        Who holds which.
    level, key, keep_missing
        As for `vpem.files.parties.opening.align_parties`.
    keep_empty : bool
        As for `vpem.files.parties.opening.open_parties`.

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


@dataclass
class RowShare(Dataset):
    """What one process has of parties that hold different rows of the same features.

    ``X`` has the rows of the parties held here alone, party by party; ``workers`` has those of all.
    """

    def __post_init__(self) -> None:
        """Take everything as it is."""

    @property
    def n_samples(self) -> int:
        """Number of rows of all parties."""
        assert self.workers is not None
        return self.workers.n_samples


def share_rows(parties: Sequence[Party], team: Team, *, keep_empty: bool = False) -> RowShare:
    """Number the rows of parties that are held by several processes, party by party.

    Every process calls it with the same arguments, and reads its own files only; see
    `vpem.files.parties.opening.stack_parties`. All learn every party's names of features and
    number of rows.

    Parameters
    ----------
    parties : sequence of Party
        Who they are. Features are matched by name, in the order of the first party.
    team : Team
        Who holds which.
    keep_empty : bool
        As for `vpem.files.parties.opening.open_parties`.

    Returns
    -------
    RowShare
        Without ids and labels. Its workers say which party holds which rows.

    Raises
    ------
    VpemError
        In every process the same, if a file cannot be read or parties have different features.
    """
    held = open_parties(parties, team, keep_empty=keep_empty)
    try:
        told = team.collect(
            {
                party: [list(holding.feature_names), holding.n_samples, holding.dtype.name]
                for party, holding in held.items()
            },
            None,
        )
        assert told is not None
        every = [told[party] for party in range(len(parties))]
        check_same_features(parties, [names for names, _, _ in every])
        names = tuple(every[0][0])
        dtype = np.result_type(*(np.dtype(kind) for _, _, kind in every))
        own = sum(holding.n_samples for holding in held.values())

        def read(party: int) -> NDArray[Any]:
            size = own * len(names) * dtype.itemsize
            check_memory(size, f"the rows of party {parties[party].name!r}")
            return _arranged_rows(held[party], names, dtype)

        parts = for_each(team, range(len(parties)), read)
    finally:
        for holding in held.values():
            holding.close()
    nothing = np.empty((0, len(names)), dtype=dtype)
    counts = [int(count) for _, count, _ in every]
    rows = np.split(np.arange(sum(counts), dtype=np.intp), np.cumsum(counts)[:-1])
    return RowShare(
        np.ascontiguousarray(np.concatenate([nothing, *parts.values()])),
        names,
        workers=Workers(tuple(rows), tuple(party.name for party in parties)),
        source=", ".join(str(party.path) for party in parties),
    )


def _arranged_rows(holding: Holding, names: Sequence[str], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Read the rows of a party, features in this order."""
    own = np.empty((holding.n_samples, len(names)), dtype=dtype)
    holding.fill(own)
    return own[:, [holding.feature_names.index(name) for name in names]]
