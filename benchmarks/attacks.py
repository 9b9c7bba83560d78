"""Attacks on a fit, by who sees what: ``python -m benchmarks.attacks [--column]``.

`ATTACKS` are those of docs/explanation/adversaries.md, each carried out on a fit of the data beside
it; what is printed stands there. With ``--column`` it is a table of what is guessed of a column, by
how many of its values somebody knows: of wine the column proline, which is all that its agent has
of 13 columns; of breast cancer the first of an agent's 3 columns of 30. Shown is the correlation of
guesses and truth on rows that were not known: 1 is the column itself. Medians over draws of the
known rows. Masks are other ones each time, and so are the guesses made of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from vpem import (
    VpemWarning,
    connect,
    connect_workers,
    fit_em,
    fit_vpem,
    kmeans_rows,
    make_graph,
    read_dataset,
)
from vpem.fits.privacy import Budget, Guarantee
from vpem.network.partition import contiguous, from_worker_of_row
from vpem.sums.counted import Addends
from vpem.sums.server import ServerSum

from .audit import Audited, lower_bound
from .communication import table

FOLDER = Path(__file__).parents[1] / "data"
DRAWS = 25
KNOWN = (3, 10, 30, 100)

Matrix = NDArray[np.float64]


class Watched(ServerSum):
    """A sum at a server, of which somebody keeps what one agent sends and what all learn.

    Of each E-step as numbers (m, K - 1): words of a masked message are taken for the integers they
    are. What is left of a total is that of the agent, once all others subtract what they know.
    """

    def __init__(self, total: Any, agent: int) -> None:
        vars(self).update(vars(total))
        self.mix = None  # as over a network: not where terms are made
        self.agent = agent
        self.sent: list[Matrix] = []
        self.learnt: list[Matrix] = []
        self.left: list[Matrix] = []

    def reduce(self, terms: Any, rows: slice = slice(None), scalars: Any = None) -> Any:
        """Sum terms, and keep what is seen of it."""
        own = Addends(self.holders, terms, scalars, self.exponents)
        parts = own.apart()
        message = parts[0][self.agent]
        if message.dtype == np.uint64:
            message = message.astype(np.int64)
        found = own.total([part.sum(axis=0, dtype=part.dtype) for part in parts])
        if self.charge in ("setup", "labels"):
            return found
        values = message[: terms[0].size].astype(np.float64)
        self.sent.append(values.reshape(terms[0].shape))
        self.learnt.append(np.array(found[0], dtype=np.float64))
        self.left.append(self.learnt[-1] - np.delete(terms, self.agent, 0).sum(axis=0))
        return self.told(found)

    def told(self, found: Any) -> Any:
        """Return what the server says of a total: the total."""
        return found


class Liar(Watched):
    """A server of k-means over rows that looks for a place which one row alone is nearest to.

    It moves the second of two centres out along a direction, until one row is left there.
    """

    def told(self, found: Any) -> Any:
        """Put the second centre farther out, or nearer, by how many rows its last place has had."""
        forged, place = np.array(found), self.place
        numbers, d = forged.ravel(), len(self.middle)
        if place["at"]:
            place["near" if numbers[1] > 1 else "far"] = place["at"]
        place["at"] = (place["near"] + place["far"]) / 2
        numbers[:2] = 1.0
        numbers[2 : 2 + d] = self.middle
        numbers[2 + d : 2 + 2 * d] = self.middle + place["at"] * self.direction
        numbers[-1] = 1.0  # as if a row had changed its cluster: nobody stops
        return numbers.reshape(forged.shape)

    def aim(self, X: Matrix) -> None:
        """Look along the direction in which the rows vary most."""
        self.middle = X.mean(axis=0)
        self.direction = np.linalg.svd(X - self.middle, full_matrices=False)[2][0]
        self.place = {"near": 0.0, "far": 4 * float(np.abs(X).max()), "at": 0.0}


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


def means_of_one_row(least_rows: float, *, over_rows: bool = False) -> str:
    """Count the components of a model, of 40 of 178 wines, whose mean is a row."""
    X = read_dataset(FOLDER / "wine.h5").X
    how: dict[str, Any] = {"n_components": 40, "seed": 0, "least_rows": least_rows}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        if over_rows:
            workers = from_worker_of_row(np.arange(len(X)) % 3)
            fit: Any = fit_em(X, workers, connect_workers(make_graph("star", 3)), **how)
        else:
            fit = fit_vpem(X, connect(make_graph("star", 3), contiguous(13, 3)), **how)
    apart = np.abs(X[:, None] - fit.mixture.assembled_means).max(axis=2).min(axis=0)
    return f"{int((apart < 1e-9 * np.abs(X).max()).sum())} of 40"


def of_a_column(view: str, masked: bool) -> str:
    """Return the correlation of proline with what is guessed of it by 30 of its 178 values."""
    seen, _, columns = watch(
        read_dataset(FOLDER / "wine.h5"), 13, 12, masked, n_components=2, max_iter=20
    )
    column = np.asarray(read_dataset(FOLDER / "wine.h5").X[:, columns[0]], dtype=np.float64)
    return f"{correlation(by_lines, np.hstack(getattr(seen, view)), column, 30):.2f}"


def of_one_row(view: str, masked: bool) -> str:
    """Return how far off a worker's only row, of 30 features, is as read off its message.

    Over sums of k-means: weights of clusters, then sums of rows.
    """
    X = read_dataset(FOLDER / "breast_cancer.h5").X
    seen = _clustered(X, np.minimum(np.arange(len(X)), 3), 0, masked, Watched, max_iter=2)
    numbers = getattr(seen, view)[-1].ravel()
    return _off(numbers[2:62].reshape(2, 30).sum(axis=0) / numbers[:2].sum(), X[:1])


def of_two_totals(masked: bool) -> str:
    """Return how far off is a row that alone changes its cluster, as the difference of totals."""
    X = read_dataset(FOLDER / "breast_cancer.h5").X
    seen = _clustered(X, np.arange(len(X)) % 4, 3, masked, Watched, max_iter=300)
    for one, two in pairwise(each.ravel() for each in seen.learnt):
        moved = two[:2] - one[:2]
        if abs(abs(moved[0]) - 1) < 1e-6:
            return _off((two[2:32] - one[2:32]) / moved[0], X)
    raise RuntimeError("no row has changed its cluster alone")


def of_a_lie() -> str:
    """Return how far off a row is that a server has looked for by centres of its own."""
    X = read_dataset(FOLDER / "breast_cancer.h5").X
    seen = _clustered(X, np.arange(len(X)) % 4, 3, False, Liar, max_iter=60)
    for numbers in (each.ravel() for each in seen.learnt):
        if abs(numbers[1] - 1) < 1e-6:
            return _off(numbers[32:62], X)
    raise RuntimeError("no place has one row alone")


def _clustered(
    X: Matrix, worker_of: NDArray[np.intp], agent: int, masked: bool, kind: Any, max_iter: int
) -> Any:
    """Cluster rows of four workers in two, and return what was seen."""
    workers = from_worker_of_row(worker_of)
    network = connect_workers(make_graph("star", 4), secure_sum=masked)
    seen = kind(network.total, agent)
    if kind is Liar:
        seen.aim(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        kmeans_rows(X, workers, replace(network, total=seen), n_clusters=2, seed=0,
                    max_iter=max_iter)  # fmt: skip
    return seen


def _off(guess: Matrix, X: Matrix) -> str:
    """Say how far from a guess the nearest row is: in words, or by the largest relative error."""
    off = float((np.abs(X - guess) / np.abs(X).max(axis=0)).max(axis=1).min())
    return "exact" if off < 1e-6 else f"off by {off:.1g}"


def of_noise(too_small: int = 1) -> str:
    """Return a lower bound of an epsilon of 4, by 5,000 sums with and without a row.

    The audit of whole fits is `benchmarks.audit`.
    """
    budget, runs, unit = Budget(4.0, 1e-3), 5000, 2.0**-20
    scales = np.full(runs, int(budget.multipliers([1.0])[0] / unit))
    values = np.zeros((2, runs))
    values[1] = 1.0  # as far as a row may move it
    found = [
        Audited(ServerSum(2), there, too_small).add(values, scales, unit)
        for there in (False, True)
    ]  # fmt: skip
    return f"{lower_bound(found[0], found[1], budget.delta):.1f}"


def promised(who: str, colluding: int = 1) -> str:
    """Return the epsilon of a row against somebody, of 4 asked for, where workers add noise."""
    made = Guarantee(
        Budget(4.0, 1e-6), (Budget(4.0, 1e-6).multiplier,), "workers", False, 4, colluding
    )
    return f"{made.against()[who]['add_or_remove']:.2f}"


ATTACKS: dict[str, Callable[[], str]] = {
    "means that are a row, features": lambda: means_of_one_row(0.5),
    "means that are a row, of 5 rows or more": lambda: means_of_one_row(5),
    "means that are a row, over rows": lambda: means_of_one_row(0.5, over_rows=True),
    "means that are a row, over rows, of 5 rows or more": lambda: means_of_one_row(
        5, over_rows=True
    ),
    "a column of the messages": lambda: of_a_column("sent", False),
    "a column of masked messages": lambda: of_a_column("sent", True),
    "a column of the totals": lambda: of_a_column("learnt", False),
    "a column of totals of masked messages": lambda: of_a_column("learnt", True),
    "a column by all others": lambda: of_a_column("left", False),
    "a column by all others, masked": lambda: of_a_column("left", True),
    "a worker's only row": lambda: of_one_row("sent", False),
    "a worker's only row, masked": lambda: of_one_row("sent", True),
    "a worker's only row by all others": lambda: of_one_row("left", False),
    "a worker's only row by all others, masked": lambda: of_one_row("left", True),
    "a row that changes its cluster": lambda: of_two_totals(False),
    "a row that changes its cluster, masked": lambda: of_two_totals(True),
    "a row that a server looks for": of_a_lie,
    "epsilon at least, of 4": of_noise,
    "epsilon at least, of a third of the noise": lambda: of_noise(3),
    "epsilon against a worker": lambda: promised("worker"),
    "epsilon against the server": lambda: promised("server"),
    "epsilon against two workers": lambda: promised("2 workers", colluding=2),
}
"""By what is learnt: returns it as a figure."""


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
    """Print what each attack finds, or the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--column", action="store_true")
    given = parser.parse_args(words)
    if not given.column:
        for name, attack in ATTACKS.items():
            print(f"{name:<45} {attack()}", flush=True)
        return 0
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
