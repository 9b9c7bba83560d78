"""Inputs of fits of mixtures, checked: rows that are used, families, and their terms.

Rows are used if they have a positive weight and a value; masked sums do not show whose they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

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
    parse_participation,
    precision_of,
    row_blocks,
)
from vpem.errors import InputError, OwnDataWarning, Setting, VpemWarning, brief, shorten, warn
from vpem.files.checkpoints import checksum
from vpem.files.json_text import read_json_file
from vpem.files.matrix import FileMatrix, select_rows
from vpem.fits.local_rows import AllRows, LocalRows, UsedRows
from vpem.network.graph import make_graph
from vpem.network.partition import Blocks
from vpem.network.schema import Report
from vpem.records import Sentence, refused, sentence
from vpem.rules import LASSO_OF_FULL
from vpem.settings import INITS, MAP, SMALL_EM, FitSettings, KmeansSettings, MixtureSettings
from vpem.steps.accelerate import Acceleration, parse_acceleration
from vpem.steps.starts import SMALL_RUN, SMALL_TOLERANCE, GivenStart
from vpem.sums.connect import Network, connect_workers
from vpem.sums.partial import Presence
from vpem.terms.density import Density
from vpem.terms.factors import FactorTerms
from vpem.terms.families.kinds import Kinds
from vpem.terms.families.mixture import check_values_of
from vpem.terms.features import FeatureTerms
from vpem.terms.priors import MapTerms, parse_penalty, wishart_sizes
from vpem.terms.rows import check_columns, check_missing, observed_moments
from vpem.terms.units import Reach, Scaling, floor_of, floors_of, sharing
from vpem.terms.variational import variational_terms


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


def weighed_kept(
    mixture: Any, scores: NDArray[np.float64], there: NDArray[np.bool_], sample_weight: Any,
    trim: float, slopes: Any = 0.0,
) -> tuple[float, float]:  # fmt: skip
    """Return `weighed` scores, with slopes added, of rows of which a part ``trim`` is left out."""
    if mixture.outliers != "trimmed" or not trim:
        there = there & mixture.counts_rows(scores)
    else:
        weights = np.ones(len(scores))
        if sample_weight is not None:
            weights = check_weights(np.asarray(sample_weight), len(scores))
        sample_weight = weights * mixture.shares_of_rows(scores, trim, weights)
        there = there & (sample_weight > 0)
    return weighed(np.where(there, scores + slopes, 0.0), there, sample_weight)


Used = tuple[NDArray[np.float64] | None, NDArray[np.intp] | None, int, NDArray[np.intp] | None]
"""Weights of rows that are used, their numbers (None: all), how many of all; which of those here,
if not all."""


def used_rows(rows: AllRows, n_samples: int, there: NDArray[np.bool_] | None, weights: Any) -> Used:
    """Find the rows of positive weight that have a value, as all know them.

    Where sums are masked, those of this process: no agent learns whose they are.
    """
    if weights is None and there is None:
        return None, None, n_samples, None
    n_blank = 0 if there is None else n_samples - rows.count(there)
    used = np.ones(1, dtype=np.bool_) if there is None else there
    if weights is not None:
        used = used & (weights > 0)
    n_used = rows.count(used)
    if not n_used:
        raise InputError(NOTHING_USED)
    if n_blank:
        warn(
            f"{n_blank} of {n_samples} rows have no values and are left out; the log-likelihood "
            "per sample is the mean over the others",
            level=4,
        )
    weighs = None if weights is None else weights[used]
    if used.all():
        return weighs, None, n_used, None
    kept = np.flatnonzero(used)
    return weighs, kept, n_used, kept if rows.masked else np.flatnonzero(rows.mine(used))


def refuse_with_kinds(settings: FitSettings, *, private: bool, covariates: bool = False) -> None:
    refuse_first(
        (covariates and settings.accelerate is not None, (
            "{accelerate} moves mixing weights and coefficients of covariates apart from each "
            "other, though they belong together; leave it out",
        )),
        (covariates and settings.batch_size is not None, (
            "{batch_size} finds parameters from statistics of some rows, but coefficients of "
            "covariates need all rows; leave it out",
        )),
        (settings.step_size is not None, (
            "{step_size} keeps statistics in the parameters alone, which forget the levels of a "
            "category or count that a batch lacks; leave it out, for batches that replace their "
            "own statistics",
        )),
        (settings.seeks_outliers, (
            ("{noise}" if settings.noise else "{trim}")
            + " compares densities of numbers, but some features are of other families; fit "
            "Gaussian ones, or leave it out",
        )),
        (settings.eigenvalue_ratio is not None, (
            "{eigenvalue_ratio} bounds covariances of Gaussian features, but some are of other "
            "families; leave it out",
        )),
        (settings.fix is not None, (
            "{fix} holds covariances of Gaussian features, but some are of other families; leave "
            "it out",
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


@dataclass
class Prepared:
    """Data and options that have been looked at.

    ``X`` (m, d) are the rows of positive weight; where workers live in several processes, those of
    this one. ``row_weights`` (m,) are those of all rows of positive weight, as the user numbers
    them; None: all alike. ``kept`` (m,) are their numbers; None: all rows. Where sums are masked
    both are those of this process. ``rows`` (K,) of ``X`` are those to start at, where init says
    so. Of ``n_samples`` rows ``n_used`` count. Without ``kinds`` all features are Gaussian.

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

    def held(self, rows: LocalRows) -> UsedRows:
        return UsedRows(rows, self.X, self.row_weights, self.kept, self.n_used)


