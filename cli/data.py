"""Data: how files are read, whose they are, and this process's part of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from vpem.errors import InputError, Setting, brief, did_you_mean, shorten
from vpem.files.table_settings import ARRAYS, OF_ONE_FIT, LabelledTable, TableSettings, settings_in
from vpem.fits.settings import parse_numbers
from vpem.records import Settings, beside, changed, not_both, off, rule, unless, unset
from vpem.rules import OF_ONE_FILE, ONE_START
from vpem.settings import (
    ALIGNMENTS,
    WEIGHTS,
    FitSettings,
    HoldingSettings,
    SumSettings,
    WorkerSettings,
)

from .outputs import READ, Role, reads

if TYPE_CHECKING:
    from vpem.engines.placement import Placement
    from vpem.files.datasets import Dataset
    from vpem.files.models import Model
    from vpem.files.parties.opening import Party
    from vpem.network.graph import Graph
    from vpem.network.partition import Partition
    from vpem.network.schema import Report
    from vpem.settings import GraphSettings
    from vpem.terms.density import Density
    from vpem.terms.families.kinds import Kinds

    from .display import Screen
    from .options import Given
    from .outputs import LabelFile
    from .session import Where


def graph_of(n_agents: int, names: Sequence[str] | None, graph: GraphSettings) -> Graph:
    """Return the graph that the options describe; by default a server (star)."""
    from vpem.network.graph import make_graph

    if graph.graph is not None:
        from vpem.files.networks import read_graph

        return read_graph(graph.graph, n_agents, names, directed=graph.directed)
    return make_graph(
        graph.topology or "star", n_agents, seed=graph.graph_seed or 0, radius=graph.radius,
        mean_degree=graph.mean_degree, names=names,
    )  # fmt: skip


def weighed(sums: Any, graph: Graph) -> Any:
    """Return settings of sums with the mixing matrix that they name a file of, if they do."""
    if not names_file(sums.weights):
        return sums
    from vpem.files.networks import read_weights

    reads("--weights", sums.weights)
    return sums.changed(weights=read_weights(sums.weights, graph))


def names_file(weights: Any) -> bool:
    """Whether mixing weights are the name of a file: no number, and no name of weights."""
    if not isinstance(weights, str) or weights in WEIGHTS:
        return False
    from vpem.checks import read_float

    return read_float(weights) is None and bool(Path(weights).suffix)


NOT_OF_GRIDS = beside(
    "{method=grid} starts each agent's own clustering by k-means++: {init_rows} are for "
    "{method=lloyd}",
    method="grid",
)
MODEL_OF_GRIDS = beside(
    "{method=grid} starts each agent's own clustering by k-means++: {init_model} is for "
    "{method=lloyd}",
    method="grid",
)


class StartSettings(Settings, heading="Start"):
    """Where a fit begins; by default it finds a start of its own."""

    init_rows: str | None = unset(
        "Start with means, or centres, at these rows, counted from 0: 3,77,120.",
        idle=[ONE_START, NOT_OF_GRIDS],
    )
    init_model: Path | None = unset(
        "Start from the parameters of a model.",
        # A model may be continued in its own file.
        file=Role(writes=False, goes_on_in="--output"),
        idle=[not_both("init_rows", "init_model"), ONE_START, MODEL_OF_GRIDS],
    )
    fix_from: Path | None = unset(
        'With --fix: what is known, JSON: {"weights": [...], "covariances": [...]}, in units of '
        "the data; covariances are matrices, or numbers, as --covariance says.",
        file="read",
        idle=[
            not_both("init_model", "fix_from"),
            unless(" holds values for {fix}; give that, or leave it out", fix=...),
        ],
    )

    @property
    def rows(self) -> list[int] | None:
        from vpem.checks import read_int

        words = [] if self.init_rows is None else self.init_rows.split(",")
        rows = [row for row in map(read_int, words) if row is not None]
        if len(rows) < len(words):
            raise InputError(
                "--init-rows must be row numbers with commas between, such as 3,77,120, got "
                f"{brief(self.init_rows)}"
            )
        return rows or None

    @cached_property
    def model(self) -> Model | None:
        from vpem.files.models import read_model

        return None if self.init_model is None else read_model(self.init_model)

    def families(self, files: Any) -> Any:
        """Return settings of files with the families of features of the model, if none is said."""
        model = self.model if files.family is None else None
        kinds = None if model is None else model.mixture.kinds
        if model is None or kinds is None:
            return files
        said = dict(zip(model.feature_names, kinds.families, strict=True))
        return files.changed(family={"": "gaussian"} | said)

    def begun(self, settings: Any, source: Dataset, given: Given) -> Any:
        """Return the settings of a fit with the start that the user chose, if any.

        Features of the model are matched with the data's by name, and their levels too.
        """
        if (model := self.model) is None:
            settings = settings if self.init_rows is None else settings.changed(init=self.rows)
            if self.fix_from is None:
                return settings
            return settings.changed(init=self._known(settings, source.n_features))
        from vpem.files.families import in_levels_of
        from vpem.files.models import match_features

        mixture: Density = model.mixture
        n, names = source.n_features, source.feature_names
        columns = match_features(model.feature_names, names)
        same_units(model, source, columns)
        if (kinds := mixture.kinds) is not None:
            have = ("gaussian",) * n if source.kinds is None else source.kinds.families
            for column, family in zip(columns or range(n), kinds.families, strict=True):
                if have[column] != family:
                    raise InputError(
                        f"the starting model takes {names[column]!r} as {family}, the data have it "
                        f"as {have[column]}; say ", Setting("family", f"{names[column]}={family}"),
                    )  # fmt: skip
            settled, unseen = in_levels_of(source, kinds, columns)
            for sentence in unseen:
                raise InputError(f"{source.source}: {sentence}, so that a fit cannot start from it")
            source.X, source.kinds = settled.X, settled.kinds
        if columns is not None:
            if len(columns) != n:
                raise InputError(
                    f"the starting model has {len(columns)} features, the data have {n}"
                )
            mixture = mixture.renumbered(columns)
        count = settings.n_components if "n_components" in given.names else mixture.n_components
        return settings.changed(init=mixture, n_components=count)

    def _known(self, settings: Any, n_features: int) -> Any:
        """Return the start whose weights or covariances are those of a file."""
        from vpem.files.json_text import read_json_file
        from vpem.steps.starts import GivenStart

        content = read_json_file(str(self.fix_from))
        if not isinstance(content, dict) or not set(content) <= {"weights", "covariances"}:
            raise InputError(
                f'{self.fix_from} must hold {{"weights": [...], "covariances": [...]}}'
            )
        shape = settings.n_components, n_features
        try:
            return GivenStart.from_parameters(
                settings.init, settings.covariance_type, shape, **content
            )
        except InputError as error:
            said = (one.name.removesuffix("_init") if isinstance(one, Setting) else one
                    for one in error.parts)  # fmt: skip
            raise InputError(f"{self.fix_from}: ", *said) from None

    def centres(self, settings: Any, source: Dataset, given: Given) -> Any:
        """Return settings of k-means that starts at the centres, or means, of a file, if any."""
        if self.init_model is None:
            return settings
        from vpem.files.hdf5 import attribute_of
        from vpem.files.models import match_features
        from vpem.files.opening import check_readable
        from vpem.files.results import read_clustering

        if attribute_of(check_readable(self.init_model)) == "vpem-clustering":
            stored: Any = read_clustering(self.init_model)
            centres, names = stored.centres, stored.feature_names
        else:
            assert self.model is not None
            stored = self.model
            refuse_families(self.model.mixture.kinds, self.model.feature_names, "the model")
            centres, names = self.model.mixture.assembled_means, self.model.feature_names
        columns = match_features(names, source.feature_names)
        if len(names) != source.n_features:
            raise InputError(
                f"the starting model has {len(names)} features, the data have {source.n_features}"
            )
        same_units(stored, source, columns)
        if columns is not None:
            placed = centres.copy()
            placed[:, columns] = centres
            centres = placed
        count = settings.n_clusters if "n_clusters" in given.names else len(centres)
        return settings.changed(init=centres, n_clusters=count)


class ComponentSettings(FitSettings, heading="Model"):
    """A fit of one number of components, or of several."""

    n_components: int | str = changed(  # type: ignore[assignment]
        help="Number of components, or several (2-6, or 2,3,5), of which that of lowest BIC is "
        "kept. An --init-model has its own."
    )

    @staticmethod
    def counts(n_components: int | str) -> list[int]:
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


def partition_of(source: Dataset, holding: HoldingSettings, networked: bool) -> Partition:
    """Choose who holds which features; ``networked``: the user chose a graph or hops."""
    from vpem.network.partition import contiguous

    if holding.partition is not None:
        from vpem.files.networks import read_partition

        return read_partition(holding.partition, source.n_features, source.feature_names)
    if holding.agents is not None:
        return contiguous(source.n_features, holding.agents)
    if source.partition or not (networked or source.edges is not None):
        return source.partition or contiguous(source.n_features, 1)
    return contiguous(source.n_features, source.n_features, source.feature_names)


def stored_graph(
    source: Dataset,
    holding: HoldingSettings,
    parts: Partition,
    graph: GraphSettings,
    screen: Screen,
) -> Graph:
    """Return the graph stored in the dataset, unless options describe another."""
    from vpem.network.graph import from_edges

    if source.edges is None or set(graph.values("graph_seed", "directed").values()) != {None}:
        return graph_of(parts.n_agents, parts.names, graph)
    n_stored = (source.partition or parts).n_agents
    if n_stored == parts.n_agents:
        return from_edges(source.edges, parts.n_agents, parts.names, topology="dataset")
    if holding.agents is None:
        raise InputError(
            f"the graph stored in the dataset joins {n_stored} agents, but {parts.n_agents} hold "
            "the features; give --topology or --graph"
        )
    screen.print_note(
        f"the graph of {n_stored} agents stored in the dataset is ignored, since there are "
        f"--agents {parts.n_agents}, which a server joins; --topology gives another graph"
    )
    return graph_of(parts.n_agents, parts.names, graph)


STDIN = "-"

KINDS = "Table (CSV, Parquet, Feather, .npy), HDF5 or .h5ad, or - for standard input"
WHOSE = (
    "several files, a folder or an address (s3://bucket/table) of one table; with --parties a file "
    "each, or a manifest"
)
DataFile = Annotated[Path, READ, typer.Argument(help=f"{KINDS}.")]
DataFiles = Annotated[list[Path], READ, typer.Argument(help=f"{KINDS}; {WHOSE}.")]

MOST_LISTED = 10
"""Columns that a line names."""


def read_one(
    path: Path | Sequence[Path],  # several: files of one table
    table: TableSettings,  # as the user says
    where: Where,
    tell: Callable[..., None] | None,
    *,
    model_table: TableSettings | None = None,  # of a model's data
    **options: Any,
) -> Dataset:
    """Read the dataset of a command; ``tell`` (`teller`) prints what of a table is left out.

    Several processes all read it, and values of HDF5 stay on disk. ``options`` are arguments of
    `vpem.files.data.read_data`.
    """
    from vpem.files.data import read_data
    from vpem.files.lakes import as_address, find_files

    paths = [path] if isinstance(path, str | Path) else [*path]
    for one in paths:
        refuse_shared_stdin(one, where)
    here = [one for one in paths if str(one) != STDIN and as_address(one) is None]
    inside = {file.path for file in find_files(here)}.difference(map(str, here))
    reads("DATA", *sorted(inside))
    options = {"on_disk": where.engine.apart, **options}
    dataset = read_data(path, table, kept=model_table, **options)
    if tell is not None:
        tell(dataset, table, model_table)
    return dataset


def refuse_shared_stdin(path: Path, where: Where) -> None:
    """Raise InputError where standard input is to be read by several processes."""
    if str(path) == STDIN and where.engine.apart:
        raise InputError(
            "standard input (-) is for one process, but several read the data; name a file"
        )


def refuse_unused(table: TableSettings, formats: set[str], where: Where) -> None:
    """Raise InputError where a setting has no effect on any of several files of these formats.

    A rank of a job has read some of the files alone.
    """
    if formats and "text" not in formats and (where.own_users or not where.engine.apart):
        table.refuse_idle(format=next(iter(formats.difference(ARRAYS) or formats)))


def teller(
    say: Callable[[str], None], families: bool = False, formats: set[str] | None = None
) -> Callable[..., None]:
    """Return a function that prints what of a table holds the ids, and what is left out.

    With ``families`` it adds how columns of text become features. It notes ``formats``.
    """

    def tell(
        dataset: Dataset, table: TableSettings, model_table: TableSettings | None = None
    ) -> None:
        from vpem.files.readers.frames import GUESSED

        if formats is not None:
            formats.add(dataset.format)
        ids = None if dataset.table is None else dataset.table.id_column
        named = {None, table.id_column, model_table and model_table.id_column}
        warned = {name for name, why in dataset.left_out.items() if why in GUESSED}
        if ids not in named | warned:
            say(f"{dataset.source}: ids of rows are taken from {ids!r}; --id-column names another")
        listed = [f"{name} ({why})" for name, why in dataset.left_out.items() if name not in warned]
        texts = [name for name, why in dataset.left_out.items() if why == "text"]
        advice = ""
        if families and texts and table.family is None:
            one = quote(f"{texts[0]}=categorical")
            advice = f"; --family auto, or --family {one}, takes text as categories"
        if listed and dataset.table is not None:
            say(f"{dataset.source}: left out: {shorten(listed, MOST_LISTED)}{advice}")

    return tell


def tell_families(dataset: Dataset, table: TableSettings, say: Callable[[str], None]) -> None:
    """Print the families of features, if some may not be Gaussian."""
    if dataset.kinds is None:
        if table.family is not None:
            say(f"{dataset.source}: all features are taken as gaussian (--family NAME=FAMILY says "
                "otherwise)")  # fmt: skip
        return
    taken = []
    for family in dataset.kinds.present:
        names = [dataset.feature_names[j] for j in dataset.kinds.columns_of(family)]
        if family == "categorical":
            counts = (dataset.kinds.n_levels[j] for j in dataset.kinds.columns_of(family))
            names = [f"{name} ({n} levels)" for name, n in zip(names, counts, strict=True)]
        taken.append(f"{family}: {shorten(names, MOST_LISTED)}")
    say(f"{dataset.source}: taken as {'; '.join(taken)} (--family NAME=FAMILY says otherwise)")


def refuse_families(kinds: Kinds | None, names: Sequence[str], source: str) -> None:
    """Raise InputError where a feature is not Gaussian, for a method of distances."""
    if kinds is None:
        return
    for name, family in zip(names, kinds.families, strict=True):
        if family != "gaussian":
            raise InputError(
                f"{source}: feature {name!r} is kept as {family}, which 'vpem fit' takes, "
                "but distances and means are those of numbers; leave it out with ",
                Setting("drop", name),
            )


def kept_of(stored: Any) -> TableSettings:
    """Return how the data of a fit were read, by its options and its families of features."""
    from vpem.files.families import words_for_model

    options = stored.options
    names = [name for name in TableSettings.settings_by_name if name != "family"]
    known = {name: options[name] for name in names if options.get(name) is not None}
    kinds = getattr(getattr(stored, "mixture", None), "kinds", None)
    family = words_for_model(kinds, stored.feature_names)
    return settings_in(known, "options of the model").changed(family=family)


def same_units(start: Any, source: Dataset, columns: Sequence[int] | None) -> None:
    """Raise InputError unless a start and data are of features with the same power transform."""
    from vpem.files.datasets import powers_in, powers_of

    if (powers_of(start) != powers_in(source, columns)).any():
        raise InputError(
            f"the starting model has features with other power transforms than those of "
            f"{source.source}; start from one of features with the same"
        )


def transform(source: Dataset, known: Mapping[str, float] | None = None) -> float:
    """Transform Gaussian features by powers, each of its own values; the dataset knows which.

    With those that are ``known`` nothing is looked for. Returns what is added to log-likelihoods,
    so that they are in the data's own units: the logarithm of the derivative of all rows.
    """
    import numpy as np

    from vpem.files.datasets import powers_in
    from vpem.terms.units import power_exponent, power_rows

    if not isinstance(source.X, np.ndarray):
        raise InputError(f"{source.source} is read from disk, ", ONCE)
    if source.powers is not None:
        raise InputError(
            f"features of {source.source} are transformed by powers already; leave out the power "
            "transform"
        )
    families = ("gaussian",) * source.n_features if source.kinds is None else source.kinds.families
    source.powers = {
        name: power_exponent(source.X[:, column]) if known is None else known[name]
        for column, (name, family) in enumerate(zip(source.feature_names, families, strict=True))
        if family == "gaussian"
    }
    exponents = powers_in(source)
    before = np.isfinite(source.X)
    source.X, slopes = power_rows(source.X, exponents)
    lost = (np.isfinite(source.X) != before).any(axis=0)
    if lost.any():
        name = source.feature_names[int(lost.argmax())]
        raise InputError(f"{source.source}: feature {name!r} is too large to transform")
    return _weighed(source, slopes)


def slope_of(source: Dataset) -> float:
    """Return what `transform` returned of data that were transformed before they were read."""
    from vpem.checks import row_blocks
    from vpem.files.datasets import powers_in
    from vpem.terms.units import power_rows, power_rows_back

    exponents = powers_in(source)
    blocks = (power_rows_back(X, exponents) for _, X in row_blocks(source.X))
    return _weighed(source, [one for X in blocks for one in power_rows(X, exponents)[1].tolist()])


def _weighed(source: Dataset, slopes: Any) -> float:
    import numpy as np

    weights = source.sample_weight
    return float(np.sum(slopes) if weights is None else np.dot(weights, slopes))


ONCE = (
    "but a power transform looks at a whole feature many times; transform it once: vpem data "
    "import --power fit"
)

OF_PARTIES = [
    beside(" is for data of several parties; add {parties}", parties=(None, False)),
    beside(
        " is for parties that hold features of the same rows; with {split=rows} leave it out",
        split="rows",
    ),
]
WITHOUT_HMAC = unless(" is for {align=hmac}; leave it out, or add that", align="hmac")
WITHOUT_KEY = rule(
    # Where files are named: a study says how rows are aligned, each member where its key is.
    lambda given: (
        "data" in given and given["align"] == "hmac" and given.get("align_key", "") is None
    ),
    "{align=hmac} needs {align_key=FILE}, with a key that all parties share, such as one of "
    "'openssl rand -hex 32'",
)
OF_FILES = rule(
    lambda given: bool(given["parties"]) and STDIN in map(str, given.get("data") or ()),
    "standard input (-) is one file; with {parties} name files",
)


class PartySettings(Settings, heading="Data"):
    """Whether files are parties', and how their rows are joined."""

    parties: bool = off(
        "Each file is a party's (docs/reference/parties.md). One .toml file may name them all. "
        "The parties are the agents; with --split rows the workers.",
        often=True,
        idle=OF_FILES,
    )
    align: str | None = unset(
        "How parties find the rows that all have: none, ids, hmac, psi. With none it is by "
        "position; hmac compares keyed hashes of ids, psi is private set intersection. Default: by "
        "position, if ids agree or no party has any.",
        choices=ALIGNMENTS,
        idle=[*OF_PARTIES, WITHOUT_KEY],
    )
    align_key: Path | None = unset(
        "With --align hmac: file of the key that all parties share.",
        file="read",
        local=True,
        idle=[*OF_PARTIES, WITHOUT_HMAC],
    )
    missing_parties: bool = off(
        "Keep rows that some parties lack, and integrate out missing values (ids and hmac).",
        idle=OF_PARTIES,
    )


