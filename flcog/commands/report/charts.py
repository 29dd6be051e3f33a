"""Line charts as inline SVG. They can be read without colour, and each has a table of its numbers for readers who cannot see it."""

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from flcog.commands.report.markup import on_demand, table
from flcog.core.text import human

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 12, 44
DASHES = ("none", "7 4", "3 3", "9 3 2 3")
NUM_STYLES = 8
"""Lines beyond these would repeat a style, so they are grey."""

MOST_POINTS = 600
"""More points than a screen has columns; longer series are thinned."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Args:
        label: its name in the legend.
        points: (x, y), by x.
        band: (x, low, high) of the area around it.
        style: its colour and dashes, from 0 to 7; None for a thin grey line.
        quiet: whether the band is hidden until the reader points at the line's name in the legend.
    """

    label: str
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = field(default_factory=list)
    style: int | None = 0
    quiet: bool = False

    @property
    def css(self) -> str:
        """The class of its colour."""
        return "other" if self.style is None else f"s{self.style}"

    @property
    def dash(self) -> str:
        return "none" if self.style is None else DASHES[self.style % len(DASHES)]

    @property
    def key(self) -> str:
        """A short piece of the line, for legends."""
        line = f'<line class="{self.css} line" stroke-dasharray="{self.dash}" x1="1" x2="29" y1="5" y2="5"/>'
        return f'<svg class="key" viewBox="0 0 30 10" aria-hidden="true">{line}</svg>'

    @property
    def drawn(self) -> list[Point]:
        """Its finite points, thinned to as many as a screen can show."""
        finite = [point for point in self.points if all(map(math.isfinite, point))]
        step = -(-len(finite) // MOST_POINTS)
        return [*finite[:: max(1, step)], *(finite[-1:] if step > 1 else [])]


@dataclass(frozen=True)
class Axis:
    """An axis: its label, and the unit of its numbers (none, "%" or "bytes")."""

    label: str
    unit: str = ""

    def text(self, value: float, step: float = 0.0) -> str:
        """A value as text; for ticks that are ``step`` apart, with enough digits to tell them apart."""
        if step and self.unit != "bytes" and not isinstance(value, int):
            scale = 100 if self.unit == "%" else 1
            digits = max(0, -math.floor(math.log10(scale * step) + 1e-9))
            return f"{scale * value:,.{digits}f}" if digits < 6 else f"{scale * value:.3g}"
        if self.unit == "%":
            return f"{100 * value:.4g}"
        if isinstance(value, int) and self.unit == "":
            return f"{value:,}"
        return human(value).replace(".0 ", " ") if self.unit == "bytes" else f"{value:.4g}"

    @property
    def note(self) -> str:
        return " (%)" if self.unit == "%" else ""


def line_chart(title: str, x: Axis, y: Axis, series: Sequence[Series], note: str = "", keys: bool = True) -> str:
    """A figure with a heading, a legend (if ``keys``), lines and a table of the numbers; empty text if no series has a finite point."""
    shown = sorted((one for one in series if one.drawn), key=lambda one: one.style is not None)  # grey lines are drawn first
    if not shown:
        return ""
    frame = Frame(x, y, shown)
    noted, named = f"<p>{html.escape(note)}</p>" if note else "", legend(shown) if keys else ""
    lines = "".join(_band(one, frame) + _line(one, frame) for one in shown)
    values = {"x": x.label, "series": [_for_script(one, frame) for one in shown], "left": LEFT, "right": WIDTH - RIGHT}
    data = json.dumps(values).replace("<", "\\u003c")
    return (
        f'<figure class="chart"><figcaption><h3>{html.escape(title + y.note)}</h3>{noted}{named}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(_spoken(title, y, shown))}">'
        f'{frame.axes()}{lines}<g class="cursor"></g></svg>'
        f'<p class="reading" aria-hidden="true">&nbsp;</p><script type="application/json">{data}</script>{_numbers(x, y, shown)}</figure>'
    )


class Frame:
    """Maps values to places in the picture, and draws the axes."""

    def __init__(self, x: Axis, y: Axis, series: Sequence[Series]) -> None:
        self.x, self.y = x, y
        points = [point for one in series for point in one.drawn]
        across, up = [px for px, _ in points], [py for _, py in points]
        up += [value for one in series for _, *band in one.band for value in band if math.isfinite(value)]
        self.x_ticks = ticks(min(across), max(across), whole=x.unit == "", binary=x.unit == "bytes")
        self.y_ticks = ticks(min(up), max(up), binary=y.unit == "bytes")
        self.x_range = (min(across), max(across)) if min(across) < max(across) else (min(across) - 0.5, max(across) + 0.5)
        self.y_range = (min(self.y_ticks[0], *up), max(self.y_ticks[-1], *up))

    def at(self, px: float, py: float) -> Point:
        (x0, x1), (y0, y1) = self.x_range, self.y_range
        return (
            LEFT + (px - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (py - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM),
        )

    def axes(self) -> str:
        parts, bottom = [], HEIGHT - BOTTOM
        for value in self.y_ticks:
            height = self.at(self.x_range[0], value)[1]
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>')
            parts.append(_text(LEFT - 8, height + 4, self.y.text(value, self.y_ticks[1] - self.y_ticks[0]), "end"))
        for value in self.x_ticks:
            if self.x_range[0] <= value <= self.x_range[1]:
                place = self.at(value, self.y_range[0])[0]
                parts.append(f'<line class="tick" x1="{place:.1f}" x2="{place:.1f}" y1="{bottom}" y2="{bottom + 5}"/>')
                parts.append(_text(place, bottom + 19, self.x.text(value), "middle"))
        parts.append(f'<line class="tick" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
        parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, self.x.label, "middle", "name"))
        return "".join(parts)


def ticks(low: float, high: float, whole: bool = False, binary: bool = False, wanted: int = 5) -> list[float]:
    """Round numbers from at or below ``low`` to at or above ``high``.

    >>> ticks(0.13, 0.92), ticks(1, 20, whole=True), ticks(0, 5 * 2**20, binary=True)[1] == 2**20
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0, 5, 10, 15, 20], True)
    """
    if high <= low:
        low, high = low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)
    unit = 1024.0 ** max(0, math.floor(math.log(max(abs(low), abs(high), 1), 1024))) if binary else 1.0
    raw = (high - low) / wanted / unit
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * base for base in (1, 2, 5, 10) if raw <= power * base * 1.0001)
    step = max(1, round(step)) if whole else step
    first, last = math.floor(low / unit / step + 1e-9), math.ceil(high / unit / step - 1e-9)
    values = [round(number * step, 12) * unit for number in range(first, last + 1)]
    return [int(value) for value in values] if whole else values


