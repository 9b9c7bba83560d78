"""What a party allows: an example of a policy, and how the one beside a study is kept to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vpem.engines.engine import Engine
    from vpem.engines.tls.members import Member
    from vpem.errors import Setting
    from vpem.files.studies.policy import ESteps
    from vpem.files.studies.spent import Ran
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report

    from .output import Screen


def policy() -> None:
    """Print a policy to begin with, for policy.toml beside a study.

    Whatever a study says, it limits, at the party whose it is, how far features may travel, how few
    parties and rows are enough, how many components there may be, how many E-steps a run may take
    and how many runs there may be, what differential privacy they need, whether sums are masked,
    and which models, commands, alignments, topologies and results there may be. What it refuses is
    told in full there, and to other parties by that party's name. Write it to the file with
    > policy.toml.

    Example: vpem party policy
    """
    import sys

    from vpem.files.studies.policy import EXAMPLE

    sys.stdout.write(EXAMPLE)


class Guard:
    """Keeps a command to the policy beside a study, if there is one, and notes what it tells."""

    def __init__(self, study: Study) -> None:
        from vpem.files.studies.policy import policy_beside
        from vpem.files.studies.spent import Spent

        self.study = study
        self.policy = policy_beside(study.path)
        self.spent = Spent(study.folder)
        self._run: Ran | None = None
        self._components = self._hops = 0
        self._begun = False
        self._steps: ESteps | None = None

    def check(self, command: str, options: Mapping[str, Any], member: Member) -> None:
        """Raise PolicyError where a member may not run a command; options by names of parameters.

        Some options need the word of whoever holds data. InputError where noise could be
        subtracted.
        """
        from secrets import token_hex

        from vpem.files.studies.policy import FILE, Policy
        from vpem.files.studies.spent import Ran, now
        from vpem.files.table_settings import TableSettings

        from .saem_corpus import files_in
        from .taking_part import own_party

        refuse_repeatable(options)
        n_parties = self.facts["n_parties"]
        asked = asked_of(options, n_parties)
        self._components, self._hops = asked["n_components"], int(options.get("hops") or 0)
        if self.policy is not None or member.holds:
            policy = self.policy or Policy(self.study.folder / FILE)
            policy.check(command, options, **self.facts, **asked)
        if options.get("data"):
            files = own_party(member.name, files_in(options["data"]), TableSettings()).find()
            self._run = Ran(
                token_hex(8), now(), self.study.id, self.study.edition, command,
                self.spent.digests(files), n_parties, bool(options.get("secure_sum")),
                **noise_of(options),
            )  # fmt: skip
            self._check_spent()

    def _check_spent(self) -> None:
        """Raise PolicyError where runs before leave nothing for this one."""
        from datetime import UTC, datetime, timedelta

        from .budget import in_all

        policy, run = self.policy, self._run
        if run is None or policy is None:
            return
        runs, since = self.spent.runs(), datetime.now(UTC) - timedelta(days=policy.in_days)
        times = [datetime.fromisoformat(one.time) for one in runs if one.study == run.study]
        policy.check_runs(sum(time > since for time in times))
        for file, digest in run.data.items():
            read = [*(one for one in runs if one.has_read({file, digest})), run]
            if policy.most_epsilon_in_all is not None:
                epsilon = in_all(read, policy.epsilon_against)
                policy.check_spent(run.command, Path(file).name, epsilon)

    def begin(self) -> None:
        """Note a run of which all have agreed, before anything of its data is sent."""
        if self._run is not None:
            self.spent.begin(self._run, self._check_spent)
            self._begun = True

    def end(self) -> None:
        """Note how much data of a run that has begun travelled; if that fails it counts as any."""
        from contextlib import suppress

        from vpem.errors import FileError

        if self._run is not None and self._begun:
            self._begun, sums = False, self._steps.n_sums if self._steps else 0
            with suppress(FileError):
                self.spent.end(self._run, max(sums, bool(self._steps and self._hops)))

    @property
    def fewest(self) -> int:
        """How many parties must have data."""
        return (self.policy and self.policy.fewest_parties) or 1

    @property
    def facts(self) -> Report:
        """What a policy asks of the study."""
        n_parties = sum(member.holds for member in self.study.roster.members)
        study = self.study
        return {"n_parties": n_parties, "result": study.result, "if_lost": study.if_lost}

    def watch(self, engine: Engine, n_rows: int, over_rows: bool, screen: Screen) -> None:
        """Raise PolicyError where there are too few rows, or later where E-steps are used up.

        ``n_rows`` are what parties have together; where each holds rows, these are ``over_rows``.
        """
        from vpem.files.studies.policy import ESteps, Policy

        policy = self.policy or Policy(self.study.folder)
        policy.check_rows(n_rows, self._components)
        if policy.most_esteps is not None:
            screen.say(f"{policy.path} allows at most {policy.most_esteps} E-steps in this run")
        self._steps = ESteps(policy, 1 if over_rows else n_rows)
        engine.watch = self._steps.begin


def refuse_repeatable(options: Mapping[str, Any]) -> None:
    """Raise InputError where a study's noise could be drawn again by who knows its seed."""
    from vpem.errors import InputError, Setting

    if options.get("repeatable_noise") is not None:
        raise InputError(
            Setting("repeatable_noise"), " is for tests on one machine: in a study all would know "
            "the noise, and could subtract it; leave it out"
        )  # fmt: skip


