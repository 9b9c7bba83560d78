"""Models of the curved exponential family that a user brings, by the page that shows how."""

import re

import numpy as np
import pytest

import vpem
from vpem.network.partition import from_worker_of_row
from vpem.sums.connect import spread_workers

from .cli_support import overlapping
from .forks import ROOT
from .resume_support import check_resumes
from .tables import each
from .thread_engine import together

START = np.full(3, 1 / 3), np.array([1.0, 8.0, 20.0])
WORKERS = from_worker_of_row(np.random.default_rng(1).permutation(np.repeat(range(4), 150)))


@pytest.fixture(scope="module")
def page():
    text = (ROOT / "docs/how-to/family-model.md").read_text(encoding="utf-8")
    names = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(block, names)
    return names


@pytest.fixture(scope="module")
def exact(fit):
    """EM to its end."""
    return fit(tol=1e-20)


@pytest.fixture(scope="module")
def fit(page):
    def call(workers=WORKERS, data=page["counts"], start=START, graph="star", network=None, **how):
        joined = None
        if graph != "star" or network:
            joined = vpem.connect_workers(vpem.make_graph(graph, 4), **(network or {}))
        family = page["PoissonMixture"](3)
        return vpem.fit_family(family, data, workers, start, network=joined, **how)

    return call


def by_hand(family, X, parameters, n_iter):
    """Return parameters after every iteration of EM on all rows."""
    found = []
    for _ in range(n_iter):
        parameters = family.maximization(family.expectation(parameters, X))
        found.append(parameters)
    return found


@pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")
@each("workers", [1, 7, WORKERS])
def test_without_noise_it_is_em_on_all_rows(page, fit, workers):
    family, X = page["PoissonMixture"](3), page["counts"].astype(float)
    wanted = by_hand(family, X, START, 13)
    found = fit(workers, max_iter=12, tol=0.0)
    np.testing.assert_allclose(found.parameters[1], wanted[-1][1], rtol=1e-12)
    objectives = [family.objective(parameters, X) for parameters in wanted]
    np.testing.assert_allclose(found.run.history.objective, objectives, rtol=1e-12)
    assert (np.diff(found.run.history.objective) > -1e-13).all()


@each(
    ("options", "tolerance"),
    [
        ({"compress": "qsgd:8bits:32", "participation": 0.5}, 1e-6),
        ({"batch_size": 20, "variance_reduction": True}, 1e-6),
        ({"graph": "cycle"}, 1e-6),
        ({"graph": "path", "network": {"sum": "tree"}}, 1e-7),
        ({"network": {"secure_sum": True}}, 1e-5),
        ({"graph": "complete", "network": {"link_failure": 0.2}, "max_iter": 1000}, 1e-3),
    ],
)
def test_every_way_ends_where_em_does(fit, exact, options, tolerance):
    found = fit(tol=1e-18, **options)
    assert found.converged
    np.testing.assert_allclose(found.parameters[1], exact.parameters[1], rtol=tolerance * 10)
    assert abs(found.objective - exact.objective) < tolerance


