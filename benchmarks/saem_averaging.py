"""Averaging models or statistics where devices hold unequal numbers of unlike individuals."""

from __future__ import annotations

from typing import Any

import numpy as np

from vpem.network.holdings import Workers
from vpem.saem.fit import fit_saem
from vpem.saem.individuals import Individuals
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.model import Vector

from .saem_shared import (
    BOYS,
    Finding,
    boys,
    fixed_effects_data,
    log_likelihood_top,
    style,
)

__all__ = ["averaging", "dealt_by_size"]

SEEDS = {"small": 2, "full": 10}
ITERATIONS = {"small": (30, 15), "full": (300, 80)}
PEOPLE = {"small": 40, "full": 200}
MOST = {"small": 10, "full": 1000}
"""Iterations of EM on one device's individuals."""

PARTS = (0.5, 0.25, 0.15, 0.10)
"""Of the individuals, on each device."""

WAYS: dict[str, dict[str, Any]] = {
    "statistics": {"average": "statistics"},
    "models, shares of individuals": {"average": "models", "shares": "individuals"},
    "models, shares of devices": {"average": "models", "shares": "devices"},
}


def dealt_by_size(data: Individuals) -> Workers:
    """Deal individuals out by their mean value, the lowest to the largest device."""
    order = np.argsort(data.sums(data.values) / data.counts, kind="stable")
    ends = np.round(np.cumsum(PARTS)[:-1] * len(order)).astype(int)
    held = tuple(np.sort(one).astype(np.intp) for one in np.split(order, ends))
    return Workers(held, tuple(f"device {i}" for i in range(len(held))))


def within_devices(data: Individuals, held: Workers, alike: bool, most: int) -> Vector:
    """Mean of devices' own maximum likelihood: where averaged models would be, on their own."""
    found = []
    for rows in held.rows:
        model = LinearModel(data.take(rows))
        found.append(log_likelihood_top(model, model.start()[0], most=most))
    weights = np.ones(len(found)) if alike else held.counts / held.n_samples
    return np.average(found, axis=0, weights=weights)


def averaging(size: str) -> Finding:
    """Bias of each parameter against maximum likelihood, boys and simulated data."""
    n_iter, burn_in = ITERATIONS[size]
    n_seeds = SEEDS[size]
    problems: list[tuple[str, list[tuple[Individuals, Vector]]]] = [
        ("Oxford boys", [(boys(), BOYS)] * n_seeds)
    ]
    drawn = []
    for seed in range(n_seeds):
        data, truth = fixed_effects_data(PEOPLE[size], np.random.default_rng(seed))
        drawn.append((data, log_likelihood_top(LinearModel(data), truth, most=20 * MOST[size])))
    problems.append((f"simulated, {PEOPLE[size]} individuals", drawn))
    rows: list[dict[str, Any]] = []
    for case, sets in problems:
        for way, options in WAYS.items():
            off, kept = [], 0.0
            for seed, (data, top) in enumerate(sets):
                fit = fit_saem(
                    data, "linear", sampler="exact", devices=dealt_by_size(data), n_iter=n_iter,
                    burn_in=burn_in, decay=1.0, tol=0.0, n_conditional=10, n_importance=10,
                    seed=seed, **options,
                )  # fmt: skip
                off.append(fit.theta / top - 1)
                kept = fit.ledger.bytes / 1e3
            names = fit.model.parameters
            apart = 100 * np.array(off)
            error = apart.std(axis=0, ddof=1) / np.sqrt(n_seeds)
            rows.append(
                {"name": f"{case}: {way}", "seeds": n_seeds}
                | {
                    f"{name} (%)": f"{mean:+.2f} ({sd:.2f})"
                    for name, mean, sd in zip(names, apart.mean(axis=0), error, strict=True)
                }
                | {"kB": kept, "off": apart.tolist(), "errors": error.tolist(), "case": [case],
                   "way": [way]}
            )  # fmt: skip
    data, held = boys(), dealt_by_size(boys())
    for word, alike in (("individuals", False), ("devices", True)):
        ideal = 100 * (within_devices(data, held, alike, MOST[size]) / BOYS - 1)
        rows.append({"name": f"Oxford boys: mean of devices' own maximum, shares of {word}"}
                    | {f"{name} (%)": f"{one:+.2f}" for name, one in zip(names, ideal, strict=True)}
                    | {"off": [ideal.tolist()]})  # fmt: skip
    worst = [np.abs(np.mean(row["off"], axis=0)) for row in rows[:6]]
    signed = [np.mean(row["off"], axis=0) for row in rows[:6]]
    z = max(float(np.max(np.abs(signed[i]) / np.maximum(rows[i]["errors"], 1e-12))) for i in (0, 3))
    says = (
        f"Averaged statistics are within {max(worst[0].max(), worst[3].max()):.2f} % of maximum "
        f"likelihood in every parameter ({z:.1f} Monte Carlo errors at most); averaged models lose "
        f"what lies between devices: the intercepts' variance is {signed[1][2]:+.0f} % off for the "
        f"boys and {signed[4][2]:+.0f} % in simulated data with shares of individuals, "
        f"{signed[2][2]:+.0f} % and {signed[5][2]:+.0f} % with shares of devices, which also move "
        f"the mean intercept by {signed[2][0]:+.1f} % and {signed[5][0]:+.1f} %, where shares of "
        f"individuals move it by {signed[1][0]:+.2f} % and {signed[4][0]:+.2f} %."
    )

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 2, sharey=True)
        words = ("mean\nintercept", "mean\nslope", "var\nintercept", "cov", "var\nslope",
                 "residual\nvar")  # fmt: skip
        for axes, first, (case, _) in zip(panels, (0, 3), problems, strict=True):
            for number, way in enumerate(WAYS):
                apart = np.array(rows[first + number]["off"])
                place = np.arange(6) + 0.22 * (number - 1)
                axes.errorbar(place, apart.mean(axis=0), apart.std(axis=0), markersize=6,
                              capsize=3, label=f"averaged {way}",
                              **(style(number) | {"linestyle": "none"}))  # fmt: skip
            axes.axhline(0, color="0", linewidth=0.8)
            axes.set_yscale("symlog", linthresh=1.0)
            ticks = [-100, -10, -1, 0, 1, 10, 100, 1000]
            axes.set_yticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
            axes.set_ylim(-250, 1200)
            axes.grid(axis="y", color="0.9", linewidth=0.6)
            axes.set_xticks(range(6), words, fontsize=8)
            axes.set_title(f"{case}: mean and sd of {n_seeds} seeds", fontsize=9, loc="left")
        panels[0].set_ylabel(
            "estimate less maximum likelihood (% of it;\nlinear within 1, else logarithmic)"
        )
        figure.legend(*panels[0].get_legend_handles_labels(), fontsize=8, ncols=3, frameon=False,
                      loc="outside lower center")  # fmt: skip

    failed = ["averaged statistics are biased"] if size == "full" and z > 5 else []
    return Finding(rows, says, draw, (10.0, 4.4), failed)
