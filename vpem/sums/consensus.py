"""The sum by consensus averaging: rounds between neighbours, or the small matrix equal to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.consensus import consensus_rounds
from vpem.errors import InputError, check_choice

__all__ = ["PATHS", "ConsensusSum", "consensus_error_bound", "rounds_needed"]

PATHS = ("auto", "operator", "rounds")

ALL_ONES = 1e-13
"""An operator this close to all ones is the exact sum to rounding: roots share one estimate."""

AGREED = 1e-15
"""States that differ by no more than this stay as they are."""

ROUNDS_AT_ONCE = 4096
"""Rounds that run before an interrupt is looked at."""

MOST_OPERATOR_VALUES = 5e7
"""Above this many values (agents times hubs) the operator is not formed, its error is bounded."""


class _Layout:
    """Agents of the network grouped in hubs: where the consensus starts and where it is read."""

    def __init__(self, mixing: Any, hubs: Sequence[Any]) -> None:
        self.n_agents = mixing.shape[0]
        self.n_hubs = len(hubs)
        self.hub_of = np.empty(self.n_agents, dtype=np.intp)
        for number, hub in enumerate(hubs):
            self.hub_of[list(hub.agents)] = number
        self.sizes = np.bincount(self.hub_of, minlength=self.n_hubs)
        self.roots = np.array([hub.root for hub in hubs], dtype=np.intp)
        self.indptr = mixing.indptr.astype(np.int32)
        self.indices = mixing.indices.astype(np.int32)
        self.weights = np.ascontiguousarray(mixing.data, dtype=np.float64)

    def spread(self, terms: NDArray[Any]) -> NDArray[Any]:
        """Start every agent at ``N Q[b] / |H_b|`` of its hub: (B, V) to (N, V)."""
        scale = (self.n_agents / self.sizes).astype(terms.dtype)
        return np.ascontiguousarray((terms * scale[:, None])[self.hub_of])

    def run(self, states: NDArray[Any], n_rounds: int, n_threads: int) -> None:
        """Run the rounds in place."""
        weights = self.weights.astype(states.dtype, copy=False)
        for done in range(0, n_rounds, ROUNDS_AT_ONCE):
            step = min(ROUNDS_AT_ONCE, n_rounds - done)
            consensus_rounds(self.indptr, self.indices, weights, states, step, n_threads)


class ConsensusSum:
    """Sum over hubs by S rounds of consensus averaging, Valdeira et al., sections 3 and 6.

    Every agent starts from ``N Q[b] / |H_b|`` of its hub, takes S weighted means with its
    neighbours, and each root reads its own state: an estimate of the sum of its own.

    Because the start is constant on hubs, S rounds of one mixing matrix are the B x B operator
    ``C = R W^S P``: the same numbers up to rounding, at the cost of one small product.

    Parameters
    ----------
    mixing : sparse matrix of shape (N, N)
        Mixing weights W.
    hubs : sequence of Hub
        ``root`` and ``agents`` of each.
    n_rounds : int
        Rounds of each average, S.
    path : {"auto", "operator", "rounds"}
        Which way to compute; "auto" takes the cheaper.
    n_threads : int
        Threads of the rounds.
    """

    def __init__(
        self,
        mixing: Any,
        hubs: Sequence[Any],
        n_rounds: int = 100,
        *,
        path: str = "auto",
        n_threads: int = 1,
    ) -> None:
        check_choice("consensus path", path, PATHS)
        if isinstance(n_rounds, bool) or int(n_rounds) != n_rounds or n_rounds < 1:
            raise InputError(f"rounds must be an integer of at least 1, got {n_rounds!r}")
        self.n_rounds = int(n_rounds)
        self.n_threads = n_threads
        self._layout = _Layout(mixing, hubs)
        n_hubs = self._layout.n_hubs
        n_agents = self._layout.n_agents
        formed = n_agents * n_hubs <= MOST_OPERATOR_VALUES
        self.operator = self._form_operator() if formed or path == "operator" else None
        """The B x B matrix C, or None where it is too large to form."""
        if path == "auto":
            per_round = self.n_rounds * mixing.nnz
            path = "operator" if formed and n_hubs**2 <= per_round else "rounds"
        self.path = path
        if self.operator is None:
            self.error: float | None = None
        else:
            self.error = float(np.abs(self.operator - 1).max())
        self._exact = path == "operator" and self.error is not None and self.error <= ALL_ONES
        self.n_roots = 1 if self._exact else n_hubs
        self.mix = self._as_matrix()
        self.values_per_item = n_agents if path == "rounds" else n_hubs

    def _form_operator(self) -> NDArray[np.float64]:
        states = self._layout.spread(np.eye(self._layout.n_hubs))
        left = self.n_rounds
        while left > 0 and np.ptp(states, axis=0).max() > AGREED:
            step = min(left, ROUNDS_AT_ONCE)
            self._layout.run(states, step, self.n_threads)
            left -= step
        operator: NDArray[np.float64] = states[self._layout.roots]
        return operator

    def _as_matrix(self) -> NDArray[np.float64] | None:
        """The sum as a matrix over the hubs' terms, where it is computed as one."""
        if self._exact:
            return np.ones((1, self._layout.n_hubs))
        return self.operator if self.path == "operator" else None

    def reduce(self, terms: NDArray[Any]) -> NDArray[Any]:
        """Sum terms (B, m, K) over the hubs: one estimate a root, (B, m, K).

        Shape (1, m, K) where the operator is all ones to rounding.
        """
        if self._exact:
            total: NDArray[Any] = terms.sum(axis=0, keepdims=True)
            return total
        flat = terms.reshape(len(terms), -1)
        if self.path == "operator":
            assert self.operator is not None
            mixed: NDArray[Any] = self.operator.astype(flat.dtype, copy=False) @ flat
            return mixed.reshape(terms.shape)
        states = self._layout.spread(flat)
        self._layout.run(states, self.n_rounds, self.n_threads)
        return states[self._layout.roots].reshape(terms.shape)


