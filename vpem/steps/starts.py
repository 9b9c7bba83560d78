"""Where EM starts: greedy k-means++ over features and over rows, and what users give.

In k-means++ (Arthur and Vassilvitskii 2007) rows are drawn far from each other: each in proportion
to its potential, the squared distance to the nearest row that is chosen. Of several trials the one
that leaves the least potential is kept. "farthest" draws the first row alone; each next is the one
farthest from all that are chosen, the object least similar to any of them. Over features, which no
agent may show, starts are found by shared rows and by the same sum as EM; if some rows are
labelled, at their means, and for other components as usual (`start_at_labels`). Of a `GivenStart`
some parameters are given, and what a fit that is resumed judges its change by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from vpem.checks import Doubles, Floats, Indices, Mask
from vpem.errors import InputError, Setting, check_choice
from vpem.network.partition import Blocks
from vpem.records import words_in
from vpem.rules import DECOMPOSED
from vpem.steps.feature_lloyd import lloyd_features
from vpem.steps.lloyd import KMeansProgress, Lloyd, Pace
from vpem.steps.row_sampling import ROW_BYTES, HeldRows, RowStream, WorkerRows
from vpem.steps.runs import Run
from vpem.steps.summing import FARTHEST, Differences, summed
from vpem.sums.counted import add_vectors, farthest
from vpem.sums.sum import Sum
from vpem.terms.density import Density
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Mixture, is_diagonal
from vpem.terms.units import Scaling

MANY_WORKERS = 16
"""Workers from which on their sums are taken in one call, row by row and not in pairs."""

LLOYD_TOLERANCE = 1e-4
"""Squared shift of all centres, in mean variances of a feature, at which a start's are at rest."""

MOST_LLOYD_OF_START = 60
"""Most of Lloyd's iterations of a start: what they leave to do EM does better."""

SAMPLE_ROWS = 1 << 13
"""Rows that a start looks at, if they are no more than that."""

ROWS_A_FEATURE = 20
"""Rows for each component and feature of the widest hub that a start looks at, whose covariances
are to be those of all rows, but for a fifth of their deviations."""

SMALL_RUN = 15
"""Most iterations of a short run from each of the starts of "small-em"."""

SMALL_RUN_OF_BEST = 30
"""Most iterations that the best goes on in the same way, if they are accelerated."""

SMALL_TOLERANCE = 1e-3
"""Nats per sample by which they change least."""

SMALL_SAMPLE = 1600
"""Rows that short runs look at, if they are no more than that; see `ROWS_A_FEATURE`."""


def _annealing(hottest: float, n_steps: int) -> tuple[float, ...]:
    """Powers of densities in so many iterations, the first that of the hottest."""
    return tuple(np.geomspace(hottest, 1.0, n_steps + 1)[:-1].tolist())


SMALL_STARTS = (
    (("kmeans", ()), ("kmeans", _annealing(0.3, 19)), ("kmeans", _annealing(0.2, 19))),
    (("random", _annealing(0.2, 10)),) * 3,
)
"""Starts of which "small-em" makes short runs, and powers by which they are annealed before; the
best goes on (em-EM: Biernacki, Celeux and Govaert 2003, section 4). Of the second group only if all
of the first become degenerate. Those with one name in a group are one start, unless at random."""

SMALL_STARTS_OF_KINDS = ((("kmeans", ()), ("random", ()), ("random", ())),)
"""The same of features that are not Gaussian, whose densities have no powers of their kind."""

FARTHEST_FIRST = 0
"""Trials of a start that draws none, but takes the farthest row."""

Tell = Callable[[str], None]


PARTS = ("weights", "means", "covariances")
"""Of a mixture, by the names of its attributes."""


