"""Make the pictures of README and site by the commands that their pages show: `make pictures`.

A page shows ``docs/pictures/wine-profile.png``, and one of its sessions writes ``wine-profile.png``
(tests hold that). The page is run from its beginning to its end, as tests run it, and the file that
it wrote is kept with 64 colours, which take a quarter of the bytes; those farthest apart are among
them, so that a small patch in the colour of a component stays what it is.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from tests.pages_support import ROOT, check, makers, pictures

COLOURS = 64


def keep(made: Path, picture: Path) -> None:
    """Keep a picture that a command wrote, small if it is of pixels."""
    if made.suffix != ".png":
        shutil.copyfile(made, picture)
        return
    with Image.open(made) as image:
        few = image.convert("RGB").quantize(
            COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
        few.save(picture, optimize=True)


def main() -> None:
    """Run every page that shows pictures, and keep what it wrote."""
    wanted: dict[Path, list[Path]] = {}
    for picture, pages in pictures().items():
        wanted.setdefault(makers(picture, pages)[0], []).append(picture)
    for page, shown in wanted.items():
        with TemporaryDirectory() as folder:
            check(str(page.relative_to(ROOT)), Path(folder))
            for picture in shown:
                keep(Path(folder) / picture.name, picture)
                print(f"{picture.relative_to(ROOT)}, {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
