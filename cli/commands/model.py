"""`vpem model`: show, export, join and compare fitted models."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.errors import FileError, InputError, brief, check_choice
from vpem.pictures.contents import number, plural
from vpem.records import changed

from ..data import OF_A_FIT
from ..display import Screen, print_json, table
from ..display import show as show_all
from ..options import Force, Json, Quiet, Without
from ..outputs import READ, WRITTEN, TableOutput
from .use import CLASSES, INDIVIDUALS, ModelFile, UseRequest, UseSettings, reported, stored_at

if TYPE_CHECKING:
    from vpem.files.models import Model
    from vpem.network.schema import Report


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show and export fitted models.\n\nExample: vpem model show model.h5",
)

CRITERIA = {"log-likelihood": "log_likelihood", "bic": "bic", "aic": "aic"}
"""What models are judged by, and what their reports call it."""

JUDGED = ("model", "log_likelihood", "bic", "aic", "n_iter", "converged", "degenerate", "seed")
"""What JSON says of models that are compared."""

AnyFile = Annotated[Path, READ, typer.Argument(help="File that vpem has written.")]


@app.command("show")
def show(file: AnyFile, json: Json = False) -> None:
    """Show a model, or another file that vpem has written.

    Of a model: hubs, mixing weights, means, history. Of clusters: centres. Of a fit of SAEM:
    estimates with standard errors, shrinkage. Of exports: arrays or fields, and their sizes. Of
    data and tables: what 'vpem data describe' prints. Of studies, certificates and logs: what
    'vpem study show', 'vpem party show' and 'vpem party log' print. Of requests: who asks, for
    what. Of policies: the rules. Pictures, pages and private keys are refused. 'vpem show' and
    'vpem model show' are the same command.

    Example: vpem show model.h5
    """
    with Screen():
        from vpem.files.opening import check_readable, open_regular

        with open_regular(check_readable(file)) as opened:
            start = opened.read(4096)  # which shows its kind
        _printer(file, start)(file, json)


@app.command("export")
def export(
    model: ModelFile,
    output: Annotated[
        Path,
        WRITTEN,
        typer.Option(
            "-o",
            "--output",
            help="File to write: .npz (NumPy) or .json; .csv or .parquet of an imputation.",
        ),
    ],
    force: Force = False,
    quiet: Quiet = False,
    *,
    table: Annotated[TableOutput, Without("json quiet output force publish_anyway strict")],
) -> None:
    """Write a model as a NumPy archive, as JSON, or as a table.

    The archive has the assembled mixture, or the arrays of a fit of SAEM; JSON has all. Of an
    imputation (from vpem impute) the completed matrix is written, as a table.

    Example: vpem model export model.h5 -o model.npz
    """
    with Screen(quiet) as screen:
        stored_at(model).able("model export")(output, force, table.quote_formulas)
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
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Join the shards of a fit to one model.

    Do so only where one process may have them all.

    Example: vpem model join model.hospital.h5 model.lab.h5 -o joined.h5
    """
    with Screen(quiet) as screen:
        from vpem.files.hdf5 import check_writable
        from vpem.files.models import write_model
        from vpem.fits.parts import join_shards

        check_writable(output, force, "models")
        model = join_shards(shards)
        write_model(output, model, force)
        screen.say(f"joined {plural(len(shards), 'shard')} to {output}")


