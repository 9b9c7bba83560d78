"""Help of a command: its options under headings, its examples as they are typed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from .config import key_of

__all__ = ["FEW", "HEADINGS", "grouped", "split_examples"]

HEADINGS: dict[str, tuple[str, ...]] = {
    "Options": (),
    "Selection": ("criterion", "folds", "one-standard-error"),
    "Data": (
        "parties", "align", "align-key", "missing-parties", "split", "agents", "partition",
        "workers", "worker-rows", "sort-by-label", "dataset", "labels", "missing", "label-column",
        "id-column", "worker-column", "drop-column", "no-header", "delimiter", "holdout",
        "samples", "features",
    ),
    "Individuals": (
        "individual", "times", "population", "latents", "id", "time", "value", "covariates",
    ),
    "Model": (
        "model", "slopes", "error", "random", "spread", "first", "groups", "components",
        "clusters", "covariance", "reg-covar", "scale", "rank", "ridge", "law", "variance",
    ),
    "Network": (
        "devices", "device-individuals", "average", "shares", "topology", "graph", "radius",
        "mean-degree", "graph-seed", "hops", "rounds", "acceleration", "eigenvalue",
        "consensus-tol", "weights", "consensus",
    ),
    "Messages and faults": (
        "compress", "gradient-compress", "feedback", "link-failure", "agent-dropout", "stragglers",
        "participation",
    ),
    "Start": ("init", "init-rows", "init-individuals", "init-model", "n-init", "seed"),
    "Sampler": (
        "sampler", "sampler-steps", "target", "step-decay", "no-precondition", "chains",
    ),
    "Method": (
        "burn-in", "decay", "method", "batch-size", "step-size", "variance-reduction", "inner",
        "memory", "alpha", "weighting", "copies", "every-weight",
    ),
    "Stopping": ("tol", "window", "max-iter", "iterations", "epochs", "strict"),
    "Draws at the estimates": ("conditional-draws", "importance-draws", "level"),
    "Running": (
        "jobs", "dtype", "threads", "memory-limit", "processes", "engine", "ranks", "timeout",
        "shards",
    ),
    "Checkpoints": ("state", "checkpoint", "checkpoint-every", "resume", "resume-if-any"),
    "Output": (
        "output", "individuals", "traces", "plot", "record-every", "quote-formulas", "force",
        "json", "quiet",
    ),
    "Configuration": ("config", "show-config", "help"),
}  # fmt: skip
"""Options that belong together, by name; those of no list come first."""

FEW = 9
"""So many options, without --config, --show-config and --help, need no headings."""


def grouped(params: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """Return the options of a command under their headings; a short list stays in one.

    Parameters
    ----------
    params : sequence of Parameter
        Arguments among them are left out.

    Returns
    -------
    list of (str, list of Parameter)
    """
    options = [param for param in params if param.param_type_name == "option"]
    last = HEADINGS["Configuration"]
    if sum(key_of(option) not in last for option in options) <= FEW:
        return [("Options", options)]
    home = {name: heading for heading, names in HEADINGS.items() for name in names}
    if any(key_of(option) == "sampler" for option in options):
        home["step-size"] = "Sampler"
    found: dict[str, list[Any]] = {heading: [] for heading in HEADINGS}
    for option in options:
        heading = option.rich_help_panel or home.get(key_of(option), "Options")
        found[heading].append(option)
    return [(heading, group) for heading, group in found.items() if group]


def split_examples(text: str | None) -> tuple[str, list[str]]:
    """Return a help text without its examples, and these."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    examples = [part for part in paragraphs if part.startswith("Example: ")]
    others = [part for part in paragraphs if not part.startswith("Example: ")]
    return "\n\n".join(others), [" ".join(part.split()) for part in examples]
