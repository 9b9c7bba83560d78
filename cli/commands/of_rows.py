"""Commands on files whose data are rows: what mixtures and clusters share, and clusters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from vpem.errors import InputError, Setting
from vpem.files.results import read_clustering
from vpem.fits.answer import answer_of, compare
from vpem.settings import MISSINGS
from vpem.terms.rows import check_values
from vpem.terms.units import Scaling

from ..display import number, print_json, show, table
from ..names import key_of
from ..outputs import whole_of
from .kinds import StoredFile, reported
from .loading import Loaded, UseRequest, are_spread, labels_of, load, refuse_given

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vpem.checks import Floats, Labels
    from vpem.files.datasets import Home
    from vpem.files.results import StoredClustering
    from vpem.network.schema import Report
    from vpem.pictures.saved import EvaluationData

    Assigned = tuple[Labels, dict[str, Labels], dict[str, Floats]]
    """Labels of rows, further columns of a table, and what JSON has of these."""


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
    """Whether pictures refuse rows that lack values, unless the fit took such rows."""
    advice: ClassVar[tuple[str | Setting, ...]]
    """What to try where values are missing."""
    goes_without: ClassVar[str]
    """What becomes of features that the data lack."""

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

    def load(self, request: UseRequest) -> Loaded:
        return load(self, request, self.missing(request), narrow=True)

    def missing(self, request: UseRequest) -> str:
        """Treatment of missing values: as in the fit, unless the command says."""
        fitted = self.stored.options.get("missing")
        return request.missing or (fitted if fitted in MISSINGS else MISSINGS[0])

    @abstractmethod
    def marginal(self, columns: Sequence[int]) -> None:
        """Go on with these of the features alone."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the parameters."""

    def refuse_individuals(self, request: UseRequest) -> None:
        refuse_given(
            request.individuals, f"is for fits of SAEM, which {self.path} is not; leave it out"
        )

    def evaluation_data(self, request: UseRequest) -> EvaluationData | None:
        from vpem.pictures.saved import EvaluationData

        self.refuse_individuals(request)
        if not request.files:
            for options, without in ((request.rows, "features"), (request.parties, "")):
                refuse_given(options, "is about the data: give them after the model", without)
            return None
        missing = self.missing(request) if self.needs_values else "marginalize"
        loaded = load(self, request, missing)
        named = request.rows.labels != "labels"
        labelled = request.labelled or named or loaded.source.labels is not None
        labels = labels_of(request, loaded.source) if labelled else None
        return EvaluationData(loaded.X, labels, ", ".join(map(str, request.files)))

    def predict(self, request: UseRequest) -> int:
        import numpy as np

        self.refuse_individuals(request)
        output, tables = request.output, request.tables
        loaded = self.load(request)
        X, source = loaded.X, loaded.source
        labels, more, json_values = self.assign(X, self.missing(request), request.proba)
        facts, columns = loaded.report(), {"label": labels, **more}
        if tables:
            everyones = dict.fromkeys(X.parties.own.tolist(), columns)
            tables.write(source, everyones, X.parties, request.screen)
        request.leave_it_to_the_first()
        shown: Report = {"labels": labels, **json_values}
        rows: Home | None = whole_of(source.ids, len(X), counted=source.counted)
        if request.where.own_users:  # a member that brings no data has no rows
            rows = next(iter(source.homes.values()), None)
            shown = {} if rows is None else {name: rows.values(at) for name, at in shown.items()}
        if tables.file is None and rows is not None:
            output.write(rows.columns(columns), "vpem-predictions")
        if output.json:
            report = {
                "n_samples": len(X),
                "counts": np.bincount(columns["label"], minlength=self.n_labels),
                "output": None if output.output is None else str(output.output),
                **facts,
            }
            print_json(report | (shown if output.output is None else {}))
        return len(X)

    def evaluate(self, request: UseRequest) -> None:
        data = self.load(request)
        truth = labels_of(request, data.source)
        k = self.n_labels
        comparison = compare(truth, self.labels(data.X, self.missing(request)), k)
        if request.output.json:
            print_json({
                "n_samples": len(data.X),
                "accuracy": comparison.accuracy,
                "adjusted_rand_index": comparison.adjusted_rand_index,
                "normalized_mutual_information": comparison.normalized_mutual_information,
                "labels": comparison.classes,
                "confusion": comparison.confusion,
                "mapping": comparison.mapping,
                **data.report(),
            })  # fmt: skip
            return
        order = comparison.order
        heads = [
            f"{c} = {comparison.mapping[c]}" if c in comparison.mapping else str(c) for c in order
        ]
        labelled = zip(comparison.classes, comparison.confusion[:, order], strict=True)
        counts = ((label, *row) for label, row in labelled)
        title = "Rows of each label in each component"
        show(
            table(comparison.facts(), "", ""),
            table(counts, "label", *heads, title=title, right=heads),
        )

    def command(self, root: Any) -> str | None:
        """Return the command that fitted it, made of its options; None where they are not known."""
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
            # A flag that is off has its default value.
            usual = value is False or str(value) == str(parameter.default)
            usual = usual or value == parameter.default
            if parameter.param_type_name == "argument":
                words += str(value).split(", ") if value is not None else []
            elif value is not None and not usual:
                words += [parameter.opts[-1]] if value is True else [parameter.opts[-1], str(value)]
        return shlex.join(words)


