"""A member of a study is held to its party's policy, and what its runs disclose is noted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf, isfinite
from numbers import Integral
from pathlib import Path
from secrets import token_hex
from typing import Any

import h5py

from vpem.engines.engine import Engine
from vpem.engines.tls.trust import Member
from vpem.errors import FileError
from vpem.files.hdf5 import open_read
from vpem.files.studies.logs import Ran, Spent
from vpem.files.studies.policy import (
    FILE,
    Case,
    ESteps,
    Policy,
    PolicyError,
    file_digest,
    policy_beside,
    refuse_repeatable,
)
from vpem.files.studies.signed import now
from vpem.files.studies.study import Study
from vpem.fits.privacy import Budget, Guarantee, spent, spent_in_all
from vpem.fits.settings import parse_numbers
from vpem.network.schema import Report
from vpem.sums.private import noise_by

Options = Mapping[str, Any]
"""Options of a command by their names."""


def case_of(study: Study, command: str, options: Options) -> Case:
    """Return what policies limit in a command of a study; models are looked at."""
    paths = (options.get("model"), options.get("init_model"))
    models = {str(path): file_digest(path) for path in paths if isinstance(path, Path)}
    counts, epsilons = [0], None
    for name in ("n_components", "n_clusters", "components", "clusters"):
        if options.get(name) is not None:
            counts += parse_numbers(name, str(options[name]))
    counts = [count + bool(options.get("test")) for count in counts]  # against one more
    for path in filter(h5py.is_hdf5, models):
        with open_read(path) as file:
            centres = getattr(file.get("centres"), "shape", ())
            stored = (file.attrs.get("n_components"), *centres[:1])
            counts += [int(one) for one in stored if isinstance(one, Integral)]
    if budget := _budget(options):
        masked, known = bool(options.get("secure_sum")), options.get("colluding")
        over_rows = options.get("epsilon") is not None
        by = noise_by(masked, options.get("sum"), command == "fedem") if over_rows else "hubs"
        known = min(1 if known is None else int(known), study.n_parties - 1) if masked else 0
        against = Guarantee(budget, (), by, False, study.n_parties, known).against()
        epsilons = {who: some and some["add_or_remove"] for who, some in against.items()}
    return Case(
        command, options, study.n_parties, study.result, study.if_lost, max(counts), models,
        epsilons,
    )  # fmt: skip


def _budget(options: Options) -> Budget | None:
    epsilon, delta = options.get("epsilon") or options.get("release_epsilon"), options.get("delta")
    return None if epsilon is None or delta is None else Budget(float(epsilon), float(delta))


class Guard:
    """Holds a member of a study to the policy beside it, if any, and notes what it discloses."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.policy = policy_beside(study.path)
        self.spent = Spent(study.folder)
        self._run: Ran | None = None
        self._case: Case | None = None
        self._begun = False
        self._steps: ESteps | None = None

    @property
    def rules(self) -> Policy:
        """The policy, or that of a party without one: some options need each party's consent."""
        return self.policy or Policy(self.study.folder / FILE)

    def refused(self, so_far: bool = False) -> Iterator[tuple[str, PolicyError]]:
        """Yield commands of the study that the policy refuses, and why.

        If ``so_far``, more parties will join.
        """
        rules = replace(self.rules, fewest_parties=None) if so_far else self.rules
        for command, table in self.study.options.items() if self.policy is not None else ():
            options = {"align": None, "topology": None}
            options |= {name.replace("-", "_"): value for name, value in table.items()}
            for error in rules.refused(case_of(self.study, command, options)):
                yield command, error

    def check(self, command: str, options: Options, member: Member, files: Sequence[Path]) -> None:
        """Raise PolicyError where a member may not run a command on its files.

        InputError where noise could be subtracted.
        """
        refuse_repeatable(options)
        self._case = case_of(self.study, command, options)
        if self.policy is not None or member.holds:
            self.rules.check(self._case)
        if files:
            noise: Report = {}
            budget, masked = _budget(options), bool(options.get("secure_sum"))
            if budget is not None:
                noise["noise"] = {**vars(budget), "multiplier": budget.multiplier}
                # colluding = 0 allows for no share that is known, but every worker knows its own.
                own_share = masked and options.get("colluding") == 0
                to_all = options.get("epsilon") and not own_share
                noise["protects"] = "all" if to_all else "outsiders"
            self._run = Ran(
                token_hex(8), now(), self.study.id, self.study.edition, command,
                self.spent.digests(files), self.study.n_parties, masked, **noise,
            )  # fmt: skip
            self._check_spent()

    def _check_spent(self) -> None:
        """Raise PolicyError where earlier runs leave no budget for this one."""
        policy, run = self.policy, self._run
        if run is None or policy is None:
            return
        runs, since = self.spent.runs(), datetime.now(UTC) - timedelta(days=policy.in_days)
        times = [datetime.fromisoformat(one.time) for one in runs if one.study == run.study]
        policy.check_runs(sum(time > since for time in times))
        for file, digest in run.data.items() if policy.most_epsilon_in_all is not None else ():
            read = [*(one for one in runs if one.has_read({file, digest})), run]
            epsilon = epsilon_in_all(read, policy.epsilon_against)
            policy.check_spent(run.command, Path(file).name, epsilon)

    def begin(self) -> None:
        """Note a run that all have agreed to, before anything of its data is sent."""
        if self._run is not None:
            self.spent.begin(self._run, self._check_spent)
            self._begun = True

    def watch(self, engine: Engine, n_rows: int, over_rows: bool) -> None:
        """Raise PolicyError where there are too few rows, or later where E-steps are used up.

        ``n_rows`` counts the rows of all parties; ``over_rows``: each party holds some of them.
        """
        self.rules.check_rows(n_rows, self._case.n_components if self._case else 0)
        self._steps = ESteps(self.rules, 1 if over_rows else n_rows)
        engine.watch = self._steps.begin

    def end(self) -> None:
        """Note how many sums of data a run has sent; if that fails, it counts as a whole run."""
        if self._run is not None and self._begun:
            self._begun, sums = False, self._steps.n_sums if self._steps else 0
            travelled = self._steps and self._case and int(self._case.options.get("hops") or 0)
            with suppress(FileError):
                self.spent.end(self._run, max(sums, bool(travelled)))


