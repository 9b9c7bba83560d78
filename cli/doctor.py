"""`vpem doctor`: whether this installation works, and what would make it work better."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import typer

from .options import Json

if TYPE_CHECKING:
    from vpem.network.schema import Report


def doctor(context: typer.Context, json: Json = False) -> None:
    """Look at this installation: first problems, then facts.

    A problem comes with a line of advice.

    Versions, processors and threads, BLAS, OpenMP, the instructions that the kernels use and
    whether they agree with NumPy, MPI, what is installed besides, terminal, temporary folder.
    The exit code is 2 where something that vpem needs is broken, or else 0.

    Example: vpem doctor
    """
    from . import checkup
    from .config import leaves, variables
    from .output import print_json

    known = {
        name
        for path, member in leaves(context.find_root().command)
        for name in variables(path, member)
    }
    problems: checkup.Problems = []
    with warnings.catch_warnings():
        # What libraries say of themselves when they are loaded is nobody's problem here.
        warnings.simplefilter("ignore")
        found: Report = {
            "libraries": checkup.libraries(problems),
            "processors": checkup.processors(problems),
            "blas": checkup.blas(),
            "kernels": checkup.kernels(problems),
            "extras": checkup.extras(problems),
            "mpi": checkup.mpi(problems),
            **checkup.surroundings(problems, known),
        }
    problems.sort(key=lambda problem: not problem[0])
    works = not any(needed for needed, _ in problems)
    if json:
        told = [{"needed": needed, "advice": advice} for needed, advice in problems]
        print_json({"works": works, "problems": told, **found})
    else:
        _show(found, problems)
    if not works:
        raise typer.Exit(2)


def _show(found: Report, problems: list[tuple[bool, str]]) -> None:
    """Print problems, then facts."""
    from vpem.errors import printable

    from .output import plural, show
    from .tables import table

    for needed, advice in problems:
        print(printable(f"{'broken' if needed else 'note'}: {advice}"))
    if not problems:
        print("Everything works.")
    missing = "not there"
    libraries, there = found["libraries"], found["processors"]
    versions = [(name, version or missing) for name, version in libraries.items()]
    limit = "no limit" if there["limit"] is None else f"{there['limit']:g} by the container"
    kernels = found["kernels"]
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
    for one in found["blas"]:
        threads = plural(one["num_threads"], "thread")
        machine.append((one["user_api"], f"{one['internal_api']} {one['version'] or ''} {threads}"))
    besides = [
        (name, one["version"] or one["install"], one["for"])
        for name, one in found["extras"].items()
    ]
    mpi, terminal = found["mpi"], found["terminal"]
    others = [
        ("MPI library", mpi["library"] or missing),
        ("mpiexec", f"{mpi['mpiexec'] or missing} ({mpi['launcher'] or 'unknown'})"),
        ("terminal", f"{'yes' if terminal['stdout'] else 'no'}, {terminal['width']} columns, "
                     f"{'colours' if terminal['colour'] else 'no colours'}, "
                     f"{terminal['encoding']}"),
        ("temporary folder", found["temporary"] or missing),
        *found["variables"].items(),
    ]  # fmt: skip
    show(
        table(versions, "", "", title="Versions"),
        table(machine, "", "", title="Machine"),
        table(besides, "", "", "for", title="Besides"),
        table(others, "", "", title="Surroundings"),
    )