BY_POSITION = "no party has ids, so rows are the same by position: row 0 of each file, and so on"

OF_A_FIT = " ".join((*OF_ONE_FIT, "worker_column"))
"""Settings of tables that are no options where a model is used: the model knows its features."""


class FileSettings(TableSettings, PartySettings, heading="Data"):
    """How files are read, and whether they are parties'."""

    numbers_only: ClassVar[bool] = False
    """Whether features can be Gaussian alone."""
    labels_of: ClassVar[str] = ""
    """Setting of labels that one party has."""
    kind: ClassVar[type[TableSettings]] = TableSettings

    @property
    def table(self) -> TableSettings:
        return self.into(self.kind)


class FitFiles(FileSettings, LabelledTable, heading="Data"):
    """Files for a fit, one of which may have labels of some rows."""

    kind = LabelledTable
    labels_of = "labels_for_fit"
    id_column: Any = changed(often=False)
    labels_at: str | None = unset(
        "Agent or party, by name or number, that has the labels for the fit: they are added to its "
        "hub's term. Default: the first; in a manifest the party with labels-for-fit.",
        local=True,
        idle=beside(" says who has labels for the fit; add {labels_for_fit}", labels_for_fit=None),
    )


class FedWorkers(WorkerSettings, heading="Data"):
    workers: int | None = changed(often=True)
    sort_by_label: bool = off(
        "Sort rows by label before they are dealt out, so that workers differ.",
        idle=[OF_ONE_FILE, beside(" needs {workers}: how many to deal rows out to", workers=None)],
    )


