"""`vpem predict`, `score`, `sample` and `evaluate`: a fitted model at work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.settings import MISSINGS

from .options import Missing, QuoteFormulas
from .roles import READ, WRITTEN
from .use_saem import (
    Covariates,
    CovariatesOrValues,
    Id,
    OneIndividual,
    OnlyLatents,
    Population,
    Time,
    Times,
    Value,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vpem.files.clusterings import StoredClustering
    from vpem.files.datasets import Dataset
    from vpem.files.models import Model

__all__ = ["evaluate", "predict", "sample", "score"]

ModelFile = Annotated[Path, READ, typer.Argument(help="Model, from 'vpem fit --output'.")]
AnyModelFile = Annotated[
    Path, READ, typer.Argument(help="Model, clusters or fit of SAEM, from the --output of a fit.")
]
DataFile = Annotated[Path, READ, typer.Argument(help="Dataset with the model's features.")]
Inside = Annotated[
    str | None, typer.Option(help="Path of a 2-D dataset inside the HDF5 file, instead of X.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No messages.")]


def _load(
    model: Path, data: Path, inside: str | None, missing: str = "refuse"
) -> tuple[Model | StoredClustering, Dataset, NDArray[Any]]:
    """Read a model or clusters and the data they are used on, features in the model's order."""
    from vpem.checks import available_memory, check_finite
    from vpem.errors import InputError, check_choice
    from vpem.files.clusterings import StoredClustering, is_clustering, read_clustering
    from vpem.files.datasets import read_dataset
    from vpem.files.matrix import FileMatrix
    from vpem.files.models import match_features, read_model
    from vpem.terms.missing_patterns import check_missing

    check_choice("--missing", missing, MISSINGS)
    found: Any = read_clustering(model) if is_clustering(model) else read_model(model)
    if isinstance(found, StoredClustering) and missing != "refuse":
        raise InputError(
            f"{model} holds clusters, which have no density to integrate missing values out of; "
            "leave out --missing"
        )
    source = read_dataset(data, inside, memory_limit=available_memory())
    columns = match_features(found, source.feature_names)
    X = source.X
    if columns is not None:
        X = X.select(columns) if isinstance(X, FileMatrix) else X[:, columns]
    (check_finite if missing == "refuse" else check_missing)(X, found.feature_names)
    return found, source, X


