"""`vpem select`: how many components, how many hops, and which covariance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vpem.prior_settings import MAP
from vpem.records import Rule, changed, setting
from vpem.settings import (
    COVARIANCE_TYPES,
    FitSettings,
    GraphSettings,
    HoldingSettings,
    SelectSettings,
    SumSettings,
)

from .driver import Output, Run
from .engine import EngineSettings
from .options import Given, MemoryLimit, Without
from .output import Screen
from .parties import DataFiles, FileSettings
from .roles import WRITTEN, Role

if TYPE_CHECKING:
    from collections.abc import Mapping


def _state(state: Path | None, output: Path | None) -> Path | None:
    """Return where a search is kept: the file asked for, or one beside the model."""
    beside = output.parent / f"{output.stem}.select.h5" if output else None
    return state or beside


def _kept(value: Path | None, options: Mapping[str, Any]) -> list[Path]:
    """Return the files that a search is kept in, one a process."""
    value = _state(value, options["output"])
    if value is None:
        return []
    from vpem.files.checkpoints import files_of

    from .where import joined

    at_home = options.get("study") is not None
    return files_of(value, joined().engine.size, at_home=at_home)


class SelectOutput(Output, heading="Output", kept=False):
    """What a search writes and prints, and its exit code."""

    output: Path | None = changed(
        Output,
        "output",
        help="Write the chosen model here (HDF5). It is what 'vpem fit' would give.",
    )
    force: bool = changed(
        Output, "force", help="Replace existing outputs, and a state of other options."
    )
    strict: bool = changed(
        Output, "strict", help="Exit with 3 if a model failed or did not converge."
    )
    state: Path | None = setting(
        None, "Keep every finished fit here; the same command goes on from it. Default: beside "
        "--output, NAME.select.h5.", heading="Checkpoints", file=Role(writes=True, files=_kept),
    )  # fmt: skip
    plot: Path | None = setting(
        None, "Draw the criterion by components (.png, .svg, .pdf).",
        file=WRITTEN,
    )  # fmt: skip

    @property
    def kept_in(self) -> Path | None:
        """Where the search is kept."""
        return _state(self.state, self.output)


TOGETHER: Rule = (
    lambda given: given.get("engine", "simulator") != "simulator",
    (" is for one process: those of an engine do one fit after another together; leave it out",),
)


class GridSettings(SelectSettings, heading="Selection", kept=False):
    """A grid of models, and how they are judged."""

    n_jobs: int | None = changed(SelectSettings, "n_jobs", idle=TOGETHER)


class SearchedFit(FitSettings, heading="Model"):
    """What all fits of a search are told."""

    seed: int = changed(
        FitSettings,
        "seed",
        help="Seeds starts, folds, and the graph. For that alone there is --graph-seed.",
    )
    weight_concentration_prior_type: str | None = changed(
        FitSettings,
        "weight_concentration_prior_type",
        choices=(MAP,),
        help="map: EM to the mode under a prior of hubs, as mclust's, which keeps small components "
        "proper; criteria are of the likelihood there. Default: none, EM.",
    )


def select(
    data: DataFiles,
    memory_limit: MemoryLimit = None,
    *,
    asked: GridSettings,
    parties: FileSettings,
    held: HoldingSettings,
    graph: GraphSettings,
    how: Annotated[
        SearchedFit, Without("n_components covariance_type n_threads weight_concentration_prior")
    ],
    sums: Annotated[SumSettings, Without("hops hubs n_threads")],
    engine: Annotated[EngineSettings, Without("shards")],
    out: SelectOutput,
    given: Given,
) -> None:
    """Fit a grid of models and choose the best by a criterion.

    The grid has numbers of components, numbers of hops, and kinds of covariance. All other options
    are those of 'vpem fit'. A model that is the same for several numbers of hops (the same
    hubs, or a diagonal covariance) is fitted once. A search that is ended goes on when the command
    is given again.

    Example: vpem select data/wine.h5 -k 1-4 --scale standard --jobs 1 -o best.h5

    Example: vpem select data/wine.h5 -k 1-3 --hops 0-1 --jobs 1 --criterion heldout --folds 3
    """
    import time

    from .searching import Asked, Search, SearchTask

    began = time.perf_counter()
    with Screen(out.quiet) as screen:
        from vpem.fits.selection.search import grid, without_repeats
        from vpem.fits.settings import parse_names, parse_numbers

        cells = grid(
            parse_numbers("--components", asked.n_components, least=1),
            parse_numbers("--hops", asked.hops),
            parse_names("--covariance", asked.covariance_type, COVARIANCE_TYPES),
        )
        run = Run(screen, out, "models", engine)
        if out.plot is not None:
            from vpem.pictures.figure import check_picture

            check_picture(out.plot, out.force)
        fits = Asked(parties, held, graph, how, sums, memory_limit)
        task = SearchTask(data, fits, [cell.hops for cell in cells], run)
        search = Search(task, without_repeats(cells, task.problem), asked, out)
        found = search.run(given, began)
        run.finish(found)
