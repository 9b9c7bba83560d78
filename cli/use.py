"""`vpem predict`, `score`, `sample` and `evaluate`: a fit at work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import DatasetPath, Force, Missing, Quiet, QuoteFormulas
from .roles import READ, WRITTEN

__all__ = [
    "Covariates",
    "FitFile",
    "Id",
    "Json",
    "Time",
    "Value",
    "evaluate",
    "predict",
    "sample",
    "score",
]

ModelFile = Annotated[Path, READ, typer.Argument(help="Model, from 'vpem fit --output'.")]
FitFile = Annotated[
    Path, READ, typer.Argument(help="Model, clusters or fit of SAEM, from the --output of a fit.")
]
DataFile = Annotated[Path, READ, typer.Argument(help="Dataset with the model's features.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
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


def predict(
    model: FitFile,
    data: Annotated[
        Path | None,
        READ,
        typer.Argument(
            help="Dataset with the model's features; individuals for a fit of SAEM, which can do "
            "without.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        WRITTEN,
        typer.Option("-o", "--output", help="Write here: .csv or .h5. Default: CSV on stdout."),
    ] = None,
    proba: Annotated[
        bool, typer.Option("--proba", help="Add the responsibilities of every component.")
    ] = False,
    missing: Missing = "refuse",
    dataset: DatasetPath = None,
    individual: OneIndividual = None,
    times: Times = None,
    population: Population = False,
    latents: OnlyLatents = False,
    id: Id = None,
    time: Time = None,
    value: Value = None,
    covariates: CovariatesOrValues = None,
    quote_formulas: QuoteFormulas = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Assign rows to components or centres; predict individuals.

    A row goes to its most responsible component, or to its nearest centre, whose distance is told
    (of clusters fitted with --scale standard that of standardized features).

    With a fit of SAEM: the curve of each individual given its rows, with an interval of the curve
    (not of new measurements); the classes of a mixture; the factors of bifactor.

    Example: vpem predict model.h5 data/breast_cancer.h5 --proba -o labels.csv

    Example: vpem predict clusters.h5 data/breast_cancer.h5 -o labels.csv

    Example: vpem predict growth.h5 data/oxford_boys.csv --individual 7 --times -1:1:0.5
    """
    from .kinds import IndividualOptions, Output, Request, RowOptions, stored_at
    from .output import Screen, plural

    with Screen(quiet) as screen:
        from vpem.files.hdf5 import check_writable

        if output is not None:
            check_writable(output, force, "results")
        rows = RowOptions(dataset=dataset, missing=missing)
        individuals = IndividualOptions(
            individual, times, population, latents, id, time, value, covariates
        )
        target = Output(output, force, quote_formulas, json)
        count = stored_at(model).predict(Request(data, rows, individuals, target, proba))
        if output is not None:
            screen.say(f"wrote {plural(count, 'row')} to {output}")


def score(
    model: FitFile,
    data: DataFile,
    missing: Missing = "refuse",
    dataset: DatasetPath = None,
    id: Id = None,
    time: Time = None,
    value: Value = None,
    covariates: Covariates = None,
    json: Json = False,
) -> None:
    """Compute log-likelihood, BIC and AIC of data under a model.

    Under clusters: inertia. Under a fit of SAEM: log-likelihood of individuals, by formula or
    importance sampling.

    Example: vpem score model.h5 data/breast_cancer.h5 --json
    """
    from .kinds import IndividualOptions, Output, Request, RowOptions, stored_at
    from .output import Screen

    with Screen():
        rows = RowOptions(dataset=dataset, missing=missing)
        individuals = IndividualOptions(id=id, time=time, value=value, covariates=covariates)
        stored_at(model).score(Request(data, rows, individuals, Output(json=json)))


def sample(
    model: ModelFile,
    n: Annotated[int, typer.Option("-n", "--samples", help="Rows to draw.")] = 100,
    output: Annotated[
        Path | None,
        WRITTEN,
        typer.Option("-o", "--output", help="Write here: .csv or .h5. Default: CSV on stdout."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    quote_formulas: QuoteFormulas = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Draw rows from a model, each labelled with its component.

    Example: vpem sample model.h5 -n 1000 -o drawn.h5
    """
    from .kinds import Output, stored_at
    from .output import Screen, plural

    with Screen(quiet) as screen:
        from vpem.checks import check_int
        from vpem.files.hdf5 import check_writable

        count = check_int("-n", n, least=1)
        check_int("seed", seed, least=0)
        if output is not None:
            check_writable(output, force, "results")
        target = Output(output, force, quote_formulas, json=False)
        stored_at(model).sample(count, seed, target)
        if output is not None:
            screen.say(f"wrote {plural(count, 'row')} to {output}")


def evaluate(
    model: FitFile,
    data: DataFile,
    labels: Annotated[
        str,
        READ,
        typer.Option(
            help="Where the labels are: a dataset inside the HDF5 file, or a text file with one a "
            "line."
        ),
    ] = "labels",
    dataset: DatasetPath = None,
    json: Json = False,
) -> None:
    """Compare components or clusters with labels.

    The labels are those that fitting never saw. Accuracy is taken under the best one-to-one mapping
    of components to labels.

    Example: vpem evaluate model.h5 data/breast_cancer.h5 --labels labels
    """
    from .kinds import Output, Request, RowOptions, stored_at
    from .output import Screen

    with Screen():
        rows = RowOptions(labels, dataset)
        stored_at(model).evaluate(Request(data, rows, output=Output(json=json)))
