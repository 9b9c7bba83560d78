"""What commands make of options that several of them have: rounds, rows, parts and graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vpem.files.table_settings import TableSettings
from vpem.records import Settings, changed, refuse_both, setting
from vpem.settings import FitSettings, MixtureSettings

from .roles import Role
from .workers import graph_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpem.files.datasets import Dataset
    from vpem.network.graph import Graph
    from vpem.network.partition import Partition
    from vpem.network.schema import Report
    from vpem.settings import GraphSettings, HoldingSettings
    from vpem.sums.connect import Network
    from vpem.terms.density import Density
    from vpem.terms.families.kinds import Kinds

    from .options import Given
    from .output import Screen

F = TypeVar("F", bound=MixtureSettings)
S = TypeVar("S", bound=TableSettings)


class StartSettings(Settings, heading="Start"):
    """Where a fit begins, if it finds no start of its own."""

    init_rows: str | None = setting(
        None, "Start with means, or centres, at these rows, counted from 0: 3,77,120."
    )
    init_model: Path | None = setting(
        None,
        "Start from the parameters of a model.",
        # A model may be continued in its own file.
        file=Role(writes=False, goes_on_in="--output"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_both(self, "init_rows", "init_model")


class ComponentSettings(FitSettings, heading="Model"):
    """A fit of one number of components, or of several."""

    n_components: int | str = changed(  # type: ignore[assignment]
        FitSettings, "n_components",
        help="Number of components, or several (2-6, or 2,3,5), of which that of lowest BIC is "
        "kept. An --init-model has its own.",
    )  # fmt: skip


def counts_of(given: int | str) -> list[int]:
    """Read a number of components, or several; whether one can be fitted is not looked at."""
    from vpem.checks import read_int
    from vpem.errors import InputError
    from vpem.fits.settings import parse_numbers

    text = str(given)
    number = read_int(text)
    if number is not None:
        return [number]
    counts = parse_numbers("--components", text, least=1)
    if len(counts) == 1:
        raise InputError(
            f"--components {text} is one number: give {counts[0]}, or several, such as 2-6"
        )
    return counts


def rows_of(text: str) -> list[int]:
    """Read row indices given as 3,77,120."""
    from vpem.checks import read_int
    from vpem.errors import InputError, brief

    found = [row for row in map(read_int, text.split(",")) if row is not None]
    if len(found) <= text.count(","):
        raise InputError(
            "--init-rows must be row numbers with commas between, such as 3,77,120, got "
            f"{brief(text)}"
        )
    return found


def start_model(file: Path, source: Dataset) -> Density:
    """Read a model to start from, its features matched with the data's by name."""
    from vpem.errors import InputError
    from vpem.files.models import match_features, read_model

    model = read_model(file)
    mixture: Density = model.mixture
    columns = match_features(model, source.feature_names)
    if (kinds := getattr(model.mixture, "kinds", None)) is not None:
        _take_levels(source, kinds, columns)
    if columns is None:
        return mixture
    if len(columns) != source.n_features:
        raise InputError(
            f"the starting model has {len(columns)} features, the data {source.n_features}"
        )
    return mixture.renumbered(columns)


def _take_levels(source: Dataset, kinds: Kinds, columns: Sequence[int] | None) -> None:
    """Give data the levels of a model to start from, whose families they must have."""
    from vpem.errors import InputError, Setting
    from vpem.files.families import in_levels_of

    have = ("gaussian",) * source.n_features if source.kinds is None else source.kinds.families
    for j, column in enumerate(range(kinds.n_features) if columns is None else columns):
        if have[column] != kinds.families[j]:
            name = source.feature_names[column]
            raise InputError(
                f"the starting model takes {name!r} as {kinds.families[j]}, the data have it as "
                f"{have[column]}; say ", Setting("family", f"{name}={kinds.families[j]}"),
            )  # fmt: skip
    found, unseen = in_levels_of(source, kinds, columns)
    for sentence in unseen:
        raise InputError(f"{source.source}: {sentence}, so that a fit cannot start from it")
    source.X, source.kinds = found.X, found.kinds


def with_families_of(files: S, begin: StartSettings) -> S:
    """Return how files are read where a model to start from says what families features have."""
    if begin.init_model is None or files.family is not None:
        return files
    from vpem.files.models import read_model

    model = read_model(begin.init_model)
    kinds = getattr(model.mixture, "kinds", None)
    if kinds is None:
        return files
    said = dict(zip(model.feature_names, kinds.families, strict=True))
    return files.changed(family={"": "gaussian"} | said)


def started(how: F, begin: StartSettings, source: Dataset, given: Given) -> F:
    """Return the settings of a fit with the start that the user names, if any."""
    if begin.init_rows is not None:
        return how.changed(init=rows_of(begin.init_rows))
    if begin.init_model is None:
        return how
    model = start_model(begin.init_model, source)
    count = how.n_components if given.has("n_components") else model.n_components
    return how.changed(init=model, n_components=count)


