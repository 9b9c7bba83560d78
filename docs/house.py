"""Count and draw the house: ``python docs/house.py [CHECKOUT] [--json] [--picture FILE]``.

A room is a folder of ``vpem/``, a module that lies loose beside them, or the command line. An arrow
leads from a room to one whose modules it imports, anywhere in its code, type checking aside.
Everything is read from the text: nothing of the checkout is imported or run.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx as nx

GROUND = ("__init__", "errors", "checks", "records", "rules", "settings")
"""Modules of ``vpem/`` on which every room may stand: no arrows lead to them."""

ALLOWED = {
    "_core": "",
    "network": "_core",
    "engines": "network",
    "terms": "network _core",
    "sums": "engines network _core",
    "steps": "terms sums engines network _core",
    "files": "terms engines network _core",
    "saem": "steps sums files terms engines network _core",
    "fits": "steps sums files terms engines network _core",
    "pictures": "saem fits steps sums files terms engines network _core",
    "cli": "pictures saem fits steps sums files terms engines network _core",
}
"""The arrows that may be, by the room they come from."""

FLOORS_OF_COMMANDS = "names display outputs options session data runner commands study app"
"""Files and folders of the command line, from the ground up: imports go down."""

DIALECT = ("told", "asked", "whoever", "nobody", "somebody", "wanted", "anew", "taken back",
           "fell apart", "is of", "may tell", "what there is")  # fmt: skip
"""Words that are not the field's, of which there may be fewer from commit to commit only."""

COMMAND_LINE = "vpem.__main__"
"""What stands in the library but is none of it: ``python -m vpem``."""


@dataclass(frozen=True)
class Module:
    """A file of Python: its dotted name, where it is, what it says."""

    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The file as it is parsed."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All that is in it: to walk takes longer than to parse."""
        return [*ast.walk(self.tree)]

    @property
    def room(self) -> str:
        """The room it is in."""
        if self.path.parts[0] == "cli" or self.name == COMMAND_LINE:
            return "cli"
        return Path(self.path.parts[1]).stem

    @cached_property
    def imports(self) -> list[str]:
        """Dotted names that it imports, wherever in it; relative ones from the top."""
        names: list[str] = []
        package = self.name.split(".")[: None if self.path.name == "__init__.py" else -1]
        skipped: set[ast.AST] = set()
        for node in self.nodes:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                skipped |= {inner for part in node.body for inner in ast.walk(part)}
            elif isinstance(node, ast.Import) and node not in skipped:
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node not in skipped:
                base = package[: len(package) - node.level + 1] if node.level else []
                home = ".".join([*base, *filter(None, [node.module])])
                names += [f"{home}.{alias.name}" for alias in node.names]
        return names

    def functions(self) -> Iterator[tuple[str, int, int]]:
        """Place, lines of the body without its docstring, and parameters of each function."""
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                a = node.args
                names = [each.arg for each in a.posonlyargs + a.args + a.kwonlyargs]
                body = node.body[ast.get_docstring(node) is not None :]
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                count = len([name for name in names if name not in ("self", "cls")])
                yield f"{self.path}:{node.lineno} {node.name}", lines, count