def _line(one: Series, frame: Frame) -> str:
    places = [frame.at(*point) for point in one.drawn]
    if len(places) == 1:
        return f'<circle class="{one.css} dot" cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="4"/>'
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
    return f'<polyline class="{one.css} line" stroke-dasharray="{one.dash}" points="{path}"/>'


def _band(one: Series, frame: Frame) -> str:
    band = [values for values in one.band if all(map(math.isfinite, values))]
    if len(band) < 2:
        return ""
    edge = [frame.at(px, high) for px, _, high in band] + [frame.at(px, low) for px, low, _ in reversed(band)]
    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in edge)
    return f'<polygon class="{one.css} band{" quiet" * one.quiet}" points="{points}"/>'


def legend(series: Sequence[Series], css: str = "") -> str:
    """A list of the lines' names; empty text for a single line without a name."""
    if len(series) == 1 and not series[0].label:
        return ""
    keys = "".join(
        f'<li data-style="{one.css}" tabindex="0">{one.key}{html.escape(one.label)}</li>'
        for one in series
        if one.style is not None
    )
    grey = [one for one in series if one.style is None]
    keys += f"<li>{grey[0].key}{len(grey)} others: point at a chart to read them</li>" if grey else ""
    return f'<ul class="legend {css}">{keys}</ul>'


def _numbers(x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """The numbers as a table, closed until the reader opens it."""
    by_x = [dict(one.points) for one in series]
    rows = sorted({px for values in by_x for px in values})
    shown = rows[:: max(1, -(-len(rows) // MOST_POINTS))]
    cells = ([x.text(row), *(y.text(values[row]) if row in values else "" for values in by_x)] for row in shown)
    return on_demand("The numbers", table([x.label, *(one.label or y.label for one in series)], cells, label="numbers"))


def _spoken(title: str, y: Axis, series: Sequence[Series]) -> str:
    """The text that screen readers read instead of the picture."""
    unit = y.unit if y.unit == "%" else ""
    ends = "; ".join(f"{one.label or y.label} ends at {y.text(one.drawn[-1][1])}{unit}" for one in series)
    return f"{title}. {ends}. The numbers follow in a table."


def _for_script(one: Series, frame: Frame) -> dict[str, object]:
    """The points' places in the picture, with their values as text."""
    return {
        "label": one.label,
        "css": one.css,
        "points": [[round(v, 1) for v in frame.at(*p)] + [frame.x.text(p[0]), frame.y.text(p[1])] for p in one.drawn],
    }


def _text(px: float, py: float, text: str, anchor: str, css: str = "") -> str:
    return f'<text class="{css}" x="{px:.1f}" y="{py:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
