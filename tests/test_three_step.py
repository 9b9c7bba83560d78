"""Outcomes of classes in three steps: the formulas in NumPy, derivatives StepMix."""

import json

import h5py
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, softmax
from scipy.stats import chi2, norm

from vpem import (
    VPEM,
    connect,
    fit_vpem,
    logit_coefficients,
    logit_errors,
    make_graph,
    read_model,
    three_step,
)
from vpem.errors import InputError, NotConvergedWarning, VpemWarning
from vpem.fits.spread_rows import describe_score
from vpem.network.partition import from_lists
from vpem.pictures.page import contents_of
from vpem.pictures.saved import EvaluationData, read_saved
from vpem.terms.families.kinds import Kinds
from vpem.terms.three_step import inference

from .cli_support import done, run
from .tables import each

LEVELS = np.array(["a", "b", "c"])


def drawn(n=400, seed=1):
    """Return features, a covariate that moves the classes, a number and a category of classes."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=n)
    classes = (rng.random(n) < expit(z)).astype(int)
    X = rng.normal(size=(n, 3)) + 1.6 * classes[:, None]
    y = rng.normal(size=n) * (1 + classes) + 2 * classes
    g = (rng.random(n)[:, None] > np.array([[0.2, 0.7], [0.5, 0.6]])[classes]).sum(axis=1)
    return X, z, y, LEVELS[g]


def fuzzy(n=300, k=3, seed=0):
    """Return responsibilities of uncertain rows, weights, and outcomes of their true classes."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(k, size=n)
    X = rng.normal(size=n) + 2 * classes
    proba = softmax(-0.5 * np.square(X[:, None] - 2 * np.arange(k)), axis=1)
    y = rng.normal(size=n) * (1 + classes) + 3 * classes - 50
    chances = np.array([[0.3, 0.5], [0.4, 0.9], [0.6, 0.8]])[classes]
    g = LEVELS[(rng.random(n)[:, None] > chances).sum(axis=1)]
    Z = rng.normal(size=(n, 2)) * [1, 20] + np.stack([0.5 * classes, 0 * classes], axis=1)
    return proba, rng.integers(1, 4, n).astype(float), {"y": y, "g": g, "z": Z}


def steps_of(proba, weights, assignment):
    """Return assigned classes and D as in Vermunt (2010), by loops."""
    k = proba.shape[1]
    assigned = np.eye(k)[proba.argmax(axis=1)] if assignment == "modal" else proba
    errors = np.zeros((k, k))
    for t in range(k):
        for s in range(k):
            errors[t, s] = (weights * proba[:, t] * assigned[:, s]).sum()
        errors[t] /= (weights * proba[:, t]).sum()
    return assigned, errors


def likelihood_of(kind, values, weights, assigned, errors):
    """Return the log-likelihood of each row by parameters: logits, then the outcome's."""
    k, n = len(errors), len(weights)
    x = np.column_stack([np.ones(n), values]) if kind == "z" else np.ones((n, 1))
    p = x.shape[1]

    def rows(theta):
        logits = np.vstack([np.zeros(p), theta[: (k - 1) * p].reshape(k - 1, p)])
        logs, rest = x @ logits.T, theta[(k - 1) * p :].reshape(k, -1)
        logs = logs - np.log(np.exp(logs).sum(axis=1, keepdims=True))
        if kind == "y":
            off = np.square(values[:, None] - rest[:, 0]) / rest[:, 1]
            logs = logs - 0.5 * (off + np.log(2 * np.pi * rest[:, 1]))
        if kind == "g":
            chances = np.column_stack([rest, 1 - rest.sum(axis=1)])
            logs = logs + np.log(chances)[:, np.searchsorted(LEVELS, values)].T
        return (assigned * np.log(np.exp(logs) @ errors)).sum(axis=1)

    return rows


