"""Inputs of fits of mixtures, checked: rows that are used, families, and their terms.

Rows are used if they have a positive weight and a value; masked sums do not show whose they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem.checks import (
    Extremes,
    Floats,
    Matrix,
    check_data,
    check_finite,
    check_kind,
    check_rows,
    check_weights,
    extremes,
    precision_of,
    row_blocks,
)
from vpem.errors import InputError, OwnDataWarning, Setting, VpemWarning, shorten, warn
from vpem.files.matrix import FileMatrix, select_rows
from vpem.network.graph import make_graph
from vpem.network.masks import FEWEST
from vpem.network.partition import Blocks
from vpem.network.schema import Report
from vpem.records import Sentence, sentence
from vpem.settings import INITS, MAP, FitSettings, KmeansSettings, MixtureSettings
from vpem.steps.accelerate import Acceleration, parse_acceleration
from vpem.steps.starts import GivenStart
from vpem.sums.connect import Network, connect_workers
from vpem.terms.density import Density
from vpem.terms.factors import FactorTerms
from vpem.terms.families.kinds import Kinds
from vpem.terms.families.mixture import check_values_of
from vpem.terms.features import FeatureTerms
from vpem.terms.priors import MapTerms, wishart_sizes
from vpem.terms.rows import check_columns, check_missing, observed_moments
from vpem.terms.units import Reach, Scaling, alone, floor_of, floors_of, sharing
from vpem.terms.variational import variational_terms

if TYPE_CHECKING:
    from vpem.fits.local_rows import LocalRows


def refuse_first(*cases: tuple[object, tuple[str | Setting, ...]]) -> None:
    """Raise InputError for the first case that holds; the last part of each is a `sentence`."""
    for holds, (*parts, text) in cases:
        if holds:
            raise InputError(*parts, *sentence(str(text)))


NOTHING_USED = "no row that is used has a value; give data with some"


def weighed(
    scores: NDArray[np.float64], there: NDArray[np.bool_], sample_weight: Any = None
) -> tuple[float, float]:
    """Return the weighted sum of the scores of rows, and the weight of those with a value."""
    weights = np.ones(len(scores))
    if sample_weight is not None:
        weights = check_weights(np.asarray(sample_weight), len(scores))
    used = float(weights[there].sum())
    if used == 0:
        raise InputError(NOTHING_USED)
    return float(weights @ scores), used


def _warn_of_blank(count: int, n_samples: int) -> None:
    warn(
        f"{count} of {n_samples} rows have no values and are left out; the log-likelihood per "
        "sample is the mean over the others",
        level=5,
    )


Used = tuple[NDArray[np.float64] | None, NDArray[np.intp] | None, int, NDArray[np.intp] | None]
"""Weights of rows that are used, their numbers (None: all), how many of all; numbers here."""


def used_of_all(
    blank: NDArray[np.bool_], sample_weight: Any, n_samples: int, local: LocalRows | None
) -> Used:
    """Rows of positive weight that have a value, as all know them."""
    weights = sample_weight
    if sample_weight is not None and local is not None:
        weights = local.everyones(sample_weight)
    if blank.any():
        every = np.ones(len(blank)) if weights is None else weights
        weights = np.where(blank, 0.0, check_weights(every, len(blank)))
        if not weights.any():
            raise InputError(NOTHING_USED)
        _warn_of_blank(int(blank.sum()), len(blank))
    if weights is None:
        return None, None, n_samples, None
    weights = check_weights(weights, n_samples)
    positive = np.flatnonzero(weights > 0)
    local_rows = positive if local is None else np.flatnonzero(weights[local.numbers] > 0)
    weighs = None if sample_weight is None else weights[positive]
    if len(positive) == n_samples:
        return weighs, None, n_samples, None
    return weighs, positive, len(positive), local_rows


def used_here(
    blank: NDArray[np.bool_], weights: NDArray[np.float64] | None, misses: bool, local: LocalRows
) -> Used:
    """Rows of this process of positive weight that have a value; no agent learns whose they are."""
    used = np.ones(local.rows.stop - local.rows.start, dtype=np.bool_)
    if weights is None and not misses:
        return None, None, local.n_samples, None
    if misses:
        used = ~blank
        n_blank = local.n_samples - local.count(used)
        if n_blank:
            _warn_of_blank(n_blank, local.n_samples)
    if weights is not None:
        used = used & (weights > 0)
    n_used = local.count(used)
    if not n_used:
        raise InputError(NOTHING_USED)
    local_rows = None if used.all() else np.flatnonzero(used)
    return None if weights is None else weights[used], local_rows, n_used, local_rows


def refuse_with_kinds(settings: FitSettings, *, private: bool) -> None:
    """Raise InputError where something cannot be done with families."""
    refuse_first(
        (settings.step_size is not None, (
            "{step_size} keeps statistics in the parameters alone, which forget the levels of a "
            "category or count that a batch lacks; leave it out, for batches that replace their "
            "own statistics",
        )),
        (private, (
            "{release_epsilon} bounds sums of numbers and of their products, but other families "
            "have other statistics; fit Gaussian features, or leave it out",
        )),
    )  # fmt: skip


MARGINALIZE = ("integrate them out with ", Setting("missing", "marginalize"))
"""Advice where values are missing."""

LARGEST_VALUE = {8: 1e140, 4: 1e17}
"""Largest value to be squared and summed, by bytes of the precision."""

LEAST_OF_BATCH = 5
"""Rows of a batch where sums over rows are masked: consecutive totals differ by these."""


@dataclass
class Prepared:
    """Data and options that have been looked at.

    ``X`` (m, d) are the rows of positive weight; where workers live in several processes, those of
    this one. ``row_weights`` (m,) are those of all rows of positive weight, as the user numbers
    them; None: all alike. ``kept`` (m,) are their numbers; None: all rows. Where sums are masked
    both are those of this process. ``rows`` (K,) of ``X`` are those to start at, where init says
    so. Of ``n_samples`` rows ``n_used`` have a positive weight. Without ``kinds`` all features are
    Gaussian.

    Of k-means all rows stay, and ``centres`` (K, d) are those to start at, where init says so. It
    clusters in the units of ``scaling``; data and centres are in the user's, as are standard
    ``deviations`` (d,) of the rows of all processes, if they were measured.
    """

    X: Any
    n_samples: int
    row_weights: NDArray[np.float64] | None
    kept: NDArray[np.intp] | None
    rows: NDArray[np.intp] | None
    precision: np.dtype[np.floating]
    misses: bool = False
    n_used: int = 0
    kinds: Kinds | None = None
    centres: NDArray[np.float64] | None = None
    scaling: Scaling = field(default_factory=lambda: Scaling.none(0))
    deviations: NDArray[np.float64] | None = None

    def number(self, rows: NDArray[np.intp] | None) -> tuple[int, ...] | None:
        """Return the user's numbers of some rows of ``X``."""
        if rows is None:
            return None
        return tuple(int(row if self.kept is None else self.kept[row]) for row in rows)


