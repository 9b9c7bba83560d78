"""Gaussian mixtures from data that cannot be pooled: EM with one distributed sum.

The public names are loaded when they are first used, so that ``import vpem`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Blocks": "vpem.blocks",
    "Clustering": "vpem.clusters.clusterings",
    "Dataset": "vpem.files.datasets",
    "DistributedGaussianMixture": "vpem.estimators.row_estimators",
    "DistributedKMeans": "vpem.estimators.clustering",
    "FedEM": "vpem.estimators.federated",
    "FedMissEM": "vpem.estimators.completion",
    "FileError": "vpem.errors",
    "Fit": "vpem.recipes",
    "Graph": "vpem.graphs.graph",
    "InputError": "vpem.errors",
    "Mixture": "vpem.mixture",
    "Model": "vpem.files.models",
    "NotConvergedWarning": "vpem.errors",
    "NumericalError": "vpem.errors",
    "Partition": "vpem.partition",
    "Party": "vpem.parties.manifest",
    "SaemModel": "vpem.saem.models.protocol",
    "VPEM": "vpem.estimators.mixtures",
    "VpemError": "vpem.errors",
    "VpemWarning": "vpem.errors",
    "Workers": "vpem.workers",
    "choose_parties": "vpem.parties.manifest",
    "connect": "vpem.joining",
    "connect_workers": "vpem.joining",
    "find_hubs": "vpem.graphs.hubs",
    "fit_em": "vpem.row_split.row_recipes",
    "fit_fedem": "vpem.federated.fedmixture",
    "fit_imputation": "vpem.imputing.imputation",
    "fit_saem": "vpem.saem.recipes",
    "fit_vpem": "vpem.recipes",
    "join_parties": "vpem.parties.opening",
    "kmeans_features": "vpem.clusters.kmeans",
    "kmeans_rows": "vpem.clusters.kmeans",
    "make_graph": "vpem.graphs.topologies",
    "mixing_matrix": "vpem.graphs.mixing",
    "mixing_rate": "vpem.graphs.mixing",
    "read_dataset": "vpem.files.datasets",
    "read_individuals": "vpem.saem.individual_files",
    "read_model": "vpem.files.models",
    "read_observations": "vpem.imputing.observation_files",
    "read_saem": "vpem.saem.model_files",
    "save_saem": "vpem.saem.model_files",
    "stack_parties": "vpem.parties.opening",
    "write_dataset": "vpem.files.datasets",
    "write_model": "vpem.files.models",
    "write_observations": "vpem.imputing.observation_files",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'vpem' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
