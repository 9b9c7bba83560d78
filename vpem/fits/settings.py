"""Settings of FedMissEM, of plans, and of privacy, and lists of numbers as they are typed.

Other settings are in `vpem.settings`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vpem import rules
from vpem.errors import InputError, Setting, brief, check_choice
from vpem.records import Rule, Settings, beside, changed, mild, not_both, rule, setting, unless
from vpem.settings import (
    BINOMIAL,
    COVARIANCE_TYPES,
    COVARIANCES,
    DEALS,
    DTYPES,
    LAWS,
    MCLUST,
    SCALES,
    FedSettings,
    FitSettings,
    HoldingSettings,
    MixtureSettings,
    SumSettings,
    WorkerSettings,
)

COPIES = ("auto", "observers", "fewest")

# fmt: off
OVER_FEATURES = beside(
    " would have to hide every row's terms over features by noise of some 15 times the largest of "
    "them at 1, which leaves nothing; take {release_epsilon}, which makes the model private "
    "against outsiders, or {split=rows}", split="features",
)
NOT_PRIVATE = beside(
    " belongs to differential privacy; add {epsilon} over rows or {release_epsilon} over features, "
    "or leave it out", epsilon=None, release_epsilon=None,
)
NOT_OF_WORKERS: Rule = (
    lambda given: given.get("epsilon") is None or given.get("secure_sum") is False,
    (" applies where workers share the noise, which they do with ", Setting("epsilon"), " and ",
     Setting("secure_sum", True), "; leave it out"),
)

OF_LOWRANK = mild(
    beside(" belongs to {method=lowrank}; add that, or leave it out", method="mixture"))
OF_MIXTURES = mild(
    unless(" belongs to {method=mixture}; add that, or leave it out", method="mixture"))


OF_GAUSSIANS = mild(unless(
    "only the gaussian law has a variance of its own, others have that of their mean; leave "
    "{variance} out", law="gaussian"))


OF_GIVEN_RANKS = rule(
    lambda given: given.get("method") != "mixture" and (
        {given.get("rank"), given.get("ridge")} == {None}
        or "auto" in {given.get("rank"), given.get("ridge")}
    ),
    " needs a rank and a ridge that are given: hidden entries, by which they are chosen, are not "
    "judged observer by observer; add {rank=2}, or leave it out",
)
OF_BINOMIALS = unless(
    " are those of {law=binomial}; take that, or leave it out", law=BINOMIAL)


class ImputeSettings(Settings, heading="Model"):
    """FedMissEM, or imputation by a mixture: see `vpem.fit_imputation`."""

    method: str = setting("auto", "A matrix of low rank (lowrank), a Gaussian mixture (mixture), "
        "or whichever predicts held-out entries best (auto). With several observers auto is "
        "lowrank; for a mixture they must have whole rows, or whole columns.",
        choices=("auto", "lowrank", "mixture"), often=True)
    n_components: int | str = changed(MixtureSettings, "n_components", 1, help="Number of "
        "components of the mixture: 1 is a normal law; of several numbers (1-4) the one of lowest "
        "BIC is kept.", idle=OF_MIXTURES)
    covariance_type: str = changed(MixtureSettings, "covariance_type", idle=OF_MIXTURES,
        often=False)
    reg_covar: float | str = changed(MixtureSettings, "reg_covar", idle=OF_MIXTURES)
    n_init: int = changed(FitSettings, "n_init", idle=OF_MIXTURES)
    draws: int | None = setting(None, "With a mixture: number of multiple imputations, for Rubin's "
        "rules. A table then holds all of them, one below the other, with a column draw.",
        heading="Method", least=2, most=1000, idle=OF_MIXTURES)
    rank: int | str | None = setting(None, "Rank of the matrix of natural parameters, or auto: "
        "chosen by held-out entries. Default: auto; with a --ridge 2.", flags="-r --rank",
        choices=("auto",), least=1, idle=OF_LOWRANK, often=True)
    ridge: float | str | None = setting(None, "Penalty of the factors, by which singular values "
        "shrink; above 0 unless the law is gaussian. Or auto: chosen by held-out entries. Default: "
        "auto; with a --rank 1.", choices=("auto",), least=0.0, most=1e100, idle=OF_LOWRANK)
    law: str = setting("gaussian", "Law of an entry: gaussian (a mean), poisson (counts, by log "
        "intensity), bernoulli (0 or 1, by log odds), or binomial (counts out of --trials).",
        choices=(*LAWS, BINOMIAL), idle=OF_LOWRANK)
    trials: int | None = setting(None, "Of the binomial law: how many trials each entry counts the "
        "successes of.", least=1, most=10**9, idle=[OF_LOWRANK, OF_BINOMIALS])
    observer_shrinkage: float | None = setting(None, "Give each observer an intercept a, which "
        "is added to theta of its entries, with a penalty of so much times a^2 / 2. It stays "
        "with the observer; but for the gaussian law it is at most log 5. For a given --rank or "
        "--ridge. Default: no intercepts.",
        least=0.0, above=True, idle=[OF_LOWRANK, OF_GIVEN_RANKS])
    variance: float = setting(1.0, "Variance of the gaussian law, by which squared errors are "
        "divided before the ridge penalizes.", least=1e-100, most=1e100,
        idle=[OF_LOWRANK, OF_GAUSSIANS])
    scale: str = changed(MixtureSettings, "scale", "auto", choices=("auto", *SCALES), help="none, "
        "or standard: columns are standardized for the fit; outputs keep the data's units. auto: "
        "standard under the gaussian law, else none.")
    copies: str = setting("auto", "Copies of the matrix that observers saw parts of: one each "
        "(observers), the largest number that saw one entry (fewest: converges sooner), or one for "
        "parts made by --workers, else one each (auto).", heading="Method", choices=COPIES,
        idle=OF_LOWRANK)
    compress: str | None = changed(SumSettings, "compress", help="Codec of what observers send: "
        "qsgd:8bits, natural:12bits, blockp:64, topk:0.1, randk:0.1, float32, float16.",
        idle=OF_LOWRANK)
    participation: float | Any = changed(FedSettings, "participation",
        flags="-p --participation", help="Probability that an observer takes part, or one for each "
        "(0.9,0.5 or anna=0.9,bert=0.5), or who is there in one iteration after the other "
        "(anna,bert;cleo), or a JSON file of these.", idle=OF_LOWRANK)
    step_size: Any = changed(FedSettings, "step_size", "auto", help="Steps of the statistic: "
        "constant:0.5, decreasing:0.8,0.6 (0.8 k^-0.6), or auto: 1 where nothing is random, else "
        "what the noise allows.", idle=OF_LOWRANK)
    batch_size: int | None = changed(FedSettings, "batch_size", help="Entries of its own that an "
        "observer draws in an iteration. Default: all; with --variance-reduction the square root "
        "of half of them.", idle=OF_LOWRANK)
    replacement: bool = changed(FedSettings, "replacement", help="Draw the entries of a batch "
        "with replacement.", idle=[OF_LOWRANK, rules.NOTHING_DRAWN])
    variance_reduction: bool = changed(FedSettings, "variance_reduction", help="Reduce the "
        "variance of batches (VR-FedEM), which are then small.", idle=OF_LOWRANK)
    memory: str = changed(FedSettings, "memory",
        idle=[OF_LOWRANK, rules.EXACT_ZERO, rules.NAIVE_OF_ALL])
    alpha: float | None = changed(FedSettings, "alpha", idle=[OF_LOWRANK, rules.EXACT])
    tol: float | None = changed(FedSettings, "tol", None, most=1.0, help="Stop when the "
        "statistic's correction is less than this part of its norm, with a mixture when the "
        "log-likelihood per sample changes by less; 0: never. Default: 1e-5; with a mixture 1e-7.")
    max_iter: int | None = changed(FitSettings, "max_iter", None, help="Maximum number of "
        "iterations. Default: 1000, more with shorter steps in proportion.", least=1)
    seed: int = changed(MixtureSettings, "seed", help="Seed of the split, the holdout, "
        "participation, batches, noise, starts, draws, and random graphs.")
    n_threads: int | None = changed(SumSettings, "n_threads", help="Threads of the codec. Default: "
        "all processors.")

    @property
    def is_open(self) -> bool:
        """Whether method, rank or ridge are to be chosen by held-out entries."""
        pair = {self.rank, self.ridge}
        return self.method != "mixture" and (pair == {None} or "auto" in pair)

    def in_units(self) -> ImputeSettings:
        """Return settings with the defaults that do not depend on the data."""
        settings = self
        if self.method != "mixture" and not self.is_open:
            settings = settings.changed(
                method="lowrank", rank=2 if self.rank is None else self.rank,
                ridge=1.0 if self.ridge is None else self.ridge,
            )
        if self.tol is None and settings.method != "auto":
            settings = settings.changed(tol=FitSettings().tol if self.method == "mixture" else 1e-5)
        if self.scale != "auto":
            return settings
        return settings.changed(scale="standard" if self.law == "gaussian" else "none")


class Dealing(Settings, heading="Data", kept=False):
    """Who saw which entries, and which of them are held out: see `vpem.fits.observers.deal`."""

    workers: int | None = setting(None, "Deal the entries of the single observer out to this many. "
        "Default: the observers in the data.", idle=rules.OF_ONE_FILE)
    split: str | None = setting(None, "How --workers deals: entries at random (random), whole rows "
        "(rows) or whole columns (features). Default: random; of a mixture rows; with --agents or "
        "--partition features.", choices=DEALS, idle=[
            rule(lambda given: {given["workers"], given["agents"], given["partition"]} == {None},
                 " says how --workers deals entries out; give --workers N, or leave --split out"),
            rule(lambda given: given["workers"] is None and given["split"] != "features",
                 " is for --workers; --agents and --partition deal out columns: leave it out")])
    agents: int | None = setting(None, "Deal the columns out to this many, in order: as --workers "
        "N --split features.", least=1, idle=[not_both("workers", "agents"), rules.OF_ONE_FILE])
    partition: Path | None = changed(HoldingSettings, "partition",
        idle=[not_both("workers", "partition"), not_both("agents", "partition"),
              rules.OF_ONE_FILE])
    holdout: float | None = setting(None, "Hide this share of the entries, and report the error on "
        "them beside those of column means and scikit-learn's IterativeImputer.", idle=rule(
            lambda given: bool(given.get("secure_sum")) and given.get("engine") != "simulator",
            " shows the first process what observers held out, and all of them who saw which "
            "entry, but {secure_sum=True} is to show totals alone; leave one of the two out"))
    sample_weight: str | None = changed(WorkerSettings, "sample_weight", help="Weights of the "
        "entries: a column of a .csv table; in HDF5 a member of each observer's list, a group with "
        "a matrix an observer, or beside a dataset's X the path of weights of its rows.")
    dataset: str | None = changed(WorkerSettings, "dataset")


class PlanSettings(SumSettings, heading="Network"):
    """A fit whose messages are foretold: see `vpem.fits.plan.plan`."""

    n_samples: int | None = setting(None, "Number of rows of the fit to plan. Default: the "
        "dataset's, else 1000.", flags="--samples", heading="Data", least=1, most=10**15)
    n_components: int = setting(2, "Number of components of the fit to plan.",
        flags="-k --components", heading="Model", least=1, most=10**9)
    n_factors: int = changed(FitSettings, "n_factors", help="Number of factors that hubs share in "
        "the fit to plan.")
    noise: bool = changed(FitSettings, "noise")
    trim: float = changed(FitSettings, "trim")
    dtype: str = setting("float64", "Precision of the fit to plan: float64 or float32.",
        heading="Running", choices=DTYPES, idle=beside(" is the precision of terms over "
            "features; workers add statistics in float64; leave it out", split="rows"))
    batch_size: int | None = setting(None, "Rows of a batch, as for 'vpem fit'. Default: all rows "
        "in every iteration.", heading="Method", least=1)
    link: str | None = setting(None, "Bandwidth and one-way latency of every agent's link, such as "
        "100Mbit,30ms or 10Gbit,0.1ms, to predict the time of an iteration.", heading="Network")


class PrivacySettings(Settings, heading="Privacy"):
    """How much a result may reveal of one row: see `vpem.fits.privacy`."""

    epsilon: float | None = setting(None, "Over rows: differential privacy with this epsilon. "
        "Noise bounds what can be learnt of one row from everything that is published. Needs "
        "--delta and --bounds.", least=0.0, above=True, idle=OVER_FEATURES)
    release_epsilon: float | None = setting(None, "Over features: differential privacy of the "
        "model with this epsilon. Noise in every M-step bounds what outsiders who see the model "
        "alone can learn of one row, but not what parties see. Needs --delta and --bounds.",
        least=0.0, above=True, idle=[not_both("epsilon", "release_epsilon"), rules.BY_FEATURES])
    delta: float | None = setting(None, "Probability with which the guarantee may fail: far below "
        "one over the number of rows.", least=0.0, most=1.0, above=True, idle=NOT_PRIVATE)
    bounds: Any = setting(None, "Least and largest value of all features (-3,3) or of each "
        "('0,120;-3,3'), known without looking at the data. Values beyond are clipped.",
        idle=NOT_PRIVATE)
    colluding: int | None = setting(None, "With --epsilon and --secure-sum: number of workers that "
        "may collude, without whose noise that of the others must do. Default: 1.",
        least=0, idle=NOT_OF_WORKERS)
    repeatable_noise: int | None = setting(None, "For tests: a seed of the noise, which then gives "
        "no privacy.", least=0, idle=NOT_PRIVATE, hidden=True)

    @property
    def is_asked(self) -> bool:
        """Whether a result is to be private."""
        return self.epsilon is not None or self.release_epsilon is not None


MOST_NUMBERS = 10_000
"""Longest list."""

_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)


def parse_numbers(what: str, text: str, *, least: int = 0) -> list[int]:
    """Read whole numbers typed as a list of numbers and ranges: ascending, each once.

    ``text`` is such as "1-8", "1,2,5", "2-20:3" (from 2 to at most 20 in steps of 3), or several
    with commas between; ``what`` is what they are, as the user knows it ("--components").
    """
    numbers: set[int] = set()
    for word in text.split(","):
        match = _PART.fullmatch(word.strip())
        if match is None:
            raise InputError(
                f"{what} must be numbers and ranges with commas between, such as 1-8, 1,2,5 or "
                f"2-20:3, got {brief(text)}"
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        step = 1 if match[3] is None else int(match[3])
        if last < first:
            raise InputError(f"{what} has the range {word.strip()}, which goes down; reverse it")
        if step < 1:
            raise InputError(f"{what} has the range {word.strip()} with steps of 0; take 1 or more")
        if first < least:
            raise InputError(f"{what} must be {least} or more, got {first} in {brief(text)}")
        if len(numbers) + (last - first) // step >= MOST_NUMBERS:
            raise InputError(f"{what} has more than {MOST_NUMBERS} numbers, got {brief(text)}")
        numbers.update(range(first, last + 1, step))
    return sorted(numbers)


def as_ranges(numbers: Iterable[int]) -> list[str]:
    """Write ascending whole numbers, three or more in a row as a range: 0, 1 and 3-6."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(one) for one in run] for run in runs)
    return [word for words in parts for word in words]


def parse_names(what: str, text: str, choices: Iterable[str]) -> list[str]:
    """Read names with commas between ("full,diag"), each once, in the order they are typed."""
    allowed = list(choices)
    return list(
        dict.fromkeys(check_choice(what, word.strip(), allowed) for word in text.split(","))
    )


def parse_covariances(text: str, fits: FitSettings, what: str = "--covariance") -> list[str]:
    """Read covariance types, by either name; all are those that such fits can have."""
    if text.strip().lower() == "all":
        added = fits.weight_concentration_prior_type, fits.penalty, fits.n_factors or None
        fitted_freely = any(one is not None for one in (*added, fits.eigenvalue_ratio))
        return [one for one in MCLUST.values() if not fitted_freely or one in COVARIANCE_TYPES]
    words = (MCLUST.get(word.strip().upper(), word) for word in text.split(","))
    return parse_names(what, ",".join(words), COVARIANCES)
