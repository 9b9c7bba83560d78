"""Table 1 and Figure 7 of the VP-EM paper: clustering pulsar candidates (HTRU2)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem import Fit, make_graph, read_dataset
from vpem.files.datasets import Dataset
from vpem.files.examples import fetch
from vpem.fits.answer import compare
from vpem.fits.feature_kmeans import kmeans_features
from vpem.network.partition import contiguous, from_lists
from vpem.sums.connect import Network, connect

from ..problems import one_block, quietly
from .runs import ROUNDS, fit, quiet_connect

SIZES: dict[str, dict[str, Any]] = {
    "small": {"graphs": 2, "seeds": 1, "components": [2, 3], "max_iter": 60, "draws": 5},
    "full": {"graphs": 60, "seeds": 10, "components": [2, 3, 4, 5, 6, 7, 8], "max_iter": 2000,
             "draws": 300},
}  # fmt: skip

SETUPS = {"VP1": "cycle", "VP2": "geometric", "VP3": "scale-free"}
"""As the paper calls them."""

STARTS = {
    "kmeans": {"init": "kmeans"},
    "k-means++": {"init": "k-means++"},
    "random rows": {"init": "random"},
    "kmeans, standardized": {"init": "kmeans", "scale": "standard"},
}
"""Of two components. Standardizing changes the start alone: blocks are full."""

MORE_STARTS = {
    "kmeans": STARTS["kmeans"],
    "k-means++": STARTS["k-means++"],
    "kmeans, standardized": STARTS["kmeans, standardized"],
    "k-means++, standardized": {"init": "k-means++", "scale": "standard"},
}
"""Of more components."""

TOL = 1e-7
LABELLED = (10, 20, 50, 100, 200, 500)


def load(given: Path | None) -> Dataset:
    """Return the data: downloaded, or from a CSV, zip or HDF5 file."""
    if given is not None and given.suffix == ".h5":
        return read_dataset(given)
    return quietly(fetch, "htru2", given)[0]


def judged(truth: NDArray[Any], clusters: NDArray[Any], k: int) -> dict[str, float]:
    """Hold clusters against labels: one to one, by majority, and how many positives are found."""
    found = compare(truth, clusters, k)
    one_to_one = np.array([found.mapping.get(c, found.classes[0]) for c in range(k)])[clusters]
    rare = found.classes[np.argmin(found.confusion.sum(axis=1))]
    hits = float((one_to_one[truth == rare] == rare).mean())
    named = one_to_one == rare
    return {
        "accuracy": found.accuracy,
        "majority accuracy": float(found.confusion.max(axis=0).sum() / len(truth)),
        "adjusted Rand index": found.adjusted_rand_index,
        "positives found": hits,
        "precision": float((truth[named] == rare).mean()) if named.any() else 0.0,
    }


def of_fit(found: Fit, data: Dataset) -> dict[str, Any]:
    """Return what is kept of a fit of a mixture."""
    clusters = found.mixture.predict(data.X)
    return {
        **judged(data.labels, clusters, found.mixture.n_components),
        "log-likelihood": found.log_likelihood,
        "BIC": found.bic,
        "iterations": found.n_iter,
        "converged": found.converged,
    }


def setup(topology: str, number: int, d: int) -> tuple[Network, str]:
    """Connect one agent a feature: even numbers in the order of the file, odd ones shuffled.

    Preferential attachment of 3 or of 4 links an agent makes mean degrees of 3.75 and 4: both are
    taken, as the paper says "4".
    """
    rng = np.random.default_rng([number, 71])
    order = np.arange(d) if number % 2 == 0 else rng.permutation(d)
    held = from_lists([[int(feature)] for feature in order], d)
    degree = 3.75 if topology == "scale-free" and number % 4 >= 2 else 4.0
    more = {} if topology == "cycle" else {"mean_degree": degree}
    graph = make_graph(topology, d, seed=number, **more)
    plain = {"hops": 1, "n_rounds": ROUNDS, "acceleration": "none", "seed": number}
    network = quiet_connect(graph, held, **plain)
    hubs = sorted(sorted(map(int, block)) for block in network.blocks.features)
    return network, " ".join("".join(map(str, hub)) for hub in hubs)


def kmeans_runs(data: Dataset, size: dict[str, Any], threads: int) -> Iterator[dict[str, Any]]:
    """Cluster all features together, raw and standardized, and in one shot over parties."""
    d = data.n_features
    star = connect(make_graph("star", d), contiguous(d, d), hops=0)
    for scale in ("none", "standard"):
        for seed in range(size["seeds"]):
            for method, network, init in (
                ("lloyd", one_block(d), "k-means++"),
                ("lloyd", one_block(d), "random"),
                ("grid", star, "k-means++"),
            ):
                found = quietly(
                    kmeans_features, data.X, network, method=method, n_clusters=2, init=init,
                    scale=scale, seed=seed, n_threads=threads,
                )  # fmt: skip
                yield {
                    "method": "k-means" if method == "lloyd" else "one-shot k-means",
                    "scale": scale, "start": init, "seed": seed,
                    **judged(data.labels, found.labels, 2), "inertia": found.inertia,
                }  # fmt: skip


def scikit_runs(data: Dataset, size: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Fit by scikit-learn's GaussianMixture as it comes."""
    from sklearn.mixture import GaussianMixture

    for seed in range(min(3, size["seeds"])):
        found = GaussianMixture(2, random_state=seed).fit(data.X)
        yield {"method": "scikit-learn EM", "start": "kmeans", "seed": seed,
               **judged(data.labels, found.predict(data.X), 2),
               "log-likelihood": float(found.score(data.X)),
               "iterations": found.n_iter_}  # fmt: skip


