"""SAEM beside MCEM, the draft's Algorithm 2, gradients, and sketched gradients with noise.

Gradients are of the log-likelihood of the rows, by Fisher's identity: the mean over latents given
the rows of the gradient of the complete log-density. A device draws the latents of its individuals
once and sends the gradient at the draw; the server takes a step. Sketched SGD (Ivkin et al. 2019,
as Rothchild et al. 2020 have it, with the errors at the server) sends a count sketch, of which the
server takes the largest coordinates; with privacy (Li et al. 2019) gradients of individuals are
clipped, and sketches get Gaussian noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import cholesky

from vpem.errors import NumericalError
from vpem.saem.fit import fit_saem
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import Individuals
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import OneCompartmentModel
from vpem.saem.models.model import Counts, Doubles, SaemModel
from vpem.saem.saem import draws_until
from vpem.saem.samplers import Exact, Metropolis
from vpem.settings import SaemSettings

from .saem_curves import CL, ERROR, KA, NLME, OMEGA, VOLUME, maximum, quadrature, simulated
from .saem_shared import BOYS, BOYS_LOG_LIKELIHOOD, Finding, boys, style, theophylline

DRAWS = {"small": 24, "full": 300}
"""Of each chain, of every method."""

NODES = {"small": 3, "full": 5}
SEEDS = {"small": 1, "full": 3}
CHAINS = 4
PEOPLE = {"small": 60, "full": 500}
"""Simulated persons, where there is noise for privacy."""

STEPS = {"small": (0.01,), "full": (0.003, 0.01, 0.03, 0.1, 0.3)}
"""Of gradients, of which the best is kept: a favour that nobody can do in practice."""

ROUNDS = {"small": 10, "full": 100}
"""Of private gradients."""

EPSILONS = {"small": (None, 4.0), "full": (None, 8.0, 2.0)}
DELTA = 1e-5
FARTHEST = 20.0
"""From the start, in any free parameter: what goes farther has run away."""

CLIP = 3.0
"""Length to which the gradient of an individual is clipped."""

SKETCH = (3, 8)
"""Rows and columns of a sketch."""

TAKEN = 3
"""Coordinates that the server takes from a sketch."""

TRUTH = np.array([np.log(KA), np.log(CL), np.log(VOLUME), OMEGA["ka"], OMEGA["cl"],
                  OMEGA["volume"], ERROR])  # fmt: skip


@dataclass
class Study:
    """Data with a model, who holds them, and where the likelihood is largest."""

    name: str
    data: Individuals
    model: str
    devices: int
    built: SaemModel
    options: dict[str, Any] = field(default_factory=dict)
    near: Doubles | None = None  # where the search for the maximum begins
    top: Doubles | None = None  # the maximum, if it is known
    top_value: float = np.nan

    def settle(self, n_nodes: int) -> tuple[Doubles, Doubles, float]:
        """Maximum of the likelihood, standard errors, and log-likelihood there."""
        if self.top is not None:
            fit = fit_saem(self.data, self.model, n_importance=10, model_options=self.options)
            return self.top, fit.standard_errors, self.top_value
        assert self.near is not None
        return maximum(self.built, self.near, n_nodes)

    def value(self, theta: Doubles, n_nodes: int) -> float:
        """Log-likelihood of the rows."""
        exact = self.built.marginal(theta)
        each = quadrature(self.built, theta, n_nodes) if exact is None else exact
        return float(each.sum())


@cache
def studies(n_warfarin: int = 32, source: Path | None = None) -> list[Study]:
    """Theophylline, the boys, and warfarin: simulated persons, or those of a file."""
    doses = theophylline()
    options = {"random": ("ka", "cl")}
    persons = read_individuals(source) if source else simulated(
        n_warfarin, np.random.default_rng(0)
    )  # fmt: skip
    dosed = {"parameters": ("ka", "cl", "v"), "error": "proportional"}
    return [
        Study("theophylline", doses, "one-compartment", 6, OneCompartmentModel(doses, **options),
              options, NLME),
        Study("boys", boys(), "linear", 13, LinearModel(boys()), {}, None, BOYS,
              BOYS_LOG_LIKELIHOOD),
        Study("warfarin", persons, "one-compartment", min(8, persons.n_individuals),
              OneCompartmentModel(persons, **dosed), dosed, TRUTH),
    ]  # fmt: skip


# ---- gradients ----------------------------------------------------------------------------------


class Free:
    """Parameters without bounds: logarithms of variances, log-Cholesky factors of covariances."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.first = [i for i, name in enumerate(names) if name.startswith(("var(", "cov("))]
        self.full = any(name.startswith("cov(") for name in names)
        self.positive = [i for i, name in enumerate(names)
                         if name.startswith(("residual", "var(")) and not (
                             self.full and i in self.first)]  # fmt: skip
        self.q = int((np.sqrt(8 * len(self.first) + 1) - 1) / 2) if self.full else 0

    def there(self, free: Doubles) -> Doubles:
        """Parameters (p,) of free ones."""
        theta = np.array(free)
        theta[self.positive] = np.exp(theta[self.positive])
        if self.full:
            root = np.zeros((self.q, self.q))
            root[np.tril_indices(self.q)] = theta[self.first]
            np.fill_diagonal(root, np.exp(np.diag(root)))
            theta[self.first] = (root @ root.T)[np.tril_indices(self.q)]
        return theta

    def back(self, theta: Doubles) -> Doubles:
        """Free parameters (p,) of others."""
        free = np.array(theta)
        free[self.positive] = np.log(free[self.positive])
        if self.full:
            covariance = np.zeros((self.q, self.q))
            covariance[np.tril_indices(self.q)] = free[self.first]
            root = cholesky(covariance + np.tril(covariance, -1).T, lower=True)
            np.fill_diagonal(root, np.log(np.diag(root)))
            free[self.first] = root[np.tril_indices(self.q)]
        return free


def gradients(model: SaemModel, z: Doubles, free: Doubles, frame: Free) -> Doubles:
    """Gradients (n, p) of individuals' complete log-densities, means over chains (chains, n, q).

    ``<S, phi> - psi``, whose derivatives are by central differences, number by number of S.
    """
    theta = frame.there(free)
    at = model.expand_about(theta)
    each, rows = at.statistics(z), np.diff(model.individuals.first)
    p, size, gap = len(free), model.size, 1e-5
    slopes, of_one, of_row = np.empty((p, size)), np.empty(p), np.empty(p)
    none = np.zeros(size)
    for i, nudge in enumerate(gap * np.eye(p)):
        ends = [frame.there(free + sign * nudge) for sign in (1, -1)]

        def slope(total: Doubles, counts: Counts, ends: list[Doubles] = ends) -> float:
            up, down = (at.log_density(total, counts, end) for end in ends)
            return float(up - down) / (2 * gap)

        slopes[i] = [slope(unit, Counts(0, 0)) for unit in np.eye(size)]
        of_one[i], of_row[i] = slope(none, Counts(1, 0)), slope(none, Counts(0, 1))
    return np.asarray(each @ slopes.T + of_one + rows[:, None] * of_row)


def descend(
    study: Study,
    n_rounds: int,
    step: float,
    seed: int,
    take: Callable[[Doubles], Doubles] = lambda each: each.mean(axis=0),
) -> Doubles:
    """Ascend the log-likelihood by steps of ``take(gradients)``; parameters at the end.

    Steps are constant in the first half and then fall as 1 / k.
    """
    model, frame = study.built, Free(tuple(study.built.parameters))
    theta, z = model.start()
    sampler = Exact() if study.model == "linear" else Metropolis()
    chains = sampler.begin(model, theta, z, CHAINS, seed)
    free, half = frame.back(theta), n_rounds // 2
    start = free
    for r in range(1, n_rounds + 1):
        sampler.move(model, frame.there(free), chains, r, max(0, r - half))
        moved = take(gradients(model, chains.z, free, frame))
        free = free + step * moved / (1 + 10 * max(0, r - half) / half)
        if not np.isfinite(free).all() or np.abs(free - start).max() > FARTHEST:
            raise NumericalError("gradients run away")
    return frame.there(free)


@dataclass
class Sketches:
    """Sums of gradients as count sketches, with what the server has not yet taken.

    A coordinate is added, with a sign, in one column of every row; what it was is the median over
    rows. ``noise`` is the standard deviation of what is added to a sum of sketches, in lengths of a
    clipped gradient times the largest singular value of the sketch, by which a sum of sketches may
    differ with one individual; None: nothing is clipped.
    """

    p: int
    rng: np.random.Generator
    noise: float | None = None
    k: int = TAKEN

    def __post_init__(self) -> None:
        rows, columns = SKETCH
        place = self.rng.integers(columns, size=(rows, self.p))
        sign = self.rng.choice([-1.0, 1.0], size=(rows, self.p))
        self.matrix = np.zeros((rows, columns, self.p))
        for row in range(rows):
            self.matrix[row, place[row], np.arange(self.p)] = sign[row]
        self.place, self.sign = place, sign
        self.left: Doubles = np.zeros((rows, columns))
        flat = self.matrix.reshape(-1, self.p)
        self.most = float(np.linalg.norm(flat, 2))

    def __call__(self, each: Doubles) -> Doubles:
        """Mean gradient of individuals (n, p), as far as the server takes it."""
        rows = np.arange(len(self.place))[:, None]
        if self.noise is not None:
            lengths = np.linalg.norm(each, axis=1, keepdims=True)
            each = each * np.minimum(1.0, CLIP / np.maximum(lengths, 1e-300))
        heard = self.matrix @ each.sum(axis=0)
        if self.noise is not None:
            heard = heard + self.noise * CLIP * self.most * self.rng.normal(size=heard.shape)
        self.left = self.left + heard / len(each)
        found = np.median(self.sign * self.left[rows, self.place], axis=0)
        taken: Doubles = np.where(np.argsort(np.argsort(-np.abs(found))) < self.k, found, 0.0)
        self.left = self.left - self.matrix @ taken
        return taken


# ---- the experiments ----------------------------------------------------------------------------


def fitted(study: Study, n_draws: int, seed: int, **how: Any) -> tuple[Doubles, int, int]:
    """Parameters by fit_saem with so many draws of each chain, bytes, and iterations."""
    n_iter = n_draws
    if how.get("method") == "mcem":
        settings = SaemSettings(method="mcem")
        n_iter = max(r for r in range(1, n_draws + 1) if draws_until(settings, r) <= n_draws)
    found = fit_saem(
        study.data, study.model, model_options=study.options, n_iter=n_iter, tol=0.0, seed=seed,
        burn_in=n_iter // 3, n_chains=CHAINS, n_conditional=2, n_importance=10, **how,
    )  # fmt: skip
    return found.theta, int(found.bytes[-1]), n_iter


def best_descent(study: Study, size: str, seed: int, nodes: int, **how: Any) -> Doubles:
    """Gradient ascent with the step, of several, whose likelihood at the end is largest."""
    ends: list[tuple[float, Doubles]] = []
    for step in STEPS[size]:
        try:
            theta = descend(
                study, how.get("n_rounds", DRAWS[size]), step, seed, *how.get("take", ())
            )
            ends.append((study.value(theta, nodes), theta))
        except (NumericalError, np.linalg.LinAlgError, FloatingPointError):
            continue
    ends = [one for one in ends if np.isfinite(one[0])]
    if not ends:
        return np.full(len(study.built.parameters), np.nan)
    return max(ends, key=lambda one: one[0])[1]


def row(
    study: Study, name: str, thetas: list[Doubles], top: tuple[Doubles, Doubles, float],
    nodes: int, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """How far estimates of several seeds are from the maximum."""
    at, errors, best = top
    known = np.isfinite(errors) & (errors > 0)
    apart = [float(np.sqrt(np.mean(np.square((one - at)[known] / errors[known]))))
             for one in thetas]  # fmt: skip
    below = [best - study.value(one, nodes) if np.isfinite(one).all() else np.nan
             for one in thetas]  # fmt: skip
    return {
        "name": f"{study.name}: {name}",
        "from the maximum (s.e.)": float(np.mean(apart)),
        "worst seed": float(np.max(apart)),
        "log-likelihood below it": float(np.mean(below)),
        **more,
        "each": apart,
        "estimates": np.array(thetas).tolist(),
    }


def marks(rows: list[dict[str, Any]], names: list[str], ways: list[str], words: str) -> Any:
    """Draw every seed's distance from the maximum, a panel for each study."""

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, len(names), sharey=True)
        for axes, name in zip(panels, names, strict=True):
            for number, way in enumerate(ways):
                mine = [one for one in rows if one["name"] == f"{name}: {way}"]
                if not mine:
                    continue
                apart = np.array(mine[0]["each"], dtype=float)
                apart = np.where(np.isfinite(apart), np.maximum(apart, 1e-3), 1e3)
                place = number + np.linspace(-0.15, 0.15, len(apart))
                axes.plot(place, apart, **style(number) | {"linestyle": "none", "alpha": 0.7})
            axes.axhline(1.0, color="0.6", linewidth=0.8, linestyle="--")
            axes.set(yscale="log", title=name)
            axes.set_xticks(range(len(ways)), ways, rotation=40, ha="right", fontsize=8)
            axes.grid(axis="y", color="0.9", linewidth=0.6)
        panels[0].set_ylabel("from the maximum of the likelihood\n(rms, standard errors)")
        figure.suptitle(words, fontsize=9)

    return draw


def methods(size: str, source: Path | None = None) -> Finding:
    """SAEM, MCEM, Algorithm 2 and distributed gradients, of as many draws of each chain."""
    nodes, n_draws, rows, says = NODES[size], DRAWS[size], [], []
    ways: dict[str, dict[str, Any]] = {
        "SAEM": {}, "MCEM": {"method": "mcem"}, "FL-SAEM": {"method": "fl-saem"},
        "SAEM, half there": {"participation": 0.5},
        "FL-SAEM, half there": {"method": "fl-saem", "participation": 0.5},
    }  # fmt: skip
    every = studies(source=source)
    for study in every:
        top = study.settle(nodes)
        for way, how in ways.items():
            found = [fitted(study, n_draws, seed, devices=study.devices, **how)
                     for seed in range(SEEDS[size])]  # fmt: skip
            rows.append(row(study, way, [one[0] for one in found], top, nodes,
                            rounds=found[0][2], kB=found[0][1] / 1000))  # fmt: skip
        thetas = [best_descent(study, size, seed, nodes) for seed in range(SEEDS[size])]
        p = len(study.built.parameters)
        rows.append(row(study, "gradients", thetas, top, nodes, rounds=n_draws,
                        kB=n_draws * 2 * 8 * p * study.devices / 1000))  # fmt: skip
        said = ", ".join(
            f"{one['name'].partition(': ')[2]} {one['from the maximum (s.e.)']:.2g}"
            for one in rows if one["name"].startswith(study.name)
        )  # fmt: skip
        says.append(f"{study.name}: {said}")
    warfarin = f"warfarin of {source.name}" if source else (
        "warfarin simulated from the population of Nyberg et al. 2014"
    )  # fmt: skip
    whole = (f"With {n_draws} draws of each of {CHAINS} chains, {warfarin}, estimates are from the "
             f"maximum of the likelihood, in standard errors: {'; '.join(says)}.")  # fmt: skip
    failed = []
    if size == "full":
        failed = [f"{one['name']} is far off" for one in rows
                  if one["name"].endswith(": SAEM") and one["worst seed"] > 0.5]  # fmt: skip
    draw = marks(rows, [one.name for one in every], [*ways, "gradients"],
                 f"Estimates with {n_draws} draws of each chain; every mark is a seed")  # fmt: skip
    return Finding(rows, whole, draw, (11.0, 4.6), failed)


def sketches(size: str, source: Path | None = None) -> Finding:
    """Sketched gradients without noise and with noise for privacy, of few persons and of many."""
    from vpem.fits.privacy import Budget

    nodes, n_rounds = NODES[size], ROUNDS[size]
    few = studies(source=source)
    many = studies(PEOPLE[size])[2]
    every = [*few, Study(f"{PEOPLE[size]} persons", many.data, many.model, 8, many.built,
                         many.options, TRUTH)]  # fmt: skip
    rows: list[dict[str, Any]] = []
    ways = ["no noise" if one is None else f"epsilon {one:g}" for one in EPSILONS[size]]
    for study in every:
        top = study.settle(nodes)
        n, p = study.data.n_individuals, len(study.built.parameters)
        for epsilon, way in zip(EPSILONS[size], ways, strict=True):
            noise = None
            if epsilon is not None:
                noise = Budget.parse(epsilon, DELTA, n).multipliers([1 / n_rounds] * n_rounds)[0]
            thetas = []
            for seed in range(SEEDS[size]):
                rng = np.random.default_rng([seed, 1])
                ends = []
                for step in STEPS[size]:
                    try:
                        theta = descend(study, n_rounds, step, seed, Sketches(p, rng, noise))
                        value = study.value(theta, nodes)
                    except (NumericalError, np.linalg.LinAlgError, ValueError):
                        continue
                    if np.isfinite(value):
                        ends.append((value, theta))
                thetas.append(max(ends, key=lambda one: one[0])[1] if ends else np.full(p, np.nan))
            rows.append(row(study, way, thetas, top, nodes, individuals=n, **{
                "noise / n": 0.0 if noise is None else noise * CLIP / n}))  # fmt: skip
    says = "Sketched SGD is from the maximum, in standard errors: " + "; ".join(
        f"{one['name']} {one['from the maximum (s.e.)']:.3g}" for one in rows
    )
    draw = marks(rows, [one.name for one in every], ways,
                 f"Sketched SGD, {n_rounds} rounds, delta {DELTA:g}; every mark is a seed; "
                 "1000: none was left")  # fmt: skip
    return Finding(rows, says + ".", draw, (12.0, 4.4), [])
