"""Bi-factor loadings by SAEM, against the optimum of the dense normal likelihood and the truth."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from scipy.optimize import minimize

from vpem.saem.fit import fit_saem
from vpem.saem.individuals import from_matrix
from vpem.saem.models.model import Doubles

from .saem_shared import Finding, style

SEEDS = {"small": 1, "full": 4}
ITERATIONS = {"small": (20, 10), "full": (1500, 500)}
CHAINS = {"small": 1, "full": 6}
SHAPE = {"small": (200, 8, 2), "full": (500, 15, 3)}
"""Individuals, items, groups."""

STARTS = 5


def drawn_items(
    n: int, n_items: int, n_groups: int, rng: np.random.Generator
) -> tuple[Doubles, list[int], Doubles]:
    """Draw answers (n, items), groups and parameters of a bi-factor model."""
    groups = np.repeat(np.arange(n_groups), -(-n_items // n_groups))[:n_items]
    theta = np.concatenate([
        rng.normal(size=n_items), rng.uniform(0.5, 1.0, n_items), rng.uniform(0.4, 0.9, n_items),
        rng.uniform(0.3, 0.7, n_items),
    ])  # fmt: skip
    means, general, group, variances = theta.reshape(4, -1)
    z = rng.normal(size=(n, 1 + n_groups))
    fitted = means + general * z[:, :1] + group * z[:, 1 + groups]
    return fitted + rng.normal(size=fitted.shape) * np.sqrt(variances), groups.tolist(), theta


def dense_optimum(
    X: Doubles, groups: list[int], rng: np.random.Generator
) -> tuple[Doubles, Doubles]:
    """Maximise the normal likelihood of the items by L-BFGS: the best of some starts, and all ends.

    The parameters (4 d,) are SAEM's, variances by their logarithms; factors are turned so that
    their loadings add up to a positive number.
    """
    n, d = X.shape
    g = np.array(groups)
    each = np.arange(d)
    constant = n * d * np.log(2 * np.pi)

    def loss(free: Doubles) -> tuple[float, Doubles]:
        means, general, group, logs = free.reshape(4, -1)
        A = np.zeros((d, 2 + g.max()))
        A[:, 0], A[each, 1 + g] = general, group
        inverse = np.linalg.inv(A @ A.T + np.diag(np.exp(logs)))
        rest = X - means
        scatter = rest.T @ rest
        value = n * -np.linalg.slogdet(inverse)[1] + np.sum(inverse * scatter) + constant
        bend = n * inverse - inverse @ scatter @ inverse
        by_loading = 2 * bend @ A
        slope = np.stack([
            -2 * inverse @ rest.sum(axis=0), by_loading[:, 0], by_loading[each, 1 + g],
            np.diag(bend) * np.exp(logs),
        ])  # fmt: skip
        return 0.5 * float(value), 0.5 * slope.ravel()

    ends = []
    for _ in range(STARTS):
        first = np.concatenate([X.mean(axis=0), *rng.uniform(0.1, 1.0, (2, d)),
                                np.log(X.var(axis=0) / 2)])  # fmt: skip
        ends.append(minimize(loss, first, jac=True, method="L-BFGS-B",
                             options={"maxiter": 20_000, "maxfun": 50_000, "ftol": 1e-15,
                                      "gtol": 1e-7}))  # fmt: skip
    theta = min(ends, key=lambda end: float(end.fun)).x.copy().reshape(4, -1)
    theta[3] = np.exp(theta[3])
    theta[1] *= np.sign(theta[1].sum())
    for k in range(g.max() + 1):
        theta[2, g == k] *= np.sign(theta[2, g == k].sum())
    return theta.ravel(), np.array([-float(end.fun) for end in ends])


def bifactor(size: str) -> Finding:
    """Loadings of 1 and 4 devices against the optimum, in standard errors, and the truth."""
    n_iter, burn_in = ITERATIONS[size]
    rows: list[dict[str, Any]] = []
    kept = []
    for seed in range(SEEDS[size]):
        rng = np.random.default_rng(seed)
        X, groups, truth = drawn_items(*SHAPE[size], rng)
        top, ends = dense_optimum(X, groups, rng)
        for sampler in ("exact", "mala") if seed == 0 and size == "full" else ("exact",):
            began = time.perf_counter()
            fit = fit_saem(
                from_matrix(X), "bifactor", model_options={"groups": groups}, sampler=sampler,
                devices=4, n_iter=n_iter, burn_in=burn_in, decay=0.7, tol=0.0, seed=seed,
                n_chains=CHAINS[size], n_importance=1000,
                n_conditional=20 if size == "small" else 100,
            )  # fmt: skip
            took = time.perf_counter() - began
            d = X.shape[1]
            loadings = slice(d, 3 * d)
            off = fit.theta - top
            scaled = off / fit.standard_errors
            away = fit.theta - truth
            best = away - off
            rows.append({
                "name": f"seed {seed}, {sampler}",
                "loadings: largest off optimum": float(np.abs(off[loadings]).max()),
                "in standard errors": float(np.abs(scaled[loadings]).max()),
                "all: in standard errors": float(np.abs(scaled).max()),
                "below the optimum (nats)": float(ends.max() - fit.model.marginal(fit.theta).sum()),
                "importance, off (nats)": float(
                    fit.log_likelihood.value - fit.model.marginal(fit.theta).sum()),
                "its error": fit.log_likelihood.error,
                "loadings: rms off truth": float(np.sqrt(np.mean(away[loadings] ** 2))),
                "optimum's": float(np.sqrt(np.mean(best[loadings] ** 2))),
                "truths within 1.96 errors": float(
                    (np.abs(away) < 1.96 * fit.standard_errors)[loadings].mean()),
                "starts at the optimum": int((ends > ends.max() - 1e-3).sum()),
                "seconds": took,
                "estimates": fit.theta.tolist(), "optimum": top.tolist(), "truth": truth.tolist(),
                "errors": fit.standard_errors.tolist(),
            })  # fmt: skip
            if seed == 0 and sampler == "exact":
                kept = [fit.theta, top, truth, fit.standard_errors]
    exact = [row for row in rows if "exact" in row["name"]]
    worst = max(row["in standard errors"] for row in exact)
    says = (
        f"In {len(exact)} data sets of {SHAPE[size][0]} x {SHAPE[size][1]} loadings are within "
        f"{max(row['loadings: largest off optimum'] for row in exact):.4f}, {worst:.2f} standard "
        f"errors, of the best of {STARTS} optima of the dense likelihood (log-likelihood "
        f"{max(row['below the optimum (nats)'] for row in exact):.4f} below it at most); the "
        f"distance to the truth is the optimum's own: rms "
        f"{np.mean([row['loadings: rms off truth'] for row in exact]):.4f} and "
        f"{np.mean([row['optimum' + chr(39) + 's'] for row in exact]):.4f}."
    )
    failed = [f"{worst:.2f} standard errors off"] if size == "full" and worst > 0.35 else []

    def draw(figure: Any) -> None:
        theta, top, truth, errors = (one.reshape(4, -1) for one in kept)
        panels = figure.subplots(1, 2)
        for axes, against, word in zip(panels, (top, truth), ("optimum", "truth"), strict=True):
            for number, (k, what) in enumerate(((1, "general"), (2, "group"))):
                axes.errorbar(against[k], theta[k], errors[k], capsize=2, markersize=5,
                              elinewidth=0.8, label=f"{what} loadings",
                              **(style(number) | {"linestyle": "none"}))  # fmt: skip
            ends = [min(against[1:3].min(), theta[1:3].min()) - 0.05,
                    max(against[1:3].max(), theta[1:3].max()) + 0.05]  # fmt: skip
            axes.plot(ends, ends, color="0.4", linewidth=0.8, linestyle="--")
            axes.set_xlabel(f"{word}" + (" of the dense likelihood" if word == "optimum" else ""))
            axes.set_ylabel("SAEM, and standard errors")
            axes.set_aspect("equal")
            axes.legend(fontsize=8, frameon=False, loc="upper left")

    return Finding(rows, says, draw, (9.5, 4.8), failed)
