"""SAEM beside nlme, lme4 and pynlme: bias and coverage on simulated data, and data that R ships.

    python -m benchmarks.saem_peers simulate [--sets 100] [--models linear logistic ...]
    python -m benchmarks.saem_peers public
    python -m benchmarks.saem_peers chance [--sets 100]

R with nlme and lme4 (Debian: r-base-core, r-cran-nlme, r-cran-lme4, r-cran-mass) fits by `Rscript`,
pynlme is on PyPI; where one is not installed it is left out, and this says so. Public data need R.
`chance` counts p values below 0.05 of six individuals without effects, also by lmerTest.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import math
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr, stdtr

from vpem.saem.fit import fit_saem
from vpem.saem.individuals import Individuals, from_long
from vpem.saem.models.model import Doubles

from .saem_found import LIKELIHOOD, SCRIPT, Found, ours, read_estimates, shown
from .saem_simulated import SIMULATED, draw_simulated, simulate, simulated_lines

RESULTS = Path(__file__).parent / "results"


def _has_r() -> bool:
    if shutil.which("Rscript") is None:
        print("R is not installed (Rscript): nlme and lme4 are left out")
        return False
    return True


@dataclass(frozen=True)
class Public:
    """Data of R, and how vpem fits them; the curve, of (n, m) and (time, dose), is for pynlme."""

    model: str
    options: Mapping[str, Any]
    curve: Callable[..., Doubles] | None = None
    first: Sequence[float] = ()
    random: Sequence[int] = field(default=())


def _first_order(phi: Doubles, t: Doubles, dose: Doubles) -> Doubles:
    ka, cl, ke = np.exp(phi).T
    return np.asarray(dose * ka * ke / (cl * (ka - ke)) * (np.exp(-ke * t) - np.exp(-ka * t)))


PUBLIC = {
    "Orthodont": Public("linear", {"effects": ("intercept:girl", "time:girl")}),
    "Oxboys": Public("linear", {}),
    "sleepstudy": Public("linear", {}),
    "cbpp": Public("linear", {
        "slopes": ("p2", "p3", "p4"), "random": ("intercept",), "error": "bernoulli"}),
    "epil": Public("linear", {
        "slopes": ("v4", "treated", "lb", "la"), "random": ("intercept",), "error": "poisson"}),
    "grouseticks": Public("linear", {
        "slopes": ("y96", "y97", "h"), "random": ("intercept",), "error": "poisson"}),
    "Mmmec": Public("linear", {
        "slopes": ("uvb", "le"), "random": ("intercept",), "error": "poisson"}),
    "cake": Public("linear", {"random": ("intercept",)}),
    "Pixel": Public("linear", {"slopes": ("time", "day2"), "random": ("intercept", "time")}),
    "Orange": Public(
        "curve", {"curve": "logistic", "random": ("asymptote",)},
        lambda p, t, dose: p[:, 0] / (1 + np.exp((p[:, 1] - t) / p[:, 2])), (192, 728, 348), (0,)),
    "Loblolly": Public(
        "curve", {"curve": "asymptotic", "random": ("asymptote",)},
        lambda p, t, dose: p[:, 0] + (p[:, 1] - p[:, 0]) * np.exp(-np.exp(p[:, 2]) * t),
        (103, -8.5, -3.3), (0,)),
    "CO2": Public("curve", {
        "curve": "asymptotic", "random": ("asymptote",),
        "effects": ("asymptote:south", "asymptote:chilled")}),
    "Indometh": Public(
        "curve", {"curve": "biexponential", "random": ("a1", "rate1", "a2")},
        lambda p, t, dose: p[:, 0] * np.exp(-np.exp(p[:, 1]) * t)
        + p[:, 2] * np.exp(-np.exp(p[:, 3]) * t), (2.8, 0.8, 0.5, -1.3), (0, 1, 2)),
    "Theoph": Public(
        "one-compartment", {"parameters": ("ka", "cl", "ke"), "random": ("ka", "cl")},
        _first_order, (0.46, -3.2, -2.45), (0, 1)),
}  # fmt: skip
"""Data sets by R's names; cbpp to Mmmec are generalized linear, those around them linear."""


def read_rows(file: Path) -> Individuals:
    """Return rows that R wrote."""
    with file.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    columns = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]
               if name != "id"}  # fmt: skip
    time, value = columns.pop("time"), columns.pop("value")
    return from_long([row["id"] for row in rows], time, value, columns)


def by_pynlme(case: Public, data: Individuals, names: Sequence[str], seed: int) -> Found:
    """Return what pynlme's SAEM finds: means, variances and the residual sd."""
    pynlme: Any = importlib.import_module("pynlme")  # has no types

    dose = data.covariates.get("dose", np.zeros(data.n_rows))
    X = np.stack([data.times, dose], axis=-1)

    def curve(phi: Doubles, x: Doubles, v: object) -> Doubles:
        assert case.curve is not None
        return case.curve(np.atleast_2d(phi), x[:, 0], x[:, 1])

    beta, psi, stats, _ = pynlme.nlmefitsa(
        X, data.values, data.individual_of, None, curve, np.array(case.first, dtype=np.float64),
        REParamsSelect=[one + 1 for one in case.random], random_state=seed,
    )  # fmt: skip
    values = map(float, [*np.ravel(beta), *np.diag(psi), *np.ravel(stats.errorparam)])
    none = math.nan
    return {name: (value, none, none, none) for name, value in zip(names, values, strict=True)}


