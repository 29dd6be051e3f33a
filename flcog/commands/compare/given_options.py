"""Refuses options that ``flcog compare`` sets for each run, because its own values would take the place of the user's without a word."""

from collections.abc import Iterable

SEED, SPLIT_SEED, FOLDER = "seed_everything", "data.partition_seed", "trainer.default_root_dir"
"""The options for the seed of a run, for the seed that draws the split of the data over the clients, and for the run's folder."""

REMEDIES = {
    SEED: "the table sets it for each run: give --seeds before --, or seeds in the table's file",
    SPLIT_SEED: "the table's seeds draw the split: remove it, or set vary to [seed]",
    FOLDER: "the table sets it for each run: give --out before --",
}


def check_given(names: Iterable[str], varies_split: bool) -> None:
    """Refuse them.

    Args:
        names: of the given options.
        varies_split: whether the table's seeds draw the split, too.
    """
    found = {*names} & (REMEDIES.keys() if varies_split else REMEDIES.keys() - {SPLIT_SEED})
    for name in sorted(found):
        raise ValueError(f"{name} is given, and {REMEDIES[name]}")
