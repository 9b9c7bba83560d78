"""Rows of a dataset that pictures show, and labels of them all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats, Labels

SEED = 0
"""Of the choice among many rows, so that a picture is the same every time."""


@dataclass
class EvaluationData:
    """Data that a model is held against."""

    X: Floats  # (M, d) in the model's order of features
    labels: Labels | None  # (M,) known classes
    where: str  # the file, for messages

    def __len__(self) -> int:
        return len(self.X)

    def sample(self, most: int) -> NDArray[np.float64]:
        """Return at most so many rows, (m, d): all, or some drawn at random, in order."""
        rows = choose_rows(len(self.X), most)
        if isinstance(self.X, np.ndarray):
            return np.asarray(self.X[rows], dtype=np.float64)
        # On disk: neighbouring rows are read together.
        step = 1 << 14
        parts = []
        for start in range(0, len(self.X), step):
            here = rows[(rows >= start) & (rows < start + step)] - start
            if len(here):
                parts.append(np.asarray(self.X[start : start + step], dtype=np.float64)[here])
        return np.concatenate(parts)


def choose_rows(n: int, most: int) -> NDArray[np.intp]:
    """Numbers of at most so many of n rows, ascending."""
    if n <= most:
        return np.arange(n)
    drawn = np.random.default_rng(SEED).choice(n, most, replace=False)
    return np.sort(drawn)
