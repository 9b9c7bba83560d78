"""Doses of individuals: lines of tables that say them, kept by whatever keeps individuals."""

from dataclasses import replace

import numpy as np
import pytest

from vpem.errors import InputError
from vpem.saem.doses import Doses, doses_of
from vpem.saem.formats.individuals import chain, numbered_as, read_individuals, write_individuals

from .tables import each

TABLE = """ID,TIME,AMT,DV,RATE,ADDL,II,outcome,censored
a,0,100,.,,2,12,pk,
a,1,.,5,.,.,.,pk,0
a,13,.,8,.,.,.,pd,1
b,7,40,,0,0,0,.,.
b,0,100,.,50,,,pk,
b,3,,4,,,,pd,0
"""
COLUMNS = {"id": "ID", "time": "TIME", "value": "DV"}


def read(tmp_path, text, **options):
    """Individuals of a table."""
    (tmp_path / "doses.csv").write_text(text)
    return read_individuals(tmp_path / "doses.csv", **{**COLUMNS, "doses": {}, **options})


def told(found):
    """What doses are, without arrays."""
    doses = found.doses
    return list(zip(doses.individual_of.tolist(), *(one.tolist() for one in doses.columns),
                    strict=True))  # fmt: skip


A = [(0, 0.0, 100.0, 0.0), (0, 12.0, 100.0, 0.0), (0, 24.0, 100.0, 0.0)]
B = [(1, 0.0, 100.0, 2.0), (1, 7.0, 40.0, 0.0)]


def test_lines_with_an_amount_are_doses(tmp_path):
    found = read(tmp_path, TABLE)
    assert told(found) == A + B
    assert (found.names, found.counts.tolist()) == (("a", "b"), [2, 1])
    assert found.covariates["outcome"].tolist() == [1.0, 0.0, 0.0]
    assert found.columns["words"] == {"outcome": ["pd", "pk"]}
    assert set(found.covariates) == {"outcome", "censored"}
    write_individuals(tmp_path / "doses.h5", found)
    again = read_individuals(tmp_path / "doses.h5")
    assert told(again) == A + B
    assert again.columns["words"] == found.columns["words"]
    swapped = found.take([1, 0])
    assert told(swapped) == [(0, *one[1:]) for one in B] + [(1, *one[1:]) for one in A]
    assert told(chain([found.take([0]), found.take([1])])) == A + B


def test_names_of_columns_may_be_others(tmp_path):
    found = read(tmp_path, TABLE.replace("AMT", "given"), doses={"amt": "given"})
    assert told(found) == A + B
    evid = "ID,TIME,AMT,DV,EVID,MDV\na,0,9,3,1,1\na,1,0,5,0,0\na,2,0,7,2,1\na,3,,7,0,1\n"
    found = read(tmp_path, evid)
    assert (told(found), found.values.tolist()) == ([(0, 0.0, 9.0, 0.0)], [5.0])


def test_parties_share_doses_and_the_numbers_of_words(tmp_path):
    one, other = read(tmp_path, TABLE), read(tmp_path, TABLE.replace("pk", "cp"))
    other = replace(other, names=("c", "d"))
    both = chain([one, other])
    assert both.columns["words"] == {"outcome": ["cp", "pd", "pk"]}
    assert both.covariates["outcome"].tolist() == [2.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    with pytest.raises(InputError, match="outcome has 'cp', where others have 'pd', 'pk'"):
        numbered_as(other, one.columns["words"])
    by_covariate = replace(
        one, names=("c", "d"), doses=None, covariates={**one.covariates, "dose": np.full(3, 6.0)}
    )
    assert told(chain([one, by_covariate])) == [*A, *B, (2, 0.0, 6.0, 0.0), (3, 0.0, 6.0, 0.0)]
    assert doses_of(by_covariate).amounts.tolist() == [6.0, 6.0]


@each(["old", "new", "message"], [
    (".,5,.", "3,5,.", "line 3 has both an amount, 3, and a measurement; write two lines"),
    (",2,12", ",2,", "line 2 has addl 2 without a time between doses, ii"),
    (",2,12", ",1.5,12", "line 2 has addl 1.5, which must be a whole number"),
    (",50,,", ",-2,,", "line 6 has rate -2, which must not be negative"),
    ("0,100,.,50", "0,-1,.,50", "line 6 has a dose of -1"),
    ("b,3", "c,3", "'b' had doses, but nothing was measured"),
    ("AMT", "amount", "no column 'amt' with the amounts of doses; name it, such as --doses amt="),
    ("1,.,5", "1,.,", "line 3 has '' for 'DV', no finite number"),
    ("ADDL", "SS", "line 2 has ss 2"),
    ("ADDL", "EVID", "line 2 has amt 100, but evid says that it is no dose"),
    ("ADDL", "mdv", "line 2 has mdv 2, which is 0 or 1"),
    (",2,12", ",99999999,12", "has 100000002 doses; at most"),
])  # fmt: skip
def test_lines_without_a_meaning_are_refused(tmp_path, old, new, message):
    assert old in TABLE
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        read(tmp_path, TABLE.replace(old, new, 1))


def test_doses_in_any_order_are_sorted():
    doses = Doses.from_lists(
        3, np.array([2, 0, 2]), np.array([5.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])
    )
    assert (doses.first.tolist(), doses.amounts.tolist()) == ([0, 1, 1, 3], [2.0, 3.0, 1.0])
    with pytest.raises(InputError, match="no covariate 'dose'"):
        doses_of(read_nothing())


def read_nothing():
    """Individuals without doses."""
    from vpem.saem.individuals import from_matrix

    return from_matrix(np.ones((2, 2)))
