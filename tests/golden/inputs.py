"""Files that the cases begin with: small tables drawn here, and what commands make of data."""

from __future__ import annotations

import json
import random

NAMES = ("height", "weight", "pulse", "age", "iron", "sugar")
GRAPH = ("clinic registry", "registry lab", "lab clinic", "lab hospice")


def _normal(draw: random.Random) -> float:
    """Draw about a standard normal number, the same with every version of Python."""
    return sum(draw.random() for _ in range(12)) - 6.0


def _rows(count: int = 48, seed: int = 1) -> list[list[float]]:
    """Draw rows of two clusters that overlap, in which neighbours correlate."""
    draw = random.Random(seed)
    found = []
    for row in range(count):
        plain = [_normal(draw) + 1.7 * (row % 2) for _ in NAMES]
        shared = _normal(draw)
        found.append([round(value + 0.6 * shared, 3) for value in plain])
    return found


def _csv(*lines: list[object]) -> str:
    return "".join(",".join(map(str, line)) + "\n" for line in lines)


def _people(holes: float = 0.0) -> str:
    """Write rows with names and labels, some cells empty."""
    draw = random.Random(2)
    lines: list[list[object]] = [["id", *NAMES, "label"]]
    for number, row in enumerate(_rows()):
        cells = ["" if draw.random() < holes else value for value in row]
        lines.append([f"p{number:02d}", *cells, ("well", "ill")[number % 2]])
    return _csv(*lines)


def _mixed() -> str:
    """Write columns of several types: numbers, words, yes or no, counts, positive ones."""
    jobs = ("nurse", "clerk", "farmer")
    lines: list[list[object]] = [["height", "wage", "job", "smoker", "visits", "days"]]
    for number, row in enumerate(_rows(60, 3)):
        ill = number % 2
        lines.append([
            row[0], round(2.0 ** (row[1] / 2), 3), jobs[int(abs(row[2]) + ill) % 3],
            "true" if row[3] > 1 else "false", int(abs(row[4]) + ill), round(abs(row[5]) + 0.1, 3),
        ])  # fmt: skip
    return _csv(*lines)


def _weighed() -> str:
    lines: list[list[object]] = [["id", *NAMES, "copies", "site"]]
    for number, row in enumerate(_rows()):
        lines.append([f"p{number:02d}", *row, 1 + number % 3, ("north", "south")[number % 2]])
    return _csv(*lines)


def _own(columns: slice, rows: slice) -> str:
    """Write what one party has: some columns of some rows."""
    lines: list[list[object]] = [["id", *NAMES[columns]]]
    own = [[f"p{number:02d}", *row[columns]] for number, row in enumerate(_rows())]
    return _csv(*lines, *own[rows])


def _entries() -> str:
    """Write entries of a matrix of rank 2, as three observers saw them."""
    draw = random.Random(4)
    left = [[_normal(draw) for _ in range(2)] for _ in range(12)]
    right = [[_normal(draw) for _ in range(2)] for _ in range(8)]
    lines: list[list[object]] = [["observer", "row", "column", "value"]]
    for i, one in enumerate(left):
        for j, other in enumerate(right):
            if (i + 2 * j) % 5:
                value = one[0] * other[0] + one[1] * other[1] + 0.1 * _normal(draw)
                lines.append([f"watch {(i + j) % 3}", f"row {i}", f"col {j}", round(value, 3)])
    return _csv(*lines)


def _counts(law: str) -> str:
    """Write whole numbers: counts, or 0 and 1."""
    draw = random.Random(5)
    lines: list[list[object]] = [["observer", "row", "column", "value"]]
    for i in range(10):
        for j in range(6):
            if (i + j) % 4:
                value = int(3 * draw.random() + (i % 2) * (j % 2) * 2)
                shown = min(value, 1) if law == "bernoulli" else value
                lines.append([f"watch {i % 2}", f"r{i}", f"c{j}", shown])
    return _csv(*lines)


def _growth() -> str:
    """Write straight lines with noise, a covariate and a value that is missing."""
    draw = random.Random(6)
    lines: list[list[object]] = [["id", "time", "value", "weight"]]
    for child in range(10):
        level, slope = 10 + 2 * _normal(draw), 1 + 0.3 * _normal(draw)
        for time in range(5):
            value = round(level + slope * time + 0.3 * _normal(draw), 3)
            shown = "" if (child, time) == (3, 2) else value
            lines.append([f"child {child}", time, shown, 20 + child])
    return _csv(*lines)


