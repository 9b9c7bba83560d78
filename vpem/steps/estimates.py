"""What a worker of FedEM computes of its rows in an iteration: all, a minibatch, or SPIDER."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import InputError, Setting
from vpem.network.schema import COUNT, Array, Integer, ListOf, Maybe, Schema, State

if TYPE_CHECKING:
    from vpem.steps.fedruns import StatisticModel


ELSEWHERE = object()
"""Parameters of a root of another process."""


class Estimates:
    """Estimates of the workers' mean expected statistics, and what they cost.

    Parameters
    ----------
    model : StatisticModel
        Whose statistics.
    batch_size : int or None
        Rows of a minibatch, drawn by the model; None: all rows.
    reduced : bool
        Variance reduction (SPIDER, Fang et al. 2018): a worker's estimate moves by the difference
        between the statistics of a minibatch at the current and at the previous parameters that it
        worked with. In the first iteration of an outer loop in which a worker is active it takes
        all its rows.
    inner : int or None
        Iterations of an outer loop, with variance reduction.
    rng : Generator
        Draws the minibatches.
    """

    def __init__(
        self,
        model: StatisticModel,
        batch_size: int | None,
        reduced: bool,
        inner: int | None,
        rng: np.random.Generator,
    ) -> None:
        self.model = model
        self.rng = rng
        self.reduced = reduced
        self.batch_size = batch_size
        if inner is not None and not reduced:
            raise InputError(
                Setting("inner"), " is of variance reduction, which is not asked for; add ",
                Setting("variance_reduction", True),
            )  # fmt: skip
        self.inner = inner or 0
        n_kept = len(model.counts) if reduced else 0
        self._last: NDArray[np.float64] = np.zeros((n_kept, model.size))
        self._seen: list[Any] = [None] * len(model.counts)
        self.n_expectations = 0
        """Conditional expectations of a row computed."""

    @property
    def epochs(self) -> float:
        """Conditional expectations computed, divided by the number of rows."""
        return self.n_expectations / int(self.model.counts.sum())

    def count_all(self) -> None:
        """Count a pass over all rows that was made elsewhere."""
        self.n_expectations += int(self.model.counts.sum())

    def state(self) -> State:
        """Return what is kept from one iteration to the next."""
        known: dict[int, int] = {}
        packed: list[Any] = []
        for one in self._seen:
            if one is not None and id(one) not in known:
                known[id(one)] = len(packed)
                packed.append(None if one is ELSEWHERE else self.model.pack(one))
        return {
            "n_expectations": self.n_expectations,
            "last": self._last,
            "parameters": packed,
            "seen": [None if one is None else known[id(one)] for one in self._seen],
        }

    def schema(self, apart: bool) -> Schema:
        """Return what that must be, ``apart`` where workers live in several processes."""
        one = self.model.packed()
        return {
            "n_expectations": COUNT,
            "last": Array("f8", self._last.shape),
            "parameters": ListOf(Maybe(one) if apart else one, "S"),
            "seen": ListOf(Maybe(Integer(below="S")), len(self._seen)),
        }

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        self.n_expectations = state["n_expectations"]
        self._last[...] = state["last"]
        packed = state["parameters"]
        found = [ELSEWHERE if one is None else self.model.unpack(one) for one in packed]
        self._seen[:] = [None if at is None else found[at] for at in state["seen"]]

    def begin(self, iteration: int) -> None:
        """Begin an iteration, counted from 1; with it an outer loop where its turn has come."""
        if self.reduced and (iteration - 1) % self.inner == 0:
            self._seen = [None] * len(self._seen)

    def of(self, active: NDArray[np.intp], parameters: list[Any]) -> NDArray[np.float64]:
        """Estimates (a, P) of the active workers, each at the parameters that it has."""
        found = np.empty((len(active), self.model.size))
        for place, worker in enumerate(active.tolist()):
            found[place] = self._one(worker, parameters[place])
        return found

    def _one(self, worker: int, parameters: Any) -> NDArray[np.float64]:
        rows = self._draw(worker)
        if not self.reduced:
            return self._expect(worker, parameters, rows)
        before, self._seen[worker] = self._seen[worker], parameters
        if before is None or rows is None:
            estimate = self._expect(worker, parameters, None)
        else:
            estimate = self._last[worker] + self._expect(worker, parameters, rows)
            estimate -= self._expect(worker, before, rows)
        self._last[worker] = estimate
        return estimate

    def _draw(self, worker: int) -> NDArray[np.intp] | None:
        held = int(self.model.counts[worker])
        if self.batch_size is None or self.batch_size >= held:
            return None
        return self.model.draw(worker, self.batch_size, self.rng)

    def _expect(
        self, worker: int, parameters: Any, rows: NDArray[np.intp] | None
    ) -> NDArray[np.float64]:
        self.n_expectations += int(self.model.counts[worker]) if rows is None else len(rows)
        return self.model.expect(worker, parameters, rows)