def sandwich(rows, theta, weights):
    """Return the gradient and robust variances, by central differences."""
    h = 1e-4 * np.maximum(1, abs(theta))
    unit = np.diag(h)
    scores = np.stack([(rows(theta + one) - rows(theta - one)) for one in unit], axis=1) / (2 * h)
    hessian = np.array([
        [weights @ (rows(theta + one + two) - rows(theta + one - two)
                    - rows(theta - one + two) + rows(theta - one - two)) for one in unit]
        for two in unit
    ]) / (4 * np.outer(h, h))  # fmt: skip
    bread = np.linalg.inv(hessian)
    spread = bread @ ((scores * weights[:, None]).T @ scores) @ bread
    return weights @ scores, np.diagonal(spread)


def given(kind, outcomes, **options):
    return {"covariates" if kind == "z" else "outcome": outcomes[kind], **options}


def told(found):
    """Return free estimates and their errors, class by class."""
    both = []
    for parts in (found["estimates"], found["standard_errors"]):
        names = {"continuous": ["means", "variances"]}.get(found["kind"], [*parts])
        table = np.column_stack([parts[name] for name in names])
        cuts = {"categorical": (slice(0, None), slice(0, -1)), "covariates": (slice(1, None),)}
        both.append(table[cuts.get(found["kind"], ())].ravel())
    return both


@each("assignment", ["modal", "proportional"])
@each("kind", ["y", "g", "z"])
def test_no_parameters_are_likelier_and_errors_are_those_of_the_sandwich(kind, assignment):
    proba, weights, outcomes = fuzzy()
    options = {"sample_weight": weights, "method": "ml", "assignment": assignment}
    found = three_step(proba, **given(kind, outcomes, **options))
    assigned, errors = steps_of(proba, weights, assignment)
    np.testing.assert_allclose(found["classification"], errors, rtol=1e-12)
    rows = likelihood_of(kind, outcomes[kind], weights, assigned, errors)
    estimates, robust = told(found)
    theta = estimates
    if kind != "z":  # sizes of classes, which are not told, and are found here
        begun = np.zeros(2)
        sizes = minimize(lambda at: -weights @ rows(np.append(at, estimates)), begun, tol=1e-9).x
        theta = np.append(sizes, estimates)
    slopes, variances = sandwich(rows, theta, weights)
    assert (abs(slopes) * np.sqrt(variances)).max() < 2e-3  # in standard errors, by differences
    n = len(estimates)
    np.testing.assert_allclose(robust, np.sqrt(variances[-n:]), rtol=2e-3)


@each("assignment", ["modal", "proportional"])
def test_bch_is_weighted_means_and_a_weighted_logit(assignment):
    proba, weights, outcomes = fuzzy()
    options = {"sample_weight": weights, "method": "bch", "assignment": assignment}
    assigned, errors = steps_of(proba, weights, assignment)
    w = assigned @ np.linalg.inv(errors)
    np.testing.assert_allclose(w.sum(axis=1), 1)
    y, counts = outcomes["y"], weights @ w
    found = three_step(proba, **given("y", outcomes, **options))
    means = (weights * y) @ w / counts
    off = y[:, None] - means
    variances = (weights[:, None] * w * off**2).sum(axis=0) / counts
    for name, values, apart in (
        ("means", means, off),
        ("variances", variances, off**2 - variances),
    ):
        np.testing.assert_allclose(found["estimates"][name], values, rtol=1e-9)
        squares = (weights[:, None] * (w * apart) ** 2).sum(axis=0)
        np.testing.assert_allclose(found["standard_errors"][name], np.sqrt(squares) / counts)
    scores = w * off / counts
    spread = (scores * weights[:, None]).T @ scores
    contrast = np.array([[-1, 1, 0], [-1, 0, 1]])
    apart = contrast @ means
    wald = apart @ np.linalg.solve(contrast @ spread @ contrast.T, apart)
    assert found["tests"]["means"]["statistic"] == pytest.approx(wald)
    assert found["tests"]["means"]["p_value"] == pytest.approx(chi2.sf(wald, 2))
    found = three_step(proba, **given("g", outcomes, **options))
    shares = (weights[:, None] * w).T @ (outcomes["g"][:, None] == LEVELS) / counts[:, None]
    np.testing.assert_allclose(found["estimates"]["proportions"], shares, atol=1e-12)
    assert found["tests"]["proportions"]["degrees_of_freedom"] == 4
    likely = three_step(proba, **given("g", outcomes, **options | {"method": "ml"}))
    if assignment == "modal":  # both have as many parameters as there are cells
        np.testing.assert_allclose(likely["estimates"]["proportions"], shares, atol=1e-8)
    found = three_step(proba, **given("z", outcomes, **options))
    x = np.column_stack([np.ones(len(y)), outcomes["z"]])
    pi = softmax(x @ found["estimates"]["coefficients"].T, axis=1)
    scores = ((w - pi)[:, 1:, None] * x[:, None]).reshape(len(x), -1)
    assert abs(weights @ scores).max() < 1e-6
    blocks = pi[:, 1:, None] * (np.eye(2) - pi[:, None, 1:]) * weights[:, None, None]
    bread = np.linalg.inv(np.einsum("ikl,ip,iq->kplq", blocks, x, x).reshape(6, 6))
    spread = bread @ ((scores * weights[:, None]).T @ scores) @ bread
    robust = np.sqrt(np.diagonal(spread)).reshape(2, 3)
    np.testing.assert_allclose(found["standard_errors"]["coefficients"][1:], robust, rtol=1e-6)


