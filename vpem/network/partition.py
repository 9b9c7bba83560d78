"""Who holds what: agents columns, the features; workers rows; roots of hubs covariance blocks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import check_int, check_memory
from vpem.errors import InputError, VpemWarning, shorten
from vpem.records import Shown

if TYPE_CHECKING:
    from vpem.network.hubs import Hub

Indices = NDArray[np.intp]
Names = Sequence[str] | None
Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Holdings(Shown):
    """A division of columns or rows among holders, with increasing numbers of what each has."""

    parts: tuple[Indices, ...]
    names: tuple[str, ...]

    total: int = field(init=False)
    """Columns, or rows, of all holders together."""
    counts: Indices = field(init=False)
    """How many each holder has."""

    holder: ClassVar[str]
    held: ClassVar[str]

    def __post_init__(self) -> None:
        holder, names = self.holder, self.names
        counts = list(map(len, self.parts))
        vars(self).update(total=sum(counts), counts=np.array(counts, dtype=np.intp))
        if len(names) != len(self.parts):
            raise InputError(
                f"there are {len(self.parts)} {holder}s but {len(names)} {holder} names"
            )
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"two {holder}s are called {twice!r}; {holder} names must differ")
        if not self.total:
            one = f"there must be at least one {self.held}"
            raise InputError(f"the {holder}s hold no {self.held}s; {one}")
        if not all((part[1:] > part[:-1]).all() for part in self.parts):
            raise InputError(f"the {self.held}s of each {self.holder} must be increasing")
        if not (self.in_order or np.array_equal(np.sort(self.order), np.arange(self.total))):
            raise InputError(f"each {self.held} must be held by exactly one {self.holder}")

    @property
    def order(self) -> Indices:
        """Numbers of all that is held, holder by holder."""
        return np.concatenate(self.parts)

    @property
    def in_order(self) -> bool:
        """Whether `order` is 0, 1, ...: each holds a run, and they follow each other."""
        ends = zip(filter(len, self.parts), np.cumsum([*filter(None, self.counts)]), strict=True)
        return all((part[[0, -1]] == (end - len(part), end - 1)).all() for part, end in ends)

    @property
    def holder_of(self) -> Indices:
        """Number of the holder of each column, or row."""
        out = np.empty(self.total, dtype=np.intp)
        for holder, part in enumerate(self.parts):
            out[part] = holder
        return out


class Partition(Holdings, facts="{n_agents:agent}, {n_features:feature}"):
    """A division of the features among the agents; every feature is held exactly once.

    Parameters
    ----------
    features : tuple of ndarray of shape (d_n,)
        ``features[n]`` are the column numbers that agent ``n`` holds, increasing. An agent may
        hold none: it then only relays.
    names : tuple of str
        One name an agent, all different.

    Raises
    ------
    InputError
        If a feature is missing, repeated or out of order, or the names do not fit the agents.
    """

    holder, held = "agent", "feature"

    features: tuple[Indices, ...]
    """Features of each agent, arrays of shape (d_n,)."""
    n_agents: int
    """Number of agents."""
    n_features: int
    """Number of features of all agents together."""

    def __init__(self, features: tuple[Indices, ...], names: tuple[str, ...]) -> None:
        if not all(isinstance(name, str) and name for name in names):
            raise InputError("agent names must be non-empty strings")
        super().__init__(features, names)
        vars(self).update(features=features, n_agents=len(features), n_features=self.total)

    agent_of = Holdings.holder_of
    """Number of the agent that holds each feature, shape (n_features,)."""

    def places(self, columns: Sequence[int]) -> list[Indices]:
        """Return which of these columns, by their places among them, each agent has."""
        place = {int(column): at for at, column in enumerate(columns)}
        return [
            np.array([place[one] for one in own.tolist() if one in place], dtype=np.intp)
            for own in self.features
        ]


class Workers(Holdings, facts="{n_workers:worker}, {n_samples:row}"):
    """A division of the rows among workers; every row is held exactly once.

    Parameters
    ----------
    rows : tuple of ndarray of shape (m_i,)
        ``rows[i]`` are the numbers of the rows that worker ``i`` holds, increasing. A worker may
        hold none.
    names : tuple of str
        One name a worker, all different.

    Raises
    ------
    InputError
        If a row is missing, repeated or out of order, or the names do not fit the workers.
    """

    holder, held = "worker", "row"

    rows: tuple[Indices, ...]
    """Rows of each worker, arrays of shape (m_i,)."""
    n_workers: int
    """Number of workers, N."""
    n_samples: int
    """Number of rows of all workers together, M."""

    def __init__(self, rows: tuple[Indices, ...], names: tuple[str, ...]) -> None:
        super().__init__(rows, names)
        vars(self).update(rows=rows, n_workers=len(rows), n_samples=self.total)

    @property
    def runs(self) -> list[slice]:
        """Where each worker's rows are in `order`."""
        return [slice(*pair) for pair in pairwise([0, *np.cumsum(self.counts).tolist()])]

    worker_of = Holdings.holder_of
    """Number of the worker that holds each row, shape (M,)."""

    def of_rows(self, kept: Indices) -> Workers:
        """Return the same workers with those of their rows that are kept, renumbered."""
        return Workers(_grouped(self.worker_of[kept], self.n_workers), self.names)


