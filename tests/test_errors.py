import copy
import pickle

import pytest

import vpem
from vpem import errors
from vpem.errors import InputError, Setting, VpemError, check_choice, did_you_mean, shorten

from .tables import each, over


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


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("cyle", "cycle"), ("CYCLE", "cycle"), ("small_world", "small-world"), ("pth", "path")],
)
def test_the_nearest_name(name, nearest):
    choices = ("cycle", "path", "small-world")
    assert did_you_mean(name, choices) == f" (did you mean {nearest!r}?)"
    with pytest.raises(InputError, match=f"did you mean '{nearest}'"):
        check_choice("topology", name, choices)


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


def test_nothing_is_near():
    assert did_you_mean("zzz", ("cycle", "path")) == ""
    assert did_you_mean("cycle", ()) == ""


def test_a_choice_that_is_there():
    assert check_choice("topology", "path", ("cycle", "path")) == "path"


@each("value", ["ring", "", None, 3, ["path"], b"path"])
def test_a_choice_that_is_not(value):
    with pytest.raises(InputError) as caught:
        check_choice("topology", value, ("cycle", "path"))
    assert str(caught.value).startswith(f"topology must be one of cycle, path, got {value!r}")


def test_choices_may_be_used_up():
    assert check_choice("topology", "path", iter(["cycle", "path"])) == "path"
    with pytest.raises(InputError, match=r"one of cycle, path, got 'pat' .did you mean 'path'"):
        check_choice("topology", "pat", iter(["cycle", "path"]))


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
