"""What a party allows, whatever a study says: its own `policy.toml`, beside the study.

The rules of a party hold for what is done with its data, and win over the study and the command
line. They are looked at before any work, once the parties' rows are known, and as sums begin. What
earlier runs have disclosed counts, too (`vpem.files.studies.logs`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isinf
from pathlib import Path
from typing import Any

from vpem.errors import InputError, Setting, brief, did_you_mean, shorten
from vpem.files.json_text import read_toml
from vpem.files.opening import PathLike, check_readable, open_regular
from vpem.files.studies.study import IF_LOST, RESULTS
from vpem.network.schema import Report
from vpem.settings import ALIGNMENTS, TOPOLOGIES

FILE = "policy.toml"
"""Its name, in the folder of the study."""

COMMANDS = (
    "fit", "select", "bootstrap", "discriminant", "kmeans", "fedem", "impute", "saem", "predict",
    "score",
)  # fmt: skip
"""What parties may do together."""

OVER_FEATURES = ("fit", "select", "bootstrap", "discriminant", "predict", "score")
"""Of these, those that are over features unless ``split`` says otherwise."""

LARGEST = 10**12  # of a number

LEAST_ROWS = 5.0
"""Rows of each component in a model that others get: no row is more than a fifth of one."""

ADVERSARIES = {"worker": "another party", "outsider": "an outsider"}
"""Against whom an epsilon may have to hold; an outsider sees the result alone."""

UP = 1 + 1e-6
"""By which an epsilon may exceed another that it was to be: it is found by a search."""

EXAMPLE = """\
# What this party allows, whatever a study says. Lines that begin with # allow anything.

# How far features may travel at setup, in hops; 0: they stay here.
largest-hops = 0

# Parties with data, this one among them, and rows that they have together once they are aligned.
fewest-parties = 3
fewest-rows = 100

# How many times as many rows as this party another may have where ids are matched by hmac or psi:
# who brings every id that there could be learns which of them are here.
largest-ratio-of-rows = 10

# Passes over the rows in one run whose sums show how each row fits each component,
# or, where parties hold rows, sums over these.
most-esteps = 500

# Components of a model, or clusters, and rows of all parties together for each of them: a
# component of few rows shows these.
most-components = 20
fewest-rows-per-component = 10

# Rows in a batch (--batch-size).
# smallest-batch = 100

# What may be run.
# commands = ["fit", "predict"]

# How rows may be found that all parties have: none, ids, hmac, psi.
# align = ["hmac", "psi"]

# Who may be linked with whom: star (a server adds up), cycle, tree, complete, ...
# topologies = ["star"]

# Who may have what was found: "shards" (parameters of features stay where these are), "all".
# results = ["shards"]

# Whether what this party adds to a sum must be hidden from all others (--secure-sum).
# masked-sums = true

# Models that may be used (predict, score, --init-model), by the SHA-256 of their files.
# models = ["0000000000000000000000000000000000000000000000000000000000000000"]

# Only runs with differential privacy (--epsilon, --release-epsilon): the largest epsilon of one,
# and of all that have read one data file, against another party ("worker") or who sees the model
# alone ("outsider"). 'vpem party budget' shows what is left.
# largest-epsilon = 4
# most-epsilon-in-all = 8
# epsilon-against = "worker"

# Runs that may read data here, in so many days.
# most-runs = 20
# in-days = 30

# What may become of a run when a party is lost: all "wait" for it, or the others go on "without"
# it: then there is a sum with it and one without it, and the difference is what it added.
# if-lost = ["wait"]

