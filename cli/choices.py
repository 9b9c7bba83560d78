"""What several commands make of their options: agents, workers, graph, starts, tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vpem.errors import InputError, Setting, brief
from vpem.files.table_settings import TableSettings
from vpem.fits.settings import parse_numbers
from vpem.records import Settings, changed, refuse_both, setting
from vpem.settings import FitSettings, HoldingSettings, MixtureSettings

from .display import plural
from .files import Role

if TYPE_CHECKING:
    from vpem.files.datasets import Dataset
    from vpem.fits.labels import KnownLabels
    from vpem.fits.results import Fit
    from vpem.fits.selection.trials import Problem
    from vpem.network.graph import Graph
    from vpem.network.partition import Partition, Workers
    from vpem.network.schema import Report
    from vpem.settings import GraphSettings, SumSettings, WorkerSettings
    from vpem.sums.connect import Network
    from vpem.terms.density import Density
    from vpem.terms.families.kinds import Kinds

    from .display import Screen
    from .options import Given
    from .runner import CommandRun

    P = TypeVar("P", bound=Problem)


def workers_of(
    source: Dataset, holding: WorkerSettings, screen: Screen, sort_by_label: bool = False
) -> Workers:
    """Choose who holds which rows; a note says so where one worker holds them all by default."""
    from vpem.files.networks import read_workers
    from vpem.network.partition import by_label, evenly

    if sort_by_label:
        if holding.workers is None:
            raise InputError("--sort-by-label needs --workers: how many to deal the rows out to")
        if source.labels is None:
            raise InputError(f"{source.source} has no labels to sort rows by")
        return by_label(source.labels, holding.workers)
    if holding.worker_rows is not None:
        return read_workers(holding.worker_rows, source.n_samples)
    if holding.workers is not None:
        return evenly(source.n_samples, holding.workers)
    if source.workers is not None:
        return source.workers
    screen.note(
        "one worker holds all rows; for more: --workers N (equal parts), or --worker-rows FILE"
    )
    return evenly(source.n_samples, 1)


def graph_of(n_agents: int, names: Sequence[str] | None, graph: GraphSettings) -> Graph:
    """Return the graph that the options describe; by default a server (star)."""
    from vpem.network.graph import make_graph

    drawn = graph.radius is not None or graph.mean_degree is not None
    if graph.topology is None and drawn:
        raise InputError("--radius and --mean-degree need the --topology of a random graph")
    if graph.graph is not None:
        from vpem.files.networks import read_graph

        return read_graph(graph.graph, n_agents, names)
    return make_graph(
        graph.topology or "star", n_agents, seed=graph.graph_seed or 0, radius=graph.radius,
        mean_degree=graph.mean_degree, names=names,
    )  # fmt: skip


F = TypeVar("F", bound=MixtureSettings)
S = TypeVar("S", bound=TableSettings)


class StartSettings(Settings, heading="Start"):
    """Where a fit begins; by default it finds a start of its own."""

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


def counts_of(n_components: int | str) -> list[int]:
    """Read a number of components, or several; whether one can be fitted is not checked."""
    from vpem.checks import read_int

    text = str(n_components)
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
    """Read row indices such as 3,77,120."""
    from vpem.checks import read_int

    rows = [row for row in map(read_int, text.split(",")) if row is not None]
    if len(rows) <= text.count(","):
        raise InputError(
            "--init-rows must be row numbers with commas between, such as 3,77,120, got "
            f"{brief(text)}"
        )
    return rows


def with_families_of(files: S, begin: StartSettings) -> S:
    """Return settings of files with the families of features of a model to start from, if any."""
    if begin.init_model is None or files.family is not None:
        return files
    from vpem.files.models import read_model

    model = read_model(begin.init_model)
    kinds = getattr(model.mixture, "kinds", None)
    if kinds is None:
        return files
    said = dict(zip(model.feature_names, kinds.families, strict=True))
    return files.changed(family={"": "gaussian"} | said)


def started(settings: F, begin: StartSettings, source: Dataset, given: Given) -> F:
    """Return the settings of a fit with the start that the user chose, if any.

    Features of a model to start from are matched with the data's by name, and their levels too.
    """
    if begin.init_rows is not None:
        return settings.changed(init=rows_of(begin.init_rows))
    if begin.init_model is None:
        return settings
    from vpem.files.families import in_levels_of
    from vpem.files.models import match_features, read_model

    model = read_model(begin.init_model)
    mixture: Density = model.mixture
    columns = match_features(model, source.feature_names)
    if (kinds := getattr(mixture, "kinds", None)) is not None:
        _check_families(source, kinds, columns)
        settled, unseen = in_levels_of(source, kinds, columns)
        for sentence in unseen:
            raise InputError(f"{source.source}: {sentence}, so that a fit cannot start from it")
        source.X, source.kinds = settled.X, settled.kinds
    if columns is not None and len(columns) != source.n_features:
        raise InputError(
            f"the starting model has {len(columns)} features, the data have {source.n_features}"
        )
    mixture = mixture if columns is None else mixture.renumbered(columns)
    count = settings.n_components if given.has("n_components") else mixture.n_components
    return settings.changed(init=mixture, n_components=count)


def _check_families(source: Dataset, kinds: Kinds, columns: Sequence[int] | None) -> None:
    """Raise InputError unless features have the families of a model to start from."""
    have = ("gaussian",) * source.n_features if source.kinds is None else source.kinds.families
    for j, column in enumerate(range(kinds.n_features) if columns is None else columns):
        if have[column] != kinds.families[j]:
            name = source.feature_names[column]
            raise InputError(
                f"the starting model takes {name!r} as {kinds.families[j]}, the data have it as "
                f"{have[column]}; say ", Setting("family", f"{name}={kinds.families[j]}"),
            )  # fmt: skip


def partition_of(source: Dataset, holding: HoldingSettings, networked: bool) -> Partition:
    """Choose who holds which features; ``networked``: the user chose a graph or hops."""
    from vpem.network.partition import contiguous, one_or_each

    if holding.partition is not None:
        from vpem.files.networks import read_partition

        return read_partition(holding.partition, source.n_features, source.feature_names)
    if holding.agents is not None:
        return contiguous(source.n_features, holding.agents)
    if source.partition is not None:
        return source.partition
    networked = networked or source.edges is not None
    return one_or_each(source.n_features, networked, source.feature_names)


def stored_graph(
    source: Dataset,
    holding: HoldingSettings,
    parts: Partition,
    graph: GraphSettings,
    screen: Screen,
) -> Graph:
    """Return the graph stored in the dataset, unless options describe another."""
    from vpem.network.graph import from_edges

    chosen = graph.values("graph_seed").values()
    if source.edges is None or any(value is not None for value in chosen):
        return graph_of(parts.n_agents, parts.names, graph)
    stored = parts if source.partition is None else source.partition
    if stored.n_agents != parts.n_agents:
        if holding.agents is not None:
            screen.note(
                f"the graph of {stored.n_agents} agents stored in the dataset is ignored, since "
                f"there are --agents {parts.n_agents}, which a server joins; --topology gives "
                "another graph"
            )
            return graph_of(parts.n_agents, parts.names, graph)
        raise InputError(
            f"the graph stored in the dataset joins {stored.n_agents} agents, but {parts.n_agents} "
            "hold the features; give --topology or --graph"
        )
    return from_edges(source.edges, parts.n_agents, parts.names, topology="dataset")


def how_summed(report: Report) -> str:
    """Say in a line how the sums were taken."""
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
    screen: Screen, settings: FitSettings, kind: str, k: int, n_parameters: int, n_rows: int
) -> None:
    """Note that a mixture has more parameters than there are rows, and which have fewer."""
    if n_parameters <= n_rows:
        return
    ways = ["--covariance diag"] * (not kind.endswith(("diag", "spherical")))
    ways += ["--covariance tied"] * (k > 1 and not kind.startswith("tied"))
    ways += ["--prior map"] * (settings.weight_concentration_prior_type is None)
    ways += ["fewer components"] * (k > 1)
    listed = " or ".join(filter(None, (", ".join(ways[:-1]), *ways[-1:]))) or "fewer features"
    screen.note(
        f"{plural(n_parameters, 'parameter')} for {plural(n_rows, 'row')}: the fit may follow "
        f"chance; try {listed}"
    )


def tell_of_tree(network: Network, screen: Screen) -> None:
    """Note, where sums are by consensus, what they would send along a tree."""
    from vpem.sums.connect import along_a_tree
    from vpem.sums.forecast import one_sum

    tree = None if screen.quiet else along_a_tree(network)
    if tree is None:
        return
    rounds, along = one_sum(network).messages, one_sum(tree).messages
    if 0 < along < rounds:
        # Along a tree compressed messages may travel exact, and so take several times the bytes.
        fewer = "" if network.compress else f", exact: {rounds / along:,.1f} times fewer bytes"
        screen.note(
            f"a sum sends {rounds:,} messages by consensus; along a spanning tree (--sum tree) it "
            f"would send {along:,}{fewer}"
        )


def own_features(
    source: Dataset, network: Network, limit: int | None = None
) -> tuple[Any, Sequence[str]]:
    """Return the columns of this process's agents, and their names.

    Where they would take more memory than ``limit`` bytes they stay on disk.
    """
    import numpy as np

    from vpem.files.datasets import Share
    from vpem.fits.spread import own_columns

    X = source.X
    if not network.agents.apart:
        return X, source.feature_names
    columns = own_columns(network)
    names = [source.feature_names[j] for j in columns]
    if isinstance(source, Share) or not len(columns):
        return X if len(columns) else None, names
    if isinstance(X, np.ndarray):
        return np.ascontiguousarray(X[:, columns]), names
    local_columns = X.select(columns.tolist())
    if (stored := local_columns.beyond(limit)) is not None:
        return stored, names
    values = np.empty(local_columns.shape, dtype=X.dtype)
    for start, part in local_columns.runs():
        values[start : start + len(part)] = part
    X.close()
    return values, names


def own_rows(source: Dataset, workers: Workers, network: Network, limit: int | None = None) -> Any:
    """Return the rows of this process's workers; beyond ``limit`` bytes they stay on disk."""
    from vpem.files.datasets import Share
    from vpem.files.matrix import FileMatrix
    from vpem.fits.local_rows import read_rows

    if isinstance(source, Share) or not network.agents.apart:
        return source.X
    groups = [workers.rows[worker] for worker in network.agents.own]
    if isinstance(source.X, FileMatrix):
        stored = source.X.of_rows(groups).beyond(limit)
        if stored is not None:
            return stored
    return read_rows(source.X, groups)


