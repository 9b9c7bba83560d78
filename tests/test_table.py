"""What goes with what: every cell of the table works as the plain algorithm, or says why not."""

from importlib import import_module

import pytest

from vpem.errors import InputError
from vpem.rules import ALGORITHMS, OF_COMMANDS, WAYS, refusal

CELLS = [(algorithm, way) for algorithm in ALGORITHMS for way in WAYS]


@pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
@pytest.mark.parametrize(("algorithm", "way"), CELLS)
def test_cell(algorithm, way, tmp_path):
    """``CELLS[way](tmp_path)`` of `cells_...` asserts what works, or asks for what is refused.

    What works is compared with the plain algorithm, and over a sum, an engine or a file with the
    same in one process, at a server, in memory.
    """
    cells = import_module(f"tests.cells_{algorithm.replace('-', '_')}").CELLS
    why = refusal(algorithm, way)
    if why is None:
        cells[way](tmp_path)
        return
    with pytest.raises(InputError) as caught:
        cells[way](tmp_path)
    assert caught.value.parts[1:] == why.parts[1:]


def test_every_algorithm_is_of_a_command():
    assert {one for algorithms in OF_COMMANDS.values() for one in algorithms} == set(ALGORITHMS)