def public(names: Sequence[str] = tuple(PUBLIC), seed: int = 0) -> list[dict[str, Any]]:
    """Fit R's data by vpem, by R and where there is a curve by pynlme: a row each parameter."""
    rows: list[dict[str, Any]] = []
    has_pynlme = importlib.util.find_spec("pynlme") is not None
    if not has_pynlme:
        print("pynlme is not installed: it is left out")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["Rscript", SCRIPT, "public", folder], check=True)
        theirs = read_estimates(Path(folder) / "fits.csv", "data")
        for name in names:
            case = PUBLIC[name]
            data = read_rows(Path(folder) / f"{name}.csv")
            mine = ours(data, case.model, case.options, seed=seed)
            other: Found = {}
            if has_pynlme and case.curve is not None:
                other = by_pynlme(case, data, list(mine)[:-1], seed)
            for one, (value, _, _, error) in mine.items():
                unit = 1.0 if one == LIKELIHOOD else error
                both = [theirs.get(name, {}).get(one), other.get(one)]
                off = [None if two is None else (value - two[0]) / unit for two in both]
                rows.append({
                    "data": name, "parameter": one, "vpem": value, "error": error,
                    "R": None if both[0] is None else both[0][0], "from R": off[0],
                    "error in R": None if both[0] is None else both[0][3],
                    "pynlme": None if both[1] is None else both[1][0], "from pynlme": off[1],
                })  # fmt: skip
    return rows


def _public_lines(rows: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    yield "| data | parameter | vpem | error | R | error | off by errors | pynlme | off by errors |"
    yield "|---|---|---|---|---|---|---|---|---|"
    last = None
    for row in rows:
        yield (
            f"| {'' if row['data'] == last else row['data']} | {row['parameter']} "
            f"| {row['vpem']:.5g} | {shown(row['error'], '.2g')} | {shown(row['R'], '.5g')} "
            f"| {shown(row['error in R'], '.2g')} | {shown(row['from R'], '+.3f')} "
            f"| {shown(row['pynlme'], '.5g')} | {shown(row['from pynlme'], '+.3f')} |"
        )
        last = row["data"]


RANDOM = {"slope": ("intercept", "time"), "intercept": ("intercept",)}


def chance(n_sets: int, has_r: bool, seed: int = 0) -> list[dict[str, Any]]:
    """Count small p values of sets of six individuals without effects of time and group."""
    rng, lines, counts = np.random.default_rng(seed), [], {}
    each, times = np.repeat(np.arange(6), 5), np.tile(np.arange(5.0), 6)
    group = (each > 2) * 1.0
    for kind, random in RANDOM.items():
        for one in range(n_sets):
            slopes = rng.normal(0, 0.5, 6)[each] * times if kind == "slope" else 0.0
            values = rng.normal(size=6)[each] + slopes + rng.normal(0, 0.5, 30)
            rows = zip(each, times, values, group, strict=True)
            lines += [(kind, one, *row) for row in rows]
            data = from_long(each, times, values, {"group": group})
            options = {"effects": ("intercept:group",), "random": random}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fit = fit_saem(data, "linear", model_options=options)
            ratio = np.abs(fit.theta[1:3])
            tested, plain = ratio / fit.certain.test_errors[1:3], ratio / fit.standard_errors[1:3]
            found = {
                "vpem": 2 * stdtr(fit.certain.freedom[1:3], -tested),
                "ML, 6 df": 2 * stdtr(6, -plain), "normal": 2 * ndtr(-plain),
            }  # fmt: skip
            for how, values in found.items():
                for what, p in zip(("time", "group"), values, strict=True):
                    counts[kind, what, how] = counts.get((kind, what, how), 0) + int(p < 0.05)
    if has_r:
        with tempfile.TemporaryDirectory() as folder:
            rows_file, out = Path(folder) / "rows.csv", Path(folder) / "out.csv"
            with rows_file.open("w", encoding="utf-8", newline="") as stream:
                csv.writer(stream).writerows(
                    [("kind", "set", "id", "time", "value", "group"), *lines]
                )
            subprocess.run(["Rscript", SCRIPT, "chance", rows_file, out], check=True)
            for row in csv.DictReader(out.open(encoding="utf-8")):
                key = (row["kind"], row["what"], f"lmerTest, {row['how']}")
                counts[key] = counts.get(key, 0) + int(float(row["p"]) < 0.05)
    kinds = [(kind, what) for kind in RANDOM for what in ("time", "group")]
    return [
        {"varies": "intercept and slope" if kind == "slope" else kind, "effect": what}
        | {how: n for (a, b, how), n in counts.items() if (a, b) == (kind, what)}
        for kind, what in kinds
    ]


def main(words: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("simulate", "public", "chance"))
    parser.add_argument("--sets", type=int, default=100)
    parser.add_argument("--models", nargs="+", choices=tuple(SIMULATED), default=list(SIMULATED))
    parser.add_argument("--data", nargs="+", choices=tuple(PUBLIC), default=list(PUBLIC))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    RESULTS.mkdir(exist_ok=True)
    has_r = _has_r()
    file = RESULTS / f"saem-peers-{given.what}.json"
    if given.what == "public":
        if not has_r:
            return
        rows = public(given.data, given.seed)
        lines = _public_lines(rows)
    elif given.what == "chance":
        rows = chance(given.sets, has_r, given.seed)
        lines = [" | ".join(map(str, one)) for one in [list(rows[0]), *(r.values() for r in rows)]]
    else:
        rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        for name in given.models:  # others stay
            rows = [row for row in rows if row["model"] != name]
            rows += simulate(name, given.sets, has_r)
            file.write_text(json.dumps(rows), encoding="utf-8")
        rows.sort(key=lambda row: list(SIMULATED).index(row["model"]))
        draw_simulated(rows, file.with_suffix(".png"))
        lines = simulated_lines(rows)
    file.write_text(json.dumps(rows), encoding="utf-8")
    for line in lines:
        print(line)


if __name__ == "__main__":
    main()
