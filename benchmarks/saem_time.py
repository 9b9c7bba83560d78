"""Time of whole fits: theophylline beside pynlme's SAEM, and many individuals on many devices."""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from vpem.errors import NotConvergedWarning
from vpem.saem.fit import fit_saem
from vpem.saem.individuals import Individuals, from_long
from vpem.saem.models.model import Doubles
from vpem.saem.results import SaemFit

from .measure import Options, compare, stopwatch
from .saem_shared import Finding, theophylline

__all__ = ["large", "times"]

ITERATIONS = {"small": (6, 2), "full": (300, 100)}
"""With step 1, and after: saemix's."""
REPEATS = {"small": 1, "full": 3}
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


def others(data: Individuals) -> dict[str, Callable[[], Any]]:
    """Fits of pynlme, where it is installed: without standard errors, and the likelihood."""
    try:
        import pynlme  # type: ignore[import-untyped]
    except ImportError:
        return {}
    X = np.column_stack([data.times, data.covariate("dose")])

    def curve(phi: Doubles, x: Doubles, _: Any) -> Doubles:
        ka, v, cl = np.exp(np.atleast_2d(phi)).T
        t, dose = x.T
        ke = cl / v
        found = dose * ka / (v * (ka - ke)) * (np.exp(-ke * t) - np.exp(-ka * t))
        return np.asarray(found).ravel()

    def fit(**options: Any) -> Any:
        start = np.array([0.5, -0.8, -3.2])
        return pynlme.nlmefitsa(
            X, data.values, data.individual_of, None, curve, start, **options
        )  # fmt: skip

    return {"pynlme, as saemix": lambda: fit(compat="r"), "pynlme": fit}


def used(function: Callable[[], Any], clock: list[float]) -> Callable[[], float]:
    """Return a contender: seconds of all processors that a call takes; by the clock, noted."""

    def seconds() -> float:
        began = time.process_time()
        with stopwatch(clock):
            function()
        return time.process_time() - began

    return seconds


def times(size: str) -> Finding:
    """Theophylline at saemix's iterations, in turns with pynlme."""
    data, iterations = theophylline(), ITERATIONS[size]
    options = {"model_options": {"parameters": ("ka", "cl", "v")}}
    runs = {
        "one chain": lambda: fitted(data, iterations, n_chains=1, **options),
        "default": lambda: fitted(data, iterations, **options),
        "hmc": lambda: fitted(data, iterations, sampler="hmc", **options),
        **(others(data) if size == "full" else {}),
    }
    clocks: dict[str, list[float]] = {who: [] for who in runs}
    timed = {who: used(run, clocks[who]) for who, run in runs.items()}
    measure = Options(size="tiny", repeats=REPEATS[size])
    found = compare(measure, "times", "theophylline", "default", timed)
    rows = [
        {
            "name": who,
            "processors (s)": seconds,
            "clock (s)": float(np.median(clocks[who])),
            "seconds": found["seconds"][who],
        }
        for who, seconds in found["median"].items()
    ]
    says = "Seconds of processors, standard errors and log-likelihood included but for pynlme: "
    says += ", ".join(f"{row['name']} {row['processors (s)']:.2f}" for row in rows) + "."

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.barh(
            [row["name"] for row in rows], [row["processors (s)"] for row in rows], color="0.2"
        )
        axes.invert_yaxis()
        axes.set_xlabel("seconds of processors")

    return Finding(rows, says, draw, (8.5, 3.0), [])


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
