"""Which agent holds which features: the vertical partition of the columns of a dataset."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import check_int
from vpem.errors import InputError, VpemWarning, did_you_mean, shorten

__all__ = ["Partition", "contiguous", "from_agent_of_feature", "from_lists"]


@dataclass(frozen=True, eq=False)
class Partition:
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

    features: tuple[NDArray[np.intp], ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_names(self.names, len(self.features))
        if not self.n_features:
            raise InputError("a partition needs at least one feature")
        if any(part.size > 1 and np.any(np.diff(part) <= 0) for part in self.features):
            raise InputError("the features of each agent must be increasing; use from_lists")
        held = np.sort(np.concatenate(self.features))
        if not np.array_equal(held, np.arange(self.n_features)):
            raise InputError("each feature must be held by exactly one agent; use from_lists")

    @property
    def n_agents(self) -> int:
        """Number of agents."""
        return len(self.features)

    @property
    def n_features(self) -> int:
        """Number of features of all agents together."""
        return sum(part.size for part in self.features)

    @property
    def agent_of(self) -> NDArray[np.intp]:
        """Number of the agent that holds each feature, shape (n_features,)."""
        agent_of = np.empty(self.n_features, dtype=np.intp)
        for agent, part in enumerate(self.features):
            agent_of[part] = agent
        return agent_of


def contiguous(n_features: int, n_agents: int, names: Sequence[str] | None = None) -> Partition:
    """Give each agent a run of neighbouring columns, as nearly equal in length as possible.

    Parameters
    ----------
    n_features : int
        Number of columns to divide.
    n_agents : int
        Number of agents, at most ``n_features``.
    names : sequence of str, optional
        Names of the agents; "agent 0", "agent 1", ... by default.

    Returns
    -------
    Partition
        The first ``n_features % n_agents`` agents hold one feature more than the others.

    Raises
    ------
    InputError
        If there are no agents, or more of them than features.
    """
    n_features = check_int("n_features", n_features, least=1)
    n_agents = check_int("n_agents", n_agents, least=1)
    if n_agents > n_features:
        raise InputError(
            f"{n_agents} agents cannot share {n_features} features, since each needs at least one; "
            f"give at most {n_features} agents"
        )
    parts = cut_evenly(np.arange(n_features, dtype=np.intp), n_agents)
    return Partition(parts, _name(names, n_agents))


def cut_evenly(values: NDArray[Any], n_parts: int) -> tuple[NDArray[Any], ...]:
    """Cut an array into pieces as nearly equal as possible, the longer ones first, as views."""
    size, longer = divmod(len(values), n_parts)
    ends = [part * size + min(part, longer) for part in range(n_parts + 1)]
    return tuple(values[begin:end] for begin, end in pairwise(ends))


def from_agent_of_feature(agent_of: ArrayLike, names: Sequence[str] | None = None) -> Partition:
    """Make a partition from the agent of each feature.

    Parameters
    ----------
    agent_of : array-like of int of shape (n_features,)
        Number of the agent that holds each feature, from 0.
    names : sequence of str, optional
        Names of the agents. A named agent that no feature mentions is a relay (warned about);
        without names, every number up to the largest must occur.

    Returns
    -------
    Partition
        The partition.

    Raises
    ------
    InputError
        If the numbers are not integers from 0, skip an unnamed agent, or exceed the names.
    """
    agents = np.asarray(agent_of)
    if agents.ndim != 1 or agents.size == 0 or agents.dtype.kind not in "iu":
        raise InputError(
            "a partition must be a list of agent numbers (integers), one a feature, got an array "
            f"of {agents.dtype} with shape {agents.shape}"
        )
    if agents.min() < 0:
        bad = int(np.argmin(agents))
        raise InputError(f"agents are numbered from 0, but feature {bad} has agent {agents[bad]}")
    largest = int(agents.max())
    if names is not None and largest >= len(names):
        raise InputError(
            f"feature {int(np.argmax(agents))} is given to agent {largest}, but only {len(names)} "
            "agents have names"
        )
    if names is None:
        used = np.unique(agents)
        if used.size <= largest:
            skipped = int(np.flatnonzero(used != np.arange(used.size))[0])
            raise InputError(
                f"agent {skipped} holds no feature although agent {largest} does; number the "
                "agents without gaps, or name them all if some are meant to be relays"
            )
    n_agents = largest + 1 if names is None else len(names)
    order = np.argsort(agents, kind="stable").astype(np.intp)
    ends = np.cumsum(np.bincount(agents.astype(np.intp), minlength=n_agents))
    return _finish(tuple(np.split(order, ends[:-1])), _name(names, n_agents))


def from_lists(
    lists: Iterable[Iterable[Any]], n_features: int, names: Sequence[str] | None = None
) -> Partition:
    """Make a partition from one list of feature numbers an agent.

    Parameters
    ----------
    lists : iterable of iterables of int
        Features of each agent; an empty list makes a relay (warned about).
    n_features : int
        Number of features there are.
    names : sequence of str, optional
        Names of the agents; "agent 0", "agent 1", ... by default.

    Returns
    -------
    Partition
        The partition, features sorted within each agent.

    Raises
    ------
    InputError
        If a feature is missing, repeated, out of range or not an integer.
    """
    n_features = check_int("n_features", n_features, least=1)
    if isinstance(lists, str | bytes) or not isinstance(lists, Iterable):
        raise InputError(f"agents must be a list of lists of feature numbers, got {lists!r}")
    parts = [_integers(part, agent) for agent, part in enumerate(lists)]
    if not parts:
        raise InputError("a partition needs at least one agent, got an empty list")
    held = np.concatenate(parts)
    outside = held[(held < 0) | (held >= n_features)]
    if outside.size:
        raise InputError(
            f"the partition names feature {shorten(outside)}, but the {n_features} features are "
            f"numbered 0 to {n_features - 1}"
        )
    times = np.bincount(held, minlength=n_features)
    faults = [
        f"{fault} feature {shorten(numbers)}"
        for fault, numbers in (
            ("misses", np.flatnonzero(times == 0)),
            ("repeats", np.flatnonzero(times > 1)),
        )
        if numbers.size
    ]
    if faults:
        raise InputError(
            f"the partition {' and '.join(faults)}; each of the {n_features} features must be "
            "held by exactly one agent"
        )
    return _finish(tuple(np.sort(part) for part in parts), _name(names, len(parts)))


def _numbers_of_names(
    lists: list[list[Any]], feature_names: Sequence[str] | None
) -> list[list[Any]]:
    """Replace feature names by their column numbers; leave everything else as it is."""
    names = list(feature_names or [])
    number = {name: column for column, name in enumerate(names)}

    def resolve(feature: Any) -> Any:
        if not isinstance(feature, str):
            return feature
        if feature not in number:
            hint = did_you_mean(feature, names) if names else "; the features here have no names"
            raise InputError(f"there is no feature {feature!r}{hint}")
        if names.count(feature) > 1:
            raise InputError(f"several features are called {feature!r}; give their numbers")
        return number[feature]

    return [[resolve(feature) for feature in part] for part in lists]


def _integers(part: Any, agent: int) -> NDArray[np.intp]:
    """Return one agent's features as an array after checking that they are integers."""
    if isinstance(part, str | bytes) or not isinstance(part, Iterable):
        raise InputError(f"agent {agent} must have a list of feature numbers, got {part!r}")
    items = list(part)
    for item in items:
        if isinstance(item, bool | np.bool_) or not isinstance(item, int | np.integer):
            raise InputError(f"agent {agent}: features are given by integers, got {item!r}")
        if abs(int(item)) > np.iinfo(np.intp).max:
            raise InputError(f"agent {agent}: there is no feature {item}")
    return np.array(items, dtype=np.intp)


def _finish(features: tuple[NDArray[np.intp], ...], names: tuple[str, ...]) -> Partition:
    """Build the partition and warn about the agents that hold nothing."""
    relays = [name for name, part in zip(names, features, strict=False) if not part.size]
    partition = Partition(features, names)
    if relays:
        verb = "holds no features and only relays" if len(relays) == 1 else "hold no features"
        warnings.warn(f"{shorten(map(repr, relays))} {verb}", VpemWarning, stacklevel=3)
    return partition


def _name(names: Sequence[str] | None, n_agents: int) -> tuple[str, ...]:
    """Return the given names, or "agent 0", "agent 1", ..."""
    return tuple(f"agent {n}" for n in range(n_agents)) if names is None else tuple(names)


def _check_names(names: tuple[str, ...], n_agents: int) -> None:
    """Raise InputError unless there is one different, non-empty name an agent."""
    if len(names) != n_agents:
        raise InputError(f"there are {n_agents} agents but {len(names)} agent names")
    if not all(isinstance(name, str) and name for name in names):
        raise InputError("agent names must be non-empty strings")
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two agents are called {repeated!r}; agent names must differ")