class ClustersFile(RowFile):
    """What `vpem kmeans` has written."""

    holds = "clusters"
    needs_values = True
    goes_without = "left out of distances"
    advice = ("assign rows by their known values with ", Setting("missing", "marginalize"))
    instead: ClassVar = {
        "sample": "from which no rows are drawn; fit a mixture with 'vpem fit'",
        "model export": "which are not exported; 'vpem model show --json' prints them",
    }

    @cached_property
    def stored(self) -> StoredClustering:
        return read_clustering(self.path)

    def marginal(self, columns: Sequence[int]) -> None:
        stored, selected = self.stored, list(columns)
        self.stored = replace(
            stored,
            centres=stored.centres[:, selected],
            feature_names=tuple(stored.feature_names[column] for column in selected),
            root_centres=None,
            scaling=None if stored.scaling is None else stored.scaling.take_features(selected),
        )

    @property
    def n_labels(self) -> int:
        return len(self.stored.centres)

    def labels(self, X: Floats, missing: str) -> NDArray[np.intp]:
        import numpy as np

        return self._nearest(X)[0].astype(np.intp)

    def _nearest(self, X: Any) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Nearest centre of each row by its known values, and its distance."""
        import numpy as np

        stored = self.stored
        if not are_spread(X):
            check_values(X)
            return stored.assign(X)
        scaling = stored.scaling or Scaling.none(len(stored.feature_names))
        labels, squares = X.nearest(stored.centres, scaling)
        return labels, np.sqrt(squares)

    @property
    def fingerprint(self) -> str:
        import hashlib

        return hashlib.sha256(self.stored.centres.tobytes()).hexdigest()

    def assign(self, X: Any, missing: str, proba: bool) -> Assigned:
        if proba:
            raise InputError(
                f"{self.path} holds clusters, whose rows have no responsibilities; leave out "
                "--proba, or fit a mixture with 'vpem fit'"
            )
        labels, distances = self._nearest(X)
        return labels, {"distance": distances}, {"distances": distances}

    def score(self, request: UseRequest) -> None:
        import numpy as np

        self.refuse_individuals(request)
        data = self.load(request)
        X = data.X
        inertia = float(np.square(self._nearest(X)[1]).sum())
        facts = data.report()
        request.leave_it_to_the_first()
        report = {
            "n_samples": len(X),
            "n_clusters": self.n_labels,
            "inertia": inertia,
            "inertia_per_sample": inertia / len(X),
        }
        if request.output.json:
            print_json(report | facts)
            return
        names = ("rows", "clusters", "inertia", "inertia per sample")
        values = (number(value, 10) for value in report.values())
        show(table(zip(names, values, strict=True), "", ""))

    def as_json(self) -> Report:
        stored = self.stored
        answer = answer_of(stored)
        return {
            "clusters": answer.describe("cluster"),
            "encoding": "vpem-clustering",
            "feature_names": list(stored.feature_names),
            "centres": stored.centres.tolist(),
            "cluster_sizes": answer.sizes,
            "inertia": reported(stored.report, "inertia", float),
            "report": stored.report,
            "options": stored.options,
            "versions": stored.versions,
        }
