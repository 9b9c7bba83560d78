"""The Langevin kernel against its twin and against a plain vectorised NumPy loop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from vpem._core import langevin, reference_langevin
from vpem.saem.chains import curvature_scales
from vpem.saem.individuals import Individuals, from_long
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.models.one_compartment import OneCompartmentModel
from vpem.saem.streams import Stream, Streams

from .measure import Options, call, compare, processor
from .saem_curves import TRUTH, simulated
from .saem_shared import Finding, fixed_effects_data

__all__ = ["bars", "gains", "numpy_loop", "speed", "table"]

PEOPLE = {"small": (8,), "full": (30, 3_000)}
FEW = 100
"""Individuals up to which the twin is timed with a dither: it goes over them one by one."""

REPEATS = {"small": 1, "full": 7}
CHAINS = 4
N_STEPS = 10
STEP = 0.05
"""Small: scales are those of the first latents, and nothing is adapted."""


def numpy_loop(
    model: SaemModel,
    theta: Vector,
    z: Vector,
    scales: Vector,
    levels: int,
    normals: Callable[[int], Vector],
    rng: np.random.Generator,
) -> Vector:
    """Langevin steps of all individuals and chains at once, as one would write them in NumPy."""
    for step in range(N_STEPS):
        slope = scales * model.gradient(z, theta)
        if levels:
            norm = np.sqrt((slope**2).sum(axis=-1, keepdims=True))
            place = np.abs(slope) * (levels / np.maximum(norm, 1e-300))
            low = np.floor(place)
            sent = low + (rng.random(slope.shape) < place - low)
            slope = np.sign(slope) * sent * (norm / levels)
        z = z + scales * (0.5 * STEP * slope + np.sqrt(STEP) * normals(step))
    return z


def repeated(data: Individuals, n: int) -> Individuals:
    """The same individuals again and again, under other names, until there are n."""
    which = np.arange(n) % data.n_individuals
    some = data.take(which)
    return from_long(
        np.repeat([f"{i:06d}" for i in range(n)], some.counts), some.times, some.values,
        some.covariates,
    )  # fmt: skip


def problems(n: int) -> list[tuple[str, SaemModel, Vector]]:
    """Models of n individuals and parameters: 6 rows and 2 latents, 8 rows and 3 latents."""
    rng = np.random.default_rng(0)
    boys, theta = fixed_effects_data(n, rng)
    persons = repeated(simulated(min(n, 30), rng), n)
    return [
        ("linear", LinearModel(boys), theta),
        (
            "one-compartment",
            OneCompartmentModel(persons, error="proportional"),
            TRUTH[[0, 1, 2, 3, 5, 8, 9]],
        ),
    ]


@dataclass(frozen=True)
class Case:
    """A move of some individuals: the model's own call of a kernel."""

    model: SaemModel
    kernel: str
    theta: Vector
    z: Vector
    scales: Vector
    noise: NDArray[np.uint64]
    dithers: NDArray[np.uint64]

    def move(self, home: Any, threads: int, levels: int) -> Vector:
        """Where the chains are after it, by the kernel or by its twin, as home has them."""
        moved = self.z.copy()
        module = sys.modules[type(self.model).__module__]
        with patch.object(module, self.kernel, getattr(home, self.kernel)):
            faults = self.model.langevin(
                self.theta, moved, self.scales, self.noise, self.dithers, STEP, levels, threads
            )
        if faults is None or faults.any():
            raise AssertionError("a chain ran away, or there is no kernel")
        return moved


