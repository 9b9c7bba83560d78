"""What commands do with files whose data are rows: mixtures and clusters alike, and clusters."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .config import key_of
from .kinds import Request, StoredFile, refuse_given, reported
from .output import number, print_json, show, table

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


class RowFile(StoredFile):
    """A mixture, or clusters."""

    needs_values: ClassVar[bool]
    """Whether rows that lack values cannot be assigned."""

    @property
    @abstractmethod
    def n_labels(self) -> int:
        """Components or clusters."""

    @abstractmethod
    def labels(self, X: Floats) -> NDArray[np.intp]:
        """Component or cluster of each row."""

    @abstractmethod
    def assign(self, X: Floats, missing: str, proba: bool) -> Assigned:
        """Assign rows to components or clusters."""

    def load(self, request: Request) -> tuple[Dataset, Floats]:
        """Read data, features in the order of the file."""
        return self._read(request, request.rows.missing == "refuse")

    def _read(self, request: Request, complete: bool) -> tuple[Dataset, Floats]:
        from vpem.checks import available_memory, check_finite
        from vpem.files.datasets import read_dataset
        from vpem.files.matrix import FileMatrix
        from vpem.files.models import match_features
        from vpem.terms.missing_patterns import check_missing

        names, inside = self.stored.feature_names, request.rows.dataset
        source = read_dataset(_data(request), inside, memory_limit=available_memory())
        columns = match_features(self.stored, source.feature_names)
        X = source.X
        if columns is not None:
            X = X.select(columns) if isinstance(X, FileMatrix) else X[:, columns]
        (check_finite if complete else check_missing)(X, names)
        return source, X

    def refuse_individuals(self, request: Request) -> None:
        """Refuse options of fits of SAEM."""
        refuse_given(
            request.individuals, f"is for fits of SAEM, which {self.path} is not; leave it out"
        )

    def evaluation_data(self, request: Request) -> EvaluationData | None:
        """Read the dataset that it is held against, its columns in the order of the file."""
        self.refuse_individuals(request)
        if request.data is None:
            refuse_given(request.rows, "is about the data: give them after the model", "features")
            return None
        from vpem.pictures.samples import EvaluationData

        source, X = self._read(request, self.needs_values)
        named = request.rows.labels != "labels"
        labelled = request.labelled or named or source.labels is not None
        labels = _read_labels(request, source) if labelled else None
        return EvaluationData(X, labels, str(request.data))

    def predict(self, request: Request) -> int:
        """Assign rows to components or clusters."""
        import numpy as np

        self.refuse_individuals(request)
        output = request.output
        source, X = self.load(request)
        labels, more, own = self.assign(X, request.rows.missing, request.proba)
        ids = ("row", np.arange(len(X))) if source.ids is None else ("id", source.ids)
        output.write({ids[0]: ids[1], "label": labels, **more}, "vpem-predictions")
        if output.json:
            report = {
                "n_samples": len(X),
                "counts": np.bincount(labels, minlength=self.n_labels),
                "output": None if output.output is None else str(output.output),
            }
            print_json(report | ({"labels": labels, **own} if output.output is None else {}))
        return len(labels)

    def evaluate(self, request: Request) -> None:
        """Compare components or clusters with labels."""
        from vpem.fits.evaluation import compare

        source, X = self.load(request)
        truth = _read_labels(request, source)
        k = self.n_labels
        found = compare(truth, self.labels(X), k)
        if request.output.json:
            print_json({
                "n_samples": len(X),
                "accuracy": found.accuracy,
                "adjusted_rand_index": found.adjusted_rand_index,
                "normalized_mutual_information": found.normalized_mutual_information,
                "labels": found.classes,
                "confusion": found.confusion,
                "mapping": found.mapping,
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
        for parameter in root.commands[name].params:
            value = options.get(key_of(parameter).replace("-", "_"))
            if parameter.param_type_name == "argument":
                words += str(value).split(", ") if value is not None else []
            elif value is not None and not _same(value, parameter.default):
                words += [parameter.opts[-1]] if value is True else [parameter.opts[-1], str(value)]
        return shlex.join(words)


def _same(value: Any, default: Any) -> bool:
    """Whether an option has the value that it has by itself; a flag that is off has."""
    return value is False or value == default or str(value) == str(default)


def _data(request: Request) -> Path:
    from vpem.errors import InputError

    if request.data is None:
        raise InputError("vpem predict needs DATA: a dataset with the model's features")
    return request.data


def _read_labels(request: Request, source: Dataset) -> Labels:
    """Read labels from the dataset, another place in its file, or a text file."""
    import numpy as np

    from vpem.errors import InputError
    from vpem.fits.evaluation import read_labels

    data, where = _data(request), request.rows.labels
    if where == "labels":
        if source.labels is None:
            raise InputError(
                f"{data} has no labels; name where they are with --labels, or import the data with "
                "--label-column"
            )
        return np.asarray(source.labels)
    return read_labels(where, data, source.n_samples)


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

    def load(self, request: Request) -> tuple[Dataset, Floats]:
        """Read data, which must have all values."""
        from vpem.errors import InputError

        if request.rows.missing != "refuse":
            raise InputError(
                f"{self.path} holds clusters, which have no density to integrate missing values "
                "out of; leave out --missing"
            )
        return super().load(request)

    def labels(self, X: Floats) -> NDArray[np.intp]:
        """Cluster of the nearest centre of each row."""
        import numpy as np

        return self.stored.assign(X)[0].astype(np.intp)

    def assign(self, X: Floats, missing: str, proba: bool) -> Assigned:
        """Nearest centre of each row, and its distance."""
        import numpy as np

        from vpem.errors import InputError

        if proba:
            raise InputError(
                f"{self.path} holds clusters, whose rows have no responsibilities; leave out "
                "--proba, or fit a mixture with 'vpem fit'"
            )
        labels, squared = self.stored.assign(X)
        distances = np.sqrt(squared)
        return labels, {"distance": distances}, {"distances": distances}

    def score(self, request: Request) -> None:
        """Print the inertia of rows."""
        self.refuse_individuals(request)
        X = self.load(request)[1]
        inertia = float(self.stored.assign(X)[1].sum())
        report = {
            "n_samples": len(X),
            "n_clusters": self.n_labels,
            "inertia": inertia,
            "inertia_per_sample": inertia / len(X),
        }
        if request.output.json:
            print_json(report)
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
