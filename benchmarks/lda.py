"""Topics by SAEM beside scikit-learn's: perplexity of held-out documents, topics, bytes, time.

    python -m benchmarks.lda                     # some minutes
    python -m benchmarks.lda --only lee --seeds 3 --topics 10 20 50

The Lee corpus (300 short news items) is the one that gensim brings with its tests. Documents that
were held out are completed: each word of a document is in either half by chance; the first half
gives the document's proportions, by the variational bound, and the second is predicted. The same is
done with the topics of scikit-learn.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import LatentDirichletAllocation

from vpem import fit_saem
from vpem.saem.individuals import Individuals, from_counts
from vpem.saem.models.lda import LdaModel
from vpem.saem.models.model import Doubles

RESULTS = Path(__file__).with_name("results")
WORD = re.compile(r"[a-z]{3,}")
LEAST, MOST = 3, 0.4
"""Documents that a word is in: so many at least, and this share of them at most."""

SEEDS = 1
"""Of each fit: `--seeds` changes it."""
HOW: dict[str, Any] = {"n_iter": 400, "burn_in": 160, "tol": 0.0, "n_conditional": 2}


def lee() -> Doubles:
    """Counts (300, V) of the Lee corpus."""
    found = importlib.util.find_spec("gensim")
    if found is None or found.origin is None:
        raise SystemExit("the Lee corpus comes with gensim: pip install gensim")
    path = Path(found.origin).parent / "test" / "test_data" / "lee_background.cor"
    lines = [WORD.findall(line.lower()) for line in path.read_text("latin-1").splitlines()]
    seen = Counter(word for line in lines for word in set(line))
    words = sorted(one for one, n in seen.items() if LEAST <= n <= MOST * len(lines))
    place = {word: v for v, word in enumerate(words)}
    counts = np.zeros((len(lines), len(words)))
    for row, line in zip(counts, lines, strict=True):
        for word in line:
            if word in place:
                row[place[word]] += 1
    kept: Doubles = counts[counts.sum(axis=1) > 0]
    return kept


def simulated(seed: int, K: int = 10, V: int = 500, n: int = 1000) -> tuple[Doubles, Doubles]:
    """Topics (K, V), and counts (n, V) of documents of about 150 words of them."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(V, 0.05), K)
    shares = rng.dirichlet(np.full(K, 1 / K), n)
    sizes = rng.poisson(150, n)
    counts = [rng.multinomial(*one) for one in zip(sizes, shares @ topics, strict=True)]
    return topics, np.array(counts, float)


def halves(topics: Doubles, documents: Individuals) -> float:
    """Perplexity of one half of each document given the other, by topics (K, V)."""
    K, V = topics.shape
    model = LdaModel(documents, K, n_words=V)
    each, words = model.completion(np.maximum(topics, 1e-12).ravel(), 7)
    return float(np.exp(-each.sum() / words.sum()))


def matched(topics: Doubles, truth: Doubles) -> Doubles:
    """Cosines of topics with the true ones that they are matched with."""
    ours, theirs = (one / np.linalg.norm(one, axis=1)[:, None] for one in (topics, truth))
    cosines = ours @ theirs.T
    found: Doubles = cosines[linear_sum_assignment(-cosines)]
    return found


def ours(train: Individuals, K: int, seed: int, **options: Any) -> tuple[Doubles, float, Any]:
    """Topics (K, V), seconds of a fit, and the fit."""
    began = time.perf_counter()
    found = fit_saem(
        train, "lda", model_options={"n_topics": K, "n_words": len(train.words or ())},
        seed=seed, **{**HOW, **options},
    )  # fmt: skip
    return found.theta.reshape(K, -1), time.perf_counter() - began, found


def theirs(counts: Doubles, K: int, seed: int, method: str, n_iter: int) -> tuple[Doubles, float]:
    """Topics (K, V) of scikit-learn, and seconds of its fit."""
    from scipy.sparse import csr_matrix

    made = LatentDirichletAllocation(
        K, learning_method=method, max_iter=n_iter, random_state=seed, batch_size=64
    )
    began = time.perf_counter()
    made.fit(csr_matrix(counts))
    seconds = time.perf_counter() - began
    return made.components_ / made.components_.sum(axis=1, keepdims=True), seconds


def line(what: str, found: list[tuple[float, ...]], heads: tuple[str, ...]) -> dict[str, Any]:
    """Print the means of what seeds found, and return them."""
    means = dict(zip(heads, np.mean(found, axis=0).tolist(), strict=True))
    spread = float(np.std([one[0] for one in found]))
    print(f"{what:38s}", *(f"{name} {value:10.4g}" for name, value in means.items()),
          f"(sd {spread:.3g})", flush=True)  # fmt: skip
    return {"what": what, **means, "sd": spread}


