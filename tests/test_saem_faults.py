"""SAEM: parameters that are bound to each other, models that do not fit, faults of new data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vpem import fit_saem, read_individuals, read_saem, save_saem
from vpem.errors import InputError, NotConvergedWarning
from vpem.saem.conditional import covariance_of
from vpem.saem.individuals import from_long, from_matrix
from vpem.saem.models.gmm import GmmModel
from vpem.saem.models.linear import LinearModel
from vpem.saem.prediction import Predictor

DATA = Path(__file__).parent.parent / "data"
SHORT = {"n_iter": 30, "burn_in": 10, "tol": 0.0, "n_conditional": 10, "n_importance": 50}


# ---- errors of weights, which add up to 1 -------------------------------------------------------


def blobs(n):
    rng = np.random.default_rng(3)
    own = rng.choice(3, size=n, p=[0.6, 0.25, 0.15])
    return rng.normal(size=(n, 1)) + np.array([0.0, 40.0, 90.0])[own][:, None]


def test_errors_of_weights_are_a_multinomials_where_components_are_apart():
    n = 400
    fit = fit_saem(
        from_matrix(blobs(n)),
        "gmm",
        model_options={"n_components": 3, "rows": [0, 1, 2], "reg_covar": 1e-9},
        **SHORT | {"n_iter": 60, "n_chains": 4},
    )
    weights = fit.theta[:3]
    assert weights.min() > 0.1  # the rows are of three blobs
    wanted = np.sqrt(weights * (1 - weights) / n)
    np.testing.assert_allclose(fit.standard_errors[:3], wanted, rtol=1e-3)
    spread = np.sqrt(fit.theta[6:9])
    np.testing.assert_allclose(fit.standard_errors[3:6], spread / np.sqrt(n * weights), rtol=1e-3)


def test_a_weight_that_is_alone_is_certain(tmp_path):
    fit = fit_saem(from_matrix(blobs(60)), "gmm", model_options={"n_components": 1}, **SHORT)
    assert fit.theta[0] == 1.0
    assert fit.standard_errors[0] == 0.0
    assert (fit.standard_errors[1:] > 0).all()
    save_saem(tmp_path / "one.h5", fit)
    assert read_saem(tmp_path / "one.h5").standard_errors[0] == 0.0


def test_constraints_are_those_of_the_covariance_given_them():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 5))
    units = np.array([1.0, 1e4, 1e-3, 1.0, 7.0])
    information = (root @ root.T + np.eye(5)) * np.outer(units, units)
    rows = np.array([[1.0, 1.0, 1.0, 0.0, 0.0]])
    whole = np.linalg.inv(information)
    across = whole @ rows.T
    wanted = np.sqrt(np.diag(whole - across @ across.T / (rows @ across)))
    errors = np.sqrt(np.diag(covariance_of(information, rows)))
    np.testing.assert_allclose(errors, wanted, rtol=1e-6)
    np.testing.assert_array_equal(covariance_of(information), covariance_of(information, None))


def test_a_mixtures_weights_are_its_only_constraint():
    model = GmmModel(from_matrix(blobs(9)), 2)
    theta, _ = model.start()
    np.testing.assert_array_equal(model.constraints(theta), [[1, 1, 0, 0, 0, 0]])


# ---- models of a user -----------------------------------------------------------------------


class Longer(LinearModel):
    def statistics(self, z):
        return np.concatenate([super().statistics(z), np.ones((self.n, 1))], axis=1)


class Unpacks(LinearModel):
    def maximize(self, total, counts):
        one, two = total
        return np.array([one, two])


class Loses(LinearModel):
    def maximize(self, total, counts):
        return {}["variance"]


class Flat(LinearModel):
    def gradient(self, z, theta):
        return super().gradient(z, theta)[..., 0]


class Unknown(LinearModel):
    def log_complete(self, z, theta):
        return super().log_complete(z, theta) * np.nan


class Empty(LinearModel):
    def __init__(self, individuals):
        super().__init__(individuals)
        self.pieces = ()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Longer, "Longer"),
        (Unpacks, "start of model Unpacks fails: too many values"),
        (Loses, "start of model Loses fails"),
        (Flat, "gradient of model Flat must have shape"),
        (Unknown, "log_complete of model Unknown is not a number"),
        (Empty, "Empty has no pieces"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_models_whose_methods_do_not_fit_are_told_in_a_sentence(kind, words):
    boys = read_individuals(DATA / "oxford_boys.csv")
    with pytest.raises(InputError, match=words) as caught:
        fit_saem(boys, kind, **SHORT)
    assert "\n" not in str(caught.value)


def test_maximize_may_return_a_list():
    class Lists(LinearModel):
        def maximize(self, total, counts):
            return super().maximize(total, counts).tolist()

    boys = read_individuals(DATA / "oxford_boys.csv")
    one, two = (fit_saem(boys, kind, **SHORT) for kind in (Lists, LinearModel))
    np.testing.assert_array_equal(one.theta, two.theta)


def test_parameters_that_are_flat_at_zero_are_not_said_to_change():
    drug = read_individuals(DATA / "theophylline.csv").take([0])
    with pytest.warns(NotConvergedWarning) as told:
        fit = fit_saem(
            drug,
            "one-compartment",
            model_options={"random": ["ka", "cl"]},
            **SHORT | {"tol": 0.1, "n_iter": 1000, "burn_in": 200, "n_chains": 1},
        )
    assert fit.change < 0.1
    assert "but some variances are as good as zero, and stay there" in str(told[0].message)


# ---- new data -----------------------------------------------------------------------------------


def test_faults_of_new_data_are_not_laid_on_the_fit(tmp_path):
    fit = fit_saem(read_individuals(DATA / "theophylline.csv"), "one-compartment", **SHORT)
    save_saem(tmp_path / "drug.h5", fit)
    new = from_long(["a"] * 2, [-2.0, 1.0], [5.0, 4.0], {"dose": [4.0, 4.0]}, source="new.csv")
    with pytest.raises(
        InputError, match=r"^new\.csv: individual .a. has a time before the dose"
    ) as caught:
        Predictor(read_saem(tmp_path / "drug.h5")).curves(new)
    assert "fit it again" not in str(caught.value)
