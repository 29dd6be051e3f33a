"""The rows of ``clients.csv`` as a picture, which ``trainer.plot("clients")`` and ``flcog report`` draw."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from flcog.run.history_figure import HistoryFigure, framed, in_percent


def client_figure(table: Mapping[str, np.ndarray], rows: Sequence[Mapping[str, float]]) -> HistoryFigure:
    """Each score against the client's samples, in order, and its spread over the rounds; and how often clients were selected."""
    if "times_selected" not in table:
        raise ValueError("a private method withholds all figures of single clients: there is nothing to draw")
    scores = {name: values for name, values in table.items() if "/client_" in name or "/personal_" in name}
    scores = {name: values for name, values in scores.items() if name.startswith("test/")} or scores
    count = 4 if scores else 1
    figure = HistoryFigure(figsize=(4.0 * count, 3.6), layout="constrained")
    *places, last = figure.subplots(1, count, squeeze=False)[0]
    for number, (name, values) in enumerate(scores.items()):
        (by_size, in_order, by_round), colour = places, f"C{number}"
        by_size.scatter(table["samples"], values, s=14, alpha=0.7, color=colour, label=name)
        ordered = np.sort(values[~np.isnan(values)])
        in_order.bar(np.arange(len(ordered)), ordered, width=1.0, alpha=0.55, color=colour)
        known = [row for row in rows if f"{name}_q50" in row]
        low, middle, high = ([row[f"{name}_q{q}"] for row in known] for q in (10, 50, 90))
        rounds = [row["round"] for row in known]
        by_round.plot(rounds, middle, color=colour, marker="." * (len(known) < 40))
        by_round.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        for axes in places:
            in_percent(axes, name, values[~np.isnan(values)])
    for axes, x in zip(places, ("samples", "clients, by score", "round: median, 10 % to 90 %"), strict=False):
        framed(axes, x, "score")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    most = int(table["times_selected"].max())
    last.hist(table["times_selected"], bins=np.arange(min(most + 1, 40) + 1) * max(1, -(-most // 40)) - 0.5, color="C7")
    framed(last, "times selected", "clients")
    for axis in (last.xaxis, last.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    if scores:
        figure.legend(loc="outside upper left", ncols=len(scores), frameon=False)
    return figure
