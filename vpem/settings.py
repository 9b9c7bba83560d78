"""Every setting, once: its default, help, bounds, choices, heading and flag.

A record holds the settings of one recipe, or one theme. Commands spread records into options
(`cli/options.py`), recipes take them (``fit_vpem(X, network, settings, **changes)``), estimators
have them as parameters, and models and checkpoints keep their values. To add a setting, add a line
here and use it: flag, ``--config``, environment, completion, reference and parameters follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from vpem import rules
from vpem.errors import InputError, Setting
from vpem.records import Settings, beside, changed, is_number, not_both, rule, setting, unless

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

WEIGHT_PRIORS = ("dirichlet_process", "dirichlet_distribution")
"""Priors of mixing weights, as scikit-learn calls them."""

MAP = "map"
"""Prior under which EM finds the mode; under the others there is a posterior."""

PRIORS = (*WEIGHT_PRIORS, MAP)

WITHOUT_PRIOR = beside(
    " belongs to a prior, but EM has none; add {weight_concentration_prior_type=dirichlet_process},"
    " or leave it out",
    weight_concentration_prior_type=None,
)
OF_WEIGHTS = beside(
    " is about mixing weights, which have no prior with {weight_concentration_prior_type=map}; "
    "leave it out",
    weight_concentration_prior_type=MAP,
)


# fmt: off
class PriorSettings(Settings, heading="Prior"):
    """The prior of a mixture's parameters."""

    weight_concentration_prior_type: str | None = setting(None, "Variational Bayes: a Dirichlet "
        "process or distribution for the mixing weights and normal-Wishart priors for hubs, so "
        "that components which the rows do not need end empty. map: EM to the mode under a prior "
        "for hubs alone, like mclust's, which keeps small components from being singular. Default: "
        "none, EM.", flags="--prior", choices=PRIORS,
        idle=[rules.PENALISED, rules.DECOMPOSED_PRIOR])
    weight_concentration_prior: float | None = setting(None, "Concentration of the mixing weights; "
        "the smaller, the fewer components are in use. Default: 1/K.", flags="--concentration",
        least=0.0, above=True, idle=[WITHOUT_PRIOR, OF_WEIGHTS])
    mean_precision_prior: float | None = setting(None, "Number of rows that the prior mean of a "
        "hub, the mean of all rows, counts for in each component. Default: 1; with --prior map "
        "0.01.", flags="--mean-precision", least=0.0, above=True, idle=WITHOUT_PRIOR)
    degrees_of_freedom_prior: float | None = setting(None, "Degrees of freedom of a hub's prior "
        "covariance, above its number of features minus 1; with diagonal covariances, of each "
        "variance. Default: the number of features, or 1 for a variance; with --prior map 2 more.",
        flags="--degrees-of-freedom", least=0.0, above=True, idle=WITHOUT_PRIOR)
    prior_covariance: float | None = setting(None, "Prior scale matrix of a hub, as a multiple of "
        "the sample covariance of all rows. The smaller, the smaller components may be. Default: "
        "1; with --prior map K^(-2/d) for a hub of d features, K^-2 for a variance.", least=0.0,
        above=True, idle=WITHOUT_PRIOR)


PENALTIES = ("lasso:0.05", "ridge:0.1", "elastic-net:0.1:0.5", "inverse-wishart", "dirichlet:2")
"""Some of what `vpem.terms.priors.parse_penalty` reads."""

# ---- choices -------------------------------------------------------------------------------------

TOPOLOGIES = ("star", "cycle", "path", "complete", "grid", *rules.RANDOM_GRAPHS)
WEIGHTS = ("metropolis", "laplacian", "max-degree", "fastest")
ACCELERATIONS = ("chebyshev", "none")
EIGENVALUES = ("computed", "estimated")
CONSENSUS = ("auto", "operator", "rounds")
HUBS = ("size", "likelihood")
SUMS = tuple(rules.SUMMING)
COVARIANCE_TYPES = ("full", "diag", "spherical", "tied", "tied-diag", "tied-spherical")
MCLUST = {"EII": "tied-spherical", "VII": "spherical", "EEI": "tied-diag", "VEI": "VEI",
          "EVI": "EVI", "VVI": "diag", "EEE": "tied", "VEE": "VEE", "EVE": "EVE", "VVE": "VVE",
          "EEV": "EEV", "VEV": "VEV", "EVV": "EVV", "VVV": "full"}
"""Families of covariances by their names in mclust: volume, shape and orientation of components
are equal (E), vary (V), or are those of spheres and axes (I)."""
COVARIANCES = (*COVARIANCE_TYPES, *rules.DECOMPOSED)
FAMILY_NAMES = ("gaussian", "t", "log-normal", "categorical", "bernoulli", "poisson",
                "negative-binomial", "exponential", "gamma", "covariate")
