"""Mixtures and clusters, whose data are rows: what commands do with them, and on which data."""

from __future__ import annotations

import hashlib
import shlex
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import h5py
import numpy as np

from vpem.checks import Labels, available_memory, check_finite
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting, shorten
from vpem.files import models
from vpem.files.datasets import (
    Dataset,
    Home,
    default_names,
    powers_for,
    powers_in,
    write_dataset,
)
from vpem.files.families import levels_for_model, settle
from vpem.files.matrix import select_columns
from vpem.files.parties.opening import choose_parties
from vpem.files.results import read_clustering
from vpem.files.temporaries import ending_of
from vpem.fits.answer import (
    COVARIATES,
    answer_of,
    classes_in,
    compare,
    estimates_table,
    name_of,
    read_labels,
)
from vpem.fits.contribution import contribution, spread_contribution
from vpem.fits.labels import columns_of
from vpem.fits.spread_rows import SpreadRows, describe_score, responsibilities
from vpem.pictures.contents import AGREED, SCORED, table_of
from vpem.records import Table
from vpem.settings import MISSINGS
from vpem.terms.merging import MERGES, merge_components, merged, name_groups, read_groups
from vpem.terms.rows import check_missing, check_values, rows_with_values
from vpem.terms.statistics import leaves
from vpem.terms.units import power_rows, power_rows_back

from ..data import (
    ONCE,
    check_parties,
    kept_of,
    read_one,
    read_parties,
    teller,
)
from ..display import print_json
from ..names import key_of
from ..options import refuse_beside
from .use import StoredFile, UseRequest

if TYPE_CHECKING:
    from vpem.engines.engine import Engine
    from vpem.files.models import Model
    from vpem.files.results import StoredClustering
    from vpem.network.schema import Report
    from vpem.pictures.contents import Lines
    from vpem.pictures.saved import EvaluationData

    from ..outputs import TableOutput

    Assigned = tuple[dict[str, Labels], Report]


COMMANDS = {"vp-em": "fit", "em-rows": "fit", "vr-fedem": "fedem", "k-means": "kmeans"}
"""Commands that are not called as their algorithms are."""

INTEGRATED = ("integrate them out with ", Setting("missing", "marginalize"))
"""What to try where values, or features, are missing."""
BUT_COVARIATES = ("if they are no covariates, ", *INTEGRATED)


