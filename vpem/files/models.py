"""Models on disk: one HDF5 group a hub, so that a root's part can be handed over by itself.

A model of several families has a group a hub and family, a posterior what each hub has beside means
and covariances. Models for other programs are a NumPy archive, or JSON.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

import vpem
from vpem.checks import Indices, Matrix, as_kept, check_int
from vpem.errors import FileError, InputError, NumericalError, shorten
from vpem.files import elements
from vpem.files.datasets import default_names, powers_of
from vpem.files.elements import (
    Elements,
    Strings,
    check_written,
    read_elements,
    report_elements,
    write_elements,
)
from vpem.files.hdf5 import (
    find,
    is_group,
    made_of,
    read_file,
    write_array,
    write_attribute,
    write_file,
)
from vpem.files.opening import PathLike
from vpem.files.results import arrays_or_json
from vpem.network.partition import Blocks
from vpem.network.schema import FLAG, Array, Choice, Integer, ListOf, Maybe, Report, TableOf
from vpem.records import Shown
from vpem.settings import COVARIANCES, MISSINGS, WEIGHT_PRIORS
from vpem.terms.density import as_rows_of
from vpem.terms.factors import FactorMixture
from vpem.terms.families.covariates import logit_coefficients
from vpem.terms.families.family import RANGES
from vpem.terms.families.mixture import MixedMixture
from vpem.terms.merging import MERGES, Merging, merge_components
from vpem.terms.mixture import Mixture
from vpem.terms.outliers import OutlierMixture
from vpem.terms.priors import Prior, wishart_sizes
from vpem.terms.units import Scaling, power_rows, power_rows_back
from vpem.terms.variational import VariationalMixture

if TYPE_CHECKING:
    import h5py


SUM_TOLERANCE = 1e-6
"""By how much shares of a category's levels may miss 1."""

Arrays = dict[str, NDArray[np.float64]]

ENCODING = "vpem-model"
VERSION = "0.1.0"
OF_FAMILIES = "1.0.0"
"""Version of the format of models of several families, which earlier versions cannot read."""
MOST_AGENTS = 1 << 31
MOST_DRAWS = 100


class Predicting:
    """What has a fitted ``mixture``, which answers for it.

    Rows (M, d) have the features of the fit, in its order and units; values that are missing (NaN)
    are refused, or with ``missing="marginalize"`` integrated out. See `vpem.Mixture` for what is
    returned and raised.
    """

    mixture: Any

    def predict(self, X: Matrix, *, missing: str = "refuse") -> NDArray[np.intp]:
        """Return the most responsible component of each row, shape (M,)."""
        return np.asarray(self.mixture.predict(self.moved(X)[0], missing=missing))

    def predict_proba(self, X: Matrix, *, missing: str = "refuse") -> NDArray[np.float64]:
        """Return the responsibilities of each row, shape (M, K)."""
        return np.asarray(self.mixture.predict_proba(self.moved(X)[0], missing=missing))

    def score_samples(self, X: Matrix, *, missing: str = "refuse") -> NDArray[np.float64]:
        """Return the log-likelihood of each row, in nats, shape (M,)."""
        rows, slopes = self.moved(X)
        return np.asarray(self.mixture.score_samples(rows, missing=missing) + slopes)

    def project(self, X: Matrix, share: float = 1.0) -> NDArray[np.float64]:
        """Return scores (M, p) where components differ most (`vpem.Mixture.directions`)."""
        return np.asarray(self.mixture.project(self.moved(X)[0], share))

    def merge_components(
        self, X: Matrix, sample_weight: ArrayLike | None = None, *, missing: str = "refuse"
    ) -> Merging:
        """Return the tree by which components merge to clusters; see `vpem.merge_components`."""
        self.mixture.refuse_outliers(MERGES)
        rows = self.moved(X)[0]
        return merge_components(self.mixture.predict_proba(rows, missing=missing), sample_weight)

    def sample(self, n_samples: int, seed: int = 0) -> tuple[NDArray[np.float64], Indices]:
        """Draw rows (n_samples, d), and the component (n_samples,) of each."""
        rng = np.random.default_rng(check_int("seed", seed, least=0))
        rows, labels = self.mixture.sample(n_samples, rng)
        return rows, labels

    def moved(self, X: Matrix) -> tuple[Matrix, Any]:
        """Return rows as the mixture takes them, and what is added to their log-densities."""
        return X, 0.0

    def save(self, path: PathLike, *, force: bool = False) -> None:
        """Write the model, as `vpem.write_model` does."""
        write_model(path, self, force)


