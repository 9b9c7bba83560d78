"""The tree of commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .commands import Elsewhere, finish

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


COMMANDS = {
    "fit": ("fit.fit", "Fit a Gaussian mixture to features, or rows, that are spread."),
    "select": ("select.select", "Fit a grid of models and choose the best by a criterion."),
    "kmeans": ("kmeans.kmeans", "Cluster rows by k-means, rows or features being spread."),
    "fedem": ("fedem.fedem", "Fit a Gaussian mixture to rows of workers by FedEM or VR-FedEM."),
    "impute": ("impute.impute", "Impute a matrix from the parts of it that observers saw."),
    "saem": ("saem.saem", "Fit a model with latent variables by stochastic EM (SAEM)."),
    "predict": ("use.predict", "Assign rows to components or centres; predict individuals."),
    "score": ("use.score", "Compute log-likelihood, BIC and AIC of data under a model."),
    "show": ("model.show", "Show a model, or another file that vpem has written."),
    "sample": ("use.sample", "Draw rows from a model, each labelled with its component."),
    "evaluate": ("use.evaluate", "Compare components or clusters with labels."),
    "plot": ("plot.plot", "Draw a model: its components, how they differ, how the fit went."),
    "report": ("plot.report", "Write a page on a model: how well it fits, with all pictures."),
    "relay": ("relay.relay", "Pass sealed messages on between members of a study."),
    "help": ("help.show_help", "Show the help of a command."),
    "doctor": ("doctor.doctor", "Look at this installation: first problems, then facts."),
    "demo": ("demo.demo", "Show the main job: fit real data, compare, predict, draw."),
    "data": ("data.app", "Import, fetch, simulate, split and describe datasets."),
    "model": ("model.app", "Show and export fitted models."),
    "topology": ("topology.app", "Look at networks of agents."),
    "party": ("party.app", "Take part in studies: keys, requests, policies, logs of messages."),
    "study": ("study.app", "Make, sign and show studies: who takes part, and what will be run."),
}
"""Where each command or group is, and what it does: help of it all loads none of them."""

for _name, _of in COMMANDS.items():
    app.command(_name)(Elsewhere(*_of))


def command() -> Any:
    """Return the parser of the whole tree."""
    return finish(app)
