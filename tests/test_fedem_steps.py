"""Default steps of FedEM: with any codec, and whoever is there, a fit ends where EM does."""

import numpy as np
import pytest
from sklearn.datasets import load_wine

from vpem import NotConvergedWarning, VpemWarning, fit_fedem
from vpem.network.codecs import parse_codec
from vpem.network.partition import evenly, from_worker_of_row
from vpem.steps.fedem_steps import (
    MOST_ITERATIONS,
    batches_of,
    noise_of,
    safe_step,
    step_ceiling,
    theorem_step,
)
from vpem.sums.quantizer import Quantizer

from .tables import over

CODECS = ("float16", "natural:9bits", "qsgd:2bits:32", "blockp:64:inf", "randk:0.2", "topk:0.2")


def wine():
    """Standardized and shuffled."""
    rows = load_wine().data
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    return rows[np.random.default_rng(0).permutation(len(rows))]


def overlapping(in_order):
    """Three components that overlap, dealt out by component or as they come."""
    rng = np.random.default_rng(3)
    means, labels = rng.normal(0, 1.0, (3, 5)), rng.integers(0, 3, 400)
    rows = means[labels] + rng.normal(size=(400, 5)) @ (np.eye(5) + 0.4 * rng.normal(size=(5, 5)))
    return rows[np.argsort(labels)] if in_order else rows


KINDS = {
    "wine": (wine(), 2, evenly(178, 10)),
    "overlapping": (overlapping(False), 3, evenly(400, 20)),
    "sorted": (overlapping(True), 3, from_worker_of_row(np.repeat(range(4), [20, 200, 40, 140]))),
}
ENDS = {}


def exact(kind):
    """Where EM ends, from the start that a fit has by default."""
    if kind not in ENDS:
        X, k, workers = KINDS[kind]
        how = {"step_size": 1.0, "memory": "none", "tol": 1e-16, "max_iter": 5000}
        ENDS[kind] = fit_fedem(X, workers, n_components=k, **how).log_likelihood
    return ENDS[kind]


@pytest.mark.filterwarnings("ignore:not converged", "ignore:weights or covariances")
@over(kind=KINDS, codec=[None, *CODECS], p=[1.0, 0.25], reduced=[False, True])
def test_defaults_end_where_em_does(kind, codec, p, reduced):
    X, k, workers = KINDS[kind]
    ours = fit_fedem(
        X, workers, n_components=k, compress=codec, participation=p, variance_reduction=reduced,
        record_every=MOST_ITERATIONS,
    )  # fmt: skip
    off = abs(ours.log_likelihood / exact(kind) - 1)
    assert off < (1e-3 if ours.converged else 1e-2)


@over(codec=CODECS, p=[1.0, 0.3, 0.1])
def test_ceilings_fall_with_noise(codec, p):
    omega = noise_of(Quantizer(parse_codec(codec), 200))
    ceiling = step_ceiling(omega, p)
    assert 0 < ceiling <= step_ceiling(0.0, p) <= step_ceiling(0.0, 1.0) == 2.0
    assert ceiling <= step_ceiling(omega, 1.0)
    assert step_ceiling(omega, p, 0.0) == 2 * p / (1 + omega)  # without memories
    assert safe_step(omega, p, reduced=True) <= p / (1 + omega) / 3
    if omega > 0.1:
        assert step_ceiling(omega, p, 1.0) < ceiling  # memories that believe too much


def test_steps_of_the_theorems_grow_with_workers_and_ours_do_not():
    assert theorem_step(0.0, 1.0, 1) == 0.5  # v_min / (2 L)
    assert theorem_step(0.0, 1.0, 1, reduced=True) == pytest.approx(1 / 3)  # SPIDER-EM
    for reduced in (False, True):
        few, many = (theorem_step(8.0, 0.5, n, reduced) for n in (1, 100))
        assert few < many < 1
    assert theorem_step(8.0, 1.0, 1) < safe_step(8.0, 1.0) < theorem_step(8.0, 1.0, 100)
    assert theorem_step(8.0, 1.0, 512) / theorem_step(8.0, 1.0, 128) == pytest.approx(2)


def test_plain_em_is_the_default_where_nothing_is_noisy():
    X, k, workers = KINDS["overlapping"]
    plain = {"n_components": k, "max_iter": 12, "tol": 0.0}
    ours = fit_fedem(X, workers, **plain)
    np.testing.assert_allclose(
        ours.run.statistic,
        fit_fedem(X, workers, **plain, step_size=1.0, memory="none").run.statistic,
        atol=1e-12,
    )
    assert ours.options["step_size"] == "constant:1"


def test_batches_and_loops_go_together():
    assert batches_of(200.0, 0.0, 1.0, None, None) == (10, 10)
    assert batches_of(200.0, 3.0, 0.5, None, None) == (10, 20)
    assert batches_of(200.0, 0.0, 1.0, 25, None) == (25, 4)
    assert batches_of(200.0, 1.0, 1.0, None, 400) == (100, 400)  # theorem 2: 400 / 2^2
    assert batches_of(200.0, 0.0, 1.0, None, None, 14) == (14, 8)
    assert batches_of(18.0, 0.0, 1.0, None, None, 14) == (None, None)  # all rows are fewer


def test_steps_are_told_and_long_ones_warned_of():
    X, k, workers = KINDS["wine"]
    how = {"n_components": k, "compress": "blockp:64", "participation": 0.25}
    safe = safe_step(7.0, 0.25)
    with pytest.warns(VpemWarning, match=f"above 0.0197.* omega 7, .* {safe:.3g} is safe"):
        fit_fedem(X, workers, step_size=0.05, max_iter=3, tol=0.0, **how)
    with pytest.warns(NotConvergedWarning):
        ours = fit_fedem(X, workers, max_iter=3, **how)
    told = ours.describe(["x"] * 13, list(workers.names))
    assert told["safe_step"] == pytest.approx(safe)
    assert told["step_size"] == f"constant:{safe:g}"
    assert told["step_ceiling"] == pytest.approx(2 * safe)
    assert told["theorem_step"] == pytest.approx(theorem_step(7.0, 0.25, 10))
    assert (told["batch_size"], told["inner"]) == (None, None)
    assert told["alpha"] == pytest.approx(1 / 8)


@pytest.mark.filterwarnings("ignore:weights or covariances", "ignore:steps of")
def test_what_is_projected_all_the_time_has_not_converged():
    X, k, workers = KINDS["wine"]
    how = {"compress": "blockp:64", "participation": 0.25, "step_size": 0.5, "tol": 1.0}
    with pytest.warns(NotConvergedWarning, match="projected in most"):
        ours = fit_fedem(X, workers, n_components=k, **how)
    assert not ours.converged
    assert ours.run.projected_share > 0.5