# Whether models may leave that have components of fewer than 5 rows, or singular ones.
# publish-anyway = true
"""
"""A policy to begin with; as it stands it suits a study of three parties that show no data."""


class PolicyError(InputError):
    """What a policy (``file``) does not allow: a rule ("allows at most 0 hops"), and the case."""

    def __init__(self, rule: str, *case: str | Setting, file: PathLike = FILE) -> None:
        super().__init__(f"{file} {rule}, ", *case)
        self.rule = rule

    def elsewhere(self, name: str) -> str:
        """Return what other parties hear, of the party of this name."""
        return f"{name}'s policy {self.rule}; ask there"


@dataclass(frozen=True)
class Case:
    """A command of a study with its options by names of settings, as policies look at it.

    ``n_parties`` have data; ``result`` is "all" or "shards"; ``n_components`` are the most of any
    model, ``models`` digests of files, and ``epsilons`` those of the run by adversary (None: it is
    not private).
    """

    command: str
    options: Mapping[str, Any]
    n_parties: int
    result: str
    if_lost: str = "wait"
    n_components: int = 0
    models: Mapping[str, str] = field(default_factory=dict)
    epsilons: Mapping[str, float | None] | None = None


def file_digest(path: PathLike) -> str:
    """Return the SHA-256 of a file's content."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_repeatable(options: Mapping[str, Any]) -> None:
    """Raise InputError where all members would know the seed of the noise, and could repeat it."""
    if options.get("repeatable_noise") is not None:
        raise InputError(
            Setting("repeatable_noise"),
            " is for tests on one machine: in a study all would know the noise, and could subtract "
            "it; leave it out",
        )


