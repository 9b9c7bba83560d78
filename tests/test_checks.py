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


@each("value", [3, np.int64(3), np.uint8(3)])
def test_integers(value):
    found = check_int("rounds", value, least=3)
    assert (found, type(found)) == (3, int)


@each("value", [2, -1, 3.0, "3", None, True, np.float64(3), [3], np.nan])
def test_what_is_no_integer_of_at_least_three(value):
    with pytest.raises(InputError, match="rounds must be an integer of at least 3, got "):
        check_int("rounds", value, least=3)


@each("value", [0, 0.0, 1e-300, np.float32(0.5), 2])
def test_numbers(value):
    found = check_number("tol", value, least=0.0)
    assert (found, type(found)) == (float(value), float)


@each("value", [-1e-9, np.nan, np.inf, -np.inf, "1", None, True, 1j, [1.0]])
def test_what_is_no_finite_number_of_at_least_zero(value):
    with pytest.raises(InputError, match="tol must be a finite number of at least 0, got "):
        check_number("tol", value, least=0.0)
    with pytest.raises(InputError, match="tol must be a finite number above 0, got 0"):
        check_number("tol", 0.0, least=0.0, above=True)


@each(
    ("text", "whole", "real"),
    [
        ("5", 5, 5.0), ("+5", 5, 5.0), ("-05", -5, -5.0), (" 5\n", 5, 5.0),
        ("9" * 40, 10**40 - 1, 1e40),
        ("5.", None, 5.0), (".5e-3", None, 5e-4), ("1E5", None, 1e5), ("9" * 5000, None, np.inf),
        ("inf", None, np.inf), ("-Infinity", None, -np.inf), ("1e999", None, np.inf),
    ],
)  # fmt: skip
def test_numbers_as_people_write_them(text, whole, real):
    assert read_int(text) == whole
    assert read_float(text) == real
    assert read_float(text, finite=True) == (real if np.isfinite(real) else None)


@each("text", ["", " ", "-", "--5", "+-5", "1_0", "5 5", "5,5", "0x5", "five", "1e", ".", "²", "٣"])
def test_what_people_write_that_is_no_number(text):
    assert read_int(text) is None
    assert read_float(text) is None


def test_integers_longer_than_python_writes():
    for value in (10**5000, -(10**5000)):
        with pytest.raises(InputError, match="got an integer of more than 4300 digits"):
            check_int("rounds", value, least=0, most=5)
    with pytest.raises(InputError, match=r"finite number of at least 0, got 10{59}\.\.\."):
        check_number("tol", 10**400, least=0.0)


@each("dtype", [np.float64, np.float32])
def test_real_data_pass_as_they_are(dtype):
    X = np.ones((3, 2), dtype=dtype)
    assert check_data(X, 2) is X


@each("dtype", [np.int32, np.uint8, bool, np.float16, np.longdouble])
def test_other_numbers_become_double(dtype):
    found = check_data(np.ones((3, 2), dtype=dtype), 2)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, 1)


@each(
    ("X", "said"),
    [
        (np.ones((3, 2), dtype=complex), "must be real numbers, got values of type complex128"),
        ([["a", "b"]], "must be real numbers, got values of type <U1"),
        (np.array([[None, 1.0]], dtype=object), "must be real numbers, got values of type object"),
        (np.ones(2), "must be 2-D .* got 1 dimension"),
        (np.ones((1, 1, 2)), "must be 2-D .* got 3 dimension"),
        (np.float64(1), "must be 2-D .* got 0 dimension"),
        (np.ones((3, 4)), "the agents hold 2 features, the data have 4"),
        (np.ones((0, 2)), "the data have no rows"),
    ],
)
def test_data_of_another_kind(X, said):
    with pytest.raises(InputError, match=said):
        check_data(X, 2)


