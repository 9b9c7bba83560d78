"""Mixtures and clusters, whose data are rows: what commands do with them, and on which data."""

from __future__ import annotations

import hashlib
import shlex
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import h5py
import numpy as np
from numpy.typing import NDArray

from vpem.checks import Labels, available_memory, check_finite
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting, shorten
from vpem.files.datasets import Dataset, default_names, write_dataset
from vpem.files.families import FamilyChoice, levels_for_model, settle_for_model
from vpem.files.hdf5 import check_writable
from vpem.files.matrix import FileMatrix
from vpem.files.models import match_features, model_as_json, read_model, write_json, write_npz
from vpem.files.parties.opening import choose_parties
from vpem.files.results import read_clustering
from vpem.files.temporaries import ending_of
from vpem.fits.answer import answer_of, compare, read_labels
from vpem.fits.contribution import contribution, spread_contribution
from vpem.fits.labels import columns_of
from vpem.fits.prepare import weighed
from vpem.fits.spread_use import SpreadRows
from vpem.pictures.contents import plural
from vpem.settings import MISSINGS
from vpem.terms.rows import check_missing, check_values, rows_with_values
from vpem.terms.statistics import leaves
from vpem.terms.units import Scaling

from ..data import check_parties, joined, kept_of, read_one, teller
from ..display import print_json, table, what_is_read
from ..names import key_of
from ..outputs import whole_of
from ..session import place_parties
from .kinds import StoredFile, reported
from .use import UseRequest, refuse_given

if TYPE_CHECKING:
    from vpem.files.datasets import Home
    from vpem.files.models import Model
    from vpem.files.results import StoredClustering
    from vpem.fits.contribution import Contribution
    from vpem.network.schema import Report
    from vpem.pictures.saved import EvaluationData

    from ..display import PrintedTable

    Assigned = tuple[dict[str, Labels], Report]
    """Columns of a table, the first with labels of rows, and what JSON has of these."""


