"""What codecs of statistics and gradients cost: parameters and bytes, with each way of feedback."""

from __future__ import annotations

from typing import Any

import numpy as np

from vpem.errors import NumericalError
from vpem.network.codecs import parse_codec
from vpem.network.holdings import evenly
from vpem.saem.individuals import from_matrix
from vpem.saem.models.bifactor import BifactorModel
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.model import SaemModel, Vector
from vpem.saem.runs import SaemRun
from vpem.saem.saem import run_saem
from vpem.saem.samplers import Exact, Langevin, Sampler
from vpem.saem.server import FEEDBACKS, SaemServer

from .saem_loadings import drawn_items
from .saem_shared import BOYS, Finding, boys, log_likelihood_top, style

__all__ = ["compression"]

SEEDS = {"small": (1, 1), "full": (3, 1)}
"""Of the boys, and of the bi-factor data, which take longer."""

ITERATIONS = {"small": (24, 8), "full": (300, 80)}
ITEMS = {"small": (120, 8, 2), "full": (300, 16, 4)}
"""Individuals, items and groups of the bi-factor data."""

MOST = {"small": 100, "full": 20_000}
"""Iterations of EM to the maximum."""

CODECS = {
    "small": ("qsgd:2bits", "topk:0.25"),
    "full": ("qsgd:2bits", "qsgd:4bits", "qsgd:8bits", "topk:0.01", "topk:0.05", "topk:0.1",
             "topk:0.25", "topk:0.5"),
}  # fmt: skip
GRADIENTS = ("qsgd:2bits", "qsgd:4bits", "qsgd:8bits")
STEP = 0.25
"""Of Langevin dynamics."""

ALL = {"codec": "topk:0.25", "gradient": "qsgd:4bits", "participation": 0.3}
"""Algorithm 5."""

COLLAPSED = 1e-6
"""A covariance whose smallest eigenvalue is this part of the true one's."""

WORST = 1e6
"""Errors are drawn and averaged as no larger than that."""


def wide_errors(model: SaemModel, theta: Vector) -> Vector:
    """Standard errors (p,) from second differences of the log-likelihood, which has a formula."""
    p = len(theta)
    steps = np.diag(1e-3 * np.maximum(np.abs(theta), 0.05))

    def at(point: Vector) -> float:
        each = model.marginal(point)
        if each is None:
            raise TypeError("the model has no formula")
        return float(each.sum())

    bend = np.empty((p, p))
    for i in range(p):
        for j in range(i + 1):
            a, b = steps[i], steps[j]
            cross = at(theta + a + b) - at(theta + a - b) - at(theta - a + b) + at(theta - a - b)
            bend[i, j] = bend[j, i] = cross / (4 * steps[i, i] * steps[j, j])
    errors: Vector = np.sqrt(np.diag(np.linalg.inv(-bend)))
    return errors


def run(
    model: SaemModel, devices: int, seed: int, size: str, codec: str | None = None,
    feedback: str = "none", sampler: Sampler | None = None, **options: Any,
) -> SaemRun | None:  # fmt: skip
    """Run SAEM; None if its numbers ran away."""
    n_iter, burn_in = ITERATIONS[size]
    held = evenly(model.n, devices)
    made = None if codec is None else parse_codec(codec)
    server = SaemServer(held.counts / model.n, made, feedback, model.pieces)
    options = {
        "n_iter": n_iter,
        "burn_in": burn_in,
        "n_chains": 2,
        "decay": 1.0,
        "tol": 0.0,
    } | options
    try:
        with np.errstate(all="ignore"):
            return run_saem(model, held, sampler or Exact(), server, seed=seed, **options)
    except (NumericalError, np.linalg.LinAlgError):
        return None


def collapse(found: SaemRun | None) -> int | None:
    """First iteration after which the boys' covariance is singular and stays so."""
    if found is None:
        return None
    least = [np.linalg.eigvalsh([[a[2], a[3]], [a[3], a[4]]])[0] for a in found.trace]
    true = np.linalg.eigvalsh([[BOYS[2], BOYS[3]], [BOYS[3], BOYS[4]]])[0]
    whole = np.flatnonzero(np.array(least) > COLLAPSED * true)
    last = int(whole[-1]) + 1
    return last if last < len(least) else None