INITS = ("random", "k-means++", "kmeans", "farthest")
SMALL_EM = "small-em"
CLUSTER_INITS = ("k-means++", "random", "farthest")
SCALES = ("none", "standard")
MISSINGS = ("refuse", "marginalize")
DTYPES = ("float64", "float32")
SPLITS = ("features", "rows")
METHODS = ("lloyd", "grid")
CRITERIA = ("bic", "aic", "icl", "sabic", "caic", "heldout")
BOOTSTRAPS = ("weighted", "parametric")
CORRECTIONS, ASSIGNMENTS = ("bch", "ml"), ("modal", "proportional")
SAEM_MODELS = ("linear", "one-compartment", "two-compartment", "curve", "bifactor", "gmm", "lda")
SAMPLERS = ("auto", "exact", "metropolis", "langevin", "mala", "hmc", "gibbs")
SAEM_METHODS = ("saem", "fl-saem", "mcem")
AVERAGES = ("statistics", "models")
SHARES = ("individuals", "devices")
FEEDBACKS = ("none", "change", "error", "memory")
WEIGHTINGS = ("rows", "workers")
MEMORIES = ("first", "zero", "none", "naive")
LAWS = ("gaussian", "poisson", "bernoulli")
BINOMIAL = "binomial"
"""Law of an entry that needs a number of trials."""
DEALS = ("random", "rows", "features")
ALIGNMENTS = ("none", "ids", "hmac", "psi")

PACES = ("squarem", "local:8", "local:8,squarem")
"""Some of what `vpem.steps.accelerate.parse_acceleration` reads."""
CODECS = ("natural:12bits", "natural:9bits", "qsgd:8bits", "qsgd:4bits", "blockp:64", "topk:0.01",
          "randk:0.1", "float64", "float32", "float16")
"""Some of the names that `vpem.network.codecs.parse_codec` reads."""

# ---- who is there, who holds what, and how it is summed ------------------------------------------

def lacks_data(given: Mapping[str, Any]) -> bool:
    """Whether a command names no data, nor a study in which others bring them."""
    named = given.get("data", given.get("source", True))
    return (not named or named in TOPOLOGIES) and not given.get("study")


OF_DATA = rule(lacks_data, " is about the data, but none are named; name a file, or leave it out")
UNNAMED = rule(
    lambda given: given["topology"] is None
    and ("data" in given or given.get("source", "star") not in TOPOLOGIES),
    " needs the topology of a random graph",
)

class GraphSettings(Settings, heading="Network"):
    """The graph that a command draws or reads."""

    topology: str | None = setting(None, "Graph of agents: star (a server), "
        f"{', '.join(TOPOLOGIES[1:])}. Also of workers. Default: as stored, else star.",
        choices=TOPOLOGIES, often=True)
    graph: Path | None = setting(None, "Graph from a file: edge list, GraphML, or node-link JSON. "
        "Several in one (lines --- in an edge list, a JSON list) take turns, one a round.",
        file="read", idle=not_both("topology", "graph"))
    directed: bool = setting(False, "Links of --graph lead one way, from the first node of an edge "
        "to the second; agents then sum by push-sum, unless all lead both ways.", idle=beside(
            " is about the edges of a file; topologies have links that lead both ways; give "
            "{graph}, or leave it out", graph=None))
    radius: float | None = setting(None, "Radius of a geometric graph in the unit square.",
        idle=UNNAMED)
    mean_degree: float | None = setting(None, "Mean degree of a random graph.", idle=UNNAMED)
    graph_seed: int | None = setting(None, "Seed of random graphs and of ties between hubs. "
        "Default: that of --seed where there is one, else 0.", least=0, idle=rules.UNDRAWN)

    @property
    def is_asked(self) -> bool:
        """Whether a graph is given."""
        return self.topology is not None or self.graph is not None

    def seeded(self, seed: int) -> Self:
        """Return the record with this seed, where it has none of its own."""
        return self.changed(graph_seed=seed if self.graph_seed is None else self.graph_seed)


class HolderGraph(GraphSettings, heading="Network"):
    """The graph of those who hold rows, individuals or entries, and send statistics of them."""

    topology: str | None = changed(help="Graph of those who hold the data: star (a server), "
        f"{', '.join(TOPOLOGIES[1:])}; there each keeps a statistic of its own, or with --sum tree "
        "one is added up along a tree. Default: star.")


