"""Objects that a notebook or a prompt shows as a short list of topics."""

import html
from collections.abc import Iterable


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
