"""Every setting, once: its default, help, bounds, choices, heading and flag.

A record holds what one recipe, or one theme, is told. Commands spread records into options
(`cli/options.py`), recipes take them (``fit_vpem(X, network, settings, **changes)``), estimators
make them of their parameters, and models and checkpoints keep their values. To add a setting, add
a line here and use it: flag, ``--config``, environment, completion and reference follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, dataclass_transform

from vpem.errors import InputError, Setting, check_choice

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "FitSettings",
    "GraphSettings",
    "HoldingSettings",
    "KmeansHolding",
    "KmeansSettings",
    "MixtureSettings",
    "PlanSettings",
    "Settings",
    "SumSettings",
    "WorkerSettings",
    "about",
    "changed",
    "refuse_both",
    "setting",
]

T = TypeVar("T", bound="Settings")

Sentence = tuple[str | Setting, ...]


@dataclass(frozen=True)
class About:
    """What there is to know of a setting beside its name, type and default.

    Attributes
    ----------
    help : str
        For a reader of ``--help``.
    heading : str
        Under which it stands there; by default that of its record.
    flags : str
        Its options, where they are not its name with dashes: ``"-k --components"``.
    choices, words : str
        All words that it may be; some of them, which a shell offers.
    least, most : float or None
        Bounds of a number; with ``above`` the first is excluded.
    file : object
        What becomes of the file that it names: "read", "written", or a role of the commands'.
    idle : (callable, sentence) or None
        Of the values of all settings by name: whether this one then has no effect; and why.
    """

    help: str
    heading: str = ""
    flags: str = ""
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    above: bool = False
    file: Any = None
    idle: tuple[Callable[[Mapping[str, Any]], bool], Sentence] | None = None


def setting(default: Any, help: str, **known: Any) -> Any:
    """Return a field of a record; ``known`` as in `About`."""
    return field(default=default, metadata={"about": About(help, **known)})


def changed(record: type[Settings], name: str, default: Any = ..., **known: Any) -> Any:
    """Return a field of another record with another default, help or anything else."""
    one = record.__dataclass_fields__[name]
    kept = one.default if default is ... else default
    return field(default=kept, metadata={"about": replace(about(one), **known)})


def about(one: Field[Any]) -> About:
    """Return what is known of a field."""
    found: About = one.metadata["about"]
    return found


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Settings:
    """A record of settings, checked when it is made.

    Raises
    ------
    InputError
        If a value is out of bounds or none of the choices, or has no effect beside another.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    kept: ClassVar[bool] = True
    """Whether models keep the values, which say what was fitted."""

    def __init_subclass__(cls, heading: str = "", kept: bool = True) -> None:
        cls.kept = kept
        for one in list(vars(cls).values()):
            if isinstance(one, Field) and not about(one).heading:
                one.metadata = {"about": replace(about(one), heading=heading)}  # type: ignore[assignment]
        dataclass(frozen=True, kw_only=True)(cls)
        listed = (
            f"{one.name} : {one.type}, default={one.default!r}\n    {about(one).help}"
            for one in cls.fields()
        )
        cls.__doc__ = "\n".join((cls.__doc__ or "", "\nAttributes\n----------", *listed))

    def __post_init__(self) -> None:
        for one in self.fields():
            value = _checked(one, getattr(self, one.name))
            object.__setattr__(self, one.name, value)
        for one in self.fields():
            idle = about(one).idle
            if idle and idle[0](vars(self)) and getattr(self, one.name) != one.default:
                raise InputError(Setting(one.name), *idle[1])

    @classmethod
    def fields(cls) -> tuple[Field[Any], ...]:
        """Return the settings of the record, in order."""
        return fields(cls)

    @classmethod
    def of(cls, settings: Self | None, /, **changes: Any) -> Self:
        """Return a record, or the default one, with changes.

        Raises
        ------
        InputError
            If it is none of this kind.
        """
        if not isinstance(settings, cls | None):
            raise InputError(f"settings must be {cls.__name__}, got {type(settings).__name__}")
        return cls(**changes) if settings is None else settings.changed(**changes)

    def changed(self, **changes: Any) -> Self:
        """Return the record with other values."""
        return replace(self, **changes)

    def into(self, record: type[T]) -> T:
        """Return another record, of the settings that both have."""
        shared = {one.name for one in record.fields()}
        return record(**{name: value for name, value in self if name in shared})

    def values(self, *without: str) -> dict[str, Any]:
        """Return the values by name, but for some."""
        return {name: value for name, value in self if name not in without}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((one.name, getattr(self, one.name)) for one in self.fields())


