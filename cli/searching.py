"""What `vpem select` makes of its options, and the model that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .choices import StartSettings, partition_of, stored_graph
from .engine import describe_engine
from .parties import PartySettings, read_data
from .workers import graph_of, workers_of

if TYPE_CHECKING:
    from vpem.fits.selection.search import Selection
    from vpem.network.holdings import Workers
    from vpem.network.schema import Report
    from vpem.settings import FitSettings, GraphSettings, HoldingSettings, SumSettings
    from vpem.sums.connect import Network

    from .driver import Run
    from .output import Screen

__all__ = ["Asked", "Task", "warn_of"]


@dataclass(frozen=True)
class Asked:
    """Settings of the fits of a search."""

    parties: PartySettings
    held: HoldingSettings
    graph: GraphSettings
    how: FitSettings
    sums: SumSettings


def warn_of(screen: Screen, found: Selection, chosen: int) -> None:
    """Tell what failed, what was passed over, and what was chosen all the same."""
    from .output import number, plural
    from .selecting import NAMES

    cells, grid = found.cells, found.grid
    failed = [place for place, cell in enumerate(cells) if cell["status"] == "failed"]
    if failed:
        first = failed[0]
        screen.warn(
            f"{len(failed)} of {plural(len(cells), 'model')} failed; the first, {grid[first]}: "
            f"{cells[first]['reason']}"
        )
    if found.choice.passed_over:
        better = found.choice.passed_over[0]
        screen.warn(
            f"{grid[better]} has a better {NAMES[found.criterion]} "
            f"({number(cells[better][found.criterion], 8)}) but did not converge, and was passed "
            "over; try more --max-iter"
        )
    if cells[chosen]["status"] != "converged":
        screen.warn(
            f"no model converged; {grid[chosen]} is the best of what there is, try more --max-iter"
        )


class Task:
    """Data and settings of a search, as a user asked for them.

    Parameters
    ----------
    data : sequence of path
        What the user named.
    asked : Asked
        Settings of the fits.
    hops : sequence of int
        For which there are to be networks.
    run : Run
        Where the command runs.

    Attributes
    ----------
    source : Dataset
        The data.
    problem : Problem
        What is searched.
    names : sequence of str
        Names of agents or workers.
    """

    def __init__(self, data: Sequence[Path], asked: Asked, hops: Sequence[int], run: Run) -> None:
        from vpem.fits.selection.trials import Problem

        how, sums, graph = asked.how, asked.sums, asked.graph.seeded(asked.how.seed)
        if asked.parties.missing_parties:
            how = how.changed(missing="marginalize")
        self.data, self.how, self.graph, self.run = ", ".join(map(str, data)), how, graph, run
        self.source, self.alignment = read_data(
            data, asked.parties, asked.held, how.missing == "marginalize", None, run
        )
        self._warnings: dict[int, list[str]] = {}
        networks, held, self.names = self._networks(asked.held, sums, hops)
        without = ["n_components", "covariance_type", "n_init", "n_threads"]
        if held is not None:
            without += ["batch_size", "step_size"]
        options = how.values(*without) | {"feature_names": self.source.feature_names}
        told = sums.values("hops", "seed", "n_threads", "n_rounds")
        told |= {"split": asked.held.split, "rounds": sums.n_rounds, "graph_seed": graph.graph_seed}
        self.problem = Problem(self.source.X, networks, held, options, told)

    def _networks(
        self, held: HoldingSettings, sums: SumSettings, hops: Sequence[int]
    ) -> tuple[dict[int, Network], Workers | None, Sequence[str]]:
        """Make the network for each number of hops; who holds which rows; names of agents."""
        from vpem.sums.connect import connect, connect_workers

        screen = self.run.screen
        sums = sums.changed(seed=self.graph.graph_seed, n_threads=1)
        if held.split == "rows":
            workers = workers_of(self.source, held, screen)
            graph = graph_of(workers.n_workers, workers.names, self.graph)
            networks = {0: connect_workers(graph, sums)}
            self._warnings[0] = list(screen.warnings)
            return networks, workers, workers.names
        parts = partition_of(self.source, held)
        graph = stored_graph(self.source, parts, self.graph)
        networks = {}
        read = list(screen.warnings)
        for number in sorted(set(hops)):
            before = len(screen.warnings)
            networks[number] = connect(graph, parts, sums, hops=number)
            self._warnings[number] = read + screen.warnings[before:]
        return networks, None, parts.names

    def write(self, found: Selection, chosen: int, record: Report) -> None:
        """Fit one of the models as `vpem fit` does, on one thread, and write it."""
        from vpem.files.models import write_model

        screen, out, cell = self.run.screen, self.run.out, found.grid[chosen]
        assert out.output is not None
        before = len(screen.warnings)
        fit: Any = self.problem.fit(cell, n_init=self.how.n_init, n_threads=1)
        features = self.source.feature_names
        report = fit.describe(features, self.names)
        heard = self._warnings[cell.hops] + screen.warnings[before:]
        report |= {"warnings": heard, "seed": self.how.seed, "data": self.data}
        if self.alignment is not None:
            report["alignment"] = self.alignment
        report |= describe_engine(fit.network)
        options = (
            record
            | StartSettings().values()
            | {
                "components": cell.n_components,
                "hops": cell.hops,
                "covariance": cell.covariance_type,
                "threads": 1,
                "missing": self.how.missing,
                "graph_seed": self.graph.graph_seed,
                "data": self.data,
            }
        )
        write_model(out.output, fit.kept(features, report, options), out.force)
