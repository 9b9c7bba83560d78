"""What the draft of distributed SAEM says, tried: steps of Langevin, averages, codecs, absences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vpem.errors import NumericalError
from vpem.network.codecs import parse_codec
from vpem.network.partition import Workers, evenly, from_worker_of_row
from vpem.saem.conditional import sample_conditional
from vpem.saem.fit import fit_saem
from vpem.saem.individuals import Individuals, from_long
from vpem.saem.models.model import Doubles, make_model
from vpem.saem.results import SaemFit
from vpem.saem.samplers import sampler_of

from .saem_shared import BOYS, Finding, boys, style, theophylline

LENGTHS = {"small": (6, 3), "full": (300, 100)}
"""Iterations, and those of the burn-in."""

STEPS = {"small": (0.2, 0.8), "full": (0.05, 0.1, 0.2, 0.4, 0.8)}
DRAWS = {"small": 20, "full": 2000}
"""Of each chain, at parameters that stay."""

GRADIENTS = (None, "qsgd:4bits", "qsgd:2bits")
SIZES = {"small": 24, "full": 200}
"""Individuals that are drawn."""

PARTS = np.array([0.5, 0.25, 0.15, 0.1])
"""Of them, on each of four devices."""

APART = "apart"
"""How far estimates are from those of one machine."""


@dataclass
class Problem:
    """Data, their model, and who holds them."""

    name: str
    data: Individuals
    model: str
    held: Workers
    options: dict[str, Any] = field(default_factory=dict)

    def fit(self, size: str, devices: Workers | int, **how: Any) -> SaemFit:
        """Fit, the same iterations whatever they find."""
        n_iter, burn_in = LENGTHS[size]
        common: dict[str, Any] = {
            "n_iter": n_iter, "burn_in": burn_in, "decay": 1.0, "tol": 0.0, "n_chains": 4,
            "n_conditional": 20, "n_importance": 10,
        }  # fmt: skip
        with np.errstate(all="ignore"):
            return fit_saem(
                self.data, self.model, devices=devices, model_options=self.options, **common | how
            )

    def apart(self, found: SaemFit, alone: SaemFit) -> float:
        """Root mean square of differences, in standard errors; of topics as a part of them."""
        gaps = found.theta - alone.theta
        if self.model == "lda":
            return float(np.linalg.norm(gaps) / np.linalg.norm(alone.theta))
        known = np.isfinite(alone.standard_errors)
        if not known.any():
            return np.nan
        return float(np.sqrt(np.mean((gaps / alone.standard_errors)[known] ** 2)))


def unequal(n: int) -> Workers:
    """Four devices, of which the first holds half of the individuals."""
    return from_worker_of_row(np.searchsorted(np.cumsum(PARTS)[:-1] * n, np.arange(n), "right"))


def lines(n: int, shift: float) -> Problem:
    """Growth curves; the mean intercept of a device is so many deviations above the last one's."""
    rng, times = np.random.default_rng(3), np.linspace(-1, 1, 6)
    held = unequal(n)
    z = rng.multivariate_normal([10.0, 2.0], [[4.0, 0.8], [0.8, 1.0]], size=n)
    z[:, 0] += 2.0 * shift * held.worker_of
    values = z[:, :1] + z[:, 1:] * times + rng.normal(size=(n, 6))
    data = from_long(np.repeat(np.arange(n), 6), np.tile(times, n), values.ravel())
    return Problem(f"lines, means {shift:g} sd apart", data, "linear", held)


def doses(n: int, levels: tuple[float, ...]) -> Problem:
    """Concentrations after one dose, of which each device gives another."""
    rng, times = np.random.default_rng(4), np.array([0.5, 1, 2, 4, 8, 24])
    held = unequal(n)
    ka, cl, ke = np.exp(np.array([0.5, -3.2, -2.5]) + rng.normal(size=(n, 3)) * [0.5, 0.2, 0.1]).T
    dose = np.array(levels)[held.worker_of]
    factor = (dose * ka * ke / (cl * (ka - ke)))[:, None]
    curve = factor * (np.exp(-np.outer(ke, times)) - np.exp(-np.outer(ka, times)))
    values = curve + rng.normal(size=curve.shape) * 0.5
    data = from_long(
        np.repeat(np.arange(n), 6), np.tile(times, n), values.ravel(), {"dose": np.repeat(dose, 6)}
    )
    word = "alike" if len(set(levels)) == 1 else f"from {min(levels):g} to {max(levels):g}"
    return Problem(f"doses {word}", data, "one-compartment", held)


