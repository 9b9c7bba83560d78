"""Gaussian mixtures from data that cannot be pooled: EM with one distributed sum.

The public names are loaded when they are first used, so that ``import vpem`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Blocks": "vpem.blocks",
    "Clustering": "vpem.clusterings",
    "Dataset": "vpem.datasets",
    "DistributedGaussianMixture": "vpem.row_estimators",
    "DistributedKMeans": "vpem.clustering",
    "FedEM": "vpem.federated",
    "FedMissEM": "vpem.completion",
    "FileError": "vpem.errors",
    "Fit": "vpem.recipes",
    "Graph": "vpem.graph",
    "InputError": "vpem.errors",
    "Mixture": "vpem.mixture",
    "Model": "vpem.models",
    "NotConvergedWarning": "vpem.errors",
    "NumericalError": "vpem.errors",
    "Partition": "vpem.partition",
    "Party": "vpem.manifest",
    "VPEM": "vpem.estimators",
    "VpemError": "vpem.errors",
    "VpemWarning": "vpem.errors",
    "Workers": "vpem.workers",
    "choose_parties": "vpem.manifest",
    "connect": "vpem.joining",
    "connect_workers": "vpem.joining",
    "find_hubs": "vpem.hubs",
    "fit_em": "vpem.row_recipes",
    "fit_fedem": "vpem.fedmixture",
    "fit_imputation": "vpem.imputation",
    "fit_vpem": "vpem.recipes",
    "join_parties": "vpem.parties",
    "kmeans_features": "vpem.kmeans",
    "kmeans_rows": "vpem.kmeans",
    "make_graph": "vpem.topologies",
    "mixing_matrix": "vpem.mixing",
    "mixing_rate": "vpem.mixing",
    "read_dataset": "vpem.datasets",
    "read_model": "vpem.models",
    "read_observations": "vpem.observation_files",
    "stack_parties": "vpem.parties",
    "write_dataset": "vpem.datasets",
    "write_model": "vpem.models",
    "write_observations": "vpem.observation_files",
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