def partition_of(source: Dataset, held: HoldingSettings, networked: bool) -> Partition:
    """Choose who holds which features; ``networked`` says whether a graph or hops are asked for."""
    from vpem.files.networks import read_partition
    from vpem.network.partition import contiguous, one_or_each

    if held.partition is not None:
        return read_partition(held.partition, source.n_features, source.feature_names)
    if held.agents is not None:
        return contiguous(source.n_features, held.agents)
    if source.partition is not None:
        return source.partition
    networked = networked or source.edges is not None
    return one_or_each(source.n_features, networked, source.feature_names)


def stored_graph(
    source: Dataset, held: HoldingSettings, parts: Partition, graph: GraphSettings, screen: Screen
) -> Graph:
    """Choose who talks to whom: as stored in the dataset, unless something is asked for."""
    from vpem.errors import InputError
    from vpem.network.graph import from_edges

    asked = graph.values("graph_seed").values()
    if source.edges is None or any(value is not None for value in asked):
        return graph_of(parts.n_agents, parts.names, graph)
    stored = parts if source.partition is None else source.partition
    if stored.n_agents != parts.n_agents:
        if held.agents is not None:
            screen.note(
                f"the graph of {stored.n_agents} agents that is stored in the dataset is left "
                f"aside for --agents {parts.n_agents}, which a server joins; --topology takes "
                "another"
            )
            return graph_of(parts.n_agents, parts.names, graph)
        raise InputError(
            f"the graph stored in the dataset joins {stored.n_agents} agents, the features are "
            f"held by {parts.n_agents}; give --topology or --graph"
        )
    return from_edges(source.edges, parts.n_agents, parts.names, topology="dataset")


def how_summed(report: Report) -> str:
    """Say in a line how the sums were taken."""
    from .output import plural

    places = {"server": "at the server", "tree": "along a tree"}
    if report["sum"] in places:
        parts = [f"{'' if report['compress'] else 'exact '}{places[report['sum']]}"]
        if report.get("secure_sum"):
            parts[0] += ", under masks"
            if report.get("split") == "rows":
                parts.append("no row shown")
        if report["tree"] is not None:
            parts.append(f"{plural(report['tree']['hops'], 'hop')} from its root")
    else:
        chebyshev = " (Chebyshev)" if report["acceleration"] == "chebyshev" else ""
        parts = [
            f"{plural(report['rounds'], 'round')}{chebyshev}",
            f"{report['weights']} weights",
            f"mixing rate {report['mixing_rate']:.4f}",
        ]
        if report["consensus_error"] is not None:
            bound = "at most " if report["consensus_error_is_bound"] else ""
            parts.append(f"consensus error {bound}{report['consensus_error']:.2g}")
    if report["compress"] is not None:
        parts.append(f"compressed by {report['compress']}")
    for name, chance in (report["faults"] or {}).items():
        if chance:
            parts.append(f"{name.replace('_', ' ')} {chance:g}")
    return ", ".join(parts)


def tell_of_parameters(
    screen: Screen, how: FitSettings, kind: str, k: int, n_parameters: int, n_rows: int
) -> None:
    """Say that a mixture has more parameters than there are rows, and what has fewer."""
    from .output import plural

    if n_parameters <= n_rows:
        return
    ways = ["--covariance diag"] * (not kind.endswith(("diag", "spherical")))
    ways += ["--covariance tied"] * (k > 1 and not kind.startswith("tied"))
    ways += ["--prior map"] * (how.weight_concentration_prior_type is None)
    ways += ["fewer components"] * (k > 1)
    listed = " or ".join(filter(None, (", ".join(ways[:-1]), *ways[-1:]))) or "fewer features"
    screen.note(
        f"{plural(n_parameters, 'parameter')} of {plural(n_rows, 'row')}: the fit may follow "
        f"chance; try {listed}"
    )


def tell_of_tree(network: Network, screen: Screen) -> None:
    """Say in a line, where sums are by consensus, what the same would send along a tree."""
    from vpem.sums.connect import along_a_tree
    from vpem.sums.forecast import one_sum

    tree = None if screen.quiet else along_a_tree(network)
    if tree is None:
        return
    here, there = one_sum(network).messages, one_sum(tree).messages
    if 0 < there < here:
        # What codecs have written may travel as it is, and so several times as many bytes.
        how = "" if network.compress else f", exact: {here / there:,.1f} times fewer bytes"
        screen.note(
            f"a sum sends {here:,} messages by consensus; along a spanning tree (--sum tree) it "
            f"would send {there:,}{how}"
        )