@dataclass
class Model(
    Predicting, Shown, facts="{mixture.n_components:component}, {mixture.n_features:feature}"
):
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
        The fit's options.
    versions : dict
        Of vpem, Python and the libraries, when it was fitted.
    root_history : ndarray of shape (n_iter, R) or None
        As ``history``, where there are more roots than hubs: workers that hold rows.
    """

    encoding: ClassVar = ENCODING
    mixture: Any
    feature_names: tuple[str, ...]
    report: Report
    history: NDArray[np.float64]
    options: Report = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    root_history: NDArray[np.float64] | None = None

    @property
    def n_components(self) -> int:
        """Components of the mixture, K."""
        return int(self.mixture.n_components)

    @property
    def powers(self) -> NDArray[np.float64] | None:
        """Exponents (d,) of the power transform of features, if it was fitted to transformed ones.

        Rows are transformed by them, and log-likelihoods are those of the rows as they are.
        """
        return None if self.options.get("power") is None else powers_of(self)

    def moved(self, X: Matrix) -> tuple[Matrix, Any]:
        if (powers := self.powers) is None:
            return X, 0.0
        rows, slopes = power_rows(as_rows_of(self.mixture, X, MISSINGS[-1]), powers)
        if np.isinf(rows).any():
            raise InputError("a value is infinite, or too large for the model's power transform")
        return rows, slopes

    def sample(self, n_samples: int, seed: int = 0) -> tuple[NDArray[np.float64], Indices]:
        """Draw rows (n_samples, d), and the component (n_samples,) of each.

        Of a model of transformed features those that no row is transformed to are drawn again.
        """
        rows, labels = super().sample(n_samples, seed)
        if (powers := self.powers) is None:
            return rows, labels
        rows, rng = power_rows_back(rows, powers), np.random.default_rng([seed, 1])
        for _ in range(MOST_DRAWS):
            lost = np.flatnonzero(~np.isfinite(rows).all(axis=1))
            if not len(lost):
                return rows, labels
            again, labels[lost] = self.mixture.sample(len(lost), rng)
            rows[lost] = power_rows_back(again, powers)
        raise InputError("few rows of the model are those of features before their transform")

    def take_features(self, columns: Sequence[int]) -> Model:
        """Return the model of some features, the others integrated out."""
        self.mixture.refuse_outliers("features are integrated out of components")
        names = tuple(self.feature_names[column] for column in columns)
        return replace(self, mixture=self.mixture.marginal(columns), feature_names=names)


def current_versions() -> dict[str, str]:
    import h5py
    import scipy

    libraries = {one.__name__: one.__version__ for one in (np, scipy, h5py)}
    return {"vpem": vpem.__version__, "python": platform.python_version(), **libraries}


def write_model(path: PathLike, model: Any, force: bool = False) -> None:
    """Write a model, all or nothing.

    Parameters
    ----------
    path : path
        The file.
    model : Model, Fit or fitted estimator
        What to write: a model, what `vpem.fit_vpem` and its kin return, or a `vpem.VPEM`,
        `vpem.DistributedGaussianMixture` or `vpem.FedEM` after `fit`, of which the file tells what
        it tells of `vpem fit`.
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
    blocks, mixed = mixture.blocks, mixture.kinds is not None
    values = vars(model) | {
        "covariance_type": mixture.covariance_type,
        "n_components": mixture.n_components,
        "n_features": mixture.n_features,
        "n_hubs": blocks.n_blocks,
        "weights_shared": len(mixture.weights) == 1,
        "scaling/shift": mixture.scaling.shift,
        "scaling/scale": mixture.scaling.scale,
        "versions": model.versions or current_versions(),
    }
    check_written(path, MODEL, values)
    version = OF_FAMILIES if mixed or mixture.outliers else VERSION
    with write_file(path, force, "models", ENCODING, version) as file:
        write_elements(file, MODEL, values)
        hubs = file.create_group("hubs")
        for b in range(blocks.n_blocks):
            one = mixture.of_hubs([b])
            hub = hubs.create_group(str(b))
            about = {"root": blocks.roots[b], "agents": np.array(blocks.agents[b], dtype=np.int64)}
            about |= {"features": blocks.features[b].astype(np.int64), "weights": one.weights[0]}
            write_elements(hub, HUB, about)
            for family, arrays in _hub_arrays(one).items():
                for name, values in arrays.items():
                    write_array(hub, f"parts/{family}/{name}" if mixed else name, values)
            if mixture.outliers:
                outliers = np.array([one.share[0, 0], one.volumes[0], one.threshold[0, 0]])
                write_array(hub, OUTLIERS, outliers)
            if mixture.is_proper:  # a posterior
                _, means, covariances = one.prior_mixture.block(0)
                beside = {
                    "counts": one.counts[0],
                    "seen": one.seen[0],
                    "degrees_of_freedom_prior": one.prior.degrees_of_freedom,
                    "mean_prior": means[0],
                    "covariance_prior": covariances[0],
                }
                for name, values in beside.items():
                    write_array(hub, f"posterior/{name}", values)
        if mixed:
            elements.write_kinds(file, mixture.kinds)
        if mixture.is_proper:
            prior = mixture.prior
            write_attribute(file, "weight_concentration_prior_type", prior.kind)
            write_array(file, "prior", np.array([prior.concentration, prior.mean_precision]))