def predict(
    model: AnyModelFile,
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
    dataset: Inside = None,
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
    from .output import Screen, plural, print_json

    with Screen(quiet) as screen:
        import numpy as np

        from vpem.errors import InputError
        from vpem.files.clusterings import StoredClustering
        from vpem.files.hdf5 import check_writable
        from vpem.files.tables import write_columns
        from vpem.saem.formats.fits import is_saem

        from .use_saem import predict_saem, refuse_options

        if output is not None:
            check_writable(output, force, "results")
        columns_of = {"id": id, "time": time, "value": value}
        if is_saem(model):
            _refuse_other(dataset, missing)
            count = predict_saem(
                model, data, output=output, proba=proba, individual=individual, times=times,
                population=population, latents=latents, columns=columns_of, covariates=covariates,
                force=force, quote_formulas=quote_formulas, as_json=json,
            )  # fmt: skip
            if output is not None:
                screen.say(f"wrote {plural(count, 'row')} to {output}")
            return
        refuse_options(model, {
            "--individual": individual, "--times": times, "--population": population,
            "--latents": latents, **_of_saem(columns_of, covariates),
        })  # fmt: skip
        if data is None:
            raise InputError("vpem predict needs DATA: a dataset with the model's features")
        found, source, X = _load(model, data, dataset, missing)
        more: dict[str, NDArray[Any]] = {}
        if isinstance(found, StoredClustering):
            if proba:
                raise InputError(
                    f"{model} holds clusters, whose rows have no responsibilities; leave out "
                    "--proba, or fit a mixture with 'vpem fit'"
                )
            labels, squared = found.assign(X)
            more["distance"] = np.sqrt(squared)
            n_labels = len(found.centres)
        else:
            responsibilities = found.mixture.predict_proba(X, missing=missing)
            labels, n_labels = responsibilities.argmax(axis=1), found.mixture.n_components
            if proba:
                more = {f"proba_{k}": column for k, column in enumerate(responsibilities.T)}
        columns: dict[str, NDArray[Any]] = {
            "id" if source.ids is not None else "row": (
                np.arange(len(X)) if source.ids is None else source.ids
            ),
            "label": labels,
            **more,
        }
        if output is not None or not json:
            write_columns(output, columns, "vpem-predictions", force, quote_formulas)
        if json:
            report: dict[str, Any] = {
                "n_samples": len(X),
                "counts": np.bincount(labels, minlength=n_labels),
                "output": None if output is None else str(output),
            }
            if output is None:
                report["labels"] = labels
                if proba:
                    report["proba"] = responsibilities
                if isinstance(found, StoredClustering):
                    report["distances"] = more["distance"]
            print_json(report)
        if output is not None:
            screen.say(f"wrote {plural(len(labels), 'row')} to {output}")


def _of_saem(columns: dict[str, str | None], covariates: str | None) -> dict[str, str | None]:
    """Options that say where the individuals of a fit of SAEM stand."""
    named = {f"--{name}": column for name, column in columns.items()}
    return {**named, "--covariates": covariates}


def _refuse_other(dataset: str | None, missing: str) -> None:
    """Refuse options of datasets for a fit of SAEM."""
    from vpem.errors import InputError

    for flag, given in (("--dataset", dataset is not None), ("--missing", missing != "refuse")):
        if given:
            raise InputError(f"{flag} is for mixtures; a fit of SAEM takes individuals as they are")


def score(
    model: AnyModelFile,
    data: DataFile,
    missing: Missing = "refuse",
    dataset: Inside = None,
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
    from .output import Screen, number, print_json, show, table

    with Screen():
        import numpy as np

        from vpem.files.clusterings import StoredClustering
        from vpem.saem.formats.fits import is_saem

        from .use_saem import refuse_options, score_saem

        columns_of = {"id": id, "time": time, "value": value}
        if is_saem(model):
            _refuse_other(dataset, missing)
            score_saem(model, data, columns_of, covariates, json)
            return
        refuse_options(model, _of_saem(columns_of, covariates))
        found, _, X = _load(model, data, dataset, missing)
        if isinstance(found, StoredClustering):
            inertia = float(found.assign(X)[1].sum())
            told = {
                "n_samples": len(X),
                "n_clusters": len(found.centres),
                "inertia": inertia,
                "inertia_per_sample": inertia / len(X),
            }
            if json:
                print_json(told)
            else:
                names = ("rows", "clusters", "inertia", "inertia per sample")
                values = (number(value, 10) for value in told.values())
                show(table(zip(names, values, strict=True), "", ""))
            return
        scores = found.mixture.score_samples(X, missing=missing)
        total = float(scores.sum())
        # As in a fit, rows without a value count for nothing.
        used = len(X) if missing == "refuse" else max(int((~np.isnan(X)).any(axis=1).sum()), 1)
        report = {
            "n_samples": len(X),
            "n_without_values": len(X) - used,
            "n_parameters": found.mixture.n_parameters,
            "log_likelihood": total / used,
            "total_log_likelihood": total,
            "bic": found.mixture.bic(total, used),
            "aic": found.mixture.aic(total),
        }
    if json:
        print_json(report)
        return
    facts = (
        ("rows", report["n_samples"]),
        ("parameters", report["n_parameters"]),
        ("log-likelihood per sample", f"{report['log_likelihood']:.6f}"),
        ("log-likelihood, total", f"{total:.4f}"),
        ("BIC", f"{report['bic']:.4f}"),
        ("AIC", f"{report['aic']:.4f}"),
    )
    show(table(facts, "", ""))


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
    from .output import Screen, plural
    from .use_saem import refuse_saem

    with Screen(quiet) as screen:
        import numpy as np

        from vpem.checks import check_int
        from vpem.files.datasets import Dataset, write_dataset
        from vpem.files.endings import ending_of
        from vpem.files.hdf5 import check_writable
        from vpem.files.models import read_model
        from vpem.files.tables import write_columns

        count = check_int("-n", n, least=1)
        rng = np.random.default_rng(check_int("seed", seed, least=0))
        if output is not None:
            check_writable(output, force, "results")
        refuse_saem(model, "from which no rows are drawn; 'vpem predict' has its curves")
        found = read_model(model)
        X, labels = found.mixture.sample(count, rng)
        if output is not None and ending_of(output) != ".csv":
            drawn = Dataset(X, found.feature_names, labels=labels, source=str(output))
            write_dataset(output, drawn, force)
        else:
            columns = dict(zip(found.feature_names, X.T, strict=True))
            name = "component"
            while name in columns:
                name += "_"
            columns |= {name: labels}
            write_columns(output, columns, "vpem-samples", force, quote_formulas)
        if output is not None:
            screen.say(f"wrote {plural(count, 'row')} to {output}")


def evaluate(
    model: AnyModelFile,
    data: DataFile,
    labels: Annotated[
        str,
        READ,
        typer.Option(
            help="Where the labels are: a dataset inside the HDF5 file, or a text file with one a "
            "line."
        ),
    ] = "labels",
    dataset: Inside = None,
    json: Json = False,
) -> None:
    """Compare components or clusters with labels.

    The labels are those that fitting never saw. Accuracy is taken under the best one-to-one mapping
    of components to labels.

    Example: vpem evaluate model.h5 data/breast_cancer.h5 --labels labels
    """
    from .output import Screen, print_json, show, table
    from .use_saem import refuse_saem

    with Screen():
        import numpy as np

        from vpem.files.clusterings import StoredClustering
        from vpem.fits.evaluation import compare

        refuse_saem(
            model, "whose individuals have no labels here; 'vpem predict' has classes of a mixture"
        )
        found, source, X = _load(model, data, dataset)
        truth = _labels(labels, data, source)
        if isinstance(found, StoredClustering):
            k, labels_found = len(found.centres), found.assign(X)[0].astype(np.intp)
        else:
            k, labels_found = found.mixture.n_components, found.mixture.predict(X)
        agreement = compare(truth, labels_found, k)
    if json:
        print_json(
            {
                "n_samples": len(X),
                "accuracy": agreement.accuracy,
                "adjusted_rand_index": agreement.adjusted_rand_index,
                "normalized_mutual_information": agreement.normalized_mutual_information,
                "labels": agreement.classes,
                "confusion": agreement.confusion,
                "mapping": agreement.mapping,
            }
        )
        return
    facts = (
        ("accuracy, best one-to-one mapping", f"{agreement.accuracy:.4f}"),
        ("adjusted Rand index", f"{agreement.adjusted_rand_index:.4f}"),
        ("normalized mutual information", f"{agreement.normalized_mutual_information:.4f}"),
    )
    heads = tuple(
        f"{c} = {agreement.mapping[c]}" if c in agreement.mapping else str(c) for c in range(k)
    )
    counts = zip(agreement.classes, agreement.confusion, strict=True)
    title = "Rows of each label in each component"
    rows = ((label, *row) for label, row in counts)
    show(table(facts, "", ""), table(rows, "label", *heads, title=title, right=heads))


def _labels(where: str, data: Path, source: Dataset) -> np.ndarray[Any, Any]:
    """Read labels from the dataset, another place in its file, or a text file."""
    import numpy as np

    from vpem.errors import InputError
    from vpem.fits.evaluation import read_labels

    if where == "labels":
        if source.labels is None:
            raise InputError(
                f"{data} has no labels; name where they are with --labels, or import the data with "
                "--label-column"
            )
        return np.asarray(source.labels)
    return read_labels(where, data, source.n_samples)
