"""The parts of a page: tables, panels, notes, and content that the reader opens."""

import html
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], named: int = 0, label: str = "") -> str:
    """A table whose cells are HTML already; the cell ``named`` of each row is the row's name. Screen readers announce the label."""
    header = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(_cell(cell, place == named) for place, cell in enumerate(row))}</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{html.escape(label or head[named])}"><table><thead>'
        f"<tr>{header}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(content: str, names_row: bool) -> str:
    return f'<th scope="row">{content}</th>' if names_row else f"<td>{content}</td>"


def long(text: str) -> str:
    """A cell that may have several lines."""
    return f'<div class="long">{html.escape(text)}</div>'


def panel(content: str) -> str:
    return f'<div class="panel">{content}</div>'


def note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


def on_demand(title: str, content: str) -> str:
    """Content that is closed until the reader opens it; empty text for empty content."""
    return f"<details><summary>{html.escape(title)}</summary>{content}</details>" if content else ""


def grid(charts: Sequence[str], small: bool = False) -> str:
    """Charts side by side, as many as fit; empty text if all are empty."""
    drawn = "".join(charts)
    return f'<div class="charts{" small" * small}">{drawn}</div>' if drawn else ""
