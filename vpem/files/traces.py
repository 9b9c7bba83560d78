"""Traces: every iterate of a fit, in memory, as JSON lines, or in HDF5.

A file of JSON lines has a line that says what it is, and one an iterate; HDF5 has an array for each
quantity, iterates first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from vpem.checks import Doubles, check_int
from vpem.errors import FileError, InputError, did_you_mean
from vpem.files.hdf5 import (
    atomic_write,
    check_version,
    list_members,
    made_of,
    read_array,
    read_attribute,
    read_file,
    read_strings,
    write_array,
    write_attribute,
    write_file,
    write_strings,
)
from vpem.files.json_text import JSON_TIMES, parse_json
from vpem.files.models import assembled
from vpem.files.opening import PathLike, read_text
from vpem.files.temporaries import ending_of
from vpem.network.schema import Report

ENCODING = "vpem-trace"
VERSION = "0.1.0"

PLACES = {"restart": 1, "iteration": 0}
"""By which iterates are in order, from these numbers on."""

NUMBERS = ("epochs", "objective", "mean_field", "move", "step", "n_active")
"""Of every iterate; None, in arrays NaN, where one was not found."""

DIMENSIONS = dict.fromkeys(NUMBERS, 0) | {"weights": 1, "statistic": 1, "theta": 1, "means": 2}
"""Of what an iterate has; other arrays have any."""

MOST_NAMES = 1 << 16

Place = tuple[int, int]


class Trace:
    """Every iterate of a fit: give it as ``callback`` to a fit, or read one by `read_trace`.

    ``records`` has a table for each iterate, 0 being the start, of

    * ``restart`` from 1 and ``iteration``; ``epochs``, passes over all rows up to it;
    * ``weights`` (K,) and ``parameters``, arrays by name in the user's units: ``means`` (K, d) and
      ``covariances``, tables of other families; ``theta`` (p,) of SAEM, whose parameters are
      ``names``. Where there are several roots weights are the mean of theirs, and all else is the
      first root's; where several processes hold features, that of the hubs of this process;
    * ``statistic`` (P,), the mean statistic ``S_k`` of which parameters were made, in units of
      fitting; None for a start of EM, with factors that hubs share, and where acceleration or
      batches leave none of this kind;
    * ``step``, and ``move``, ``||H_k||^2`` with ``S_k = S_(k-1) + step H_k``;
    * ``mean_field``, ``||h(S_k)||^2`` with h the mean statistic of all rows at these parameters
      minus ``S_k`` (Dieuleveut et al. 2021, equation 6). In plain EM, where ``H_(k+1) = h(S_k)``,
      it is known in the next iteration, unless sums have noise or someone is not heard; FedEM has
      it where it records its history, and SAEM, whose expectations are drawn, never;
    * ``objective``, log-likelihood per sample (or what else the algorithm raises) at these
      parameters; in batches what they found during the pass. SAEM has none;
    * ``n_active``, members that took part.

    Indexing by any of these, or by the name of parameters, gives an array over iterates.

    Parameters
    ----------
    callback : callable, optional
        A callback that is called as well.
    begun : Trace, optional
        The iterates of before, if the fit goes on from a checkpoint.

    Raises
    ------
    InputError
        By a fit with noise for privacy, whose single iterations no budget covers; by indexing with
        a name that there is not.
    """

    encoding: ClassVar = ENCODING

    def __init__(
        self, callback: Callable[[Any], None] | None = None, begun: Trace | None = None
    ) -> None:
        self._callback = callback or _nothing
        self.starting, self.announce, self.end = (
            getattr(callback, name, _nothing) for name in ("starting", "announce", "end")
        )
        self.records: list[Report] = [] if begun is None else [*begun.records]
        self.names: tuple[str, ...] = () if begun is None else begun.names
        self.run: str = "" if begun is None else begun.run
        """Of a run that keeps checkpoints what it is known by, and after how many iterations."""
        self._restart, self._goes_on = 1, begun is not None

    # ---- what fits call --------------------------------------------------------------------------

    def __call__(self, progress: Any) -> None:
        """Pass progress on."""
        self._callback(progress)

    def restarting(self, number: int, count: int, most: int) -> None:
        """Begin a restart."""
        self._restart = number
        getattr(self._callback, "restarting", _nothing)(number, count, most)

    def tracing(
        self,
        iteration: int | None = None,
        parameters: Any = None,
        *,
        epochs: float | None = None,
        statistic: Doubles | None = None,
        last: float | None = None,
        steady: bool = False,
        names: Sequence[str] = (),
        **numbers: float | None,
    ) -> None:
        """Keep an iterate; ``last`` is the objective of the one before, or without one of the end.

        Parameters are a mixture, or arrays by name; without an iteration those of the end. Of a
        ``steady`` sum, of all rows at the parameters before, the move is their mean field.
        """
        if self._goes_on and iteration is not None:
            first, self._goes_on = (self._restart, iteration), False
            self.records = [one for one in self.records if place_of(one) < first]
        of_run = bool(self.records) and self.records[-1]["restart"] == self._restart
        before = self.records[-1] if of_run else None
        if before is not None and last is not None:
            before["objective"] = last
        if parameters is None:
            return
        self.names = tuple(names) or self.names
        arrays = dict(parameters) if isinstance(parameters, Mapping) else assembled(parameters)
        weights = arrays.pop("weights", None)
        if iteration is None:
            if before is not None:
                before |= {"weights": weights, "parameters": arrays}
            return
        record: Report = {"restart": self._restart, "iteration": iteration}
        record |= dict.fromkeys(NUMBERS)
        record |= {name: None if one is None else float(one) for name, one in numbers.items()}
        record["epochs"] = float(iteration) if epochs is None else float(epochs)
        record |= {"weights": weights, "statistic": statistic, "parameters": arrays}
        if before is not None and statistic is not None and before["statistic"] is not None:
            change = (statistic - before["statistic"]) / (record["step"] or 1.0)
            record["move"] = float(change @ change)
            if steady:
                before["mean_field"] = record["move"]
        self.records.append(record)

    # ---- what users read -------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        runs = len({one["restart"] for one in self.records})
        return f"Trace({len(self)} iterates of {runs} run{'' if runs == 1 else 's'})"

    def __getitem__(self, name: str) -> Doubles:
        """One quantity of all iterates (n, ...); NaN where it was not found."""
        columns = self._columns()
        if name not in columns:
            raise InputError(f"the trace has no {name}{did_you_mean(name, columns)}")
        found: Doubles = columns[name]
        return found

    def runs(self) -> list[Trace]:
        """Return a trace for each restart."""
        found: dict[int, Trace] = {}
        for one in self.records:
            run = found.setdefault(one["restart"], Trace())
            run.names = self.names
            run.records.append(one)
        return list(found.values())

    def draw(self, seed: int = 0) -> Report:
        """Return an iterate of the last restart drawn uniformly from all but its last.

        Theorems 1 and 2 of Dieuleveut et al. 2021 bound the mean of ``||h(S_K)||^2`` with K uniform
        on 0, ..., k_max - 1, for any run of k_max iterations.
        """
        if not self.records:
            raise InputError("the trace has no iterates, of which one could be drawn")
        records, seed = self.runs()[-1].records, check_int("seed", seed, least=0)
        number = int(np.random.default_rng(seed).integers(max(len(records) - 1, 1)))
        return records[number]

    def _columns(self) -> dict[str, Any]:
        records = self.records
        columns: dict[str, Any] = {
            name: np.array([one[name] for one in records], np.int64) for name in PLACES
        }
        for name in NUMBERS:
            columns[name] = np.array([one[name] for one in records], np.float64)
        named = [
            {"weights": one["weights"], "statistic": one["statistic"], **one["parameters"]}
            for one in records
        ]
        for name in dict.fromkeys(name for one in named for name in one):
            every = [one.get(name) for one in named]
            like = next((one for one in every if one is not None), None)
            if len({np.shape(one) for one in every if one is not None}) > 1:
                raise InputError(f"{name} has not the same shape in all iterates")
            if like is not None:
                blank = np.full(np.shape(like), np.nan)
                columns[name] = np.stack([blank if one is None else one for one in every])
        return columns

    def write(self, path: PathLike, *, force: bool = False) -> None:
        """Write all iterates to a .jsonl or .h5 file, completely or not at all.

        Raises
        ------
        InputError
            If there are none, or the ending is another.
        FileError
            If the file exists and is not to be replaced (``force``), or cannot be written.
        """
        if not self.records:
            raise InputError(
                "there are no iterates to write: fit_vpem, fit_em, fit_fedem and fit_saem give a "
                "trace theirs, once they iterate"
            )
        if ending_of(path) != ".jsonl":
            with write_file(path, force, "traces", ENCODING, VERSION) as file:
                write_strings(file, "names", self.names)
                write_attribute(file, "holds", " ".join(self._parameters()))
                write_attribute(file, "run", self.run)
                for name, values in self._columns().items():
                    write_array(file, name, values)
            return
        head: Report = {"encoding": ENCODING, "version": VERSION}
        head |= {"names": list(self.names), "run": self.run}
        with (
            atomic_write(path, force, "traces") as temporary,
            open(temporary, "w", encoding="utf-8") as stream,
        ):
            for one in (head, *self.records):
                stream.write(json.dumps(_plain(one), allow_nan=False) + "\n")

    def _parameters(self) -> list[str]:
        return [*dict.fromkeys(name for one in self.records for name in one["parameters"])]


def _nothing(*said: object) -> None:
    """Do nothing, where there is no callback."""


def place_of(record: Report) -> Place:
    """Restart and iteration, by which iterates are in order."""
    return record["restart"], record["iteration"]


def _plain(value: Any) -> Any:
    """Return what JSON can hold of an iterate, all digits of every number."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def read_trace(path: PathLike) -> Trace:
    """Read a trace from JSON lines or HDF5.

    Parameters
    ----------
    path : path
        A file that `Trace.write`, or a command's ``--trace``, has written.

    Returns
    -------
    Trace

    Raises
    ------
    FileError
        If the file is no trace, or is damaged.
    """
    trace = Trace()
    if is_lines(path):
        _read_lines(path, trace)
    else:
        _read_arrays(path, trace)
    with made_of(path):
        if not trace.records:
            raise ValueError("it has no iterates")
        places = [place_of(one) for one in trace.records]
        if any(two <= one for one, two in pairwise(places)):
            raise ValueError("its iterates are not in order")
        if trace.names and trace["theta"].shape[1] != len(trace.names):
            raise ValueError("it has names of other parameters")
        trace._columns()  # whose shapes must agree
    return trace


