"""`vpem predict`, `score`, `sample` and `evaluate`: a fit at work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..data import OF_A_FIT, DataParties
from ..display import Screen, plural
from ..options import Without
from ..outputs import READ, ResultSettings
from ..session import EngineSettings
from .kinds import stored_at
from .loading import IndividualSettings, PredictedSettings, RowSettings, UseRequest

ModelFile = Annotated[Path, READ, typer.Argument(help="Model, from 'vpem fit --output'.")]
FitFile = Annotated[
    Path, READ, typer.Argument(help="Model, clusters or fit of SAEM, from the --output of a fit.")
]
DATA = "Dataset with the model's features; with --parties a file each, or a manifest."
DataFile = Annotated[list[Path], READ, typer.Argument(help=DATA)]


def predict(
    model: FitFile,
    data: Annotated[
        list[Path] | None,
        READ,
        typer.Argument(help=f"{DATA} Individuals for a fit of SAEM, which can also do without."),
    ] = None,
    proba: Annotated[
        bool, typer.Option("--proba", help="Add the responsibilities of every component.")
    ] = False,
    *,
    rows: Annotated[RowSettings, Without("labels features sample_weight")],
    parties: Annotated[DataParties, Without(f"{OF_A_FIT} label_column")],
    individuals: PredictedSettings,
    engine: Annotated[EngineSettings, Without("shards")],
    results: ResultSettings,
) -> None:
    """Assign rows to components or centres; predict individuals.

    A row goes to its most responsible component, or to its nearest centre, with the distance to it
    (of clusters fitted with --scale standard that of standardized features).

    With a fit of SAEM: the curve of each individual given its rows, with an interval of the curve
    (not of new measurements); the classes of a mixture; the factors of bifactor.

    Example: vpem predict model.h5 data/breast_cancer.h5 --proba -o labels.csv

    Example: vpem predict clusters.h5 data/breast_cancer.h5 -o labels.csv

    Example: vpem predict growth.h5 data/oxford_boys.csv --individual 7 --times -1:1:0.5
    """
    with Screen(results.quiet) as screen:
        from vpem.files.hdf5 import check_writable

        request = UseRequest(
            data or (), screen, rows, individuals, results, proba, parties=parties, engine=engine,
            labels=False,
        )  # fmt: skip
        if results.output is not None and not request.tables and request.where.speaks:
            check_writable(results.output, results.force, "results")
        count = stored_at(model, individuals.curve).predict(request)
        if results.output is not None and not request.tables:
            screen.say(f"wrote {plural(count, 'row')} to {results.output}")


def score(
    model: FitFile,
    data: DataFile,
    *,
    rows: Annotated[RowSettings, Without("labels features")],
    parties: Annotated[DataParties, Without(f"{OF_A_FIT} label_column")],
    individuals: Annotated[
        IndividualSettings, Without("individual times population latents residuals")
    ],
    engine: Annotated[EngineSettings, Without("shards")],
    results: Annotated[ResultSettings, Without("output force quote_formulas digits")],
) -> None:
    """Compute log-likelihood, BIC and AIC of data under a model.

    Under clusters: inertia. Under a fit of SAEM: log-likelihood of individuals, by formula or
    importance sampling.

    Example: vpem score model.h5 data/breast_cancer.h5 --json
    """
    with Screen(results.quiet) as screen:
        request = UseRequest(
            data, screen, rows, individuals, results, parties=parties, engine=engine, labels=False
        )
        stored_at(model, individuals.curve).score(request)


def sample(
    model: ModelFile,
    n: Annotated[int, typer.Option("-n", "--samples", help="Rows to draw.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    *,
    results: Annotated[ResultSettings, Without("json digits")],
) -> None:
    """Draw rows from a model, each labelled with its component.

    Example: vpem sample model.h5 -n 1000 -o drawn.h5
    """
    with Screen(results.quiet) as screen:
        from vpem.checks import check_int
        from vpem.files.hdf5 import check_writable

        count = check_int("-n", n, least=1)
        check_int("seed", seed, least=0)
        if results.output is not None:
            check_writable(results.output, results.force, "results")
        stored_at(model).sample(count, seed, results)
        if results.output is not None:
            screen.say(f"wrote {plural(count, 'row')} to {results.output}")


def evaluate(
    model: FitFile,
    data: DataFile,
    *,
    rows: Annotated[RowSettings, Without("features sample_weight")],
    parties: Annotated[DataParties, Without(OF_A_FIT)],
    results: Annotated[ResultSettings, Without("output force quote_formulas digits")],
) -> None:
    """Compare components or clusters with labels.

    The fit never saw these labels. Accuracy is that of the best one-to-one mapping of components to
    labels.

    Example: vpem evaluate model.h5 data/breast_cancer.h5 --labels labels
    """
    with Screen(results.quiet) as screen:
        request = UseRequest(data, screen, rows, output=results, parties=parties)
        stored_at(model).evaluate(request)
