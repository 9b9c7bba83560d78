"""`vpem model`: look into a fitted model, or hand it to another program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .best import best
from .options import QuoteFormulas
from .roles import READ, WRITTEN

if TYPE_CHECKING:
    from rich.table import Table

    from vpem.files.models import Model

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show and export fitted models.\n\nExample: vpem model show model.h5",
)

MOST_POINTS = 8  # of a curve that is printed
MOST_ROWS = 50  # rows of one table; --json has them all

app.command("best")(best)

ModelFile = Annotated[Path, READ, typer.Argument(help="Model, from 'vpem fit --output'.")]
ResultFile = Annotated[
    Path, READ, typer.Argument(help="Model, clusters or fit of SAEM, from the --output of a fit.")
]


@app.command("show")
def show(
    model: ResultFile,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a model: hubs, mixing weights, means, history.

    Of clusters: centres. Of a fit of SAEM: estimates with standard errors, shrinkage.

    Example: vpem model show model.h5
    """
    from .output import Screen, print_json
    from .output import show as show_tables

    with Screen():
        from vpem.files.clusterings import is_clustering
        from vpem.files.models import model_as_json, read_model
        from vpem.saem.formats.fits import is_saem

        from .model_saem import show_saem

        if is_clustering(model):
            _show_clusters(model, json)
            return
        if is_saem(model):
            show_saem(model, json)
            return
        found = read_model(model)
        if json:
            print_json({**model_as_json(found), "history": found.history})
        else:
            show_tables(*_tables(found))


def _show_clusters(path: Path, as_json: bool) -> None:
    """Show what `vpem kmeans` has written."""
    import numpy as np

    from vpem.files.clusterings import read_clustering

    from .output import number, plural, print_json, show, table

    found = read_clustering(path)
    sizes = np.bincount(found.labels, minlength=len(found.centres))
    inertia = float(found.distances.sum())
    if as_json:
        print_json({
            "encoding": "vpem-clustering",
            "feature_names": list(found.feature_names),
            "centres": found.centres.tolist(),
            "cluster_sizes": sizes.tolist(),
            "inertia": _told(found.report, "inertia", float),
            "report": found.report,
            "options": found.options,
            "versions": found.versions,
        })  # fmt: skip
        return
    units = "" if found.scaling is None else " (of standardized features)"
    holders = [_told(found.report, name, list) for name in ("worker_names", "agent_names")]
    names = [str(name) for listed in holders for name in listed or []]
    told = _told(found.report, "inertia", float)
    facts = (
        ("clusters", f"{plural(len(found.centres), 'cluster')}, "
                     f"{plural(len(found.feature_names), 'feature')}"),
        ("fitted to", f"{plural(len(found.labels), 'row')} of "
                      f"{_told(found.report, 'data', str) or '?'}"),
        ("inertia", number(inertia if told is None else told, 10) + units),
        ("communication", _sent(found.report, names)),
        ("versions", ", ".join(f"{name} {text}" for name, text in found.versions.items())),
    )  # fmt: skip
    heads = tuple(f"cluster {k}" for k in range(len(found.centres)))
    shown = min(len(found.feature_names), MOST_ROWS)
    rows: list[tuple[str, ...]] = [("rows", *(str(size) for size in sizes))]
    for j in range(shown):
        rows.append((found.feature_names[j], *(number(value) for value in found.centres[:, j])))
    show(table(facts, "", ""), table(rows, "", *heads, title="Centres", right=heads))
    if len(found.feature_names) > shown:
        show(f"... and {plural(len(found.feature_names) - shown, 'more feature')} (see --json)")


def _told(facts: dict[str, Any], name: str, kind: type) -> Any:
    """Return what a fit reported, or None where it is absent or of another type."""
    value = facts.get(name)
    return value if type(value) is kind else None


def _counted(report: dict[str, Any], name: str, noun: str) -> str:
    from .output import plural

    count = _told(report, name, int)
    return f"? {noun}s" if count is None else plural(count, noun)


