"""The Langevin kernel against a plain vectorised NumPy loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.langevin import langevin
from vpem.saem.individuals import Individuals, Streams, from_long
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.mixed import OneCompartmentModel
from vpem.saem.models.model import Doubles, SaemModel
from vpem.saem.samplers import Langevin, turn, turn_back

from .measure import Options, call, compare, processor
from .saem_curves import TRUTH, simulated
from .saem_shared import Finding, fixed_effects_data

PEOPLE = {"small": (8,), "full": (30, 3_000)}
REPEATS = {"small": 1, "full": 7}
CHAINS = 4
N_STEPS = 10
STEP = 0.05
"""Small: scales are those of the first latents, and nothing is adapted."""


def numpy_loop(
    model: SaemModel,
    theta: Doubles,
    z: Doubles,
    roots: Doubles,
    levels: int,
    normals: Callable[[int], Doubles],
    rng: np.random.Generator,
) -> Doubles:
    """Langevin steps of all individuals and chains at once, as one would write them in NumPy."""
    for step in range(N_STEPS):
        slope = turn_back(roots, model.gradient(z, theta))
        if levels:
            norm = np.sqrt((slope**2).sum(axis=-1, keepdims=True))
            place = np.abs(slope) * (levels / np.maximum(norm, 1e-300))
            low = np.floor(place)
            sent = low + (rng.random(slope.shape) < place - low)
            slope = np.sign(slope) * sent * (norm / levels)
        z = z + turn(roots, 0.5 * STEP * slope + np.sqrt(STEP) * normals(step))
    return z


def repeated(data: Individuals, n: int) -> Individuals:
    """The same individuals again and again, under other names, until there are n."""
    which = np.arange(n) % data.n_individuals
    some = data.take(which)
    return from_long(
        np.repeat([f"{i:06d}" for i in range(n)], some.counts), some.times, some.values,
        some.covariates,
    )  # fmt: skip


def problems(n: int) -> list[tuple[str, SaemModel, Doubles]]:
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
    """A move of some individuals."""

    model: SaemModel
    theta: Doubles
    z: Doubles
    roots: Doubles
    noise: NDArray[np.uint64]
    dithers: NDArray[np.uint64]

    def move(self, threads: int, levels: int) -> Doubles:
        """Where the chains are after it, by the kernel."""
        moved, faults = self.z.copy(), np.zeros(self.z.shape[:2], dtype=np.uint8)
        langevin(
            self.model.kernels(self.theta), self.roots, self.noise, self.dithers, STEP, levels,
            moved, faults, threads,
        )  # fmt: skip
        if faults.any():
            raise AssertionError("a chain ran away")
        return moved


def speed(size: str) -> Finding:
    """Moves of ten steps and four chains, in turns, one thread and two; without and with dither."""
    options = Options(size="tiny" if size == "small" else size, repeats=REPEATS[size])
    most = 2
    results: list[dict[str, Any]] = []
    for n in PEOPLE[size]:
        for name, model, theta in problems(n):
            first = model.start()[1]
            z = np.repeat(first[None], CHAINS, axis=0)
            roots = Langevin().begin(model, theta, first, CHAINS).roots
            streams = Streams.from_names(model.individuals.names, 0)
            noise = np.stack([streams.derive_stream(1, 2 * k).keys for k in range(N_STEPS)])
            dithers = np.stack([streams.derive_stream(1, 2 * k + 1).keys for k in range(N_STEPS)])
            case = Case(model, theta, z, roots, noise, dithers)
            for levels in (0, 7):

                def move(threads: int, case: Case = case, levels: int = levels) -> Doubles:
                    return case.move(threads, levels)

                def loop(case: Case = case, levels: int = levels) -> Doubles:
                    rng = np.random.default_rng(0)
                    return numpy_loop(
                        case.model, case.theta, case.z, case.roots, levels,
                        lambda step: rng.standard_normal(case.z.shape), rng,
                    )  # fmt: skip

                ours = move(1)
                np.testing.assert_array_equal(move(most), ours)

                def counted(case: Case = case, levels: int = levels) -> Doubles:
                    return numpy_loop(
                        case.model, case.theta, case.z, case.roots, levels,
                        lambda step: Streams(case.noise[step]).normals(CHAINS, case.z.shape[2]),
                        np.random.default_rng(0),
                    )  # fmt: skip

                if not levels:  # the same noise: the same moves
                    np.testing.assert_allclose(counted(), ours, rtol=1e-8, atol=1e-10)
                timed = {
                    "kernel": processor(lambda move=move: move(1)),
                    "NumPy loop": processor(loop),
                    "NumPy loop, our numbers": processor(counted),
                    "kernel, wall": call(lambda move=move: move(1)),
                    f"{most} threads, wall": call(lambda move=move: move(most)),
                }
                title = f"{name}, n = {n:,}" + (", dithered" if levels else "")
                results.append(compare(options, "langevin", title, "NumPy loop", timed))
    single, both = gains(results, most)
    same = [
        found["median"]["NumPy loop, our numbers"] / found["median"]["kernel"] for found in results
    ]
    says = (
        f"In processor time, on one thread, the kernel is {min(single):.1f} to "
        f"{max(single):.1f} times as fast as a vectorised NumPy loop, {min(same):.1f} to "
        f"{max(same):.1f} times as fast as one with its random numbers; by the clock {most} "
        f"threads make it {min(both):.2f} to {max(both):.2f} times as fast again at n = "
        f"{PEOPLE[size][-1]:,}, results the same to the last bit."
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


def gains(results: list[dict[str, Any]], most: int) -> tuple[list[float], list[float]]:
    """How many times as fast the kernel is as the base, and most threads as one.

    Threads where individuals are most.
    """
    largest = results[-1]["case"].removesuffix(", dithered").rpartition(" = ")[2]
    single = [found["times_as_fast"]["kernel"] for found in results]
    both = [
        found["median"]["kernel, wall"] / found["median"][f"{most} threads, wall"]
        for found in results if f"n = {largest}" in found["case"]
    ]  # fmt: skip
    return single, both


def bars(results: list[dict[str, Any]], words: str) -> Callable[[Any], None]:
    """Return what draws how many times as fast kernels are."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for i, found in enumerate(results):
            value = found["times_as_fast"]["kernel"]
            axes.barh(i, value, 0.6, color="0.2")
            axes.annotate(
                f"{value:.3g}", (value, i), (3, 0), fontsize=8, va="center",
                textcoords="offset points", bbox={"color": "1", "pad": 0.5},
            )  # fmt: skip
        axes.axvline(1, color="0", linewidth=1, linestyle="--")
        axes.set_yticks(range(len(results)), [found["case"] for found in results], fontsize=8)
        axes.set_xscale("log")
        axes.margins(x=0.1)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.invert_yaxis()
        axes.set_xlabel(words)

    return draw
