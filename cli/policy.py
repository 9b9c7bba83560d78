"""What a party allows: an example of a policy, and how the one beside a study is kept to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vpem.engines.engine import Engine
    from vpem.errors import Setting
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report

    from .output import Screen

__all__ = ["Guard", "policy", "refusals"]


def policy() -> None:
    """Print a policy to begin with, for policy.toml beside a study.

    Whatever a study says, it limits, at the party whose it is, how far features may travel, how few
    parties and rows are enough, how many E-steps a run may take, whether sums are masked, and which
    commands, alignments, topologies and results there may be. What it refuses is told in full
    there, and to other parties by that party's name. Write it to the file with > policy.toml.

    Example: vpem party policy
    """
    import sys

    from vpem.files.studies.policy import EXAMPLE

    sys.stdout.write(EXAMPLE)


class Guard:
    """Keeps a command to the policy beside a study, if there is one."""

    def __init__(self, study: Study) -> None:
        from vpem.files.studies.policy import policy_beside

        self.study = study
        self.policy = policy_beside(study.path)

    def check(self, command: str, options: Mapping[str, Any], holds: bool) -> None:
        """Raise PolicyError where a command may not be run; options by names of parameters.

        Some options need the word of whoever ``holds`` data.
        """
        from vpem.files.studies.policy import FILE, Policy

        if self.policy is not None or holds:
            policy = self.policy or Policy(self.study.path.parent / FILE)
            policy.check(command, options, **self.facts)

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
        from vpem.files.studies.policy import ESteps

        if self.policy is None:
            return
        self.policy.check_rows(n_rows)
        most = self.policy.most_esteps
        if most is not None:
            screen.say(f"{self.policy.path} allows at most {most} E-steps in this run")
            engine.watch = ESteps(self.policy, 1 if over_rows else n_rows).begin


def refusals(study: Study, so_far: bool = False) -> list[str]:
    """Return what the policy beside a study refuses of what the study says, a sentence each.

    If ``so_far``, there will be more parties.
    """
    from dataclasses import replace

    from .output import clean

    guard, found = Guard(study), dict[str, None]()
    if guard.policy is None:
        return []
    policy = replace(guard.policy, fewest_parties=None) if so_far else guard.policy
    for command, options in study.options.items():
        asked = {"align": None, "topology": None} | {
            name.replace("-", "_"): value for name, value in options.items()
        }
        for error in policy.refused(command, asked, **guard.facts):
            found[f"{clean(error.told(_typed))}; this member will refuse 'vpem {command}'"] = None
    return list(found)


def _typed(setting: Setting) -> str:
    """Return how an option of another command is given."""
    value = "" if setting.value is True else f" {setting.value}"
    return f"--{setting.name.replace('_', '-')}{value}"
