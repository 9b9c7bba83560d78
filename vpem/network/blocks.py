"""Which features form which covariance block, and who holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError

if TYPE_CHECKING:
    from vpem.network.hubs import Hub


Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True)
class Blocks:
    """The covariance blocks of a mixture: one a hub, held by the hub's root.

    Inside the library, features stand in the order of the blocks (`order`), so that a block is a
    run of neighbouring columns; at every door they stand in the user's order.

    Parameters
    ----------
    features : tuple of ndarray of shape (d_b,)
        Columns of each block, in the user's numbering, in the order of the block.
    roots : tuple of int
        Agent that holds each block.
    agents : tuple of tuple of int
        Agents of each hub.
    """

    features: tuple[NDArray[np.intp], ...]
    roots: tuple[int, ...]
    agents: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        columns = np.sort(self.order)
        if not np.array_equal(columns, np.arange(len(columns))):
            raise InputError("the blocks must hold every feature exactly once")

    @classmethod
    def one(cls, n_features: int) -> Blocks:
        """Return the single block of a centralized mixture."""
        return cls((np.arange(n_features, dtype=np.intp),), (0,), ((0,),))

    @classmethod
    def from_hubs(cls, hubs: Sequence[Hub], holdings: Sequence[NDArray[np.intp]]) -> Blocks:
        """Join the features of each hub's agents, by agent, then by column.

        Parameters
        ----------
        hubs : sequence of Hub
            ``root`` and ``agents`` of each.
        holdings : sequence of ndarray
            Columns that each agent holds.
        """
        features = tuple(_joined([holdings[agent] for agent in hub.agents]) for hub in hubs)
        roots = tuple(int(hub.root) for hub in hubs)
        return cls(features, roots, tuple(tuple(map(int, hub.agents)) for hub in hubs))

    @property
    def n_blocks(self) -> int:
        """Number of blocks, B."""
        return len(self.features)

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """User's column of each feature in block order, shape (d,)."""
        if not self.features:
            return np.empty(0, dtype=np.intp)
        return np.concatenate(self.features).astype(np.intp)

    @property
    def n_features(self) -> int:
        """Number of features, d."""
        return len(self.order)

    @cached_property
    def position(self) -> NDArray[np.intp]:
        """Place in block order of each of the user's columns, shape (d,)."""
        place = np.empty_like(self.order)
        place[self.order] = np.arange(len(self.order))
        return place

    @cached_property
    def in_order(self) -> bool:
        """Whether block order is the user's order."""
        return bool(np.array_equal(self.order, np.arange(len(self.order))))

    @cached_property
    def widths(self) -> NDArray[np.intp]:
        """Features in each block, ``d_b``, shape (B,)."""
        return np.array([len(columns) for columns in self.features], dtype=np.intp)

    @cached_property
    def n_entries(self) -> int:
        """Entries of all blocks of one covariance, ``sum d_b^2``."""
        return int((self.widths.astype(np.int64) ** 2).sum())

    @cached_property
    def offsets(self) -> NDArray[np.intp]:
        """First feature of each block in block order, and the end; shape (B + 1,)."""
        return np.concatenate([[0], np.cumsum(self.widths)]).astype(np.intp)

    @cached_property
    def block_of(self) -> NDArray[np.intp]:
        """Block of each feature in block order, shape (d,)."""
        return np.repeat(np.arange(self.n_blocks, dtype=np.intp), self.widths)

    @cached_property
    def bands(self) -> list[tuple[slice, slice, int]]:
        """Neighbouring blocks of one width: their columns, which they are, and the width."""
        found = []
        edges = np.flatnonzero(np.diff(self.widths)) + 1
        for group in np.split(np.arange(self.n_blocks), edges):
            if len(group) and self.widths[group[0]]:
                first, end = int(group[0]), int(group[-1]) + 1
                columns = slice(int(self.offsets[first]), int(self.offsets[end]))
                found.append((columns, slice(first, end), int(self.widths[first])))
        return found

    def arrange(self, X: NDArray[np.generic], dtype: np.dtype[Kind] | type[Kind]) -> NDArray[Kind]:
        """Return the columns of ``X`` in block order as a C-contiguous array of ``dtype``."""
        columns = X if self.in_order else X[:, self.order]
        return np.require(columns, dtype=dtype, requirements=["C", "A"])

    def of_feature(self, per_root: NDArray[Kind]) -> NDArray[Kind]:
        """Expand what each root holds, (R, K), to what each feature sees, (K, d).

        ``R`` is 1 where all roots share one estimate, else B.
        """
        if len(per_root) == 1:
            return np.repeat(per_root, self.n_features, axis=0).T
        expanded: NDArray[Kind] = per_root[self.block_of].T
        return expanded


def _joined(holdings: list[NDArray[np.intp]]) -> NDArray[np.intp]:
    """Columns of some agents, by agent, then by column."""
    if len(holdings) == 1 and len(holdings[0]) <= 1:
        return holdings[0].astype(np.intp, copy=False)
    return np.concatenate([np.empty(0, dtype=np.intp), *map(np.sort, holdings)])
