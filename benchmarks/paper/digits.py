"""Figure 3 of the FedEM paper, middle: a mixture of handwritten digits after PCA.

MNIST is not here, so by default these are scikit-learn's digits; ``--from`` reads MNIST's own files
(IDX: http://yann.lecun.com/exdb/mnist), one of images or a folder that has some.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem import FileError, InputError
from vpem.network.partition import Workers

from . import traced
from .pictures import COLOURS, LINES, blank, tidy, write
from .report import Report, write_csv

DIMENSIONS = 20
"""Theirs: principal components that are kept."""

IMAGES = 0x00000803
"""What a file of images begins with: bytes, in three dimensions."""

LARGEST = 1 << 31
"""Bytes of pixels that are read at most."""

SIZES: dict[str, dict[str, Any]] = {
    "small": {"servers": 6, "components": 4, "epochs": 4, "runs": 2, "record": 2, "step": 0.05},
    "full": {"servers": 100, "components": 12, "epochs": 100, "runs": 5, "record": 5,
             "step": 0.01},
}  # fmt: skip
BATCH, PARTICIPATION, CODEC = 20, 0.75, "qsgd:8bits"


def recognises(path: Path) -> bool:
    """Whether a file has images of this format, or a folder such files."""
    try:
        return bool(_files(path))
    except (OSError, EOFError):
        return False


def _opened(path: Path) -> Any:
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if zipped else path.open("rb")


def _files(path: Path) -> list[Path]:
    every = sorted(path.iterdir()) if path.is_dir() else [path]
    found = []
    for one in every:
        if one.is_file():
            with _opened(one) as file:
                if file.read(4) == IMAGES.to_bytes(4, "big"):
                    found.append(one)
    return found


def read_images(path: Path) -> NDArray[np.uint8]:
    """Read images (m, height, width) in the IDX format, of a file, zipped or not, or a folder."""
    try:
        files = _files(path)
        if not files:
            raise FileError(f"{path} has no images in the IDX format (they begin with 00 00 08 03)")
        return np.concatenate([_images_of(one) for one in files])
    except (OSError, EOFError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise FileError(f"{path} has images of different sizes") from error


def _images_of(path: Path) -> NDArray[np.uint8]:
    with _opened(path) as file:
        head = file.read(16)
        shape = tuple(int.from_bytes(head[at : at + 4], "big") for at in (4, 8, 12))
        size = shape[0] * shape[1] * shape[2]
        if len(head) < 16 or not 0 < size <= LARGEST:
            raise FileError(f"{path} says that it has {' x '.join(map(str, shape))} pixels")
        pixels = file.read(size + 1)
    if len(pixels) != size:
        raise FileError(
            f"{path} must have {size:,} pixels after its head, and has "
            f"{'more' if len(pixels) > size else f'{len(pixels):,}'}; is it cut short?"
        )
    return np.frombuffer(pixels, np.uint8).reshape(shape)


def reduced(images: NDArray[Any]) -> tuple[NDArray[np.float64], int]:
    """Return principal components (m, 20) of pixels that are not always zero, and how many are."""
    pixels = images.reshape(len(images), -1).astype(np.float64)
    pixels = pixels[:, pixels.any(axis=0)]
    if pixels.shape[1] < DIMENSIONS or len(pixels) < DIMENSIONS:
        raise InputError(f"{len(pixels)} images of {pixels.shape[1]} pixels have no 20 components")
    centred = pixels - pixels.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(pixels))
    del values
    return centred @ vectors[:, : -DIMENSIONS - 1 : -1], pixels.shape[1]


def measure(options: Any) -> dict[str, Any]:
    """Run both algorithms on images that are dealt out at random, from one start."""
    size = SIZES[options.size]
    if options.given is None:
        from sklearn.datasets import load_digits

        images, source = load_digits().images, "scikit-learn's digits"
    else:
        images, source = read_images(options.given), options.given.name
    X, n_pixels = reduced(images)
    servers = min(size["servers"], len(X) // 50)
    dealt = np.array_split(np.random.default_rng(2).permutation(len(X)), servers)
    workers = Workers(
        tuple(np.sort(rows) for rows in dealt), tuple(f"server {i}" for i in range(servers))
    )
    start = np.random.default_rng(3).choice(len(X), size["components"], replace=False).tolist()
    common = {
        "n_components": size["components"], "covariance_type": "tied", "step_size": size["step"],
        "alpha": size["step"], "participation": PARTICIPATION, "compress": CODEC, "init": start,
        "tol": 0.0, "n_epochs": size["epochs"], "max_iter": 100_000, "replacement": True,
        "record_every": size["record"], "n_threads": options.threads,
    }  # fmt: skip
    ways: dict[str, dict[str, Any]] = {
        "FedEM": {"batch_size": BATCH},
        "VR-FedEM": {"batch_size": 5, "inner": BATCH, "variance_reduction": True},
    }
    runs = {
        name: [traced.run(X, workers, seed=seed, **common, **own) for seed in range(size["runs"])]
        for name, own in ways.items()
    }
    return {
        "size": options.size, **size, "source": source, "images": len(X), "pixels": n_pixels,
        "of pixels": int(np.prod(images.shape[1:])), "servers": servers, "runs": runs,
        "is theirs": options.given is not None,
    }  # fmt: skip


def tell(found: dict[str, Any]) -> Report:
    """Say what the numbers show."""
    n = len(found["runs"]["FedEM"])
    had = (
        f"These are the images of {found['source']}."
        if found["is theirs"]
        else "**MNIST could not be had here**; `--from FILE` reads it in its own format. These are "
        f"{found['source']}."
    )
    about = (
        f"{had} {found['images']:,} images, dealt out at random to {found['servers']} servers; "
        f"{found['pixels']} of {found['of pixels']} pixels are not always zero. Theirs: pixels "
        f"that are always zero go, {DIMENSIONS} principal components are kept, K Gaussians of a "
        "common covariance, minibatches drawn with replacement, a constant step, a common start "
        "with equal weights, means at random examples and the empirical covariance. Ours, since "
        "our copy of the text has lost these numbers: "
        f"K = {found['components']}, b = {BATCH} (5 and "
        f"k_in = {BATCH} for VR-FedEM), gamma = alpha = {found['step']}, the codec {CODEC}, "
        f"p = {PARTICIPATION}, {found['epochs']} epochs. {n} runs from one start, whose draws "
        "differ."
    )
    agrees, differs = traced.compared(found)
    spread = {
        name: float(np.ptp([one["weights"][-1] for one in runs], axis=0).max())
        for name, runs in found["runs"].items()
    }
    moved = max(
        float(np.abs(np.array(one["weights"][-1]) - 1 / found["components"]).max())
        for runs in found["runs"].values()
        for one in runs
    )
    said = (
        f"Weights leave 1/K by up to {moved:.3g}, along much the same ways in all runs: at the end "
        f"runs differ by at most {spread['FedEM']:.2g} in a weight with FedEM and by "
        f"{spread['VR-FedEM']:.2g} with VR-FedEM."
    )
    (agrees if max(spread.values()) < moved else differs).append(said)
    return Report(
        "Paper 002, Figure 3: handwritten digits", about,
        [traced.table_of_ends(found, "Medians over runs of the last fifth of the iterates.")],
        agrees, differs, [traced.ADVICE],
        [("digits-weights.png", "Weights of the components against epochs, medians of the runs"),
         ("digits-fields.png", "Squared norms of moves and of the mean field against epochs")],
    )  # fmt: skip


def draw(found: dict[str, Any], folder: Path) -> None:
    """Draw weights, and norms of moves and mean field."""
    figure = blank(9.6, 3.9)
    rows = []
    for axes, (name, runs) in zip(figure.subplots(1, 2, sharey=True), found["runs"].items(),
                                  strict=True):  # fmt: skip
        grid, (middle, low, high), _ = traced.against_epochs(runs, "weights")
        for k in range(middle.shape[1]):
            shade, dashes = COLOURS[k % len(COLOURS)], LINES[k // len(COLOURS)]
            axes.plot(grid, middle[:, k], color=shade, linestyle=dashes, linewidth=1.1)
            axes.fill_between(grid, low[:, k], high[:, k], color=shade, alpha=0.15, linewidth=0)
            rows += [[name, k, *pair] for pair in zip(grid.tolist(), middle[:, k].tolist(),
                                                      strict=True)]  # fmt: skip
        tidy(axes, f"{name}, {len(runs)} runs", "epochs", "weight" if name == "FedEM" else "")
        axes.set_ylim(bottom=0)
    write(figure, folder / "digits-weights.png")
    write_csv(folder / "digits-weights.csv", ["method", "component", "epochs", "weight"], rows)
    traced.draw_fields(found, folder / "digits-fields.png", "digits")
