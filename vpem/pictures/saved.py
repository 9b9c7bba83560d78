"""Files of fits that pictures are drawn of: one class for each kind."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.errors import FileError, InputError
from vpem.files import clusterings, models
from vpem.files.clusterings import StoredClustering, read_clustering
from vpem.files.hdf5 import open_read, read_attribute
from vpem.files.model_exports import assembled
from vpem.files.models import Model, read_model
from vpem.network.hubs import Hub
from vpem.pictures.families import mixed_parts
from vpem.pictures.reported import History, Parts, Saved, SavedFit, numbers
from vpem.saem.formats import FIT
from vpem.terms.families.mixture import MixedMixture
from vpem.terms.mixture import Mixture

if TYPE_CHECKING:
    from vpem.saem.saved import SavedSaem
    from vpem.saem.topics import Topics


@dataclass
class SavedLatents(Saved):
    """A fit of SAEM."""

    stored: SavedSaem

    holds = "a fit of SAEM"
    plural = "fits of SAEM"
    units = "individuals"


@dataclass
class SavedTopics(Saved):
    """Topics of a corpus."""

    stored: Topics

    holds = "topics"
    plural = "topics"
    units = "documents"


@dataclass
class SavedMixture(SavedFit):
    """A model."""

    stored: Model

    holds = "a mixture"
    plural = "mixtures"
    noun = "component"
    heading = "Mixing weights and means"
    centre = "mean of"
    judged_by: ClassVar = {
        "log_likelihood": "log-likelihood per sample (nats)",
        "penalised_log_likelihood": "penalised log-likelihood per sample (nats)",
        "bic": "BIC (less is better)",
        "aic": "AIC (less is better)",
    }

    @property
    def mixture(self) -> Mixture:
        """The parameters."""
        mixture: Mixture = self.stored.mixture
        return mixture

    @property
    def n_components(self) -> int:
        """Components, K."""
        return self.mixture.n_components

    def parts(self) -> Parts:
        """Return weights, means and covariances in the user's units."""
        one, mixture = assembled(self.stored), self.mixture
        if isinstance(mixture, MixedMixture):
            return mixed_parts(mixture)
        k, d = mixture.n_components, mixture.n_features
        if mixture.is_diagonal and not mixture.n_factors:
            scaled = np.broadcast_to(mixture.covariances, (k, d))[:, mixture.blocks.position]
            return Parts(one["weights"], one["means"], scaled * mixture.scaling.scale**2)
        full = np.broadcast_to(one["covariances"], (k, d, d))
        return Parts(one["weights"], one["means"], np.diagonal(full, axis1=1, axis2=2), full)

    def assign(self, X: Floats) -> NDArray[np.intp]:
        """Most responsible component of each row, (M,)."""
        return self.mixture.predict(X, missing="marginalize")

    def score(self, X: Floats) -> tuple[str, float]:
        """Log-likelihood per sample."""
        scores = self.mixture.score_samples(X, missing="marginalize")
        return "log-likelihood per sample (nats)", float(scores.mean())

    def size(self) -> list[tuple[str, object]]:
        """Return components, the covariance type and the number of parameters."""
        mixture = self.mixture
        return [
            ("components", mixture.n_components),
            ("covariances", mixture.covariance_type),
            ("parameters", mixture.n_parameters),
        ]

    def summaries(self) -> dict[str, list[str]]:
        """Return mixing weights, and how far those of roots are apart."""
        weights = self.mixture.weights
        found = {"mixing weight": [f"{weight:.4f}" for weight in self.mixture.assembled_weights]}
        if len(weights) > 1:
            found["spread over roots"] = [f"{value:.2g}" for value in np.ptp(weights, axis=0)]
        return found

    def agents_of_features(self) -> NDArray[np.intp] | None:
        """Agent of each feature (d,), or None where the file does not say."""
        blocks = self.mixture.blocks
        found = super().agents_of_features()
        if found is None and all(len(agents) < 2 for agents in blocks.agents):
            found = np.empty(len(self.feature_names), dtype=np.intp)
            for columns, agents in zip(blocks.features, blocks.agents, strict=True):
                found[columns] = agents[0] if agents else -1
        return found

    def history(self) -> History:
        """Return log-likelihood per sample by iteration and root."""
        sent = numbers(self.communication.get("bytes_by_iteration"))
        weight = self.reported("total_weight", (int, float))
        weight = weight or self.reported("n_samples", (int, float))
        stored = self.stored
        history = stored.history if stored.root_history is None else stored.root_history
        if not len(history) and self.reported("n_iter", int) == 0:
            raise InputError(f"{self.path} is where a fit starts: it has no iterations to draw")
        history = np.where(np.isfinite(history), history, np.nan)
        if weight is None or not weight > 0 or np.isnan(history).all():
            what = "what the log-likelihood was in each iteration"
            raise self.unpublished(f"{what}, or of how many rows" if weight is None else what)
        n = len(history)
        at, field = (numbers(self.report.get(name)) for name in ("recorded", "mean_field"))
        fed = "participation" in self.report
        tol = stored.options.get("tol")
        own = "penalised " if "penalised_log_likelihood" in self.report else ""
        return History(
            np.asarray(history, dtype=np.float64) / weight,
            np.arange(1, n + 1) - int(fed)
            if at is None or at.shape != (n,)
            else at.astype(np.intp),
            sent if sent is not None and sent.shape == (n,) else None,
            f"{own}log-likelihood per sample (nats)",
            float(tol) if not fed and isinstance(tol, int | float) and tol > 0 else None,
            field if field is not None and field.shape == (n,) else None,
        )

    def _listed_hubs(self, listed: list[Any]) -> list[Hub]:
        return [Hub(int(hub["root"]), tuple(map(int, hub["agents"]))) for hub in listed]