class UsedData:
    """Data that a mixture or clusters are used on: X (M, d) has their features, in their order.

    It is an array, a `FileMatrix`, or `SpreadRows` where processes are ``apart``, each of which has
    some of the features. With ``narrow`` the file goes on without features that the data lack.
    """

    def __init__(self, file: RowFile, request: UseRequest, missing: str, narrow: bool) -> None:
        self.file, self.request, self.missing = file, request, missing
        self.alignment: Report | None = None  # of several parties' rows
        self.apart = request.where.engine.apart
        if self.apart:
            self._check_apart()
        read = what_is_read(request.files)
        with nullcontext() if self.apart else request.screen.doing(read):
            self.source = self._read()
        columns = self._columns(narrow)
        mixture = getattr(file.stored, "mixture", None)
        kinds = getattr(mixture, "kinds", None)
        self.source = levels_for_model(self.source, kinds, columns, missing)
        names, X = file.stored.feature_names, self.source.X
        if not self.apart:
            if columns is not None:
                X = X.select(columns) if isinstance(X, FileMatrix) else X[:, columns]
            if missing == "refuse":
                check_finite(X, names, file.advice if narrow else ())
            else:
                check_missing(X, names)
            self.X: Any = X
            return
        assert self.source.partition is not None
        called = self.source.partition.names
        holders = Placement.evenly(request.where.engine, len(called), called)
        self.X = SpreadRows(
            X, self.source.partition, columns or range(self.source.n_features), holders, names,
            missing, request.parties.secure_sum,
        )  # fmt: skip
        for party, root, features in [] if mixture is None else self.X.moves(mixture.blocks):
            listed = shorten(repr(names[feature]) for feature in features)
            said = f"{called[party]} sends {called[root]} features of their hub: {listed}"
            request.screen.say(said)

    def __len__(self) -> int:
        return len(self.X)

    def report(self) -> Report:
        """Return what JSON says of the data: alignment of rows, and what processes sent."""
        if self.apart:
            return {"alignment": self.alignment, "communication": self.X.communication}
        return {} if self.alignment is None else {"alignment": self.alignment}

    def _check_apart(self) -> None:
        parties, engine = self.request.parties, self.request.where.engine
        if not parties.parties:
            raise InputError(
                "--engine mpi is for parties, each read by a rank of its own; add --parties"
            )
        if parties.split == "rows":
            raise InputError(
                "a party that has all features of a row needs no other party: let each use the "
                "model on its own file, without --engine mpi"
            )
        digest = hashlib.sha256(b"".join(one.tobytes() for one in self.file.parameters()))
        marks = engine.allgather(f"{digest.hexdigest()} {self.missing}")
        for rank, mark in enumerate(marks):
            if mark != marks[0]:
                raise InputError(
                    f"{engine.names[rank]} has another model than {engine.names[0]}; give all the "
                    "same one"
                )

    def _read(self) -> Dataset:
        """Read the one dataset, or join those of parties."""
        request, expected = self.request, self.file.stored.feature_names
        files, settings, say = request.files, request.parties, request.screen.say
        weight = request.rows.sample_weight
        if not files and not request.where.own_users:
            raise InputError("vpem predict needs DATA: a dataset with the model's features")
        over_rows = settings.split == "rows"
        check_parties(files, settings)
        kept = kept_of(self.file.stored)
        if not request.labels:
            kept = kept.changed(label_column=None)
        if settings.parties:
            of_one = ("labels", "features", "missing", "sample_weight")
            refuse_given(request.rows, "is for one file; with --parties leave it out", *of_one)
            parties = request.where.parties(files, settings.table, kept)
            output = None if request.tables else request.output.output
            holders = place_parties(parties, output, False, request.where, request.tables)
            missing = self.missing != "refuse"
            source, self.alignment = joined(
                parties, settings, over_rows, missing, weight, holders, say, True
            )
            request.where.watch(source.n_samples, over_rows, request.screen)
            return source
        [file], [party] = files, choose_parties(files)
        # Those of the model, with the names of parties before them or without.
        known = frozenset((*expected, *_owners(expected)))
        source = read_one(
            file, settings.table, request.where, None, model_table=kept,
            dataset=request.rows.dataset, sample_weight=weight, memory_limit=available_memory(),
            keep_constant=True,
            columns=None if expected == default_names(len(expected)) else known,
        )  # fmt: skip
        names = source.feature_names
        source.feature_names = _as_in_model(file, party.name, names, expected)
        teller(say)(source, settings.table, kept)
        return settle_for_model(source, FamilyChoice.parse(kept.family))

    def _columns(self, narrow: bool) -> Sequence[int] | None:
        """Return the column of each of the model's features; None: they are in its order."""
        file, parties, names = self.file, self.request.parties, self.source.feature_names
        expected, present = file.stored.feature_names, set(names)
        there = [column for column, name in enumerate(expected) if name in present]
        lacking = [name for name in expected if name not in present]
        named = all(each != default_names(len(each)) for each in (names, expected))
        if narrow and lacking and there and named:
            if self.missing == "refuse":
                raise InputError(
                    f"the data lack features of the model: {shorten(map(repr, lacking))}; "
                    "integrate them out with ",
                    Setting("missing", "marginalize"),
                )
            file.stored = file.stored.take_features(there)
            self.request.screen.say(
                f"{len(lacking)} of the model's {len(expected)} features are not in the data and "
                f"are {file.goes_without}"
            )
        apart = parties.parties and parties.split == "features"
        return match_features(file.stored.feature_names, names, ordered=not apart)

    def labels(self) -> Labels:
        """Read labels from the dataset, another place in its file, or a text file."""
        where, parties, files = self.request.rows.labels, self.request.parties, self.request.files
        named = ", ".join(map(str, files))
        if where == "labels":
            if self.source.labels is None:
                who = (
                    "every party" if parties.split == "rows" else "one party that has all the rows"
                )
                raise InputError(
                    f"{named} has no labels; name their column with --label-column, or another "
                    "place with --labels"
                    if not parties.parties
                    else f"{who} must have labels: in HDF5, or in a column that --label-column or "
                    "a manifest names; or name a text file with --labels"
                )
            return np.asarray(self.source.labels)
        if parties.parties and parties.align not in (None, "none"):
            raise InputError(
                f"--labels {where} has one label a line, but parties are aligned by their ids; "
                "give labels to one party, or align them first"
            )
        if not h5py.is_hdf5(str(files[0])) and not Path(where).exists():
            raise InputError(
                f"{named} is a table, whose labels are a column: ", Setting("label_column", where)
            )
        return read_labels(where, files[0], self.source.n_samples)


def _owners(expected: Sequence[str]) -> dict[str, set[str]]:
    """Return the parties that a model has features of, by their names without the party's."""
    owners: dict[str, set[str]] = {}
    for full in expected:
        for dot in (place for place, letter in enumerate(full) if letter == "."):
            owners.setdefault(full[dot + 1 :], set()).add(full[:dot])
    return owners


