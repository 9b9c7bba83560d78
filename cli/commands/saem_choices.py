"""Options of `vpem saem`, and how it reads measurements of individuals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpem.errors import InputError, MissingColumnError, Setting
from vpem.records import Settings, setting
from vpem.settings import SAEM_MODELS, SAMPLERS

from ..options import FEW_VARY

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from vpem.engines.engine import Engine
    from vpem.network.schema import Report
    from vpem.saem.individuals import Individuals
    from vpem.settings import SaemSettings

    from ..options import Given


CURVES = ("one-compartment", "two-compartment", "curve")
MIXED = ("linear", *CURVES)
"""Models of parameters that vary between individuals."""


def _of(*models: str) -> Any:
    """Refuse an option for all other models."""
    word = "model" if len(models) == 1 else "models"
    listed = " and ".join([", ".join(models[:-1]), models[-1]] if models[1:] else models)
    said = f" is for the {word} {listed}; leave it out"
    return (lambda given: given["model"] not in models, (said,))


class ModelSettings(Settings, heading="Model", kept=False):
    """Which model, and the options of each."""

    model: str = setting(
        "linear", "linear (intercept and slopes), one-compartment, two-compartment (doses), curve "
        "(a formula or function), bifactor (general and group factors), gmm (mixture), or lda "
        "(topics). Doses are absorbed and eliminated at rates of first order; the time of a row is "
        "its item (bifactor) or feature (gmm).",
        choices=SAEM_MODELS,
    )  # fmt: skip
    slopes: str | None = setting(
        None, "linear: covariates with a random slope, with commas between, or none. Default: "
        "time.", idle=_of("linear"),
    )  # fmt: skip
    curve: str | None = setting(
        None, "curve: a formula (logistic, four-parameter, gompertz, asymptotic, biexponential, "
        "michaelis-menten, emax), or FILE.py:NAME, a function of your own, which is run.",
        idle=_of("curve"),
    )  # fmt: skip
    parameters: str | None = setting(
        None, "Compartments: parameters, with commas between: ka first if doses are absorbed, "
        "then cl,v or cl,ke or v,ke, or cl,v1,q,v2; tlag last if late. Default: ka,cl,ke, "
        "cl,v1,q,v2.", idle=_of("one-compartment", "two-compartment"),
    )  # fmt: skip
    error: str | None = setting(
        None, "Mixed models: law of measurements, or of each outcome with commas between: "
        "constant, proportional, combined or exponential error, bernoulli (yes or no by a logit), "
        "poisson (counts by a logarithm). Default: constant.", idle=_of(*MIXED),
    )  # fmt: skip
    random: str | None = setting(
        None, "Mixed models: which parameters vary between individuals, with commas between; of "
        "linear intercept and slopes. Default: all.", idle=_of(*MIXED),
    )  # fmt: skip
    effects: str | None = setting(
        None, "Mixed models: covariates that means depend on, PARAMETER:COVARIATE with commas "
        "between: cl:log(weight/70),v:sex.", idle=_of(*MIXED),
    )  # fmt: skip
    covariance: str | None = setting(
        None, "Mixed models: diagonal or full, of what varies. Default: full (linear), diagonal.",
        choices=("diagonal", "full"), idle=[_of(*MIXED), FEW_VARY],
    )  # fmt: skip
    first: str | None = setting(
        None, "Curves: means to begin with on the parameters' scales, logarithms of those of "
        "compartments: 0.5,-3.2,-2.5. Default: read from each curve.",
        idle=_of(*CURVES),
    )  # fmt: skip
    groups: str | None = setting(
        None, "bifactor: group of each item, numbered from 0: 0,0,0,1,1,1.", idle=_of("bifactor")
    )
    components: int | None = setting(
        None, "gmm, lda: components, topics. Default: 2, 10.", flags="-k --components", least=1,
        idle=(
            lambda given: given["model"] not in ("gmm", "lda"),
            (" is for the models gmm and lda; leave it out",),
        ),
    )  # fmt: skip
    alpha: float | None = setting(
        None, "lda: how even the topics of a document are. Default: 1 / topics.", least=1e-4,
        most=1e6, idle=_of("lda"),
    )  # fmt: skip
    eta: float | None = setting(
        None, "lda: added to how often a word comes in a topic. Default: 1 / topics.", least=1e-9,
        most=1e6, idle=_of("lda"),
    )  # fmt: skip
    init_individuals: str | None = setting(
        None, "gmm: individuals whose values are the first means, with commas between. Default: "
        "evenly spaced ones.", heading="Start", idle=_of("gmm"),
    )  # fmt: skip
    reg_covar: float | None = setting(
        None,
        "gmm: added to variances. Default: 1e-6 of each item's.",
        least=0.0,
        most=1e100,
        idle=_of("gmm"),
    )


class SamplerSettings(Settings, heading="Sampler", kept=False):
    """Which sampler, and its options: those of `vpem.saem.samplers` by their names in a shell."""

    sampler: str = setting(
        "auto", "exact (independent draws: linear, bifactor, gmm), metropolis (walks and jumps), "
        "langevin (unadjusted: biased by its step), mala (adjusted), hmc (Hamiltonian). auto: "
        "exact where the model has it, metropolis for others or with --sampler-steps or --target.",
        choices=SAMPLERS,
    )  # fmt: skip
    sampler_steps: int | None = setting(
        None, "Steps of the sampler an iteration. Default: 2 (metropolis: sweeps; hmc), 5 (mala), "
        "10 (langevin).", least=1, most=10_000,
    )  # fmt: skip
    target: float | None = setting(
        None, "Acceptance rate that moves are adapted to in the burn-in. Default: 0.44 "
        "(metropolis), 0.574 (mala), 0.8 (hmc).", least=0.05, most=0.95,
    )  # fmt: skip
    step_size: float | None = setting(
        None, "Step of langevin, or first of mala, in units of the curvature's covariance. "
        "Default: 0.5, 1.", least=1e-12, most=1e6,
    )  # fmt: skip
    step_decay: float | None = setting(
        None, "langevin: after the burn-in its step falls with this power; 0: constant. Default: "
        "1/3.",
        least=0.0, most=1e6,
    )  # fmt: skip
    no_precondition: bool = setting(
        False,
        "langevin, mala: steps of one size for all latents, in their own units, not the "
        "curvature's.",
    )
    gradient_compress: str | None = setting(
        None, "langevin: codec of the gradients of latents, such as qsgd:4bits. Default: numbers "
        "as they are.", heading="Messages and faults",
    )  # fmt: skip
    threads: int | None = setting(
        None, "Threads of samplers that are not exact; results do not depend on it. Default: all "
        "processors.", heading="Running", least=1, most=1024,
    )  # fmt: skip


PARAMETER_OF = {
    "sampler_steps": "n_steps",
    "target": "target",
    "step_size": "step",
    "step_decay": "decay",
    "no_precondition": "precondition",
    "gradient_compress": "codec",
    "threads": "n_threads",
}
"""Parameters of samplers by the settings of the command."""


def words_of(text: str) -> list[str]:
    """Read words with commas between; "none" is no words."""
    words = [word.strip() for word in text.split(",")]
    return [] if words == ["none"] else words


def _numbers_of(name: str, text: str, kind: type, like: str) -> list[Any]:
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        raise InputError(
            Setting(name), f" must be numbers with commas between, such as {like}, got {text!r}"
        ) from None


def model_options_of(settings: ModelSettings) -> Report:
    """Return the given options of a model as the library takes them."""
    taken = settings.values("model", "components", "init_individuals")
    taken = {name: value for name, value in taken.items() if value is not None}
    for name in ("slopes", "random", "effects", "parameters", "error"):
        if name in taken:
            taken[name] = words_of(taken[name])
            if name != "error" and len(set(taken[name])) < len(taken[name]):
                raise InputError(
                    Setting(name), f" must differ from each other, got {getattr(settings, name)!r}"
                )
    if "error" in taken and len(taken["error"]) == 1:
        taken["error"] = taken["error"][0]
    if "first" in taken:
        taken["first"] = _numbers_of("first", taken["first"], float, "0.5,-3.2,-2.5")
    if settings.model == "curve" and settings.curve is None:
        raise InputError("--model curve needs --curve: a formula such as logistic, or FILE.py:NAME")
    if "groups" in taken:
        taken["groups"] = _numbers_of("groups", taken["groups"], int, "0,0,0,1,1,1")
    elif settings.model == "bifactor":
        raise InputError(
            "--model bifactor needs --groups: the group of each item, such as 0,0,0,1,1,1"
        )
    if settings.model == "gmm":
        taken["n_components"] = settings.components or 2
    if settings.model == "lda":
        taken["n_topics"] = settings.components or 10
    return taken


def sampler_options_of(
    model: str, chosen: Mapping[str, object], moves: SamplerSettings, given: Given
) -> Report:
    """Return the sampler for a model, its options, and the codec of gradients."""
    from vpem._core.threads import thread_count
    from vpem.network.codecs import parse_codec
    from vpem.saem.models.model import model_class
    from vpem.saem.samplers import AUTO, SAMPLERS, usual_sampler

    known = {one: set(kind.__dataclass_fields__) for one, kind in SAMPLERS.items()}
    options = moves.values("sampler").items()
    taken = {one: value for one, value in options if given.has(one) and value is not None}
    requested = name = moves.sampler
    if name == AUTO:
        name = usual_sampler(model_class(model, chosen), {PARAMETER_OF[one]: None for one in taken})
    for one in taken:
        parameter = PARAMETER_OF[one]
        if parameter not in known[name] and (requested != AUTO or one != "threads"):
            others = [other for other in SAMPLERS if parameter in known[other]]
            kinds = "sampler" if len(others) == 1 else "samplers"
            listed = " and ".join([", ".join(others[:-1]), others[-1]] if others[1:] else others)
            advice = f"; give --sampler {others[0]}" if requested == AUTO else ""
            raise InputError(Setting(one), f" is for the {kinds} {listed}, not {name}{advice}")
    parameters = {PARAMETER_OF[one]: value for one, value in taken.items()}
    if "precondition" in parameters:
        parameters["precondition"] = not parameters["precondition"]
    parameters.pop("n_threads", None)
    if "n_threads" in known[name]:
        parameters["n_threads"] = thread_count(moves.threads)
    codec = parameters.pop("codec", None)
    gradients = None if codec is None else parse_codec(codec)
    return {"sampler": requested, "sampler_options": parameters, "gradient_codec": gradients}


def check_start(settings: SaemSettings, strict: bool) -> None:
    """Refuse iterations without a decreasing step, and --strict of a run that cannot converge."""
    from vpem.saem.saem import burn_in_of

    burn_in = burn_in_of(settings.n_iter, settings.burn_in)
    if burn_in >= settings.n_iter:
        raise InputError(
            f"--burn-in must be below --iterations, or no step decreases, got {burn_in} of "
            f"{settings.n_iter}"
        )
    if strict and settings.tol == 0:
        raise InputError("--strict needs a --tol above 0: without it nothing can converge")


def needed_covariates(model: str, options: Mapping[str, Any]) -> list[str]:
    """Return the covariates that a model with these options reads."""
    from vpem.saem.models.model import MODELS, model_class

    return list(model_class(model, options).reads(options)) if model in MODELS else []


def name_words(options: Report, words: Mapping[str, Sequence[str]]) -> list[str]:
    """Split covariates of words in effects and slopes by words but the first; return notes."""
    notes = []
    for name, known in words.items():
        for option in ("effects", "slopes"):
            parts = [one.split(":") for one in options.get(option, ())]
            if not any(name in one for one in parts):
                continue
            if len(known) < 2:
                raise InputError(
                    f"covariate {name!r} has one word only, {known[0]!r}, so that no effect of it "
                    "can be seen; leave it out"
                )
            options[option] = [
                ":".join(f"{name}={word}" if part == name else part for part in one)
                for one in parts for word in (known[1:] if name in one else known[:1])
            ]  # fmt: skip
            notes.append(f"{name}: effects are relative to {known[0]}")
    return list(dict.fromkeys(notes))


def start_of(path: Path, model: str, individuals: Individuals, options: Mapping[str, Any]) -> Any:
    """Return the estimates (p,) of a file, whose parameters must be those of this model."""
    from vpem.saem.formats.fits import read_saem
    from vpem.saem.models.model import make_model

    saved = read_saem(path)
    expected = make_model(model, individuals, **options).parameters
    if tuple(saved.parameters) != tuple(expected):
        raise InputError(
            f"{path} holds {saved.model} with {len(saved.parameters)} parameters, not those of "
            f"this {model} with {len(expected)}; start from a fit of the same model"
        )
    return saved.theta


def read_if_there(model: str) -> tuple[str, ...]:
    """Return covariates that a model reads if the data have them."""
    if model in ("bifactor", "gmm"):  # of tables, whose columns are times
        return ()
    return ("outcome", "censored", *(("dose",) if model == "curve" else ()))


@dataclass(frozen=True)
class RowReader:
    """Reads measurements of individuals and their weights."""

    columns: Mapping[str, str | None]
    covariates: str | None
    needed: Sequence[str]
    missing: bool
    weight: str | None
    doses: str | None = None
    also: Sequence[str] = ()
    apart: bool = False  # refuses words, which other parties would learn

    def read(self, file: Path, id_column: str | None = None) -> Individuals:
        """Read the individuals of a file."""
        columns = {**self.columns, **({} if id_column is None else {"id": id_column})}
        needed = [*self.needed, *([] if self.weight is None else [self.weight])]
        individuals = individuals_of(
            file, columns, self.covariates, needed, None, self.missing, self.doses, self.also,
            () if self.apart else self.needed,
        )  # fmt: skip
        if self.weight is None:
            return individuals
        weights = individuals.constant(self.weight)
        if (weights <= 0).any():
            who = int(weights.argmin())
            raise InputError(
                f"{file}: the weight of individual {individuals.names[who]!r} must be above 0, got "
                f"{weights[who]:g}; leave out individuals of weight 0"
            )
        return replace(individuals, weights=weights)

    def share(
        self, parts: Mapping[int, Individuals], engine: Engine | None
    ) -> tuple[dict[int, Individuals], None]:
        """Number the words of all parties alike; if some individuals have doses, all have."""
        from vpem.saem.doses import doses_of
        from vpem.saem.formats.individuals import join_numbers, numbered_as

        local_facts = [
            (part.doses is not None, part.columns.get("words", {})) for part in parts.values()
        ]
        known = (
            local_facts
            if engine is None
            else [one for some in engine.allgather(local_facts) for one in some]
        )
        tables = join_numbers([words for _, words in known])
        numbered = {place: numbered_as(part, tables) for place, part in parts.items()}
        if any(has_doses for has_doses, _ in known):
            numbered = {
                place: replace(part, doses=doses_of(part)) for place, part in numbered.items()
            }
        return numbered, None


def individuals_of(
    data: Path,
    columns: Mapping[str, str | None],
    covariates: str | None,
    needed: Sequence[str],
    fitted: Mapping[str, Any] | None = None,
    missing: bool = False,
    doses: str | None = None,
    also: Sequence[str] = (),
    texts: Sequence[str] | None = None,
) -> Individuals:
    """Read individuals from CSV or HDF5.

    ``columns`` names those of id, time and value; ``covariates`` (``dose=amt,weight``) and
    ``doses`` (``amt=AMT,rate=RATE``) are as the user typed them. ``needed`` covariates must be
    there, ``also`` are read if they are; ``texts``, by default all ``needed``, may be words.
    Columns that were not given are as in ``fitted``, the `Individuals.columns` of a fit.
    """
    from vpem.files.observations import is_long_csv
    from vpem.saem.formats.individuals import numbered_as, read_individuals

    named_columns = {name: column for name, column in columns.items() if column is not None}
    is_table = is_long_csv(data)
    if (named_columns or doses is not None) and not is_table:
        flags = [*named_columns, *([] if doses is None else ["doses"])]
        raise InputError(
            f"{', '.join(f'--{name}' for name in flags)} name columns of a CSV table, but {data} "
            "is none"
        )
    known, known_covariates = (
        _names_in(dict(fitted or {})),
        _names_in((fitted or {}).get("covariates")),
    )
    three: Report = {name: named_columns.get(name, known.get(name, name)) for name in columns}
    if len(set(three.values())) < len(three):
        raise InputError("--id, --time and --value must be three different columns")
    typed = _typed("covariates", covariates, "dose=amt,weight")
    column_of = {**{name: known_covariates.get(name, name) for name in needed}, **typed}
    maybe = {name: known_covariates.get(name, name) for name in also if name not in column_of}
    events = (
        _events(data, doses, {**column_of, **maybe}, fitted or {}) if "dose" not in typed else None
    )
    if "dose" in column_of and (events is not None or not is_table):
        maybe["dose"] = column_of.pop("dose")
    if events is not None:
        maybe.pop("dose", None)
    words = [{**column_of, **maybe}.get("outcome", "outcome")]
    try:
        individuals = read_individuals(
            data, covariates=list(column_of.values()), also=list(maybe.values()), words=words,
            texts=[column_of[name] for name in (needed if texts is None else texts)
                   if name != "dose" and name in column_of],
            missing=missing, doses=events, **(three if is_table else {}),
        )  # fmt: skip
    except MissingColumnError as error:
        left = {
            name: column
            for name, column in {**three, **column_of}.items()
            if column in error.columns and name not in (*named_columns, *typed)
        }
        if not left:
            raise
        raise InputError(f"{error}{_advice(left, three, bool(fitted))}") from None
    column_of |= {
        name: column for name, column in maybe.items() if column in individuals.covariates
    }
    named = {name: individuals.covariates[column] for name, column in column_of.items()}
    others = {name: column for name, column in column_of.items() if name != column}
    stored_columns = {**individuals.columns, **({"covariates": others} if others else {})}
    if "words" in stored_columns:
        stored_columns["words"] = {
            name: stored_columns["words"][column]
            for name, column in column_of.items()
            if column in stored_columns["words"]
        }
    individuals = replace(individuals, covariates=named, columns=stored_columns)
    return numbered_as(individuals, words_in(fitted or {}))  # words have the numbers of the fit


def words_in(fitted: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return words of covariates of a fit's `Individuals.columns`, in which nothing is trusted."""
    stored = fitted.get("words")
    return {
        name: words
        for name, words in (stored if isinstance(stored, dict) else {}).items()
        if isinstance(words, list) and all(isinstance(word, str) for word in words)
    }