def _items(persons: int, items: int) -> str:
    """Write items of persons, a line an item."""
    lines: list[list[object]] = [["id", "time", "value"]]
    for person, row in enumerate(_rows(persons, 7)):
        lines += [[f"p{person:02d}", item, value] for item, value in enumerate(row[:items])]
    return _csv(*lines)


def _words() -> str:
    """Write how often words come in documents of two topics."""
    draw = random.Random(11)
    topics = ("boat", "net", "tide", "rope"), ("soup", "salt", "oven", "rope")
    lines: list[list[object]] = [["document", "word", "count"]]
    for document in range(16):
        for word in topics[document % 2]:
            lines.append([f"note {document}", word, 1 + int(4 * draw.random())])
    return _csv(*lines)


def _doses() -> str:
    """Write levels after doses, some of them infusions, in two outcomes."""
    draw = random.Random(8)
    lines: list[list[object]] = [["id", "time", "amt", "rate", "value"]]
    for person in range(8):
        lines.append([person, 0, 100, "." if person % 2 else 50, "."])
        for time in (1, 2, 4, 8):
            level = 4 * 2.0 ** (-time / 4) * (1 + 0.1 * _normal(draw))
            lines.append([person, time, ".", ".", round(level, 3)])
    return _csv(*lines)


def _answers() -> str:
    """Write yes and no over time."""
    draw = random.Random(9)
    lines: list[list[object]] = [["id", "time", "value"]]
    for person in range(14):
        for time in range(6):
            lines.append([person, time, int(draw.random() < 0.3 + 0.08 * time)])
    return _csv(*lines)


def _pulsars() -> str:
    """Write columns as HTRU2 has them, without heads."""
    return _csv(*[[*row, *row[:2], number % 2] for number, row in enumerate(_rows(20, 10))])


def _messages() -> str:
    """Write what a member has noted of two runs."""
    lines: list[dict[str, object]] = []
    for run, words in enumerate(("fit", "predict")):
        lines.append({"time": f"2026-01-0{run + 1}T10:00:00.000000Z",
                      "run": {"id": f"{run:016x}", "command": words, "edition": 2}})  # fmt: skip
        for number, kind in enumerate(("options", "ids", "setup", "estep", "estep", "result")):
            way = "received" if (number + run) % 2 else "sent"
            lines.append({
                "time": f"2026-01-0{run + 1}T10:00:0{number + 1}.000000Z", "way": way,
                "peer": "hub" if number % 3 else "clinic", "kind": kind,
                "bytes": 100 * number + run, "hmac": f"{number:064x}",
            })  # fmt: skip
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


OWN_CURVE = '''"""A curve of one's own."""
import numpy as np


def height(t, end=20.0, rate=0.2):
    return end * (1 - np.exp(-rate * (t + 3.0)))
'''

MANIFEST = """\
[[party]]
name = "clinic"
file = "left.csv"
ids = "id"

[[party]]
name = "lab"
file = "right.csv"
ids = "id"
"""

GRAPHML = """<?xml version="1.0" encoding="utf-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <graph edgedefault="undirected"><node id="clinic"/><node id="registry"/><node id="lab"/>
    <edge source="clinic" target="registry"/><edge source="registry" target="lab"/>
  </graph>
</graphml>
"""

