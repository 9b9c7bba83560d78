"""Sphinx: how the pages of this folder become a site (`make docs`)."""

from __future__ import annotations

from typing import Any

import latex2mathml.converter
from docutils import nodes
from jinja2 import PackageLoader
from jinja2.sandbox import SandboxedEnvironment
from numpydoc import docscrape_sphinx

import vpem

project = "vpem"
author = "the developers of vpem"
copyright = "the developers of vpem"
version = release = vpem.__version__

extensions = [
    "myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "sphinx_copybutton",
]  # fmt: skip
templates_path = ["_templates"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
html_math_renderer = "mathml"
nb_merge_streams = True
nb_execution_mode = "off"  # notebooks show what they printed; a test executes them
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

# numpydoc would load and compile its template again for every docstring, a sixth of the time.
_templates = SandboxedEnvironment(loader=PackageLoader("numpydoc"))
docscrape_sphinx.SandboxedEnvironment = lambda loader: _templates

# Of a session the button copies what is typed, of anything else all of it.
copybutton_prompt_text = r"\$ |> "
copybutton_prompt_is_regexp = True


def _skip(app: object, what: str, name: str, found: object, skip: bool, options: object) -> bool:
    """Leave out what scikit-learn adds to every estimator."""
    foreign = str(getattr(found, "__module__", "")).startswith("sklearn.")
    return skip or foreign or (name.startswith("set_") and name.endswith("_request"))


def _formula(translator: Any, node: Any) -> None:
    """Write a formula as MathML, which browsers typeset without a script or a font from afar."""
    block = node.tagname == "math_block"
    made = latex2mathml.converter.convert(node.astext(), display="block" if block else "inline")
    translator.body.append(f'<div class="math">{made}</div>' if block else made)
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Tell Sphinx of formulas, and of what is left out."""
    app.add_html_math_renderer("mathml", (_formula, None), (_formula, None))
    app.connect("autodoc-skip-member", _skip)
