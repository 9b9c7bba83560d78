"""Lists of numbers and names as they are typed: 1-8, 1,2,5, 2-20:3."""

from __future__ import annotations

import re
from collections.abc import Iterable

from vpem.errors import InputError, brief, check_choice

MOST_NUMBERS = 10_000
"""Longest list."""

_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)


def parse_numbers(what: str, text: str, *, least: int = 0) -> list[int]:
    """Read whole numbers typed as a list of numbers and ranges: ascending, each once.

    ``text`` is such as "1-8", "1,2,5", "2-20:3" (from 2 to at most 20 in steps of 3), or several
    with commas between; ``what`` is what they are, as the user knows it ("--components").
    """
    found: set[int] = set()
    for word in text.split(","):
        match = _PART.fullmatch(word.strip())
        if match is None:
            raise InputError(
                f"{what} must be numbers and ranges with commas between, such as 1-8, 1,2,5 or "
                f"2-20:3, got {brief(text)}"
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        step = 1 if match[3] is None else int(match[3])
        if last < first:
            raise InputError(f"{what} has the range {word.strip()}, which goes down; turn it round")
        if step < 1:
            raise InputError(f"{what} has the range {word.strip()} with steps of 0; take 1 or more")
        if first < least:
            raise InputError(f"{what} must be {least} or more, got {first} in {brief(text)}")
        if len(found) + (last - first) // step >= MOST_NUMBERS:
            raise InputError(f"{what} has more than {MOST_NUMBERS} numbers, got {brief(text)}")
        found.update(range(first, last + 1, step))
    return sorted(found)


def as_ranges(numbers: Iterable[int]) -> list[str]:
    """Write ascending whole numbers, three or more in a row as a range: 0, 1 and 3-6."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    found = ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(one) for one in run] for run in runs)
    return [word for words in found for word in words]


def parse_names(what: str, text: str, choices: Iterable[str]) -> list[str]:
    """Read names with commas between ("full,diag"), each once, in the order they are typed."""
    allowed = list(choices)
    return list(
        dict.fromkeys(check_choice(what, word.strip(), allowed) for word in text.split(","))
    )