def test_regressions_of_the_page(page):
    weights, coefficients, variances = page["lines"].parameters
    order = np.argsort(coefficients[:, 0])
    np.testing.assert_allclose(coefficients[order], [[1, 2], [4, -1]], atol=0.1)
    np.testing.assert_allclose(variances, 0.09, rtol=0.3)
    np.testing.assert_allclose(weights[order], [0.6, 0.4], atol=0.06)
    X = np.column_stack([page["x"], page["y"]])
    family = page["RegressionMixture"](2, 1)
    wanted = by_hand(family, X, page["begin"], page["lines"].n_iter + 1)[-1]
    for ours, theirs in zip(page["lines"].parameters, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


class Normals(vpem.ExponentialFamily):
    """A spherical Gaussian mixture of equal and known variances: what FedEM has by itself."""

    def __init__(self, k, d, variance):
        self.k, self.d, self.variance = k, d, variance
        self.size = k * (1 + d)
        self.pieces = (slice(0, k), slice(k, self.size))

    def _log_joint(self, parameters, X):
        weights, means = parameters
        squares = ((X[:, None] - means) ** 2).sum(axis=2)
        constant = -0.5 * self.d * np.log(2 * np.pi * self.variance)
        return np.log(weights) - 0.5 * squares / self.variance + constant

    def expectation(self, parameters, X):
        log_joint = self._log_joint(parameters, X)
        r = np.exp(log_joint - np.logaddexp.reduce(log_joint, axis=1, keepdims=True))
        return np.concatenate([r.mean(axis=0), (r.T @ X / len(X)).ravel()])

    def maximization(self, statistic):
        shares = statistic[: self.k]
        return shares, statistic[self.k :].reshape(self.k, self.d) / shares[:, None]

    def objective(self, parameters, X):
        return np.logaddexp.reduce(self._log_joint(parameters, X), axis=1).mean()


@pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")
def test_a_gaussian_mixture_is_that_of_fedem():
    X, _ = overlapping(120, 3, 2, gap=2.0, seed=6)
    known, workers = 0.8 * np.eye(3), from_worker_of_row(np.repeat(range(3), [50, 30, 40]))
    theirs = vpem.fit_fedem(
        X, workers, n_components=2, covariance_type="tied", known_covariance=known, init=[3, 77],
        max_iter=8, tol=0.0,
    )  # fmt: skip
    start = np.full(2, 0.5), X[[3, 77]]
    ours = vpem.fit_family(Normals(2, 3, 0.8), X, workers, start, max_iter=8, tol=0.0)
    assert len(ours.run.history.objective) == 9
    np.testing.assert_allclose(ours.run.history.objective, theirs.run.history.objective, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::vpem.VpemWarning")
@each("names", [(0, 1), ("w", "r"), ("the w", "r"), None])
def test_a_trace_has_statistics_as_they_are_and_parameters_that_are_arrays(page, tmp_path, names):
    class Named(page["PoissonMixture"]):
        def log_joint(self, parameters, X):
            if isinstance(parameters, dict):
                parameters = parameters.values()
            return super().log_joint(tuple(parameters), X)

        def maximization(self, statistic):
            found = super().maximization(statistic)
            if names is None:
                return np.stack(found)
            return found if names == (0, 1) else dict(zip(names, found, strict=True))

        def project(self, statistic):
            return statistic * 1.01

    trace = vpem.Trace()
    fit = vpem.fit_family(Named(3), page["counts"], 4, START, max_iter=3, tol=0.0, callback=trace)
    trace.write(tmp_path / "t.h5", force=True)
    for one in (trace, vpem.read_trace(tmp_path / "t.h5")):
        assert one["statistic"][-1].tolist() == fit.statistic.tolist()
        known = list(one.records[-1]["parameters"])
        if names is None:
            assert one["parameters"][-1].tolist() == fit.parameters.tolist()
        elif "the w" in names:  # which is no name of an array in a file
            assert known == []
        else:
            assert known == [f"parameters_{name}" for name in names]
            assert one[known[1]][-1].tolist() == fit.parameters[names[1]].tolist()


@pytest.mark.filterwarnings("ignore::vpem.NotConvergedWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 20, "variance_reduction": True},
        {"compress": "qsgd:6bits:32", "participation": 0.5},
    ],
    ids=str,
)
def test_processes_and_resuming_change_nothing(page, fit, options):
    """Processes but for the order in which some numbers are added; resuming to the bit."""
    options = {"max_iter": 9, "tol": 0.0, **options}
    one = fit(**options)

    def spread(engine):
        network = spread_workers(vpem.connect_workers(vpem.make_graph("star", 4)), engine)
        rows = np.concatenate([WORKERS.rows[worker] for worker in network.agents.own])
        return vpem.fit_family(
            page["PoissonMixture"](3), page["counts"][rows], WORKERS, START, network=network,
            **options,
        )  # fmt: skip

    for found in together(3, spread):
        np.testing.assert_allclose(found.statistic, one.statistic, rtol=1e-12)
        np.testing.assert_allclose(
            found.run.history.objective, one.run.history.objective, rtol=1e-13
        )
        assert found.communication == one.communication

    def same(found, wanted):
        np.testing.assert_array_equal(found.statistic, wanted.statistic)
        assert found.run.history == wanted.run.history

    check_resumes(lambda saver: fit(saver=saver, **options), same)


def test_rows_are_not_changed():
    """What a method does to rows would stay, and count in all that follows."""

    class Rude(Normals):
        def expectation(self, parameters, X):
            X *= 2
            return super().expectation(parameters, X)

    X = np.random.default_rng(0).normal(size=(20, 1))
    with pytest.raises(ValueError, match="read-only"):
        vpem.fit_family(Rude(2, 1, 1.0), X, 2, (np.full(2, 0.5), X[:2]))


@each("pieces", [slice(0, 4), (slice(None, 2), slice(2, None))])
def test_pieces_are_slices_as_of_numpy(pieces):
    X = np.random.default_rng(0).normal(size=(20, 1))
    start = np.full(2, 0.5), X[:2]
    ours, theirs = (
        vpem.fit_family(family, X, 2, start, tol=1e-12).statistic
        for family in (Wrong(pieces=pieces), Normals(2, 1, 1.0))
    )
    np.testing.assert_array_equal(ours, theirs)


def test_projections_are_counted_and_said(page):
    """Noise at the least bits pushes shares below what they may be."""
    X = np.where(np.arange(200) < 3, 50, 2)[:, None]
    start = np.array([0.5, 0.5]), np.array([2.0, 40.0])
    with pytest.warns(vpem.VpemWarning):
        found = vpem.fit_family(
            page["PoissonMixture"](2), X, 2, start, compress="qsgd:2bits", step_size=1.0,
            memory="none", max_iter=30,
        )  # fmt: skip
    assert found.run.projections > 0


class Wrong(Normals):
    def __init__(self, **what):
        super().__init__(2, 1, 1.0)
        self.__dict__.update(what)


@each(
    ("changes", "why"),
    [
        (
            {"size": 5, "pieces": None},
            r"Wrong.expectation must return 5 finite numbers, got shape \(4,\)",
        ),
        ({"size": None}, "Wrong must have a size"),
        ({"size": 0}, "Wrong.size"),
        ({"pieces": (slice(0, 2), slice(3, 4))}, "Wrong.pieces must be slices that cover the 4"),
        ({"pieces": (slice(0, 2),)}, "Wrong.pieces"),
        ({"pieces": (slice(0, 3), slice(2, 4))}, "Wrong.pieces"),
        ({"pieces": slice(0, 2)}, "Wrong.pieces"),
        ({"pieces": (0, 1)}, "Wrong.pieces"),
        ({"pieces": (slice(0, 4, 2), slice(4, 4))}, "Wrong.pieces"),
        ({"bounds": [1.0, 0.0, 1.0, 1.0]}, "Wrong.bounds must be above 0"),
        ({"bounds": [1.0]}, "Wrong.bounds must be 4 finite numbers"),
        ({"least_batch": 0}, "least_batch"),
        ({"expectation": lambda p, X: np.full(4, 1j)}, "Wrong.expectation must return 4 finite"),
        ({"expectation": lambda p, X: np.full(4, np.nan)}, "Wrong.expectation .* NaN or infinity"),
        ({"expectation": lambda p, X: "much"}, "Wrong.expectation must return 4 finite numbers"),
        ({"objective": lambda p, X: None}, "Wrong.objective must return a finite number"),
        ({"project": lambda s: s[:2]}, r"Wrong.project must return 4 finite numbers"),
    ],
)
def test_wrong_models_are_one_sentence(changes, why):
    X = np.random.default_rng(0).normal(size=(20, 1))
    with pytest.raises(vpem.InputError, match=why):
        vpem.fit_family(Wrong(**changes), X, 2, (np.full(2, 0.5), X[:2]))


@each(
    ("arguments", "why"),
    [
        ({"X": np.ones((5, 1))}, "the workers hold 20 rows, but the data have 5"),
        ({"X": [["a"], ["b"]], "workers": 1}, "real numbers"),
        ({"X": np.array([[1.0], [np.inf]]), "workers": 1}, "row 1, feature 0 is inf"),
        ({"X": np.ones(4), "workers": 1}, "2-D"),
        ({"family": int}, "subclass of vpem.ExponentialFamily, got the class int"),
        ({"workers": [[0, 1], [2]]}, "the workers must be an array"),
        ({"workers": 0}, "workers"),
        ({"seed": -1}, "seed"),
        ({"alpha": 0.5}, "no memory changes"),
        ({"compress": "zip"}, "zip"),
        ({"batch_size": 0}, "batch_size"),
        ({"workers": 3, "network": vpem.connect_workers(vpem.make_graph("cycle", 4))}, "3 workers"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments, why):
    X = np.random.default_rng(0).normal(size=(20, 1))
    given = {"family": Normals(2, 1, 1.0), "X": X, "start": (np.full(2, 0.5), X[:2])}
    given["workers"] = from_worker_of_row(np.repeat([0, 1], 10))
    with pytest.raises(vpem.InputError, match=why):
        vpem.fit_family(**given | arguments)


@each("scale", [1e-6, 1e12])
def test_masks_suit_numbers_of_any_size(scale):
    """Rows times a factor have means times that factor, also where numbers are tiny."""
    X = np.random.default_rng(0).normal(size=(60, 1)) + 4 * (np.arange(60)[:, None] % 2)
    star = vpem.connect_workers(vpem.make_graph("star", 3), secure_sum=True)
    found = [
        vpem.fit_family(
            Normals(2, 1, factor**2), X * factor, 3, (np.full(2, 0.5), factor * X[:2]),
            network=star if masked else None, tol=1e-18,
        ).parameters[1] / factor
        for factor, masked in [(1.0, False), (scale, True)]
    ]  # fmt: skip
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_a_checkpoint_is_of_one_run(tmp_path, fit, page):
    """Another division of rows, start, or attribute is refused; messages are counted once."""
    from vpem.files.checkpoints import FileSaver

    class Ended(Exception):
        pass

    def stop(progress):
        if progress.iteration == 4:
            raise Ended

    tree = vpem.connect_workers(vpem.make_graph("path", 4), sum="tree")
    common = {"network": {"sum": "tree"}, "graph": "path", "max_iter": 9, "tol": 0.0}
    whole = fit(**common)
    path = tmp_path / "state.h5"
    with pytest.raises(Ended):
        fit(saver=FileSaver(path, every=2), callback=stop, **common)
    other = from_worker_of_row(np.repeat(range(4), 150))
    swapped = START[0], START[1][::-1]
    heavy = page["PoissonMixture"](3)
    heavy.penalty = 1.0
    for family, workers, start in [
        (page["PoissonMixture"](3), other, START),
        (page["PoissonMixture"](3), WORKERS, swapped),
        (heavy, WORKERS, START),
    ]:
        with pytest.raises(vpem.VpemError):
            vpem.fit_family(
                family, page["counts"], workers, start, network=tree, max_iter=9, tol=0.0,
                saver=FileSaver(path, resume=True),
            )  # fmt: skip
    resumed = fit(saver=FileSaver(path, resume=True), **common)
    np.testing.assert_array_equal(resumed.statistic, whole.statistic)
    assert resumed.communication == whole.communication
