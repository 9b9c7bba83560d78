"""The trials that are over, in a file that is written anew after each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import vpem
from vpem.engines.engine import Engine
from vpem.engines.one_process import OneProcess
from vpem.errors import FileError, InputError, Setting
from vpem.files.checkpoints import hold, own_files
from vpem.files.endings import check_ending
from vpem.files.fingerprint import checksum, describe_run
from vpem.files.hdf5 import check_writable
from vpem.files.opening import PathLike
from vpem.files.states import read_state, write_state
from vpem.fits.selection.trials import OF_DATA, Outcome, Problem, result_schema
from vpem.network.schema import PLAIN, Choice, Mapping, Place, Report, check
from vpem.sums.connect import Network
from vpem.terms.families.kinds import Kinds

KIND = "selection"

ANOTHER = ("give another ", Setting("state"))

STATE = {"kind": Choice((KIND,)), "facts": Mapping(PLAIN), "results": Mapping(Mapping())}
"""What is kept; results are checked once it is known to be of the same search."""


def facts_of(problem: Problem) -> Report:
    """What must be the same when a search goes on: data, agents and options, not the grid."""
    network = problem.networks[min(problem.networks)].whole
    options = {
        name: value
        for name, value in problem.options.items()
        if name not in (*OF_DATA, "n_threads")
    }
    kinds: Kinds | None = problem.options.get("kinds")
    if kinds is not None and not kinds.is_gaussian:
        options |= {"families": list(kinds.families), "levels": list(kinds.n_levels)}
    X = np.empty((problem.n_samples, 0)) if problem.X is None else problem.X
    options["dtype"] = np.dtype(options.get("dtype", np.float64)).name
    facts = {
        "vpem": vpem.__version__,
        **describe_run(KIND, X, problem.sample_weight, None, **options),
        "who is joined in the graph": checksum(
            network.graph.n_nodes, np.asarray(network.graph.edges)
        ),
        **problem.asked,
    }
    if problem.workers is None:
        facts["who holds which features"] = checksum(*_features_of_agents(network))
    else:
        facts["who holds which rows"] = checksum(problem.workers.order, problem.workers.counts)
    if problem.engine.apart:
        facts["processes"] = problem.engine.size
    return facts


def _features_of_agents(network: Network) -> list[NDArray[np.intp]]:
    """Features of each agent, which do not depend on the hops."""
    parts: dict[int, NDArray[np.intp]] = {}
    for hub, features in zip(network.hubs, network.blocks.features, strict=True):
        ends = np.cumsum([network.widths[agent] for agent in hub.agents])
        # In a hub they stand agent by agent.
        parts.update(zip(hub.agents, np.split(features, ends[:-1]), strict=True))
    return [parts[agent] for agent in sorted(parts)]


class Record:
    """Results of trials by their keys, in memory and in a file.

    Parameters
    ----------
    path : path or None
        The file; None keeps nothing. Each of several processes has a file of its own, as
        checkpoints have (`vpem.files.checkpoints.own_files`), with what tells its own data.
    facts : dict
        From `facts_of`.
    force : bool
        Begin anew where the file is of other data or options.
    engine : Engine, optional
        The processes, which go on from what all have kept. None: this one alone.

    Raises
    ------
    InputError
        If the file is of other data or options.
    FileError
        If it is no such file, is damaged, or cannot be written.
    """

    def __init__(
        self,
        path: PathLike | None,
        facts: Report,
        force: bool = False,
        engine: Engine | None = None,
    ) -> None:
        engine = engine or OneProcess()
        self.path: Path | None = None
        self.facts = facts
        self.results: dict[str, Outcome] = {}
        if path is not None:
            check_ending(path, "checkpoints")
            self.path = own_files(path, engine)[0]
            hold(self.path, self)
            check_writable(self.path, True)
            if self.path.exists():
                self._read(force)
        common = set(self.results).intersection(*engine.allgather(sorted(self.results)))
        ours = {key: result for key, result in self.results.items() if key in common}
        self.results = engine.bcast(ours)

    def _read(self, force: bool) -> None:
        """Read what there is."""
        path = self.path
        assert path is not None
        state = read_state(path)
        if "kind" not in state:
            raise FileError(f"{path} is no state of a selection; ", *ANOTHER)
        place = Place(f"the state {path}", advice=ANOTHER)
        check(STATE, state, place)
        differs = _difference(state["facts"], self.facts)
        if differs is None:
            for key, result in state["results"].items():
                check(result_schema(key, result), result, place.inside("results", key))
            self.results = state["results"]
        elif not force:
            raise InputError(
                f"the state {str(path)!r} is of another selection: {differs}; give what it began "
                "with or another ",
                Setting("state"),
                ", or begin anew with ",
                Setting("force", True),
            )

    def add(self, key: str, result: Outcome) -> None:
        """Keep the result of a trial."""
        self.results[key] = result
        if self.path is not None:
            write_state(self.path, {"kind": KIND, "facts": self.facts, "results": self.results})


def _difference(then: Report, now: Report) -> str | None:
    """Say what is not the same any more; None where everything is."""
    if "skip_negligible" in then:  # as vpem 0.1.0 once called the opposite
        every = not then["skip_negligible"]
        then = {"every_weight": every} | then
        del then["skip_negligible"]
    for name in dict.fromkeys([*now, *then]):
        one, other = then.get(name), now.get(name)
        if one == other:
            continue
        if any(isinstance(value, str) and value.startswith("sum ") for value in (one, other)):
            return f"{name} is not the same"
        return f"{name} was {one!r}, now it is {other!r}"
    return None
