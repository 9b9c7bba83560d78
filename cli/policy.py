"""What a party allows: an example of a policy, and what the one beside a study says of commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .output import clean

if TYPE_CHECKING:
    from pathlib import Path

    from vpem.files.studies.policy import Policy

__all__ = ["policy", "refusals"]


def policy() -> None:
    """Print a policy to begin with: what this party allows, whatever a study says.

    The file policy.toml beside a study limits, at the party whose it is, how far features may
    travel, how few parties and rows are enough, how many E-steps a run may take, and which
    commands, alignments, topologies and results there may be. What it refuses is told in full
    there, and to other parties by that party's name.

    Example: vpem party policy > policy.toml
    """
    import sys

    from vpem.files.studies.policy import EXAMPLE

    sys.stdout.write(EXAMPLE)


def refusals(
    study: Path, tables: Mapping[str, Mapping[str, Any]], *, n_parties: int, result: str
) -> list[str]:
    """Return what the policy beside a study refuses of what the study says, a sentence each.

    Parameters
    ----------
    study : path
        The study; without a policy beside it nothing is refused.
    tables : mapping of str to mapping
        Options by commands, as a study has them.
    n_parties : int
        Parties that bring data.
    result : {"all", "shards"}
        What becomes of the result.
    """
    from vpem.files.studies.policy import PolicyError, policy_beside

    from .naming import in_options

    own: Policy | None = policy_beside(study)
    if own is None:
        return []
    found: dict[str, None] = {}
    for command, options in tables.items():
        asked = {"align": None, "topology": None} | {
            name.replace("-", "_"): value for name, value in options.items()
        }
        try:
            own.check(command, asked, n_parties=n_parties, result=result)
        except PolicyError as error:
            found[clean(in_options(error))] = None
    return list(found)