class WorkerSettings(Settings, heading="Data"):
    """Who holds which rows."""

    workers: int | None = setting(None, "Split the rows evenly among this many workers. "
        "Parts are contiguous. Default: as in the dataset, else one.", least=1,
        idle=[rules.BY_ROWS, rules.OF_ONE_FILE])
    worker_rows: Path | None = setting(None, 'Rows of each worker, JSON: {"name": [row, ...], '
        '...}.', file="read",
        idle=[not_both("workers", "worker_rows"), rules.BY_ROWS, rules.OF_ONE_FILE])
    dataset: str | None = setting(None, "Path of a 2-D dataset inside the HDF5 file, instead of X.",
        idle=rules.OF_ONE_FILE)
    sample_weight: str | None = setting(None, "Weights of the rows: path of a 1-D dataset inside "
        "the HDF5 file, or name of a column of a party's CSV or Parquet file, which is then no "
        "feature.")


class HoldingSettings(WorkerSettings, heading="Data"):
    """Who holds which features, or rows."""

    split: str = setting("features", "What is distributed: features over agents, or rows over "
        "workers.", choices=SPLITS, often=True)
    agents: int | None = setting(None, "Split the features evenly among this many agents. Parts "
        "are contiguous. Without it, --topology, --graph, --hops or a way of summing makes one "
        "agent per feature. Default: as in the dataset, else one.", least=1,
        idle=[rules.BY_FEATURES, rules.OF_ONE_FILE])
    partition: Path | None = setting(None, 'Features of each agent, JSON: {"name": [feature, ...], '
        '...}.', file="read",
        idle=[not_both("agents", "partition"), rules.BY_FEATURES, rules.OF_ONE_FILE])


class KmeansHolding(HoldingSettings, heading="Data"):
    """Who holds which rows, or features, to be clustered."""

    split: str = changed(default="rows")
    agents: int | None = changed(help="With --split features: split them evenly among this many "
        "agents. Parts are contiguous. Default: as in the dataset, else one per feature.")


class SumSettings(Settings, heading="Network"):
    """How agents sum: see `vpem.connect`."""

    hops: int = setting(0, "Agents at most this many hops from a root send it their features; "
        "0: none do. They do so once, and with features over agents only.", least=0,
        idle=rules.BY_FEATURES, often=True)
    hubs: str = setting("size", "Which agents within these hops share a hub: as many as possible "
        "(size), or those whose features gain most from a joint covariance (likelihood). The "
        "latter takes a fit without hops first, and shows an agent's features to agents within "
        "--hops besides its root.", choices=HUBS, idle=[rules.BY_FEATURES, rules.WITHOUT_HOPS,
        rules.HUBS_OF_ONE])
    sum: str | None = setting(None, "How agents sum: at a server (server), exactly along a "
        "spanning tree (tree), or by rounds between neighbours (consensus). Default: server on a "
        "star, consensus on any other graph.", choices=SUMS)
    n_rounds: int | str = setting("auto", "Consensus rounds of each average, or auto: the fewest "
        "that reach --consensus-tol.", flags="--rounds", choices=("auto",), least=1,
        idle=rules.ROUNDS)
    acceleration: str | None = setting(None, "Accelerate rounds by Chebyshev polynomials "
        "(chebyshev), or not (none). Default: chebyshev; none with faults, under which rounds "
        "cannot be accelerated.", choices=ACCELERATIONS, idle=rules.ROUNDS)
    eigenvalue: str = setting("computed", "Mixing rate of the acceleration: computed from the "
        "graph, or estimated by the agents, which costs messages.", choices=EIGENVALUES,
        idle=[rules.UNESTIMATED, rules.UNACCELERATED])
    consensus_tol: float = setting(1e-6, "Largest consensus error, relative to a hub's term, with "
        "--rounds auto.", least=1e-12, most=1.0,
        idle=[rules.ROUNDS, rules.AUTOMATIC, rules.CODED])
    weights: Any = setting("metropolis", "Mixing weights: metropolis, laplacian (best constant), "
        "max-degree, fastest (needs cvxpy); a constant alpha of I - alpha L, such as 0.2; or a "
        "matrix of one's own: a file (.csv, .txt, .npy), in Python an array. It is symmetric, its "
        "rows sum to 1, and it is 0 off the edges.", words=WEIGHTS, idle=rules.ROUNDS)
    consensus: str = setting("auto", "Compute the rounds one by one (rounds), as one equivalent "
        "matrix (operator), or by the cheaper of the two (auto).", choices=CONSENSUS,
        idle=rules.ROUNDS)
    compress: str | None = setting(None, "Codec of the messages: natural:12bits (a good choice), "
        "qsgd:8bits, blockp:64, topk:0.01, randk:0.1, float32, float16.", words=CODECS,
        heading="Messages and faults")
    link_failure: float = setting(0.0, "Probability that a link is down in a round.",
        heading="Messages and faults")
    agent_dropout: float = setting(0.0, "Probability that an agent is silent for a whole "
        "iteration.", heading="Messages and faults")
    stragglers: float = setting(0.0, "Probability that an agent is late in a round, which goes on "
        "without it; along a tree all wait.", heading="Messages and faults")
    secure_sum: bool = setting(False, "Masked sums, at a server or along a tree: only totals are "
        "seen, not the terms of a party. For three or more parties.", idle=rules.MASKS)
    seed: int = setting(0, "Seed of ties between hubs, codecs and faults.", heading="Start",
        least=0)
    n_threads: int | None = setting(None, "Threads of the kernels; results do not depend on it. "
        "Default: all processors.", flags="--threads", heading="Running", local=True)

    @property
    def is_asked(self) -> bool:
        """Whether a setting calls for a network of several agents."""
        names = ("hops", "sum", "compress", *rules.FAULTS, "secure_sum")
        return any(getattr(self, name) for name in names)


