"""Help of a command: its options under headings, its examples as they are typed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from .config import key_of

HEADINGS: dict[str, tuple[str, ...]] = {
    "Options": (),
    "Study": ("command", "as"),
    "Selection": (),
    "Data": ("agents", "dataset", "samples", "features", "drop-ids", "shuffle"),
    "Individuals": (),
    "Model": (),
    "Prior": (),
    "Network": (),
    "Messages and faults": (),
    "Privacy": (),
    "Start": ("init-model", "seed"),
    "Sampler": (),
    "Method": (),
    "Stopping": (),
    "Draws at the estimates": (),
    "Running": (),
    "Checkpoints": (),
    "Output": ("output", "plot", "quote-formulas", "force", "json", "quiet"),
    "Configuration": ("config", "show-config", "help", "help-all"),
}  # fmt: skip
"""Headings in their order, and the options below them that are no settings of a record, by name."""

FEW = 9
"""So many options, without those of the last heading, need no headings."""


def grouped(params: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """Return the options of a command under their headings; a short list stays in one.

    Arguments and hidden options are left out.
    """
    options = [one for one in params if one.param_type_name == "option" and not one.hidden]
    last = HEADINGS["Configuration"]
    if sum(key_of(option) not in last for option in options) <= FEW:
        return [("Options", options)]
    home = {name: heading for heading, names in HEADINGS.items() for name in names}
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
