"""Commands on mixtures: assignment, scores, draws, and which parties matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpem.errors import InputError, Setting, shorten
from vpem.files.hdf5 import check_writable
from vpem.files.models import match_features, model_as_json, read_model, write_json, write_npz
from vpem.files.temporaries import ending_of
from vpem.fits.answer import answer_of
from vpem.terms.rows import rows_with_values
from vpem.terms.statistics import leaves

from ..display import plural, print_json, show, table
from ..outputs import ResultSettings
from .loading import Loaded, UseRequest, are_spread, labels_of
from .of_rows import RowFile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vpem.checks import Floats
    from vpem.files.models import Model
    from vpem.fits.contribution import Contribution
    from vpem.network.schema import Report

    from ..display import PrintedTable
    from .of_rows import Assigned


MOST_FEATURES = 30
"""Features that a table has; files and JSON have all."""

CAPTION = (
    "In nats: information, what its features alone tell of the component; lost, what no others "
    "tell; shared, what its features and the others' tell of each other; likelihood, lost per "
    "sample. Moved: rows of another component without it. Adjusted Rand index: agreement of the "
    "components with and without it; of those without it with labels."
)
"""Below the table of parties."""

OF_PARTIES = (
    "information_lost", "shared_information", "log_likelihood_lost", "rows_moved", "agreement"
)  # fmt: skip
"""Columns of a file that features have nothing in."""


def shown(contribution: Contribution) -> list[PrintedTable | str]:
    """Return the tables of a terminal."""
    facts = [
        ("rows", str(contribution.n_samples)),
        ("log-likelihood", f"{contribution.log_likelihood:.6f} per sample"),
        ("entropy of the mixing weights", f"{contribution.entropy:.4f}"),
    ]
    if contribution.adjusted_rand_index is not None:
        facts.append(("adjusted Rand index with labels", f"{contribution.adjusted_rand_index:.4f}"))
    heads = ["party", "features", "information", "lost", "shared", "likelihood", "moved"]
    heads += ["agreement"] if contribution.adjusted_rand_index is None else ["agreement", "labels"]
    rows = []
    for one in contribution.parties:
        nats = one.information, one.information_lost, one.shared_information
        cells = [one.name, len(one.features), *(f"{value:.4f}" for value in nats)]
        cells += [f"{one.log_likelihood_lost:.4f}", f"{one.rows_moved:.1%}"]
        cells.append(f"{one.agreement:.4f}")
        if one.adjusted_rand_index is not None:
            cells.append(f"{one.adjusted_rand_index:.4f}")
        rows.append(cells)
    parties = table(
        rows, *heads, title="Without each party", right=heads[1:],
        spare=("likelihood", "features", "agreement", "shared"), caption=CAPTION,
    )  # fmt: skip
    listed = contribution.features[:MOST_FEATURES]
    more = len(contribution.features) - len(listed)
    alone = [
        (place, one.name, one.party or "-", f"{one.information:.4f}", f"{one.share:.1%}")
        for place, one in enumerate(listed, 1)
    ]
    features = table(
        alone, "rank", "feature", "party", "information", "share",
        title="Each feature alone", right=("rank", "information", "share"), spare=("party", "rank"),
        caption=f"and {plural(more, 'feature')} that tell less: see --json" if more else None,
    )  # fmt: skip
    tables: list[PrintedTable | str] = [parties, ""] if contribution.parties else []
    return [table(facts, "", ""), *tables, features]


def columns_of(contribution: Contribution) -> dict[str, Any]:
    """Return columns of a file: a row for each party, then for each feature."""
    import numpy as np

    parties, features = contribution.parties, contribution.features
    information = [one.information for one in parties] + [one.information for one in features]
    names = [one.name for one in parties] + [one.name for one in features]
    owners = [one.name for one in parties] + [one.party or "" for one in features]
    columns: dict[str, Any] = {
        "kind": np.array(["party"] * len(parties) + ["feature"] * len(features), np.str_),
        "name": np.array(names, np.str_),
        "party": np.array(owners, np.str_),
        "information": np.array(information),
        "share": np.array(information) / (contribution.entropy or 1.0),
    }
    labelled = contribution.adjusted_rand_index is not None
    for name in (*OF_PARTIES, *(["adjusted_rand_index"] if labelled else [])):
        values = [getattr(one, name) for one in parties]
        columns[name] = np.ma.masked_invalid([*values, *[np.nan] * len(features)])
    return columns


class MixtureFile(RowFile):
    """What `vpem fit` and `vpem fedem` have written."""

    holds = "a mixture"
    needs_values = False
    goes_without = "integrated out"
    advice = ("integrate them out with ", Setting("missing", "marginalize"))

    @cached_property
    def stored(self) -> Model:
        return read_model(self.path)

    @property
    def n_labels(self) -> int:
        return int(self.stored.mixture.n_components)

    def load(self, request: UseRequest) -> Loaded:
        loaded = super().load(request)
        if are_spread(loaded.X):
            names, parties = self.stored.feature_names, loaded.X.names
            for party, root, features in loaded.X.moves(self.stored.mixture.blocks):
                listed = shorten(repr(names[feature]) for feature in features)
                said = f"{parties[party]} sends {parties[root]} features of their hub: {listed}"
                request.screen.say(said)
        return loaded

    def marginal(self, columns: Sequence[int]) -> None:
        stored = self.stored
        names = tuple(stored.feature_names[column] for column in columns)
        self.stored = replace(stored, mixture=stored.mixture.marginal(columns), feature_names=names)

    def labels(self, X: Floats, missing: str) -> NDArray[np.intp]:
        labels: NDArray[np.intp] = self.stored.mixture.predict(X, missing=missing)
        return labels

    @property
    def fingerprint(self) -> str:
        import hashlib

        mixture = self.stored.mixture
        parts = (*leaves(mixture.arrays()), mixture.blocks.order)
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    def assign(self, X: Any, missing: str, proba: bool) -> Assigned:
        mixture = self.stored.mixture
        if are_spread(X):
            shares = X.posteriors(mixture)[0]
        else:
            shares = mixture.predict_proba(X, missing=missing)
        if not proba:
            return shares.argmax(axis=1), {}, {}
        columns = {f"proba_{k}": column for k, column in enumerate(shares.T)}
        return shares.argmax(axis=1), columns, {"proba": shares}

    def score(self, request: UseRequest) -> None:
        self.refuse_individuals(request)
        from vpem.fits.prepare import weighed

        data = self.load(request)
        X, mixture = data.X, self.stored.mixture
        if are_spread(X):
            scores, there = X.posteriors(mixture)[1], X.seen()
        else:
            scores = mixture.score_samples(X, missing=self.missing(request))
            there = rows_with_values(X, self.missing(request))
        aligned = data.report()
        request.leave_it_to_the_first()
        # As in a fit, rows without a value count for nothing.
        total, used = weighed(scores, there, data.source.sample_weight)
        report = {
            "n_samples": len(X),
            "n_without_values": len(X) - int(there.sum()),
            "sample_weight": request.rows.sample_weight,
            "n_parameters": mixture.n_parameters,
            "log_likelihood": total / used,
            "total_log_likelihood": total,
            "bic": mixture.bic(total, used),
            "aic": mixture.aic(total),
        }
        if request.output.json:
            print_json(report | aligned)
            return
        facts = (
            ("rows", report["n_samples"]),
            ("parameters", report["n_parameters"]),
            ("log-likelihood per sample", f"{report['log_likelihood']:.6f}"),
            ("log-likelihood, total", f"{total:.4f}"),
            ("BIC", f"{report['bic']:.4f}"),
            ("AIC", f"{report['aic']:.4f}"),
        )
        show(table(facts, "", ""))

    def contribution(self, request: UseRequest) -> None:
        from vpem.fits.contribution import contribution, spread_contribution

        data, names = self.load(request), self.stored.feature_names
        named, partition = request.rows.labels != "labels", data.source.partition
        if are_spread(data.X):
            if named:
                raise InputError(
                    "--labels are compared with the components of rows without each party, which "
                    "only the root of its hub knows; leave it out, or read all parties' files in "
                    "one process"
                )
            result = spread_contribution(data.X, self.stored.mixture, names)
        else:
            labelled = named or data.source.labels is not None
            labels = labels_of(request, data.source) if labelled else None
            parties, apart = None, request.parties.parties and request.parties.split != "rows"
            if apart and partition is not None:  # else they are those of the fit
                columns = match_features(self.stored, data.source.feature_names, ordered=False)
                place = {column: j for j, column in enumerate(columns or range(len(names)))}
                parties = {
                    name: [place[column] for column in features.tolist() if column in place]
                    for name, features in zip(partition.names, partition.features, strict=True)
                }
            result = contribution(
                self.stored, data.X, parties=parties, labels=labels, missing=self.missing(request)
            )
        facts = data.report()
        request.leave_it_to_the_first()
        out = request.output
        if out.output is not None:
            out.write(columns_of(result), "vpem-contributions")
        if out.json:
            print_json({**result.describe(), **facts})
        elif out.output is None:
            show(*shown(result))

    def sample(self, count: int, seed: int, output: ResultSettings) -> None:
        import numpy as np

        from vpem.files.datasets import Dataset, write_dataset

        stored = self.stored
        X, labels = stored.mixture.sample(count, np.random.default_rng(seed))
        kinds = getattr(stored.mixture, "kinds", None)

        if output.output is not None and ending_of(output.output) not in (".csv", ".parquet"):
            drawn = Dataset(
                X, stored.feature_names, labels=labels, source=str(output.output), kinds=kinds
            )
            write_dataset(output.output, drawn, output.force)
            return
        levels = {} if kinds is None else kinds.levels
        columns = {
            feature: np.array(levels[j])[X[:, j].astype(int)] if j in levels else X[:, j]
            for j, feature in enumerate(stored.feature_names)
        }
        name = "component"
        while name in columns:
            name += "_"
        output.write({**columns, name: labels}, "vpem-samples")

    def export(self, output: Path, force: bool, quote_formulas: bool) -> None:
        check_writable(output, force, "exported models")
        write = write_npz if ending_of(output) == ".npz" else write_json
        write(output, self.stored, force)

    def as_json(self) -> Report:
        stored = self.stored
        components = answer_of(stored).describe()
        return {"components": components, **model_as_json(stored), "history": stored.history}
