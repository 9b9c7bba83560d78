"""Posteriors in files of models: what each hub has beside means and covariances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vpem.errors import InputError
from vpem.files.elements import Elements, read_elements
from vpem.files.hdf5 import find, write_array, write_attribute
from vpem.network.schema import Array, Choice, Report
from vpem.prior_settings import WEIGHT_PRIORS
from vpem.terms.mixture import Mixture
from vpem.terms.priors import Prior, wishart_sizes
from vpem.terms.variational_mixture import VariationalMixture

if TYPE_CHECKING:
    import h5py


HUB: Elements = {
    "counts": Array("f", ("components",), least=0),
    "seen": Array("f", ("components",), least=0),
    "degrees_of_freedom_prior": Array("f", (1,), positive=True),
    "mean_prior": Array("f", ("width",)),
}


def write_posterior(file: h5py.File, mixture: Mixture) -> None:
    """Write a posterior's prior and effective rows, each hub's into its group; else nothing."""
    if not isinstance(mixture, VariationalMixture):
        return
    prior, one = mixture.prior, mixture.prior_mixture
    write_attribute(file, "weight_concentration_prior_type", prior.kind)
    write_array(file, "prior", np.array([prior.concentration, prior.mean_precision]))
    for b in range(mixture.blocks.n_blocks):
        _, means, covariances = one.block(b)
        parts = {
            "counts": mixture.counts[b if len(mixture.counts) > 1 else 0],
            "seen": mixture.seen[b],
            "degrees_of_freedom_prior": prior.degrees_of_freedom[b : b + 1],
            "mean_prior": means[0],
            "covariance_prior": covariances[0],
        }
        for name, values in parts.items():
            write_array(file, f"hubs/{b}/posterior/{name}", values)


def read_posterior(file: h5py.File, plain: Mixture) -> Mixture:
    """Return the posterior that a file has with these means and covariances; else these."""
    if find(file, "prior") is None:
        return plain
    numbers = read_elements(
        file,
        {
            "@weight_concentration_prior_type": Choice(WEIGHT_PRIORS),
            "prior": Array("f", (2,), positive=True),
        },
    )
    shape = ("width",) if plain.is_diagonal else ("width", "width")
    schema: Elements = {**HUB, "covariance_prior": Array("f", shape)}
    hubs = []
    sizes = wishart_sizes(plain.blocks, plain.covariance_type)
    for b, width in enumerate(plain.blocks.widths.tolist()):
        group = find(file, f"hubs/{b}/posterior")
        if group is None:
            raise InputError(f"hub {b} has no posterior")
        hubs.append(read_elements(group, schema, components=plain.n_components, width=width))
        if hubs[-1]["degrees_of_freedom_prior"][0] <= sizes[b] - 1:
            raise InputError(f"hub {b} has fewer degrees of freedom than features")
    counts, seen = (np.stack([hub[name] for hub in hubs]) for name in ("counts", "seen"))
    counts = counts[: len(plain.weights)]
    if not (counts.sum(axis=1) > 0).all():
        raise InputError("no component has rows")
    covariances = [hub["covariance_prior"].ravel() for hub in hubs]
    flat = np.concatenate([np.empty(0), *covariances])
    prior = Prior(
        numbers["weight_concentration_prior_type"],
        float(numbers["prior"][0]),
        float(numbers["prior"][1]),
        np.concatenate([hub["degrees_of_freedom_prior"] for hub in hubs]),
        np.concatenate([hub["mean_prior"] for hub in hubs]),
        flat[None] if plain.is_diagonal else flat,
    )
    return VariationalMixture.of(plain, counts, seen, prior)


def posterior_as_json(mixture: Mixture, hubs: Sequence[Report]) -> Report:
    """Return what a posterior has besides, and add to each hub what it has; else nothing."""
    if not isinstance(mixture, VariationalMixture):
        return {}
    for b, hub in enumerate(hubs):
        hub["mean_precisions"] = mixture.mean_precisions[b].tolist()
        hub["degrees_of_freedom"] = mixture.degrees_of_freedom[b].tolist()
    prior = mixture.prior
    return {
        "prior": {
            "weight_concentration_prior_type": prior.kind,
            "weight_concentration_prior": prior.concentration,
            "mean_precision_prior": prior.mean_precision,
            "degrees_of_freedom_prior": prior.degrees_of_freedom.tolist(),
        },
        "weight_concentration": mixture.concentrations.mean(axis=0).tolist(),
        "in_use": mixture.in_use.tolist(),
    }