def contenders(size: str) -> list[tuple[str, str, dict[str, Any]]]:
    """What is compared: what is compressed, how it is corrected, and options of `run`."""
    plain = Langevin(step=STEP)
    found: list[tuple[str, str, dict[str, Any]]] = [("exact", "exact", {})]
    for codec in CODECS[size]:
        for feedback in FEEDBACKS:
            found.append((codec, feedback, {"codec": codec, "feedback": feedback}))
    found.append(("gradient: exact", "langevin", {"sampler": plain}))
    for codec in GRADIENTS[: 1 if size == "small" else 3]:
        sampler = Langevin(step=STEP, codec=parse_codec(codec))
        found.append((f"gradient: {codec}", "langevin", {"sampler": sampler}))
    share = {"participation": ALL["participation"]}
    found.append(("exact, 30 %", "exact", share))
    every = Langevin(step=STEP, codec=parse_codec(ALL["gradient"]))
    for feedback in FEEDBACKS:
        found.append(("Algorithm 5", feedback, {
            "codec": ALL["codec"], "feedback": feedback, "sampler": every, **share}))  # fmt: skip
    return found


def compression(size: str) -> Finding:
    """Errors in standard errors, and bytes, of every codec and feedback; collapse of variances."""
    X, groups, truth = drawn_items(*ITEMS[size], np.random.default_rng(0))
    problems: list[tuple[str, SaemModel, Vector, int]] = [
        ("boys", LinearModel(boys()), BOYS, 4),
        ("bi-factor", BifactorModel(from_matrix(X), groups), truth, 8),
    ]
    rows: list[dict[str, Any]] = []
    for n_seeds, (case, model, theta, devices) in zip(SEEDS[size], problems, strict=True):
        top = log_likelihood_top(model, theta, most=MOST[size])
        none = np.zeros((1, len(model.latents)))
        top = model.canonical(top, none)[0]
        errors = wide_errors(model, top)
        whole = 0.0
        for what, feedback, options in contenders(size):
            off, kept, when = [], [], []
            for seed in range(n_seeds):
                found = run(model, devices, seed, size, **options)
                if found is None:
                    off.append(np.full(len(top), np.inf))
                    continue
                off.append((model.canonical(found.theta, none)[0] - top) / errors)
                kept.append(found.bytes[-1])
                if case == "boys":
                    when.append(collapse(found))
            apart = [min(float(np.sqrt(np.mean(one**2))), WORST) for one in off]
            sent = float(np.mean(kept)) if kept else float("nan")
            whole = whole or sent
            rows.append({
                "name": f"{case}: {what}, {feedback}" if what != feedback else f"{case}: {what}",
                "rms error (standard errors)": float(np.median(apart)), "worst": max(apart),
                "kB": sent / 1e3, "of exact": sent / whole,
                "ran away": n_seeds - len(kept),
                "collapsed": sum(one is not None for one in when) if case == "boys" else "",
                "at iteration": [one for one in when if one is not None],
                "case": [case], "what": [what], "feedback": [feedback], "errors": apart,
            })  # fmt: skip
    stuck = BOYS.copy()
    stuck[2:5] = [1e-10, 0.0, 1e-10]
    n_iter = {"small": 20, "full": 1000}[size]
    after = run(problems[0][1], 1, 0, size, start=stuck, n_iter=n_iter, burn_in=n_iter)
    escaped = float(after.theta[2]) if after is not None else float("nan")
    rows.append({"name": f"boys: var(intercept) after {n_iter} exact iterations from 1e-10",
                 "rms error (standard errors)": escaped})  # fmt: skip
    says = sentence(rows, escaped, n_iter)

    def draw(figure: Any) -> None:
        panels = figure.subplots(2, 1, sharex=True)
        cases = zip(SEEDS[size], ("boys", "bi-factor"), strict=True)
        for axes, (n_seeds, case) in zip(panels, cases, strict=True):
            mine = [row for row in rows if row.get("case") == [case]]
            places = list(dict.fromkeys(row["what"][0] for row in mine))
            ways = list(dict.fromkeys(row["feedback"][0] for row in mine))
            for number, way in enumerate(ways):
                chosen = [row for row in mine if row["feedback"][0] == way]
                x = [places.index(row["what"][0]) + 0.13 * (number - 2) for row in chosen]
                y = [row["rms error (standard errors)"] for row in chosen]
                up = [row["worst"] - row["rms error (standard errors)"] for row in chosen]
                down = [row["rms error (standard errors)"] - min(row["errors"]) for row in chosen]
                label = {"exact": "statistics sent exactly", "langevin": "gradient only"}.get(
                    way, f"feedback {way}")  # fmt: skip
                axes.errorbar(x, y, [down, up], capsize=2, markersize=6, elinewidth=0.8,
                              label=label, **(style(number) | {"linestyle": "none"}))  # fmt: skip
            base = mine[0]["rms error (standard errors)"]
            axes.axhline(base, color="0.5", linewidth=0.8, linestyle="--")
            axes.set_yscale("log")
            axes.set_ylim(1e-3, 3 * WORST)
            axes.set_ylabel("rms error (standard errors)")
            axes.set_title(
                f"{case}: median and range of {n_seeds} seed{'s' * (n_seeds > 1)}; {WORST:.0e}: "
                "that or more, or not finite; dashed: exact", fontsize=9, loc="left",
            )  # fmt: skip
            for place in np.arange(len(places) - 1) + 0.5:
                axes.axvline(place, color="0.9", linewidth=0.6)
        share = {
            row["what"][0]: row["of exact"]
            for row in rows
            if row.get("case") == ["bi-factor"] and row["kB"] == row["kB"]
        }
        words = [
            place.replace(": ", "\n")
            + (f"\n({100 * share[place]:.0f} %)" if place in share else "")
            for place in places
        ]
        panels[1].set_xticks(range(len(places)), words, fontsize=7.5)
        panels[1].set_xlabel(
            "what is compressed (bytes of the bi-factor run with a memory, of exact)"
        )
        figure.legend(*panels[0].get_legend_handles_labels(), fontsize=8, ncols=6, frameon=False,
                      loc="outside lower center")  # fmt: skip

    return Finding(rows, says, draw, (11.5, 7.0), [])