def refuse_masked(
    local: LocalRows, settings: MixtureSettings | KmeansSettings, instead: str
) -> None:
    """Raise InputError where a row would be shown to others.

    ``instead`` is a start that takes masked sums alone.
    """
    init, batch_size = settings.init, getattr(settings, "batch_size", None)
    secure = Setting("secure_sum", True)
    n_parties = np.count_nonzero(local.counts)
    if n_parties < FEWEST:
        raise InputError(
            secure, f" needs at least {FEWEST} workers that hold rows, got {n_parties}: with two "
            "each could subtract its own part and have the other's; leave it out",
        )  # fmt: skip
    if batch_size is not None and batch_size < LEAST_OF_BATCH:
        raise InputError(
            Setting("batch_size", batch_size), " changes a masked sum by so few rows that it "
            "reveals them; with ", secure, f" take at least {LEAST_OF_BATCH}",
        )  # fmt: skip
    if isinstance(init, str) and init == "random":
        raise InputError(
            Setting("init", init), " starts at rows, which their holders would have to show to "
            "all; with ", secure, " take ", Setting("init", instead), ", which starts at means of "
            "many rows",
        )  # fmt: skip
    shape = np.shape(init) if isinstance(init, Sequence | np.ndarray) else ()
    if not isinstance(init, str) and len(shape) == 1:
        raise InputError(
            "the holders of the rows to start at would have to show them to all; with ", secure,
            " take ", Setting("init", instead), ", which starts at means of many rows",
            "" if isinstance(settings, KmeansSettings) else ", or a model",
        )  # fmt: skip


