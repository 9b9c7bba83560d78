"""`vpem plot`: pictures of a fitted model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .pictures_saem import SomeIndividuals
from .roles import READ, WRITTEN, writes
from .use import Force, Inside, Json, Quiet
from .use_saem import Covariates, Id, Time, Value

if TYPE_CHECKING:
    from vpem.pictures.samples import Rows
    from vpem.pictures.saved import Saved

__all__ = [
    "FeatureList",
    "LabelPlace",
    "OptionalData",
    "beside",
    "features_of",
    "plot",
    "read_rows",
]

FittedFile = Annotated[
    Path,
    READ,
    typer.Argument(help="Model, clusters or fit of SAEM, from the --output of a fit."),
]
OptionalData = Annotated[
    Path | None,
    READ,
    typer.Argument(
        help="Dataset with the model's features, for what is of rows; individuals for a fit of "
        "SAEM."
    ),
]
LabelPlace = Annotated[
    str,
    READ,
    typer.Option(
        "--labels",
        help="Where the labels are: a dataset inside the HDF5 file, or a text file with one a "
        "line.",
    ),
]
FeatureList = Annotated[
    str | None,
    typer.Option(
        "--features",
        help="Features that marginals or pairs draw, by name or number (from 0), with commas "
        "between. Default: those in which components differ most.",
    ),
]


def plot(
    model: FittedFile,
    data: OptionalData = None,
    output: Annotated[
        Path | None,
        WRITTEN,
        typer.Option(
            "-o",
            "--output",
            help="Write here: .png, .svg or .pdf. Default: beside the model, as model-KIND.png.",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="history, graph, sparsity, communication; marginals and pairs, best with DATA; "
            "responsibilities, of DATA; confusion, of DATA with labels. Fits of SAEM: traces; "
            "curves, of DATA. Default: history, or traces."
        ),
    ] = None,
    features: FeatureList = None,
    labels: LabelPlace = "labels",
    dataset: Inside = None,
    individual: SomeIndividuals = None,
    id: Id = None,
    time: Time = None,
    value: Value = None,
    covariates: Covariates = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw a model: how the fit went, what was sent, how it fits.

    Colours are told apart by the colour-blind, and in grey by lines, marks, hatches or numbers.

    Example: vpem plot model.h5 --kind history

    Example: vpem plot model.h5 data/breast_cancer.h5 --kind marginals -o marginals.svg

    Example: vpem plot growth.h5 data/oxford_boys.csv --kind curves -o curves.png
    """
    from .output import Screen, print_json

    with Screen(quiet) as screen:
        from vpem.pictures.figure import check_picture, save_figure
        from vpem.pictures.latents import check_kind
        from vpem.saem.formats.fits import is_saem

        from .pictures_saem import draw_of_saem, options_of_saem
        from .use_saem import refuse_options

        saem = is_saem(model)
        kind = kind or ("traces" if saem else "history")
        check_kind(kind, model, saem)
        if output is None:
            output = beside(model, f"-{kind}.png")
        check_picture(output, force)
        columns = {"id": id, "time": time, "value": value}
        if saem:
            others = {"--labels": labels != "labels", "--dataset": dataset, "--features": features}
            picture, next_ones = draw_of_saem(
                kind, model, data, columns, covariates, individual, others
            )
        else:
            from vpem.pictures.kinds import KINDS, draw, next_kinds
            from vpem.pictures.saved import read_saved

            given = {"--individual": individual, **options_of_saem(columns, covariates)}
            refuse_options(model, given)
            saved = read_saved(model)
            rows = read_rows(saved, data, dataset, labels, KINDS[kind].labels)
            picture = draw(kind, saved, rows, features_of(features))
            next_ones = next_kinds(kind, saved, rows)
        save_figure(output, picture.figure, force=force)
        for note in picture.notes:
            screen.note(note)
        screen.say(f"wrote {output}")
        if next_ones:
            told = "; ".join(
                f"{f'with {needs}: ' if needs else ''}{', '.join(names)}"
                for needs, names in next_ones.items()
            )
            screen.say(f"next, --kind: {told}")
        if json:
            report: dict[str, Any] = {
                "plot": str(output),
                "kind": kind,
                "description": picture.alt,
                "notes": picture.notes,
                "next": [name for names in next_ones.values() for name in names],
                "warnings": list(screen.warnings),
            }
            print_json(report)


def beside(model: Path, ending: str) -> Path:
    """Return the name that a result has by itself: the model's, with another ending."""
    output = model.with_name(f"{model.stem}{ending}")
    writes("--output", output)
    return output


def features_of(text: str | None) -> list[str] | None:
    """Read names with commas between."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def read_rows(
    saved: Saved, data: Path | None, inside: str | None, labels: str, needs_labels: bool
) -> Rows | None:
    """Read the dataset that a model is held against, its columns in the model's order."""
    from vpem.errors import InputError

    if data is None:
        for given, name in ((inside, "--dataset"), (labels != "labels", "--labels")):
            if given:
                raise InputError(f"{name} is about the data: give them after the model")
        return None
    from vpem.checks import available_memory, check_finite
    from vpem.files.datasets import read_dataset
    from vpem.files.matrix import FileMatrix
    from vpem.files.models import match_features
    from vpem.pictures.samples import Rows
    from vpem.terms.missing_patterns import check_missing

    from .use import _labels

    source = read_dataset(data, inside, memory_limit=available_memory())
    stored: Any = saved.stored
    columns = match_features(stored, source.feature_names)
    X = source.X
    if columns is not None:
        X = X.select(columns) if isinstance(X, FileMatrix) else X[:, columns]
    # Mixtures integrate missing values out; clusters cannot.
    (check_finite if saved.clusters is not None else check_missing)(X, saved.feature_names)
    asked = needs_labels or labels != "labels" or source.labels is not None
    return Rows(X, _labels(labels, data, source) if asked else None, str(data))