def consensus_error_bound(rate: float, hubs: Sequence[Any], n_agents: int, n_rounds: int) -> float:
    """Bound ``max |C - 1|`` by the mixing rate: ``rate^S N / sqrt(smallest hub)``.

    From ``|e_r^T (W^S - 11^T/N) 1_H| <= rate^S sqrt(|H|)`` and the start's factor ``N / |H|``.
    """
    smallest = min(len(hub.agents) for hub in hubs)
    return float(rate**n_rounds * n_agents / np.sqrt(smallest))


def rounds_needed(
    mixing: Any, hubs: Sequence[Any], rate: float, tolerance: float, n_threads: int = 1
) -> int:
    """Fewest rounds found whose consensus error ``max |C - 1|`` is at most ``tolerance``.

    Where the operator is small enough to form, the number is found by doubling and bisection on
    the error itself; else it is the bound's.

    Parameters
    ----------
    mixing, hubs
        As for `ConsensusSum`.
    rate : float
        Second largest eigenvalue modulus of ``mixing``, below 1.
    tolerance : float
        Largest error allowed.
    n_threads : int
        Threads of the rounds.
    """
    n_agents = mixing.shape[0]
    if rate <= 0:
        return 1
    tolerance = max(tolerance, 1e-12)
    start = consensus_error_bound(rate, hubs, n_agents, 0)
    bound = max(1, int(np.ceil(np.log(tolerance / start) / np.log(rate))))
    layout = _Layout(mixing, hubs)
    if n_agents * len(hubs) * bound * 8 > MOST_OPERATOR_VALUES * 100:
        return bound
    # The error need not fall at every round, so the search keeps the smallest number that was
    # seen to do among powers of two and the midpoints below the first of them that does.
    states = layout.spread(np.eye(len(hubs)))
    kept = [(0, states.copy())]
    done = 0
    while True:
        step = min(max(done, 1), max(bound - done, 1))
        layout.run(states, step, n_threads)
        done += step
        if np.abs(states[layout.roots] - 1).max() <= tolerance:
            break
        kept = [(done, states.copy())]
    low, base = kept[0]
    high = done
    while high - low > 1:
        middle = (low + high) // 2
        trial = base.copy()
        layout.run(trial, middle - low, n_threads)
        if np.abs(trial[layout.roots] - 1).max() <= tolerance:
            high = middle
        else:
            low, base = middle, trial
    return high
