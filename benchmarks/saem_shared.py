"""What the SAEM experiments share: what one finds, the boys' reference, marks that grey leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vpem.pictures.figure import colour
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import Individuals, from_long
from vpem.saem.models.model import Doubles

DATA = Path(__file__).resolve().parents[1] / "data"

# R 4.2.2, nlme 3.1-162:
# lme(height ~ age, Oxboys, ~ age | Subject, method = "ML",
#     control = lmeControl(msTol = 1e-10, tolerance = 1e-10))
BOYS = np.array([149.371753, 6.525467, 62.790262, 8.374898, 2.711702, 0.4354536])
"""Maximum likelihood: intercept, slope, variance, covariance, variance, residual variance."""
BOYS_LOG_LIKELIHOOD = -362.98384

MARKS = "os^Dv*x+p"
LINES = ("-", "--", "-.", ":", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 3)))


@dataclass
class Finding:
    """What an experiment found: rows without their lists are its table; the size is in inches.

    ``says`` is computed from the numbers; ``failed`` is what should hold and does not.
    """

    rows: list[dict[str, Any]]
    says: str
    draw: Callable[[Any], None]
    size: tuple[float, float]
    failed: list[str]


def style(number: int) -> dict[str, Any]:
    """Colour, mark and line, each of which alone tells contenders apart."""
    return {
        "color": colour(number),
        "marker": MARKS[number % len(MARKS)],
        "linestyle": LINES[number % len(LINES)],
    }


def boys() -> Individuals:
    """Heights of 26 boys from Oxford on 9 occasions."""
    return read_individuals(DATA / "oxford_boys.csv")


def theophylline() -> Individuals:
    """Concentrations of theophylline in 12 persons."""
    return read_individuals(DATA / "theophylline.csv")


def fixed_effects_data(n: int, rng: np.random.Generator) -> tuple[Individuals, Doubles]:
    """Draw individuals of the linear model; and its parameters."""
    theta = np.array([10.0, 2.0, 4.0, 0.8, 1.0, 1.0])
    omega = np.array([[theta[2], theta[3]], [theta[3], theta[4]]])
    z = rng.multivariate_normal(theta[:2], omega, size=n)
    times = np.linspace(-1, 1, 6)
    values = z[:, :1] + z[:, 1:] * times + rng.normal(size=(n, 6)) * np.sqrt(theta[5])
    names = [f"{i:04d}" for i in range(n)]
    return from_long(np.repeat(names, 6), np.tile(times, n), values.ravel()), theta
