"""What commands do with files whose data are rows: mixtures and clusters alike, and clusters."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from .config import key_of
from .engine import place_parties
from .kinds import StoredFile, reported
from .output import number, print_json, show, table
from .parties import check_parties, joined
from .requests import Request, refuse_given

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vpem.checks import Floats, Labels
    from vpem.files.clusterings import StoredClustering
    from vpem.files.datasets import Dataset
    from vpem.network.schema import Report
    from vpem.pictures.samples import EvaluationData

    Assigned = tuple[Labels, dict[str, Labels], dict[str, Floats]]
    """Labels of rows, columns that go with them, and what JSON has of these."""

__all__ = ["ClustersFile", "RowFile"]

COMMANDS = {
    "vp-em": "fit",
    "em-rows": "fit",
    "fedem": "fedem",
    "vr-fedem": "fedem",
    "k-means": "kmeans",
}


@dataclass(frozen=True)
class Loaded:
    """Data that a model is used on.

    Attributes
    ----------
    source : Dataset
        What was read.
    X : ndarray, FileMatrix or SpreadRows of shape (M, d)
        The model's features, in its order.
    told : dict
        What JSON tells of them: how rows of parties were aligned.
    """

    source: Dataset
    X: Any
    told: Report


class RowFile(StoredFile):
    """A mixture, or clusters."""

    needs_values: ClassVar[bool]
    """Whether rows that lack values cannot be assigned."""

    @property
    @abstractmethod
    def n_labels(self) -> int:
        """Components or clusters."""

    @abstractmethod
    def labels(self, X: Floats, missing: str) -> NDArray[np.intp]:
        """Component or cluster of each row."""

    @abstractmethod
    def assign(self, X: Any, missing: str, proba: bool) -> Assigned:
        """Assign rows to components or clusters."""

    def load(self, request: Request) -> Loaded:
        """Read data, features in the order of the file."""
        return self._read(request, request.missing == "refuse")

    def _read(self, request: Request, complete: bool) -> Loaded:
        from vpem.checks import check_finite
        from vpem.files.matrix import FileMatrix
        from vpem.files.models import match_features
        from vpem.terms.missing_patterns import check_missing

        if request.processes.apart:
            return self._spread(request, complete)
        source, alignment = _dataset(request, complete)
        apart = request.parties.parties and request.parties.split == "features"
        columns = match_features(self.stored, source.feature_names, ordered=not apart)
        X = source.X
        if columns is not None:
            X = X.select(columns) if isinstance(X, FileMatrix) else X[:, columns]
        (check_finite if complete else check_missing)(X, self.stored.feature_names)
        return Loaded(source, X, {} if alignment is None else {"alignment": alignment})

    def _spread(self, request: Request, complete: bool) -> Loaded:
        """Read what this process's parties have, and keep it here."""
        from vpem.engines.placement import Placement
        from vpem.errors import InputError
        from vpem.files.models import match_features
        from vpem.fits.spread_use import SpreadRows

        asked, engine = request.parties, request.processes
        if not asked.parties:
            raise InputError(
                "--engine mpi is for parties, each of which is read by a rank of its own; add "
                "--parties"
            )
        if asked.split == "rows":
            raise InputError(
                "a row whose features one party has needs nobody else: let each party use the "
                "model on its own file, without --engine mpi"
            )
        marks = engine.allgather(self.fingerprint)
        for rank, mark in enumerate(marks):
            if mark != marks[0]:
                raise InputError(
                    f"rank {rank} has another model than rank 0; give all ranks the same"
                )
        source, alignment = _dataset(request, complete)
        names, wanted = source.feature_names, self.stored.feature_names
        columns = match_features(self.stored, names, ordered=False) or range(len(names))
        assert source.partition is not None
        called = source.partition.names
        parties = Placement.evenly(engine, len(called), called)
        missing = "refuse" if complete else "marginalize"
        X = SpreadRows(source.X, source.partition, columns, parties, wanted, missing)
        return Loaded(source, X, {"alignment": alignment})

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """What two files of the same parameters have in common."""

    def told(self, found: Loaded) -> Report:
        """Return what JSON tells of data: how rows were aligned, and what processes sent."""
        from vpem.fits.spread_use import SpreadRows

        sent = {"communication": found.X.communication} if isinstance(found.X, SpreadRows) else {}
        return {**found.told, **sent}

    def refuse_individuals(self, request: Request) -> None:
        """Refuse options of fits of SAEM."""
        refuse_given(
            request.individuals, f"is for fits of SAEM, which {self.path} is not; leave it out"
        )

    def evaluation_data(self, request: Request) -> EvaluationData | None:
        """Read the dataset that it is held against, its columns in the order of the file."""
        self.refuse_individuals(request)
        if not request.files:
            for options, without in ((request.rows, "features"), (request.parties, "")):
                refuse_given(options, "is about the data: give them after the model", without)
            return None
        from vpem.pictures.samples import EvaluationData

        found = self._read(request, self.needs_values)
        named = request.rows.labels != "labels"
        labelled = request.labelled or named or found.source.labels is not None
        labels = _read_labels(request, found.source) if labelled else None
        return EvaluationData(found.X, labels, request.source)

    def predict(self, request: Request) -> int:
        """Assign rows to components or clusters."""
        import numpy as np

        self.refuse_individuals(request)
        output = request.output
        found = self.load(request)
        X, ids_of = found.X, found.source.ids
        labels, more, own = self.assign(X, request.missing, request.proba)
        told = self.told(found)
        request.leave_it_to_the_first()
        ids = ("row", np.arange(len(X))) if ids_of is None else ("id", ids_of)
        output.write({ids[0]: ids[1], "label": labels, **more}, "vpem-predictions")
        if output.json:
            report = {
                "n_samples": len(X),
                "counts": np.bincount(labels, minlength=self.n_labels),
                "output": None if output.output is None else str(output.output),
                **told,
            }
            print_json(report | ({"labels": labels, **own} if output.output is None else {}))
        return len(labels)

    def evaluate(self, request: Request) -> None:
        """Compare components or clusters with labels."""
        from vpem.fits.evaluation import compare

        data = self.load(request)
        truth = _read_labels(request, data.source)
        k = self.n_labels
        found = compare(truth, self.labels(data.X, request.missing), k)
        if request.output.json:
            print_json({
                "n_samples": len(data.X),
                "accuracy": found.accuracy,
                "adjusted_rand_index": found.adjusted_rand_index,
                "normalized_mutual_information": found.normalized_mutual_information,
                "labels": found.classes,
                "confusion": found.confusion,
                "mapping": found.mapping,
                **data.told,
            })  # fmt: skip
            return
        heads = tuple(
            f"{c} = {found.mapping[c]}" if c in found.mapping else str(c) for c in range(k)
        )
        counts = ((label, *row) for label, row in zip(found.classes, found.confusion, strict=True))
        title = "Rows of each label in each component"
        show(table(found.facts(), "", ""), table(counts, "label", *heads, title=title, right=heads))

    def command(self, root: Any) -> str | None:
        """Return the command that fitted it, made of its options; None where it is not known."""
        import shlex

        options = self.stored.options
        name = COMMANDS.get(str(self.stored.report.get("algorithm")))
        if name is None or not options.get("data"):
            return None
        words = ["vpem", name]
        params, known = root.commands[name].params, root.commands[name].callback.settings
        values = {p.name: options.get(key_of(p).replace("-", "_"), p.default) for p in params}
        for parameter in params:
            value = values[parameter.name]
            if parameter.name in known and known[parameter.name].why_idle(values):
                continue
            if parameter.param_type_name == "argument":
                words += str(value).split(", ") if value is not None else []
            elif value is not None and not _same(value, parameter.default):
                words += [parameter.opts[-1]] if value is True else [parameter.opts[-1], str(value)]
        return shlex.join(words)


