"""How a table is read: what its columns are, and how its numbers are written."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Any, ClassVar

from vpem.errors import InputError, Setting
from vpem.records import Settings, beside, rule, setting, words_in
from vpem.rules import BY_ROWS, OF_SUMS_OVER_HUBS, UNCOUNTED, UNPROTECTED
from vpem.settings import FAMILY_NAMES, OF_DATA

OF_ONE_FIT = ("features", "drop", "family")
"""Settings by which features are chosen: a model knows its own."""

ARRAYS = ("hdf5", "npy", "npz")
"""Formats in which numbers are no text."""


def _marks_nothing(given: Mapping[str, Any]) -> bool:
    """Whether marks of missing values are words, where all values are numbers."""
    from vpem.checks import read_float

    no_text = given.get("format") in ARRAYS and given.get("labels_for_fit") is None
    return no_text and all(read_float(str(word)) is None for word in words_in("na", given["na"]))


# Labels for the fit may be a file of text.
OF_TEXT = beside(
    " is about text, such as CSV, which the data are not; leave it out",
    format=(*ARRAYS, "parquet", "arrow", "records"),
    labels_for_fit=None,
)
OF_WRITTEN_NUMBERS = beside(
    " is about numbers that are written as text, and the data have none; leave it out",
    format=ARRAYS,
    labels_for_fit=None,
)
OF_MARKED_TEXT = rule(
    _marks_nothing, " are words in text, but all values of the data are numbers; leave it out"
)

LISTED = beside(
    " is about tables with a column for each feature, but the data list entries; leave it out",
    format="entries",
)
OF_SEVERAL_RUNS = [why for _, why in (OF_TEXT, OF_WRITTEN_NUMBERS, OF_MARKED_TEXT, LISTED, OF_DATA)]
"""Reasons that warn, and refuse nothing, where a file or variable for several runs is read."""

ALL = "features drop id_column label_column na decimal thousands encoding delimiter no_header"

DECIMALS = (".", ",")
THOUSANDS = (",", ".", "'", "\u2019", " ", "\u00a0", "\u202f", "_")


# fmt: off
class TableSettings(Settings, heading="Data", rows=[
        (f"worker_column {ALL}", *LISTED), (f"family {ALL}", *OF_DATA)]):
    """What the columns of a table are, and how its numbers are written."""

    labels_for_fit: ClassVar[object] = None
    """Who fits says more of labels: `LabelledTable`."""

    features: Any = setting(None, "Only these columns are features, with commas. Names, or places "
        "from 0, also a range: 3-7.", local=True)
    drop: Any = setting(None, "Columns to leave out, with commas. Names, places, or a range.",
        local=True)
    family: Any = setting(None, "Family of features: lab=t,sex=categorical, or auto. "
        "It is said by column or agent, or once for all (poisson); auto, as types show, goes for "
        f"those not named. Families: {', '.join(FAMILY_NAMES)}. Without it numbers are Gaussian "
        "and text is left out.",
        heading="Model", words=("auto", *FAMILY_NAMES), local=True)
    id_column: Any = setting(None, "Column that names the rows. Its name or place. Without it one "
        "called id or ids, one called patient or the like, or the only one of text or whole "
        "numbers in which no value stands twice.", local=True, often=True)
    label_column: Any = setting(None, "Column of known classes, no feature. Its name or place (-1 "
        "is the last); evaluate compares with it. Of .h5ad a column of obs.", local=True,
        often=True)
    worker_column: Any = setting(None, "Column that says which worker holds each row. Its name or "
        "place.", local=True, idle=BY_ROWS)
    na: Any = setting(None, "What else stands for a missing value, with commas: '?,-999'. Empty "
        "cells, NA, N/A, NaN, null and None do without.", local=True, idle=OF_MARKED_TEXT)
    decimal: str | None = setting(None, "Decimal mark of numbers in text, a comma (,) or the "
        "point. Default: the point.", choices=DECIMALS, local=True, idle=OF_WRITTEN_NUMBERS)
    thousands: str | None = setting(None, "Mark between thousands of numbers in text: . or , or ' "
        "or a blank.", local=True, idle=OF_WRITTEN_NUMBERS)
    encoding: str | None = setting(None, "Encoding of text: latin-1, cp1252, utf-16. Default: "
        "UTF-8, or what a byte order mark says.", local=True, idle=OF_TEXT)
    delimiter: str | None = setting(None, "Character between fields, or 'tab'; found in the first "
        "line if absent.", local=True, idle=OF_TEXT)
    no_header: bool = setting(False, "The first row is data, not names.", local=True, idle=OF_TEXT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.thousands is not None and self.thousands not in THOUSANDS:
            raise InputError(Setting("thousands"), " must be one of . , ' _ or a blank, got "
                f"{self.thousands!r}")
        if self.thousands == self.point:
            raise InputError(Setting("thousands", self.thousands), " and ",
                Setting("decimal", self.point), " are the same mark; give two")
        if self.encoding is not None:
            try:
                known = getattr(codecs.lookup(self.encoding), "_is_text_encoding", True)
            except (LookupError, ValueError):
                known = False
            if not known:
                usual = "utf-8, latin-1, cp1252, utf-16, mac-roman, shift-jis"
                raise InputError(Setting("encoding"), f" must be one of {usual}, ..., got "
                    f"{self.encoding!r}")
        for name in ("features", "drop", "na"):
            words_in(name, getattr(self, name))
        if self.family is not None:
            from vpem.files.families import FamilyChoice

            FamilyChoice.parse(self.family)

    @property
    def point(self) -> str:
        """The decimal mark."""
        return self.decimal or "."

    @property
    def marks(self) -> tuple[str, ...]:
        """What stands for missing values beside the usual marks."""
        return tuple(str(word) for word in words_in("na", self.na))

    def with_defaults_of(self, other: TableSettings) -> TableSettings:
        """Return the record with another's values in place of defaults, but for clashing marks."""
        if other.labels_for_fit is not None and "labels_for_fit" not in self.settings_by_name:
            return self.into(LabelledTable).with_defaults_of(other)
        changes = {
            one.name: getattr(other, one.name)
            for one in self.fields()
            if getattr(self, one.name) == one.default
        }
        for mine, others in (("decimal", "thousands"), ("thousands", "decimal")):
            if mine not in changes and changes.get(others) == getattr(self, mine):
                changes.pop(others, None)
        return self.changed(**changes)

