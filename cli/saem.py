"""`vpem saem`: models with latent variables of individuals on devices, by stochastic EM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Force, InitModel, Json, Quiet, QuoteFormulas, Strict
from .roles import READ, WRITTEN

__all__ = ["saem"]


def saem(
    data: Annotated[
        Path,
        READ,
        typer.Argument(
            help="Individuals: CSV with a line a measurement and names of the columns in its first "
            "line, or HDF5 of individuals."
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="linear (random intercept and slopes), one-compartment (one oral dose, absorbed "
            "and eliminated at rates of first order), bifactor (a general and group factors; the "
            "time of a row is its item), gmm (mixture; the time of a row is its feature)."
        ),
    ] = "linear",
    id: Annotated[
        str | None, typer.Option("--id", help="Column of a CSV with the individual. Default: id.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="Column with the time. Default: time.")] = None,
    value: Annotated[
        str | None, typer.Option(help="Column with the measurement. Default: value.")
    ] = None,
    covariates: Annotated[
        str | None,
        typer.Option(
            help="Other columns to read, with commas between; dose=amt reads the column amt as the "
            "dose. Default: those that the model needs."
        ),
    ] = None,
    slopes: Annotated[
        str | None,
        typer.Option(
            help="linear: covariates with a random slope, with commas between, or none. Default: "
            "time."
        ),
    ] = None,
    error: Annotated[
        str | None,
        typer.Option(
            help="one-compartment: constant or proportional residual error. Default: constant."
        ),
    ] = None,
    random: Annotated[
        str | None,
        typer.Option(
            help="one-compartment: which vary between individuals, of ka,cl,ke, or none. Default: "
            "all."
        ),
    ] = None,
    covariance: Annotated[
        str | None,
        typer.Option(
            help="one-compartment: diagonal or full, of those that vary. Default: diagonal."
        ),
    ] = None,
    spread: Annotated[
        float | None,
        typer.Option(
            help="one-compartment: sd that the logarithms of the others keep. Default: 0.05."
        ),
    ] = None,
    first: Annotated[
        str | None,
        typer.Option(
            help="one-compartment: log ka, log cl and log ke to begin with: 0.5,-3.2,-2.5. "
            "Default: read from each curve."
        ),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(help="bifactor: group of each item, numbered from 0: 0,0,0,1,1,1."),
    ] = None,
    components: Annotated[
        int | None, typer.Option("-k", "--components", help="gmm: components. Default: 2.")
    ] = None,
    init_individuals: Annotated[
        str | None,
        typer.Option(
            help="gmm: individuals whose values are the first means, with commas between. Default: "
            "evenly spaced ones."
        ),
    ] = None,
    reg_covar: Annotated[
        float | None, typer.Option(help="gmm: added to variances. Default: 1e-6.")
    ] = None,
    init_model: InitModel = None,
    devices: Annotated[
        int | None,
        typer.Option(help="Split the individuals into this many runs, nearly equal. Default: 1."),
    ] = None,
    device_individuals: Annotated[
        Path | None,
        READ,
        typer.Option(help='Individuals of each device, JSON: {"name": ["individual", ...], ...}.'),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            help="exact (independent draws: linear, bifactor, gmm), metropolis, langevin "
            "(unadjusted: biased by its step), mala (adjusted). auto: exact where the model has "
            "it, metropolis for others or with --sampler-steps or --target."
        ),
    ] = "auto",
    sampler_steps: Annotated[
        int | None,
        typer.Option(
            help="Steps of the sampler an iteration. Default: 5 (metropolis: sweeps; mala), 10 "
            "(langevin)."
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Acceptance rate that moves are adapted to in the burn-in. Default: 0.44 "
            "(metropolis), 0.574 (mala)."
        ),
    ] = None,
    step_size: Annotated[
        float | None,
        typer.Option(
            help="Step of langevin, or first of mala, in units of the curvature's variances. "
            "Default: 0.5, 1."
        ),
    ] = None,
    step_decay: Annotated[
        float | None,
        typer.Option(
            help="langevin: after the burn-in its step falls with this power; 0: stays. Default: "
            "1/3."
        ),
    ] = None,
    no_precondition: Annotated[
        bool,
        typer.Option(
            "--no-precondition",
            help="langevin, mala: steps of one size for all latents, in their own units.",
        ),
    ] = False,
    gradient_compress: Annotated[
        str | None,
        typer.Option(
            help="langevin: codec of the gradients of latents, such as qsgd:4bits. Default: "
            "numbers as they are."
        ),
    ] = None,
    chains: Annotated[
        int | None,
        typer.Option(
            help="Chains of each individual. Default: 4, or up to 50 where latents are drawn "
            "exactly, which costs little."
        ),
    ] = None,
    iterations: Annotated[
        int, typer.Option("--iterations", "--max-iter", help="Most iterations.")
    ] = 1000,
    burn_in: Annotated[
        int | None,
        typer.Option(
            help="Iterations of step 1, in which samplers adapt. Default: 200, or two fifths of "
            "fewer than 500."
        ),
    ] = None,
    decay: Annotated[
        float,
        typer.Option(help="After the burn-in the k-th step is k^-D; D above 0.5 and at most 1."),
    ] = 0.7,
    average: Annotated[
        str,
        typer.Option(
            help="What the server averages: statistics, or models of the devices (biased where "
            "devices differ)."
        ),
    ] = "statistics",
    shares: Annotated[
        str | None,
        typer.Option(
            help="With --average models, what counts alike: individuals or devices. Default: "
            "individuals."
        ),
    ] = None,
    compress: Annotated[
        str | None,
        typer.Option(
            help="Codec of the statistics that devices send: qsgd:8bits, natural:12bits, topk:0.1, "
            "randk:0.1, blockp:64, float32. Default: numbers as they are."
        ),
    ] = None,
    feedback: Annotated[
        str | None,
        typer.Option(
            help="What devices do about a codec's error. memory: send how far they are from what "
            "the server has of them; error: from what it has of all, and add what was left out to "
            "the next; change: as error, but add nothing; none: send statistics as they are, "
            "which loses the fit with coarse codecs. Default: memory with --compress."
        ),
    ] = None,
    participation: Annotated[
        float, typer.Option(help="Probability that a device takes part in an iteration.")
    ] = 1.0,
    tol: Annotated[
        float,
        typer.Option(
            help="Stop when every parameter is nearer to where it settles than this part of its "
            "standard error; 0: never."
        ),
    ] = 0.1,
    window: Annotated[int, typer.Option(help="Iterations from one look at that to the next.")] = 50,
    strict: Strict = False,
    conditional_draws: Annotated[
        int,
        typer.Option(
            help="Draws of each chain at the estimates: individuals, intervals, standard errors."
        ),
    ] = 200,
    importance_draws: Annotated[
        int, typer.Option(help="Draws of each individual for the log-likelihood.")
    ] = 5000,
    level: Annotated[
        float, typer.Option(help="Probability of the intervals of individuals.")
    ] = 0.95,
    threads: Annotated[
        int | None,
        typer.Option(
            help="Threads of samplers that are not exact; results do not depend on it. Default: "
            "all processors."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seeds samplers, codecs and participation.")] = 0,
    output: Annotated[
        Path | None, WRITTEN, typer.Option("-o", "--output", help="Write the model here (HDF5).")
    ] = None,
    individuals: Annotated[
        Path | None,
        WRITTEN,
        typer.Option(
            help="Write means and intervals of the individuals' latents here: .csv or .h5."
        ),
    ] = None,
    traces: Annotated[
        Path | None, WRITTEN, typer.Option(help="Draw the parameters against iterations here.")
    ] = None,
    quote_formulas: QuoteFormulas = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a model with latent variables by stochastic EM (SAEM).

    Devices hold individuals, sample their latents, and send statistics, which the server averages;
    not their rows. Standard errors and the log-likelihood follow from draws at the end.

    Example: vpem saem data/oxford_boys.csv --model linear --devices 4 -o growth.h5

    Example: vpem saem data/theophylline.csv --model one-compartment --random ka,cl -o doses.h5
    """
    from time import monotonic

    from . import saem_choices as choices
    from .output import Screen, print_json

    given = dict(locals())
    with Screen(quiet) as screen:
        from vpem.errors import check_choice
        from vpem.network.codecs import parse_codec
        from vpem.saem.fit import MODELS, fit_saem
        from vpem.saem.formats.fits import save_saem

        from .saem_report import SaemCounter, report_of, show_report, write_individual_table

        check_choice("--model", model, MODELS)
        burn_in = choices.check_flow(given)
        model_options = choices.model_options_of(model, {
            "slopes": slopes, "error": error, "random": random, "covariance": covariance,
            "spread": spread, "first": first, "groups": groups, "n_components": components,
            "rows": init_individuals, "reg_covar": reg_covar,
        })  # fmt: skip
        moves = choices.sampler_of_options(sampler, model, {
            "n_steps": sampler_steps, "target": target, "step": step_size, "decay": step_decay,
            "precondition": False if no_precondition else None, "codec": gradient_compress,
            "n_threads": threads,
        })  # fmt: skip
        codec = None if compress is None else parse_codec(compress)
        choices.check_outputs(output, individuals, traces, force)
        needed = choices.needed_covariates(model, model_options)
        columns = {"id": id, "time": time, "value": value}
        source = choices.individuals_of(data, columns, covariates, needed)
        held = choices.devices_of(source, devices, device_individuals)
        if init_individuals is not None:
            model_options["rows"] = choices.rows_of_names(source, init_individuals)
        start = None
        if init_model is not None:
            start = choices.start_of(init_model, model, source, model_options)
        began = monotonic()
        progress = SaemCounter(quiet, burn_in, None if output or json else "--output FILE")
        try:
            found = fit_saem(
                source,
                model,
                model_options=model_options,
                devices=held,
                sampler=moves,
                n_chains=chains,
                n_iter=iterations,
                burn_in=burn_in,
                decay=decay,
                average=average,
                shares=shares or "individuals",
                codec=codec,
                feedback=feedback,
                participation=participation,
                tol=tol,
                window=window,
                start=start,
                n_conditional=conditional_draws,
                n_importance=importance_draws,
                level=level,
                seed=seed,
                callback=progress,
                announce=progress.announce,
            )
        finally:
            progress.close()
        report = report_of(found, held, screen)
        report["seconds"] = monotonic() - began
        report["data"] = str(data)
        if output is not None:
            save_saem(output, found, force=force)
        if individuals is not None:
            write_individual_table(individuals, found, force, quote_formulas)
        if traces is not None:
            from vpem.pictures.figure import save_picture
            from vpem.pictures.saem import draw_traces

            save_picture(traces, draw_traces(found), force=force)
        report["individuals_file"] = None if individuals is None else str(individuals)
        report["traces_file"] = None if traces is None else str(traces)
        report["model"] = None if output is None else str(output)
        report["warnings"] = list(screen.warnings)
        if json:
            print_json(report)
        elif not quiet:
            show_report(report)
        if strict and not found.converged:
            raise typer.Exit(3)
