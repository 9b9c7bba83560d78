"""What a user gives is looked at first, and refused in sentences that know their parameters."""

import copy
import pickle

import numpy as np
import pytest

import vpem
from vpem import errors
from vpem.checks import (
    DATED,
    LARGEST_WEIGHT,
    check_data,
    check_int,
    check_number,
    check_rows,
    check_weights,
    no_measurement,
    parse_bytes,
    read_float,
    read_int,
)
from vpem.errors import InputError, Setting, VpemError, check_choice, did_you_mean, shorten

from .tables import each, over

ONES = np.ones((3, 2))


def one_bad(value, row=3, more=False, names=None):
    """Look at data of which a value or two are not finite."""
    X = np.zeros((5, 3))
    X[row, 1] = value
    X[4] = np.nan if more else 0
    return lambda: check_data(X, 3, names)


def of(check, *more):
    """Calls of a check with a value and what else it takes."""
    return lambda value: lambda: check(value, *more)


whole, real = (
    lambda value: lambda: check_int("rounds", value, least=3),
    lambda value: lambda: check_number("tol", value, least=0.0),
)
data, weights, rows = of(check_data, 2), of(check_weights, 3), of(check_rows, 3, 8)
NO_INTEGER = "rounds must be an integer of at least 3, got "
NO_NUMBER = "tol must be a finite number of at least 0, got "
LIST = "must be a list of row indices"

REFUSED = [
    *((whole(bad), NO_INTEGER) for bad in
      (2, -1, 3.0, "3", None, True, np.float64(3), [3], np.nan)),
    *((real(bad), NO_NUMBER) for bad in
      (-1e-9, np.nan, np.inf, -np.inf, "1", None, True, 1j, [1.0])),
    (lambda: check_number("tol", 0.0, least=0.0, above=True), "a finite number above 0, got 0"),
    *((lambda value=value: check_int("rounds", value, least=0, most=5),
       "got an integer of more than 4300 digits") for value in (10**5000, -(10**5000))),
    (real(10**400), r"finite number of at least 0, got 10{59}\.\.\."),
    (data(ONES.astype(complex)), "must be real numbers, got values of type complex128"),
    (data([["a", "b"]]), "must be real numbers, got values of type <U1"),
    (data(np.array([[None, 1.0]], dtype=object)), "real numbers, got values of type object"),
    *((data(np.ones((1,) * n)), f"must be 2-D .* got {n} dimension") for n in (0, 1, 3)),
    (data(np.ones((3, 4))), "the agents hold 2 features, the data have 4"),
    (data(np.ones((0, 2))), "the data have no rows"),
    *((one_bad(value), f"^row 3, feature 1 is {word}; fill in or remove")
      for value, word in ((np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "-inf"))),
    (one_bad(np.nan, names=["age", "pulse", "iron"]), r"^row 3, feature 1 \('pulse'\) is NaN;"),
    (one_bad(np.inf, more=True), r"^row 3, feature 1 is .*; 4 values in all are not finite;"),
    (weights([1.0, 2.0]), r"must be 3 numbers, got shape \(2,\)"),
    (weights(np.ones((3, 1))), r"must be 3 numbers, got shape \(3, 1\)"),
    (weights(["a", "b", "c"]), "of type <U1"),
    *((weights([1.0, bad, 1.0]), "finite and not negative") for bad in (-1e-9, np.nan, np.inf)),
    (weights([0.0, 0.0, 0.0]), "must not all be zero"),
    (weights(np.full(3, LARGEST_WEIGHT / 2.7)), "sample weights sum to more than 1e"),
    (rows([1, 2]), "3 components need as many init rows, got 2"),
    (rows([1, 2, 3, 4]), "3 components need as many init rows, got 4"),
    (rows([1, 2, 8]), "must lie between 0 and 7, got"),
    (rows([-1, 2, 3]), "must lie between 0 and 7, got"),
    (rows([1, 2, 1]), "must differ from each other, got"),
    *((rows(bad), LIST) for bad in
      ([1.0, 2.0, 3.0], [[1, 2, 3]], [1, 2, 10**30], ["1", "2", "3"], 3)),
    (lambda: parse_bytes("0MB"), "a size must be a number of bytes such as 600MB or 2G"),
]  # fmt: skip


