"""Write the kept results anew: ``python -m tests.golden [--files] [GROUP ...]``.

Files that are to be read for ever are made where there are none, with ``--files`` all of them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .cases import CASES
from .files import make
from .store import changes, expected, found, keep, path_of, workshop


def main(words: list[str]) -> int:
    """Run groups, write what came of them, and say what has changed."""
    with tempfile.TemporaryDirectory(prefix="vpem-golden-") as home:
        for name in make(workshop(Path(home)), "--files" in words):
            print(f"files/{name}")
    with tempfile.TemporaryDirectory(prefix="vpem-golden-") as home:
        shop = workshop(Path(home))
        for group in [word for word in words if word != "--files"] or CASES:
            now = found(shop, group)
            before = expected(group) if path_of(group).exists() else {}
            changed = changes(group, before, now)
            # What differs by less than the tolerance stays as it is.
            alike = [
                name for name in before
                if not any(path.startswith(f"/{name}/") for path, *_ in changed)
            ]  # fmt: skip
            if changed:
                keep(group, now | {name: before[name] for name in alike if name in CASES[group]})
            print(f"{group}: {len(now)} cases, {len(changed)} values changed")
            for path, one, other in changed[:20]:
                print(f"    {path}: {one!r:.100} -> {other!r:.100}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
