"""How many rounds between neighbours a sum takes, where their number is left to us."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import ceil
from typing import Any

from vpem.errors import InputError, Setting, VpemWarning
from vpem.network.codecs import Codec
from vpem.network.faults import MOST_DRAWN, Faults, failing_rounds
from vpem.network.graph import Graph
from vpem.network.hubs import Hub
from vpem.settings import SumSettings
from vpem.sums.consensus import consensus_error_bound, rounds_needed
from vpem.sums.contraction import compressed_rounds, contraction

MOST_GOSSIP_ROUNDS = 10**5
"""Of a compressed sum, or one with faults, which have to be run one by one."""

MOST_NOISE = 1e4
"""Variance of a codec, relative to the message, beyond which no number of rounds is looked for."""

JITTER = 1e-3
"""By what sums with faults are more accurate than others: each errs differently, and what the roots
find must be steady within ``tol`` for them to stop."""

MANY_VALUES = 1 << 16
"""Values of a message for which a codec's noise is judged before the data are known."""

LARGEST_CONSENSUS_ERROR = 1e-3
"""A run whose operator is further than this from all ones is warned about."""


@dataclass(frozen=True)
class Rounds:
    """How many rounds a sum needs on a graph, by mixing rate and hubs.

    Attributes
    ----------
    graph : Graph
        Who talks to whom.
    hubs : list of Hub
        Of its agents.
    mixing : sparse matrix of shape (N, N)
        Mixing weights.
    rate, used : float
        Mixing rate, and what agents take for it.
    how : SumSettings
        What was asked for.
    threads : int
        Of the rounds that are tried.
    by_bound : bool
        Whether rounds are found by their bound, since the rate is an estimate.
    """

    graph: Graph
    hubs: list[Hub]
    mixing: Any
    rate: float
    used: float
    how: SumSettings
    threads: int
    by_bound: bool

    @property
    def accelerated(self) -> bool:
        """Whether rounds are accelerated by Chebyshev's polynomials."""
        return self.how.acceleration == "chebyshev"

    def reaching(self, error: float, by_bound: bool = False) -> int:
        """Fewest rounds, without codec or faults, that reach a consensus error."""
        return rounds_needed(
            self.mixing, self.hubs, self.used, error, self.threads,
            accelerated=self.accelerated, by_bound=by_bound,
        )  # fmt: skip

    def warn_of_error(self, n_rounds: int, error: str) -> None:
        """Warn that so many rounds have too large a consensus error."""
        warnings.warn(
            f"{n_rounds} rounds are too few for this graph (mixing rate {self.rate:.4f}): the "
            f"consensus error is {error}, more than {LARGEST_CONSENSUS_ERROR:g}, so the hubs "
            f"disagree; {self.reaching(LARGEST_CONSENSUS_ERROR)} rounds would do",
            VpemWarning,
            stacklevel=4,
        )

    def needed(self, codec: Codec | None, faults: Faults | None) -> int:
        """Rounds of a sum where their number was left to us.

        It refuses if they are too many to be run one by one, or float64 would send less.
        """
        tol = self.how.consensus_tol
        if codec is not None:
            n_rounds = _compressed_rounds(codec, self.rate, self.accelerated and faults is None)
        else:
            n_rounds = self.reaching(tol if faults is None else tol * JITTER, self.by_bound)
        if faults is not None:
            # Mixing is slower by about the share of links that are up; by more on dense graphs.
            n_rounds = max(1, ceil(n_rounds / faults.links_up))
            if codec is None and len(self.hubs) > 1:
                start = consensus_error_bound(self.rate, self.hubs, self.graph.n_agents, 0)
                fall = min(tol * JITTER / start, 0.5)
                n_rounds = max(
                    n_rounds, failing_rounds(self.graph, faults, fall, seed=self.how.seed)
                )
        if (codec is not None or faults is not None) and n_rounds > MOST_GOSSIP_ROUNDS:
            needed = "more" if n_rounds >= MOST_DRAWN else f"{n_rounds}, more"
            raise InputError(
                f"the rounds a sum would need are {needed} than {MOST_GOSSIP_ROUNDS}: "
                f"{'the codec loses too much' if faults is None else 'too much fails'}; take "
                f"{'smaller probabilities' if codec is None else 'another codec'}, or a number of "
                "rounds"
            )
        return n_rounds


def _compressed_rounds(codec: Codec, rate: float, fixed: bool) -> int:
    """Rounds of a compressed sum that are expected; ``fixed`` as for `stable_steps`.

    It refuses if float64 would send less in rounds that go on from the sum before as these do.
    """
    _, omega = contraction(codec, MANY_VALUES)
    if omega > MOST_NOISE:
        raise InputError(
            f"the codec {codec.name} keeps only {1 / (1 + omega):.1g} of a message's squared norm; "
            "take one that keeps more"
        )
    n_rounds, exact = (compressed_rounds(rate, noise, fixed=fixed) for noise in (omega, 0.0))
    ratio = n_rounds * codec.message_size(MANY_VALUES) / (exact * 8 * MANY_VALUES)
    if ratio > 1 and codec.name != "float64":
        raise InputError(
            f"{codec.name} needs {n_rounds} rounds on this graph where {exact} do without "
            f"compression, and so sends {ratio:.2g} times as much: take natural:12bits or "
            "qsgd:8bits, or leave ",
            Setting("compress"),
            " out",
        )
    return n_rounds
