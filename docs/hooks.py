"""mkdocs calls this hook to shorten Sphinx' references to classes and functions in docstrings to their names."""

import re
from typing import Any


def on_page_content(html: str, **_: Any) -> str:
    return re.sub(r":(?:class|func|meth|mod|data|attr):<code>~?([\w.]+)</code>", _name, html)


def _name(found: re.Match[str]) -> str:
    return f"<code>{found[1].rpartition('.')[2]}</code>"