def own_weights(source: Dataset, workers: Workers, network: Network) -> Any:
    """Return the weights of the rows of `own_rows`."""
    import numpy as np

    from vpem.files.datasets import Share

    weights = source.sample_weight
    if weights is None or isinstance(source, Share) or not network.agents.apart:
        return weights
    local_rows = [workers.rows[worker] for worker in network.agents.own]
    return weights[np.concatenate([np.empty(0, dtype=np.intp), *local_rows])]


def heaviest_of(source: Dataset, column: str | None) -> float:
    """Return the largest weight of a row of this process; 1 where rows have none."""
    weights = source.sample_weight
    return 1.0 if column is None or weights is None else float(weights.max(initial=0.0)) or 1.0


class Task:
    """What is fitted, once or several times: a process's part of the data, and its networks.

    A process has the columns of its own agents, or the rows of its own workers. ``networks`` are
    its parts by hops, by default those of ``sums``; over rows there is one, of 0. ``parts`` says
    who holds which features, or rows; ``names`` are those of agents or workers. A fit has
    ``labels_for_fit`` of some rows; ``warnings`` are those raised until each network was made.
    """

    def __init__(
        self,
        source: Dataset,
        holding: HoldingSettings,
        graph: GraphSettings,
        sums: SumSettings,
        run: CommandRun,
        hops: Sequence[int] = (),
    ) -> None:
        from vpem.sums.connect import connect, connect_workers

        self.source, self.run = source, run
        self.labels_for_fit: KnownLabels | None = None
        self.over_rows = holding.split == "rows"
        self._weighted = holding.sample_weight is not None
        sums = sums.changed(seed=graph.graph_seed)
        heard = run.screen.warnings
        self.parts: Any
        self.networks: dict[int, Network] = {}
        if self.over_rows:
            self.parts = workers_of(source, holding, run.screen)
            joined = graph_of(self.parts.n_workers, self.parts.names, graph)
            self.networks[0] = run.over(connect_workers(joined, sums), workers=True)
            self.warnings = {0: list(heard)}
        else:
            self.parts = partition_of(source, holding, graph.is_asked or sums.is_asked or any(hops))
            joined = stored_graph(source, holding, self.parts, graph, run.screen)
            self._sums, self._graph = sums, joined
            if sums.hubs == "likelihood":
                # Placeholders until `grouped` chooses the hubs.
                sums, hops = sums.changed(hubs="size", hops=0), [0]
            before, self.warnings = list(heard), {}
            last: int | None = None
            for number in sorted(set(hops or [sums.hops])):
                if last is not None and len(self.networks[last].whole.hubs) == 1:
                    # One hub already has all agents: more hops change nothing.
                    self.networks[number] = self.networks[last]
                    self.warnings[number] = self.warnings[last]
                    continue
                last, n_heard = number, len(heard)
                self.networks[number] = run.over(connect(joined, self.parts, sums, hops=number))
                self.warnings[number] = before + heard[n_heard:]
        self.names: Sequence[str] = self.parts.names
        self.n_rows = int(self.parts.n_samples if self.over_rows else source.n_samples)

    def grouped(self, settings: FitSettings, limit: int | None, private: bool) -> Task:
        """Replace the first network by that of hubs that the likelihood chooses."""
        if self.over_rows or self._sums.hubs != "likelihood":
            return self
        from vpem.fits.likely_hubs import connect_by_likelihood

        X, names = own_features(self.source, self.network, limit)
        weights = self.source.sample_weight if self._weighted else None
        network = connect_by_likelihood(
            X, self._graph, self.parts, self._sums, settings, over=self.run.over,
            private=private, kinds=self.source.kinds, sample_weight=weights, feature_names=names,
        )  # fmt: skip
        self.networks = {self._sums.hops: network}
        chosen = network.whole.chosen
        assert chosen is not None
        self.run.screen.note(
            f"hubs by likelihood: worth {chosen.gain:.4g} nats per sample or more, by a fit "
            f"without hops of {chosen.first['n_iter']} iterations"
        )
        return self

    @property
    def network(self) -> Network:
        """The network of fewest hops."""
        return self.networks[min(self.networks)]

    def data(self, limit: int | None) -> tuple[Any, Any, Report]:
        """Return this process's data (``limit`` bytes in memory), weights, and more arguments."""
        from vpem.fits.spread import own_columns

        source, network, weights = self.source, self.network, None
        names: Sequence[str] = source.feature_names
        if self.over_rows:
            X = own_rows(source, self.parts, network, limit)
            if self._weighted:
                weights = own_weights(source, self.parts, network)
        else:
            X, names = own_features(source, network, limit)
            if self._weighted:
                weights = source.sample_weight
        about: Report = {"feature_names": names}
        if self.labels_for_fit is not None:
            about["labels_for_fit"] = self.labels_for_fit
        if source.kinds is not None:
            other = next(
                (one for one in zip(source.feature_names, source.kinds.families, strict=True)
                 if one[1] != "gaussian"), None
            )  # fmt: skip
            if self.over_rows and other is not None:
                raise InputError(
                    Setting("split", "rows"), " adds up weights, means and scatter of workers' "
                    "rows, which are all that Gaussian features need, but "
                    f"{other[0]!r} is {other[1]}; split by features, or leave it out with ",
                    Setting("drop", other[0]),
                )  # fmt: skip
            apart = network.agents.apart and not self.over_rows
            about["kinds"] = (
                source.kinds.take_features(own_columns(network)) if apart else source.kinds
            )
        return X, weights, about

    def fit(self, data: tuple[Any, Any, Report], settings: FitSettings, **more: Any) -> Fit:
        """Fit the data as `data` returns them; parameters stay in the processes of their hubs."""
        X, weights, about = data
        width = self.source.n_features if self.over_rows else self.network.whole.blocks.widths.max()
        settings = self.run.protecting(settings, int(width), self.n_rows)
        more = settings.values() | {"sample_weight": weights} | about | more
        if self.over_rows:
            from vpem.fits.rows import fit_em

            return fit_em(X, self.parts, self.network, **more)
        from vpem.fits.spread import fit_spread

        return fit_spread(X, self.network, shards=True, **more)

    def problem(self, kind: type[P], settings: FitSettings, limit: int | None, **more: Any) -> P:
        """Return the problem of these settings, but for components, covariance and restarts."""
        X, weights, about = self.data(limit)
        settings = self.run.protecting(settings, 0, self.n_rows)
        options = settings.values("n_components", "covariance_type", "n_init") | about
        workers = self.parts if self.over_rows else None
        return kind(X, self.networks, workers, options, sample_weight=weights, **more)

    def whole(self, fit: Fit) -> Fit:
        """Return a fit with all parameters in the first process."""
        from vpem.fits.parts import gathered

        return fit if self.over_rows or not self.run.engine.apart else gathered(fit)


def settled(source: Dataset, table: TableSettings, holding: WorkerSettings) -> Dataset:
    """Return a dataset whose features have the families that the user or their values say."""
    from vpem.files.families import FamilyChoice, settle

    choice = FamilyChoice.parse(table.family)
    if choice is None:
        return source
    if isinstance(holding, HoldingSettings) and holding.split == "features":
        return settle(source, choice, partition_of(source, holding, True))
    return settle(source, choice)
