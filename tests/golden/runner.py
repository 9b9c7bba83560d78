"""Run cases of command lines inside one process, and keep all that they leave behind.

It needs nothing of this checkout: run as a program it reads a table of cases as JSON from standard
input, runs each with whatever `vpem` its interpreter has, and prints what came of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import multiprocessing.spawn  # noqa: F401 - it takes the interpreter that there is at first
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

MAIN = "import sys, vpem_cli; vpem_cli.main(sys.argv[1:])"
ENVIRONMENT = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "MPLBACKEND": "Agg", "TZ": "UTC"}
LAUNCHERS = ("PMI", "OMPI_", "PMIX", "SLURM_", "MPI_", "HYDRA_", "HYDI_")

MASKED = frozenset({
    "seconds", "iterations_per_second", "versions", "version", "vpem", "digest", "words",
    "n_threads", "variables",
})  # fmt: skip
"""Keys of numbers and words that differ from run to run, or from machine to machine."""


NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
MASKS = (
    (re.compile(rf"\b{NUMBER}(?= (?:s|ms|minutes?|hours?)\b)"), "#"),
    (re.compile(rf"(?<=seconds) +{NUMBER}|(?<=per second) +{NUMBER}"), " #"),
    (re.compile(r" *\b\d(?:\.\d+)?e-(?:1[2-9]|[2-9]\d|\d{3})\b"), " ~0"),  # rounding alone
    (re.compile(r"\b20\d\d-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?(?:Z|\+00:00)?"), "DATE"),
    (re.compile(r"\bvpem(?: | = \"|-)\d+\.\d+\.\d+\S*"), "vpem VERSION"),
    (re.compile(r"\b(python|numpy|scipy|h5py) \d+(?:\.\w+)+"), r"\1 VERSION"),
    (re.compile(r"\b[0-9a-f]{32,}\b"), "HEX"),
    (re.compile(r"(?<![\w+/])[0-9A-Za-z+/]{60,}={0,2}"), "BASE64"),
    (re.compile(r"(?s)-----BEGIN ([A-Z ]+)-----.*?-----END \1-----"), r"PEM of a \1"),
)
"""What differs so within text, and what stands in its place."""

SLOW = re.compile(r"DATE \(after |note: the result will not be kept")
"""Lines that are told where something takes more than a second."""


# ---- what a command leaves behind ---------------------------------------------------------------


def _is_of_run(name: str, value: Any) -> bool:
    """Whether a value is a name that was drawn at random, or foretells times on this machine."""
    drawn = name in ("id", "run") and re.fullmatch("[0-9a-f]{16,}", str(value))
    return bool(drawn) or (name == "time" and isinstance(value, dict))


def clean(value: Any, hidden: dict[str, str]) -> Any:
    """Return a value without times, dates, versions, and with other words for hidden ones."""
    if isinstance(value, dict):
        return {
            clean(name, hidden): "#" if name in MASKED or _is_of_run(name, one)
            else clean(one, hidden)
            for name, one in value.items()
        }  # fmt: skip
    if isinstance(value, list | tuple):
        return [clean(one, hidden) for one in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return str(value)
    if isinstance(value, str):
        for word, instead in hidden.items():
            value = value.replace(word, instead)
        for pattern, instead in MASKS:
            value = pattern.sub(instead, value)
    return value


@cache
def _twelve() -> re.Pattern[str]:
    """Return what finds the words of a fingerprint, of which there are six in a line."""
    from mnemonic import Mnemonic

    word = "|".join(Mnemonic("english").wordlist)
    return re.compile(rf"\b(?:(?:{word}) ){{5}}(?:{word})\b")


def text_of(words: str, of_members: bool = False) -> Any:
    """Return the object that a text is the JSON of, or the objects of its lines, or its lines."""
    if words.lstrip().startswith(("{", "[")):
        with contextlib.suppress(ValueError):
            return json.loads(words)
        with contextlib.suppress(ValueError):
            return [json.loads(line) for line in words.splitlines()]
    for pattern, instead in MASKS:
        words = pattern.sub(instead, words)
    if of_members:  # columns are as wide as the words in them
        words = re.sub("──+", "──", re.sub("  +", "  ", _twelve().sub("WORDS", words)))
    return [line for line in words.splitlines() if not SLOW.match(line)]


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


def _noted(words: str) -> list[Any]:
    """Return what stands in a log, sorted: several processes take turns as they like."""
    found = []
    for line in words.splitlines():
        one = clean(json.loads(line), {})
        if "event" in one:  # a relay learns of members in any order, and counts what TLS adds
            one = {name: one.get(name) for name in ("event", "from", "to")}
        elif one.get("kind") == "result":  # times are in it
            one["bytes"] = "#"
        found.append(one)
    return [json.loads(line) for line in sorted({json.dumps(one) for one in found})]


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
    if path.suffix in (".log", ".spent"):
        return _noted(words)
    if path.suffix in (".svg", ".html"):
        return _page(words)
    return text_of(words, path.suffix in (".toml", ".request", ".known"))


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
    streams, executable = (sys.stdin, sys.stdout, sys.stderr), sys.executable
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
    sys.executable = interpreter()
    try:
        with warnings.catch_warnings():
            yield out, err
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        sys.executable = executable
        os.chdir(place)
        os.environ.clear()
        os.environ.update(kept)


def interpreter() -> str:
    """Return what runs Python for processes of their own."""
    return sys.executable


def _process(words: list[str], folder: Path, first: list[str]) -> subprocess.Popen[str]:
    """Start a command as a process of its own, or as ranks of a launcher."""

    plain = {name: one for name, one in os.environ.items() if not name.startswith(LAUNCHERS)}
    plain |= {**ENVIRONMENT, "OMP_NUM_THREADS": "1", "HWLOC_XMLFILE": ""}
    return subprocess.Popen(
        [*first, interpreter(), "-c", MAIN, *words], cwd=folder, env=plain, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def _apart(lines: list[str], folder: Path) -> tuple[int, str, str]:
    """Run command lines at the same time, each as a process of its own: the first one's results.

    A relay stands last, and is ended when all others have ended.
    """
    running, errors = [], ""
    try:
        for line in lines:
            words, first = shlex.split(line), []
            if words[0] == "mpiexec":
                beside = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
                first = [shutil.which("mpiexec", path=beside) or "mpiexec", "-n", words[1]]
                words = [*words[2:], "--engine", "mpi"]
            place = _own_folder(folder, words) if "--as" in words else folder
            running.append(_process(words, place, first))
        told = []
        for line, process in zip(lines, running, strict=True):
            if line.startswith("relay "):
                process.terminate()
            told.append(process.communicate(timeout=600))
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()
    for number, (_, err) in enumerate(told):
        mark = f"member {number}: " if len(lines) > 1 else ""
        # Members tell, too, for whom they wait.
        errors += "".join(
            f"{mark}{line}\n" for line in err.splitlines()
            if not mark or line.startswith("vpem: ")
        )  # fmt: skip
    codes = [process.returncode for process in running if process.returncode not in (0, 143)]
    return next(iter(codes), 0), told[0][0], errors


def _own_folder(folder: Path, words: list[str]) -> Path:
    """Make a folder for a member, with copies of what there is but for others' keys."""
    name = words[words.index("--as") + 1]
    (folder / name).mkdir(mode=0o700)
    for path in folder.iterdir():
        if path.is_file() and (path.suffix != ".key" or path.stem == name):
            shutil.copy2(path, folder / name)
    return folder / name