class House:
    """A checkout, read."""

    def __init__(self, root: Path) -> None:
        suffixes = (".py", ".pyx", ".pxd", ".inc", ".h")
        paths = sorted(path for top in ("vpem", "cli") for path in (root / top).rglob("*"))
        texts = {path.relative_to(root): path.read_text(encoding="utf-8")
                 for path in paths if path.suffix in suffixes}  # fmt: skip
        self.texts = texts
        self.modules = [
            Module(".".join(path.with_suffix("").parts).removesuffix(".__init__"), path, text)
            for path, text in texts.items()
            if path.suffix == ".py"
        ]
        inner = {each.room for each in self.modules if each.path.parts[0] == "vpem"}
        self.folders = sorted(room for room in inner if (root / "vpem" / room).is_dir())
        self.loose = sorted(inner - {*self.folders, "__init__", "cli"})

    @cached_property
    def graph(self) -> nx.DiGraph:
        """Rooms and arrows; an arrow's ``where`` lists the imports it stands for."""
        found = nx.DiGraph()
        found.add_nodes_from(each.room for each in self.modules if each.room not in GROUND)
        for each in self.modules:
            for name in each.imports:
                top, *rest = name.replace("vpem_cli", "cli").split(".")
                room = top if top == "cli" else rest[0] if rest and top == "vpem" else ""
                if room in found and room != each.room in found:
                    where = found.edges.get((each.room, room), {}).get("where", [])
                    found.add_edge(each.room, room, where=[*where, f"{each.path}: {name}"])
        return found

    def rooms(self) -> dict[str, tuple[int, int]]:
        """Lines and files of every room, kernels too; what lies loose is the ground."""
        sizes: dict[str, tuple[int, int]] = {}
        for path, text in self.texts.items():
            top, name, *deeper = path.parts
            room = "cli" if top == "cli" else name if deeper else "ground"
            lines, files = sizes.get(room, (0, 0))
            counted = path.suffix in (".py", ".pyx")
            sizes[room] = (lines + text.count("\n"), files + counted)
        return sizes

    def circles_of_files(self) -> list[list[str]]:
        """Files that import each other, round about, wherever in them."""
        names = {each.name.replace("vpem_cli", "cli") for each in self.modules}
        graph: nx.DiGraph = nx.DiGraph()
        for each in self.modules:
            for name in each.imports:
                home = name.replace("vpem_cli", "cli")
                home = home if home in names else home.rpartition(".")[0]
                if home in names and home != each.name:
                    graph.add_edge(each.name, home)
        parts = nx.strongly_connected_components(graph)
        return sorted(sorted(part) for part in parts if len(part) > 1)

    def climbs(self) -> list[str]:
        """Imports inside the command line that go up, wherever they stand.

        Imports by strings could lead anywhere, and are for the highest floor, which loads the rest.
        """
        height = {name: number for number, name in enumerate(FLOORS_OF_COMMANDS.split())}
        top = len(height)  # the entry point
        found = []
        for each in self.modules:
            floor = height.get(each.name.split(".")[1] if "." in each.name else "", top)
            for name in each.imports if each.room == "cli" else ():
                package, *rest = name.split(".")
                up = package in ("cli", "vpem_cli") and floor < height.get((*rest, "")[0], top)
                if up or (package == "importlib" and floor < height["app"]):
                    found.append(f"{each.path}: {name}")
        return found

    def names_twice(self) -> list[str]:
        """Classes of one name in two places."""
        names = Counter(
            node.name
            for each in self.modules
            for node in each.nodes
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        )
        return sorted(name for name, count in names.items() if count > 1)

    def dialect(self) -> int:
        """How often the words of `DIALECT` are used."""
        words = re.compile(rf"\b(?:{'|'.join(DIALECT)})\b")
        return sum(len(words.findall(each.text)) for each in self.modules)

    def sentence(self, room: str) -> str:
        """What its docstring says first."""
        first = next(each for each in self.modules if each.name in (room, f"vpem.{room}"))
        return re.split(r"[.;] |\.$", (ast.get_docstring(first.tree) or "").split("\n")[0])[0]

    def circles(self) -> list[list[str]]:
        """Rooms that import each other, round about."""
        parts = nx.strongly_connected_components(self.graph)
        return sorted(sorted(part) for part in parts if len(part) > 1)

    def floors(self) -> list[list[str]]:
        """Rooms floor by floor from the lowest; those of a circle share one."""
        folded = nx.condensation(self.graph)
        parts = nx.topological_generations(folded.reverse())
        members = folded.nodes(data="members")
        return [sorted(room for part in floor for room in members[part]) for floor in parts]

    def wrong(self) -> list[tuple[str, str]]:
        """Arrows of a circle, and those that `ALLOWED` does not have."""
        home = {room: number for number, part in enumerate(self.circles()) for room in part}
        return [
            (a, b)
            for a, b in self.graph.edges
            if (a in home and home[a] == home.get(b))
            or (a in ALLOWED and b in ALLOWED and b not in ALLOWED[a].split())
        ]

    def counts(self) -> dict[str, Any]:
        """All that is counted, with the places that are too long or too wide."""
        functions = [each for module in self.modules for each in module.functions()]
        wide = [w for w, _, count in functions if count > 12 and not w.endswith("__init__")]
        large = [str(each.path) for each in self.modules if each.text.count("\n") > 800]
        return {
            "folders": len(self.folders),
            "loose modules": len(self.loose),
            "floors": len(self.floors()),
            "arrows": self.graph.number_of_edges(),
            "wrong arrows": [f"{a} -> {b}" for a, b in self.wrong()],
            "circles": self.circles(),
            "functions of more than 100 lines": [
                where for where, lines, _ in functions if lines > 100
            ],
            "functions of more than 12 parameters": wide,
            "files of more than 800 lines": large,
            "files of less than 120 lines": [
                str(each.path)
                for each in self.modules
                if each.text.count("\n") < 120 and not each.path.name.startswith("__")
            ],
            "circles of files": self.circles_of_files(),
            "names of two classes": self.names_twice(),
            "words that are not the field's": self.dialect(),
            "Any": sum(len(re.findall(r"\bAny\b", each.text)) for each in self.modules),
            "lines": sum(lines for lines, _ in self.rooms().values()),
            "files": sum(files for _, files in self.rooms().values()),
        }