# ---- algorithms ----------------------------------------------------------------------------------


class MixtureSettings(Settings, heading="Model"):
    """Settings of every fit of a mixture."""

    n_components: int = setting(2, "Number of components. An --init-model has its own.",
        flags="-k --components", least=1, often=True)
    covariance_type: str = setting("full", "Covariance inside a hub: full, diag, spherical, tied, "
        "tied-diag, tied-spherical. Tied ones are shared by all components. Or mclust's names of "
        "all 14 families, such as VEE, of which EEE is tied and VVV full.", flags="--covariance",
        choices=COVARIANCES, also=MCLUST, often=True)
    reg_covar: float | str = setting("auto", "Added to every variance: a millionth of each "
        "feature's variance (auto), or a number in the data's units.", choices=("auto",), least=0.0,
        most=1e100)
    scale: str = setting("none", "Features as they are (none), or standardized (standard). "
        "Matters for spheres and a numeric --reg-covar; outputs keep the data's units.",
        choices=SCALES)
    penalty: str | None = setting(None, "Over rows: what the mean log-likelihood is lowered by. "
        "ridge:L, lasso:L or elastic-net:L:SHARE (of lasso) shrink means to that of all rows, in "
        "standard deviations of their component; the last two need diagonal covariances, and leave "
        "features out. inverse-wishart:NU:SCALE of covariances, by default as --prior map has it, "
        "and dirichlet:A of weights are priors. Several with commas. Default: none.",
        heading="Prior", words=PENALTIES, idle=[rules.OF_ROWS, rules.DECOMPOSED_PRIOR])
    init: Any = setting("kmeans", "Start: random (shared rows), k-means++, kmeans, farthest (the "
        "row least similar to any chosen before). With --secure-sum over rows k-means++ takes "
        "means of groups of rows, and random and farthest are refused.",
        heading="Start", choices=INITS, idle=rules.STARTED)
    seed: int = setting(0, "Seed of start and graph. See --graph-seed.", heading="Start", least=0)
    n_threads: int | None = changed(SumSettings, "n_threads")


