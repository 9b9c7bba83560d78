"""What `--help` shows of a command with many options: those that most people need, in brief.

`--help-all` shows everything, under headings; so does the reference.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from typing import Any

from .config import key_of

LAST = " output force json quiet"

OFTEN: dict[str, str] = {
    "fit": "components covariance family scale split agents parties align topology hops features "
    "drop id-column label-column missing n-init max-iter seed labels output json quiet",
    "select": "components covariance family criterion scale hops split agents parties align "
    "topology id-column missing n-init max-iter seed jobs output quiet",
    "kmeans": "clusters scale split workers agents parties align features drop id-column "
    "label-column missing n-init max-iter seed labels output force json quiet",
    "fedem": "components covariance scale workers parties features drop id-column label-column "
    "missing compress participation max-iter seed labels output json quiet",
    "impute": "method rank components draws law workers parties id-column holdout max-iter seed "
    "output json quiet",
    "saem": "model components id time value covariates devices parties missing iterations seed "
    "labels individuals output json quiet",
    "predict": f"proba missing individual times latents parties align id-column{LAST}",
    "score": "missing parties align id-column dataset json",
    "evaluate": "labels label-column missing parties align id-column json",
    "plot": f"kind labels features individual parties align id-column{LAST}",
    "report": f"labels parties align id-column{LAST}",
    "data import": "features drop id-column label-column family na decimal delimiter no-header "
    "agents output force quiet",
    "data describe": "features drop id-column label-column family na decimal delimiter no-header "
    "json",
    "data split": "agents partition shuffle drop-ids seed id-column label-column family output "
    "force json quiet",
    "party request": "as address listen features id-column label-column family na decimal",
    "party check": "as idle serve listen features id-column na decimal json quiet",
    "model contribution": f"labels label-column missing parties align id-column{LAST}",
    "topology describe": "agents topology hops sum rounds compress samples components features "
    "json plot",
    "study init": "command as star relay topology address data result",
}
"""Options that `--help` of a command shows, in their order; of other commands it shows all."""

FIRST = re.compile(r"(?<=[\w)\]'])\.(?= [A-Z])")
"""The end of a sentence after which there is another."""


def brief(text: str) -> str:
    """Return the first sentence of a help text, and what it says of the default.

    "Number of things. They are many. Default: all." becomes "Number of things.  [default: all]".
    """
    sentence, _, default = text.partition(" Default: ")
    sentence = FIRST.split(sentence)[0].removesuffix(".")
    default = FIRST.split(default)[0].removesuffix(".")
    return f"{sentence}.{f'  [default: {default}]' * bool(default)}"


def often(path: str, options: Sequence[Any]) -> list[Any] | None:
    """Return the options that `--help` shows, with brief help; None where that is all of them."""
    known = {key_of(one): one for one in options}
    found = [known[name] for name in OFTEN.get(path, "").split() if name in known]
    if not found:
        return None
    return [_shortened(one) for one in found]


def _shortened(option: Any) -> Any:
    """Return an option with help in brief, and without its second names."""
    one = copy(option)
    one.help = brief(one.help or "")
    short = [word for word in one.opts if not word.startswith("--")]
    one.opts = [*short, f"--{key_of(one)}"]
    return one
