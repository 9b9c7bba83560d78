"""`vpem doctor`: whether this installation works, and what would make it work better.

Every check fills a report of facts, and yields problems: whether something that is needed is
broken, and one line that says what is wrong and what to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from vpem.errors import did_you_mean, printable
from vpem.pictures.contents import plural

from ..display import print_json, show, table
from ..names import leaves
from ..options import Json, variables

if TYPE_CHECKING:
    from vpem.network.schema import Report


Problems = Iterator[tuple[bool, str]]

NEEDED = {
    "numpy": "numpy",
    "scipy": "scipy.linalg",
    "h5py": "h5py",
    "networkx": "networkx",
    "scikit-learn": "sklearn",
    "threadpoolctl": "threadpoolctl",
    "typer": "typer",
    "rich": "rich",
    "pyarrow": "pyarrow",
    "matplotlib": "matplotlib",
}
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


def broken(advice: str) -> tuple[bool, str]:
    """Return a problem of what is needed."""
    return True, advice


def note(advice: str) -> tuple[bool, str]:
    """Return a problem of what is optional."""
    return False, advice


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def libraries(report: Report) -> Problems:
    """Versions of Python, vpem and the libraries that it needs, each of which is loaded."""
    report["python"] = sys.version.split()[0]
    try:
        report["vpem"] = str(import_module("vpem").__version__)
    except Exception as error:
        yield broken(f"vpem cannot be loaded: {_first_line(error)}; install it again")
    for name, module in NEEDED.items():
        report[name] = _version(name)
        try:
            import_module(module)
        except Exception as error:
            yield broken(f"{name} cannot be loaded: {_first_line(error)}; try: pip install {name}")


def processors(report: Report) -> Problems:
    """Processors that exist and that may be used, and the threads that kernels start."""
    variable = os.environ.get("OMP_NUM_THREADS")
    report |= {
        "there": os.cpu_count(), "usable": None, "limit": None, "OMP_NUM_THREADS": variable,
        "OPENBLAS_THREAD_TIMEOUT": os.environ.get("OPENBLAS_THREAD_TIMEOUT"),
        "threads": None, "why": None,
    }  # fmt: skip
    try:
        from vpem._core.threads import processor_limit, thread_count, whereabouts
        from vpem.checks import read_int

        usable, limit, threads = len(whereabouts()[1]), processor_limit(), thread_count(None)
    except Exception:  # `libraries` reports what is wrong with NumPy
        return
    share = None if limit is None else max(1, round(limit))
    why = "one per processor"
    if (read_int((variable or "").split(",")[0]) or 0) > 0:
        why = "OMP_NUM_THREADS"
    elif share is not None and share < usable:
        why = "what the container may use"
    elif usable < (report["there"] or 0):
        why = "processors that the process may run on"
    report |= {"usable": usable, "limit": limit, "threads": threads, "why": why}
    if variable and why != "OMP_NUM_THREADS":
        yield note(f"OMP_NUM_THREADS is {variable[:40]!r}, which is not a number, and is ignored")
    if share is not None and threads > share:
        yield note(
            f"{threads} threads would share {limit:g} processors that the container may use; set "
            f"OMP_NUM_THREADS={share}"
        )
    elif usable and threads > usable:
        yield note(f"{threads} threads would share {usable} processors; lower OMP_NUM_THREADS")


def blas() -> list[Report]:
    """BLAS and OpenMP libraries that this process has loaded."""
    try:
        import_module("scipy.linalg.cython_blas")
        controller = import_module("threadpoolctl").ThreadpoolController()
    except Exception:  # `libraries` reports what is wrong with them
        return []
    keys = ("user_api", "internal_api", "version", "num_threads", "filepath")
    return [{key: one.get(key) for key in keys} for one in controller.info()]


def kernels(report: Report) -> Problems:
    """How the kernels are built, which instructions they use, and whether they agree with NumPy."""
    facts = ("built", "openmp", "instructions", "machine", "largest_error", "waiting")
    report |= dict.fromkeys(facts) | {"built": []}
    try:
        core = import_module("vpem._core")
        folder = Path(str(core.__file__)).parent
        sources = {path.stem for path in folder.glob("*.pyx")}  # there in a clone
        files = (path for path in folder.iterdir() if path.suffix in (".so", ".pyd"))
        for name in sorted(sources | {path.name.split(".")[0] for path in files}):
            module = import_module(f"vpem._core.{name}")
            report["built"].append(name)
        report["waiting"] = core.waiting()
        content = Path(str(module.__file__)).read_bytes()
        report["openmp"] = b"GOMP_" in content or b"__kmpc_fork_call" in content
        report["machine"] = import_module("vpem._core.threads").machine_instructions()
        report["instructions"] = import_module("vpem._core.sweep").instruction_set()
    except Exception as error:
        why = _first_line(error)
        yield broken(f"the kernels cannot be loaded: {why}; build them: pip install .")
        return
    if not report["openmp"]:
        yield note(
            "the kernels are built without OpenMP and use one thread; build them with a compiler "
            "that has it"
        )
    chosen = os.environ.get("VPEM_INSTRUCTIONS")
    if chosen and chosen not in ("base", "avx2", "avx512"):
        yield note(f"VPEM_INSTRUCTIONS is {chosen!r}; it may be base or avx2")
    elif chosen and chosen != report["machine"]:
        yield note(
            f"VPEM_INSTRUCTIONS={chosen} restricts the kernels to fewer instructions than the "
            "machine has; unset it"
        )
    try:
        report["largest_error"] = worst = import_module("vpem.terms.features").self_check()
    except Exception as failed:
        yield broken(f"the kernels fail: {_first_line(failed)}; build them again")
        return
    if worst > 1.0:
        yield broken(
            f"the kernels do not agree with NumPy ({worst:.2g} times the allowed error); build "
            "them again, or set VPEM_INSTRUCTIONS=base"
        )


def extras(report: Report) -> Problems:
    """Optional libraries: the version, or how to install it; a broken one is a problem."""
    for name, (module, extra, what) in EXTRAS.items():
        version = _version(name)
        report[name] = {"version": version, "for": what, "install": f"pip install 'vpem[{extra}]'"}
        if version is None:
            continue
        try:
            import_module(module)
        except Exception as error:
            yield note(
                f"{name}, for {what}, cannot be loaded: {_first_line(error)}; try: pip install "
                f"--force-reinstall 'vpem[{extra}]'"
            )


def mpi(report: Report) -> Problems:
    """The MPI library of mpi4py, and the launcher, which must belong to the same MPI."""
    beside = Path(sys.executable).parent
    launcher = shutil.which("mpiexec") or shutil.which("mpiexec", path=str(beside))
    report |= {"library": None, "mpiexec": launcher, "launcher": None}
    if _version("mpi4py") is None:
        return
    # In a process of its own, which a library that does not fit may end.
    program = (
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "print(MPI.Get_library_version())"
    )
    library = _output(sys.executable, "-c", program)
    if library is None:
        yield note("mpi4py finds no MPI library, for --engine mpi; try: pip install mpich")
        return
    report["library"] = " ".join(library.split("\n")[0].split())
    if launcher is None:
        yield note("there is no mpiexec, for --engine mpi; try: pip install mpich")
        return
    maker, other = _maker(library), _maker(_output(launcher, "--version") or "")
    report["launcher"] = other
    if maker and other and maker != other:
        yield note(
            f"mpi4py is built for {maker}, but {launcher} belongs to {other}; take the mpiexec of "
            "the same MPI"
        )


MAKERS = {"open mpi": "Open MPI", "openrte": "Open MPI"}
MAKERS |= dict.fromkeys(("intel", "mpich", "hydra", "mvapich"), "MPICH")
"""Words in what libraries and launchers print, and their kind of MPI, whose launchers fit."""


def _maker(text: str) -> str | None:
    return next((name for word, name in MAKERS.items() if word in text.lower()), None)


def _output(*words: str) -> str | None:
    try:
        ended = subprocess.run(
            words, capture_output=True, text=True, timeout=TIMEOUT, check=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout


def surroundings(report: Report, known: set[str]) -> Problems:
    """Terminal, temporary folder, and variables of vpem; those not ``known`` are a problem."""
    terminal, term = sys.stdout.isatty(), os.environ.get("TERM")
    no_colour = os.environ.get("NO_COLOR")
    report["terminal"] = {
        "stdout": terminal, "stderr": sys.stderr.isatty(),
        "width": shutil.get_terminal_size().columns,
        "colour": terminal and not no_colour and term != "dumb",
        "encoding": getattr(sys.stdout, "encoding", None), "TERM": term, "NO_COLOR": no_colour,
    }  # fmt: skip
    report["temporary"] = None
    try:
        report["temporary"] = folder = tempfile.gettempdir()
        with tempfile.TemporaryDirectory(dir=folder) as inside:
            file = Path(inside, "written.h5")
            with import_module("h5py").File(file, "w") as store:
                store["x"] = [1.0]
            with import_module("h5py").File(file, "r") as read:
                if read["x"][0] != 1.0:
                    raise OSError("a file does not contain what was written")
    except ImportError:  # `libraries` reports that h5py is missing
        pass
    except Exception as error:
        yield broken(
            f"no HDF5 file can be written in a temporary folder: {_first_line(error)}; set TMPDIR "
            "to one with room, or HDF5_USE_FILE_LOCKING=FALSE"
        )
    report["variables"] = {name: os.environ[name] for name in sorted(os.environ)
                           if name.startswith("VPEM_")}  # fmt: skip
    for name in sorted(report["variables"].keys() - known - {*LIBRARY_VARIABLES}):
        near = did_you_mean(name.lower(), [each.lower() for each in known]).upper()
        hint = near.replace("DID YOU MEAN", "did you mean")
        yield note(f"{name} is no variable of an option{hint}; unset it")


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
    report: Report = {}
    problems: list[tuple[bool, str]] = []
    with warnings.catch_warnings():
        # Warnings of libraries about themselves are no problems of the installation.
        warnings.simplefilter("ignore")
        for check in (libraries, processors, kernels, extras, mpi):
            if check is kernels:
                report["blas"] = blas()
            report[check.__name__] = {}
            problems += check(report[check.__name__])
        problems += surroundings(report, known)
    problems.sort(key=lambda problem: not problem[0])
    works = not any(needed for needed, _ in problems)
    if json:
        listed = [{"needed": needed, "advice": advice} for needed, advice in problems]
        print_json({"works": works, "problems": listed, **report})
    else:
        _show(report, problems)
    if not works:
        raise typer.Exit(2)


def _show(report: Report, problems: list[tuple[bool, str]]) -> None:
    for needed, advice in problems:
        print(printable(f"{'broken' if needed else 'note'}: {advice}"))
    if not problems:
        print("Everything works.")
    missing = "not found"
    there, kernels, mpi = report["processors"], report["kernels"], report["mpi"]
    limit = "no limit" if there["limit"] is None else f"{there['limit']:g} by the container"
    error, terminal = kernels["largest_error"], report["terminal"]
    waits = ", ".join(f"{name}={value}" for name, value in (kernels["waiting"] or {}).items())
    openmp = {None: "unknown", True: "with OpenMP", False: "without OpenMP"}[kernels["openmp"]]
    versions = [(name, version or missing) for name, version in report["libraries"].items()]
    machine = [
        ("processors", f"{there['there']}, usable {there['usable']}, {limit}"),
        ("OMP_NUM_THREADS", there["OMP_NUM_THREADS"] or "not set"),
        ("threads of the kernels", f"{there['threads']}: {there['why'] or 'unknown'}"),
        ("how they wait", waits or "unknown"),
        ("OPENBLAS_THREAD_TIMEOUT", there["OPENBLAS_THREAD_TIMEOUT"] or "not set"),
        ("kernels", f"{len(kernels['built'])} built, {openmp}"),
        ("instructions", f"{kernels['instructions']} (machine: {kernels['machine']})"),
        ("agree with NumPy", "not compared" if error is None else "yes" if error <= 1 else "no"),
    ]
    for one in report["blas"]:
        threads = plural(one["num_threads"], "thread")
        machine.append((one["user_api"], f"{one['internal_api']} {one['version'] or ''} {threads}"))
    extras = [
        (name, one["version"] or one["install"], one["for"])
        for name, one in report["extras"].items()
    ]
    others = [
        ("MPI library", mpi["library"] or missing),
        ("mpiexec", f"{mpi['mpiexec'] or missing} ({mpi['launcher'] or 'unknown'})"),
        ("terminal", f"{'yes' if terminal['stdout'] else 'no'}, {terminal['width']} columns, "
                     f"{'colours' if terminal['colour'] else 'no colours'}, "
                     f"{terminal['encoding']}"),
        ("temporary folder", report["temporary"] or missing),
        *report["variables"].items(),
    ]  # fmt: skip
    show(
        table(versions, "", "", title="Versions"),
        table(machine, "", "", title="Machine"),
        table(extras, "", "", "for", title="Optional libraries"),
        table(others, "", "", title="Environment"),
    )