def contiguous(n_features: int, n_agents: int, names: Names = None) -> Partition:
    """Give each agent a run of neighbouring columns, as nearly equal in length as possible.

    The first ``n_features % n_agents`` agents hold one more than the others. InputError if there
    are no agents, or more of them than features.
    """
    check_memory(16 * check_int("n_features", n_features, least=1), f"{n_features} features")
    return Partition(*_dealt(Partition, np.arange(n_features, dtype=np.intp), n_agents, names))


def evenly(n_samples: int, n_workers: int, names: Names = None) -> Workers:
    """Give each worker a run of neighbouring rows, as `contiguous` does of columns."""
    return Workers(*_dealt(Workers, np.arange(n_samples, dtype=np.intp), n_workers, names))


def by_label(labels: ArrayLike, n_workers: int, names: Names = None) -> Workers:
    """Sort rows by their labels (M,) before they are dealt out: workers unlike each other."""
    order = np.argsort(np.asarray(labels), kind="stable").astype(np.intp)
    parts, named = _dealt(Workers, order, n_workers, names)
    return Workers(tuple(np.sort(part) for part in parts), named)


def from_agent_of_feature(agent_of: ArrayLike, names: Names = None) -> Partition:
    """Make a partition from the agent, from 0, of each feature (n_features,).

    A named agent without features is a relay (warned about); without names no number is skipped.
    """
    agents = np.asarray(agent_of)
    if agents.ndim != 1 or agents.size == 0 or agents.dtype.kind not in "iu":
        raise InputError(
            "a partition must be a list of agent numbers (integers), one a feature, got an array "
            f"of {agents.dtype} with shape {agents.shape}"
        )
    if agents[bad := int(np.argmin(agents))] < 0:
        raise InputError(f"agents are numbered from 0, but feature {bad} has agent {agents[bad]}")
    largest = int(agents.max())
    if names is not None and largest >= len(names):
        raise InputError(
            f"feature {int(np.argmax(agents))} is given to agent {largest}, but only {len(names)} "
            "agents have names"
        )
    used = np.unique(agents)
    if names is None and used.size <= largest:
        skipped = int(np.flatnonzero(used != np.arange(used.size))[0])
        raise InputError(
            f"agent {skipped} holds no feature although agent {largest} does; number the agents "
            "without gaps, or name them all if some are meant to be relays"
        )
    n_agents = largest + 1 if names is None else len(names)
    return _with_relays(_grouped(agents.astype(np.intp), n_agents), names)


def from_worker_of_row(worker_of: ArrayLike, names: Names = None) -> Workers:
    """Make a division of the rows from the worker (M,) of each: a name, or a number from 0.

    Numbers that do not occur are workers without rows; names are numbered in their order.
    """
    values = np.asarray(worker_of)
    if values.ndim != 1 or not values.size:
        raise InputError(f"the workers must be a list, one a row, got shape {values.shape}")
    if values.dtype.kind in "OUS" and names is None:
        workers, numbers = np.unique(values.astype(str), return_inverse=True)
        return Workers(_grouped(numbers, len(workers)), tuple(workers.tolist()))
    if values.dtype.kind not in "iu":
        raise InputError(f"workers must be numbers from 0, or names, got {values.dtype}")
    if values[bad := int(np.argmin(values))] < 0:
        raise InputError(f"workers are numbered from 0, but row {bad} has worker {values[bad]}")
    most = len(values if names is None else names)
    if values[bad := int(np.argmax(values))] >= most:
        raise InputError(
            f"row {bad} is given to worker {values[bad]}, but there are {most} "
            f"{'rows' if names is None else 'names'}; number the workers from 0"
        )
    n_workers = int(values.max()) + 1 if names is None else len(names)
    return Workers(_grouped(values, n_workers), _named(Workers, names, n_workers))


