"""The limits of evaluations and predictions: ``limit_val_batches``, ``limit_test_batches`` and ``limit_predict_batches``."""

from collections.abc import Mapping

from flcog.data import Federation


def rows_within(limit: int | float, count: int, batch_size: int) -> int:
    """The number of rows that a limit leaves of a set.

    Args:
        limit: a number of batches, or a part of all batches, which is rounded down.
        count: the number of the set's rows.
        batch_size: of the evaluation.
    """
    batches = -(-count // batch_size)
    return min(count, batch_size * (limit if isinstance(limit, int) else int(limit * batches)))


def check_limits(limits: Mapping[str, int | float], federation: Federation, batch_size: int) -> None:
    """Refuse a part of a central set that is less than one batch, as Lightning does. A limit of 0 leaves the set out."""
    for split, samples in (("val", federation.val), ("test", federation.test)):
        limit = limits.get(split, 1.0)
        for count in (samples.loaders or (len(samples),)) if samples is not None and limit else ():
            if count and not rows_within(limit, count, batch_size):
                option = f"limit_{split}_batches" + " (or overfit_batches)" * (split == "val")
                raise ValueError(
                    f"{option} must leave one batch; got {limit:g} of {-(-count // batch_size)} with up to {batch_size} samples of the "
                    f"{split} set: give a number of batches, or lower data.eval_batch_size"
                )