@dataclass(frozen=True)
class GivenStart:
    """Where EM starts, if that is more than the name of a start."""

    init: Any  # of parameters not given
    given: Mixture | None = None  # features in one block, in the user's units
    parts: tuple[str, ...] = ()  # of "weights", "means", "covariances"
    last: Doubles | None = None  # (R,) log-likelihood per sample before, for the first change

    @classmethod
    def wrap(cls, init: object) -> GivenStart:
        return init if isinstance(init, cls) else cls(init)

    @classmethod
    def from_parameters(
        cls,
        init: Any,
        covariance_type: str,
        shape: tuple[int, int],
        weights: ArrayLike | None = None,
        means: ArrayLike | None = None,
        precisions: ArrayLike | None = None,
        covariances: ArrayLike | None = None,
    ) -> GivenStart:
        """Return the start at some parameters, and at what ``init`` finds of the others, if any.

        ``shape`` is (K, d), weights (K,), and means (K, d) are in the user's units. Precisions are
        inverse covariances: (K, d, d) full, (d, d) tied, (K, d) diagonal, (d,) tied-diagonal, (K,)
        spherical, one number tied-spherical; or covariances, of the same shapes, are given.
        """
        k, d = shape
        spreads = None
        if precisions is not None:
            spreads = _covariances("precisions_init", precisions, covariance_type, k, d)
        elif covariances is not None:
            spreads = _covariances("covariances", covariances, covariance_type, k, d)
        checked = {
            "weights": None if weights is None else _weights(weights, k),
            "means": None if means is None else _array("means_init", means, shape),
            "covariances": spreads,
        }
        parts = tuple(name for name in PARTS if checked[name] is not None)
        if not parts:
            return cls(init)
        copies = 1 if covariance_type.startswith("tied") else k
        unknown = np.ones((copies, d))
        if not is_diagonal(covariance_type):
            unknown = np.tile(np.eye(d).ravel(), copies)
        placeholders = {
            "weights": np.full((1, k), 1.0 / k), "means": np.zeros(shape), "covariances": unknown,
        }  # fmt: skip
        values: dict[str, Any] = {
            name: placeholders[name] if value is None else value for name, value in checked.items()
        }
        blocks = Blocks((np.arange(d),), (0,), ((0,),))
        mixture = Mixture(blocks, covariance_type, scaling=Scaling.none(d), **values)
        return cls(mixture) if parts == PARTS else cls(init, mixture, parts)

    def apply_to(self, start: Mixture, place: Callable[[Mixture], Mixture]) -> Mixture:
        """Return a start with the parameters that are given.

        ``place`` returns a mixture of all features over the start's blocks and in its units.
        """
        if self.given is None:
            return start
        placed = place(self.given)
        values = {name: getattr(placed, name) for name in self.parts}
        if "weights" in values:
            values["weights"] = np.broadcast_to(values["weights"], start.weights.shape).copy()
        return replace(start, **values)

    def check_fixed(
        self, fix: str | None, covariance_type: str, blocks: Blocks | None, *, has_units: bool
    ) -> None:
        """Raise InputError unless what is to be held is given, and hubs can hold it as it is.

        It ``has_units`` if every feature has its own.
        """
        parts = PARTS if isinstance(self.init, Density) else self.parts
        for part in held_parts(fix):
            if part not in parts:
                raise InputError(
                    Setting("fix"), f" holds {part} as they are known, but the start does not give "
                    "them; give a model, or ", Setting("fix_from"), " a file",
                )  # fmt: skip
        start: Any = self.init if self.given is None else self.given
        if "covariances" not in held_parts(fix) or start.kinds is not None:
            return
        start = start.joint if start.n_factors else start
        blocks = blocks or Blocks((np.arange(start.n_features),), (0,), ((0,),))
        scale = np.arange(1.0, start.n_features + 1) if has_units else start.scaling.scale
        held = start.convert_to(blocks, covariance_type, Scaling(start.scaling.shift, scale))
        back = held.convert_to(start.blocks, start.covariance_type, start.scaling).covariances
        # Axes that components have in common are found again to fewer digits.
        again = 1e-7 if covariance_type in DECOMPOSED else 0.0
        small = again * float(np.abs(start.covariances).max(initial=0.0))
        if not np.allclose(back, start.covariances, rtol=1e-9 + again, atol=small):
            raise InputError(
                Setting("fix"), " holds covariances as they are, but ",
                Setting("covariance_type", covariance_type), " inside the hubs of this fit would "
                "change those of the start; take the kind of covariance, the hubs and the scale of "
                "the start",
            )  # fmt: skip


