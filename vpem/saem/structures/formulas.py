"""Curves by name: formulas, as R's self-starting models are, or what a file of Python holds.

Also concentrations after doses in one or two compartments with rates of first order.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Self

import numpy as np

from vpem._core.compartments import curves
from vpem._core.threads import thread_count
from vpem.checks import Doubles
from vpem.errors import FileError, InputError, check_choice, did_you_mean
from vpem.saem.doses import Doses, doses_of
from vpem.saem.individuals import Individuals
from vpem.saem.structures.structure import SCALES, OwnCurve, Structure

ORAL, TWO, LAG, BY_CL_AND_KE, BY_V_AND_KE, FORMULA = 1, 2, 4, 8, 16, 64
"""Bits of the code by which `vpem._core.compartments` knows a formula."""

CORES = {
    ("cl", "v"): 0,
    ("cl", "ke"): BY_CL_AND_KE,
    ("v", "ke"): BY_V_AND_KE,
    ("cl", "v1", "q", "v2"): TWO,
}
"""What is between ka, if doses are absorbed, and tlag, if that begins late."""

ONE_COMPARTMENT = ("ka", "cl", "ke")
TWO_COMPARTMENTS = ("cl", "v1", "q", "v2")
"""Parameters by default: of doses that are absorbed, and of those that are injected or infused."""


def _line(x: Doubles, y: Doubles) -> tuple[float, float]:
    """Slope and intercept of a line through points; NaN where there is none."""
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    apart = x - x.mean() if len(x) else x
    if not apart.any():
        return np.nan, np.nan
    slope = float(apart @ y / (apart @ apart))
    return slope, float(y.mean() - slope * x.mean())


def _guess(name: str, t: Doubles, y: Doubles) -> tuple[float, ...]:
    """Parameters of a formula from a course, as far as lines through transformed values tell."""
    if name == "asymptotic":  # least squares of the two that are linear, rates of a grid
        length = float(np.ptp(t))
        if not length > 0 or len(t) < 3:
            return (np.nan,) * 3
        best = (np.inf, np.nan, np.nan, np.nan)
        for rate in np.geomspace(0.2, 50.0, 60) / length:
            left = np.exp(-rate * t)
            columns = np.stack([1 - left, left], axis=-1)
            (end, start), *_ = np.linalg.lstsq(columns, y, rcond=None)
            squares = float(np.sum((y - columns @ [end, start]) ** 2))
            best = min(best, (squares, float(end), float(start), float(rate)))
        return best[1:]
    if name == "biexponential":  # of the last half of the logarithms, and of what it leaves
        half = max(len(t) // 2, len(t) - 4)
        slow, height = _line(t[half:], np.log(y[half:]))
        rest = y - np.exp(height + slow * t)
        fast, before = _line(t[:half], np.log(rest[:half]))
        return np.exp(before), -fast, np.exp(height), -slow
    low: tuple[float, ...] = ()  # what all values are above, where that is a parameter
    if name == "emax":  # the value at 0
        low = (y[int(t.argmin())],)
    elif name == "four-parameter-logistic":
        low = (y.min() - 0.05 * (y.max() - y.min()),)
    y = y - low[0] if low else y
    if name in ("michaelis-menten", "emax"):  # t / y is a line in t
        slope, height = _line(t[y > 0], t[y > 0] / y[y > 0])
        slope = slope or np.nan  # level lines say nothing
        return *low, 1 / slope, height / slope
    top = 1.05 * y.max()
    if name == "gompertz":
        slope, height = _line(t, np.log(-np.log(y / top)))
        return top, np.exp(height), np.exp(slope)
    slope, height = _line(t, np.log(y / (top - y)))  # the logit of the share of the asymptote
    slope = slope or np.nan
    return *low, low[0] + top if low else top, -height / slope, 1 / slope


FORMULAS: dict[str, dict[str, str]] = {
    "logistic": {"asymptote": "identity", "midpoint": "identity", "scale": "identity"},
    "four-parameter-logistic": {
        "low": "identity", "high": "identity", "midpoint": "identity", "scale": "identity",
    },
    "gompertz": {"asymptote": "identity", "depth": "identity", "ratio": "logit"},
    "asymptotic": {"asymptote": "identity", "start": "identity", "rate": "log"},
    "biexponential": {"a1": "identity", "rate1": "log", "a2": "identity", "rate2": "log"},
    "michaelis-menten": {"vmax": "identity", "km": "identity"},
    "emax": {"e0": "identity", "emax": "identity", "ec50": "log"},
}  # fmt: skip
"""Formulas by name, in the order of `vpem._core.compartments`: their parameters with scales.

