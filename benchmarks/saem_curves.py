"""Curves after one oral dose: theophylline against nlme and quadrature, warfarin against truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from vpem.saem.fit import fit_saem
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import Individuals, from_long
from vpem.saem.models.mixed import OneCompartmentModel
from vpem.saem.models.model import Doubles, SaemModel
from vpem.saem.structures.formulas import Compartments

from .saem_shared import Finding, style
from .saem_shared import theophylline as theophylline_data

# R 4.2.2, nlme 3.1-162:
# g <- nlme(conc ~ SSfol(Dose, Time, lKe, lKa, lCl), Theoph, fixed = lKe + lKa + lCl ~ 1,
#           random = pdDiag(lKa + lCl ~ 1), start = c(-2.5, 0.5, -3), method = "ML")
# summary(g, adjustSigma = FALSE)$tTable; VarCorr(g); logLik(g)
# (with adjustSigma = TRUE, the default, standard errors are 1.2 % larger)
NLME = np.array([0.4657295, -3.2272222, -2.4547026, 0.41419912, 0.02786496, 0.7092536])
NLME_ERRORS = np.array([0.19629571, 0.05932428, 0.05189043, np.nan, np.nan, np.nan])
NLME_LOG_LIKELIHOOD = -177.02148
# The same with pdDiag(lKe + lKa + lCl ~ 1): sd of lKe 3.1e-05, log-likelihood -177.02345.

PARAMETERS = ("log ka", "log cl", "log ke", "var(log ka)", "var(log cl)", "residual sd")

SEEDS = {"small": 2, "full": 5}
ITERATIONS = {"small": (40, 20), "full": (600, 200)}
NODES = {"small": 3, "full": 9}


def quadrature(model: SaemModel, theta: Doubles, n_nodes: int) -> Doubles:
    """Log-likelihood of each individual (n,), by adaptive Gauss-Hermite quadrature.

    Nodes are about each individual's mode, in units of the curvature there.
    """
    q = len(model.latents)
    z = np.tile(model.population(theta)[0], (model.n, 1))
    eye = np.eye(q)

    def curvature(at: Doubles, gap: float = 1e-4) -> Doubles:
        both = np.concatenate([at + gap * eye[:, None], at - gap * eye[:, None]])
        slopes = model.gradient(both, theta)
        found = -(slopes[:q] - slopes[q:]).transpose(1, 0, 2) / (2 * gap)
        return (found + found.transpose(0, 2, 1)) / 2

    for _ in range(60):
        bend = curvature(z)
        values, vectors = np.linalg.eigh(bend)
        values = np.maximum(np.abs(values), 1e-3)
        slope = model.gradient(z[None], theta)[0]
        move = np.einsum("nij,nj,nkj,nk->ni", vectors, 1 / values, vectors, slope)
        shares = 0.5 ** np.arange(12)
        tried = z + shares[:, None, None] * move
        best = model.log_complete(tried, theta).argmax(axis=0)
        move = tried[best, np.arange(model.n)] - z
        z = z + move
        if np.abs(move).max() < 1e-9:
            break
    roots = np.linalg.cholesky(np.linalg.inv(curvature(z)))
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*[nodes] * q, indexing="ij")], axis=-1)
    logs = np.log(np.stack(np.meshgrid(*[weights] * q, indexing="ij"))).sum(axis=0).ravel()
    points = z + np.einsum("nij,cj->cni", roots, grid)
    log_det = np.log(np.einsum("nii->ni", roots)).sum(axis=1)
    each = model.log_complete(points, theta) + (logs + 0.5 * (grid**2).sum(axis=1))[:, None]
    top = each.max(axis=0)
    found: Doubles = np.log(np.exp(each - top).sum(axis=0)) + top + log_det
    return found


def maximum(model: SaemModel, theta: Doubles, n_nodes: int) -> tuple[Doubles, Doubles, float]:
    """Maximise that likelihood: parameters, standard errors, log-likelihood."""
    positive = np.array([not name.startswith("log ") for name in model.parameters])

    def there(free: Doubles) -> Doubles:
        return np.where(positive, np.exp(np.where(positive, free, 0.0)), free)

    def loss(free: Doubles) -> float:
        return -float(quadrature(model, there(free), n_nodes).sum())

    start = np.where(positive, np.log(np.where(positive, theta, 1.0)), theta)
    end = minimize(loss, start, method="BFGS", options={"gtol": 1e-4})
    top = there(end.x)
    steps = np.diag(1e-2 * np.maximum(np.abs(top), 0.02))
    p = len(top)

    def at(theta: Doubles) -> float:
        return float(quadrature(model, theta, n_nodes).sum())

    bend = np.empty((p, p))
    for i in range(p):
        for j in range(i + 1):
            a, b = steps[i], steps[j]
            cross = at(top + a + b) - at(top + a - b) - at(top - a + b) + at(top - a - b)
            bend[i, j] = bend[j, i] = cross / (4 * steps[i, i] * steps[j, j])
    return top, np.sqrt(np.diag(np.linalg.inv(-bend))), -float(end.fun)


def theophylline(size: str) -> Finding:
    """Estimates: nlme's linearised fit, quadrature's optimum, SAEM."""
    n_iter, burn_in = ITERATIONS[size]
    n_seeds, nodes = SEEDS[size], NODES[size]
    data = theophylline_data()

    model = OneCompartmentModel(data, random=("ka", "cl"))

    def row(name: str, theta: Doubles, errors: Doubles, **more: Any) -> dict[str, Any]:
        shown: dict[str, Any] = {"name": name}
        for parameter, value, error in zip(PARAMETERS, theta, errors, strict=True):
            shown[parameter] = f"{value:.4f} ({error:.4f})" if error == error else f"{value:.4f}"
        return shown | more | {"estimates": theta.tolist(), "errors": errors.tolist()}

    exact_at_nlme = float(quadrature(model, NLME, nodes).sum())
    finer = float(quadrature(model, NLME, nodes + 4).sum())
    top, top_errors, top_value = maximum(model, NLME, nodes)
    key = "exact"
    rows = [
        row("nlme, linearised", NLME, NLME_ERRORS, **{
            "own": NLME_LOG_LIKELIHOOD, "error": "", key: exact_at_nlme}),
        row("quadrature's maximum", top, top_errors, **{
            "own": top_value, "error": "", key: top_value}),
    ]  # fmt: skip
    fits = [
        fit_saem(
            data, "one-compartment", devices=3, seed=seed, n_iter=n_iter, burn_in=burn_in,
            model_options={"random": ("ka", "cl")}, decay=1.0, tol=0.0, n_importance=2000,
        )
        for seed in range(n_seeds)
    ]  # fmt: skip
    thetas = np.array([fit.theta for fit in fits])
    theta = thetas.mean(axis=0)
    errors = np.mean([fit.standard_errors for fit in fits], axis=0)
    rows.append(row("SAEM", theta, errors, **{
        "own": float(np.mean([fit.log_likelihood.value for fit in fits])),
        "error": float(np.mean([fit.log_likelihood.error for fit in fits])),
        key: float(quadrature(model, theta, nodes).sum()),
        "each seed": thetas.tolist()}))  # fmt: skip
    apart = np.abs(theta - top) / top_errors
    from_nlme = np.abs(theta - NLME) / top_errors
    says = (
        f"SAEM is {apart.max():.2f} standard errors or "
        f"less from the maximum of the exact likelihood and {from_nlme.max():.2f} or less from "
        f"nlme's; at nlme's estimates its linearised log-likelihood of {NLME_LOG_LIKELIHOOD:.2f} "
        f"is {NLME_LOG_LIKELIHOOD - exact_at_nlme:+.2f} off the exact {exact_at_nlme:.2f} "
        f"(quadrature, {abs(finer - exact_at_nlme):.0e} from a finer one), below the exact maximum "
        f"of {top_value:.2f} by {top_value - exact_at_nlme:.3f}; there SAEM's estimates have "
        f"{rows[-1][key]:.2f}."
    )
    failed = [
        f"SAEM is {value:.2f} standard errors from the exact maximum in {name}"
        for name, value in zip(PARAMETERS, apart, strict=True)
        if size == "full" and value > 0.35
    ]

    def draw(figure: Any) -> None:
        panels = figure.subplots(2, 3).ravel()
        contenders: list[tuple[str, Doubles, Doubles]] = [
            ("nlme", NLME, NLME_ERRORS), ("quadrature", top, top_errors),
            ("SAEM", theta, errors),
        ]  # fmt: skip
        units = ("log(1/h)", "log(l/h/kg)", "log(1/h)", "", "", "mg/l")
        for j, axes in enumerate(panels):
            for number, (_, found, error) in enumerate(contenders):
                bar = error[j] if error[j] == error[j] else None
                axes.errorbar([number], [found[j]], None if bar is None else [bar], capsize=4,
                              **(style(number) | {"linestyle": "none"}))  # fmt: skip
            axes.plot(np.full(n_seeds, 2.22), thetas[:, j], ".", color="0.5", markersize=4)
            axes.axhline(top[j], color="0.6", linewidth=0.8, linestyle="--")
            axes.set_xticks(range(len(contenders)), [name for name, _, _ in contenders],
                            rotation=25, fontsize=7.5)  # fmt: skip
            axes.set_xlim(-0.5, len(contenders) - 0.3)
            axes.set_ylabel(f"{PARAMETERS[j]}" + (f", {units[j]}" if units[j] else ""), fontsize=9)
        figure.suptitle("Theophylline: estimates and standard errors; small dots: each seed; "
                        "dashed: exact maximum", fontsize=9)  # fmt: skip

    return Finding(rows, says, draw, (10.0, 5.6), failed)


# ---- warfarin -----------------------------------------------------------------------------------

# Population of Nyberg et al. (2014), British Journal of Clinical Pharmacology 79, 6-17, an example
# of designs: cl 0.15 l/h, V 8 l, ka 1 /h; variances of their logarithms 0.07, 0.02 and 0.6;
# proportional error of 10 %; 70 mg to 32 persons.
CL, VOLUME, KA = 0.15, 8.0, 1.0
OMEGA = {"ka": 0.6, "cl": 0.07, "volume": 0.02}
ERROR = 0.1
TIMES = np.array([0.5, 1.0, 2.0, 6.0, 24.0, 36.0, 72.0, 120.0])
DOSE = 70.0
PEOPLE = {"small": (10, 2), "full": (32, 20)}
"""Persons, and how many data sets."""

# log ke = log cl - log V
TRUTH = np.array([
    np.log(KA), np.log(CL), np.log(CL / VOLUME), OMEGA["ka"], 0.0, OMEGA["cl"], 0.0, OMEGA["cl"],
    OMEGA["cl"] + OMEGA["volume"], ERROR,
])  # fmt: skip


def simulated(n: int, rng: np.random.Generator) -> Individuals:
    """Draw persons of that population."""
    log_cl = np.log(CL) + np.sqrt(OMEGA["cl"]) * rng.normal(size=n)
    log_v = np.log(VOLUME) + np.sqrt(OMEGA["volume"]) * rng.normal(size=n)
    log_ka = np.log(KA) + np.sqrt(OMEGA["ka"]) * rng.normal(size=n)
    z = np.stack([log_ka, log_cl, log_cl - log_v], axis=-1)[None]
    times = np.tile(TIMES, n)
    names = np.repeat([f"{i:02d}" for i in range(n)], len(TIMES))
    people = from_long(names, times, times, {"dose": np.full(len(times), DOSE)})
    f = Compartments().predict(z, people)[0]
    return replace(people, values=f * (1 + ERROR * rng.normal(size=len(f))))


def warfarin(size: str, source: Path | None = None) -> Finding:
    """Proportional error and correlated clearance and elimination, against the truth."""
    n_iter, burn_in = ITERATIONS[size]
    n, n_sets = PEOPLE[size]
    if source is not None:
        sets = [read_individuals(source)]
    else:
        sets = [simulated(n, np.random.default_rng(seed)) for seed in range(n_sets)]
    fits = [
        fit_saem(
            data, "one-compartment", devices=min(4, data.n_individuals), seed=seed,
            n_iter=n_iter // 2, burn_in=burn_in // 2, n_chains=2, decay=1.0, tol=0.0,
            n_importance=500,
            n_conditional=100, sampler_options={"n_steps": 3},
            model_options={"error": "proportional", "covariance": "full"},
        )
        for seed, data in enumerate(sets)
    ]  # fmt: skip
    thetas = np.array([fit.theta for fit in fits])
    errors = np.array([fit.standard_errors for fit in fits])
    rows, names = [], fits[0].model.parameters
    for j, name in enumerate(names):
        one: dict[str, Any] = {
            "name": name, "mean": float(thetas[:, j].mean()),
            "standard error": float(np.nanmean(errors[:, j])),
        }  # fmt: skip
        if source is None:
            off = thetas[:, j] - TRUTH[j]
            one |= {
                "truth": float(TRUTH[j]), "bias": float(off.mean()),
                "its error": float(off.std(ddof=1) / np.sqrt(n_sets)),
                "sd over data sets": float(off.std(ddof=1)),
                "within 1.96 errors": f"{int((np.abs(off) < 1.96 * errors[:, j]).sum())}/{n_sets}",
            }  # fmt: skip
        rows.append(one | {"estimates": thetas[:, j].tolist(), "errors": errors[:, j].tolist()})
    failed = []
    if source is None:
        off = (thetas - TRUTH).mean(axis=0) / ((thetas - TRUTH).std(axis=0, ddof=1) / n_sets**0.5)
        hit = float((np.abs(thetas - TRUTH) < 1.96 * errors).mean())
        ratio = np.nanmean(errors, axis=0) / thetas.std(axis=0, ddof=1)
        says = (
            f"In {n_sets} simulated data sets of {n} persons with the published warfarin "
            f"parameters the bias of means and residual sd is at most "
            f"{np.abs(off[[0, 1, 2, 9]]).max():.1f} and of (co)variances "
            f"{np.abs(off[3:9]).max():.1f} of its Monte Carlo errors; {100 * hit:.0f} % of truths "
            f"lie within 1.96 standard errors, which are {ratio.min():.2f} to {ratio.max():.2f} "
            "times the sd over data sets."
        )
        if size == "full" and np.abs(off[[0, 1, 2]]).max() > 4:
            failed.append("a mean is biased")
    else:
        says = (
            "Estimates are " + ", ".join(f"{k} {v:.4g}" for k, v in fits[0].estimates.items()) + "."
        )

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        base = TRUTH if source is None else thetas[0]
        for j in range(len(names)):
            scale = np.nanmean(errors[:, j])
            place = j + np.linspace(-0.25, 0.25, len(thetas)) if len(thetas) > 1 else np.array([j])
            axes.errorbar(place, (thetas[:, j] - base[j]) / scale, 1.96 * errors[:, j] / scale,
                          linestyle="none", marker="o", markersize=3, linewidth=0.7, color="0.35",
                          label="estimate, 95 % interval" if j == 0 else None)  # fmt: skip
            axes.plot([j], [(thetas[:, j].mean() - base[j]) / scale], "D", color="#D55E00",
                      markersize=7, markeredgecolor="0", zorder=5,
                      label="mean over data sets" if j == 0 else None)  # fmt: skip
        axes.axhline(0, color="0", linewidth=0.8)
        axes.set_xticks(range(len(names)), names, rotation=25, fontsize=8, ha="right")
        axes.set_ylabel("estimate less truth (mean standard errors)"
                        if source is None else "standard errors")  # fmt: skip
        axes.legend(fontsize=8, frameon=False, loc="upper right", ncols=2)

    return Finding(rows, says, draw, (10.0, 4.6), failed)
