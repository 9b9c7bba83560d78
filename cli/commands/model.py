"""Commands on fits: `vpem predict`, `score`, `sample`, `evaluate`, `plot`, `report` and `model`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.errors import FileError, InputError, Setting, VpemError, brief, check_choice, printable
from vpem.pictures.contents import number, plural, table_of
from vpem.records import Settings, Table, beside, changed, setting, unset, words_in
from vpem.settings import OF_DATA

from ..data import OF_A_FIT
from ..display import Screen, plain, print_json, show
from ..names import in_options, name_of, speak_of
from ..options import Force, Json, Quiet, Without, refuse_beside
from ..outputs import READ, WRITTEN, ResultSettings, TableOutput
from . import use
from .use import (
    CORPUS_MODEL,
    FITS,
    HELD,
    INDIVIDUALS,
    OF_COLUMNS,
    RUNNING,
    TO_MERGE,
    ContributionSettings,
    MergeSettings,
    PredictSettings,
    StoredFile,
    TraceFile,
    UseRequest,
    UseSettings,
)

if TYPE_CHECKING:
    from vpem.network.schema import Report


def stored_at(path: Path, command: str = "plot", curve: str | None = None) -> Any:
    """Return a fit for a command, unless it cannot use such; one of no kind is read as a model."""
    import h5py

    from vpem.files.hdf5 import attribute_of
    from vpem.files.opening import check_readable
    from vpem.files.traces import is_lines

    lines = is_lines(path)
    if not lines and not h5py.is_hdf5(str(check_readable(path))):
        raise FileError(
            f"{path} is not an HDF5 file, which fits write; give the model before the data"
        )
    encoding, instead = "vpem-trace" if lines else attribute_of(path), dict[str, str]()
    holds = HELD.get(encoding, "neither a model nor another fit")
    drawn = encoding == "vpem-trace" and command == "plot"
    if drawn or encoding in FITS or not encoding.startswith("vpem-"):
        kind: type[StoredFile]
        if encoding == "vpem-saem":
            from .individuals import SaemFile, TopicsFile

            kind = TopicsFile if attribute_of(path, "model") == CORPUS_MODEL else SaemFile
        elif encoding == "vpem-imputation":
            from .impute import ImputedFile

            kind = ImputedFile
        elif drawn:
            kind = TraceFile
        else:
            from .rows import ClustersFile, MixtureFile

            kind = ClustersFile if encoding == "vpem-clustering" else MixtureFile
        if command in ("plot", "report") or hasattr(kind, command.split()[-1]):
            stored = kind(path, curve)
            try:
                refuse_beside(**stored.facts)
            except InputError as error:  # which says the file, not MODEL
                parts = (str(path) if one == Setting("model") else one for one in error.parts)
                raise InputError(*parts) from None
            return stored
        holds, instead = kind.holds, kind.instead
    elif encoding == "vpem-checkpoint" and _beside_fits(path).get("algorithm") == "selection":
        holds = "the state of a search, which goes on by 'vpem select' with the same --state"
    why = instead.get(command, f"which 'vpem {command}' cannot use")
    raise InputError(f"{path} holds {holds}, {why}")


def show_fit(file: Path, json: bool) -> None:
    stored = stored_at(file)
    if json:
        print_json(stored.as_json())
        return
    from vpem.pictures.page import contents_of

    contents = contents_of(stored.saved)
    # Names and words in them come from the author of the file.
    show(printable(contents.title), printable(contents.lead))
    for section in contents.sections:
        for item in section.items:
            if not isinstance(item, str | list):
                item = replace(item, caption=item.caption or section.heading)
            show(item)


OUTPUTS = "output force quote_formulas digits"
NOT_DRAWN = f"missing sample_weight secure_sum quote_formulas digits {RUNNING} {OF_A_FIT}"
NOT_PAGE = "directions drawn individual"
NOT_DATA = "times population latents residuals"


ModelFile = Annotated[Path, READ, typer.Argument(help="Model, from 'vpem fit --output'.")]
FitFile = Annotated[
    Path, READ, typer.Argument(help="Model, clusters or fit of SAEM, from the --output of a fit.")
]
DATA = "Dataset with the model's features; with --parties a file each, or a manifest."
DataFile = Annotated[list[Path], READ, typer.Argument(help=DATA)]
OptionalData = Annotated[
    list[Path] | None,
    READ,
    typer.Argument(help=f"{DATA} Individuals for a fit of SAEM. Pictures may need none."),
]


def _run(request: UseRequest, *arguments: object) -> None:
    """Have the file do what the command asks, and print what was written, if anything was."""
    from vpem.files.hdf5 import check_writable

    with request.screen:
        file = request.settings.output
        if file is not None and request.command == "predict" and request.tables:
            file = None  # but one for each party
        if file is not None and request.where.speaks:
            check_writable(file, request.settings.force, "results")
        stored = stored_at(request.model, request.command, request.settings.curve)
        written = getattr(stored, request.command.split()[-1])(request, *arguments)
        if file is not None:
            what = plural(written, "row") if isinstance(written, int) else written
            request.screen.say(f"wrote {what} to {file}")


def predict(
    model: FitFile,
    data: OptionalData = None,
    *,
    settings: Annotated[
        PredictSettings, Without(f"labels drawn sample_weight label_column shards {OF_A_FIT}")
    ],
) -> None:
    """Assign rows to components or centres; predict individuals.

    A row goes to its most responsible component, or to its nearest centre, with the distance to it
    (of clusters fitted with --scale standard that of standardized features).

    With a fit of SAEM: the curve of each individual given its rows, with an interval of the curve
    (not of new measurements); the classes of a mixture; the factors of bifactor.

    Example: vpem predict model.h5 data/breast_cancer.h5 --proba -o labels.csv

    Example: vpem predict clusters.h5 data/breast_cancer.h5 -o labels.csv

    Example: vpem predict growth.h5 data/oxford_boys.csv --individual 7 --times -1:1:0.5
    """
    _run(UseRequest("predict", model, data or (), settings, labels=False))


def score(
    model: FitFile,
    data: DataFile,
    *,
    settings: Annotated[
        UseSettings,
        Without(f"labels drawn label_column shards individual {NOT_DATA} {OUTPUTS} {OF_A_FIT}"),
    ],
) -> None:
    """Compute log-likelihood, BIC and AIC of data under a model.

    Under clusters: inertia. Under a fit of SAEM: log-likelihood of individuals, by formula or
    importance sampling.

    Example: vpem score model.h5 data/breast_cancer.h5 --json
    """
    _run(UseRequest("score", model, data, settings, labels=False))


class DrawSettings(Settings, kept=False):
    n: int = setting(100, "Rows to draw.", flags="-n --samples", least=1)
    seed: int = setting(0, "Seed of the draw.", least=0)


def sample(
    model: ModelFile,
    *,
    rows: DrawSettings,
    results: Annotated[ResultSettings, Without("json digits")],
) -> None:
    """Draw rows from a model, each labelled with its component.

    Example: vpem sample model.h5 -n 1000 -o drawn.h5
    """
    _run(UseRequest("sample", model, (), results.into(UseSettings)), rows.n, rows.seed)


class EvaluateSettings(UseSettings, kept=False, rows=[TO_MERGE]):
    merge_to: str | None = changed(PredictSettings, "merge_to")
    secure_sum: bool = changed(  # of files of an earlier --show-config
        hidden=True,
        idle=beside(" has no effect here, where one process has all data; leave it out"),
    )


def evaluate(
    model: FitFile,
    data: DataFile,
    *,
    settings: Annotated[
        EvaluateSettings,
        Without(f"drawn sample_weight {INDIVIDUALS} {RUNNING} {OUTPUTS} {OF_A_FIT}"),
    ],
) -> None:
    """Compare components or clusters with labels.

    The fit never saw these labels. Accuracy is that of the best one-to-one mapping of components to
    labels.

    Example: vpem evaluate model.h5 data/breast_cancer.h5 --labels labels
    """
    _run(UseRequest("evaluate", model, data, settings))


class PictureSettings(
    UseSettings, kept=False,
    rows=[
        ("individual covariates curve", *OF_DATA),
        ("labels", *beside(" is for {kind=confusion}; leave it out", shows_labels=False)),
        ("individual covariates id time value doses", *beside(
            " is about DATA, of which this kind of picture shows nothing; leave it out, or take "
            "another {kind}", shows_data=False)),
    ],
):  # fmt: skip
    output: Path | None = changed(
        help="Write here: .png, .svg or .pdf. Default: beside the model, as model-KIND.png.",
        often=False,
    )
    directions: float | None = unset(
        "The plane of projection: directions in which components differ by their means (1), or "
        "also by their covariances (0.5, the lambda of mclust's MclustDR). Default: Fisher's.",
        least=0.0,
        most=1.0,
        local=True,
    )
    force: bool = changed(idle=None)


class PageSettings(PictureSettings, kept=False):
    output: Path | None = changed(
        help="Write here: .html. Default: beside the model, as model.html."
    )


def plot(
    model: FitFile,
    data: OptionalData = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="profile, history, graph, sparsity, communication; projection, marginals, pairs "
            "and boundaries, best with DATA; responsibilities, of DATA; confusion, of DATA with "
            "labels. Fits of SAEM: traces; curves, observed, residuals, vpc and effects, of DATA. "
            "Imputations: trends. Traces of fits (--trace), several files for the median of their "
            "runs: trace. Default: profile, of two features pairs, of SAEM traces."
        ),
    ] = None,
    over: Annotated[
        list[Path] | None,
        READ,
        typer.Option(
            metavar="MODEL",
            help="Lay this model over the first in marginals and history, whose curves are means "
            "over fits that were made alike. Several: repeat it.",
        ),
    ] = None,
    *,
    settings: Annotated[PictureSettings, Without(f"{NOT_DATA} {NOT_DRAWN}")],
) -> None:
    """Draw a model: its components, their differences, and the fit.

    Colours are distinct to the colour-blind, and in grey by lines, marks, hatches or numbers.

    Example: vpem plot model.h5

    Example: vpem plot model.h5 data/breast_cancer.h5 --kind projection

    Example: vpem plot model.h5 data/breast_cancer.h5 --kind marginals -o marginals.svg

    Example: vpem plot growth.h5 data/oxford_boys.csv --kind curves -o curves.png

    Example: vpem plot vpem.h5 data/wine.h5 --kind marginals --over em.h5

    Example: vpem plot seed0.jsonl seed1.jsonl seed2.jsonl -o runs.png
    """
    request = UseRequest("plot", model, data or (), settings)
    with request.screen:
        from vpem.pictures.page import check_kind, draw, kinds_of, next_kinds

        stored = stored_at(model, "plot", settings.curve)
        saved = stored.saved
        kind = kind or next(iter(kinds_of(saved)))
        drawn = check_kind(kind, saved)
        request.labelled, shows_data = drawn.labels, drawn.data != "no"
        refuse_beside(shows_labels=drawn.labels, shows_data=shows_data)
        output = request.beside(f"-{kind}.png", "pictures")
        evaluation = stored.evaluation_data(request)
        features = None
        if settings.drawn is not None:  # none at all are refused, as an empty variable of a shell
            features = [name for name in words_in("drawn", settings.drawn) if name != ""]
        laid = [stored_at(one, "plot").saved for one in over or ()] or None
        picture = draw(
            kind, saved, evaluation, features=features, over=laid, directions=settings.directions
        )
        if data and not shows_data:
            picture.notes.append(f"the kind {kind} shows nothing of DATA")
        others = next_kinds(kind, saved, evaluation)
        picture.save(output, force=settings.force)
        listed = "; ".join(
            f"{f'with {needs}: ' if needs else ''}{', '.join(names)}"
            for needs, names in others.items()
        )
        facts = {
            "plot": str(output), "kind": kind, "description": picture.alt, "notes": picture.notes,
            "next": [name for names in others.values() for name in names],
        }  # fmt: skip
        request.tell_drawn(facts, picture.notes, f"next, --kind: {listed}" if listed else "")


def report(
    context: typer.Context,
    model: FitFile,
    data: OptionalData = None,
    *,
    settings: Annotated[PageSettings, Without(f"{NOT_PAGE} {NOT_DATA} {NOT_DRAWN}")],
) -> None:
    """Write a page on a model: how well it fits, with all pictures.

    The page is one file that needs no network and runs nothing; it can be printed.

    Example: vpem report model.h5 data/breast_cancer.h5

    Example: vpem report growth.h5 data/oxford_boys.csv --output growth.html
    """
    request = UseRequest("report", model, data or (), settings)
    with request.screen:
        output = request.beside(".html", "reports")
        from vpem.pictures.page import write_page

        stored = stored_at(model, "report", settings.curve)
        rows = stored.evaluation_data(request)
        command = stored.command(context.find_root().command)
        left_out = write_page(output, stored.saved, rows, command=command, force=settings.force)
        not_drawn = [f"{one}: {in_options(error)}" for one, error in left_out.items()]
        facts = {"report": str(output), "not_drawn": not_drawn}
        request.tell_drawn(facts, [f"no picture of {line}" for line in not_drawn])


app = typer.Typer(help="Show and export fitted models.\n\nExample: vpem model show model.h5")
app.command("boundaries")(use.show_boundaries)

CRITERIA = ("log-likelihood", "bic", "aic")
"""What models are judged by."""

JUDGED = ("model", "log_likelihood", "bic", "aic", "n_iter", "converged", "degenerate", "seed")
"""What JSON says of models that are compared."""

AnyFile = Annotated[Path, READ, typer.Argument(help="File that vpem has written.")]


@app.command("show")
def show_any(context: typer.Context, file: AnyFile, json: Json = False) -> None:
    """Show a model, or another file that vpem has written.

    Of a model: hubs, mixing weights, means, history. Of clusters: centres. Of a fit of SAEM:
    estimates with standard errors, shrinkage. Of an imputation: errors, trends. Of exports: arrays
    or fields, and their sizes. Of data and tables: what 'vpem data describe' prints. Of studies,
    certificates and logs: what 'vpem study show', 'vpem party show' and 'vpem party log' print. Of
    requests: who asks, for what. Of policies: the rules. Pictures, pages and private keys are
    refused. 'vpem show' and 'vpem model show' are the same command.

    Example: vpem show model.h5
    """
    with Screen():
        found = _shown(file)
        if isinstance(found, str):
            with _reading_as_described(context) if found == "data" else nullcontext():
                context.obj(found)([file] if found == "log" else file, json=json)
        elif json:
            print_json(found)
        else:
            show(*_tables_of(context, found))


@contextmanager
def _reading_as_described(context: typer.Context) -> Iterator[None]:
    """Name options of 'vpem data describe' in what is said of a table: `show` has none of them."""
    data: Any = context.find_root().command
    for name in ("data", "describe"):
        data = data.get_command(context, name)
    speak_of(data.params)
    try:
        yield
    except VpemError as error:
        if not all(isinstance(part, str) for part in error.parts):  # it names a setting
            error.add_note("'vpem data describe' has that option")
        raise


def _tables_of(context: typer.Context, found: Report) -> Iterator[Table]:
    """Yield what a terminal shows of a file that no fit and no study is."""
    from vpem.pictures.planning import OF_DATA as LINES

    from .data import MOST_ROWS, NUMBERS

    holds, columns = found["holds"], found.get("columns")
    options = _options_of(context, found) if holds == "a checkpoint" else {}
    dash = "-" if holds == ALLOWED else " "
    yield Table([
        (options.get(name) or name.replace("_", dash), "yes" if value is True else value)
        for name, value in found.items()
        if not isinstance(value, list) and (value is not False or not options)
    ])  # fmt: skip
    if isinstance(columns, list):
        cells = [
            one | {end: one[end][:40] if isinstance(one[end], str) else f"{one[end]:.6g}"
                   for end in ("least", "most") if one[end] is not None}
            for one in columns
        ]  # fmt: skip
        yield table_of(cells, LINES["columns"], MOST_ROWS, right=NUMBERS)


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
        stored_at(model, "model export").export(output, table)
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
        "trim": options.get("trim") or 0.0,
    }


SAME = "; give models of the same data"

ALIKE = {
    "n_features": f"{{0}} has {{2}} features, {{1}} has {{3}}{SAME}",
    "names": f"{{0}} and {{1}} have different features{SAME}",
    "n_samples": f"{{0}} was fitted to {{2}} rows, {{1}} to {{3}} rows{SAME}",
    "data": f"{{0}} was fitted to the data {{2}}, {{1}} to the data {{3}}{SAME}",
    "trim": "{0} trims a part of {2:g} of the rows, {1} of {3:g}, and criteria are of the others; "
    "give models of one --trim",
    "n_parameters": "{0} has {2} parameters, {1} {3}: the log-likelihood prefers the larger model; "
    "take --criterion bic",
}
"""What is said of two models that have something else in each."""


@app.command("contribution")
def contribution(
    model: ModelFile,
    data: DataFile,
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
    _run(UseRequest("model contribution", model, data, settings))


@app.command("merge")
def merge(
    model: ModelFile,
    data: DataFile,
    plot: Annotated[
        Path | None, WRITTEN, typer.Option(help="Draw the tree of merges here: .png, .svg or .pdf.")
    ] = None,
    *,
    settings: Annotated[
        MergeSettings,
        Without(
            f"drawn labels label_column shards study member listen log {INDIVIDUALS} {OF_A_FIT}"
        ),
    ],
) -> None:
    """Merge components to clusters by entropy, and show the tree.

    Each merge joins the two clusters by which the entropy of the rows' responsibilities falls most
    (mclust's clustCombi). The model stays as it is; 'vpem predict --merge-to' labels rows at a
    level. Parties send what they send for 'vpem predict'.

    Example: vpem model merge model.h5 data/breast_cancer.h5

    Example: vpem model merge model.h5 data/breast_cancer.h5 --plot tree.png -o clusters.csv
    """
    _run(UseRequest("model merge", model, data, settings, labels=False), plot)


MARKS = {
    b"\x89png": "a picture", b"%pdf": "a picture", b"<?xml": "a picture", b"<svg": "a picture",
    b"<!doctype html": "a page", b"<html": "a page",
    b'{"encoding": "vpem-trace"': "a trace, which 'vpem plot' draws",
    b'{"time": "': "the log of a relay, which is text: a line of JSON for all that it did",
}  # fmt: skip
"""Beginnings, in lower case, of files that have no facts to show."""

TEXTS = (".csv", ".tsv", ".txt", ".gz", ".bz2", ".xz")
"""Endings of text tables, compressed ones too."""


def _shown(file: Path) -> str | Report:
    """Return facts of a file, or its kind if the program has a printer of that: `app.PRINTERS`."""
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
    kind = attribute_of(file)
    by_sign: tuple[tuple[str | Callable[[Path], Report] | None, bool], ...] = (
        ("budget", file.name == LEDGER),
        ("certificate", start.startswith(b"-----BEGIN CERTIFICATE")),
        ("log", start.startswith(BEGINS)),
        ("request", b"[request]" in lines),
        ("study", b"[study]" in lines),
        ("data", kind == "vpem-dataset"),
        (_beside_fits, kind.startswith("vpem-") and kind not in FITS),
        ("fit", start.startswith(b"\x89HDF")),
        (None, said is not None),
        # Of arrays only the headers are read.
        (lambda path: {"holds": "arrays of NumPy"} | list_npz(path),
         start.startswith(b"PK") and file.suffix == ".npz"),
        (_fields, text.startswith(b"{")),
        (_rules, file.name == "policy.toml"),
        ("data", text.startswith((b"par1", b"arrow1", b"\x93numpy"))),
        ("data", file.suffix.lower() in TEXTS),
    )  # fmt: skip
    shown = next((shown for shown, is_so in by_sign if is_so), None)
    if shown is None:
        raise FileError(
            f"{file} is {said or 'no file that vpem writes'}; vpem show takes models and other "
            "fits, exports, tables, studies, requests, certificates, policies and logs of members"
        )
    return shown if isinstance(shown, str) else {"file": str(file)} | shown(file)


RUNS = {
    "vp-em": "fit", "em-rows": "fit", "fedem": "fedem", "vr-fedem": "fedem", "saem": "saem",
    "kmeans-rows": "kmeans", "kmeans-features": "kmeans", "selection": "select",
    "fedmissem": "impute", "mixture-imputation": "impute",
}  # fmt: skip
"""Which command runs an algorithm of which a checkpoint is."""

FOUND = ("rows", "features", "algorithm")
"""Facts of a checkpoint that no option sets, although some have such names."""


def _options_of(context: typer.Context, facts: Report) -> dict[str, str]:
    """Return options that set facts of a checkpoint, by the names of these."""
    group: Any = context.find_root().command
    command = RUNS.get(str(facts.get("algorithm")))
    params = [] if command is None else group.get_command(context, command).params
    return {
        one.name: name_of(one)
        for one in params
        if one.param_type_name == "option" and one.name not in FOUND
    }


def _beside_fits(path: Path) -> Report:
    from vpem.files.checkpoints import read_state
    from vpem.files.hdf5 import attribute_of, list_datasets, open_read, read_column

    kind = attribute_of(path)
    holds = {"holds": HELD.get(kind, kind).partition(",")[0]}
    if kind == "vpem-checkpoint":
        return holds | plain(read_state(path).get("facts"))
    with open_read(path) as file:
        shapes = {name: one.shape for name, one in list_datasets(file).items()}
        if kind in OF_COLUMNS and len({*shapes.values()}) == 1:
            columns = [_profile(name, read_column(file, name)) for name in shapes]
            return holds | {"rows": next(iter(shapes.values()))[0], "columns": columns}
    return holds | {
        name: shape[0] if len(shape) == 1 else " x ".join(map(str, shape)) or "one value"
        for name, shape in shapes.items()
    }


def _profile(name: str, values: Any) -> Report:
    """Return what a column (M,) holds, as `vpem data describe` says of tables."""
    import numpy as np

    kinds = {"b": "true/false", "i": "whole numbers", "u": "whole numbers", "f": "numbers"}
    there = values[values != ""] if values.dtype.kind == "U" else values[values == values]
    different = np.unique(there).tolist()
    ends = (different[0], different[-1]) if different else (None, None)
    return {
        "name": name, "kind": kinds.get(values.dtype.kind, "text"),
        "missing": len(values) - len(there), "different": len(different),
        "least": ends[0], "most": ends[1],
    }  # fmt: skip


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


ALLOWED = "what this party allows"


def _rules(path: Path) -> Report:
    from vpem.files.studies.policy import read_policy

    return {"holds": ALLOWED} | {
        name: ", ".join(value) if isinstance(value, tuple) else value
        for name, value in vars(read_policy(path)).items()
        if name != "path" and value is not None and value is not False
    }
