"""How a partition falls over the clients: a table for people to read, and its numbers for trackers.

``flcog partition`` prints both before anybody spends a night on a split, and a run logs the numbers when it starts.
"""

from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from scipy.sparse import csr_array

from flcog.data import Federation
from flcog.data.label_statistics import kl_to_uniform, label_table, num_labels

Numbers = dict[str, float | int | str]

_QUANTILES = {"min": 0.0, "10%": 0.1, "median": 0.5, "90%": 0.9, "max": 1.0}


def partition_report(federation: Federation, max_rows: int = 30) -> tuple[RenderableType, Numbers]:
    """A table of how the training samples fall over the clients, to print with rich, and its numbers, to log.

    Up to ``max_rows`` clients have a row each, with the user's name where a client is one user; quantiles over the clients follow,
    and stand alone for more. It fits 80 columns: figures keep their width and lists of labels wrap.

    The numbers: ``clients``, ``samples/train``, ``samples/left_out`` (of no client), ``samples/client_test`` and
    ``samples/client_val`` where parts are held out, ``classes``, ``hash``, ``imbalance/classes`` and ``imbalance/clients`` (the
    largest over the smallest), ``kl/pooled`` (of all clients' samples together), and ``min``, ``median``, ``max`` and ``mean``
    over the clients of ``size``, ``labels`` and ``kl`` (to the uniform distribution, in nats). The classes of a regression are the
    bins of its target. Data without targets have no numbers of classes, labels and divergences.
    """
    held_out = {"test": federation.client_test, "val": federation.client_val}
    sizes, parts = federation.partition.sizes, {name: part.sizes for name, part in held_out.items() if part is not None}
    columns: dict[str, np.ndarray] = {"samples": sizes, **parts}
    numbers: Numbers = {
        "clients": federation.num_clients,
        "samples/train": int(sizes.sum()),
        "samples/left_out": len(federation.train) - int(sizes.sum()) - sum(int(part.sum()) for part in parts.values()),
        **{f"samples/client_{name}": int(part.sum()) for name, part in parts.items()},
        "hash": federation.split.hash,
        "imbalance/clients": _ratio(sizes),
    }
    counts = label_table(federation)[:, : num_labels(federation)] if federation.train.labelled else None
    if counts is not None:
        columns |= {"labels": np.diff(counts.indptr), "KL": kl_to_uniform(counts)}
        of_all = csr_array(counts.sum(axis=0)[None])
        numbers |= {"classes": counts.shape[1], "kl/pooled": float(kl_to_uniform(of_all)[0])}
        numbers["imbalance/classes"] = _ratio(of_all.toarray()[0])
    for name, column in {"size": "samples", "labels": "labels", "kl": "KL"}.items():
        if column in columns:
            values = columns[column][np.isfinite(columns[column])]
            for statistic in ("min", "median", "max", "mean"):
                numbers[f"{name}/{statistic}"] = float(getattr(np, statistic)(values)) if len(values) else float("nan")
    tables: list[RenderableType] = [_headline(federation, numbers)]
    if federation.num_clients <= max_rows:
        tables.append(_client_rows(federation, columns, counts, numbers))
    tables.append(_quantile_rows(columns))
    return Group(*tables), numbers


def without_clients(numbers: Numbers) -> Numbers:
    """The numbers that tell of all clients together and of no single one, as the largest or the smallest does."""
    of_clients = ("imbalance/clients", "size/", "labels/", "kl/min", "kl/median", "kl/max", "kl/mean")
    return {name: value for name, value in numbers.items() if not name.startswith(of_clients)}


def _headline(federation: Federation, numbers: Numbers) -> Text:
    classes = "bins of the target" if federation.task == "regression" else "classes"
    left_out = f", {numbers['samples/left_out']:,} left out" if numbers["samples/left_out"] else ""
    samples = f"{numbers['samples/train']:,} of {len(federation.train):,} samples to train on{left_out}"
    clients, ratio = f"Partition {numbers['hash']}: {numbers['clients']:,} clients", f"client {numbers['imbalance/clients']:.3g}"
    if "classes" not in numbers:
        return Text(f"{clients}, no targets\n{samples}\nLargest/smallest: {ratio}")
    return Text(
        f"{clients}, {numbers['classes']:,} {classes}\n{samples}\n"
        f"Largest/smallest: class {numbers['imbalance/classes']:.3g}, {ratio}; pooled KL to uniform {numbers['kl/pooled']:.3f}"
    )


def _client_rows(federation: Federation, columns: dict[str, np.ndarray], counts: csr_array | None, numbers: Numbers) -> Table:
    rows = [[_name(federation, k), *(_cell(values[k]) for values in columns.values())] for k in range(federation.num_clients)]
    rows.append(["all", *(_cell(values.sum()) for name, values in columns.items() if name not in ("labels", "KL"))])
    if counts is None:
        return _table(["client", *columns], rows, total=True)
    of_all = counts.sum(axis=0)
    rows[-1] += [_cell(np.count_nonzero(of_all)), f"{numbers['kl/pooled']:.3f}"]
    for row, own in zip(rows, [*(counts[[k]].toarray()[0] for k in range(federation.num_clients)), of_all], strict=True):
        row.append(_commonest(federation, own))
    return _table(["client", *columns], rows, text_column="most frequent labels", total=True)


def _name(federation: Federation, client: int, most: int = 20) -> str:
    """A client's number, and the name of its user if all of its samples have the same."""
    users = federation.train.users
    own: Any = [] if users is None else np.unique(users[federation.partition.client(client)])
    name = str(own[0]) if len(own) == 1 else ""
    return f"{client} {name if len(name) <= most else name[: most - 1] + '…'}".rstrip()


def _quantile_rows(columns: dict[str, np.ndarray]) -> Table:
    rows = []
    for name, values in columns.items():
        finite = values[np.isfinite(values)]
        statistics = [*np.quantile(finite, list(_QUANTILES.values())), finite.mean()] if len(finite) else [np.nan] * 6
        cells = [f"{value:.3f}" if name == "KL" else f"{value:,.{int(value < 100 and value % 1 > 0)}f}" for value in statistics]
        rows.append(["KL to uniform" if name == "KL" else name, *cells])
    return _table(["per client", *_QUANTILES, "mean"], rows)


def _table(header: list[str], rows: list[list[str]], text_column: str | None = None, total: bool = False) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(header):
        # In a narrow terminal rich would shorten both figures and text; figures keep their width.
        width = max(len(name), *(len(row[number]) for row in rows))
        table.add_column(name, justify="right" if number else "left", min_width=width, no_wrap=True)
    if text_column is not None:
        table.add_column(text_column)
    for row in rows:
        table.add_row(*row, end_section=total and row is rows[-2])
    return table


def _cell(value: float | np.number) -> str:
    return f"{value:,}" if isinstance(value, int | np.integer) else f"{value:.3f}"


def _commonest(federation: Federation, counts: np.ndarray, most: int = 3) -> str:
    """The ``most`` commonest labels of a client with their counts, e.g. ``ship:4,165  dog:4,165``."""
    labels = np.argsort(-counts, kind="stable")[: min(most, np.count_nonzero(counts))]
    names = federation.class_names
    return "  ".join(f"{names[label] if names else label}:{counts[label]:,}" for label in labels)


def _ratio(counts: np.ndarray) -> float:
    return float(counts.max() / counts.min()) if counts.min() > 0 else float("inf")
