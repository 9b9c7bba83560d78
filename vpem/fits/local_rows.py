"""Rows of which every process has those of its own workers, and sums by which workers agree.

FedEM first agrees on the mean and the second moments of the data; under masks workers first find
out by sums where their rows lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import BLOCK_VALUES, AnyArray, Doubles, Extremes, Floats, Indices, Mask
from vpem.engines.engine import set_topic
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting
from vpem.files.matrix import FileMatrix, select_rows
from vpem.network.codecs import Codec, Natural
from vpem.network.masks import FEWEST
from vpem.network.partition import Blocks, Workers
from vpem.settings import KmeansSettings, MixtureSettings
from vpem.steps.cells import draw_cells
from vpem.steps.lloyd import Lloyd, Pace
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.row_sampling import ROW_BYTES, HeldRows, PointStream, RowStream, WorkerRows
from vpem.steps.starts import (
    FARTHEST_FIRST,
    LLOYD_TOLERANCE,
    MOST_LLOYD_OF_START,
    Tell,
    seed_rows,
    step_of_lloyd,
)
from vpem.sums.counted import add_vectors
from vpem.sums.partial import Uplink
from vpem.sums.private import powers_above
from vpem.sums.quantizer import ITEM, Quantizer
from vpem.sums.sum import Sum
from vpem.terms.rows import Rows, arrange_rows
from vpem.terms.units import (
    Points,
    Reach,
    RunningMoments,
    Scaling,
    deviations_of,
    exponents_of,
    lower_half,
    root_of,
    symmetric,
)

SHORT = 4
"""Bytes of a number of the start where corrections are compressed."""

MOMENTS = (Natural(16), Natural(24))
"""Means and factors of second moments, number by number: units of features do not matter. The
second is for codecs that are finer than the first."""

MANY = 1 << 20
"""Values of a message of which codecs' noise is compared."""

LEAST_OF_BATCH = 5
"""Rows of a batch where sums over rows are masked: consecutive totals differ by these."""


def codec_of_moments(codec: Codec | None) -> Codec | None:
    """Return what the data's moments are sent by, of what corrections are; None: exactly.

    16 bits a number, and 24 where corrections are finer than that; float32 and float64 are kept.
    """
    if codec is None or codec.name == "float64":
        return None
    if codec.name == "float32":
        return codec
    short, long = MOMENTS
    return short if codec.variance(MANY) >= short.variance(1) else long


@dataclass(frozen=True)
class HeldPart:
    """Rows of one worker in the user's units."""

    rows: Rows  # NaN where a value is missing
    weights: Doubles | None  # (m,); None: all weigh 1
    mass: float  # what they weigh

    def runs(self) -> Iterator[tuple[Doubles, Doubles | None]]:
        for run in self.rows.runs():
            rows = self.rows.read(run).astype(np.float64, copy=False)
            yield rows, None if self.weights is None else self.weights[run]

    def means(self, about: Doubles | None, misses: bool) -> Doubles:
        """Mean (d,) about a point; where values are missing, 0 for those, and the share there is.

        Then of shape (2 d,).
        """
        total: Doubles | float = 0.0
        for rows, weights in self.runs():
            if about is not None:
                rows = rows - about
            if misses:
                seen = ~np.isnan(rows)
                rows = np.concatenate([np.where(seen, rows, 0.0), seen], axis=1)
            total = total + (rows.sum(axis=0) if weights is None else weights @ rows)
        return np.asarray(total / self.mass)

    def squares(self, shift: Doubles) -> Doubles:
        """Sum of second moments (d, d) about a point, without values that are missing."""
        total: Doubles | float = 0.0
        for rows, weights in self.runs():
            about = _filled(rows - shift)
            heavy = about if weights is None else about * weights[:, None]
            total = total + heavy.T @ about
        return np.asarray(total)

    def factor(self, shift: Doubles) -> Doubles:
        """Triangular factor (at most d, d) of the mean of the same.

        The first d rows are kept apart, so that its signs, by which a codec rounds, do not depend
        on how many rows are read at once.
        """
        d = len(shift)
        top: Doubles = np.empty((0, d))
        rest = top
        for rows, weights in self.runs():
            about = _filled(rows - shift)
            if weights is not None:
                about = about * np.sqrt(weights)[:, None]
            about = about / np.sqrt(self.mass)
            if len(about) == self.rows.n_samples:
                return np.asarray(np.linalg.qr(about, mode="r"))
            new = d - len(top)
            top, about = np.concatenate([top, about[:new]]), about[new:]
            rest = np.asarray(np.linalg.qr(np.concatenate([rest, about]), mode="r"))
        return np.asarray(np.linalg.qr(np.concatenate([top, rest]), mode="r"))


