"""Make notices.csv of data/: simulated notices of a village, of which topics are known.

    python data/scripts/make_notices.py

``--force`` replaces the file, ``--folder`` writes elsewhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from vpem.saem.corpus import from_counts
from vpem.saem.formats.corpora import write_corpus

__all__ = ["TOPICS", "main"]

TOPICS = {
    "harbour": "boat tide net harbour rope sail catch wave pier anchor herring storm",
    "kitchen": "bread flour oven butter sugar recipe apple jam spoon yeast honey cake",
    "garden": "seed soil hedge rose spade compost bean apple rain pruning bee honey",
    "choir": "song rehearsal concert organ voice hymn ticket chapel music bell recital choir",
}
"""Words of each topic, the most frequent first; a few are of two."""

COMMON = "village notice please monday evening meeting everybody week help bring"
N, LENGTH, COMMON_SHARE, SEED = 240, 40, 0.2, 7


def main(arguments: list[str] | None = None) -> None:
    """Write the notices."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--force", action="store_true")
    asked = parser.parse_args(arguments)
    each = [words.split() for words in TOPICS.values()]
    common = COMMON.split()
    words = sorted({word for own in [*each, common] for word in own})
    place = {word: number for number, word in enumerate(words)}
    laws = np.zeros((len(each), len(words)))
    for law, own in zip(laws, each, strict=True):
        law[[place[word] for word in own]] = 1 / np.arange(2, len(own) + 2)
    laws /= laws.sum(axis=1, keepdims=True)
    background = np.zeros(len(words))
    background[[place[word] for word in common]] = 1 / len(common)
    rng = np.random.default_rng(SEED)
    counts = np.array([
        rng.multinomial(LENGTH, COMMON_SHARE * background + (1 - COMMON_SHARE) * share @ laws)
        for share in rng.dirichlet(np.full(len(each), 0.2), N)
    ])  # fmt: skip
    names = [f"notice {number}" for number in range(1, N + 1)]
    write_corpus(asked.folder / "notices.csv", from_counts(counts, words, names), asked.force)


if __name__ == "__main__":
    main()
