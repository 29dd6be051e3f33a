"""Format durations, sizes, figures, errors and tables as text, and guess at misspelt names."""

import difflib
import html
import textwrap
from collections.abc import Iterable
from typing import Any


def seconds(value: float) -> str:
    """Format a short time with its unit: 0.0213 is "21 ms", 0.213 "0.21 s"."""
    if value < 0.1:
        return f"{value * 1000:.0f} ms" if value >= 0.01 else f"{value * 1000:.1f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def human(num_bytes: float) -> str:
    """Format a size in bytes: 1536 is "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def clock(value: float) -> str:
    """Format a long time like a clock: 75 is "1:15", 3675 "1:01:15", 100000 "1 d 3:46:40"."""
    minutes, second = divmod(round(value), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days} d " if days else "") + (f"{hour}:{minute:02d}" if hours else f"{minute}") + f":{second:02d}"


def figure(value: float) -> str:
    """Format a metric's value: 0.87324 is "0.8732", 20140009472.0 "2.014e+10"."""
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"


def first_paragraph(documented: Any) -> str:
    """Return the first paragraph of a docstring, or of a class's or a function's, in one line."""
    text = documented if isinstance(documented, str) else documented.__doc__ or ""
    return " ".join(text.strip().split("\n\n")[0].split())


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the error's class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def reason(error: BaseException) -> str:
    """An error's first sentences in one line."""
    return textwrap.shorten(str(error).strip() or type(error).__name__, 200)


def clipped(text: str) -> str:
    """The first sixty characters of a text, with dots in place of the last three if there are more."""
    return text if len(text) <= 60 else f"{text[:57]}..."


ELSEWHERE = {
    "FedAvg": " A run without methods is FedAvg.",
    "clients": " Did you mean the data's 'num_clients'?",
    "learning_rate": " Did you mean the model's 'optimizer.lr'?",
    "lr": " Did you mean the model's 'optimizer.lr'?",
    "methods": " Did you mean 'callbacks'?",
    "optimizer": " Did you mean the model's 'optimizer'?",
}
"""What to say of names that people bring from other frameworks."""


def guess(name: str, names: Iterable[str]) -> str:
    """Ask whether the nearest of ``names`` was meant, or one that begins so, ignoring upper and lower case. Empty if no name is near."""
    by_lower, given = {known.lower(): known for known in names}, name.lower()
    close = difflib.get_close_matches(given, by_lower, n=1, cutoff=0.65)
    close = close or [known for known in by_lower if len(given) > 3 and known.startswith(given)]
    return ELSEWHERE.get(name.rpartition(".")[2].rstrip("+")) or (f" Did you mean {by_lower[close[0]]!r}?" if close else "")


def markdown(header: list[str], rows: Iterable[Iterable[Any]]) -> str:
    """Format a table in Markdown. True becomes "yes", and False an empty cell."""
    lines = [_line(header), "|" + "---|" * len(header)]
    return "\n".join([*lines, *map(_line, rows)])


def _line(row: Iterable[Any]) -> str:
    """A line of a table, whose cells may contain what would end a cell."""
    return "| " + " | ".join(cell_text(value).replace("|", r"\|").replace("\n", " ") for value in row) + " |"


def cell_text(value: Any) -> str:
    return str(value) if not isinstance(value, bool) else "yes" if value else ""


class TopicList:
    """Shows the topics of ``_topics`` as text, and as a table in a notebook."""

    def _topics(self) -> Iterable[tuple[str, str]]:
        """Yield pairs of a topic and its text."""
        raise NotImplementedError

    def __repr__(self) -> str:
        rows = list(self._topics())
        width = max(len(topic) for topic, _ in rows)
        return "\n".join([type(self).__name__, *(f"  {topic:<{width}}  {text}" for topic, text in rows)])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        cells = (
            f'<tr><th scope="row" style="text-align: left">{html.escape(topic)}</th>'
            f'<td style="text-align: left">{html.escape(text)}</td></tr>'
            for topic, text in self._topics()
        )
        return f"<table><caption>{html.escape(type(self).__name__)}</caption>{''.join(cells)}</table>"
