"""What a party allows, and what the commands of a study show, and to whom.

`docs/explanation/what-leaves.md` says how much can be read from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from numbers import Integral
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from vpem.errors import FileError, printable
from vpem.files.table_settings import TableSettings
from vpem.fits.settings import parse_numbers

from ..session import LEAST_ROWS
from .handshake import StudyLinks, digest_of, own_party, refuse_repeatable

if TYPE_CHECKING:
    from vpem.engines.engine import Engine
    from vpem.engines.tls.trust import Member
    from vpem.errors import Setting
    from vpem.files.studies.policy import ESteps
    from vpem.files.studies.spent import Ran
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report

    from ..display import Screen


def policy() -> None:
    """Print a policy to begin with, for policy.toml beside a study.

    Whatever a study says, a party's policy limits, on its own machine, how far features may travel,
    how few parties and rows are enough, how many components there may be, how many E-steps a run
    may take and how many runs there may be, what differential privacy they need, whether sums are
    masked, and which models, commands, alignments, topologies and results are allowed. A refusal is
    explained in full there; other parties see only the name of the party that refused. Write it to
    the file with > policy.toml.

    Example: vpem party policy
    """
    import sys

    from vpem.files.studies.policy import EXAMPLE

    sys.stdout.write(EXAMPLE)


class Guard:
    """Holds a command to the policy beside a study, if any, and notes what it discloses."""

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

        Some options need the consent of every member with data, in its policy. InputError where
        noise could be subtracted.
        """
        from vpem.files.studies.policy import FILE, Policy
        from vpem.files.studies.spent import Ran, now

        from ..commands.saem_data import files_in

        refuse_repeatable(options)
        n_parties = self.facts["n_parties"]
        limited = limited_facts(options, n_parties)
        self._components, self._hops = limited["n_components"], int(options.get("hops") or 0)
        if self.policy is not None or member.holds:
            policy = self.policy or Policy(self.study.folder / FILE)
            policy.check(command, options, **self.facts, **limited)
        if options.get("data"):
            files = own_party(member.name, files_in(options["data"]), TableSettings()).find()
            self._run = Ran(
                token_hex(8), now(), self.study.id, self.study.edition, command,
                self.spent.digests(files), n_parties, bool(options.get("secure_sum")),
                **noise_of(options),
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
        for file, digest in run.data.items():
            read = [*(one for one in runs if one.has_read({file, digest})), run]
            if policy.most_epsilon_in_all is not None:
                epsilon = in_all(read, policy.epsilon_against)
                policy.check_spent(run.command, Path(file).name, epsilon)

    def begin(self) -> None:
        """Note a run that all have agreed to, before anything of its data is sent."""
        if self._run is not None:
            self.spent.begin(self._run, self._check_spent)
            self._begun = True

    def end(self) -> None:
        """Note how many sums of data a run has sent; if that fails, it counts as a whole run."""
        if self._run is not None and self._begun:
            self._begun, sums = False, self._steps.n_sums if self._steps else 0
            with suppress(FileError):
                self.spent.end(self._run, max(sums, bool(self._steps and self._hops)))

    @property
    def facts(self) -> Report:
        """The facts of the study that a policy limits."""
        n_parties = sum(member.holds for member in self.study.roster.members)
        study = self.study
        return {"n_parties": n_parties, "result": study.result, "if_lost": study.if_lost}

    def watch(self, engine: Engine, n_rows: int, over_rows: bool, screen: Screen) -> None:
        """Raise PolicyError where there are too few rows, or later where E-steps are used up.

        ``n_rows`` counts the rows of all parties; ``over_rows``: each party holds some of them.
        """
        from vpem.files.studies.policy import ESteps, Policy

        policy = self.policy or Policy(self.study.folder)
        policy.check_rows(n_rows, self._components)
        if policy.most_esteps is not None:
            screen.say(f"{policy.path} allows at most {policy.most_esteps} E-steps in this run")
        self._steps = ESteps(policy, 1 if over_rows else n_rows)
        engine.watch = self._steps.begin


def limited_facts(options: Mapping[str, Any], n_parties: int) -> Report:
    """Return what policies limit: digests of models, most components, epsilons by adversary."""
    import h5py

    from vpem.files.hdf5 import open_read

    paths = (options.get("model"), options.get("init_model"))
    models = {str(path): digest_of(path) for path in paths if isinstance(path, Path)}
    counts, noise, epsilons = [0], noise_of(options), None
    for name in ("n_components", "n_clusters", "components", "clusters"):
        if options.get(name) is not None:
            counts += parse_numbers(name, str(options[name]))
    for path in filter(h5py.is_hdf5, models):
        with open_read(path) as file:
            centres = getattr(file.get("centres"), "shape", ())
            stored = (file.attrs.get("n_components"), *centres[:1])
            counts += [int(one) for one in stored if isinstance(one, Integral)]
    if noise:
        from vpem.fits.privacy import Budget, Guarantee
        from vpem.sums.private import noise_by

        masked, known = bool(options.get("secure_sum")), options.get("colluding")
        over_rows = options.get("epsilon") is not None
        by = noise_by(masked, str(options.get("sum"))) if over_rows else "hubs"
        known = min(1 if known is None else int(known), n_parties - 1) if masked else 0
        budget = Budget(noise["noise"]["epsilon"], noise["noise"]["delta"])
        against = Guarantee(budget, (), by, False, n_parties, known).against()
        epsilons = {who: epsilon and epsilon["add_or_remove"] for who, epsilon in against.items()}
    return {"n_components": max(counts), "models": models, "epsilons": epsilons}


def noise_of(options: Mapping[str, Any]) -> Report:
    """Return the entries of a ledger for the noise of a run; none where there is no noise."""
    over_rows, epsilon = (options.get(name) for name in ("epsilon", "release_epsilon"))
    epsilon, delta = over_rows or epsilon, options.get("delta")
    if epsilon is None or delta is None:
        return {}
    from vpem.fits.privacy import Budget

    budget = Budget(float(epsilon), float(delta))
    noise = {"epsilon": budget.epsilon, "delta": budget.delta, "multiplier": budget.multiplier}
    # colluding = 0 allows for no share that is known, but every worker knows its own.
    own_share = options.get("secure_sum") and options.get("colluding") == 0
    return {"noise": noise, "protects": "all" if over_rows and not own_share else "outsiders"}


def refusals(study: Study, so_far: bool = False) -> list[str]:
    """Return a sentence for everything in a study that the policy beside it refuses.

    If ``so_far``, more parties will join.
    """
    guard, sentences = Guard(study), dict[str, None]()
    if guard.policy is None:
        return []
    policy = replace(guard.policy, fewest_parties=None) if so_far else guard.policy

    def typed(setting: Setting) -> str:
        value = "" if setting.value is True else f" {setting.value}"
        return f"--{setting.name.replace('_', '-')}{value}"

    for command, options in study.options.items():
        values = {"align": None, "topology": None} | {
            name.replace("-", "_"): value for name, value in options.items()
        }
        limited = limited_facts(values, guard.facts["n_parties"])
        for error in policy.refused(command, values, **guard.facts, **limited):
            refusal = printable(error.sentence_with(typed))
            sentences[f"{refusal}; this member will refuse 'vpem {command}'"] = None
    return list(sentences)


LATER = "it can disclose more than it seems to: see 'What leaves an agent' in the documentation"


class Notice(NamedTuple):
    """A sentence on what is shown, the kinds of its messages, as logs call them, and their way.

    They go to "all" through the first member, to the "first", to the adder ("sum"), to the members
    that hold others' features ("joining"), to the "first party", or from it to other "parties".
    """

    text: str
    kinds: str = ""
    to: str = "all"


def disclosures(setup: StudyLinks, commands: Mapping[str, Mapping[str, Any]]) -> list[Notice]:
    """Return what each command, by the values of its settings, shows to whom."""
    sentences = [
        Notice(
            "Every message is sealed by TLS 1.3 between two members: only its receiver reads it."
        )
    ]
    if setup.relay is not None:
        sentences.append(Notice(
            f"The relay {setup.relay} passes sealed messages on: it learns who talks to whom, when "
            "and how much, and nothing of their contents."
        ))  # fmt: skip
    also = "with align ids, hmac or psi also to the first party, directly or sealed through it"
    if setup.topology != "star":
        also = "neighbours on the graph also to each other"
    to = f"Parties talk to {setup.first}, through which everything goes that all members learn"
    sentences.append(
        Notice(f"{to}." if setup.holds and setup.topology == "star" else f"{to}; {also}.")
    )
    if setup.if_lost == "without":
        sentences.append(Notice(
            f"A member that does not answer for {setup.timeout:g} s is left out, and the others go "
            f"on without it. Those who see totals (all members, {setup.server} among them) have "
            "one with its part and one without, at nearly the same parameters: their difference "
            "is nearly its part, masked or not. Under masks the parameters are never the same."
        ))  # fmt: skip
    for command, values in commands.items():
        head = f"{command}: " if len(commands) > 1 else ""
        sentences += [
            one._replace(text=head + one.text) for one in _of_command(setup, command, values)
        ]
    return sentences


def _of_command(setup: StudyLinks, command: str, values: Mapping[str, Any]) -> Iterator[Notice]:
    from vpem.pictures.contents import promised
    from vpem.sums.private import noise_by

    of_rows = command in ("fedem", "impute", "saem") or values.get("split") == "rows"
    of_matrix = command == "impute" and values.get("method") != "mixture"
    star, masked = setup.topology == "star", bool(values.get("secure_sum"))
    way = str(values.get("sum") or ("server" if star else "consensus"))
    receiver = {
        "tree": "the party above it in the spanning tree (inner ones send sums of all below them)",
        "server": setup.first,
        "consensus": f"its neighbours on the graph ({setup.topology})",
    }[way]
    kind = "server" if way == "server" else "estep"
    yield Notice(
        "All members learn with which options each runs, and how to go on: whether any member has "
        "to stop, or a component has no rows"
        + (", not who or how many" if masked else f"; {setup.first} also learns which members")
        + ".", "options agreement",
    )  # fmt: skip
    if command not in ("impute", "saem"):
        yield Notice(
            "All members learn each party's name, names and families of features, and number of "
            "rows.", "alignment",
        )  # fmt: skip
    if not of_rows:
        yield from _of_ids(setup, values.get("align"))
    if command in ("predict", "score"):
        yield from _of_use(setup, masked)
    elif command == "saem":
        yield from _of_individuals(values, receiver, kind)
    elif command == "impute":
        yield from _of_entries(not of_matrix, receiver, kind, masked)
    elif of_rows and values.get("epsilon") is not None:
        yield from _of_private_rows(setup, values, receiver, kind, noise_by(masked, way))
    elif of_rows:
        yield from _of_rows(command, values, receiver, kind)
    elif values.get("method") == "grid":
        yield Notice("No value of a feature leaves its party (hops 0).")
        yield Notice(
            f"Each party sends {setup.first}, once, its own cluster of every row and the centres "
            "of its own clusters: means of its features.", "server", "first",
        )  # fmt: skip
        yield Notice("All members learn the cluster of every row.", "server")
    else:
        yield from _of_features(command, values, receiver, kind)
    if of_rows and kind == "server":
        yield Notice("All members learn the totals.", "server" if of_matrix else "setup server")
    if (command == "fedem" or of_matrix) and not masked:
        yield Notice(
            f"To report progress, {setup.first} also gets each party's own sums, exactly.",
            "check", "first",
        )  # fmt: skip
        yield Notice("All members learn the totals of these.", "check")
    for name, by in (("epsilon", noise_by(masked, way)), ("release_epsilon", "hubs")):
        if values.get(name) is not None:
            promise = {"epsilon": values[name], "delta": values.get("delta"), "noise_by": by}
            lines = ", ".join(f"{head} {line}" for head, line in promised(promise))
            yield Notice(f"Differential privacy (--{name.replace('_', '-')}): {lines}.")
    if masked:
        yield Notice(
            "Sums are masked: what a party sends for them looks random, and only totals over all "
            "parties can be read, by those who get them. All other parties together could find "
            "out what one party added. A server that reports a wrong total is found out, unless it "
            f"is a party, or colludes with one. As for a total, {LATER}."
        )
    codec = values.get("compress") or values.get("codec")
    if codec:
        yield Notice(
            f"What is sent in iterations is rounded by the codec {codec}; it hides little."
        )
    model = {
        "kmeans": "centres, and standard deviations of features",
        "lowrank": "the filled matrix and its factors",
        "mixture": "parameters, and its own rows or columns without gaps",
    }.get(
        values.get("method", "lowrank") if command == "impute" else command,
        "parameters, and so means and covariances of all parties' features",
    )
    end = f"all members have the model ({model}) and the report (result all)"
    if setup.result == "shards" and not of_rows:
        end = "each party has the parameters of its own features only, and all members have the "
        end += "report (result shards)"
    if command not in ("predict", "score"):
        yield Notice(f"In the end {end}.", "result")
    if command in ("fit", "select", "fedem", "kmeans") and " all)" in end:
        few = f"components of fewer than {LEAST_ROWS:g} rows, or singular ones"
        if values.get("publish_anyway"):
            yield Notice(f"It may have {few}, which disclose single rows (--publish-anyway).")
        elif values.get("epsilon") is None and values.get("release_epsilon") is None:
            yield Notice(f"It has no {few}: otherwise no model is written.")


def _of_ids(setup: StudyLinks, level: str | None) -> Iterator[Notice]:
    """What the search for common rows shows."""
    if level in (None, "none"):
        yield Notice(
            "Rows are not matched: they must be the same, in one order, in all files (align none). "
            "All members see checksums of ids, if there are any, which are of this run alone."
            if level else
            "It is not set how rows are matched (--align ids, hmac, psi, or none: they are the "
            "same, in one order, in all files): runs in which a party has ids are refused."
        )  # fmt: skip
        return
    past = ""
    if setup.topology == "star" and not setup.holds:
        past = f" from each directly; {setup.server} gets none"
    yield Notice(
        "The first party that has data gets "
        + {
            "ids": f"every id of every party{past} (align ids).",
            "hmac": f"a keyed hash of every id of every party{past}, and learns which of its ids "
            "each other party has (align hmac).",
            "psi": f"encrypted ids of every party{past}, and learns which of those still in "
            "question each next one has, and nothing of other ids but their number (align psi).",
        }[level], "alignment", "first party",
    )  # fmt: skip
    encrypted = "its ids in encrypted form, and " if level == "psi" else ""
    yield Notice(
        f"The other parties get from it {encrypted}which of their rows are used: all that all "
        "parties have, if it leaves none out.", "alignment", "parties",
    )  # fmt: skip


def _of_features(
    command: str, values: Mapping[str, Any], receiver: str, kind: str
) -> Iterator[Notice]:
    """What is shown where parties have features of the same rows."""
    hops, private = values.get("hops", 0), values.get("release_epsilon") is not None
    masked = ", under masks" if values.get("secure_sum") else ""
    if hops in (0, "0"):
        yield Notice("No value of a feature leaves its party (hops 0).")
    else:
        yield Notice(
            f"VALUES OF FEATURES, of all rows, go once to parties up to {hops} hop(s) away, and "
            "to all in between.", "setup agreement", "joining",
        )  # fmt: skip
        if values.get("hubs") == "likelihood":
            yield Notice(
                "To choose hubs (hubs likelihood) they go to more of these than the root of the "
                "party's hub, and all members learn correlations, in each component of a first "
                "fit, of features of parties that could share a hub.", "flooding",
            )  # fmt: skip
    starts = values.get("init") in ("kmeans", "k-means++") and not private
    if starts:
        yield Notice(
            f"To begin with, each party sends {receiver} squared distances of all rows to a few"
            f"{masked}.", "setup", "sum",
        )  # fmt: skip
    count = values.get("n_components", values.get("n_clusters"))
    what = "how likely its own features are in each component"
    if command == "kmeans":
        what = "how its squared distances to the centres differ"
    labels = " labels" * (command == "fit")
    again = " Once more at the end if a member wants labels (--labels)." * (command == "fit")
    yield Notice(
        f"In every iteration each party sends {receiver}, for every row, {what} (K - 1 numbers, "
        f"K = {count}){masked or f'; {LATER}'}.{again}", kind + labels, "sum",
    )  # fmt: skip
    if "squarem" in str(values.get("accelerate") or ""):
        yield Notice(
            "Between iterations it sends two numbers of how far its parameters have moved."
        )
    yield Notice(
        "All members learn the total, and so the cluster of every row (its responsibilities), "
        "which depends on all parties' features.",
        f"{'setup' * starts} server{labels}" if kind == "server" else "",
    )
    if command == "fit":
        yield Notice(
            "If a party labels rows for the fit (--labels-for-fit), all members learn the names of "
            "its labels and how many rows have each, and the labels as part of its numbers."
        )
    if private:
        yield Notice(
            "In every iteration all members learn the sizes of components, with noise.", "flooding"
        )


def _of_rows(command: str, values: Mapping[str, Any], receiver: str, kind: str) -> Iterator[Notice]:
    """What is shown where parties have rows of the same features."""
    masked = ", under masks" if values.get("secure_sum") else ""
    yield Notice(
        f"To begin with, each party sends {receiver} sums over all its rows (of weights, and of "
        "each feature's values and squares) and over its rows in each cluster of a start"
        f"{masked}.", "setup", "sum",
    )  # fmt: skip
    part = "size and sum of its part of each cluster"
    if command != "kmeans":
        part = "weights, weighted sums of rows and of their squares, by component"
    yield Notice(
        f"In every iteration each party sends {receiver} sums over its rows{masked} ({part})."
        + ("" if masked else " Sums over many rows say little about one; the sum over a single row "
           "is that row."), kind, "sum",
    )  # fmt: skip
    if masked:
        yield Notice("No row is shown; a start consists of means of groups of rows of all parties.")
        return
    yield Notice(
        "Rows that become a start, or the place of a component without rows, are shown to all "
        f"members: at least {values.get('n_components', values.get('n_clusters'))} of them.",
        "flooding",
    )


def _of_private_rows(
    setup: StudyLinks, values: Mapping[str, Any], receiver: str, kind: str, by: str
) -> Iterator[Notice]:
    """What is shown of rows whose sums have noise."""
    noise = {
        "server": f"{setup.first} adds noise to the total before others get it, and sees what each "
        "party sends",
        "root": "the root of the tree adds noise to the total before others get it, and sees, as "
        "does each party above others, sums of those below without it",
        "workers": "each party adds its share of the noise to its own, under masks: no member sees "
        "a sum without noise, but each party knows its share",
    }[by]
    yield Notice(
        f"To begin with, and in every iteration, each party sends {receiver} sums over its rows "
        f"within the bounds (counts, then first and second moments); {noise}.",
        f"setup {kind}", "sum",
    )  # fmt: skip
    yield Notice(
        "All members learn the totals, the start and the parameters with noise. No row is shown, "
        "nor how well the model fits.", "setup",
    )  # fmt: skip


def _of_entries(of_mixture: bool, receiver: str, kind: str, masked: bool) -> Iterator[Notice]:
    """What imputation shows."""
    sent = f"In every iteration each party sends {receiver}"
    if of_mixture:
        yield Notice(
            "All members learn names of rows and columns, who has which, how many saw each entry, "
            "and the mean of each column; and the parameters of every fit.", "setup result",
        )  # fmt: skip
        yield Notice(
            f"{sent} sums over its rows by component or, where it has columns, how likely its part "
            "of every row is in each component. With columns no value leaves its party.",
            f"setup {kind}", "sum",
        )  # fmt: skip
        if not masked:
            yield Notice(
                "Of rows, those at which a fit starts are shown to all members.", "flooding"
            )
    else:
        yield Notice(
            "All members learn names of rows and columns, how many entries each party saw, and the "
            "sum of what was seen at every entry: an entry seen by one party alone is disclosed."
        )
        yield Notice(f"{sent} corrections of its own filled matrix.", kind, "sum")


def _of_individuals(values: Mapping[str, Any], receiver: str, kind: str) -> Iterator[Notice]:
    """What SAEM shows."""
    yield Notice(
        "All members learn how many individuals each party has, names of covariates, medians of "
        "the first and last readings, and sums over all individuals of means, variances and "
        "log-likelihoods."
    )
    if values.get("model") in ("bifactor", "gmm"):
        yield Notice(
            "The times (items) at which all are read are shown to all members, and for gmm "
            "READINGS OF THE INDIVIDUALS that are the first means."
        )
    yield Notice("No other row, time or covariate leaves its party.")
    yield Notice(
        f"To begin with, and in every iteration, each party sends {receiver} the mean of "
        "statistics of its individuals as they were simulated; for a single individual these are "
        "its latents.", f"setup {kind}", "sum",
    )  # fmt: skip


def _of_use(setup: StudyLinks, masked: bool) -> Iterator[Notice]:
    """What predicting and scoring show."""
    yield Notice(
        "Where a hub of the model has features of several parties (--hops of its fit above 0), "
        "these send VALUES OF FEATURES, of all rows, to the one of them that has the most.",
        "features", "joining",
    )  # fmt: skip
    yield Notice(
        f"Each party sends {setup.first}, for every row, how likely its own features are in each "
        f"component (K numbers), once{', under masks' if masked else ''}; {LATER}.",
        "server", "first",
    )  # fmt: skip
    yield Notice("All members learn the total, and so the cluster of every row.", "server")


def in_all(runs: Sequence[Ran], against: str) -> float:
    """Return the epsilon of all runs together against an adversary.

    It is infinite where a run adds no noise, or none that protects against that adversary.
    """
    from vpem.fits.privacy import spent_in_all

    protecting = [ran for ran in runs if ran.protects == "all" or against == "outsider"]
    noise = [ran.noise for ran in protecting if ran.noise]
    return inf if len(noise) < len(runs) else spent_in_all(noise)