PEER = [
    ("bch", "modal", [0.06952182, 1.83853823], [1.06114089, 4.26508479], [-0.06775064, 0.80869054],
     [0.23292738, 0.50471361, 0.50869976, 0.1169042]),
    ("ml", "modal", None, None, [-0.05885052, 0.82847705],
     [0.23292738, 0.50471360, 0.50869975, 0.11690422]),
    ("bch", "proportional", [0.07576159, 1.83149776], [0.96942131, 4.39339004],
     [-0.06556389, 0.85144442], [0.23274246, 0.4984583, 0.50890842, 0.12396218]),
]  # fmt: skip
"""StepMix 3.0.0: StepMix(2, n_steps=3, correction=..., assignment=..., measurement="gaussian_diag",
structural=..., abs_tol=1e-13, rel_tol=1e-13). With ml it keeps class sizes of step 1 where the
outcome is a number, and with "soft" takes means of logarithms: these are left out."""


def test_stepmix_finds_the_same():
    X, z, y, g = drawn()
    proba = VPEM(2, agents=3, tol=1e-13, max_iter=5000, random_state=0, reg_covar=0).fit(X)
    proba = proba.predict_proba(X)
    if proba[:, 0] @ X[:, 0] > proba[:, 1] @ X[:, 0]:
        proba = proba[:, ::-1]
    for method, assignment, means, variances, slopes, shares in PEER:
        options = {"method": method, "assignment": assignment}
        if means is not None:
            found = three_step(proba, y, **options)["estimates"]
            np.testing.assert_allclose(found["means"], means, atol=2e-5)
            np.testing.assert_allclose(found["variances"], variances, atol=2e-5)
        found = three_step(proba, covariates=z, **options)["estimates"]["coefficients"]
        np.testing.assert_allclose(found[1], slopes, atol=2e-5)
        found = three_step(proba, g, **options)["estimates"]["proportions"]
        np.testing.assert_allclose(found[:, :2].ravel(), shares, atol=2e-5)


