"""What `vpem predict` and `vpem score` do with a fit of SAEM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vpem.saem.individuals import Individuals
    from vpem.saem.prediction import Curves, Predictor
    from vpem.saem.saved import SavedSaem

__all__ = [
    "Columns",
    "Covariates",
    "CovariatesOrValues",
    "Id",
    "OneIndividual",
    "OnlyLatents",
    "Population",
    "Time",
    "Times",
    "Value",
    "predict_saem",
    "read_some",
    "refuse_options",
    "refuse_saem",
    "score_saem",
]

OneIndividual = Annotated[
    list[str] | None,
    typer.Option(
        "--individual",
        help="Fits of SAEM: this individual only, of DATA or, without DATA, of the fit. Several: "
        "repeat it.",
    ),
]
Times = Annotated[
    str | None,
    typer.Option(
        help="Fits of SAEM: when to predict, 0:24:0.5 (from, to, step) or 0,1,2.5. Default: at the "
        "rows of DATA; without DATA 50 times over those of the fit."
    ),
]
Population = Annotated[
    bool,
    typer.Option(
        "--population",
        help="Fits of SAEM: the curve of the mean latents, for individuals without rows.",
    ),
]
OnlyLatents = Annotated[
    bool,
    typer.Option("--latents", help="Fits of SAEM: means and intervals of latents, not curves."),
]
Id = Annotated[
    str | None,
    typer.Option(
        "--id", help="Fits of SAEM: column of a CSV with the individual. Default: as fitted."
    ),
]
Time = Annotated[
    str | None, typer.Option(help="Fits of SAEM: column with the time. Default: as fitted.")
]
Value = Annotated[
    str | None, typer.Option(help="Fits of SAEM: column with the measurement. Default: as fitted.")
]
Covariates = Annotated[
    str | None,
    typer.Option(
        help="Fits of SAEM: dose=amt reads the column amt as the dose. Default: as fitted."
    ),
]
CovariatesOrValues = Annotated[
    str | None,
    typer.Option(
        "--covariates",
        help="Fits of SAEM: dose=amt reads the column amt as the dose (default: as fitted); "
        "without DATA, with --population, dose=4.5 is the dose.",
    ),
]

MOST_TIMES = 100_000
Columns = dict[str, str | None]


def refuse_options(model: Path, given: Mapping[str, Any]) -> None:
    """Refuse options of fits of SAEM for another model."""
    from vpem.errors import InputError

    for flag, value in given.items():
        if value:
            raise InputError(f"{flag} is for fits of SAEM, which {model} is not; leave it out")


def refuse_saem(model: Path, what: str) -> None:
    """Say of a fit of SAEM that a command cannot use it."""
    from vpem.errors import InputError
    from vpem.saem.formats.fits import is_saem

    if is_saem(model):
        raise InputError(f"{model} is a fit of SAEM, {what}")


def times_of(text: str | None) -> list[float] | None:
    """Read times: from:to:step, or numbers with commas between."""
    from math import floor, isfinite

    from vpem.errors import InputError

    if text is None:
        return None
    try:
        if ":" in text:
            first, last, step = (float(word) for word in text.split(":"))
            if not (isfinite(first) and isfinite(last) and isfinite(step) and step > 0):
                raise ValueError
            count = floor((last - first) / step * (1 + 1e-12) + 1e-9) + 1
            if not 0 < count <= MOST_TIMES:
                raise ValueError
            return [first + place * step for place in range(count)]
        found = [float(word) for word in text.split(",")]
        if not all(map(isfinite, found)) or len(found) > MOST_TIMES:
            raise ValueError
    except (ValueError, OverflowError):
        raise InputError(
            f"--times must be from:to:step with a step above 0, such as 0:24:0.5, or numbers with "
            f"commas between, at most {MOST_TIMES}, got {text[:60]!r}"
        ) from None
    return found


def values_of(text: str | None) -> dict[str, float]:
    """Read values of covariates: ``dose=4.5,weight=70``."""
    from math import isfinite

    from vpem.errors import InputError

    found: dict[str, float] = {}
    for word in [] if text is None else text.split(","):
        name, _, number = word.partition("=")
        try:
            value = float(number)
            if not name.strip() or not isfinite(value) or name.strip() in found:
                raise ValueError
        except ValueError:
            raise InputError(
                "without DATA --covariates must be values with commas between, such as "
                f"dose=4.5,weight=70, got {text!r}"
            ) from None
        found[name.strip()] = value
    return found


def read_some(
    saved: SavedSaem, data: Path, columns: Columns, covariates: str | None, wanted: list[str] | None
) -> Individuals:
    """Read the individuals, or those of them that are wanted."""
    from vpem.errors import InputError, did_you_mean

    from .saem_choices import individuals_of, needed_covariates

    needed = needed_covariates(saved.model, saved.model_options)
    kept = saved.settings.get("columns")
    fitted = kept if isinstance(kept, dict) else {}
    found = individuals_of(data, columns, covariates, needed, fitted)
    if wanted is None:
        return found
    place = {name: one for one, name in enumerate(found.names)}
    for name in wanted:
        if name not in place:
            raise InputError(f"{data} has no individual {name!r}{did_you_mean(name, place)}")
    return found.take([place[name] for name in wanted])


def predict_saem(
    model: Path,
    data: Path | None,
    *,
    output: Path | None,
    proba: bool,
    individual: list[str] | None,
    times: str | None,
    population: bool,
    latents: bool,
    columns: Columns,
    covariates: str | None,
    force: bool,
    quote_formulas: bool,
    as_json: bool,
) -> int:
    """Predict with a fit of SAEM; return how many rows were written."""
    from vpem.errors import InputError
    from vpem.files.tables import write_columns
    from vpem.saem.formats.fits import read_saem
    from vpem.saem.prediction import CURVES, Predictor

    from .output import print_json

    saved = read_saem(model)
    predictor = Predictor(saved)
    grid = times_of(times)
    if individual is not None and len(set(individual)) < len(individual):
        raise InputError("--individual must name different individuals")
    if proba and not saved.discrete:
        raise InputError(f"{model} has no classes; leave out --proba")
    if population and latents:
        raise InputError("give --population or --latents, not both")
    if data is None and any(columns.values()):
        given = next(name for name, value in columns.items() if value)
        raise InputError(f"--{given} names a column of DATA; give DATA")
    curves = saved.model in CURVES and not latents
    if not curves and (population or grid is not None):
        what = "--latents" if latents else f"the model {saved.model}"
        raise InputError(f"{what} has no curves over time; leave out --times and --population")
    if data is None and not population and covariates is not None:
        raise InputError("the fit knows its individuals' covariates; leave out --covariates")
    if data is None and population and individual is not None:
        raise InputError("--individual without DATA is one of the fit; leave out --population")
    found = None if data is None else read_some(saved, data, columns, covariates, individual)
    if curves:
        report, table = _curves(predictor, found, grid, population, individual, covariates)
        kind = "vpem-saem-curves"
    elif saved.discrete:
        report, table = _classes(predictor, found, proba)
        kind = "vpem-predictions"
    else:
        report, table = _latents(predictor, found, individual)
        kind = "vpem-saem-individuals"
    if output is not None or not as_json:
        write_columns(output, table, kind, force, quote_formulas)
    if as_json:
        head = {"model": saved.model, "n_individuals": report.pop("n_individuals")}
        told = {} if output is not None else report
        print_json({**head, "output": None if output is None else str(output), **told})
    return len(next(iter(table.values())))


def _curves(
    predictor: Predictor,
    found: Individuals | None,
    times: list[float] | None,
    population: bool,
    wanted: list[str] | None,
    covariates: str | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Curves, as a report and as columns."""
    import numpy as np

    if population:
        values = values_of(covariates) if found is None else None
        curves: Curves = predictor.population(times, values, found)
    elif found is None:
        curves = predictor.stored(wanted, times)
    else:
        curves = predictor.curves(found, times)
    at = curves.at
    measured = bool(np.isfinite(at.values).any())
    columns = {
        "id": np.array(at.names, dtype=np.str_)[at.individual_of],
        "time": at.times,
        **({"value": at.values} if measured else {}),
        "fitted": curves.fitted,
        "lower": curves.lower,
        "upper": curves.upper,
    }
    told = []
    for one, name in enumerate(at.names):
        rows = slice(at.first[one], at.first[one + 1])
        part = {key: values[rows] for key, values in columns.items() if key != "id"}
        told.append({"id": name, **part})
    report = {
        "n_individuals": at.n_individuals,
        "level": curves.level,
        "interval_of": "curve",
        "curves": told,
    }
    return report, columns


