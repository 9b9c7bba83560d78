"""Mixed models find the maximum of the likelihood, from where they begin on."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from vpem.saem.fit import fit_saem
from vpem.saem.individuals import from_long
from vpem.saem.models.model import Doubles


def test_ridge_between_a_fixed_rate_and_a_mean_that_varies() -> None:
    """Trees far from their asymptote: it and the rate are almost exchangeable, and stay finite."""
    rng = np.random.default_rng(3)
    t, n = np.array([3.0, 5, 10, 15, 20, 25]), 14
    top = 100 + 4 * rng.normal(size=(n, 1))
    y = top + (-8.5 - top) * np.exp(-np.exp(-3.23) * t) + 0.7 * rng.normal(size=(n, len(t)))
    data = from_long(np.repeat(np.arange(n), len(t)), np.tile(t, n), y.ravel())
    options = {"curve": "asymptotic", "random": ("asymptote",)}
    fit = fit_saem(data, "curve", model_options=options, n_iter=200, n_importance=50, tol=0.0)
    off = (fit.theta[:3] - [100, -8.5, -3.23]) / fit.standard_errors[:3]
    assert (np.abs(off) < 3).all()


def test_counts_are_found_from_afar() -> None:
    """Coefficients of covariates that stay begin at 0, and steps of counts are not too long."""
    rng = np.random.default_rng(5)
    n, m = 60, 4
    x = rng.normal(size=n)
    eta = 1.8 + x + 0.5 * rng.normal(size=n)
    y = rng.poisson(np.exp(eta)[:, None], size=(n, m))
    columns = {"x": np.repeat(x, m)}
    data = from_long(np.repeat(np.arange(n), m), np.tile(np.arange(m), n), y.ravel(), columns)
    options = {"slopes": ("x",), "random": ("intercept",), "error": "poisson"}
    fit = fit_saem(data, "linear", model_options=options, n_iter=200, n_importance=50, tol=0.0)
    off = (fit.theta[:2] - [1.8, 1.0]) / fit.standard_errors[:2]
    assert (np.abs(off) < 3).all()


def test_lines_are_the_maximum_of_the_marginal_likelihood() -> None:
    """With a fixed column and an effect, estimates are where L-BFGS finds the exact maximum."""
    rng = np.random.default_rng(11)
    n, t = 40, np.arange(5.0)
    x, w = rng.normal(size=n), rng.normal(size=(n, len(t)))
    z = rng.multivariate_normal([3.0, 1.0], [[1.0, 0.2], [0.2, 0.4]], size=n)
    y = z[:, :1] + 0.7 * x[:, None] + z[:, 1:] * t + 0.5 * w + rng.normal(size=w.shape)
    columns = {"x": np.repeat(x, len(t)), "w": w.ravel()}
    data = from_long(np.repeat(np.arange(n), len(t)), np.tile(t, n), y.ravel(), columns)
    options = {
        "slopes": ("time", "w"), "random": ("intercept", "time"), "effects": ("intercept:x",)
    }  # fmt: skip
    fit = fit_saem(data, "linear", model_options=options, n_iter=500, tol=0.0, n_importance=50)
    Z = np.stack([np.ones_like(t), t], axis=-1)
    names = ("intercept", "slope", "slope of w", "beta(intercept, x)")

    def minus(at: Doubles) -> float:
        b, root = at[:4], np.array([[np.exp(at[4]), 0.0], [at[5], np.exp(at[6])]])
        V = Z @ root @ root.T @ Z.T + np.exp(2 * at[7]) * np.eye(len(t))
        e = y - b[0] - b[1] * t - b[2] * w - b[3] * x[:, None]
        squares = np.einsum("ni,ij,nj->", e, np.linalg.inv(V), e)
        logs = np.linalg.slogdet(V)[1] + len(t) * np.log(2 * np.pi)
        return float(0.5 * (squares + n * logs))

    best = minimize(minus, np.zeros(8), method="L-BFGS-B")
    for place, name in enumerate(names):
        error = fit.standard_errors[fit.model.parameters.index(name)]
        assert abs(fit.estimates[name] - best.x[place]) < 0.1 * error
    root = np.array([[np.exp(best.x[4]), 0.0], [best.x[5], np.exp(best.x[6])]])
    omega = root @ root.T
    for name, value in (
        ("var(intercept)", omega[0, 0]),
        ("cov(intercept, slope)", omega[0, 1]),
        ("var(slope)", omega[1, 1]),
        ("residual variance", np.exp(2 * best.x[7])),
    ):
        error = fit.standard_errors[fit.model.parameters.index(name)]
        assert abs(fit.estimates[name] - value) < 0.1 * error
    assert abs(fit.log_likelihood.value + best.fun) < 0.05


def test_a_variance_at_its_bound_is_not_paid_for_by_another():
    """Of a combined error whose proportional part is none, the additive part is the best alone."""
    rng = np.random.default_rng(4)
    t = np.tile(np.linspace(0, 1, 8), 30)
    values = 5 + 3 * t + np.repeat(0.5 * rng.normal(size=30), 8) + 0.1 * rng.normal(size=240)
    people = from_long(np.repeat(np.arange(30), 8), t, values)
    how = {"n_iter": 120, "burn_in": 80, "tol": 0.0, "n_importance": 500}
    fits = [
        fit_saem(people, "linear", model_options={"random": ["intercept"], "error": error}, **how)
        for error in ("combined", "constant")
    ]
    assert fits[0].log_likelihood.value > fits[1].log_likelihood.value - 0.5