def held_parts(fix: str | None) -> tuple[str, ...]:
    """Return which parameters are held, by their names in a mixture."""
    names = {"weights": "weights", "covariance": "covariances", "covariances": "covariances"}
    said = () if fix is None else words_in("fix", fix) or ("",)
    words = (check_choice("fix", str(word), names) for word in said)
    return tuple(dict.fromkeys(names[word] for word in words))


def held_of(fix: str | None, start: Mixture) -> dict[str, Doubles] | None:
    """Return the parameters of a start that no M-step moves; None: all are fitted."""
    return {name: getattr(start, name) for name in held_parts(fix)} or None


def _array(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Doubles:
    """Return finite numbers of this shape."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(Setting(name), f" must be numbers, got {values!r}") from None
    if array.shape != shape:
        raise InputError(Setting(name), f" must have shape {shape}, got {array.shape}")
    if not np.isfinite(array).all():
        raise InputError(Setting(name), " must be finite")
    return array


def _weights(values: ArrayLike, n_components: int) -> Doubles:
    """Return mixing weights (1, K)."""
    weights = _array("weights_init", values, (n_components,))
    total = float(weights.sum())
    if weights.min() < 0 or weights.max() > 1 or not np.isclose(total, 1, rtol=1e-6):
        raise InputError(
            Setting("weights_init"),
            f" must be from 0 to 1 and add up to 1, got {weights.min():g} to {weights.max():g} "
            f"with the sum {total:g}; divide them by it",
        )
    return (weights / total)[None]


def _covariances(name: str, values: ArrayLike, covariance_type: str, k: int, d: int) -> Doubles:
    """Covariances as a mixture of one block has them, of those or precisions as users give them."""
    copies = () if covariance_type.startswith("tied") else (k,)
    inner: tuple[int, ...] = (d,) if is_diagonal(covariance_type) else (d, d)
    inner = () if covariance_type.endswith("spherical") else inner
    precisions = _array(name, values, (*copies, *inner))
    if is_diagonal(covariance_type):
        if not (precisions > 0).all():
            raise InputError(Setting(name), f" must be positive, got {precisions.min():g}")
        column = precisions.reshape(-1, inner[0] if inner else 1)
        column = column if name == "covariances" else 1 / column
        return np.ascontiguousarray(np.broadcast_to(column, (len(column), d)))
    stack = precisions.reshape(-1, d, d)
    if not np.allclose(stack, stack.transpose(0, 2, 1)) or np.linalg.eigvalsh(stack).min() <= 0:
        raise InputError(Setting(name), " must be symmetric and positive definite")
    inverse = stack if name == "covariances" else np.linalg.inv(stack)
    return ((inverse + inverse.transpose(0, 2, 1)) / 2).ravel()


def draw_start(
    init: str,
    terms: FeatureTerms,
    total: Sum,
    n_components: int,
    stream: RowStream,
    tell: Tell | None = None,
) -> tuple[Mixture, Indices]:
    """Return starting parameters without pooling a feature, and the rows (K,) of the means.

    "random": means at rows that all agents draw from a shared seed. "k-means++": rows drawn far
    from each other, by squared distances summed over hubs as the terms of the E-step are; the root
    of the first hub draws by its own estimate and sends the row's number. "kmeans": from there
    Lloyd's iterations, each root assigning rows by its own estimate of the distances, and one
    M-step from the last hard assignment. They end once the centres have moved by no more than
    `LLOYD_TOLERANCE`, or after `MOST_LLOYD_OF_START`; the rows returned are those before them.

    "farthest" is as "k-means++", but for what is drawn after the first row: nothing.

    Of more rows than `sample_size` says all but "random" look at as many, drawn from the
    shared stream: what they take and send does not grow with the rows beyond that. What fits of the
    same rows have found (`Sum.starts`) is found once, and counted as if each had.
    """
    if init == "random":
        rows = stream.draw_distinct(n_components)
        return terms.start(terms.at_rows(rows)), rows
    known, ledger = total.starts, total.ledger
    if known is None or ledger is None or terms.gaps is not None or terms.measured is not terms:
        found = _chosen(init, terms, total, n_components, stream, tell)
    else:
        units = terms.scaling.shift.tobytes(), terms.scaling.scale.tobytes(), terms.itemsize
        key = init, n_components, terms.n_samples, units, str(stream.rng.bit_generator.state)
        if key not in known:
            counted = total.counted_on(ledger.times(0))
            found = _chosen(init, terms, counted, n_components, stream, tell)
            known[key] = found, counted.ledger, stream.rng.bit_generator.state
        found, sent, stream.rng.bit_generator.state = known[key]
        ledger.add(sent)
    numbers, row_weights, places, run = found
    some = terms
    if len(numbers) < terms.n_samples:
        some = terms.select_rows(numbers, row_weights)
    if run is None:
        return terms.start(some.at_rows(places)), numbers[places]
    return _from_clusters(some, total, run), numbers[places]


def _chosen(
    init: str, terms: FeatureTerms, total: Sum, n_components: int, stream: RowStream,
    tell: Tell | None,
) -> tuple[Indices, Doubles | None, Indices, Lloyd | None]:  # fmt: skip
    """Return the rows that a start looks at, their weights, its places in them, and clusters."""
    view, draws, numbers = terms.measured, stream, np.arange(terms.n_samples)
    count = sample_size(n_components, terms.widest)
    if count < terms.n_samples:
        numbers, draws = stream.sample(count)
        view = view.select_rows(numbers, draws.row_weights)
    places = seed_features(view, total, n_components, draws, tell, farthest=init == "farthest")
    if init != "kmeans":
        return numbers, draws.row_weights, places, None
    # Each hub's part (B,) of the squared shift that the centres may still make.
    of_hubs = np.bincount(view.blocks.block_of, _variances(view), view.blocks.n_blocks)
    tolerances = (LLOYD_TOLERANCE / view.n_features * of_hubs).astype(np.float64)
    run = lloyd_features(
        view, total, view.at_rows(places), draws, max_iter=MOST_LLOYD_OF_START,
        pace=Pace(tolerances=tolerances), kind="setup",
        fill=not is_diagonal(terms.covariance_type), callback=step_of_lloyd(tell),
    )  # fmt: skip
    return numbers, draws.row_weights, places, run


def start_at_labels(
    init: str,
    terms: Any,
    total: Sum,
    n_components: int,
    labelled: Mask,
    stream: RowStream,
    tell: Tell | None = None,
) -> Any:
    """Return starting parameters: equal weights, means of labelled rows, and sample covariances.

    What is known of rows goes once through the sum, by itself, as it does in every E-step beside
    the terms of features: each root then takes means of its own features. A row counts by how much
    is known of it, ``1 - H(p) / log K``. Components that are not ``labelled`` (K,) start, by
    ``init``, at rows drawn at random, or far from those means and from each other ("kmeans" is as
    "k-means++" here).
    """
    view = terms.measured
    views = [terms] if view is terms else [terms, view]
    means = _means(views, total, n_components)
    free = np.flatnonzero(~labelled)
    if len(free) == 0:
        return terms.start(means[0])
    if init == "random":
        means[0][free] = terms.at_rows(stream.draw_distinct(n_components)[free])
        return terms.start(means[0])
    numbers, draws, some = np.arange(terms.n_samples), stream, view
    count = sample_size(n_components, terms.widest)
    if count < terms.n_samples:
        numbers, draws = stream.sample(count)
        some = view.select_rows(numbers, draws.row_weights)
    near = means[-1][labelled]
    places = seed_features(
        some, total, n_components, draws, tell, near=near, farthest=init == "farthest"
    )
    means[0][free] = terms.at_rows(numbers[places])
    return terms.start(means[0])


Begun = TypeVar("Begun")


def best_of_short_runs(
    groups: Sequence[Sequence[tuple[str, Sequence[float]]]],
    draw: Callable[[str], Begun],
    run: Callable[[Begun, Sequence[float]], Run],
    rank: Callable[[Run], tuple[float, ...]],  # once it has judged a run
) -> tuple[Run, Begun]:
    """Return the best short run by rank, and its start; of groups as in `SMALL_STARTS`."""
    found: list[tuple[Run, Begun]] = []
    for group in groups:
        drawn: dict[str, Begun] = {}
        for init, powers in group:
            if init == "random" or init not in drawn:
                drawn[init] = draw(init)
            found.append((run(drawn[init], powers), drawn[init]))
        for best in sorted(found, key=lambda one: one[0].score, reverse=True):
            if rank(best[0])[0]:
                return best
    return max(found, key=lambda one: one[0].score)


def _variances(terms: FeatureTerms) -> Doubles:
    if terms.spread is not None:
        known: Doubles = terms.spread
        return known
    about = terms.at_rows(np.zeros(1, dtype=np.intp))[0]
    sums = np.zeros((2, len(about)))
    for rows in terms.chunks(len(about)):
        off, weights = terms.rows.read(rows) - about, np.ones(rows.stop - rows.start)
        if terms.row_weights is not None:
            weights = terms.row_weights[rows]
        sums += [weights @ off, weights @ off**2]
    first, second = sums / terms.total_weight
    variances: Doubles = np.maximum(second - first**2, 0.0)
    return variances


def _from_clusters(terms: FeatureTerms, total: Sum, run: Lloyd) -> Mixture:
    statistics = terms.of_clusters(run.centres, total.n_roots)
    for rows in terms.chunks(run.counts.size):
        labels = run.labels[:, rows, None]
        hard = (labels == np.arange(len(run.centres))).astype(f"f{terms.itemsize}")
        if terms.doubt:
            hard = (hard * (1 - terms.doubt) + terms.doubt / len(run.centres)).astype(hard.dtype)
        if terms.row_weights is not None:
            hard *= terms.row_weights[rows][:, None].astype(hard.dtype)
        terms.summarize(statistics, hard, rows)
    return terms.update(statistics)


def _means(views: list[Any], total: Sum, n_components: int) -> list[Doubles]:
    """Means (K, d) of labelled rows, as each of these terms has features."""
    terms = views[0]
    shape = (len(total.holders.own), n_components)
    dtype = f"f{terms.itemsize}"

    def local(rows: slice) -> Floats:
        out = np.zeros((shape[0], rows.stop - rows.start, n_components), dtype=dtype)
        if terms.known is not None:
            terms.known.add(out, rows)
        return out

    first = np.zeros(1, dtype=np.intp)
    statistics = [
        one.of_clusters(np.repeat(one.at_rows(first), n_components, axis=0), total.n_roots)
        for one in views
    ]
    total.begin("setup", terms.n_samples, n_components - 1, terms.itemsize, 1)
    limit = farthest(total.holders, FARTHEST[terms.itemsize])
    for rows, sums in Differences(terms, total, n_components, local, limit):
        shares = _shares(sums)
        if terms.row_weights is not None:
            shares *= terms.row_weights[rows][:, None]
        for one, into in zip(views, statistics, strict=True):
            one.summarize(into, np.ascontiguousarray(shares, dtype=dtype), rows)
    return [np.array(one.update(into).means) for one, into in zip(views, statistics, strict=True)]


def _shares(sums: Floats) -> Doubles:
    """Probabilities (R, m, K) of costs less the first, times how much is known, 0 to 1."""
    costs = np.concatenate([np.zeros((*sums.shape[:2], 1)), sums.astype(np.float64)], axis=2)
    costs -= costs.min(axis=2, keepdims=True)
    shares = np.exp(-0.5 * costs)
    shares /= shares.sum(axis=2, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        unknown = -np.where(shares > 0, shares * np.log(shares), 0.0).sum(axis=2, keepdims=True)
    known = 1 - unknown / np.log(sums.shape[2] + 1)
    result: Doubles = shares * np.where(known > 1e-9, known, 0.0)
    return result


def teller(callback: object) -> Tell | None:
    """Return a callback's method ``starting``, which gets messages of a start, if it has one."""
    tell: Tell | None = getattr(callback, "starting", None)
    return tell


def sample_size(n_components: int, widest: int) -> int:
    """Rows that a start looks at if there are more."""
    return max(SAMPLE_ROWS, ROWS_A_FEATURE * n_components * widest)


def short_sample(n_components: int, widest: int) -> int:
    """Rows that short runs look at if there are more."""
    return max(SMALL_SAMPLE, ROWS_A_FEATURE * n_components * widest)


def step_of_lloyd(tell: Tell | None) -> Callable[[KMeansProgress], None] | None:
    if tell is None:
        return None
    return lambda progress: tell(
        f"k-means, iteration {progress.iteration} of at most {MOST_LLOYD_OF_START}"
    )


def seed_features(
    terms: FeatureTerms,
    total: Sum,
    n_components: int,
    stream: RowStream,
    tell: Callable[[str], None] | None = None,
    near: Doubles | None = None,
    farthest: bool = False,
) -> Indices:
    """Choose rows (K,) by the first root's sums of squared distances over hubs.

    ``tell`` gets a message for every row that is chosen. With centres ``near`` (L, d), in block
    order, only K - L rows are chosen, far from these, too.
    """
    if total.holders.masks is not None:
        total = total.server.in_units(terms.units)
    potential = _OverFeatures(terms, total, stream)
    if near is not None:
        potential.begin(near)
        n_components -= len(near)
    begun = near is not None
    n_trials = FARTHEST_FIRST if farthest else None
    return _seed(potential, total, n_components, stream, n_trials, tell, begun)


def seed_rows(
    parts: WorkerRows,
    total: Sum,  # of workers, each a root, or a server's
    n_components: int,
    stream: RowStream,  # weights are worker by worker
    *,
    n_trials: int | None = None,  # drawn a step; 1: as published; None: 2 + log K; 0: farthest
    n_threads: int = 1,
    tell: Callable[[str], None] | None = None,  # gets a message for every row that is chosen
) -> Indices:
    """Choose rows of those (m_i, d) that each of the workers holds; return their numbers (K,).

    Each worker sends the potential of its rows, added up, in a place of its own of one vector, so
    that all know from which worker a shared random number draws; that worker draws among its own
    rows and sends the row to all. The first worker's sum decides. It is the draw of the same
    algorithm over all rows at one place, in the order of the workers. Distances are by what is
    observed, times the share of features it is.
    """
    data = HeldRows(parts, total, stream.row_weights)
    potential = _OverRows(data, total, stream, n_threads)
    return _seed(potential, total, n_components, stream, n_trials, tell)


def summed_distances(
    terms: FeatureTerms, total: Sum, centres: Doubles
) -> Iterator[tuple[slice, Floats]]:
    """Squared distances to centres (L, d) summed over hubs, (R, m, L), a chunk of rows a time."""
    total.begin("setup", terms.n_samples, len(centres), terms.itemsize)
    local = partial(terms.distances, centres)
    for rows, sums in summed(terms, total, len(centres), local):
        yield rows, np.maximum(sums, 0)


def _seed(
    potential: _OverFeatures | _OverRows,
    total: Sum,
    n_components: int,
    stream: RowStream,
    n_trials: int | None,
    tell: Callable[[str], None] | None,
    begun: bool = False,
) -> Indices:
    """Choose rows (K,); the first at random, unless something is ``begun`` with.

    Of rows that all agents know ``look`` measures which leaves the least potential, and ``keep``
    takes one of these for chosen.
    """
    if n_trials is None:
        n_trials = 2 + int(np.log(n_components))
    chosen: list[int] = []
    if not begun:
        latest = [stream.draw()]
        chosen.append(latest[potential.look(latest)])
        potential.keep(0, chosen)
    while len(chosen) < n_components:
        if not potential.left():
            # Fewer different rows than components: the rest are drawn among those not taken.
            rest = stream.draw_distinct(n_components)
            fresh = [int(row) for row in rest if row not in chosen]
            chosen += fresh[: n_components - len(chosen)]
            break
        if n_trials == FARTHEST_FIRST:
            latest = [potential.farthest()]
            best = potential.look(latest)
        else:
            # One that is drawn twice is looked at once.
            latest = list(dict.fromkeys(potential.draw(n_trials)))
            best = potential.look(latest)
            total.agree("flooding", ROW_BYTES)
        chosen.append(latest[best])
        potential.keep(best, chosen)
        if tell is not None:
            how = "farthest" if n_trials == FARTHEST_FIRST else "k-means++"
            tell(f"{how}, row {len(chosen)} of {n_components}")
    return np.array(chosen, dtype=np.intp)


class _OverFeatures:
    """The potential as the first root finds it."""

    def __init__(self, terms: FeatureTerms, total: Sum, stream: RowStream) -> None:
        self.terms, self.total, self.stream = terms, total, stream
        self.nearest: Floats | None = None
        self.trials: list[Floats] = []

    def begin(self, centres: Doubles) -> None:
        for some, distances in summed_distances(self.terms, self.total, centres):
            if self.total.roots.mine(0):
                if self.nearest is None:
                    self.nearest = np.empty(self.terms.n_samples, distances.dtype)
                self.nearest[some] = distances[0].min(axis=1)

    def look(self, rows: Sequence[int]) -> int:
        terms, total, nearest = self.terms, self.total, self.nearest
        self.trials = []
        centres = terms.at_rows(np.array(rows))
        for some, distances in summed_distances(terms, total, centres):
            if not total.roots.mine(0):
                continue
            if not self.trials:
                self.trials = [np.empty(terms.n_samples, distances.dtype) for _ in rows]
            for trial, column in zip(self.trials, distances[0].T, strict=True):
                trial[some] = column if nearest is None else np.minimum(column, nearest[some])
        left = [float(self.stream.weigh(trial).sum(dtype=np.float64)) for trial in self.trials]
        return int(total.roots.bcast(int(np.argmin(left)) if total.roots.mine(0) else None))

    def keep(self, trial: int, chosen: Sequence[int]) -> None:
        if self.total.roots.mine(0):
            self.nearest = self.trials[trial]
            self.nearest[chosen] = 0.0

    def left(self) -> bool:
        nearest = self.nearest
        left = nearest is None or bool(self.stream.weigh(nearest).any())
        return bool(self.total.roots.bcast(left))

    def draw(self, count: int) -> list[int]:
        # In other processes too, so that the shared stream goes on alike.
        drawn: list[int] = self.total.roots.bcast(
            [self.stream.draw(self.nearest) for _ in range(count)]
        )
        self.total.agree("flooding", ROW_BYTES * count)
        return drawn

    def farthest(self) -> int:
        """Return the row farthest from all that are chosen; of several the first."""
        row = None if self.nearest is None else int(self.nearest.argmax())  # of the first root
        farthest: int = self.total.roots.bcast(row)
        self.total.agree("flooding", ROW_BYTES)
        return farthest


class _OverRows:
    """The potential of every worker's rows."""

    def __init__(self, data: HeldRows, total: Sum, stream: RowStream, n_threads: int) -> None:
        self.data, self.total, self.stream, self.n_threads = data, total, stream, n_threads
        self.trials = self.sums = self.remaining = np.empty(0)
        self.nearest: Floats | None = None

    def look(self, rows: Sequence[int]) -> int:
        data = self.data
        points = data.share(rows)
        self.trials = np.empty((len(points), data.n_here))
        data.distances(points, self.trials, self.n_threads)
        if self.nearest is not None:
            np.minimum(self.trials, self.nearest, out=self.trials)
        # (L, N): what every worker has left after each trial, as the first worker knows it.
        trials = self.trials * data.weights if len(data.weights) else self.trials
        filled = np.flatnonzero(np.diff(data.bounds))
        potentials = np.zeros((len(data.runs), len(trials)))  # of each worker's rows
        if np.count_nonzero(np.diff(data.ends, prepend=0)) < MANY_WORKERS:
            for worker in filled:
                potentials[worker] = trials[:, data.runs[worker]].sum(axis=1)
        else:
            potentials[filled] = np.add.reduceat(trials, data.bounds[filled], axis=1).T
        self.sums = self._by_worker(potentials)
        return int(np.argmin(self.sums.sum(axis=1)))

    def _by_worker(self, sums: Doubles) -> Doubles:
        """Send potentials (n, L), each worker's in a place of its own: (L, N)."""
        total, n_trials, n_workers = self.total, sums.shape[1], self.data.n_workers
        if total.mix is not None and len(total.mix) == 1 and (total.mix == 1).all():
            # An exact sum of vectors that have one entry each that is not zero.
            total.begin("setup", 1, sums.size, sums.itemsize)
            return np.ascontiguousarray(sums.T)
        values = np.zeros((len(sums), n_workers, n_trials))
        values[np.arange(len(sums)), self.data.own] = sums
        summed = add_vectors(total, values.reshape(len(sums), n_workers * n_trials), "setup")
        left: Doubles = np.asarray(total.roots.bcast(summed[0]))
        return np.ascontiguousarray(left.reshape(n_workers, n_trials).T)

    def keep(self, trial: int, chosen: Sequence[int]) -> None:
        data = self.data
        self.nearest = self.trials[trial].copy()
        self.nearest[np.array(chosen)[data.here(chosen)] - data.first] = 0.0
        self.remaining = self.sums[trial]

    def left(self) -> bool:
        return bool(self.remaining.any())

    def farthest(self) -> int:
        """Return the row farthest from all that are chosen, of the first worker that has one."""
        data, nearest = self.data, self.nearest
        assert nearest is not None
        most = np.array([[nearest[run].max(initial=-1.0)] for run in data.runs])
        worker = int(self._by_worker(most.reshape(len(data.runs), 1)).argmax())
        row = None
        if data.holders.mine(worker):
            run = data.runs[worker - data.own[0]]
            row = data.first + run.start + int(nearest[run].argmax())
        return int(data.holders.bcast(row, worker))

    def draw(self, count: int) -> list[int]:
        """Draw rows in proportion to weight times potential: first the worker, then its row."""
        data, nearest, drawn = self.data, self.nearest, []
        assert nearest is not None
        remaining = np.maximum(self.remaining, 0.0)
        ends = np.cumsum(remaining)
        for _ in range(count):
            place = min(self.stream.rng.random() * ends[-1], np.nextafter(ends[-1], 0))
            worker = int(np.searchsorted(ends, place, side="right"))
            place -= ends[worker] - remaining[worker]
            row = None
            if data.holders.mine(worker):
                run = data.runs[worker - data.own[0]]
                values = nearest[run] * data.weights[run] if len(data.weights) else nearest[run]
                cumulative = np.cumsum(values)
                inside = min(place, np.nextafter(cumulative[-1], 0))
                at = int(np.searchsorted(cumulative, inside, side="right"))
                row = data.first + run.start + at
            drawn.append(int(data.holders.bcast(row, worker)))
        return drawn