def prepare(
    X: Any,
    n_features: int,
    settings: MixtureSettings,
    *,
    sample_weight: Any = None,
    feature_names: Sequence[str] | None = None,
    dtype: DTypeLike = np.float64,
    missing: str | None = None,
    some: Callable[[NDArray[np.bool_]], NDArray[np.bool_]] | None = None,
    local: LocalRows | None = None,
    kinds: Kinds | None = None,
) -> Prepared:
    """Check the data of a fit of a mixture, and what settings require of them.

    ``some`` says of flags whether any process has them, where features are spread over several.
    With ``local`` X and weights are those of this process's workers, and others have more rows; the
    weights of `Prepared` are those of all rows.
    """
    precision = precision_of(dtype)
    if local is not None and local.masked:
        refuse_masked(local, settings, "kmeans")
    advice = () if missing is None else MARGINALIZE
    X, misses, ends = look_at(X, n_features, feature_names, missing, advice, local)
    n_samples = len(X) if local is None else local.n_samples
    n_components, init, start_rows = settings.n_components, settings.init, None
    if init is None:
        raise InputError(f"init must be {', '.join(INITS)}, row indices or a Mixture, got None")
    if not isinstance(init, str | Density):
        start_rows = init
    any_has = some or (np.asarray if local is None else local.holders.any)
    if kinds is not None:
        check_kind("kinds must be vpem.Kinds", kinds, Kinds)
        if kinds.n_features != X.shape[1]:
            raise InputError(
                f"there are families for {kinds.n_features} features, the data have {X.shape[1]}"
            )
        # Where any process has others than Gaussian ones, all fit families.
        mixed = any_has(np.array([not kinds.is_gaussian]))[0]
        kinds = kinds.counted(X) if mixed else None
    of_rows = some or (np.asarray if local is None or local.masked else local.everyones)
    if missing == "marginalize":
        misses = bool(any_has(np.array([misses]))[0])
    blank = ~of_rows(~np.isnan(X).all(axis=1)) if misses else np.zeros(0, dtype=bool)
    if sample_weight is not None and local is not None:
        sample_weight = check_weights(sample_weight, len(X), some=True)
    if local is not None and local.masked:
        used = used_here(blank, sample_weight, misses, local)
    else:
        used = used_of_all(blank, sample_weight, n_samples, local)
    weights, kept, n_used, own = used
    if weights is not None and len(weights):
        limits = np.finfo(precision)
        # A responsibility in this precision must be able to be times each of them.
        if weights.min() < limits.tiny / limits.eps or weights.max() > limits.max * limits.eps:
            raise InputError(
                f"sample weights from {weights.min():g} to {weights.max():g} cannot be computed "
                f"with in {precision.name}; divide them by their mean, or use float64"
            )
    if start_rows is not None and kept is not None:
        rows = check_rows(start_rows, n_components, n_samples)
        unused = np.setdiff1d(rows, kept)
        if len(unused):
            raise InputError(
                "init rows must have a positive sample weight"
                f"{', and a value' if blank.any() else ''}; take another for row {unused[0]}"
            )
        start_rows = np.searchsorted(kept, rows)
    if own is not None:
        X = select_rows(X, [own])
        ends = None
    if misses:
        check_columns(X, feature_names, elsewhere=np.asarray if local is None else any_has)
        misses = bool(any_has(np.array([np.isnan(X).any()]))[0])
    kind = "" if weights is None else " with a positive weight"
    check_count(n_components, n_used, kind)
    if start_rows is not None:
        start_rows = check_rows(start_rows, n_components, n_used)
    ends = extremes(X) if ends is None else ends
    if kinds is not None:
        check_values_of(kinds, X, feature_names)
    refuse_large(X, ends, feature_names, precision)
    flat = ends[0] == ends[1] if local is None else local.constant(ends)
    if kinds is not None:
        flat = flat & kinds.located
    if flat.any() and (len(X) if local is None else local.n_samples) > 1:
        constant = np.flatnonzero(flat).tolist()
        names = constant if feature_names is None else [repr(feature_names[j]) for j in constant]
        warn(
            f"constant features do not distinguish rows: {shorten(names)}; their variance is ",
            Setting("reg_covar"),
            f" ({floor_of(settings.reg_covar):g}) alone",
            level=2,
            kind=VpemWarning if local is not None else OwnDataWarning,
        )
    return Prepared(X, n_samples, weights, kept, start_rows, precision, misses, n_used, kinds)


def look_at(
    X: Any,
    n_features: int,
    feature_names: Sequence[str] | None,
    missing: str | None,
    advice: Sentence,
    local: LocalRows | None,
    watch: Callable[[Any], Any] = lambda data: data,
) -> tuple[Any, bool, Extremes | None]:
    """Check the values: the data, whether this process misses some, and extremes where none may.

    Where none may be missing the rows are read as what ``watch`` makes of them.
    """
    misses, ends = False, None

    def finite(data: Matrix, names: Sequence[str] | None) -> None:
        nonlocal misses, ends
        if missing == "marginalize":
            misses = check_missing(data, names)
        else:
            ends = check_finite(watch(data), names, advice)

    data = check_data(X, n_features, feature_names, finite=finite, least_rows=int(local is None))
    return data, misses, ends


