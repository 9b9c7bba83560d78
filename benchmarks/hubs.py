"""Hubs by likelihood against hubs by size: ``python -m benchmarks.hubs [--pulsars FILE]``.

On graphs of 8 agents and 1 hop, 20 of each topology, the same fit with either hubs: accuracy,
adjusted Rand index, log-likelihood per sample and BIC, paired by graph. On every other graph
features are dealt out at random, as in `benchmarks.paper.table1`.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vpem import VpemWarning, connect, fit_vpem, make_graph, read_dataset
from vpem.fits.answer import compare
from vpem.fits.likely_hubs import connect_by_likelihood
from vpem.network.partition import from_lists
from vpem.settings import FitSettings, SumSettings

from .measure import Options
from .problems import mixture_rows

FOLDER = Path(__file__).parents[1] / "data"
TOPOLOGIES = ("cycle", "geometric", "erdos-renyi")
N_AGENTS = 8
MEAN_DEGREE = 3.0
MEASURES = ("accuracy", "ARI", "log-likelihood", "BIC")


def data(pulsars: Path | None, tiny: bool) -> Iterator[tuple[str, Any, Any, int]]:
    """Yield names, rows, labels and numbers of components."""
    wine = read_dataset(FOLDER / "wine.h5")
    yield "wine", wine.X, wine.labels, 3
    if tiny:
        return
    cancer = read_dataset(FOLDER / "breast_cancer.h5")
    yield "breast cancer", cancer.X, cancer.labels, 2
    yield "made, 2,000 x 24", mixture_rows(2000, 24, 3, 0.8), None, 3
    if pulsars is not None:
        table = np.loadtxt(pulsars, delimiter=",")
        yield "pulsars", np.ascontiguousarray(table[:, :-1]), table[:, -1].astype(int), 2


def judged(X: Any, labels: Any, network: Any, how: FitSettings) -> list[float]:
    """Fit, and return the measures; nan where there are no labels."""
    fit = fit_vpem(X, network, how)
    against = [np.nan, np.nan]
    if labels is not None:
        found = compare(labels, fit.mixture.predict(X), how.n_components)
        against = [100 * found.accuracy, found.adjusted_rand_index]
    return [*against, fit.log_likelihood, fit.bic]


def pair(
    X: Any, labels: Any, n_components: int, topology: str, seed: int, threads: int
) -> tuple[list[float], list[float]]:
    """Return the measures of a fit with hubs by size and by likelihood, on one graph."""
    d = X.shape[1]
    order = np.arange(d) if seed % 2 == 0 else np.random.default_rng([seed, 71]).permutation(d)
    held = from_lists([part.tolist() for part in np.array_split(order, N_AGENTS)], d)
    more = {} if topology == "cycle" else {"mean_degree": MEAN_DEGREE}
    graph = make_graph(topology, N_AGENTS, seed=seed, **more)
    how = FitSettings(n_components=n_components, max_iter=2000, seed=seed, n_threads=threads)
    sums = SumSettings(hops=1, sum="tree", seed=seed)
    networks = (
        connect(graph, held, sums),
        connect_by_likelihood(X, graph, held, sums.changed(hubs="likelihood"), how),
    )
    by_size, by_likelihood = (judged(X, labels, network, how) for network in networks)
    return by_size, by_likelihood


def measure(options: Options, pulsars: Path | None = None) -> Iterator[dict[str, Any]]:
    """Yield a row for each data set and topology."""
    tiny = options.size == "small"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        for name, X, labels, k in data(pulsars, tiny):
            for topology in TOPOLOGIES[:1] if tiny else TOPOLOGIES:
                both = np.array(
                    [
                        pair(X, labels, k, topology, seed, options.threads)
                        for seed in range(2 if tiny else 20)
                    ]
                )
                yield {"data": name, "topology": topology, **_told(both)}


def _told(both: Any) -> dict[str, Any]:
    """Return means and, of likelihood over size, wins and losses of measures (n, 2, 4)."""
    found: dict[str, Any] = {"graphs": len(both)}
    for place, what in enumerate(MEASURES):
        size, likelihood = both[:, 0, place], both[:, 1, place]
        if np.isnan(size).all():
            continue
        least = 1e-6 * np.abs(size)
        rise = (size - likelihood) if what == "BIC" else (likelihood - size)
        found[what] = {
            "size": float(size.mean()),
            "likelihood": float(likelihood.mean()),
            "better": int((rise > least).sum()),
            "worse": int((rise < -least).sum()),
            "worst": float(rise.min()),
        }
    return found


def table(found: list[dict[str, Any]]) -> str:
    """Return the rows as a table of Markdown."""
    lines = [
        "| data, graphs | "
        + " | ".join(f"{what}: size, likelihood; better-worse" for what in MEASURES)
        + " |",
        "|---|" + "---|" * len(MEASURES),
    ]
    for row in found:
        cells = []
        for what in MEASURES:
            one = row.get(what)
            if one is None:
                cells.append("-")
                continue
            digits = {"accuracy": 2, "BIC": 0}.get(what, 3)
            means = ", ".join(f"{one[way]:,.{digits}f}" for way in ("size", "likelihood"))
            cells.append(f"{means}; {one['better']}-{one['worse']}")
        lines.append(
            f"| {row['data']}, {row['graphs']} {row['topology']} | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pulsars", type=Path, help="CSV of HTRU2; its last column is the class")
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    print(table(list(measure(Options(given.size, threads=given.threads), given.pulsars))))