The time is what they are curves over: a dose or a concentration, too. SSlogis, SSfpl, SSgompertz,
SSasymp, SSbiexp and SSmicmen are what R calls the first six.
"""


class _Compiled(Structure):
    """A curve that kernels know by its code."""

    code: int

    def predict(self, phi: Doubles, at: Individuals, slopes: Doubles | None = None) -> Doubles:
        """Curves (chains, N); their derivatives fill ``slopes`` (chains, N, m)."""
        doses = doses_of(at) if self.dosed else Doses.none(at.n_individuals)
        phi = np.ascontiguousarray(phi, dtype=np.float64)
        slopes = np.empty((0, 0, 0)) if slopes is None else slopes
        f = np.empty((len(phi), at.n_rows))
        courses = (at.first, at.times, doses.first, *doses.columns)
        curves(self.code, phi, *courses, f, slopes, thread_count(None))
        return f

    def slopes(self, phi: Doubles, at: Individuals) -> tuple[Doubles, Doubles]:
        slopes = np.empty((len(phi), at.n_rows, len(self.names)))
        return self.predict(phi, at, slopes), slopes


class Formula(_Compiled):
    """A curve of `FORMULAS`, some of whose parameters may have other ``scales``."""

    def __init__(self, name: str, scales: Mapping[str, str] | None = None) -> None:
        parameters = FORMULAS[check_choice("formula", name, FORMULAS)]
        for parameter, scale in (scales or {}).items():
            check_choice(f"parameter of {name}", parameter, parameters)
            check_choice(f"scale of {parameter}", scale, SCALES)
        chosen = {**parameters, **(scales or {})}
        self.names, self.scales = tuple(chosen), tuple(chosen.values())
        self.name = name
        self.code = FORMULA | list(FORMULAS).index(name) << 7
        for j, scale in enumerate(self.scales):
            self.code |= (1 + ("identity", "log", "logit").index(scale)) << (10 + 2 * j)

    def begin(self, individuals: Individuals) -> Doubles:
        """Each individual's guess, by lines through transformed values."""
        natural = np.full((individuals.n_individuals, len(self.names)), np.nan)
        with np.errstate(all="ignore"):
            for one in range(individuals.n_individuals):
                rows = slice(individuals.first[one], individuals.first[one + 1])
                t, y = individuals.times[rows], individuals.values[rows]
                order = np.argsort(t, kind="stable")
                natural[one] = _guess(self.name, t[order], y[order])
            guess = self.scaled(natural)
        return np.where(np.isfinite(guess), guess, np.nan)


