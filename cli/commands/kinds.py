"""The kinds of files that vpem writes, and what commands do with each: one class a kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from vpem.errors import FileError, InputError, printable
from vpem.pictures.contents import lines_of

from ..display import show, table

if TYPE_CHECKING:
    from vpem.network.schema import Report
    from vpem.pictures.contents import Lines
    from vpem.pictures.contents import Table as Contained
    from vpem.pictures.page import Data
    from vpem.pictures.saved import Saved

    from ..display import PrintedTable
    from .use import UseRequest


CORPUS_MODEL = "lda"
"""The model of documents."""

KINDS = {
    "vpem-model": ("rows", "MixtureFile"),
    "vpem-clustering": ("rows", "ClustersFile"),
    "vpem-saem": ("of_individuals", "SaemFile"),
    "vpem-imputation": ("kinds", "ImputationFile"),
    "vpem-dataset": ("data", "DatasetFile"),
    "vpem-checkpoint": ("kinds", "checkpoint"),
}
"""Where the class of each kind is, by what files say that they are."""


def stored_at(path: Path, curve: str | None = None) -> StoredFile:
    """Return a file by its kind; one of no kind is read, and refused, as a model."""
    import h5py

    from vpem.files.hdf5 import open_read, read_attribute
    from vpem.files.opening import check_readable

    if not h5py.is_hdf5(str(check_readable(path))):
        raise FileError(
            f"{path} is not an HDF5 file, which fits write; give the model before the data"
        )
    with open_read(path) as file:
        encoding = read_attribute(file, "encoding-type") or "vpem-model"
        of_documents = encoding == "vpem-saem" and read_attribute(file, "model") == CORPUS_MODEL
    rest = ("kinds", "other") if encoding.startswith("vpem-") else KINDS["vpem-model"]
    module, name = KINDS.get(encoding, rest)
    name = "TopicsFile" if of_documents else name
    stored: StoredFile = getattr(import_module(f"{__package__}.{module}"), name)(path)
    stored.curve = curve
    return stored


def as_printed(item: Contained, heading: str = "") -> Any:
    """Return a table of a fit's contents as a terminal shows it."""

    def is_number(cell: object) -> bool:
        return str(cell).rstrip("%").replace(",", "").replace(".", "", 1).isdecimal()

    right = tuple(
        head
        for head, *cells in zip(item.heads, *item.rows, strict=False)
        if head != item.heads[0] and (item.numbers or all(map(is_number, cells)))
    )
    heads = item.heads or ("",) * len(item.rows[0])
    return table(item.rows, *heads, title=item.caption or heading, right=right)


def table_of(reports: Iterable[Report], columns: Lines, **looks: Any) -> PrintedTable:
    """Return a table with a row for each report, without columns of which none has anything."""
    rows = [dict(lines_of(one, columns)) for one in reports]
    heads = [head for head in columns if any(head in row for row in rows)]
    return table(([row.get(head, "-") for head in heads] for row in rows), *heads, **looks)