def _rule(
    words: str,
    is_so: Callable[[Any], bool],
    default: Any = None,
    taken_as: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """Return a field with what a file must say of it; None: anything is allowed."""

    def read(where: str, value: Any) -> Any:
        if not is_so(value):
            raise InputError(f"{where} must be {words}, got {brief(value)}")
        return taken_as(value)

    return field(default=default, metadata={"read": read})


def _count(least: int, most: int = LARGEST, default: int | None = None) -> Any:
    upper = "" if most == LARGEST else f" and at most {most}"
    words = f"a whole number of at least {least}{upper}"
    return _rule(words, lambda value: type(value) is int and least <= value <= most, default)


FLAG = ("true or false", lambda value: isinstance(value, bool), False)
NUMBER = ("a number above 0", lambda one: type(one) in (int, float) and 0 < one < LARGEST)


def _some(choices: Sequence[str]) -> Any:
    def read(where: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise InputError(
                f"{where} must be a list of {shorten(choices, 12)}, such as [{choices[0]!r}], got "
                f"{value!r}"
            )
        for one in value:
            if not isinstance(one, str) or one not in choices:
                hint = did_you_mean(str(one), choices)
                raise InputError(f"{where} may have {shorten(choices, 12)}, got {one!r}{hint}")
        return tuple(dict.fromkeys(value))

    return field(default=None, metadata={"read": read})


@dataclass(frozen=True)
class Policy:
    path: Path
    largest_hops: int | None = _count(0)  # that features may travel
    fewest_parties: int | None = _count(1)
    fewest_rows: int | None = _count(1)  # of all parties together
    largest_ratio_of_rows: int | None = _count(1)  # see `check_sizes`
    most_esteps: int | None = _count(1)  # in one run, see `ESteps`
    commands: tuple[str, ...] | None = _some(COMMANDS)
    align: tuple[str, ...] | None = _some(ALIGNMENTS)  # how rows may be
    topologies: tuple[str, ...] | None = _some(TOPOLOGIES)
    results: tuple[str, ...] | None = _some(RESULTS)  # what may become of them
    masked_sums: bool = _rule(*FLAG)  # what one party adds to a sum is hidden from all
    if_lost: tuple[str, ...] | None = _some(IF_LOST)  # what may become of a run then
    publish_anyway: bool = _rule(*FLAG)  # a model may disclose few rows
    most_components: int | None = _count(1)
    fewest_rows_per_component: int | None = _count(1)
    smallest_batch: int | None = _count(1)
    models: tuple[str, ...] | None = _rule(
        "a list of SHA-256 in 64 hexadecimal digits, as 'sha256sum model.h5' tells them",
        lambda value: (
            isinstance(value, list)
            and bool(value)
            and all(isinstance(one, str) and re.fullmatch("[0-9a-fA-F]{64}", one) for one in value)
        ),
        taken_as=lambda value: tuple(map(str.lower, value)),
    )  # SHA-256 of their files
    largest_epsilon: float | None = _rule(*NUMBER)  # of one run
    most_epsilon_in_all: float | None = _rule(*NUMBER)  # of all that have read one data file
    epsilon_against: str = _rule(" or ".join(ADVERSARIES), list(ADVERSARIES).__contains__, "worker")
    most_runs: int | None = _count(0)
    in_days: int = _count(1, 36_500, 30)  # in which there may be so many

    def check(self, case: Case) -> None:
        for error in self.refused(case):
            raise error

    def refused(self, case: Case) -> Iterator[PolicyError]:
        """Yield, before any work, why a command of `COMMANDS` may not be run, rule by rule.

        Of its options, ``hops``, ``align``, ``topology``, ``graph``, ``split``, ``batch_size``,
        ``secure_sum`` and ``publish_anyway`` are looked at.
        """
        command, options, this = case.command, case.options, f"but 'vpem {case.command}'"
        usual = "features" if command in OVER_FEATURES else "rows"
        over_features = options.get("split", usual) != "rows"
        batch, hops = int(options.get("batch_size") or LARGEST), int(options.get("hops") or 0)
        align, graph = str(options.get("align") or "none"), options.get("graph")
        topology = "a file" if graph else str(options.get("topology") or "star")
        drawn = Setting("graph", str(graph)) if graph else Setting("topology", topology)
        far = self.largest_hops
        hop = "hop" if far == 1 else "hops"
        most, against, epsilons = self.largest_epsilon, self.epsilon_against, case.epsilons
        epsilon = (epsilons or {}).get(against)
        private = (
            f"requires differential privacy with epsilon {most or 0:g} or less against "
            f"{ADVERSARIES[against]}"
        )

        def only(noun: str, allowed: Sequence[str] | None, value: str) -> tuple[bool, str]:
            """Return whether a value is not allowed, and the rule."""
            refused = allowed is not None and value not in allowed
            return refused, f"allows only {noun} {' or '.join(allowed or ())}"

        rows: list[tuple[Any, ...]] = [
            (self.masked_sums and not options.get("secure_sum"), "requires masked sums",
             f"{this} runs without ", Setting("secure_sum", True)),
            (options.get("publish_anyway") and not self.publish_anyway,
             "does not have publish-anyway = true, so that no model discloses few rows",
             "but got ", Setting("publish_anyway", True)),
            (*only("the command", self.commands, command), f"but this is 'vpem {command}'"),
            (case.n_parties < (self.fewest_parties or 0),
             f"requires at least {self.fewest_parties} parties",
             f"but the study has {case.n_parties} with data"),
            (*only("the result", self.results, case.result), f"but the study says {case.result!r}"),
            (*only("if-lost =", self.if_lost and [*map(repr, self.if_lost)], repr(case.if_lost)),
             f"but the study says {case.if_lost!r}"),
            (case.n_components > (self.most_components or LARGEST),
             f"allows at most {self.most_components} components",
             f"{this} has {case.n_components}"),
            (batch < (self.smallest_batch or 0), f"requires batches of {self.smallest_batch} rows",
             "but got ", Setting("batch_size", batch)),
            *((self.models is not None and digest not in self.models, "does not allow this model",
               f"{file}, whose SHA-256 is {digest}") for file, digest in case.models.items()),
            (most and epsilons is None, private, f"{this} runs without the noise that ",
             Setting("epsilon"), " or ", Setting("release_epsilon"), " adds"),
            (most and epsilons is not None and epsilon is None, private,
             "from whom the noise of this run does not protect"),
            (most and epsilon is not None and epsilon > most * UP, private,
             f"but that of this run is {epsilon or 0:.3g}"),
            (far is not None and hops > far and over_features, f"allows at most {far} {hop}",
             "but got ", Setting("hops", hops)),
            (*only("the alignment", self.align if "align" in options and over_features else None,
                   align), "but got ", Setting("align", align)),
            (*only("the topology", self.topologies if "topology" in options else None, topology),
             "but got ", drawn),
        ]  # fmt: skip
        for refuses, rule, *found in rows:
            if refuses:
                yield self._error(rule, *found)

    def check_runs(self, n_runs: int) -> None:
        """Raise PolicyError where so many runs, of the days that count, leave none."""
        if self.most_runs is not None and n_runs >= self.most_runs:
            rule = f"allows at most {self.most_runs} runs in {self.in_days} days"
            raise self._error(rule, f"and there were {n_runs}")

    def check_spent(self, command: str, file: str, epsilon: float) -> None:
        """Raise PolicyError where a run would bring a file's disclosed epsilon to this value."""
        most = self.most_epsilon_in_all
        if most is not None and epsilon > most * UP:
            case = f"but with this 'vpem {command}' {file} would have disclosed {epsilon:.3g}"
            if isinf(epsilon):
                case = f"but this 'vpem {command}' would disclose sums of {file} without noise"
            raise self._error(
                f"allows at most epsilon {most:g} of a data file in all its runs",
                f"{case}; 'vpem party budget' shows what was spent",
            )

    def check_rows(self, n_rows: int, n_components: int = 0) -> None:
        """Raise PolicyError where parties have too few rows together, once these are known."""
        each = self.fewest_rows_per_component
        if each is not None and n_rows < each * n_components:
            raise self._error(
                f"requires at least {each} rows for each component",
                f"but the parties have {n_rows} together for {n_components}",
            )
        if self.fewest_rows is not None and n_rows < self.fewest_rows:
            raise self._error(
                f"requires at least {self.fewest_rows} rows",
                f"but the parties have {n_rows} together",
            )

    def check_sizes(self, sizes: Sequence[int], party: int, names: Sequence[str]) -> None:
        """Raise PolicyError where another party brings too many ids, before any is compared."""
        most, largest = self.largest_ratio_of_rows, max(sizes)
        if most is not None and largest > most * sizes[party]:
            raise self._error(
                f"allows others at most {most} times as many ids as it has",
                f"but party {names[sizes.index(largest)]!r} has {largest} and {names[party]!r} "
                f"{sizes[party]}",
            )

    def _error(self, rule: str, *case: str | Setting) -> PolicyError:
        return PolicyError(rule, *case, file=self.path)


RULES: dict[str, Callable[[str, object], Any]] = {
    one.name.replace("_", "-"): one.metadata["read"] for one in fields(Policy) if one.metadata
}


class ESteps:
    """Counts passes over the rows, and ends a run whose policy allows no more.

    What a sum shows of rows counts by the share of rows that are in it: batches of a pass are one
    E-step together. Sums of a start that show rows count too, and so does the E-step after the last
    iteration. Where parties hold rows (``n_rows`` is 1), each sum of theirs is one, whatever it is
    for; what is agreed on by yes and no, such as units, is none, and begins with no rows.
    """

    def __init__(self, policy: Policy, n_rows: int) -> None:
        self.policy, self.n_rows = policy, n_rows
        self._shown = self.n_sums = 0

    @property
    def taken(self) -> float:
        """E-steps up to now."""
        return self._shown / self.n_rows

    def begin(self, kind: str, n_rows: int) -> None:
        """Count a sum that begins; PolicyError if it would show more than the policy allows."""
        if n_rows == 0:
            return
        # Of few numbers for all rows together, where features are spread, nothing is seen of one.
        if n_rows == 1 and self.n_rows > 1:
            self.n_sums += 1
            return
        most = self.policy.most_esteps
        if most is not None and self._shown + n_rows > most * self.n_rows:
            raise PolicyError(
                f"allows at most {most} E-step{'' if most == 1 else 's'} in a run",
                "which have been taken; a checkpoint has what was found (",
                Setting("checkpoint"), "), and a larger ", Setting("tol"), " or a smaller ",
                Setting("max_iter"), " ends sooner",
                file=self.policy.path,
            )  # fmt: skip
        self._shown += n_rows
        self.n_sums += 1


def read_policy(path: PathLike) -> Policy:
    """Read a policy in TOML; `EXAMPLE` has every key."""
    content = read_toml(check_readable(path))
    rules: Report = {}
    for key, value in content.items():
        rule = RULES.get(key)
        if rule is None:
            hint = did_you_mean(key, RULES)
            raise InputError(f"{path} has no rule {key!r}{hint}; it may have {', '.join(RULES)}")
        rules[key.replace("-", "_")] = rule(f"{path}: {key}", value)
    return Policy(Path(path), **rules)


def policy_beside(study: PathLike) -> Policy | None:
    """Return the policy in the folder of a study, where there is one."""
    path = Path(study).parent / FILE
    return read_policy(path) if os.path.lexists(path) else None