class FitSettings(MixtureSettings, PriorSettings, heading="Model"):
    """EM over features or rows: see `vpem.fit_vpem` and `vpem.fit_em`."""

    init: Any = changed(help="Start: random (shared rows), k-means++, kmeans, farthest (the row "
        "least similar to any chosen before), or small-em: the best of short runs from kmeans, as "
        "it is and annealed, and, if they all become degenerate, from random starts (of features "
        "that are not Gaussian, from kmeans and two random starts). With --secure-sum over rows "
        "k-means++ takes means of groups of rows, and random and farthest are refused.",
        choices=(*INITS, SMALL_EM))
    n_factors: int = setting(0, "Number of factors that hubs share, by which features of different "
        "hubs may correlate within a component; 0: none. EM with factors is slow without "
        "--accelerate squarem.", flags="--factors", least=0, most=64,
        idle=[rules.BY_FEATURES, rules.DECOMPOSED_FACTORS])
    fix: str | None = setting(None, "Hold what is known: weights, covariance, or "
        "weights,covariance stay as the start has them, which must give them: a model, or a file "
        "of --fix-from. Default: all are fitted.", words=("weights", "covariance",
        "weights,covariance"), idle=[rules.ONE_FIXED, rules.FIXED_PRIOR, rules.FIXED_PENALTY,
        rules.FIXED_FACTORS])
    noise: bool = setting(False, "A component of noise, uniform where the rows of each hub are, as "
        "in mclust. Each hub adds the volume of its rows to its terms.", idle=rules.WITH_OUTLIERS)
    trim: float = setting(0.0, "Part of the rows that every iteration leaves out: those "
        "of the least density, as in tclust.", least=0.0, most=0.5,
        idle=[rules.ONE_OUTLIER, rules.TRIMMED_HELD_OUT, *rules.WITH_OUTLIERS])
    eigenvalue_ratio: float | None = setting(None, "Bound on the ratio of any two eigenvalues of "
        "the covariances in a hub, of all components, in the data's units, as in tclust. Default: "
        "none.", least=1.0, most=1e300, idle=rules.BOUNDED)
    n_init: int = setting(1, "Restarts; the best is kept.", flags="--n-init --restarts",
        heading="Start", least=1, most=10**6, idle=rules.RESTARTED)
    floor_fits: str = setting("last", "Fits with a component that only the floor under "
        "variances keeps from being singular: chosen only if all fits have one (last), or judged "
        "like others, without a warning (keep).", heading="Start", choices=("last", "keep"))
    least_rows: float = setting(0.5, "Least number of rows (sum of responsibilities) of every "
        "component. If below one, a smaller component is reinitialised, and left out the fourth "
        "time; else the smallest is left out, one per iteration, and rows count relative to the "
        "largest weight. In a study at least 5, unless --publish-anyway.", heading="Method",
        least=0.0, above=True)
    missing: str = setting("refuse", "What to do about missing values (NaN): refuse, or "
        "marginalize. The latter integrates them out, as missing at random.",
        heading="Data", choices=MISSINGS, often=True)
    batch_size: int | None = setting(None, "Rows of a batch (over rows, of each worker), whose "
        "statistics replace their previous ones. Default: all rows in every iteration.",
        heading="Method", least=1)
    step_size: float | None = setting(None, "With --batch-size, stochastic EM: the statistics move "
        "by t^-A toward those of the t-th batch, 0.5 < A <= 1.", heading="Method", least=0.5,
        most=1.0, above=True, idle=rules.WITHOUT_BATCHES)
    accelerate: str | None = setting(None, "Fewer sums: up to 8 steps of each hub on its own "
        "features between them (local:8), extrapolated M-steps (squarem), or both. Steps that "
        "lower the log-likelihood are rejected. Default: none.", heading="Method",
        words=PACES, idle=rules.IN_BATCHES)
    every_weight: bool = setting(False, "Count even responsibilities whose sum is below rounding "
        "(slower).", heading="Method")
    tol: float = setting(1e-7, "Stop when the log-likelihood per sample changes by less than this "
        "at all roots.", heading="Stopping", least=0.0)
    max_iter: int = setting(1000, "Maximum number of iterations. With 0 the start alone.",
        heading="Stopping", least=0)
    dtype: Any = setting("float64", "Precision: float64 or float32.", heading="Running",
        choices=DTYPES)

    @property
    def seeks_outliers(self) -> bool:
        """Whether rows may belong to no component."""
        return self.noise or self.trim > 0

    @property
    def n_numbers(self) -> int:
        """Numbers of a row that hubs add up."""
        return self.n_components * (1 + self.n_factors) + self.seeks_outliers


class KmeansSettings(Settings, heading="Model"):
    """k-means over rows or features: see `vpem.kmeans_rows` and `vpem.kmeans_features`."""

    n_clusters: int = setting(2, "Number of clusters.", flags="-k --clusters", least=1, often=True)
    method: str = setting("lloyd", "lloyd: iterations until no row changes its cluster; grid: one "
        "shot over features, with one message from each agent (Ding et al. 2016).",
        heading="Method", choices=METHODS, idle=rules.GRID_OF_ROWS)
    scale: str = setting("none", "Features as they are (none), or standardized (standard). "
        "Centres keep the data's units; distances and inertia are those of standardized features.",
        choices=SCALES)
    init: Any = setting("k-means++", "Start: k-means++ (greedy), random (shared rows), or farthest "
        "(the row least similar to any chosen before). With --secure-sum over rows k-means++ takes "
        "means of groups of rows, and random and farthest are refused.",
        heading="Start", choices=CLUSTER_INITS,
        idle=[rules.STARTED, rules.STARTS_OF_GRID])
    n_init: int = changed(FitSettings, "n_init", idle=[rules.RESTARTED, rules.FEW_STARTS])
    missing: str = changed(FitSettings, "missing", help="What to do about missing values (NaN): "
        "refuse, or marginalize. Distances and means are then those of observed values (k-POD).")
    seed: int = changed(MixtureSettings, "seed")
    participation: float = setting(1.0, "At a server: probability that a worker or agent takes "
        "part in an iteration. The last message of an absent one still counts.",
        heading="Messages and faults", least=1e-6, most=1.0, idle=rules.OF_ITERATIONS)
    batch_size: int | None = changed(FitSettings, "batch_size", help="Rows of a batch, after which "
        "centres are updated (incremental Lloyd); an iteration is then a pass over all rows. "
        "Default: all rows at once.", idle=rules.OF_ITERATIONS)
    max_iter: int = changed(FitSettings, "max_iter", 300, help="Maximum number of iterations.",
        least=1)
    dtype: Any = changed(FitSettings, "dtype")
    n_threads: int | None = changed(SumSettings, "n_threads")


