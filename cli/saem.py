"""`vpem saem`: models with latent variables of individuals on devices, by stochastic EM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.records import setting
from vpem.settings import SaemSettings

from .checkpoints import CheckpointSettings
from .driver import Output, Run
from .options import Given, InitModel, QuoteFormulas
from .roles import READ, WRITTEN
from .saem_choices import (
    ColumnSettings,
    DeviceSettings,
    ModelSettings,
    SamplerSettings,
    check_start,
    devices_of,
    individuals_of,
    model_options_of,
    needed_covariates,
    rows_of_names,
    sampler_options_of,
    start_of,
)

if TYPE_CHECKING:
    from vpem.saem.fit import SaemFit
    from vpem.saem.individuals import Individuals

__all__ = ["saem"]


class SaemOutput(Output, heading="Output", kept=False):
    """What is written of a fit."""

    individuals: Path | None = setting(
        None, "Write means and intervals of the individuals' latents here: .csv or .h5.",
        file=WRITTEN,
    )  # fmt: skip
    traces: Path | None = setting(
        None, "Draw the parameters against iterations here.", file=WRITTEN
    )


def saem(
    data: Annotated[
        Path,
        READ,
        typer.Argument(
            help="Individuals: CSV with a line a measurement and names of the columns in its first "
            "line, or HDF5 of individuals."
        ),
    ],
    init_model: InitModel = None,
    quote_formulas: QuoteFormulas = False,
    *,
    model: ModelSettings,
    columns: ColumnSettings,
    devices: DeviceSettings,
    moves: SamplerSettings,
    how: SaemSettings,
    checkpoints: CheckpointSettings,
    out: SaemOutput,
    given: Given,
) -> None:
    """Fit a model with latent variables by stochastic EM (SAEM).

    Devices hold individuals, sample their latents, and send statistics, which the server averages;
    not their rows. Standard errors and the log-likelihood follow from draws at the end.

    Example: vpem saem data/oxford_boys.csv --model linear --devices 4 -o growth.h5

    Example: vpem saem data/theophylline.csv --model one-compartment --random ka,cl -o doses.h5
    """
    from .output import Screen

    with Screen(out.quiet) as screen:
        from .saem_report import report_of, show_report

        check_start(how, out.strict)
        options = model_options_of(model)
        sampler = sampler_options_of(model.model, moves, given)
        run = Run(screen, out, "fits of SAEM", checkpoints=checkpoints)
        _check_outputs(out)
        needed = needed_covariates(model.model, options)
        source = individuals_of(data, columns.values("covariates"), columns.covariates, needed)
        held = devices_of(source, devices)
        if model.init_individuals is not None:
            options["rows"] = rows_of_names(source, model.init_individuals)
        start = None if init_model is None else start_of(init_model, model.model, source, options)
        found = _fit(source, model.model, how, run, {
            "model_options": options, "devices": held, "start": start, **sampler
        })  # fmt: skip
        report = report_of(found, held, screen)
        report["seconds"] = found.seconds
        report["data"] = str(data)
        report |= _write(found, out, quote_formulas)
        report["warnings"] = list(screen.warnings)
        run.end(report, found.converged, lambda: show_report(report))


def _fit(
    source: Individuals, model: str, how: SaemSettings, run: Run, given: dict[str, Any]
) -> SaemFit:
    """Fit, and show how far it is."""
    from vpem.saem.fit import fit_saem
    from vpem.saem.saem import burn_in_of

    from .saem_report import SaemCounter

    def progress_of(quiet: bool, unkept: str | None) -> SaemCounter:
        return SaemCounter(quiet, burn_in_of(how.n_iter, how.burn_in), unkept)

    with run.working(progress_of) as progress:
        return fit_saem(
            source, model, how,
            callback=progress, announce=progress.announce, saver=run.saver, **given,
        )  # fmt: skip


def _check_outputs(out: SaemOutput) -> None:
    """Check that all results beside the model can be written."""
    from vpem.files.hdf5 import check_writable
    from vpem.pictures.figure import check_picture

    if out.individuals is not None:
        check_writable(out.individuals, out.force, "results")
    if out.traces is not None:
        check_picture(out.traces, out.force)


def _write(found: SaemFit, out: SaemOutput, quote_formulas: bool) -> dict[str, str | None]:
    """Write what is asked for; the files' names."""
    from vpem.saem.formats.fits import save_saem

    from .saem_report import write_individual_table

    if out.output is not None:
        save_saem(out.output, found, force=out.force)
    if out.individuals is not None:
        write_individual_table(out.individuals, found, out.force, quote_formulas)
    if out.traces is not None:
        from vpem.pictures.figure import save_picture
        from vpem.pictures.saem import draw_traces

        save_picture(out.traces, draw_traces(found), force=out.force)
    files = {"individuals_file": out.individuals, "traces_file": out.traces, "model": out.output}
    return {name: None if file is None else str(file) for name, file in files.items()}
