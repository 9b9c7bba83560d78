"""Curves of compartments: the kernel is its twin, at close rates and far ones."""

import numpy as np
import pytest

from vpem._core import compartments

from .twins import models as numpy_twins
from .twins.models import BY_CL_AND_KE, BY_V_AND_KE, LAG, ORAL, TWO

CODES = {
    "oral": (ORAL, 3),
    "oral by cl and ke": (ORAL | BY_CL_AND_KE, 3),
    "oral by v and ke, late": (ORAL | BY_V_AND_KE | LAG, 4),
    "bolus": (0, 2),
    "bolus by cl and ke": (BY_CL_AND_KE, 2),
    "two": (TWO, 4),
    "two, oral": (TWO | ORAL, 5),
    "two, oral, late": (TWO | ORAL | LAG, 6),
}


def curves(module, code, phi, times, doses, n_threads=1, with_slopes=True):
    """Concentrations and derivatives, of individuals with the same rows and doses."""
    chains, n, m = phi.shape
    first = np.arange(n + 1) * len(times)
    given = np.arange(n + 1) * len(doses)
    columns = [np.tile(column, n) for column in np.reshape(np.array(doses, float), (-1, 3)).T]
    found = np.empty((chains, n * len(times)))
    slopes = np.empty((chains, n * len(times), m) if with_slopes else (0, 0, 0))
    module.curves(code, phi, first, np.tile(times, n), given, *columns, found, slopes, n_threads)
    return found, slopes


DOSES = {
    "one": [(0.0, 4.0, 0.0)],
    "several": [(0.0, 4.0, 0.0), (3.0, 2.0, 0.0), (3.5, 0.0, 0.0), (20.0, 9.0, 0.0)],
    "infused": [(0.5, 4.0, 2.0), (4.0, 3.0, 0.5)],
    "none": [],
}
TIMES = np.array([-1.0, 0.0, 0.1, 1.0, 2.5, 3.0, 6.0, 24.0])


@pytest.mark.parametrize(("code", "m"), CODES.values(), ids=CODES)
@pytest.mark.parametrize("doses", DOSES.values(), ids=DOSES)
def test_the_kernel_is_its_twin(code, m, doses):
    rng = np.random.default_rng(m)
    phi = rng.normal(size=(2, 5, m))
    phi[:, 0] = 0.0  # rates that are the same
    phi[:, 1] = 1e-9 * rng.normal(size=(2, m))
    phi[:, 2] = 1e-3 * rng.normal(size=(2, m))
    ours, twins = (curves(one, code, phi, TIMES, doses)
                   for one in (compartments, numpy_twins))  # fmt: skip
    for a, b in zip(ours, twins, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-12, atol=1e-12)
    np.testing.assert_array_equal(
        curves(compartments, code, phi, TIMES, doses, 3, False)[0], ours[0]
    )