class LinearPredictor(Structure):
    """A sum of columns: what a link makes a probability or a rate of.

    Columns are covariates of rows, ``time``, or products of such, ``time:x``. If ``linked``, a link
    stands between the sum and the values, so that these tell nothing at first.
    """

    code = -1

    def __init__(self, columns: Sequence[str] = ("time",), *, linked: bool = True) -> None:
        self.linked = linked
        self._others: Callable[[Individuals], Doubles] | None = None
        self._last: tuple[Individuals, Doubles] | None = None
        self.columns = tuple(columns)
        slopes = tuple("slope" if name == "time" else f"slope of {name}" for name in columns)
        self.names = ("intercept", *slopes)
        self.scales = ("identity",) * len(self.names)
        parts = [part for name in dict.fromkeys(columns) for part in name.split(":")]
        self.needs = tuple(name for name in parts if name != "time")

    def among(self, names: tuple[str, ...], design: Callable[[Individuals], Doubles]) -> Self:
        part = copy(self)
        part.names, part.scales, part._others = names, ("identity",) * len(names), design
        part._last = None
        return part

    def design(self, at: Individuals) -> Doubles:
        if self._others is not None:
            if self._last is None or self._last[0] is not at:
                self._last = (at, self._others(at))
            return self._last[1]
        columns = [at.product(name) for name in self.columns]
        return np.stack([np.ones(at.n_rows), *columns], axis=-1)

    def predict(self, phi: Doubles, at: Individuals) -> Doubles:
        return self.slopes(phi, at)[0]

    def slopes(self, phi: Doubles, at: Individuals) -> tuple[Doubles, Doubles]:
        design = self.design(at)
        rows = phi[:, at.individual_of]
        total = np.zeros(rows.shape[:2])
        for j in range(design.shape[1]):
            total += rows[..., j] * design[:, j]
        return total, np.broadcast_to(design, rows.shape)

    def begin(self, individuals: Individuals) -> Doubles:
        """Zeros, where any link has a value; without one each individual's least squares."""
        n = individuals.n_individuals
        if self.linked:
            return np.zeros((n, len(self.names)))
        cuts = individuals.first[1:-1]
        designs = np.split(self.design(individuals), cuts)
        each = zip(designs, np.split(individuals.values, cuts), strict=True)
        fits = [np.linalg.lstsq(X, y, rcond=1e-7)[0] for X, y in each]  # few rows tell few apart
        return np.array(fits).reshape(n, len(self.names))


class Compartments(_Compiled):
    """Doses that are absorbed, injected or infused, in one or two compartments.

    Parameters are positive, and normal as logarithms: the rate of absorption ``ka``, without which
    doses go into the blood at once or are infused; of one compartment two of the clearance ``cl``,
    the volume ``v`` and the rate of elimination ``ke = cl / v``; of two compartments ``cl``, their
    volumes ``v1`` and ``v2`` and the clearance ``q`` between them; and the time ``tlag`` until
    absorption begins; in this order. The effects of repeated doses add up. A measurement at the
    time of a dose is from before it.
    """

    dosed = True

    def __init__(
        self,
        names: Sequence[str] | None = None,  # None: the usual ones
        usual: tuple[str, ...] = ONE_COMPARTMENT,  # or two
    ) -> None:
        self.names = usual if names is None else tuple(names)
        self.oral, self.late = "ka" in self.names[:1], "tlag" in self.names[-1:]
        core = self.names[int(self.oral) : len(self.names) - int(self.late)]
        if core not in CORES or (self.late and not self.oral):
            known = ", or ".join(",".join(one) for one in CORES)
            raise InputError(
                f"parameters of compartments must be {known}, with ka before them if doses are "
                f"absorbed, and tlag last if absorption is delayed; got {','.join(self.names)!r}"
            )
        if "v1" in self.names and "v1" not in usual:
            raise InputError("cl,v1,q,v2 are parameters of two compartments")
        if "v1" in usual and "v1" not in self.names:
            raise InputError(
                f"parameters of two compartments are cl,v1,q,v2, got {','.join(self.names)!r}"
            )
        self.scales = ("log",) * len(self.names)
        self.code = CORES[core] | ORAL * self.oral | LAG * self.late

    def check(self, at: Individuals) -> None:
        doses = doses_of(at)
        start = np.full(at.n_individuals, -np.inf)
        dosed = doses.counts > 0
        start[dosed] = doses.times[doses.first[:-1][dosed]]
        early = at.times < start[at.individual_of]
        for what, wrong, who, values in (
            ("a dose that is negative", doses.amounts < 0, doses.individual_of, doses.amounts),
            ("a time before the dose", early, at.individual_of, at.times),
        ):
            if wrong.any():
                place = int(wrong.argmax())
                raise InputError(
                    f"{at.source}: individual {at.names[who[place]]!r} has {what}, "
                    f"{values[place]:g}; times count from the dose, and doses are not negative"
                )

    def begin(self, individuals: Individuals) -> Doubles:
        """Logarithms read from the area, the peak and the tail of each curve."""
        doses = doses_of(individuals)
        n = individuals.n_individuals
        read = np.array([_read(individuals, doses, one) for one in range(n)]).reshape(n, 5)
        ka, cl, ke, top, lag = np.log(read).T
        v = cl - ke
        logs = {"ka": ka, "cl": cl, "ke": ke, "v": v, "q": cl, "tlag": lag}
        # The first volume is what an injection is found in at once.
        share = 0.5 if self.oral else np.clip(np.exp(-top - v), 0.1, 0.9)
        logs |= {"v1": v + np.log(share), "v2": v + np.log1p(-share)}
        return np.stack([logs[name] for name in self.names], axis=-1)


