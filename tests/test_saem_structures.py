"""Curves of mixed models: values, derivatives, guesses to begin with, a user's own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from vpem.errors import FileError, InputError
from vpem.saem.doses import Doses
from vpem.saem.formats.individuals import read_individuals
from vpem.saem.individuals import from_long
from vpem.saem.structures.formulas import (
    FORMULAS,
    ONE_COMPARTMENT,
    TWO_COMPARTMENTS,
    Compartments,
    Formula,
    LinearPredictor,
    structure_of,
)
from vpem.saem.structures.ode import ode
from vpem.saem.structures.structure import Structure, curve

from .tables import each

DATA = Path(__file__).resolve().parents[1] / "data"

OWN = """
import numpy as np
from vpem.saem.structures.ode import ode
from vpem.saem.structures.structure import curve


@curve(ka="log", v="log", k="log")
def absorbed(time, ka=1.5, v=0.5, k=0.1, *, dose):
    return dose * ka / v / (ka - k) * (np.exp(-k * time) - np.exp(-ka * time))


@ode(2, ka="log", cl="log", v="log")
def moving(time, amounts, ka=1.5, cl=0.04, v=0.5):
    depot, central = amounts
    return -ka * depot, ka * depot - cl / v * central


@moving.measured
def concentration(time, amounts, ka, cl, v):
    return amounts[1] / v


def line(time, base=1.0, slope=0.0):
    return base + slope * time


number = 3
"""


@pytest.fixture(scope="module")
def theophylline():
    return read_individuals(DATA / "theophylline.csv")


@pytest.fixture(scope="module")
def repeated(theophylline):
    """The same with three doses, one of them infused."""
    who = np.repeat(np.arange(12), 3)
    columns = ([0.0, 3.0, 3.5], [4.0, 2.0, 5.0], [0.0, 2.0, 0.0])
    return replace(
        theophylline, doses=Doses.from_lists(12, who, *(np.tile(one, 12) for one in columns))
    )


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A file of a user's functions."""
    path = tmp_path_factory.mktemp("own") / "curves.py"
    path.write_text(OWN)
    return path


ROUTES = [
    ("ka", "cl", "ke"), ("ka", "cl", "v"), ("ka", "v", "ke", "tlag"), ("cl", "v"),
    ("cl", "v1", "q", "v2"), ("ka", "cl", "v1", "q", "v2"),
]  # fmt: skip


@each("names", ROUTES)
def test_compartments_have_the_slopes_of_their_differences(theophylline, repeated, names):
    made = Compartments(names, TWO_COMPARTMENTS if "v1" in names else ONE_COMPARTMENT)
    made.check(repeated)
    start = made.begin(theophylline)
    assert np.isfinite(np.nanmedian(start, axis=0)).all()
    phi = np.nanmedian(start, axis=0) + np.linspace(-0.1, 0.1, 24).reshape(2, 12, 1)
    for data in (theophylline, repeated):
        value, slopes = made.slopes(phi, data)
        np.testing.assert_array_equal(value, made.predict(phi, data))
        np.testing.assert_allclose(slopes, Structure.slopes(made, phi, data)[1], atol=1e-6)


def test_two_compartments_without_an_exchange_are_one(repeated):
    phi = np.log(np.tile([0.04, 0.5, 1e-9, 0.7], (1, 12, 1)))
    one = Compartments(("cl", "v")).predict(phi[..., :2], repeated)
    np.testing.assert_allclose(
        Compartments(usual=TWO_COMPARTMENTS).predict(phi, repeated), one, rtol=1e-6
    )


def test_a_short_infusion_is_an_injection(theophylline):
    phi = np.log(np.tile([0.04, 0.5, 0.1, 0.7], (1, 12, 1)))
    every, early = np.arange(12), np.full(12, -1.0)
    given = [Doses.from_lists(12, every, early, np.ones(12), np.full(12, duration))
             for duration in (0.0, 1e-7)]  # fmt: skip
    at_once, infused = (
        Compartments(usual=TWO_COMPARTMENTS).predict(phi, replace(theophylline, doses=doses))
        for doses in given
    )
    np.testing.assert_allclose(infused, at_once, rtol=1e-6)


def test_begins_are_near_the_truth(theophylline):
    rng = np.random.default_rng(1)
    truth = np.log([1.5, 0.04, 0.08]) + 0.2 * rng.normal(size=(1, 12, 3))
    values = Compartments().predict(truth, theophylline)[0]
    start = Compartments().begin(replace(theophylline, values=values))
    assert np.abs(start - truth[0]).mean() < 0.25


# ---- formulas -----------------------------------------------------------------------------------

TRUTH = {
    "logistic": [190.0, 720.0, 350.0],
    "four-parameter-logistic": [2.0, 20.0, 5.0, 1.2],
    "gompertz": [4.6, 2.3, 0.9],
    "asymptotic": [100.0, -8.0, 0.04],
    "biexponential": [3.0, 2.0, 1.0, 0.25],
    "michaelis-menten": [210.0, 6.0],
    "emax": [5.0, 30.0, 40.0],
}


@each("name", FORMULAS)
def test_formulas_begin_near_what_made_the_rows(name):
    made, truth = Formula(name), np.array(TRUTH[name])
    end = {"logistic": 1600, "asymptotic": 80, "emax": 200, "biexponential": 8}.get(name, 20)
    times = np.linspace(0.02, 1, 15) * end
    data = from_long(np.zeros(15), times, times)
    phi = made.scaled(truth)[None, None]
    values = made.predict(phi, data)[0]
    start = made.natural(made.begin(replace(data, values=values)))[0]
    np.testing.assert_allclose(start, truth, rtol=0.45, atol=2.0)
    assert not made.predict(phi + 1e9, data).shape[0] - 1