def epsilon_in_all(runs: Sequence[Ran], against: str) -> float:
    """Return the epsilon of all runs together against an adversary.

    It is infinite where a run adds no noise, or none that protects against that adversary.
    """
    protecting = [ran for ran in runs if ran.protects == "all" or against == "outsider"]
    noise = [ran.noise for ran in protecting if ran.noise]
    return inf if len(noise) < len(runs) else spent_in_all(noise)


def disclosed(folder: Path, data: Path | None) -> Report:
    """Return what runs of studies in a folder have disclosed of each data file, or of one.

    Files with one path or one content count as one. Where the policy there limits the epsilon of
    all runs, also what that leaves for one more, at the largest delta of earlier ones.
    """
    ledger, rules = Spent(folder), policy_beside(folder / FILE) or Policy(folder / FILE)
    runs, most = ledger.runs(), rules.most_epsilon_in_all
    files = {file: {file} for ran in runs for file in ran.data}
    if data is not None and runs:
        files = {file: {file, digest} for file, digest in ledger.digests([data]).items()}
    for ran in runs:
        for file in files.keys() & ran.data.keys():
            files[file].add(ran.data[file])
    reports = []
    for file, names in sorted(files.items()):
        if not (read := [ran for ran in runs if ran.has_read(names)]):
            continue
        noisy, left = [ran for ran in read if ran.noise], most and 0.0
        noise = [ran.noise for ran in noisy if ran.noise]
        epsilons = [epsilon_in_all(noisy, who) if noisy else inf for who in ("outsider", "worker")]
        delta = max((one["delta"] for one in noise), default=None)
        if most and delta and epsilon_in_all(read, rules.epsilon_against) < most:
            rest = Budget(most, delta).multiplier ** -2
            rest -= sum(one["multiplier"] ** -2 for one in noise)
            left = 0.999 * spent([rest**-0.5], delta) if rest > 0 else 0.0  # of noise on integers
        outsider, worker = (one if isfinite(one) else None for one in epsilons)
        reports.append({
            "file": file,
            "runs": dict(Counter(ran.command for ran in read)),
            "first": read[0].time,
            "last": read[-1].time,
            "sums": sum(ran.sums or 0 for ran in read),
            "not_ended": sum(ran.sums is None for ran in read),
            "not_masked": sum(not ran.masked for ran in read),
            "without_noise": len(read) - len(noisy),
            "with_noise": len(noisy),
            "epsilon": {"outsider": outsider, "worker": worker},
            "delta": delta,
            "left": left,
        })  # fmt: skip
    return {"ledger": str(ledger.path), "data": reports}