class LabelledTable(TableSettings, heading="Data"):
    """What the columns of a table are, of which some may be labels for the fit."""

    labels_for_fit: Any = setting(None, "Labels of some rows, which the fit takes: each is a "  # type: ignore[misc]
        "component, in ascending order. A column, which is no feature (blank or ? where it is "
        "unknown), a file (a label a row, or id,label), or a path inside HDF5; several columns are "
        "probabilities of the components. All roots learn the components of labelled rows, and "
        "everybody the labels' names and how many rows have each.",
        local=True, file="read", idle=[OF_SUMS_OVER_HUBS, UNPROTECTED, UNCOUNTED])
# fmt: on


LISTS = ("features", "drop", "na")
COLUMNS = (*LISTS, "id_column", "label_column", "worker_column")
"""Settings that are lists of words, and those whose words may be numbers."""


def settings_in(
    content: Mapping[str, Any], where: str, keys: Mapping[str, str] | None = None
) -> TableSettings:
    """Return the settings of a file ``where``, whose own names for them are ``keys``."""
    for name, value in content.items():
        if name == "no_header":
            right, expected = isinstance(value, bool), "true or false"
        elif name == "family":
            words = [*value, *value.values()] if isinstance(value, dict) else [value]
            expected = "the name of a family, or a table with one for each column"
            right = bool(words) and all(isinstance(word, str) and word for word in words)
        else:
            expected = "a list of names" if name in LISTS else "a string"
            words = value if name in LISTS and isinstance(value, list) else [value]
            kinds = (str, int) if name in COLUMNS else str
            right = bool(words) and all(
                isinstance(word, kinds) and not isinstance(word, bool) and word != ""
                for word in words
            )
        if not right:
            what = f"{where}: {(keys or {}).get(name, name)}"
            raise InputError(f"{what} must be {expected}, got {value!r}")
    try:
        kind = LabelledTable if "labels_for_fit" in content else TableSettings
        return kind(**content)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


ID_NAMES, ROW_NAMES = ("id", "ids"), ("row", "rows")
"""Heads of a first column that names the row of each line: by its id, or counted from 0."""