@app.command("best")
def best(
    models: Annotated[list[Path], READ, typer.Argument(help="Models, from 'vpem fit --output'.")],
    criterion: Annotated[
        str,
        typer.Option(
            help="log-likelihood (the largest; for models of the same size), or bic or aic (the "
            "lowest)."
        ),
    ] = "log-likelihood",
    output: Annotated[
        Path | None, WRITTEN, typer.Option("-o", "--output", help="Copy the best model here.")
    ] = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print which of several models of the same data is best.

    They may be fits with different seeds. Of several equally good ones it is the first.

    Example: vpem model best fits/0.h5 fits/1.h5 -o best.h5
    """
    with Screen(quiet) as screen:
        import shutil

        from vpem.files.hdf5 import atomic_write, check_writable
        from vpem.files.models import read_model

        check_choice("--criterion", criterion, CRITERIA)
        if output is not None:
            check_writable(output, force, "models")
        first, *others = candidates = [_judged(file, read_model(file)) for file in models]
        for one in others:
            _check_comparable(first, one, criterion)
        name, largest = CRITERIA[criterion], criterion == "log-likelihood"
        # The first of equals; none with degenerate components if another has none.
        chosen = max(
            candidates, key=lambda one: (not one["last"], one[name] if largest else -one[name])
        )
        if output is not None:
            with atomic_write(output, force, "models") as temporary:
                shutil.copyfile(chosen["model"], temporary)
        if json:
            print_json({
                "best": chosen["model"],
                "criterion": criterion,
                "copy": None if output is None else str(output),
                "models": [{key: one[key] for key in JUDGED} for one in candidates],
            })  # fmt: skip
        else:
            print(chosen["model"])
        least = (min if largest else max)(one[name] for one in candidates)
        screen.say(
            f"{criterion} {number(chosen[name], 10)}, the best of "
            f"{plural(len(candidates), 'model')} down to {number(least, 10)}"
        )


class ContributionSettings(UseSettings, kept=False):
    """By which rows parties are judged, where these live, and where figures go."""

    output: Path | None = changed(
        UseSettings,
        "output",
        help="Write all figures here, a row for each party and feature: .csv, .parquet or .h5.",
    )
    engine: str = changed(
        UseSettings,
        "engine",
        help="simulator: one process holds all agents. mpi: each party is a rank of its own, or "
        "some share one (mpiexec -n 3 {command} ... --engine mpi; needs vpem[mpi]).",
        choices=("simulator", "mpi"),
        idle=None,
    )


@app.command("contribution")
def contribution(
    model: ModelFile,
    data: Annotated[
        list[Path],
        READ,
        typer.Argument(
            help="Rows to judge by, with the model's features; with --parties a file each, or a "
            "manifest."
        ),
    ],
    *,
    settings: Annotated[
        ContributionSettings,
        Without(f"drawn sample_weight shards study member listen log {INDIVIDUALS} {OF_A_FIT}"),
    ],
) -> None:
    """Tell which parties and features matter, without fitting again.

    For each party: the information of its features alone on a row's component, what is lost of it
    without its term since no other party has it, what its features share with those of others, the
    log-likelihood that is lost, and the rows that change their component. For each feature: its
    information alone. Labels, if there are any, are compared with components with and without each
    party.

    Parties are those of the data (--parties), or else the agents of the fit. In processes of their
    own (--engine mpi) they send only what they send for 'vpem predict', and figures: means over
    all rows.

    Example: vpem model contribution model.h5 data/breast_cancer.h5

    Example: vpem model contribution model.h5 data/breast_cancer.h5 --json
    """
    UseRequest(model, data, settings).run("model contribution")


def _judged(file: Path, model: Model) -> Report:
    """Return what models are judged and compared by, in which no file is trusted."""
    import math

    report, options = model.report, model.options
    for name in CRITERIA.values():
        value: Any = report.get(name)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise InputError(f"{file} does not say its {name.replace('_', '-')}, got {value!r}")
    data = report.get("data")
    return {
        **{name: report.get(name) for name in JUDGED},
        "model": str(file),
        "seed": options.get("seed"),
        "last": report.get("degenerate") and options.get("floor_fits") != "keep",
        "parameters": model.mixture.n_parameters,
        "features": model.feature_names,
        "rows": report.get("n_samples"),
        "data": Path(data).name if isinstance(data, str) else None,
    }


def _check_comparable(one: Report, other: Report, criterion: str) -> None:
    """Raise InputError unless the criterion can compare both models, of the same data."""
    first, second, fitted = one["model"], other["model"], f"{other['model']} was fitted to"
    d, others = len(one["features"]), len(other["features"])
    unlike = {name for name, value in one.items() if value != other[name]}
    for wrong, sentence in (
        (d != others, f"{second} has {others} features, {first} has {d}"),
        ("features" in unlike, f"{second} and {first} have different features"),
        ("rows" in unlike, f"{fitted} {other['rows']} rows, {first} to {one['rows']} rows"),
        ("data" in unlike, f"{fitted} the data {other['data']}, {first} to the data {one['data']}"),
    ):
        if wrong:
            raise InputError(f"{sentence}; give models of the same data")
    if criterion == "log-likelihood" and "parameters" in unlike:
        raise InputError(
            f"{second} has {other['parameters']} parameters, {first} {one['parameters']}: the "
            "log-likelihood prefers the larger model; take --criterion bic"
        )


MARKS = {
    b"\x89png": "a picture", b"%pdf": "a picture", b"<?xml": "a picture", b"<svg": "a picture",
    b"<!doctype html": "a page", b"<html": "a page",
    b'{"time": "': "the log of a relay, which is text: a line of JSON for all that it did",
}  # fmt: skip
"""Beginnings, in lower case, of files that have no facts to show."""

OTHERS = {
    "vpem-predictions": "predictions",
    "vpem-contributions": "contributions of parties and features",
    "vpem-imputed": "imputed values",
    "vpem-samples": "rows drawn from a model",
    "vpem-observations": "observations of curves",
    "vpem-individuals": "individuals and their observations",
    "vpem-saem-individuals": "estimates of individuals",
    "vpem-saem-curves": "predicted curves",
    "vpem-saem-residuals": "residuals of a fit of SAEM",
    "vpem-topic-words": "words of topics",
}
"""What else files of vpem hold, in words: tables of results, data that Python has written."""

TEXTS = (".csv", ".tsv", ".txt", ".gz", ".bz2", ".xz")
"""Endings of text tables, compressed ones too."""


Prints = Callable[[Path, bool], None]
"""What prints a file, as JSON or not."""


def elsewhere(name: str) -> Prints:
    """Return a function of another module, by its name in this package, as one that prints."""
    module, _, function = name.rpartition(".")

    def prints(file: Path, json: bool) -> None:
        given = [file] if function == "log" else file
        getattr(import_module(f"..{module}", __package__), function)(given, json=json)

    return prints


def telling(found: Callable[[Path], Report]) -> Prints:
    """Make one that prints of a function that returns facts of a file."""

    def prints(file: Path, json: bool) -> None:
        facts = {"file": str(file), **found(file)}
        if json:
            print_json(facts)
        else:
            lines = [(name.replace("_", " "), str(value)) for name, value in facts.items()]
            show_all(table(lines, "", ""))

    return prints


def _printer(file: Path, start: bytes) -> Prints:
    """Return what prints a file; one that nothing prints is refused."""
    import h5py

    from vpem.files.hdf5 import open_read, read_attribute
    from vpem.files.studies.logs import BEGINS, LEDGER

    if b"PRIVATE KEY-----" in start or file.suffix == ".key":
        raise InputError(f"{file} is a private key, which is never shown")
    lines, plain = start.splitlines(), start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    said = next((what for mark, what in MARKS.items() if plain.startswith(mark)), None)
    kind, data = "", elsewhere("commands.data.show_data")
    if hdf5 := h5py.is_hdf5(str(file)):
        with open_read(file) as opened:
            kind = read_attribute(opened, "encoding-type") or ""
    by_sign: tuple[tuple[Prints | None, bool], ...] = (
        (elsewhere("study.party.budget"), file.name == LEDGER),
        (elsewhere("study.party.show_identity"), start.startswith(b"-----BEGIN CERTIFICATE")),
        (elsewhere("study.party.log"), start.startswith(BEGINS)),
        (elsewhere("study.party.show_request"), b"[request]" in lines),
        (elsewhere("study.study.show_file"), b"[study]" in lines),
        (_checkpoint, kind == "vpem-checkpoint"),
        (_imputation, kind == "vpem-imputation"),
        (data, kind == "vpem-dataset"),
        (_other, kind.startswith("vpem-") and kind not in CLASSES),
        (lambda file, json: stored_at(file).show(json), hdf5),
        (None, said is not None),
        (_arrays, start.startswith(b"PK") and file.suffix == ".npz"),
        (_fields, plain.startswith(b"{")),
        (_rules, file.name == "policy.toml"),
        (data, plain.startswith((b"par1", b"arrow1", b"\x93numpy"))),
        (data, file.suffix.lower() in TEXTS),
    )
    prints = next((prints for prints, is_so in by_sign if is_so), None)
    if prints is not None:
        return prints
    raise FileError(
        f"{file} is {said or 'no file that vpem writes'}; vpem show takes models and other fits, "
        "exports, tables, studies, requests, certificates, policies and logs of members"
    )


def plain(facts: Report, *names: str) -> Report:
    """Return those facts, of these names or all, that are words and numbers."""
    known = {name: facts.get(name) for name in names or facts}
    return {name: one for name, one in known.items() if isinstance(one, str | int | float)}


@telling
def _checkpoint(path: Path) -> Report:
    from vpem.files.checkpoints import read_state

    return {"holds": "a checkpoint"} | plain(reported(read_state(path), "facts", dict) or {})


@telling
def _imputation(path: Path) -> Report:
    from vpem.files.hdf5 import open_read
    from vpem.files.json_text import read_json_element
    from vpem.files.results import read_imputed

    imputed = read_imputed(path)
    with open_read(path) as file:
        report = read_json_element(file, "report")
    return {
        "holds": "an imputation",
        "source": imputed.source,
        "rows": len(imputed.row_names),
        "columns": len(imputed.column_names),
        "entries_imputed": int((imputed.times_seen == 0).sum()),
        "draws": 0 if imputed.draws is None else len(imputed.draws),
    } | plain(report, "algorithm", "law", "rank", "n_components", "n_iter", "converged",
              "log_likelihood")  # fmt: skip


@telling
def _other(path: Path) -> Report:
    from vpem.files.hdf5 import list_datasets, open_read, read_attribute

    with open_read(path) as file:
        kind = read_attribute(file, "encoding-type") or ""
        shapes = {name: one.shape or () for name, one in list_datasets(file).items()}
    sizes = {name: " x ".join(map(str, shape)) or "one value" for name, shape in shapes.items()}
    return {"holds": OTHERS.get(kind, kind)} | sizes


@telling
def _arrays(path: Path) -> Report:
    # By their headers; none is read.
    from vpem.files.readers.numpy_files import list_npz

    return {"holds": "arrays of NumPy", **list_npz(path)}


@telling
def _fields(path: Path) -> Report:
    # Short values, and sizes of lists and objects.
    from vpem.files.json_text import read_json_file

    def extent(value: Any) -> str:
        lengths = []
        while isinstance(value, list):
            lengths.append(str(len(value)))
            # Lists of different lengths have no further dimension.
            alike = {len(one) if isinstance(one, list) else None for one in value}
            value = value[0] if len(alike) == 1 else None
        if lengths:
            return f"list of {' x '.join(lengths)}"
        short = value if isinstance(value, str) else brief(value)
        return f"{len(value)} fields" if isinstance(value, dict) else short

    content = read_json_file(path)
    if not isinstance(content, dict):
        raise InputError(f"{path} is no object of JSON")
    return {"holds": "JSON"} | {name: extent(value) for name, value in content.items()}


@telling
def _rules(path: Path) -> Report:
    from vpem.files.studies.policy import read_policy

    return {"holds": "what this party allows"} | {
        name: ", ".join(value) if isinstance(value, tuple) else value
        for name, value in vars(read_policy(path)).items()
        if name != "path" and value is not None and value is not False
    }
