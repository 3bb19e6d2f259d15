"""The documentation site: `make docs`. The pages are those of this folder; `_ext` adds what is read from the code."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "apo-lightning"
html_title = "apo-lightning"
copyright = ""  # a name Sphinx prescribes
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "repository", "options", "api"]
exclude_patterns = ["_ext", "lab/*/report/tables"]
html_theme = "furo"
# Underlined as dark as its text: the theme's pale line leaves colour alone to tell a link, which is not seen in grey.
html_theme_options = {
    f"{mode}_css_variables": {"color-link-underline": "currentColor", "color-link-underline--visited": "currentColor"}
    for mode in ("light", "dark")
}
html_static_path = ["_ext/site.css"]
html_css_files = ["site.css"]
# Without sources, the page's Markdown is not offered for download; the repository has it.
html_show_sourcelink = False

myst_heading_anchors = 4
# docs/theory.md numbers its statements at the third level.
suppress_warnings = ["myst.header"]

add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_use_ivar = True
# Types of other libraries have no pages here.
nitpick_ignore_regex = [("py:.*", ".*")]