def prepare(
    X: Any,
    n_features: int,
    settings: MixtureSettings,
    rows: AllRows,
    *,
    sample_weight: Any = None,
    feature_names: Sequence[str] | None = None,
    dtype: DTypeLike = np.float64,
    missing: str | None = None,
    kinds: Kinds | None = None,
) -> Prepared:
    """Check the data of a fit of a mixture, and what settings require of them.

    ``rows`` says what other processes have. Where workers hold rows, X and weights are those of
    this process's, and the weights of `Prepared` those of all.
    """
    precision = precision_of(dtype)
    rows.refuse_showing(settings, "kmeans", ", or a model")
    advice = () if missing is None else MARGINALIZE
    X, misses, ends = look_at(X, n_features, feature_names, missing, advice, rows)
    n_samples = rows.count_all(len(X))
    n_components, init, start_rows = settings.n_components, settings.init, None
    if init is None:
        raise InputError(f"init must be {', '.join(INITS)}, row indices or a Mixture, got None")
    if not isinstance(init, str | Density):
        start_rows = init
    if kinds is not None:
        check_kind("kinds must be vpem.Kinds", kinds, Kinds)
        if kinds.n_features != X.shape[1]:
            raise InputError(
                f"there are families for {kinds.n_features} features, the data have {X.shape[1]}"
            )
        # Where any process has others than Gaussian ones, all fit families.
        mixed = rows.any(np.array([not kinds.is_gaussian]))[0]
        kinds = kinds.counted(X) if mixed else None
    if missing == "marginalize":
        misses = bool(rows.any(np.array([misses]))[0])
    there = rows.everyones(rows.seen(~np.isnan(X).all(axis=1))) if misses else None
    if sample_weight is not None:
        sample_weight = check_weights(sample_weight, len(X), some=not rows.here)
        if not rows.masked:
            sample_weight = check_weights(rows.everyones(sample_weight), n_samples)
    weights, kept, n_used, own = used_rows(rows, n_samples, there, sample_weight)
    if weights is not None and len(weights):
        limits = np.finfo(precision)
        # A responsibility in this precision must be able to be times each of them.
        if weights.min() < limits.tiny / limits.eps or weights.max() > limits.max * limits.eps:
            raise InputError(
                f"sample weights from {weights.min():g} to {weights.max():g} cannot be computed "
                f"with in {precision.name}; divide them by their mean, or use float64"
            )
    if start_rows is not None and kept is not None:
        chosen = check_rows(start_rows, n_components, n_samples)
        unused = np.setdiff1d(chosen, kept)
        if len(unused):
            raise InputError(
                "init rows must have a positive sample weight"
                f"{'' if there is None or there.all() else ', and a value'}; take another for row "
                f"{unused[0]}"
            )
        start_rows = np.searchsorted(kept, chosen)
    if own is not None:
        X = select_rows(X, [own])
        ends = None
    if misses:
        check_columns(X, feature_names, elsewhere=rows.in_columns)
        misses = bool(rows.any(np.array([np.isnan(X).any()]))[0])
    kind = "" if weights is None else " with a positive weight"
    check_count(n_components, n_used, kind)
    if start_rows is not None:
        start_rows = check_rows(start_rows, n_components, n_used)
    ends = extremes(X) if ends is None else ends
    if kinds is not None:
        check_values_of(kinds, X, feature_names)
    refuse_large(X, ends, feature_names, precision)
    flat = rows.constant(ends)
    if kinds is not None:
        flat = flat & kinds.located
    if flat.any() and n_used > 1:
        constant = np.flatnonzero(flat).tolist()
        names = constant if feature_names is None else [repr(feature_names[j]) for j in constant]
        warn(
            f"constant features do not distinguish rows: {shorten(names)}; their variance is ",
            Setting("reg_covar"),
            f" ({floor_of(settings.reg_covar):g}) alone",
            level=2,
            kind=OwnDataWarning if rows.here else VpemWarning,
        )
    return Prepared(X, n_samples, weights, kept, start_rows, precision, misses, n_used, kinds)


