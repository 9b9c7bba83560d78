"""What is left of a private fit of rows beside the noise, by what is public."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt
from typing import Any

from vpem.errors import InputError, Setting
from vpem.fits.privacy import Budget, iterations_of
from vpem.fits.settings import PrivacySettings
from vpem.settings import FitSettings
from vpem.steps.private_em import shares_of
from vpem.sums.connect import Network
from vpem.terms.residuals import Residuals

USUAL_ITERATIONS = 10
"""Of a private fit that does not say how many."""

FEW_ITERATIONS = 5
"""Whole fits can be had in so many, if they start well."""

MOST_LOST = 5.0
"""Nats a row that noise may cost in one iteration: beyond, nothing was left in simulations."""

MOST_OF_SPREAD = 1.0
"""Noise of the second moments of all rows, as a part of these, beyond which no direction is seen.
"""


def colluding_of(privacy: PrivacySettings, network: Network) -> int:
    """Return of how many workers the noise may be known, of those that share it out."""
    asked, n_workers = privacy.colluding, network.agents.n_agents
    if network.agents.masks is None:
        if asked is not None:
            raise InputError(
                Setting("colluding"), " is of workers who share out the noise, which they do under "
                "masks; add ", Setting("secure_sum", True), " or leave it out",
            )  # fmt: skip
        return 0
    found = 1 if asked is None else asked
    if found >= n_workers:
        raise InputError(
            Setting("colluding"), f" must be below {n_workers}, the number of workers: somebody's "
            f"noise must be left, got {found}",
        )  # fmt: skip
    return found


class Foretold:
    """What is left of a fit beside the noise, by what is public.

    Parameters
    ----------
    budget : Budget
        What may be told.
    n_samples : int
        Rows, M.
    layout : Residuals
        Components, features, and the covariance type.
    n_iter : int
        Iterations.
    louder : float
        How many times as large all noise is as the budget takes: workers may know some of it.

    Attributes
    ----------
    multipliers : list of float
        Noise multipliers of the releases.
    mean, variance : float
        Standard deviations of the noise of a mean, in standard deviations of a component of
        average size, and of one of its variances, in multiples of it, at the end.
    lost : float
        Nats a row that the noise of one iteration costs, to second order.
    of_spread : float
        Largest eigenvalue, about, of the noise in the correlations of all rows, of which the start
        takes its directions; 0 of one component.
    """

    def __init__(
        self, budget: Budget, n_samples: int, layout: Residuals, n_iter: int, louder: float = 1.0
    ) -> None:
        self.budget, self.n_samples, self.layout, self.n_iter = budget, n_samples, layout, n_iter
        self.louder = louder
        k, d = layout.n_components, layout.n_features
        self.multipliers = budget.multipliers(shares_of(n_iter, k))
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
        """Whether nothing would be left but noise."""
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
        """Yield what could be asked for instead."""
        layout = self.layout
        kind = {"full": "diag", "tied": "tied-diag"}.get(layout.kind)
        if kind is not None:
            yield Setting("covariance_type", kind), self._with(layout=replace(layout, kind=kind))
        if layout.n_components > 2:
            yield Setting("n_components", 2), self._with(layout=replace(layout, n_components=2))
        if self.n_iter > FEW_ITERATIONS:
            yield Setting("max_iter", FEW_ITERATIONS), self._with(n_iter=FEW_ITERATIONS)
        larger = [
            (Setting("epsilon", epsilon), self._with(budget=replace(self.budget, epsilon=epsilon)))
            for epsilon in (1, 2, 4, 8)
            if epsilon > self.budget.epsilon
        ]
        yield from [one for one in larger if not one[1].is_hopeless][:1]

    def _with(self, **changes: Any) -> Foretold:
        names = ("budget", "n_samples", "layout", "n_iter", "louder")
        now: dict[str, Any] = {name: getattr(self, name) for name in names}
        return Foretold(**(now | changes))


def foretell(
    how: FitSettings,
    privacy: PrivacySettings,
    n_samples: int,
    n_features: int,
    network: Network | None = None,
) -> Foretold:
    """Return what is left of a fit beside the noise, by what is public."""
    louder = 1.0
    if network is not None and network.agents.masks is not None:
        n_workers = network.agents.n_agents
        louder = sqrt(n_workers / (n_workers - colluding_of(privacy, network)))
    budget = Budget.of(privacy.epsilon, privacy.delta, n_samples)
    n_iter = iterations_of(how, FitSettings.max_iter, USUAL_ITERATIONS)
    layout = Residuals(how.covariance_type, how.n_components, n_features)
    return Foretold(budget, n_samples, layout, n_iter, louder)