class RowFile(StoredFile):
    """A mixture or clusters, with data that they are used on.

    These are X (M, d), which has the features of the file in their order: an array, a `FileMatrix`,
    or `SpreadRows` where processes are ``apart``, each of which has some of the features.
    """

    facts: Report = {"holds": "rows"}  # noqa: RUF012
    classes: Sequence[str] = ()
    """Of a classifier: what its labels stand for."""

    groups: tuple[tuple[int, ...], ...] = ()  # components that are merged to clusters, if any are

    @property
    def n_labels(self) -> int:
        return len(self.classes) or len(self.groups) or int(self.stored.n_components)

    @abstractmethod
    def assign(self, proba: bool = False) -> Assigned:
        """Assign rows; return columns, labels first, and what JSON has of these."""

    def load(self, request: UseRequest, picture: bool = False) -> None:
        """Read data, which for a picture must have all features of the file.

        Otherwise it goes on without those that the data lack. Missing values are treated as in the
        fit, unless parties lack rows or the user says.
        """
        self.request, self.say = request, request.screen.say
        self.settings = settings = request.settings
        fitted = self.stored.options.get("missing")
        self.missing = settings.missing or (fitted if fitted in MISSINGS else MISSINGS[0])
        mixture = self.mixture = getattr(self.stored, "mixture", None)
        # Rows that lack values have places in a mixture, but may be as near to all centres.
        if settings.missing_parties or (picture and mixture is not None):
            self.missing = "marginalize"
        self.alignment: Report | None = None  # of several parties' rows
        self.slopes: Any = 0.0  # what rows' log-densities gain by a transform of features
        engine = request.where.engine
        self.apart = engine.apart
        if self.apart:
            self._check_apart(engine, mixture)
        with nullcontext() if self.apart else request.screen.reading(request.files):
            source = self._read()
        self.columns = columns = self._columns(source.feature_names, not picture)
        names, kinds = self.stored.feature_names, None if mixture is None else mixture.kinds
        self.source = source = levels_for_model(source, kinds, columns, self.missing)
        self.X: Any = source.X
        if not self.apart:
            if columns is not None:
                self.X = select_columns(source.X, columns)
            if self.missing == "refuse":
                advice = BUT_COVARIATES if self._covariates() else INTEGRATED
                check_finite(self.X, names, () if picture else advice)
            else:
                check_missing(self.X, names)
                if mixture is None and not picture:
                    check_values(self.X)
            self.X, self.slopes = self._moved(source, columns)
            return
        if source.powers is not None or self.stored.options.get("power") is not None:
            raise InputError(
                "features are transformed by powers, which is for one process; leave out ",
                Setting("engine"),
            )
        assert source.partition is not None
        called = source.partition.names
        self.X = SpreadRows(
            source.X, source.partition, columns or range(source.n_features),
            Placement.evenly(engine, len(called), called), names, self.missing, settings.secure_sum,
        )  # fmt: skip
        for party, root, features in [] if mixture is None else self.X.moves(mixture.blocks):
            listed = shorten(repr(names[feature]) for feature in features)
            self.say(f"{called[party]} sends {called[root]} features of their hub: {listed}")

    def _moved(self, source: Dataset, columns: Sequence[int] | None) -> tuple[Any, Any]:
        """Transform rows as those of the fit were; return also what log-densities gain by it."""
        powers = powers_for(self.stored, source, columns)
        if powers is None and source.powers is None:
            return self.X, 0.0
        if not isinstance(self.X, np.ndarray):
            raise InputError(f"{source.source} is read from disk, ", ONCE)
        if powers is None:  # they are transformed
            known = powers_in(source, columns)
            return self.X, power_rows(power_rows_back(self.X, known), known)[1]
        self.say("features are transformed by the exponents of the model")
        rows, slopes = power_rows(self.X, powers)
        if np.isinf(rows).any():
            raise InputError(f"{source.source}: a value is too large to transform")
        return rows, slopes

    def of_data(self) -> Report:
        """Return what JSON says of the data: alignment of rows, and what processes sent."""
        if self.apart:
            return {"alignment": self.alignment, "communication": self.X.communication}
        return {} if self.alignment is None else {"alignment": self.alignment}

    def _check_apart(self, engine: Engine, mixture: Any) -> None:
        refuse_beside(apart=True)
        stored = self.stored
        arrays = [*leaves(mixture.arrays()), mixture.blocks.order] if mixture else [stored.centres]
        digest = hashlib.sha256(b"".join(one.tobytes() for one in arrays))
        first, *others = engine.allgather(f"{digest.hexdigest()} {self.missing}")
        for name, mark in zip(engine.names[1:], others, strict=True):
            if mark != first:
                raise InputError(
                    f"{name} has another model than {engine.names[0]}; give all the same one"
                )

    def _read(self) -> Dataset:
        """Read the one dataset, or join those of parties."""
        request, settings, expected = self.request, self.settings, self.stored.feature_names
        files, where, weight = request.files, request.where, settings.sample_weight
        if not files and not where.own_users:
            raise InputError("vpem predict needs DATA: a dataset with the model's features")
        check_parties(files, settings)
        kept = kept_of(self.stored)
        kept = kept if request.labels else kept.changed(label_column=None)
        if settings.parties:
            over_rows, missing = settings.split == "rows", self.missing != "refuse"
            source, self.alignment = read_parties(
                files, settings, where, request.tables, over_rows, missing, weight, kept
            )
            where.watch(source.n_samples, over_rows)
            return source
        [party] = choose_parties(files[:1])
        # Those of the model, with the names of parties before them or without.
        known = frozenset((*expected, *models.owners_of(expected)))
        source = read_one(
            files, settings.table, where, None, model_table=kept, dataset=settings.dataset,
            sample_weight=weight, memory_limit=available_memory(), keep_constant=True,
            columns=None if expected == default_names(len(expected)) else known,
        )  # fmt: skip
        source.feature_names = models.names_in_model(
            Path(files[0]), party.name, source.feature_names, expected
        )
        teller(self.say)(source, settings.table, kept)
        return settle(source, kept.family, for_model=True)

    def _columns(self, names: Sequence[str], narrow: bool) -> Sequence[int] | None:
        """Return the column of each of the model's features; None: they are in its order."""
        expected = self.stored.feature_names
        present = set(names)
        there = [column for column, name in enumerate(expected) if name in present]
        lacking = [name for name in expected if name not in present]
        named = all(each != default_names(len(each)) for each in (names, expected))
        if narrow and lacking and there and named:
            if self.missing == "refuse":
                said = f"the data lack features of the model: {shorten(map(repr, lacking))}; "
                if 0 < len(self._covariates() & {*lacking}) < len(self._covariates()):
                    raise InputError(said, "give all covariates, or none of them")
                raise InputError(said, *INTEGRATED)
            self.stored = self.stored.take_features(there)
            gone = "left out of distances" if self.mixture is None else "integrated out"
            many = f"{len(lacking)} of the model's {len(expected)} features"
            self.say(f"{many} are not in the data and are {gone}")
        apart = self.settings.parties and self.settings.split == "features"
        return models.match_features(self.stored.feature_names, names, ordered=not apart)

    def _covariates(self) -> set[str]:
        kinds = None if self.mixture is None else self.mixture.kinds
        columns = () if kinds is None else kinds.columns_of("covariate")
        return {self.stored.feature_names[column] for column in columns}

    def labels(self, needed: bool = True) -> Any:
        settings, files = self.settings, self.request.files
        where, named = settings.labels, ", ".join(map(str, files))
        if where == "labels" and (self.source.labels is not None or not needed):
            return self.source.labels
        if where == "labels" and settings.parties:
            who = "every party" if settings.split == "rows" else "one party that has all the rows"
            raise InputError(
                f"{who} must have labels: in HDF5, or in a column that --label-column or a "
                "manifest names; or name a text file with --labels"
            )
        if where == "labels":
            raise InputError(
                f"{named} has no labels; name their column with --label-column, or another place "
                "with --labels"
            )
        if not h5py.is_hdf5(str(files[0])) and not Path(where).exists():
            said = f"{named} is a table, whose labels are a column: "
            raise InputError(said, Setting("label_column", where))
        return read_labels(where, files[0], self.source.n_samples)

    def evaluation_data(self, request: UseRequest) -> EvaluationData | None:
        from vpem.pictures.saved import EvaluationData

        if not request.files:
            return None
        self.load(request, picture=True)
        labels = self.labels(request.labelled)
        return EvaluationData(self.X, labels, ", ".join(map(str, request.files)))

    def predict(self, request: UseRequest) -> int:
        output, tables = request.settings, request.tables
        self.load(request)
        source, count = self.source, len(self.X)
        columns, shown = self.assign(request.settings.proba)
        facts = self.of_data()
        if tables:
            everyones = dict.fromkeys(self.X.parties.own.tolist(), columns)
            tables.write(source, everyones, self.X.parties)
        request.leave_it_to_the_first()
        rows: Home | None = Home.whole(source.ids, count, counted=source.counted)
        if request.where.own_users:  # a member that brings no data has no rows
            rows = next(iter(source.homes.values()), None)
            shown = {} if rows is None else {name: rows.values(at) for name, at in shown.items()}
        if tables.file is None and rows is not None:
            output.write(rows.columns(columns), "vpem-predictions")
        if output.json:
            inside = np.greater_equal(columns["label"], 0)
            kind = getattr(self.mixture, "outliers", None)
            outside = {} if kind is None else {f"n_{kind}": int((~inside).sum())}
            report = {
                "n_samples": count,
                "counts": np.bincount(columns["label"][inside], minlength=self.n_labels),
                **outside,
                "output": output.output,
                **facts,
            }
            print_json(report | (shown if output.output is None else {}))
        return count

    def score(self, request: UseRequest) -> None:
        self.load(request)
        weights = self.source.sample_weight
        report = (
            describe_score(self.stored, self.X, self.missing, weights, self.slopes) | self.of_data()
        )
        if self.mixture is not None:
            report["sample_weight"] = self.settings.sample_weight
        request.leave_it_to_the_first()
        effects = report.get("covariates")
        request.tell(report, SCORED, *([estimates_table(effects, COVARIATES)] if effects else []))

    def evaluate(self, request: UseRequest) -> None:
        self.load(request)
        numbers, names = self.assign()[0]["label"], self.classes
        found = compare(self.labels(), numbers, self.n_labels, names)
        mapping, order = found.mapping, found.order
        own = [name_of(c, len(names) or self.stored.n_components) for c in order]
        pairs = zip(own, order, strict=True)
        heads = [f"{name} = {mapping[c]}" if c in mapping else name for name, c in pairs]
        labelled = zip(found.classes, found.confusion[:, order], strict=True)
        counts = ((label, *row) for label, row in labelled)
        kind = "class" if names else "cluster" if self.groups else "component"
        title = f"Rows of each label in each {kind}"
        merges = {"groups": self.groups} if self.groups else {}
        request.tell(
            {"n_samples": len(self.X), **found.describe(), **self.of_data(), **merges},
            {"accuracy": "{accuracy:.4f}", **dict([*AGREED.items()][1:])} if names else AGREED,
            Table([*counts], ("label", *heads), title),
        )

    def command(self, root: Any) -> str | None:
        """Return the command that fitted it, made of its options; None where they are not known."""
        options = self.stored.options
        algorithm = str(self.stored.report.get("algorithm"))
        leaf = root.commands.get(COMMANDS.get(algorithm, algorithm))
        if leaf is None or not options.get("data"):
            return None
        words, known = ["vpem", leaf.name], leaf.callback.settings
        values = {
            one.name: options.get(key_of(one).replace("-", "_"), one.default) for one in leaf.params
        }
        for one in leaf.params:
            value = values[one.name]
            if value is None or (one.name in known and known[one.name].why_idle(values)):
                continue
            if one.param_type_name == "argument":
                words += str(value).split(", ")
            # A flag that is off has its default value.
            elif value is not False and str(value) != str(one.default) and value != one.default:
                words += [one.opts[-1]] if value is True else [one.opts[-1], str(value)]
        return shlex.join(words)