def test_laws_of_weights_units_and_rows_without_an_outcome():
    proba, weights, outcomes = fuzzy()
    copies = np.repeat(np.arange(len(proba)), weights.astype(int))
    for kind, method in (("y", "ml"), ("y", "bch"), ("g", "ml"), ("z", "ml"), ("z", "bch")):
        whole = three_step(proba, **given(kind, outcomes), method=method, sample_weight=weights)
        again = {kind: outcomes[kind][copies]}
        copied = three_step(proba[copies], **given(kind, again), method=method)
        for one, other in zip(told(whole), told(copied), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-7)
    y = outcomes["y"].copy()
    y[::7] = np.nan
    for method in ("bch", "ml"):
        found = three_step(proba, y, method=method)
        assert (found["n_samples"], found["n_missing"]) == (257, 43)
        moved = three_step(proba, 3e6 * y + 1e3, method=method)
        np.testing.assert_allclose(
            moved["estimates"]["means"], 3e6 * found["estimates"]["means"] + 1e3, rtol=1e-9
        )
        np.testing.assert_allclose(
            moved["standard_errors"]["variances"],
            9e12 * found["standard_errors"]["variances"],
            rtol=1e-6,
        )
        assert moved["tests"]["means"]["statistic"] == pytest.approx(
            found["tests"]["means"]["statistic"], rel=1e-6
        )
    objects = [None if one != one else one for one in y]
    assert three_step(proba, objects)["estimates"]["means"] == pytest.approx(
        three_step(proba, y)["estimates"]["means"]
    )
    said = three_step(proba, np.where(y > -47, "high", "low"))
    assert said["names"] == ["high", "low"]
    assert {"lower", "upper", "tests", "classification"} <= set(said)
    assert "p_values" not in said
    said = three_step(proba, covariates=outcomes["z"])
    z = said["estimates"]["coefficients"] / np.where(
        said["standard_errors"]["coefficients"] > 0, said["standard_errors"]["coefficients"], np.nan
    )
    np.testing.assert_allclose(said["p_values"]["coefficients"], 2 * norm.sf(abs(z)))


def test_what_cannot_be_is_said():
    proba, _, outcomes = fuzzy()
    y, n = outcomes["y"], len(proba)
    for words, values in (
        ("outcome or covariates", {}),
        ("outcome or covariates", {"outcome": y, "covariates": y}),
        ("one value only", {"outcome": np.ones(n)}),
        ("2 to 100", {"outcome": ["a"] * n}),
        ("must be numbers", {"covariates": ["a"] * n}),
        ("a value for each of 300 rows", {"outcome": y[1:]}),
        ("no row has", {"outcome": np.full(n, np.nan)}),
        ("finite", {"outcome": np.where(y > 0, y, np.inf)}),
        ("method", {"outcome": y, "method": "em"}),
        ("assignment", {"outcome": y, "assignment": "soft"}),
        ("level", {"outcome": y, "level": 1.5}),
        ("'a', 'b' determine each other", {"covariates": {"a": y, "b": 2 * y + 1}}),
        ("one value only", {"outcome": np.full(n, 0.1)}),
        ("at most 1e", {"outcome": 1e200 * y}),
        ("all as long", {"covariates": {"a": y, "b": y[1:]}}),
        ("all as long", {"outcome": {}}),
        ("a value for each", {"covariates": np.empty((n, 0))}),
        ("one class only", {"proba": np.ones((n, 1)), "covariates": y}),
    ):
        with pytest.raises(InputError, match=words):
            three_step(**{"proba": proba} | values)
    same = np.repeat(proba.mean(axis=0)[None], n, axis=0)
    with pytest.raises(InputError, match="take ml"):
        three_step(same, y)
    with pytest.raises(InputError, match="class 3 has no rows"):
        three_step(np.column_stack([proba, np.zeros(n)]), y)
    with (
        pytest.warns(NotConvergedWarning, match="separate"),
        pytest.warns(VpemWarning, match="slopes have no errors"),
    ):
        three_step(np.eye(2)[(y > -47).astype(int)], covariates=y)
    hard = np.where(proba[:, 0] > 0.5, 0.02 * (y + 50), 1 + (y + 50) % 1)
    with pytest.warns(VpemWarning, match="variances are below 0 in class"):
        three_step(0.5 * proba + 0.5 / 3, np.round(hard, 1))


def test_what_rows_do_not_say_has_no_error():
    proba, _, outcomes = fuzzy()
    y, classes = outcomes["y"], proba.argmax(axis=1)
    hard = np.eye(3)[classes]
    found = three_step(hard, classes.astype(float))
    assert np.isnan(found["tests"]["means"]["p_value"])  # they differ, with errors of 0
    dummy = (classes == 1) & (np.arange(len(y)) % 2 == 0)
    with pytest.warns(VpemWarning, match="separate class 1"):
        found = three_step(hard, covariates={"z": outcomes["z"][:, 0], "d": 1.0 * dummy})
    errors = found["standard_errors"]["coefficients"]
    assert np.isnan(errors[1]).tolist() == [False, False, True]
    assert [one for one, test in found["tests"].items() if np.isnan(test["p_value"])] == ["d"]
    with pytest.warns(VpemWarning, match="class 2 has no rows with an outcome"):
        found = three_step(proba, np.where(classes == 2, np.nan, y), method="ml")
    assert np.isnan(found["standard_errors"]["means"]).tolist() == [False, False, True]
    with pytest.warns(VpemWarning, match="one value in class 0"):
        three_step(proba, np.where(classes == 0, 0, abs(y)), method="ml")
    np.testing.assert_allclose(
        three_step(proba, 1e-150 * y)["estimates"]["means"],
        1e-150 * three_step(proba, y)["estimates"]["means"],
    )


