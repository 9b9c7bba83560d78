"""Tables of cases: all rows in one test, every pair of values in few rows, or every value once."""

import functools
import inspect
from itertools import combinations

import pytest


def pairs(**axes):
    """Rows in which any value of an argument meets any value of any other one.

    Where two arguments matter together, some row has them; the whole product has many more rows.
    The rows are the same in each run. A single argument has a row a value.
    """
    values = [list(axis) for axis in axes.values()]
    if len(values) == 1:
        return [(value,) for value in values[0]]
    places = [[(axis, level) for level in range(len(some))] for axis, some in enumerate(values)]
    missing = dict.fromkeys(
        (one, other) for first, second in combinations(places, 2) for one in first
        for other in second
    )  # fmt: skip
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for levels in places:
            if levels[0][0] not in row:
                gains = [
                    sum(tuple(sorted([place, taken])) in missing for taken in row.items())
                    for place in levels
                ]
                row.update([levels[gains.index(max(gains))]])
        for pair in combinations(sorted(row.items()), 2):
            missing.pop(pair, None)
        rows.append(tuple(some[row[axis]] for axis, some in enumerate(values)))
    return rows


def each_once(**axes):
    """Mark: a test of its own for every row of as few as have every value of every argument.

    For what takes its time, and where arguments have nothing to do with each other.
    """
    values = [list(axis) for axis in axes.values()]
    rows = [[some[row % len(some)] for some in values] for row in range(max(map(len, values)))]
    return pytest.mark.parametrize(list(axes), rows)


def pairwise(**axes):
    """Mark: a test of its own for every row of `pairs`."""
    return pytest.mark.parametrize(list(axes), pairs(**axes))


def over(**axes):
    """Run a test for all rows of `pairs`, one after the other."""
    return each(list(axes), pairs(**axes))


def each(names, rows):
    """Run a test for all rows of a table, one after the other; a failure names its row.

    The arguments are those of `pytest.mark.parametrize`; there is one test instead of many.
    """
    if isinstance(names, str):
        names, rows = [names], [(row,) for row in rows]
    cases = [dict(zip(names, row, strict=True)) for row in rows]

    def decorate(test):
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(**fixtures):
            for case in cases:
                try:
                    test(**fixtures, **case)
                except BaseException as error:
                    error.add_note(f"in the case {case}")
                    raise

        kept = [one for name, one in signature.parameters.items() if name not in names]
        run.__signature__ = signature.replace(parameters=kept)
        del run.__wrapped__
        return run

    return decorate