@each(("value", "word"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_row_and_feature_of_a_value_that_is_not_finite(value, word):
    X = np.zeros((5, 3))
    X[3, 1] = value
    with pytest.raises(InputError, match=f"^row 3, feature 1 is {word}; fill in or remove"):
        check_data(X, 3)
    with pytest.raises(InputError, match=rf"^row 3, feature 1 \('pulse'\) is {word};"):
        check_data(X, 3, ["age", "pulse", "iron"])
    X[4] = np.nan
    with pytest.raises(
        InputError, match=r"^row 3, feature 1 is .*; 4 values in all are not finite;"
    ):
        check_data(X, 3)


@each("weights", [[0, 2, 1], np.array([0.5, 0.0, 1e-9]), [True, False, True], 2])
def test_weights(weights):
    found = check_weights(weights, 3)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, np.broadcast_to(np.asarray(weights, float), 3))


@each(
    ("weights", "said"),
    [
        ([1.0, 2.0], r"must be 3 numbers, got shape \(2,\)"),
        (np.ones((3, 1)), r"must be 3 numbers, got shape \(3, 1\)"),
        (["a", "b", "c"], "of type <U1"),
        ([1.0, -1e-9, 1.0], "finite and not negative"),
        ([1.0, np.nan, 1.0], "finite and not negative"),
        ([1.0, np.inf, 1.0], "finite and not negative"),
        ([0.0, 0.0, 0.0], "must not all be zero"),
    ],
)
def test_what_is_no_weights(weights, said):
    with pytest.raises(InputError, match=said):
        check_weights(weights, 3)


def test_rows_keep_their_order():
    assert check_rows([7, 0, 3], 3, 8).tolist() == [7, 0, 3]


@each(
    ("rows", "said"),
    [
        ([1, 2], "3 components need as many init rows, got 2"),
        ([1, 2, 3, 4], "3 components need as many init rows, got 4"),
        ([1, 2, 8], "must lie between 0 and 7, got"),
        ([-1, 2, 3], "must lie between 0 and 7, got"),
        ([1, 2, 1], "must differ from each other, got"),
        ([1.0, 2.0, 3.0], "must be a list of row indices"),
        ([[1, 2, 3]], "must be a list of row indices"),
        ([1, 2, 10**30], "must be a list of row indices"),
        (["1", "2", "3"], "must be a list of row indices"),
        (3, "must be a list of row indices"),
    ],
)
def test_rows_that_cannot_be_a_start(rows, said):
    with pytest.raises(InputError, match=said):
        check_rows(rows, 3, 8)


def test_one_family_that_python_programs_know_as_its_own():
    for name, builtin in (
        ("InputError", ValueError),
        ("FileError", OSError),
        ("NumericalError", ArithmeticError),
    ):
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


def pickled(error):
    return pickle.loads(pickle.dumps(error))


@over(
    again=[pickled, copy.copy, copy.deepcopy],
    error=[
        *(
            kind("pass ", Setting("max_iter", 3), " or less")
            for kind in (
                VpemError,
                InputError,
                errors.FileError,
                errors.NumericalError,
                errors.PartitionedError,
                errors.VpemWarning,
                errors.NotConvergedWarning,
            )
        ),
        errors.MissingColumnError("no column t", "t"),
        errors.Interrupted("state.h5", 3, 2),
    ],
)
def test_errors_keep_their_parts_between_processes(error, again):
    found = again(error)
    assert type(found) is type(error)
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))
    assert found.sentence_with(lambda setting: f"<{setting.name}>") == error.sentence_with(
        lambda setting: f"<{setting.name}>"
    )
    with pytest.raises(type(error)) as caught:
        raise found from error
    assert caught.value.__cause__ is error


@each("value", ["ring", "", None, 3, ["path"], b"path"])
def test_a_choice_that_is_not(value):
    with pytest.raises(InputError) as caught:
        check_choice("topology", value, ("cycle", "path"))
    assert str(caught.value).startswith(f"topology must be one of cycle, path, got {value!r}")
    assert check_choice("topology", "path", iter(["cycle", "path"])) == "path"


@each(
    ("count", "text"),
    [
        (0, ""),
        (1, "0"),
        (5, "0, 1, 2, 3, 4"),
        (6, "0, 1, 2, 3, 4 and 1 more"),
        (30, "0, 1, 2, 3, 4 and 25 more"),
    ],
)
def test_long_lists_are_shortened(count, text):
    assert shorten(range(count)) == text
    assert shorten(iter(range(count))) == text


def test_weights_whose_sum_nothing_can_be_computed_with():
    most = LARGEST_WEIGHT / 4
    assert check_weights(np.full(4, 0.9 * most), 4).sum() < LARGEST_WEIGHT
    with pytest.raises(InputError, match="sample weights sum to more than 1e"):
        check_weights(np.full(4, 1.1 * most), 4)


def test_a_size_is_a_byte_or_more():
    assert parse_bytes("1") == 1
    with pytest.raises(InputError, match="a size must be a number of bytes such as 600MB or 2G"):
        parse_bytes("0MB")


def test_months_of_two_years_are_dates_and_not_measured():
    months = np.array([100 * year + month for year in (2020, 2021) for month in range(1, 13)])
    assert no_measurement("x", months.astype(float)) == DATED
    assert no_measurement("x", months[:12].astype(float)) != DATED