class ClustersFile(RowFile):
    holds = "clusters"
    facts: Report = {"holds": "rows", "classes": False}  # noqa: RUF012
    instead: ClassVar = {
        "sample": "from which no rows are drawn; fit a mixture with 'vpem fit'",
        "model export": "which are not exported; 'vpem model show --json' prints them",
    }

    @cached_property
    def stored(self) -> StoredClustering:
        return read_clustering(self.path)

    def assign(self, proba: bool = False) -> Assigned:
        labels, distances = self.stored.assign(self.X)
        return {"label": labels, "distance": distances}, {"labels": labels, "distances": distances}

    def as_json(self) -> Report:
        stored, answer = self.stored, answer_of(self.stored)
        return {
            "clusters": answer.describe("cluster"),
            "encoding": "vpem-clustering",
            "feature_names": list(stored.feature_names),
            "centres": stored.centres.tolist(),
            "cluster_sizes": answer.sizes,
            "inertia": self.saved.reported("inertia", float),
            "report": stored.report,
            "options": stored.options,
            "versions": stored.versions,
        }


class MixtureFile(RowFile):
    holds = "a mixture"

    @cached_property
    def stored(self) -> Model:
        return models.read_model(self.path)

    def assign(self, proba: bool = False) -> Assigned:
        shares = responsibilities(self.stored.mixture, self.X, self.missing)
        found, level = self._classes(), self.settings.merge_to
        if found is not None:
            self.classes, shares = found[0], shares @ found[1]
        elif level is not None:
            self.stored.mixture.refuse_outliers(MERGES)
            groups = read_groups(level, self.stored.n_components)
            if isinstance(groups, int):
                groups = self._merging(shares).groups(groups)
                self.say(f"clusters are these components: {name_groups(groups)}")
            self.groups, shares = groups, merged(shares, groups)
        columns = columns_of(shares, self.stored.mixture.outliers)
        if not proba:
            columns = {name: columns[name] for name in columns if not name.startswith("proba_")}
        named = {"class": np.array(self.classes)[columns["label"]]} if found is not None else {}
        shown = {"labels": columns["label"], **({"proba": shares} if proba else {})}
        if self.settings.directions is not None:
            scores = self.stored.mixture.project(self.X, self.settings.directions)
            if not scores.shape[1]:
                raise InputError(
                    "components differ in no direction; leave out ", Setting("directions")
                )
            columns |= {f"direction_{axis}": one for axis, one in enumerate(scores.T, 1)}
            shown["scores"] = scores
        return {**columns, **named}, shown | ({"classes": named["class"]} if named else {})

    def _classes(self) -> Any:
        """Return what `classes_in` finds; of a classifier nothing is merged."""
        found = classes_in(self.stored.report, self.stored.n_components)
        merges = self.request.command == "model merge" or self.settings.merge_to is not None
        if found is not None and merges:
            raise InputError(
                f"{self.path} is a classifier, whose components belong to known classes; those "
                "of a mixture that was fitted without them are merged"
            )
        return found

    def _merging(self, shares: Any) -> Any:
        """Merge components by rows that have a value, with their weights."""
        self.stored.mixture.refuse_outliers(MERGES)
        there = self.X.seen() if self.apart else rows_with_values(self.X, self.missing)
        weights = self.source.sample_weight
        return merge_components(shares, there * (1.0 if weights is None else weights))

    def merge(self, request: UseRequest, plot: Path | None) -> str:
        settings = request.settings
        if plot is not None:
            from vpem.pictures.assignments import draw_merges
            from vpem.pictures.figure import check_picture

            check_picture(plot, settings.force)
        self.load(request)
        self._classes()
        merging = self._merging(responsibilities(self.stored.mixture, self.X, self.missing))
        request.leave_it_to_the_first()
        if plot is not None:
            draw_merges(merging).save(plot, force=settings.force)
            self.say(f"wrote {plot}")
        if settings.output is not None:
            home = Home.whole(self.source.ids, len(self.X), counted=self.source.counted)
            columns = {f"clusters_{count}": labels for count, labels in merging.levels()}
            settings.write(home.columns(columns), "vpem-predictions")
        if settings.json or settings.output is None:
            report = {"n_samples": len(self.X), **merging.describe(), **self.of_data()}
            report |= {"output": settings.output, "plot": plot}
            last, lines = merging.entropy, []
            for one, entry in zip(merging.merges, report["merges"], strict=True):
                both = (name_groups((group,)) for group in (one.one, one.other))
                cells = f"{one.entropy:.6g}", f"{last - one.entropy:.6g}"
                lines.append((str(one.n_clusters), *both, *cells, name_groups(entry["groups"])))
                last = one.entropy
            heads = "clusters", "merged", "with", "entropy", "fall", "clusters of components"
            table = Table(lines, heads, "Merges", ("clusters", "entropy", "fall"))
            request.tell(report, MERGED, table)
        return "labels"

    def contribution(self, request: UseRequest) -> str:
        self.load(request)
        stored, settings = self.stored, request.settings
        if self.apart:
            result = spread_contribution(self.X, stored.mixture, stored.feature_names)
        else:
            held, partition = None, self.source.partition
            if partition is not None and settings.parties and settings.split != "rows":
                places = partition.places(self.columns or range(len(stored.feature_names)))
                held = dict(zip(partition.names, places, strict=True))
            labels = self.labels(needed=False)
            stored = replace(stored, options={})  # rows are transformed
            result = contribution(stored, self.X, parties=held, labels=labels, missing=self.missing)
        report = result.describe() | self.of_data()
        report["log_likelihood"] += float(np.mean(self.slopes))
        request.leave_it_to_the_first()
        if settings.output is not None:
            settings.write(result.columns(), "vpem-contributions")
        if settings.json or settings.output is None:
            parties = table_of(
                report["parties"], PARTIES, caption="Without each party", right=[*PARTIES][1:],
                spare=("likelihood", "features", "agreement", "shared"),
                note="In nats: information, what its features alone tell of the component; "
                "lost, what no others tell; shared, what its features and the others' tell of each "
                "other; likelihood, lost per sample. Moved: rows of another component without it. "
                "Adjusted Rand index: agreement of the components with and without it; of those "
                "without it with labels.",
            )  # fmt: skip
            ranked = [{**one, "rank": rank} for rank, one in enumerate(report["features"], 1)]
            features = table_of(
                ranked, FEATURES, MOST_FEATURES, caption="Each feature alone",
                right=("rank", "information", "share"), spare=("party", "rank"),
            )  # fmt: skip
            tables = [parties, "", features] if report["parties"] else [features]
            request.tell(report, CONTRIBUTED, *tables)
        return "the figures"

    def sample(self, request: UseRequest, count: int, seed: int) -> int:
        stored, file = self.stored, request.settings.output
        X, labels = stored.sample(count, seed)
        kinds = stored.mixture.kinds
        drawn = Dataset(X, stored.feature_names, labels=labels, source=str(file), kinds=kinds)
        if file is not None and ending_of(file) not in (".csv", ".parquet"):
            write_dataset(file, drawn, request.settings.force)
            return count
        columns = dict(zip(stored.feature_names, X.T, strict=True))
        for feature, levels in drawn.levels.items():
            columns[feature] = np.array(levels)[columns[feature].astype(int)]
        name = "component"
        while name in columns:
            name += "_"
        request.settings.write({**columns, name: labels}, "vpem-samples")
        return count

    def export(self, output: Path, table: TableOutput) -> None:
        models.write_export(output, self.stored, table.force)

    def as_json(self) -> Report:
        stored = self.stored
        components = answer_of(stored).describe()
        return {"components": components, **models.model_as_json(stored), "history": stored.history}


MOST_FEATURES = 30
"""Features that a table has; files and JSON have all."""

CONTRIBUTED: Lines = {
    "rows": "{n_samples}",
    "log-likelihood": "{log_likelihood:.6f} per sample",
    "entropy of the mixing weights": "{entropy:.4f}",
    "adjusted Rand index with labels": "{adjusted_rand_index:.4f}",
}

MERGED: Lines = {
    "rows": "{n_samples}",
    "components": "{n_components}",
    "entropy": "{entropy:.6g} nats",
}

PARTIES: Lines = {
    "party": "{name}",
    "features": lambda party: str(len(party["features"])),
    "information": "{information:.4f}",
    "lost": "{information_lost:.4f}",
    "shared": "{shared_information:.4f}",
    "likelihood": "{log_likelihood_lost:.4f}",
    "moved": "{rows_moved:.1%}",
    "agreement": "{agreement:.4f}",
    "labels": "{adjusted_rand_index:.4f}",
}
FEATURES: Lines = {
    "rank": "{rank}",
    "feature": "{name}",
    "party": "{party:?-}",
    "information": "{information:.4f}",
    "share": "{share:.1%}",
}
"""Columns of tables of contributions."""
