"""Figure 3 of the FedEM paper, right: monthly trends of two birds, by FedMissEM.

The authors may not pass on their extract of eBird. ``--from`` reads one in its own format, the
basic dataset: a table with tabs between columns, zipped (gzip) or not, that Cornell sends on
request (https://ebird.org/data/request). Without it a small one is simulated, and read alike.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem import FileError, InputError, fit_imputation
from vpem.terms.lowrank.entries import from_triplets

from ..problems import quietly
from .pictures import COLOURS, LINES, blank, tidy, write
from .report import Report, Table, write_csv

SPECIES = ("Common Buzzard", "Mallard")
"""Theirs."""

GROUPS = 10
"""Servers, to which observers are assigned at random."""

RANK = 2
"""Theirs."""

COLUMNS = {
    "species": "COMMON NAME", "count": "OBSERVATION COUNT", "site": "LOCALITY ID",
    "date": "OBSERVATION DATE", "observer": "OBSERVER ID",
}  # fmt: skip
"""Of the basic dataset, which has some forty others."""

DATE = re.compile(r"(\d{4})-(\d{2})-\d{2}( .*)?")
LEAST = 3
"""Months in which a site must have been visited."""

SPAN = 0.3
"""Share of the months that a local line is fitted to."""

SIZES: dict[str, dict[str, Any]] = {
    "small": {"sites": 12, "months": 24, "observers": 30, "visits": 500, "epochs": 20},
    "full": {"sites": 60, "months": 120, "observers": 300, "visits": 14_000, "epochs": 100},
}
"""Sites and so on are those of the simulated extract."""


def simulate(path: Path, size: dict[str, Any], seed: int = 0) -> dict[str, list[float]]:
    """Write a table of simulated visits in eBird's format; the true totals of each month."""
    rng = np.random.default_rng(seed)
    months, sites = np.arange(size["months"]), size["sites"]
    season = np.cos(2 * np.pi * (months % 12) / 12)
    trends = {
        SPECIES[0]: 1.2 + 0.5 * months / len(months) + 0.3 * season,
        SPECIES[1]: 2.4 - 0.4 * months / len(months) + 0.8 * season,
    }
    truth, lines = dict[str, list[float]](), []
    where = rng.integers(sites, size=size["visits"])
    when = rng.integers(len(months), size=size["visits"])
    who = rng.integers(size["observers"], size=size["visits"])
    day = rng.integers(1, 28, size=size["visits"])
    for species, trend in trends.items():
        richness = np.exp(rng.normal(0, 0.5, sites))
        means = richness[:, None] * np.exp(trend)
        truth[species] = means.sum(axis=0).tolist()
        seen = rng.poisson(means[where, when])
        for i in range(size["visits"]):
            year, month = divmod(int(when[i]), 12)
            count = "X" if rng.random() < 0.02 else str(seen[i])
            if count != "0":  # a basic dataset has what was seen
                lines.append((species, count, f"L{where[i]}", f"{2000 + year}-{month + 1:02d}-"
                              f"{day[i]:02d}", f"obsr{who[i]}"))  # fmt: skip
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(["GLOBAL UNIQUE IDENTIFIER", *COLUMNS.values()])
        writer.writerows((f"URN:{number}", *line) for number, line in enumerate(lines))
    return truth


def _opened(path: Path) -> Any:
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    opening = gzip.open if zipped else open
    return opening(path, "rt", encoding="utf-8", errors="replace", newline="")


def recognises(path: Path) -> bool:
    """Whether a file has the columns of eBird's basic dataset."""
    try:
        with _opened(path) as file:
            head = file.readline(100_000).rstrip("\r\n").split("\t")
    except (OSError, EOFError):
        return False
    return set(COLUMNS.values()) <= set(head)


def read_counts(path: Path, species: str) -> list[tuple[str, str, str, float]]:
    """Read what was counted of a species: observer, site, month and mean count, in any order.

    Visits of one observer to a site in a month are averaged. "X", which says that birds were there
    and not how many, says nothing here.
    """
    if not recognises(path):
        raise FileError(f"{path} is not eBird's basic dataset: its first line lacks "
                        f"{', '.join(COLUMNS.values())}, or tabs between them")  # fmt: skip
    sums: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    try:
        with _opened(path) as file:
            reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            for number, row in enumerate(reader, 2):
                if row[COLUMNS["species"]] != species or row[COLUMNS["count"]] == "X":
                    continue
                said, date = row[COLUMNS["count"]], DATE.fullmatch(row[COLUMNS["date"]] or "")
                if not (said or "").isdecimal() or date is None:
                    raise FileError(
                        f"{path}, line {number}: needs a count and a date (YYYY-MM-DD), got "
                        f"{said!r} and {row[COLUMNS['date']]!r}"
                    )
                key = row[COLUMNS["observer"]], row[COLUMNS["site"]], f"{date[1]}-{date[2]}"
                sums[key][0] += float(said)
                sums[key][1] += 1.0
    except (OSError, EOFError, csv.Error) as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    found = [(*key, total / visits) for key, (total, visits) in sums.items()]
    often = Counter(site for site, _ in {(site, month) for _, site, month, _ in found})
    found = [one for one in found if often[one[1]] >= LEAST]
    if not found:
        raise InputError(f"{path} has no site that was visited in {LEAST} months for {species}")
    return found