def _latents(
    predictor: Predictor, found: Individuals | None, wanted: list[str] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Latents given rows, or those of the fit, as a report and as columns."""
    import numpy as np

    given = predictor.stored_latents(wanted) if found is None else predictor.latents(found)
    sds = np.sqrt(np.maximum(np.einsum("nii->ni", given.covariances), 0.0))
    columns: dict[str, Any] = {"id": np.array(given.names, dtype=np.str_)}
    latents = predictor.saved.latents
    for j, name in enumerate(latents):
        columns[name] = given.means[:, j]
        columns[f"{name} sd"] = sds[:, j]
        columns[f"{name} lower"] = given.lower[:, j]
        columns[f"{name} upper"] = given.upper[:, j]
    told = [
        {
            "id": name,
            "latents": {
                latent: {
                    "mean": given.means[one, j],
                    "sd": sds[one, j],
                    "lower": given.lower[one, j],
                    "upper": given.upper[one, j],
                }
                for j, latent in enumerate(latents)
            },
        }
        for one, name in enumerate(given.names)
    ]
    report = {"n_individuals": len(given.names), "level": given.level, "individuals": told}
    return report, columns


def _classes(
    predictor: Predictor, found: Individuals | None, proba: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Most probable class given the rows, as a report and as columns."""
    import numpy as np

    from vpem.errors import InputError

    if found is None:
        raise InputError(
            f"the model {predictor.saved.model} predicts classes of individuals from their rows; "
            "give DATA"
        )
    shares = predictor.responsibilities(found)
    labels = shares.argmax(axis=1)
    names = np.array(found.names, dtype=np.str_)
    more = {f"proba_{k}": column for k, column in enumerate(shares.T)} if proba else {}
    counts = np.bincount(labels, minlength=shares.shape[1])
    report: dict[str, Any] = {"n_individuals": len(names), "counts": counts, "labels": labels}
    if proba:
        report["proba"] = shares
    return report, {"id": names, "label": labels, **more}


def score_saem(
    model: Path, data: Path, columns: Columns, covariates: str | None, as_json: bool
) -> None:
    """Log-likelihood of individuals under a fit of SAEM."""
    import numpy as np

    from vpem.saem.formats.fits import read_saem
    from vpem.saem.prediction import Predictor

    from .output import number, print_json, show, table

    saved = read_saem(model)
    predictor = Predictor(saved)
    found = read_some(saved, data, columns, covariates, None)
    likelihood = predictor.score(found)
    value, p = likelihood.value, len(saved.parameters)
    effective = float(np.min(likelihood.effective))
    bic = p * np.log(found.n_individuals) - 2 * value
    if as_json:
        print_json({
            "n_individuals": found.n_individuals,
            "n_samples": found.n_rows,
            "n_parameters": p,
            "log_likelihood": {
                "value": value, "error": likelihood.error, "least_effective_draws": effective,
            },
            "individuals": [
                {"id": name, "log_likelihood": each}
                for name, each in zip(found.names, likelihood.each.tolist(), strict=True)
            ],
            "bic": bic,
            "aic": 2 * p - 2 * value,
        })  # fmt: skip
        return
    told = f", Monte Carlo error {likelihood.error:.2g}" if likelihood.error else ""
    facts = (
        ("individuals", found.n_individuals),
        ("rows", found.n_rows),
        ("parameters", p),
        ("log-likelihood, total", f"{value:.4f}{told}"),
        ("log-likelihood per individual", number(value / found.n_individuals, 8)),
        ("BIC, of individuals", f"{bic:.4f}"),
        ("AIC", f"{2 * p - 2 * value:.4f}"),
    )
    show(table(facts, "", ""))