def look_at(
    X: Any,
    n_features: int,
    feature_names: Sequence[str] | None,
    missing: str | None,
    advice: Sentence,
    rows: AllRows,
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

    data = check_data(X, n_features, feature_names, finite=finite, least_rows=int(rows.here))
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


def started(settings: FitSettings, blocks: Blocks | None = None) -> tuple[GivenStart, FitSettings]:
    """Return where a fit starts, and the settings that matter: without iterations they are few."""
    began_at = GivenStart.wrap(settings.init)
    has_units = settings.scale == "standard"
    began_at.check_fixed(settings.fix, settings.covariance_type, blocks, has_units=has_units)
    settings = settings.changed(init=began_at.init)
    if began_at.parts and began_at.init == SMALL_EM:
        raise InputError(
            Setting("init", SMALL_EM), " moves all parameters of a start, but some are given; "
            "take ", Setting("init", "kmeans"), ", or do not give them",
        )  # fmt: skip
    if settings.max_iter == 0:
        settings = settings.changed(batch_size=None, step_size=None, accelerate=None)
    return began_at, settings


def restart_numbers(settings: FitSettings | KmeansSettings, first: int = 0) -> range:
    """Return the numbers of the restarts: of a start that is given there is one."""
    return range(first, first + settings.n_init) if isinstance(settings.init, str) else range(1)


def check_count(n_components: int, n_rows: int, kind: str = "") -> None:
    if n_rows < n_components:
        raise InputError(
            f"{n_components} components need at least as many rows, got {n_rows}{kind}; try fewer "
            "components"
        )


def check_start(start: Density, n_components: int, over_rows: bool = True) -> None:
    """Refuse a start of another K, and over rows one that has other features than Gaussian ones."""
    if over_rows and start.kinds is not None:
        raise InputError(
            f"the starting model has features of families ({start.kinds.summary}), but over rows "
            "all are Gaussian; take a Gaussian model, or data split by features"
        )
    if start.n_components != n_components:
        raise InputError(
            f"the starting model has {start.n_components} components, the fit has {n_components}"
        )


FIRST = 64
"""Rows that are compared before all others are."""


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
    parts = (some for _, part in row_blocks(X) for some in (part[:FIRST], part[FIRST:]))
    for part in parts:  # the first rows are mostly enough
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
    misses: bool,
    rows: AllRows,
) -> Scaling:
    """Units to fit in, which change no result: features about their means, of variance 1.

    Spheres in the data's units stay spheres, unless features are standardized: a hub has one unit.
    """
    bounded = settings.eigenvalue_ratio is not None
    hubs = sharing(blocks, settings.covariance_type, settings.scale, bounded)
    if rows.holders.engine.in_order and not misses and isinstance(rows, UsedRows):
        return Scaling.standardize(*rows.moments(X).joined(), hubs)
    if misses:
        return Scaling.standardize(*observed_moments(X, row_weights, rows.add), hubs)
    return Scaling.standard(X, row_weights, rows.add, hubs)


