"""The site: `make docs` writes it into build/docs. Warnings are errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from trainwright import __version__

project = "trainwright"
author = "The trainwright developers"
copyright = author
release = version = __version__

extensions = ["myst_parser", "generated"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["generated"]
myst_heading_anchors = 3
smartquotes = False  # `--tp` outside of code keeps its two dashes

html_theme = "furo"
html_title = f"trainwright {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
# A code block without a language, and what a terminal shows, are no Python.
highlight_language = "none"