@dataclass
class SavedClusters(SavedFit):
    """A clustering."""

    stored: StoredClustering

    holds = "clusters"
    plural = "clusters"
    noun = "cluster"
    heading = "Centres"
    centre = "centre in"
    judged_by: ClassVar = {"inertia": "inertia"}

    @property
    def n_components(self) -> int:
        """Clusters, K."""
        return len(self.stored.centres)

    def parts(self) -> Parts:
        """Return shares of the rows, and centres."""
        return Parts(self.answer.weights, self.stored.centres)

    def assign(self, X: Floats) -> NDArray[np.intp]:
        """Cluster of the nearest centre of each row, (M,)."""
        return self.stored.assign(X)[0].astype(np.intp)

    def score(self, X: Floats) -> tuple[str, float]:
        """Inertia."""
        return "inertia", float(np.square(self.stored.assign(X)[1]).sum())

    def size(self) -> list[tuple[str, object]]:
        """Return the number of clusters."""
        return [("clusters", self.n_components)]

    def summaries(self) -> dict[str, list[str]]:
        """Return the rows of each cluster."""
        name, sizes = "noisy rows" if "privacy" in self.report else "rows", self.answer.sizes
        assert sizes is not None
        return {name: [f"{max(size, 0.0):.0f}" for size in sizes]}

    def history(self) -> History:
        """Return the inertia by iteration."""
        sent = numbers(self.communication.get("bytes_by_iteration"))
        values = numbers(self.report.get("history"))
        if values is None or values.ndim != 1 or not len(values):
            raise self.unpublished("what the inertia was in each iteration")
        return History(
            values[:, None],
            np.arange(1, len(values) + 1),
            sent if sent is not None and sent.shape == values.shape else None,
            "inertia",
        )

    def _listed_hubs(self, listed: list[Any]) -> list[Hub]:
        roots = self.report["roots"]
        return [
            Hub(int(root), tuple(map(int, agents)))
            for root, agents in zip(roots, listed, strict=True)
        ]


def read_saved(path: str | os.PathLike[str]) -> Saved:
    """Read a model, a clustering or a fit of SAEM."""
    with open_read(path) as file:
        encoding = read_attribute(file, "encoding-type")
    if encoding == models.ENCODING:
        return SavedMixture(str(path), read_model(path))
    if encoding == clusterings.ENCODING:
        return SavedClusters(str(path), read_clustering(path))
    if encoding == FIT:
        from vpem.saem.formats.fits import read_saem

        return saved_of(str(path), read_saem(path))
    raise FileError(
        f"{path} is neither a model nor a clustering; 'vpem fit', 'vpem fedem' and 'vpem "
        "kmeans' write them with --output, and 'vpem saem' fits of SAEM"
    )


def saved_of(path: str, stored: Model | StoredClustering | SavedSaem) -> Saved:
    """Return what `read_saved` would, had it read this from a file at ``path``."""
    if isinstance(stored, Model):
        return SavedMixture(path, stored)
    if isinstance(stored, StoredClustering):
        return SavedClusters(path, stored)
    if stored.corpus is None:
        return SavedLatents(path, stored)
    from vpem.saem.topics import Topics

    return SavedTopics(path, Topics(stored))
