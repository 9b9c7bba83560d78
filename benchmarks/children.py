"""Whole processes as users of other libraries write them: ``python -m benchmarks.children WHAT``.

A child loads nothing but what its words ask for, and of vpem only where it stands for vpem's user.
"""

import sys
import time
import warnings

BEGAN = time.perf_counter()


def read(path: str):
    """Read a CSV or Parquet file by pyarrow."""
    if path.endswith(".csv"):
        from pyarrow.csv import read_csv as read
    else:
        from pyarrow.parquet import read_table as read
    return read(path)


def answer(what: str, path: str, reader: str, model: str, more: str = "") -> None:
    """Fit a mixture of scikit-learn to a file, predict labels, or print log-likelihood per row."""
    if reader == "pandas":
        import pandas

        X = getattr(pandas, f"read_{path.rpartition('.')[2]}")(path).to_numpy()
    else:
        import numpy as np

        X = np.column_stack([column.to_numpy() for column in read(path).columns])
    import joblib

    if what == "fit":
        found = mixture("scikit-learn", int(more)).fit(X)
        joblib.dump(found, model)
        print(found.lower_bound_)
    elif what == "predict":
        joblib.load(model).predict(X).tofile(more, "\n")
    else:
        print(joblib.load(model).score(X))


def mixture(library: str, k: int, agents: int = 1, **how):
    """An estimator of either library."""
    if library == "vpem":
        from vpem import VPEM

        return VPEM(k, agents=agents, random_state=0, **how)
    from sklearn.mixture import GaussianMixture

    return GaussianMixture(k, random_state=0, **how)


def first(library: str) -> None:
    """Print seconds from the start of the program to the end of a first fit, and of a second."""
    import numpy as np

    X = np.random.default_rng(0).standard_normal((569, 30))
    marks = [BEGAN]
    for _ in range(2):
        mixture(library, 2).fit(X)
        marks.append(time.perf_counter())
    print(*np.diff(marks))


def memory(library: str, agents: str, rows: str, columns: str, k: str) -> None:
    """Fit to rows that are made where they lie, five iterations."""
    import numpy as np

    X = np.empty((int(rows), int(columns)))
    np.random.default_rng(0).standard_normal(out=X)
    mixture(library, int(k), int(agents), tol=0.0, max_iter=5).fit(X)


def theophylline(path: str, compat: str = ""):
    """Fit one compartment by pynlme; return log ka, log v, log cl and the residual sd."""
    import numpy as np
    import pynlme

    table = np.genfromtxt(path, delimiter=",", names=True)

    def curve(phi, x, _):
        ka, v, cl = np.exp(np.atleast_2d(phi)).T
        t, dose = x.T
        ke = cl / v
        return np.ravel(dose * ka / (v * (ka - ke)) * (np.exp(-ke * t) - np.exp(-ka * t)))

    how = {"compat": compat} if compat else {}
    X, start = np.column_stack([table["time"], table["dose"]]), np.array([0.5, -0.8, -3.2])
    beta, _, stats, _ = pynlme.nlmefitsa(X, table["value"], table["id"], None, curve, start, **how)
    return [*np.ravel(beta), *np.ravel(stats.errorparam)]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    globals()[sys.argv[1]](*sys.argv[2:])