class StoredFile:
    """A file of a fit, as commands use it; a command that its kind has no method for is refused.

    Methods are ``predict``, ``score``, ``evaluate``, ``contribution`` and ``sample``, of a
    `UseRequest`, which return what was written, or how many rows; and ``export``.
    """

    holds: str
    instead: ClassVar[dict[str, str]] = {}
    """Why commands cannot use it, and what to do instead."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.curve: str | None = None  # of the user's own, as the command names it

    def able(self, command: str) -> Callable[..., Any]:
        """Return its method for a command, called as the last word of that."""
        method: Callable[..., Any] | None = getattr(self, command.split()[-1], None)
        return method or self._refuse(command)

    def _refuse(self, command: str) -> NoReturn:
        why = self.instead.get(command, f"which 'vpem {command}' cannot use")
        raise InputError(f"{self.path} holds {self.holds}, {why}")

    @cached_property
    def stored(self) -> Any:
        """What a fit has left in the file."""
        self._refuse("plot")

    @cached_property
    def saved(self) -> Saved:
        """What pictures are drawn of."""
        from vpem.pictures.saved import saved_of

        return saved_of(str(self.path), self.stored)

    def as_json(self) -> Report:
        """Return its contents as values that JSON can hold."""
        raise NotImplementedError

    def show(self) -> None:
        """Print its contents."""
        from vpem.pictures.contents import Table
        from vpem.pictures.page import contents_of

        contents = contents_of(self.saved)
        # Names and words in them come from the author of the file.
        printed: list[Any] = [printable(contents.title), printable(contents.lead)]
        for section in contents.sections:
            for item in section.items:
                if isinstance(item, Table):
                    printed.append(as_printed(item, section.heading))
                else:
                    printed += [item] if isinstance(item, str) else item.lines
        show(*printed)

    def evaluation_data(self, request: UseRequest) -> Data | None:
        """Read data to compare the fit with, if there are any; refuse options about others."""
        self._refuse("plot")

    def command(self, root: Any) -> str | None:
        """Return the command that fitted it, where that is known."""
        return None


class FactsFile(StoredFile):
    """A file that has only facts to show, which ``found`` returns."""

    holds = "no model"

    def __init__(
        self, path: Path, found: Callable[[Path], Report] = lambda _: {}, holds: str = ""
    ) -> None:
        super().__init__(path)
        self.found, self.holds = found, holds or type(self).holds

    @cached_property
    def facts(self) -> Report:
        """What `vpem show` prints of it."""
        return {"file": str(self.path), **self.found(self.path)}

    def as_json(self) -> Report:
        return self.facts

    def show(self) -> None:
        lines = [(name.replace("_", " "), str(value)) for name, value in self.facts.items()]
        show(table(lines, "", ""))


def checkpoint(path: Path) -> FactsFile:
    """Return the file of a run that can go on."""
    from vpem.files.checkpoints import read_state

    def found(path: Path) -> Report:
        recorded = reported(read_state(path), "facts", dict) or {}
        plain = {name: one for name, one in recorded.items() if isinstance(one, str | int | float)}
        return {"holds": "a checkpoint"} | plain

    what = "a checkpoint of a run, which goes on with --checkpoint and --resume"
    return FactsFile(path, found, what)


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


def other(path: Path) -> FactsFile:
    """Return any other file of vpem."""
    from vpem.files.hdf5 import list_datasets, open_read, read_attribute

    def found(path: Path) -> Report:
        with open_read(path) as file:
            kind = read_attribute(file, "encoding-type")
            shapes = {path: one.shape or () for path, one in list_datasets(file).items()}
        return {"holds": OTHERS.get(kind or "", kind)} | {
            path: " x ".join(map(str, shape)) or "one value" for path, shape in shapes.items()
        }

    return FactsFile(path, found, "neither a model nor another fit")


class ImputationFile(FactsFile):
    """A completed matrix."""

    holds = "an imputation"
    instead: ClassVar = dict.fromkeys(
        ("model contribution", "predict", "score", "sample", "evaluate", "plot"),
        "a completed matrix: 'vpem model export' writes it as a table",
    )

    @cached_property
    def facts(self) -> Report:
        from vpem.files.hdf5 import open_read
        from vpem.files.json_text import read_json_element
        from vpem.files.results import read_imputed

        imputed = read_imputed(self.path)
        with open_read(self.path) as file:
            report = read_json_element(file, "report")
        kinds = {"algorithm": str, "law": str, "rank": int, "n_components": int, "n_iter": int,
                 "converged": bool, "log_likelihood": float}  # fmt: skip
        facts = {name: reported(report, name, kind) for name, kind in kinds.items()}
        return {
            "file": str(self.path),
            "holds": self.holds,
            "source": imputed.source,
            "rows": len(imputed.row_names),
            "columns": len(imputed.column_names),
            "entries_imputed": int((imputed.times_seen == 0).sum()),
            "draws": 0 if imputed.draws is None else len(imputed.draws),
        } | {name: value for name, value in facts.items() if value is not None}

    def export(self, output: Path, force: bool, quote_formulas: bool) -> None:
        """Write the table."""
        from vpem.files.hdf5 import check_writable
        from vpem.files.results import read_imputed, write_imputed

        check_writable(output, force, "imputed values")
        write_imputed(output, read_imputed(self.path), force, quote_formulas)


def reported(facts: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return what a fit reported, or None where it is absent or of another type."""
    value = facts.get(name)
    return value if type(value) is kind else None
