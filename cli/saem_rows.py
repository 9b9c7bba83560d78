"""How `vpem saem` reads measurements: which columns are what, and what each individual counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vpem.errors import InputError

from .saem_choices import words_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from vpem.engines.engine import Engine
    from vpem.saem.individuals import Individuals

__all__ = ["RowReader", "individuals_of"]


@dataclass(frozen=True)
class RowReader:
    """Reads measurements, and what each individual counts."""

    columns: Mapping[str, str | None]
    covariates: str | None
    needed: Sequence[str]
    missing: bool
    weight: str | None

    def read(self, file: Path, id_column: str | None = None) -> Individuals:
        """Read the individuals of a file."""
        from dataclasses import replace

        columns = {**self.columns, **({} if id_column is None else {"id": id_column})}
        wanted = [*self.needed, *([] if self.weight is None else [self.weight])]
        found = individuals_of(file, columns, self.covariates, wanted, None, self.missing)
        if self.weight is None:
            return found
        weights = found.constant(self.weight)
        if (weights <= 0).any():
            who = int(weights.argmin())
            raise InputError(
                f"{file}: the weight of individual {found.names[who]!r} must be above 0, got "
                f"{weights[who]:g}; leave out individuals that count nothing"
            )
        return replace(found, weights=weights)

    def share(
        self, parts: Mapping[int, Individuals], engine: Engine | None
    ) -> tuple[dict[int, Individuals], None]:
        """Return individuals as they are, with no words."""
        return dict(parts), None


def individuals_of(
    data: Path,
    columns: Mapping[str, str | None],
    covariates: str | None,
    needed: Sequence[str],
    fitted: Mapping[str, Any] | None = None,
    missing: bool = False,
) -> Individuals:
    """Read the data.

    Parameters
    ----------
    data : Path
        CSV or HDF5.
    columns : mapping
        Names of the columns id, time and value; None where none was given.
    covariates : str or None
        As the user typed them: ``dose=amt,weight``.
    needed : sequence of str
        Covariates of the model, read in any case.
    fitted : mapping, optional
        `Individuals.columns` of those that a model was fitted to, for what was not given.
    missing : bool
        Whether values may be missing.
    """
    from dataclasses import replace

    from vpem.errors import MissingColumnError
    from vpem.files.long_csv import is_long_csv
    from vpem.saem.formats.individuals import read_individuals

    given = {name: column for name, column in columns.items() if column is not None}
    is_table = is_long_csv(data)
    if given and not is_table:
        raise InputError(
            f"{', '.join(f'--{name}' for name in given)} name columns of a CSV table, and {data} "
            "is none"
        )
    known, known_covariates = _remembered(fitted or {})
    three = {name: given.get(name, known.get(name, name)) for name in columns}
    if len(set(three.values())) < len(three):
        raise InputError("--id, --time and --value must be three different columns")
    typed = _covariates_of(covariates)
    column_of = {**{name: known_covariates.get(name, name) for name in needed}, **typed}
    try:
        found = read_individuals(
            data, covariates=list(column_of.values()), missing=missing,
            **(three if is_table else {}),
        )  # fmt: skip
    except MissingColumnError as error:
        left = {
            name: column
            for name, column in {**three, **column_of}.items()
            if column in error.columns and name not in (*given, *typed)
        }
        if not left:
            raise
        raise InputError(f"{error}{_advice(left, three, bool(fitted))}") from None
    named = {name: found.covariates[column] for name, column in column_of.items()}
    others = {name: column for name, column in column_of.items() if name != column}
    kept = {**found.columns, **({"covariates": others} if others else {})}
    return replace(found, covariates=named, columns=kept)


def _advice(left: Collection[str], three: Collection[str], fitted: bool) -> str:
    """Say which options name columns that a table calls otherwise."""
    flags = [f"--{name} COLUMN" for name in left if name in three]
    others = [f"{name}=COLUMN" for name in left if name not in three]
    told = [f"--{name}" if name in three else repr(name) for name in left]
    of_fit = f"; that is {' and '.join(told)} of the fit" if fitted else ""
    typed = " ".join([*flags, *([f"--covariates {','.join(others)}"] if others else [])])
    several = "the names that they have" if len(left) > 1 else "the name that it has"
    return f"{of_fit}; give {several} here: {typed}"


def _remembered(fitted: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Columns, and those of covariates, that a fit was made of; a file may hold anything there."""

    def words(held: Any) -> dict[str, str]:
        held = held if isinstance(held, dict) else {}
        return {name: column for name, column in held.items() if isinstance(column, str) and column}

    return words(dict(fitted)), words(fitted.get("covariates"))


def _covariates_of(text: str | None) -> dict[str, str]:
    """Columns of covariates by their names, as the user typed them: ``dose=amt,weight``."""
    found: dict[str, str] = {}
    for word in [] if text is None else words_of(text):
        name, _, column = word.partition("=")
        if not name or name in found:
            raise InputError(
                "--covariates must be different names with commas between, such as "
                f"dose=amt,weight, got {text!r}"
            )
        found[name] = column or name
    return found
