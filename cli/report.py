"""`vpem report`: a page that tells of a fitted model and shows it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .naming import in_options
from .plot import FittedFile, LabelPlace, OptionalData, beside, read_rows
from .roles import WRITTEN
from .use import Force, Inside, Json, Quiet
from .use_saem import Covariates, Id, Time, Value

if TYPE_CHECKING:
    from vpem.pictures.saved import Saved

__all__ = ["command_of", "report"]


def report(
    context: typer.Context,
    model: FittedFile,
    data: OptionalData = None,
    output: Annotated[
        Path | None,
        WRITTEN,
        typer.Option(
            "-o", "--output", help="Write here: .html. Default: beside the model, as model.html."
        ),
    ] = None,
    labels: LabelPlace = "labels",
    dataset: Inside = None,
    id: Id = None,
    time: Time = None,
    value: Value = None,
    covariates: Covariates = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a page on a model: how well it fits, with all pictures.

    The page is one file that needs no network and runs nothing; it can be printed.

    Example: vpem report model.h5 data/breast_cancer.h5

    Example: vpem report growth.h5 data/oxford_boys.csv --output growth.html
    """
    from .output import Screen, print_json

    with Screen(quiet) as screen:
        from vpem.files.hdf5 import check_writable
        from vpem.pictures.figure import check_matplotlib

        if output is None:
            output = beside(model, ".html")
        check_writable(output, force, "reports")
        check_matplotlib()

        from vpem.saem.formats.fits import is_saem

        from .pictures_saem import options_of_saem, report_of_saem
        from .use_saem import refuse_options

        columns = {"id": id, "time": time, "value": value}
        if is_saem(model):
            others = {"--labels": labels != "labels", "--dataset": dataset}
            left_out = report_of_saem(output, model, data, columns, covariates, others, force)
        else:
            from vpem.pictures.page import write_page
            from vpem.pictures.saved import read_saved

            refuse_options(model, options_of_saem(columns, covariates))
            saved = read_saved(model)
            rows = read_rows(saved, data, dataset, labels, needs_labels=False)
            left_out = write_page(
                output,
                saved,
                rows,
                command=command_of(saved, context.find_root().command),
                force=force,
            )
        screen.say(f"wrote {output}")
        not_drawn = {one: in_options(error) for one, error in left_out.items()}
        for one, why in not_drawn.items():
            screen.note(f"no picture of {one}: {why}")
        if json:
            told = {
                "report": str(output),
                "not_drawn": [": ".join(one) for one in not_drawn.items()],
            }
            print_json({**told, "warnings": list(screen.warnings)})


_COMMANDS = {
    "vp-em": "fit",
    "em-rows": "fit",
    "fedem": "fedem",
    "vr-fedem": "fedem",
    "k-means": "kmeans",
}


def command_of(saved: Saved, root: Any) -> str | None:
    """Return the command that fitted a model, made of its options; None where it is not known."""
    name = _COMMANDS.get(str(saved.report.get("algorithm")))
    options = saved.stored.options
    if name is None or not options.get("data"):
        return None
    words = ["vpem", name]
    for parameter in root.commands[name].params:
        value = options.get(parameter.name)
        if parameter.param_type_name == "argument":
            words += str(value).split(", ") if value is not None else []
        elif value is not None and not _same(value, parameter.default):
            words += [parameter.opts[-1]] if value is True else [parameter.opts[-1], str(value)]
    return shlex.join(words)


def _same(value: Any, default: Any) -> bool:
    """Whether an option has the value that it has by itself; a flag that is off has."""
    return value is False or value == default or str(value) == str(default)