@each(("call", "said"), REFUSED)
def test_refusals(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_what_is_taken_and_as_what():
    for value in (3, np.int64(3), np.uint8(3)):
        assert type(whole(value)()) is int
        assert whole(value)() == 3
    for value in (0, 0.0, 1e-300, np.float32(0.5), 2):
        assert type(real(value)()) is float
        assert real(value)() == value
    for kind in (np.float64, np.float32):
        X = ONES.astype(kind)
        assert check_data(X, 2) is X
    for kind in (np.int32, np.uint8, bool, np.float16, np.longdouble):
        found = check_data(ONES.astype(kind), 2)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, 1)
    for value in ([0, 2, 1], np.array([0.5, 0.0, 1e-9]), [True, False, True], 2):
        found = check_weights(value, 3)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, np.broadcast_to(np.asarray(value, float), 3))
    assert weights(np.full(3, LARGEST_WEIGHT / 3.3))().sum() < LARGEST_WEIGHT
    assert rows([7, 0, 3])().tolist() == [7, 0, 3]
    assert parse_bytes("1") == 1


@each(
    ("text", "whole", "real"),
    [
        ("5", 5, 5.0), ("+5", 5, 5.0), ("-05", -5, -5.0), (" 5\n", 5, 5.0),
        ("9" * 40, 10**40 - 1, 1e40),
        ("5.", None, 5.0), (".5e-3", None, 5e-4), ("1E5", None, 1e5), ("9" * 5000, None, np.inf),
        ("inf", None, np.inf), ("-Infinity", None, -np.inf), ("1e999", None, np.inf),
        *((text, None, None) for text in
          ("", " ", "-", "--5", "+-5", "1_0", "5 5", "5,5", "0x5", "five", "1e", ".", "²", "٣")),
    ],
)  # fmt: skip
def test_numbers_as_people_write_them(text, whole, real):
    assert read_int(text) == whole
    assert read_float(text) == real
    assert read_float(text, finite=True) == (real if np.isfinite(real or 0) else None)


def test_one_family_that_python_programs_know_as_its_own():
    for name, builtin in (
        ("InputError", ValueError), ("FileError", OSError), ("NumericalError", ArithmeticError),
    ):  # fmt: skip
        error = getattr(errors, name)
        assert issubclass(error, VpemError)
        assert issubclass(error, builtin)
        assert getattr(vpem, name) is error
    assert issubclass(errors.VpemWarning, UserWarning)
    assert issubclass(errors.NotConvergedWarning, errors.VpemWarning)


@each(
    ("name", "nearest"),
    [("cyle", "cycle"), ("CYCLE", "cycle"), ("small_world", "small-world"), ("pth", "path")],
)
def test_the_nearest_name(name, nearest):
    choices = ("cycle", "path", "small-world")
    assert did_you_mean(name, choices) == f" (did you mean {nearest!r}?)"
    with pytest.raises(InputError, match=f"did you mean '{nearest}'"):
        check_choice("topology", name, iter(choices))  # which may be used up
    assert did_you_mean("zzz", choices) == did_you_mean("cycle", ()) == ""


@each("value", ["ring", "", None, 3, ["path"], b"path"])
def test_a_choice_that_is_not(value):
    with pytest.raises(InputError) as caught:
        check_choice("topology", value, ("cycle", "path"))
    assert str(caught.value).startswith(f"topology must be one of cycle, path, got {value!r}")
    assert check_choice("topology", "path", iter(["cycle", "path"])) == "path"


KINDS = (
    VpemError, InputError, errors.FileError, errors.NumericalError, errors.PartitionedError,
    errors.VpemWarning, errors.NotConvergedWarning,
)  # fmt: skip


@over(
    again=[lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy],
    error=[
        *(kind("pass ", Setting("max_iter", 3), " or less") for kind in KINDS),
        errors.MissingColumnError("no column t", "t"),
        errors.Interrupted("state.h5", 3, 2),
    ],
)
def test_errors_keep_their_parts_between_processes(error, again):
    def sentence(one):
        return one.sentence_with(lambda setting: f"<{setting.name}>")

    found = again(error)
    assert type(found) is type(error)
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))
    assert sentence(found) == sentence(error)
    with pytest.raises(type(error)) as caught:
        raise found from error
    assert caught.value.__cause__ is error


@each(("count", "more"), [(0, ""), (1, ""), (5, ""), (6, " and 1 more"), (30, " and 25 more")])
def test_long_lists_are_shortened(count, more):
    text = ", ".join(map(str, range(min(count, 5)))) + more
    assert shorten(range(count)) == shorten(iter(range(count))) == text


def test_months_of_two_years_are_dates_and_not_measured():
    months = np.array([100 * year + month for year in (2020, 2021) for month in range(1, 13)])
    assert no_measurement("x", months.astype(float)) == DATED
    assert no_measurement("x", months[:12].astype(float)) != DATED
