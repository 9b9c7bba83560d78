"""`vpem party budget`: what runs have told of each data file, and what is left to be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf, isinf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json
from .output import plural, print_json, show
from .roles import FOLDER, READ
from .tables import table

if TYPE_CHECKING:
    from vpem.files.studies.policy import Policy
    from vpem.files.studies.spent import Ran
    from vpem.network.schema import Report


def budget(
    where: Annotated[
        Path | None,
        FOLDER,
        typer.Argument(
            metavar="STUDY",
            help="The study, or its folder. Default: this folder.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None, READ, typer.Option(help="Only this data file.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Show what runs of studies have told of each data file here.

    A party notes every run before it begins, in data.spent beside its studies: runs with
    differential privacy, whose epsilon is that of all together, at the largest of their deltas, and
    runs without noise, of which no epsilon bounds what they told. What policy.toml leaves by
    most-epsilon-in-all is shown, too. Files of one path or of one content are the same.

    Example: vpem party budget --data lab.csv
    """
    from vpem.errors import FileError
    from vpem.files.studies.policy import policy_beside
    from vpem.files.studies.spent import Spent

    where = where or Path()
    if not where.exists():
        raise FileError(f"there is no study, and no folder, {where}")
    folder = where if where.is_dir() else where.parent
    ledger, policy = Spent(folder), policy_beside(folder / "policy.toml")
    runs = ledger.runs()
    files = {file: {file} for ran in runs for file in ran.data}
    if data is not None and runs:
        files = {file: {file, digest} for file, digest in ledger.digests([data]).items()}
    for ran in runs:
        for file in files.keys() & ran.data.keys():
            files[file].add(ran.data[file])
    read = {file: [ran for ran in runs if ran.has_read(files[file])] for file in sorted(files)}
    found = [_report(file, some, policy) for file, some in read.items() if some]
    if json:
        print_json({"ledger": str(ledger.path), "data": found})
    elif not found:
        show(f"{ledger.path}: no run of a study has read {data or 'data'}")
    else:
        show(*(table(_facts(one), "", "", title=Path(one["file"]).name) for one in found))


def in_all(runs: Sequence[Ran], against: str) -> float:
    """Return the epsilon of runs together against an adversary.

    It is infinite where one adds no noise, or none that protects from that adversary.
    """
    from vpem.fits.privacy import spent_in_all

    noise = [ran.noise for ran in runs
             if ran.noise and (ran.protects == "all" or against == "outsider")]  # fmt: skip
    return inf if len(noise) < len(runs) else spent_in_all(noise)


def _left(most: float, against: str, runs: Sequence[Ran]) -> float:
    """Return the epsilon that one more run may have, at the largest delta of those before."""
    from vpem.fits.privacy import Budget, spent

    if not runs or in_all(runs, against) >= most:
        return 0.0
    noise = [ran.noise for ran in runs if ran.noise]
    delta = max(one["delta"] for one in noise)
    rest = Budget(most, delta).multiplier ** -2 - sum(one["multiplier"] ** -2 for one in noise)
    return 0.999 * spent([rest**-0.5], delta) if rest > 0 else 0.0  # of noise on integers


def _report(file: str, runs: Sequence[Ran], policy: Policy | None) -> Report:
    """Return what runs that read a file come to, in plain values."""
    noisy = [ran for ran in runs if ran.noise is not None]
    epsilons = {who: in_all(noisy, who) if noisy else inf for who in ("outsider", "worker")}
    most = policy and policy.most_epsilon_in_all
    return {
        "file": file,
        "runs": dict(Counter(ran.command for ran in runs)),
        "first": runs[0].time,
        "last": runs[-1].time,
        "sums": sum(ran.sums or 0 for ran in runs),
        "not_ended": sum(ran.sums is None for ran in runs),
        "not_masked": sum(not ran.masked for ran in runs),
        "without_noise": len(runs) - len(noisy),
        "with_noise": len(noisy),
        "epsilon": {who: None if isinf(one) else one for who, one in epsilons.items()},
        "delta": max((ran.noise["delta"] for ran in runs if ran.noise), default=None),
        "left": _left(most, policy.epsilon_against, runs) if policy and most else None,
    }


def _facts(found: Report) -> list[tuple[str, str]]:
    """Return the lines of a table on one data file."""
    runs, epsilon = found["runs"], found["epsilon"]
    whom = "outsiders" if epsilon["worker"] is None else "all"
    facts = {
        "runs": ", ".join(f"{name} {count}" for name, count in runs.items()),
        "first, last": f"{found['first']}, {found['last']}",
        "sums of data": f"{found['sums']:,}",
        "without masks": found["not_masked"] and plural(found["not_masked"], "run"),
        "interrupted": found["not_ended"] and f"{found['not_ended']}, which count as whole runs",
        "with noise": found["delta"]
        and f"{plural(found['with_noise'], 'run')}, together epsilon {epsilon['outsider']:.4g}, "
        f"delta {found['delta']:g}, against {whom}",
        "without noise": found["without_noise"]
        and f"{plural(found['without_noise'], 'run')}: no epsilon bounds what was told",
        "left": found["left"] is not None
        and f"epsilon {found['left']:.3g} for one more run (policy.toml)",
    }
    return [(name, str(fact)) for name, fact in facts.items() if fact]
