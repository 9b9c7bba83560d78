"""`vpem plot` and `vpem report`: pictures of a fit, and a page with all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vpem.errors import check_choice
from vpem.records import changed, setting

from ..data import OF_A_FIT, DataParties
from ..display import Screen, print_json
from ..names import in_options
from ..options import Without
from ..outputs import READ, Output, Printing, writes
from .kinds import stored_at
from .loading import IndividualSettings, RowSettings, UseRequest
from .use import DATA, FitFile

OptionalData = Annotated[
    list[Path] | None,
    READ,
    typer.Argument(help=f"For pictures of rows. {DATA} Individuals for a fit of SAEM."),
]


class PictureSettings(Printing, heading="Output", kept=False):
    """Where a picture goes."""

    output: Path | None = setting(
        None,
        "Write here: .png, .svg or .pdf. Default: beside the model, as model-KIND.png.",
        flags="-o --output",
        file="written",
    )
    force: bool = changed(Output, "force", idle=None)


class PageSettings(PictureSettings, heading="Output", kept=False):
    """Where a page goes."""

    output: Path | None = changed(
        PictureSettings,
        "output",
        help="Write here: .html. Default: beside the model, as model.html.",
    )


def plot(
    model: FitFile,
    data: OptionalData = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="profile, history, graph, sparsity, communication; projection, marginals and "
            "pairs, best with DATA; responsibilities, of DATA; confusion, of DATA with labels. "
            "Fits of SAEM: traces; curves, observed, residuals, vpc and effects, of DATA. "
            "Default: profile, of two features pairs, of SAEM traces."
        ),
    ] = None,
    *,
    rows: Annotated[RowSettings, Without("missing sample_weight")],
    parties: Annotated[DataParties, Without(f"{OF_A_FIT} secure_sum")],
    individuals: Annotated[IndividualSettings, Without("times population latents residuals")],
    target: PictureSettings,
) -> None:
    """Draw a model: its components, how they differ, how the fit went.

    Colours are distinct to the colour-blind, and in grey by lines, marks, hatches or numbers.

    Example: vpem plot model.h5

    Example: vpem plot model.h5 data/breast_cancer.h5 --kind projection

    Example: vpem plot model.h5 data/breast_cancer.h5 --kind marginals -o marginals.svg

    Example: vpem plot growth.h5 data/oxford_boys.csv --kind curves -o curves.png
    """
    with Screen(target.quiet) as screen:
        from vpem.pictures.figure import check_picture, save_picture
        from vpem.pictures.page import KINDS, check_kind, draw, kinds_of, next_kinds

        if kind is not None:
            check_choice("kind", kind, KINDS)
        stored = stored_at(model, individuals.curve)
        saved = stored.saved
        kind = kind or next(iter(kinds_of(saved)))
        labelled = check_kind(kind, saved).labels
        output = target.output or beside(model, f"-{kind}.png")
        check_picture(output, target.force)
        request = UseRequest(
            data or (), screen, rows, individuals, labelled=labelled, parties=parties
        )
        evaluation = stored.evaluation_data(request)
        features = None
        if rows.features is not None:
            features = [name.strip() for name in rows.features.split(",") if name.strip()]
        picture = draw(kind, saved, evaluation, features=features)
        next_ones = next_kinds(kind, saved, evaluation)
        save_picture(output, picture, force=target.force)
        for note in picture.notes:
            screen.print_note(note)
        screen.say(f"wrote {output}")
        if next_ones:
            listed = "; ".join(
                f"{f'with {needs}: ' if needs else ''}{', '.join(names)}"
                for needs, names in next_ones.items()
            )
            screen.say(f"next, --kind: {listed}")
        if target.json:
            print_json({
                "plot": str(output),
                "kind": kind,
                "description": picture.alt,
                "notes": picture.notes,
                "next": [name for names in next_ones.values() for name in names],
                "warnings": list(screen.warnings),
            })  # fmt: skip


def beside(model: Path, ending: str) -> Path:
    """Return the default name of a result: the model's, with another ending."""
    output = model.parent / f"{model.stem}{ending}"
    writes("--output", output)
    return output


def report(
    context: typer.Context,
    model: FitFile,
    data: OptionalData = None,
    *,
    rows: Annotated[RowSettings, Without("features missing sample_weight")],
    parties: Annotated[DataParties, Without(f"{OF_A_FIT} secure_sum")],
    individuals: Annotated[
        IndividualSettings, Without("individual times population latents residuals")
    ],
    target: PageSettings,
) -> None:
    """Write a page on a model: how well it fits, with all pictures.

    The page is one file that needs no network and runs nothing; it can be printed.

    Example: vpem report model.h5 data/breast_cancer.h5

    Example: vpem report growth.h5 data/oxford_boys.csv --output growth.html
    """
    with Screen(target.quiet) as screen:
        from vpem.files.hdf5 import check_writable

        output = target.output or beside(model, ".html")
        check_writable(output, target.force, "reports")
        from vpem.pictures.page import write_page

        stored = stored_at(model, individuals.curve)
        request = UseRequest(data or (), screen, rows, individuals, parties=parties)
        evaluation = stored.evaluation_data(request)
        command = stored.command(context.find_root().command)
        left_out = write_page(output, stored.saved, evaluation, command=command, force=target.force)
        screen.say(f"wrote {output}")
        not_drawn = {one: in_options(error) for one, error in left_out.items()}
        for one, why in not_drawn.items():
            screen.print_note(f"no picture of {one}: {why}")
        if target.json:
            print_json({
                "report": str(output),
                "not_drawn": [": ".join(one) for one in not_drawn.items()],
                "warnings": list(screen.warnings),
            })  # fmt: skip