class SelectSettings(Settings, heading="Selection", kept=False):
    """A grid of models and how they are judged: see `vpem.fits.selection.search`."""

    n_components: str = setting("1-8", "Numbers of components: 1-8, 1,2,5, 2-20:3 (steps of 3).",
        flags="-k --components", heading="Model", often=True)
    hops: str = setting("0", "Numbers of hops: 0-2. Agents at most this many hops from a root send "
        "it their features.", heading="Network", idle=rules.BY_FEATURES, often=True)
    covariance_type: str = setting("full", "Covariance types, with commas: full, diag, "
        "spherical, tied, tied-diag, tied-spherical, or mclust's names (EEE,VVV); or all.",
        flags="--covariance", heading="Model", words=("all", *COVARIANCES), often=True)
    criterion: str = setting("bic", "bic, aic, icl, sabic, caic, or heldout: log-likelihood of "
        "rows not fitted to. It is per sample, and higher is better; of the others lower is "
        "better, icl being BIC plus twice the entropy of the responsibilities, sabic BIC with "
        "(rows + 2) / 24 in the place of rows, caic BIC plus the number of parameters.",
        choices=CRITERIA, often=True)
    n_folds: int = setting(5, "With --criterion heldout: parts of the rows, each held out once.",
        flags="--folds", least=2, idle=rules.HELD_OUT)
    one_standard_error: bool = setting(False, "With --criterion heldout: choose the model with the "
        "fewest parameters that is at most one standard error worse than the best.",
        idle=rules.HELD_OUT)
    n_jobs: int | None = setting(None, "Number of processes, of one thread each. Results do not "
        "depend on it. Default: all processors.", flags="-j --jobs", heading="Running", least=1,
        most=1024)


class BootstrapSettings(Settings, heading="Bootstrap", kept=False):
    """Standard errors and tests: see `vpem.fits.selection.bootstrap`."""

    n_components: str = setting("2", "Number of components; with --test several, 1-8 or 1,2,5, of "
        "which each is tested against one more until one is not rejected.",
        flags="-k --components", heading="Model", often=True)
    test: bool = setting(False, "Test numbers of components by bootstrap likelihood ratios, "
        "instead of standard errors.", often=True)
    kind: str = setting("weighted", "weighted: rows weigh as exponentials. parametric: rows are "
        "drawn from the fitted model.", choices=BOOTSTRAPS,
        idle=beside(" is for standard errors; {test} draws from the model", test=True))
    n_replicates: int = setting(999, "Replicates; with --test at most, since drawing stops after "
        "20 statistics as large as the observed one.", flags="--replicates", least=2,
        most=1_000_000, often=True)
    level: float = setting(0.95, "Level of the intervals.", least=0.0, most=1.0, above=True,
        idle=beside(" belongs to intervals, and {test} gives none; leave it out", test=True))
    significance: float = setting(0.05, "With --test: the p-value above which a number of "
        "components is not rejected.", least=0.0, most=1.0, above=True,
        idle=unless(" is for {test}; leave it out", test=True))
    n_jobs: int | None = setting(None, "Number of processes, of one thread each. Results do not "
        "depend on it. Default: all processors.", flags="-j --jobs", heading="Running", least=1,
        most=1024)


class DiscriminantSettings(Settings, heading="Model", kept=False):
    """What mixtures of classes are chosen from: see `vpem.fits.discriminant.fit_discriminant`."""

    model_type: str = setting("mclustda", "mclustda: a mixture a class, each with a number of "
        "components and a covariance type of its own. edda: one component a class, and one type "
        "for all.", flags="--type", choices=("mclustda", "edda"), often=True)
    n_components: Any = setting("1-5", "Numbers of components of a class, of which BIC chooses: "
        "1-5, 1,2,4.", flags="-k --components", often=True, idle=beside(
            " is for mixtures: {model_type=edda} has one component a class; leave it out",
            model_type="edda"))
    covariance_type: Any = setting("all", "Covariance types of which BIC chooses, by either "
        "name, with commas, or all.", flags="--covariance", words=("all", *COVARIANCES), often=True)