def from_lists(
    lists: Iterable[ArrayLike], n_features: int, names: Names = None, feature_names: Names = None
) -> Partition:
    """Make a partition from lists of feature numbers, which it sorts; an empty one is a relay."""
    n_features = check_int("n_features", n_features, least=1)
    if isinstance(lists, str | bytes) or not isinstance(lists, Iterable):
        raise InputError(f"agents must be a list of lists of feature numbers, got {lists!r}")
    called = dict(enumerate(map(repr, names or ())))
    parts = []
    for at, part in enumerate(lists):
        agent = called.get(at, f"agent {at}")
        if isinstance(part, str | bytes) or not isinstance(part, Iterable):
            raise InputError(f"{agent} must have a list of features, got {part!r}")
        items = list(part)
        for item in items:
            if isinstance(item, bool | np.bool_) or not isinstance(item, int | np.integer):
                raise InputError(f"{agent}: features are given by integers, got {item!r}")
            if abs(int(item)) > np.iinfo(np.intp).max:
                raise InputError(f"{agent}: there is no feature {item}")
        parts.append(np.array(items, dtype=np.intp))
    if not parts:
        raise InputError("a partition needs at least one agent, got an empty list")
    features = np.concatenate(parts)
    outside = features[(features < 0) | (features >= n_features)]
    if outside.size:
        raise InputError(
            f"the partition names feature {shorten(outside)}, but the {n_features} features are "
            f"numbered 0 to {n_features - 1}"
        )
    times = np.bincount(features, minlength=n_features)
    shown = np.array([repr(one) for one in feature_names or range(n_features)])
    faults = [
        f"{fault} feature {shorten(shown[wrong])}"
        for fault, wrong in (("misses", times == 0), ("repeats", times > 1))
        if wrong.any()
    ]
    if faults:
        raise InputError(
            f"the partition {' and '.join(faults)}; each of the {n_features} features must be "
            "held by exactly one agent"
        )
    return _with_relays(tuple(np.sort(part) for part in parts), names)


def _dealt(
    kind: type[Holdings], order: Indices, n_holders: int, names: Names
) -> tuple[tuple[Indices, ...], tuple[str, ...]]:
    """Cut what is held into runs as nearly equal as possible, the longer ones first; and names."""
    holder, n_held = kind.holder, len(order)
    n_holders = check_int(f"n_{holder}s", n_holders, least=1)
    if n_holders > n_held:
        raise InputError(
            f"{n_holders} {holder}s cannot share {n_held} {kind.held}s, since each needs at least "
            f"one; give at most {n_held} {holder}s"
        )
    return tuple(np.array_split(order, n_holders)), _named(kind, names, n_holders)


def _grouped(holder_of: NDArray[np.integer], n_holders: int) -> tuple[Indices, ...]:
    order = np.argsort(holder_of, kind="stable").astype(np.intp)
    ends = np.cumsum(np.bincount(holder_of, minlength=n_holders))
    return tuple(np.split(order, ends[:-1]))


def _named(kind: type[Holdings], names: Names, n_holders: int) -> tuple[str, ...]:
    return tuple(f"{kind.holder} {n}" for n in range(n_holders)) if names is None else tuple(names)


