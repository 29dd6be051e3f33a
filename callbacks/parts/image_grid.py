"""A figure of images in rows and columns, for trackers and the run's directory."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from torch import Tensor


def image_grid(
    rows: Sequence[Tensor],
    row_names: Sequence[str],
    column_names: Sequence[str] = (),
    columns: int | None = None,
    cell: float = 1.0,
) -> Figure:
    """Rows of images [N, H, W, C] of colours in [0, 1], each row with its name.

    Example:
        >>> import torch
        >>> len(image_grid(torch.zeros(2, 5, 8, 8, 1), ["noise", "generated"]).axes[0].images)
        10
    """
    columns = len(rows[0]) if columns is None else columns
    figure = Figure(figsize=(columns * cell + 0.6, len(rows) * cell + 0.4))
    axes = figure.subplots()
    for row, images in enumerate(rows):
        for column, image in enumerate(images[:columns]):
            # With other than three channels, show their mean as grey.
            pixels = (image if image.shape[-1] == 3 else image.mean(-1)).numpy()
            axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, extent=(column, column + 0.94, row + 0.94, row))
    axes.set(xlim=(0, columns), ylim=(len(rows), 0), frame_on=False)
    axes.set_yticks([row + 0.5 for row in range(len(rows))], row_names, fontsize=8, rotation=90, va="center")
    axes.set_xticks([column + 0.5 for column in range(len(column_names))], column_names, fontsize=8)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    return figure
