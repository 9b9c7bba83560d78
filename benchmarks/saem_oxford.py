"""Oxford boys: estimates against maximum likelihood, and the bias of plain Langevin steps."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from vpem.saem.fit import fit_saem
from vpem.saem.models.linear import LinearModel
from vpem.saem.models.model import Doubles

from .saem_shared import BOYS, BOYS_LOG_LIKELIHOOD, Finding, boys, style

SEEDS = {"small": (1, 2), "full": (4, 10)}
"""Of the fits on several devices, and of each step."""

ITERATIONS = {"small": (24, 12), "full": (500, 100)}
STEPS = {"small": (1.0,), "full": (0.1, 0.25, 0.5, 1.0, 2.0)}


def langevin_covariances(covariances: Doubles, step: float) -> Doubles:
    """Covariances (n, q, q) of the law of Langevin steps of size h about Gaussian posteriors.

    With precision P and M the inverse of its diagonal, a step is
    ``z <- (I - h M P / 2) z + (h M)^(1/2) N``.
    """
    n, q, _ = covariances.shape
    precisions = np.linalg.inv(covariances)
    M = np.eye(q) / np.einsum("nii->ni", precisions)[:, None, :]
    A = np.eye(q) - step / 2 * M @ precisions
    # Its covariance C solves C = A C A^T + h M.
    both = np.einsum("nij,nkl->nikjl", A, A).reshape(n, q * q, q * q)
    found = np.linalg.solve(np.eye(q * q) - both, step * M.reshape(n, q * q, 1))
    out: Doubles = found.reshape(n, q, q)
    return out


def fixed_point(step: float) -> Doubles:
    """Parameters at which SAEM with Langevin steps of a constant size stands still, by EM.

    Conditional moments give the expected statistics: means of the latents, and covariances of
    Langevin steps, are turned into the 2 q points that have just these.
    """
    model, theta = LinearModel(boys()), BOYS.copy()
    q = len(model.latents)
    for _ in range(60):
        means, covariances = model.posterior(theta)
        roots = np.linalg.cholesky(langevin_covariances(covariances, step)) * np.sqrt(q)
        points = np.stack([means + sign * roots[:, :, j] for sign in (1.0, -1.0) for j in range(q)])
        moved = model.maximize(model.statistics(points).sum(axis=0), model.counts)
        change = float(np.max(np.abs(moved - theta) / (np.abs(theta) + 1e-3)))
        theta = moved
        if change < 1e-11:
            break
    return theta


def oxford(size: str) -> Finding:
    """Estimates on 1, 4 and 13 devices; residual variance of Langevin and MALA by step."""
    n_iter, burn_in = ITERATIONS[size]
    few, many = SEEDS[size]
    data = boys()
    common: dict[str, Any] = {
        "n_iter": n_iter,
        "burn_in": burn_in,
        "decay": 1.0,
        "tol": 0.0,
        "n_conditional": 10 if size == "small" else 40,
        "n_importance": 200 if size == "small" else 5000,
    }
    rows: list[dict[str, Any]] = []
    failed = []
    for sampler in ("exact", "metropolis"):
        for devices in (1, 4, 13):
            began = time.perf_counter()
            fits = [
                fit_saem(data, "linear", sampler=sampler, devices=devices, seed=seed, **common)
                for seed in range(few)
            ]
            took = (time.perf_counter() - began) / few
            thetas = np.array([fit.theta for fit in fits])
            off = np.abs(thetas / BOYS - 1)
            apart = [fit.log_likelihood.value - BOYS_LOG_LIKELIHOOD for fit in fits]
            rows.append(
                {
                    "name": f"{sampler}, {devices} device{'s' * (devices > 1)}",
                    "seeds": few,
                    **dict(zip(fits[0].model.parameters, thetas.mean(axis=0).tolist(),
                               strict=True)),
                    "worst off (%)": 100 * float(off.max()),
                    "log-likelihood, worst off": float(np.max(np.abs(apart))),
                    "kB": fits[0].ledger.bytes / 1e3,
                    "seconds": took,
                    "estimates": thetas.tolist(),
                }
            )  # fmt: skip
            if size == "full" and (off.max() > 0.01 or np.max(np.abs(apart)) > 0.1):
                failed.append(f"{rows[-1]['name']} is not within 1 % and 0.1")
    kinds: list[tuple[str, str, float, dict[str, Any]]] = []
    for h in STEPS[size]:
        kinds.append(("langevin, constant step", "langevin", h, {"step": h, "decay": 0.0}))
        kinds.append(("langevin, falling step", "langevin", h, {"step": h}))
        kinds.append(("mala", "mala", h, {"step": h}))
    scan = []
    for name, sampler, h, options in kinds:
        thetas = np.array(
            [
                fit_saem(data, "linear", sampler=sampler, sampler_options=options, seed=seed,
                         **(common | {"n_importance": 10})).theta
                for seed in range(many)
            ]
        )  # fmt: skip
        bias = thetas.mean(axis=0) / BOYS - 1
        error = thetas.std(axis=0, ddof=1) / np.sqrt(many) / np.abs(BOYS)
        scan.append(
            {
                "name": f"{name}, {h:g}", "kind": name, "step": h, "seeds": many,
                "bias of residual variance (%)": 100 * float(bias[-1]),
                "its error (%)": 100 * float(error[-1]),
                "expected (%)": (
                    100 * float(fixed_point(h)[-1] / BOYS[-1] - 1) if "constant" in name else ""
                ),
                "largest bias of others (%)": 100 * float(np.abs(bias[:-1]).max()),
                "in errors": float(np.abs(bias[-1]) / error[-1]),
                "estimates": thetas.tolist(),
            }
        )  # fmt: skip
    rows += scan
    plain = [one for one in scan if "constant" in one["kind"]]
    adjusted = [one for one in scan if one["kind"] == "mala"]
    falling = [one for one in scan if "falling" in one["kind"]]
    key = "bias of residual variance (%)"
    worst = max(one["worst off (%)"] for one in rows[:6])
    far = max(one["log-likelihood, worst off"] for one in rows[:6])
    says = (
        f"With exact and Metropolis draws on 1, 4 and 13 devices the worst of {few} seeds is "
        f"{worst:.2f} % from maximum likelihood and {far:.3f} from its log-likelihood; Langevin "
        f"with a constant step of {plain[0]['step']:g} to {plain[-1]['step']:g} makes the residual "
        f"variance {plain[0][key]:.2f} to {plain[-1][key]:.1f} % too large (expected: "
        f"{plain[0]['expected (%)']:.2f} to {plain[-1]['expected (%)']:.1f} %), with a falling "
        f"step {falling[0][key]:.2f} to {falling[-1][key]:.1f} %, MALA by at most "
        f"{max(abs(one[key]) for one in adjusted):.3f} %, "
        f"{max(one['in errors'] for one in adjusted):.1f} of its Monte Carlo errors."
    )

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        names = ("intercept", "slope", "var int.", "cov", "var slope", "residual")
        for number, row in enumerate(rows[:6]):
            off = 100 * (np.array(row["estimates"]) / BOYS - 1)
            place = np.arange(6) + 0.12 * (number - 2.5)
            left.errorbar(place, off.mean(axis=0), off.std(axis=0), markersize=5, capsize=2,
                          label=row["name"], **(style(number) | {"linestyle": "none"}))  # fmt: skip
        left.axhline(0, color="0", linewidth=0.8)
        left.axhspan(-1, 1, color="0.93", zorder=0)
        left.set_xticks(range(6), names, rotation=30, fontsize=8)
        left.set_ylabel("estimate less maximum likelihood (% of it)")
        left.set_title("mean and sd over seeds; band: 1 %", fontsize=9, loc="left")
        grid = np.linspace(0.01, max(STEPS[size]), 3 if size == "small" else 12)
        ideal = [100 * (fixed_point(h)[-1] / BOYS[-1] - 1) for h in grid]
        right.plot(grid, ideal, color="0.5", linewidth=1.2, label="expected, constant step")
        for number, kind in enumerate(dict.fromkeys(one["kind"] for one in scan)):
            mine = [one for one in scan if one["kind"] == kind]
            right.errorbar(
                [one["step"] for one in mine], [one[key] for one in mine],
                [2 * one["its error (%)"] for one in mine], capsize=2, markersize=5, label=kind,
                **style(number) | ({"linestyle": "none"} if number == 0 else {}),
            )  # fmt: skip
        right.axhline(0, color="0", linewidth=0.8)
        right.set_xlabel("step h (posterior variances; of MALA the first)")
        right.set_ylabel("bias of the residual variance (%)")
        right.set_title("mean over seeds, two Monte Carlo errors", fontsize=9, loc="left")
        for axes in (left, right):
            axes.legend(fontsize=7, frameon=False)

    return Finding(rows, says, draw, (10.0, 4.4), failed)