def classified(X: NDArray[Any], truth: NDArray[Any], draws: int) -> list[Any]:
    """Train a classifier on the same few labelled rows: logistic regression, all features."""
    from sklearn.linear_model import LogisticRegression

    Z = (X - X.mean(axis=0)) / X.std(axis=0)

    def names(rows: NDArray[np.intp]) -> NDArray[Any]:
        if len(np.unique(truth[rows])) < 2:
            return np.full(len(truth), truth[rows[0]])
        return LogisticRegression(max_iter=1000).fit(Z[rows], truth[rows]).predict(Z)

    return over_draws(names, truth, draws)


def over_draws(names: Callable[..., Any], truth: NDArray[Any], draws: int) -> list[Any]:
    """Name all rows by some that are labelled: accuracy over draws of these, the same for all."""
    rng = np.random.default_rng(72)
    out = []
    for count in LABELLED:
        scores = []
        for _ in range(draws):
            rows = rng.choice(len(truth), min(count, len(truth)), replace=False)
            scores.append(float((names(rows) == truth).mean()))
        middle, low, high = np.percentile(scores, [50, 10, 90]).tolist()
        out.append({"labels": count, "median": middle, "low": low, "high": high})
    return out


def labelled(clusters: NDArray[Any], truth: NDArray[Any], k: int, draws: int) -> list[Any]:
    """Name components by the majority of their few labelled rows; by the commonest, of none."""

    def names(rows: NDArray[np.intp]) -> NDArray[Any]:
        votes = np.zeros((k, truth.max() + 1))
        np.add.at(votes, (clusters[rows], truth[rows]), 1)
        chosen = votes.argmax(axis=1)
        chosen[votes.sum(axis=1) == 0] = votes.sum(axis=0).argmax()
        return chosen[clusters]

    return over_draws(names, truth, draws)


def measure(options: Any) -> dict[str, Any]:
    """Cluster by every method over graphs, features' places, and starts."""
    size = SIZES[options.size]
    data = load(options.given)
    d, threads = data.n_features, options.threads
    common = {"tol": TOL, "max_iter": size["max_iter"], "n_threads": threads}

    def say(what: str) -> None:
        print(f"table1: {what}", file=sys.stderr, flush=True)

    runs = list(kmeans_runs(data, size, threads))
    say("k-means is done")
    runs += scikit_runs(data, size)
    star = connect(make_graph("star", d), contiguous(d, d), hops=0)
    for name, network in (("EM", one_block(d)), ("0 hops", star)):
        for seed in range(size["seeds"]):
            for start, how in STARTS.items():
                one = fit(data.X, network, seed=seed, **how, **common)
                runs.append({"method": name, "start": start, "seed": seed, **of_fit(one, data)})
        say(f"{name} is done")
    for name, topology in SETUPS.items():
        for number in range(size["graphs"]):
            network, hubs = setup(topology, number, d)
            for start, how in STARTS.items():
                one = fit(data.X, network, seed=number, **how, **common)
                runs.append({
                    "method": name, "start": start, "seed": number, "hubs": hubs,
                    "shuffled": bool(number % 2), "mean degree": network.graph.mean_degree,
                    "consensus error": network.consensus_error, **of_fit(one, data),
                })  # fmt: skip
        say(f"{name} is done")
    by_k: list[dict[str, Any]] = []
    few = {"classifier": classified(data.X, data.labels, size["draws"])}
    cycle, _ = setup("cycle", 0, d)
    for k in size["components"]:
        for name, network in (("EM", one_block(d)), ("VP1", cycle), ("0 hops", star)):
            for start, how in MORE_STARTS.items():
                for seed in range(min(3, size["seeds"])):
                    one = fit(data.X, network, n_components=k, seed=seed, **how, **common)
                    by_k.append({"method": name, "k": k, "start": start, "seed": seed,
                                 **of_fit(one, data)})  # fmt: skip
                    if name == "VP1" and start == "kmeans, standardized" and seed == 0:
                        clusters = one.mixture.predict(data.X)
                        few[str(k)] = labelled(clusters, data.labels, k, size["draws"])
        say(f"K = {k} is done")
    counts = np.unique(data.labels, return_counts=True)[1]
    return {
        "size": options.size, **size, "samples": data.n_samples,
        "share of the larger class": float(counts.max() / data.n_samples),
        "runs": runs, "by k": by_k, "few labels": few,
        "names": list(data.feature_names),
    }  # fmt: skip
