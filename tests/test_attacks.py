"""What adversaries learn, as the page about them says: each attack is carried out."""

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.attacks import ATTACKS

from .tls_support import CuttingProxy, a_study, at_once, dialled_at, posts

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "adversaries.md"


def told(page):
    """Read the table of attacks: by name what was found, and by which files."""
    table = page[page.index("## The attacks") :]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0]: row[1:] for row in rows if len(row) == 3 and "`" in row[2]}


def test_the_page_names_every_attack_and_files_that_are_there():
    found = told(PAGE.read_text())
    named = {name for name, (_, files) in found.items() if "benchmarks/attacks.py" in files}
    assert named == set(ATTACKS)
    for _, files in found.values():
        for file in re.findall("`([^`]+)`", files):
            assert (PAGE.parents[2] / file).is_file(), file


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_finds_what_the_page_says(name):
    says, found = told(PAGE.read_text())[name][0], ATTACKS[name]()
    if says in ("0.2 at most", "4 at most"):
        assert float(found) <= float(says.split()[0])
    elif says == "more than 4":
        assert float(found) > 4
    elif says == "off by more than its values":
        assert float(found.removeprefix("off by ")) > 1  # of the largest value there is
    elif re.fullmatch(r"\d\.\d\d", says):
        assert float(found) == pytest.approx(float(says), abs=0.011)
    else:
        assert found == says


class Wiretap(CuttingProxy):
    """A line on which somebody keeps all that passes."""

    def __init__(self, target):
        super().__init__(target)
        self.kept = bytearray()

    def hear(self, data):
        self.kept += data


def test_who_carries_messages_sees_none_of_the_data(tmp_path):
    roster, identities, sockets = a_study(tmp_path, ("hub", "lab"))
    X = np.random.default_rng(0).normal(size=60_000)
    with Wiretap(roster.members[0].address) as line:
        through = dialled_at(roster, "hub", line.address)
        with posts(through, identities, sockets) as (hub, lab):
            lab.put(0, 5, X.tobytes())
            hub.put(1, 5, X.tobytes())
            both = at_once([lambda: hub.receive(1, 5), lambda: lab.receive(0, 5)])
    assert all(bytes(one) == X.tobytes() for one in both)
    assert len(line.kept) > 2 * X.nbytes
    assert not any(value.tobytes() in line.kept for value in X[:200])
