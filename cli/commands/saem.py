"""`vpem saem`: models with latent variables of individuals on devices, by stochastic EM.

`vpem impute`: entries of a matrix that no observer saw, by low rank or by a mixture.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.errors import InputError, Setting
from vpem.fits.settings import OF_LOWRANK, Dealing, ImputeSettings
from vpem.pictures.contents import HOW_WELL, communication, how_summed, lines_of, number, plural
from vpem.records import Settings, changed, off, rule, setting, stated, unset
from vpem.settings import SAEM_MODELS, SAMPLERS, HolderGraph, SaemSettings, SumSettings

from ..data import (
    BY_POSITION,
    STDIN,
    NumberFiles,
    StartSettings,
    check_parties,
    graph_of,
    refuse_shared_stdin,
    teller,
)
from ..display import ProgressLine, Screen, show, table
from ..options import Without
from ..outputs import NEEDS_TOL, READ, WRITTEN, LabelFile, LabelledOutput, TableOutput
from ..runner import CheckpointSettings, CommandRun, FitOutcome
from ..session import EngineSettings, describe_engine
from .individuals import DeviceFiles, HeldIndividuals, Reader, Source, words_of
from .use import CORPUS_MODEL, as_printed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vpem.fits.observers import Completed
    from vpem.network.schema import Report
    from vpem.pictures.contents import Lines
    from vpem.saem.results import SaemFit
    from vpem.terms.lowrank.entries import Hidden
    from vpem.terms.lowrank.observations import Observations

    from ..display import PrintedTable


CURVES = ("one-compartment", "two-compartment", "curve")
MIXED = ("linear", *CURVES)
"""Models of parameters that vary between individuals."""


def _listed(noun: str, names: Sequence[str]) -> str:
    *first, last = names
    return f"{noun}s {', '.join(first)} and {last}" if first else f"{noun} {last}"


def _of(*models: str) -> Any:
    """Refuse an option for all other models."""
    said = f" is for the {_listed('model', models)}; leave it out"
    return (lambda given: given.get("model", models[0]) not in models, (said,))


FEW_VARY = rule(
    lambda given: given["covariance"] == "full" and "," not in (given["random"] or ","),
    " is for two or more that vary; let more of them vary, or leave it out",
)


class ModelSettings(Settings, heading="Model", kept=False):
    """Which model, and the options of each."""

    # fmt: off
    init_model: Path | None = changed(StartSettings, "init_model", idle=None)
    model: str = setting("linear", "linear (intercept and slopes), one-compartment, "
        "two-compartment (doses), curve (a formula or function), bifactor (general and group "
        "factors), gmm (mixture), or lda (topics). Doses are absorbed and eliminated at rates of "
        "first order; the time of a row is its item (bifactor) or feature (gmm).",
        choices=SAEM_MODELS, often=True)
    slopes: str | None = unset("linear: covariates with a random slope, with commas between, or "
        "none. Default: time.", idle=_of("linear"))
    curve: str | None = unset("curve: a formula (logistic, four-parameter, gompertz, asymptotic, "
        "biexponential, michaelis-menten, emax), or FILE.py:NAME, a function of your own, which is "
        "run.", idle=_of("curve"))
    parameters: str | None = unset("Compartments: parameters, with commas between: ka first if "
        "doses are absorbed, then cl,v or cl,ke or v,ke, or cl,v1,q,v2; tlag last if late. "
        "Default: ka,cl,ke, cl,v1,q,v2.", idle=_of("one-compartment", "two-compartment"))
    error: str | None = unset("Mixed models: law of measurements, or of each outcome with commas "
        "between: constant, proportional, combined or exponential error, bernoulli (yes or no by a "
        "logit), poisson (counts by a logarithm). Default: constant.", idle=_of(*MIXED))
    random: str | None = unset("Mixed models: which parameters vary between individuals, with "
        "commas between; of linear intercept and slopes. Default: all.", idle=_of(*MIXED))
    effects: str | None = unset("Mixed models: covariates that means depend on, "
        "PARAMETER:COVARIATE with commas between: cl:log(weight/70),v:sex.", idle=_of(*MIXED))
    covariance: str | None = unset("Mixed models: diagonal or full, of what varies. Default: full "
        "(linear), diagonal.", choices=("diagonal", "full"), idle=[_of(*MIXED), FEW_VARY])
    first: str | None = unset("Curves: means to begin with on the parameters' scales, logarithms "
        "of those of compartments: 0.5,-3.2,-2.5. Default: read from each curve.",
        idle=_of(*CURVES))
    groups: str | None = unset("bifactor: group of each item, numbered from 0: 0,0,0,1,1,1.",
        idle=_of("bifactor"))
    components: int | None = unset("gmm, lda: components, topics. Default: 2, 10.",
        flags="-k --components", least=1, idle=_of("gmm", "lda"), often=True)
    alpha: float | None = unset("lda: how even the topics of a document are. Default: 1 / topics.",
        least=1e-4, most=1e6, idle=_of("lda"))
    eta: float | None = unset("lda: added to how often a word comes in a topic. Default: 1 / "
        "topics.", least=1e-9, most=1e6, idle=_of("lda"))
    init_individuals: str | None = unset("gmm: individuals whose values are the first means, with "
        "commas between. Default: evenly spaced ones.", heading="Start", idle=_of("gmm"))
    reg_covar: float | None = unset("gmm: added to variances. Default: 1e-6 of each item's.",
        least=0.0, most=1e100, idle=_of("gmm"))
    # fmt: on

    @property
    def options(self) -> Report:
        """The given options of the model, as the library takes them."""
        given = self.values("init_model", "model", "components", "init_individuals")
        taken = {name: value for name, value in given.items() if value is not None}
        for name, (kind, like) in LISTED.items():
            if name not in taken:
                continue
            text = taken[name]
            listed = words_of(text) if kind is str else text.split(",")
            try:
                words = taken[name] = [kind(word) for word in listed]
            except ValueError:
                said = f" must be numbers with commas between, such as {like}, got {text!r}"
                raise InputError(Setting(name), said) from None
            if kind is str and name != "error" and len(set(words)) < len(words):
                raise InputError(Setting(name), f" must differ from each other, got {text!r}")
        if len(taken.get("error", ())) == 1:
            taken["error"] = taken["error"][0]
        for model, name, what in NEEDED:
            if self.model == model and name not in taken:
                raise InputError(f"--model {model} needs --{name}: {what}")
        if self.model in COMPONENTS:
            name, usual = COMPONENTS[self.model]
            taken[name] = self.components or usual
        return taken


EACH_ITEM = "0,0,0,1,1,1"

LISTED = {
    **dict.fromkeys(("slopes", "random", "effects", "parameters", "error"), (str, "")),
    "first": (float, "0.5,-3.2,-2.5"),
    "groups": (int, EACH_ITEM),
}
"""Options that are lists, of what, and like which."""

NEEDED = (
    ("curve", "curve", "a formula such as logistic, or FILE.py:NAME"),
    ("bifactor", "groups", f"the group of each item, such as {EACH_ITEM}"),
)
"""Models that need an option, and what it is."""

COMPONENTS = {"gmm": ("n_components", 2), "lda": ("n_topics", 10)}
"""What models call their components, and how many there are by default."""


class SamplerSettings(Settings, heading="Sampler", kept=False):
    """Which sampler, and its options: the parameters of `vpem.saem.samplers`, after sampler_."""

    # fmt: off
    sampler: str = setting("auto", "exact (independent draws: linear, bifactor, gmm), metropolis "
        "(walks and jumps), langevin (unadjusted: biased by its step), mala (adjusted), hmc "
        "(Hamiltonian). auto: exact where the model has it, metropolis for others or with "
        "--sampler-steps or --target.", choices=SAMPLERS)
    sampler_n_steps: int | None = unset("Steps of the sampler an iteration. Default: 2 "
        "(metropolis: sweeps; hmc), 5 (mala), 10 (langevin).", flags="--sampler-steps", least=1,
        most=10_000)
    sampler_target: float | None = unset("Acceptance rate that moves are adapted to in the "
        "burn-in. Default: 0.44 (metropolis), 0.574 (mala), 0.8 (hmc).", flags="--target",
        least=0.05, most=0.95)
    sampler_step: float | None = unset("Step of langevin, or first of mala, in units of the "
        "curvature's covariance. Default: 0.5, 1.", flags="--step-size", least=1e-12, most=1e6)
    sampler_decay: float | None = unset("langevin: after the burn-in its step falls with this "
        "power; 0: constant. Default: 1/3.", flags="--step-decay", least=0.0, most=1e6)
    sampler_precondition: bool = off("langevin, mala: steps of one size for all latents, in their "
        "own units, not the curvature's.", flags="--no-precondition")
    sampler_codec: str | None = unset("langevin: codec of the gradients of latents, such as "
        "qsgd:4bits. Default: numbers as they are.", flags="--gradient-compress",
        heading="Messages and faults")
    sampler_n_threads: int | None = unset("Threads of samplers that are not exact; results do not "
        "depend on it. Default: all processors.", flags="--threads", heading="Running", least=1,
        most=1024)
    # fmt: on

    def arguments(self, model: str, options: Report) -> Report:
        """Return the sampler for a model, its options, and the codec of gradients, for a fit."""
        from vpem._core.threads import thread_count
        from vpem.saem.models.model import model_class
        from vpem.saem.samplers import AUTO, SAMPLERS, usual_sampler

        known = {one: kind.__dataclass_fields__ for one, kind in SAMPLERS.items()}
        given = {one.removeprefix("sampler_"): value for one, value in self
                 if one != "sampler" and value not in (None, False)}  # fmt: skip
        name, is_open = self.sampler, self.sampler == AUTO
        if is_open:
            name = usual_sampler(model_class(model, options), given)
        for one in given:
            if one not in known[name] and not (is_open and one == "n_threads"):
                others = [other for other in SAMPLERS if one in known[other]]
                advice = f"; give --sampler {others[0]}" if is_open else ""
                said = f" is for the {_listed('sampler', others)}, not {name}{advice}"
                raise InputError(Setting(f"sampler_{one}"), said)
        if "precondition" in given:
            given["precondition"] = False
        given.pop("n_threads", None)
        if "n_threads" in known[name]:
            given["n_threads"] = thread_count(self.sampler_n_threads)
        codec = given.pop("codec", None)
        return {"sampler": self.sampler, "sampler_options": given, "gradient_codec": codec}


class SaemGraph(HolderGraph, heading="Network"):
    """The graph of the devices, which few need."""

    topology: str | None = changed(often=False)


class SaemOutput(LabelledOutput, heading="Output", kept=False):
    """What is written of a fit."""

    # fmt: off
    labels_file: Path | None = changed(help="Write the class of "
        "each individual of a mixture (gmm) here: .csv, .parquet or .h5. With --parties a file for "
        "each, named after it (classes.lab.csv).", idle=_of("gmm"))
    individuals: Path | None = unset("Write means and intervals of the individuals' latents here: "
        ".csv, .parquet or .h5. With --engine mpi devices send them for this only.", file=WRITTEN)
    topics: Path | None = unset("lda: write the words' probabilities in each topic here: .csv, "
        ".parquet or .h5.", file=WRITTEN, idle=_of(CORPUS_MODEL))
    traces: Path | None = unset("Draw the parameters against iterations here.", file=WRITTEN)
    strict: bool = changed(idle=NEEDS_TOL)


def saem(
    data: DeviceFiles,
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
        from vpem.saem.estimates import describe_fit, doubts
        from vpem.saem.fit import fit_saem
        from vpem.saem.formats.fits import read_saem, save_saem
        from vpem.saem.models.model import name_words
        from vpem.saem.results import as_saved, collect, leave_out
        from vpem.saem.saem import burn_in_of
        from vpem.sums.connect import connect_workers, way_of

        burn_in = burn_in_of(settings.n_iter, settings.burn_in)
        if burn_in >= settings.n_iter:
            raise InputError(
                "--burn-in must be below --iterations, or no step decreases, got "
                f"{burn_in} of {settings.n_iter}"
            )
        options = model.options
        fitting = moves.arguments(model.model, options)
        run = CommandRun(screen, out, "fits of SAEM", engine, checkpoints)
        run.labels = labels = LabelFile(out, run.where, holding.parties)
        if run.where.speaks:
            for file in filter(None, (out.individuals, out.topics)):
                check_writable(file, out.force, "results")
        words_shown = holding.parties and holding.vocabulary is None
        if model.model == CORPUS_MODEL and sums.secure_sum and words_shown:
            raise InputError(
                Setting("secure_sum", True), " hides what parties have, but without a common "
                "vocabulary they exchange their words; name the words in a file, ",
                Setting("vocabulary"),
            )  # fmt: skip
        reader = Reader(
            holding, model.model, options, settings.missing == "marginalize",
            weight=holding.sample_weight, apart=holding.parties and run.engine.size > 1,
        )  # fmt: skip
        source = Source(data, reader, run, sums.secure_sum)
        for said in name_words(options, source.individuals.columns.get("words", {})):
            screen.print_note(said)
        if model.init_individuals is not None:
            options["rows"] = source.places(model.init_individuals)
        if model.init_model is not None:
            fitting["start"] = read_saem(model.init_model)
        joined = graph_of(source.held.n_workers, source.held.names, graph.seeded(settings.seed))
        if way_of(joined, sums) == "consensus":
            if settings.feedback is not None:
                raise InputError(
                    Setting("feedback"), " is about messages to a server; among neighbours rounds "
                    "are compressed, and remember what was sent: leave it out",
                )  # fmt: skip
            sums, settings = sums.changed(compress=settings.codec), settings.changed(codec=None)
        with run.working(SaemCounter) as progress:
            progress.most, progress.burn_in = settings.n_iter, burn_in
            network = run.spread_network(connect_workers(joined, sums), workers=True)
            fit = fit_saem(
                source.individuals_in(network), model.model, settings, devices=source.held,
                network=network, callback=progress, saver=run.saver, model_options=options,
                **fitting,
            )  # fmt: skip
        ran, apart = describe_engine(network), network.agents.apart
        labels.write_individuals(fit, source.held, network.agents)
        shown = fit
        if apart and (out.individuals is None or run.where.own_users):
            shown = leave_out(fit)
        elif apart:
            shown = collect(fit, source.held, network.total.holders)
        mine = fit if run.where.own_users else shown

        def tell() -> Report:
            for doubt in doubts(as_saved(shown)):
                screen.warn(doubt)
            facts = {"seconds": fit.seconds, **run.facts(data)}
            return describe_fit(shown, source.held) | ran | facts

        run.finish(FitOutcome(
            fit.converged, tell, lambda path, report: save_saem(path, shown, force=out.force),
            lambda report: _show(report, shown),
            own=lambda _: {"labels_files": labels.written if fit.corpus is None else None,
                           **_write(mine, out)},
        ))  # fmt: skip


class SaemCounter(ProgressLine):
    """Progress of a long run: iterations, and then the draws at the estimates."""

    burn_in = 0

    def facts(self, progress: Any) -> Iterator[str]:
        if progress.iteration <= self.burn_in:
            yield "burn-in"


def _show(report: Report, fit: SaemFit) -> None:
    """Print what a page says of a fit: its facts, and its estimates or topics."""
    from vpem.pictures.saem_contents import estimate_tables, how_fitted, how_well, topic_tables
    from vpem.saem.estimates import summary_of
    from vpem.saem.results import as_saved
    from vpem.saem.topics import Topics

    saved = as_saved(fit)
    facts = how_fitted(saved, report["device_individuals"]) | how_well(fit)
    facts["iterations"] += f", {number(report['seconds'], 3)} s"
    facts["communication"] = communication(report["communication"], report["device_names"])
    facts["model file"] = report["model"] or "not kept (give --output)"
    for name in ("individuals", "topics", "traces"):
        if report.get(f"{name}_file") is not None:
            facts[name] = report[f"{name}_file"]
    of_topics = fit.corpus is not None
    items = topic_tables(Topics(saved)) if of_topics else estimate_tables(summary_of(saved))
    show(table(facts.items(), "", ""), *(one for item in items for one in as_printed(item)))


def _write(fit: SaemFit, out: SaemOutput) -> Report:
    """Write the requested files of individuals, topics and the course of a fit."""
    from vpem.files.results import write_columns
    from vpem.saem.topics import Topics

    topics = None if fit.corpus is None else Topics(fit)
    tables = {"individuals": (fit.columns, fit.latents.kind)}
    if topics is not None:
        tables["topics"] = topics.columns, "vpem-topic-words"
    for name, (columns, kind) in tables.items():
        if (file := getattr(out, name)) is not None:
            write_columns(file, columns(), kind, out.force, out.quote_formulas)
    if out.traces is not None:
        from vpem.pictures.figure import save_picture
        from vpem.pictures.saem import draw_spreads, draw_traces

        drawn = draw_traces(fit) if topics is None else draw_spreads(topics)
        save_picture(out.traces, drawn, force=out.force)
    return {f"{name}_file": getattr(out, name) for name in (*tables, "traces")}


class ObserverFiles(NumberFiles, heading="Data"):
    """Whether files are parties', each of them an observer's."""

    parties: bool = changed(
        help="Each file is what one observer saw: a .csv table with the columns row, column, "
        "value, or a matrix with gaps of any format; or one .toml file names them all "
        "(docs/reference/parties.md)."
    )
    align: str | None = changed(
        help="How the same rows are found in all files: ids, by their names, or none, by their "
        "places. Default: by names; by places if no party has names, and no column that several "
        "have says that rows differ.",
        choices=("none", "ids"),
    )


def observed(
    files: Sequence[Path],
    file_settings: ObserverFiles,
    dealing: Dealing,
    settings: ImputeSettings,
    run: CommandRun,
) -> tuple[Observations, Hidden | None]:
    """Read and deal out what this process's observers saw, and hold out entries of it.

    The first process knows which are held out.
    """
    import numpy as np

    from vpem.engines.placement import Placement
    from vpem.files.observations import read_observations
    from vpem.files.parties.observing import observe_parties
    from vpem.fits.observers import check_laws, deal, hide_entries
    from vpem.terms.lowrank.observations import check_law, make_law

    law, weight = make_law(settings.law, settings.variance), dealing.sample_weight
    check_parties(files, file_settings)
    tell, table = teller(run.screen.say), file_settings.table
    if file_settings.parties:
        for name, value in dealing.values("sample_weight", "holdout").items():
            if value is not None:
                raise InputError(Setting(name), " is for one file; with --parties leave it out")
        parties = run.where.parties(files, table, columns=False)
        holders = run.where.place(parties)
        observations = observe_parties(parties, weight, holders, tell, file_settings.align)
        if observations.by_position and file_settings.align is None:
            run.screen.say(BY_POSITION)
        run.where.watch(observations.shape[0], True)
        check_laws(observations, law, holders)
    else:
        refuse_shared_stdin(files[0], run.where)
        observations = read_observations(
            files[0], dealing.dataset, weight, table=table, tell=lambda data: tell(data, table)
        )
        check_law(observations, law)
        usual = "rows" if settings.method == "mixture" else "random"
        observations = deal(observations, dealing, usual, settings.seed)
        holders = Placement.here(observations.n_observers)
        if run.engine.apart:
            holders = Placement.evenly(run.engine, observations.n_observers, observations.names)
            observations = observations.seen_by(set(holders.own.tolist()))
    if dealing.holdout is None:
        return observations, None
    rng = np.random.default_rng([settings.seed, 2])
    return hide_entries(observations, dealing.holdout, rng, holders)


MOST_COLUMNS = 20
"""Columns up to which the trend over them is printed."""


class ImputeOutput(TableOutput, heading="Output", kept=False):
    """What is written and printed."""

    output: Path | None = changed(
        help="Write matrices, factors and trends here (HDF5), or the completed matrix: .csv or "
        ".parquet."
    )
    plot: Path | None = unset(
        "Draw trends and convergence: .png, .svg or .pdf.", file="written", idle=OF_LOWRANK
    )


def impute(
    data: Annotated[
        list[Path],
        READ,
        typer.Argument(
            help="Entries seen: a .csv table with the columns observer, row, column, value; HDF5 "
            "with the group observers; or a dataset whose X has NaN where nothing was seen. With "
            "--parties a file each, or a manifest."
        ),
    ],
    *,
    settings: Annotated[ImputeSettings, Without("memory alpha")],
    parties: Annotated[ObserverFiles, Without("family align_key missing_parties")],
    dealing: Dealing,
    graph: Annotated[HolderGraph, Without("graph_seed")],
    sums: Annotated[SumSettings, Without("hops hubs eigenvalue consensus compress agent_dropout")],
    checkpoints: CheckpointSettings,
    engine: Annotated[EngineSettings, Without("shards")],
    out: Annotated[ImputeOutput, Without("publish_anyway")],
) -> None:
    """Impute a matrix from the parts of it that observers saw.

    FedMissEM: observers send corrections of a filled matrix to a server, or mix filled matrices
    with neighbours. With --method mixture they fit a Gaussian mixture to rows, or columns. By
    default method, rank and ridge are those that predict held-out entries best.

    Example: vpem impute data/wine.h5 --workers 5 --holdout 0.1 -o imputed.h5

    Example: vpem impute data/wine.h5 --method mixture --holdout 0.1 --draws 20 -o imputations.csv
    """
    with Screen(out.quiet) as screen:
        from vpem.fits.imputation import fit_imputation
        from vpem.fits.mixture_imputation import write_imputation
        from vpem.fits.observers import Imputation, score_holdout
        from vpem.pictures.assignments import draw_imputation
        from vpem.sums.connect import connect_workers, way_of

        run = CommandRun(screen, out, "imputations", engine, checkpoints)
        if out.plot is not None:
            settings = settings.changed(method="lowrank")
        observations, hidden = observed(data, parties, dealing, settings, run)
        names, seeded = observations.names, graph.seeded(settings.seed)
        joined = graph_of(observations.n_observers, names, seeded)
        if way_of(joined, sums) == "consensus":
            # By consensus the codec compresses rounds; elsewhere corrections, not the sum.
            sums = sums.changed(compress=settings.compress)
            settings = settings.changed(compress=None)
        with run.working(ProgressLine) as progress:
            progress.most = settings.max_iter
            network = run.spread_network(connect_workers(joined, sums), workers=True)
            fit: Any = fit_imputation(
                observations, settings, network=network, callback=progress, saver=run.saver
            )
        ran = describe_engine(getattr(fit, "ran_on", network))

        def tell() -> Report:
            report: Report = fit.describe()
            unscaled = report["law"] == "gaussian" and settings.scale == "none"
            if report["share_seen"] == 1:
                screen.print_note(
                    "every entry was seen, so nothing is imputed; --holdout holds some of them out"
                )
            elif unscaled and isinstance(fit, Imputation):
                screen.print_note(*fit.note_of_scale())
            report |= {"sample_weight": dealing.sample_weight, "holdout": None}
            if hidden is not None and dealing.holdout is not None:
                report["holdout"] = score_holdout(fit, hidden, dealing.holdout, settings.seed)
            return report | {"seed": settings.seed, **run.facts(data)} | ran

        def write(path: Path, report: Report) -> None:
            again = not parties.parties and str(data[0]) != STDIN
            table = parties.table if again else None
            write_imputation(path, fit, report, out.force, hidden, out.quote_formulas, table)

        # Each member of a study writes its own entries, and the fit of all.
        run.finish(FitOutcome(
            fit.converged, tell, write, partial(_show_completed, fit), apart=True,
            own=lambda _: run.drawn(lambda: draw_imputation(fit)),
        ))  # fmt: skip


def _steps(report: Report) -> str:
    line = "participation {participation:g}, step {step_size}"
    if report["sum"] == "server" and report["compress"] is not None:
        line += ", compressed by {compress}"
    if report["projections"]:
        line += ", {projections:,} means moved into the law's domain"
    return stated(line, report.__getitem__)


def _chosen(report: Report) -> str:
    choice = report["choice"]
    line = f"{choice['error']:.4g} on held-out entries, column means "
    line += f"{number(choice['column_means'], 4)}; {len(choice['candidates'])} fits compared"
    known = choice["mixture"] in ("tried", "the method was given")
    return line if known else f"{line}; no mixture: {choice['mixture']}"


def _network(report: Report) -> str:
    parts = [plural(report["n_workers"], "observer"), report["topology"]]
    if report["sum"] != "server" or report["secure_sum"]:
        parts.append(how_summed(report))
    if report["sum"] == "consensus" and "mixing_weights" not in report:
        parts.append(f"statistics up to {report['disagreement']:.2g} apart")
    return ", ".join(parts)


FACTS: Lines = {
    "matrix": lambda report: stated(
        "{n_samples:row} x {n_features:column}, {share_seen:.1%} seen"
        + ", weighed by {sample_weight}" * bool(report["sample_weight"]), report.__getitem__,
    ),
    "mixture": lambda report: stated(
        "{n_components:component}, {covariance_type} covariance"
        + " of columns of one observer" * (report["n_workers"] != 1 and report["split"] != "rows")
        + ", {n_parameters:parameter}", report.__getitem__,
    ),
    "model": lambda report: stated(
        "rank {rank}, ridge {ridge:.6g}, {law}"
        + " of variance {variance:.6g}" * (report["variance"] is not None), report.__getitem__,
    ),
    "log-likelihood": lambda report: stated(
        "{log_likelihood:.6f} per sample, BIC {bic:.2f}" if "bic" in report
        else "{log_likelihood:.6f} an entry seen", report.__getitem__,
    ),
    "draws": "{draws[n_draws]}, each of a fit to weighed rows: {draws[n_iter]} iterations",
    "singular values": lambda report: ", ".join(f"{v:.4g}" for v in report["singular_values"][:8]),
    "iterations": HOW_WELL["iterations"],
    "FedEM": _steps,
    "chosen by": _chosen,
    "network": _network,
    "communication": lambda report: communication(report["communication"], report["worker_names"]),
    "written to": lambda report: report["model"] or "nothing is kept (give --output)",
}  # fmt: skip
"""How a matrix was completed, by a mixture or by one of low rank."""


def _show_completed(fit: Completed, report: Report) -> None:
    names, choice = fit.observations.column_names, report["choice"]
    tables = [] if report["holdout"] is None else _held_out(report["holdout"])
    tables.append(table(lines_of(report, FACTS), "", ""))
    if choice is not None:
        lines = [
            (one["column"], one["error"], one["column_means"],
             "column mean" if one["column_means"] < one["error"] else "fit")
            for one in choice["by_column"]
        ]  # fmt: skip
        title = "Entries held out to choose, in units of the fit"
        tables.append(_by_column(title, choice["loss"].replace("_", "-"), "better", lines))
    if len(names) <= MOST_COLUMNS:
        trend = zip(names, (number(mean, 5) for mean in report["column_trend"]), strict=True)
        head = f"mean fitted {fit.law.unit}".replace("fitted mean", "fitted")
        tables.append(table(trend, "column", head, title="Trend over columns", right=(head,)))
    show(*tables)


def _by_column(title: str, loss: str, more: str, lines: list[tuple[Any, ...]]) -> PrintedTable:
    """A line a column: of many those whose error is largest beside the column mean's."""
    if len(lines) > MOST_COLUMNS:
        title += f": the {MOST_COLUMNS} worst of {len(lines)} columns, beside column means"
        lines = sorted(lines, key=lambda line: -line[1] / line[2] if line[2] > 0 else 0.0)[
            :MOST_COLUMNS
        ]
    cells = [(name, number(error, 4), number(means, 4), last) for name, error, means, last in lines]
    heads = (loss, f"{loss} of column means", more)
    return table(cells, "column", *heads, title=title, right=(*heads[:2], "hidden"))


def _held_out(scores: Report) -> list[Any]:
    heads, other, count = list(scores["model"]), scores["iterative_imputer"], scores["n_entries"]
    lines = [
        (name.replace("_", " "), *(number(scores[name].get(head), 5) for head in heads))
        for name in ("model", "column_means", "iterative_imputer")
    ]
    title = f"Error on {count} hidden {'entry' if count == 1 else 'entries'}"
    named = {"standardized_rmse": "in standard deviations"}
    head = tuple(named.get(head, head.replace("_", "-")) for head in heads)
    skipped = [f"iterative imputer was not run: {other['skipped']}"] if "skipped" in other else []
    errors = [
        (one["column"], one["model"]["rmse"], one["column_means"]["rmse"], one["n_entries"])
        for one in scores["by_column"]
    ]
    whole = table(lines, "", *head, title=title, right=head)
    return [whole, *skipped, _by_column("Error by column", "rmse", "hidden", errors)]