def _checked(one: Field[Any], value: Any) -> Any:
    """Return the value of a setting, or raise InputError if it cannot be that."""
    known, kinds = about(one), str(one.type).split(" | ")
    if value is None and "None" in kinds:
        return value
    if isinstance(value, str) and {"int", "str"} <= set(kinds) and value not in known.choices:
        choices = f"an integer of at least {known.least}, or {', '.join(known.choices)}"
        raise InputError(Setting(one.name), f" must be {choices}, got {value!r}")
    if known.choices and (isinstance(value, str) or kinds[0] == "str"):
        return check_choice(one.name, value, known.choices)
    if known.least is not None and not isinstance(value, str):
        from vpem.checks import check_int, check_number

        if "int" in kinds:
            most = None if known.most is None else int(known.most)
            return check_int(one.name, value, least=int(known.least), most=most)
        return check_number(one.name, value, least=known.least, most=known.most, above=known.above)
    return value


def refuse_both(record: Settings, one: str, other: str) -> None:
    """Raise InputError where two settings say the same thing."""
    if getattr(record, one) is not None and getattr(record, other) is not None:
        raise InputError("give ", Setting(one), " or ", Setting(other), ", not both")


# ---- choices -------------------------------------------------------------------------------------

# fmt: off
TOPOLOGIES = ("star", "cycle", "path", "complete", "grid", "geometric", "erdos-renyi",
              "small-world", "scale-free", "tree")
WEIGHTS = ("metropolis", "laplacian", "max-degree", "fastest")
ACCELERATIONS = ("chebyshev", "none")
EIGENVALUES = ("computed", "estimated")
CONSENSUS = ("auto", "operator", "rounds")
COVARIANCE_TYPES = ("full", "diag", "spherical", "tied", "tied-diag", "tied-spherical")
INITS = ("random", "k-means++", "kmeans")
CLUSTER_INITS = ("k-means++", "random")
SCALES = ("none", "standard")
MISSINGS = ("refuse", "marginalize")
DTYPES = ("float64", "float32")
SPLITS = ("features", "rows")
METHODS = ("lloyd", "grid")
ALIGNMENTS = ("none", "ids", "hmac", "psi")
CODECS = ("natural:12bits", "natural:9bits", "qsgd:8bits", "qsgd:4bits", "blockp:64", "topk:0.01",
          "randk:0.1", "float64", "float32", "float16")
"""Some of the names that `vpem.network.codecs.parse_codec` reads."""

# ---- what has no effect, and why -----------------------------------------------------------------

BY_FEATURES = (lambda given: given.get("split") == "rows",
               (" is for data split by features; leave it out",))
BY_ROWS = (lambda given: given.get("split") == "features",
           (" is for data split by rows; add ", Setting("split", "rows")))
STARTED = (lambda given: given.get("init_rows") is not None or given.get("init_model") is not None,
         (" is how a start is found, but --init-rows or --init-model says where it is; leave it "
            "out",))
RESTARTED = (lambda given: STARTED[0](given) or not isinstance(given["init"], str),
             (" starts anew from other rows, but the start is given; leave it out",))
AUTOMATIC = (lambda given: given["n_rounds"] != "auto",
             (" is what ", Setting("n_rounds", "auto"), " reaches, but there are as many rounds as "
              "are asked for; leave one out"))

# ---- who is there, who holds what, and how it is summed ------------------------------------------


