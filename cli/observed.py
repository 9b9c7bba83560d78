"""What `vpem impute` is given: what observers saw, of one file or of one a party."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from vpem.errors import Setting
from vpem.fits.settings import ImputeSettings
from vpem.records import Settings, changed, refuse_both, setting
from vpem.settings import DEALS, HoldingSettings, WorkerSettings

from .engine import place_parties
from .parties import BY_POSITION, NumberFiles, PartySettings, check_parties
from .reading import refuse_shared_stdin, teller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpem.engines.placement import Placement
    from vpem.terms.lowrank.entries import Hidden
    from vpem.terms.lowrank.observations import Law, Observations

    from .driver import Run


class Observers(NumberFiles, heading="Data"):
    """Whether files are those of parties, each of whom is an observer."""

    parties: bool = changed(
        PartySettings,
        "parties",
        help="Each file is what one observer saw: a .csv table with the columns row, column, "
        "value, or a matrix with gaps of any format; or one .toml file names them all "
        "(docs/reference/parties.md).",
    )
    align: str | None = changed(
        PartySettings,
        "align",
        help="How parties' rows are found that are the same: ids, by their names, or none, by "
        "their places. Default: by names; by places if no party has any, and no column of several "
        "says that they are other rows.",
        choices=("none", "ids"),
    )


class Dealing(Settings, heading="Data", kept=False):
    """Who saw which entries, and which of them nobody is to see."""

    workers: int | None = setting(
        None,
        "Deal the entries of the one observer there is out to this many. Default: the "
        "observers in the data.",
    )
    split: str | None = setting(
        None,
        "How --workers deals: entries at random (random), whole rows (rows) or whole columns "
        "(features). Default: random; of a mixture rows; with --agents or --partition features.",
        choices=DEALS,
        idle=[
            (
                lambda given: all(given[one] is None for one in ("workers", "agents", "partition")),
                (" says how --workers deals entries out; give --workers N, or leave --split out",),
            ),
            (
                lambda given: given["workers"] is None and given["split"] != "features",
                (" is for --workers; --agents and --partition deal out columns: leave it out",),
            ),
        ],
    )
    agents: int | None = setting(
        None,
        "Deal the columns out to so many, in runs: as --workers N --split features.",
        least=1,
    )
    partition: Path | None = changed(HoldingSettings, "partition", idle=None)
    holdout: float | None = setting(
        None,
        "Hide this share of the entries, and report the error on them against column "
        "means and scikit-learn's IterativeImputer.",
        idle=(
            lambda given: bool(given.get("secure_sum")) and given.get("engine") != "simulator",
            (
                " has the first process compare what observers hid, and tells all who saw which "
                "entry, where ",
                Setting("secure_sum", True),
                " is to show totals alone; leave one of the two out",
            ),
        ),
    )
    sample_weight: str | None = changed(
        WorkerSettings,
        "sample_weight",
        help="Weights of the entries: a column of a .csv table; in HDF5 a member of each "
        "observer's list, a group with a matrix an observer, or beside a dataset's X the path of "
        "weights of its rows.",
    )
    dataset: str | None = setting(None, "Path of a 2-D dataset inside the HDF5 file, instead of X.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for one, other in (
            ("workers", "agents"),
            ("workers", "partition"),
            ("agents", "partition"),
        ):
            refuse_both(self, one, other)


def observed(
    files: Sequence[Path], asked: Observers, dealing: Dealing, how: ImputeSettings, run: Run
) -> tuple[Observations, Hidden | None]:
    """Read what this process's observers saw, dealt out as asked for, and what of it is hidden.

    What is hidden is known in the first process.
    """
    import numpy as np

    from vpem.errors import VpemWarning
    from vpem.fits.observers import check_laws, hide_entries
    from vpem.terms.lowrank.observations import make_law

    law = make_law(how.law, how.variance)
    check_parties(files, asked, over_rows=False)
    if asked.parties:
        found, holders = _of_parties(files, asked, dealing, run)
        check_laws(found, law, holders)
    else:
        told = (how.seed, law, how.method == "mixture")
        found, holders = _of_one_file(files[0], asked, dealing, told, run)
    if dealing.holdout is None:
        return found, None
    rng = np.random.default_rng([how.seed, 2])
    found, hidden = hide_entries(found, dealing.holdout, rng, holders)
    if hidden.n_places < round(dealing.holdout * hidden.n_seen):
        warnings.warn(
            f"only {hidden.n_places} of {hidden.n_seen} entries are held out, not "
            f"{dealing.holdout:g} of them: every row, column and observer keeps one",
            VpemWarning,
            stacklevel=1,
        )
    return found, hidden


def _of_one_file(
    path: Path, asked: Observers, dealing: Dealing, how: tuple[int, Law, bool], run: Run
) -> tuple[Observations, Placement]:
    """Read the file of all observers, and keep what those of this process saw."""
    import numpy as np

    from vpem.engines.placement import Placement
    from vpem.files.networks import read_partition
    from vpem.files.observations import read_observations
    from vpem.terms.lowrank.entries import split, split_columns
    from vpem.terms.lowrank.observations import check_law

    seed, law, of_mixture = how
    refuse_shared_stdin(path, run.where)
    told = teller(run.screen.say)
    found = read_observations(
        path,
        dealing.dataset,
        dealing.sample_weight,
        table=asked.table,
        tell=lambda data: told(data, asked.table),
    )
    check_law(found, law)
    if dealing.partition is not None:
        held = read_partition(dealing.partition, found.shape[1], found.column_names)
        found = split_columns(found, held)
    elif (count := dealing.agents if dealing.workers is None else dealing.workers) is not None:
        rng = np.random.default_rng([seed, 1])
        by = "features" if dealing.agents else dealing.split
        found = split(found, count, by or ("rows" if of_mixture else "random"), rng)
    if not run.engine.apart:
        return found, Placement.here(found.n_observers)
    holders = Placement.evenly(run.engine, found.n_observers, found.names)
    return found.part(set(holders.own.tolist())), holders


def _of_parties(
    files: Sequence[Path], asked: Observers, dealing: Dealing, run: Run
) -> tuple[Observations, Placement]:
    """Read the files of this process's parties."""
    from vpem.errors import InputError, Setting
    from vpem.files.parties.observing import observe_parties

    for name, value in dealing.values("sample_weight", "holdout").items():
        if value is not None:
            raise InputError(Setting(name), " is for one file; with --parties leave it out")
    parties = run.where.parties(files, asked.table, columns=False)
    holders = place_parties(parties, run.out.output, run.shards, run.where)
    tell = teller(run.screen.say)
    found = observe_parties(parties, dealing.sample_weight, holders, tell, asked.align)
    if found.by_position and asked.align is None:
        run.screen.say(BY_POSITION)
    run.where.watch(found.shape[0], True, run.screen)
    return found, holders