def topics(n: int, own: float) -> Problem:
    """Documents of four topics, of which each device has its own so much more often."""
    rng = np.random.default_rng(5)
    held, words = unequal(n), rng.dirichlet(np.full(60, 0.1), 4)
    counts = np.array([
        rng.multinomial(80, rng.dirichlet(0.3 + own * np.eye(4)[device]) @ words)
        for device in held.worker_of
    ])  # fmt: skip
    rows, items = np.nonzero(counts)
    data = from_long(rows, items.astype(float), counts[rows, items].astype(float))
    word = "with topics of their own" if own else "alike"
    return Problem(f"documents {word}", data, "lda", held, {"n_topics": 4, "n_words": 60})


def known() -> list[Problem]:
    """Boys and theophylline, and documents: what codecs and absences are tried on."""
    curves, growth, texts = theophylline(), boys(), topics(80, 0.0)
    return [
        Problem("boys", growth, "linear", evenly(26, 13)),
        Problem("theophylline", curves, "one-compartment", evenly(12, 6), {"random": ("ka", "cl")}),
        Problem("documents", texts.data, "lda", evenly(80, 8), texts.options),
    ]


def compared(
    problems: list[Problem], ways: dict[str, dict[str, Any]], size: str, words: str
) -> tuple[list[dict[str, Any]], Callable[[Any], None]]:
    """Fit every problem every way: rows of a table, and what draws them."""
    rows: list[dict[str, Any]] = []
    for problem in problems:
        alone, whole = problem.fit(size, 1), 0
        for way, how in ways.items():
            row: dict[str, Any] = {"name": f"{problem.name}: {way}"}
            try:
                found = problem.fit(size, problem.held, **how)
            except (NumericalError, np.linalg.LinAlgError) as error:
                rows.append(row | {APART: float("inf"), "bytes": 0, "of all": str(error)[:40]})
                continue
            whole = whole or int(found.bytes[-1])
            rows.append(row | {
                APART: problem.apart(found, alone), "bytes": int(found.bytes[-1]),
                "of all": f"{found.bytes[-1] / whole:.2f}",
            })  # fmt: skip

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for number, problem in enumerate(problems):
            mine = rows[number * len(ways) : (number + 1) * len(ways)]
            place = np.arange(len(ways)) + 0.08 * (number - (len(problems) - 1) / 2)
            axes.plot(place, [max(row[APART], 1e-4) for row in mine], label=problem.name,
                      **style(number) | {"linestyle": "none"})  # fmt: skip
        axes.set_yscale("log")
        axes.set_ylabel("from one machine (rms, standard errors;\ntopics: as a part of them)")
        axes.set_xticks(range(len(ways)), [way.replace(", ", "\n") for way in ways], fontsize=8)
        axes.grid(axis="y", color="0.9", linewidth=0.6)
        axes.set_title(f"{words}; 0.0001: that or less", fontsize=9, loc="left")
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))

    return rows, draw


def said(rows: list[dict[str, Any]], way: str) -> str:
    """How far a way is from one machine, problem by problem."""
    found = [row for row in rows if row["name"].endswith(f": {way}")]
    return ", ".join(f"{row['name'].partition(':')[0]} {row[APART]:.2g}" for row in found)


def averages(size: str) -> Finding:
    """Statistics or models averaged, where devices differ in means, doses, topics and sizes."""
    n = SIZES[size]
    problems = [
        lines(n, 0), lines(n, 1), lines(n, 3), doses(n, (4.0,) * 4), doses(n, (1.0, 2, 8, 16)),
        topics(n, 0.0), topics(n, 3.0),
    ]  # fmt: skip
    ways: dict[str, dict[str, Any]] = {
        "statistics": {},
        "models, by individuals": {"average": "models"},
        "models, by devices": {"average": "models", "shares": "devices"},
    }
    rows, draw = compared(problems, ways, size, "What is averaged, devices of 50, 25, 15 and 10 %")
    says = "Apart from one machine, in standard errors (topics: a part of them): " + "; ".join(
        f"{way}: {said(rows, way)}" for way in ways
    )
    exact = max(row[APART] for row in rows[:: len(ways)])
    failed = ["averaged statistics are not those of one machine"] if exact > 1e-6 else []
    return Finding(rows, says + ".", draw, (9.0, 4.4), failed)


