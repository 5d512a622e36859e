"""Sphinx's settings for the site; ``make docs`` builds it without a network.

Pages are the Markdown files of this folder. Before Sphinx looks for them, ``generate`` writes those
that the code itself describes: environments, commands, public names, tables of results.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generate  # noqa: E402

import parenvs  # noqa: E402

project = "parenvs"
author = "the parenvs authors"
project_copyright = author
release = version = parenvs.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["README.md"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # JSON with dots in it
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_use_ivar = True
napoleon_numpy_docstring = False
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = f"parenvs {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"sidebar_hide_name": False}
html_copy_source = False
html_show_sphinx = False
pygments_style = "a11y-high-contrast-light"  # of what the theme brings
pygments_dark_style = "a11y-high-contrast-dark"


def setup(app: Any) -> None:
    """Write the generated pages first, and turn links between files into links between pages."""
    app.connect("config-inited", lambda *_: generate.write_all())
    app.connect("source-read", _links)


def _links(app: Any, name: str, source: list[str]) -> None:
    source[0] = generate.linked(source[0], f"docs/{name}.md")
    if name == "index":
        source[0] = generate.front(source[0])
