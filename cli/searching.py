"""What `vpem select` makes of its options, and the model that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vpem.files.datasets import Dataset
    from vpem.fits.selection.search import Selection
    from vpem.fits.selection.trials import Problem

    from .output import Screen

__all__ = ["Task", "check_files", "warn_of"]


def check_files(output: Path | None, plot: Path | None, force: bool) -> None:
    """Raise an error unless what will be written can be."""
    from vpem.files.hdf5 import check_writable
    from vpem.pictures.figure import check_picture

    if output is not None:
        check_writable(output, force, "models")
    if plot is not None:
        check_picture(plot, force)


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
    """Data and options of a search, as a user asked for them.

    Parameters
    ----------
    given : dict
        Options by their names.
    hops : sequence of int
        For which there are to be networks.
    screen : Screen
        Where is told what becomes of parties' rows.

    Attributes
    ----------
    source : Dataset
        The data.
    problem : Problem
        What is searched.
    names : tuple of str
        Names of agents or workers.
    """

    source: Dataset
    problem: Problem
    names: tuple[str, ...]

    def __init__(self, given: dict[str, Any], hops: Sequence[int], screen: Screen) -> None:
        from vpem.checks import check_int
        from vpem.errors import check_choice
        from vpem.fits.selection.trials import Problem

        from .choices import rounds_of
        from .engine import Simulator
        from .parties import Asked, read_data

        given = dict(given)
        check_choice("--split", given["split"], ("features", "rows"))
        check_choice("--dtype", given["dtype"], ("float64", "float32"))
        over_rows = given["split"] == "rows"
        if given["missing_parties"]:
            given["missing"] = "marginalize"
        given["seed"] = check_int("--seed", given["seed"], least=0)
        if given["graph_seed"] is None:
            given["graph_seed"] = given["seed"]
        check_int("--graph-seed", given["graph_seed"], least=0)
        given["rounds"] = rounds_of(given["rounds"])
        self.given = given
        self.run_on = Simulator()
        self._screen = screen
        self.source, self.alignment = read_data(
            given["data"],
            Asked(given["parties"], given["align"], given["align_key"], given["missing_parties"]),
            over_rows,
            given["missing"] == "marginalize",
            given["dataset"],
            {name.replace("_", "-"): given[name]
             for name in ("agents", "partition", "workers", "worker_rows")},
            None,
            given["output"],
            screen,
            self.run_on,
        )  # fmt: skip
        self._warnings: dict[int, list[str]] = {}
        networks, held, self.names = self._networks(over_rows, hops)
        options = {
            "init": given["init"],
            "tol": given["tol"],
            "max_iter": given["max_iter"],
            "reg_covar": given["reg_covar"],
            "scale": given["scale"],
            "seed": given["seed"],
            "dtype": given["dtype"],
            "skip_negligible": not given["every_weight"],
            "missing": given["missing"],
            "feature_names": self.source.feature_names,
        }
        if not over_rows:
            options |= {"batch_size": given["batch_size"], "step_size": given["step_size"]}
        asked = {name: given[name] for name in ("split", "weights", "eigenvalue", "compress")}
        asked |= {name: given[name] for name in
                  ("rounds", "acceleration", "consensus_tol", "consensus", "link_failure",
                   "agent_dropout", "stragglers", "graph_seed")}  # fmt: skip
        self.problem = Problem(self.source.X, networks, held, options, asked)

    def _networks(
        self, over_rows: bool, hops: Sequence[int]
    ) -> tuple[dict[int, Any], Any, tuple[str, ...]]:
        """Make the network for each number of hops; who holds which rows; names of agents."""
        from vpem.sums.connect import connect, connect_workers

        from .choices import partition_of, stored_graph
        from .workers import graph_of, workers_of

        given = self.given
        sums: dict[str, Any] = {
            "n_rounds": given["rounds"],
            "path": given["consensus"],
            "seed": given["graph_seed"],
            "n_threads": 1,
        }
        for name in ("weights", "acceleration", "consensus_tol", "eigenvalue", "compress",
                     "link_failure", "agent_dropout", "stragglers"):  # fmt: skip
            sums[name] = given[name]
        drawn = (
            given["topology"],
            given["graph"],
            given["radius"],
            given["mean_degree"],
            given["graph_seed"],
        )
        if over_rows:
            held = workers_of(self.source, given["workers"], given["worker_rows"], self._screen)
            graph = graph_of(held.n_workers, held.names, *drawn)
            networks = {0: connect_workers(graph, **sums)}
            self._warnings[0] = list(self._screen.warnings)
            return networks, held, held.names
        parts = partition_of(self.source, given["agents"], given["partition"])
        graph = stored_graph(self.source, parts, *drawn)
        networks = {}
        read = list(self._screen.warnings)
        for number in sorted(set(hops)):
            before = len(self._screen.warnings)
            networks[number] = connect(graph, parts, hops=number, **sums)
            self._warnings[number] = read + self._screen.warnings[before:]
        return networks, None, parts.names

    def write(self, output: Path, found: Selection, chosen: int) -> None:
        """Fit one of the models as `vpem fit` does, on one thread, and write it."""
        from vpem.files.models import write_model

        from .fit import _OPTIONS

        given, cell = self.given, found.grid[chosen]
        before = len(self._screen.warnings)
        fit: Any = self.problem.fit(cell, n_init=given["n_init"], n_threads=1)
        features = self.source.feature_names
        report = fit.describe(features, self.names)
        data = ", ".join(map(str, given["data"]))
        heard = self._warnings[cell.hops] + self._screen.warnings[before:]
        report |= {"warnings": heard, "seed": given["seed"], "data": data}
        if self.alignment is not None:
            report["alignment"] = self.alignment
        report |= self.run_on.ran(fit.network)
        options = {name: given.get(name) for name in _OPTIONS} | {
            "components": cell.n_components,
            "hops": cell.hops,
            "covariance": cell.covariance_type,
            "threads": 1,
            "data": data,
        }
        options = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in options.items()
        }
        write_model(output, fit.kept(features, report, options), given["force"])