def _tables(found: Model) -> list[Table | str]:
    """Return the tables of `show`: the whole, hubs, means."""
    from vpem.errors import shorten
    from vpem.files.models import assembled

    from .output import number, plural, table
    from .parties import joined_by

    mixture = found.mixture
    blocks = mixture.blocks
    report = found.report
    names = [str(name) for name in _told(report, "agent_names", list) or []]
    over_rows = _told(report, "split", str) == "rows"
    agents = (
        _counted(report, "n_workers", "worker") if over_rows else _counted(report, "hops", "hop")
    )
    network = [_told(report, "topology", str) or "?", agents]
    # Without rounds the sum was exact.
    exact = "rounds" in report and report["rounds"] is None
    corrections = _told(report, "participation", float)
    if corrections is None or not exact:
        network.append("exact sum" if exact else _counted(report, "rounds", "round"))
    codec = _told(report, "compress", str)
    if codec is not None:
        network.append(f"compressed by {codec}")
    if corrections is not None and corrections < 1:
        network.append(f"participation {corrections:g}")
    n_iter = _told(report, "n_iter", int)
    n_iter = len(found.history) if n_iter is None else n_iter
    end = "" if _told(report, "converged", bool) else ", not converged"
    fitted = f"{_counted(report, 'n_samples', 'row')} of {_told(report, 'data', str) or '?'}"
    seed = _told(found.options, "seed", int)
    joined = joined_by(report)
    parties = () if joined is None else (("parties", joined),)
    facts = (
        ("mixture", f"{plural(mixture.n_components, 'component')}, "
                    f"{plural(mixture.n_features, 'feature')}, "
                    f"{mixture.covariance_type} covariance in {plural(blocks.n_blocks, 'hub')}, "
                    f"{plural(mixture.n_parameters, 'parameter')}"),
        ("fitted to", fitted),
        *parties,
        ("network", ", ".join(network)),
        ("log-likelihood", f"{number(_told(report, 'log_likelihood', float), 10)} per sample after "
                           f"{plural(n_iter, 'iteration')}{end}"),
        ("communication", _sent(report, names)),
        ("seed", "?" if seed is None else seed),
        ("versions", ", ".join(f"{name} {text}" for name, text in found.versions.items())),
    )  # fmt: skip
    made: list[Table | str] = [table(facts, "", ""), *_kinds(report), *_curve(found)]
    shown = 0 if over_rows else min(blocks.n_blocks, MOST_ROWS)
    hubs = []
    for b in range(shown):
        members = ", ".join(_name(names, agent) for agent in blocks.agents[b])
        columns = shorten((found.feature_names[j] for j in blocks.features[b]), 6)
        hubs.append((b, _name(names, blocks.roots[b]), members, columns))
    if hubs:
        made.append(table(hubs, "hub", "root", "agents", "features", title="Hubs", right=("hub",)))
    if blocks.n_blocks > shown and not over_rows:
        made.append(f"... and {plural(blocks.n_blocks - shown, 'more hub')}\n")
    one = assembled(found)
    means: list[tuple[str, ...]] = [("mixing weight", *(f"{w:.4f}" for w in one["weights"]))]
    if len(mixture.weights) > 1:
        spread = mixture.weights.max(axis=0) - mixture.weights.min(axis=0)
        means.append(("  spread over roots", *(f"{value:.2g}" for value in spread)))
    shown = min(mixture.n_features, MOST_ROWS)
    for j in range(shown):
        means.append((found.feature_names[j], *(number(v) for v in one["means"][:, j])))
    heads = tuple(f"component {k}" for k in range(mixture.n_components))
    made.append(table(means, "", *heads, title="Mixing weights and means", right=heads))
    if mixture.n_features > shown:
        made.append(f"... and {plural(mixture.n_features - shown, 'more feature')} (see --json)")
    return made


def _sent(report: dict[str, Any], names: list[str]) -> str:
    """Return what the fit has sent; a file may hold anything there."""
    from .output import communication

    try:
        return communication(report["communication"], names)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return "?"