def _as_in_model(
    file: Path, called: str, names: Sequence[str], expected: Sequence[str]
) -> tuple[str, ...]:
    """Return names of a file's features, with the party's before those that several parties have.

    It is the party that the file is called after, or else the only one that has all of these.
    """
    owners, known = _owners(expected), set(expected)
    unknown = [name for name in names if name not in known]
    shared = [name for name in unknown if len(owners.get(name, ())) > 1]
    if shared and not any(called in owners.get(name, ()) for name in names):
        fitting = set.intersection(*(owners[name] for name in shared))
        if len(fitting) != 1:
            ending = "".join(file.suffixes)
            listed = sorted(fitting or set.union(*(owners[name] for name in shared)))
            raise InputError(
                f"{file} has {shorten(map(repr, shared))}, which the model has of several parties; "
                f"name the file after its party: {shorten([one + ending for one in listed])}"
            )
        [called] = fitting
    prefixed = {name for name in unknown if called in owners.get(name, ())}
    return tuple(f"{called}.{name}" if name in prefixed else name for name in names)


COMMANDS = {"vp-em": "fit", "em-rows": "fit", "vr-fedem": "fedem", "k-means": "kmeans"}
"""Commands that are not called as their algorithms are."""


class RowFile(StoredFile):
    """A mixture, or clusters."""

    needs_values: ClassVar[bool]
    """Whether pictures refuse rows that lack values, unless the fit took such rows."""
    advice: ClassVar[tuple[str | Setting, ...]]
    """What to try where values are missing."""
    goes_without: ClassVar[str]
    """What becomes of features that the data lack."""
    scored: ClassVar[Mapping[str, str]]
    """Names of what a score has, and their formats."""

    @abstractmethod
    def parameters(self) -> Sequence[NDArray[Any]]:
        """Return all of them."""

    @abstractmethod
    def assign(self, data: UsedData, proba: bool = False) -> Assigned:
        """Assign rows to components or clusters."""

    @abstractmethod
    def score_of(self, data: UsedData) -> Report:
        """Say how well it describes rows."""

    def load(self, request: UseRequest, picture: bool = False) -> UsedData:
        """Read data, which for a picture must have all features of the model.

        Missing values are treated as in the fit, unless parties lack rows or the user says.
        """
        self._refuse_individuals(request)
        fitted = self.stored.options.get("missing")
        missing = request.rows.missing or (fitted if fitted in MISSINGS else MISSINGS[0])
        if request.parties.missing_parties or (picture and not self.needs_values):
            missing = "marginalize"
        return UsedData(self, request, missing, narrow=not picture)

    def _refuse_individuals(self, request: UseRequest) -> None:
        refuse_given(
            request.individuals, f"is for fits of SAEM, which {self.path} is not; leave it out"
        )

    def evaluation_data(self, request: UseRequest) -> EvaluationData | None:
        from vpem.pictures.saved import EvaluationData

        self._refuse_individuals(request)
        if not request.files:
            for options, without in ((request.rows, "features"), (request.parties, "")):
                refuse_given(options, "is about the data: give them after the model", without)
            return None
        data = self.load(request, picture=True)
        named = request.rows.labels != "labels"
        labelled = request.labelled or named or data.source.labels is not None
        labels = data.labels() if labelled else None
        return EvaluationData(data.X, labels, ", ".join(map(str, request.files)))

    def predict(self, request: UseRequest) -> int:
        output, tables = request.output, request.tables
        data = self.load(request)
        source, count = data.source, len(data)
        columns, shown = self.assign(data, request.proba)
        facts = data.report()
        if tables:
            everyones = dict.fromkeys(data.X.parties.own.tolist(), columns)
            tables.write(source, everyones, data.X.parties, request.screen)
        request.leave_it_to_the_first()
        rows: Home | None = whole_of(source.ids, count, counted=source.counted)
        if request.where.own_users:  # a member that brings no data has no rows
            rows = next(iter(source.homes.values()), None)
            shown = {} if rows is None else {name: rows.values(at) for name, at in shown.items()}
        if tables.file is None and rows is not None:
            output.write(rows.columns(columns), "vpem-predictions")
        if output.json:
            report = {
                "n_samples": count,
                "counts": np.bincount(columns["label"], minlength=self.stored.n_components),
                "output": None if output.output is None else str(output.output),
                **facts,
            }
            print_json(report | (shown if output.output is None else {}))
        return count

    def score(self, request: UseRequest) -> None:
        data = self.load(request)
        report = self.score_of(data) | data.report()
        request.leave_it_to_the_first()
        request.tell(report, self.scored)

    def evaluate(self, request: UseRequest) -> None:
        data = self.load(request)
        found = compare(data.labels(), self.assign(data)[0]["label"], self.stored.n_components)
        mapping, order = found.mapping, found.order
        heads = [f"{c} = {mapping[c]}" if c in mapping else str(c) for c in order]
        labelled = zip(found.classes, found.confusion[:, order], strict=True)
        counts = ((label, *row) for label, row in labelled)
        title = "Rows of each label in each component"
        request.tell(
            {"n_samples": len(data), **found.describe(), **data.report()},
            dict(found.facts()),
            table(counts, "label", *heads, title=title, right=heads),
        )

    def command(self, root: Any) -> str | None:
        """Return the command that fitted it, made of its options; None where they are not known."""
        options = self.stored.options
        algorithm = str(self.stored.report.get("algorithm"))
        name = COMMANDS.get(algorithm, algorithm)
        if name not in root.commands or not options.get("data"):
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
    scored: ClassVar = {
        "rows": "{n_samples}",
        "clusters": "{n_clusters}",
        "inertia": "{inertia:.10g}",
        "inertia per sample": "{inertia_per_sample:.10g}",
    }

    @cached_property
    def stored(self) -> StoredClustering:
        return read_clustering(self.path)

    def parameters(self) -> Sequence[NDArray[Any]]:
        return [self.stored.centres]

    def assign(self, data: UsedData, proba: bool = False) -> Assigned:
        if proba:
            raise InputError(
                f"{self.path} holds clusters, whose rows have no responsibilities; leave out "
                "--proba, or fit a mixture with 'vpem fit'"
            )
        stored = self.stored
        if data.apart:
            scaling = stored.scaling or Scaling.none(len(stored.feature_names))
            labels, squares = data.X.nearest(stored.centres, scaling)
            distances = np.sqrt(squares)
        else:
            check_values(data.X)
            labels, distances = stored.assign(data.X)
        return {"label": labels, "distance": distances}, {"labels": labels, "distances": distances}

    def score_of(self, data: UsedData) -> Report:
        inertia = float(np.square(self.assign(data)[0]["distance"]).sum())
        return {
            "n_samples": len(data),
            "n_clusters": self.stored.n_components,
            "inertia": inertia,
            "inertia_per_sample": inertia / len(data),
        }

    def as_json(self) -> Report:
        stored, answer = self.stored, answer_of(self.stored)
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