def _read(data: Individuals, doses: Doses, one: int) -> tuple[float, ...]:
    """Read ka, cl and ke from the area, the peak and the tail of a curve; NaN: they do not say.

    Peak and tail are those after the dose that was followed for the longest. Behind them is the
    highest value for an amount of 1, and a time before absorption shows.
    """
    rows = slice(data.first[one], data.first[one + 1])
    events = slice(doses.first[one], doses.first[one + 1])
    t, y = data.times[rows], np.maximum(data.values[rows], 0.0)
    order = np.argsort(t, kind="stable")  # outcomes may be one after the other
    t, y = t[order], y[order]
    begun, amounts = doses.times[events], doses.amounts[events]
    after = np.searchsorted(begun, t) - 1  # which dose a row is after
    runs = [np.flatnonzero(after == dose) for dose in np.unique(after[after >= 0])]
    if not runs or len(t) < 2:
        return (np.nan,) * 5
    runs = [run[y[run].argmax() :] for run in runs]
    tail = max(runs, key=lambda run: t[run[-1]] - t[run[0]])
    top, dose = tail[0], after[tail[0]]
    tail = tail[-4:]
    low = max(1e-3 * y[top], 1e-300)
    apart = t[tail] - t[tail].mean()
    ke = 0.0
    if apart.any():
        ke = -float(apart @ np.log(np.maximum(y[tail], low)) / (apart @ apart))
    span = max(float(t[-1] - begun[0]), 1e-12)
    ke = min(max(ke, 0.2 / span), 50.0 / span)
    area = float(np.sum((y[1:] + y[:-1]) * np.diff(t)) / 2) + y[-1] / ke
    peak = max(float(t[top] - begun[dose]), 0.02 / ke)
    ka = max(2.0 / peak, 1.5 * ke)
    amount = float(amounts[: after[-1] + 1].sum())
    known = amounts[dose] > 0 and area > 0 and y[top] > 0  # else as others'
    cl, highest = (amount / area, y[top] / amounts[dose]) if known else (np.nan, np.nan)
    return ka, cl, ke, highest, 0.1 * peak


def is_own(name: str) -> bool:
    """Whether a name is a user's file of Python, and a function in it: ``FILE.py:function``."""
    return ".py:" in name


def structure_of(name: str, scales: Mapping[str, str] | None = None) -> Structure:
    """A curve by name: one of `FORMULAS`, or ``FILE.py:function``, which runs the file.

    Nothing but the user may name it, so a name that is read from a file must not be given here.
    ``scales`` are of parameters, of formulas of vpem.
    """
    if not is_own(name):
        if name not in FORMULAS:
            raise InputError(
                f"there is no curve {name!r}{did_you_mean(name, FORMULAS)}; take one of "
                f"{', '.join(FORMULAS)}, or a function of your own, FILE.py:function"
            )
        return Formula(name, scales)
    if scales:
        raise InputError(f"{name} has scales of its own for its parameters; leave them out")
    file, _, word = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise FileError(f"{path} does not exist; name a file of Python, FILE.py:function")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # whatever a user's file raises
        raise InputError(f"{path} fails: {type(error).__name__}: {error}") from error
    members = vars(module).items()
    known = [key for key, one in members if callable(one) or isinstance(one, Structure)]
    if word not in known:
        raise InputError(f"{path} has no function {word!r}{did_you_mean(word, known)}")
    function = getattr(module, word)
    if isinstance(function, Structure):
        return function
    try:
        return OwnCurve(function, {})
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