def test_normal_intervals():
    found = inference({"coefficients": np.array([1.96, 0.0])}, {"coefficients": np.array([1.0, 0])})
    found = {name: values["coefficients"] for name, values in found.items()}
    assert found["p_values"][0] == pytest.approx(0.05, abs=1e-4)
    assert found["lower"][0] == pytest.approx(0, abs=1e-4)
    assert np.isnan(found["upper"][1])


# ---- in a shell ----------------------------------------------------------------------------------


def write(path, head, *columns):
    lines = (",".join(map(str, line)) for line in zip(*columns, strict=True))
    path.write_text("\n".join([head, *lines]) + "\n")


@pytest.fixture
def home(tmp_path, monkeypatch, capsys):
    """The working directory: classes of a fit, by number and by id, and a table of outcomes."""
    monkeypatch.chdir(tmp_path)
    X, z, y, g = drawn(200)
    ids = [f"p{row}" for row in range(200)]
    write(tmp_path / "x.csv", "a,b,c", *X.T.round(6))
    write(tmp_path / "named.csv", "id,a,b,c", ids, *X.T.round(6))
    pain = ["" if row == 3 else value for row, value in enumerate(y.round(6))]
    write(tmp_path / "out.csv", "id,pain,kind,age,w", ids, pain, g, z.round(6), np.arange(200) % 3)
    order = np.random.default_rng(0).permutation(200)[:150]
    head, *lines = (tmp_path / "out.csv").read_text().splitlines()
    (tmp_path / "some.csv").write_text("\n".join([head, *(lines[row] for row in order)]) + "\n")
    done(capsys, "fit", "x.csv", "-k", 2, "-o", "m.h5", "--quiet")
    done(capsys, "predict", "m.h5", "x.csv", "--proba", "--digits", 17, "-o", "p.csv")
    done(capsys, "predict", "m.h5", "named.csv", "--proba", "-o", "q.parquet")
    return tmp_path, read_model("m.h5").predict_proba(X.round(6)), order, y.round(6), g, z.round(6)


def test_the_command_finds_what_python_finds(home, capsys):
    _, proba, order, y, g, z = home
    y[3] = np.nan
    words = ("outcomes", "p.csv", "out.csv", "--outcome", "pain,kind", "--json")
    found = json.loads(done(capsys, *words, "--sample-weight", "w").out)["outcomes"]
    for name, values in (("pain", y), ("kind", g)):
        expected = three_step(proba, values, sample_weight=np.arange(200) % 3)
        for kind, estimate in expected["estimates"].items():
            np.testing.assert_allclose(found[name]["estimates"][kind], estimate, rtol=1e-6)
    assert found["pain"]["names"] == ["pain"]
    words = ("outcomes", "q.parquet", "some.csv", "--covariates", "age", "--method", "ml")
    found = json.loads(done(capsys, *words, "--json").out)["outcomes"]["covariates"]
    expected = three_step(proba[order], covariates={"age": z[order]}, method="ml")
    assert [*found["tests"]] == ["age"]
    np.testing.assert_allclose(
        found["p_values"]["coefficients"][1], expected["p_values"]["coefficients"][1], rtol=1e-5
    )
    shown = done(capsys, *words).out
    assert "covariates, by ml" in shown
    assert "intercept" in shown
    codes = ("outcomes", "p.csv", "out.csv", "--outcome", "w", "--family", "w=categorical")
    assert "proportion 2" in done(capsys, *codes).out
    folder = home[0]  # rows that are trimmed have no class, and noise is a class of its own
    lines = [[row, *one] for row, one in enumerate(proba * [0.9, 1])]
    lines[7] = [7, 0, 0]
    noise = [0.1 * p for p in proba[:, 0]]
    noise[7] = 0
    write(folder / "t.csv", "row,proba_0,proba_1,proba_noise", *zip(*lines, strict=True), noise)
    words = ("outcomes", "t.csv", "out.csv", "--outcome", "kind", "--assignment", "proportional")
    result = run(capsys, *words, "--method", "ml")
    assert "without a class: 1 row of out.csv" in result.err
    assert "noise   proportion a" in result.out