def _same(value: Any, default: Any) -> bool:
    """Whether an option has the value that it has by itself; a flag that is off has."""
    return value is False or value == default or str(value) == str(default)


def _dataset(request: Request, complete: bool) -> tuple[Dataset, Report | None]:
    """Read the one dataset, or join those of parties; and how these were aligned."""
    from vpem.checks import available_memory
    from vpem.errors import InputError
    from vpem.files.datasets import read_dataset

    files, asked, inside = request.files, request.parties, request.rows.dataset
    if not files:
        raise InputError("vpem predict needs DATA: a dataset with the model's features")
    over_rows = asked.split == "rows"
    check_parties(files, asked, over_rows)
    if not asked.parties:
        return read_dataset(files[0], inside, memory_limit=available_memory()), None
    refuse_given(request.rows, "is for one file; with --parties leave it out", *OF_ALL_DATA)
    parties = request.where.parties(files, asked.id_column)
    holders = place_parties(parties, request.output.output, False, request.where)
    return joined(parties, asked, over_rows, not complete, None, holders, request.screen.say)


OF_ALL_DATA = ("labels", "features", "missing")
"""Options about rows that parties' data have, too."""


def _read_labels(request: Request, source: Dataset) -> Labels:
    """Read labels from the dataset, another place in its file, or a text file."""
    import numpy as np

    from vpem.errors import InputError
    from vpem.fits.evaluation import read_labels

    where, asked = request.rows.labels, request.parties
    if where == "labels":
        if source.labels is None:
            who = "every party" if asked.split == "rows" else "one party that has all the rows"
            raise InputError(
                f"{request.source} has no labels; name where they are with --labels, or import the "
                "data with --label-column"
                if not asked.parties
                else f"{who} must have labels: in HDF5, or in a column that a manifest names; or "
                "name a text file with --labels"
            )
        return np.asarray(source.labels)
    if asked.parties and asked.align not in (None, "none"):
        raise InputError(
            f"--labels {where} has a label a line, but parties are aligned by their ids; give "
            "labels to one party, or align them first"
        )
    return read_labels(where, request.files[0], source.n_samples)


