"""Gaussian mixtures from data that cannot be pooled: EM with one distributed sum.

The public names are loaded when they are first used, so that ``import vpem`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Blocks": "vpem.network.blocks",
    "Clustering": "vpem.fits.clustering",
    "Dataset": "vpem.files.datasets",
    "DistributedGaussianMixture": "vpem.fits.estimators.row_estimators",
    "DistributedKMeans": "vpem.fits.estimators.clustering",
    "FedEM": "vpem.fits.estimators.federated",
    "FedMissEM": "vpem.fits.estimators.completion",
    "FileError": "vpem.errors",
    "Fit": "vpem.fits.vpem",
    "FedMixtureSettings": "vpem.settings",
    "FitSettings": "vpem.settings",
    "Graph": "vpem.network.graph",
    "ImputeSettings": "vpem.fits.settings",
    "InputError": "vpem.errors",
    "KmeansSettings": "vpem.settings",
    "SaemSettings": "vpem.settings",
    "Mixture": "vpem.terms.mixture",
    "Model": "vpem.files.models",
    "NotConvergedWarning": "vpem.convergence",
    "NumericalError": "vpem.errors",
    "Partition": "vpem.network.holdings",
    "Party": "vpem.files.parties.manifest",
    "PrivacySettings": "vpem.fits.settings",
    "SaemModel": "vpem.saem.models.model",
    "SumSettings": "vpem.settings",
    "TableSettings": "vpem.files.table_settings",
    "VPEM": "vpem.fits.estimators.mixtures",
    "VpemError": "vpem.errors",
    "VpemWarning": "vpem.errors",
    "Workers": "vpem.network.holdings",
    "choose_parties": "vpem.files.parties.manifest",
    "connect": "vpem.sums.connect",
    "connect_workers": "vpem.sums.connect",
    "example_path": "vpem.files.examples",
    "find_hubs": "vpem.network.hubs",
    "fit_em": "vpem.fits.rows",
    "fit_fedem": "vpem.fits.fedem",
    "fit_imputation": "vpem.fits.imputation",
    "fit_saem": "vpem.saem.fit",
    "fit_vpem": "vpem.fits.vpem",
    "join_parties": "vpem.files.parties.joining",
    "kmeans_features": "vpem.fits.feature_kmeans",
    "kmeans_rows": "vpem.fits.row_kmeans",
    "load": "vpem.pictures.public",
    "make_graph": "vpem.network.topologies",
    "mixing_matrix": "vpem.network.mixing",
    "mixing_rate": "vpem.network.mixing",
    "observe_parties": "vpem.files.parties.observing",
    "plot": "vpem.pictures.public",
    "read_dataset": "vpem.files.data",
    "read_individuals": "vpem.saem.formats.individuals",
    "read_model": "vpem.files.models",
    "read_observations": "vpem.files.observations",
    "read_saem": "vpem.saem.formats.fits",
    "report": "vpem.pictures.public",
    "save_saem": "vpem.saem.formats.fits",
    "stack_parties": "vpem.files.parties.joining",
    "write_dataset": "vpem.files.datasets",
    "write_model": "vpem.files.models",
    "write_observations": "vpem.files.observations",
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
