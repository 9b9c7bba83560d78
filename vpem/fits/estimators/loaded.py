"""Estimators of what files keep: fitted, and with the parameters that the file tells."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import numpy as np

from vpem.files.datasets import default_names
from vpem.files.models import Model
from vpem.files.results import StoredClustering
from vpem.fits.estimators.base import OnGraph
from vpem.fits.estimators.clustering import DistributedKMeans
from vpem.fits.estimators.fitted import FittedMixture
from vpem.fits.estimators.mixtures import VPEM
from vpem.fits.estimators.rows import DistributedGaussianMixture, FedEM
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


def estimator_of(stored: Model | StoredClustering) -> OnGraph:
    """Return a fitted estimator of a model or a clustering.

    Parameters
    ----------
    stored : Model or StoredClustering
        What is in the file.

    Returns
    -------
    VPEM, DistributedGaussianMixture, FedEM or DistributedKMeans
        It predicts, scores, is drawn and saved as before. Of parameters that a file cannot hold,
        such as graphs, it has the defaults.
    """
    if isinstance(stored, StoredClustering):
        return _clustering(stored)
    report = stored.report
    kind = OF_ALGORITHM.get(str(report.get("algorithm")), VPEM)
    made = _made(FedEM if "participation" in report else kind, stored.options, report)
    single = stored.options.get("dtype") == "float32"
    made._stored = stored
    made._in_their_precision(stored.mixture, np.dtype(np.float32 if single else np.float64))
    _name(made, stored.feature_names)
    made.converged_ = bool(report.get("converged"))
    made.n_iter_ = int(report.get("n_iter") or 0)
    if isinstance(made, FedEM):
        made.lower_bound_ = _number(report, "log_likelihood")
        return made
    history = stored.history if stored.root_history is None else stored.root_history
    made.history_ = history
    total = mean_over_roots(history[-1]) if len(history) else float("nan")
    made.lower_bound_ = total / _number(report, "total_weight")
    return made


def _number(report: Report, name: str) -> float:
    """Return what a report tells, or nan."""
    value = report.get(name)
    good = isinstance(value, int | float) and value > -np.inf
    return float(value) if good and value is not None else float("nan")


def _clustering(stored: StoredClustering) -> DistributedKMeans:
    made = _made(DistributedKMeans, stored.options, stored.report)
    made._stored = stored
    made._place(stored.centres, stored.scaling, np.dtype(np.float64))
    _name(made, stored.feature_names)
    made.labels_ = stored.labels
    made.inertia_ = _number(stored.report, "inertia")
    made.n_iter_ = int(stored.report.get("n_iter") or 0)
    return made


def _made(kind: type[E], options: Report, report: Report) -> E:
    """Return an estimator with the parameters that are told in so many words."""
    known = inspect.signature(kind.__init__).parameters
    told = {CALLED.get(name, name): value for name, value in options.items() if value is not None}
    given = {
        name: value for name, value in told.items()
        if name in known and _fits(name, value, known[name].default)
    }  # fmt: skip
    agents, names = report.get("partition"), report.get("agent_names")
    if (
        "agents" in known
        and "agents" not in given
        and isinstance(agents, list)
        and isinstance(names, list)
    ):
        called = report.get("feature_names")
        own = isinstance(called, list) and tuple(called) != default_names(len(called))
        shown = called if own and called is not None else range(len(agents))
        given["agents"] = {
            str(name): [one for one, agent in zip(shown, agents, strict=False) if agent == number]
            for number, name in enumerate(names)
        }
    return kind(**given)


def _fits(name: str, value: Any, default: Any) -> bool:
    """Whether what a file tells of a parameter can be one; names of types stand for objects."""
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


def _name(made: OnGraph, feature_names: tuple[str, ...]) -> None:
    """Give it the names of the features, unless these have none of their own."""
    made.n_features_in_ = len(feature_names)
    if feature_names != default_names(len(feature_names)):
        made.feature_names_in_ = np.array(feature_names, dtype=object)
