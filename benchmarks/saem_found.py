"""What comparisons of SAEM with nlme, lme4 and pynlme share: estimates by name, R's files."""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vpem import VpemWarning
from vpem.saem.estimates import Summary
from vpem.saem.fit import fit_saem
from vpem.saem.individuals import Individuals

SCRIPT = Path(__file__).with_name("saem_peers.R")
LIKELIHOOD = "log-likelihood"
Found = dict[str, tuple[float, float, float, float]]
"""By parameter: estimate, ends of the 95 % interval, standard error; NaN: none is given."""


def ours(data: Individuals, model: str, options: Mapping[str, Any], **how: Any) -> Found:
    """Return what vpem finds, with the intervals that it reports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VpemWarning)
        fit = fit_saem(data, model, model_options=options, **how)
    found = {
        one.name: (one.value, one.lower, one.upper, one.error)
        for one in Summary(fit.saved).parameters
    }
    value = fit.log_likelihood
    return found | {LIKELIHOOD: (value.value, math.nan, math.nan, value.error)}


def _number(text: str) -> float:
    return math.nan if text in ("", "NA") else float(text)


def read_estimates(file: Path, by: str) -> dict[str, Found]:
    """Return estimates that R wrote, by a column."""
    found: dict[str, Found] = {}
    with file.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            numbers = [_number(row[one]) for one in ("value", "lower", "upper", "error")]
            found.setdefault(row[by], {})[row["name"]] = tuple(numbers)  # type: ignore[assignment]
    return found


def shown(value: float | None, form: str = "+.2f") -> str:
    return "" if value is None or not math.isfinite(value) else format(value, form)
