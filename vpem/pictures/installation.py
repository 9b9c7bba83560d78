"""An installation: what is there, what is wrong with it, and what to do.

Every check adds facts to a report, and yields problems: lines that say what is wrong and what to
do, "broken: ..." of what is needed, otherwise "note: ...". A check that fails is broken itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import zlib
from collections.abc import Iterable, Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING

from vpem import __version__
from vpem.errors import did_you_mean
from vpem.pictures.contents import lines_of
from vpem.records import Table, stated

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
    "dask": ("dask.dataframe", "dask", "Dask collections, --engine dask"),
    "distributed": ("distributed", "dask", "--engine dask"),
    "nvflare": ("nvflare", "nvflare", "--engine nvflare"),
    "ray": ("ray.data", "ray", "Ray datasets, --engine ray"),
    "cryptography": ("cryptography.x509", "secure", "--secure-sum, --engine tls"),
    "mnemonic": ("mnemonic", "tls", "fingerprints in words"),
    "websockets": ("websockets", "tls", "--engine tls"),
}
"""Optional distributions: a module, the extra of vpem, and what uses it."""

KERNELS = (".so", ".pyd", ".pyx")
LIBRARY_VARIABLES = (
    "VPEM_CACHE", "VPEM_INSTRUCTIONS", "VPEM_KEY_PASSPHRASE", "VPEM_NO_OPENMP", "VPEM_READ_LIMIT",
)  # fmt: skip

FAILS = {
    "kernels": "the kernels cannot be loaded: {}; build them: pip install .",
    "surroundings": "no HDF5 file can be written in a temporary folder: {}; set TMPDIR to one with "
    "room, or HDF5_USE_FILE_LOCKING=FALSE",
}
"""What is wrong where a check fails, and why."""


def check_installation(variables: Iterable[str] = ()) -> Report:
    """Check this installation of vpem; the report ``works``, or has ``problems`` that are needed.

    Of what vpem needs each is loaded, and its kernels are compared with NumPy, which takes seconds.
    ``variables`` are those that set options; a note says which others begin like these.
    """
    report: Report = {"works": True, "problems": []}
    options, problems = {*variables}, list[str]()
    with warnings.catch_warnings():
        # Warnings of libraries about themselves are no problems of the installation.
        warnings.simplefilter("ignore")
        for check in (libraries, processors, kernels, extras, mpi, surroundings):
            try:
                problems += check(report)
            except Exception as error:
                advice = FAILS.get(check.__name__, f"nothing is known of {check.__name__}: {{}}")
                problems.append(f"broken: {advice.format(_first_line(error))}")
    set_here = {name: os.environ[name] for name in sorted(os.environ) if name[:5] == "VPEM_"}
    report["variables"] = set_here | {name: "(secret)" for name in set_here if "PASS" in name}
    for name in sorted(set_here.keys() - options - {*LIBRARY_VARIABLES}) if options else ():
        near = did_you_mean(name.lower(), map(str.lower, options)).upper()
        hint = near.replace("DID YOU MEAN", "did you mean")
        problems.append(f"note: {name} is no variable of an option{hint}; unset it")
    for problem in sorted(problems, key=lambda one: one.startswith("note: ")):
        kind, _, advice = problem.partition(": ")
        report["problems"].append({"needed": kind == "broken", "advice": advice})
    report["works"] = not any(one["needed"] for one in report["problems"])
    return report


def _version(name: str) -> str | None:
    return next((one.version for one in metadata.distributions(name=name)), None)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _loading(module: str, what: str, install: str) -> Problems:
    try:
        import_module(module)
    except Exception as error:
        yield f"{what} cannot be loaded: {_first_line(error)}; try: {install}"


def libraries(report: Report) -> Problems:
    """Versions of Python, vpem and the libraries that it needs, each of which is loaded."""
    versions = {name: _version(name) for name in NEEDED}
    report["libraries"] = {"python": sys.version.split()[0], "vpem": __version__, **versions}
    for name, module in NEEDED.items():
        yield from _loading(module, f"broken: {name}", f"pip install {name}")


def processors(report: Report) -> Problems:
    """Processors that exist and may be used, threads of kernels, and loaded BLAS and OpenMP."""
    from vpem._core.threads import processor_limit, thread_count, whereabouts
    from vpem.checks import read_int

    variable, there = os.environ.get("OMP_NUM_THREADS"), os.cpu_count()
    usable, limit, threads = len(whereabouts()[1]), processor_limit(), thread_count(None)
    share = None if limit is None else max(1, round(limit))
    reasons = {
        "OMP_NUM_THREADS": (read_int((variable or "").split(",")[0]) or 0) > 0,
        "what the container may use": share is not None and share < usable,
        "processors that the process may run on": usable < (there or 0),
    }
    why = next((why for why, is_it in reasons.items() if is_it), "one per processor")
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
    files = list(Path(str(core.__file__)).parent.iterdir())  # in a clone with sources
    for name in sorted({one.name.split(".")[0] for one in files if one.suffix in KERNELS}):
        module = import_module(f"vpem._core.{name}")
        found["built"].append(name)
    content = Path(str(module.__file__)).read_bytes()
    found["openmp"] = b"GOMP_" in content or b"__kmpc_fork_call" in content
    found["instructions"] = import_module("vpem._core.sweep").instruction_set()
    threads = import_module("vpem._core.threads")
    found["machine"] = threads.machine_instructions()
    found |= {"largest_error": None, "waiting": core.waiting()}
    if not found["openmp"]:
        yield (
            "note: the kernels are built without OpenMP and use one thread; build them with a "
            "compiler that has it"
        )
    chosen = os.environ.get("VPEM_INSTRUCTIONS")
    if chosen and chosen not in threads.INSTRUCTIONS:
        yield f"note: VPEM_INSTRUCTIONS is {chosen!r}; it may be base or avx2"
    elif chosen and chosen != found["machine"]:
        yield (
            f"note: VPEM_INSTRUCTIONS={chosen} restricts the kernels to fewer instructions than "
            "the machine has; unset it"
        )
    try:
        found["largest_error"] = worst = self_check()
    except Exception as failed:
        yield f"broken: the kernels fail: {_first_line(failed)}; build them again"
        return
    if worst > 1.0:
        yield (
            f"broken: the kernels do not agree with NumPy ({worst:.2g} times the allowed error); "
            "build them again, or set VPEM_INSTRUCTIONS=base"
        )


NATURAL = 3951074175
"""CRC-32 of what natural compression makes of the numbers of `self_check`."""


def self_check() -> float:
    """Return the difference of kernels from plain NumPy: up to 1, rounding explains it."""
    import numpy as np

    from vpem._core import codecs
    from vpem._core import sweep as kernels
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
                log_likelihood = kernels.sweep(
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
    if library is None or launcher is None:
        what = "there is no mpiexec" if library else "mpi4py finds no MPI library"
        yield f"note: {what}, for --engine mpi; try: pip install mpich"
    if library is None:
        return
    found["library"] = " ".join(library.split("\n")[0].split())
    maker, other = (
        next((one for one, words in MAKERS.items() if any(word in text for word in words)), None)
        for text in (library.lower(), ((launcher and _output(launcher, "--version")) or "").lower())
    )
    found["launcher"] = other
    if maker and other and maker != other:
        yield (
            f"note: mpi4py is built for {maker}, but {launcher} belongs to {other}; take the "
            "mpiexec of the same MPI"
        )


MAKERS = {"Open MPI": ("open mpi", "openrte"), "MPICH": ("intel", "mpich", "hydra", "mvapich")}
"""Kinds of MPI, whose launchers fit, by words in what libraries and launchers print."""


def _output(*words: str) -> str | None:
    try:
        ended = subprocess.run(
            words, capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout


def surroundings(report: Report) -> Problems:
    """The terminal, and the temporary folder, in which an HDF5 file is written and read."""
    there, term, no_colour = sys.stdout.isatty(), os.environ.get("TERM"), os.environ.get("NO_COLOR")
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


LIBRARY = "{internal_api} {version:?} {num_threads:thread}"
"""What is said of BLAS or OpenMP."""


def tables_of(report: Report) -> Iterator[Table]:
    versions = [(name, version or "not found") for name, version in report["libraries"].items()]
    yield Table(versions, caption="Versions")
    blas = [(one["user_api"], stated(LIBRARY, one.get)) for one in report.get("blas", ())]
    yield Table([*lines_of(report, MACHINE), *blas], caption="Machine")
    extras = report["extras"].items()
    optional = [(name, one["version"] or one["install"], one["for"]) for name, one in extras]
    yield Table(optional, ("", "", "for"), "Optional libraries", right=())
    environment = [*lines_of(report, ENVIRONMENT), *report["variables"].items()]
    yield Table(environment, caption="Environment")
