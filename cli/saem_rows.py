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
    from vpem.network.schema import Report
    from vpem.saem.individuals import Individuals


def read_if_there(model: str) -> tuple[str, ...]:
    """Return covariates that are read for a model where there are such."""
    if model in ("bifactor", "gmm"):  # of tables, whose columns are times
        return ()
    return ("outcome", "censored", *(("dose",) if model == "curve" else ()))


@dataclass(frozen=True)
class RowReader:
    """Reads measurements, and what each individual counts."""

    columns: Mapping[str, str | None]
    covariates: str | None
    needed: Sequence[str]
    missing: bool
    weight: str | None
    doses: str | None = None
    also: Sequence[str] = ()
    apart: bool = False  # words of one party would be told to others

    def read(self, file: Path, id_column: str | None = None) -> Individuals:
        """Read the individuals of a file."""
        from dataclasses import replace

        columns = {**self.columns, **({} if id_column is None else {"id": id_column})}
        wanted = [*self.needed, *([] if self.weight is None else [self.weight])]
        found = individuals_of(
            file, columns, self.covariates, wanted, None, self.missing, self.doses, self.also,
            () if self.apart else self.needed,
        )  # fmt: skip
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
        """Return individuals whose words have the same numbers, and no words of documents.

        Where some have doses, all do.
        """
        from dataclasses import replace

        from vpem.saem.doses import doses_of
        from vpem.saem.formats.individuals import join_numbers, numbered_as

        own = [(part.doses is not None, part.columns.get("words", {})) for part in parts.values()]
        told = own if engine is None else [one for some in engine.allgather(own) for one in some]
        tables = join_numbers([words for _, words in told])
        found = {place: numbered_as(part, tables) for place, part in parts.items()}
        if any(given for given, _ in told):
            found = {place: replace(part, doses=doses_of(part)) for place, part in found.items()}
        return found, None


def individuals_of(
    data: Path,
    columns: Mapping[str, str | None],
    covariates: str | None,
    needed: Sequence[str],
    fitted: Mapping[str, Any] | None = None,
    missing: bool = False,
    doses: str | None = None,
    also: Sequence[str] = (),
    texts: Sequence[str] | None = None,
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
    doses : str or None
        Columns of doses, as the user typed them: ``amt=AMT,rate=RATE``.
    also : sequence of str
        Covariates to read where there are such.
    texts : sequence of str, optional
        Covariates that may be words. None: all that are needed.
    """
    from dataclasses import replace

    from vpem.errors import MissingColumnError
    from vpem.files.observations import is_long_csv
    from vpem.saem.formats.individuals import read_individuals

    given = {name: column for name, column in columns.items() if column is not None}
    is_table = is_long_csv(data)
    if (given or doses is not None) and not is_table:
        flags = [*given, *([] if doses is None else ["doses"])]
        raise InputError(
            f"{', '.join(f'--{name}' for name in flags)} name columns of a CSV table, and {data} "
            "is none"
        )
    known, known_covariates = _remembered(fitted or {})
    three: Report = {name: given.get(name, known.get(name, name)) for name in columns}
    if len(set(three.values())) < len(three):
        raise InputError("--id, --time and --value must be three different columns")
    typed = _typed("covariates", covariates, "dose=amt,weight")
    column_of = {**{name: known_covariates.get(name, name) for name in needed}, **typed}
    maybe = {name: known_covariates.get(name, name) for name in also if name not in column_of}
    events = (
        _events(data, doses, {**column_of, **maybe}, fitted or {}) if "dose" not in typed else None
    )
    if "dose" in column_of and (events is not None or not is_table):
        maybe["dose"] = column_of.pop("dose")
    if events is not None:
        maybe.pop("dose", None)
    words = [{**column_of, **maybe}.get("outcome", "outcome")]
    try:
        found = read_individuals(
            data, covariates=list(column_of.values()), also=list(maybe.values()), words=words,
            texts=[column_of[name] for name in (needed if texts is None else texts)
                   if name != "dose" and name in column_of],
            missing=missing, doses=events, **(three if is_table else {}),
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
    column_of |= {name: column for name, column in maybe.items() if column in found.covariates}
    named = {name: found.covariates[column] for name, column in column_of.items()}
    others = {name: column for name, column in column_of.items() if name != column}
    kept = {**found.columns, **({"covariates": others} if others else {})}
    if "words" in kept:
        kept["words"] = {name: kept["words"][column] for name, column in column_of.items()
                         if column in kept["words"]}  # fmt: skip
    return _numbered(replace(found, covariates=named, columns=kept), fitted or {})


def _numbered(found: Individuals, fitted: Mapping[str, Any]) -> Individuals:
    """Give words the numbers that they had in a fit."""
    from vpem.saem.formats.individuals import numbered_as

    return numbered_as(found, words_in(fitted))


def words_in(fitted: Mapping[str, Any]) -> dict[str, list[str]]:
    """Words of covariates, of `Individuals.columns` of a fit; a file may hold anything there."""
    held = fitted.get("words")
    return {
        name: words
        for name, words in (held if isinstance(held, dict) else {}).items()
        if isinstance(words, list) and all(isinstance(word, str) for word in words)
    }


def _events(
    data: Path, doses: str | None, covariates: Mapping[str, str], fitted: Mapping[str, Any]
) -> dict[str, str] | None:
    """Columns of doses that have another name than the usual one; None: there are no doses.

    There are where the user names some, or the fit had some, or a covariate dose is looked for and
    the table has amounts instead.
    """
    from vpem.files.observations import header_of

    if doses is not None:
        return _typed("doses", doses, "amt=AMT,rate=RATE")
    held = fitted.get("doses")
    header = [column.strip() for column in header_of(data)]
    if isinstance(held, dict):
        return {name: column for name, column in held.items() if column in header}
    wanted = covariates.get("dose")
    if wanted is None or wanted in header:
        return None
    return {} if "amt" in [column.lower() for column in header] else None


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


def _typed(option: str, text: str | None, like: str) -> dict[str, str]:
    """Columns by what they are, as the user typed them: ``dose=amt,weight``."""
    found: dict[str, str] = {}
    for word in [] if text is None else words_of(text):
        name, _, column = word.partition("=")
        if not name or name in found:
            raise InputError(
                f"--{option} must be different names with commas between, such as {like}, got "
                f"{text!r}"
            )
        found[name] = column or name
    return found