def make_terms(
    data: Floats | FileMatrix,
    row_weights: NDArray[np.float64] | None,
    blocks: Blocks,
    scaling: Scaling,
    prepared: Prepared,
    settings: FitSettings,
    rows: AllRows,
    reach: Reach | None = None,
) -> FeatureTerms:
    """Return the terms of a fit of a mixture, with as many threads as its settings say."""
    assert settings.n_threads is not None
    others: dict[str, Any] = {}
    kind: Any = partial(FeatureTerms, missing=prepared.misses)
    if settings.n_factors:
        kind = partial(FactorTerms, n_factors=settings.n_factors)
    if settings.seeks_outliers:
        from vpem.terms.outliers import OutlierTerms

        kind = partial(OutlierTerms, trim=settings.trim, standard=settings.scale == "standard")
    if prepared.misses:
        others = {"add": rows.add} if reach is None else {"reach": reach}
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
    terms.eigenvalue_ratio = settings.eigenvalue_ratio
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
        (by_rounds and network.fails, (
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


def short_runs(
    settings: FitSettings, network: Network, *, over_rows: bool = False
) -> tuple[FitSettings, Acceleration | None]:
    """Return the settings of short runs from starts, and how they are accelerated, if they can be.

    Where there can be no longer steps, they are EM as it is.
    """
    tolerance = max(settings.tol, SMALL_TOLERANCE)
    short: Report = {"max_iter": SMALL_RUN, "batch_size": None, "tol": tolerance}
    try:
        longer = settings.changed(**short, accelerate="squarem")
        return longer, acceleration_of(longer, network, over_rows=over_rows)
    except InputError:
        return settings.changed(**short, accelerate=None), None


def believing(terms: FeatureTerms, settings: FitSettings) -> FeatureTerms:
    """Return terms under the settings' prior, which is yet to be found; plain ones without."""
    kind = settings.weight_concentration_prior_type
    concentration = settings.weight_concentration_prior
    if settings.penalty is not None:
        return penalised(terms, settings)
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


def penalised(terms: FeatureTerms, settings: MixtureSettings) -> MapTerms:
    """Return terms of rows under the settings' penalty, which need what all rows are like first."""
    penalty = parse_penalty(settings.penalty or "")
    if not terms.is_gaussian:
        raise InputError(
            Setting("penalty", settings.penalty),
            " is one of Gaussian features, but these have others among them; leave it out",
        )
    if penalty.lasso and settings.covariance_type in ("full", "tied"):
        raise refused(Setting("penalty", penalty.words), LASSO_OF_FULL)
    sizes = wishart_sizes(terms.blocks, settings.covariance_type).astype(np.float64)
    usual = settings.n_components ** (-2 / sizes)
    freedom = sizes + 2 if penalty.freedom is None else np.full(len(sizes), penalty.freedom)
    return MapTerms.from_terms(
        terms,
        strengths=(penalty.ridge, penalty.lasso),
        is_proper=penalty.wishart,
        freedom=freedom if penalty.wishart else None,
        scale=usual if penalty.scale is None else np.full(len(sizes), penalty.scale),
        concentration=penalty.concentration,
        penalty=Setting("penalty", penalty.words),
    )


def prior_of_penalty(settings: MixtureSettings) -> Report | None:
    """Return what results say of a penalty; None: there is none."""
    return None if settings.penalty is None else {"penalty": parse_penalty(settings.penalty).words}


def mode_prior(settings: FitSettings, blocks: Blocks) -> Report | None:
    """Return the prior of which EM finds the mode, by default mclust's; None: there is no such."""
    if settings.penalty is not None:
        return prior_of_penalty(settings)
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


def read_presence(settings: Any, names: Sequence[str], network: Network) -> Any:
    """Return settings in which who takes part is said by numbers of workers, or observers.

    A file is read; that of all processes must say the same.
    """
    value, engine = settings.participation, network.agents.engine
    if isinstance(value, str) and isinstance(parse_participation(value), str):
        file, value = value, read_json_file(value)
        if isinstance(parse_participation(value), str):
            raise InputError(f"{file} must hold who takes part, got the name {brief(value)}")
        said = engine.allgather(checksum(repr(parse_participation(value))))
        if len(set(said)) > 1:
            raise InputError(
                Setting("participation"), " is in a file that differs between processes; give all "
                "the same one",
            )  # fmt: skip
    return settings.changed(participation=Presence.of(value, names).plain)
