"""Values that a shell may complete: of options with few choices, and names of commands.

A setting of a record has its choices there. Those of other options stand here once more, beside the
library, because a shell waits for them and the library takes long to load; tests hold the two
together. An option that is not here offers the words that its help lists.
"""

from __future__ import annotations

import re
from typing import Any

from vpem import settings

from .config import is_flag, key_of

CHOICES: dict[str, tuple[str, ...]] = {
    "kind": (
        "profile", "projection", "history", "graph", "sparsity", "communication", "marginals",
        "pairs", "responsibilities", "confusion", "traces", "curves", "observed",
        "residuals", "vpc", "effects", "topics", "shares", "spreads",
    ),
    "data copy name": ("breast_cancer", "wine", "heart", "oxford_boys", "theophylline",
                       "notices"),
    "data fetch name": ("htru2",),
    "model best criterion": ("log-likelihood", "bic", "aic"),
    "topology describe source": settings.TOPOLOGIES,
}  # fmt: skip
"""Words that options take, by the option's name; a command's own by its words and that name."""

_WORD = re.compile(r"[a-z][\w.+-]*(:[\w.]+)?")


def words_of(path: tuple[str, ...], param: Any) -> tuple[str, ...]:
    """Return the words that an option or argument of a command takes, or nothing if any."""
    key = key_of(param)
    own = CHOICES.get(" ".join((*path, key)))
    if own is not None:
        return own
    text = re.search(r"\bPath\b", str(getattr(param, "type_descriptor", ""))) is None
    found = listed_in(param.help or "") if text else ()
    if param.param_type_name == "argument" or is_flag(param):
        return ()
    known = CHOICES.get(key, ())
    if isinstance(param.default, str) and param.default not in known:
        known = ()
    if known and not (found and set(found) - set(known)):
        return known
    return found if not isinstance(param.default, str) or param.default in found else ()


def listed_in(text: str) -> tuple[str, ...]:
    """Return the choices that a help text lists: "Start: random (shared rows), kmeans."."""
    plain = re.sub(r"\s*\([^()]*\)", "", text.partition(" Default:")[0])
    for part in re.split(r": |\. ", plain):
        words = re.split(r", or |; or |, |; | or ", part.strip().rstrip("."))
        if len(words) > 1 and all(_WORD.fullmatch(word) for word in words):
            return tuple(words)
    return ()


def complete_values(path: tuple[str, ...], command: Any) -> None:
    """Let the options of a command complete their values; files are left to the shell."""
    known = getattr(command.callback, "settings", {})
    for param in command.params:
        own = known.get(param.name)
        words = own.choices or own.words if own else words_of(path, param)
        if words and param._custom_shell_complete is None:
            param._custom_shell_complete = _Words(words)


class _Words:
    """Completion of a value that is one of a few words."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words

    def __call__(self, context: Any, param: Any, incomplete: str) -> list[str]:
        return [word for word in self.words if word.startswith(incomplete)]
