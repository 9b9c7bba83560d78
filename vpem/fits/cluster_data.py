"""What every kind of k-means asks of data and options, before any work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import (
    Extremes,
    Floats,
    check_data,
    check_finite,
    check_rows,
    check_weights,
    extremes,
    row_blocks,
)
from vpem.errors import InputError, Setting
from vpem.fits.local_rows import LocalRows
from vpem.fits.prepare import precision_of, refuse_masked
from vpem.settings import CLUSTER_INITS, KmeansSettings
from vpem.terms.missing_patterns import blank_row, check_columns, check_missing, observed_moments
from vpem.terms.scaling import Add, RunningMoments, Scaling, alone

OF_WHAT_IS_THERE = ("cluster by what is there with ", Setting("missing", "marginalize"))
"""Advice where values are missing."""

LARGEST_VALUE = {8: 1e140, 4: 1e17}
"""Largest value to be squared and summed, by bytes of the precision."""

SOME_VALUES = 1 << 16
"""Values of rows whose moments are taken at once, while they are in the cache."""


@dataclass
class Wanted:
    """Data and options that were checked; data and centres are in the user's units."""

    X: Any  # (M, d)
    row_weights: NDArray[np.float64] | None  # (M,); here, if masked
    rows: NDArray[np.intp] | None  # (K,) to start from
    centres: NDArray[np.float64] | None  # (K, d) to start from
    init: str | None  # how else to start
    restarts: int  # how often to start
    dtype: np.dtype[np.floating]
    scaling: Scaling  # units to cluster in
    misses: bool  # values are missing
    deviations: NDArray[np.float64] | None  # (d,) in all processes, if measured

    @property
    def kept_scaling(self) -> Scaling | None:
        """The units, where they are not the user's."""
        return None if self.scaling.is_none else self.scaling


def prepare(
    X: Any,
    n_features: int,
    how: KmeansSettings,
    sample_weight: Any,
    feature_names: Sequence[str] | None,
    here: LocalRows | None = None,
    n_of_centres: int | None = None,
    some: Callable[[NDArray[np.bool_]], NDArray[np.bool_]] | None = None,
) -> Wanted:
    """Check what every kind of k-means is given.

    With ``here`` X and weights are of the rows of this process's workers, and others have more;
    weights of `Wanted` are of all rows. Centres to start from are of ``n_of_centres`` features, by
    default of those of X, where ``some`` tells whether any process has each of some flags.
    """
    n_clusters, init = how.n_clusters, how.init
    masked = here is not None and here.masked
    if here is not None and masked:
        refuse_masked(here, how, "k-means++")
    precision = precision_of(how.dtype)
    watched = _Watched(n_features, sample_weight) if how.scale == "none" and not masked else None
    data, misses, found = _with_gaps(X, n_features, how, feature_names, here, some, watched)
    weights = None
    n_samples = n_positive = len(data) if here is None else here.n_samples
    if sample_weight is not None:
        if here is None:
            weights = check_weights(sample_weight, n_samples)
        else:
            weights = check_weights(sample_weight, len(data), some=True)
            if not masked:
                weights = check_weights(here.everyones(weights), n_samples)
        positive = weights > 0
        n_positive = int(here.count(positive) if here is not None and masked else positive.sum())
    if n_positive < n_clusters:
        raise InputError(
            f"{n_clusters} clusters need at least as many rows, got {n_positive}"
            f"{'' if weights is None else ' with a positive weight'}; try fewer clusters"
        )
    most = LARGEST_VALUE[precision.itemsize]
    lowest, highest = found
    if max(-lowest.min(initial=0), highest.max(initial=0)) > most:
        _refuse_large(data, feature_names, most, precision)
    scaling, deviations = Scaling.none(n_features), None
    if not masked:
        add = alone if here is None else here.holders.allreduce
        own = weights if weights is None or here is None else weights[here.numbers]
        if misses:
            shift, deviations = observed_moments(data, own, add)
            scaling = Scaling.by(shift, deviations) if watched is None else scaling
        elif watched is not None:
            deviations = watched.deviations(add)
        else:
            scaling = Scaling.standard(data, own, add)
            deviations = scaling.scale
    rows = centres = None
    if isinstance(init, str):
        return Wanted(
            data, weights, None, None, init, how.n_init, precision, scaling, misses, deviations
        )
    given = np.asarray(init) if isinstance(init, Sequence | np.ndarray) else np.empty(0)
    if given.ndim == 2:
        centres = _check_centres(given, n_clusters, n_of_centres or n_features, most)
    elif given.ndim == 1 and given.size:
        if len(given) != n_clusters:
            raise InputError(f"{n_clusters} clusters need as many init rows, got {len(given)}")
        rows = check_rows(given, n_clusters, n_samples)
    else:
        raise InputError(
            f"init must be {' or '.join(CLUSTER_INITS)}, row indices, or centres of shape "
            f"({n_clusters}, {n_of_centres or n_features}), got {init!r}"
        )
    return Wanted(data, weights, rows, centres, None, 1, precision, scaling, misses, deviations)


