"""How a run of SAEM goes, and what a checkpoint keeps of that."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from vpem.network.schema import (
    COUNT,
    FLAG,
    TEXT,
    Array,
    Integer,
    ListOf,
    Maybe,
    Number,
    Schema,
    State,
)  # fmt: skip
from vpem.saem.chains import Chains
from vpem.saem.models.model import SaemModel, Vector


@dataclass(frozen=True)
class SaemProgress:
    """What a callback is told after an iteration."""

    iteration: int
    n_iter: int
    theta: Vector


@dataclass
class SaemRun:
    """How a run went.

    ``holds`` says whether the last M-step took statistics as they were, or had to make parameters
    valid. At the last look the farthest parameter was ``change`` standard errors from where it
    settles; NaN if never looked at. In ``partitions`` the network fell apart, and parameters stayed
    as they were.
    """

    theta: Vector  # (p,) at the end
    chains: Chains  # latents of all individuals
    trace: list[Vector] = field(default_factory=list)  # (p,) each; `SaemModel.followed`
    bytes: list[int] = field(default_factory=list)  # payload sent so far
    n_active: list[int] = field(default_factory=list)  # devices that took part
    n_iter: int = 0
    steps: list[float] = field(default_factory=list)  # of the approximation
    converged: bool = False  # parameters had settled
    change: float = float("nan")
    grounds: str = ""  # a sentence that says so
    holds: bool = True
    lost: int = 0  # last invalid iteration; 0: none
    looks: list[tuple[int, float]] = field(default_factory=list)  # iteration, perplexity
    partitions: list[tuple[int, str]] = field(default_factory=list)

    def note(
        self, theta: Vector, followed: Vector, n_bytes: int, n_active: int, step: float
    ) -> None:
        """Keep how an iteration ended."""
        self.theta, self.n_iter = theta, self.n_iter + 1
        self.trace.append(followed)
        self.bytes.append(n_bytes)
        self.n_active.append(n_active)
        self.steps.append(step)

    def canonical(self, model: SaemModel) -> tuple[Vector, Vector]:
        """Turn latents, and return parameters and their trace, to the form that is reported."""
        theta, first = model.canonical(self.theta, self.chains.z)
        trace = np.array(self.trace)
        if not np.array_equal(theta, self.theta):  # signs, say, are turned: those before as well
            trace = np.array([model.canonical(one, self.chains.z)[0] for one in self.trace])
        self.chains.z = first
        return theta, trace

    def state(self) -> State:
        """Return how the run went, to go on from."""
        plain = ("n_iter", "bytes", "n_active", "steps", "converged", "grounds", "holds", "lost")
        return {
            **{name: getattr(self, name) for name in plain},
            "partitions": list(self.partitions),
            "looks": list(self.looks),
            "theta": self.theta,
            "start": self.trace[0],
            "trace": np.array(self.trace[1:]),
            "change": None if math.isnan(self.change) else self.change,
        }

    def schema(self) -> dict[str, Schema]:
        """Return what that must be."""
        t = len(self.trace[0])
        return {
            "n_iter": Integer(1, size="iterations"),
            "theta": Array("f8", self.theta.shape),
            "start": Array("f8", (t,)),
            "trace": Array("f8", ("iterations", t)),
            "bytes": ListOf(COUNT, "iterations"),
            "n_active": ListOf(COUNT, "iterations"),
            "steps": ListOf(Number(0, 1), "iterations"),
            "converged": FLAG,
            "change": Maybe(Number(0)),
            "grounds": TEXT,
            "holds": FLAG,
            "lost": COUNT,
            "partitions": ListOf((COUNT, TEXT)),
            "looks": ListOf((COUNT, Number(0))),
        }

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        saved = dict(state)
        self.trace = [saved.pop("start"), *saved.pop("trace")]
        change = saved.pop("change")
        self.change = math.nan if change is None else change
        for name, value in saved.items():
            setattr(self, name, value)