def draw(house: House, path: Path) -> None:
    """Draw rooms floor by floor: an arc on the right for an arrow, on the left for a wrong one."""
    from matplotlib import pyplot as plt
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    floors, wrong = house.floors(), set(house.wrong())
    rooms = [room for floor in reversed(floors) for room in floor]
    said = {room: house.sentence(room) for room in rooms}
    said["ground"] = ", ".join(room for room in house.loose if room in GROUND) + ": all stand on it"
    y = {room: -float(number) for number, room in enumerate(said)}
    needed = nx.transitive_reduction(nx.DiGraph([e for e in house.graph.edges if e not in wrong]))
    bows = {(a, b): 0.25 + 0.35 * abs(y[a] - y[b]) ** 0.75 for a, b in house.graph.edges}
    text = 0.3 + 0.12 * max(map(len, said))  # in inches, as all that is across
    end = text + 0.2 + 0.068 * max(map(len, said.values()))
    left = -0.9 - 0.8 * max((bows[edge] for edge in wrong), default=0)
    size = (end + 0.3 + 0.8 * max(bows.values()) - left, 0.4 * (len(said) + 1))
    figure, axes = plt.subplots(figsize=size)
    figure.subplots_adjust(0, 0, 1, 1)
    axes.set(xlim=(left, left + size[0]), ylim=(0.5 - len(said), 1.5))
    for number, floor in enumerate(floors):
        low, high = min(y[room] for room in floor) - 0.5, max(y[room] for room in floor) + 0.5
        axes.axhspan(low, high, color="#F1F1F1" if number % 2 else "#FFFFFF", zorder=0)
        axes.text(left + 0.1, (low + high) / 2, f"floor {number}", va="center", color="#666666")
    for room, sentence in said.items():
        axes.text(0, y[room], room, va="center", weight="bold", size=11)
        axes.text(text, y[room], sentence, va="center", size=9, color="#333333")
    for a, b in sorted(bows, key=lambda edge: edge in needed.edges):
        bad, near = (a, b) in wrong, (a, b) in needed.edges
        x, far = (-0.1, -0.1 - bows[a, b]) if bad else (end, end + bows[a, b])
        curve = Curve([(x, y[a]), (far, y[a]), (far, y[b]), (x, y[b])], [1, 4, 4, 4])
        colour = "#C00000" if bad else "#1F4E79" if near else "#B4C4D6"
        axes.add_patch(FancyArrowPatch(path=curve, arrowstyle="-|>", mutation_scale=9, color=colour,
                                       lw=1.5 if bad or near else 0.8))  # fmt: skip
    red = f"{len(wrong)} wrong ones are red, on the left" if wrong else "none is wrong"
    legend = f"Arcs lead down to what a room imports (pale: implied by the dark); {red}."
    axes.text(0, 1, legend, va="center", size=9)
    axes.axis("off")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print the counts, as a table or as JSON, and draw the picture if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--json", action="store_true", help="everything, places as lists")
    parser.add_argument("--picture", type=Path, help="write it here (.png, .svg, .pdf)")
    asked = parser.parse_args()
    house = House(asked.checkout)
    counts = house.counts()
    if asked.json:
        print(json.dumps(counts, indent=1))
    else:
        for name, value in counts.items():
            print(f"{len(value) if isinstance(value, list) else value:>7,}  {name}")
    if asked.picture:
        draw(house, asked.picture)


if __name__ == "__main__":
    main()
