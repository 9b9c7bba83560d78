"""The bootstrap over the ranks of any engine finds what one process does (see test_engines.py)."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.over_fits import overlapping
from tests.over_selection import over_features, over_rows
from vpem.errors import InputError
from vpem.fits.selection.bootstrap import Resampling, bootstrap_errors, check_components
from vpem.fits.selection.search import Record, facts_of
from vpem.fits.selection.trials import Cell

PARTS = ("estimates", "standard_errors", "lower", "upper")


def errors_of(problem, kind, k=2, n=3, record=None, covariance="full"):
    cell = Cell(k, min(problem.networks), covariance)
    resampling = Resampling(problem, cell, problem.fit(cell, n_init=1), kind, 7)
    return bootstrap_errors(resampling, n, record=record)


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10)


def main(engine):
    X = overlapping(n_samples=90, n_features=6)
    holes = np.where(np.random.default_rng(1).random(X.shape) < 0.1, np.nan, X)
    weights = np.random.default_rng(4).integers(0, 3, size=len(X)).astype(float)
    quick = {"tol": 1e-3, "seed": 2}
    weighted = {**quick, "sample_weight": weights, "scale": "standard"}
    marginal = {**quick, "missing": "marginalize"}
    rows = over_rows(X, engine, "star", **quick)
    cases = [
        (over_features(X, engine, "star", [0], **weighted), "weighted", "full"),
        (over_features(holes, engine, "path", [1], **marginal), "parametric", "tied"),
        (over_features(X, engine, "star", [0], **quick), "parametric", "spherical"),
        (rows, "parametric", "full"),
        (over_rows(X, engine, "path", **quick), "parametric", "full"),
    ]
    # Rows of other organisations are not weighed by a seed that all know.
    if engine.open:
        cases.append((over_rows(X, engine, "star", **weighted), "weighted", "diag"))
    else:
        with pytest.raises(InputError, match="by known weights"):
            errors_of(rows[0], "weighted")
    compared = 0
    for (ranked, alone), kind, covariance in cases:
        found = errors_of(ranked, kind, covariance=covariance)
        if engine.rank == 0:
            expected = errors_of(alone, kind, covariance=covariance)
            for part in PARTS:
                for name, values in getattr(expected, part).items():
                    close(getattr(found, part)[name], values)
            kept = {part: {} for part in PARTS}
            assert replace(found, **kept) == replace(expected, **kept)
            compared += 1
    for ranked, alone in (over_features(X, engine, "star", [0], **quick), rows):
        tests = check_components(ranked, "diag", [1], n_replicates=3)
        assert engine.bcast(tests) == tests
        if engine.rank == 0:
            (ours,), (theirs,) = tests, check_components(alone, "diag", [1], n_replicates=3)
            close(ours.pop("statistic"), theirs.pop("statistic"))
            assert ours == theirs
            compared += 1
    check_record(engine, over_features(X, engine, "star", [0], **quick)[0])
    return f"compared {compared}"


def check_record(engine, problem):
    """What was broken off after some replicates goes on to the same, each from its own file."""
    with tempfile.TemporaryDirectory() as own:
        path = Path(engine.bcast(own) if engine.open else own, "state.h5")
        facts = facts_of(problem)
        whole = errors_of(problem, "weighted")
        for n, before in ((2, 0), (3, 2)):
            record = Record(path, facts, engine=engine, kind="bootstrap")
            assert len(record.results) == before
            found = errors_of(problem, "weighted", n=n, record=record)
            engine.barrier()
        for name, values in whole.standard_errors.items():
            assert np.array_equal(found.standard_errors[name], values)
        engine.barrier()
