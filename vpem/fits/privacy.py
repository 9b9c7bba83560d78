"""Differentially private fits: a budget, what it is spent on, the fits, and what is reported.

EM over rows adds noise to workers' sums; a model of features that parties hold has noise in every
M-step, and may be published: it is private against outsiders.

Whatever a fit publishes with noise is a vector that one row can move by at most so much, its
sensitivity, and Gaussian noise of so many times that, its *noise multiplier*. Several such
releases, each of which may depend on those before, are together as one whose multiplier z has
``1 / z^2 = sum 1 / z_i^2`` (Dong, Roth and Su 2022, Corollary 3.3). What epsilon and delta that is
`dp_accounting` computes without slack (Balle and Wang 2018, Theorem 8); its accountant by Renyi
divergences says 7 % more, that by privacy loss distributions the same, but for their grid.

**Neighbours.** Data sets are neighbours where one has a row of which the other has nothing: it is
counted as a row, and adds zero to every sum (Kairouz et al. 2021, *zero-out*). So the number of
rows is public, as it is where parties agree on how many rows they have. A row that is replaced by
another moves a sum by at most twice as much: its epsilon is that with half of the noise
(`Budget.epsilon_with`).

**Discrete noise.** Noise is drawn on integers (`vpem.network.noise`). `Budget` keeps
a little of epsilon and of delta for the difference, and `Budget.check_grid` holds the grid to it.
The accuracy of a private fit of rows is foretold from public facts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import ceil, exp, sqrt
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import (
    Floats,
    as_matrix,
    check_data,
    check_finite,
    check_number,
    precision_of,
    read_float,
)
from vpem.engines.engine import set_topic
from vpem.errors import InputError, Setting, shorten, warn
from vpem.files.matrix import FileMatrix
from vpem.fits.labels import responsibilities_of_agents
from vpem.fits.local_rows import AllRows, LocalRows
from vpem.fits.parts import complete, own_columns_of_hubs
from vpem.fits.prepare import make_terms, prepare, refuse_first
from vpem.fits.results import Fit, RowFit
from vpem.fits.settings import OVER_FEATURES, PrivacySettings
from vpem.network.ledger import Ledger
from vpem.network.noise import LARGEST_SCALE, beyond_reach, ratio_to_gaussian
from vpem.network.partition import Blocks, Workers
from vpem.network.schema import Report
from vpem.records import refused
from vpem.rules import BUDGETS, DECOMPOSED_IN_NOISE, are_decomposed, refuse
from vpem.settings import FitSettings, KmeansSettings, MixtureSettings
from vpem.steps.private import (
    SHARES,
    NoisyEM,
    Releases,
    n_values_of_start,
    run_private,
    scales_of_hubs,
    shares_of,
)
from vpem.steps.recovery import Saver
from vpem.steps.runs import Progress
from vpem.sums.connect import Network, refuse_directed
from vpem.sums.private import EACH, Noisy
from vpem.sums.sum import Sum
from vpem.terms.mixture import Mixture
from vpem.terms.row_statistics import BoundedRows, Grid, Parts, Residuals
from vpem.terms.rows import Rows, arrange_rows
from vpem.terms.units import Scaling, floor_of

NEIGHBOURS = "a row takes part, or adds nothing"
"""What differs between neighbouring data; see the module."""

REPEATABLE = "its noise can be repeated by anyone who knows the seed: this gives no privacy"
"""A warning of every output with seeded noise."""

OF_EPSILON, OF_DELTA = 1e-4, 1.5e-3
"""Shares of epsilon and delta that are kept for noise on integers not being Gaussian."""

LEAST_EPSILON, MOST_EPSILON = 1e-3, 20.0
"""Below, nothing is left of any data; above, nothing is promised to any row."""

UP = 1 + 1e-9
"""By which multipliers are rounded up: more than a root is found to."""


def iterations_of(settings: FitSettings | KmeansSettings, default: int, usual: int) -> int:
    """Return how many iterations a private fit pays for: ``usual``, where it is not set."""
    if settings.max_iter == 0:
        raise InputError(
            Setting("max_iter", 0),
            " is the start alone, which a private fit cannot have; give at least 1",
        )
    return usual if settings.max_iter == default else settings.max_iter


def accountant() -> ModuleType:
    try:
        return import_module("dp_accounting")
    except ImportError:
        raise InputError(
            "differential privacy needs dp-accounting, which is not installed: pip install "
            "'vpem[dp]'"
        ) from None


MUCH_EPSILON, MUCH_DELTA = 10.0, 0.1
"""Epsilon, and delta times the number of rows, above which a promise is worth little."""


def spent(multipliers: Sequence[float], delta: float) -> float:
    """Return the epsilon of releases with these noise multipliers, at this delta."""
    together = 1 / sqrt(sum(multiplier**-2 for multiplier in multipliers))
    return float(accountant().get_epsilon_gaussian(together, delta))


def spent_in_all(runs: Sequence[Mapping[str, float]]) -> float:
    """Return the epsilon of runs together, at the largest ``delta`` of theirs.

    Each has its ``epsilon``, and the ``multiplier`` of the noise of all its releases together.
    """
    epsilons = [run["epsilon"] for run in runs]
    if len(runs) < 2:
        return float(sum(epsilons))
    slack = OF_EPSILON * sum(epsilons)  # of noise on integers, in each
    delta = max(run["delta"] for run in runs) * (exp(-slack) - OF_DELTA)
    return spent([run["multiplier"] for run in runs], delta) + slack


def bounds_of(bounds: Any, n_features: int) -> NDArray[np.float64]:
    """Return the least and the largest value of each feature, shape (2, d).

    They are given as ``"-3,3"`` for all features, as a pair for each, ``"0,120;-3,3"``, or as two
    numbers or arrays (d,).
    """
    if bounds is None:
        raise InputError(
            "differential privacy needs ", Setting("bounds"), ", the least and largest value that "
            "each feature may have, known without looking at the data, such as -3,3"
        )  # fmt: skip
    pairs = bounds
    try:
        if isinstance(bounds, str):
            pairs = [[read_float(word) for word in pair.split(",")] for pair in bounds.split(";")]
            if any(None in pair for pair in pairs):
                raise ValueError
            pairs = pairs[0] if len(pairs) == 1 else np.transpose(pairs)
        low, high = pairs
        limits = np.stack(
            [np.broadcast_to(np.asarray(one, float), n_features) for one in (low, high)]
        )
    except (ValueError, TypeError):
        raise InputError(
            Setting("bounds"), " must be two numbers, such as -3,3, or as many pairs as there are "
            f"features ({n_features}), such as '0,120;-3,3', got {shorten([repr(bounds)])}"
        ) from None  # fmt: skip
    wrong = ~(np.isfinite(limits).all(axis=0) & (limits[0] < limits[1]))
    if wrong.any():
        j = int(np.flatnonzero(wrong)[0])
        raise InputError(
            Setting("bounds"), f" of feature {j} are {limits[0, j]:g} and {limits[1, j]:g}; the "
            "first must be below the second, and both finite"
        )  # fmt: skip
    return limits


@dataclass(frozen=True)
class Budget:
    """A privacy budget.

    For neighbours S, S' and every set of results:
    ``P(result of S in it) <= exp(epsilon) P(result of S' in it) + delta``.
    """

    epsilon: float
    delta: float

    @classmethod
    def parse(cls, epsilon: object, delta: object, n_samples: int, name: str = "epsilon") -> Budget:
        """Check a budget; ``name`` is what the parameter of epsilon is called.

        InputError also where delta is not given, or so large that whole rows could be published.
        """
        epsilon = check_number(name, epsilon, least=0.0, above=True)
        if not LEAST_EPSILON <= epsilon <= MOST_EPSILON:
            raise InputError(
                Setting(name), f" must be from {LEAST_EPSILON:g} to {MOST_EPSILON:g}, got "
                f"{epsilon:g}; 1 to 10 is common"
            )  # fmt: skip
        if delta is None:
            raise InputError(
                Setting(name), " needs ", Setting("delta"), ", the probability with which the "
                f"guarantee may fail, far below one in {n_samples} rows"
            )  # fmt: skip
        delta = check_number("delta", delta, least=0.0, above=True)
        if delta * n_samples >= 1:
            raise InputError(
                Setting("delta"), f" must be below 1 / {n_samples}, one over the number of rows: "
                f"publishing a row at random would be allowed by {delta:g}; try "
                f"{0.01 / n_samples:.0e}"
            )  # fmt: skip
        return cls(epsilon, delta)

    def warn_of_little(self, n_samples: int, name: str = "epsilon") -> None:
        """Warn of an epsilon or delta that guarantees little to one of so many rows."""
        parts: list[str | Setting] = []
        if self.epsilon > MUCH_EPSILON:
            parts += [Setting(name, self.epsilon), " promises little: above "
                      f"{MUCH_EPSILON:g} the presence of a row is all but visible"]  # fmt: skip
        if self.delta * n_samples > MUCH_DELTA:
            parts += ["; "] * bool(parts) + [
                Setting("delta", self.delta), f" is much for {n_samples} rows; take at most "
                f"{MUCH_DELTA / n_samples:.2g}, a tenth of one over their number",
            ]  # fmt: skip
        if parts:
            warn(*parts, level=4)

    @property
    def multiplier(self) -> float:
        """Noise multiplier of one release that spends all."""
        epsilon, delta = self.epsilon * (1 - OF_EPSILON), self.delta * (1 - OF_DELTA)
        return float(accountant().get_sigma_gaussian(epsilon, delta)) * UP

    def multipliers(self, shares: Sequence[float]) -> list[float]:
        """Return the noise multiplier of each of several releases, by its share of the budget.

        Releases of equal shares have equal noise; ValueError if they are more than 1 in all.
        """
        if min(shares) <= 0 or sum(shares) > UP:
            raise ValueError(f"shares of a budget are above 0 and at most 1 in all, got {shares}")
        whole = self.multiplier
        return [whole / sqrt(share) for share in shares]

    def epsilon_with(self, noise: float) -> float:
        """Return the epsilon, at the same delta, where noise is so many times as large."""
        delta = self.delta * (1 - OF_DELTA)
        epsilon = float(accountant().get_epsilon_gaussian(self.multiplier * noise, delta))
        return epsilon + OF_EPSILON * self.epsilon

    def check_grid(self, scale: int, n_values: int) -> None:
        """Raise InputError unless noise of this scale on integers is as good as Gaussian noise.

        ``scale`` is the least standard deviation, in units of the grid; ``n_values`` are noisy
        numbers of all releases together.
        """
        ratio, room = ratio_to_gaussian(scale, n_values), OF_EPSILON * self.epsilon / 2
        if ratio > room:
            raise InputError(
                f"noise of scale {scale} on the grid of sums is too coarse for ",
                Setting("epsilon"), f" = {self.epsilon:g}: it takes "
                f"{ceil(scale * sqrt(ratio / room))}; fit to fewer rows"
            )  # fmt: skip
        # exp(ratio) takes at most 1e-3 of delta, as epsilon is at most MOST_EPSILON.
        beyond = beyond_reach(n_values) * (1 + exp(self.epsilon_with(0.5)))
        if beyond > (OF_DELTA - 1e-3) * self.delta:
            raise InputError(
                Setting("delta"), f" = {self.delta:g} is too small for noise on a grid; it must be "
                f"{beyond / (OF_DELTA - 1e-3):.1g} or more"
            )  # fmt: skip
        if scale > LARGEST_SCALE:
            raise InputError(f"noise of scale {scale} is beyond the grid of sums")


@dataclass(frozen=True)
class Guarantee:
    """The privacy guarantee of a result, for reports and models."""

    budget: Budget
    multipliers: tuple[float, ...]  # of each release
    noise_by: str  # "server", "root" (tree), "workers", "hubs", "each worker"
    repeatable: bool = False  # a seed: no privacy, as outputs say
    n_workers: int = 0
    colluding: int = 0  # workers whose noise may be known, where workers add it

    def against(self) -> Report:
        """Return the epsilons by observer, who may know some of the noise."""
        if self.noise_by == "hubs":
            return {"outsider": self._epsilons(1.0)}
        if self.noise_by == EACH:
            return {who: self._epsilons(1.0) for who in ("outsider", "server", "worker")}
        if self.noise_by != "workers":
            return {"outsider": self._epsilons(1.0), "worker": self._epsilons(1.0),
                    self.noise_by: None}  # fmt: skip
        n, t = self.n_workers, self.colluding
        left = {"outsider": n, "server": n, "worker": n - 1}
        if t > 1:
            left[f"{t} workers"] = n - t
        return {who: self._epsilons(sqrt(some / (n - t))) for who, some in left.items() if some}

    def _epsilons(self, noise: float) -> Report:
        """Return the epsilon for a row that is added or removed, and for one that is changed."""
        budget = self.budget
        add = budget.epsilon if noise == 1.0 else budget.epsilon_with(noise)
        return {"add_or_remove": add, "change": budget.epsilon_with(noise / 2)}

    def describe(self) -> Report:
        from importlib.metadata import version

        described: Report = {
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "epsilon_of_change": self.budget.epsilon_with(0.5),
            "neighbours": NEIGHBOURS,
            "accountant": f"dp-accounting {version('dp-accounting')}",
            "n_releases": len(self.multipliers),
            "noise_multipliers": list(self.multipliers),
            "noise_by": self.noise_by,
            "repeatable": self.repeatable,
            "against": self.against(),
        }
        if self.noise_by == "workers":
            described["colluding"] = self.colluding
        if self.repeatable:
            described["warning"] = REPEATABLE
        return described

    def in_report(self, judged: str = "log_likelihood") -> Report:
        """Describe it in a report without the fit's quality and time, which would reveal rows."""
        unknown = dict.fromkeys((judged, f"root_{judged}", "seconds"))
        if judged == "log_likelihood":
            unknown |= dict.fromkeys(("bic", "aic"))
        return {**unknown, "privacy": self.describe()}


USUAL_ITERATIONS = 10
"""Of a private fit that does not say how many."""

FEW_ITERATIONS = 5
"""Enough for a whole fit that starts well."""

MOST_LOST = 5.0
"""Nats a row that noise may cost in one iteration: beyond, nothing was left in simulations."""

MOST_OF_SPREAD = 1.0
"""Noise of the second moments of all rows, as a part of these, beyond which no direction is seen.
"""


def colluding_of(privacy: PrivacySettings, network: Network) -> int:
    """Return the number of workers whose noise may be known, of those that share it."""
    colluding, n_workers = privacy.colluding, network.agents.n_agents
    if network.agents.masks is None:
        if colluding is not None:
            raise InputError(
                Setting("colluding"), " applies where workers share the noise, which takes masked "
                "sums; add ", Setting("secure_sum", True), " or leave it out",
            )  # fmt: skip
        return 0
    colluding = 1 if colluding is None else colluding
    if colluding >= n_workers:
        raise InputError(
            Setting("colluding"), f" must be below {n_workers}, the number of workers, since one "
            f"worker's noise at least must stay unknown, got {colluding}",
        )  # fmt: skip
    return colluding


@dataclass(eq=False)
class Foretold:
    """The accuracy of a private fit, foretold from public facts.

    All noise is ``louder`` than the budget takes by this factor, as workers may know some of it.
    The ``sketch`` of the start has this share of the budget. ``mean`` and ``variance`` are standard
    deviations of the noise of a mean, in those of a component of average size, and of one of its
    variances, in multiples of it, at the end; ``lost``, nats a row that the noise of one iteration
    costs, to second order; ``of_spread`` the largest eigenvalue, about, of the noise in the
    correlations of all rows, of which the start takes its directions, 0 of one component.
    """

    budget: Budget
    n_samples: int
    layout: Residuals
    n_iter: int
    louder: float = 1.0
    sketch: float = SHARES["sketch"]

    def __post_init__(self) -> None:
        n_samples, layout, n_iter, louder = self.n_samples, self.layout, self.n_iter, self.louder
        k, d = layout.n_components, layout.n_features
        self.multipliers = self.budget.multipliers(shares_of(n_iter, k, self.sketch))
        share, last = n_samples / k, louder * self.multipliers[-1]
        averaged = last / sqrt(n_iter - n_iter // 2 + 1) if n_iter > 1 else last
        self.mean = averaged * float(layout.scales[1]) / share
        of_one = n_samples if layout.copies < k else share
        of_one *= d if layout.shape == "spherical" else 1
        self.variance = averaged * float(layout.scales[2]) / of_one
        self.lost = layout.cost * (last / share) ** 2
        whole = Residuals("full", 1, d)
        noise = louder * self.multipliers[1] * float(whole.scales[2]) * sqrt(d) / n_samples
        self.of_spread = 0.0 if k == 1 else noise

    def __str__(self) -> str:
        return (
            f"noise of a mean: {self.mean:.2g} of a component's standard deviation; of a "
            f"variance: {self.variance:.2g} of it"
        )

    @property
    def is_hopeless(self) -> bool:
        return self.lost > MOST_LOST or self.of_spread > MOST_OF_SPREAD

    def check(self) -> None:
        """Raise InputError where nothing would be left but noise, with what would help."""
        if not self.is_hopeless:
            return
        layout = self.layout
        factor = max(sqrt(self.lost / MOST_LOST), self.of_spread / MOST_OF_SPREAD)
        rows = f"{factor * self.n_samples:.2g}"
        parts: list[str | Setting] = [
            f"{self.n_samples} rows of {layout.n_features} features, {layout.n_components} "
            f"components of covariance type {layout.kind} and {self.n_iter} iterations leave "
            "nothing but noise at ",
            Setting("epsilon", self.budget.epsilon),
            f" ({self}); it takes some {rows} rows",
        ]
        for what, other in self._others():
            if not other.is_hopeless:
                parts += [", or ", what]
        raise InputError(*parts)

    def _others(self) -> Iterator[tuple[Setting, Foretold]]:
        layout = self.layout
        kind = {"full": "diag", "tied": "tied-diag"}.get(layout.kind)
        k, d = layout.n_components, layout.n_features
        if kind is not None:
            yield Setting("covariance_type", kind), replace(self, layout=Residuals(kind, k, d))
        if k > 2:
            yield Setting("n_components", 2), replace(self, layout=Residuals(layout.kind, 2, d))
        if self.n_iter > FEW_ITERATIONS:
            yield Setting("max_iter", FEW_ITERATIONS), replace(self, n_iter=FEW_ITERATIONS)
        for epsilon in (1, 2, 4, 8):
            if epsilon > self.budget.epsilon:
                larger = replace(self, budget=replace(self.budget, epsilon=epsilon))
                if not larger.is_hopeless:
                    yield Setting("epsilon", epsilon), larger
                    break


def foretell(
    settings: FitSettings,
    privacy: PrivacySettings,
    n_samples: int,
    n_features: int,
    network: Network | None = None,
) -> Foretold:
    louder = 1.0
    if network is not None and network.agents.masks is not None:
        n_workers = network.agents.n_agents
        louder = sqrt(n_workers / (n_workers - colluding_of(privacy, network)))
    budget = Budget.parse(privacy.epsilon, privacy.delta, n_samples)
    n_iter = iterations_of(settings, FitSettings.max_iter, USUAL_ITERATIONS)
    layout = Residuals(settings.covariance_type, settings.n_components, n_features)
    return Foretold(budget, n_samples, layout, n_iter, louder)


def check_private(
    algorithm: str,
    settings: MixtureSettings | KmeansSettings,
    *,
    weighted: bool = False,
    saved: bool = False,
) -> None:
    """Raise InputError where a setting is not the default that a private fit does not take."""
    usual, given = type(settings)(), set()
    for name, value in settings:
        common = getattr(usual, name)
        same = isinstance(value, type(common)) and value == common
        if not same and not (name == "dtype" and precision_of(value) == np.float64):
            given.add(name)
    given |= {"sample_weight"} if weighted else set()
    given |= {"checkpoint"} if saved else set()
    refuse({"algorithm": algorithm, BUDGETS[algorithm]: True}, given)
    if are_decomposed(vars(settings)):
        raise refused(Setting("covariance_type"), DECOMPOSED_IN_NOISE[1])


def fit_private_rows(
    X: Floats | FileMatrix,
    workers: Workers,
    network: Network,
    settings: FitSettings,
    privacy: PrivacySettings,
    *,
    sample_weight: object = None,
    feature_names: Sequence[str] | None = None,
    callback: Callable[[Progress], None] | None = None,
    saver: Saver | None = None,
    hard: bool = False,
) -> RowFit:
    """Fit a mixture to rows that workers hold, by noisy sums (`vpem.steps.private`).

    Parameters are those of `vpem.fit_em`, but `USUAL_ITERATIONS` are run by default, and neither
    callback nor result has log-likelihoods, which the budget does not cover. If ``hard``, rows
    belong to one component each, by distances in the data's units; see `vpem.fits.row_kmeans`.
    """
    began = time.perf_counter()
    check_private("em-rows", settings, weighted=sample_weight is not None, saved=saver is not None)
    refuse_directed(network, "differential privacy takes")
    if network.compress is not None or not network.total.exact:
        raise InputError(
            Setting("epsilon"), " needs an exact sum that gets its noise before it is sent: in "
            "consensus rounds neighbours see the terms of workers; take the topology star, or ",
            Setting("sum", "tree"),
        )  # fmt: skip
    X = as_matrix("data", X)
    if len(X.shape) != 2:
        raise InputError(f"the data must be 2-D (rows, features), got {len(X.shape)} dimension(s)")
    n_features = X.shape[1]
    units = bounds = bounds_of(privacy.bounds, n_features)
    if hard:  # balls of data are balls in units of a cube around the bounds
        centre, half = bounds.mean(axis=0), np.ptp(bounds, axis=0).max() / 2
        units = np.stack([centre - half, centre + half])
    foretold = foretell(settings, privacy, workers.n_samples, n_features, network)
    colluding = colluding_of(privacy, network)
    releases, total, ledger = releases_of(
        X, workers, network, foretold, bounds, privacy.repeatable_noise, feature_names,
        units=units, colluding=colluding,
    )  # fmt: skip
    sent: list[int] = []

    def report(iteration: int) -> None:
        sent.append(total.bytes_sent)
        if callback is not None:
            callback(Progress(iteration, float("nan"), None))

    with one_blas_thread():
        parts = run_private(
            releases, foretold.layout, workers.n_samples, foretold.n_iter, hard=hard,
            seed=[settings.seed, 0], shared=lambda start: share_start(start, total),
            callback=report,
        )  # fmt: skip
    mixture = _mixture(parts, units, workers.n_workers, floor_of(settings.reg_covar))
    return RowFit(
        mixture=mixture,
        network=network.whole,
        mixtures=[mixture],
        workers=workers,
        **unjudged(1, workers.n_samples, foretold.n_iter, began, ledger, sent),
        clipped=dict(zip(total.holders.own.tolist(), releases.rows.clipped, strict=True)),
        guarantee=Guarantee(
            foretold.budget, tuple(foretold.multipliers), releases.total.by,
            privacy.repeatable_noise is not None, workers.n_workers, colluding,
        ),
    )  # fmt: skip


def unjudged(
    n_roots: int, n_samples: int, n_iter: int, began: float, ledger: Ledger, sent: list[int]
) -> Report:
    """Return what a result says of a private fit, without its quality, which shows rows."""
    return {
        "history": np.empty((0, n_roots)),
        "root_log_likelihood": np.full(n_roots, np.nan),
        "total_weight": float(n_samples),
        "n_samples": n_samples,
        "converged": True,
        "total_iterations": n_iter,
        "seconds": time.perf_counter() - began,
        "communication": {**ledger.summary(), "bytes_by_iteration": sent},
    }


def releases_of(
    X: Any,
    workers: Workers,
    network: Network,
    foretold: Foretold,
    bounds: NDArray[np.float64],
    repeatable: int | None,
    feature_names: Sequence[str] | None,
    *,
    units: NDArray[np.float64] | None = None,
    **noise: Any,  # of `Noisy`
) -> tuple[Releases, Sum, Ledger]:
    """Return what publishes sums over rows with noise, the sum inside, and where it is counted.

    It refuses, and warns, by what is foretold of them.
    """
    foretold.check()
    foretold.budget.warn_of_little(workers.n_samples)
    if repeatable is not None:
        warn(REPEATABLE)
    ledger = Ledger(network.graph)
    network.charge_setup(ledger, workers.n_samples, 8)
    total = network.total.counted_on(ledger)
    grid = Grid.for_size(workers.n_samples, bounds.shape[1])
    noisy = Noisy(total.server, seed=repeatable, **noise)
    check_grid(foretold, grid, noisy.louder)
    rows = BoundedRows(_rows_of_workers(X, workers, network, feature_names), bounds, grid, units)
    return Releases(rows, noisy, list(foretold.multipliers)), total, ledger


def _rows_of_workers(
    X: Any, workers: Workers, network: Network, feature_names: Sequence[str] | None
) -> list[Rows]:
    local, n_features = LocalRows(network.total.holders, workers), X.shape[1]
    data: Any = check_data(
        X, n_features, feature_names, least_rows=int(local.here),
        finite=lambda rows, names: check_finite(rows, names, ("fill it in, or leave the row out",)),
    )  # fmt: skip
    local.count_all(len(data))
    blocks = Blocks.one(n_features, workers.n_workers)
    whole = arrange_rows(local.by_worker(data), blocks, Scaling.none(n_features), data.dtype)
    return [whole.slice_rows(run) for run in local.own_runs]


def check_grid(foretold: Foretold, grid: Grid, louder: float = 1.0) -> None:
    """Raise InputError where the grid is too coarse for Gaussian noise.

    Sums of all workers have noise so many times as large as that of a release.
    """
    layout, unit = foretold.layout, grid.unit
    least = min(1.0, float(layout.deviations().min())) * min(foretold.multipliers)
    heard = [louder * one for one in foretold.multipliers]
    n_values = n_values_of_start(foretold.n_samples, heard, layout)
    n_values += foretold.n_iter * layout.size
    foretold.budget.check_grid(int(least / unit), n_values)


def share_start(start: Parts, total: Sum) -> Parts:
    """Return the first process's start in every process: a search may end elsewhere in others."""
    values = np.concatenate([start.weights, start.means.ravel(), start.spreads.ravel()])
    total.agree("setup", values.nbytes)
    holders = total.holders
    if not holders.apart:
        return start
    with set_topic(holders.engine, "setup"):
        holders.engine.bcast_array(values)
    k, d = start.means.shape
    weights, means, spreads = np.split(values, [k, k + k * d])
    return Parts(weights, means.reshape(k, d), spreads.reshape(start.spreads.shape), start.kind)


def _mixture(
    parts: Parts, bounds: NDArray[np.float64], n_workers: int, reg_covar: float
) -> Mixture:
    """Return the mixture of parts, whose units are those of the bounds."""
    spreads = parts.spreads[:1] if parts.kind.startswith("tied") else parts.spreads
    d = parts.means.shape[1]
    if spreads.ndim == 2:
        covariances = np.square(spreads) + reg_covar
    else:
        full = spreads @ spreads.transpose(0, 2, 1) + reg_covar * np.eye(d)
        covariances = full.ravel()
    scaling = Scaling(bounds.mean(axis=0), np.ptp(bounds, axis=0) / 2)
    blocks, weights = Blocks.one(d, n_workers), parts.weights[None].copy()
    return Mixture(blocks, parts.kind, weights, parts.means.copy(), covariances, scaling)


ITERATIONS_OF_RELEASE = 16
"""By default; each has its share of the budget."""

FOR_START = 0.1
"""Share of the budget for the moments that it starts from."""

MOST_NOISE = 0.5
"""Standard deviations by which noise may displace the means of one iteration."""


def release_vpem(
    X: Floats | FileMatrix,
    network: Network,
    settings: FitSettings,
    privacy: PrivacySettings,
    *,
    sample_weight: object = None,
    feature_names: Sequence[str] | None = None,
    saver: Saver | None = None,
    labels: Sequence[int] | None = None,
) -> Fit:
    """Fit a mixture to features, with noise in every M-step (`vpem.steps.private`).

    Parameters are those of `vpem.fit_vpem`, but `ITERATIONS_OF_RELEASE` are run by default; there
    are neither log-likelihoods nor history, which would show something of rows.
    """
    began = time.perf_counter()
    if privacy.epsilon is not None:
        raise InputError(Setting("epsilon"), *OVER_FEATURES[1])
    check_private("vp-em", settings, weighted=sample_weight is not None, saved=saver is not None)
    refuse_directed(network, "differential privacy takes")
    by_rounds = not network.total.at_server or network.compress is not None
    refuse_first((by_rounds, (
        "{release_epsilon} needs one exact sum, from which all have the same responsibilities: "
        "with rounds every root would spend some of the privacy budget, and with a codec a row's "
        "terms depend on other rows; take {sum=tree} or a star, without {compress}",
    )))  # fmt: skip
    rows = AllRows(network.total.holders)
    prepared = prepare(
        X, network.blocks.n_features, settings, rows, feature_names=feature_names,
        dtype=settings.dtype, missing=settings.missing,
    )  # fmt: skip
    settings = settings.changed(
        n_threads=thread_count(settings.n_threads), dtype=prepared.precision.name
    )
    whole = network.whole.blocks
    budget = Budget.parse(
        privacy.release_epsilon, privacy.delta, prepared.n_samples, name="release_epsilon"
    )
    bounds = bounds_of(privacy.bounds, whole.n_features)
    n_iter = iterations_of(settings, FitSettings().max_iter, ITERATIONS_OF_RELEASE)
    multipliers = budget.multipliers([FOR_START, *[(1 - FOR_START) / n_iter] * n_iter])
    # By how much noise displaces a mean in one iteration, in standard deviations, of a component
    # with its equal share of the rows, in the hub where that is most: the root of the mean square
    # of the noise, ``z s_b sqrt(d_b) K / M``.
    scales = scales_of_hubs(whole.widths, settings.covariance_type, settings.n_components)
    largest = max(scale[1] * sqrt(whole.widths[hub]) for hub, scale in scales.items())
    noise = float(multipliers[-1] * largest * settings.n_components / prepared.n_samples)
    if noise > MOST_NOISE:
        raise InputError(
            f"{prepared.n_samples} rows, {whole.n_features} features, {settings.n_components} "
            f"components and {n_iter} iterations leave nothing at ", Setting("release_epsilon"),
            f" = {budget.epsilon:g}: noise would displace means by {noise:.2g} standard deviations "
            f"in every iteration; try some {noise / MOST_NOISE * prepared.n_samples:.0f} rows, a "
            "larger ", Setting("release_epsilon"), " or a smaller ", Setting("max_iter"),
        )  # fmt: skip
    budget.warn_of_little(prepared.n_samples, "release_epsilon")
    if privacy.repeatable_noise is not None:
        warn(REPEATABLE)
    if network.part_of is not None:
        bounds = bounds[:, own_columns_of_hubs(network)]
    scaling = Scaling(bounds.mean(axis=0), np.ptp(bounds, axis=0) / 2)
    with one_blas_thread(), np.errstate(over="ignore"):
        terms = make_terms(prepared.X, None, network.blocks, scaling, prepared, settings, rows)
        complete(terms, network)
        ledger = Ledger(network.graph)
        network.charge_setup(ledger, prepared.n_samples, terms.itemsize)
        total, sent = network.total.counted_on(ledger), []
        run = NoisyEM(terms, total, whole, settings.n_components, privacy.repeatable_noise)
        budget.check_grid(run.least_scale(min(multipliers)), run.n_numbers * len(multipliers))
        start = run.start(multipliers[0], np.random.default_rng([settings.seed, 0]))
        callback = lambda _: sent.append(total.bytes_sent)  # noqa: E731
        parts = run.iterate(start, multipliers[1:], callback)
        mixture = run.mixture(parts, floor_of(settings.reg_covar))
    if run.n_clipped:
        warn(
            f"{run.n_clipped} of {prepared.X.size} values lie beyond their bounds and were clipped"
        )
    shares = {}
    if labels is not None:
        shares = responsibilities_of_agents(X, mixture, network, ledger, labels)
    return Fit(
        mixture=mixture,
        network=network,
        responsibilities=shares,
        **unjudged(len(network.hubs), prepared.n_samples, n_iter, began, ledger, sent),
        guarantee=Guarantee(
            budget, tuple(multipliers), "hubs", privacy.repeatable_noise is not None
        ),
    )
