"""What is recovered of a column, with masks and without: ``python -m benchmarks.attacks``.

Somebody sees what one agent sends, or the totals that all roots learn, knows a few values of a
column of that agent, and guesses the others: of wine the column proline, which is all that its
agent has of 13 columns; of breast cancer the first of an agent's 3 columns of 30. Shown is the
correlation of guesses and truth on rows that were not known: 1 is the column itself. Medians over
draws of the known rows. Masks are other ones each time, and so are the guesses made of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from vpem import VpemWarning, connect, fit_vpem, make_graph, read_dataset
from vpem.network.holdings import contiguous
from vpem.sums.adding import Addends
from vpem.sums.server import ServerSum

from .communication import table

FOLDER = Path(__file__).parents[1] / "data"
DRAWS = 25
KNOWN = (3, 10, 30, 100)

Matrix = NDArray[np.float64]


class Watched(ServerSum):
    """A sum at a server, of which somebody keeps what one agent sends and what all learn.

    Parameters
    ----------
    total : ServerSum
        The sum, under masks or not.
    agent : int
        Whose messages are kept.

    Attributes
    ----------
    sent, learnt : list of ndarray of shape (m, K - 1)
        Of each E-step, as numbers: words of a masked message are taken for the integers they are.
    """

    def __init__(self, total: Any, agent: int) -> None:
        vars(self).update(vars(total))
        self.mix = None  # as over a network: not where terms are made
        self.agent = agent
        self.sent: list[Matrix] = []
        self.learnt: list[Matrix] = []

    def reduce(self, terms: Any, rows: slice = slice(None), scalars: Any = None) -> Any:
        """Sum terms, and keep what is seen of it."""
        own = Addends(self.holders, terms, scalars, self.exponents)
        parts = own.apart()
        message = parts[0][self.agent]
        if message.dtype == np.uint64:
            message = message.astype(np.int64)
        found = own.total([part.sum(axis=0, dtype=part.dtype) for part in parts])
        if self.charge not in ("setup", "labels"):
            values = message[: terms[0].size].astype(np.float64)
            self.sent.append(values.reshape(terms[0].shape))
            self.learnt.append(np.array(found[0], dtype=np.float64))
        return found


def watch(
    data: Any, n_agents: int, agent: int, masked: bool, **how: Any
) -> tuple[Watched, Any, NDArray[np.intp]]:
    """Fit, and return what was seen, the fit, and the columns of the agent."""
    parts = contiguous(data.X.shape[1], n_agents)
    network = connect(make_graph("star", n_agents), parts, hops=0, secure_sum=masked)
    seen = Watched(network.total, agent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)  # of fits that are stopped early
        fit = fit_vpem(data.X, replace(network, total=seen), seed=0, tol=0, labels=[agent], **how)
    return seen, fit, parts.features[agent]


def by_lines(seen: Matrix, column: Matrix, known: NDArray[np.intp]) -> Matrix:
    """Guess a column as a linear function of what was seen, along its main directions."""
    spread = seen.std(axis=0)
    units = (seen - seen.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    directions, sizes, _ = np.linalg.svd(units, full_matrices=False)
    few = min(len(known) - 1, int((sizes > 1e-9 * sizes[0]).sum()))
    design = np.column_stack([np.ones(len(seen)), directions[:, :few]])
    found: Matrix = design @ np.linalg.lstsq(design[known], column[known], rcond=None)[0]
    return found


def by_parabola(seen: Matrix, column: Matrix, known: NDArray[np.intp]) -> Matrix:
    """Guess a column of which one parabola was seen, as the one of its two roots that fits."""
    values, x = seen[:, 0], column[known]
    a, b, c = np.linalg.lstsq(np.vander(x, 3), values[known], rcond=None)[0]
    root = np.sqrt(np.maximum(b**2 - 4 * a * (c - values), 0)) / (2 * abs(a) or 1.0)
    roots = [-b / (2 * a or 1.0) + sign * root for sign in (1, -1)]
    return min(roots, key=lambda found: float(np.abs(found[known] - x).sum()))


def correlation(
    attack: Callable[[Matrix, Matrix, NDArray[np.intp]], Matrix],
    seen: Matrix,
    column: Matrix,
    n_known: int,
) -> float:
    """Return the median correlation on the rows that were not known."""
    found = []
    for seed in range(DRAWS):
        order = np.random.default_rng(seed).permutation(len(column))
        known, others = np.sort(order[:n_known]), np.sort(order[n_known:])
        guess = attack(seen, column, known)[others]
        found.append(abs(np.corrcoef(guess, column[others])[0, 1]) if np.ptp(guess) else 0.0)
    return statistics.median(found)


def rows_of(name: str, data: Any, n_agents: int, agent: int, **how: Any) -> list[dict[str, Any]]:
    """Attack the first column of an agent, by who sees what."""
    rows = []
    for masked in (False, True):
        seen, fit, columns = watch(data, n_agents, agent, masked, **how)
        column = np.asarray(data.X[:, columns[0]], dtype=np.float64)
        n_sums = len(seen.sent)
        views: list[tuple[str, Matrix, Any]] = [
            ("one message", seen.sent[-1], by_parabola if len(columns) == 1 else by_lines),
            (f"{n_sums} messages", np.hstack(seen.sent), by_lines),
        ]
        if masked:
            means = fit.mixture.assembled_means[:, columns[0]]
            views += [
                ("one total", seen.learnt[-1], by_lines),
                (f"{n_sums} totals", np.hstack(seen.learnt), by_lines),
                ("labels and model", (fit.responsibilities[agent] @ means)[:, None], by_lines),
            ]
        for what, values, attack in views:
            whose = "" if "message" not in what else ", masked" if masked else ", plain"
            row: dict[str, Any] = {"name": f"{name}: {what}{whose}"}
            for count in KNOWN:
                row[f"{count} known"] = f"{correlation(attack, values, column, count):.2f}"
            rows.append(row)
    return rows


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("--iterations", type=int, default=20)
    given = parser.parse_args(words)
    wine, cancer = (read_dataset(FOLDER / f"{name}.h5") for name in ("wine", "breast_cancer"))
    how: dict[str, Any] = {"max_iter": given.iterations}
    rows = [
        *rows_of("wine, alone", wine, 13, 12, n_components=2, **how),
        *rows_of("cancer, of 3", cancer, 10, 3, n_components=2, **how),
    ]
    title = "Correlation of what is guessed of a column with the truth, by values known"
    Console(highlight=False, width=110).print(table(title, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
