"""Time of a whole fit: many individuals on many devices."""

from __future__ import annotations

import resource
import time
import warnings
from typing import Any

import numpy as np

from vpem.errors import NotConvergedWarning
from vpem.saem.fit import fit_saem
from vpem.saem.individuals import Individuals, from_long
from vpem.saem.results import SaemFit

from .saem_shared import Finding

PEOPLE = {"small": (200, 10, (6, 4)), "full": (10_000, 100, (18, 12))}
"""Individuals, devices, and iterations."""


def fitted(data: Individuals, iterations: tuple[int, int], **changes: Any) -> SaemFit:
    """Fit all iterations, with standard errors and the log-likelihood."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        return fit_saem(
            data, "one-compartment", n_iter=sum(iterations), burn_in=iterations[0], tol=0.0,
            **changes,
        )  # fmt: skip


def many(n: int, rng: np.random.Generator) -> Individuals:
    """Ten measurements of each of n individuals after a dose; clearance goes by weight."""
    weight = np.exp(rng.normal(0, 0.25, n))
    z = np.array([0.5, -3.2, -0.8]) + rng.normal(size=(n, 3)) * [0.5, 0.25, 0.2]
    ka, cl, v = np.exp(z).T[:, :, None]
    cl = cl * weight[:, None] ** 0.75
    hours = np.array([0.5, 1, 2, 3, 5, 7, 9, 12, 18, 24])
    t = np.sort(hours * rng.uniform(0.8, 1.2, (n, 10)), axis=1)
    f = 4 * ka / (v * (ka - cl / v)) * (np.exp(-cl / v * t) - np.exp(-ka * t))
    y = f + np.sqrt(0.1**2 + 0.1**2 * f**2) * rng.normal(size=f.shape)
    columns = {"dose": np.full(10 * n, 4.0), "weight": np.repeat(weight, 10)}
    names = np.repeat([f"{i:06d}" for i in range(n)], 10)
    return from_long(names, t.ravel(), y.ravel(), columns)


def large(size: str) -> Finding:
    """Many individuals on many devices: combined error, and an effect of a covariate."""
    n, devices, iterations = PEOPLE[size]
    data, marks = many(n, np.random.default_rng(1)), [time.process_time()]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    wall = time.perf_counter()
    options = {"parameters": ("ka", "cl", "v"), "error": "combined", "effects": ("cl:log(weight)",)}
    fit = fitted(
        data, iterations, model_options=options, devices=devices, n_conditional=20,
        n_importance=250, callback=lambda _: marks.append(time.process_time()),
    )  # fmt: skip
    wall, end = time.perf_counter() - wall, time.process_time()
    row = {
        "individuals": n, "devices": devices, "an iteration (s)": float(np.diff(marks[1:]).mean()),
        "after the iterations (s)": end - marks[-1], "processors (s)": end - marks[0],
        "clock (s)": wall, "MB before": before,
        "MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "MB sent": float(fit.bytes[-1]) / 1e6,
    }  # fmt: skip
    says = (
        f"{n:,} individuals on {devices} devices: {row['an iteration (s)']:.2g} s of processors an "
        f"iteration, {row['processors (s)']:.3g} s and {row['MB']:.0f} MB together."
    )
    per = np.diff(marks[1:])

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.plot(np.arange(2, len(per) + 2), per, color="0.2")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("iteration")
        axes.set_ylabel("seconds of processors")

    return Finding([row], says, draw, (8.5, 3.0), [])