def _filled(rows: Doubles) -> Doubles:
    """Rows about the mean, which missing values are filled by."""
    missing = np.isnan(rows)
    return np.where(missing, 0.0, rows) if missing.any() else rows


@dataclass
class MomentSums:
    """Sums by which workers agree on the moments of the data.

    ``masses`` (n,) are the total weights of each worker's rows. Moments are sent with the codec,
    where there is a server; None: everything is exact. ``reach`` says where rows lie, if sums are
    masked.
    """

    total: Sum
    n_roots: int
    masses: Doubles
    n_features: int
    codec: Codec | None
    rng: np.random.Generator
    reach: Reach | None = None

    def __post_init__(self) -> None:
        self.holders = self.total.holders
        self.own = self.holders.own

    def moments(
        self, parts: Sequence[HeldPart], weights: Doubles, hubs: Blocks | None, misses: bool
    ) -> tuple[Scaling, Doubles, Doubles | None]:
        """Agree on units of fitting, second moments of the data in them, and shares of values.

        These (d,) are of rows that have a value of each feature, None where all have all.

        ``weights`` (n,) are what each worker weighs in a mean; for ``hubs`` see `Scaling.by`;
        ``misses``: values are missing, in any process.
        """
        measure = self._exactly if self.codec is None else self._in_few_bits
        shift, second, there = measure(parts, weights, misses)
        if there is not None:
            # Values that are missing vary as those that are there do.
            np.fill_diagonal(second, np.diagonal(second) / there)
        units = Scaling.standardize(shift, deviations_of(shift, np.diagonal(second)), hubs)
        return units, second / np.outer(units.scale, units.scale), there

    def _exactly(
        self, parts: Sequence[HeldPart], weights: Doubles, misses: bool
    ) -> tuple[Doubles, Doubles, Doubles | None]:
        """Mean (d,), second moments (d, d) about it, and share (d,) of values that are there."""
        d, local_weights = self.n_features, weights[self.own]
        first = np.zeros((len(parts), 2 * d if misses else d))
        for i, part in enumerate(parts):
            if part.mass:
                first[i] = local_weights[i] * part.means(None, misses)
        reach, bounds = self.reach, None
        if reach is not None:
            bounds = np.abs(reach.points.centre) + reach.radius
        shift, there = _of_those_there(self.sum(first, bounds), misses)
        if reach is not None:
            off = reach.off(shift)
            bounds = lower_half(np.outer(off, off))
        squares = np.zeros((len(parts), d * (d + 1) // 2))
        for i, part in enumerate(parts):
            if part.mass:
                squares[i] = local_weights[i] / part.mass * lower_half(part.squares(shift))
        return shift, symmetric(self.sum(squares, bounds), d), there

    def _in_few_bits(
        self, parts: Sequence[HeldPart], weights: Doubles, misses: bool
    ) -> tuple[Doubles, Doubles, Doubles | None]:
        """The same in few bits, which need no common scale.

        Means are sent about a row that its worker sends all others, so that data far from zero lose
        nothing. Of second moments a triangular factor is sent (of ``Y = Q R``, R): their product
        is positive semidefinite whatever the rounding is, and a direction in which the data vary
        little suffers by the root of its variance only.
        """
        assert self.codec is not None
        d = self.n_features
        owner = int(np.argmax(self.masses > 0))
        first = None
        if owner in self.own:
            # A copy: the next run that is read takes its place.
            first = np.array(_filled(parts[owner - self.own[0]].rows.read(slice(0, 1))[0]))
        about: Doubles = self.holders.bcast(first, owner)
        self.total.agree("flooding", ROW_BYTES + ITEM * d, owner)
        means = np.zeros((len(parts), 2 * d if misses else d))
        factors = np.zeros((len(parts), d, d))
        for i, part in enumerate(parts):
            if part.mass:
                means[i] = part.means(about, misses)
        total, means = self._send(means, weights)
        away, there = _of_those_there(total.aggregate(means)[0], misses)
        shift: Doubles = about + away
        for i, part in enumerate(parts):
            if part.mass:
                factor = part.factor(shift)
                factors[i, : len(factor)] = factor
        upper = np.triu_indices(d)
        total, sent = self._send(factors[:, *upper], weights)
        factors = np.zeros((len(sent), d, d))
        factors[:, *upper] = sent
        second = total.aggregate(lower_half(factors.swapaxes(1, 2) @ factors))[0]
        return shift, symmetric(second, d), there

    def _send(self, values: Doubles, weights: Doubles) -> tuple[Uplink, Doubles]:
        """Send a vector a worker here to the server: the sum, and what it has of all (n, P)."""
        n_values, server = values.shape[1], self.total.server.weighted(weights)
        total = Uplink(server, Quantizer(self.codec, n_values), self.rng)
        total.begin("setup", 1, n_values, ITEM)
        return total, total.send(self.holders.padded(values))

    def sum(self, values: Doubles, bounds: Doubles | None = None) -> Doubles:
        """Sum a vector a worker (n, P) exactly; where roots differ, the first's is sent to all.

        Where sums are masked none is beyond the bounds (P,).
        """
        units = None if bounds is None else exponents_of(bounds, self.holders.n_agents)
        sums = add_vectors(self.total, np.ascontiguousarray(values), "setup", units)
        if self.n_roots > 1:
            self.total.agree("flooding", ITEM * values.shape[1])
        shared: Doubles = np.asarray(self.total.roots.bcast(sums[0]))
        return shared


def _of_those_there(means: Doubles, misses: bool) -> tuple[Doubles, Doubles | None]:
    """Means of what is there, of means with zeros for what is missing; and the shares of it."""
    if not misses:
        return means, None
    first, there = np.split(means, 2)
    return first / there, there


class AllRows:
    """Rows of which every process has all, and some of their features: as hubs hold them."""

    masked = False
    """Whether nothing of any row is sent to others but masked sums."""
    here = True
    """Whether what is known of rows here is known of all of them."""

    def __init__(self, holders: Placement) -> None:
        self.holders = holders
        self.any = holders.any

    def add(self, values: AnyArray) -> AnyArray:
        """Add sums over the rows of this process to those of others."""
        return values

    def refuse_showing(
        self, settings: MixtureSettings | KmeansSettings, instead: str, or_else: str = ""
    ) -> None:
        """Raise InputError where a row that masks are to hide would be shown to others.

        ``instead`` is a start that takes masked sums alone, ``or_else`` what may be given besides.
        """

    def count_all(self, n_here: int) -> int:
        """How many rows all have, of which so many are here; InputError if these are others'."""
        return n_here

    def everyones(self, values: AnyArray) -> AnyArray:
        """Return what all processes have of their rows, as the user numbers them, (M, ...).

        Under masks, what this one has (m, ...) of its own.
        """
        return values

    def mine(self, values: AnyArray) -> AnyArray:
        """Return values of this process's rows, of those of all, as the user numbers them."""
        return values

    def seen(self, flags: Mask) -> Mask:
        """Of which of these rows any process has a value."""
        return self.any(flags)

    def number(self, row: int) -> int:
        """Return the user's number of a row that is here."""
        return row

    def in_columns(self, flags: Mask) -> Mask:
        """Which of these columns have a value in any row."""
        return flags

    def count(self, flags: Mask) -> int:
        """How many rows of all have a flag."""
        return int(flags.sum())

    def constant(self, ends: Extremes) -> Mask:
        """Say which features (d,) have one value in all rows, by the extremes of each process's."""
        return np.asarray(ends[0] == ends[1])


class LocalRows(AllRows):
    """Which rows, of those that workers hold, are in this process.

    In one process that has those of all workers they stand as the user has them; in several, worker
    by worker. ``counts`` (N,) are of all M rows; ``rows`` is where those of this process's ``own``
    workers are among all; ``runs`` are where each worker's are in this process's, empty ones for
    workers of others, and ``own_runs`` those of its own alone.
    """

    def __init__(self, holders: Placement, workers: Workers, counts: Indices | None = None) -> None:
        super().__init__(holders)
        self.workers, self.counts = workers, workers.counts if counts is None else counts
        self.masked = holders.masks is not None
        self.here = not (holders.apart or self.masked)
        self.n_samples = int(self.counts.sum())
        self.own = holders.own
        is_local = np.zeros(len(self.counts), dtype=np.bool_)
        is_local[self.own] = True
        ends = np.cumsum([0, *np.where(is_local, self.counts, 0)]).tolist()
        self.runs = [slice(begin, end) for begin, end in pairwise(ends)]
        self.own_runs = [self.runs[worker] for worker in self.own]
        first = int(self.counts[: self.own[0]].sum()) if len(self.own) else 0
        self.rows = slice(first, first + ends[-1])

    @property
    def groups(self) -> Sequence[slice | Indices]:
        """Rows of each worker here, as they stand."""
        in_order = self.holders.apart or self.workers.in_order
        return self.own_runs if in_order else [self.workers.rows[one] for one in self.own]

    @property
    def numbers(self) -> Indices:
        """The user's numbers of this process's rows, shape (m,)."""
        if not self.holders.apart or self.workers.in_order:
            return np.arange(self.rows.start, self.rows.stop)
        return self.workers.order[self.rows]

    def add(self, values: AnyArray) -> AnyArray:
        return self.holders.allreduce(values)

    def refuse_showing(
        self, settings: MixtureSettings | KmeansSettings, instead: str, or_else: str = ""
    ) -> None:
        if not self.masked:
            return
        init, batch_size = settings.init, getattr(settings, "batch_size", None)
        secure = Setting("secure_sum", True)
        n_parties = np.count_nonzero(self.counts)
        if n_parties < FEWEST:
            raise InputError(
                secure, f" needs at least {FEWEST} workers that hold rows, got {n_parties}: with "
                "two each could subtract its own part and have the other's; leave it out",
            )  # fmt: skip
        if batch_size is not None and batch_size < LEAST_OF_BATCH:
            raise InputError(
                Setting("batch_size", batch_size), " changes a masked sum by so few rows that it "
                "reveals them; with ", secure, f" take at least {LEAST_OF_BATCH}",
            )  # fmt: skip
        if isinstance(init, str) and init in ("random", "farthest"):
            raise InputError(
                Setting("init", init), " starts at rows, which their holders would have to show to "
                "all; with ", secure, " take ", Setting("init", instead), ", which starts at means "
                "of many rows",
            )  # fmt: skip
        shape = np.shape(init) if isinstance(init, Sequence | np.ndarray) else ()
        if not isinstance(init, str) and len(shape) == 1:
            raise InputError(
                "the holders of the rows to start at would have to show them to all; with ", secure,
                " take ", Setting("init", instead), ", which starts at means of many rows", or_else,
            )  # fmt: skip

    def count_all(self, n_here: int) -> int:
        """How many rows all workers have; InputError if this process has not those of its own."""
        n_own = self.rows.stop - self.rows.start
        if n_here != n_own and self.holders.apart:
            raise InputError(
                f"the workers of this rank hold {n_own} rows, but it got {n_here}; give "
                "the rows of its own workers, worker by worker"
            )
        if n_here != n_own:
            raise InputError(
                f"the workers hold {n_own} rows, but the data have {n_here}; make the workers for "
                "these data"
            )
        return self.n_samples

    def everyones(self, values: AnyArray) -> AnyArray:
        """Return what all processes have of their rows; under masks, what this one has."""
        if self.masked or not self.holders.apart:
            return values
        joined: AnyArray = np.concatenate(self.holders.engine.allgather(values))
        if self.workers.in_order:
            return joined
        ordered = np.empty_like(joined)
        ordered[self.workers.order] = joined
        return ordered

    def mine(self, values: AnyArray) -> AnyArray:
        return values[self.numbers]

    def seen(self, flags: Mask) -> Mask:
        """Of which of these rows this process, which alone has them, has a value."""
        return flags

    def number(self, row: int) -> int:
        return int(self.numbers[row])

    def in_columns(self, flags: Mask) -> Mask:
        return self.any(flags)

    def count(self, flags: Mask) -> int:
        """How many rows of all have a flag; under masks none learns whose they are."""
        if not self.masked:
            return super().count(flags)
        counts = np.array([[float(flags[rows].sum())] for rows in self.groups]).reshape(-1, 1)
        return round(float(self.holders.add(counts)[0]))

    def constant(self, ends: Extremes) -> Mask:
        """Say which features (d,) have one value in all rows of all processes."""
        if not self.masked:
            lowest, highest = self.holders.allreduce(np.stack([-ends[0], ends[1]]), "max")
            return np.asarray(-lowest == highest)
        # No worker's own value is sent: how far workers' only values are from the mean of these.
        varies = self.any(ends[0] < ends[1])
        some = (self.counts[self.own] > 0).astype(np.float64)
        has = ends[0] <= ends[1]
        only = np.where(varies | ~has, 0.0, ends[0])
        total = self.holders.add_up(np.outer(some, np.concatenate([only, has])))
        mean, count = total.reshape(2, len(only))
        mean /= np.maximum(count, 1.0)
        apart = np.abs(only - mean) > 1e-12 * np.abs(mean)
        return ~(varies | self.any(apart & has & bool(some.any())))

    def by_worker(self, X: Any) -> Any:
        """Return rows (m, d) of this process, or what is known of them, worker by worker."""
        in_order = self.holders.apart or self.workers.in_order
        return X if in_order else select_rows(X, self.workers.rows)


class UsedRows(LocalRows):
    """Rows that count, which from here on stand worker by worker, in the units of the user.

    Of the rows of ``data`` (m, d), which are this process's, ``weights`` (m,) are what they weigh;
    ``every_weight`` (M,) has those of all workers, and is None where sums are masked, too. None:
    all weigh 1. ``order`` (M,) are numbers of rows among those that the user has of these; None:
    0, 1, ...
    """

    def __init__(
        self, local: LocalRows, X: Any, weights: Doubles | None, kept: Indices | None, n_used: int
    ) -> None:
        workers, counts = local.workers, None
        if kept is not None and local.masked and local.holders.apart:
            counts = local.counts.copy()  # of others none knows how many they use
            ends = [[run.start, run.stop] for run in local.own_runs]
            counts[local.own] = np.diff(np.searchsorted(kept, ends)).ravel()
        elif kept is not None:
            workers = workers.of_rows(kept)
        super().__init__(local.holders, workers, counts)
        self.n_samples = n_used
        self.public_counts = local.counts if self.masked else self.counts
        """Rows (N,) that all know of: under masks of each worker those it holds, used or not."""
        self.data = self.by_worker(X)
        self.order = None if workers.in_order else workers.order
        everywhere = not (self.masked and self.holders.apart)
        if weights is not None and self.order is not None and everywhere:
            weights = weights[self.order]
        self.every_weight = None if self.masked else weights
        self.weights = weights if weights is None or self.masked else weights[self.rows]

    def places(self, rows: Indices) -> Indices:
        """Return the places, worker by worker, of rows that are numbered as the user has these."""
        return rows if self.order is None else np.argsort(self.order)[rows]

    def at_places(self, places: Indices) -> Indices:
        """Return the numbers of such rows by their places."""
        return places if self.order is None else self.order[places]

    def workers_rows(self, rows: Rows, observed: NDArray[np.uint8] | None) -> WorkerRows:
        """Return these rows in units of fitting, worker by worker, as k-means takes them."""
        return WorkerRows(rows, self.counts[self.own], observed)

    def stream(self, rng: np.random.Generator, reach: Reach | None) -> RowStream:
        """Return what draws rows, or points in their place where none may be shown."""
        if reach is not None:
            return PointStream(rng, reach, self.weights)
        return RowStream(rng, self.every_weight, self.n_samples, self.order)

    def parts(self) -> list[HeldPart]:
        """Rows of each worker of this process, in the user's units, and their weights (m,)."""
        width = self.data.shape[1]
        rows = arrange_rows(self.data, Blocks.one(width), Scaling.none(width), np.float64)
        parts = []
        for run in self.own_runs:
            heavy = None if self.weights is None else self.weights[run]
            mass = float(run.stop - run.start) if heavy is None else float(heavy.sum())
            parts.append(HeldPart(rows.slice_rows(run), heavy, mass))
        return parts

    def moments(self, X: Floats | FileMatrix) -> RunningMoments:
        """Return moments of all rows, of which X (m, d) are here, as one process adds them up.

        It takes them in blocks, of which some begin in one process and end in another.
        """
        step = max(1, BLOCK_VALUES // max(X.shape[1], 1))
        first = min(-self.rows.start % step, len(X))
        last = len(X) - (len(X) - first) % step
        mass = self.n_samples if self.every_weight is None else self.every_weight.sum()
        share = (np.ones(len(X)) if self.weights is None else self.weights) / float(mass)
        whole = [
            RunningMoments.of_rows(X[at : at + step], share[at : at + step])
            for at in range(first, last, step)
        ]
        ends = [[X[begin:end], share[begin:end]] for begin, end in ((0, first), (last, len(X)))]
        # How rows lie in memory decides in which order they are added up.
        turned = X[:2].strides[0] < X[:2].strides[1] if len(X) else None
        parts = self.holders.engine.gather([turned, whole, *ends])
        moments, begun = RunningMoments(X.shape[1]), list[list[Any]]()

        def finish(at_least: int) -> None:
            if sum(len(rows) for rows, _ in begun) >= at_least:
                rows, shares = map(np.concatenate, zip(*begun, strict=True))
                moments.add_rows(np.asfortranarray(rows) if turned else rows, shares)
                begun.clear()

        for turned, some, head, tail in parts or ():
            if turned is None:
                continue
            begun.append(head)
            finish(step)
            for one in some:
                moments.add_moments(*one)
            begun.append(tail)
        if begun:
            finish(0)
        found = [moments.weight, moments.mean, moments.squares]
        moments.weight, moments.mean, moments.squares = self.holders.engine.bcast(found)
        return moments


class SharedRows:
    """Rows of this process, and those of others where all processes take them.

    If there are ``points`` about all rows, these in the place of any.
    """

    def __init__(self, rows: Rows, local: LocalRows, points: Points | None = None) -> None:
        self._rows, self._points = rows, points
        self._local = local
        self.n_samples, self.dtype = rows.n_samples, rows.dtype
        # Only `take` has rows of other processes too.
        self.runs, self.read, self.cut = rows.runs, rows.read, rows.cut
        self.select_rows, self.slice_rows = rows.select_rows, rows.slice_rows

    def take(self, indices: NDArray[np.intp]) -> Floats:
        """Some rows of all, by their places worker by worker; all processes call this alike.

        Points by their numbers, which are below zero.
        """
        if self._points is not None:
            return self._points.draw_points(indices).astype(self.dtype)
        run = self._local.rows
        inside = (indices >= run.start) & (indices < run.stop)
        some = self._rows.take(indices[inside] - run.start)
        rows = np.zeros((len(indices), some.shape[1]), dtype=self.dtype)
        rows[inside] = some
        with set_topic(self._local.holders.engine, "flooding"):
            return self._local.holders.allreduce(rows)


@dataclass(frozen=True)
class RowStarts:
    """Draws where to start of rows that workers hold, worker by worker.

    The stream draws rows, or if none may be shown points; a row is sent to all in ``itemsize``
    bytes a number. ``tell`` gets messages of what is done.
    """

    parts: WorkerRows
    total: Sum
    stream: RowStream
    n_components: int
    n_threads: int = 1
    tell: Tell | None = None
    itemsize: int = 8

    def choose(self, init: str, total: Sum | None = None) -> Indices:
        """Draw rows (K,): at "random", else far from each other, by this sum of potentials."""
        if init == "random":
            return self.stream.draw_distinct(self.n_components)
        return seed_rows(
            self.parts, self.total if total is None else total, self.n_components, self.stream,
            n_threads=self.n_threads, tell=self.tell,
            n_trials=FARTHEST_FIRST if init == "farthest" else None,
        )  # fmt: skip

    def cells(self) -> Doubles:
        """Draw centres (K, d) among means of cells."""
        k, stream = self.n_components, self.stream
        return draw_cells(self.parts, self.total, k, stream, self.n_threads, self.tell)

    def rows(self, places: Indices, *, known: bool = False) -> Doubles:
        """Rows (K, d), which are sent to all unless these ``known`` them since they were drawn."""
        data = HeldRows(self.parts, self.total)
        return data.gather_rows(places) if known else data.share(places, self.itemsize)

    def draw(self, init: str, total: Sum | None = None) -> tuple[Doubles, Indices | None]:
        """Draw centres (K, d): rows by `choose`, and which, or `cells` if none may be shown."""
        if self.stream.reach is not None:
            return self.cells(), None
        places = self.choose(init, total)
        return self.rows(places, known=init != "random"), places

    def clusters(
        self, centres: Doubles, variances: Doubles, fill: bool, total: Sum | None = None
    ) -> Lloyd:
        """Find clusters from some centres, by Lloyd's iterations and this sum.

        ``variances`` (R,) are means over features as each root knows them; by ``fill`` what is
        missing counts as in `vpem.steps.row_lloyd.lloyd_rows`.
        """
        return lloyd_rows(
            self.parts, self.total if total is None else total, centres, self.stream, kind="setup",
            max_iter=MOST_LLOYD_OF_START, pace=Pace(tolerances=LLOYD_TOLERANCE * variances),
            n_threads=self.n_threads, callback=step_of_lloyd(self.tell),
            fill=fill and self.parts.observed is not None,
        )  # fmt: skip


def charge_weights(total: Sum, counts: NDArray[np.intp]) -> None:
    """Count how every worker sends all others the weights of its rows, so many of each.

    Which row a shared number draws depends on the weights of all rows.
    """
    for worker, count in enumerate(counts):
        total.agree("setup", ITEM * int(count), worker)


def read_rows(X: Any, groups: Sequence[NDArray[np.intp]]) -> Floats:
    """Read some rows (m, d) of the data, group by group (increasing numbers), and keep no others.

    A file is read in runs of ``X.step`` rows, each from the first to the last row of it that is
    needed.
    """
    rows = np.concatenate([np.empty(0, dtype=np.intp), *groups])
    if isinstance(X, np.ndarray):
        return np.ascontiguousarray(X[rows])
    read = np.empty((len(rows), X.shape[1]), dtype=X.dtype)
    begin = 0
    for group in groups:
        for piece in np.split(group, np.flatnonzero(np.diff(group // X.step)) + 1):
            if len(piece):
                first = int(piece[0])
                part = X[first : int(piece[-1]) + 1]
                read[begin : begin + len(piece)] = part[piece - first]
                begin += len(piece)
    X.close()
    return read


ROUNDED = 2.0**-48
"""Of the largest value of a feature, below which differences may be of rounding alone."""

WIDE = 1024
"""Features beyond which covariances are left out, which are only to draw points by."""


def agree_on_rows(
    parts: Sequence[HeldPart],
    total: Sum,
    n_rows: int,
    width: int,
    *,
    misses: bool = False,
    weighted: bool = False,
) -> Reach:
    """Find out where the used rows of all workers lie, by a counted and masked sum.

    It takes the powers of two that values of each feature are below, the mean, the powers of two of
    how far from it rows lie, and second moments about it; where rows have weights, powers of two of
    the heaviest and the lightest, and what all weigh. Of a feature that rows miss these are of the
    values that are there.
    """
    n = total.holders.n_agents
    mass, lightest = _weights(parts, total, n_rows) if weighted else (float(n_rows), 1.0)
    largest = powers_above(total, _sizes(parts, np.zeros(width)))
    sums = np.zeros((len(parts), 2 * width if misses else width))
    for row, part in zip(sums, parts, strict=True):
        if part.mass:
            row[:] = part.mass * part.means(None, misses=misses)
    bounds = np.concatenate([largest, np.ones(sums.shape[1] - width)])
    means = add_vectors(total, sums, "setup", exponents_of(mass * bounds, n))[0] / mass
    there = means[width:] if misses else None
    centre = means if there is None else means[:width] / np.where(there > 0, there, 1.0)
    apart = powers_above(total, _sizes(parts, centre))
    least = np.where(largest > 0, ROUNDED * largest, ROUNDED)
    radius, nothing = np.maximum(apart, least), Points(centre, np.zeros(width))
    reach = Reach(n, n_rows, mass, lightest, nothing, radius, apart <= least, there)
    return replace(reach, points=Points(centre, _root(parts, total, reach)))


def _weights(parts: Sequence[HeldPart], total: Sum, n_rows: int) -> tuple[float, float]:
    """What all rows weigh, and a power of two that none of positive weight is below."""
    ends = np.zeros((len(parts), 2))
    for row, part in zip(ends, parts, strict=True):
        if part.weights is not None and part.mass:
            heavy = part.weights[part.weights > 0]
            row[:] = heavy.max(), 1.0 / heavy.min()
    heaviest, inverse = powers_above(total, ends)
    masses = np.array([part.mass for part in parts]).reshape(-1, 1)
    units = exponents_of([n_rows * heaviest], total.holders.n_agents)
    return float(add_vectors(total, masses, "setup", units)[0, 0]), 1.0 / float(inverse)


def _sizes(parts: Sequence[HeldPart], about: Doubles) -> Doubles:
    """Largest distance (n, d) from a point of each worker's rows, in each feature."""
    sizes = np.zeros((len(parts), len(about)))
    for row, part in zip(sizes, parts, strict=True):
        for rows, weights in part.runs():
            some = rows if weights is None else rows[weights > 0]
            np.fmax(row, np.fmax.reduce(np.abs(some - about), axis=0, initial=0.0), out=row)
    return sizes


def _root(parts: Sequence[HeldPart], total: Sum, reach: Reach) -> Doubles:
    """Root (d, d) of the covariance of all rows, or deviations (d,) of many features."""
    centre, width = reach.points.centre, len(reach.radius)
    wide = width > WIDE
    values = np.zeros((len(parts), width if wide else width * (width + 1) // 2))
    for row, part in zip(values, parts, strict=True):
        if not part.mass:
            continue
        if wide:
            for rows, weights in part.runs():
                squares = np.nan_to_num(rows - centre) ** 2
                row += squares.sum(axis=0) if weights is None else weights @ squares
        else:
            row[:] = lower_half(part.squares(centre))
    bounds = reach.radius**2 if wide else lower_half(np.outer(reach.radius, reach.radius))
    moments = add_vectors(total, values, "setup", reach.exponents(bounds))[0] / reach.mass
    there = 1.0 if reach.there is None else np.where(reach.there > 0, reach.there, 1.0)
    if wide:
        deviations: Doubles = np.sqrt(np.maximum(moments, 0.0) / there)
        return deviations
    covariance = symmetric(moments, width)
    # Values that are missing vary as those that are there do.
    np.fill_diagonal(covariance, np.diagonal(covariance) / there)
    return root_of(covariance)


def units_by_reach(reach: Reach, hubs: Blocks | None = None) -> Scaling:
    """Return features about their means in their own standard deviations; see `Scaling.by`."""
    deviations = np.where(reach.constant, 0.0, np.sqrt(reach.points.variances))
    return Scaling.standardize(reach.points.centre, deviations, hubs)
