"""What commands do with mixtures."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .kinds import Request, ResultSettings, reported
from .of_rows import MOST_ROWS, RowFile
from .output import number, plural, print_json, show, size, table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.table import Table

    from vpem.files.models import Model

    from .of_rows import Assigned

__all__ = ["MixtureFile"]

MOST_POINTS = 8
"""Of a curve that is printed."""


class MixtureFile(RowFile):
    """What `vpem fit` and `vpem fedem` have written."""

    holds = "a mixture"
    noun = "component"
    needs_values = False

    @cached_property
    def stored(self) -> Model:
        """The model."""
        from vpem.files.models import read_model

        return read_model(self.path)

    @property
    def n_labels(self) -> int:
        """Components."""
        return self.stored.mixture.n_components

    def labels(self, X: NDArray[Any]) -> NDArray[np.intp]:
        """Most responsible component of each row."""
        return self.stored.mixture.predict(X)

    def assign(self, X: NDArray[Any], missing: str, proba: bool) -> Assigned:
        """Most responsible component of each row, and responsibilities if they are wanted."""
        shares = self.stored.mixture.predict_proba(X, missing=missing)
        if not proba:
            return shares.argmax(axis=1), {}, {}
        columns = {f"proba_{k}": column for k, column in enumerate(shares.T)}
        return shares.argmax(axis=1), columns, {"proba": shares}

    def score(self, request: Request) -> None:
        """Print log-likelihood, BIC and AIC of rows."""
        import numpy as np

        self.refuse_individuals(request)
        X = self.load(request)[1]
        mixture = self.stored.mixture
        scores = mixture.score_samples(X, missing=request.rows.missing)
        total = float(scores.sum())
        # As in a fit, rows without a value count for nothing.
        complete = request.rows.missing == "refuse"
        used = len(X) if complete else max(int((~np.isnan(X)).any(axis=1).sum()), 1)
        report = {
            "n_samples": len(X),
            "n_without_values": len(X) - used,
            "n_parameters": mixture.n_parameters,
            "log_likelihood": total / used,
            "total_log_likelihood": total,
            "bic": mixture.bic(total, used),
            "aic": mixture.aic(total),
        }
        if request.output.json:
            print_json(report)
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

    def sample(self, count: int, seed: int, output: ResultSettings) -> None:
        """Draw rows, each labelled with its component."""
        import numpy as np

        from vpem.files.datasets import Dataset, write_dataset
        from vpem.files.endings import ending_of

        found = self.stored
        X, labels = found.mixture.sample(count, np.random.default_rng(seed))
        if output.output is not None and ending_of(output.output) != ".csv":
            drawn = Dataset(X, found.feature_names, labels=labels, source=str(output.output))
            write_dataset(output.output, drawn, output.force)
            return
        columns = dict(zip(found.feature_names, X.T, strict=True))
        name = "component"
        while name in columns:
            name += "_"
        output.write({**columns, name: labels}, "vpem-samples")

    def export(self, output: Path, force: bool, quote_formulas: bool) -> None:
        """Write the assembled mixture as a NumPy archive, or all as JSON."""
        from vpem.files.endings import ending_of
        from vpem.files.hdf5 import check_writable
        from vpem.files.models import write_json, write_npz

        check_writable(output, force, "exported models")
        write = write_npz if ending_of(output) == ".npz" else write_json
        write(output, self.stored, force)

    def show(self, as_json: bool) -> None:
        """Print hubs, mixing weights, means and history."""
        from vpem.files.models import assembled, model_as_json

        found = self.stored
        if as_json:
            print_json({**model_as_json(found), "history": found.history})
            return
        mixture, one = found.mixture, assembled(found)
        first = [("mixing weight", *(f"{weight:.4f}" for weight in one["weights"]))]
        if len(mixture.weights) > 1:
            spread = mixture.weights.max(axis=0) - mixture.weights.min(axis=0)
            first.append(("  spread over roots", *(f"{value:.2g}" for value in spread)))
        show(
            table(self._facts(), "", ""),
            *_kinds(found.report),
            *_curve(found),
            *self._hubs(),
            *self.features(first, one["means"], "Mixing weights and means"),
        )

    def _facts(self) -> list[tuple[str, object]]:
        """Return what was fitted, to what, how and how well."""
        from .parties import joined_by

        found = self.stored
        mixture, report = found.mixture, found.report
        n_iter = reported(report, "n_iter", int)
        n_iter = len(found.history) if n_iter is None else n_iter
        end = "" if reported(report, "converged", bool) else ", not converged"
        seed = reported(found.options, "seed", int)
        joined = joined_by(report)
        likelihood = number(reported(report, "log_likelihood", float), 10)
        return [
            ("mixture", f"{plural(mixture.n_components, 'component')}, "
                        f"{plural(mixture.n_features, 'feature')}, "
                        f"{mixture.covariance_type} covariance in "
                        f"{plural(mixture.blocks.n_blocks, 'hub')}, "
                        f"{plural(mixture.n_parameters, 'parameter')}"),
            ("fitted to", f"{_counted(report, 'n_samples', 'row')} of "
                          f"{reported(report, 'data', str) or '?'}"),
            *([] if joined is None else [("parties", joined)]),
            ("network", _network(report)),
            ("log-likelihood", f"{likelihood} per sample after {plural(n_iter, 'iteration')}{end}"),
            ("communication", self.sent()),
            ("seed", "?" if seed is None else seed),
            ("versions", self.versions()),
        ]  # fmt: skip

    def _hubs(self) -> list[Table | str]:
        """Return the table of hubs; none where workers hold rows."""
        from vpem.errors import shorten

        names, blocks = self.holders(), self.stored.mixture.blocks
        if reported(self.stored.report, "split", str) == "rows":
            return []
        shown = min(blocks.n_blocks, MOST_ROWS)
        hubs = []
        for b in range(shown):
            members = ", ".join(_name(names, agent) for agent in blocks.agents[b])
            columns = shorten((self.stored.feature_names[j] for j in blocks.features[b]), 6)
            hubs.append((b, _name(names, blocks.roots[b]), members, columns))
        heads = ("hub", "root", "agents", "features")
        made: list[Table | str] = [table(hubs, *heads, title="Hubs", right=("hub",))]
        if blocks.n_blocks > shown:
            made.append(f"... and {plural(blocks.n_blocks - shown, 'more hub')}\n")
        return made


def _counted(report: dict[str, Any], name: str, noun: str) -> str:
    count = reported(report, name, int)
    return f"? {noun}s" if count is None else plural(count, noun)


def _network(report: dict[str, Any]) -> str:
    """Say in a line who took part, and how they summed."""
    over_rows = reported(report, "split", str) == "rows"
    parts = [
        reported(report, "topology", str) or "?",
        _counted(report, "n_workers", "worker") if over_rows else _counted(report, "hops", "hop"),
    ]
    # Without rounds the sum was exact.
    exact = "rounds" in report and report["rounds"] is None
    corrections = reported(report, "participation", float)
    if corrections is None or not exact:
        parts.append("exact sum" if exact else _counted(report, "rounds", "round"))
    codec = reported(report, "compress", str)
    if codec is not None:
        parts.append(f"compressed by {codec}")
    if corrections is not None and corrections < 1:
        parts.append(f"participation {corrections:g}")
    return ", ".join(parts)


def _kinds(report: dict[str, Any]) -> list[Table | str]:
    """Return the table of what was sent, by kind, where the file has one."""
    try:
        rows = [
            (kind, f"{counted['messages']:,}", size(counted["bytes"]), f"{counted['rounds']:,}")
            for kind, counted in report["communication"]["by_kind"].items()
            if counted["messages"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []
    heads = ("kind", "messages", "payload", "rounds")
    return [table(rows, *heads, title="Communication", right=heads[1:])] if rows else []


def _curve(found: Model) -> list[Table | str]:
    """Return the table of log-likelihood against bytes, where the file has both."""
    import numpy as np

    try:
        sent = [int(value) for value in found.report["communication"]["bytes_by_iteration"]]
        # Of a silent root it is nan.
        heard = np.isfinite(found.history)
        totals = np.where(heard, found.history, 0.0).sum(axis=1)
        per_sample = totals / heard.sum(axis=1).clip(1) / int(found.report["n_samples"])
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return []
    if not 0 < len(sent) == len(per_sample) or not np.isfinite(per_sample).all():
        return []
    shown = np.unique(np.linspace(0, len(sent) - 1, MOST_POINTS).round().astype(int))
    rows = [(at + 1, number(float(per_sample[at]), 8), size(sent[at])) for at in shown]
    # FedEM records the start too, and not always every iteration.
    entry = "record" if "participation" in found.report else "iteration"
    heads = (entry, "log-likelihood per sample", "sent by then")
    return [table(rows, *heads, title="Log-likelihood against bytes", right=heads)]


def _name(names: list[str], agent: int) -> str:
    if agent < len(names):
        return names[agent]
    return "server" if names else str(agent)
