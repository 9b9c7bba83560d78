"""SAEM, every way (see test_table.py)."""

from pathlib import Path

from vpem import fit_saem, read_individuals

from .resume_support import check_resumes

BOYS = read_individuals(Path(__file__).resolve().parents[1] / "data" / "oxford_boys.csv")


def fit(data=BOYS, **options):
    """Fit few iterations on five devices."""
    few = {"n_iter": 24, "burn_in": 8, "window": 4, "n_conditional": 4, "n_importance": 10}
    return fit_saem(data, **{"devices": 5, "n_chains": 2, **few, **options})


def checkpoint(folder):
    for options in (
        {"codec": "qsgd:8bits", "participation": 0.7},
        {"average": "models", "participation": 0.5, "sampler": "metropolis"},
        {"codec": "topk:0.5", "feedback": "error", "sampler": "mala"},
    ):
        check_resumes(lambda saver, options=options: fit(saver=saver, tol=1e-3, **options))


CELLS = {"checkpoint": checkpoint}