def sentence(rows: list[dict[str, Any]], escaped: float, n_iter: int) -> str:
    """Say what feedback does, from the numbers."""
    key = "rms error (standard errors)"

    def chosen(case: str, feedback: str, start: str) -> list[dict[str, Any]]:
        return [
            row for row in rows
            if row.get("case") == [case] and row["feedback"] == [feedback]
            and row["what"][0].startswith(start)
        ]  # fmt: skip

    parts = []
    for case in ("boys", "bi-factor"):
        exact = chosen(case, "exact", "exact")[0][key]
        words = []
        for feedback in FEEDBACKS:
            both = []
            for start in ("qsgd", "topk"):
                found = [row[key] for row in chosen(case, feedback, start)]
                both.append(f"{min(found):.2g} to {max(found):.2g}")
            words.append(f"{feedback} {both[0]} and {both[1]}")
        parts.append(f"{case} (exact {exact:.2g}): " + ", ".join(words))
    fallen = [row for row in rows if row.get("collapsed")]
    gradients = [
        f"{row['what'][0].removeprefix('gradient: ')} {row[key]:.2g}"
        for row in chosen("boys", "langevin", "gradient")
    ]
    fifth = [f"{one} {chosen('boys', one, 'Algorithm 5')[0][key]:.2g}" for one in FEEDBACKS]
    times = [when for row in fallen for when in row["at iteration"]]
    return (
        "Rms errors in standard errors, of bits and of top-k, for each feedback: "
        + "; ".join(parts)
        + f". Variances collapsed for good in {len(times)} runs of the boys"
        + (f", at iterations {min(times)} to {max(times)} ("
           + ", ".join(row["name"].removeprefix("boys: ") for row in fallen) + ")"
           if fallen else "")
        + f"; {n_iter} iterations of exact statistics from a variance of 1e-10 end at {escaped:.1e}"
        + f". Quantized gradients, boys: {', '.join(gradients)}. Algorithm 5 with "
        + f"{ALL['codec']} and {100 * ALL['participation']:.0f} % of devices, boys: "
        + f"{', '.join(fifth)}."
    )  # fmt: skip