def run_line(line: str, folder: Path) -> tuple[int, str, str]:
    """Run one command line: exit code, standard output, standard error.

    ``< FILE`` and ``> FILE`` are as in a shell. ``mpiexec N`` in front asks for so many ranks, and
    what stands between ``||`` runs at the same time: both in processes of their own.
    """
    import vpem_cli

    if " || " in line or line.startswith("mpiexec "):
        return _apart(line.split(" || "), folder)
    words = shlex.split(line)
    target, given = None, b""
    while len(words) > 2 and words[-2] in ("<", ">"):
        *words, sign, name = words
        if sign == "<":
            given = (folder / name).read_bytes()
        else:
            target = folder / name
    with settled(folder, given) as (out, err):
        code = vpem_cli.run(words)
        told = out.told()
    if target is not None:
        target.write_text(told, encoding="utf-8")
        told = ""
    return code, told, err.told()


def free_port() -> int:
    """Return a port at which nothing listens; see `vpem.engines.tls`, which others may not have."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = int(door.getsockname()[1])
        with socket.create_connection(("127.0.0.1", port)):
            door.accept()[0].close()
    return port


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
    kept : Path
        A folder of files, which cases that name one see as ``files``, each a copy of its own.
    """

    def __init__(
        self, home: Path, data: Path, texts: dict[str, str], made: dict[str, str], kept: Path
    ) -> None:
        self.home, self.data, self.texts, self.made, self.kept = home, data, texts, made, kept
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

    def run(self, lines: list[str], take: Callable[[Path], object] | None = None) -> dict[str, Any]:
        """Run the command lines of a case in a folder of their own: what each left behind.

        At the end the folder is given to ``take``.
        """
        self.count += 1
        folder = self.home / f"{self.count}"
        folder.mkdir(mode=0o700)
        (folder / "data").symlink_to(self.data)
        needed = set().union(*map(self.needs, lines))
        for name in sorted(needed):
            self._make(name)
            source = self.home / "made" / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / name)
        told = " ".join(lines)
        if "files/" in told:
            (folder / "files").mkdir()
            for path in self.kept.iterdir():  # of a study the files stand together
                if f"files/{path.name}" in told or path.suffix not in (".h5", ".ckpt"):
                    copy = shutil.copy(path, folder / "files")
                    if path.suffix == ".key":  # modes are not kept by Git
                        Path(copy).chmod(0o600)
        before = {path for path in folder.rglob("*") if path.is_file()}
        members = any(line.startswith("party ") for line in lines)
        port = str(free_port()) if any("PORT" in line for line in lines) else "PORT"
        steps = []
        for line in lines:
            code, *told = run_line(line.replace("PORT", port), folder)
            out, err = (text_of(one, members) for one in told)
            steps.append({"line": line, "code": code, "out": out, "err": err})
            if line == "demo":  # which has one stream of two, whose lines may change places
                steps[-1]["out"] = sorted(filter(None, out), key=lambda one: "note:" in one)
            if line.startswith("doctor"):
                steps[-1]["out"] = outline(steps[-1]["out"])
        kept = {
            str(path.relative_to(folder)): content(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
            and path not in before
            and not path.is_symlink()
            and "__pycache__" not in path.parts
            and (path.parent == folder or not (folder / path.name).exists())
        }
        found = {"steps": steps} | ({"files": kept} if kept else {})
        if take is not None:
            take(folder)
        shutil.rmtree(folder)
        return clean(found, {str(folder): "FOLDER", port: "PORT"})


def outline(value: Any) -> Any:
    """Return the names in a value, for what is of this machine, and of text the first line."""
    if isinstance(value, dict):
        # How threads wait is told of the environment that a test runs in.
        return {name: outline(one) for name, one in value.items() if name != "waiting"}
    return value[:1] if isinstance(value, list) and value and isinstance(value[0], str) else "#"


def quick() -> None:
    """Make the tree of commands once: that takes as long as a small fit."""
    import vpem_cli.app

    if not hasattr(vpem_cli.app.command, "cache_info"):
        vpem_cli.app.command = cache(vpem_cli.app.command)


def main() -> int:
    """Run the cases of standard input, and write what came of them to the file that is named."""
    given = json.load(sys.stdin)
    quick()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="vpem-golden-") as home:
        folders = Path(home), Path(given["data"]), Path(given["kept"])
        shop = Workshop(folders[0], folders[1], given["texts"], given["made"], folders[2])
        for name, lines in given["cases"].items():
            try:
                found[name] = shop.run(lines)
            except Exception as error:
                found[name] = {"failed": f"{type(error).__name__}: {error}"}
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