class NumberFiles(FileSettings, heading="Data"):
    """Files for a method that takes features as numbers, whatever these stand for."""

    numbers_only = True


class ClassFiles(NumberFiles, heading="Data"):
    """Files of which one has the class of each row."""

    labels_of = "label_column"
    labels_at: str | None = changed(FitFiles, "labels_at",
        help="With --parties: which of them, by name or number, has --label-column. Default: the "
        "first; in a manifest the one that says so.",
        idle=beside(" is the party with {label_column}; add that", label_column=None))  # fmt: skip


class RowParties(NumberFiles, heading="Data"):
    """Whether files are those of parties that hold rows, which need no alignment."""

    parties: bool = changed(
        help="Each file has a worker's rows (docs/reference/parties.md). One .toml file may name "
        "them all."
    )


IN_ONE_PLACE = rule(
    lambda given: not given["parties"] or given.get("engine") == "simulator",
    " hides what parties send, but here one process has all data; add --parties and --engine mpi, "
    "or leave it out",
)


class DataParties(FileSettings, heading="Data", kept=False):
    """Whether data for a model are parties', which hold features or rows."""

    parties: bool = changed(
        help="Each DATA is a party's (docs/reference/parties.md). One .toml file may name them "
        "all. They need not be the parties of the fit: features are found by name."
    )
    split: str = changed(
        HoldingSettings,
        "split",
        help="With --parties: each has features of all rows (features), or all features of its "
        "rows (rows).",
        idle=OF_PARTIES[:1],
    )
    secure_sum: bool = changed(
        SumSettings,
        "secure_sum",
        help="Masked sums: no process sees the terms of another party, only totals. For three "
        "parties or more, each a process of its own.",
        idle=IN_ONE_PLACE,
    )


