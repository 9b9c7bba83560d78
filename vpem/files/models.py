"""Models on disk: one HDF5 group a hub, so that a root's part can be handed over by itself."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import vpem
from vpem.checks import as_kept
from vpem.errors import FileError, InputError, VpemError, shorten
from vpem.files.datasets import default_names
from vpem.files.elements import Elements, Strings, check_written, read_elements
from vpem.files.hdf5 import (
    atomic_write,
    check_encoding,
    create,
    find,
    is_group,
    open_read,
    write_array,
    write_attribute,
    write_strings,
)
from vpem.files.json_text import write_json_element
from vpem.files.mixed_models import read_families, read_kinds, write_families
from vpem.files.posterior_models import read_posterior, write_posterior
from vpem.files.reports import report_elements
from vpem.network.partition import Blocks
from vpem.network.schema import FLAG, Array, Choice, Integer, ListOf, Mapping, Maybe, Report
from vpem.settings import COVARIANCE_TYPES
from vpem.shown import Shown
from vpem.terms.covariances import is_diagonal, is_tied
from vpem.terms.factor_mixture import FactorMixture
from vpem.terms.families.mixture import MixedMixture
from vpem.terms.mixture import Mixture
from vpem.terms.scaling import Scaling

if TYPE_CHECKING:
    import h5py


ENCODING = "vpem-model"
VERSION = "0.1.0"
OF_FAMILIES = "1.0.0"
"""Version of the format of models of several families, which earlier versions cannot read."""
MOST_AGENTS = 1 << 31

PathLike = str | os.PathLike[str]


@dataclass
class Model(Shown, facts="{mixture.n_components:component}, {mixture.n_features:feature}"):
    """A fitted mixture with all that is stored beside it.

    Attributes
    ----------
    mixture : Mixture or MixedMixture
        The parameters, hub by hub.
    feature_names : tuple of str
        Names of the features (d,).
    report : dict
        What the fit reported (`vpem.fits.results.NetworkResult.describe`), without the history.
    history : ndarray of shape (n_iter, B)
        Total log-likelihood a root and iteration.
    options : dict
        How the fit was asked for.
    versions : dict
        Of vpem, Python and the libraries, when it was fitted.
    root_history : ndarray of shape (n_iter, R) or None
        As ``history``, where there are more roots than hubs: workers that hold rows.
    """

    mixture: Any
    feature_names: tuple[str, ...]
    report: Report
    history: NDArray[np.float64]
    options: Report = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    root_history: NDArray[np.float64] | None = None


def current_versions() -> dict[str, str]:
    """Versions of vpem, Python, NumPy, SciPy and h5py."""
    import h5py
    import scipy

    return {
        "vpem": vpem.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "h5py": h5py.__version__,
    }


def write_model(path: PathLike, model: Any, force: bool = False) -> None:
    """Write a model, all or nothing.

    Parameters
    ----------
    path : path
        The file.
    model : Model or fitted estimator
        What to write: a model, or a `vpem.VPEM`, `vpem.DistributedGaussianMixture` or `vpem.FedEM`
        after `fit`, of which the file tells what it tells of `vpem fit`.
    force : bool
        Replace an existing file.

    Raises
    ------
    InputError
        If it is something else, or not fitted, or the report has what no reader takes.
    FileError
        If the file exists and ``force`` is False, or cannot be written.
    """
    model = as_kept(model, Model, "a model is written of a Model or a fitted mixture")
    mixture = model.mixture
    blocks, mixed = mixture.blocks, isinstance(mixture, MixedMixture)
    texts = {
        "report": model.report,
        "options": model.options,
        "versions": model.versions or current_versions(),
    }
    check_written(path, MODEL, **texts)
    with (
        atomic_write(path, force, "models") as temporary,
        create(temporary, ENCODING, OF_FAMILIES if mixed else VERSION) as file,
    ):
        write_attribute(file, "covariance_type", mixture.covariance_type)
        file.attrs["n_components"] = mixture.n_components
        file.attrs["n_features"] = mixture.n_features
        file.attrs["n_hubs"] = blocks.n_blocks
        file.attrs["weights_shared"] = len(mixture.weights) == 1
        write_strings(file, "feature_names", model.feature_names)
        write_array(file, "scaling/shift", mixture.scaling.shift)
        write_array(file, "scaling/scale", mixture.scaling.scale)
        write_array(file, "history", model.history)
        if model.root_history is not None:
            write_array(file, "root_history", model.root_history)
        hubs = file.create_group("hubs")
        for b in range(blocks.n_blocks):
            hub = hubs.create_group(str(b))
            hub.attrs["root"] = blocks.roots[b]
            write_array(hub, "agents", np.array(blocks.agents[b], dtype=np.int64))
            write_array(hub, "features", blocks.features[b].astype(np.int64))
            write_array(hub, "weights", mixture.weights[b if len(mixture.weights) > 1 else 0])
            if not mixed:
                _, means, covariances = mixture.block(b)
                write_array(hub, "means", means)
                write_array(hub, "covariances", covariances)
            if isinstance(mixture, FactorMixture):
                write_array(hub, "loadings", mixture.block_loadings(b))
        if mixed:
            write_families(file, mixture)
        else:
            write_posterior(file, mixture)
        for name, value in texts.items():
            write_json_element(file, name, value)


def read_model(path: PathLike) -> Model:
    """Read a model, trusting nothing in the file.

    Raises
    ------
    FileError
        If the file is missing, damaged, no model, from a newer vpem, or its parts do not agree.
    """
    with open_read(path) as file:
        if check_encoding(file, ENCODING, OF_FAMILIES) != ENCODING:
            raise FileError(
                f"{path} is not a vpem model; fit one with 'vpem fit DATA --output MODEL'"
            )
        try:
            return _read_parts(file)
        except FileError:
            raise
        except (VpemError, KeyError, ValueError, TypeError) as error:
            raise FileError(f"{path} is damaged: {error}") from error


AGENT = Integer(most=MOST_AGENTS - 1)

MODEL: Elements = {
    "@covariance_type": Choice(COVARIANCE_TYPES),
    "feature_names": Strings("features", least=1, different=True),
    "@n_features": Integer(size="features"),
    "@n_components": Integer(1, 1 << 24, size="components"),
    "@n_hubs": Integer(1, 1 << 24, size="hubs"),
    "@weights_shared": FLAG,
    "scaling/shift": Array("f", ("features",)),
    "scaling/scale": Array("f", ("features",), positive=True),
    "history": Array("f", ("iterations", "hubs"), nan=True, inf=True),
    "root_history": Maybe(Array("f", ("iterations", "roots"), nan=True, inf=True)),
    **report_elements(
        hubs=ListOf(Mapping(some={"root": AGENT, "agents": ListOf(AGENT)})),
    ),
}

HUB: Elements = {
    "@root": AGENT,
    "agents": Array("i", ("agents",), 0, MOST_AGENTS - 1),
    "features": Array("i", ("width",), 0, below="features"),
    "weights": Array("f", ("components",), 0, sums=1),
}


def _read_parts(file: h5py.File) -> Model:
    whole = read_elements(file, MODEL)
    kind, n_hubs, k = (whole[name] for name in ("covariance_type", "n_hubs", "n_components"))
    dense = not is_diagonal(kind)
    shape = ("copies", "width", "width") if dense else ("copies", "width")
    families = read_kinds(file, len(whole["feature_names"]))
    own = {
        "means": Array("f", ("components", "width")),
        "covariances": Array("f", shape),
        "loadings": Maybe(Array("f", ("components", "width", "factors"))),
    }
    schema = HUB if families is not None else {**HUB, **own}
    sizes = {
        "features": len(whole["feature_names"]),
        "components": k,
        "copies": 1 if is_tied(kind) else k,
    }
    hubs = []
    for b in range(n_hubs):
        hub = find(file, f"hubs/{b}")
        if not is_group(hub):
            raise FileError(f"{file.filename}: hub {b} of {n_hubs} is missing")
        hubs.append(read_elements(hub, schema, **sizes))
    agents = tuple(tuple(hub["agents"].tolist()) for hub in hubs)
    if len(set().union(*agents)) < sum(map(len, agents)):
        raise InputError("an agent belongs to several hubs")
    features = tuple(hub["features"].astype(np.intp) for hub in hubs)
    blocks = Blocks(features, tuple(hub["root"] for hub in hubs), agents)
    weights = [hub["weights"] for hub in hubs]
    common = (kind, np.ascontiguousarray(weights[:1] if whole["weights_shared"] else weights))
    scaling = Scaling(whole["scaling/shift"], whole["scaling/scale"])
    mixture: Any
    if families is not None:
        mixture = read_families(file, blocks, families, *common, scaling)
    else:
        covariances = [hub["covariances"] for hub in hubs]
        flat = [part.ravel() for part in covariances]
        found = np.concatenate(flat) if dense else np.concatenate(covariances, axis=1)
        means = np.concatenate([hub["means"] for hub in hubs], axis=1)
        mixture = Mixture(blocks, *common, means, found, scaling)
        loadings = [hub["loadings"] for hub in hubs if hub["loadings"] is not None]
        if loadings:
            mixture = FactorMixture(**vars(mixture), loadings=np.concatenate(loadings, axis=1))
        _check_mixture(mixture)
        mixture = read_posterior(file, mixture)
    named = ("feature_names", "report", "history", "options", "versions", "root_history")
    return Model(mixture, **{name: whole[name] for name in named})


def _check_mixture(mixture: Mixture) -> None:
    """Refuse covariances that cannot be computed with."""
    with np.errstate(all="ignore"):
        factors = mixture.factors
    if not np.isfinite(factors.inverse).all() or not np.isfinite(factors.log_dets).all():
        raise InputError("a covariance is too near zero")


def match_features(model: Model, names: Sequence[str], *, ordered: bool = True) -> list[int] | None:
    """Return the column of each of the model's features, by name; None where columns are the same.

    Features are also taken by their places where one side has no names, if ``ordered`` (those of
    parties have none) and their number is the same.
    """
    wanted = model.feature_names
    found = tuple(names)
    if found == wanted:
        return None
    place = {name: column for column, name in enumerate(found)}
    missing = [name for name in wanted if name not in place]
    if not missing:
        return [place[name] for name in wanted]
    nameless = found == default_names(len(found)) or wanted == default_names(len(wanted))
    if nameless and not ordered:
        raise InputError(
            "features of parties are found by name, but those of the model have none; fit it to "
            "data whose features are named, or use it on one file"
        )
    if nameless and len(found) == len(wanted):
        return None
    if nameless:
        raise InputError(f"the model has {len(wanted)} features, the data have {len(found)}")
    raise InputError(f"the data lack features of the model: {shorten(map(repr, missing))}")
