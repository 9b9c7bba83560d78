"""`vpem fit -k 2-6`: a fit of each number of components, of which the one of lowest BIC is kept."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from vpem.errors import InputError, VpemWarning, printable
from vpem.files.checkpoints import own_files
from vpem.files.hdf5 import check_writable
from vpem.files.temporaries import check_ending
from vpem.fits.selection.search import choose, search
from vpem.fits.selection.trials import Cell, Problem
from vpem.settings import WEIGHT_PRIORS, FitSettings, SumSettings

from ..display import ProgressLine
from ..names import in_options
from ..runner import CheckpointSettings, CommandRun, catching, each_file, saver_of
from ..session import describe_engine
from .select import warn_of

if TYPE_CHECKING:
    from vpem.fits.results import Fit
    from vpem.fits.selection.trials import Outcome
    from vpem.network.schema import Report

    from ..data import StartSettings
    from .fit import FitChoices


class EachProgress(ProgressLine):
    """Progress of a fit of several numbers of components."""

    cell: Cell | None = None

    def place(self, progress: Any) -> str:
        count = "" if self.cell is None else f"{self.cell.n_components} components, "
        return f"{count}{super().place(progress)}"


def check_several(choices: FitChoices, begin: StartSettings, sums: SumSettings) -> None:
    """Raise InputError where options allow only one number of components."""
    why = None
    for option, start in (("--init-model", begin.init_model), ("--init-rows", begin.init_rows)):
        if start is not None and why is None:
            why = f"{option} starts one; give one number, or leave {option} out"
    if why is None and sums.hubs != "size":
        why = f"--hubs {sums.hubs} are chosen for one; give one number"
    if why is None and choices.weight_concentration_prior_type in WEIGHT_PRIORS:
        why = "under --prior one fit finds how many are in use; give the largest number"
    if why is None and choices.is_asked:
        why = "choosing one of them looks at the data without noise; give one number"
    if why is not None:
        raise InputError(
            f"--components {choices.n_components} are several numbers of components, but {why}"
        )


def each_checkpoint(
    settings: CheckpointSettings, counts: Sequence[int], run: CommandRun
) -> CheckpointSettings:
    """Return settings of checkpoints of several fits, whose files can all be written."""
    if settings.checkpoint is None:
        return settings
    check_ending(settings.checkpoint, "checkpoints")
    again = run.out.force or run.where.gone_on or settings.resume or settings.resume_if_any
    each = [each_file(settings.checkpoint, count) for count in counts]
    files = [file for path in each for file in own_files(path, run.engine)]
    for file in files:
        check_writable(file, again)
    if settings.resume and any(file.exists() for file in files):
        # The run may have been interrupted before it reached the others.
        return settings.changed(resume=False, resume_if_any=True)
    return settings


@dataclass
class Each(Problem):
    """A problem whose best fit is kept."""

    _: KW_ONLY
    command: CommandRun
    checkpoints: CheckpointSettings  # a file for each fit
    progress: EachProgress  # how far they are
    more: Report  # further arguments of a fit

    def __post_init__(self) -> None:
        super().__post_init__()
        self._found: list[Outcome] = []
        self.best: tuple[Fit, Report, Sequence[VpemWarning]] | None = None
        """The best so far, its engine, and its warnings."""

    def fit(self, cell: Cell, rows: Any = None, **more: Any) -> Fit:
        checkpoints, run = self.checkpoints, self.command
        if checkpoints.checkpoint is not None:
            checkpoints = checkpoints.changed(
                checkpoint=each_file(checkpoints.checkpoint, cell.n_components)
            )
        saver = saver_of(checkpoints, run.out.force, self.engine, run.where.gone_on)
        self.progress.cell = cell
        with catching(saver):
            more |= {"callback": self.progress, "saver": saver, **self.more}
            return super().fit(cell, rows, **more)

    def keep(self, fit: Fit, outcome: Outcome, heard: Sequence[VpemWarning]) -> None:
        self._found.append(outcome)
        done = [one for one in self._found if one["status"] != "failed"]
        if outcome["status"] != "failed" and (
            done[choose(done, "bic", self.floor_fits).best] is outcome
        ):
            (network,) = self.networks.values()
            self.best = fit, describe_engine(network), heard


def choose_by_bic(
    problem: Each, counts: Sequence[int], settings: FitSettings
) -> tuple[Fit, Report]:
    """Fit each number of components, and return the fit of lowest BIC and its report."""
    screen, (hops,) = problem.command.screen, problem.networks
    cells = [Cell(count, hops, settings.covariance_type) for count in counts]
    search_result = search(problem, cells, n_init=settings.n_init, n_jobs=None)
    assert problem.best is not None
    fit, ran, heard = problem.best
    for one in heard:
        # Warnings of all fits alike have been printed.
        if printable(in_options(one)) not in screen.warnings:
            warnings.warn(one, stacklevel=2)
    warn_of(screen, search_result, search_result.choice.best)
    parts = []
    for place, cell in enumerate(search_result.cells):
        value = "failed" if cell["status"] == "failed" else f"{cell['bic']:.2f}"
        if cell["status"] == "not converged":
            value += " (not converged)"
        if cell["status"] != "failed" and cell["degenerate"]:
            value += " (degenerate)"
        parts.append(
            f"{cell['n_components']}: {value}{', kept' * (place == search_result.choice.best)}"
        )
    screen.say(f"BIC by components (lower is better): {'; '.join(parts)}")
    without = ("restart", "restarts", "stands_for_hops")
    listed = [
        {name: cell[name] for name in cell if name not in without} for cell in search_result.cells
    ]
    selection = {"criterion": "bic", "best": search_result.choice.best, "cells": listed}
    return fit, ran | {"selection": selection}