def network_of_all(
    network: Network | None, n: int, noun: str, names: Sequence[str] | None = None
) -> Network:
    """Return the network of n workers, a server by default; InputError if it joins others.

    ``noun`` is what they are called.
    """
    if network is None:
        return connect_workers(make_graph("star", n, names=names))
    must = "the network must come from vpem.connect_workers"
    check_kind(must, network, Network)
    if network.hops > 0:
        raise InputError(f"{must}, got one of vpem.connect, whose hubs are of several agents")
    if network.graph.n_agents != n:
        raise InputError(
            f"the graph has {network.graph.n_agents} agents, but there are {n} {noun}; give a "
            "graph of as many"
        )
    return network


def started(settings: FitSettings) -> tuple[GivenStart, FitSettings]:
    """Return where a fit starts, and the settings that matter: without iterations they are few."""
    began_at = GivenStart.wrap(settings.init)
    settings = settings.changed(init=began_at.init)
    if settings.max_iter == 0:
        settings = settings.changed(batch_size=None, step_size=None, accelerate=None)
    return began_at, settings


def restart_numbers(settings: FitSettings | KmeansSettings, first: int = 0) -> range:
    """Return the numbers of the restarts: of a start that is given there is one."""
    return range(first, first + settings.n_init) if isinstance(settings.init, str) else range(1)


def check_count(n_components: int, n_rows: int, kind: str = "") -> None:
    """Raise InputError unless there are at least as many rows (of a kind) as components."""
    if n_rows < n_components:
        raise InputError(
            f"{n_components} components need at least as many rows, got {n_rows}{kind}; try fewer "
            "components"
        )


def check_distinct(X: Matrix, settings: MixtureSettings, seen: bool) -> None:
    """Refuse more components than there are different rows, where one agent has ``seen`` all.

    They would be points, or copies of each other, but for a number that is added to variances or a
    prior.
    """
    has_floor = not isinstance(settings.reg_covar, str) and settings.reg_covar > 0
    if (
        not seen
        or has_floor
        or getattr(settings, "weight_concentration_prior_type", None) is not None
    ):
        return
    different: list[NDArray[np.uint8]] = []
    for _, part in row_blocks(X):
        # Of equal rows, gaps and all, bytes are equal.
        rest = np.ascontiguousarray(part + 0.0).view(np.uint8)
        for one in different:
            rest = rest[(rest != one).any(axis=1)]
        while len(rest):
            different.append(rest[0].copy())
            if len(different) >= settings.n_components:
                return
            rest = rest[(rest != rest[0]).any(axis=1)]
    raise InputError(
        f"{settings.n_components} components need at least as many different rows, got "
        f"{len(different)}; try fewer components, or a number above 0 for ", Setting("reg_covar"),
    )  # fmt: skip


def units_of(
    X: Any,
    row_weights: NDArray[np.float64] | None,
    blocks: Blocks,
    settings: FitSettings,
    misses: bool = False,
    local: LocalRows | None = None,
) -> Scaling:
    """Units to fit in, which change no result: features about their means, of variance 1.

    Spheres in the data's units stay spheres, unless features are standardized: a hub has one unit.
    """
    add = alone if local is None else local.holders.allreduce
    hubs = sharing(blocks, settings.covariance_type, settings.scale)
    if misses:
        return Scaling.standardize(*observed_moments(X, row_weights, add), hubs)
    return Scaling.standard(X, row_weights, add, hubs)


def make_terms(
    data: Floats | FileMatrix,
    row_weights: NDArray[np.float64] | None,
    blocks: Blocks,
    scaling: Scaling,
    prepared: Prepared,
    settings: FitSettings,
    local: LocalRows | None = None,
    reach: Reach | None = None,
) -> FeatureTerms:
    """Return the terms of a fit of a mixture, with as many threads as its settings say."""
    assert settings.n_threads is not None
    others: dict[str, Any] = {}
    kind: Any = partial(FeatureTerms, missing=prepared.misses)
    if settings.n_factors:
        kind = partial(FactorTerms, n_factors=settings.n_factors)
    if local is not None and prepared.misses:
        others = {"add": local.holders.allreduce} if reach is None else {"reach": reach}
    terms: FeatureTerms = kind(
        data,
        blocks,
        settings.covariance_type,
        scaling=scaling,
        row_weights=row_weights,
        reg_covar=floors_of(settings.reg_covar, settings.scale, scaling),
        n_threads=settings.n_threads,
        dtype=prepared.precision,
        skip_negligible=not settings.every_weight,
        **others,
    )
    terms.least_rows = settings.least_rows
    return terms