class SaemSettings(Settings, heading="Method"):
    """Stochastic approximation EM: see `vpem.fit_saem`."""

    method: str = setting("saem", "What an M-step takes. saem: statistics that steps average over "
        "iterations. fl-saem: the latest draws alone, of the devices that take part. mcem: the "
        "latest draws alone, more of them in every iteration. The last two run all iterations and "
        "keep the noise of the last draws.", choices=SAEM_METHODS)
    growth: float = setting(1.0, "mcem: iteration r takes r^G draws of each chain, rounded up.",
        least=0.0, most=2.0, idle=unless(" is for {method=mcem}; leave it out", method="mcem"))
    n_chains: int | None = setting(None, "Chains per individual. Default: 4 to 10, or up to 50 "
        "where latents are drawn exactly, which costs little.", flags="--chains", heading="Sampler",
        least=1, most=10_000)
    n_iter: int = setting(1000, "Maximum number of iterations.", flags="--iterations --max-iter",
        heading="Stopping", least=1, often=True)
    burn_in: int | None = setting(None, "Iterations with step 1, in which samplers adapt. Default: "
        "200, or two fifths of all iterations if they are fewer than 500.", least=0)
    decay: float = setting(0.7, "After the burn-in the k-th step is k^-D, 0.5 < D <= 1.",
        least=0.5, most=1.0, above=True, idle=rules.UNAVERAGED)
    longest_step: Any = setting("auto", "Longest step of the statistics: auto (with a codec what "
        "its noise allows, else 1), or G, 0 < G <= 1. The result states it.",
        idle=rules.UNAVERAGED)
    penalty: str | None = setting(None, "Mixed and linear models: what the mean log-likelihood of "
        "individuals is lowered by. ridge:L, lasso:L or elastic-net:L:SHARE shrink --effects of "
        "covariates, per standard deviation of these and in standard deviations between "
        "individuals; the last two need a diagonal --covariance, and leave effects out. "
        "inverse-wishart:NU:SCALE of the covariance between individuals, in variances that the "
        "model begins with. Default: none.", words=PENALTIES[:4], idle=rules.PENALISED_MODELS)
    average: str = setting("statistics", "What the server averages: statistics, or models of the "
        "devices (biased where devices differ).", heading="Network", choices=AVERAGES)
    shares: str = setting("individuals", "With --average models: whether individuals or devices "
        "have equal weights.", heading="Network", choices=SHARES, idle=rules.OF_MODELS)
    codec: Any = setting(None, "Codec of the statistics that devices send: qsgd:8bits, "
        "natural:12bits, topk:0.1, randk:0.1, blockp:64, float32. Default: numbers as they are.",
        flags="--compress", heading="Messages and faults", words=CODECS, idle=rules.CODED_MODELS)
    feedback: str | None = setting(None, "How devices correct a codec's error. memory: send the "
        "difference from what the server has of the device; error: send the difference from the "
        "server's mean, and add what the codec left out to the next message; change: as error, but "
        "add nothing; none: send statistics as they are, which fails with coarse codecs. Default: "
        "memory with --compress.", heading="Messages and faults", choices=FEEDBACKS,
        idle=[rules.UNCORRECTED, rules.FEEDBACK_OF_MODELS, rules.WITHOUT_CODEC,
              rules.AMONG_NEIGHBOURS])
    participation: float = setting(1.0, "Probability that a device takes part in an iteration.",
        heading="Messages and faults", least=1e-6, most=1.0, idle=beside(
            " leaves noise that more draws do not reduce, as {method=mcem} has no falling steps; "
            "leave it out, or take {method=saem}", method="mcem"))
    missing: str = setting("refuse", "What to do about missing measurements: refuse, or "
        "marginalize. The latter integrates them out, as missing at random. An empty "
        "value is missing, and for bifactor and gmm so is an absent line.", heading="Individuals",
        choices=MISSINGS)
    batch_size: int | None = setting(None, "Individuals of each device, drawn at random, that an "
        "iteration simulates; the latents of the others stay. Default: all.", least=1)
    tol: float = setting(0.1, "Stop when every parameter is closer to its limit than this part of "
        "its standard error; 0: never.", heading="Stopping", least=0.0, idle=rules.UNSETTLED)
    window: int = setting(50, "Iterations from one such check to the next.", heading="Stopping",
        least=1, idle=[rules.UNCHECKED, rules.NEVER])
    n_conditional: int = setting(200, "Draws per chain at the estimates, for individuals, "
        "intervals and standard errors.", flags="--conditional-draws",
        heading="Draws at the estimates", least=2)
    n_importance: int = setting(5000, "Draws per individual for the log-likelihood.",
        flags="--importance-draws", heading="Draws at the estimates", least=10)
    level: float = setting(0.95, "Probability of the intervals of individuals.",
        heading="Draws at the estimates", least=0.01, most=0.999)
    seed: int = setting(0, "Seed of samplers, codecs and participation.", heading="Start", least=0,
        most=2**64 - 1, often=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longest_step != "auto":
            try:
                longest = float(self.longest_step)
            except (TypeError, ValueError):
                longest = 0.0
            if not 0 < longest <= 1:
                raise InputError(Setting("longest_step"), " must be auto, or a number above 0 and "
                    f"at most 1, got {self.longest_step!r}; try 0.5")


class FedSettings(Settings, heading="Method"):
    """FedEM with any statistics: see `vpem.steps.fedem.run_fedem`."""

    step_size: Any = setting("auto", "Step: auto (1 without noise, else what noise allows); G or "
        "constant:G; or decreasing:G,A: G k^-A in iteration k, by default A = 0.5; 0 < G <= 1.")
    participation: float | Any = setting(1.0, "Probability that a worker takes part in an "
        "iteration. Or one for each worker (0.9,0.5 or anna=0.9,bert=0.5), or who is there in one "
        "iteration after the other (anna,bert;cleo), or a JSON file of these.",
        heading="Messages and faults", least=1e-6, most=1.0, often=True)
    batch_size: int | None = setting(None, "Rows that a worker draws of its own in an iteration. "
        "Default: all; with --variance-reduction the square root of half of them.", least=1)
    replacement: bool = setting(False, "Draw the rows of a batch with replacement.",
        idle=rules.NOTHING_DRAWN)
    variance_reduction: bool = setting(False, "Reduce the variance of batches: VR-FedEM.")
    inner: int | None = setting(None, "Inner iterations per outer iteration of VR-FedEM. Default: "
        "as many as cost one pass.", least=1, idle=rules.WITHOUT_VARIANCE_REDUCTION)
    memory: str = setting("first", "Start of the workers' memories: their first corrections "
        "(first), or zero; none: no memories; naive: none, and the mean over those workers that "
        "take part (a baseline).", choices=MEMORIES, idle=[rules.EXACT_ZERO, rules.NAIVE_OF_ALL])
    alpha: float | None = setting(None, "Step of the memories. Default: 1/(1 + omega) of the "
        "codec.", least=0.0, most=1.0, idle=rules.EXACT)
    weighting: str = setting("rows", "Whether rows or workers have equal weights in a mean over "
        "workers.", choices=WEIGHTINGS)
    max_iter: int | None = changed(FitSettings, "max_iter", None, least=0)
    n_epochs: float | None = setting(None, "Stop after the iteration that reaches this many "
        "epochs. An epoch is as many conditional expectations as there are rows; the start takes "
        "one.", flags="--epochs", heading="Stopping", least=0.0, above=True)
    tol: float = setting(1e-10, "Stop when the squared norm of the mean correction is at most this "
        "part of the statistic's, several times in a row where anything is drawn or quantized; or "
        "when only persistent noise moves it. 0: never.", heading="Stopping", least=0.0)
    random_stop: bool = setting(False, "Stop after a number of iterations drawn uniformly from 0 "
        "to --max-iter less 1: the iterate for which theorems on FedEM bound the mean field.",
        heading="Stopping", idle=rules.OF_THEOREMS)
    record_every: int = setting(1, "Iterations from one record of objective and mean field to the "
        "next; a record takes a pass over all rows, which does not count as an epoch.",
        heading="Output", least=1)
    n_threads: int | None = changed(SumSettings, "n_threads")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.participation):
            from vpem.checks import parse_participation  # load NumPy, which `--help` must not

            parse_participation(self.participation)


