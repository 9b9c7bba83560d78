"""Simulated data sets that SAEM, nlme and lme4 fit: bias, coverage, how far apart they are."""

from __future__ import annotations

import math
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vpem.saem.individuals import Individuals, from_long
from vpem.saem.models.model import Doubles

from .saem_found import SCRIPT, Found, ours, read_estimates, shown


@dataclass(frozen=True)
class Simulated:
    """A model with the parameters that data are made with."""

    name: str
    options: Mapping[str, Any]
    truth: Mapping[str, float]
    times: Sequence[float]
    n: int
    draw: Callable[[np.random.Generator, Doubles, Doubles, Mapping[str, float]], Doubles]
    """Values (n, T), of covariate x (n, 1), times (1, T) and the truth."""
    dose: float = 0.0

    def individuals(self, seed: int) -> Individuals:
        """Return a data set."""
        rng = np.random.default_rng([seed, len(self.truth), self.n])
        t = np.array(self.times)
        x = np.repeat([0.0, 1.0], [self.n // 2, self.n - self.n // 2])
        y = self.draw(rng, x[:, None], t[None], self.truth)
        ids, rows = np.repeat(np.arange(self.n), len(t)), self.n * len(t)
        covariates = {"x": np.repeat(x, len(t))}
        if self.dose:
            covariates["dose"] = np.full(rows, self.dose)
        return from_long(ids, np.tile(t, self.n), y.ravel(), covariates)


def _normal(rng: np.random.Generator, n: int, variance: float) -> Doubles:
    return math.sqrt(variance) * rng.normal(size=(n, 1))


def _lines(rng: np.random.Generator, x: Doubles, t: Doubles, of: Mapping[str, float]) -> Doubles:
    cross = of["cov(intercept, slope)"]
    both = [[of["var(intercept)"], cross], [cross, of["var(slope)"]]]
    each = rng.multivariate_normal([of["intercept"], of["slope"]], both, size=len(x))
    mean = each[:, :1] + of["beta(intercept, x)"] * x + each[:, 1:] * t
    return np.asarray(mean + math.sqrt(of["residual variance"]) * rng.normal(size=mean.shape))


def _coins(rng: np.random.Generator, x: Doubles, t: Doubles, of: Mapping[str, float]) -> Doubles:
    eta = of["intercept"] + _normal(rng, len(x), of["var(intercept)"])
    eta = eta + of["beta(intercept, x)"] * x + of["slope"] * t
    return (rng.random(eta.shape) < 1 / (1 + np.exp(-eta))).astype(np.float64)


def _growth(rng: np.random.Generator, x: Doubles, t: Doubles, of: Mapping[str, float]) -> Doubles:
    top = of["asymptote"] + _normal(rng, len(x), of["var(asymptote)"])
    mean = top / (1 + np.exp((of["midpoint"] - t) / of["scale"]))
    return np.asarray(mean + of["residual sd"] * rng.normal(size=mean.shape))


def _each(rng: np.random.Generator, n: int, of: Mapping[str, float], names: str) -> list[Doubles]:
    """Parameters (n, 1) of individuals whose logarithms are normal, or all alike."""
    return [
        np.exp(of[f"log {one}"] + _normal(rng, n, of.get(f"var(log {one})", 0.0)))
        for one in names.split()
    ]


def _proportional(rng: np.random.Generator, f: Doubles, sd: float) -> Doubles:
    return np.asarray(f * (1 + sd * rng.normal(size=f.shape)))


def _one(rng: np.random.Generator, x: Doubles, t: Doubles, of: Mapping[str, float]) -> Doubles:
    ka, cl, v = _each(rng, len(x), of, "ka cl v")
    ke = cl / v
    f = DOSE_ONE * ka / (v * (ka - ke)) * (np.exp(-ke * t) - np.exp(-ka * t))
    return _proportional(rng, f, of["residual sd"])


def _two(rng: np.random.Generator, x: Doubles, t: Doubles, of: Mapping[str, float]) -> Doubles:
    cl, v1, q, v2 = _each(rng, len(x), of, "cl v1 q v2")
    out, over, back = cl / v1, q / v1, q / v2
    total = out + over + back
    root = np.sqrt(total**2 - 4 * out * back)
    fast, slow = (total + root) / 2, (total - root) / 2
    f = (fast - back) * np.exp(-fast * t) + (back - slow) * np.exp(-slow * t)
    return _proportional(rng, DOSE_TWO / v1 * f / root, of["residual sd"])


DOSE_ONE, DOSE_TWO = 4.0, 100.0
SIMULATED = {
    one.name: one
    for one in (
        Simulated(
            "linear", {"slopes": ("time",), "effects": ("intercept:x",)},
            {"intercept": 10.0, "slope": 2.0, "beta(intercept, x)": 1.0, "var(intercept)": 1.0,
             "cov(intercept, slope)": 0.1, "var(slope)": 0.25, "residual variance": 0.5},
            (0, 1, 2, 3, 4), 100, _lines,
        ),
        Simulated(
            "logistic",
            {"slopes": ("time",), "random": ("intercept",), "effects": ("intercept:x",),
             "error": "bernoulli"},
            {"intercept": -0.5, "slope": 0.5, "beta(intercept, x)": 0.8, "var(intercept)": 1.0},
            (-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2), 100, _coins,
        ),
        Simulated(
            "growth", {"curve": "logistic", "random": ("asymptote",)},
            {"asymptote": 200.0, "midpoint": 700.0, "scale": 350.0, "var(asymptote)": 900.0,
             "residual sd": 8.0},
            (100, 300, 500, 700, 900, 1100, 1300, 1500), 50, _growth,
        ),
        Simulated(
            "one-compartment", {"parameters": ("ka", "cl", "v"), "error": "proportional"},
            {"log ka": math.log(1.5), "log cl": math.log(0.04), "log v": math.log(0.5),
             "var(log ka)": 0.3, "var(log cl)": 0.06, "var(log v)": 0.03, "residual sd": 0.1},
            (0.25, 0.5, 1, 2, 3.5, 5, 7, 9, 12, 24), 60, _one, DOSE_ONE,
        ),
        Simulated(
            "two-compartment", {"error": "proportional", "random": ("cl", "v1")},
            {"log cl": 0.0, "log v1": math.log(5), "log q": math.log(2), "log v2": math.log(10),
             "var(log cl)": 0.09, "var(log v1)": 0.06, "residual sd": 0.1},
            (0.25, 0.5, 1, 2, 3, 4, 6, 8, 12, 24), 60, _two, DOSE_TWO,
        ),
    )
}  # fmt: skip
"""By name; values of the third to fifth are of curves in 60 or 50 individuals."""
MODEL = {"logistic": "linear", "growth": "curve"}
"""What vpem calls those that have other names here."""


def _by_r(model: str, sets: Sequence[Individuals]) -> dict[str, Found]:
    """Return what nlme or lme4 finds by the number of the set; of some it may find nothing."""
    with tempfile.TemporaryDirectory() as folder:
        rows, out = Path(folder) / "rows.csv", Path(folder) / "out.csv"
        with rows.open("w", encoding="utf-8") as file:
            file.write("set,id,time,value,x,dose\n")
            for number, data in enumerate(sets):
                dose = data.covariates.get("dose", np.zeros(data.n_rows))
                columns = (data.individual_of, data.times, data.values, data.covariates["x"], dose)
                for row in zip(*(one.tolist() for one in columns), strict=True):
                    file.write(",".join(map(repr, (number, *row))) + "\n")
        subprocess.run(["Rscript", SCRIPT, "simulate", model, rows, out], check=True)
        return read_estimates(out, "set")


def judged(fits: Sequence[Found | None], name: str, truth: float, scale: float) -> dict[str, Any]:
    """Return bias in units of ``scale``, its Monte Carlo error, and the coverage of intervals."""
    have = [one[name] for one in fits if one is not None and name in one]
    if not have:
        return {"sets": 0, "bias": None, "bias error": None, "coverage": None, "intervals": 0}
    off = np.array([one[0] - truth for one in have]) / scale
    ends = np.array([one[1:3] for one in have])
    told = np.isfinite(ends).all(axis=1)
    hit = (ends[told, 0] <= truth) & (truth <= ends[told, 1])
    return {
        "sets": len(have), "bias": float(off.mean()),
        "bias error": float(off.std(ddof=1) / math.sqrt(len(off))) if len(off) > 1 else None,
        "coverage": float(hit.mean()) if told.any() else None, "intervals": int(told.sum()),
    }  # fmt: skip


def simulate(name: str, n_sets: int, with_r: bool = True) -> list[dict[str, Any]]:
    """Fit simulated data sets of a model by vpem and its peers: a row for each parameter.

    Bias is in units of the sd of vpem's estimates over the sets; ``apart`` is the root mean square
    difference between vpem's and R's estimates of the same set, in these units, and ``width`` the
    median ratio of their intervals.
    """
    case = SIMULATED[name]
    sets = [case.individuals(seed) for seed in range(n_sets)]
    found = [
        ours(data, MODEL.get(name, name), case.options, seed=seed, n_importance=20)
        for seed, data in enumerate(sets)
    ]
    peer = _by_r(name, sets) if with_r else {}
    theirs = [peer.get(str(number)) for number in range(n_sets)]
    rows = []
    for parameter, truth in case.truth.items():
        scale = float(np.std([one[parameter][0] for one in found], ddof=1))
        errors = [one[parameter][3] for one in found]
        both = [
            (one[parameter], two[parameter])
            for one, two in zip(found, theirs, strict=True)
            if two is not None and parameter in two
        ]
        pairs = [one[0] - two[0] for one, two in both]
        wide = [(one[2] - one[1]) / (two[2] - two[1]) for one, two in both]
        told = [one for one in wide if math.isfinite(one)]
        rows.append({
            "model": name, "parameter": parameter, "truth": truth,
            "sd": scale, "error over sd": float(np.nanmean(errors)) / scale,
            "vpem": judged(found, parameter, truth, scale),
            "R": judged(theirs, parameter, truth, scale),
            "apart": float(np.sqrt(np.mean(np.square(pairs)))) / scale if pairs else None,
            "width": float(np.median(told)) if told else None,
            "estimates": [one[parameter] for one in found],
            "of R": [None if one is None else one.get(parameter) for one in theirs],
        })  # fmt: skip
    return rows


def simulated_lines(rows: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    yield (
        "| model | parameter | bias: vpem | R | coverage: vpem | R | error / sd | apart "
        "| width / R's |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    last = None
    for row in rows:
        mine, theirs = row["vpem"], row["R"]
        of = f"{row['model']} ({mine['sets']}, R {theirs['sets']})"
        yield (
            f"| {'' if of == last else of} | {row['parameter']} | {shown(mine['bias'])} "
            f"| {shown(theirs['bias'])} | {shown(mine['coverage'], '.2f')} "
            f"| {shown(theirs['coverage'], '.2f')} | {shown(row['error over sd'], '.2f')} "
            f"| {shown(row['apart'], '.3f')} | {shown(row['width'], '.2f')} |"
        )
        last = of


def draw_simulated(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Bias and coverage of each parameter, vpem's and R's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 0.24 * len(rows) + 1.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = np.arange(len(rows))
    for who, mark, colour in (("R", "s", "0.55"), ("vpem", "o", "#0072B2")):
        told = [(row[who]["bias"], row[who]["bias error"]) for row in rows]
        bias, error = np.array(told, dtype=np.float64).T
        shift = places + (0.15 if who == "R" else -0.15)
        named = "nlme, lme4" if who == "R" else who
        left.errorbar(bias, shift, xerr=error, fmt=mark, color=colour, markersize=4, label=named)
        right.plot(np.array([row[who]["coverage"] for row in rows], dtype=np.float64), shift, mark,
                   color=colour, markersize=4)  # fmt: skip
    left.axvspan(-0.1, 0.1, color="0.92", zorder=0)
    right.axvspan(0.90, 0.98, color="0.92", zorder=0)
    right.axvline(0.95, color="0.5", linewidth=0.8)
    left.set_yticks(places, [f"{row['model']}: {row['parameter']}" for row in rows], fontsize=7)
    left.invert_yaxis()
    left.set_xlabel("bias (sd of estimates), with its Monte Carlo error")
    right.set_xlabel("coverage of 95 % intervals")
    left.legend(fontsize=8, frameon=False)
    figure.savefig(file, dpi=110)
