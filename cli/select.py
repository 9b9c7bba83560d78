"""`vpem select`: how many components, how many hops, and which covariance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vpem.records import changed, setting
from vpem.settings import (
    COVARIANCE_TYPES,
    FitSettings,
    GraphSettings,
    HoldingSettings,
    SelectSettings,
    SumSettings,
)

from .driver import Output, Run
from .options import Given, Without
from .output import Screen
from .parties import DataFiles, PartySettings
from .roles import WRITTEN, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["select"]


def _kept(value: Path | None, options: Mapping[str, Any]) -> list[Path]:
    """Return where a search is kept: the file asked for, or one beside the model."""
    output = options["output"]
    if value is None and output is not None:
        value = output.parent / f"{output.stem}.select.h5"
    return [] if value is None else [value]


class SelectOutput(Output, heading="Output", kept=False):
    """What a search writes and prints, and its exit code."""

    output: Path | None = changed(
        Output, "output", help="Write the chosen model here, as 'vpem fit' would fit it."
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
        None, "Draw the criterion by components (.png, .svg, .pdf; needs matplotlib).",
        file=WRITTEN,
    )  # fmt: skip

    @property
    def kept_in(self) -> Path | None:
        """Where the search is kept."""
        return next(iter(_kept(self.state, {"output": self.output})), None)


class SearchedFit(FitSettings, heading="Model"):
    """What all fits of a search are told."""

    seed: int = changed(
        FitSettings,
        "seed",
        help="Seeds starts and folds, and the graph unless --graph-seed is given.",
    )


def select(
    data: DataFiles,
    *,
    asked: SelectSettings,
    parties: PartySettings,
    held: Annotated[HoldingSettings, Without("sample_weight")],
    graph: GraphSettings,
    how: Annotated[SearchedFit, Without("n_components covariance_type n_threads")],
    sums: Annotated[SumSettings, Without("hops n_threads")],
    out: SelectOutput,
    given: Given,
) -> None:
    """Fit a grid of models and choose the best by a criterion.

    The grid has numbers of components, numbers of hops, and kinds of covariance. All other options
    are those of 'vpem fit'. Diagonal covariances are the same models whatever the hops, and are
    fitted once. A search that is ended goes on when the command is given again.

    Example: vpem select data/wine.h5 -k 1-4 --scale standard --jobs 1 -o best.h5

    Example: vpem select data/wine.h5 -k 1-3 --hops 0-1 --jobs 1 --criterion heldout --folds 3
    """
    import time

    from .searching import Asked, Search, Task
    from .selecting import show_selection

    began = time.perf_counter()
    with Screen(out.quiet) as screen:
        from vpem.fits.selection.lists import parse_names, parse_numbers
        from vpem.fits.selection.search import grid, without_repeats

        cells = grid(
            parse_numbers("--components", asked.n_components, least=1),
            parse_numbers("--hops", asked.hops),
            parse_names("--covariance", asked.covariance_type, COVARIANCE_TYPES),
        )
        run = Run(screen, out, "models")
        if out.plot is not None:
            from vpem.pictures.figure import check_picture

            check_picture(out.plot, out.force)
        fits = Asked(parties, held, graph, how, sums)
        task = Task(data, fits, [cell.hops for cell in cells], run)
        search = Search(task, without_repeats(cells, task.problem), asked, out)
        found = search.run(given.record)
        report = search.describe(found)
        report |= {
            "model": None if out.output is None else str(out.output),
            "warnings": list(screen.warnings),
            "seconds": time.perf_counter() - began,
        }
        converged = all(cell["status"] == "converged" for cell in found.cells)
        run.end(report, converged, lambda: show_selection(found, report))
