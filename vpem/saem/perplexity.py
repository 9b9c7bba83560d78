"""When a run of SAEM with a wide model ends, of which there are no standard errors.

Devices add up the log-likelihood of what they hold, from time to time. Steps fall, so that small
changes prove nothing: a change is divided by how far steps went meanwhile, were they of size 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vpem.network.schema import COUNT, Maybe, Number, Schema, State
from vpem.saem.models.model import SaemModel
from vpem.saem.neighbours import SaemNeighbours
from vpem.saem.server import SaemServer

if TYPE_CHECKING:
    from vpem.saem.runs import SaemRun


LOOKS = 5
"""How often the perplexity is seen in a window."""


class PerplexityWatch:
    """Looks from time to time whether the perplexity of what devices hold has settled.

    That is where it changes by less than ``tol`` percent in an iteration of step 1 (0: never look);
    ``window`` iterations lie between looks at that, in which the perplexity is seen `LOOKS` times,
    to be told.
    """

    def __init__(
        self,
        model: SaemModel,
        server: SaemServer | SaemNeighbours,
        burn_in: int,
        tol: float,
        window: int,
    ) -> None:
        self.model, self.server = model, server
        self.burn_in, self.tol, self.window = burn_in, tol, window
        self._at, self._last = 0, math.nan

    def has_settled(self, run: SaemRun) -> bool:
        """Whether a run may end; tells it how much the perplexity changes."""
        since = run.n_iter - self.burn_in
        due = since >= self.window and since % self.window == 0
        if self.tol <= 0 or not (due or run.n_iter % max(1, self.window // LOOKS) == 0):
            return False
        found = self.model.perplexity(run.theta)
        self.server.sum_up(wide=True)
        run.looks.append((run.n_iter, found))
        if not due:
            return False
        if self._at:
            travelled = math.fsum(run.steps[self._at :])
            run.change = 100 * abs(math.log(found / self._last)) / max(travelled, 1e-12)
            run.converged = run.change < self.tol
            than = "less" if run.converged else "more"
            run.grounds = (
                f"the perplexity, {found:.5g}, changes by about {run.change:.2g} percent in an "
                f"iteration of step 1, {than} than tol {self.tol:g}"
            )
        self._at, self._last = run.n_iter, found
        return run.converged

    def state(self) -> State:
        """Return what was seen at the last look, to go on from."""
        return {"at": self._at, "last": None if math.isnan(self._last) else self._last}

    def schema(self) -> Schema:
        """Return what that must be."""
        return {"at": COUNT, "last": Maybe(Number(0))}

    def restore(self, state: State) -> None:
        """Go on from what was kept."""
        last = state["last"]
        self._at, self._last = state["at"], math.nan if last is None else last
