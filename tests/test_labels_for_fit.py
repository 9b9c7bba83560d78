"""Labels of some rows as a term of the sum, against EM in NumPy; how they are given in a shell."""

import csv

import h5py
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import entropy, multivariate_normal

from vpem import VPEM, InputError, connect, fit_vpem, make_graph, read_model
from vpem.errors import VpemWarning
from vpem.fits.labels import KnownLabels
from vpem.fits.spread import fit_spread, own_columns
from vpem.network.partition import from_lists
from vpem.sums.connect import spread
from vpem.terms.families.kinds import Kinds

from .cli_support import done, overlapping, run
from .missing_support import dense, with_holes
from .resume_support import check_resumes
from .tables import each, over
from .thread_engine import together

pytestmark = pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")

HELD = [[0, 3], [1], [2, 4]]
K = 3


def data(seed=0, n_samples=150, share=0.2):
    """Rows of classes that overlap, and labels of some: -1 is unknown."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(K, size=n_samples)
    X = rng.standard_normal((n_samples, 5)) + 1.2 * rng.standard_normal((K, 5))[truth]
    return X, np.where(rng.random(n_samples) < share, truth, -1), truth


def network(topology="star", **how):
    return connect(make_graph(topology, 3, seed=0), from_lists(HELD, 5), n_threads=1, **how)


def fitted(X, labels, net=None, **how):
    how = {"n_components": K, "n_threads": 1, "max_iter": 8, "tol": 0, "reg_covar": 1e-6, **how}
    return fit_vpem(X, net or network(), labels_for_fit=labels, **how)


def soft(labels, rng=None):
    """Probabilities of what is known, NaN of what is not."""
    found = np.full((len(labels), K), np.nan)
    known = labels >= 0
    found[known] = np.eye(K)[labels[known]]
    if rng is not None:
        found[known] = 0.6 * found[known] + 0.4 * rng.dirichlet(np.ones(K), known.sum())
    return found


def textbook(X, shares, weights, n_iter, reg=1e-6):
    """Semi-supervised EM over blocks: what is known of a row is a density of its component."""
    known = ~np.isnan(shares[:, 0])
    told = np.where(known[:, None], shares, 1.0)
    with np.errstate(divide="ignore"):
        log_told = np.log(told)
    unknown = entropy(told, axis=1) / np.log(K)
    own = np.where(known, weights * (1 - unknown), 0.0)[:, None] * told
    means = own.T @ X / own.sum(axis=0)[:, None]
    mask = np.zeros((5, 5))
    for block in HELD:
        mask[np.ix_(block, block)] = 1
    pooled = np.cov(X.T, aweights=weights, bias=True) * mask + reg * np.eye(5)
    pi, covariances, history = np.full(K, 1 / K), np.array([pooled] * K), []
    for _ in range(n_iter):
        joint = np.column_stack([
            np.log(pi[k]) + multivariate_normal(means[k], covariances[k]).logpdf(X)
            for k in range(K)
        ]) + log_told  # fmt: skip
        score = logsumexp(joint, axis=1)
        history.append(weights @ score)
        shared = np.exp(joint - score[:, None]) * weights[:, None]
        n = shared.sum(axis=0)
        pi, means = n / n.sum(), shared.T @ X / n[:, None]
        for k in range(K):
            off = X - means[k]
            covariances[k] = (shared[:, k] * off.T) @ off / n[k] * mask + reg * np.eye(5)
    return history, pi, means, covariances


@over(
    kind=["hard", "soft"], weighted=[False, True],
    how=[("star", {}), ("cycle", {"sum": "tree"}), ("star", {"secure_sum": True})],
    agent=[0, 2], batch=[None, 150],
)  # fmt: skip
def test_semi_supervised_em_of_the_textbook(kind, weighted, how, agent, batch):
    X, labels, _ = data()
    rng = np.random.default_rng(1)
    shares = soft(labels, rng if kind == "soft" else None)
    weights = rng.uniform(0.5, 2, len(X)) if weighted else np.ones(len(X))
    topology, options = how
    found = fitted(
        X, KnownLabels(labels if kind == "hard" else shares, agent), network(topology, **options),
        sample_weight=weights if weighted else None, batch_size=batch,
    )  # fmt: skip
    history, pi, means, covariances = textbook(X, shares, weights, 8)
    # Under masks terms are in fixed point.
    exact = {"rtol": 1e-6} if options.get("secure_sum") else {"rtol": 1e-10}
    np.testing.assert_allclose(found.history[:, 0], history, **exact)
    np.testing.assert_allclose(found.mixture.assembled_weights, pi, **exact)
    np.testing.assert_allclose(found.mixture.assembled_means, means, **exact, atol=1e-9)
    np.testing.assert_allclose(dense(found.mixture)[1], covariances, **exact, atol=1e-9)


@over(topology=["star", "cycle"], missing=[False, True], families=[False, True])
def test_certain_probabilities_are_labels_and_no_labels_are_none(topology, missing, families):
    X, labels, _ = data()
    how = {"kinds": Kinds(("gaussian",) * 4 + ("poisson",))} if families else {}
    X[:, 4] = np.round(np.abs(X[:, 4]))
    if missing:
        X, how["missing"] = with_holes(X, 2), "marginalize"
    net = network(topology)
    one, other = (fitted(X, what, net, **how) for what in (labels, soft(labels)))
    np.testing.assert_array_equal(one.history, other.history)
    assert (np.diff(one.history, axis=0) > -1e-6).all()
    proba = one.mixture.predict_proba(X, missing="marginalize" if missing else "refuse")
    assert one.labels_for_fit == {
        "agent": 0,
        "n_rows": (labels >= 0).sum(),
        "names": ["0", "1", "2"],
        "rows": [(labels == k).sum() for k in range(3)],
    }
    assert (proba.argmax(axis=1) == labels)[labels >= 0].mean() > 0.6
    plain, none = fitted(X, None, net, **how), fitted(X, np.full(len(X), -1), net, **how)
    np.testing.assert_array_equal(plain.history, none.history)
    assert none.labels_for_fit is None


@each("how", [{"compress": "natural:12bits"}, {"consensus": "rounds"}, {"link_failure": 0.1}])
def test_rounds_come_to_what_the_operator_does(how):
    X, labels, _ = data(3)
    plan = fitted(X, labels, network("cycle", consensus="operator"), max_iter=25, reg_covar=1e-2)
    found = fitted(X, labels, network("cycle", **how), max_iter=25, reg_covar=1e-2)
    np.testing.assert_allclose(
        found.mixture.assembled_means, plan.mixture.assembled_means, atol=1e-3
    )
    assert found.log_likelihood == pytest.approx(plan.log_likelihood, rel=1e-4)


@pytest.mark.filterwarnings("ignore:hops=1 centralizes")
@over(n_ranks=[2, 4], agent=[0, 2], where=[("star", 0), ("cycle", 0), ("cycle", 1)])
def test_processes_find_what_one_finds(n_ranks, agent, where):
    X, labels, _ = data(2)
    topology, hops = where
    net = network(topology, hops=hops)
    wanted = fitted(X, KnownLabels(labels, agent), net)

    def work(engine):
        ranked = spread(net, engine)
        own = KnownLabels(labels, agent) if ranked.agents.mine(agent) else None
        return fit_spread(
            X[:, own_columns(ranked)], ranked, labels_for_fit=own, n_components=K, n_threads=1,
            max_iter=8, tol=0, reg_covar=1e-6,
        )  # fmt: skip

    found = together(n_ranks, work)
    np.testing.assert_allclose(found[0].history, wanted.history, rtol=1e-9)
    for one in found:
        assert one.labels_for_fit == wanted.labels_for_fit


def test_a_broken_run_goes_on_to_the_same_bit():
    X, labels, _ = data(4)
    for how in ({}, {"batch_size": 40}, {"accelerate": "squarem"}):
        check_resumes(lambda saver, how=how: fitted(X, labels, saver=saver, max_iter=6, **how))


@each("init", ["random", "k-means++", "kmeans"])
def test_components_without_labels_are_found_beside_the_others(init):
    X, labels, truth = data(5, 200, 0.3)
    X += 3 * np.eye(5)[truth]
    labels = np.where(labels == 1, labels, -1).astype(object)
    labels[labels == 1] = "rare"
    labels[labels == -1] = None
    found = fitted(X, labels, init=init, max_iter=30, n_init=4)
    assert found.labels_for_fit["names"] == ["rare"]
    components = found.mixture.predict(X)
    assert np.mean(components[truth == 1] == 0) > 0.9
    assert np.mean(components[truth != 1] == 0) < 0.1


def test_labels_help_where_components_overlap():
    X, labels, truth = data(7, 400, 0.1)
    net = network()
    found = fitted(X, labels, net, max_iter=200, tol=1e-7)
    assert (found.mixture.predict(X) == truth).mean() > 0.55
    made = VPEM(K, agents=HELD, random_state=0).fit(X, labels_for_fit=labels)
    np.testing.assert_allclose(made.means_, found.mixture.assembled_means, rtol=1e-3, atol=1e-3)
    assert "0 = 0" in made.summary()


def test_a_row_whose_features_outweigh_its_label_is_told():
    X, labels, _ = data(8)
    start = fitted(X, None, max_iter=0, init=[0, 1, 2]).mixture
    labels[:] = -1
    X[7], labels[7] = 1e3 + X[1], 0
    start.means[1] += 1e3
    with pytest.warns(VpemWarning, match="1 labelled row belongs to components other .* 2048 nats"):
        fitted(X, labels, init=start, max_iter=0)


@each(
    ("labels", "sentence"),
    [
        (np.arange(150), "150 different labels .* 3 components"),
        (np.zeros(7), "for each of 150 rows, got shape"),
        (np.zeros((150, 2)), "probabilities of 2 components"),
        (np.full((150, 3), 0.5), "row 0 must be probabilities that add up to 1"),
        (KnownLabels(np.zeros(150), 9), "agent 9, but there are 3 agents"),
    ],
)
def test_what_is_refused(labels, sentence):
    with pytest.raises(InputError, match=sentence):
        fitted(data()[0], labels)


HEADS = ["a", "b", "c", "d", "e", "f"]


def write(path, heads, *columns):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([heads, *zip(*columns, strict=True)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One labelling of the same rows in every form."""
    home = tmp_path_factory.mktemp("labels")
    X, codes = overlapping()
    known = np.random.default_rng(1).random(len(X)) < 0.3
    ids, words = [f"p{row}" for row in range(len(X))], np.array(["well", "ill"])[codes]
    told = np.where(known, words, np.where(np.arange(len(X)) % 2, "", "?"))
    shares = np.where(known[:, None], codes[:, None] == [1, 0], np.nan)
    soft = [["" if one != one else one for one in column] for column in shares.T.tolist()]
    write(home / "data.csv", ["id", *HEADS, "state", "was ill", "was well"], ids, *X.T, told, *soft)
    (home / "lines.txt").write_text("\n".join(told) + "\n")
    write(home / "headed.csv", ["state"], told)
    some = np.flatnonzero(known)[::-1]
    write(home / "few.csv", ["id", "state"], [ids[row] for row in some], words[some])
    write(home / "rows.csv", ["row", "state"], some, words[some])
    write(home / "one.csv", ["id", *HEADS[:3]], ids, *X.T[:3])
    write(home / "two.csv", ["id", *HEADS[3:], "state"], ids, *X.T[3:], told)
    (home / "parties.toml").write_text(
        '[[party]]\nfile = "one.csv"\n[[party]]\nfile = "two.csv"\nlabels-for-fit = "state"\n'
    )
    with h5py.File(home / "data.h5", "w") as file:
        file["X"], file["known/state"], file["known/soft"] = X, told.astype("S4"), shares
    return home