def codecs(size: str) -> Finding:
    """Largest numbers and few bits, with each way of feedback."""
    names = {"small": ("topk:0.3",), "full": ("topk:0.5", "topk:0.2", "topk:0.05", "qsgd:2bits")}
    ways: dict[str, dict[str, Any]] = {"exact": {}}
    for codec in names[size]:
        for feedback in ("none", "error", "memory"):
            ways[f"{codec}, {feedback}"] = {"codec": codec, "feedback": feedback}
    rows, draw = compared(known(), ways, size, "Codec of statistics, and feedback")
    says = "Apart from one machine: " + "; ".join(f"{way}: {said(rows, way)}" for way in ways)
    return Finding(rows, says + ".", draw, (12.0, 4.4), [])


def absences(size: str) -> Finding:
    """A part of the devices in every iteration, alone and with everything else."""
    ways: dict[str, dict[str, Any]] = {
        f"{share:.0%}": {"participation": share} for share in (1.0, 0.5, 0.25, 0.1)
    }
    ways["25 %, topk:0.2"] = {"participation": 0.25, "codec": "topk:0.2"}
    rows, draw = compared(known(), ways, size, "Devices that take part in an iteration")
    says = "Apart from one machine: " + "; ".join(f"{way}: {said(rows, way)}" for way in ways)
    return Finding(rows, says + ".", draw, (9.0, 4.4), [])


def steps(size: str) -> Finding:
    """How much too wide Langevin draws are, by the step and the codec of gradients: h / 4."""
    data = boys()
    model = make_model("linear", data)
    z = model.start()[1]

    def spread(name: str, **options: Any) -> Doubles:
        sampler = sampler_of(name, **options)
        chains = sampler.begin(model, BOYS, z, 4)
        given = sample_conditional(model, BOYS, sampler, chains, after=0, late=1,
                                   n_iter=DRAWS[size], level=0.9)  # fmt: skip
        found: Doubles = np.einsum("nii->ni", given.covariances)
        return found

    exact, problem = spread("exact"), Problem("boys", data, "linear", evenly(26, 13))
    alone = problem.fit(size, 1)
    rows: list[dict[str, Any]] = []
    for codec in GRADIENTS:
        for h in STEPS[size]:
            made = None if codec is None else parse_codec(codec)
            options = {"step": h, "decay": 0.0}
            wide = float((spread("langevin", codec=made, **options) / exact).mean() - 1)
            found = problem.fit(size, problem.held, sampler="langevin", sampler_options=options,
                                gradient_codec=codec)  # fmt: skip
            rows.append({
                "name": f"{codec or 'exact gradient'}, h = {h:g}", "h": h, "h / 4": h / 4,
                "variance, too large by": wide, APART: problem.apart(found, alone),
            })  # fmt: skip

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 2)
        n = len(STEPS[size])
        for number, codec in enumerate(GRADIENTS):
            mine = rows[number * n : (number + 1) * n]
            for axes, what in zip(panels, ("variance, too large by", APART), strict=True):
                axes.plot([row["h"] for row in mine], [max(row[what], 1e-4) for row in mine],
                          label=codec or "exact gradient", **style(number))  # fmt: skip
        wanted = np.array(STEPS[size])
        panels[0].plot(wanted, wanted / 4, color="0", linewidth=0.8, label="h / 4")
        panels[0].set_ylabel("variance of latents given rows, too large by")
        panels[1].set_ylabel("estimates from exact draws (rms, standard errors)")
        for axes in panels:
            axes.set(xscale="log", yscale="log", xlabel="step h")
            axes.set_xticks(wanted, [f"{h:g}" for h in wanted])
            axes.set_xticks([], minor=True)
            axes.grid(color="0.9", linewidth=0.6)
        panels[0].legend(fontsize=8, frameon=False)

    n = len(STEPS[size])
    each = [row["variance, too large by"] / row["h / 4"] for row in rows]
    says = "Of h / 4 draws are too wide by: " + "; ".join(
        f"{codec or 'exact gradient'} {min(each[n * i : n * i + n]):.2f} to "
        f"{max(each[n * i : n * i + n]):.2f}" for i, codec in enumerate(GRADIENTS)
    )  # fmt: skip
    return Finding(rows, says + ".", draw, (9.5, 4.0), [])
