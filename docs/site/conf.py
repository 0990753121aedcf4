"""What Sphinx is told. Nothing is fetched from anywhere: no fonts, no scripts of others."""

from pathlib import Path

from pygments.lexers.data import JsonLexer
from pygments.lexers.special import TextLexer

project = "odcsim"
html_title = "odcsim"
extensions = ["myst_parser", "sphinx_copybutton"]
smartquotes = False  # `--model` stays what one can type
copybutton_prompt_text = "$ "  # commands are copied, and what they print is not
copybutton_line_continuation_character = "\\"
myst_heading_anchors = 4  # as a code host makes them
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
nitpicky = True


def setup(app):
    """Languages of fences that Pygments has under another name, or not at all."""
    app.add_lexer("jsonl", JsonLexer)
    app.add_lexer("csv", TextLexer)