def in_groups(counts: list[tuple[str, str, str, float]]) -> Any:
    """Assign observers to servers at random; what a server saw of a site in a month is a mean."""
    observers = sorted({observer for observer, *_ in counts})
    drawn = np.random.default_rng(0).permutation(len(observers)) % min(GROUPS, len(observers))
    group_of = dict(zip(observers, drawn.tolist(), strict=True))
    sites, months = (sorted({one[at] for one in counts}) for at in (1, 2))
    place = {name: at for at, name in enumerate(sites)}
    time = {name: at for at, name in enumerate(months)}
    sums: dict[tuple[int, int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for observer, site, month, count in counts:
        one = sums[group_of[observer], place[site], time[month]]
        one[0] += count
        one[1] += 1.0
    keys = np.array(list(sums))
    values = np.array([total / n for total, n in sums.values()])
    names = tuple(f"server {number}" for number in range(int(keys[:, 0].max()) + 1))
    return from_triplets(
        keys[:, 0], keys[:, 1], keys[:, 2], values, names=names, row_names=tuple(sites),
        column_names=tuple(months),
    ), len(observers)  # fmt: skip


def loess(x: NDArray[Any], y: NDArray[Any], span: float = SPAN) -> NDArray[np.float64]:
    """Smooth y (n,) over x (n,): at each point a line, weighted by the tricube of distances.

    Cleveland 1979, without robustness: as many neighbours as ``span`` says of all.
    """
    n = len(x)
    near = min(n, max(3, int(np.ceil(span * n))))
    smooth = np.empty(n)
    for i, at in enumerate(x):
        away = np.abs(x - at)
        width = np.sort(away)[near - 1]
        weights = np.clip(1 - (away / width) ** 3, 0, None) ** 3 if width > 0 else (away == 0) + 0.0
        mean = weights @ x / weights.sum()
        centre, spread = weights @ y / weights.sum(), weights @ (x - mean) ** 2
        slope = weights @ ((x - mean) * y) / spread if spread > 0 else 0.0
        smooth[i] = centre + slope * (at - mean)
    return smooth


def measure(options: Any) -> dict[str, Any]:
    """Read an extract, or simulate one; impute each species under two laws; sum over sites."""
    size, source, truth = SIZES[options.size], options.given, dict[str, list[float]]()
    with TemporaryDirectory() as folder:
        if source is None:
            source = Path(folder) / "ebird-simulated.txt.gz"
            truth = simulate(source, size)
        counts = {name: read_counts(source, name) for name in SPECIES}
    species = []
    for name in SPECIES:
        observed, n_observers = in_groups(counts[name])
        trends = {}
        for law in ("gaussian", "poisson"):
            seen = observed
            if law == "poisson":
                seen = replace(observed, values=tuple(np.rint(one) for one in observed.values))
            fit = quietly(
                fit_imputation, seen, rank=RANK, ridge=1.0, law=law, compress="qsgd:8bits",
                participation=0.75, step_size=0.5, max_iter=int(size["epochs"] / 0.75), tol=0.0,
                scale="none", seed=0, n_threads=options.threads,
            )  # fmt: skip
            monthly = np.asarray(fit.fitted).sum(axis=0)
            trends[law] = {
                "monthly": monthly.tolist(),
                "smooth": loess(np.arange(len(monthly)), monthly).tolist(),
                "epochs": fit.run.epochs,
                "MB up": fit.run.history.bytes_up[-1] / 1e6,
            }
        held = [len(one) for one in observed.places]
        species.append({
            "name": name, "months": list(observed.column_names), "sites": observed.shape[0],
            "observers": n_observers, "entries": sum(held), "servers": len(held),
            "trends": trends, "least": min(held), "most": max(held),
        })  # fmt: skip
    return {"size": options.size, **size, "truth": truth, "species": species,
            "source": source.name}  # fmt: skip


def _correlation(one: dict[str, Any], law: str, truth: dict[str, list[float]]) -> float:
    return float(np.corrcoef(one["trends"][law]["monthly"], truth[one["name"]])[0, 1])


def tell(found: dict[str, Any]) -> Report:
    """Say what the numbers show."""
    truth = found["truth"]
    had = (
        "**Their extract of eBird, which may not be passed on, could not be had here**; `--from "
        "FILE` reads one in eBird's format. This one is simulated: Poisson counts of two birds "
        "with a trend, a season and rich and poor sites."
        if truth
        else f"The extract is {found['source']}."
    )
    about = (
        f"{had} Theirs: counts in France from January 2000 to September 2020 of {SPECIES[0]} and "
        f"{SPECIES[1]}, sites by months, observers assigned at random to groups, rank {RANK}, a "
        "Gaussian law of variance 1, totals over sites and a LOESS. Ours, since our copy of the "
        f"text has lost these numbers: {GROUPS} groups, ridge 1, the codec qsgd:8bits, p = 0.75, "
        f"gamma = 0.5, {found['epochs']} epochs, LOESS of local lines over {SPAN:.0%} of the "
        f"months; sites visited in fewer than {LEAST} months are left out, counts of a site, month "
        "and group averaged; a Poisson law, of rounded means, beside the Gaussian."
    )
    rows, agrees, differs = [], list[str](), list[str]()
    for one in found["species"]:
        for law, trend in one["trends"].items():
            rows.append(
                [
                    one["name"],
                    law,
                    one["observers"],
                    one["sites"],
                    len(one["months"]),
                    one["entries"],
                    f"{one['least']:,} to {one['most']:,}",
                    trend["epochs"],
                    trend["MB up"],
                    _correlation(one, law, truth) if truth else None,
                ]
            )
        smooth = one["trends"]["gaussian"]["smooth"]
        turn = "rises" if smooth[-1] > smooth[0] else "falls"
        differs.append(
            f"{one['name']}: the smoothed total {turn} from {smooth[0]:.4g} to "
            f"{smooth[-1]:.4g} birds over {len(one['months'])} months (Gaussian)."
        )
    if truth:
        least = min(_correlation(one, "gaussian", truth) for one in found["species"])
        said = (
            "Totals of estimated counts follow the season and the trend: their correlation with "
            f"the true totals of the simulation is at least {least:.3f} under the Gaussian law."
        )
        (agrees if least > 0.9 else differs).append(said)
    return Report(
        "Paper 002, Figure 3: trends of birds", about,
        [Table("species", "Fits by FedMissEM.", [
            "species", "law", "observers", "sites", "months", "entries", "entries of a server",
            "epochs", "MB sent by servers", "correlation with the truth"], rows)],
        agrees, differs,
        ["Take `--law poisson` for counts: a Gaussian law of one variance lets rich sites decide."],
        [("ebird-trends.png", "Monthly totals of estimated counts, and their LOESS")],
    )  # fmt: skip


def draw(found: dict[str, Any], folder: Path) -> None:
    """Draw monthly totals, their LOESS, and the truth where it is known."""
    figure, rows = blank(9.6, 3.9), []
    panels = figure.subplots(1, len(found["species"]))
    for axes, one in zip(panels, found["species"], strict=True):
        across = np.arange(len(one["months"]))
        for number, (law, trend) in enumerate(one["trends"].items()):
            shade = COLOURS[2 + number]
            axes.plot(across, trend["monthly"], ".", color=shade, markersize=4, alpha=0.6)
            axes.plot(across, trend["smooth"], color=shade, linestyle=LINES[number], linewidth=2,
                      label=f"{law}: totals (dots), LOESS")  # fmt: skip
            rows += [[one["name"], law, *three] for three in zip(
                one["months"], trend["monthly"], trend["smooth"], strict=True)]  # fmt: skip
        if found["truth"]:
            axes.plot(across, found["truth"][one["name"]], color="0.5", linewidth=0.8,
                      label="true totals")  # fmt: skip
        ticks = across[:: max(1, len(across) // 5)]
        axes.set_xticks(ticks, [one["months"][at] for at in ticks])
        tidy(axes, one["name"], "month", "birds, all sites" if one is found["species"][0] else "")
        axes.legend(frameon=False, fontsize=8)
    write(figure, folder / "ebird-trends.png")
    heads = ["species", "law", "month", "total", "smoothed"]
    write_csv(folder / "ebird-trends.csv", heads, rows)
