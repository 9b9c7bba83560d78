import os

import numpy as np
import pytest
import threadpoolctl

from vpem.errors import InputError
from vpem.threads import one_blas_thread, thread_count


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return monkeypatch


@pytest.mark.parametrize("value", [1, 2, 64, np.int32(3)])
def test_what_is_asked_for_is_given(environment, value):
    environment.setenv("OMP_NUM_THREADS", "7")
    found = thread_count(value)
    assert found == value
    assert type(found) is int


@pytest.mark.parametrize("value", [0, -1, 1.0, "2", True, np.nan])
def test_what_is_no_number_of_threads(environment, value):
    with pytest.raises(
        InputError, match="threads must be an integer of at least 1 and at most 1024, got"
    ):
        thread_count(value)


@pytest.mark.parametrize(("word", "count"), [("3", 3), ("4,2", 4), ("1", 1)])
def test_the_environment_of_openmp_is_obeyed(environment, word, count):
    environment.setenv("OMP_NUM_THREADS", word)
    assert thread_count(None) == count


@pytest.mark.parametrize("word", ["", "0", "-2", "many", None])
def test_else_one_thread_a_processor_of_this_process(environment, word):
    if word is not None:
        environment.setenv("OMP_NUM_THREADS", word)
    environment.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    assert thread_count(None) == 3
    environment.delattr(os, "sched_getaffinity")
    environment.setattr(os, "cpu_count", lambda: 6)
    assert thread_count(None) == 6
    environment.setattr(os, "cpu_count", lambda: None)
    assert thread_count(None) == 1


def blas_threads():
    return [pool["num_threads"] for pool in threadpoolctl.threadpool_info()
            if pool["user_api"] == "blas"]  # fmt: skip


def test_blas_keeps_to_one_thread_and_is_given_back():
    with one_blas_thread():
        pass  # loads the libraries
    before = blas_threads()
    assert before
    with one_blas_thread():
        assert set(blas_threads()) == {1}
        with one_blas_thread():
            assert set(blas_threads()) == {1}
        assert set(blas_threads()) == {1}
    assert blas_threads() == before


def test_blas_threads_are_given_back_after_an_error():
    before = blas_threads()
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        _ = 1 / 0
    assert blas_threads() == before
