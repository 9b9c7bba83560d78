"""An installation: `vpem doctor` checks it, `vpem demo` and `vpem study demo` show it at work.

Every check adds facts to a report, and yields problems: lines that say what is wrong and what to
do, "broken: ..." of what is needed, otherwise "note: ...". A check that fails is broken itself.
Demonstrations print commands as they run them, in folders of their own; that of a study runs three
parties and a server on this machine, each in a process.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vpem.errors import FileError, VpemError, did_you_mean, printable
from vpem.pictures.contents import lines_of, plural

from ..display import Screen, print_json, show, table
from ..names import leaves
from ..options import Json, variables
from ..outputs import FOLDER

if TYPE_CHECKING:
    from vpem.network.schema import Report
    from vpem.pictures.contents import Lines


Problems = Iterator[str]

NEEDED = {
    name: {"scipy": "scipy.linalg", "scikit-learn": "sklearn"}.get(name, name)
    for name in (
        "numpy", "scipy", "h5py", "networkx", "scikit-learn", "threadpoolctl", "typer", "rich",
        "pyarrow", "matplotlib",
    )
}  # fmt: skip
"""Distributions that vpem needs, and a module of each."""

EXTRAS = {
    "cvxpy": ("cvxpy", "sdp", "--weights fastest"),
    "openmined-psi": ("private_set_intersection", "psi", "--align psi"),
    "dp-accounting": ("dp_accounting", "dp", "--epsilon, --release-epsilon"),
    "mpi4py": ("mpi4py", "mpi", "--engine mpi"),
    "cryptography": ("cryptography.x509", "secure", "--secure-sum, --engine tls"),
    "mnemonic": ("mnemonic", "tls", "fingerprints in words"),
    "websockets": ("websockets", "tls", "--engine tls"),
}
"""Optional distributions: a module, the extra of vpem, and what uses it."""

LIBRARY_VARIABLES = ("VPEM_INSTRUCTIONS", "VPEM_NO_OPENMP", "VPEM_READ_LIMIT")
TIMEOUT = 60.0

FAILS = {
    "kernels": "the kernels cannot be loaded: {}; build them: pip install .",
    "surroundings": "no HDF5 file can be written in a temporary folder: {}; set TMPDIR to one with "
    "room, or HDF5_USE_FILE_LOCKING=FALSE",
}
"""What is wrong where a check fails, and why."""


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _loading(module: str, what: str, install: str) -> Problems:
    try:
        import_module(module)
    except Exception as error:
        yield f"{what} cannot be loaded: {_first_line(error)}; try: {install}"


def libraries(report: Report) -> Problems:
    """Versions of Python, vpem and the libraries that it needs, each of which is loaded."""
    from vpem import __version__

    found: Report = {"python": sys.version.split()[0], "vpem": __version__}
    report["libraries"] = found
    for name, module in NEEDED.items():
        found[name] = _version(name)
        yield from _loading(module, f"broken: {name}", f"pip install {name}")


def processors(report: Report) -> Problems:
    """Processors that exist and may be used, threads of kernels, and loaded BLAS and OpenMP."""
    from vpem._core.threads import processor_limit, thread_count, whereabouts
    from vpem.checks import read_int

    variable, there = os.environ.get("OMP_NUM_THREADS"), os.cpu_count()
    usable, limit, threads = len(whereabouts()[1]), processor_limit(), thread_count(None)
    share = None if limit is None else max(1, round(limit))
    why = "one per processor"
    if (read_int((variable or "").split(",")[0]) or 0) > 0:
        why = "OMP_NUM_THREADS"
    elif share is not None and share < usable:
        why = "what the container may use"
    elif usable < (there or 0):
        why = "processors that the process may run on"
    report["processors"] = {
        "there": there, "usable": usable, "limit": limit, "OMP_NUM_THREADS": variable,
        "OPENBLAS_THREAD_TIMEOUT": os.environ.get("OPENBLAS_THREAD_TIMEOUT"),
        "threads": threads, "why": why,
    }  # fmt: skip
    if variable and why != "OMP_NUM_THREADS":
        yield f"note: OMP_NUM_THREADS is {variable[:40]!r}, which is not a number, and is ignored"
    if share is not None and threads > share:
        yield (
            f"note: {threads} threads would share {limit:g} processors that the container may use; "
            f"set OMP_NUM_THREADS={share}"
        )
    elif usable and threads > usable:
        yield f"note: {threads} threads would share {usable} processors; lower OMP_NUM_THREADS"
    import_module("scipy.linalg.cython_blas")  # so that its BLAS is there
    controller = import_module("threadpoolctl").ThreadpoolController()
    keys = ("user_api", "internal_api", "version", "num_threads", "filepath")
    report["blas"] = [{key: one.get(key) for key in keys} for one in controller.info()]


def kernels(report: Report) -> Problems:
    """How the kernels are built, which instructions they use, and whether they agree with NumPy."""
    found: Report = {"built": []}
    report["kernels"] = found
    core = import_module("vpem._core")
    folder = Path(str(core.__file__)).parent
    sources = {path.stem for path in folder.glob("*.pyx")}  # there in a clone
    files = (path for path in folder.iterdir() if path.suffix in (".so", ".pyd"))
    for name in sorted(sources | {path.name.split(".")[0] for path in files}):
        module = import_module(f"vpem._core.{name}")
        found["built"].append(name)
    content = Path(str(module.__file__)).read_bytes()
    found["openmp"] = b"GOMP_" in content or b"__kmpc_fork_call" in content
    found["instructions"] = import_module("vpem._core.sweep").instruction_set()
    found["machine"] = import_module("vpem._core.threads").machine_instructions()
    found |= {"largest_error": None, "waiting": core.waiting()}
    if not found["openmp"]:
        yield (
            "note: the kernels are built without OpenMP and use one thread; build them with a "
            "compiler that has it"
        )
    chosen = os.environ.get("VPEM_INSTRUCTIONS")
    if chosen and chosen not in ("base", "avx2", "avx512"):
        yield f"note: VPEM_INSTRUCTIONS is {chosen!r}; it may be base or avx2"
    elif chosen and chosen != found["machine"]:
        yield (
            f"note: VPEM_INSTRUCTIONS={chosen} restricts the kernels to fewer instructions than "
            "the machine has; unset it"
        )
    try:
        found["largest_error"] = worst = import_module("vpem.terms.features").self_check()
    except Exception as failed:
        yield f"broken: the kernels fail: {_first_line(failed)}; build them again"
        return
    if worst > 1.0:
        yield (
            f"broken: the kernels do not agree with NumPy ({worst:.2g} times the allowed error); "
            "build them again, or set VPEM_INSTRUCTIONS=base"
        )


def extras(report: Report) -> Problems:
    """Optional libraries: the version, or how to install it; a broken one is a problem."""
    report["extras"] = {}
    for name, (module, extra, what) in EXTRAS.items():
        install = f"pip install 'vpem[{extra}]'"
        report["extras"][name] = one = {"version": _version(name), "for": what, "install": install}
        if one["version"] is not None:
            again = install.replace("install", "install --force-reinstall", 1)
            yield from _loading(module, f"note: {name}, for {what},", again)


def mpi(report: Report) -> Problems:
    """The MPI library of mpi4py, and the launcher, which must belong to the same MPI."""
    beside = Path(sys.executable).parent
    launcher = shutil.which("mpiexec") or shutil.which("mpiexec", path=str(beside))
    report["mpi"] = found = {"library": None, "mpiexec": launcher, "launcher": None}
    if _version("mpi4py") is None:
        return
    # In a process of its own, which a library that does not fit may end.
    program = (
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "print(MPI.Get_library_version())"
    )
    library = _output(sys.executable, "-c", program)
    if library is None:
        yield "note: mpi4py finds no MPI library, for --engine mpi; try: pip install mpich"
        return
    found["library"] = " ".join(library.split("\n")[0].split())
    if launcher is None:
        yield "note: there is no mpiexec, for --engine mpi; try: pip install mpich"
        return
    maker, other = _maker(library), _maker(_output(launcher, "--version") or "")
    found["launcher"] = other
    if maker and other and maker != other:
        yield (
            f"note: mpi4py is built for {maker}, but {launcher} belongs to {other}; take the "
            "mpiexec of the same MPI"
        )


MAKERS = {"Open MPI": ("open mpi", "openrte"), "MPICH": ("intel", "mpich", "hydra", "mvapich")}
"""Kinds of MPI, whose launchers fit, by words in what libraries and launchers print."""


def _maker(text: str) -> str | None:
    return next((one for one in MAKERS if any(word in text.lower() for word in MAKERS[one])), None)


def _output(*words: str) -> str | None:
    try:
        ended = subprocess.run(
            words, capture_output=True, text=True, timeout=TIMEOUT, check=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout


def surroundings(report: Report) -> Problems:
    """The terminal, and the temporary folder, in which an HDF5 file is written and read."""
    there, term = sys.stdout.isatty(), os.environ.get("TERM")
    no_colour = os.environ.get("NO_COLOR")
    report["terminal"] = {
        "stdout": there, "stderr": sys.stderr.isatty(),
        "width": shutil.get_terminal_size().columns,
        "colour": there and not no_colour and term != "dumb",
        "encoding": getattr(sys.stdout, "encoding", None), "TERM": term, "NO_COLOR": no_colour,
    }  # fmt: skip
    report["temporary"] = folder = tempfile.gettempdir()
    if _version("h5py") is None:  # which `libraries` says
        return
    h5py = import_module("h5py")
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        file = Path(inside, "written.h5")
        with h5py.File(file, "w") as store:
            store["x"] = [1.0]
        with h5py.File(file, "r") as read:
            if read["x"][0] != 1.0:
                raise OSError("a file does not contain what was written")
    yield from ()  # it fails, or all is well


def doctor(context: typer.Context, json: Json = False) -> None:
    """Check this installation: problems, with advice, then facts.

    Versions, processors and threads, BLAS, OpenMP, the instructions that the kernels use and
    whether they agree with NumPy, MPI, optional libraries, terminal, temporary folder.
    The exit code is 2 if something that vpem needs is broken, otherwise 0.

    Example: vpem doctor
    """
    known = {
        name
        for path, member in leaves(context.find_root().command)
        for name in variables(path, member)
    }

    def named(report: Report) -> Problems:
        found = {name: os.environ[name] for name in sorted(os.environ) if name.startswith("VPEM_")}
        report["variables"] = found
        for name in sorted(found.keys() - known - {*LIBRARY_VARIABLES}):
            near = did_you_mean(name.lower(), [each.lower() for each in known]).upper()
            hint = near.replace("DID YOU MEAN", "did you mean")
            yield f"note: {name} is no variable of an option{hint}; unset it"

    report: Report = {}
    problems: list[str] = []
    with warnings.catch_warnings():
        # Warnings of libraries about themselves are no problems of the installation.
        warnings.simplefilter("ignore")
        for check in (libraries, processors, kernels, extras, mpi, surroundings, named):
            try:
                problems += check(report)
            except Exception as error:
                advice = FAILS.get(check.__name__, f"nothing is known of {check.__name__}: {{}}")
                problems.append(f"broken: {advice.format(_first_line(error))}")
    problems.sort(key=lambda problem: problem.startswith("note: "))
    works = not problems or problems[0].startswith("note: ")
    if json:
        listed = [problem.partition(": ") for problem in problems]
        told = [{"needed": kind == "broken", "advice": advice} for kind, _, advice in listed]
        print_json({"works": works, "problems": told, **report})
    else:
        for line in problems or ["Everything works."]:
            print(printable(line))
        versions = [(name, version or "not found") for name, version in report["libraries"].items()]
        machine, environment = (lines_of(report, facts) for facts in (MACHINE, ENVIRONMENT))
        for one in report.get("blas", ()):
            threads = plural(one["num_threads"], "thread")
            said = f"{one['internal_api']} {one['version'] or ''} {threads}"
            machine.append((one["user_api"], said))
        optional = [(name, one["version"] or one["install"], one["for"])
                    for name, one in report["extras"].items()]  # fmt: skip
        show(
            table(versions, "", "", title="Versions"),
            table(machine, "", "", title="Machine"),
            table(optional, "", "", "for", title="Optional libraries"),
            table([*environment, *report["variables"].items()], "", "", title="Environment"),
        )
    if not works:
        raise typer.Exit(2)


MACHINE: Lines = {
    "processors": lambda report: (
        "{there}, usable {usable}, ".format_map(one := report["processors"])
        + ("no limit" if one["limit"] is None else f"{one['limit']:g} by the container")
    ),
    "OMP_NUM_THREADS": "{processors[OMP_NUM_THREADS]:?not set}",
    "threads of the kernels": "{processors[threads]}: {processors[why]}",
    "how they wait": lambda report: (
        ", ".join(map("=".join, report["kernels"]["waiting"].items())) or "unknown"
    ),
    "OPENBLAS_THREAD_TIMEOUT": "{processors[OPENBLAS_THREAD_TIMEOUT]:?not set}",
    "kernels": lambda report: (
        f"{len(report['kernels']['built'])} built, "
        f"{'with' if report['kernels']['openmp'] else 'without'} OpenMP"
    ),
    "instructions": "{kernels[instructions]} (machine: {kernels[machine]})",
    "agree with NumPy": lambda report: "yes" if report["kernels"]["largest_error"] <= 1 else "no",
}
ENVIRONMENT: Lines = {
    "MPI library": "{mpi[library]:?not found}",
    "mpiexec": "{mpi[mpiexec]:?not found} ({mpi[launcher]:?unknown})",
    "terminal": "{terminal[stdout]:yes|no}, {terminal[width]} columns, "
    "{terminal[colour]:colours|no colours}, {terminal[encoding]}",
    "temporary folder": "{temporary}",
}
"""What a terminal shows of the report."""


Keep = Annotated[
    Path | None, FOLDER, typer.Option(help="Keep all files in this new folder.", show_default=False)
]

MOST_SECONDS = 300


@dataclass
class Play:
    """Commands that are printed, and run, each in a process of its own."""

    home: Path  # each name has a folder of its own in it
    messages: bool = False  # print these too

    def tell(self, sentence: str) -> None:
        print(f"\n# {sentence}", flush=True)

    def show(self, who: str, *words: str) -> None:
        print(f"{who}$ {shlex.join(words)}", flush=True)

    def run(self, who: str, command: str, *words: str) -> str:
        return self.end(who, self.start(who, *command.split(), *words))

    def start(self, who: str, *words: str) -> subprocess.Popen[str]:
        self.show(who, "vpem", *words)
        return subprocess.Popen(
            [sys.executable, "-c", "import vpem_cli; vpem_cli.main()", *words],
            cwd=self.home / who,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if self.messages else subprocess.PIPE,
            text=True,
        )

    def end(self, who: str, process: subprocess.Popen[str]) -> str:
        """Return what a process has printed, once it has ended with exit code 0."""
        try:
            out, err = process.communicate(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            raise VpemError(f"{who or 'vpem'} has not ended after {MOST_SECONDS} s") from None
        if process.returncode != 0:
            printed = (err or out).strip().splitlines()[-1:] or ["nothing"]
            raise VpemError(f"the demonstration ends: {who or 'vpem'} printed: {printed[0]}")
        return out.rstrip("\n")

    def send(self, file: str, giver: str, taker: str) -> None:
        """Copy a file into another member's folder, as mail would."""
        self.show(giver, "cp", file, f"../{taker}/")
        shutil.copy(self.home / giver / file, self.home / taker)


