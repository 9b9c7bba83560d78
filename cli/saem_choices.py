"""What `vpem saem` makes of its options: data, devices, options of models and samplers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vpem.network.holdings import Workers
    from vpem.network.schema import Report
    from vpem.saem.individuals import Individuals
    from vpem.saem.samplers import Sampler

__all__ = [
    "check_flow",
    "check_outputs",
    "devices_of",
    "individuals_of",
    "model_options_of",
    "needed_covariates",
    "rows_of_names",
    "sampler_of_options",
    "start_of",
    "words_of",
]

MODEL_FLAGS = {
    "slopes": ("--slopes", ("linear",)),
    "error": ("--error", ("one-compartment",)),
    "random": ("--random", ("one-compartment",)),
    "covariance": ("--covariance", ("one-compartment",)),
    "spread": ("--spread", ("one-compartment",)),
    "first": ("--first", ("one-compartment",)),
    "groups": ("--groups", ("bifactor",)),
    "n_components": ("--components", ("gmm",)),
    "rows": ("--init-individuals", ("gmm",)),
    "reg_covar": ("--reg-covar", ("gmm",)),
}
"""Options of models: what the user types, and which models take them."""

SAMPLER_FLAGS = {
    "n_steps": "--sampler-steps",
    "target": "--target",
    "step": "--step-size",
    "decay": "--step-decay",
    "precondition": "--no-precondition",
    "codec": "--gradient-compress",
    "n_threads": "--threads",
}
"""Options of samplers, and what the user types."""


def words_of(text: str) -> list[str]:
    """Read words with commas between; "none" stands for no words."""
    words = [word.strip() for word in text.split(",")]
    return [] if words == ["none"] else words


def _numbers_of(flag: str, text: str, kind: type, like: str) -> list[Any]:
    """Read numbers with commas between."""
    from vpem.errors import InputError

    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        raise InputError(
            f"{flag} must be numbers with commas between, such as {like}, got {text!r}"
        ) from None


def model_options_of(model: str, given: Mapping[str, Any]) -> Report:
    """Return the options of a model, as the library takes them.

    Parameters
    ----------
    model : str
        Name of the model.
    given : mapping
        By the library's names, as the user typed them; None where nothing was.
    """
    from math import isfinite

    from vpem.checks import check_int, check_number
    from vpem.errors import InputError, check_choice
    from vpem.saem.models.one_compartment import ERRORS

    taken = {name: value for name, value in given.items() if value is not None}
    for name in taken:
        flag, models = MODEL_FLAGS[name]
        if model not in models:
            raise InputError(f"{flag} is for the model {' and '.join(models)}, not {model}")
    if "slopes" in taken:
        taken["slopes"] = words_of(taken["slopes"])
        if len(set(taken["slopes"])) < len(taken["slopes"]):
            raise InputError(f"--slopes must differ from each other, got {given['slopes']!r}")
    if "error" in taken:
        check_choice("--error", taken["error"], ERRORS)
    if "covariance" in taken:
        check_choice("--covariance", taken["covariance"], ("diagonal", "full"))
    if "random" in taken:
        taken["random"] = words_of(taken["random"])
        for word in taken["random"]:
            check_choice("--random", word, ("ka", "cl", "ke"))
    if "spread" in taken:
        check_number("--spread", taken["spread"], least=1e-6)
    if "first" in taken:
        like = "0.5,-3.2,-2.5"
        taken["first"] = _numbers_of("--first", taken["first"], float, like)
        if len(taken["first"]) != 3 or not all(map(isfinite, taken["first"])):
            raise InputError(
                f"--first must be log ka, log cl and log ke, such as {like}, got {given['first']!r}"
            )
    if "groups" in taken:
        taken["groups"] = _numbers_of("--groups", taken["groups"], int, "0,0,0,1,1,1")
    elif model == "bifactor":
        raise InputError(
            "--model bifactor needs --groups: the group of each item, such as 0,0,0,1,1,1"
        )
    if model == "gmm":
        taken["n_components"] = check_int("--components", taken.get("n_components", 2), least=1)
    if "reg_covar" in taken:
        check_number("--reg-covar", taken["reg_covar"], least=0)
    return taken


def sampler_of_options(name: str, model: str, given: Mapping[str, Any]) -> Sampler:
    """Make the sampler for a model; ``given`` as for `model_options_of`."""
    from vpem._core.threads import thread_count
    from vpem.checks import check_int, check_number
    from vpem.errors import InputError, check_choice
    from vpem.network.codecs import parse_codec
    from vpem.saem.models.catalogue import model_class
    from vpem.saem.samplers import AUTO, SAMPLERS, sampler_of, usual_sampler

    known = {one: set(kind.__dataclass_fields__) for one, kind in SAMPLERS.items()}
    check_choice("--sampler", name, (AUTO, *SAMPLERS))
    taken = {one: value for one, value in given.items() if value is not None}
    asked = name
    if name == AUTO:
        name = usual_sampler(model_class(model), taken)
    for one in taken:
        if one not in known[name] and (asked != AUTO or one != "n_threads"):
            others = [other for other in SAMPLERS if one in known[other]]
            kinds = "sampler" if len(others) == 1 else "samplers"
            advice = f"; give --sampler {others[0]}" if asked == AUTO else ""
            raise InputError(
                f"{SAMPLER_FLAGS[one]} is for the {kinds} {' and '.join(others)}, not {name}"
                f"{advice}"
            )
    if "n_steps" in taken:
        check_int("--sampler-steps", taken["n_steps"], least=1, most=10_000)
    if "target" in taken:
        check_number("--target", taken["target"], least=0.05, most=0.95)
    if "step" in taken:
        check_number("--step-size", taken["step"], least=1e-12, most=1e6)
    if "decay" in taken:
        check_number("--step-decay", taken["decay"], least=0, most=1e6)
    if "n_threads" in taken:
        check_int("--threads", taken["n_threads"], least=1, most=1024)
    if "codec" in taken:
        taken["codec"] = parse_codec(taken["codec"])
    if "n_threads" in known[name]:
        taken["n_threads"] = thread_count(taken.get("n_threads"))
    else:
        taken.pop("n_threads", None)
    return sampler_of(name, **taken)


def check_flow(given: Mapping[str, Any]) -> int:
    """Check numbers and choices that do not depend on data; return the iterations of burn-in."""
    from vpem.checks import check_int, check_number
    from vpem.errors import InputError, check_choice
    from vpem.saem.saem import burn_in_of
    from vpem.settings import AVERAGES, FEEDBACKS, SHARES

    iterations = check_int("--iterations", given["iterations"], least=1)
    burn_in = check_int("--burn-in", burn_in_of(iterations, given["burn_in"]), least=0)
    if burn_in >= iterations:
        raise InputError(
            f"--burn-in must be below --iterations, else no step decreases, got {burn_in} of "
            f"{iterations}"
        )
    if given["chains"] is not None:
        check_int("--chains", given["chains"], least=1, most=10_000)
    check_number("--decay", given["decay"], least=0.5, most=1, above=True)
    check_choice("--average", given["average"], AVERAGES)
    feedback = given["feedback"]
    if feedback is not None:
        check_choice("--feedback", feedback, FEEDBACKS)
    check_number("--participation", given["participation"], least=0, most=1, above=True)
    check_number("--participation", given["participation"], least=1e-6, most=1)
    check_number("--tol", given["tol"], least=0)
    check_int("--window", given["window"], least=1)
    check_int("--conditional-draws", given["conditional_draws"], least=2)
    check_int("--importance-draws", given["importance_draws"], least=10)
    check_number("--level", given["level"], least=0.01, most=0.999)
    check_int("--seed", given["seed"], least=0, most=2**64 - 1)
    if given["shares"] is not None:
        check_choice("--shares", given["shares"], SHARES)
        if given["average"] != "models":
            raise InputError("--shares weighs models: it needs --average models")
    if given["average"] == "models" and given["compress"] is not None:
        raise InputError(
            "--average models sends models exactly: leave out --compress, or average statistics"
        )
    if given["average"] == "models" and feedback not in (None, "none"):
        raise InputError("--feedback is about statistics: it needs --average statistics")
    if feedback not in (None, "none") and given["compress"] is None:
        raise InputError(f"--feedback {feedback} is about a codec's error: it needs --compress")
    if given["strict"] and given["tol"] == 0:
        raise InputError("--strict needs a --tol above 0: without it nothing can converge")
    return burn_in


def check_outputs(
    output: Path | None, individuals: Path | None, traces: Path | None, force: bool
) -> None:
    """Check that all results can be written."""
    from vpem.files.hdf5 import check_writable
    from vpem.pictures.figure import check_picture

    if output is not None:
        check_writable(output, force, "fits of SAEM")
    if individuals is not None:
        check_writable(individuals, force, "results")
    if traces is not None:
        check_picture(traces, force)


def individuals_of(
    data: Path,
    columns: Mapping[str, str | None],
    covariates: str | None,
    needed: Sequence[str],
    fitted: Mapping[str, Any] | None = None,
) -> Individuals:
    """Read the data.

    Parameters
    ----------
    data : Path
        CSV or HDF5.
    columns : mapping
        Names of the columns id, time and value; None where none was given.
    covariates : str or None
        As the user typed them: ``dose=amt,weight``.
    needed : sequence of str
        Covariates of the model, read in any case.
    fitted : mapping, optional
        `Individuals.columns` of those that a model was fitted to, for what was not given.
    """
    from dataclasses import replace

    from vpem.errors import InputError, MissingColumnError
    from vpem.saem.formats.individuals import read_individuals

    given = {name: column for name, column in columns.items() if column is not None}
    is_table = data.suffix.lower() == ".csv"
    if given and not is_table:
        raise InputError(
            f"{', '.join(f'--{name}' for name in given)} name columns of a CSV table, and {data} "
            "is none"
        )
    known, known_covariates = _remembered(fitted or {})
    three = {name: given.get(name, known.get(name, name)) for name in columns}
    if len(set(three.values())) < len(three):
        raise InputError("--id, --time and --value must be three different columns")
    typed = _covariates_of(covariates)
    column_of = {**{name: known_covariates.get(name, name) for name in needed}, **typed}
    try:
        found = read_individuals(
            data, covariates=list(column_of.values()), **(three if is_table else {})
        )
    except MissingColumnError as error:
        for name, column in (*three.items(), *column_of.items()):
            if column == error.column and name not in (*given, *typed):
                flag, advice = f"--{name}", f"give --{name} with the name that it has here"
                if name not in three:
                    flag, advice = repr(name), f"give --covariates {name}=COLUMN"
                told = f"; that is {flag} of the fit" if fitted else ""
                raise InputError(f"{error}{told}; {advice}") from None
        raise
    named = {name: found.covariates[column] for name, column in column_of.items()}
    others = {name: column for name, column in column_of.items() if name != column}
    kept = {**found.columns, **({"covariates": others} if others else {})}
    return replace(found, covariates=named, columns=kept)


def _remembered(fitted: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Columns, and those of covariates, that a fit was made of; a file may hold anything there."""

    def words(held: Any) -> dict[str, str]:
        held = held if isinstance(held, dict) else {}
        return {name: column for name, column in held.items() if isinstance(column, str) and column}

    return words(dict(fitted)), words(fitted.get("covariates"))