def read_parties(
    files: Sequence[Path],
    settings: FileSettings,
    where: Where,
    labels: LabelFile | None,
    over_rows: bool,  # they hold rows, not features
    missing: bool,  # values may be
    weight: str | None,  # column of weights of rows
    kept: TableSettings | None = None,  # of a model's data, which decides on the features
) -> tuple[Dataset, Report | None]:
    """Join the data of parties, and print how their rows were aligned, as the report has it."""
    from vpem.engines.engine import set_topic
    from vpem.files.parties.joining import join_parties, stack_parties

    table, say = settings.table, where.screen.say
    parties = where.parties(files, table, kept)
    of = settings.labels_of
    if of and getattr(table, of) is not None and not where.own_users:
        at = getattr(settings, "labels_at", None)
        labelled, at = parties, place_of(at, [one.name for one in parties])
        parties = where.parties(files, table.changed(**{of: None}), kept)
        parties[at] = labelled[at]
    holders, formats = where.place(parties, labels), set[str]()
    common: Report = {"keep_empty": missing, "sample_weight": weight, "holders": holders}
    common["tell"] = teller(say, formats=formats)
    with set_topic(holders.engine, "alignment"):
        if over_rows:
            stacked = stack_parties(parties, **common)
            refuse_unused(table, formats, where)
            _tell_powers(stacked, parties, holders, say)
            return stacked, None
        together, matching = join_parties(
            parties, settings.align, key=settings.align_key,
            keep_missing=settings.missing_parties, keep_constant=kept is not None,
            keep_labels=of == "label_column", **common,
        )  # fmt: skip
    refuse_unused(table, formats, where)
    _tell_powers(together, parties, holders, say)
    alignment = matching.describe()
    outer = alignment["join"] == "outer"
    heads = ("party", "rows", "absent" if outer else "lost")
    cells = [heads, *((one["name"], *map(str, (one["rows"], one[heads[2]])))
                      for one in alignment["parties"])]  # fmt: skip
    wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name, rows, gone in cells:
        say(f"{name:<{wide[0]}}  {rows:>{wide[1]}}  {gone:>{wide[2]}}")
    complete = f", {alignment['complete']} of them complete" if outer else ""
    say(f"{alignment['rows']} rows together{complete} (align {alignment['level']})")
    if settings.align is None and matching.by_position and len(parties) > 1:
        say(BY_POSITION)
    return together, alignment


