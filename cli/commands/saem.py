"""`vpem saem`: models with latent variables of individuals on devices, by stochastic EM."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vpem.errors import InputError, Setting
from vpem.records import Rule, Settings, beside, changed, off, rule, setting, unset
from vpem.rules import UNCHECKED
from vpem.settings import SAEM_MODELS, SAMPLERS, HolderGraph, SaemSettings, SumSettings

from ..data import StartSettings, graph_of, weighed
from ..display import ProgressLine, Screen
from ..options import Without
from ..outputs import NEEDS_TOL, WRITTEN, LabelFile, LabelledOutput, TraceOutput
from ..runner import CheckpointSettings, CommandRun, FitOutcome
from ..session import EngineSettings, describe_engine
from .individuals import DeviceFiles, HeldIndividuals, Reader, Source, words_of
from .use import CORPUS_MODEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vpem.network.schema import Report
    from vpem.saem.results import SaemFit


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


def _needs(model: str, name: str, what: str) -> Rule:
    return beside(f"{{model={model}}} needs {{{name}}}: {what}", model=model, **{name: None})


EACH_ITEM = "0,0,0,1,1,1"

FEW_VARY = rule(
    lambda given: given["covariance"] == "full" and "," not in (given["random"] or ","),
    " is for two or more that vary; let more of them vary, or leave it out",
)


class ModelSettings(
    Settings, heading="Model", kept=False,
    rows=[
        ("slopes", *_of("linear")), ("curve", *_of("curve")), ("groups", *_of("bifactor")),
        ("parameters", *_of("one-compartment", "two-compartment")),
        ("error random effects covariance", *_of(*MIXED)), ("covariance", *FEW_VARY),
        ("first", *_of(*CURVES)), ("components", *_of("gmm", "lda")), ("alpha eta", *_of("lda")),
        ("init_individuals reg_covar", *_of("gmm")),
    ],
):  # fmt: skip
    """Which model, and the options of each."""

    init_model: Path | None = changed(StartSettings, "init_model", idle=None)
    model: str = setting(
        "linear",
        "linear (intercept and slopes), one-compartment, "
        "two-compartment (doses), curve (a formula or function), bifactor (general and group "
        "factors), gmm (mixture), or lda (topics). Doses are absorbed and eliminated at rates of "
        "first order; the time of a row is its item (bifactor) or feature (gmm).",
        choices=SAEM_MODELS,
        often=True,
        idle=[
            _needs("curve", "curve", "a formula such as logistic, or FILE.py:NAME"),
            _needs("bifactor", "groups", f"the group of each item, such as {EACH_ITEM}"),
        ],
    )
    slopes: str | None = unset(
        "linear: covariates with a random slope, with commas between, or none. Default: time.",
    )
    curve: str | None = unset(
        "curve: a formula (logistic, four-parameter-logistic, gompertz, asymptotic, biexponential, "
        "michaelis-menten, emax), or FILE.py:NAME, a function of your own, which is run."
    )
    parameters: str | None = unset(
        "Compartments: parameters, with commas between: ka first if "
        "doses are absorbed, then cl,v or cl,ke or v,ke, or cl,v1,q,v2; tlag last if late. "
        "Default: ka,cl,ke, cl,v1,q,v2.",
    )
    error: str | None = unset(
        "Mixed models: law of measurements, or of each outcome with commas "
        "between: constant, proportional, combined or exponential error, bernoulli (yes or no by a "
        "logit), poisson (counts by a logarithm). Default: constant."
    )
    random: str | None = unset(
        "Mixed models: which parameters vary between individuals, with "
        "commas between; of linear intercept and slopes. Default: all.",
    )
    effects: str | None = unset(
        "Mixed models: covariates that means depend on, "
        "PARAMETER:COVARIATE with commas between: cl:log(weight/70),v:sex."
    )
    covariance: str | None = unset(
        "Mixed models: diagonal or full, of what varies. Default: full (linear), diagonal.",
        choices=("diagonal", "full"),
    )
    first: str | None = unset(
        "Curves: means to begin with on the parameters' scales, logarithms "
        "of those of compartments: 0.5,-3.2,-2.5. Default: read from each curve."
    )
    groups: str | None = unset("bifactor: group of each item, numbered from 0: 0,0,0,1,1,1.")
    components: int | None = unset(
        "gmm, lda: components, topics. Default: 2, 10.",
        flags="-k --components",
        least=1,
        often=True,
    )
    alpha: float | None = unset(
        "lda: how even the topics of a document are. Default: 1 / topics.",
        least=1e-4,
        most=1e6,
    )
    eta: float | None = unset(
        "lda: added to how often a word comes in a topic. Default: 1 / topics.",
        least=1e-9,
        most=1e6,
    )
    init_individuals: str | None = unset(
        "gmm: individuals whose values are the first means, with "
        "commas between. Default: evenly spaced ones.",
        heading="Start",
    )
    reg_covar: float | None = unset(
        "gmm: added to variances. Default: 1e-6 of each item's.", least=0.0, most=1e100
    )

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
        if self.model in COMPONENTS:
            name, usual = COMPONENTS[self.model]
            taken[name] = self.components or usual
        return taken


LISTED = {
    **dict.fromkeys(("slopes", "random", "effects", "parameters", "error"), (str, "")),
    "first": (float, "0.5,-3.2,-2.5"),
    "groups": (int, EACH_ITEM),
}
"""Options that are lists, of what, and like which."""

COMPONENTS = {"gmm": ("n_components", 2), "lda": ("n_topics", 10)}
"""What models call their components, and how many there are by default."""


class SamplerSettings(Settings, heading="Sampler", kept=False):
    """Which sampler, and its options: the parameters of `vpem.saem.samplers`, after sampler_."""

    sampler: str = setting(
        "auto",
        "exact (independent draws: linear, bifactor, gmm), metropolis "
        "(walks and jumps), langevin (unadjusted: biased by its step), mala (adjusted), hmc "
        "(Hamiltonian). auto: exact where the model has it, metropolis for others or with "
        "--sampler-steps or --target.",
        choices=SAMPLERS,
    )
    sampler_n_steps: int | None = unset(
        "Steps of the sampler an iteration. Default: 2 "
        "(metropolis: sweeps; hmc), 5 (mala), 10 (langevin).",
        flags="--sampler-steps",
        least=1,
        most=10_000,
    )
    sampler_target: float | None = unset(
        "Acceptance rate that moves are adapted to in the "
        "burn-in. Default: 0.44 (metropolis), 0.574 (mala), 0.8 (hmc).",
        flags="--target",
        least=0.05,
        most=0.95,
    )
    sampler_step: float | None = unset(
        "Step of langevin, or first of mala, in units of the "
        "curvature's covariance. Default: 0.5, 1.",
        flags="--step-size",
        least=1e-12,
        most=1e6,
    )
    sampler_decay: float | None = unset(
        "langevin: after the burn-in its step falls with this power; 0: constant. Default: 1/3.",
        flags="--step-decay",
        least=0.0,
        most=1e6,
    )
    sampler_precondition: bool = off(
        "langevin, mala: steps of one size for all latents, in their "
        "own units, not the curvature's.",
        flags="--no-precondition",
    )
    sampler_codec: str | None = unset(
        "langevin: codec of the gradients of latents, such as "
        "qsgd:4bits. Default: numbers as they are.",
        flags="--gradient-compress",
        heading="Messages and faults",
    )
    sampler_n_threads: int | None = unset(
        "Threads of samplers that are not exact; results do not "
        "depend on it. Default: all processors.",
        flags="--threads",
        heading="Running",
        least=1,
        most=1024,
    )

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


class SaemOutput(TraceOutput, LabelledOutput, heading="Output", kept=False):
    """What is written of a fit."""

    labels_file: Path | None = changed(
        help="Write the class of "
        "each individual of a mixture (gmm) here: .csv, .parquet or .h5. With --parties a file for "
        "each, named after it (classes.lab.csv).",
        idle=_of("gmm"),
    )
    individuals: Path | None = unset(
        "Write means and intervals of the individuals' latents here: "
        ".csv, .parquet or .h5. With --engine mpi devices send them for this only.",
        file=WRITTEN,
    )
    topics: Path | None = unset(
        "lda: write the words' probabilities in each topic here: .csv, .parquet or .h5.",
        file=WRITTEN,
        idle=_of(CORPUS_MODEL),
    )
    traces: Path | None = unset("Draw the parameters against iterations here.", file=WRITTEN)
    strict: bool = changed(idle=[UNCHECKED, NEEDS_TOL])


def saem(
    data: DeviceFiles,
    *,
    model: ModelSettings,
    holding: Annotated[HeldIndividuals, Without("align align_key missing_parties id_column")],
    graph: Annotated[SaemGraph, Without("graph_seed")],
    moves: SamplerSettings,
    settings: SaemSettings,
    sums: Annotated[
        SumSettings,
        Without("hops hubs eigenvalue consensus compress agent_dropout n_threads"),
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
        from vpem.pictures.saem_contents import tables_of_saem
        from vpem.saem.estimates import describe_fit, doubts
        from vpem.saem.fit import fit_saem
        from vpem.saem.formats.fits import read_saem, save_saem
        from vpem.saem.models.model import name_words
        from vpem.saem.results import collect, leave_out
        from vpem.saem.saem import burn_in_of
        from vpem.sums.connect import connect_workers, way_of

        burn_in = burn_in_of(settings.n_iter, settings.burn_in)
        if burn_in >= settings.n_iter and settings.method == "saem":
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
        sums = weighed(sums, joined)
        if way_of(joined, sums).has_rounds:
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
            for doubt in doubts(shown.saved):
                screen.warn(doubt)
            facts = {"seconds": fit.seconds, **run.facts(data)}
            return describe_fit(shown, source.held) | ran | facts

        run.finish(FitOutcome(
            fit.converged, tell, lambda path, report: save_saem(path, shown, force=out.force),
            partial(tables_of_saem, shown),
            own=lambda _: {"labels_files": labels.written if fit.corpus is None else None,
                           **_write(mine, out)},
        ))  # fmt: skip


class SaemCounter(ProgressLine):
    """Progress of a long run: iterations, and then the draws at the estimates."""

    burn_in = 0

    def facts(self, progress: Any) -> Iterator[str]:
        if progress.iteration <= self.burn_in:
            yield "burn-in"


def _write(fit: SaemFit, out: SaemOutput) -> Report:
    """Write the requested files of individuals, topics and the course of a fit."""
    from vpem.files.results import write_columns
    from vpem.saem.results import Topics

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