def _covariates_of(text: str | None) -> dict[str, str]:
    """Columns of covariates by their names, as the user typed them: ``dose=amt,weight``."""
    from vpem.errors import InputError

    found: dict[str, str] = {}
    for word in [] if text is None else words_of(text):
        name, _, column = word.partition("=")
        if not name or name in found:
            raise InputError(
                "--covariates must be different names with commas between, such as "
                f"dose=amt,weight, got {text!r}"
            )
        found[name] = column or name
    return found


def needed_covariates(model: str, options: Mapping[str, Any]) -> list[str]:
    """Return the covariates that a model with these options reads."""
    if model == "one-compartment":
        return ["dose"]
    return [name for name in options.get("slopes", ()) if name != "time"]


def devices_of(found: Individuals, number: int | None, file: Path | None) -> Workers:
    """Choose who holds which individuals."""
    from vpem.checks import check_int
    from vpem.errors import InputError
    from vpem.network.holdings import evenly
    from vpem.saem.formats.devices import read_devices

    if number is not None and file is not None:
        raise InputError("give --devices or --device-individuals, not both")
    if file is not None:
        return read_devices(file, found.names)
    number = check_int("--devices", 1 if number is None else number, least=1)
    if number > found.n_individuals:
        raise InputError(
            f"--devices must be at most the {found.n_individuals} individuals of {found.source}, "
            f"got {number}"
        )
    return evenly(found.n_individuals, number, [f"device {place}" for place in range(number)])


def rows_of_names(found: Individuals, text: str) -> list[int]:
    """Return the numbers of individuals whose names were typed with commas between."""
    from vpem.errors import InputError, did_you_mean

    place = {name: row for row, name in enumerate(found.names)}
    for word in words_of(text):
        if word not in place:
            raise InputError(
                f"--init-individuals: {found.source} has no individual {word!r}"
                f"{did_you_mean(word, place)}"
            )
    return [place[word] for word in words_of(text)]


def start_of(path: Path, model: str, found: Individuals, options: Mapping[str, Any]) -> Any:
    """Return the estimates (p,) of a model file, if its parameters are those of this model."""
    from vpem.errors import InputError
    from vpem.saem.formats.fits import read_saem
    from vpem.saem.models.catalogue import make_model

    saved = read_saem(path)
    wanted = make_model(model, found, **options).parameters
    if saved.parameters != tuple(wanted):
        raise InputError(
            f"{path} holds {saved.model} with {len(saved.parameters)} parameters, not those of "
            f"this {model} with {len(wanted)}; start from a fit of the same model"
        )
    return saved.theta
