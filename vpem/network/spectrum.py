"""The mixing rate, found by the agents themselves: power iterations, charged to the ledger."""

from __future__ import annotations

from typing import Any

import numpy as np

from vpem.checks import check_int
from vpem.errors import InputError
from vpem.network.graph import Graph
from vpem.network.ledger import Ledger

VALUE_BYTES = 8
"""Of the one number in each message."""

MARGIN = 0.2
"""What is returned lies above what was seen by this part of the rate or of the gap, the smaller."""

LEAST = 1e-7
"""Least rate returned for two agents or more: double precision cannot tell less from 0."""

FALLEN = 1e-7
"""The iterations end when the values have fallen to this part of what they were."""

MOST_ITERATIONS = 1 << 20


def estimate_rate(
    mixing: Any,  # W (N, N), symmetric, rows sum to 1
    graph: Graph,  # without a server
    ledger: Ledger,
    *,
    n_rounds: int | None = None,
    seed: int = 0,
    diameter: int,  # hops between the agents farthest apart
) -> float:
    """Estimate the mixing rate as the agents of a network can, each knowing its own weights only.

    Every agent draws a number from a stream of its own, (seed, n). One round of ``I - W`` takes the
    mean away; then rounds of W leave what falls slowest. At the 2nd, 4th, 8th, ... of them the
    agents learn, by flooding, the largest absolute value now and two rounds before: the root of the
    ratio is what was kept a round, and all divide by the largest value, so that nothing underflows.
    By default rounds of W end when values have fallen to `FALLEN`, after some 5 to 15 / (1 - rate):
    as many as it takes to tell the slowest mode from the others. They are counted as "setup", 8
    bytes over every link, and the maxima as "flooding", ``diameter`` rounds of 8 bytes. The result,
    from 0 (a single agent) to below 1, has a margin of `MARGIN` over the rate seen: power
    iterations see one that is too small rather than too large, and the two errors do not cost the
    same.

    For rounds accelerated with a rate ``r`` in place of the true one ``t`` the distance to the mean
    falls to ``T_S(t / r) / T_S(1 / r)``. Where ``r >= t`` that is at most ``1 / T_S(1 / r)``, the
    bound that counts the rounds, and a gap narrowed to 0.8 of its width costs 12 % more rounds.
    Where ``r < t`` the slowest mode leaves the interval on which the polynomial is small: the mean
    is kept and the states still agree, but later than the bound says.
    """
    if graph.has_server:
        raise InputError("a star has no mixing rate: its server takes the exact sum")
    seed = check_int("seed", seed, least=0)
    most = MOST_ITERATIONS
    if n_rounds is not None:
        most = check_int("rounds of power iteration", n_rounds, least=2, most=MOST_ITERATIONS)
    if graph.n_agents == 1:
        return 0.0
    drawn = [np.random.default_rng([seed, n]).standard_normal() for n in range(graph.n_agents)]
    values = np.array(drawn)
    values = values - mixing @ values
    ledger.send("setup", VALUE_BYTES, times=1, rounds=1)
    start = np.abs(values).max()
    if start == 0.0:
        return LEAST
    values = values / start
    done, fallen, rate = 0, 1.0, LEAST
    while done < most:
        mark = _next(done, most, rate, fallen if n_rounds is None else np.inf)
        for _ in range(mark - done - 2):
            values = mixing @ values
        before = values
        values = mixing @ (mixing @ values)
        # The rounds, and two maxima.
        ledger.send("setup", VALUE_BYTES, times=mark - done, rounds=mark - done)
        ledger.send("flooding", VALUE_BYTES, times=2 * diameter, rounds=2 * diameter)
        large, largest = float(np.abs(before).max()), float(np.abs(values).max())
        done = mark
        rate = np.sqrt(largest / large)
        fallen *= largest
        if fallen > 2.0 * np.sqrt(graph.n_agents):  # more than a sum of squares that falls allows
            raise InputError("with these mixing weights the agents never come to agree")
        if largest == 0.0 or (n_rounds is None and fallen < FALLEN):
            break
        values = values / largest
    rate = min(max(rate, LEAST), 1.0 - 1e-15)
    return float(rate + MARGIN * min(rate, 1.0 - rate))


def _next(done: int, most: int, rate: float, fallen: float) -> int:
    """Rounds after which the agents compare: twice as many, but no more than are wanted."""
    mark = max(2 * done, 2)
    if done and rate < 1.0 and fallen < np.inf:
        left = np.log(FALLEN / fallen) / np.log(max(rate, LEAST))
        mark = min(mark, done + max(2, int(np.ceil(left))))
    return most if mark + 2 > most else mark