HOW = ("-k", "2", "--agents", "2", "--json", "--max-iter", "4", "--features", "a,b,c,d,e,f")
PLAIN = HOW[:-2]


@pytest.fixture
def fit(capsys, folder, monkeypatch):
    monkeypatch.chdir(folder)
    return lambda words: done(capsys, "fit", *words)


FORMS = [
    ["data.csv", *HOW, "--labels-for-fit", word]
    for word in ("lines.txt", "headed.csv", "few.csv", "rows.csv", "was ill,was well")
] + [
    ["data.h5", *PLAIN, "--dataset", "X", "--labels-for-fit", "known/state"],
    ["data.h5", *PLAIN, "--dataset", "X", "--labels-for-fit", "known/soft"],
    ["data.csv", *HOW, "--labels-for-fit", "state", "--labels-at", "agent 1"],
    ["parties.toml", "--parties", "--align", "ids", "-k", "2", "--json", "--max-iter", "4"],
    ["one.csv", "two.csv", "--parties", "--align", "ids", "-k", "2", "--json", "--max-iter", "4",
     "--labels-for-fit", "state", "--labels-at", "two"],
]  # fmt: skip


def test_all_ways_to_give_labels_are_one_fit(fit):
    first = fit(["data.csv", *HOW, "--labels-for-fit", "state"])
    same = first.json["labels_for_fit"]
    assert same["names"] == ["ill", "well"]
    assert "component 0 is ill (" in first.err
    for words in FORMS:
        other = fit(words).json
        np.testing.assert_allclose(other["history"], first.json["history"], 1e-9, err_msg=words)
        assert other["labels_for_fit"]["rows"] == same["rows"], words