def _kinds(report: dict[str, Any]) -> list[Table | str]:
    """Return the table of what was sent, by kind, where the file has one."""
    from .output import size, table

    try:
        rows = [
            (kind, f"{counted['messages']:,}", size(counted["bytes"]), f"{counted['rounds']:,}")
            for kind, counted in report["communication"]["by_kind"].items()
            if counted["messages"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []
    heads = ("kind", "messages", "payload", "rounds")
    return [table(rows, *heads, title="Communication", right=heads[1:])] if rows else []


def _curve(found: Model) -> list[Table | str]:
    """Return the table of log-likelihood against bytes, where the file has both."""
    import numpy as np

    from .output import number, size, table

    try:
        sent = [int(value) for value in found.report["communication"]["bytes_by_iteration"]]
        # Of a silent root it is nan.
        heard = np.isfinite(found.history)
        totals = np.where(heard, found.history, 0.0).sum(axis=1)
        per_sample = totals / heard.sum(axis=1).clip(1) / int(found.report["n_samples"])
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return []
    if not 0 < len(sent) == len(per_sample) or not np.isfinite(per_sample).all():
        return []
    shown = np.unique(np.linspace(0, len(sent) - 1, MOST_POINTS).round().astype(int))
    rows = [(at + 1, number(float(per_sample[at]), 8), size(sent[at])) for at in shown]
    # FedEM records the start too, and not always every iteration.
    entry = "record" if "participation" in found.report else "iteration"
    heads = (entry, "log-likelihood per sample", "sent by then")
    return [table(rows, *heads, title="Log-likelihood against bytes", right=heads)]


def _name(names: list[str], agent: int) -> str:
    if agent < len(names):
        return names[agent]
    return "server" if names else str(agent)


@app.command("export")
def export(
    model: ModelFile,
    output: Annotated[
        Path,
        WRITTEN,
        typer.Option(
            "-o", "--output", help="File to write: .npz (NumPy) or .json; .csv of an imputation."
        ),
    ],
    quote_formulas: QuoteFormulas = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No messages.")] = False,
) -> None:
    """Write a model as a NumPy archive, as JSON, or as a table.

    The archive has the assembled mixture, or the arrays of a fit of SAEM; JSON has all. Of an
    imputation (from vpem impute) the completed matrix is written, as CSV.

    Example: vpem model export model.h5 -o model.npz
    """
    from .output import Screen

    with Screen(quiet) as screen:
        from vpem.files.endings import ending_of
        from vpem.files.hdf5 import check_writable
        from vpem.files.imputations import is_imputation, read_imputed, write_imputed
        from vpem.files.models import read_model, write_json, write_npz
        from vpem.saem.formats.fits import is_saem

        from .model_saem import export_saem

        if is_imputation(model):
            check_writable(output, force, "imputed values")
            write_imputed(output, read_imputed(model), force, quote_formulas)
            screen.say(f"wrote {output}")
            return
        check_writable(output, force, "exported models")
        if is_saem(model):
            export_saem(model, output, force)
        else:
            write = write_npz if ending_of(output) == ".npz" else write_json
            write(output, read_model(model), force)
        screen.say(f"wrote {output}")


@app.command("join")
def join(
    shards: Annotated[
        list[Path],
        READ,
        typer.Argument(help="Shards of one fit (vpem fit ... --shards), in any order."),
    ],
    output: Annotated[
        Path, WRITTEN, typer.Option("-o", "--output", help="Write the model here (HDF5).")
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No messages.")] = False,
) -> None:
    """Join the shards of a fit to one model.

    Do so where one may have them all.

    Example: vpem model join model.hospital.h5 model.lab.h5 -o model.h5
    """
    from .output import Screen, plural

    with Screen(quiet) as screen:
        from vpem.files.hdf5 import check_writable
        from vpem.files.models import write_model
        from vpem.fits.shards import join_shards

        check_writable(output, force, "models")
        model = join_shards(shards)
        write_model(output, model, force)
        screen.say(f"joined {plural(len(shards), 'shard')} to {output}")