class FedMixtureSettings(MixtureSettings, FedSettings, heading="Model"):
    """FedEM of a mixture: see `vpem.fit_fedem`."""

    compress: str | None = changed(SumSettings, "compress", help="Codec of what workers send: "
        "qsgd:6bits:32, or qsgd:4bits:32 with a tied covariance. Others: qsgd:8bits, "
        "natural:12bits, blockp:64, randk:0.1, topk:0.1 (with error feedback), float32. The setup "
        "is then sent in few bits, too. Default: numbers as they are.", often=True)
    covariance_type: str = changed(help="full, diag, spherical, tied, tied-diag, tied-spherical. "
        "Tied ones are shared by all components, with far smaller messages.", often=False,
        idle=rules.DECOMPOSED_IN_NOISE)
    missing: str = changed(FitSettings, "missing")
    floor: float | None = setting(None, "Least variance in any direction, relative to that of the "
        "features; smaller ones, which noise can cause, are raised to it. Default: the error of a "
        "sum, at most 1e-4; 0 without noise, as in EM.", least=0.0, most=1.0)
    seed: int = changed(help="Seed of start, workers, batches, codec, and graphs.")
    max_iter: int | None = changed(default=None, help="Maximum number of iterations. Default: 1000 "
        "with constant:1, and more with shorter steps.", least=1)