def test_a_score_has_the_errors_of_covariates(home, capsys, monkeypatch):
    folder, *_ = home
    X, z, *_ = drawn(200)
    write(folder / "z.csv", "a,b,c,z", *X.T, z)
    done(capsys, "fit", "z.csv", "-k", 2, "--family", "z=covariate", "-o", "z.h5", "--quiet")
    mixture, rows = read_model("z.h5").mixture, np.column_stack([X, z])
    found = json.loads(done(capsys, "score", "z.h5", "z.csv", "--json").out)["covariates"]
    np.testing.assert_allclose(found["estimates"]["coefficients"], logit_coefficients(mixture))
    errors = logit_errors(mixture, rows)
    np.testing.assert_allclose(found["standard_errors"]["coefficients"], errors, rtol=1e-6)
    assert found["names"] == ["z"]
    assert "Covariates of the mixing weights" in done(capsys, "score", "z.h5", "z.csv").out
    page = contents_of(read_saved("z.h5"), EvaluationData(rows, None, "z.csv"))
    tables = [one for section in page.sections for one in section.items]
    assert "Covariates of the mixing weights" in [getattr(one, "caption", "") for one in tables]
    with h5py.File("z_disk.h5", "w") as file:
        file.create_dataset("X", data=rows, chunks=(50, 4))
        file["feature_names"] = ["a", "b", "c", "z"]
    monkeypatch.setattr("vpem_cli.commands.rows.available_memory", lambda: 1)
    assert "errors of covariates are left out" in done(capsys, "score", "z.h5", "z_disk.h5").err
    monkeypatch.setattr("vpem_cli.commands.rows.available_memory", lambda: 1 << 30)
    rows[0, 3] = np.nan
    write(folder / "gap.csv", "a,b,c,z", *rows.T)
    assert (
        "if they are no covariates, integrate" in run(capsys, "predict", "z.h5", "gap.csv").sentence
    )
    rows[0, 3] = 0
    rows[::5, 0] = np.nan  # features may be missing, and then say less of the class
    assert (logit_errors(mixture, rows)[1] > errors[1]).all()


def test_rows_are_matched_by_number_and_no_id_stands_twice(home, capsys):
    words = ("outcomes", "p.csv", "out.csv", "--outcome", "pain", "--json")
    expected = json.loads(done(capsys, *words).out)["outcomes"]
    head, *lines = (home[0] / "p.csv").read_text().splitlines()
    for name, of_file in (("p.csv", lines[::-1]), ("twice.csv", [*lines[1:], lines[1]])):
        (home[0] / name).write_text("\n".join([head, *of_file]))
    assert head.startswith("row,")
    assert json.loads(done(capsys, *words).out)["outcomes"] == expected
    assert "one of them twice" in run(capsys, "outcomes", "twice.csv", *words[2:]).sentence
    write(home[0] / "visits.csv", "id,pain", [0, 0, 1, 1, 1, 2], range(6))  # as rows are called
    write(home[0] / "c.csv", "row,proba_0,proba_1", [0, 0, 1, 1, 1, 2], [0.0, 1] * 3, [1.0, 0] * 3)
    done(capsys, "outcomes", "c.csv", "visits.csv", *words[3:])


