"""What goes with what: one table of rules, and the grid of algorithms by ways of running them.

A rule is a row: when, which setting, why. Of a setting beside others of its record it is declared
where the setting is (`vpem.records.About.idle`); rows that depend on the algorithm are in `ROWS`.
The code refuses with the sentence, the reference prints it, and a test tries every rule and every
cell of the grid.

``when`` gets the values of all settings by name: in a shell all options of a command, in Python
those of one record, so that it looks at names that may not be there by ``get``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from vpem.errors import InputError, Setting
from vpem.records import (
    Condition,
    Rule,
    Sentence,
    beside,
    mild,
    not_both,
    refused,
    rule,
    sentence,
    unless,
)

ALGORITHMS = {
    "vp-em": "VP-EM",
    "em-rows": "EM over rows",
    "kmeans-rows": "k-means over rows",
    "kmeans-features": "k-means over features",
    "fedem": "FedEM",
    "vr-fedem": "VR-FedEM",
    "fedmissem": "FedMissEM",
    "saem": "SAEM",
}
"""Rows of the grid, by the names that reports give."""

OF_COMMANDS = {
    "fit": ("vp-em", "em-rows"),
    "kmeans": ("kmeans-features", "kmeans-rows"),
    "fedem": ("fedem", "vr-fedem"),
    "impute": ("fedmissem",),
    "saem": ("saem",),
    "select": ("vp-em", "em-rows"),
    "bootstrap": ("vp-em", "em-rows"),
    "discriminant": ("vp-em",),
}
"""Algorithms of each command: by default, and over rows or with reduced variance."""


def algorithm_of(command: str, values: Mapping[str, Any]) -> str | None:
    """Return the algorithm that a command runs with these settings; None if it is no fit."""
    usual, *others = OF_COMMANDS.get(command, (None,))
    other = values.get("split") == "rows" or values.get("variance_reduction")
    return others[0] if others and other else usual


@dataclass(frozen=True)
class Way:
    """A column of the grid; a way of summing also has words for elsewhere, and properties."""

    title: str  # its heading, and the word for a way of summing
    flags: tuple[str, ...]  # options of the command line that ask for it
    place: str = ""  # where sums are
    receiver: str = ""  # who gets what a party sends; {first} is the first of a study
    needs_server: bool = False
    has_root: bool = False  # agents of any graph pass on sums to one of them
    has_rounds: bool = False  # agents average with neighbours, and none has the sum


WAYS = {
    "server": Way("server", ("--topology star",), "at a server", "{first}", needs_server=True),
    "tree": Way(
        "tree",
        ("--sum tree",),
        "along a tree",
        "the party above it in the spanning tree (inner ones send sums of all below them)",
        has_root=True,
    ),
    "consensus": Way(
        "consensus",
        ("--topology cycle",),
        receiver="its neighbours on the graph ({topology})",
        has_rounds=True,
    ),
    "masked": Way("masked", ("--secure-sum",)),
    "compressed": Way("compressed", ("--compress",)),
    "absent": Way("some absent", ("--agent-dropout", "--participation")),
    "links": Way("links fail", ("--link-failure", "--stragglers")),
    "batches": Way("batches", ("--batch-size",)),
    "missing": Way("missing values", ("--missing",)),
    "disk": Way("larger than memory", ("--memory-limit",)),
    "weights": Way("sample weights", ("--sample-weight",)),
    "checkpoint": Way("checkpoint", ("--checkpoint",)),
    "parties": Way("parties' files", ("--parties",)),
    "mpi": Way("MPI", ("--engine mpi",)),
    "tls": Way("TLS", ("--engine tls",)),
}
"""Columns of the grid."""

SUMMING = {name: way for name, way in WAYS.items() if way.receiver}


def summing(word: object, usual: str = "consensus") -> Way:
    """Return the way of summing of this word, or the usual one where none has it."""
    return SUMMING.get(str(word), SUMMING[usual])


LEAVE = "; leave it out"
NOISELESS = (
    " looks at the data without noise, and is not possible with {release_epsilon}; leave it out"
)

# ---- rows that depend on the algorithm -----------------------------------------------------------


class Row(NamedTuple):
    """A rule: the setting cannot be given when the condition holds of all values."""

    when: Condition
    setting: str
    why: Sentence


def _of(*algorithms: str) -> Condition:
    return lambda values: values.get("algorithm") in algorithms


def _is_private(budget: str, *algorithms: str) -> Condition:
    return lambda values: values.get("algorithm") in algorithms and values.get(budget) is not None


def _private(algorithms: tuple[str, ...], reasons: Mapping[str, str]) -> Iterator[Row]:
    """Rows of settings that a fit with noise in its sums over rows cannot have."""
    for name, why in reasons.items():
        why = f" is not possible with {{epsilon}}: {why}{LEAVE}"
        yield Row(_is_private("epsilon", *algorithms), name, sentence(why))


def _released(reasons: Mapping[str, str]) -> Iterator[Row]:
    """Rows of settings that a model of features cannot have that is released with noise."""
    is_released = _is_private("release_epsilon", "vp-em")
    for name, why in reasons.items():
        # A default value that is typed does no harm.
        when, text = mild((is_released, sentence(why)))
        yield Row(when, name, text)


def _of_classes(values: Mapping[str, Any]) -> bool:
    return values.get("command") == "discriminant"


FORBIDDEN: tuple[Row, ...] = (
    Row(_of("em-rows"), "compress", (
        ": second moments that a codec has rounded need not be those of any rows, so covariances "
        "made of them need not be positive definite; FedEM is EM over rows that corrects this: "
        "vpem fedem --compress",
    )),
    Row(_of("fedmissem"), "memory_limit", (
        ": every iteration changes the filled matrix, a number for each entry of the data: there "
        "is no smaller statistic that could stay in memory while the data are read",
    )),
    Row(_of("saem"), "memory_limit", (
        ": its state is a Markov chain of the latents of every individual, and every iteration "
        "moves all of them: there is no smaller statistic from which they could be drawn again; "
        "spread the devices over processes, whose memories add up",
    )),
)  # fmt: skip
"""What mathematics forbids: cells of the grid."""

ROWS: tuple[Row, ...] = (
    *FORBIDDEN,
    Row(_of("fedem", "vr-fedem", "fedmissem", "saem"), "agent_dropout", (
        ": absent agents are drawn by --participation; take that",
    )),
    Row(_of("vp-em", "em-rows"), "participation", (
        ": on a graph agents are absent with --agent-dropout, and a server's sum needs every "
        "agent; rows over workers that take turns are fitted by vpem fedem",
    )),
    Row(_of("fedmissem"), "missing", (": missing entries are what is imputed; leave it out",)),
    Row(_of("fedem", "vr-fedem"), "accelerate", (
        ": FedEM steps are taken on statistics, and no sum shows a log-likelihood by which to "
        "reject one; rows are fitted in fewer sums by vpem fit --split rows --accelerate squarem",
    )),
    Row(_of("fedmissem"), "accelerate", (
        ": steps are taken on statistics, and no sum shows a log-likelihood by which to reject "
        "one; leave it out",
    )),
    Row(_of("fedmissem"), "epsilon", (
        ": its statistic has a number for every entry, which is one row's alone: noise that hides "
        "a row would hide all that is imputed in it; fit a mixture with noise by vpem fit --split "
        "rows --epsilon",
    )),
    Row(_of("saem"), "epsilon", (
        ": products of latents and squares of residuals have no bounds that are known without the "
        "data, nor have the units in which they could be clipped; and standard errors, the "
        "log-likelihood and individuals' estimates would each be released besides; hide devices "
        "from each other by --secure-sum",
    )),
    Row(_of("saem"), "accelerate", (
        ": latents are drawn again in every iteration, so that no sum shows whether a longer step "
        "was too long; leave it out",
    )),
    *(Row(_of_classes, name, (
        ": a mixture of each class would need to know of every worker how many rows of a class it "
        "has; classes are of rows whose features are spread. Give each class its own vpem fit "
        "--split rows",
    )) for name in ("split", "workers", "worker_rows")),
    *(Row(_of_classes, name, (
        ": BIC looks at the data without noise, and labels that all know are not hidden by any; "
        "give each class its own vpem fit with noise",
    )) for name in ("epsilon", "release_epsilon")),
    *(Row(_of_classes, name, (
        ": it belongs to one mixture, but each class has its own; give each class a vpem fit, or "
        "leave it out",
    )) for name in ("noise", "trim", "n_factors", "penalty", "fix")),
    Row(_of("saem"), "spread", (
        ": parameters that --random does not name are fixed, without any spread; leave it out",
    )),
    Row(_of("kmeans-rows", "kmeans-features"), "digits", (
        " is about probabilities, but clusters have distances; leave it out",
    )),
    Row(_of("kmeans-rows", "kmeans-features"), "accelerate", (
        ": Lloyd's iterations end by themselves after finitely many; for fewer of them give "
        "--max-iter",
    )),
    *_private(("em-rows", "kmeans-rows", "fedem"), {
        "fix": "a private fit finds all parameters by noisy sums of its own",
        "init_rows": "a private fit finds its start by noisy sums of its own",
        "init_model": "a private fit finds its start by noisy sums of its own",
        "init": "it looks at rows; a private fit finds its start by noisy sums of its own",
        "n_init": "every start would spend some of the privacy budget; there is one, from sums "
        "that are paid for once",
        "batch_size": "every batch would spend as much of the privacy budget as all rows do",
        "dtype": "sums lie on a grid of integers, which takes double precision",
        "sample_weight": "a row of more weight would reveal more than was promised",
        "checkpoint": "a run that resumes would repeat a sum with other noise, which the privacy "
        "budget does not cover; a private fit has few iterations",
    }),
    *_private(("em-rows",), {
        "tol": "the log-likelihood would spend some of the privacy budget, so that all iterations "
        "are run",
        "accelerate": "whether a step is rejected depends on a log-likelihood, which would spend "
        "some of the privacy budget",
        "scale": "exact standard deviations would reveal something of rows; private fits have "
        "units of their own",
        "missing": "sums over observed values would spend some of the privacy budget for each "
        "feature; fill values in first",
        "weight_concentration_prior_type": "moments of all rows and a bound would spend some of "
        "the privacy budget",
        "penalty": "the moments of all rows that it is about would spend some of the privacy "
        "budget",
        "every_weight": "responsibilities lie on a grid",
        "floor_fits": "there is one start, and none to choose from",
    }),
    *_private(("fedem",), {
        "random_stop": "the budget is shared among all iterations, and to stop earlier wastes it",
        "tol": "the correction of an iteration has its noise, so that all iterations are run",
        "scale": "exact standard deviations would reveal something of rows; private fits have "
        "units of their own",
        "missing": "sums over observed values would spend some of the privacy budget for each "
        "feature; fill values in first",
        "n_epochs": "the budget is shared among a number of iterations; give {max_iter}",
        "record_every": "a log-likelihood would spend some of the privacy budget; none is recorded",
    }),
    *_private(("vr-fedem",), {
        "variance_reduction": "every batch would spend as much of the privacy budget as all rows "
        "do",
    }),
    *_private(("kmeans-rows",), {
        "method": "it is for features, and this is for rows",
        "scale": "exact standard deviations would reveal something of rows; give features and "
        "bounds in similar units",
        "missing": "sums over observed values would spend some of the privacy budget for each "
        "feature",
        "participation": "absent workers would spend as much of the privacy budget as others",
    }),
    *_released({
        name: f"{{{name}}} is not possible with {{release_epsilon}}: {why}{{max_iter}}"
        for name, why in {
            "tol": "when to stop would depend on the data; all iterations are run, as many as ",
            "batch_size": "every batch would spend as much of the privacy budget as all rows do; "
            "reduce ",
            "accelerate": "whether a step is rejected depends on the data; reduce ",
            "weight_concentration_prior_type": "a prior counts rows, and would count noise as "
            "rows; take few components by EM, and a smaller ",
            "n_init": "every restart, and the choice of the best, would spend some of the privacy "
            "budget; raise ",
        }.items()
    }),
    *_released({
        "fix": "{release_epsilon} finds all parameters by noisy moments; leave out {fix}",
        "floor_fits": "{floor_fits} chooses among restarts, but with {release_epsilon} there is "
        "one start; leave it out",
        "init": "{release_epsilon} starts from noisy moments of all rows and looks at no single "
        "row; leave out {init}",
        "scale": "{scale}" + NOISELESS,
        "missing": "{missing=marginalize}" + NOISELESS,
        "n_factors": "{release_epsilon} bounds what one row can do to the moments of a hub, but "
        "expected factors depend on its features in all hubs; leave out {n_factors}",
        "sample_weight": "{release_epsilon} bounds what one row can do, and with {sample_weight} a "
        "row would do more; leave it out",
        "checkpoint": "a checkpoint holds more than may be published, and a run that resumes draws "
        "noise again, which spends the privacy budget again; leave out the checkpoint, or "
        "{release_epsilon}",
    }),
)  # fmt: skip
"""Rules that depend on ``algorithm``; its command may lack the setting altogether."""

BUDGETS = {
    **dict.fromkeys(("em-rows", "kmeans-rows", "fedem", "vr-fedem"), "epsilon"),
    "vp-em": "release_epsilon",
}
"""Whose fits can be private, and by which setting."""

TAKEN = {"kmeans-rows": {"n_clusters", "seed", "n_threads", "max_iter"}}
TAKEN["em-rows"] = {"n_components", "covariance_type", "reg_covar", "seed", "n_threads", "max_iter"}
TAKEN["fedem"] = TAKEN["em-rows"] | {
    "compress", "participation", "memory", "alpha", "step_size", "weighting",
}  # fmt: skip
TAKEN["vr-fedem"] = TAKEN["fedem"]
TAKEN["vp-em"] = TAKEN["em-rows"] | {"dtype"}
"""Settings that private fits take; they refuse all others, most by a row of `ROWS`."""


def refuse(values: Mapping[str, Any], given: Collection[str]) -> None:
    """Raise InputError for the first of the given settings that the algorithm cannot have."""
    for row in ROWS:
        if row.setting in given and row.when(values):
            raise refused(Setting(row.setting), row.why)
    algorithm = str(values.get("algorithm"))
    budget = BUDGETS.get(algorithm, "")
    if values.get(budget) is not None:
        for name in sorted(set(given) - TAKEN[algorithm]):
            raise InputError(Setting(name), " has no effect with ", Setting(budget), LEAVE)


def of_command(command: str, known: Mapping[str, list[Rule]]) -> dict[str, list[Rule]]:
    """Return the ``known`` rules of settings, with those that its algorithms have in a command."""
    rules, algorithms = {name: list(one) for name, one in known.items()}, OF_COMMANDS.get(command)
    private = dict.fromkeys(BUDGETS.values(), 1.0)
    for row in ROWS:
        if any(row.when(private | {"algorithm": one}) for one in algorithms or ()):
            rules.setdefault(row.setting, []).append((row.when, row.why))
    return rules


def why_never(command: str, setting: str) -> Sentence | None:
    """Return why a command lacks a setting, where no algorithm of it can have that."""
    rows = [row for row in ROWS if row.setting in (setting, f"n_{setting}")]  # --factors
    known = {"command": command}
    algorithms = [known | {"algorithm": one} for one in OF_COMMANDS.get(command, ())]
    reasons = [next((row.why for row in rows if row.when(one)), None) for one in algorithms]
    return reasons[0] if reasons and all(reasons) else None


def refusal(algorithm: str, way: str) -> InputError | None:
    """Return the error that says why an algorithm cannot run this way; None where it can."""
    names = [flag.split()[0][2:].replace("-", "_") for flag in WAYS[way].flags]
    for row in FORBIDDEN:
        if [row.setting] == names and row.when({"algorithm": algorithm}):
            return refused(Setting(row.setting), row.why)
    return None


LEAST_STARTS = 4
"""Starts of the k-means of each party and of the server, in one shot: one plain, for the proof,
then greedy."""

SPARSE_GRAPHS = ("geometric", "erdos-renyi", "small-world", "scale-free")  # of some mean degree
RANDOM_GRAPHS = (*SPARSE_GRAPHS, "tree")

FAULTS = ("link_failure", "agent_dropout", "stragglers")

# ---- data and starts -----------------------------------------------------------------------------

OF_ONE_FILE = beside(" is for one file; with {parties} leave it out", parties=...)


def are_several(given: Mapping[str, Any]) -> bool:
    """Whether fits of several numbers of components are compared: 2-6, or 2,3,5."""
    return not {"-", ","}.isdisjoint(str(given.get("n_components"))[1:])


ONE_START = rule(
    are_several, " starts one fit, but {n_components} are several numbers; give one of the two"
)
ONE_FIXED = rule(
    are_several, " holds parameters of so many components; give one number of {n_components}"
)
FIXED_PRIOR = beside(
    " holds parameters that are known, of which no prior says anything; leave it out, or "
    "{weight_concentration_prior_type}",
    weight_concentration_prior_type=...,
)
FIXED_PENALTY = rule(
    lambda given: (
        given.get("penalty") is not None
        and ("covariance" in str(given["fix"]) or "dirichlet" in str(given["penalty"]))
    ),
    " holds covariances, whose M-step with {penalty} is one with that of means, or weights that a "
    "dirichlet one shrinks; leave one out",
)
FIXED_FACTORS = rule(
    lambda given: bool(given.get("n_factors")),
    " holds covariances inside hubs, but {n_factors} add to them; leave one out",
)
DECOMPOSED = ("VEI", "EVI", "VEE", "EVE", "VVE", "EEV", "VEV", "EVV")
"""Families whose components have some of volume, shape and orientation in common."""


ONE_OUTLIER = beside(
    " leaves out what {noise} has a component for; give one of the two", noise=True
)
TRIMMED_HELD_OUT = beside(
    " leaves out some of the rows that are held out, others in each model, so that models cannot "
    "be compared by them; take {criterion=bic}",
    criterion="heldout",
)
WITH_OUTLIERS = [
    beside(
        " compares how well rows are described, but rows of which values are missing have other "
        "densities; fill values in first",
        missing="marginalize",
    ),
    beside(
        " is about all rows, which are compared in every iteration; leave it out, or {batch_size}",
        batch_size=...,
    ),
    beside(
        " decides in every iteration which rows count, and longer steps do not know of that; leave "
        "it out, or {accelerate}",
        accelerate=...,
    ),
    beside(
        " would need a prior of its own; leave it out, or {weight_concentration_prior_type}",
        weight_concentration_prior_type=...,
    ),
    rule(
        lambda given: bool(given.get("n_factors")),
        " compares densities of rows, which with {n_factors} hubs find in two sums; leave one out",
    ),
    beside(
        " needs the volume of all rows, or their ranks, but workers send sums over rows and "
        "nothing of one row; split by features, or leave it out",
        split="rows",
    ),
]


def are_decomposed(given: Mapping[str, Any]) -> bool:
    return str(given.get("covariance_type")).upper() in DECOMPOSED


BOUNDED = [
    rule(
        are_decomposed,
        " moves eigenvalues of each covariance, but those of {covariance_type} have parts in "
        "common; leave it out, or take {covariance_type=full}",
    ),
    beside(
        " bounds covariances that an M-step finds, but a prior bounds them too; leave one out",
        weight_concentration_prior_type=...,
    ),
    beside(" bounds covariances, and so does {penalty}; leave one out", penalty=...),
    beside(
        " bounds what M-steps find, and {accelerate} goes beyond these; leave one out",
        accelerate=...,
    ),
    rule(
        lambda given: bool(given.get("n_factors")),
        " bounds covariances in hubs, but {n_factors} add to them; leave one out",
    ),
    rule(
        lambda given: "covariance" in str(given.get("fix")),
        " bounds covariances, but {fix} holds them as they are; leave one out",
    ),
]


DECOMPOSED_PRIOR = rule(
    are_decomposed,
    " adds to each covariance by itself, but those of {covariance_type} have parts in common; "
    "leave one out",
)
DECOMPOSED_FACTORS = rule(
    are_decomposed,
    " explain part of each covariance, and what is left need not have a volume, shape or "
    "orientation in common; leave {n_factors} out, or take {covariance_type=full} or tied",
)
DECOMPOSED_IN_NOISE = rule(
    are_decomposed,
    " has covariances with parts in common, which are made of exact sums; here noise may move "
    "these; take full, diag, spherical, tied, tied-diag or tied-spherical",
)
BY_FEATURES = beside(" is for data split by features; leave it out", split="rows")
OF_SUMS_OVER_HUBS = beside(
    " add a term to the sum over hubs of features; with {split=rows} what is summed are moments, "
    "and there is no such term; leave it out",
    split="rows",
)
UNCOUNTED = rule(
    are_several,
    " are not counted by BIC, which chooses the number of components; give one number of "
    "{n_components}",
)
UNPROTECTED = rule(
    lambda given: given.get("epsilon") is not None or given.get("release_epsilon") is not None,
    " are data too, which noise in the M-steps of features would not protect; leave it out",
)
OF_ROWS = beside(
    " is for parameters of all features, but here each hub makes its own; take {split=rows}, or "
    "{weight_concentration_prior_type=map}",
    split="features",
)
LASSO_OF_FULL = sentence(
    ": lasso and elastic-net need diagonal covariances, since with others the M-step may have "
    "several minima, and a mean of zero would say nothing of a feature by itself; take "
    "{covariance_type=diag}, or ridge"
)
PENALISED = not_both("penalty", "weight_concentration_prior_type")
BY_ROWS = beside(" is for data split by rows; add {split=rows}", split="features")
STARTED = rule(
    lambda given: given.get("init_rows") is not None or given.get("init_model") is not None,
    " is how a start is found, but --init-rows or --init-model gives it; leave it out",
)
RESTARTED = rule(
    lambda given: (
        STARTED[0](given) or not isinstance(getattr(given["init"], "init", given["init"]), str)
    ),
    " starts again from other rows, but the start is given; leave it out",
)
IN_BATCHES = beside(
    " needs the log-likelihood of all rows, since no sum over a batch shows whether a step was "
    "too long; leave it out, or {batch_size}",
    batch_size=...,
)
WITHOUT_BATCHES = beside(
    " is how far the statistics move toward those of a batch, but there are no batches; give "
    "{batch_size}",
    batch_size=None,
)
GRID_OF_ROWS = beside(
    "{method=grid} joins clusterings of different features: it needs {split=features}",
    method="grid",
    split="rows",
)
STARTS_OF_GRID = rule(
    lambda given: (
        given["method"] == "grid"
        and not (isinstance(given["init"], str) and given["init"] == "k-means++")
    ),
    " is for {method=lloyd}: in one shot each party starts its own clustering by k-means++; leave "
    "it out, or take that",
)
OF_ITERATIONS = mild(
    beside(
        " is about sums of many iterations, but one shot sends labels once; leave it out, or take "
        "{method=lloyd}",
        method="grid",
    )
)
WITHOUT_VARIANCE_REDUCTION = unless(
    " belongs to variance reduction, which is off; add {variance_reduction=True}, or leave it out",
    variance_reduction=True,
)
FEW_STARTS: Rule = (
    lambda given: given["method"] == "grid" and given["n_init"] <= LEAST_STARTS,
    (f" is at least {LEAST_STARTS} in one shot; give more, or leave it out",),
)
HELD_OUT = unless(" is for {criterion=heldout}; leave it out", criterion="heldout")

# ---- graphs and sums -----------------------------------------------------------------------------

WITHOUT_ROUNDS = sentence(
    " is about consensus rounds, but a sum at a server or along a tree takes none; leave it out, "
    "or take a graph of agents, such as the topology cycle, and {sum=consensus}"
)
ROUNDS: Rule = (
    lambda given: given.get("topology") == "star" or not summing(given["sum"]).has_rounds,
    WITHOUT_ROUNDS,
)
UNESTIMATED: Rule = (
    lambda given: given["eigenvalue"] == "estimated" and ROUNDS[0](given),
    WITHOUT_ROUNDS,
)
UNACCELERATED = beside(
    " is for Chebyshev acceleration, which is off; leave it out, or {acceleration}",
    eigenvalue="estimated",
    acceleration="none",
)
AUTOMATIC = unless(
    " is what {n_rounds=auto} reaches, but the number of rounds is given; leave one out",
    n_rounds="auto",
)
CODED = beside(
    " sets the number of exact rounds, but that of compressed ones depends on the codec; leave it "
    "out",
    compress=...,
)


def all_take_part(participation: object) -> bool:
    """Whether all are there in every iteration, by a number, or text that may be one."""
    return {*str(participation).split(",")} <= {"1", "1.0"}


MASKED_CODES = sentence(
    " adds whole numbers under masks, but compressed messages have scales of their own and cannot "
    "be added; leave it out, or {compress}"
)
MASKED_HOPS = sentence(
    " hides the terms of agents, but {hops} above 0 shows their features to a root; leave one out"
)
MASKED_BY_ROUNDS = sentence(
    " is for sums in which masks are added up until they cancel, but rounds of consensus multiply "
    "states by mixing weights; take the topology star, or {sum=tree}"
)
MASKED_ABSENT = sentence(
    " shows totals, and totals over changing sets of workers differ by the terms of single ones; "
    "leave it out, or {participation}"
)
MASKS: list[Rule] = [
    (lambda given: not all_take_part(given.get("participation", 1)), MASKED_ABSENT),
    (lambda given: any(given.get(one) is not None for one in ("compress", "codec")), MASKED_CODES),
    (lambda given: str(given.get("hops", 0)) != "0", MASKED_HOPS),
    (lambda given: summing(given.get("sum"), "server").has_rounds, MASKED_BY_ROUNDS),
]
"""Settings that masked sums exclude."""


def _is_undrawn(given: Any) -> bool:
    """Whether nothing is drawn that belongs to a graph; False where that is not known."""
    if "hops" not in given or "topology" not in given:
        return False
    named = {given["topology"], given.get("source")}
    noisy = given.get("compress") is not None or any(given.get(fault) for fault in FAULTS)
    drawn = noisy or given.get("eigenvalue") == "estimated" or str(given["hops"]) != "0"
    return not drawn and named.isdisjoint(RANDOM_GRAPHS)


HUBS_OF_ONE = rule(
    lambda given: given["hubs"] != "size" and are_several(given),
    " are chosen for one fit, but {n_components} are several numbers; give one number",
)
WITHOUT_HOPS: Rule = (
    lambda given: given.get("hops", 0) in (0, "0"),
    (
        " decides which agents share a hub, but without hops none do; give ",
        Setting("hops", 1),
        " or more, or leave it out",
    ),
)

UNDRAWN: Rule = (
    _is_undrawn,
    (f" seeds random graphs, ties between hubs, codecs and faults, but there are none{LEAVE}",),
)

# ---- FedEM and SAEM ------------------------------------------------------------------------------


def _is_on_a_graph(given: Any) -> bool:
    """Whether another graph than a star is named."""
    return bool(given.get("graph")) or given.get("topology") not in (None, "star")


NAIVE_OF_ALL: Rule = (
    lambda given: given["memory"] == "naive" and all_take_part(given["participation"]),
    sentence(
        "{memory=naive} is the mean over those workers that take part, but all do; take "
        "{memory=none}, or give {participation}"
    ),
)
NOTHING_DRAWN = rule(
    lambda given: given["batch_size"] is None and not given["variance_reduction"],
    " is how the rows of batches are drawn, but there are none; give {batch_size}, or leave it out",
)


def _is_exact(given: Any) -> bool:
    """Whether all workers send corrections as they are; False where that is not known."""
    coded = given.get("compress", "unknown") is not None and not _is_on_a_graph(given)
    return not coded and all_take_part(given["participation"])


EXACT = rule(
    _is_exact,
    " corrects for noise of codecs and absent workers, but here all send exact corrections, which "
    "no memory changes; leave it out, or take {compress} or {participation}",
)
EXACT_ZERO: Rule = (lambda given: given["memory"] == "zero" and _is_exact(given), EXACT[1])
OF_THEOREMS = [
    beside(" is below {max_iter}, which must be given", max_iter=None),
    rule(lambda given: given.get("epsilon") is None
         and (given["tol"] != 0 or given["n_epochs"] is not None),
         " is the only end of a run: take {tol=0}, and no {n_epochs}"),
]  # fmt: skip
NEVER: Rule = (
    lambda given: given["tol"] == 0,
    (" is how often to check for convergence, but ", Setting("tol", 0), f" never stops{LEAVE}"),
)
UNAVERAGED = unless(
    " is about steps that average statistics, but {method} takes the latest draws alone; leave it "
    "out, or take {method=saem}",
    method="saem",
)
UNCHECKED = unless(
    " is about convergence, which is not checked with this {method}: all iterations are run; leave "
    "it out",
    method="saem",
)
UNSETTLED: Rule = (
    lambda given: given.get("method", "saem") != "saem" and given["tol"] != 0,
    sentence(
        " is when averaged estimates have settled, but with {method} they keep moving with the "
        "noise of the latest draws, and all iterations are run; leave it out, or take "
        "{method=saem}"
    ),
)
UNCORRECTED: Rule = (
    lambda given: given.get("method") == "fl-saem" and given["feedback"] not in (None, "none"),
    sentence(
        " corrects what a codec left out, but {method=fl-saem} takes each message as it is; leave "
        "it out, or take {method=saem}"
    ),
)
PENALISED_MODELS = beside(
    " counts once, where parameters are made of all statistics, but {average=models} makes them "
    "device by device; average statistics, or leave it out",
    average="models",
)
OF_MODELS = unless(" weighs models: it needs {average=models}", average="models")
CODED_MODELS = beside(
    "{average=models} sends models exactly: leave out {codec}, or average statistics",
    average="models",
)
FEEDBACK_OF_MODELS = beside(" is about statistics: it needs {average=statistics}", average="models")
AMONG_NEIGHBOURS = rule(
    lambda given: (
        summing(given.get("sum"), "consensus" if _is_on_a_graph(given) else "server").has_rounds
    ),
    " is about messages to a server; among neighbours rounds are compressed, and remember what was "
    "sent: leave it out",
)
WITHOUT_CODEC = beside(" is about a codec's error: it needs {codec}", codec=None)
