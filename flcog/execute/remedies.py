"""Adds a remedy to errors of torch in a client's step, if the cause is known."""

REMEDIES = {
    "Expected more than 1 value per channel when training": (
        "BatchNorm cannot train on a batch of one sample: data.drop_last=True leaves out the last, smaller batch, or choose another "
        "data.batch_size"
    ),
}
"""The beginning of an error's message, and the remedy."""


def add_remedy(error: Exception) -> None:
    """Add a note to the error."""
    for beginning, remedy in REMEDIES.items():
        if str(error).startswith(beginning):
            error.add_note(remedy)