def test_errors_of_covariates_in_any_units():
    X, z, *_ = drawn(200)
    rows = np.column_stack([X, z])
    net = connect(make_graph("star", 1), from_lists([range(4)], 4))
    kinds = Kinds(("gaussian",) * 3 + ("covariate",))
    errors = []
    for scale in (1, 1e9):
        rows[:, 3] = z * scale
        mixture = fit_vpem(rows, net, kinds=kinds, n_components=2, seed=0).mixture
        errors.append(logit_errors(mixture, rows)[1] * [1, scale])
    np.testing.assert_allclose(errors[1], errors[0], rtol=1e-6)
    alone = fit_vpem(rows, net, kinds=kinds, n_components=1).mixture
    assert logit_errors(alone, rows).tolist() == [[0, 0]]
    assert logit_errors(mixture, rows.tolist())[1] == pytest.approx(errors[1] / [1, 1e9], rel=1e-9)
    for wrong in ((rows[:, :3],), (rows, np.ones(5)), (rows[:0],)):
        with pytest.raises(InputError):
            logit_errors(mixture, *wrong)
    both, kinds = np.column_stack([X, z, 2 * z]), Kinds(("gaussian",) * 3 + ("covariate",) * 2)
    net = connect(make_graph("star", 1), from_lists([range(5)], 5))
    mixture = fit_vpem(both, net, kinds=kinds, n_components=2, seed=0).mixture
    assert np.isnan(logit_errors(mixture, both)[1]).tolist() == [False, True, True]


def test_errors_of_covariates_by_labels_that_the_fit_was_given(tmp_path):
    X, z, *_ = drawn(200)
    labels = (X.mean(axis=1) > 0.8).astype(int)
    rows, kinds = np.column_stack([X, z]), Kinds(("gaussian",) * 3 + ("covariate",))
    net = connect(make_graph("star", 1), from_lists([range(4)], 4))
    known = np.where(np.arange(len(labels)) % 2, labels, -1)
    fit = fit_vpem(rows, net, kinds=kinds, n_components=2, seed=0, labels_for_fit=known)
    mixture = fit.mixture
    # Where all labels are known, of a plain logit: sum p (1 - p) x x'.
    x, (b0, b1) = np.column_stack([np.ones(len(z)), z]), logit_coefficients(mixture)[1]
    p = 1 / (1 + np.exp(-b0 - b1 * z))
    plain = np.sqrt(np.diag(np.linalg.inv((x * (p * (1 - p))[:, None]).T @ x)))
    errors = [logit_errors(mixture, rows, None, one)[1] for one in (None, -1.0 + 0 * z, known)]
    every = [logit_errors(mixture, rows, None, one)[1] for one in (labels, np.eye(2)[labels])]
    for one in every:
        np.testing.assert_allclose(one, plain, rtol=1e-8)
    np.testing.assert_array_equal(errors[0], errors[1])
    assert (plain < errors[2]).all()
    assert (errors[2] < errors[0]).all()
    for wrong in (labels + 1, labels[:-1], np.eye(3)[labels], -np.eye(2)[labels]):
        with pytest.raises(InputError, match="labels must be a component from 0 to 1"):
            logit_errors(mixture, rows, None, wrong)
    fit.save(tmp_path / "m.h5")
    with pytest.warns(VpemWarning, match="those without the labels that the fit was given"):
        describe_score(read_model(tmp_path / "m.h5"), rows, "refuse")


def test_the_command_refuses_in_a_sentence(home, capsys):
    for words, sentence in (
        ("p.csv out.csv", "give --outcome or --covariates"),
        ("p.csv out.csv --outcome pain --covariates age", "not both"),
        ("m.h5 out.csv --outcome pain", "m.h5 has no responsibilities, which 'vpem predict"),
        ("x.csv out.csv --outcome pain", "x.csv has no responsibilities"),
        ("p.csv out.csv --outcome nothing", "no column 'nothing'"),
        ("p.csv some.csv --outcome pain", "200 and 150 rows, and no ids"),
        ("q.parquet x.csv --outcome a", "no ids in common"),
        ("p.csv out.csv --covariates kind", "covariates must be numbers"),
        ("p.csv out.csv --outcome pain --family poisson", "--family of an outcome is"),
        ("p.csv out.csv --outcome pain --level 2", "--level must be"),
    ):
        result = run(capsys, "outcomes", *words.split())
        assert result.code == 2, words
        assert sentence in result.sentence