class ClustersFile(RowFile):
    """What `vpem kmeans` has written."""

    holds = "clusters"
    needs_values = True
    instead: ClassVar = {
        "sample": "from which no rows are drawn; fit a mixture with 'vpem fit'",
        "model export": "which are not exported; 'vpem model show --json' prints them",
    }

    @cached_property
    def stored(self) -> StoredClustering:
        """The clustering."""
        from vpem.files.clusterings import read_clustering

        return read_clustering(self.path)

    @property
    def n_labels(self) -> int:
        """Clusters."""
        return len(self.stored.centres)

    def labels(self, X: Floats, missing: str) -> NDArray[np.intp]:
        """Cluster of the nearest centre of each row."""
        import numpy as np

        return self._nearest(X)[0].astype(np.intp)

    def _nearest(self, X: Any) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Nearest centre of each row by what is there of it, and its squared distance."""
        from vpem.fits.spread_use import SpreadRows
        from vpem.terms.missing_patterns import check_values
        from vpem.terms.scaling import Scaling

        found = self.stored
        if not isinstance(X, SpreadRows):
            check_values(X)
            return found.assign(X)
        return X.nearest(found.centres, found.scaling or Scaling.none(len(found.feature_names)))

    @property
    def fingerprint(self) -> str:
        """What two files of the same centres have in common."""
        import hashlib

        return hashlib.sha256(self.stored.centres.tobytes()).hexdigest()

    def assign(self, X: Any, missing: str, proba: bool) -> Assigned:
        """Nearest centre of each row, and its distance."""
        import numpy as np

        from vpem.errors import InputError

        if proba:
            raise InputError(
                f"{self.path} holds clusters, whose rows have no responsibilities; leave out "
                "--proba, or fit a mixture with 'vpem fit'"
            )
        labels, squared = self._nearest(X)
        distances = np.sqrt(squared)
        return labels, {"distance": distances}, {"distances": distances}

    def score(self, request: Request) -> None:
        """Print the inertia of rows."""
        self.refuse_individuals(request)
        data = self.load(request)
        X = data.X
        inertia = float(self._nearest(X)[1].sum())
        told = self.told(data)
        request.leave_it_to_the_first()
        report = {
            "n_samples": len(X),
            "n_clusters": self.n_labels,
            "inertia": inertia,
            "inertia_per_sample": inertia / len(X),
        }
        if request.output.json:
            print_json(report | told)
            return
        names = ("rows", "clusters", "inertia", "inertia per sample")
        values = (number(value, 10) for value in report.values())
        show(table(zip(names, values, strict=True), "", ""))

    def as_json(self) -> Report:
        """Return centres, sizes, and what was reported."""
        import numpy as np

        found = self.stored
        return {
            "encoding": "vpem-clustering",
            "feature_names": list(found.feature_names),
            "centres": found.centres.tolist(),
            "cluster_sizes": np.bincount(found.labels, minlength=self.n_labels).tolist(),
            "inertia": reported(found.report, "inertia", float),
            "report": found.report,
            "options": found.options,
            "versions": found.versions,
        }
