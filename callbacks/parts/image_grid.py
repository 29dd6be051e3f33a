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
        >>> len(image_grid(torch.zeros(2, 5, 8, 8, 1), ["noise", "generated"]).axes)
        10
    """
    columns = len(rows[0]) if columns is None else columns
    figure = Figure(figsize=(columns * cell + 0.6, len(rows) * cell + 0.4))
    axes = figure.subplots(len(rows), columns, squeeze=False, gridspec_kw={"wspace": 0.06, "hspace": 0.06})
    for row, images in enumerate(rows):
        axes[row, 0].set_ylabel(row_names[row], fontsize=8)
        for column in range(columns):
            axes[row, column].set(xticks=[], yticks=[], frame_on=False)
            if column < len(images):
                image = images[column]
                # With other than three channels, show their mean as grey.
                axes[row, column].imshow((image if image.shape[-1] == 3 else image.mean(-1)).numpy(), cmap="gray", vmin=0, vmax=1)
    for column, name in enumerate(column_names[:columns]):
        axes[0, column].set_title(name, fontsize=8)
    return figure
