"""Estimators of what files keep: fitted, and with the parameters that the file names."""

from __future__ import annotations

import inspect
from typing import TypeVar

import numpy as np

from vpem.files.datasets import default_names
from vpem.files.models import Model
from vpem.files.results import StoredClustering
from vpem.fits.estimators.base import OnGraph
from vpem.fits.estimators.clustering import DistributedKMeans
from vpem.fits.estimators.mixtures import VPEM, DistributedGaussianMixture, FedEM, FittedMixture
from vpem.network.schema import Report
from vpem.settings import TOPOLOGIES
from vpem.steps.runs import mean_over_roots

E = TypeVar("E", bound=OnGraph)

CALLED = {
    "clusters": "n_clusters",
    "components": "n_components",
    "concentration": "weight_concentration_prior",
    "covariance": "covariance_type",
    "degrees_of_freedom": "degrees_of_freedom_prior",
    "mean_precision": "mean_precision_prior",
    "prior": "weight_concentration_prior_type",
    "rounds": "n_rounds",
    "seed": "random_state",
    "threads": "n_threads",
    "topology": "graph",
}
"""What a shell's options are called here."""

OF_ALGORITHM: dict[str, type[FittedMixture]] = {"em-rows": DistributedGaussianMixture}
"""Estimators of mixtures by what their reports say; FedEM's have a participation, others are VPEM.
"""


def estimator_of(stored: Model) -> OnGraph:
    """Return a fitted estimator of a model in a file.

    It predicts, scores, is drawn and saved as before. Of parameters that a file cannot hold, such
    as graphs, it has the defaults.
    """
    report = stored.report
    federated = "participation" in report
    kind = FedEM if federated else OF_ALGORITHM.get(str(report.get("algorithm")), VPEM)
    estimator = _create(kind, stored.options, report)
    single = stored.options.get("dtype") == "float32"
    estimator._stored = stored
    estimator._in_their_precision(stored.mixture, np.dtype(np.float32 if single else np.float64))
    _name(estimator, stored.feature_names)
    estimator.converged_ = bool(report.get("converged"))
    estimator.n_iter_ = int(report.get("n_iter") or 0)
    if federated:
        estimator.lower_bound_ = _number(report, "log_likelihood")
        return estimator
    history = stored.history if stored.root_history is None else stored.root_history
    estimator.history_ = history
    total = mean_over_roots(history[-1]) if len(history) else float("nan")
    estimator.lower_bound_ = total / _number(report, "total_weight")
    return estimator


def _number(report: Report, name: str) -> float:
    """Return a number of a report, or nan."""
    value = report.get(name)
    good = isinstance(value, int | float) and value > -np.inf
    return float(value) if good and value is not None else float("nan")


def kmeans_of(stored: StoredClustering) -> DistributedKMeans:
    """Return a fitted estimator of a clustering in a file; see `estimator_of`."""
    estimator = _create(DistributedKMeans, stored.options, stored.report)
    estimator._stored = stored
    estimator._place(stored.centres, stored.scaling, np.dtype(np.float64))
    _name(estimator, stored.feature_names)
    estimator.labels_ = stored.labels
    estimator.inertia_ = _number(stored.report, "inertia")
    estimator.n_iter_ = int(stored.report.get("n_iter") or 0)
    return estimator


def _create(kind: type[E], options: Report, report: Report) -> E:
    known = inspect.signature(kind.__init__).parameters
    named = {CALLED.get(name, name): value for name, value in options.items() if value is not None}
    parameters = {
        name: value for name, value in named.items()
        if name in known and _fits(name, value, known[name].default)
    }  # fmt: skip
    agents, names = report.get("partition"), report.get("agent_names")
    if (
        "agents" in known
        and "agents" not in parameters
        and isinstance(agents, list)
        and isinstance(names, list)
    ):
        called = report.get("feature_names")
        names_given = isinstance(called, list) and tuple(called) != default_names(len(called))
        shown = called if names_given and called is not None else range(len(agents))
        parameters["agents"] = {
            str(name): [one for one, agent in zip(shown, agents, strict=False) if agent == number]
            for number, name in enumerate(names)
        }
    return kind(**parameters)


def _fits(name: str, value: object, default: object) -> bool:
    """Whether what a file says of a parameter can be one; names of types stand for objects."""
    if name == "graph":
        return value in TOPOLOGIES
    if name in ("agents", "workers"):
        return isinstance(value, int | list | dict)
    if name in ("bounds", "known_covariance", "weights_init", "means_init", "precisions_init"):
        return isinstance(value, list)
    if isinstance(default, float):
        return type(value) in (int, float)
    several = ("n_rounds", "init", "n_init")
    return default is None or type(value) is type(default) or name in several


def _name(estimator: OnGraph, feature_names: tuple[str, ...]) -> None:
    estimator.n_features_in_ = len(feature_names)
    if feature_names != default_names(len(feature_names)):
        estimator.feature_names_in_ = np.array(feature_names, dtype=object)