TEXTS = {
    "people.csv": _people(),
    "holes.csv": _people(0.12),
    "mixed.csv": _mixed(),
    "weighed.csv": _weighed(),
    "left.csv": _own(slice(0, 2), slice(0, 44)),
    "middle.csv": _own(slice(2, 4), slice(2, 46)),
    "right.csv": _own(slice(4, 6), slice(3, 48)),
    "north.csv": _own(slice(0, 6), slice(0, 20)),
    "south.csv": _own(slice(0, 6), slice(20, 34)),
    "west.csv": _own(slice(0, 6), slice(34, 48)),
    "parties.toml": MANIFEST,
    "entries.csv": _entries(),
    "counts.csv": _counts("poisson"),
    "marks.csv": _counts("bernoulli"),
    "growth.csv": _growth(),
    "items.csv": _items(40, 6),
    "trio.csv": _items(24, 3),
    "words.csv": _words(),
    "doses.csv": _doses(),
    "answers.csv": _answers(),
    "own.py": OWN_CURVE,
    "german.csv": _people().replace(",", ";").replace(".", ","),
    "known.csv": "id,label\np00,well\np01,ill\np04,well\np07,ill\n",
    "key.txt": "00112233445566778899aabbccddeeff" * 2,
    "partition.json": json.dumps({"clinic": ["height", 3], "registry": [1], "lab": [2, 4, 5]}),
    "relayed.json": json.dumps({
        "clinic": [0, 3], "registry": [1], "hospice": [], "lab": [2, 4, 5]
    }),
    "lab-heart.log": _messages(),
    "pulsars.csv": _pulsars(),
    "workers.json": json.dumps({"a": list(range(20)), "b": list(range(20, 48))}),
    "devices.json": json.dumps({
        "one": [f"child {n}" for n in range(4)], "two": [f"child {n}" for n in range(4, 10)]
    }),
    "graph.txt": "# who talks to whom\n" + "\n".join(GRAPH) + "\n",
    "graph.graphml": GRAPHML,
    "fit.toml": '[fit]\ncomponents = 2\nmax-iter = 3\ncovariance = "diag"\n',
}  # fmt: skip
"""Files that are written as they stand."""

FEW = "--max-iter 4"
"""Iterations of most fits: differences in the last bit have no time to grow."""

MADE = {
    "people.h5": "data import people.csv --label-column label --agents 3 -q -o people.h5",
    "parties": "data split data/wine.h5 --agents 3 --shuffle --drop-ids 0.05 -q -o parties",
    "wine.m.h5": f"fit data/wine.h5 -k 3 {FEW} -q -o wine.m.h5",
    "cycle.m.h5": f"fit data/breast_cancer.h5 --hops 1 {FEW} -q -o cycle.m.h5",
    "rows.m.h5": f"fit people.csv --label-column label --split rows --workers 3 {FEW} -q "
    "-o rows.m.h5",
    "mixed.m.h5": f"fit mixed.csv --family auto --agents 2 {FEW} -q -o mixed.m.h5",
    "holes.m.h5": f"fit holes.csv --label-column label --agents 3 --missing marginalize {FEW} -q "
    "-o holes.m.h5",
    "factors.m.h5": f"fit data/wine.h5 --agents 4 --factors 1 {FEW} -q -o factors.m.h5",
    "together.m.h5": "fit left.csv middle.csv right.csv --parties --align ids --topology star "
    f"{FEW} -q -o together.m.h5",
    "clusters.h5": f"kmeans data/wine.h5 -k 3 --scale standard --workers 3 {FEW} -q -o clusters.h5",
    "fed.m.h5": f"fedem data/wine.h5 -k 3 --workers 4 {FEW} -q -o fed.m.h5",
    "growth.h5": "saem growth.csv --missing marginalize --devices 2 --burn-in 6 --iterations 12 "
    "--conditional-draws 20 --tol 0 -q -o growth.h5",
    "theo.h5": "saem data/theophylline.csv --model one-compartment --random ka,cl --burn-in 6 "
    "--iterations 10 --conditional-draws 10 --importance-draws 100 --tol 0 -q -o theo.h5",
    "factors.h5": "saem items.csv --model bifactor --groups 0,0,0,1,1,1 --burn-in 4 "
    "--iterations 8 --conditional-draws 5 --tol 0 -q -o factors.h5",
    "classes.h5": "saem items.csv --model gmm --burn-in 4 --iterations 8 --conditional-draws 5 "
    "--tol 0 -q -o classes.h5",
    "topics.h5": "saem data/notices.csv --model lda -k 4 --burn-in 3 --iterations 5 "
    "--conditional-draws 2 --importance-draws 20 --tol 0 -q -o topics.h5",
    "filled.h5": "impute entries.csv --rank 2 --ridge 0.5 --max-iter 6 -q -o filled.h5",
}
"""Files, or folders of them, that commands make."""
