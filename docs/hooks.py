"""What mkdocs calls: docstrings name classes and functions in Sphinx' way, of which the site keeps the name."""

import re
from typing import Any


def on_page_content(html: str, **_: Any) -> str:
    return re.sub(r":(?:class|func|meth|mod|data|attr):<code>~?([\w.]+)</code>", _name, html)


def _name(found: re.Match[str]) -> str:
    return f"<code>{found[1].rpartition('.')[2]}</code>"
