"""What commands do with mixtures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpem.errors import Setting

from .of_rows import RowFile
from .output import print_json, show
from .requests import Request, ResultSettings
from .tables import table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vpem.checks import Floats
    from vpem.files.models import Model
    from vpem.network.schema import Report

    from .loading import Loaded
    from .of_rows import Assigned


class MixtureFile(RowFile):
    """What `vpem fit` and `vpem fedem` have written."""

    holds = "a mixture"
    needs_values = False
    goes_without = "integrated out"
    advice = ("integrate them out with ", Setting("missing", "marginalize"))

    @cached_property
    def stored(self) -> Model:
        """The model."""
        from vpem.files.models import read_model

        return read_model(self.path)

    @property
    def n_labels(self) -> int:
        """Components."""
        return int(self.stored.mixture.n_components)

    def load(self, request: Request) -> Loaded:
        """Read data; parties say which features of a hub they bring together."""
        from vpem.errors import shorten
        from vpem.fits.spread_use import SpreadRows

        found = super().load(request)
        if isinstance(found.X, SpreadRows):
            names, parties = self.stored.feature_names, found.X.names
            for party, root, features in found.X.moves(self.stored.mixture.blocks):
                listed = shorten(repr(names[feature]) for feature in features)
                said = f"{parties[party]} sends {parties[root]} features of their hub: {listed}"
                request.screen.say(said)
        return found

    def marginal(self, columns: Sequence[int]) -> None:
        """Go on with the marginal of these features."""
        stored = self.stored
        names = tuple(stored.feature_names[column] for column in columns)
        self.stored = replace(stored, mixture=stored.mixture.marginal(columns), feature_names=names)

    def labels(self, X: Floats, missing: str) -> NDArray[np.intp]:
        """Most responsible component of each row."""
        labels: NDArray[np.intp] = self.stored.mixture.predict(X, missing=missing)
        return labels

    @property
    def fingerprint(self) -> str:
        """What two files of the same parameters have in common."""
        import hashlib

        from vpem.terms.statistics import leaves

        mixture = self.stored.mixture
        parts = (*leaves(mixture.arrays()), mixture.blocks.order)
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    def assign(self, X: Any, missing: str, proba: bool) -> Assigned:
        """Most responsible component of each row, and responsibilities if they are wanted."""
        from vpem.fits.spread_use import SpreadRows

        mixture = self.stored.mixture
        if isinstance(X, SpreadRows):
            shares = X.posteriors(mixture)[0]
        else:
            shares = mixture.predict_proba(X, missing=missing)
        if not proba:
            return shares.argmax(axis=1), {}, {}
        columns = {f"proba_{k}": column for k, column in enumerate(shares.T)}
        return shares.argmax(axis=1), columns, {"proba": shares}

    def score(self, request: Request) -> None:
        """Print log-likelihood, BIC and AIC of rows."""
        self.refuse_individuals(request)
        from vpem.fits.prepare import weighed
        from vpem.fits.spread_use import SpreadRows
        from vpem.terms.rows import rows_with_values

        data = self.load(request)
        X, mixture = data.X, self.stored.mixture
        if isinstance(X, SpreadRows):
            scores, there = X.posteriors(mixture)[1], X.seen()
        else:
            scores = mixture.score_samples(X, missing=self.missing(request))
            there = rows_with_values(X, self.missing(request))
        told = self.told(data)
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
            print_json(report | told)
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

    def contribution(self, request: Request) -> None:
        """Print, or write, what is lost without each party, and which features separate."""
        from vpem.fits.spread_use import SpreadRows, spread_contribution

        from .contributions import columns_of, held_by, labels_if_any, shown

        data = self.load(request)
        if isinstance(data.X, SpreadRows):
            labels_if_any(request, data)
            found = spread_contribution(data.X, self.stored.mixture, self.stored.feature_names)
        else:
            from vpem.fits.contribution import contribution

            found = contribution(
                self.stored, data.X, parties=held_by(self.stored, request, data),
                labels=labels_if_any(request, data), missing=self.missing(request),
            )  # fmt: skip
        told = self.told(data)
        request.leave_it_to_the_first()
        out = request.output
        if out.output is not None:
            out.write(columns_of(found), "vpem-contributions")
        if out.json:
            print_json({**found.describe(), **told})
        elif out.output is None:
            show(*shown(found))

    def sample(self, count: int, seed: int, output: ResultSettings) -> None:
        """Draw rows, each labelled with its component."""
        import numpy as np

        from vpem.files.datasets import Dataset, write_dataset
        from vpem.files.temporaries import ending_of

        found = self.stored
        X, labels = found.mixture.sample(count, np.random.default_rng(seed))
        kinds = getattr(found.mixture, "kinds", None)

        def called(j: int) -> Any:
            levels = {} if kinds is None else kinds.levels
            return np.array(levels[j])[X[:, j].astype(int)] if j in levels else X[:, j]

        if output.output is not None and ending_of(output.output) not in (".csv", ".parquet"):
            drawn = Dataset(
                X, found.feature_names, labels=labels, source=str(output.output), kinds=kinds
            )
            write_dataset(output.output, drawn, output.force)
            return
        columns = dict(zip(found.feature_names, map(called, range(X.shape[1])), strict=True))
        name = "component"
        while name in columns:
            name += "_"
        output.write({**columns, name: labels}, "vpem-samples")

    def export(self, output: Path, force: bool, quote_formulas: bool) -> None:
        """Write the assembled mixture as a NumPy archive, or all as JSON."""
        from vpem.files.hdf5 import check_writable
        from vpem.files.models import write_json, write_npz
        from vpem.files.temporaries import ending_of

        check_writable(output, force, "exported models")
        write = write_npz if ending_of(output) == ".npz" else write_json
        write(output, self.stored, force)

    def as_json(self) -> Report:
        """Return components, the assembled mixture, hubs, and what was reported."""
        from vpem.files.models import model_as_json
        from vpem.fits.answer import answer_of

        found = self.stored
        components = answer_of(found).describe()
        return {"components": components, **model_as_json(found), "history": found.history}
