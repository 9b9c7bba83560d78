"""What fails during sums between neighbours: all agents draw it alike, in whatever process."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem.errors import PartitionedError
from vpem.network.faults import DrawnFaults, Faults
from vpem.network.graph import Graph
from vpem.network.routes import Routes


class Outages:
    """Draws what fails during each sum, and says who is heard then.

    Parameters
    ----------
    graph : Graph
        Agents and links.
    faults : Faults
        How often they fail.
    hub_of : ndarray of shape (N,)
        Number of each agent's hub.
    roots : ndarray of shape (B,)
        Agents that are roots.
    routes : Routes, optional
        Ways inside the hubs. None: hubs of one agent.
    """

    def __init__(
        self,
        graph: Graph,
        faults: Faults,
        hub_of: NDArray[np.intp],
        roots: NDArray[np.intp],
        routes: Routes | None,
    ) -> None:
        self.graph, self.faults = graph, faults
        self.hub_of, self.roots, self.routes = hub_of, roots, routes

    def draw(self, n_rounds: int, rng: np.random.Generator, *, dropout: bool) -> DrawnFaults:
        """Draw what fails in the rounds of a sum."""
        return self.faults.draw(self.graph, n_rounds, rng, dropout=dropout)

    def failure(self, drawn: DrawnFaults, alone: bool) -> PartitionedError | None:
        """Return what keeps a sum from having an answer; ``alone``: one root has all of it."""
        if not drawn.awake[self.roots].any():
            return PartitionedError("the roots of all hubs are silent during a sum")
        if alone:
            return None
        try:
            drawn.check_whole(self.graph)
        except PartitionedError as error:
            return error
        return None

    def informed(self, awake: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mark the agents that their root reaches over agents that are awake."""
        informed = awake & awake[self.roots][self.hub_of]
        if self.routes is not None:
            for leaf in self.routes.leaves[::-1]:
                informed[leaf] &= informed[self.routes.parent[leaf]]
        return informed
