"""Models for other programs: as a NumPy archive, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import NumericalError
from vpem.files.hdf5 import atomic_write
from vpem.files.mixed_models import family_arrays, hub_arrays, kinds_as_json
from vpem.files.models import ENCODING, OF_FAMILIES, VERSION, Model, PathLike
from vpem.files.posterior_models import posterior_as_json
from vpem.network.schema import Report
from vpem.terms.factor_mixture import FactorMixture
from vpem.terms.families.mixture import MixedMixture


def assembled(model: Model) -> dict[str, NDArray[np.float64]]:
    """Return the one mixture a user wants, in the user's order and units.

    NumericalError if a parameter is too large for a double in these units.
    """
    mixture = model.mixture
    with np.errstate(over="ignore", invalid="ignore"):
        found = {"weights": mixture.assembled_weights, "means": mixture.assembled_means}
        if isinstance(mixture, MixedMixture):
            found |= family_arrays(mixture)
        else:
            found["covariances"] = mixture.assembled_covariances
        if isinstance(mixture, FactorMixture):
            found["loadings"] = mixture.assembled_loadings
    for name, values in found.items():
        if not np.isfinite(values).all():
            raise NumericalError(f"the {name} are too large for a number in the units of the data")
    return found


def write_npz(path: PathLike, model: Model, force: bool = False) -> None:
    """Write the assembled mixture as a NumPy archive (``weights, means, covariances, ...``)."""
    mixture, kinds = model.mixture, {}
    if isinstance(mixture, MixedMixture):
        kinds = {"families": np.array(mixture.kinds.families, dtype=np.str_)}
    with atomic_write(path, force, "exported models") as temporary, open(temporary, "wb") as stream:
        np.savez(
            stream,
            **assembled(model),  # type: ignore[arg-type]
            feature_names=np.array(model.feature_names, dtype=np.str_),
            covariance_type=np.array(model.mixture.covariance_type),
            **kinds,  # type: ignore[arg-type]
        )


def model_as_json(model: Model) -> Report:
    """Return the whole model as values that JSON can hold: assembled, and hub by hub."""
    mixture = model.mixture
    blocks = mixture.blocks
    hubs: Sequence[Report] = [
        {
            "root": blocks.roots[b],
            "agents": list(blocks.agents[b]),
            "features": blocks.features[b].tolist(),
            **_hub_arrays(mixture, b),
        }
        for b in range(blocks.n_blocks)
    ]
    return {
        "encoding-type": ENCODING,
        "encoding-version": OF_FAMILIES if isinstance(mixture, MixedMixture) else VERSION,
        "covariance_type": mixture.covariance_type,
        "feature_names": list(model.feature_names),
        **kinds_as_json(mixture),
        **{name: array.tolist() for name, array in assembled(model).items()},
        "scaling": {
            "shift": mixture.scaling.shift.tolist(),
            "scale": mixture.scaling.scale.tolist(),
        },
        **posterior_as_json(mixture, hubs),
        "hubs": hubs,
        "report": model.report,
        "options": model.options,
        "versions": model.versions,
    }


def _hub_arrays(mixture: Any, b: int) -> Report:
    """Return what a hub has: mixing weights, and its parameters, of several families by family."""
    weights = mixture.weights[b if len(mixture.weights) > 1 else 0].tolist()
    if isinstance(mixture, MixedMixture):
        parts = hub_arrays(mixture, b)
        own = {
            family: {name: array.tolist() for name, array in arrays.items()}
            for family, arrays in parts.items()
        }
        return {"weights": weights, "parts": own}
    _, means, covariances = mixture.block(b)
    own = {"weights": weights, "means": means.tolist(), "covariances": covariances.tolist()}
    if isinstance(mixture, FactorMixture):
        own["loadings"] = mixture.block_loadings(b).tolist()
    return own


def write_json(path: PathLike, model: Model, force: bool = False) -> None:
    """Write the whole model as JSON: the assembled mixture, and hub by hub in fitted units."""
    with (
        atomic_write(path, force, "exported models") as temporary,
        open(temporary, "w", encoding="utf-8") as stream,
    ):
        json.dump(model_as_json(model), stream, allow_nan=False)
        stream.write("\n")