class _Watched:
    """Moments of rows, taken as they are looked at for something else: nothing is read twice.

    Weights (m,) are not checked yet; what comes of wrong ones is never asked for.
    """

    def __init__(self, n_features: int, weights: Any) -> None:
        self._n_features = n_features
        self._given = weights

    def of(self, data: Any) -> _Watched:
        """Return itself, a `vpem.checks.Matrix` of some rows whose moments are wanted."""
        self._data, self.shape = data, data.shape
        self._moments = RunningMoments(self._n_features)
        given = np.asarray(1.0 if self._given is None else self._given)
        wrong = given.shape not in ((), (len(data),)) or given.dtype.kind not in "iufb"
        self._weights = np.broadcast_to(1.0 if wrong else given.astype(np.float64), len(data))
        self._mass = float(self._weights.sum())
        return self

    def runs(self) -> Iterator[tuple[int, Floats]]:
        """Yield (first row, rows) as `vpem.checks.row_blocks` does."""
        step = max(1, SOME_VALUES // max(self._n_features, 1))
        for start, rows in row_blocks(self._data):
            yield start, rows
            with np.errstate(all="ignore"):
                for begin in range(0, len(rows), step):
                    some = rows[begin : begin + step]
                    share = self._weights[start + begin :][: len(some)] / self._mass
                    self._moments.take(some, share)

    def deviations(self, add: Add) -> NDArray[np.float64]:
        """Return standard deviations (d,) over the rows of all processes."""
        total = add(np.array([self._mass]))[0]
        return self._moments.joined(add, self._mass / total)[1]


def _with_gaps(
    X: Any,
    n_features: int,
    how: KmeansSettings,
    feature_names: Sequence[str] | None,
    here: LocalRows | None,
    some: Callable[[NDArray[np.bool_]], NDArray[np.bool_]] | None,
    watched: _Watched | None,
) -> tuple[Any, bool, Extremes]:
    """Check the values; whether any process misses some, and each row has one; their extremes."""
    misses = False
    found: Extremes | None = None

    def seen(data: Any) -> Any:
        return data if watched is None else watched.of(data)

    def finite(data: Any, names: Sequence[str] | None) -> None:
        nonlocal misses, found
        if how.missing == "refuse":
            found = check_finite(seen(data), names, OF_WHAT_IS_THERE)
        else:
            misses = check_missing(data, names)

    least = int(here is None)
    data = check_data(X, n_features, feature_names, finite=finite, least_rows=least)
    if found is None:
        found = extremes(data if misses else seen(data))
    any_has = some or (np.asarray if here is None else here.holders.any)
    if how.missing == "refuse" or not any_has(np.array([misses]))[0]:
        return data, False, found
    has = ~np.isnan(data).all(axis=1)
    blank = np.flatnonzero(~(has if some is None else some(has)))
    if len(blank):
        row = int(blank[0]) if here is None else int(here.numbers[blank[0]])
        raise blank_row(row)
    check_columns(data, feature_names, elsewhere=np.asarray if here is None else any_has)
    return data, True, found


def _refuse_large(
    data: Any,
    feature_names: Sequence[str] | None,
    most: float,
    precision: np.dtype[np.floating],
) -> None:
    """Raise InputError at the largest value of the first run of rows with too large ones."""
    for start, part in row_blocks(data):
        row, column = divmod(int(np.nanargmax(np.abs(part))), part.shape[1])
        if abs(part[row, column]) > most:
            name = "" if feature_names is None else f" ({feature_names[column]!r})"
            raise InputError(
                f"row {start + row}, feature {column}{name} is {float(part[row, column]):g}: its "
                f"square cannot be computed with in {precision.name}; scale the features first"
            )


def _check_centres(
    given: Floats, n_clusters: int, n_features: int, most: float
) -> NDArray[np.float64]:
    if given.shape != (n_clusters, n_features) or given.dtype.kind not in "iuf":
        raise InputError(
            f"starting centres must be {n_clusters} x {n_features} numbers, got shape "
            f"{given.shape} of type {given.dtype}"
        )
    if not (np.abs(given) <= most).all():
        raise InputError(f"starting centres must be finite and at most {most:g} in magnitude")
    return given.astype(np.float64)