def speed(size: str) -> Finding:
    """Moves of ten steps and four chains, in turns, one thread and two; without and with dither."""
    options = Options(size="tiny" if size == "small" else size, repeats=REPEATS[size])
    most = 2
    results: list[dict[str, Any]] = []
    for n in PEOPLE[size]:
        for name, model, theta in problems(n):
            first = model.start()[1]
            scales = np.ascontiguousarray(curvature_scales(model, theta, first))
            z = np.repeat(first[None], CHAINS, axis=0)
            streams = Streams.of(model.individuals.names, 0)
            noise = np.stack([streams.at(1, 2 * k).keys for k in range(N_STEPS)])
            dithers = np.stack([streams.at(1, 2 * k + 1).keys for k in range(N_STEPS)])
            kind = "langevin_linear" if name == "linear" else "langevin_one_compartment"
            case = Case(model, kind, theta, z, scales, noise, dithers)
            for levels in (0, 7):

                def move(
                    home: Any, threads: int, case: Case = case, levels: int = levels
                ) -> Vector:
                    return case.move(home, threads, levels)

                def loop(model: Any = model, theta: Any = theta, z: Any = z, scales: Any = scales,
                         levels: int = levels) -> Vector:  # fmt: skip
                    rng = np.random.default_rng(0)
                    return numpy_loop(model, theta, z, scales, levels,
                                      lambda step: rng.standard_normal(z.shape), rng)  # fmt: skip

                ours = move(langevin, 1)
                close = {"rtol": 1e-8, "atol": 1e-10}
                with_twin = n <= FEW or not levels
                if with_twin:
                    np.testing.assert_allclose(move(reference_langevin, 1), ours, **close)
                np.testing.assert_array_equal(move(langevin, most), ours)

                def counted(case: Case = case, levels: int = levels, theta: Any = theta) -> Vector:
                    return numpy_loop(
                        case.model, theta, case.z, case.scales, levels,
                        lambda step: Stream(case.noise[step]).normals(CHAINS, case.z.shape[2]),
                        np.random.default_rng(0),
                    )  # fmt: skip

                if not levels:  # the same noise: the same moves
                    np.testing.assert_allclose(counted(), ours, **close)
                timed = {
                    "kernel": processor(lambda move=move: move(langevin, 1)),
                    "NumPy loop": processor(loop),
                    "NumPy loop, our numbers": processor(counted),
                    "kernel, wall": call(lambda move=move: move(langevin, 1)),
                    f"{most} threads, wall": call(lambda move=move: move(langevin, most)),
                }
                if with_twin:
                    timed["twin"] = processor(lambda move=move: move(reference_langevin, 1))
                title = f"{name}, n = {n:,}" + (", dithered" if levels else "")
                results.append(compare(options, kind, title, "NumPy loop", timed))
    single, both, twin = gains(results, most)
    same = [
        found["median"]["NumPy loop, our numbers"] / found["median"]["kernel"] for found in results
    ]
    says = (
        f"In processor time, on one thread, the kernel is {min(single):.1f} to "
        f"{max(single):.1f} times as fast as a vectorised NumPy loop, {min(same):.1f} to "
        f"{max(same):.1f} times as fast as one with its random numbers, and {min(twin):.1f} to "
        f"{max(twin):.0f} times as fast as its twin; by the clock {most} threads make it "
        f"{min(both):.2f} to {max(both):.2f} times as fast again at n = {PEOPLE[size][-1]:,}, "
        "results the same to the last bit."
    )
    words = "times as fast as the vectorised NumPy loop (the line at 1)"
    return Finding(
        table(results, "NumPy loop"), says, bars(results, words),
        (8.5, 1.6 + 0.6 * len(results)), [],
    )  # fmt: skip


def table(results: list[dict[str, Any]], base: str) -> list[dict[str, Any]]:
    """Medians in ms, and how many times as fast as those that begin with base."""
    rows = []
    for found in results:
        one: dict[str, Any] = {"name": found["case"]}
        for who, median in found["median"].items():
            one[f"{who} (ms)"] = 1e3 * median
        for who, times in found["times_as_fast"].items():
            if not who.startswith(base) and "wall" not in who:
                one[f"{who}, times as fast"] = times
        rows.append(one | {"seconds": found["seconds"], "load": found["load"]})
    return rows


def gains(results: list[dict[str, Any]], most: int) -> tuple[list[float], list[float], list[float]]:
    """How many times as fast the kernel is as the base, most threads as one, kernel as twin.

    Threads where individuals are most.
    """
    largest = results[-1]["case"].removesuffix(", dithered").rpartition(" = ")[2]
    single = [found["times_as_fast"]["kernel"] for found in results]
    both = [
        found["median"]["kernel, wall"] / found["median"][f"{most} threads, wall"]
        for found in results if f"n = {largest}" in found["case"]
    ]  # fmt: skip
    twin = [
        found["median"]["twin"] / found["median"]["kernel"]
        for found in results if "twin" in found["median"]
    ]  # fmt: skip
    return single, both, twin


def bars(results: list[dict[str, Any]], words: str) -> Callable[[Any], None]:
    """Return what draws how many times as fast kernels and twins are."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        shades = {"kernel": ("0.2", ""), "twin": ("0.8", "///")}
        for i, found in enumerate(results):
            for k, (who, (shade, hatch)) in enumerate(shades.items()):
                if who not in found["times_as_fast"]:
                    continue
                value = found["times_as_fast"][who]
                place = i + 0.4 * (k - 0.5)
                axes.barh(place, value, 0.36, color=shade, hatch=hatch, edgecolor="0",
                          linewidth=0.6, label=who if i == 0 else None)  # fmt: skip
                axes.annotate(
                    f"{value:.3g}", (value, place), (3, 0), fontsize=8, va="center",
                    textcoords="offset points", bbox={"color": "1", "pad": 0.5},
                )  # fmt: skip
        axes.axvline(1, color="0", linewidth=1, linestyle="--")
        axes.set_yticks(range(len(results)), [found["case"] for found in results], fontsize=8)
        axes.set_xscale("log")
        axes.margins(x=0.1)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.invert_yaxis()
        axes.set_xlabel(words)
        figure.legend(fontsize=8, loc="outside lower center", ncols=3, frameon=False)

    return draw
