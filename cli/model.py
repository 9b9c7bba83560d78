"""`vpem model`: look into a fitted model, or hand it to another program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from vpem.models import Model

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show and export fitted models.\n\nExample: vpem model show model.h5",
)

ModelFile = Annotated[Path, typer.Argument(help="Model, from 'vpem fit --output'.")]


@app.command("show")
def show(
    model: ModelFile,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the hubs, mixing weights, means and history of a model.

    Example: vpem model show model.h5
    """
    from vpem.models import model_as_json, read_model

    from .output import print_json

    found = read_model(model)
    if json:
        print_json({**model_as_json(found), "history": found.history})
    else:
        _show(found)


def _show(found: Model) -> None:
    from .output import number, out, table

    console = out()
    mixture = found.mixture
    blocks = mixture.blocks
    report = found.report
    names = report.get("agent_names") or []
    facts = table("", "")
    facts.show_header = False
    per_sample = report.get("log_likelihood")
    lines = [
        ("mixture", f"{mixture.n_components} components, {mixture.n_features} features, "
                    f"{mixture.covariance_type} covariance in {blocks.n_blocks} hubs, "
                    f"{mixture.n_parameters} parameters"),
        ("fitted to", f"{report.get('n_samples', '?')} rows of {report.get('data', '?')}"),
        ("network", f"{report.get('topology', '?')}, {report.get('hops', '?')} hops, "
                    f"{report.get('rounds') or 'exact sum'}"
                    f"{' rounds' if report.get('rounds') else ''}"),
        ("log-likelihood", f"{number(per_sample, 10)} per sample after "
                           f"{len(found.history)} iterations"
                           f"{'' if report.get('converged') else ', not converged'}"),
        ("seed", str(found.options.get("seed", "?"))),
        ("versions", ", ".join(f"{name} {text}" for name, text in found.versions.items())),
    ]  # fmt: skip
    for name, value in lines:
        facts.add_row(name, value)
    console.print(facts)
    hubs = table("hub", "root", "agents", "features", title="Hubs", right=("hub",))
    for b in range(min(blocks.n_blocks, 50)):
        members = ", ".join(_name(names, agent) for agent in blocks.agents[b])
        columns = ", ".join(found.feature_names[j] for j in blocks.features[b][:6])
        more = len(blocks.features[b]) - 6
        root = _name(names, blocks.roots[b])
        hubs.add_row(str(b), root, members, columns + (f" and {more} more" if more > 0 else ""))
    console.print(hubs)
    if blocks.n_blocks > 50:
        console.print(f"... and {blocks.n_blocks - 50} more hubs\n")
    spans = mixture.weights
    heads = [f"component {k}" for k in range(mixture.n_components)]
    means = table("", *heads, title="Mixing weights and means", right=tuple(heads))
    means.add_row("mixing weight", *(f"{weight:.4f}" for weight in mixture.assembled_weights))
    if len(spans) > 1:
        spread = spans.max(axis=0) - spans.min(axis=0)
        means.add_row("  spread over roots", *(f"{value:.2g}" for value in spread))
    shown = min(mixture.n_features, 50)
    for j in range(shown):
        means.add_row(found.feature_names[j], *(number(v) for v in mixture.assembled_means[:, j]))
    console.print(means)
    if mixture.n_features > shown:
        console.print(f"... and {mixture.n_features - shown} more features (see --json)")


def _name(names: list[str], agent: int) -> str:
    if agent < len(names):
        return names[agent]
    return "server" if names else str(agent)


@app.command("export")
def export(
    model: ModelFile,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File to write: .npz (NumPy) or .json.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No messages.")] = False,
) -> None:
    """Write the assembled mixture as a NumPy archive, or the whole model as JSON.

    Example: vpem model export model.h5 -o model.npz
    """
    from vpem.errors import InputError
    from vpem.models import read_model, write_json, write_npz

    from .output import Screen

    writers = {".npz": write_npz, ".json": write_json}
    if output.suffix not in writers:
        raise InputError(f"a model is exported to .npz or .json, got {output}")
    writers[output.suffix](output, read_model(model), force)
    Screen(quiet).say(f"wrote {output}")
