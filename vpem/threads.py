"""How many threads the kernels use, and the BLAS library's own threads kept out of their way."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from vpem.checks import check_int

__all__ = ["one_blas_thread", "thread_count"]

MOST = 1024


def thread_count(n_threads: int | None) -> int:
    """Return the number of threads to use.

    Parameters
    ----------
    n_threads : int or None
        As the user asked; None takes ``OMP_NUM_THREADS``, or one a processor this process may use.

    Raises
    ------
    InputError
        If it is not a positive integer.
    """
    if n_threads is None:
        wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
        if wanted.isdigit() and int(wanted) > 0:
            return min(int(wanted), MOST)
        affinity = getattr(os, "sched_getaffinity", None)
        return len(affinity(0)) if affinity else os.cpu_count() or 1
    return check_int("n_threads", n_threads, least=1, most=MOST)


@cache
def _controller() -> Any:
    # SciPy's own BLAS is the one the kernels call; it must be loaded to be found.
    import scipy.linalg.cython_blas  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Keep BLAS on one thread: the kernels run their own threads around it."""
    context: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return context
