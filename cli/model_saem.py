"""What `vpem model show` and `export` do with a fit of SAEM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vpem.saem.saved import SavedSaem

__all__ = ["export_saem", "show_saem"]

MOST_ROWS = 50
"""Parameters, latents and individuals that are printed; --json has them all."""


def show_saem(path: Path, as_json: bool) -> None:
    """Show what `vpem saem` has written."""
    from vpem.saem.formats.fits import read_saem, saem_as_json

    from .output import print_json, show

    saved = read_saem(path)
    if as_json:
        print_json(saem_as_json(saved))
    else:
        show(*_tables(saved))


def _tables(saved: SavedSaem) -> list[Any]:
    """Return the whole, the estimates, the latents."""
    from math import isfinite

    from .output import communication, number, plural, table

    settings, likelihood = saved.settings, saved.log_likelihood

    def told(name: str, kind: type) -> Any:
        value = settings.get(name)
        return value if type(value) is kind else None

    value = f"{likelihood.value:.3f}"
    if likelihood.error:
        value += f", Monte Carlo error {likelihood.error:.2g}"
    tol = told("tol", float)
    asked = tol is None or tol > 0
    try:
        names = [
            f"device {place}" for place in range(min(told("devices", int) or 0, len(saved.names)))
        ]
        sent = communication(saved.communication, names)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        sent = "?"
    options = ", ".join(f"{name} {_words(value)}" for name, value in saved.model_options.items())
    rows = told("n_rows", int)
    devices, chains = told("devices", int), told("n_chains", int)
    parts = [
        f"sampler {told('sampler', str) or '?'}",
        "? chains" if chains is None else plural(chains, "chain"),
    ]
    if told("average", str) == "models":
        parts.append(f"models averaged over {told('shares', str) or '?'}")
    if told("codec", str):
        parts.append(f"statistics by {settings['codec']}, feedback {told('feedback', str) or '?'}")
    facts = [
        ("model", f"{saved.model if saved.model != 'own' else saved.model_class}, "
                  f"{plural(len(saved.parameters), 'parameter')}"
                  f"{f' ({options})' if options else ''}"),
        ("fitted to", f"{plural(len(saved.names), 'individual')}, "
                      f"{'? rows' if rows is None else plural(rows, 'row')} of "
                      f"{told('data', str) or '?'}"),
        ("devices", "?" if devices is None else devices),
        ("algorithm", ", ".join(parts)),
        ("log-likelihood", value),
        ("iterations", f"{saved.n_iter}, of which {_known(told('burn_in', int))} burn-in"),
        *([("converged", _whether(saved))] if asked else []),
        ("communication", sent),
        ("seed", _known(told("seed", int))),
        ("versions", ", ".join(f"{name} {text}" for name, text in saved.versions.items())),
    ]  # fmt: skip
    made: list[Any] = [table(facts, "", "")]
    lines = [
        (name, number(estimate), number(error if isfinite(error) else None, 3))
        for (name, estimate), error in zip(
            saved.estimates.items(), saved.standard_errors.tolist(), strict=True
        )
    ]
    heads = ("parameter", "estimate", "standard error")
    made.append(table(lines[:MOST_ROWS], *heads, title="Estimates", right=heads[1:]))
    if len(lines) > MOST_ROWS:
        made.append(f"... and {plural(len(lines) - MOST_ROWS, 'more parameter')} (see --json)\n")
    if saved.discrete:
        return made
    shares = list(zip(saved.latents, (f"{one:.3f}" for one in saved.shrinkage), strict=True))
    made.append(
        table(shares[:MOST_ROWS], "latent", "shrinkage", title="Individuals", right=("shrinkage",))
    )
    return made


def _whether(saved: SavedSaem) -> str:
    """Say whether a fit converged, and on what grounds, which older files do not hold."""
    grounds = f": {_words(saved.grounds, 200)}" if saved.grounds else ""
    return f"{'yes' if saved.converged else 'no'}{grounds}"


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)


def _words(value: Any, most: int = 40) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def export_saem(model: Path, output: Path, force: bool) -> None:
    """Write a whole fit as JSON, or its arrays as a NumPy archive."""
    import json

    import numpy as np

    from vpem.files.endings import ending_of
    from vpem.files.hdf5 import atomic_write
    from vpem.saem.formats.fits import ARRAYS, read_saem, saem_as_json

    from .output import as_plain

    saved = read_saem(model)
    with atomic_write(output, force, "exported models") as temporary:
        if ending_of(output) == ".json":
            with open(temporary, "w", encoding="utf-8") as stream:
                json.dump(as_plain(saem_as_json(saved)), stream, allow_nan=False)
                stream.write("\n")
            return
        arrays: dict[str, Any] = {name: getattr(saved, name) for name in ARRAYS}
        for name in ("parameters", "latents", "names"):
            arrays[name] = np.array(getattr(saved, name), dtype=np.str_)
        with open(temporary, "wb") as binary:
            np.savez(binary, **arrays)