def test_names_are_on_scales_and_those_of_formulas_may_be_others():
    made = Formula("logistic", {"asymptote": "log"})
    assert made.latents == ("log asymptote", "midpoint", "scale")
    assert Compartments(("ka", "cl", "v")).latents == ("log ka", "log cl", "log v")


def test_linear_predictors_are_sums_of_columns():
    data = from_long([1, 1, 2], [0, 1, 2], [0, 0, 0], {"x": [5, 6, 7]})
    made = LinearPredictor(("time", "x"))
    phi = np.array([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]])
    value, slopes = made.slopes(phi, data)
    assert value.tolist() == [[16.0, 21.0, 56.0]]
    np.testing.assert_allclose(slopes, Structure.slopes(made, phi, data)[1], rtol=1e-6)


# ---- a user's own -------------------------------------------------------------------------------


def test_functions_of_a_file_are_curves(own, theophylline):
    made = structure_of(f"{own}:absorbed")
    assert (made.latents, made.needs) == (("log ka", "log v", "log k"), ("dose",))
    known = Compartments(("ka", "v", "ke"))
    phi = made.begin(theophylline)[None] + 0.1
    np.testing.assert_allclose(made.predict(phi, theophylline), known.predict(phi, theophylline))
    assert structure_of(f"{own}:line").names == ("base", "slope")


def test_equations_of_a_file_are_solved(own, repeated):
    made, known = structure_of(f"{own}:moving"), Compartments(("ka", "cl", "v"))
    phi = np.log([1.5, 0.04, 0.5]) + np.linspace(-0.3, 0.3, 36).reshape(1, 12, 3)
    found = made.predict(phi, repeated)
    np.testing.assert_allclose(found, known.predict(phi, repeated), rtol=1e-5, atol=1e-5)
    some = [7, 2]  # what others are does not show, to the last digit
    alone = made.predict(phi[:, some], repeated.take(some))
    rows = np.concatenate([np.arange(*repeated.first[one : one + 2]) for one in some])
    np.testing.assert_array_equal(alone, found[:, rows])


def test_equations_without_doses_begin_where_they_say():
    @ode(2, rate="log")
    def prey(time, y, rate=1.0, *, food):
        return y[0] * (rate * food - y[1]), y[1] * (y[0] - 1)

    @prey.first
    def begin(rate, *, food):
        return 1.5, rate

    data = from_long([0, 0, 0], [0.0, 2.0, 5.0], [0, 0, 0], {"food": [1.2] * 3})
    found = prey.predict(np.log([[[0.8]]]), data)[0]
    exact = solve_ivp(lambda t, y: prey.signature.function(t, y, 0.8, food=1.2), (0, 5),
                      [1.5, 0.8], rtol=1e-10, atol=1e-12, t_eval=[0, 2, 5])  # fmt: skip
    np.testing.assert_allclose(found, exact.y[1], rtol=1e-5)


def test_solutions_that_grow_without_end_have_no_value():
    @ode(1)
    def bursting(time, y, rate=1.0):
        return rate * (1 + y**2)

    data = from_long([0, 0, 1, 1], [0.0, 3.0, 0.0, 1.0], np.zeros(4))
    found = bursting.predict(np.ones((1, 2, 1)), data)[0]
    assert np.isnan(found).tolist() == [False, True, False, False]
    assert found[3] == pytest.approx(np.tan(1.0), rel=1e-5)


# ---- what is refused ----------------------------------------------------------------------------


def late(data):
    """Doses that are given after the first row."""
    every = np.arange(12)
    Compartments().check(replace(data, doses=Doses.from_lists(12, every, np.ones(12), np.ones(12))))


def misshapen(data):
    curve()(lambda time, a=1.0: np.zeros(3)).predict(np.zeros((1, 12, 1)), data)


REFUSED = [  # names of curves ({own}: a user's file; a line of Python: one with that), or a call
    ("{own}:lin", r"has no function 'lin' \(did you mean 'line'\?\)"),
    ("{own}:number", "has no function 'number'"),
    ("{own}.none.py:f", "does not exist"),
    ("logstic", r"no curve 'logstic' \(did you mean"),
    ("1 / 0", "wrong.py.* ?fails: ZeroDivisionError"),
    ("def f(time, a): pass",
     "wrong.py.* ?give the parameter a a value to begin with, a=1.0"),
    ("def f(*time): pass", "wrong.py.* ?must take 1 argument and then its parameters"),
    (lambda data: Formula("logistic", {"asymtote": "log"}), "parameter of logistic"),
    (lambda data: Compartments(("cl", "ka")), "compartments"),
    (lambda data: Compartments(("cl", "v", "tlag")), "compartments"),
    (lambda data: Compartments(("ka", "cl", "v1", "q", "v2")), "compartments"),
    (late, "has a time before the dose, 0;"),
    (lambda data: curve(a="log")(lambda time, a=-1.0: a), "begin where their scales have no value"),
    (misshapen, r"fails: ValueError: .*one of shape"),
]  # fmt: skip


@each(("make", "message"), REFUSED)
def test_faults_of_a_user_are_told(own, tmp_path, theophylline, make, message):
    name = "" if callable(make) else make.format(own=own)
    if " " in name:
        (tmp_path / "wrong.py").write_text(name)
        name = f"{tmp_path}/wrong.py:f"
    with pytest.raises((InputError, FileError), match=message):
        make(theophylline) if callable(make) else structure_of(name)
