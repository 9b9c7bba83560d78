"""`vpem saem`: models with latent variables of individuals on devices, by stochastic EM."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vpem.errors import InputError, Setting
from vpem.records import changed, setting
from vpem.settings import GraphSettings, SaemSettings, SumSettings

from ..data import graph_of
from ..display import Screen
from ..options import Given, InitModel, Without
from ..outputs import WRITTEN, LabelFile, LabelledOutput, of_individuals
from ..runner import CheckpointSettings, CommandRun, FitOutcome
from ..session import EngineSettings, describe_engine
from .kinds import CORPUS_MODEL
from .saem_choices import (
    ModelSettings,
    SamplerSettings,
    check_start,
    model_options_of,
    name_words,
    needed_covariates,
    sampler_options_of,
    start_of,
)
from .saem_data import DeviceFiles, HeldIndividuals, Source, read_source, rows_of_names
from .saem_report import SaemCounter, report_of, show_report, topics_result, write_individual_table

if TYPE_CHECKING:
    from vpem.network.schema import Report
    from vpem.saem.results import SaemFit


class SaemGraph(GraphSettings, heading="Network"):
    """The graph of the devices."""

    topology: str | None = changed(
        GraphSettings,
        "topology",
        help="Graph of the devices: star (a server), cycle, path, complete, grid, geometric, "
        "erdos-renyi, small-world, scale-free, tree; there every device keeps a statistic of its "
        "own, or with --sum tree one is added up along a tree. Default: star.",
    )


class SaemOutput(LabelledOutput, heading="Output", kept=False):
    """What is written of a fit."""

    labels_file: Path | None = changed(
        LabelledOutput,
        "labels_file",
        help="Write the class of each individual of a mixture (gmm) here: .csv, .parquet or .h5. "
        "With --parties a file for each, named after it (classes.lab.csv).",
    )
    individuals: Path | None = setting(
        None, "Write means and intervals of the individuals' latents here: .csv, .parquet or .h5. "
        "With --engine mpi devices send them for this only.",
        file=WRITTEN,
    )  # fmt: skip
    topics: Path | None = setting(
        None, "lda: write the words' probabilities in each topic here: .csv, .parquet or .h5.",
        file=WRITTEN,
    )  # fmt: skip
    traces: Path | None = setting(
        None, "Draw the parameters against iterations here.", file=WRITTEN
    )


def saem(
    data: DeviceFiles,
    init_model: InitModel = None,
    *,
    model: ModelSettings,
    holding: Annotated[HeldIndividuals, Without("align align_key missing_parties id_column")],
    graph: Annotated[SaemGraph, Without("graph_seed")],
    moves: SamplerSettings,
    settings: SaemSettings,
    sums: Annotated[
        SumSettings, Without("hops hubs eigenvalue consensus compress agent_dropout n_threads")
    ],
    checkpoints: CheckpointSettings,
    engine: Annotated[EngineSettings, Without("shards")],
    out: Annotated[SaemOutput, Without("publish_anyway")],
    given: Given,
) -> None:
    """Fit a model with latent variables by stochastic EM (SAEM).

    Devices hold individuals, sample their latents, and send statistics, which a server averages, or
    neighbours on a graph; not their rows. Standard errors and the log-likelihood follow from draws
    at the end.

    Example: vpem saem data/oxford_boys.csv --model linear --devices 4 -o growth.h5

    Example: vpem saem data/theophylline.csv --model one-compartment --random ka,cl -o doses.h5

    Example: vpem saem data/oxford_boys.csv --devices 6 --topology cycle -o growth.h5
    """
    with Screen(out.quiet) as screen:
        from vpem.files.hdf5 import check_writable
        from vpem.pictures.figure import check_picture
        from vpem.saem.formats.fits import save_saem
        from vpem.saem.results import collect, leave_out

        check_start(settings, out.strict)
        _check_outputs(model.model, out)
        options = model_options_of(model)
        sampler = sampler_options_of(model.model, options, moves, given)
        run = CommandRun(screen, out, "fits of SAEM", engine, checkpoints)
        run.labels = labels = LabelFile.begin(out, run.where, holding.parties)
        if run.where.speaks:
            for file in filter(None, (out.individuals, out.topics)):
                check_writable(file, out.force, "results")
            if out.traces is not None:
                check_picture(out.traces, out.force)
        needed = needed_covariates(model.model, options)
        source = read_source(
            data,
            holding,
            model.model,
            needed,
            settings.missing == "marginalize",
            run,
            sums.secure_sum,
        )
        for said in name_words(options, source.individuals.columns.get("words", {})):
            screen.print_note(said)
        if model.init_individuals is not None:
            options["rows"] = rows_of_names(source, model.init_individuals)
        if init_model is not None:
            sampler["start"] = start_of(init_model, model.model, source.individuals, options)
        fit, ran = _fit(source, model.model, settings, graph.seeded(settings.seed), sums, run, {
            "model_options": options, **sampler
        })  # fmt: skip
        network = ran.pop("network")
        of_individuals(labels, fit, source.held, network.agents, screen)
        shown = fit
        if network.agents.apart and (out.individuals is None or run.where.own_users):
            shown = leave_out(fit)
        elif network.agents.apart:
            shown = collect(fit, source.held, network.total.holders)

        def facts() -> Report:
            return ran | {"seconds": shown.seconds, **run.facts(data)}

        if model.model == CORPUS_MODEL:
            run.finish(topics_result(shown, source.held, facts, out))
            return

        mine = fit if run.where.own_users else shown
        run.finish(FitOutcome(
            fit.converged, lambda: report_of(shown, source.held, screen) | facts(),
            lambda path, report: save_saem(path, shown, force=out.force),
            lambda report: show_report(report, shown),
            own=lambda _: {"labels_files": labels.written, **_draw(mine, out)},
        ))  # fmt: skip


def _fit(
    source: Source,
    model: str,
    settings: SaemSettings,
    graph: GraphSettings,
    sums: SumSettings,
    run: CommandRun,
    parameters: dict[str, Any],
) -> tuple[SaemFit, Report]:
    """Fit with a line of progress, and describe the engine for the report."""
    from vpem.saem.fit import fit_saem
    from vpem.saem.saem import burn_in_of
    from vpem.sums.connect import connect_workers
    from vpem.sums.exchanges import way_of

    devices = source.held
    joined = graph_of(devices.n_workers, devices.names, graph)
    if way_of(joined, sums) == "consensus":
        if settings.feedback is not None:
            raise InputError(
                Setting("feedback"), " is about messages to a server; among neighbours rounds are "
                "compressed, and remember what was sent: leave it out",
            )  # fmt: skip
        sums, settings = sums.changed(compress=settings.codec), settings.changed(codec=None)
    burn_in = burn_in_of(settings.n_iter, settings.burn_in)
    with run.working(partial(SaemCounter, burn_in=burn_in)) as progress:
        network = run.spread_network(connect_workers(joined, sums), workers=True)
        fit = fit_saem(
            source.individuals_in(network), model, settings, devices=devices, network=network,
            callback=progress, saver=run.saver, **parameters,
        )  # fmt: skip
        return fit, {"network": network, **describe_engine(network)}


def _check_outputs(model: str, out: SaemOutput) -> None:
    """Raise InputError where a file is for results that the model does not have."""
    from vpem.saem.models.model import model_class

    if out.topics is not None and model != CORPUS_MODEL:
        raise InputError(f"--topics is for the model {CORPUS_MODEL}; leave it out")
    if out.labels_file is not None and not hasattr(model_class(model), "responsibilities"):
        raise InputError(
            f"the model {model} has no classes of individuals for --labels to write; leave it out, "
            "or take the model gmm"
        )


def _draw(fit: SaemFit, out: SaemOutput) -> Report:
    if out.individuals is not None:
        write_individual_table(out.individuals, fit, out.force, out.quote_formulas)
    if out.traces is not None:
        from vpem.pictures.figure import save_picture
        from vpem.pictures.saem import draw_traces

        save_picture(out.traces, draw_traces(fit), force=out.force)
    files = {"individuals_file": out.individuals, "traces_file": out.traces}
    return {name: None if file is None else str(file) for name, file in files.items()}
