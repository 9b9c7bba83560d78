"""What goes with what: every cell of the table works as the plain algorithm, or says why not."""

from importlib import import_module

import pytest

from vpem.errors import InputError
from vpem.idle import ALGORITHMS, REFUSED, WAYS, refusal
from vpem_cli.options import INSTEAD, ROWS

from .cli_support import run
from .tables import each

CELLS = [(algorithm, way) for algorithm in ALGORITHMS for way in WAYS]


@pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
@pytest.mark.parametrize(("algorithm", "way"), CELLS)
def test_cell(algorithm, way, tmp_path):
    """``CELLS[way](tmp_path)`` of `cells_...` asserts what works, or asks for what is refused.

    What works is compared with the plain algorithm, and over a sum, an engine or a file with the
    same in one process, at a server, in memory.
    """
    cells = import_module(f"tests.cells_{algorithm.replace('-', '_')}").CELLS
    if (algorithm, way) not in REFUSED:
        cells[way](tmp_path)
        return
    with pytest.raises(InputError) as caught:
        cells[way](tmp_path)
    assert caught.value.parts == refusal(algorithm, way).parts


def test_refused_cells_are_of_the_table():
    assert set(REFUSED) <= set(CELLS)
    assert {row for rows in ROWS.values() for row in rows} == set(ALGORITHMS)


WITHOUT = [
    (command, flag) for command, rows in ROWS.items() for way, asked in WAYS.items()
    if all((row, way) in REFUSED for row in rows) for flag in asked.flags
]  # fmt: skip
"""Options that no algorithm of a command can have."""


@each("command", ["impute", "saem"])
def test_options_that_no_algorithm_of_a_command_has_say_why(capsys, command):
    flags = [flag for one, flag in WITHOUT if one == command]
    assert flags == ["--memory-limit"]
    for flag in flags:
        found = run(capsys, command, "data.h5", flag)
        assert (found.code, found.out) == (2, "")
        assert found.sentence == str(refusal(ROWS[command][0], "disk"))


@each("asked", INSTEAD)
def test_an_option_of_others_leads_to_what_a_command_has_for_it(capsys, asked):
    command, flag = asked
    found = run(capsys, command, "data.h5", flag, "0.2")
    assert (found.code, found.out) == (2, "")
    assert found.sentence == f"{flag}: {INSTEAD[asked]}"