def against(counts: Doubles, K: int, truth: Doubles | None = None) -> list[dict[str, Any]]:
    """SAEM beside scikit-learn, batch and online, on the same documents."""
    test = np.arange(len(counts)) % 5 == 4
    used = counts[~test].sum(axis=0) > 0
    train, held = counts[~test][:, used], counts[test][:, used]
    held = held[held.sum(axis=1) > 1]
    corpus, new = from_counts(train), from_counts(held)
    heads = (
        "perplexity",
        "seconds",
        *(("least cosine", "mean cosine") if truth is not None else ()),
    )

    def row(topics: Doubles, seconds: float) -> tuple[float, ...]:
        more: tuple[float, ...] = ()
        if truth is not None:
            cosines = matched(topics, truth[:, used])
            more = (float(cosines.min()), float(cosines.mean()))
        return (halves(topics, new), seconds, *more)

    runs: dict[str, Any] = {
        "SAEM, gibbs": lambda seed: ours(corpus, K, seed)[:2],
        "scikit-learn, batch, 100 iterations": lambda seed: theirs(train, K, seed, "batch", 100),
        "scikit-learn, batch, 10 (default)": lambda seed: theirs(train, K, seed, "batch", 10),
        "scikit-learn, online, 30 passes": lambda seed: theirs(train, K, seed, "online", 30),
    }
    found = [
        line(f"K={K} {what}", [row(*run(seed)) for seed in range(SEEDS)], heads)
        for what, run in runs.items()
    ]
    if truth is not None:
        line("the true topics", [row(truth[:, used], 0.0)], heads)
    return found


def devices(counts: Doubles, K: int) -> list[dict[str, Any]]:
    """Ten devices whose documents differ: bytes and perplexity of codecs, absence, averaging."""
    test = np.arange(len(counts)) % 5 == 4
    used = counts[~test].sum(axis=0) > 0
    train, held = counts[~test][:, used], counts[test][:, used]
    # Documents that are alike are on the same device.
    axis = np.linalg.svd(train / train.sum(axis=1, keepdims=True), full_matrices=False)[0][:, 1]
    corpus = from_counts(train[np.argsort(axis)])
    new = from_counts(held[held.sum(axis=1) > 1])
    ways: dict[str, dict[str, Any]] = {
        "exactly": {},
        "topk:0.1": {"codec": "topk:0.1"},
        "topk:0.05": {"codec": "topk:0.05"},
        "qsgd:8bits": {"codec": "qsgd:8bits"},
        "qsgd:4bits": {"codec": "qsgd:4bits"},
        "half take part": {"participation": 0.5},
        "qsgd:4bits, half take part": {"codec": "qsgd:4bits", "participation": 0.5},
        "models averaged": {"average": "models"},
    }
    found = []
    for what, options in ways.items():
        rows: list[tuple[float, ...]] = []
        for seed in range(SEEDS):
            topics, seconds, fit = ours(corpus, K, seed, devices=10, **options)
            rows.append((halves(topics, new), fit.bytes[-1] / 1e6, seconds))
        found.append(line(what, rows, ("perplexity", "MB", "seconds")))
    return found


def langevin(K: int = 5) -> list[dict[str, Any]]:
    """Langevin steps of proportions, adjusted or not, gradients coded, beside Gibbs sampling."""
    truth, counts = simulated(1, K, 200, 400)
    corpus, new = from_counts(counts[:320]), from_counts(counts[320:])
    ways: dict[str, dict[str, Any]] = {
        "gibbs": {},
        "mala": {"sampler": "mala"},
        **{
            f"langevin, step {step:g}{words}": {
                "sampler": "langevin", "sampler_options": {"step": step, "decay": 0.0}, **options,
            }
            for step in (0.5, 0.1, 0.02)
            for words, options in (("", {}), (", qsgd:4bits", {"gradient_codec": "qsgd:4bits"}))
        },
    }  # fmt: skip
    found = []
    for what, options in ways.items():
        try:
            topics, seconds, _ = ours(corpus, K, 0, n_iter=150, burn_in=60, **options)
        except Exception as error:  # what fails is a finding too
            print(f"{what:38s} {error}")
            found.append({"what": what, "error": str(error)})
            continue
        cosines = matched(topics, truth)
        row = (halves(topics, new), float(cosines.min()), seconds)
        found.append(line(what, [row], ("perplexity", "least cosine", "seconds")))
    return found


def main() -> None:
    """Run what is asked for, and write what was found."""
    parts: dict[str, Callable[[list[int]], list[dict[str, Any]]]] = {
        "lee": lambda topics: [one for K in topics for one in against(lee(), K)],
        "simulated": lambda _: against(*reversed_(simulated(0))),
        "devices": lambda topics: devices(lee(), topics[0]),
        "langevin": lambda _: langevin(),
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--topics", type=int, nargs="+", default=[20], help="of the Lee corpus")
    parser.add_argument("--iterations", type=int, default=HOW["n_iter"])
    asked = parser.parse_args()
    globals()["SEEDS"] = asked.seeds
    HOW.update(n_iter=asked.iterations, burn_in=2 * asked.iterations // 5)
    warnings.simplefilter("ignore")
    RESULTS.mkdir(exist_ok=True)
    for name in asked.only:
        print(f"\n{name}")
        found = parts[name](asked.topics)
        (RESULTS / f"lda-{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def reversed_(made: tuple[Doubles, Doubles]) -> tuple[Doubles, int, Doubles]:
    """Return counts, how many topics there are, and these."""
    topics, counts = made
    return counts, len(topics), topics


if __name__ == "__main__":
    main()