def _names_in(stored: Any) -> dict[str, str]:
    """Return the names of columns in `Individuals.columns` of a fit, where nothing is trusted."""
    named = stored.items() if isinstance(stored, dict) else ()
    return {name: column for name, column in named if isinstance(column, str) and column}


def _events(
    data: Path, doses: str | None, covariates: Mapping[str, str], fitted: Mapping[str, Any]
) -> dict[str, str] | None:
    """Return columns of doses with unusual names; None: there are no doses.

    There are if the user names some, the fit had some, or amounts take the place of a covariate.
    """
    from vpem.files.observations import header_of

    if doses is not None:
        return _typed("doses", doses, "amt=AMT,rate=RATE")
    fitted_doses = fitted.get("doses")
    header = [column.strip() for column in header_of(data)]
    if isinstance(fitted_doses, dict):
        return {name: column for name, column in fitted_doses.items() if column in header}
    dose = covariates.get("dose")
    if dose is None or dose in header:
        return None
    return {} if "amt" in [column.lower() for column in header] else None


def _advice(left: Collection[str], three: Collection[str], fitted: bool) -> str:
    """Return which options name columns that the table lacks, and what to give instead."""
    flags = [f"--{name} COLUMN" for name in left if name in three]
    others = [f"{name}=COLUMN" for name in left if name not in three]
    names = [f"--{name}" if name in three else repr(name) for name in left]
    of_fit = f"; that is {' and '.join(names)} of the fit" if fitted else ""
    typed = " ".join([*flags, *([f"--covariates {','.join(others)}"] if others else [])])
    several = "the names of these columns" if len(left) > 1 else "the name of this column"
    return f"{of_fit}; give {several}: {typed}"


def _typed(option: str, text: str | None, like: str) -> dict[str, str]:
    """Return columns by their contents, as the user typed them: ``dose=amt,weight``."""
    column_of: dict[str, str] = {}
    for word in [] if text is None else words_of(text):
        name, _, column = word.partition("=")
        if not name or name in column_of:
            raise InputError(
                f"--{option} must be different names with commas between, such as {like}, got "
                f"{text!r}"
            )
        column_of[name] = column or name
    return column_of