def refuse_large(
    X: Matrix,
    ends: Extremes,
    feature_names: Sequence[str] | None,
    precision: np.dtype[np.floating],
) -> None:
    """Raise InputError at the first run of rows with values that cannot be squared."""
    most, (lowest, highest) = LARGEST_VALUE[precision.itemsize], ends
    if max(-lowest.min(initial=0), highest.max(initial=0)) <= most:
        return
    for start, part in row_blocks(X):
        large = np.fmax.reduce(np.abs(part), axis=0).astype(np.float64) > most
        if large.any():
            column = int(np.flatnonzero(large)[0])
            row = int(np.nanargmax(np.abs(part[:, column])))
            name = "" if feature_names is None else f" ({feature_names[column]!r})"
            raise InputError(
                f"row {start + row}, feature {column}{name} is {float(part[row, column]):g}, but "
                f"values beyond {most:g} cannot be squared in {precision.name}; use other units"
                f"{' or float64' if precision.itemsize < 8 else ''}"
            )


def acceleration_of(
    settings: FitSettings, network: Network, *, over_rows: bool = False
) -> Acceleration | None:
    """Return how a fit is to be accelerated, or raise InputError where it cannot be."""
    acceleration = parse_acceleration(settings.accelerate)
    if acceleration is None:
        return None
    local, by_rounds = acceleration.local, not network.total.at_server
    refuse_first(
        (by_rounds and network.faults is not None, (
            "{accelerate} rejects steps after which a sum finds a lower log-likelihood, but where "
            "links or agents fail, sums by consensus differ by which agents were heard; leave it "
            "out, or take {sum=tree}",
        )),
        (local and over_rows, (
            "over rows no worker has parameters of its own for local steps; take "
            "{accelerate=squarem}",
        )),
        (local and settings.n_factors, (
            "expected factors depend on the features of all hubs, so that a hub cannot know what a "
            "local step would do while the rest of a sum stays; take {accelerate=squarem}",
        )),
        (local and network.total.holders.n_agents == 1, (
            "local steps of a single hub would be those of EM; take {accelerate=squarem}",
        )),
        (by_rounds and acceleration.squarem and network.compress is not None, (
            "compressed messages between neighbours encode changes since the last sum of terms, "
            "and the two numbers of an extrapolation would be mistaken for such changes; take "
            "{accelerate=local:8}, or a sum at a server or along a tree",
        )),
    )  # fmt: skip
    return replace(acceleration, noisy=network.compress is not None)


def believing(terms: FeatureTerms, settings: FitSettings) -> FeatureTerms:
    """Return terms under the settings' prior, which is yet to be found; plain ones without."""
    kind = settings.weight_concentration_prior_type
    concentration = settings.weight_concentration_prior
    if kind is None:
        return terms
    if not terms.is_gaussian:
        raise InputError(
            Setting("weight_concentration_prior_type", kind),
            " is conjugate to Gaussian features, but these have others among them; leave it out",
        )
    prior = mode_prior(settings, terms.blocks)
    if prior is not None:
        pull, freedom, factors = list(prior.values())[1:]
        freedom, factors = np.array(freedom), np.array(factors)
        return MapTerms.from_terms(terms, pull=pull, freedom=freedom, scale=factors)
    means, scale = settings.mean_precision_prior, settings.prior_covariance
    return variational_terms(
        terms,
        kind,
        1.0 / settings.n_components if concentration is None else concentration,
        1.0 if means is None else means,
        settings.degrees_of_freedom_prior,
        1.0 if scale is None else scale,
    )


def mode_prior(settings: FitSettings, blocks: Blocks) -> Report | None:
    """Return the prior of which EM finds the mode, by default mclust's; None: there is no such."""
    if settings.weight_concentration_prior_type != MAP:
        return None
    pull, freedom, scale = (
        settings.mean_precision_prior, settings.degrees_of_freedom_prior, settings.prior_covariance,
    )  # fmt: skip
    sizes = wishart_sizes(blocks, settings.covariance_type).astype(np.float64)
    usual = settings.n_components ** (-2 / sizes)
    return {
        "weight_concentration_prior_type": MAP,
        "mean_precision_prior": 0.01 if pull is None else pull,
        "degrees_of_freedom_prior": (
            sizes + 2 if freedom is None else np.full(len(sizes), freedom)
        ).tolist(),
        "prior_covariance": (usual if scale is None else np.full(len(sizes), scale)).tolist(),
    }
