"""Parts of models of several families in files: a group a hub and family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import FileError, InputError
from vpem.files import kept_kinds
from vpem.files.elements import Elements, read_elements
from vpem.files.hdf5 import find, is_group, write_array
from vpem.network.partition import Blocks
from vpem.network.schema import Array, Report
from vpem.terms.families.kinds import Kinds
from vpem.terms.families.laws import law_of
from vpem.terms.families.mixture import MixedMixture
from vpem.terms.families.part import RANGES, Law, Part
from vpem.terms.mixture import Mixture
from vpem.terms.scaling import Scaling

if TYPE_CHECKING:
    import h5py


SUM_TOLERANCE = 1e-6
"""By how much shares of a category's levels may miss 1."""

Arrays = dict[str, NDArray[np.float64]]


def hub_arrays(mixture: MixedMixture, b: int) -> dict[str, Arrays]:
    """Return the parameters that a hub has of each family that it has features of."""
    found: dict[str, Arrays] = {}
    for law, part in zip(mixture.laws, mixture.parts, strict=True):
        if not part.features.blocks.widths[b]:
            continue
        own: Arrays = {}
        hubs = law.hubs_of_cells(part.features)
        for name, table in part.tables.items():
            own[name] = np.ascontiguousarray(table[:, hubs[name] == b])
        if part.core is not None:
            _, own["means"], own["covariances"] = part.core.block(b)
        found[part.family] = own
    return found


def family_arrays(mixture: MixedMixture) -> Arrays:
    """Return parameters of each family: tables in block order, assembled covariances."""
    found: Arrays = {}
    for part in mixture.parts:
        for name, table in part.tables.items():
            found[f"{part.family}_{name}"] = table
        if part.core is not None:
            found[f"{part.family}_means"] = part.core.assembled_means
            found[f"{part.family}_covariances"] = part.core.assembled_covariances
    return found


def kinds_as_json(mixture: Any) -> Report:
    """Return the family of each feature, and names of levels; nothing where all are Gaussian."""
    if not isinstance(mixture, MixedMixture):
        return {}
    kinds = mixture.kinds
    levels = {str(feature): list(names) for feature, names in sorted(kinds.levels.items())}
    return {"families": list(kinds.families), "n_levels": list(kinds.n_levels), "levels": levels}


def write_families(file: h5py.File, mixture: MixedMixture) -> None:
    """Write which families features have, and each hub's parameters in groups of its own."""
    kept_kinds.write_kinds(file, mixture.kinds)
    for b in range(mixture.blocks.n_blocks):
        for family, arrays in hub_arrays(mixture, b).items():
            for name, values in arrays.items():
                write_array(file, f"hubs/{b}/parts/{family}/{name}", values)


def read_kinds(file: h5py.File, n_features: int) -> Kinds | None:
    """Read which families features have; None where all are Gaussian."""
    kinds = kept_kinds.read_kinds(file, n_features)
    for feature in [] if kinds is None else kinds.columns_of("categorical").tolist():
        if kinds is not None and not kinds.n_levels[feature]:
            raise InputError(f"feature {feature} is a category without levels")
    return kinds


def read_families(
    file: h5py.File,
    blocks: Blocks,
    kinds: Kinds,
    covariance_type: str,
    weights: NDArray[np.float64],
    scaling: Scaling,
) -> MixedMixture:
    """Read each hub's parameters of each family."""
    if blocks.n_features != kinds.n_features:
        raise InputError(f"hubs have {blocks.n_features} of {kinds.n_features} features")
    parts = []
    for family, features in kinds.split(blocks).items():
        law, tables = law_of(family), {}
        cells = law.cells_of_hubs(features)
        like = None
        if law.has_core:
            units = scaling.of(features.columns)
            like = Mixture.blank(features.blocks, covariance_type, weights.shape[1], units)
        hubs = [
            _read_hub(file, law, b, {name: int(own[b]) for name, own in cells.items()}, like)
            if features.blocks.widths[b]
            else None
            for b in range(blocks.n_blocks)
        ]
        there = [hub for hub in hubs if hub is not None]
        for name in cells:
            tables[name] = np.concatenate([hub[name] for hub in there], axis=1)
        core = None if like is None else _core(like, there)
        parts.append(Part(family, features, tables, core))
    found = MixedMixture(blocks, kinds, covariance_type, weights, tuple(parts))
    _check(found)
    return found


def _read_hub(
    file: h5py.File, law: Law, b: int, cells: dict[str, int], like: Mixture | None
) -> Arrays:
    """Read what a hub has of one family."""
    place = f"hubs/{b}/parts/{law.name}"
    group = find(file, place)
    if group is None or not is_group(group):
        raise FileError(f"{file.filename}: {place} is missing")
    schema: Elements = {
        name: Array("f", ("components", count), *RANGES[law.domains[name]])
        for name, count in cells.items()
    }
    k = int(file.attrs["n_components"])
    if like is not None:
        width = int(like.blocks.widths[b])
        own: tuple[int, ...] = (like.n_copies, width, width)
        schema["means"] = Array("f", (k, width))
        schema["covariances"] = Array("f", own[:2] if like.is_diagonal else own)
    return read_elements(group, schema, components=k)


def _core(like: Mixture, hubs: list[Arrays]) -> Mixture:
    """Put locations and scatter of hubs together."""
    arrays = like.arrays()
    arrays["means"] = np.concatenate([hub["means"] for hub in hubs], axis=1)
    own = [hub["covariances"] for hub in hubs]
    if like.is_diagonal:
        arrays["covariances"] = np.concatenate(own, axis=1)
    else:
        arrays["covariances"] = np.concatenate([part.ravel() for part in own])
    return like.having(arrays)


def _check(mixture: MixedMixture) -> None:
    """Refuse parameters that cannot be computed with."""
    for law, part in zip(mixture.laws, mixture.parts, strict=True):
        for name, owners in law.features_of_cells(part.features).items():
            if law.domains[name] == "simplex":
                table = part.tables[name]
                firsts = np.flatnonzero(np.diff(owners, prepend=-1))
                totals = np.add.reduceat(table, firsts, axis=1)
                if np.abs(totals - 1).max(initial=0.0) > SUM_TOLERANCE:
                    raise InputError(f"{name} of a {part.family} feature do not add up to 1")
    with np.errstate(all="ignore"):
        means = mixture.assembled_means
        values, _ = mixture.sample(mixture.n_components, np.random.default_rng(0))
        terms, _ = mixture.terms_of(values, np.isfinite(values))
    if not all(np.isfinite(numbers).all() for numbers in (means, values, terms)):
        raise InputError("a parameter cannot be computed with")
