"""Gaussian mixtures from data that cannot be pooled: EM with one distributed sum.

The public names are loaded when they are first used, so that ``import vpem`` stays light.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:  # the names of `_HOMES`, for those who read types
    from vpem.errors import FileError as FileError
    from vpem.errors import InputError as InputError
    from vpem.errors import NotConvergedWarning as NotConvergedWarning
    from vpem.errors import NumericalError as NumericalError
    from vpem.errors import VpemError as VpemError
    from vpem.errors import VpemWarning as VpemWarning
    from vpem.files.data import read_dataset as read_dataset
    from vpem.files.datasets import Dataset as Dataset
    from vpem.files.datasets import write_dataset as write_dataset
    from vpem.files.examples import example_path as example_path
    from vpem.files.models import Model as Model
    from vpem.files.models import read_model as read_model
    from vpem.files.models import write_model as write_model
    from vpem.files.observations import read_observations as read_observations
    from vpem.files.observations import write_observations as write_observations
    from vpem.files.parties.joining import join_parties as join_parties
    from vpem.files.parties.joining import stack_parties as stack_parties
    from vpem.files.parties.observing import observe_parties as observe_parties
    from vpem.files.parties.opening import Party as Party
    from vpem.files.parties.opening import choose_parties as choose_parties
    from vpem.files.table_settings import TableSettings as TableSettings
    from vpem.files.traces import Trace as Trace
    from vpem.files.traces import read_trace as read_trace
    from vpem.fits.clustering import Clustering as Clustering
    from vpem.fits.contribution import Contribution as Contribution
    from vpem.fits.contribution import contribution as contribution
    from vpem.fits.estimators.clustering import DistributedKMeans as DistributedKMeans
    from vpem.fits.estimators.completion import FedMissEM as FedMissEM
    from vpem.fits.estimators.discriminant import DiscriminantAnalysis as DiscriminantAnalysis
    from vpem.fits.estimators.mixtures import VPEM as VPEM
    from vpem.fits.estimators.mixtures import (
        DistributedGaussianMixture as DistributedGaussianMixture,
    )
    from vpem.fits.estimators.mixtures import FedEM as FedEM
    from vpem.fits.exponential import ExponentialFamily as ExponentialFamily
    from vpem.fits.exponential import fit_family as fit_family
    from vpem.fits.feature_kmeans import kmeans_features as kmeans_features
    from vpem.fits.fedem import fit_fedem as fit_fedem
    from vpem.fits.imputation import fit_imputation as fit_imputation
    from vpem.fits.results import Fit as Fit
    from vpem.fits.row_kmeans import kmeans_rows as kmeans_rows
    from vpem.fits.rows import fit_em as fit_em
    from vpem.fits.settings import ImputeSettings as ImputeSettings
    from vpem.fits.settings import PrivacySettings as PrivacySettings
    from vpem.fits.vpem import fit_vpem as fit_vpem
    from vpem.network.codecs import Codec as Codec
    from vpem.network.graph import Graph as Graph
    from vpem.network.graph import make_graph as make_graph
    from vpem.network.hubs import find_hubs as find_hubs
    from vpem.network.mixing import mixing_matrix as mixing_matrix
    from vpem.network.mixing import mixing_rate as mixing_rate
    from vpem.network.partition import Blocks as Blocks
    from vpem.network.partition import Partition as Partition
    from vpem.network.partition import Workers as Workers
    from vpem.pictures.public import load as load
    from vpem.pictures.public import plot as plot
    from vpem.pictures.public import report as report
    from vpem.saem.fit import fit_saem as fit_saem
    from vpem.saem.formats.fits import read_saem as read_saem
    from vpem.saem.formats.fits import save_saem as save_saem
    from vpem.saem.formats.individuals import read_corpus as read_corpus
    from vpem.saem.formats.individuals import read_individuals as read_individuals
    from vpem.saem.formats.individuals import write_corpus as write_corpus
    from vpem.saem.models.model import SaemModel as SaemModel
    from vpem.settings import FedMixtureSettings as FedMixtureSettings
    from vpem.settings import FitSettings as FitSettings
    from vpem.settings import KmeansSettings as KmeansSettings
    from vpem.settings import SaemSettings as SaemSettings
    from vpem.settings import SumSettings as SumSettings
    from vpem.sums.connect import connect as connect
    from vpem.sums.connect import connect_workers as connect_workers
    from vpem.terms.families.covariates import logit_coefficients as logit_coefficients
    from vpem.terms.families.covariates import logit_errors as logit_errors
    from vpem.terms.families.kinds import Kinds as Kinds
    from vpem.terms.merging import Merging as Merging
    from vpem.terms.merging import merge_components as merge_components
    from vpem.terms.mixture import Mixture as Mixture
    from vpem.terms.three_step import three_step as three_step

__version__ = "0.1.0"

_HOMES = {
    name: home
    for home, names in {
        "vpem.errors": (
            "FileError",
            "InputError",
            "NotConvergedWarning",
            "NumericalError",
            "VpemError",
            "VpemWarning",
        ),
        "vpem.files.data": ("read_dataset",),
        "vpem.files.datasets": ("Dataset", "write_dataset"),
        "vpem.files.examples": ("example_path",),
        "vpem.files.models": ("Model", "read_model", "write_model"),
        "vpem.files.observations": ("read_observations", "write_observations"),
        "vpem.files.parties.joining": ("join_parties", "stack_parties"),
        "vpem.files.parties.observing": ("observe_parties",),
        "vpem.files.parties.opening": ("Party", "choose_parties"),
        "vpem.files.table_settings": ("TableSettings",),
        "vpem.files.traces": ("Trace", "read_trace"),
        "vpem.fits.clustering": ("Clustering",),
        "vpem.fits.contribution": ("Contribution", "contribution"),
        "vpem.fits.estimators.clustering": ("DistributedKMeans",),
        "vpem.fits.estimators.completion": ("FedMissEM",),
        "vpem.fits.estimators.discriminant": ("DiscriminantAnalysis",),
        "vpem.fits.estimators.mixtures": ("DistributedGaussianMixture", "FedEM", "VPEM"),
        "vpem.fits.exponential": ("ExponentialFamily", "fit_family"),
        "vpem.fits.feature_kmeans": ("kmeans_features",),
        "vpem.fits.fedem": ("fit_fedem",),
        "vpem.fits.imputation": ("fit_imputation",),
        "vpem.fits.results": ("Fit",),
        "vpem.fits.row_kmeans": ("kmeans_rows",),
        "vpem.fits.rows": ("fit_em",),
        "vpem.fits.settings": ("ImputeSettings", "PrivacySettings"),
        "vpem.fits.vpem": ("fit_vpem",),
        "vpem.network.codecs": ("Codec",),
        "vpem.network.graph": ("Graph", "make_graph"),
        "vpem.network.hubs": ("find_hubs",),
        "vpem.network.mixing": ("mixing_matrix", "mixing_rate"),
        "vpem.network.partition": ("Blocks", "Partition", "Workers"),
        "vpem.pictures.public": ("load", "plot", "report"),
        "vpem.saem.fit": ("fit_saem",),
        "vpem.saem.formats.fits": ("read_saem", "save_saem"),
        "vpem.saem.formats.individuals": ("read_corpus", "read_individuals", "write_corpus"),
        "vpem.saem.models.model": ("SaemModel",),
        "vpem.settings": (
            "FedMixtureSettings",
            "FitSettings",
            "KmeansSettings",
            "SaemSettings",
            "SumSettings",
        ),
        "vpem.sums.connect": ("connect", "connect_workers"),
        "vpem.terms.families.covariates": ("logit_coefficients", "logit_errors"),
        "vpem.terms.families.kinds": ("Kinds",),
        "vpem.terms.merging": ("Merging", "merge_components"),
        "vpem.terms.mixture": ("Mixture",),
        "vpem.terms.three_step": ("three_step",),
    }.items()
    for name in names
}

__all__ = sorted([*_HOMES, "__version__"])


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            home = import_module(_HOMES[name])
            warns = name == "NotConvergedWarning"  # only who names it waits for scikit-learn
            value = home.scikit_learns_warning() if warns else getattr(home, name)
            globals()[name] = value
            return value
        raise AttributeError(f"module 'vpem' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Moved:
    """Modules that pages once named, found under these names too."""

    homes: ClassVar = {
        "vpem.convergence": "vpem",
        "vpem.fits.estimators.federated": "vpem.fits.estimators.mixtures",
        "vpem.fits.estimators.row_estimators": "vpem.fits.estimators.mixtures",
        "vpem.fits.estimators.rows": "vpem.fits.estimators.mixtures",
        "vpem.fits.private": "vpem.fits.privacy",
        "vpem.network.holdings": "vpem.network.partition",
        "vpem.saem.corpus": "vpem.saem.individuals",
        "vpem.saem.formats.corpora": "vpem.saem.formats.individuals",
        "vpem.saem.structures.own": "vpem.saem.structures.structure",
        "vpem.saem.topics": "vpem.saem.results",
        "vpem.steps.row_batches": "vpem.steps.batches",
        "vpem.sums.spread": "vpem.sums.connect",
        "vpem.sums.tree": "vpem.sums.compressed_server",
        "vpem.idle": "vpem.rules",
        "vpem.table": "vpem.rules",
    }

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a module that has moved, with a warning that says where it is."""
        if name not in cls.homes:
            return None
        warnings.warn(f"{name} is {cls.homes[name]} now", DeprecationWarning, stacklevel=2)
        return ModuleSpec(name, cls)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Let the module be made as usual."""

    @classmethod
    def exec_module(cls, module: ModuleType) -> None:
        """Give it the names of the module that has them now."""
        home = import_module(cls.homes[module.__name__])
        names = {name: value for name, value in vars(home).items() if name[:2] != "__"}
        vars(module).update(names, __getattr__=lambda name: getattr(home, name))


sys.meta_path.append(_Moved)
