"""Sphinx: how the pages of this folder become a site (`make docs`)."""

from __future__ import annotations

from typing import Any

import vpem

project = "vpem"
author = "the developers of vpem"
copyright = "the developers of vpem"
version = release = vpem.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["Thumbs.db"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
smartquotes = False  # two dashes of an option are not one long dash
default_role = "py:obj"  # names in docstrings become links where they lead somewhere

html_theme = "furo"
html_title = "vpem"
html_static_path = ["_static"]
html_css_files = ["vpem.css"]
html_copy_source = False
html_show_sourcelink = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # numpydoc's sections tell shapes too
numpydoc_show_class_members = False
autosummary_generate = False  # numpydoc brings it; there are no pages of its kind


def _skip(app: object, what: str, name: str, found: object, skip: bool, options: object) -> bool:
    """Leave out what scikit-learn adds to every estimator."""
    return skip or (name.startswith("set_") and name.endswith("_request"))


def setup(app: Any) -> None:
    """Tell Sphinx of what is left out."""
    app.connect("autodoc-skip-member", _skip)