def _hub_arrays(one: Any) -> dict[str, Arrays]:
    """Return the parameters of a mixture of one hub by family, or of the one, without a name."""
    families: dict[str, Arrays] = {}
    for family, core, tables in (
        [("", one, {})] if one.kinds is None else [(p.family, p.core, p.tables) for p in one.parts]
    ):
        families[family] = dict(tables)
        if core is not None:
            _, families[family]["means"], families[family]["covariances"] = core.block(0)
            if core.n_factors:
                families[family]["loadings"] = core.loadings
    return families


def read_model(path: PathLike) -> Model:
    """Read a model, trusting nothing in the file.

    Raises
    ------
    FileError
        If the file is missing, damaged, no model, from a newer vpem, or its parts do not agree.
    """
    otherwise = "a vpem model; fit one with 'vpem fit DATA --output MODEL'"
    with read_file(path, ENCODING, OF_FAMILIES, otherwise) as file, made_of(path):
        return _read_parts(file)


AGENT = Integer(most=MOST_AGENTS - 1)

MODEL: Elements = {
    "@covariance_type": Choice(COVARIANCES),
    "feature_names": Strings("features", least=1, different=True),
    "@n_features": Integer(size="features"),
    "@n_components": Integer(1, 1 << 24, size="components"),
    "@n_hubs": Integer(1, 1 << 24, size="hubs"),
    "@weights_shared": FLAG,
    "scaling/shift": Array("f", ("features",)),
    "scaling/scale": Array("f", ("features",), positive=True),
    "history": Array("f", ("iterations", "hubs"), nan=True, inf=True),
    "root_history": Maybe(Array("f", ("iterations", "roots"), nan=True, inf=True)),
    **report_elements(hubs=ListOf(TableOf(some={"root": AGENT, "agents": ListOf(AGENT)}))),
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
    d = len(whole["feature_names"])
    kinds = elements.read_kinds(file, d)
    if kinds is not None:
        for feature in kinds.columns_of("categorical").tolist():
            if not kinds.n_levels[feature]:
                raise InputError(f"feature {feature} is a category without levels")
    groups, hubs = [], []
    for b in range(n_hubs):
        groups.append(find(file, f"hubs/{b}"))
        if not is_group(groups[b]):
            raise FileError(f"{file.filename}: hub {b} of {n_hubs} is missing")
        hubs.append(read_elements(groups[b], HUB, features=d, components=k))
    agents = tuple(tuple(hub["agents"].tolist()) for hub in hubs)
    if len(set().union(*agents)) < sum(map(len, agents)):
        raise InputError("an agent belongs to several hubs")
    features = tuple(hub["features"].astype(np.intp) for hub in hubs)
    blocks = Blocks(features, tuple(hub["root"] for hub in hubs), agents)
    scaling = Scaling(whole["scaling/shift"], whole["scaling/scale"])
    sent: list[Report] = [
        {"numbers": [b], "weights": hub["weights"][None], "parts": {}} for b, hub in enumerate(hubs)
    ]
    mixture: Any
    if kinds is None:
        mixture = Mixture.blank(blocks, kind, k, scaling)
        for one, group in zip(sent, groups, strict=True):
            one |= _read_hub(group, mixture, one["numbers"][0], LOADINGS)
        loadings = [one["loadings"] for one in sent if "loadings" in one]
        if loadings:
            none = np.zeros((k, d, loadings[0].shape[2]))
            mixture = FactorMixture(**vars(mixture), loadings=none)
        mixture = _with_outliers(_posterior(file, mixture, groups, sent), groups, sent)
    elif blocks.n_features != kinds.n_features:
        raise InputError(f"hubs have {blocks.n_features} of {kinds.n_features} features")
    else:
        mixture = MixedMixture.blank(blocks, kinds, kind, k, scaling)
    for part in mixture.parts:
        law, cells = part.law, part.features.cells(part.law.each)
        for b in np.flatnonzero(part.features.blocks.widths).tolist():
            group = find(groups[b], f"parts/{law.name}")
            if not is_group(group):
                raise FileError(f"{file.filename}: hubs/{b}/parts/{law.name} is missing")
            tables: Elements = {
                name: Array("f", (k, int(cells[b])), *RANGES[domain])
                for name, domain in law.domains.items()
            }
            sent[b]["parts"][law.name] = _read_hub(group, part.core, b, tables)
    mixture = mixture.join_hubs(blocks, sent, scaling)
    if whole["weights_shared"]:
        shared = [name for name, where in mixture.named.items() if where == "roots"]
        mixture = replace(mixture, **{name: getattr(mixture, name)[:1] for name in shared})
    _check_parameters(mixture)
    named = ("feature_names", "report", "history", "options", "versions", "root_history")
    model = Model(mixture, **{name: whole[name] for name in named})
    _ = model.powers  # sound, if there are any
    return model


OUTLIERS = "outliers"
"""Of a hub: mixing weight of the noise, term of its volume, and threshold of trimmed rows."""

LOADINGS: Elements = {"loadings": Maybe(Array("f", ("components", "width", "factors")))}


def _read_hub(group: h5py.Group, core: Mixture | None, b: int, schema: Elements) -> Report:
    """Read what a hub has of a Gaussian mixture, or of a part of several families: its tables."""
    sizes: dict[str, int] = {}
    if core is not None:
        sizes = {"components": core.n_components, "width": int(core.blocks.widths[b])}
        width = ("width",) if core.is_diagonal else ("width", "width")
        gaussian: Elements = {
            "means": Array("f", ("components", "width")),
            "covariances": Array("f", (core.n_copies, *width)),
        }
        schema = gaussian | schema
    arrays = read_elements(group, schema, **sizes)
    if core is not None and not core.is_diagonal:
        arrays["covariances"] = arrays["covariances"].ravel()
    return {name: array for name, array in arrays.items() if array is not None}


def _with_outliers(plain: Any, groups: Sequence[h5py.Group], sent: Sequence[Report]) -> Any:
    """Return a mixture with noise, or trimmed rows, if hubs have any, and read what each has."""
    if not groups or find(groups[0], OUTLIERS) is None:
        return plain
    if type(plain) is not Mixture:
        raise InputError("a mixture of this kind has no noise, and trims no rows")
    for one, group in zip(sent, groups, strict=True):
        found = read_elements(group, {OUTLIERS: Array("f", (3,), inf=True)})[OUTLIERS]
        share, volume, threshold = found.tolist()
        trims = share == 0 and volume == 0 and threshold < np.inf
        if not (trims or (0 <= share <= 1 and np.isfinite(volume) and threshold == -np.inf)):
            raise InputError("noise has no such weight and volume, or trimmed rows no such density")
        one.update(zip(("share", "volumes", "threshold"), found.reshape(3, 1), strict=True))
        one["share"], one["threshold"] = one["share"][None], one["threshold"][None]
    none = np.zeros((1, 1))
    return OutlierMixture(**plain.common, share=none, volumes=none[0], threshold=none)


def _posterior(
    file: h5py.File, plain: Mixture, groups: Sequence[h5py.Group], sent: Sequence[Report]
) -> Mixture:
    """Return a posterior like a mixture, if a file has one, and read what each hub has of it."""
    if find(file, "prior") is None:
        return plain
    kind = {"@weight_concentration_prior_type": Choice(WEIGHT_PRIORS)}
    numbers = read_elements(file, {**kind, "prior": Array("f", (2,), positive=True)})
    shape = ("width",) if plain.is_diagonal else ("width", "width")
    schema: Elements = {
        "counts": Array("f", ("components",), least=0),
        "seen": Array("f", ("components",), least=0),
        "degrees_of_freedom_prior": Array("f", (1,), positive=True),
        "mean_prior": Array("f", ("width",)),
        "covariance_prior": Array("f", shape),
    }
    sizes = wishart_sizes(plain.blocks, plain.covariance_type)
    for b, width in enumerate(plain.blocks.widths.tolist()):
        group = find(groups[b], "posterior")
        if group is None:
            raise InputError(f"hub {b} has no posterior")
        hub = read_elements(group, schema, components=plain.n_components, width=width)
        freedom, covariances = hub["degrees_of_freedom_prior"], hub["covariance_prior"].ravel()
        if freedom[0] <= sizes[b] - 1:
            raise InputError(f"hub {b} has fewer degrees of freedom than features")
        if not hub["counts"].sum() > 0:
            raise InputError("no component has rows")
        sent[b].update(
            counts=hub["counts"][None], seen=hub["seen"][None], freedom=freedom,
            prior_means=hub["mean_prior"],
            prior_covariances=covariances[None] if plain.is_diagonal else covariances,
        )  # fmt: skip
    concentration, mean_precision = numbers["prior"].tolist()
    seen = np.zeros((plain.blocks.n_blocks, plain.n_components))
    prior = Prior(
        numbers["weight_concentration_prior_type"], concentration, mean_precision,
        seen[:, 0], plain.means[0], plain.covariances,
    )  # fmt: skip
    return VariationalMixture(**plain.common, counts=plain.weights, seen=seen, prior=prior)


def _check_parameters(mixture: Any) -> None:
    for part in mixture.parts:
        for name, domain in part.law.domains.items():
            if domain == "simplex":
                firsts = part.features.level_offsets[:-1]
                totals = np.add.reduceat(part.tables[name], firsts, axis=1)
                if np.abs(totals - 1).max(initial=0.0) > SUM_TOLERANCE:
                    raise InputError(f"{name} of a {part.family} feature do not add up to 1")
    with np.errstate(all="ignore"):
        if mixture.kinds is None:
            factors = mixture.factors
            if not np.isfinite(factors.inverse).all() or not np.isfinite(factors.log_dets).all():
                raise InputError("a covariance is too near zero")
            return
        means = mixture.assembled_means
        values = mixture.drawn(np.arange(mixture.n_components), np.random.default_rng(0))
        terms, _ = mixture.terms_of(values, np.isfinite(values))
    if not all(np.isfinite(numbers).all() for numbers in (means, values, terms)):
        raise InputError("a parameter cannot be computed with")


def match_features(
    expected: tuple[str, ...], names: Sequence[str], *, ordered: bool = True
) -> list[int] | None:
    """Return the column of each feature of a model, by name; None where columns are the same.

    Features are also taken by their places where one side has no names, if ``ordered`` (those of
    parties have none) and their number is the same.
    """
    present = tuple(names)
    if present == expected:
        return None
    place = {name: column for column, name in enumerate(present)}
    missing = [name for name in expected if name not in place]
    if not missing:
        return [place[name] for name in expected]
    nameless = present == default_names(len(present)) or expected == default_names(len(expected))
    if nameless and not ordered:
        raise InputError(
            "features of parties are found by name, but those of the model have none; fit it to "
            "data whose features are named, or use it on one file"
        )
    if nameless and len(present) == len(expected):
        return None
    if nameless:
        raise InputError(f"the model has {len(expected)} features, the data have {len(present)}")
    raise InputError(f"the data lack features of the model: {shorten(map(repr, missing))}")


def owners_of(expected: Sequence[str]) -> dict[str, set[str]]:
    """Return the parties that a model has features of, by their names without the party's."""
    owners: dict[str, set[str]] = {}
    for full in expected:
        words = full.split(".")
        for at in range(1, len(words)):
            owners.setdefault(".".join(words[at:]), set()).add(".".join(words[:at]))
    return owners


def names_in_model(
    file: Path, called: str, names: Sequence[str], expected: Sequence[str]
) -> tuple[str, ...]:
    """Return names of a file's features, with the party's before those that several parties have.

    It is the party that the file is called after, or else the only one that has all of these.
    """
    owners, known = owners_of(expected), set(expected)
    found = {name: owners.get(name, set()) for name in names if name not in known}
    shared = {name: parties for name, parties in found.items() if len(parties) > 1}
    if shared and not any(called in owners.get(name, ()) for name in names):
        fitting = set.intersection(*shared.values())
        if len(fitting) != 1:
            ending = "".join(file.suffixes)
            listed = sorted(fitting or set.union(*shared.values()))
            raise InputError(
                f"{file} has {shorten(map(repr, shared))}, which the model has of several parties; "
                f"name the file after its party: {shorten([one + ending for one in listed])}"
            )
        [called] = fitting
    return tuple(f"{called}.{name}" if called in found.get(name, ()) else name for name in names)


def assembled(mixture: Any) -> dict[str, NDArray[np.float64]]:
    """Return the one mixture a user wants, in the user's order and units.

    NumericalError if a parameter is too large for a double in these units.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        arrays = {"weights": mixture.assembled_weights, "means": mixture.assembled_means}
        if mixture.kinds is None:
            arrays["covariances"] = mixture.assembled_covariances
        else:
            for part in mixture.parts:  # tables in block order, assembled covariances
                for name, table in part.tables.items():
                    arrays[f"{part.family}_{name}"] = table
                if part.core is not None:
                    arrays[f"{part.family}_means"] = part.core.assembled_means
                    arrays[f"{part.family}_covariances"] = part.core.assembled_covariances
        if mixture.n_factors:
            arrays["loadings"] = mixture.assembled_loadings
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            raise NumericalError(f"the {name} are too large for a number in the units of the data")
    return arrays


def write_export(path: PathLike, model: Model, force: bool = False) -> None:
    """Write the assembled mixture to .npz, or to .json all, also hub by hub in fitted units."""

    def archived() -> Report:
        mixture = model.mixture
        texts = {"feature_names": model.feature_names, "covariance_type": mixture.covariance_type}
        if mixture.kinds is not None:
            texts["families"] = mixture.kinds.families
        numbers = assembled(mixture)
        if model.powers is not None:
            numbers["powers"] = model.powers
        return numbers | {name: np.array(one, np.str_) for name, one in texts.items()}

    arrays_or_json(path, archived, partial(model_as_json, model), force)


def model_as_json(model: Model) -> Report:
    """Return the whole model as values that JSON can hold: assembled, and hub by hub."""
    mixture = model.mixture
    kinds: Report = {}
    if mixture.kinds is not None:
        levels = {str(j): list(names) for j, names in sorted(mixture.kinds.levels.items())}
        kinds = {
            "families": list(mixture.kinds.families),
            "n_levels": list(mixture.kinds.n_levels),
            "levels": levels,
        }
    found = logit_coefficients(mixture)
    if found is not None:
        kinds["covariates"] = {"coefficients": found.tolist()}
    posterior: Report = {}
    if mixture.outliers:
        posterior = {"outliers": mixture.describe_outliers()}
    if mixture.is_proper:
        prior = mixture.prior
        posterior = {
            "prior": {
                "weight_concentration_prior_type": prior.kind,
                "weight_concentration_prior": prior.concentration,
                "mean_precision_prior": prior.mean_precision,
                "degrees_of_freedom_prior": prior.degrees_of_freedom.tolist(),
            },
            "weight_concentration": mixture.concentrations.mean(axis=0).tolist(),
            "in_use": mixture.in_use.tolist(),
        }
    hubs = []
    for b in range(mixture.blocks.n_blocks):
        blocks, one = mixture.blocks, mixture.of_hubs([b])
        hub: Report = {
            "root": blocks.roots[b],
            "agents": list(blocks.agents[b]),
            "features": blocks.features[b].tolist(),
            "weights": one.weights[0].tolist(),
        }
        parts = {
            family: {name: array.tolist() for name, array in arrays.items()}
            for family, arrays in _hub_arrays(one).items()
        }
        hub |= parts[""] if mixture.kinds is None else {"parts": parts}
        if mixture.outliers:
            names = ("share", "volumes") if mixture.outliers == "noise" else ("threshold",)
            hub |= {name: getattr(one, name).ravel().tolist() for name in names}
        if mixture.is_proper:
            hub["mean_precisions"] = one.mean_precisions[0].tolist()
            hub["degrees_of_freedom"] = one.degrees_of_freedom[0].tolist()
        hubs.append(hub)
    return {
        "encoding-type": ENCODING,
        "encoding-version": VERSION if mixture.kinds is None else OF_FAMILIES,
        "covariance_type": mixture.covariance_type,
        "feature_names": list(model.feature_names),
        **kinds,
        **{name: array.tolist() for name, array in assembled(mixture).items()},
        "scaling": {
            "shift": mixture.scaling.shift.tolist(),
            "scale": mixture.scaling.scale.tolist(),
        },
        **posterior,
        "hubs": hubs,
        "report": model.report,
        "options": model.options,
        "versions": model.versions,
    }