class GraphSettings(Settings, heading="Network"):
    """The graph that a command draws or reads."""

    topology: str | None = setting(None, "Graph of the agents, or workers: star (exact sum at a "
        "server), cycle, path, complete, grid, geometric, erdos-renyi, small-world, scale-free, "
        "tree. Default: the graph stored in the dataset, or else star.", choices=TOPOLOGIES)
    graph: Path | None = setting(None, "Graph from a file: edge list, GraphML, or node-link JSON.",
        file="read")
    radius: float | None = setting(None, "Radius of a geometric graph in the unit square.")
    mean_degree: float | None = setting(None, "Mean degree wanted of a random graph.")
    graph_seed: int | None = setting(None, "Seeds random graphs and ties between hubs. Default: "
        "the --seed, or else 0.", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_both(self, "topology", "graph")

    def seeded(self, seed: int) -> GraphSettings:
        """Return the record with this seed, where it has none of its own."""
        return self.changed(graph_seed=seed if self.graph_seed is None else self.graph_seed)


class WorkerSettings(Settings, heading="Data"):
    """Who holds which rows."""

    workers: int | None = setting(None, "Split the rows into this many contiguous, nearly equal "
        "parts. Default: the workers stored in the dataset, or else one.", least=1, idle=BY_ROWS)
    worker_rows: Path | None = setting(None, 'Rows of each worker, JSON: {"name": [row, ...], '
        '...}.', file="read", idle=BY_ROWS)
    dataset: str | None = setting(None, "Path of a 2-D dataset inside the HDF5 file, instead of X.")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_both(self, "workers", "worker_rows")


class HoldingSettings(WorkerSettings, heading="Data"):
    """Who holds which features, or rows."""

    split: str = setting("features", "What each agent holds: features of all rows, or all features "
        "of its rows (workers).", choices=SPLITS)
    agents: int | None = setting(None, "Split the features into this many contiguous, nearly equal "
        "parts. Default: the partition stored in the dataset, or else one feature an agent.",
        least=1, idle=BY_FEATURES)
    partition: Path | None = setting(None, 'Features of each agent, JSON: {"name": [feature, ...], '
        '...}.', file="read", idle=BY_FEATURES)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_both(self, "agents", "partition")


class KmeansHolding(HoldingSettings, heading="Data"):
    """Who holds which rows, or features, to be clustered."""

    split: str = changed(HoldingSettings, "split", "rows")


class SumSettings(Settings, heading="Network"):
    """How agents sum: see `vpem.connect`."""

    hops: int = setting(0, "Agents at most this many hops from a root send it their features, "
        "once; 0: no agent shows its data.", least=0, idle=BY_FEATURES)
    n_rounds: int | str = setting("auto", "Consensus rounds of each average, or auto: the fewest "
        "that reach --consensus-tol.", flags="--rounds", choices=("auto",), least=1)
    acceleration: str | None = setting(None, "Rounds accelerated by Chebyshev polynomials "
        "(chebyshev), or none. Default: chebyshev, but for faults, with which rounds cannot be.",
        choices=ACCELERATIONS)
    eigenvalue: str = setting("computed", "Mixing rate for the acceleration: computed from the "
        "graph, or estimated by the agents, which costs messages.", choices=EIGENVALUES)
    consensus_tol: float = setting(1e-6, "Largest consensus error, relative to a hub's term, with "
        "--rounds auto.", least=1e-12, most=1.0, idle=AUTOMATIC)
    weights: str = setting("metropolis", "Mixing weights: metropolis, laplacian (best constant), "
        "max-degree, fastest (needs cvxpy).", choices=WEIGHTS)
    consensus: str = setting("auto", "Compute the rounds one by one (rounds), as the equal small "
        "matrix (operator), or whichever is cheaper (auto).", choices=CONSENSUS)
    compress: str | None = setting(None, "Codec of the messages: natural:12bits (a good choice), "
        "qsgd:8bits, blockp:64, topk:0.01, randk:0.1, float32, float16.", words=CODECS,
        heading="Messages and faults")
    link_failure: float = setting(0.0, "Probability that a link is down in a round.",
        heading="Messages and faults")
    agent_dropout: float = setting(0.0, "Probability that an agent is silent for a whole "
        "iteration.", heading="Messages and faults")
    stragglers: float = setting(0.0, "Probability that an agent is late in a round, which goes on "
        "without it.", heading="Messages and faults")
    seed: int = setting(0, "Seeds ties between hubs, codecs and faults.", heading="Start", least=0)
    n_threads: int | None = setting(None, "Threads of the kernels; results do not depend on it. "
        "Default: all processors.", flags="--threads", heading="Running")


class PlanSettings(SumSettings, heading="Network"):
    """A fit whose messages are foretold: see `vpem.fits.plan.plan`."""

    n_samples: int | None = setting(None, "Rows of the fit to plan. Default: the dataset's, or "
        "else 1000.", flags="--samples", heading="Data", least=1)
    n_components: int = setting(2, "Components of the fit to plan.", flags="-k --components",
        heading="Model", least=1)
    dtype: str = setting("float64", "Precision of the fit to plan: float64 or float32.",
        heading="Running", choices=DTYPES)
    batch_size: int | None = setting(None, "Rows of a batch, as for 'vpem fit'. Default: all rows "
        "in every iteration.", heading="Method", least=1)


# ---- algorithms ----------------------------------------------------------------------------------


class MixtureSettings(Settings, heading="Model"):
    """What every fit of a mixture is told."""

    n_components: int = setting(2, "Number of components; by default the --init-model's, if "
        "there is one.",
        flags="-k --components", least=1)
    covariance_type: str = setting("full", "Covariance inside a hub: full, diag, spherical; tied, "
        "tied-diag, tied-spherical for one shared by all components.", flags="--covariance",
        choices=COVARIANCE_TYPES)
    reg_covar: float = setting(1e-6, "Added to the diagonal of every covariance.", least=0.0)
    scale: str = setting("none", "none, or standard: features are standardized, which is undone in "
        "outputs.", choices=SCALES)
    init: Any = setting("kmeans", "Start: random (shared rows), k-means++, kmeans.",
        heading="Start", choices=INITS, idle=STARTED)
    seed: int = setting(0, "Seeds the start, and the graph unless --graph-seed is given.",
        heading="Start", least=0)
    n_threads: int | None = changed(SumSettings, "n_threads")


class FitSettings(MixtureSettings, heading="Model"):
    """EM over features or rows: see `vpem.fit_vpem` and `vpem.fit_em`."""

    n_init: int = setting(1, "Restarts; the best is kept.", flags="--n-init --restarts",
        heading="Start", least=1, idle=RESTARTED)
    missing: str = setting("refuse", "Where values are missing (NaN): refuse, or marginalize: "
        "integrate them out, missing at random.", heading="Data", choices=MISSINGS)
    batch_size: int | None = setting(None, "Batch VP-EM: rows of an iteration, whose statistics "
        "replace those they had before. Default: all rows in every iteration.", heading="Method",
        least=1, idle=BY_FEATURES)
    step_size: float | None = setting(None, "With --batch-size, stochastic EM: the statistics move "
        "by t^-A toward those of the t-th batch, 0.5 < A <= 1.", heading="Method", least=0.5,
        most=1.0, above=True, idle=BY_FEATURES)
    every_weight: bool = setting(False, "Count even responsibilities that together are below "
        "rounding (slower).", heading="Method")
    tol: float = setting(1e-7, "Stop when the log-likelihood per sample changes by less at all "
        "roots.", heading="Stopping", least=0.0)
    max_iter: int = setting(1000, "Most iterations.", heading="Stopping", least=1)
    dtype: Any = setting("float64", "Precision: float64 or float32.", heading="Running",
        choices=DTYPES)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_size is not None and self.batch_size is None:
            raise InputError(Setting("step_size"), " is how far the statistics move toward a "
                "batch's, but there are no batches; give ", Setting("batch_size"))


class KmeansSettings(Settings, heading="Model"):
    """k-means over rows or features: see `vpem.kmeans_rows` and `vpem.kmeans_features`."""

    n_clusters: int = setting(2, "Number of clusters.", flags="-k --clusters", least=1)
    method: str = setting("lloyd", "lloyd: iterations until no row changes its cluster; grid: one "
        "shot over features, one message of each agent (Ding et al. 2016).", heading="Method",
        choices=METHODS)
    scale: str = setting("none", "none, or standard: features are standardized first; centres are "
        "written in the data's units, distances and inertia are of standardized features.",
        choices=SCALES)
    init: Any = setting("k-means++", "Start: k-means++ (greedy), or random (shared rows).",
        heading="Start", choices=CLUSTER_INITS, idle=STARTED)
    n_init: int = changed(FitSettings, "n_init")
    seed: int = changed(MixtureSettings, "seed")
    max_iter: int = changed(FitSettings, "max_iter", 300)
    dtype: Any = changed(FitSettings, "dtype")
    n_threads: int | None = changed(SumSettings, "n_threads")
# fmt: on