def _read_arrays(path: PathLike, trace: Trace) -> None:
    with read_file(path, ENCODING, VERSION, "a trace; --trace FILE of a fit writes one") as file:
        trace.names = read_strings(file, "names")
        held = (read_attribute(file, "holds") or "").split()
        trace.run = read_attribute(file, "run") or ""
        columns = {
            name: read_array(file, name, kinds="if")
            for name in list_members(file, MOST_NAMES)
            if name != "names"
        }
    with made_of(path):
        lengths = {values.shape[:1] for values in columns.values()}
        if len(lengths) != 1 or () in lengths or not set(held) <= set(columns):
            raise ValueError("its arrays are not all there, or not of as many iterates")
        for values in zip(*columns.values(), strict=True):
            one = {"weights": None, "statistic": None, **dict(zip(columns, values, strict=True))}
            one["parameters"] = {name: one[name] for name in held}
            trace.records.append(_checked(one))


def is_lines(path: PathLike) -> bool:
    """Whether a file is a trace of JSON lines, by its ending."""
    return ending_of(path) == ".jsonl"


def _read_lines(path: PathLike, trace: Trace) -> None:
    lines = read_text(path, JSON_TIMES).splitlines()
    for number, line in enumerate(lines):
        place = f"{path}, line {number + 1}"
        try:
            found = parse_json(line)
        except ValueError as error:
            raise FileError(f"{place} is not JSON: {error}") from error
        if number == 0:
            if not isinstance(found, dict) or found.get("encoding") != ENCODING:
                raise FileError(f"{path} is not a trace; --trace FILE of a fit writes one")
            check_version(path, str(found.get("version")), VERSION)
            names = found.get("names")
            if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
                raise FileError(f"{place} is damaged: its names are no list of names")
            trace.names, trace.run = tuple(names), str(found.get("run", ""))
            continue
        with made_of(place):
            trace.records.append(_checked(found))


def _checked(found: Any) -> Report:
    """Return a record of what a line holds; ValueError or TypeError if it is none."""
    if not isinstance(found, dict) or not isinstance(found.get("parameters"), dict):
        raise TypeError("it is no table of an iterate")
    lacks = [name for name in (*PLACES, *NUMBERS, "weights", "statistic") if name not in found]
    if lacks:
        raise ValueError(f"it has no {lacks[0]}")
    record: Report = {
        name: check_int(name, found[name], least=least) for name, least in PLACES.items()
    }
    for name in (*NUMBERS, "weights", "statistic"):
        value = _array(name, found[name])
        number = value if value.ndim else float(value)
        record[name] = None if np.isnan(value).all() else number
    record["parameters"] = {name: _array(name, one) for name, one in found["parameters"].items()}
    return record


def _array(name: str, found: Any) -> Doubles:
    value = np.array(found, np.float64)
    if found is not None and value.ndim != DIMENSIONS.get(name, value.ndim):
        raise ValueError(f"{name} must have {DIMENSIONS[name]} dimensions, not {value.ndim}")
    return value
