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
from .use import CLASSES, HELD, INDIVIDUALS, DataFile, ModelFile, UseRequest, UseSettings, stored_at

if TYPE_CHECKING:
    from vpem.network.schema import Report


app = typer.Typer(help="Show and export fitted models.\n\nExample: vpem model show model.h5")

CRITERIA = ("log-likelihood", "bic", "aic")
"""What models are judged by."""

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
        found = _shown(file)
        if isinstance(found, str):
            module, _, function = found.rpartition(".")
            prints = getattr(import_module(f"..{module}", __package__), function)
            prints([file] if function == "log" else file, json=json)
        elif json:
            print_json(found)
        else:
            lines = [(name.replace("_", " "), str(value)) for name, value in found.items()]
            show_all(table(lines, "", ""))


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
    *,
    table: Annotated[TableOutput, Without("json output publish_anyway strict")],
) -> None:
    """Write a model as a NumPy archive, as JSON, or as a table.

    The archive has the assembled mixture, or the arrays of a fit of SAEM; JSON has all. Of an
    imputation (from vpem impute) the completed matrix is written, as a table.

    Example: vpem model export model.h5 -o model.npz
    """
    with Screen(table.quiet) as screen:
        from vpem.files.hdf5 import attribute_of
        from vpem.files.results import IMPUTATION_FILE, read_imputed, write_imputed

        if attribute_of(model) == IMPUTATION_FILE:
            write_imputed(output, read_imputed(model), table.force, table.quote_formulas)
        else:
            stored_at(model, "model export").export(output, table.force)
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

        check_choice("--criterion", criterion, CRITERIA)
        if output is not None:
            check_writable(output, force, "models")
        name, largest = criterion.replace("-", "_"), criterion == "log-likelihood"
        first, *others = candidates = list(map(_judged, models))
        for one in others:
            for fact, sentence in ALIKE.items():
                if one[fact] != first[fact] and (fact != "n_parameters" or largest):
                    both = one["model"], first["model"], one[fact], first[fact]
                    raise InputError(sentence.format(*both))
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
                "copy": output,
                "models": [{key: one[key] for key in JUDGED} for one in candidates],
            })  # fmt: skip
        else:
            print(chosen["model"])
        least = (min if largest else max)(one[name] for one in candidates)
        screen.say(
            f"{criterion} {number(chosen[name], 10)}, the best of "
            f"{plural(len(candidates), 'model')} down to {number(least, 10)}"
        )


def _judged(file: Path) -> Report:
    """Return what a model is judged and compared by."""
    from vpem.files.models import read_model

    model = read_model(file)
    report, options, names = model.report, model.options, model.feature_names
    for name in CRITERIA:
        if report.get(name.replace("-", "_")) is None:
            raise InputError(f"{file} does not say its {name}, by which models are compared")
    return {
        **{name: report.get(name) for name in (*JUDGED, "n_samples")},
        "model": str(file),
        "seed": options.get("seed"),
        "last": report.get("degenerate") and options.get("floor_fits") != "keep",
        "n_parameters": model.mixture.n_parameters,
        "n_features": len(names),
        "names": names,
        "data": Path(str(report.get("data"))).name,
    }


SAME = "; give models of the same data"

ALIKE = {
    "n_features": f"{{0}} has {{2}} features, {{1}} has {{3}}{SAME}",
    "names": f"{{0}} and {{1}} have different features{SAME}",
    "n_samples": f"{{0}} was fitted to {{2}} rows, {{1}} to {{3}} rows{SAME}",
    "data": f"{{0}} was fitted to the data {{2}}, {{1}} to the data {{3}}{SAME}",
    "n_parameters": "{0} has {2} parameters, {1} {3}: the log-likelihood prefers the larger model; "
    "take --criterion bic",
}
"""What is said of two models that have something else in each."""


class ContributionSettings(
    UseSettings, kept=False,
    rows=[(
        "labels", lambda given: bool(given.get("apart")) and given["labels"] != "labels",
        "{labels} are compared with the components of rows without each party, which only the root "
        "of its hub knows; leave it out, or read all parties' files in one process",
    )],
):  # fmt: skip
    """By which rows parties are judged, where these live, and where figures go."""

    output: Path | None = changed(
        help="Write all figures here, a row for each party and feature: .csv, .parquet or .h5."
    )
    engine: str = changed(
        help="simulator: one process holds all agents. mpi: each party is a rank of its own, or "
        "some share one (mpiexec -n 3 {command} ... --engine mpi; needs vpem[mpi]).",
        choices=("simulator", "mpi"),
        idle=None,
    )