def test_names_are_kept_and_found_again_by_a_start(fit, tmp_path):
    model = tmp_path / "m.h5"
    words = ["data.csv", *HOW, "--labels-for-fit", "state", "--drop", "was ill,was well"]
    fit([*words, "-o", model])
    assert read_model(model).report["labels_for_fit"]["names"] == ["ill", "well"]
    write(tmp_path / "well.csv", ["id", "s"], ["p3"], ["well"])
    go_on = ["data.csv", *HOW, "--init-model", model, "--labels-for-fit", tmp_path / "well.csv"]
    assert fit(go_on).json["labels_for_fit"]["rows"] == [0, 1]


@over(case=[
    (["--labels-for-fit", "state", "-k", "1"], "fit --components 2"),
    (["--labels-for-fit", "state", "-k", "2-3"], "not counted by BIC"),
    (["--labels-for-fit", "state", "--split", "rows"], "leave it out"),
    (["--labels-for-fit", "state", "--release-epsilon", "1", "--delta", "1e-5"], "data too"),
        (["--labels-for-fit", "state", "--labels-at", "9"], "must be an agent"),
    (["--labels-for-fit", "state", "--labels-at", "9" * 5000], "must be an agent"),
    (["--labels-for-fit", "stat"], "neither a column nor a file"),
    (["--labels-for-fit", "strange.csv"], "'px', of which the data have no row"),
    (["--labels-for-fit", "twice.csv"], "two labels of 'p1'"),
    (["--labels-for-fit", "short.csv"], "has 3 lines, but the data have 150 rows"),
    (["--labels-for-fit", "sum.csv"], "add up to 1"),
    (["--labels-for-fit", "state,a"], "it holds labels"),
    (["--labels-at", "1"], "add --labels-for-fit"),
])  # fmt: skip
def test_refused_in_a_sentence(case, capsys, folder, monkeypatch):
    words, sentence = case
    monkeypatch.chdir(folder)
    write("strange.csv", ["id", "s"], ["p1", "px"], ["ill", "ill"])
    write("twice.csv", ["id", "s"], ["p1", "p1"], ["ill", "ill"])
    write("short.csv", ["s"], ["ill", "ill"])
    write("sum.csv", ["id", "x", "y"], ["p1"], [0.5], [0.7])
    found = run(capsys, "fit", "data.csv", "-k", "2", *HOW[-2:], *words)
    assert found.code == 2
    assert sentence in found.err