def asked_of(options: Mapping[str, Any], n_parties: int) -> Report:
    """Return what policies look at: digests of models, most components, epsilons by adversary."""
    from numbers import Integral

    import h5py

    from vpem.files.hdf5 import open_read
    from vpem.fits.settings import parse_numbers

    from .agreement import digest_of

    given = (options.get("model"), options.get("init_model"))
    models = {str(path): digest_of(path) for path in given if isinstance(path, Path)}
    counts, noise, epsilons = [0], noise_of(options), None
    for name in ("n_components", "n_clusters", "components", "clusters"):
        if options.get(name) is not None:
            counts += parse_numbers(name, str(options[name]))
    for path in filter(h5py.is_hdf5, models):
        with open_read(path) as file:
            told = (file.attrs.get("n_components"), *getattr(file.get("centres"), "shape", ())[:1])
            counts += [int(one) for one in told if isinstance(one, Integral)]
    if noise:
        from vpem.fits.privacy import Budget, Guarantee
        from vpem.sums.noisy import noise_by

        masked, known = bool(options.get("secure_sum")), options.get("colluding")
        over_rows = options.get("epsilon") is not None
        by = noise_by(masked, str(options.get("sum"))) if over_rows else "hubs"
        known = min(1 if known is None else int(known), n_parties - 1) if masked else 0
        budget = Budget(noise["noise"]["epsilon"], noise["noise"]["delta"])
        against = Guarantee(budget, (), by, False, n_parties, known).against()
        epsilons = {who: told and told["add_or_remove"] for who, told in against.items()}
    return {"n_components": max(counts), "models": models, "epsilons": epsilons}


def noise_of(options: Mapping[str, Any]) -> Report:
    """Return what a ledger says of the noise of a run; nothing where there is none."""
    over_rows, epsilon = (options.get(name) for name in ("epsilon", "release_epsilon"))
    epsilon, delta = over_rows or epsilon, options.get("delta")
    if epsilon is None or delta is None:
        return {}
    from vpem.fits.privacy import Budget

    budget = Budget(float(epsilon), float(delta))
    noise = {"epsilon": budget.epsilon, "delta": budget.delta, "multiplier": budget.multiplier}
    # A worker who may know no share but knows its own is not protected.
    own_share = options.get("secure_sum") and options.get("colluding") == 0
    return {"noise": noise, "protects": "all" if over_rows and not own_share else "outsiders"}


def refusals(study: Study, so_far: bool = False) -> list[str]:
    """Return what the policy beside a study refuses of what the study says, a sentence each.

    If ``so_far``, there will be more parties.
    """
    from dataclasses import replace

    from vpem.errors import printable

    guard, found = Guard(study), dict[str, None]()
    if guard.policy is None:
        return []
    policy = replace(guard.policy, fewest_parties=None) if so_far else guard.policy
    for command, options in study.options.items():
        asked = {"align": None, "topology": None} | {
            name.replace("-", "_"): value for name, value in options.items()
        }
        known = asked_of(asked, guard.facts["n_parties"])
        for error in policy.refused(command, asked, **guard.facts, **known):
            found[f"{printable(error.told(_typed))}; this member will refuse 'vpem {command}'"] = (
                None
            )
    return list(found)


def _typed(setting: Setting) -> str:
    """Return how an option of another command is given."""
    value = "" if setting.value is True else f" {setting.value}"
    return f"--{setting.name.replace('_', '-')}{value}"