@app.command("contribution")
def contribution(
    model: ModelFile,
    data: DataFile,
    *,
    settings: Annotated[
        ContributionSettings,
        Without(
            f"drawn sample_weight shards study member listen log digits {INDIVIDUALS} {OF_A_FIT}"
        ),
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
    UseRequest("model contribution", model, data, settings).run()


MARKS = {
    b"\x89png": "a picture", b"%pdf": "a picture", b"<?xml": "a picture", b"<svg": "a picture",
    b"<!doctype html": "a page", b"<html": "a page",
    b'{"time": "': "the log of a relay, which is text: a line of JSON for all that it did",
}  # fmt: skip
"""Beginnings, in lower case, of files that have no facts to show."""

TEXTS = (".csv", ".tsv", ".txt", ".gz", ".bz2", ".xz")
"""Endings of text tables, compressed ones too."""


def _shown(file: Path) -> str | Report:
    """Return facts of a file, or what prints it; one that nothing prints is refused."""
    from vpem.files.hdf5 import attribute_of
    from vpem.files.opening import check_readable, open_regular
    from vpem.files.readers.numpy_files import list_npz
    from vpem.files.studies.logs import BEGINS, LEDGER

    with open_regular(check_readable(file)) as opened:
        start = opened.read(4096)  # which shows its kind
    if b"PRIVATE KEY-----" in start or file.suffix == ".key":
        raise InputError(f"{file} is a private key, which is never shown")
    lines, text = start.splitlines(), start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    said = next((what for mark, what in MARKS.items() if text.startswith(mark)), None)
    kind, data = attribute_of(file), "commands.data.show_data"
    by_sign: tuple[tuple[str | Callable[[Path], Report] | None, bool], ...] = (
        ("study.party.budget", file.name == LEDGER),
        ("study.party.show_identity", start.startswith(b"-----BEGIN CERTIFICATE")),
        ("study.party.log", start.startswith(BEGINS)),
        ("study.party.show_request", b"[request]" in lines),
        ("study.study.show_file", b"[study]" in lines),
        (data, kind == "vpem-dataset"),
        (_beside_fits, kind.startswith("vpem-") and kind not in CLASSES),
        ("commands.use.show_fit", start.startswith(b"\x89HDF")),
        (None, said is not None),
        # Of arrays only the headers are read.
        (lambda path: {"holds": "arrays of NumPy"} | list_npz(path),
         start.startswith(b"PK") and file.suffix == ".npz"),
        (_fields, text.startswith(b"{")),
        (_rules, file.name == "policy.toml"),
        (data, text.startswith((b"par1", b"arrow1", b"\x93numpy"))),
        (data, file.suffix.lower() in TEXTS),
    )  # fmt: skip
    shown = next((shown for shown, is_so in by_sign if is_so), None)
    if shown is None:
        raise FileError(
            f"{file} is {said or 'no file that vpem writes'}; vpem show takes models and other "
            "fits, exports, tables, studies, requests, certificates, policies and logs of members"
        )
    return shown if isinstance(shown, str) else {"file": str(file)} | shown(file)


def plain(facts: Any, *names: str) -> Report:
    """Return those facts, of these names or all, that are words and numbers."""
    known = facts if isinstance(facts, dict) else {}
    chosen = {name: known.get(name) for name in names or known}
    return {name: one for name, one in chosen.items() if isinstance(one, str | int | float)}


def _beside_fits(path: Path) -> Report:
    from vpem.files.checkpoints import read_state
    from vpem.files.hdf5 import attribute_of, list_datasets, open_read
    from vpem.files.json_text import read_json_element
    from vpem.files.results import read_imputed

    kind = attribute_of(path)
    with open_read(path) as file:
        shapes = {name: one.shape or ["one value"] for name, one in list_datasets(file).items()}
        report = read_json_element(file, "report") if kind == "vpem-imputation" else {}
    facts: Report = {name: " x ".join(map(str, shape)) for name, shape in shapes.items()}
    if kind == "vpem-checkpoint":
        facts = plain(read_state(path).get("facts"))
    elif kind == "vpem-imputation":
        names = "algorithm law rank n_components n_iter converged log_likelihood"
        facts = read_imputed(path).describe() | plain(report, *names.split())
    return {"holds": HELD.get(kind, kind).partition(",")[0]} | facts


def _fields(path: Path) -> Report:
    import numpy as np

    from vpem.files.json_text import read_json_file

    def extent(value: Any) -> str:
        if isinstance(value, list):  # those of different lengths have no further dimension
            return f"list of {' x '.join(map(str, np.array(value, dtype=object).shape))}"
        short = value if isinstance(value, str) else brief(value)
        return f"{len(value)} fields" if isinstance(value, dict) else short

    content = read_json_file(path)
    if not isinstance(content, dict):
        raise InputError(f"{path} is no object of JSON")
    return {"holds": "JSON"} | {name: extent(value) for name, value in content.items()}


def _rules(path: Path) -> Report:
    from vpem.files.studies.policy import read_policy

    return {"holds": "what this party allows"} | {
        name: ", ".join(value) if isinstance(value, tuple) else value
        for name, value in vars(read_policy(path)).items()
        if name != "path" and value is not None and value is not False
    }