def _tell_powers(
    together: Dataset, parties: Sequence[Party], holders: Placement, say: Callable[[str], None]
) -> None:
    """Keep by which exponents parties transformed their features, where one process has all."""
    from vpem.files.datasets import read_about, read_exponents
    from vpem.files.hdf5 import attribute_of

    found: dict[str, float] = {}
    ours = [parties[number] for number in holders.own.tolist()]
    files = [(party.name, path) for party in ours for path in party.find()]
    earlier: dict[object, tuple[Path, object]] = {}
    for name, path in files:
        is_dataset = attribute_of(path) == "vpem-dataset"
        power = read_about(path).get("power") if is_dataset else None
        own = {} if power is None else read_exponents(power, path)
        first, known = earlier.setdefault("" if together.workers else name, (path, own))
        if own != known:
            raise InputError(
                f"{path} has features transformed by other powers than {first}; import all with "
                "the same: vpem data import --power FILE"
            )
        if power is not None:
            say(f"note: features of {path} are transformed by powers: means are in these units")
        for feature, exponent in own.items():
            named = feature in together.feature_names
            found[feature if named else f"{name}.{feature}"] = exponent
    if found and not holders.apart:
        together.powers = found


def check_parties(files: Sequence[Path], settings: PartySettings) -> None:
    """Raise InputError unless the files are one dataset, or those of parties."""
    manifests = [file for file in files if str(file).lower().endswith(".toml")]
    if manifests and not settings.parties:
        raise InputError(f"{manifests[0]} is no dataset; add --parties if it names parties")


def place_of(agent: str | None, names: Sequence[str]) -> int:
    """Return the number of the agent that has the labels: the first, unless another is named."""
    from vpem.checks import read_int

    if agent is None:
        return 0
    if agent in names:
        return list(names).index(agent)
    number = read_int(agent)
    if number is not None and 0 <= number < len(names):
        return number
    raise InputError(
        Setting("labels_at"), f" must be an agent, by name or number, got {brief(agent)}"
        f"{did_you_mean(agent, names)}; they are {shorten(names, 10)}",
    )  # fmt: skip
