"""Run cases of command lines inside one process, and keep all that they leave behind.

It needs nothing of this checkout: run as a program it reads a table of cases as JSON from standard
input, runs each with whatever `vpem` its interpreter has, and prints what came of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAIN = "import sys, vpem_cli; vpem_cli.main(sys.argv[1:])"
ENVIRONMENT = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "MPLBACKEND": "Agg", "TZ": "UTC"}
LAUNCHERS = ("PMI", "OMPI_", "PMIX", "SLURM_", "MPI_", "HYDRA_", "HYDI_")

MASKED = frozenset({"seconds", "iterations_per_second", "versions", "version", "digest"})
"""Keys of numbers and words that differ from run to run, or from machine to machine."""

MASKS = (
    (re.compile(r"\b\d+(\.\d+)?(e-\d+)?( ?)(s|ms|min)\b"), r"#\3\4"),
    (re.compile(r"\b20\d\d-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?(Z|\+00:00)?"), "DATE"),
    (re.compile(r"\bvpem \d+\.\d+\.\d+\S*"), "vpem VERSION"),
    (re.compile(r"\b[0-9a-f]{32,}\b"), "HEX"),
    (re.compile(r"(?<=seconds) +[0-9][0-9.e+-]*|(?<=per second) +[0-9][0-9.e+-]*"), " #"),
)
"""What differs so within text, and what stands in its place."""


# ---- what a command leaves behind ---------------------------------------------------------------


def clean(value: Any, folder: str) -> Any:
    """Return a value without times, dates, versions, and names of temporary folders."""
    if isinstance(value, dict):
        return {name: "#" if name in MASKED else clean(one, folder) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [clean(one, folder) for one in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return str(value)
    if isinstance(value, str):
        value = value.replace(folder, "FOLDER")
        for pattern, instead in MASKS:
            value = pattern.sub(instead, value)
    return value


def text_of(words: str) -> Any:
    """Return the object that a text is the JSON of, or else its lines."""
    if words.lstrip().startswith(("{", "[")):
        with contextlib.suppress(ValueError):
            return json.loads(words)
    return words.splitlines()


def _plain(value: Any) -> Any:
    """Return an element of HDF5, or an array, as JSON can hold it."""
    import numpy as np

    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, np.ndarray):
        if value.dtype.names:
            return {name: _plain(value[name]) for name in value.dtype.names}
        return [_plain(one) for one in value] if value.dtype == object else _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def _hdf5(path: Path) -> dict[str, Any]:
    """Return all attributes and elements of a file, by their paths."""
    import h5py

    found: dict[str, Any] = {}

    def add(name: str, item: Any) -> None:
        for key, value in item.attrs.items():
            found[f"{name}@{key}"] = "#" if key in MASKED else _plain(value)
        if isinstance(item, h5py.Dataset):
            found[f"{name}:type"], found[name] = str(item.dtype), _plain(item[()])
            if _plain(item.attrs.get("encoding-type")) == "json-utf8":
                found[name] = json.loads(item[()].tobytes())

    with h5py.File(path, "r") as file:
        add("/", file)
        file.visititems(add)
    return found


def _table(path: Path) -> dict[str, Any]:
    """Return the columns of a table of Arrow."""
    import pyarrow.feather
    import pyarrow.parquet

    read = pyarrow.parquet.read_table if path.suffix == ".parquet" else pyarrow.feather.read_table
    table = read(path)
    kinds = {
        name: str(kind) for name, kind in zip(table.column_names, table.schema.types, strict=False)
    }
    return {"types": kinds, "columns": table.to_pydict()}


def _page(words: str) -> dict[str, Any]:
    """Return what can be read on a page of HTML or a drawing, and the hash of all of it."""
    kept = re.sub(r"(?s)<(style|script|defs|metadata)\b.*?</\1>", "", words)
    lines = (line.strip() for line in re.sub(r"<[^>]*>", "\n", kept).splitlines())
    told = [line for line in lines if re.search("[A-Za-z]", line)]
    return {"told": told, "sha256": hashlib.sha256(words.encode()).hexdigest()}


def content(path: Path) -> Any:
    """Return what is in a file that a command has written."""
    import h5py

    if path.suffix == ".key":
        return f"a secret, mode {stat.S_IMODE(path.stat().st_mode):o}"
    if path.suffix in (".png", ".pdf"):
        return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    if path.suffix in (".npz", ".npy"):
        import numpy as np

        found = np.load(path)
        arrays = found.items() if path.suffix == ".npz" else [("array", found)]
        return {name: {"type": str(one.dtype), "values": _plain(one)} for name, one in arrays}
    if path.suffix in (".parquet", ".feather"):
        return _table(path)
    if h5py.is_hdf5(path):
        return _hdf5(path)
    words = path.read_bytes().decode("utf-8", "backslashreplace")
    return _page(words) if path.suffix in (".svg", ".html") else text_of(words)


# ---- running ------------------------------------------------------------------------------------


class Caught(io.TextIOWrapper):
    """A stream that keeps what is written to it."""

    def __init__(self, given: bytes = b"") -> None:
        super().__init__(io.BytesIO(given), encoding="utf-8", newline="", write_through=True)

    def told(self) -> str:
        """Return what was written."""
        return self.buffer.getvalue().decode("utf-8")  # type: ignore[attr-defined]


@contextlib.contextmanager
def settled(folder: Path, given: bytes = b"") -> Iterator[tuple[Caught, Caught]]:
    """Be in a folder, on a terminal of a fixed width, with streams that are caught."""
    streams = sys.stdin, sys.stdout, sys.stderr
    kept, place = dict(os.environ), os.getcwd()
    for name in [name for name in os.environ if name.startswith("VPEM_")]:
        if name not in ("VPEM_INSTRUCTIONS",):
            del os.environ[name]
    for name in ("FORCE_COLOR", "LINES"):
        os.environ.pop(name, None)
    os.environ.update(ENVIRONMENT)
    out, err = Caught(), Caught()
    os.chdir(folder)
    sys.stdin, sys.stdout, sys.stderr = Caught(given), out, err
    try:
        with warnings.catch_warnings():
            yield out, err
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        os.chdir(place)
        os.environ.clear()
        os.environ.update(kept)


def _ranks(count: str, words: list[str], folder: Path) -> tuple[int, str, str]:
    """Run a command as so many ranks of an MPI job."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
    line = [shutil.which("mpiexec", path=beside) or "mpiexec", "-n", count]
    plain = {name: one for name, one in os.environ.items() if not name.startswith(LAUNCHERS)}
    plain |= {**ENVIRONMENT, "OMP_NUM_THREADS": "1", "HWLOC_XMLFILE": ""}
    done = subprocess.run(
        [*line, sys.executable, "-c", MAIN, *words, "--engine", "mpi"], cwd=folder, env=plain,
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def run_line(line: str, folder: Path) -> tuple[int, str, str]:
    """Run one command line: exit code, standard output, standard error.

    ``< FILE`` and ``> FILE`` are as in a shell, and ``mpiexec N`` in front asks for N ranks.
    """
    import vpem_cli

    words = shlex.split(line)
    target, given = None, b""
    while len(words) > 2 and words[-2] in ("<", ">"):
        *words, sign, name = words
        if sign == "<":
            given = (folder / name).read_bytes()
        else:
            target = folder / name
    if words[0] == "mpiexec":
        return _ranks(words[1], words[2:], folder)
    with settled(folder, given) as (out, err):
        code = vpem_cli.run(words)
        told = out.told()
    if target is not None:
        target.write_text(told, encoding="utf-8")
        told = ""
    return code, told, err.told()


class Workshop:
    """Files that cases begin with, each made once, and folders in which cases are run.

    Parameters
    ----------
    home : Path
        An empty folder.
    data : Path
        The datasets of a checkout, which cases see as ``data``.
    texts : dict of str to str
        Files that are written as they stand.
    made : dict of str to str
        Files, or folders of them, and the commands that make them.
    """

    def __init__(self, home: Path, data: Path, texts: dict[str, str], made: dict[str, str]) -> None:
        self.home, self.data, self.texts, self.made = home, data, texts, made
        (home / "made").mkdir()
        (home / "made" / "data").symlink_to(data)
        self.count = 0

    def needs(self, line: str) -> set[str]:
        """Return the files that a command line names, and those that these name in turn."""
        words = set(re.split(r"[\s=:\"']+", line))
        firsts = words | {word.partition("/")[0] for word in words}
        found = {name for name in firsts if name in self.texts or name in self.made}
        for name in list(found):
            if name in self.texts and name.endswith((".toml", ".json")):
                found |= self.needs(self.texts[name]) - {name}
        return found

    def _make(self, name: str) -> None:
        """Make a file where it is not there yet."""
        place = self.home / "made" / name
        if place.exists():
            return
        if name in self.texts:
            place.write_text(self.texts[name], encoding="utf-8")
            return
        line = self.made[name]
        for other in self.needs(line) - {name}:
            self._make(other)
        code, _, err = run_line(line, self.home / "made")
        if code not in (0, 3) or not place.exists():
            raise RuntimeError(f"vpem {line} has not made {name}: {err}")

    def run(self, lines: list[str]) -> dict[str, Any]:
        """Run the command lines of a case in a folder of their own: what each left behind."""
        self.count += 1
        folder = self.home / f"{self.count}"
        folder.mkdir(mode=0o700)
        (folder / "data").symlink_to(self.data)
        needed = set().union(*map(self.needs, lines))
        for name in sorted(needed):
            self._make(name)
            source = self.home / "made" / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / name)
        before = {path for path in folder.rglob("*") if path.is_file()}
        steps = []
        for line in lines:
            code, out, err = run_line(line, folder)
            step = {"vpem": line, "code": code, "out": text_of(out), "err": err.splitlines()}
            steps.append(step)
        kept = {
            str(path.relative_to(folder)): content(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path not in before and not path.is_symlink()
        }
        found = {"steps": steps} | ({"files": kept} if kept else {})
        shutil.rmtree(folder)
        return clean(found, str(folder))


def quick() -> None:
    """Make the tree of commands once: that takes as long as a small fit."""
    from functools import cache

    import vpem_cli.app

    if not hasattr(vpem_cli.app.command, "cache_info"):
        vpem_cli.app.command = cache(vpem_cli.app.command)


def main() -> int:
    """Run the cases of standard input, and write what came of them to the file that is named."""
    given = json.load(sys.stdin)
    quick()
    found = {}
    with tempfile.TemporaryDirectory(prefix="vpem-golden-") as home:
        shop = Workshop(Path(home), Path(given["data"]), given["texts"], given["made"])
        for name, lines in given["cases"].items():
            try:
                found[name] = shop.run(lines)
            except Exception as error:
                found[name] = {"failed": f"{type(error).__name__}: {error}"}
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
