"""When fits of SAEM stop, when they are doubted, and what little data of new individuals say."""

import numpy as np
import pytest

from vpem.errors import VpemWarning
from vpem.saem.conditional import LogLikelihood
from vpem.saem.fit import fit_saem
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import from_long
from vpem.saem.prediction import Predictor
from vpem.saem.results import warn_of_few

from .cli_support import ROOT

BOYS = read_individuals(ROOT / "data/oxford_boys.csv")
QUICK = {"n_conditional": 20, "n_importance": 200, "sampler": "exact", "n_chains": 1}


@pytest.mark.parametrize(("participation", "stop"), [(1.0, 40), (0.5, 60), (0.25, 100)])
def test_flatness_is_looked_at_when_every_device_took_part_as_often(participation, stop):
    fit = fit_saem(
        BOYS, devices=13, participation=participation, burn_in=20, window=10, tol=10.0,
        average="models", **QUICK,
    )  # fmt: skip
    assert fit.converged
    assert fit.n_iter == stop


def test_chains_that_have_not_seen_the_law_are_doubted():
    found = LogLikelihood(-1.0, 0.1, np.zeros(3), np.array([900.0, 4.0, 800.0]))
    with pytest.warns(VpemWarning, match="2000 importance draws of individual 'b' are worth 4"):
        warn_of_few(found, ("a", "b", "c"), 2000)
    warn_of_few(found, ("a", "b", "c"), 20)


def test_one_row_of_a_new_individual_moves_its_curve_by_the_formula():
    fit = fit_saem(BOYS, n_iter=60, burn_in=30, tol=0.0, **QUICK)
    beta, (a, b, c), variance = fit.theta[:2], fit.theta[2:5], fit.theta[5]
    omega = np.array([[a, b], [b, c]])
    x = np.array([1.0, 0.5])
    gain = omega @ x / (x @ omega @ x + variance)
    new = from_long(["new"], [0.5], [160.0])
    found = Predictor(fit).latents(new)
    assert np.allclose(found.means[0], beta + gain * (160.0 - x @ beta), rtol=1e-8)
