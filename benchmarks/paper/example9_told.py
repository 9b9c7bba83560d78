"""What the supplement's example says, in a table, sentences and pictures."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from .example9 import PAPER
from .report import Report, Table


def _words(hubs: Any) -> str:
    return ", ".join(f"{{{', '.join(map(str, agents))}}} with root {root}" for root, agents in hubs)


def tell(found: dict[str, Any]) -> Report:
    """Compare the hubs, and say what hops change."""
    d = found["n_features"]
    table = Table(
        "hops",
        f"A fit of K = 3 to {found['samples']:,} simulated rows of {d} features, two an agent, "
        "from the same rows. The paper gives no numbers here.",
        ["hops", "hubs", "entries of a covariance", "of", "parameters",
         "log-likelihood per sample", "BIC", "rounds", "raw features sent, bytes",
         "bytes an iteration"],
        [[run["hops"], len(run["hubs"]), run["entries"], d * d, run["parameters"],
          run["log-likelihood"], run["BIC"], run["rounds"], run["raw feature bytes"],
          run["bytes an iteration"]] for run in found["runs"]],
    )  # fmt: skip
    every = [tuple((root, tuple(agents)) for root, agents in hubs) for hubs in found["hubs"]]
    agrees, differs = [], []
    (agrees if every == [PAPER] else differs).append(
        f"Hubs for 1 hop: {'; or '.join(map(_words, every))}, in that order, however ties fall "
        f"({found['ties']:,} seeds); the supplement says {_words(PAPER)}."
    )
    none, one = found["runs"][:2]
    last = set(map(tuple, none["features"])) & set(map(tuple, one["features"]))
    (agrees if len(last) == 1 else differs).append(
        "As in its Figure 2, one block is the same with 0 hops and with 1: that of agent 9 "
        f"(blocks in common: {len(last)}); 1 hop estimates {one['entries']} entries of a "
        f"covariance where 0 hops estimate {none['entries']} of {d * d}."
    )
    ends = [run["log-likelihood"] for run in found["runs"]]
    rising = all(b >= a for a, b in pairwise(ends))
    (agrees if rising else differs).append(
        "More hops, less constraint: the log-likelihood per sample goes "
        f"{', '.join(f'{value:.3f}' for value in ends)} for 0 to {len(ends) - 1} hops."
    )
    raw = 8 * found["samples"] * d
    dearer = one["bytes an iteration"] / raw
    differs.append(
        f"Features at home are not bytes saved: one iteration with 1 hop sends "
        f"{one['bytes an iteration']:,} bytes, {dearer:.0f} times all features "
        f"({raw:,} bytes), because every row's terms go to every neighbour in every round."
    )
    alone = [run["hops"] for run in found["runs"] if len(run["hubs"]) == 1]
    best = min(found["runs"], key=lambda run: run["BIC"])
    advice = [
        f"Hops are paid for in raw features that leave their agent ({one['raw feature bytes']:,} "
        f"bytes with 1 hop, none with 0). BIC is best with {best['hops']} hops here"
        + (f"; {min(alone)} hops already bring all features to one agent." if alone else ".")
    ]
    return Report(
        title="The supplement's nine agents, and its Figure 2",
        about="Links 2-1, 2-3, 2-4, 2-5, 5-6, 6-7, 6-8, 5-9.",
        tables=[table], agrees=agrees, differs=differs, advice=advice,
        pictures=[("example9-hubs.png", "Hubs with 0 hops and with 1"),
                  ("example9-sparsity.png", "Entries of a covariance that are estimated")],
    )  # fmt: skip