def _with_relays(parts: tuple[Indices, ...], names: Names) -> Partition:
    """Build a partition and warn about the agents that hold nothing."""
    partition = Partition(parts, _named(Partition, names, len(parts)))
    relays = [name for name, part in zip(partition.names, parts, strict=True) if not part.size]
    if relays:
        verb = "holds no features and only relays" if len(relays) == 1 else "hold no features"
        warnings.warn(f"{shorten(map(repr, relays))} {verb}", VpemWarning, stacklevel=3)
    return partition


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

    n_blocks: int = field(init=False, repr=False, compare=False)
    """Number of blocks, B."""
    n_features: int = field(init=False, repr=False, compare=False)
    """Number of features, d."""
    order: Indices = field(init=False, repr=False, compare=False)
    """User's column of each feature in block order, shape (d,)."""
    position: Indices = field(init=False, repr=False, compare=False)
    """Place in block order of each of the user's columns, shape (d,)."""
    in_order: bool = field(init=False, repr=False, compare=False)
    """Whether block order is the user's order."""
    widths: Indices = field(init=False, repr=False, compare=False)
    """Features in each block, ``d_b``, shape (B,)."""
    n_entries: int = field(init=False, repr=False, compare=False)
    """Entries of all blocks of one covariance, ``sum d_b^2``."""
    offsets: Indices = field(init=False, repr=False, compare=False)
    """First feature of each block in block order, and the end; shape (B + 1,)."""
    block_of: Indices = field(init=False, repr=False, compare=False)
    """Block of each feature in block order, shape (d,)."""

    def __post_init__(self) -> None:
        order = np.concatenate([np.empty(0, dtype=np.intp), *self.features]).astype(np.intp)
        every, position = np.arange(len(order)), np.empty_like(order)
        if not np.array_equal(np.sort(order), every):
            raise InputError("the blocks must hold every feature exactly once")
        position[order] = every
        widths = np.array([len(columns) for columns in self.features], dtype=np.intp)
        vars(self).update(
            n_blocks=len(self.features),
            n_features=len(order),
            order=order,
            position=position,
            in_order=bool(np.array_equal(order, every)),
            widths=widths,
            n_entries=int((widths.astype(np.int64) ** 2).sum()),
            offsets=np.concatenate([[0], np.cumsum(widths)]).astype(np.intp),
            block_of=np.repeat(np.arange(len(widths), dtype=np.intp), widths),
        )

    def renumbered(self, place: Indices) -> Blocks:
        """Return the same blocks of features that have other numbers, (d,)."""
        return replace(self, features=tuple(place[columns] for columns in self.features))

    def of_hubs(self, numbers: Sequence[int] | Indices) -> Blocks:
        """Return some blocks, whose features are counted from 0, block by block."""
        ends = accumulate((len(self.features[b]) for b in numbers), initial=0)
        columns = tuple(np.arange(a, b, dtype=np.intp) for a, b in pairwise(ends))
        roots = tuple(self.roots[b] for b in numbers)
        return Blocks(columns, roots, tuple(self.agents[b] for b in numbers))

    def columns_of(self, numbers: Iterable[int]) -> Indices:
        """Return the user's columns of some blocks, of which there may be none."""
        return np.concatenate([np.empty(0, dtype=np.intp), *(self.features[b] for b in numbers)])

    def among(self, chosen: Indices) -> Blocks:
        """Return the blocks of some of the features, which are numbered in this order."""
        place = np.full(self.n_features, -1, dtype=np.intp)
        place[chosen] = np.arange(len(chosen))
        kept = tuple(place[columns[place[columns] >= 0]] for columns in self.features)
        return replace(self, features=kept)

    @classmethod
    def one(cls, n_features: int, n_agents: int = 1) -> Blocks:
        """Return the single block of a centralized mixture, or of workers that share one."""
        return cls((np.arange(n_features, dtype=np.intp),), (0,), (tuple(range(n_agents)),))

    @classmethod
    def from_hubs(cls, hubs: Sequence[Hub], holdings: Sequence[NDArray[np.intp]]) -> Blocks:
        """Join the features of each hub's agents, by agent, then column; ``holdings`` by agent."""

        def joined(parts: list[Indices]) -> Indices:
            if len(parts) == 1 and len(parts[0]) <= 1:  # as of most of many agents, quicker
                return parts[0].astype(np.intp, copy=False)
            return np.concatenate([np.empty(0, dtype=np.intp), *map(np.sort, parts)])

        features = tuple(joined([holdings[agent] for agent in hub.agents]) for hub in hubs)
        roots = tuple(int(hub.root) for hub in hubs)
        return cls(features, roots, tuple(tuple(map(int, hub.agents)) for hub in hubs))

    @cached_property
    def bands(self) -> list[tuple[slice, slice, int]]:
        """Neighbouring blocks of one width: their columns, which they are, and the width."""
        bands = []
        edges = np.flatnonzero(np.diff(self.widths)) + 1
        for group in np.split(np.arange(self.n_blocks), edges):
            if len(group) and self.widths[group[0]]:
                first, end = int(group[0]), int(group[-1]) + 1
                columns = slice(int(self.offsets[first]), int(self.offsets[end]))
                bands.append((columns, slice(first, end), int(self.widths[first])))
        return bands

    def arrange(self, X: NDArray[np.generic], dtype: np.dtype[Kind] | type[Kind]) -> NDArray[Kind]:
        """Return the columns of ``X`` in block order as a C-contiguous array of ``dtype``."""
        columns = X if self.in_order else X[:, self.order]
        return np.require(columns, dtype=dtype, requirements=["C", "A"])

    def of_feature(self, per_root: NDArray[Kind]) -> NDArray[Kind]:
        """Expand what roots hold, (R, K), R = 1 if shared, else B, to what features see, (K, d)."""
        if len(per_root) == 1:
            return per_root.repeat(self.n_features, axis=0).T
        expanded: NDArray[Kind] = per_root[self.block_of].T
        return expanded