class MixtureFile(RowFile):
    """What `vpem fit` and `vpem fedem` have written."""

    holds = "a mixture"
    needs_values = False
    goes_without = "integrated out"
    advice = ("integrate them out with ", Setting("missing", "marginalize"))
    scored: ClassVar = {
        "rows": "{n_samples}",
        "parameters": "{n_parameters}",
        "log-likelihood per sample": "{log_likelihood:.6f}",
        "log-likelihood, total": "{total_log_likelihood:.4f}",
        "BIC": "{bic:.4f}",
        "AIC": "{aic:.4f}",
    }

    @cached_property
    def stored(self) -> Model:
        return read_model(self.path)

    def parameters(self) -> Sequence[NDArray[Any]]:
        mixture = self.stored.mixture
        return [*leaves(mixture.arrays()), mixture.blocks.order]

    def assign(self, data: UsedData, proba: bool = False) -> Assigned:
        mixture = self.stored.mixture
        if data.apart:
            shares = data.X.posteriors(mixture)[0]
        else:
            shares = mixture.predict_proba(data.X, missing=data.missing)
        columns = columns_of(shares) if proba else {"label": shares.argmax(axis=1)}
        return columns, {"labels": columns["label"], **({"proba": shares} if proba else {})}

    def score_of(self, data: UsedData) -> Report:
        mixture, weights = self.stored.mixture, data.source.sample_weight
        if data.apart:
            scores, there = data.X.posteriors(mixture)[1], data.X.seen()
        else:
            scores = mixture.score_samples(data.X, missing=data.missing)
            there = rows_with_values(data.X, data.missing)
        # As in a fit, rows without a value count for nothing.
        total, used = weighed(scores, there, weights)
        return {
            "n_samples": len(data),
            "n_without_values": len(data) - int(there.sum()),
            "sample_weight": data.request.rows.sample_weight,
            "n_parameters": mixture.n_parameters,
            "log_likelihood": total / used,
            "total_log_likelihood": total,
            "bic": mixture.bic(total, used),
            "aic": mixture.aic(total),
        }

    def contribution(self, request: UseRequest) -> str:
        data, stored, out = self.load(request), self.stored, request.output
        named, partition = request.rows.labels != "labels", data.source.partition
        if data.apart:
            if named:
                raise InputError(
                    "--labels are compared with the components of rows without each party, which "
                    "only the root of its hub knows; leave it out, or read all parties' files in "
                    "one process"
                )
            result = spread_contribution(data.X, stored.mixture, stored.feature_names)
        else:
            labels = data.labels() if named or data.source.labels is not None else None
            parties, apart = None, request.parties.parties and request.parties.split != "rows"
            if apart and partition is not None:  # else they are those of the fit
                names = stored.feature_names
                columns = match_features(names, data.source.feature_names, ordered=False)
                place = {column: j for j, column in enumerate(columns or range(len(names)))}
                parties = {
                    name: [place[column] for column in features.tolist() if column in place]
                    for name, features in zip(partition.names, partition.features, strict=True)
                }
            result = contribution(
                stored, data.X, parties=parties, labels=labels, missing=data.missing
            )
        report = result.describe() | data.report()
        request.leave_it_to_the_first()
        if out.output is not None:
            out.write(result.columns(), "vpem-contributions")
        if out.json or out.output is None:
            labelled = dict([LABELLED] if result.adjusted_rand_index is not None else ())
            request.tell(report, CONTRIBUTED | labelled, *tables_of(result))
        return "the figures"

    def sample(self, request: UseRequest, count: int, seed: int) -> int:
        stored, file = self.stored, request.output.output
        X, labels = stored.mixture.sample(count, np.random.default_rng(seed))
        kinds = getattr(stored.mixture, "kinds", None)
        if file is not None and ending_of(file) not in (".csv", ".parquet"):
            drawn = Dataset(X, stored.feature_names, labels=labels, source=str(file), kinds=kinds)
            write_dataset(file, drawn, request.output.force)
            return count
        levels = {} if kinds is None else kinds.levels
        columns = {
            feature: np.array(levels[j])[X[:, j].astype(int)] if j in levels else X[:, j]
            for j, feature in enumerate(stored.feature_names)
        }
        name = "component"
        while name in columns:
            name += "_"
        request.output.write({**columns, name: labels}, "vpem-samples")
        return count

    def export(self, output: Path, force: bool, quote_formulas: bool) -> None:
        check_writable(output, force, "exported models")
        write = write_npz if ending_of(output) == ".npz" else write_json
        write(output, self.stored, force)

    def as_json(self) -> Report:
        stored = self.stored
        components = answer_of(stored).describe()
        return {"components": components, **model_as_json(stored), "history": stored.history}