@contextmanager
def folder(keep: Path | None) -> Iterator[Path]:
    """Make a folder, which is removed in the end, unless it is to be kept."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="vpem-demo-") as temporary:
            yield Path(temporary)
        return
    try:
        keep.mkdir(mode=0o700)
    except OSError as error:
        raise FileError(f"{keep} cannot be made: {error.strerror}; give a new folder") from None
    yield keep


STEPS = (
    ("Ten agents hold three measurements each of 569 breast masses:",
     "data copy breast_cancer"),
    ("They fit a mixture together, along a cycle; measurements travel one hop, no further:",
     "fit breast_cancer.h5 --topology cycle --hops 1 --seed 0 -o model.h5"),
    ("The diagnoses took no part. How well do the two components agree with them?",
     "evaluate model.h5 breast_cancer.h5"),
    ("The component of each mass, and how certain that is:",
     "predict model.h5 breast_cancer.h5 --proba -o components.csv"),
    ("A picture of the features that distinguish the components:",
     "plot model.h5 --kind profile -o profile.png"),
)  # fmt: skip
"""What each command is for, and its words."""


def demo(keep: Keep = None) -> None:
    """Show the main job: fit real data, compare, predict, draw.

    Every command is printed as it is run, in a temporary folder: nothing is written to yours. It
    takes some seconds. See 'vpem study demo' for parties that meet over a network.

    Example: vpem demo --keep try
    """
    with Screen() as screen, folder(keep) as home:
        play = Play(home, messages=True)
        for sentence, words in STEPS:
            play.tell(sentence)
            print(play.run("", words), flush=True)
        if keep is None:
            screen.say("nothing was kept; 'vpem demo --keep try' keeps all files in the folder try")
        else:
            screen.say(f"all files are in {keep}")


SERVER = "hub"
PARTIES = ("clinic", "lab", "imaging")
LACKING = 0.034  # share of the patients, whom a party's table lacks
ROWS = 3  # of labels that are shown for each party


def demo_of_study(keep: Keep = None) -> None:
    """Try a whole study: three parties and a server on this machine.

    Each has a folder and processes of its own, and they meet over TLS on 127.0.0.1. The breast
    cancer data are split by features into three tables, each without some of the patients, and
    sums are masked. Every command is printed as it is run; it takes less than a minute.

    Example: vpem study demo --keep try
    """
    with Screen() as screen, folder(keep) as home:
        import numpy as np

        from vpem.files.data import read_dataset
        from vpem.files.examples import example_path
        from vpem.files.parties.joining import cut
        from vpem.files.results import write_columns
        from vpem.network.partition import contiguous

        members = (SERVER, *PARTIES)
        for who in members:
            (home / who).mkdir(mode=0o700)
        data = read_dataset(example_path("breast_cancer"))
        parts = contiguous(data.n_features, len(PARTIES), names=PARTIES)
        for part, who in zip(
            cut(data, parts, shuffle=True, drop_ids=LACKING, seed=1), PARTIES, strict=True
        ):
            patients = np.array([f"P{row:03}" for row in np.asarray(part.ids)])
            values = dict(zip(part.feature_names, part.X.T, strict=True))
            write_columns(home / who / f"{who}.csv", {"patient": patients} | values, "table")
        play = Play(home)
        play.tell("Each makes a key, which stays at home:")
        words = {}
        for who in members:
            lines = play.run(who, "party init", "--name", who).splitlines()
            place = next(n for n, line in enumerate(lines) if line.strip().startswith("in words"))
            words[who] = " ".join([*lines[place].split()[2:], *lines[place + 1].split()])
        play.tell("The server's organiser says what will be run, and signs it:")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        options = ["--hops", "0", "-k", "2", "--align", "ids", "--scale", "standard"]
        options.append("--secure-sum")
        print(play.run(SERVER, "study init", "heart", "--star", address, *options))
        play.tell("Each party requests to take part; words are compared by telephone:")
        for who in PARTIES:
            play.send("heart.toml", SERVER, who)
            play.run(who, "party request", "heart.toml", f"{who}.csv", "--id-column", "patient")
            play.send(f"{who}.request", who, SERVER)
            play.run(SERVER, "study approve", f"{who}.request", "--fingerprint", words[who])
        for who in PARTIES:
            play.send("heart.toml", SERVER, who)
        play.tell("All run it, each at home, at the same time:")
        processes: dict[str, subprocess.Popen[str]] = {}
        try:
            for who in members:
                fit = ["fit", "--study", "heart.toml", "--as", who]
                if who != SERVER:
                    fit += [f"{who}.csv", "--id-column", "patient"]
                    fit += ["--labels", f"{who}-clusters.csv"]
                processes[who] = play.start(who, *fit)
            printed = {who: play.end(who, process) for who, process in processes.items()}
        finally:
            for process in processes.values():
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        play.tell(f"What {PARTIES[0]} sees; the others see the same:")
        print(printed[PARTIES[0]])
        play.tell("What each party has now, of its own patients:")
        for who in PARTIES:
            play.show(who, "head", f"-{ROWS + 1}", f"{who}-clusters.csv")
            lines = (home / who / f"{who}-clusters.csv").read_text(encoding="utf-8").splitlines()
            print("\n".join(lines[: ROWS + 1]))
        if keep is not None:
            screen.say(f"all files are in {keep}")
