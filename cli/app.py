"""The tree of commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import (
    check,
    data,
    demo,
    doctor,
    fedem,
    fit,
    helping,
    impute,
    kmeans,
    model,
    party,
    plot,
    relay,
    saem,
    select,
    study,
    topology,
    use,
)
from .commands import dress, finish

__all__ = ["app", "command"]

app = typer.Typer(
    name="vpem",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
    epilog="'vpem demo' shows the main job, 'vpem COMMAND --help' the options of a command.",
    help=(
        "Fit one Gaussian mixture to data whose features are spread over agents that cannot pool "
        "them.\n\n"
        "Exit codes: 0 done, 1 a defect of vpem, 2 input or options that cannot be used, 3 not "
        "converged under --strict, 4 a rank or member did not answer, 130 interrupted by "
        "Ctrl-C, 143 ended by SIGTERM.\n\n"
        "Example: vpem fit data/breast_cancer.h5 --topology cycle --hops 1 --output model.h5"
    ),
)


def _version(value: bool) -> None:
    if value:
        from vpem import __version__

        print(f"vpem {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "-V", "--version", callback=_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


app.command("fit")(fit.fit)
app.command("select")(select.select)
app.command("kmeans")(kmeans.kmeans)
app.command("fedem")(fedem.fedem)
app.command("impute")(impute.impute)
app.command("saem")(saem.saem)
app.command("predict")(use.predict)
app.command("score")(use.score)
app.command("show")(model.show)
app.command("sample")(use.sample)
app.command("evaluate")(use.evaluate)
app.command("plot")(plot.plot)
app.command("report")(plot.report)
app.command("relay")(relay.relay)
app.command("help")(helping.show_help)
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)
app.add_typer(data.app, name="data")
app.add_typer(model.app, name="model")
app.add_typer(topology.app, name="topology")
party.app.command("check")(check.check)
app.add_typer(party.app, name="party")
app.add_typer(study.app, name="study")


def command() -> Any:
    """Return the parser of the whole tree."""
    return finish(dress(app))
