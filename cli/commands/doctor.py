"""`vpem doctor`: whether this installation works, and what would make it work better.

Every check returns facts and adds problems to a list. A problem is a pair: whether something that
is needed is broken, and one line that says what is wrong and what to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
import zlib
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from vpem.errors import did_you_mean, printable

from ..display import plural, print_json, show, table
from ..names import leaves
from ..options import Json, variables

if TYPE_CHECKING:
    from vpem.network.schema import Report


Problems = list[tuple[bool, str]]

BUILT = (".so", ".pyd")

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
SETS = ("base", "avx2", "avx512")
TIMEOUT = 60.0

NATURAL = 3951074175
"""CRC-32 of what natural compression makes of the numbers of `self_check`."""


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def libraries(problems: Problems) -> dict[str, str | None]:
    """Versions of Python, vpem and the libraries that it needs, each of which is loaded."""
    versions: dict[str, str | None] = {"python": sys.version.split()[0]}
    try:
        versions["vpem"] = str(import_module("vpem").__version__)
    except Exception as error:
        problems.append((True, f"vpem cannot be loaded: {_first_line(error)}; install it again"))
    for name, module in NEEDED.items():
        versions[name] = _version(name)
        try:
            import_module(module)
        except Exception as error:
            advice = f"{name} cannot be loaded: {_first_line(error)}; try: pip install {name}"
            problems.append((True, advice))
    return versions


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def processors(problems: Problems) -> Report:
    """Processors that exist and that may be used, and the threads that kernels start."""
    variable = os.environ.get("OMP_NUM_THREADS")
    report: Report = {
        "there": os.cpu_count(),
        "usable": None,
        "limit": None,
        "OMP_NUM_THREADS": variable,
        "OPENBLAS_THREAD_TIMEOUT": os.environ.get("OPENBLAS_THREAD_TIMEOUT"),
        "threads": None,
        "why": None,
    }
    try:
        from vpem._core.threads import processor_limit, thread_count, whereabouts
        from vpem.checks import read_int

        report["usable"], report["limit"] = len(whereabouts()[1]), processor_limit()
        report["threads"] = thread_count(None)
    except Exception:  # `libraries` reports what is wrong with NumPy
        return report
    threads, limit, usable = report["threads"], report["limit"], report["usable"]
    share = None if limit is None else max(1, round(limit))
    if (read_int((variable or "").split(",")[0]) or 0) > 0:
        report["why"] = "OMP_NUM_THREADS"
    elif share is not None and share < usable:
        report["why"] = "what the container may use"
    elif usable < (report["there"] or 0):
        report["why"] = "processors that the process may run on"
    else:
        report["why"] = "one per processor"
    if variable and report["why"] != "OMP_NUM_THREADS":
        problem = f"OMP_NUM_THREADS is {variable[:40]!r}, which is not a number, and is ignored"
        problems.append((False, problem))
    if share is not None and threads > share:
        problem = (
            f"{threads} threads would share {limit:g} processors that the container may use; set "
            f"OMP_NUM_THREADS={share}"
        )
        problems.append((False, problem))
    elif usable and threads > usable:
        problem = f"{threads} threads would share {usable} processors; lower OMP_NUM_THREADS"
        problems.append((False, problem))
    return report


def blas() -> list[Report]:
    """BLAS and OpenMP libraries that this process has loaded."""
    try:
        import_module("scipy.linalg.cython_blas")
        controller = import_module("threadpoolctl").ThreadpoolController()
    except Exception:  # `libraries` reports what is wrong with them
        return []
    keys = ("user_api", "internal_api", "version", "num_threads", "filepath")
    return [{key: one.get(key) for key in keys} for one in controller.info()]


def kernels(problems: Problems) -> Report:
    """How the kernels are built, which instructions they use, and whether they agree with NumPy."""
    facts = ("built", "openmp", "instructions", "machine", "largest_error", "waiting")
    report: Report = dict.fromkeys(facts) | {"built": [], "machine": machine_instructions()}
    folder = Path(__file__).parent
    try:
        folder = Path(str(import_module("vpem._core").__file__)).parent
        sources = {path.stem for path in folder.glob("*.pyx")}  # there in a clone
        built = {path.name.split(".")[0] for path in folder.iterdir() if path.suffix in BUILT}
        for name in sorted(sources | built):
            module = import_module(f"vpem._core.{name}")
            report["built"].append(name)
        report["waiting"] = import_module("vpem._core").waiting()
        content = Path(str(module.__file__)).read_bytes()
        report["openmp"] = b"GOMP_" in content or b"__kmpc_fork_call" in content
        report["instructions"] = import_module("vpem._core.sweep").instruction_set()
    except Exception as error:
        problem = f"the kernels cannot be loaded: {_first_line(error)}; build them: pip install ."
        problems.append((True, problem))
        return report
    if not report["openmp"]:
        problem = (
            "the kernels are built without OpenMP and use one thread; build them with a compiler "
            "that has it"
        )
        problems.append((False, problem))
    chosen = os.environ.get("VPEM_INSTRUCTIONS")
    if chosen and chosen not in SETS:
        problems.append((False, f"VPEM_INSTRUCTIONS is {chosen!r}; it may be base or avx2"))
    elif chosen and chosen != report["machine"]:
        problem = (
            f"VPEM_INSTRUCTIONS={chosen} restricts the kernels to fewer instructions than the "
            "machine has; unset it"
        )
        problems.append((False, problem))
    try:
        report["largest_error"] = self_check()
    except Exception as error:
        problems.append((True, f"the kernels fail: {_first_line(error)}; build them again"))
        return report
    if report["largest_error"] > 1.0:
        problem = (
            f"the kernels do not agree with NumPy ({report['largest_error']:.2g} times the allowed "
            "error); build them again, or set VPEM_INSTRUCTIONS=base"
        )
        problems.append((True, problem))
    return report


def machine_instructions() -> str | None:
    """Largest instruction set of the kernels that the processor has, by its flags in Linux.

    None elsewhere.
    """
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    lines = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
    flags = set(next(lines, ":").partition(":")[2].split())
    if not {"avx2", "fma"} <= flags:
        return "base"
    return "avx512" if {"avx512f", "avx512dq"} <= flags else "avx2"


def self_check() -> float:
    """Return the difference of kernels from plain NumPy: up to 1, rounding explains it."""
    import numpy as np

    from vpem._core import codecs, sweep
    from vpem._core.threads import one_blas_thread

    rng = np.random.default_rng(0)
    n_rows, n_components = 20_133, 3  # enough for two threads
    blocks = [slice(0, 5), slice(5, 6), slice(6, 15)]
    offsets, hub = np.array([0, 5, 6, 15], dtype=np.intp), np.repeat([0, 1, 2], [5, 1, 9])
    # Whiteners (K, 15, 15), block by block, and some with a diagonal alone.
    full = np.tril(rng.normal(size=(n_components, 15, 15))) + 3 * np.eye(15)
    full *= hub[:, None] == hub
    diagonal = np.eye(15) * rng.uniform(0.5, 2.0, (n_components, 15, 1))
    log_weights = np.full((1, n_components), -np.log(n_components))
    worst = 0.0
    for dtype, allowed in ((np.float64, 1e-10), (np.float32, 1e-3)):
        for whiteners in (full, diagonal):
            is_diagonal = whiteners is diagonal
            rows = rng.normal(size=(n_rows, 15)).astype(dtype)
            means = rng.normal(size=(n_components, 15)).astype(dtype)
            log_dets = rng.normal(size=(n_components, len(blocks))).astype(dtype)
            if is_diagonal:
                inverse = np.diagonal(whiteners, axis1=1, axis2=2).ravel() ** 2
            else:
                inverse = np.concatenate([whiteners[:, one, one].ravel() for one in blocks])
            counts, first = np.zeros((1, n_components)), np.zeros((n_components, 15))
            second = np.zeros(len(inverse))
            with one_blas_thread():
                log_likelihood = sweep.sweep(
                    rows, np.empty(0), offsets, means, inverse.astype(dtype), is_diagonal,
                    log_dets, np.ones((1, len(blocks))), log_weights, counts, first, second, 0.0, 2,
                )  # fmt: skip
            apart = rows.astype(np.float64) - means.astype(np.float64)[:, None]
            distances = np.square(apart @ whiteners.swapaxes(1, 2)).sum(axis=2)
            scores = log_weights.T - (distances + log_dets.sum(axis=1)[:, None]) / 2
            log_densities = np.logaddexp.reduce(scores)
            weighted = np.exp(scores - log_densities)[:, :, None] * apart
            if is_diagonal:
                squares = (weighted * apart).sum(axis=1).ravel()
            else:
                products = np.tril(weighted.swapaxes(1, 2) @ apart)
                squares = np.concatenate([products[:, one, one].ravel() for one in blocks])
            for kernel, plain in (
                (log_likelihood, log_densities.sum()),
                (counts, np.exp(scores - log_densities).sum(axis=1)),
                (first, weighted.sum(axis=1)),
                (second, squares),
            ):
                size = max(1.0, float(np.abs(plain).max()))
                worst = max(worst, float(np.abs(kernel - plain).max()) / (size * allowed))
    # Codecs draw from their keys alone: the same bits on every machine.
    values, decoded = np.linspace(-1.0, 1.0, 148).reshape(4, 37), np.empty((4, 37))
    keys = np.arange(1, 5, dtype=np.uint64)
    codecs.natural_transmit(values, keys, 3, decoded, np.zeros(4, dtype=np.uint8), 1)
    return worst if zlib.crc32(decoded.tobytes()) == NATURAL else float("inf")


def extras(problems: Problems) -> dict[str, Report]:
    """Optional libraries: the version, or how to install it; a broken one is a problem."""
    report: dict[str, Report] = {}
    for name, (module, extra, what) in EXTRAS.items():
        version = _version(name)
        report[name] = {"version": version, "for": what, "install": f"pip install 'vpem[{extra}]'"}
        if version is not None:
            try:
                import_module(module)
            except Exception as error:
                problem = (
                    f"{name}, for {what}, cannot be loaded: {_first_line(error)}; try: pip install "
                    f"--force-reinstall 'vpem[{extra}]'"
                )
                problems.append((False, problem))
    return report


def mpi(problems: Problems) -> Report:
    """The MPI library of mpi4py, and the launcher, which must belong to the same MPI."""
    beside = Path(sys.executable).parent
    launcher = shutil.which("mpiexec") or shutil.which("mpiexec", path=str(beside))
    report: Report = {"library": None, "mpiexec": launcher, "launcher": None}
    if _version("mpi4py") is None:
        return report
    # In a process of its own, which a library that does not fit may end.
    program = (
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "print(MPI.Get_library_version())"
    )
    library = _output(sys.executable, "-c", program)
    if library is None:
        problem = "mpi4py finds no MPI library, for --engine mpi; try: pip install mpich"
        problems.append((False, problem))
        return report
    report["library"] = " ".join(library.split("\n")[0].split())
    if launcher is None:
        problems.append((False, "there is no mpiexec, for --engine mpi; try: pip install mpich"))
        return report
    report["launcher"] = _maker(_output(launcher, "--version") or "")
    maker = _maker(library)
    if maker and report["launcher"] and maker != report["launcher"]:
        problem = (
            f"mpi4py is built for {maker}, but {launcher} belongs to {report['launcher']}; take "
            "the mpiexec of the same MPI"
        )
        problems.append((False, problem))
    return report


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


def surroundings(problems: Problems, known: set[str]) -> Report:
    """Terminal, temporary folder, and variables of vpem; those not ``known`` are a problem."""
    import tempfile

    size = shutil.get_terminal_size()
    report: Report = {
        "terminal": {
            "stdout": sys.stdout.isatty(),
            "stderr": sys.stderr.isatty(),
            "width": size.columns,
            "colour": sys.stdout.isatty() and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb",
            "encoding": getattr(sys.stdout, "encoding", None),
            "TERM": os.environ.get("TERM"),
            "NO_COLOR": os.environ.get("NO_COLOR"),
        },
        "temporary": None,
        "variables": {},
    }  # fmt: skip
    try:
        folder = tempfile.gettempdir()
        report["temporary"] = folder
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
        problem = (
            f"no HDF5 file can be written in a temporary folder: {_first_line(error)}; set TMPDIR "
            "to one with room, or HDF5_USE_FILE_LOCKING=FALSE"
        )
        problems.append((True, problem))
    for name in sorted(os.environ):
        if name.startswith("VPEM_"):
            report["variables"][name] = os.environ[name]
            if name not in known and name not in LIBRARY_VARIABLES:
                near = did_you_mean(name.lower(), [each.lower() for each in known]).upper()
                hint = near.replace("DID YOU MEAN", "did you mean")
                problems.append((False, f"{name} is no variable of an option{hint}; unset it"))
    return report


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
    problems: Problems = []
    with warnings.catch_warnings():
        # Warnings of libraries about themselves are no problems of the installation.
        warnings.simplefilter("ignore")
        report: Report = {
            "libraries": libraries(problems),
            "processors": processors(problems),
            "blas": blas(),
            "kernels": kernels(problems),
            "extras": extras(problems),
            "mpi": mpi(problems),
            **surroundings(problems, known),
        }
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
    libraries, there = report["libraries"], report["processors"]
    versions = [(name, version or missing) for name, version in libraries.items()]
    limit = "no limit" if there["limit"] is None else f"{there['limit']:g} by the container"
    kernels = report["kernels"]
    error = kernels["largest_error"]
    waits = ", ".join(f"{name}={value}" for name, value in (kernels["waiting"] or {}).items())
    agree = "not compared" if error is None else "yes" if error <= 1 else "no"
    openmp = {None: "unknown", True: "with OpenMP", False: "without OpenMP"}[kernels["openmp"]]
    machine = [
        ("processors", f"{there['there']}, usable {there['usable']}, {limit}"),
        ("OMP_NUM_THREADS", there["OMP_NUM_THREADS"] or "not set"),
        ("threads of the kernels", f"{there['threads']}: {there['why'] or 'unknown'}"),
        ("how they wait", waits or "unknown"),
        ("OPENBLAS_THREAD_TIMEOUT", there["OPENBLAS_THREAD_TIMEOUT"] or "not set"),
        ("kernels", f"{len(kernels['built'])} built, {openmp}"),
        ("instructions", f"{kernels['instructions']} (machine: {kernels['machine']})"),
        ("agree with NumPy", agree),
    ]
    for one in report["blas"]:
        threads = plural(one["num_threads"], "thread")
        machine.append((one["user_api"], f"{one['internal_api']} {one['version'] or ''} {threads}"))
    extras = [
        (name, one["version"] or one["install"], one["for"])
        for name, one in report["extras"].items()
    ]
    mpi, terminal = report["mpi"], report["terminal"]
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