CONTRIBUTED = {
    "rows": "{n_samples}",
    "log-likelihood": "{log_likelihood:.6f} per sample",
    "entropy of the mixing weights": "{entropy:.4f}",
}
LABELLED = ("adjusted Rand index with labels", "{adjusted_rand_index:.4f}")

FIGURES = {
    "information": "{0.information:.4f}",
    "lost": "{0.information_lost:.4f}",
    "shared": "{0.shared_information:.4f}",
    "likelihood": "{0.log_likelihood_lost:.4f}",
    "moved": "{0.rows_moved:.1%}",
    "agreement": "{0.agreement:.4f}",
    "labels": "{0.adjusted_rand_index:.4f}",
}
"""Columns of the table of parties, the last where there are labels."""

CAPTION = (
    "In nats: information, what its features alone tell of the component; lost, what no others "
    "tell; shared, what its features and the others' tell of each other; likelihood, lost per "
    "sample. Moved: rows of another component without it. Adjusted Rand index: agreement of the "
    "components with and without it; of those without it with labels."
)
"""Below the table of parties."""

MOST_FEATURES = 30
"""Features that a table has; files and JSON have all."""


def tables_of(result: Contribution) -> list[PrintedTable | str]:
    """Return the tables of a terminal."""
    figures = list(FIGURES.items())[: None if result.adjusted_rand_index is not None else -1]
    heads = ["features", *(head for head, _ in figures)]
    parties = table(
        ((one.name, len(one.features), *(form.format(one) for _, form in figures))
         for one in result.parties),
        "party", *heads, title="Without each party", right=heads,
        spare=("likelihood", "features", "agreement", "shared"), caption=CAPTION,
    )  # fmt: skip
    more = result.n_features - MOST_FEATURES
    features = table(
        ((place, one.name, one.party or "-", f"{one.information:.4f}", f"{one.share:.1%}")
         for place, one in enumerate(result.features[:MOST_FEATURES], 1)),
        "rank", "feature", "party", "information", "share",
        title="Each feature alone", right=("rank", "information", "share"), spare=("party", "rank"),
        caption=f"and {plural(more, 'feature')} that tell less: see --json" if more > 0 else None,
    )  # fmt: skip
    return [parties, "", features] if result.parties else [features]
